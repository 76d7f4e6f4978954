//! State of the Kilo back end about a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mw_core::cilium::facts::CaId;
use mw_core::kilo::Nodes;
use mw_core::kilo::node::Node;
use mw_core::kilo::peer::PeerFacts;
use mw_core::names::{NodeName, PeerName};
use mw_core::time::Timestamp;
use tokio::time::Instant;

use crate::fleet::follow::{Observed, Version};
use crate::kilo::discovered::Discovered;
use crate::kilo::engine::Kilo;
use crate::kilo::history::Lineage;
use crate::own_writes::OwnWrites;

pub(super) type Member = crate::engine::Member<Kilo>;

/// Time for which a removed cluster stays connected, to delete its Peers.
pub(super) const LINGER: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(super) struct MemberState {
    pub(super) recent: OwnWrites<PeerName, PeerFacts>,
    /// Last watch event of each Peer with a write in flight.
    pub(super) early: BTreeMap<PeerName, Observed<PeerFacts>>,
    /// Nodes without the agent's annotations, or whose WireGuard address is still missing.
    pub(super) bare: BTreeMap<NodeName, Absence>,
    /// Time of our last write of a Peer's endpoint.
    pub(super) endpoints: BTreeMap<PeerName, Timestamp>,
    pub(super) discovered: Discovered,
    /// UIDs of some of its Nodes.
    pub(super) uids: Option<BTreeSet<String>>,
    pub(super) lineage: Lineage,
    /// Private CA that the server of the connection in use was verified against.
    pub(super) ca: Option<CaId>,
    /// Order in which this cluster was found, among all clusters.
    pub(super) identified: u64,
    pub(super) engaged_at: Instant,
    /// Time of the last list because its watch showed another cluster.
    pub(super) doubted_at: Option<Instant>,
    /// Number of lists of its Secret.
    pub(super) secret_lists: u64,
}

impl Default for MemberState {
    fn default() -> Self {
        MemberState {
            recent: OwnWrites::default(),
            early: BTreeMap::new(),
            bare: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            discovered: Discovered::default(),
            uids: None,
            lineage: Lineage::default(),
            ca: None,
            identified: 0,
            engaged_at: Instant::now(),
            doubted_at: None,
            secret_lists: 0,
        }
    }
}

/// An agent that removed its annotations.
#[derive(Debug, Clone, Copy)]
pub(super) struct Absence {
    since: Timestamp,
    /// It wrote them again, except for the WireGuard address.
    is_returning: bool,
}

/// Lists of a new connection. New credentials may lead to another cluster, whose
/// Nodes and Peers must not be mixed with those of the previous one.
#[derive(Debug, Default)]
pub(super) struct Swap {
    pub(super) nodes: Option<Nodes>,
    pub(super) peers: Option<BTreeMap<PeerName, PeerFacts>>,
}

impl Swap {
    pub(super) fn is_complete(&self) -> bool {
        self.nodes.is_some() && self.peers.is_some()
    }
}

impl Member {
    /// Restarts grace periods: nobody knows whether a Node had no annotations the
    /// whole time while it was not observed.
    pub(super) fn mark_unknown(&mut self) {
        self.state.bare.clear();
    }

    pub(super) fn seen_bare(&mut self, node: Node, now: Timestamp) -> Node {
        let absence = match (self.state.bare.get(&node.name), node.is_bare()) {
            (Some(absence), true) if !absence.is_returning => *absence,
            (_, true) => Absence {
                since: now,
                is_returning: false,
            },
            (Some(absence), false) if node.wireguard_ip == Ok(None) => Absence {
                is_returning: true,
                ..*absence
            },
            (_, false) => {
                self.state.bare.remove(&node.name);
                return node;
            }
        };
        self.state.bare.insert(node.name.clone(), absence);
        Node {
            bare_since: Some(absence.since),
            ..node
        }
    }

    /// Holds back a watch event of a Peer with a write in flight until the response
    /// arrives; returns other events.
    pub(super) fn keep_early(&mut self, seen: Observed<PeerFacts>) -> Option<Observed<PeerFacts>> {
        let (Observed::Set { item, .. } | Observed::Gone { item, .. }) = &seen else {
            return Some(seen);
        };
        let name = PeerName::from(item.name.as_str());
        if !self.writer.is_under_way(&name) {
            return Some(seen);
        }
        self.state.early.insert(name, seen);
        None
    }

    /// Replaces the events held back with the state of a list.
    pub(super) fn keep_listed(&mut self, listed: &BTreeMap<PeerName, PeerFacts>) {
        let of = |name: &PeerName| {
            let item = listed.get(name)?.clone();
            let version = Version::of(Some(&item.resource_version));
            Some((name.clone(), Observed::Set { item, version }))
        };
        self.state.early = self.writer.under_way().filter_map(of).collect();
        self.writer.was_listed();
    }

    pub(super) fn with_endpoint_time(&self, facts: PeerFacts) -> PeerFacts {
        let endpoint_written = self
            .state
            .endpoints
            .get(&PeerName::from(facts.name.as_str()))
            .copied();
        PeerFacts {
            endpoint_written,
            ..facts
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Source;
    use crate::kilo::diff::{Act, Operation, Phase};
    use mw_core::kilo::guard::DeleteCause;
    use mw_core::kilo::plan::{Delete, Precondition};

    #[tokio::test(start_paused = true)]
    async fn what_a_watch_says_of_a_peer_under_way_waits_for_the_answer() {
        let mut member = Member::new(Source::Hub);
        let on = Precondition {
            uid: "u".into(),
            resource_version: "1".into(),
        };
        let delete = Delete {
            on,
            cause: DeleteCause::Orphan,
            source: None,
        };
        let delete = Operation {
            phase: Phase::Deletes,
            name: PeerName::from("a"),
            mesh: None,
            act: Act::Delete(delete),
        };
        member.writer.offer(vec![delete]);
        assert_eq!(member.writer.next(Instant::now()).len(), 1);
        let seen = |name: &str| {
            let item = PeerFacts {
                name: name.to_owned(),
                ..PeerFacts::default()
            };
            Observed::Set {
                item,
                version: Version::default(),
            }
        };
        assert_eq!(member.keep_early(seen("a")), None);
        assert_eq!(member.keep_early(seen("b")), Some(seen("b")));
        assert_eq!(member.state.early.len(), 1);
    }
}
