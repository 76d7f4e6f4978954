//! The Cilium back end on in-memory API servers, with all kinds of faults:
//! crashes, lost and late answers, broken and late watches, stale reads,
//! partitions, broken credentials, two leaders, clock jumps, wrong answers,
//! hostile tenants and concurrent edits. Connectivity is judged by the contents of
//! Secrets and etcds, never by a phase.
//!
//! - `cargo test -p mw-controller --test cilium_simulation`: named stories, every
//!   crash point of the small ones, and a fixed set of seeds.
//! - `SIM_SEED=n [SIM_WITHOUT=a,b]` replays one seed with its trace.
//! - `SIM_SECONDS=n SIM_FIRST=m` plays seeds from m on for n seconds (`make soak`).
//! - `SIM_UNTIL_FAILURE=1` stops at the first violation (`make mutants`).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::disallowed_types,
    reason = "a test may fail loudly"
)]

mod bed;
mod case;
mod draw;
#[path = "../simulation/faults.rs"]
mod faults;
mod lies;
mod lying_clusters;
mod object;
mod oracle;
mod play;
#[path = "../simulation/process.rs"]
mod process;
#[path = "../simulation/seeds.rs"]
mod seeds;
#[path = "../provider/site.rs"]
#[allow(dead_code, reason = "the stories of the provider use more of it")]
mod site;
mod stories;
#[path = "../simulation/told.rs"]
#[allow(dead_code, reason = "the simulation of the operator judges more by it")]
mod told;
#[path = "../provider/wire.rs"]
#[allow(dead_code, reason = "the stories of the provider use more of it")]
mod wire;
mod witness;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    if let Some(seed) = number("SIM_SEED") {
        return seeds::replay(seed);
    }
    if let Some(seconds) = number("SIM_SECONDS") {
        return seeds::soak(seconds);
    }
    let trials: Vec<Trial> = [stories::trials(), lying_clusters::trials(), seeds::trials()]
        .into_iter()
        .flatten()
        .collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
