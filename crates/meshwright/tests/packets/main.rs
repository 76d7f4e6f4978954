//! Packets through the mesh: the real operator on real API servers, with the shipped roles; hosts
//! and pods in network namespaces; userspace WireGuard, configured by a simulated Kilo agent from
//! the Peers that the operator wrote. Needs root. See docs/packets.md.
//!
//! `cargo test -p meshwright --test packets -- a_hidden_cluster` runs one.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test may fail loudly, and uses a part of what the operator's suite is made of"
)]

#[path = "../operator/access.rs"]
mod access;
#[path = "../operator/bed.rs"]
mod bed;
#[path = "../operator/expected.rs"]
mod expected;
#[path = "../operator/fleet.rs"]
mod fleet;
#[path = "../operator/ledger.rs"]
mod ledger;
#[path = "../operator/look.rs"]
mod look;
#[path = "../operator/metrics.rs"]
mod metrics;
#[path = "../operator/process.rs"]
mod process;
#[path = "../operator/rights.rs"]
mod rights;
#[path = "../operator/trials.rs"]
mod trials;
#[path = "../operator/wait.rs"]
mod wait;

mod cost;
mod ground;

mod events;
mod hidden;
mod matrix;
mod migration;
mod outages;
mod places;
mod removal;
mod restarts;
mod rules;
mod sequences;

use std::process::ExitCode;
use std::time::Duration;

use fleet::settle;
use libtest_mimic::Trial;
use mw_testbed::binaries::Binaries;
use mw_testbed::net::Namespace;

pub(crate) const LONGEST_SCENARIO: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    let arguments = trials::arguments();
    let needed = Namespace::new()
        .map(drop)
        .and_then(|()| Binaries::locate().map(drop));
    if !arguments.list
        && let Err(error @ mw_testbed::Error::Missing { .. }) = needed
    {
        mw_testbed::skip_or_fail(&format!("packets through the mesh: {error}"));
        return ExitCode::SUCCESS;
    }
    let conclusion = libtest_mimic::run(&arguments, all());
    bed::drain();
    cost::print();
    conclusion.exit_code()
}

/// Long ones first, so that none runs alone at the end.
fn all() -> Vec<Trial> {
    let all = [
        outages::trials(),
        sequences::trials(),
        events::trials(),
        places::trials(),
        restarts::trials(),
        rules::trials(),
        hidden::trials(),
        removal::trials(),
        migration::trials(),
        matrix::trials(),
    ];
    all.into_iter().flatten().collect()
}
