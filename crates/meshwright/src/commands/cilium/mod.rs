//! Commands of the Cilium back end.

pub(crate) mod plan;
pub(crate) mod provider;
