//! Endpoints from which a cluster's agents received handshakes, and those that
//! its nodes no longer list.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::endpoint::{Endpoint, Host};
use crate::key::PublicKey;
use crate::kilo::declared::DeclaredIndex;
use crate::kilo::node::Nodes;
use crate::kilo::own_nodes::OwnNodes;
use crate::kilo::survey::Survey;
use crate::names::ClusterName;
use crate::problem::{Problem, Reason};
use crate::text::listed;
use crate::time::Timestamp;

/// Time for which a discovered endpoint is kept after the last node stopped
/// listing its key.
pub const DISCOVERED_SECONDS: u64 = 300;

/// Discovered endpoints of keys that no node of a cluster lists any more.
pub type Vanished = BTreeMap<PublicKey, LastDiscovery>;

/// A discovered endpoint and its expiry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastDiscovery {
    /// The address that the handshakes came from.
    pub endpoint: Endpoint,
    /// The time at which it stops being used.
    pub until: Timestamp,
}

impl LastDiscovery {
    /// Reports whether Kilo is expected to list the endpoint again.
    pub(super) fn counts(&self, declared: &DeclaredIndex, now: Timestamp) -> bool {
        self.until > now
            && self
                .endpoint
                .ip()
                .is_none_or(|ip| declared.owner(ip).is_none())
    }
}

impl OwnNodes {
    /// Kilo drops its entries for some seconds around every reload, so a
    /// discovered endpoint is kept for a while.
    pub(super) fn remember(
        &mut self,
        vanished: &Vanished,
        declared: &DeclaredIndex,
        now: Timestamp,
    ) {
        for (key, last_discovery) in vanished
            .iter()
            .filter(|(key, _)| !self.discovered.contains_key(*key))
            .collect::<Vec<_>>()
        {
            if last_discovery.counts(declared, now) {
                self.discovered
                    .insert(*key, last_discovery.endpoint.clone());
                self.remembered.insert(*key, last_discovery.until);
            } else {
                self.faded.insert(*key, last_discovery.endpoint.clone());
            }
        }
    }

    /// The discovered endpoints that a node lists now.
    pub(super) fn observed(&self) -> impl Iterator<Item = (&PublicKey, &Endpoint)> {
        self.discovered
            .iter()
            .filter(|(key, _)| !self.remembered.contains_key(*key))
    }

    /// The time at which the first remembered endpoint expires.
    pub(super) fn recheck_at(&self) -> Option<Timestamp> {
        self.remembered.values().min().copied()
    }

    /// Live observers take precedence over dead ones, then the value seen by
    /// most of them, then the first node by name.
    pub(super) fn discover(
        &mut self,
        cluster: &ClusterName,
        nodes: &Nodes,
        survey: &Survey,
        declared: &DeclaredIndex,
    ) {
        let mut last_discoveries: BTreeMap<PublicKey, Vec<(bool, SocketAddr)>> = BTreeMap::new();
        let mut unreadable = Vec::new();
        for node in nodes.values() {
            match &node.discovered {
                Err(_) => unreadable.push(&node.name),
                Ok(seen) => {
                    let alive = survey.alive.contains(&node.name);
                    for (key, at) in seen
                        .iter()
                        .filter(|(_, at)| declared.owner(at.ip()).is_none())
                    {
                        last_discoveries.entry(*key).or_default().push((alive, *at));
                    }
                }
            }
        }
        for (key, mut seen) in last_discoveries {
            if seen.iter().any(|(alive, _)| *alive) {
                seen.retain(|(alive, _)| *alive);
            }
            let votes = |at: &SocketAddr| seen.iter().filter(|(_, other)| other == at).count();
            let best = seen
                .iter()
                .map(|(_, at)| at)
                .rev()
                .max_by_key(|at| votes(at));
            if let Some(endpoint) =
                best.and_then(|at| Endpoint::new(Host::Ip(at.ip()), at.port()).ok())
            {
                self.discovered.insert(key, endpoint);
            }
        }
        if !unreadable.is_empty() {
            self.problems.push(Problem::new(
                Reason::DiscoveredEndpointsInvalid,
                cluster.to_string(),
                format!(
                    "annotation kilo.squat.ai/discovered-endpoints is invalid on {}",
                    listed(&unreadable, 5)
                ),
                "configured endpoints are used; Kilo rewrites the annotation at its next check-in",
            ));
        }
    }
}
