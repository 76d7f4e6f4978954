//! The chart in charts/meshwright: what Helm renders and rejects, and the real binary with exactly
//! the rights that a rendering grants, on real API servers. Also follows the quick start and the
//! migration guide there. Needs Go once, to build Helm and the servers; the provider's scenario
//! needs root.
//!
//! `cargo test -p meshwright --test chart -- roles` runs the tests with that name.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test may fail loudly, and uses a part of what the other suites are made of"
)]

#[path = "../operator/bed.rs"]
mod bed;
#[path = "../operator/contexts.rs"]
mod contexts;
#[path = "../operator/earlier.rs"]
mod earlier;
#[path = "../operator/expected.rs"]
mod expected;
#[path = "../operator/fleet.rs"]
mod fleet;
#[path = "../provider/ground.rs"]
mod ground;
#[path = "../provider/leaks.rs"]
mod leaks;
#[path = "../operator/ledger.rs"]
mod ledger;
#[path = "../operator/metrics.rs"]
mod metrics;
#[path = "../operator/page.rs"]
mod page;
#[path = "../operator/process.rs"]
mod process;
#[path = "../operator/rights.rs"]
mod rights;
#[path = "../provider/tenants.rs"]
mod tenants;
#[path = "../operator/trials.rs"]
mod trials;
#[path = "../operator/wait.rs"]
mod wait;

// Both suites have a module `look`.
#[path = "../operator/look.rs"]
mod fleet_look;
#[path = "../provider/look.rs"]
mod look;

mod access;
mod install;
mod pod;
mod remains;
mod render;
mod rendering;

mod flags;
mod guides;
mod image;
mod installed;
mod monitored;
mod provided;
mod refusals;
mod templates;

use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::Trial;
use mw_testbed::binaries::{Binaries, CiliumBinaries, kubectl};
use mw_testbed::net::Namespace;
use render::Helm;

pub(crate) const LONGEST_SCENARIO: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    let arguments = trials::arguments();
    let trials = if arguments.list { all() } else { possible() };
    let conclusion = libtest_mimic::run(&arguments, trials);
    bed::drain();
    ground::drain();
    // Rights that are unused here are used by the other suites.
    let denied: Vec<String> = ledger::findings()
        .into_iter()
        .filter(|finding| finding.starts_with("denied"))
        .collect();
    for finding in &denied {
        eprintln!("roles: {finding}");
    }
    if conclusion.has_failed() || !denied.is_empty() {
        ExitCode::from(101)
    } else {
        ExitCode::SUCCESS
    }
}

/// Cleans up after a scenario of either back end.
fn settle(scenario: &str) {
    fleet::settle(scenario);
    ground::settle(scenario);
}

fn all() -> Vec<Trial> {
    [
        provided::trials(),
        guides::trials(),
        installed::trials(),
        monitored::trials(),
        rendered(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn rendered() -> Vec<Trial> {
    [
        templates::trials(),
        flags::trials(),
        refusals::trials(),
        image::trials(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Scenarios that this machine can run; the others are reported as skipped.
fn possible() -> Vec<Trial> {
    let mut trials = Vec::new();
    let servers = || {
        Helm::locate()
            .map(drop)
            .and_then(|()| Binaries::locate().map(drop))
    };
    if has("the provider as installed", &|| {
        servers()
            .and_then(|()| Namespace::new().map(drop))
            .and_then(|()| CiliumBinaries::locate().map(drop))
    }) {
        trials.extend(provided::trials());
    }
    if has("the operator as installed", &|| {
        servers().and_then(|()| kubectl().map(drop))
    }) {
        trials.extend(guides::trials());
        trials.extend(installed::trials());
        trials.extend(monitored::trials());
    }
    if has("what Helm renders", &|| Helm::locate().map(drop)) {
        trials.extend(rendered());
    }
    trials
}

fn has(what: &str, needed: &dyn Fn() -> mw_testbed::Result<()>) -> bool {
    match needed() {
        Err(error @ mw_testbed::Error::Missing { .. }) => {
            mw_testbed::skip_or_fail(&format!("{what}: {error}"));
            false
        }
        other => {
            other.unwrap();
            true
        }
    }
}
