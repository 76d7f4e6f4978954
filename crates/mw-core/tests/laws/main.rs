//! Laws of the planner, checked on random fleets.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::disallowed_types
)]

mod fleet;
mod harness;
mod incremental;
mod kilo_rules;
mod members;
mod overlap;
mod safety;
mod shape;
mod steps;
