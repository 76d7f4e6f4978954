//! Real Kubernetes API servers for tests: one etcd, any number of
//! kube-apiservers on loopback, and a proxy that injects faults; hosts in
//! network namespaces ([`net`]), a stand-in for Kilo's agent ([`kilo`]), Cilium's
//! control plane of a mesh ([`cilium`]) and a stand-in for kcp ([`kcp`]).
//!
//! Dev only. It must not depend on our other crates, so that it cannot share
//! their bugs.
//!
//! There is no controller-manager, scheduler or kubelet. The testbed stands in
//! for one controller only: the token controller, which fills Secrets of type
//! `kubernetes.io/service-account-token` (see [`tokens`]). Namespaces
//! `default` and `kube-system` are made by the API server. Nobody deletes the
//! contents of a deleted namespace, follows owner references, creates
//! `default` service accounts, aggregates ClusterRoles or removes node taints.
//!
//! Talks to the servers with hyper and rustls instead of `kube`: the proxy
//! needs both anyway, and a test of our client code should not rest on the
//! client library it uses.

mod accounts;
mod apart;
pub mod audit;
pub mod binaries;
pub mod cilium;
mod cluster;
mod error;
pub mod etcd;
mod gomodule;
mod grpc;
mod http;
pub mod kcp;
pub mod kilo;
pub mod net;
mod objects;
mod pki;
mod process;
pub mod proxy;
mod serve;
mod testbed;
pub mod tokens;
mod wait;

pub use cluster::Cluster;
pub use error::{Error, Result};
pub use http::Answer;
pub use kcp::Kcp;
pub use pki::{Authority, Identity};
pub use proxy::FaultProxy;
pub use testbed::Testbed;
pub use wait::eventually;

/// Kilo's Peer CRD: cluster-scoped, v1alpha1, without status.
pub const PEER_CRD: &str = include_str!("../../mw-sim/crds/peers.kilo.squat.ai.yaml");

/// For a test that cannot run on this machine: says so and lets the test
/// return. With `CI` set a skip would hide a hole, so it fails.
///
/// # Panics
/// When `CI` is set and not empty.
#[allow(clippy::panic, reason = "called by tests only; a failing test panics")]
pub fn skip_or_fail(reason: &str) {
    use std::io::Write;
    if std::env::var_os("CI").is_some_and(|value| !value.is_empty()) {
        panic!("cannot be skipped when CI is set: {reason}");
    }
    // Not `eprintln!`: the test harness would swallow it when the test passes.
    let _ = writeln!(std::io::stderr(), "skipped: {reason}");
}

/// What a test needs, or nothing after [`skip_or_fail`] when this machine lacks
/// it.
///
/// # Panics
/// On any other error.
#[allow(clippy::panic, reason = "called by tests only; a failing test panics")]
pub fn or_skip<T>(needed: Result<T>) -> Option<T> {
    match needed {
        Ok(needed) => Some(needed),
        Err(error @ Error::Missing { .. }) => {
            skip_or_fail(&error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}
