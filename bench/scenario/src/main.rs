//! Measures an operator on real API servers, against a program that sends the
//! same requests and does nothing else. What it means: bench/README.md.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark fails loudly and prints"
)]

mod bringup;
mod fleet;
mod latency;
mod options;
mod programs;
mod requests;
mod stats;
mod table;
mod watch;

use fleet::Fleet;
use options::Options;
use programs::{Operator, Resident};
use table::Table;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let options = Options::read();
    let fleet = Fleet::start(&options).await;
    let mut table = Table::default();

    progress(&format!("{} clusters of {} nodes each", fleet::NAMES.len(), options.nodes));
    fleet.grow(0, options.nodes).await;
    let operator = Operator::start(&fleet, &options);
    fleet.converged(options.nodes).await;
    let small = operator.resident();
    if options.changes > 0 {
        latency::measure(&fleet, &operator, &options, &mut table).await;
    }
    if options.idle_seconds > 0 {
        requests::of_one_change(&fleet, &options, &mut table).await;
    }
    if options.many > 0 {
        progress(&format!("{} clusters of {} nodes each", fleet::NAMES.len(), options.many));
        fleet.grow(options.nodes, options.many).await;
        fleet.converged(options.many).await;
        operator.stop().await;
        at_scale(&fleet, &options, &small, &mut table).await;
    }
    table.print();
}

async fn at_scale(fleet: &Fleet, options: &Options, small: &Resident, table: &mut Table) {
    let operator = bringup::measure(fleet, options, table).await;
    fleet.converged(options.many).await;
    if options.idle_seconds > 0 {
        requests::when_idle(fleet, options, table).await;
    }
    table.memory(options, small, &operator.resident());
    operator.stop().await;
}

/// What goes on, for whoever waits; the figures alone are on stdout.
fn progress(text: &str) {
    eprintln!("{text}");
}
