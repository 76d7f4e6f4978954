//! The Cilium back end on in-memory API servers with paused time. The remotes'
//! etcds are a model that checks the certificates, names and addresses of a dial.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

mod adoption;
mod auth_modes;
mod bed;
mod expiry;
mod exports;
mod faults;
mod health;
mod hostile;
mod lost_way;
mod rights;
mod site;
mod stories;
#[allow(dead_code, reason = "the simulation uses more of it")]
mod wire;
