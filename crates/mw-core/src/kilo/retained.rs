//! Peers that stay on a target whatever is planned.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::cidr::Cidr;
use crate::key::PublicKey;
use crate::kilo::entry::Entry;
use crate::names::PeerName;

/// Peers that stay on a target whatever is planned, and so can block others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RetainedPeers {
    by_name: BTreeMap<PeerName, RetainedPeer>,
    keys: BTreeMap<PublicKey, BTreeSet<PeerName>>,
    prefixes: BTreeMap<Cidr, BTreeSet<PeerName>>,
    /// Endpoints of Peers that are not ours.
    foreign_endpoints: BTreeMap<IpAddr, BTreeSet<PeerName>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RetainedPeer {
    pub(super) foreign: bool,
    pub(super) key: Option<PublicKey>,
    pub(super) prefixes: Vec<Cidr>,
    pub(super) endpoint: Option<IpAddr>,
    /// Its mesh and source, by position.
    pub(super) source: Option<(usize, usize)>,
}

impl RetainedPeer {
    pub(super) fn of(entry: &Entry, foreign: bool, source: Option<(usize, usize)>) -> RetainedPeer {
        RetainedPeer {
            foreign,
            key: entry.key(),
            prefixes: entry.prefixes(),
            endpoint: entry.endpoint_address(),
            source,
        }
    }
}

impl RetainedPeers {
    /// Updates the entry of a name; returns the old and the new entry if they
    /// differ.
    pub(super) fn set(&mut self, name: &PeerName, stay: Option<RetainedPeer>) -> Vec<RetainedPeer> {
        let before = self.by_name.get(name);
        if before == stay.as_ref() {
            return Vec::new();
        }
        let before = self.by_name.remove(name);
        if let Some(before) = &before {
            if let Some(key) = before.key {
                withdraw(&mut self.keys, key, name);
            }
            for prefix in &before.prefixes {
                withdraw(&mut self.prefixes, *prefix, name);
            }
            if let Some(ip) = before.endpoint {
                withdraw(&mut self.foreign_endpoints, ip, name);
            }
        }
        if let Some(stay) = &stay {
            if let Some(key) = stay.key {
                self.keys.entry(key).or_default().insert(name.clone());
            }
            for prefix in &stay.prefixes {
                self.prefixes
                    .entry(*prefix)
                    .or_default()
                    .insert(name.clone());
            }
            if let Some(ip) = stay.endpoint.filter(|_| stay.foreign) {
                self.foreign_endpoints
                    .entry(ip)
                    .or_default()
                    .insert(name.clone());
            }
            self.by_name.insert(name.clone(), stay.clone());
        }
        before.into_iter().chain(stay).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// A Peer other than `name` with this key.
    pub(super) fn key_holder(&self, key: PublicKey, name: &PeerName) -> Option<&PeerName> {
        self.keys.get(&key)?.iter().find(|holder| *holder != name)
    }

    /// A Peer other than `name` with exactly this prefix.
    pub(super) fn prefix_holder(&self, cidr: Cidr, name: &PeerName) -> Option<&PeerName> {
        self.prefixes
            .get(&cidr)?
            .iter()
            .find(|holder| *holder != name)
    }

    pub(super) fn foreign_endpoint_in(&self, cidr: Cidr) -> Option<IpAddr> {
        self.foreign_endpoints
            .range(cidr.first()..=cidr.last())
            .next()
            .map(|(ip, _)| *ip)
    }

    pub(super) fn source_endpoints(
        &self,
        source: (usize, usize),
    ) -> impl Iterator<Item = IpAddr> + '_ {
        self.by_name
            .values()
            .filter(move |stay| stay.source == Some(source))
            .filter_map(|stay| stay.endpoint)
    }
}

fn withdraw<K: Ord>(index: &mut BTreeMap<K, BTreeSet<PeerName>>, key: K, name: &PeerName) {
    if let Some(names) = index.get_mut(&key) {
        names.remove(name);
        if names.is_empty() {
            index.remove(&key);
        }
    }
}
