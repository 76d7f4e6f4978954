//! Networks for tests: hosts and pods in network namespaces, a local network
//! for each cluster, and a router between them that can translate addresses,
//! lose and delay.
//!
//! Everything is anonymous and held by file descriptors of this process, so
//! that nothing is left when it ends, however it ends. Devices, addresses and
//! routes are made through netlink; nothing is run in a shell.
//!
//! The way between clusters is carried by this process ([`wire`]), not by the
//! kernel: it needs no module for loss, delay or address translation.

pub mod lan;
pub mod links;
pub mod namespace;
mod nat;
pub mod ping;
pub mod wire;
pub mod wireguard;

pub use lan::{Host, Lan, LanSpec};
pub use links::{Links, Route};
pub use namespace::Namespace;
pub use ping::{Flow, Report, ping, total_since};
pub use wire::{Impairment, Wire};
pub use wireguard::{Key, PeerConfig, PeerState, WireGuard};
