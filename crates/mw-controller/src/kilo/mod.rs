//! The Kilo back end: keeps the Peers of every cluster in line with the
//! ClusterMeshes of the hub.
//!
//! One task owns all state. Results of watches and writes arrive on one channel;
//! after each batch the task runs once through the steps below, none of which
//! blocks. Only the first and the last two steps use a client, and requests run
//! in separate tasks.

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
