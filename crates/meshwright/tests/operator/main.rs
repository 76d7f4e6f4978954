//! End-to-end tests of `meshwright operator`: the real binary, with exactly the roles in
//! config/rbac/, against real API servers.
//!
//! Each scenario is a named test and can be run by name, for example `cargo test -p meshwright
//! --test operator -- an_edited_peer`. After all scenarios, the audit logs of all API servers are
//! compared with the roles.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test may fail loudly"
)]

mod access;
mod bed;
mod earlier;
mod expected;
mod fleet;
mod ledger;
mod look;
mod metrics;
mod process;
mod rights;
mod trials;
mod wait;

mod adoption;
mod attacks;
mod cleanup;
mod convergence;
mod crash;
mod credentials;
mod faults;
mod flags;
mod grace;
mod harness;
mod idle;
mod leaders;
mod liveness;
mod meshes;
mod wrong_answers;

use std::process::ExitCode;
use std::time::Duration;

use fleet::settle;
use libtest_mimic::Trial;
use mw_testbed::binaries::Binaries;

pub(crate) const LONGEST_SCENARIO: Duration = Duration::from_secs(180);

fn main() -> ExitCode {
    let arguments = trials::arguments();
    if !arguments.list
        && let Err(error @ mw_testbed::Error::Missing { .. }) = Binaries::locate()
    {
        mw_testbed::skip_or_fail(&error.to_string());
        return ExitCode::SUCCESS;
    }
    let conclusion = libtest_mimic::run(&arguments, all());
    bed::drain();
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
        crash::trials(),
        idle::trials(),
        leaders::trials(),
        faults::trials(),
        wrong_answers::trials(),
        attacks::trials(),
        convergence::trials(),
        liveness::trials(),
        grace::trials(),
        cleanup::trials(),
        meshes::trials(),
        flags::trials(),
        adoption::trials(),
        credentials::trials(),
        harness::trials(),
    ];
    all.into_iter().flatten().collect()
}
