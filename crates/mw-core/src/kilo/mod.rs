//! The Kilo back end: from ClusterMeshes and what the clusters were seen to
//! hold to the WireGuard Peers each of them must hold.

mod anchor;
mod contest;
mod decide;
mod declared;
mod evaluate;
pub mod guard;
mod host_route;
mod liveness;
mod mark;
mod mesh;
pub mod node;
pub mod overlap;
mod ownership;
mod past;
pub mod peer;
pub mod plan;
pub mod planner;
mod report;
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
pub use target::{DISCOVERED_SECONDS, Sighting, Vanished};
