//! The Cilium back end on API servers in memory, where time stands still while
//! anybody works. The remotes' etcds are a model that judges a dial by its
//! certificates, names and addresses.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test may fail loudly")]

mod auth_modes;
mod bed;
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
