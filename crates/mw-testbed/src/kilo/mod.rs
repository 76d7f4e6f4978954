//! Stand-in for Kilo's agent: turns the Nodes and Peers of its API server into
//! WireGuard peers and routes of its host, and annotates its Node, like Kilo 0.7. It
//! reproduces Kilo's bugs: a test that passes here should pass with the real agent, and
//! whatever confuses the real agent confuses this one.
//!
//! It supports one mode of Kilo: `--encapsulate=never --cni=false --local=true`. It
//! does not implement `allowed-location-ips`, packet filter rules and encapsulation.
//!
//! Its time may run faster than real time ([`Clock`]): check-in and resync after 30 s,
//! expiry after 60 s and the informers' resync after 300 s keep their ratios.
//! WireGuard's own timers do not run faster.

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

/// Granularity of segments: per location, or per node.
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
