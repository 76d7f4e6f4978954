//! The Cilium back end: what connects, observes and carries out.

pub mod certificates;
pub mod dial;
pub mod readiness;
