//! The Cilium back end: keeps every ClusterMeshBinding, GlobalService and
//! ConnectivityIntent true.
//!
//! One task owns everything that is known. What the watches, writes and dials
//! say comes in by one channel; after each batch it takes one turn through the
//! steps below, none of which waits for anybody.

mod apply;
pub mod certificates;
mod cleanup;
mod completeness;
pub mod dial;
mod diff;
mod engine;
mod events;
mod examine;
mod glance;
mod holdings;
mod identity;
mod management;
mod measure;
mod observe;
mod plan;
pub mod readiness;
mod realm;
mod record;
mod sights;
mod status;
mod validate;
mod vault;
mod verify;

pub use diff::{Act, Operation, Place, operations};
pub use engine::{Kcp, Provider, Settings};
pub use examine::{Examination, Examined, Examiner};
pub use glance::{ObjectGlance, ObjectStatus};
pub use holdings::Holdings;
pub use management::ClusterResource;
pub use realm::Portal;
pub use record::{Kind, Object};
