//! The clusters as sources: their nodes, and those known to be deleted.

use std::collections::BTreeMap;

use crate::key::PublicKey;
use crate::kilo::node::Nodes;
use crate::names::{ClusterId, NodeName};
use crate::seen::Seen;

/// Nodes known to be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Departures {
    /// Those whose delete event was observed, with their last known key: a Peer
    /// with another key belongs to another node of that name.
    Seen(BTreeMap<NodeName, Option<PublicKey>>),
    /// Every node that is not listed, unless none is.
    AnyMissing,
}

impl Default for Departures {
    fn default() -> Self {
        Departures::Seen(BTreeMap::new())
    }
}

/// A cluster as a source. Its state as a target is in `targets`, if known.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) nodes: Seen<Nodes>,
    pub(super) departures: Departures,
    pub(super) peers_unknown: Option<String>,
}

/// All clusters, by id.
#[derive(Clone, Copy)]
pub(super) struct Sources<'a>(pub(super) &'a BTreeMap<ClusterId, Cluster>);

impl<'a> Sources<'a> {
    /// The Nodes of a cluster, if known.
    pub(super) fn nodes(self, cluster: &ClusterId) -> Option<&'a Nodes> {
        self.0.get(cluster)?.nodes.known()
    }

    /// The nodes of a cluster that are known to be deleted.
    pub(super) fn left(self, cluster: &ClusterId) -> &'a Departures {
        const ANY: &Departures = &Departures::AnyMissing;
        self.0
            .get(cluster)
            .map_or(ANY, |cluster| &cluster.departures)
    }
}
