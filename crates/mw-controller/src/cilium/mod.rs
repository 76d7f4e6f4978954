//! The Cilium back end: keeps clusters in line with every ClusterMeshBinding,
//! GlobalService and ConnectivityIntent.
//!
//! It runs on the engine of `crate::engine`: the file `engine` has its state and the list
//! of its steps, and each step is in the file of its name.

mod absence;
mod apply;
pub mod certificates;
mod cleanup;
mod cluster_cache;
mod cluster_dump;
mod completeness;
mod credentials;
pub mod dial;
mod diff;
mod doctor_reads;
mod engine;
mod events;
mod identity;
mod kubeconfig_secrets;
mod management;
mod member;
mod metrics;
mod object_source;
mod observe;
mod plan;
mod provider_reads;
mod published_status;
pub mod readiness;
mod record;
mod status;
mod validate;
mod verify;
mod workspace;

pub use cluster_dump::ClusterDump;
pub use diff::{Act, Operation, Place, operations};
pub use doctor_reads::{Examination, Examined, Examiner};
pub use engine::{Kcp, Provider, Settings};
pub use management::ClusterResource;
pub use object_source::{ExportError, Portal};
pub use provider_reads::ProviderExaminer;
pub use published_status::{ObjectStatus, PublishedObject};
pub use record::{Kind, Object};
pub use workspace::{Endpoints, TenantError, Workspace, WorkspaceExaminer, is_workspace};
