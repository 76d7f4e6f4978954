//! Everything that talks to an API server. The deciding is `mw-core`'s; what
//! is here connects, observes and carries out.

pub mod address;
pub mod backoff;
pub mod cilium;
pub mod clock;
pub mod conditions;
pub mod doctor;
pub mod failure;
pub mod fleet;
pub mod glance;
pub mod install;
pub mod kilo;
pub mod kubeconfig;
pub mod lease;
pub mod metrics;
pub mod mirror;
pub mod notice;
pub mod permit;
pub mod private_ca;
pub mod recent;
pub mod run;
pub mod serve;
pub mod transport;
pub mod writer;
