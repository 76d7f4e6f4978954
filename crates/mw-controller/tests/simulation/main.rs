//! The whole operator on in-memory API servers, with all kinds of faults: crashes,
//! lost and late responses, cut and late watches, stale reads, partitions, broken
//! credentials, two leaders, clock jumps, hostile objects, lying servers, hostile
//! owners, and concurrent edits by users.
//!
//! - `cargo test -p mw-controller --test simulation`: named stories, every crash
//!   point of the small ones, and a fixed set of seeds.
//! - `SIM_SEED=n [SIM_WITHOUT=a,b]` replays one seed with its trace.
//! - `SIM_SECONDS=n SIM_FIRST=m` runs seeds from m on for n seconds (`make soak`).
//! - `SIM_UNTIL_FAILURE=1` stops at the first violation (`make mutants`).
//! - `SIM_SCALE=100x50` reports the cost of 100 clusters with 50 nodes each.
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

mod agents;
mod bed;
mod case;
mod crash;
mod faults;
mod fields;
mod lies;
mod oracle;
mod play;
mod process;
mod regressions;
mod scale;
mod seeds;
mod silence;
mod told;
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
    if let Ok(size) = std::env::var("SIM_SCALE") {
        return scale::report(&size);
    }
    let arguments = Arguments::from_args();
    let trials: Vec<Trial> = [
        agents::trials(),
        crash::trials(),
        fields::trials(),
        regressions::trials(),
        scale::trials(),
        seeds::trials(),
    ]
    .into_iter()
    .flatten()
    .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
