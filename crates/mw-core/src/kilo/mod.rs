//! The Kilo backend: computes the WireGuard Peers of every cluster from the
//! ClusterMeshes and the observed state of the clusters.

mod anchor;
mod decide;
mod declared;
mod duplicates;
mod evaluate;
pub mod guard;
mod history;
mod host_route;
mod invalidate;
mod liveness;
mod mesh;
pub mod node;
pub mod overlap;
mod ownership;
pub mod peer;
pub mod plan;
pub mod planner;
mod report;
mod roaming;
mod source;
pub mod spec;
mod stagger;
mod survey;
mod target;
pub mod view;

pub use decide::Departures;
pub use node::Nodes;
pub use ownership::{Absent, OrphanOf, Orphans};
pub use report::{LEASE, plan};
pub use survey::{Skip, SkipReason};
pub use target::{DISCOVERED_SECONDS, LastDiscovery, Vanished};
