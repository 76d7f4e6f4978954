//! Networks for tests: hosts and pods in network namespaces, a local network per
//! cluster, and a router between them with NAT, packet loss and delay.
//!
//! All namespaces are anonymous and held by file descriptors of this process, so
//! nothing is left when it ends, even if it is killed. Devices, addresses and routes
//! are created through netlink, without a shell.
//!
//! Packets between clusters are forwarded by this process ([`wire`]), not by the
//! kernel: no kernel modules are needed for loss, delay or NAT.

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
pub use ping::{Flow, LATEST_ANSWER, Report, ping, total_since};
pub use wire::{Impairment, Wire};
pub use wireguard::{Key, PeerConfig, PeerState, WireGuard};
