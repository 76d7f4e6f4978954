//! What we want to stand in Cilium's clusters, judged by Cilium itself: the
//! policies of ConnectivityIntents by its policy library (`tools/policycheck`),
//! the connection Secrets by its Helm chart, what a policy may say by its CRDs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test may fail loudly")]

// The worlds of the core's stories; a part of them is enough here.
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
