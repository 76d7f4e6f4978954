//! All inputs of planning.

use std::collections::{BTreeMap, BTreeSet};

use crate::kilo::discovered::Vanished;
use crate::kilo::guard::History;
use crate::kilo::node::Nodes;
use crate::kilo::ownership::Orphans;
use crate::kilo::peer::PeerFacts;
use crate::kilo::sources::Departures;
use crate::kilo::spec::Mesh;
use crate::names::{ClusterId, ClusterName, MeshId, PeerName};
use crate::seen::Seen;
use crate::time::Timestamp;

/// Planner options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// UID of the hub's kube-system namespace, if known.
    pub hub: Option<String>,
    /// Grace period of a node that lost its annotations.
    pub node_grace_seconds: u64,
    /// Delete Peers that the Go operator left for meshes that do not exist.
    pub sweep_legacy: bool,
    /// The namespace of the operator's Lease, where held orphans are confirmed.
    pub lease_namespace: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            hub: None,
            node_grace_seconds: 90,
            sweep_legacy: true,
            lease_namespace: None,
        }
    }
}

/// Observed state of one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSeen {
    /// Its Nodes, which make it a source.
    pub nodes: Seen<Nodes>,
    /// Its Peers, which make it a target.
    pub peers: Seen<BTreeMap<PeerName, PeerFacts>>,
    /// The Nodes known to be deleted, which explains deletes of their Peers.
    pub departures: Departures,
}

/// A complete list of one resource of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listing {
    /// All Nodes.
    Nodes(Seen<Nodes>),
    /// All Peers.
    Peers(Seen<BTreeMap<PeerName, PeerFacts>>),
}

/// The credentials for each cluster, as far as they limit what may be done
/// there. A cluster without an entry is not limited, as when planning from
/// files.
pub type Links = BTreeMap<ClusterId, LinkFacts>;

/// Limits of the credentials for one cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LinkFacts {
    /// Only meshes of this namespace act through the link.
    pub namespace: Option<String>,
    /// Common id of the cluster if links of several owners are proven to lead
    /// to it.
    pub proven: Option<ClusterId>,
    /// Links that may lead to the same cluster.
    pub kin: BTreeSet<ClusterId>,
}

/// All inputs of planning.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct World {
    /// Options that don't change while the planner lives.
    pub options: Options,
    /// The time of planning.
    pub now: Timestamp,
    /// All ClusterMeshes in scope.
    pub meshes: BTreeMap<MeshId, Mesh>,
    /// The observed state of each cluster that an entry refers to.
    pub clusters: BTreeMap<ClusterId, ClusterSeen>,
    /// Entries that refer to a cluster with a different name.
    pub identities: BTreeMap<(MeshId, ClusterName), ClusterId>,
    /// Limits of the credentials; empty when planning from files.
    pub links: Links,
    /// State of Peers whose mesh does not exist.
    pub orphans: Orphans,
    /// Earlier events for the guard.
    pub history: History,
    /// Discovered endpoints to remember, by the cluster that discovered them.
    pub vanished: BTreeMap<ClusterId, Vanished>,
}
