//! Measures an operator on real API servers, compared with a program that only sends
//! the same requests. See bench/README.md.

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
mod cilium;
mod fleet;
mod kilo;
mod latency;
mod moves;
mod options;
mod programs;
mod requests;
mod startup;
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
    let mut table = Table::default();
    if options.changes > 0 || options.idle_seconds > 0 || options.many > 0 {
        with_kilo(&options, &mut table).await;
    }
    if options.moves > 0 {
        with_cilium(&options, &mut table).await;
    }
    table.print();
}

async fn with_kilo(options: &Options, table: &mut Table) {
    let fleet = kilo::start(options).await;
    progress(&format!(
        "{} clusters of {} nodes each",
        fleet::NAMES.len(),
        options.nodes
    ));
    kilo::grow(&fleet, 0, options.nodes).await;
    let mut operator = Operator::start(&fleet, &options.command);
    kilo::converged(&fleet, options.nodes).await;
    let small = operator.resident();
    if options.changes > 0 {
        operator = latency::measure(&fleet, operator, options, table).await;
    }
    if options.idle_seconds > 0 {
        requests::of_one_change(&fleet, options, table).await;
    }
    if options.many > 0 {
        progress(&format!(
            "{} clusters of {} nodes each",
            fleet::NAMES.len(),
            options.many
        ));
        kilo::grow(&fleet, options.nodes, options.many).await;
        kilo::converged(&fleet, options.many).await;
        operator.stop().await;
        at_scale(&fleet, options, &small, table).await;
    }
}

async fn at_scale(fleet: &Fleet, options: &Options, small: &Resident, table: &mut Table) {
    let operator = bringup::measure(fleet, options, table).await;
    kilo::converged(fleet, options.many).await;
    if options.idle_seconds > 0 {
        requests::when_idle(fleet, options, table).await;
    }
    table.memory(options, small, &operator.resident());
    operator.stop().await;
    // The readiness endpoint of another operator is unknown.
    if !options.foreign {
        startup::measure(fleet, options, table).await;
    }
}

/// Measures with the dial before each write, which is the default, and without it.
async fn with_cilium(options: &Options, table: &mut Table) {
    let Some(mesh) = cilium::Mesh::start().await else {
        return;
    };
    for dials in [true, false] {
        let provider = Operator::start(&mesh.fleet, &options::provider(dials));
        mesh.connected().await;
        let rounds = moves::measure(&mesh, &provider, dials, options).await;
        let how = if dials { "" } else { ", --verify-dial off" };
        let what = format!(
            "load balancer's address to all Secrets, {} clusters{how}",
            fleet::NAMES.len()
        );
        table.compare(&what, "provider", [(50, Some(1.5)), (99, None)], &rounds);
        provider.stop().await;
    }
}

/// Prints progress to stderr; stdout contains only the results.
fn progress(text: &str) {
    eprintln!("{text}");
}
