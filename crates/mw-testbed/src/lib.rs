//! Real Kubernetes API servers for tests: one etcd, any number of kube-apiservers on
//! loopback, and a proxy that injects faults; hosts in network namespaces ([`net`]), a
//! stand-in for Kilo's agent ([`kilo`]), Cilium's mesh control plane ([`cilium`]) and a
//! stand-in for kcp ([`kcp`]).
//!
//! For development only. It must not depend on our other crates, so that it can't share
//! their bugs.
//!
//! There is no controller-manager, scheduler or kubelet. The testbed replaces only the
//! token controller, which fills Secrets of type `kubernetes.io/service-account-token`
//! (see [`tokens`]). The API server creates the namespaces `default` and `kube-system`.
//! Nothing deletes the contents of a deleted namespace, garbage collects by owner
//! references, creates `default` service accounts, aggregates ClusterRoles or removes
//! node taints.
//!
//! It uses hyper and rustls instead of `kube`: the proxy needs both anyway, and tests
//! of our client code should not rely on the same client library.

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

/// Reports that a test cannot run on this machine, so that it can return. If `CI` is
/// set, it fails instead, because a skipped test would go unnoticed.
///
/// # Panics
/// When `CI` is set and not empty.
#[allow(clippy::panic, reason = "called by tests only; a failing test panics")]
pub fn skip_or_fail(reason: &str) {
    use std::io::Write;
    if std::env::var_os("CI").is_some_and(|value| !value.is_empty()) {
        panic!("tests must not be skipped when CI is set: {reason}");
    }
    // Not `eprintln!`, which the test harness would discard for a passing test.
    let _ = writeln!(std::io::stderr(), "skipped: {reason}");
}

/// Returns what a test needs, or `None` after [`skip_or_fail`] if this machine lacks
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
