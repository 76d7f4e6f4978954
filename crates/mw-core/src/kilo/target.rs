//! The observed Peers of one cluster, stored compactly: a Peer that equals the
//! wanted one is a pointer to it, any other is stored with what the rules need.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::cidr::{Cidr, Family};
use crate::endpoint::{Endpoint, Host};
use crate::key::PublicKey;
use crate::kilo::declared::DeclaredIndex;
use crate::kilo::node::Nodes;
use crate::kilo::ownership::{Owner, Register};
use crate::kilo::peer::{Fingerprint, Labels, PeerFacts, WantedPeer};
use crate::kilo::source::SourcePlan;
use crate::kilo::spec::ClusterSpec;
use crate::kilo::survey::Survey;
use crate::names::{ClusterName, NodeName, PeerName};
use crate::problem::{Problem, Reason};
use crate::text::listed;
use crate::time::Timestamp;

/// One Peer on a target.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) uid: Box<str>,
    pub(super) resource_version: Box<str>,
    pub(super) deleting: bool,
    pub(super) endpoint_written: Option<Timestamp>,
    pub(super) owner: Arc<Owner>,
    pub(super) content: Content,
}

#[derive(Debug, Clone)]
pub(super) enum Content {
    /// Equal to the wanted Peer.
    Same(WantedPeer),
    Other(Box<Found>),
}

/// A Peer that differs from the wanted one, or is not wanted.
#[derive(Debug, Clone)]
pub(super) struct Found {
    facts: PeerFacts,
    fingerprint: Fingerprint,
}

impl Entry {
    pub(super) fn new(facts: PeerFacts, register: &Register) -> Entry {
        Entry {
            uid: facts.uid.as_str().into(),
            resource_version: facts.resource_version.as_str().into(),
            deleting: facts.deleting,
            endpoint_written: facts.endpoint_written,
            owner: register.owner(&facts.labels),
            content: Content::Other(Box::new(Found {
                fingerprint: facts.fingerprint(register.hub().is_some()),
                facts,
            })),
        }
    }

    pub(super) fn labels(&self) -> &Labels {
        match &self.content {
            Content::Same(wanted) => wanted.labels(),
            Content::Other(found) => &found.facts.labels,
        }
    }

    pub(super) fn key(&self) -> Option<PublicKey> {
        match &self.content {
            Content::Same(wanted) => Some(wanted.key()),
            Content::Other(found) => PublicKey::try_from(found.facts.spec.public_key.as_str()).ok(),
        }
    }

    pub(super) fn prefixes(&self) -> Vec<Cidr> {
        match &self.content {
            Content::Same(wanted) => wanted.allowed_ips().to_vec(),
            Content::Other(found) => found
                .facts
                .spec
                .allowed_ips
                .iter()
                .filter_map(|text| Cidr::try_from(text.as_str()).ok())
                .collect(),
        }
    }

    pub(super) fn carries_one_of(&self, networks: &BTreeSet<Cidr>) -> bool {
        match &self.content {
            Content::Same(wanted) => wanted
                .allowed_ips()
                .iter()
                .any(|cidr| networks.contains(cidr)),
            Content::Other(_) => self.prefixes().iter().any(|cidr| networks.contains(cidr)),
        }
    }

    pub(super) fn has_endpoint(&self) -> bool {
        match &self.content {
            Content::Same(wanted) => wanted.endpoint().is_some(),
            Content::Other(found) => found.facts.spec.endpoint.is_some(),
        }
    }

    /// The endpoint, if it is one that we could have written.
    pub(super) fn endpoint(&self) -> Option<Endpoint> {
        match &self.content {
            Content::Same(wanted) => wanted.endpoint().cloned(),
            Content::Other(found) => {
                let endpoint = found.facts.spec.endpoint.as_ref()?;
                match endpoint.dns.as_deref() {
                    Some(name) if !name.is_empty() => {
                        Endpoint::try_from(format!("{name}:{}", endpoint.port).as_str()).ok()
                    }
                    _ => Endpoint::new(
                        Host::Ip(endpoint.address()?),
                        u16::try_from(endpoint.port).ok()?,
                    )
                    .ok(),
                }
            }
        }
    }

    pub(super) fn endpoint_address(&self) -> Option<IpAddr> {
        match &self.content {
            Content::Same(wanted) => wanted.endpoint().and_then(Endpoint::ip),
            Content::Other(found) => found.facts.spec.endpoint.as_ref()?.address(),
        }
    }

    pub(super) fn equals(&self, wanted: &WantedPeer) -> bool {
        match &self.content {
            Content::Same(same) => {
                same.keepalive() == wanted.keepalive() && same.fingerprint() == wanted.fingerprint()
            }
            Content::Other(found) => {
                found.facts.spec.keepalive == i64::from(wanted.keepalive())
                    && found.fingerprint == wanted.fingerprint()
            }
        }
    }

