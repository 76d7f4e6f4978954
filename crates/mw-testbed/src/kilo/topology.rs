//! Segments with their leaders and addresses, from the perspective of one node.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::Granularity;
use super::endpoint::{Endpoint, is_public};
use super::node::{Discovered, Node};
use super::peer::Peer;
use crate::net::{Key, PeerConfig};

/// Nodes that share one WireGuard address, that of their leader.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    pub(super) location: String,
    pub(super) leader: String,
    pub(super) leader_internal: Option<IpAddr>,
    pub(super) key: Key,
    endpoint: Endpoint,
    keepalive: u16,
    pub(super) wireguard_ip: IpAddr,
    /// Name, pod CIDR and internal address of each node.
    pub(super) nodes: Vec<(String, IpNet, Option<IpAddr>)>,
}

#[derive(Debug)]
pub(super) struct Topology {
    pub(super) location: String,
    pub(super) is_leader: bool,
    pub(super) internal: Option<IpAddr>,
    /// Own address with the prefix length of the range; the range itself on a non-leader.
    pub(super) wireguard: IpNet,
    pub(super) segments: Vec<Segment>,
    pub(super) peers: Vec<Peer>,
    keepalive: u16,
    discovered: Discovered,
}

impl Topology {
    /// Computes the topology; `None` if the own node is not ready, or the range has too
    /// few addresses.
    pub(super) fn new(
        nodes: &BTreeMap<&str, &Node>,
        peers: &[&Peer],
        granularity: Granularity,
        me: &str,
        range: IpNet,
    ) -> Option<Self> {
        let own = *nodes.get(me)?;
        let mut places: BTreeMap<String, Vec<&Node>> = BTreeMap::new();
        for node in nodes.values() {
            places
                .entry(place(node, granularity))
                .or_default()
                .push(node);
        }
        let mut addresses = range.hosts();
        let mut discovered = own.discovered.clone().unwrap_or_default();
        let mut segments = Vec::new();
        for (location, members) in places {
            for (key, address) in members
                .iter()
                .flat_map(|node| node.discovered.iter().flatten())
            {
                discovered.entry(key.clone()).or_insert(*address);
            }
            segments.push(segment(location, &members, addresses.next()?)?);
        }
        let location = place(own, granularity);
        let led = segments
            .iter()
            .find(|segment| segment.location == location && segment.leader == me);
        let wireguard = match led {
            Some(segment) => IpNet::new(segment.wireguard_ip, range.prefix_len()).ok()?,
            None => range,
        };
        let (is_leader, internal, keepalive) =
            (led.is_some(), own.internal_address(), own.keepalive);
        Some(Self {
            location,
            is_leader,
            internal,
            wireguard,
            segments,
            peers: without_duplicates(peers),
            keepalive,
            discovered,
        })
    }

    /// Returns the WireGuard configuration: the other segments, then the Peers.
    pub(super) fn configuration(&self) -> Vec<PeerConfig> {
        let others = self
            .segments
            .iter()
            .filter(|segment| segment.location != self.location)
            .map(|segment| PeerConfig {
                key: segment.key,
                preshared: None,
                endpoint: self.endpoint_of(segment),
                keepalive: self.keepalive,
                allowed: segment.allowed(),
            });
        let peers = self.peers.iter().map(|peer| PeerConfig {
            key: peer.key,
            preshared: peer.preshared,
            endpoint: self.believed(peer.endpoint.as_ref(), peer.key, peer.keepalive > 0),
            keepalive: self.keepalive,
            allowed: peer.allowed.clone(),
        });
        others.chain(peers).collect()
    }

    pub(super) fn endpoint_of(&self, segment: &Segment) -> Option<SocketAddr> {
        self.believed(Some(&segment.endpoint), segment.key, segment.keepalive > 0)
    }

    fn believed(&self, configured: Option<&Endpoint>, key: Key, roams: bool) -> Option<SocketAddr> {
        let seen = self.discovered.get(&key.to_string()).filter(|_| roams);
        seen.copied()
            .or_else(|| configured.and_then(Endpoint::address))
    }
}

impl Segment {
    fn allowed(&self) -> Vec<IpNet> {
        let of_nodes = self
            .nodes
            .iter()
            .flat_map(|(_, cidr, internal)| [Some(*cidr), internal.map(IpNet::from)])
            .flatten();
        of_nodes.chain([IpNet::from(self.wireguard_ip)]).collect()
    }
}

fn place(node: &Node, granularity: Granularity) -> String {
    match granularity {
        Granularity::Location if node.internal_ip.is_some() => {
            format!("location:{}", node.location)
        }
        _ => format!("node:{}", node.name),
    }
}

fn segment(location: String, members: &[&Node], wireguard_ip: IpAddr) -> Option<Segment> {
    let leader = leader(members)?;
    let nodes = members
        .iter()
        .filter_map(|node| Some((node.name.clone(), node.pod_cidr?, node.internal_address())));
    Some(Segment {
        location,
        leader: leader.name.clone(),
        leader_internal: leader.internal_address(),
        key: leader.key?,
        endpoint: leader.endpoint.clone()?,
        keepalive: leader.keepalive,
        wireguard_ip,
        nodes: nodes.collect(),
    })
}

/// Selects the leader: an annotated node with a public address, else an annotated one,
/// else one with a public address, else the first by name.
fn leader<'a>(members: &[&'a Node]) -> Option<&'a Node> {
    let public = |node: &&&Node| {
        node.endpoint
            .as_ref()
            .and_then(Endpoint::ip)
            .is_some_and(is_public)
    };
    let asks = |node: &&&Node| node.leader;
    let found = members.iter().find(|node| asks(node) && public(node));
    found
        .or_else(|| members.iter().find(asks))
        .or_else(|| members.iter().find(public))
        .or(members.first())
        .copied()
}

/// Removes duplicate prefixes: the first Peer by name keeps them. Only identical text
/// counts as duplicate.
fn without_duplicates(peers: &[&Peer]) -> Vec<Peer> {
    let mut sorted: Vec<Peer> = peers.iter().map(|peer| (*peer).clone()).collect();
    sorted.sort_by(|one, other| one.name.cmp(&other.name));
    let mut taken = std::collections::BTreeSet::new();
    for peer in &mut sorted {
        peer.allowed.retain(|cidr| taken.insert(*cidr));
    }
    sorted
}
