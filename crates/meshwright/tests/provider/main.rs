//! End-to-end tests of `meshwright provider`: the real binary, with exactly the roles in config/,
//! on real API servers with Cilium's own control plane in three clusters; the objects are on a hub,
//! or in tenants' kcp workspaces. Verified by what kvstoremesh reports for each remote. Needs root
//! and, once, Go. See docs/cilium-testbed.md.
//!
//! `cargo test -p meshwright --test provider -- a_binding` runs one. After all scenarios, the audit
//! logs of all API servers are compared with the roles.
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
mod auth_modes;
mod changes;
mod joining;
mod kinds;
mod members;
mod neighbours;
mod shards;
mod takeover;
mod troubles;
mod workspaces;
mod wrong_answers;

use std::process::ExitCode;
use std::time::Duration;

use ground::settle;
use libtest_mimic::Trial;
use mw_testbed::binaries::{Binaries, CiliumBinaries};
use mw_testbed::net::Namespace;

pub(crate) const LONGEST_SCENARIO: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    let arguments = trials::arguments();
    let needed = || {
        Namespace::new()
            .map(drop)
            .and_then(|()| Binaries::locate().map(drop))
            .and_then(|()| CiliumBinaries::locate().map(drop))
    };
    if !arguments.list
        && let Err(error @ mw_testbed::Error::Missing { .. }) = needed()
    {
        mw_testbed::skip_or_fail(&format!("the provider on Cilium's control plane: {error}"));
        return ExitCode::SUCCESS;
    }
    let conclusion = libtest_mimic::run(&arguments, all());
    ground::drain();
    let complete =
        !arguments.list && conclusion.num_filtered_out == 0 && conclusion.num_ignored == 0;
    let findings = if complete {
        ledger::findings()
    } else {
        Vec::new()
    };
    for finding in &findings {
        eprintln!("roles: {finding}");
    }
    if conclusion.has_failed() || !findings.is_empty() {
        ExitCode::from(101)
    } else {
        ExitCode::SUCCESS
    }
}

/// Long ones first, so that none runs alone at the end.
fn all() -> Vec<Trial> {
    let all = [
        workspaces::trials(),
        shards::trials(),
        attacks::trials(),
        troubles::trials(),
        auth_modes::trials(),
        neighbours::trials(),
        changes::trials(),
        kinds::trials(),
        joining::trials(),
        members::trials(),
        takeover::trials(),
        ailing::trials(),
        wrong_answers::trials(),
    ];
    all.into_iter().flatten().collect()
}
