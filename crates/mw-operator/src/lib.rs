//! Everything that talks to an API server. The deciding is `mw-core`'s; what
//! is here connects, observes and carries out.

pub mod kubeconfig;
pub mod lease;
