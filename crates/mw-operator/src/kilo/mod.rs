//! The Kilo back end: keeps every ClusterMesh of the hub true.
//!
//! One task owns everything that is known. What the watches and writes say
//! comes in by one channel; after each batch it takes one turn through the
//! steps below, none of which waits for anybody. Only the first and the last
//! two hold a client, and what they start runs beside it.

mod absence;
mod apply;
mod budget;
mod cleanup;
mod credentials;
mod diff;
mod discovered;
mod engine;
mod events;
mod examine;
mod feeds;
mod glance;
mod history;
mod identity;
mod look;
mod observe;
mod plan;
mod record;
mod status;
mod validate;

pub use engine::{Engine, LEASE_NAME, Settings};
pub use examine::{Examination, Examined, OperatorAccount};
pub use glance::MeshGlance;
pub use look::{Look, LookError, Looker};
pub use status::{EntryFacts, StatusFacts, status_of};