    /// Reports whether only our labels differ.
    pub(super) fn same_spec(&self, wanted: &WantedPeer) -> bool {
        let mut texts = wanted.spec();
        let mut found = match &self.content {
            Content::Same(same) => same.spec(),
            Content::Other(found) => found.facts.spec.clone(),
        };
        for spec in [&mut texts, &mut found] {
            spec.allowed_ips.sort();
            spec.allowed_ips.dedup();
        }
        texts == found
    }
}

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

impl RetainedPeers {
    pub(super) fn stay(
        entry: &Entry,
        foreign: bool,
        source: Option<(usize, usize)>,
    ) -> RetainedPeer {
        RetainedPeer {
            foreign,
            key: entry.key(),
            prefixes: entry.prefixes(),
            endpoint: entry.endpoint_address(),
            source,
        }
    }

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

/// Time for which a discovered endpoint is kept after the last node stopped
/// listing its key.
pub const DISCOVERED_SECONDS: u64 = 300;

/// Discovered endpoints of keys that no node of a cluster lists any more.
pub type Vanished = BTreeMap<PublicKey, LastDiscovery>;

/// A discovered endpoint and its expiry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastDiscovery {
    /// The address that the handshakes came from.
    pub endpoint: Endpoint,
    /// The time at which it stops being used.
    pub until: Timestamp,
}

impl LastDiscovery {
    /// Reports whether Kilo is expected to list the endpoint again.
    pub(super) fn counts(&self, declared: &DeclaredIndex, now: Timestamp) -> bool {
        self.until > now
            && self
                .endpoint
                .ip()
                .is_none_or(|ip| declared.owner(ip).is_none())
    }
}

/// Constraints that a cluster's own nodes put on the Peers it gets in one mesh.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Own {
    pub(super) keys: BTreeSet<PublicKey>,
    /// The only IP family that its nodes route; `None` if they route both.
    pub(super) family: Option<Family>,
    /// By source: own addresses and pod CIDRs inside that source's networks.
    pub(super) hits: BTreeMap<ClusterName, Vec<Cidr>>,
    /// Addresses that handshakes came from, by key.
    pub(super) discovered: BTreeMap<PublicKey, Endpoint>,
    /// Discovered keys that no node lists any more, with their expiry.
    pub(super) remembered: BTreeMap<PublicKey, Timestamp>,
    /// Discovered endpoints that expired, but may still be on Peers.
    pub(super) faded: BTreeMap<PublicKey, Endpoint>,
    pub(super) problems: Vec<Problem>,
}

impl Own {
    pub(super) fn of(
        (cluster, spec): (&ClusterName, &ClusterSpec),
        nodes: &Nodes,
        survey: &Survey,
        plan: &SourcePlan,
        declared: &DeclaredIndex,
        (vanished, now): (&Vanished, Timestamp),
    ) -> Own {
        let mut own = Own {
            family: routed_family(nodes, spec.networks.wireguard_family()),
            ..Own::default()
        };
        for node in nodes.values() {
            own.keys.extend(node.key.as_ref().ok().copied().flatten());
            for address in node.addresses() {
                own.note_hit(cluster, declared, Cidr::host(address));
            }
        }
        let passing: BTreeSet<&NodeName> = plan
            .base
            .values()
            .map(|peer| &peer.node)
            .chain(plan.carried.keys())
            .collect();
        for node in nodes.values().filter(|node| passing.contains(&node.name)) {
            for pods in &node.pod_cidrs {
                own.note_hit(cluster, declared, *pods);
            }
        }
        own.discover(cluster, nodes, survey, declared);
        own.remember(vanished, declared, now);
        own
    }

    /// Reports whether the nodes can route a network. Kilo can't set a route
    /// with a source address of the other family, and skips all routes after
    /// it.
    pub(super) fn routes(&self, cidr: Cidr) -> bool {
        self.family
            .is_none_or(|family| family == Family::of(cidr.first()))
    }

    fn note_hit(&mut self, cluster: &ClusterName, declared: &DeclaredIndex, cidr: Cidr) {
        for owner in declared
            .owners(cidr)
            .into_iter()
            .filter(|owner| *owner != cluster)
        {
            self.hits.entry(owner.clone()).or_default().push(cidr);
        }
    }

    /// Kilo drops its entries for some seconds around every reload, so a
    /// discovered endpoint is kept for a while.
    fn remember(&mut self, vanished: &Vanished, declared: &DeclaredIndex, now: Timestamp) {
        for (key, last_discovery) in vanished
            .iter()
            .filter(|(key, _)| !self.discovered.contains_key(*key))
            .collect::<Vec<_>>()
        {
            if last_discovery.counts(declared, now) {
                self.discovered
                    .insert(*key, last_discovery.endpoint.clone());
                self.remembered.insert(*key, last_discovery.until);
            } else {
                self.faded.insert(*key, last_discovery.endpoint.clone());
            }
        }
    }

    /// The discovered endpoints that a node lists now.
    pub(super) fn observed(&self) -> impl Iterator<Item = (&PublicKey, &Endpoint)> {
        self.discovered
            .iter()
            .filter(|(key, _)| !self.remembered.contains_key(*key))
    }

