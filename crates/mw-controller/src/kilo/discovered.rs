//! Cache of discovered endpoints: Kilo drops its entries for some seconds around
//! every reload, and Peers must keep their endpoints meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use mw_core::endpoint::Endpoint;
use mw_core::key::PublicKey;
use mw_core::kilo::{DISCOVERED_SECONDS, LastDiscovery, Vanished};
use mw_core::names::ClusterId;
use mw_core::time::Timestamp;

use crate::engine::Changes;
use crate::kilo::engine::Engine;

/// Endpoints that a cluster's nodes list, and those that they no longer list.
#[derive(Debug, Default)]
pub(super) struct Discovered {
    observed: BTreeMap<PublicKey, Endpoint>,
    vanished: Vanished,
    /// Sources whose Peers in this cluster were checked since this process started.
    known: BTreeSet<ClusterId>,
}

/// Endpoints on Peers of nodes that have none of their own, by source and key.
type Unsourced = BTreeMap<(ClusterId, PublicKey), Endpoint>;

impl Discovered {
    /// Takes in the endpoints that the nodes list now. An endpoint that is still on
    /// a Peer is kept, to tell that Peer from one with a configured endpoint.
    fn note(
        &mut self,
        observed: BTreeMap<PublicKey, Endpoint>,
        unsourced: &Unsourced,
        now: Timestamp,
    ) {
        let until = now.plus(DISCOVERED_SECONDS);
        for (key, endpoint) in std::mem::replace(&mut self.observed, observed) {
            self.vanished.insert(key, LastDiscovery { endpoint, until });
        }
        let written: BTreeSet<(&PublicKey, &Endpoint)> = unsourced
            .iter()
            .map(|((_, key), endpoint)| (key, endpoint))
            .collect();
        let lasts = |key: &PublicKey, last_discovery: &LastDiscovery| {
            last_discovery.until > now || written.contains(&(key, &last_discovery.endpoint))
        };
        self.vanished.retain(|key, last_discovery| {
            !self.observed.contains_key(key) && lasts(key, last_discovery)
        });
    }

    /// Takes in endpoints on Peers that an earlier process wrote. If the node has no
    /// endpoint of its own when first seen, its endpoint counts as discovered.
    fn note_first(&mut self, source: &ClusterId, unsourced: &Unsourced, now: Timestamp) {
        if !self.known.insert(source.clone()) {
            return;
        }
        let until = now.plus(DISCOVERED_SECONDS);
        for ((_, key), endpoint) in unsourced.iter().filter(|((of, _), _)| of == source) {
            if !self.observed.contains_key(key) {
                self.vanished.entry(*key).or_insert_with(|| LastDiscovery {
                    endpoint: endpoint.clone(),
                    until,
                });
            }
        }
    }
}

impl Engine {
    /// Passes the endpoints that vanished from clusters with changed Nodes to the planner.
    pub(super) fn hand_over_discovered(&mut self, changes: &Changes) {
        let Some(planner) = &mut self.state.planner else {
            return;
        };
        let mut changed = changes.clusters.clone();
        let sources: Vec<ClusterId> = self
            .members
            .keys()
            .filter(|cluster| changes.listed && planner.observed(cluster).is_some())
            .cloned()
            .collect();
        changed.extend(sources.iter().cloned());
        for cluster in changed {
            let Some(member) = self.members.get_mut(&cluster) else {
                continue;
            };
            // The endpoints that an unreadable cluster's nodes list are unknown.
            let Some((observed, unsourced)) =
                planner.observed(&cluster).zip(planner.unsourced(&cluster))
            else {
                continue;
            };
            member.state.discovered.note(observed, &unsourced, self.now);
            sources.iter().for_each(|source| {
                member
                    .state
                    .discovered
                    .note_first(source, &unsourced, self.now)
            });
            planner.set_vanished(&cluster, member.state.discovered.vanished.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_remembered_from_the_moment_its_key_vanishes() {
        let key = PublicKey::try_from("AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=").unwrap();
        let seen = |port: u16| {
            BTreeMap::from([(
                key,
                Endpoint::try_from(format!("198.51.100.7:{port}").as_str()).unwrap(),
            )])
        };
        let (mut memory, none) = (Discovered::default(), Unsourced::new());
        memory.note(seen(1), &none, Timestamp(0));
        memory.note(seen(2), &none, Timestamp(50));
        assert!(memory.vanished.is_empty());
        memory.note(BTreeMap::new(), &none, Timestamp(100));
        let last_discovery = LastDiscovery {
            endpoint: seen(2)[&key].clone(),
            until: Timestamp(400),
        };
        assert_eq!(memory.vanished, BTreeMap::from([(key, last_discovery)]));
        memory.note(BTreeMap::new(), &none, Timestamp(399));
        assert_eq!(memory.vanished.len(), 1, "it is not renewed");
        memory.note(seen(3), &none, Timestamp(399));
        assert!(memory.vanished.is_empty(), "a new observation replaces it");
        memory.note(BTreeMap::new(), &none, Timestamp(400));
        memory.note(BTreeMap::new(), &none, Timestamp(700));
        assert!(memory.vanished.is_empty());
    }

    #[test]
    fn a_dropped_endpoint_stays_known_while_a_peer_has_it() {
        let key = PublicKey::try_from("AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=").unwrap();
        let endpoint = Endpoint::try_from("198.51.100.7:1").unwrap();
        let written = Unsourced::from([((ClusterId::from("a"), key), endpoint.clone())]);
        let mut memory = Discovered::default();
        memory.note(BTreeMap::from([(key, endpoint)]), &written, Timestamp(0));
        memory.note(BTreeMap::new(), &written, Timestamp(100));
        memory.note(BTreeMap::new(), &written, Timestamp(1000));
        assert_eq!(
            memory.vanished[&key].until,
            Timestamp(400),
            "it no longer counts, but is known"
        );
        memory.note(BTreeMap::new(), &Unsourced::new(), Timestamp(1000));
        assert!(
            memory.vanished.is_empty(),
            "the Peer has no endpoint any more"
        );
    }

    #[test]
    fn an_endpoint_that_an_earlier_process_left_counts_as_discovered_once() {
        let key = PublicKey::try_from("AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=").unwrap();
        let endpoint = Endpoint::try_from("198.51.100.7:1").unwrap();
        let source = ClusterId::from("a");
        let written = Unsourced::from([((source.clone(), key), endpoint.clone())]);
        let mut memory = Discovered::default();
        memory.note_first(&source, &written, Timestamp(100));
        assert_eq!(
            memory.vanished,
            BTreeMap::from([(
                key,
                LastDiscovery {
                    endpoint,
                    until: Timestamp(400)
                }
            )])
        );
        let mut later = Discovered::default();
        later.note_first(&source, &Unsourced::new(), Timestamp(100));
        later.note_first(&source, &written, Timestamp(200));
        assert!(
            later.vanished.is_empty(),
            "the node lost its endpoint under our eyes"
        );
    }
}
