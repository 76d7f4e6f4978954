//! A hostile member of one mesh next to a healthy mesh in another namespace, on real API servers:
//! 10,000 Nodes that claim keys and networks of the healthy clusters, annotations that change every
//! second, endless lists. Compares the latency of a change in the healthy mesh and the operator's
//! memory with the same objects at rest, in the same process.
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
#[path = "../operator/wait.rs"]
mod wait;

mod attack;
mod measure;

use attack::{CLEAN_NODES, Force, attack, quiet};
use fleet::Fleet;
use measure::{Figures, Memory};
use mw_testbed::binaries::Binaries;
use process::Operator;

/// Maximum slowdown that a hostile member may cause to others.
const MOST_TIME: f64 = 1.5;
const MOST_MEMORY: f64 = 2.0;
/// Memory limit of the chart, in KiB.
const LIMIT: f64 = 256.0 * 1024.0;

/// A source may change ten times per process before its budget throttles it. Each slice uses one
/// change of each source.
const SLICES: [[Force; 10]; 2] = {
    use Force::{Changes, Endless, Quiet};
    [
        [
            Quiet, Changes, Quiet, Endless, Quiet, Changes, Quiet, Endless, Quiet, Changes,
        ],
        [
            Quiet, Endless, Quiet, Changes, Quiet, Endless, Quiet, Changes, Quiet, Endless,
        ],
    ]
};

#[tokio::test]
async fn a_hostile_member_costs_a_healthy_mesh_neither_time_nor_memory() {
    if let Err(error @ mw_testbed::Error::Missing { .. }) = Binaries::locate() {
        return mw_testbed::skip_or_fail(&error.to_string());
    }
    let mut fleet = attack::fleet().await;
    // The time to write the Peers of 10,000 Nodes is not measured.
    let operator = fleet.operator(&["--all-namespaces"]).await;
    attack::all_written(&fleet, CLEAN_NODES).await;
    operator.kill();

    let (mut figures, mut memories) = (Figures::default(), Vec::new());
    for (run, slices) in SLICES.iter().enumerate() {
        attack::stop(&fleet);
        let operator = fleet.operator(&["--all-namespaces"]).await;
        healthy(&fleet).await;
        attack::known(&fleet).await;
        memories.push(play(&fleet, &operator, run, slices, &mut figures).await);
        healthy(&fleet).await;
    }
    figures.report();
    memories.iter().for_each(Memory::report);
    for force in [Force::Changes, Force::Endless] {
        let ratio = figures.ratio(force);
        assert!(
            ratio <= MOST_TIME,
            "{force:?}: a change takes {ratio:.2} times as long"
        );
    }
    for memory in memories {
        assert!(
            memory.ratio() <= MOST_MEMORY && memory.hostile <= LIMIT,
            "{memory:?}"
        );
    }
    objects_that_are_too_large_stay_within_the_memory_limit(&mut fleet).await;
    fleet.finish().await;
    drop(fleet);
    fleet::settle("hostile");
    bed::drain();
}

/// Nodes of 200 kB in lists, then of 1 MiB in the watch.
async fn objects_that_are_too_large_stay_within_the_memory_limit(fleet: &mut Fleet) {
    attack::stop(fleet);
    let operator = fleet.operator(&["--all-namespaces"]).await;
    healthy(fleet).await;
    attack::known(fleet).await;
    for (slice, of_watch) in [(20, false), (21, true)] {
        measure::at_rest(&operator).await;
        measure::forget_peak(&operator);
        match of_watch {
            true => attack::large_events(fleet).await,
            false => attack::large_lists(fleet),
        }
        attack::unknown(fleet, "of memory, the limit for one cluster").await;
        measure::changes(fleet, slice).await;
        healthy(fleet).await;
        let peak = measure::peak(&operator);
        eprintln!("large objects: at most {:.1} MiB", peak / 1024.0);
        assert!(peak <= LIMIT, "{peak} KiB, of a watch: {of_watch}");
        quiet(fleet).await;
    }
}

async fn healthy(fleet: &Fleet) {
    fleet.condition_of(0, "Ready", "True", "Reconciled").await;
}

/// The first slice is at rest, since later ones may leave memory allocated.
async fn play(
    fleet: &Fleet,
    operator: &Operator,
    run: usize,
    slices: &[Force],
    figures: &mut Figures,
) -> Memory {
    let mut memory = Memory::default();
    for (at, force) in slices.iter().enumerate() {
        let slice = run * slices.len() + at;
        if *force == Force::Quiet {
            if at > 0 {
                quiet(fleet).await;
            }
            measure::at_rest(operator).await;
        }
        measure::forget_peak(operator);
        let times = match force {
            Force::Quiet => measure::changes(fleet, slice).await,
            Force::Changes | Force::Endless => attack(fleet, *force, slice).await,
        };
        figures.add(*force, times);
        let peak = measure::peak(operator);
        match at {
            0 => memory.quiet = peak,
            _ => memory.hostile = memory.hostile.max(peak),
        }
    }
    memory
}
