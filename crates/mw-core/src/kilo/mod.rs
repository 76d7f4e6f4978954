//! The Kilo backend: computes the WireGuard Peers of every cluster from the
//! ClusterMeshes and the observed state of the clusters.

mod anchor;
mod decide;
mod declared;
mod discovered;
mod duplicates;
mod entry;
mod evaluate;
pub mod guard;
mod host_route;
mod invalidate;
mod liveness;
mod mesh;
mod mesh_state;
pub mod node;
mod outcome;
pub mod overlap;
mod own_nodes;
mod ownership;
pub mod peer;
mod peer_history;
pub mod plan;
pub mod planner;
mod report;
mod retained;
mod roaming;
mod source;
mod sources;
pub mod spec;
mod stagger;
mod survey;
mod target;
mod verdict;
pub mod view;
mod world;

pub use discovered::{DISCOVERED_SECONDS, LastDiscovery, Vanished};
pub use node::Nodes;
pub use ownership::{Absent, OrphanOf, Orphans};
pub use report::{LEASE, plan};
pub use sources::Departures;
pub use survey::{Skip, SkipReason};