    /// The time at which the first remembered endpoint expires.
    pub(super) fn recheck_at(&self) -> Option<Timestamp> {
        self.remembered.values().min().copied()
    }

    /// Live observers take precedence over dead ones, then the value seen by
    /// most of them, then the first node by name.
    fn discover(
        &mut self,
        cluster: &ClusterName,
        nodes: &Nodes,
        survey: &Survey,
        declared: &DeclaredIndex,
    ) {
        let mut last_discoveries: BTreeMap<PublicKey, Vec<(bool, SocketAddr)>> = BTreeMap::new();
        let mut unreadable = Vec::new();
        for node in nodes.values() {
            match &node.discovered {
                Err(_) => unreadable.push(&node.name),
                Ok(seen) => {
                    let alive = survey.alive.contains(&node.name);
                    for (key, at) in seen
                        .iter()
                        .filter(|(_, at)| declared.owner(at.ip()).is_none())
                    {
                        last_discoveries.entry(*key).or_default().push((alive, *at));
                    }
                }
            }
        }
        for (key, mut seen) in last_discoveries {
            if seen.iter().any(|(alive, _)| *alive) {
                seen.retain(|(alive, _)| *alive);
            }
            let votes = |at: &SocketAddr| seen.iter().filter(|(_, other)| other == at).count();
            let best = seen
                .iter()
                .map(|(_, at)| at)
                .rev()
                .max_by_key(|at| votes(at));
            if let Some(endpoint) =
                best.and_then(|at| Endpoint::new(Host::Ip(at.ip()), at.port()).ok())
            {
                self.discovered.insert(key, endpoint);
            }
        }
        if !unreadable.is_empty() {
            self.problems.push(Problem::new(
                Reason::DiscoveredEndpointsInvalid,
                cluster.to_string(),
                format!(
                    "annotation kilo.squat.ai/discovered-endpoints is invalid on {}",
                    listed(&unreadable, 5)
                ),
                "configured endpoints are used; Kilo rewrites the annotation at its next check-in",
            ));
        }
    }
}

/// The IP family of the addresses from which most agents route; `None` if they
/// have no internal IP and so route both. Nodes without an agent count only if
/// no node has one.
fn routed_family(nodes: &Nodes, declared: Option<Family>) -> Option<Family> {
    let agents = nodes
        .values()
        .filter(|node| !node.is_bare())
        .map(|node| node.route_source.map(Family::of));
    let mut votes: Vec<Option<Family>> = agents.collect();
    if votes.is_empty() {
        votes.extend(
            nodes
                .values()
                .filter_map(|node| node.internal_ips.first())
                .map(|ip| Some(Family::of(*ip))),
        );
    }
    let count = |family: &Option<Family>| votes.iter().filter(|vote| *vote == family).count();
    let families: BTreeSet<Option<Family>> = votes.iter().copied().collect();
    let most = families.iter().map(count).max()?;
    let mut winners = families.into_iter().filter(|family| count(family) == most);
    match (winners.next(), winners.next()) {
        (Some(winner), None) => winner,
        _ => declared,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kilo::node::{Node, NodeFacts};

    fn family(nodes: &[(&str, &str)]) -> Option<Family> {
        let node = |(at, (agent, internal)): (usize, &(&str, &str))| {
            let kilo = match *agent {
                "" => BTreeMap::new(),
                source => [("last-seen", "1"), ("internal-ip", source)]
                    .map(|(k, v)| (k.to_owned(), v.to_owned()))
                    .into(),
            };
            let internal_ips = Some((*internal).to_owned())
                .filter(|ip| !ip.is_empty())
                .into_iter()
                .collect();
            let facts = NodeFacts {
                name: format!("n{at}"),
                kilo,
                internal_ips,
                ..NodeFacts::default()
            };
            (
                NodeName::from(facts.name.as_str()),
                Arc::new(Node::read(facts)),
            )
        };
        routed_family(
            &nodes.iter().enumerate().map(node).collect(),
            Some(Family::V4),
        )
    }

    #[test]
    fn most_agents_decide_which_family_is_routed() {
        let (v4, v6, none) = (
            ("10.0.0.1/24", "10.0.0.1"),
            ("fd00::1/64", "fd00::1"),
            ("-", ""),
        );
        assert_eq!(family(&[v4, v4, v6]), Some(Family::V4));
        assert_eq!(family(&[v6, v6, v4]), Some(Family::V6));
        assert_eq!(
            family(&[v6, v4]),
            Some(Family::V4),
            "a tie goes to the declared WireGuard network"
        );
        assert_eq!(family(&[none, none, v4]), None);
        assert_eq!(family(&[]), None);
    }

    #[test]
    fn a_node_without_an_agent_counts_only_where_no_node_has_one() {
        let (v4, plain) = (("10.0.0.1/24", "10.0.0.1"), ("", "fd00::1"));
        assert_eq!(family(&[v4, plain, plain]), Some(Family::V4));
        assert_eq!(family(&[plain, plain]), Some(Family::V6));
    }
}
