//! Router between clusters, in this process, with a port to the edge of each cluster's
//! network. It forwards UDP over IPv4, which is all that WireGuard needs, with optional
//! loss, delay and NAT.

pub(in crate::net) mod datagram;

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ipnet::Ipv4Net;
use tokio::task::JoinSet;
use tun_rs::{AsyncDevice, DeviceBuilder};

use crate::error::{Error, Result};
use crate::http::runtime;
use crate::net::Namespace;
use crate::net::nat::Nat;
use datagram::Datagram;

const LONGEST_PACKET: usize = 2048;

/// Impairment of packets through a port, in both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Impairment {
    /// Percentage of lost packets, evenly distributed; 100 cuts the port off.
    pub loss_percent: u32,
    pub delay: Duration,
}

/// A router. Dropping it cuts all clusters off from each other.
#[derive(Debug, Default)]
pub struct Wire {
    ports: Arc<Mutex<Vec<Arc<Port>>>>,
    tasks: Mutex<JoinSet<()>>,
}

struct Port {
    network: Ipv4Net,
    tun: AsyncDevice,
    state: Mutex<PortState>,
}

struct PortState {
    nat: Option<Nat>,
    impairment: Impairment,
    passed: u32,
}

impl std::fmt::Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Port")
            .field("network", &self.network)
            .finish_non_exhaustive()
    }
}

impl Wire {
    /// Adds a device to a namespace: packets sent to it leave the cluster, packets for
    /// `network` arrive at it. With `hidden`, everything inside shares the first address
    /// of the network through NAT, and unused mappings expire after this time.
    pub fn attach(
        &self,
        edge: &Namespace,
        device: &str,
        network: Ipv4Net,
        hidden: Option<Duration>,
    ) -> Result<()> {
        let failed = |error: std::io::Error| Error::network(format!("making {device}"), error);
        let tun = edge
            .run(|| DeviceBuilder::new().name(device).build_sync())
            .map_err(failed)?;
        let runtime = runtime()?;
        let _context = runtime.enter();
        let tun = AsyncDevice::new(tun).map_err(failed)?;
        let nat = hidden.map(|idle| Nat::new(first_address(network), idle));
        let state = Mutex::new(PortState {
            nat,
            impairment: Impairment::default(),
            passed: 0,
        });
        let port = Arc::new(Port {
            network,
            tun,
            state,
        });
        lock(&self.ports).push(port.clone());
        lock(&self.tasks).spawn(carry(port, self.ports.clone()));
        Ok(())
    }

    /// Sets the impairment of the port of this network.
    pub fn impair(&self, network: Ipv4Net, impairment: Impairment) {
        for port in lock(&self.ports)
            .iter()
            .filter(|port| port.network == network)
        {
            lock(&port.state).impairment = impairment;
        }
    }

    /// Changes the public address of the NAT at the port of this network to another of
    /// its addresses.
    pub fn readdress(&self, network: Ipv4Net, public: Ipv4Addr) {
        for port in lock(&self.ports)
            .iter()
            .filter(|port| port.network == network)
        {
            if let Some(nat) = &mut lock(&port.state).nat {
                nat.readdress(public);
            }
        }
    }
}

fn first_address(network: Ipv4Net) -> Ipv4Addr {
    network.hosts().next().unwrap_or(network.addr())
}

async fn carry(from: Arc<Port>, ports: Arc<Mutex<Vec<Arc<Port>>>>) {
    let mut buffer = [0; LONGEST_PACKET];
    while let Ok(length) = from.tun.recv(&mut buffer).await {
        let Some(mut datagram) = buffer.get(..length).and_then(Datagram::read) else {
            continue;
        };
        let Some(before) = from.leave(&mut datagram) else {
            continue;
        };
        let target = *datagram.target().ip();
        let Some(to) = lock(&ports)
            .iter()
            .find(|port| port.network.contains(&target))
            .cloned()
        else {
            continue;
        };
        let Some(after) = to.enter(&mut datagram) else {
            continue;
        };
        let delay = before + after;
        if delay.is_zero() {
            let _ = to.tun.try_send(datagram.bytes());
        } else {
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                let _ = to.tun.try_send(datagram.bytes());
            });
        }
    }
}

impl Port {
    /// Returns the delay of a datagram; `None` if it is lost.
    fn leave(&self, datagram: &mut Datagram) -> Option<Duration> {
        let mut state = lock(&self.state);
        if let Some(nat) = &mut state.nat {
            nat.outbound(datagram, Instant::now());
        }
        state.pass()
    }

    fn enter(&self, datagram: &mut Datagram) -> Option<Duration> {
        let mut state = lock(&self.state);
        let known = state
            .nat
            .as_mut()
            .is_none_or(|nat| nat.inbound(datagram, Instant::now()));
        if known { state.pass() } else { None }
    }
}

impl PortState {
    fn pass(&mut self) -> Option<Duration> {
        let Impairment {
            loss_percent,
            delay,
        } = self.impairment;
        self.passed = (self.passed + loss_percent) % 100;
        let lost = self.passed < loss_percent;
        (!lost).then_some(delay)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_of_a_hundred_are_lost() {
        for loss_percent in [0, 1, 30, 99, 100] {
            let impairment = Impairment {
                loss_percent,
                delay: Duration::ZERO,
            };
            let mut port = PortState {
                nat: None,
                impairment,
                passed: 0,
            };
            let lost = (0..100).filter(|_| port.pass().is_none()).count();
            assert_eq!(lost, usize::try_from(loss_percent).unwrap());
        }
    }
}
