//! What one agent knows, and what follows from it. No input or output.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::Granularity;
use super::conf::difference;
use super::endpoint::{Endpoint, Names};
use super::informer::Event;
use super::node::{Discovered, Node};
use super::peer::Peer;
use super::topology::Topology;
use crate::net::{Key, PeerConfig, PeerState, Route};

/// Who the agent is and how it was started.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub(super) hostname: String,
    pub(super) key: Key,
    pub(super) port: u16,
    pub(super) external: IpAddr,
    pub(super) internal: IpNet,
    pub(super) granularity: Granularity,
    /// Where WireGuard addresses are taken from.
    pub(super) range: IpNet,
}

#[derive(Debug)]
pub(super) struct Mesh {
    me: Identity,
    nodes: BTreeMap<String, Node>,
    /// By key: the last event for a key counts, whatever the Peer's name.
    peers: BTreeMap<Key, Peer>,
    /// Of the own device, when it leads.
    wireguard_ip: Option<IpNet>,
}

/// What the host has to become.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) is_leader: bool,
    pub(super) address: IpNet,
    pub(super) peers: Vec<PeerConfig>,
    /// Why WireGuard is configured anew, if it is.
    pub(super) differs: Option<&'static str>,
    pub(super) routes: BTreeSet<Route>,
}

impl Mesh {
    pub(super) fn new(me: Identity) -> Self {
        Self { me, nodes: BTreeMap::new(), peers: BTreeMap::new(), wireguard_ip: None }
    }

    pub(super) fn is_me(&self, node: &Node) -> bool {
        node.name == self.me.hostname
    }

    /// Whether the topology has to be looked at, for a node of others.
    pub(super) fn node_event(&mut self, event: &Event, now: u64) -> bool {
        match event {
            Event::Added(object) | Event::Updated(_, object) => {
                let node = Node::read(object);
                let differs = self.nodes.get(&node.name).is_none_or(|known| !known.equals(&node, now));
                self.nodes.insert(node.name.clone(), node);
                differs
            }
            Event::Deleted(object) => {
                self.nodes.remove(&Node::read(object).name);
                true
            }
        }
    }

    /// The same for a Peer. One that is or was invalid is passed over: a fix
    /// then waits for the next event, and so does a delete, for ever.
    pub(super) fn peer_event(&mut self, event: &Event) -> bool {
        match event {
            Event::Added(object) => Peer::read(object).is_some_and(|peer| self.take(peer, None)),
            Event::Updated(old, object) => {
                let (Some(old), Some(peer)) = (Peer::read(old), Peer::read(object)) else { return false };
                self.take(peer, Some(old.key))
            }
            Event::Deleted(object) => {
                let Some(peer) = Peer::read(object) else { return false };
                self.peers.remove(&peer.key);
                true
            }
        }
    }

    fn take(&mut self, peer: Peer, old: Option<Key>) -> bool {
        let moved = old.filter(|old| *old != peer.key);
        if let Some(old) = moved {
            self.peers.remove(&old);
        }
        // An equal one stays with what its name resolved to.
        let same = self.peers.get(&peer.key).is_some_and(|known| Peer { name: peer.name.clone(), ..known.clone() } == peer);
        if !same {
            self.peers.insert(peer.key, peer);
        }
        moved.is_some() || !same
    }

    /// The own node as it should be described, from what people set on it.
    pub(super) fn describe(&self, found: &Node, now: u64) -> Node {
        let detected = Endpoint::of_address(self.me.external, self.me.port);
        let internal_ip = found.internal_ip.or(Some(self.me.internal)).filter(|_| !found.no_internal_ip);
        Node {
            endpoint: Some(found.endpoint.clone().unwrap_or(detected)),
            key: Some(self.me.key),
            internal_ip,
            last_seen: now,
            wireguard_ip: self.wireguard_ip,
            granularity: Some(self.me.granularity),
            ..found.clone()
        }
    }

    /// Whether that is news.
    pub(super) fn adopt(&mut self, own: Node, now: u64) -> bool {
        let differs = self.nodes.get(&own.name).is_none_or(|known| !known.equals(&own, now));
        if differs {
            self.nodes.insert(own.name.clone(), own);
        }
        differs
    }

    /// The own node as it is known, seen just now.
    pub(super) fn checked_in(&self, now: u64) -> Option<Node> {
        self.nodes.get(&self.me.hostname).map(|own| Node { last_seen: now, ..own.clone() })
    }

    /// To be called when that was written.
    pub(super) fn was_seen(&mut self, now: u64) {
        if let Some(own) = self.nodes.get_mut(&self.me.hostname) {
            own.last_seen = now;
        }
    }

    /// Nothing while the own node is not ready. One name that does not resolve
    /// holds everything up.
    pub(super) fn plan(&mut self, device: &[PeerState], names: &Names, now: u64) -> Result<Option<Plan>, String> {
        self.resolve(names, now)?;
        let discovered = self.discover(device, now);
        if let Some(own) = self.nodes.get_mut(&self.me.hostname).filter(|own| own.is_ready(now)) {
            own.discovered = Some(discovered);
        }
        let nodes: BTreeMap<&str, &Node> =
            self.nodes.iter().filter(|(_, node)| node.is_ready(now)).map(|(name, node)| (name.as_str(), node)).collect();
        let peers: Vec<&Peer> = self.peers.values().filter(|peer| peer.is_ready()).collect();
        let Some(topology) = Topology::new(&nodes, &peers, self.me.granularity, &self.me.hostname, self.me.range) else {
            return Ok(None);
        };
        self.wireguard_ip = topology.is_leader.then_some(topology.wireguard);
        let mut peers = topology.configuration();
        let differs = difference(&mut peers, device);
        let (is_leader, address, routes) = (topology.is_leader, topology.wireguard, topology.routes());
        Ok(Some(Plan { is_leader, address, peers, differs, routes }))
    }

    fn resolve(&mut self, names: &Names, now: u64) -> Result<(), String> {
        let of_nodes = self.nodes.values_mut().filter(|node| node.is_ready(now)).filter_map(|node| node.endpoint.as_mut());
        let of_peers = self.peers.values_mut().filter(|peer| peer.is_ready()).filter_map(|peer| peer.endpoint.as_mut());
        of_nodes.chain(of_peers).try_for_each(|endpoint| endpoint.resolve(names))
    }

    /// Where nodes with keepalive, and all Peers, were last heard from.
    fn discover(&self, device: &[PeerState], now: u64) -> Discovered {
        let nodes = self.nodes.values().filter(|node| node.is_ready(now) && node.keepalive > 0).filter_map(|node| node.key);
        let wanted: BTreeSet<Key> = nodes.chain(self.peers.values().filter(|peer| peer.is_ready()).map(|peer| peer.key)).collect();
        let heard = device.iter().filter(|peer| peer.has_session && wanted.contains(&peer.key));
        heard.filter_map(|peer| Some((peer.key.to_string(), peer.endpoint?))).collect()
    }

    /// For an event: the Node as it is now, if it is the own one.
    pub(super) fn own_in(&self, event: &Event) -> Option<Node> {
        let object: &Value = match event {
            Event::Added(object) | Event::Updated(_, object) | Event::Deleted(object) => object,
        };
        Some(Node::read(object)).filter(|node| self.is_me(node))
    }
}
