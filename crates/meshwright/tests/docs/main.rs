//! Checks the documentation against the program: links resolve, manifests are accepted, commands
//! exist and are run by a test, every reason has its entry, and generated pages are up to date.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test may fail loudly"
)]

mod commands;
#[path = "../common/mod.rs"]
mod common;
mod entries;
mod follow;
mod generated;
mod ground;
mod links;
mod manifests;
mod page;
mod paths;
mod registry;
mod shell;
mod threats;
