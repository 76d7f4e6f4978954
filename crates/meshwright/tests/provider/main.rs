//! `meshwright provider` from outside: the real binary, with exactly the roles
//! in config/, on real API servers with Cilium's own control plane in three
//! clusters; the objects on a hub, or in tenants' workspaces of kcp. What its kvstoremesh says of a remote is the judge of
//! what the provider wrote. Needs root and, once, Go. See docs/cilium-testbed.md.
//!
//! `cargo test -p meshwright --test provider -- a_binding` runs one. When all of
//! them ran, the audit logs of all API servers are held against the roles.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test may fail loudly, and uses a part of what the operator's suite is made of"
)]

#[path = "../operator/contexts.rs"]
mod contexts;
#[path = "../operator/ledger.rs"]
mod ledger;
#[path = "../operator/metrics.rs"]
mod metrics;
#[path = "../operator/page.rs"]
mod page;
#[path = "../doctor/person.rs"]
mod person;
#[path = "../operator/process.rs"]
mod process;
#[path = "../operator/rights.rs"]
mod rights;
#[path = "../operator/trials.rs"]
mod trials;
#[path = "../operator/wait.rs"]
mod wait;

mod access;
mod ailing;
mod ground;
mod leaks;
mod look;
mod tenants;

mod attacks;
mod changes;
mod joining;
mod kinds;
mod members;
mod neighbours;
mod takeover;
mod troubles;
mod workspaces;

use std::process::ExitCode;
use std::time::Duration;

use ground::settle;
use libtest_mimic::Trial;
use mw_testbed::binaries::{Binaries, CiliumBinaries};
use mw_testbed::net::Namespace;

pub(crate) const LONGEST_SCENARIO: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    let arguments = trials::arguments();
    let needed =
        || Namespace::new().map(drop).and_then(|()| Binaries::locate().map(drop)).and_then(|()| CiliumBinaries::locate().map(drop));
    if !arguments.list
        && let Err(error @ mw_testbed::Error::Missing { .. }) = needed()
    {
        mw_testbed::skip_or_fail(&format!("the provider on Cilium's control plane: {error}"));
        return ExitCode::SUCCESS;
    }
    let conclusion = libtest_mimic::run(&arguments, all());
    ground::drain();
    let complete = !arguments.list && conclusion.num_filtered_out == 0 && conclusion.num_ignored == 0;
    let findings = if complete { ledger::findings() } else { Vec::new() };
    for finding in &findings {
        eprintln!("roles: {finding}");
    }
    if conclusion.has_failed() || !findings.is_empty() { ExitCode::from(101) } else { ExitCode::SUCCESS }
}

/// The long ones first, so that none is left alone at the end.
fn all() -> Vec<Trial> {
    let all = [
        workspaces::trials(),
        attacks::trials(),
        troubles::trials(),
        neighbours::trials(),
        changes::trials(),
        kinds::trials(),
        joining::trials(),
        members::trials(),
        takeover::trials(),
        ailing::trials(),
    ];
    all.into_iter().flatten().collect()
}
