//! Symmetric NAT on a cluster's edge: a mapping per pair of inside and outside address,
//! which only that outside address can use, and which expires when it is not used.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use super::wire::datagram::Datagram;

const FIRST_PORT: u16 = 20_000;

#[derive(Debug)]
pub(super) struct Nat {
    public: Ipv4Addr,
    idle: Duration,
    next_port: u16,
    /// Mappings by inside and outside address.
    mappings: BTreeMap<(SocketAddrV4, SocketAddrV4), Mapping>,
}

#[derive(Debug)]
struct Mapping {
    port: u16,
    used: Instant,
}

impl Nat {
    pub(super) fn new(public: Ipv4Addr, idle: Duration) -> Self {
        Self {
            public,
            idle,
            next_port: FIRST_PORT,
            mappings: BTreeMap::new(),
        }
    }

    pub(super) fn outbound(&mut self, datagram: &mut Datagram, now: Instant) {
        self.forget(now);
        let next_port = &mut self.next_port;
        let mapping = self
            .mappings
            .entry((datagram.source(), datagram.target()))
            .or_insert_with(|| {
                *next_port += 1;
                Mapping {
                    port: *next_port,
                    used: now,
                }
            });
        mapping.used = now;
        datagram.set_source(SocketAddrV4::new(self.public, mapping.port));
    }

    /// Changes the public address, like a reconnected DSL line: all mappings are lost.
    pub(super) fn readdress(&mut self, public: Ipv4Addr) {
        self.public = public;
        self.mappings.clear();
    }

    /// Translates an inbound datagram. Returns false if there is no mapping.
    pub(super) fn inbound(&mut self, datagram: &mut Datagram, now: Instant) -> bool {
        self.forget(now);
        if *datagram.target().ip() != self.public {
            return false;
        }
        let (from, port) = (datagram.source(), datagram.target().port());
        let found = self
            .mappings
            .iter_mut()
            .find(|((_, outside), mapping)| *outside == from && mapping.port == port);
        let Some(((inside, _), mapping)) = found else {
            return false;
        };
        mapping.used = now;
        datagram.set_target(*inside);
        true
    }

    fn forget(&mut self, now: Instant) {
        self.mappings
            .retain(|_, mapping| now.duration_since(mapping.used) < self.idle);
    }
}
