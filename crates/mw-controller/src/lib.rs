//! Everything that talks to an API server: connects to clusters, watches them
//! and writes to them. `mw-core` decides what to write.

pub mod address;
pub mod backoff;
pub mod cilium;
pub mod clock;
pub mod cluster_names;
pub mod conditions;
pub mod doctor;
mod engine;
pub mod failure;
pub mod fleet;
pub mod install;
pub mod kilo;
pub mod kube_event;
pub mod kubeconfig;
pub mod lease;
pub mod metrics;
pub mod own_writes;
pub mod permit;
pub mod private_ca;
pub mod published_status;
pub mod run;
pub mod secure;
pub mod serve;
pub mod transport;
mod watch_body;
pub mod watch_cache;
pub mod writer;
