//! A stand-in for Kilo's agent: turns the Nodes and Peers of its API server
//! into WireGuard peers and routes of its host, and describes its host in
//! annotations, as Kilo 0.7 does. Its faults are Kilo's faults: a test that
//! passes here would pass with the real agent, and what confuses the real one
//! confuses this one.
//!
//! It knows one way of running Kilo: `--encapsulate=never --cni=false
//! --local=true`. It leaves out `allowed-location-ips`, packet filter rules and
//! encapsulation.
//!
//! Its time may run faster than ours ([`Clock`]): check-in and resync after
//! 30 s, silence after 60 s and the informers' resync after 300 s keep their
//! ratios. WireGuard's own timers do not run faster.

mod agent;
mod clock;
mod conf;
mod endpoint;
mod informer;
mod mesh;
mod node;
mod peer;
mod routes;
mod topology;

#[cfg(test)]
mod tests;

pub use agent::{Agent, AgentSpec};
pub use clock::Clock;
pub use endpoint::Names;

/// What makes a segment: a place, or every node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Granularity {
    Location,
    Full,
}

impl Granularity {
    fn as_str(self) -> &'static str {
        match self {
            Self::Location => "location",
            Self::Full => "full",
        }
    }
}
