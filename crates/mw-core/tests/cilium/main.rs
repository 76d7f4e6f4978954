//! The Cilium planner: golden stories and laws.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::disallowed_types
)]

mod apply;
mod cluster;
mod drawn;
mod fleet;
mod laws;
mod sharing;
mod stories;
