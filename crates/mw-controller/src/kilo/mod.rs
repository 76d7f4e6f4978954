//! The Kilo back end: keeps the Peers of every cluster in line with the
//! ClusterMeshes of the hub.
//!
//! It runs on the engine of `crate::engine`: the file `engine` has its state and the list
//! of its steps, and each step is in the file of its name.

mod absence;
mod apply;
mod budget;
mod cleanup;
mod credentials;
mod diff;
mod discovered;
mod doctor_reads;
mod engine;
mod events;
mod feeds;
mod history;
mod identity;
mod member;
mod observe;
mod plan;
mod published_status;
mod record;
mod snapshot;
mod status;
mod validate;

pub use doctor_reads::{Examination, Examined, OperatorAccount};
pub use engine::{LEASE_NAME, Settings};
pub use published_status::PublishedMesh;
pub use snapshot::{Snapshot, SnapshotError, SnapshotReader};
pub use status::{EntryFacts, StatusFacts, status_of};
