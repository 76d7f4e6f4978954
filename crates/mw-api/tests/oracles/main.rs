//! Checks of our output by Cilium's own code: policies by its policy library
//! (`tools/policycheck`), connection Secrets by its Helm chart, policy features by its
//! CRDs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

// Shared with the core's stories, which use more of it.
#[path = "../../../mw-core/tests/cilium/apply.rs"]
mod apply;
#[path = "../../../mw-core/tests/cilium/cluster.rs"]
mod cluster;
#[allow(dead_code, reason = "the core's stories use the rest")]
#[path = "../../../mw-core/tests/cilium/fleet.rs"]
mod fleet;

mod asked;
mod chart;
mod crds;
mod drawn;
mod flows;
mod mesh;
mod policies;
mod policycheck;
