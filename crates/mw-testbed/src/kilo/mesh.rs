//! State of one agent and the decisions based on it. No I/O.

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

/// Identity and start parameters of the agent.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub(super) hostname: String,
    pub(super) key: Key,
    pub(super) port: u16,
    pub(super) external: IpAddr,
    pub(super) internal: IpNet,
    pub(super) granularity: Granularity,
    /// Range of WireGuard addresses.
    pub(super) range: IpNet,
}

#[derive(Debug)]
pub(super) struct Mesh {
    me: Identity,
    nodes: BTreeMap<String, Node>,
    /// Peers by key: the last event for a key counts, regardless of the name of the
    /// Peer.
    peers: BTreeMap<Key, Peer>,
    /// Address of the own device, if this node leads.
    wireguard_ip: Option<IpNet>,
}

/// Desired state of the host.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) is_leader: bool,
    pub(super) address: IpNet,
    pub(super) peers: Vec<PeerConfig>,
    /// Reason to reconfigure WireGuard, if any.
    pub(super) differs: Option<&'static str>,
    pub(super) routes: BTreeSet<Route>,
}

impl Mesh {
    pub(super) fn new(me: Identity) -> Self {
        Self {
            me,
            nodes: BTreeMap::new(),
            peers: BTreeMap::new(),
            wireguard_ip: None,
        }
    }

    pub(super) fn is_me(&self, node: &Node) -> bool {
        node.name == self.me.hostname
    }

    /// Handles an event of another node. Returns true if the topology must be computed
    /// again.
    pub(super) fn node_event(&mut self, event: &Event, now: u64) -> bool {
        match event {
            Event::Added(object) | Event::Updated(_, object) => {
                let node = Node::read(object);
                let differs = self
                    .nodes
                    .get(&node.name)
                    .is_none_or(|known| !known.equals(&node, now));
                self.nodes.insert(node.name.clone(), node);
                differs
            }
            Event::Deleted(object) => {
                self.nodes.remove(&Node::read(object).name);
                true
            }
        }
    }

    /// Handles an event of a Peer. Returns true if the topology must be computed again.
    /// A Peer that is or was invalid is ignored: a fix takes effect at the next event, a
    /// delete never.
    pub(super) fn peer_event(&mut self, event: &Event) -> bool {
        match event {
            Event::Added(object) => Peer::read(object).is_some_and(|peer| self.take(peer, None)),
            Event::Updated(old, object) => {
                let (Some(old), Some(peer)) = (Peer::read(old), Peer::read(object)) else {
                    return false;
                };
                self.take(peer, Some(old.key))
            }
            Event::Deleted(object) => {
                let Some(peer) = Peer::read(object) else {
                    return false;
                };
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
        // An equal Peer keeps its resolved address.
        let same = self.peers.get(&peer.key).is_some_and(|known| {
            Peer {
                name: peer.name.clone(),
                ..known.clone()
            } == peer
        });
        if !same {
            self.peers.insert(peer.key, peer);
        }
        moved.is_some() || !same
    }

    /// Returns the own node as it should be annotated, given the annotations that users
    /// set.
    pub(super) fn describe(&self, found: &Node, now: u64) -> Node {
        let detected = Endpoint::of_address(self.me.external, self.me.port);
        let internal_ip = found
            .internal_ip
            .or(Some(self.me.internal))
            .filter(|_| !found.no_internal_ip);
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

    /// Stores the own node. Returns true if it changed.
    pub(super) fn adopt(&mut self, own: Node, now: u64) -> bool {
        let differs = self
            .nodes
            .get(&own.name)
            .is_none_or(|known| !known.equals(&own, now));
        if differs {
            self.nodes.insert(own.name.clone(), own);
        }
        differs
    }

    /// Returns the own node with the current time as last-seen.
    pub(super) fn checked_in(&self, now: u64) -> Option<Node> {
        self.nodes.get(&self.me.hostname).map(|own| Node {
            last_seen: now,
            ..own.clone()
        })
    }

    /// Records a successful check-in.
    pub(super) fn was_seen(&mut self, now: u64) {
        if let Some(own) = self.nodes.get_mut(&self.me.hostname) {
            own.last_seen = now;
        }
    }

    /// Computes the plan; `None` while the own node is not ready. A single name that
    /// does not resolve blocks the whole plan.
    pub(super) fn plan(
        &mut self,
        device: &[PeerState],
        names: &Names,
        now: u64,
    ) -> Result<Option<Plan>, String> {
        self.resolve(names, now)?;
        let discovered = self.discover(device, now);
        if let Some(own) = self
            .nodes
            .get_mut(&self.me.hostname)
            .filter(|own| own.is_ready(now))
        {
            own.discovered = Some(discovered);
        }
        let nodes: BTreeMap<&str, &Node> = self
            .nodes
            .iter()
            .filter(|(_, node)| node.is_ready(now))
            .map(|(name, node)| (name.as_str(), node))
            .collect();
        let peers: Vec<&Peer> = self.peers.values().filter(|peer| peer.is_ready()).collect();
        let Some(topology) = Topology::new(
            &nodes,
            &peers,
            self.me.granularity,
            &self.me.hostname,
            self.me.range,
        ) else {
            return Ok(None);
        };
        self.wireguard_ip = topology.is_leader.then_some(topology.wireguard);
        let mut peers = topology.configuration();
        let differs = difference(&mut peers, device);
        let (is_leader, address, routes) =
            (topology.is_leader, topology.wireguard, topology.routes());
        Ok(Some(Plan {
            is_leader,
            address,
            peers,
            differs,
            routes,
        }))
    }

    fn resolve(&mut self, names: &Names, now: u64) -> Result<(), String> {
        let of_nodes = self
            .nodes
            .values_mut()
            .filter(|node| node.is_ready(now))
            .filter_map(|node| node.endpoint.as_mut());
        let of_peers = self
            .peers
            .values_mut()
            .filter(|peer| peer.is_ready())
            .filter_map(|peer| peer.endpoint.as_mut());
        of_nodes
            .chain(of_peers)
            .try_for_each(|endpoint| endpoint.resolve(names))
    }

    /// Returns the endpoints at which nodes with keepalive, and all Peers, were last
    /// seen.
    fn discover(&self, device: &[PeerState], now: u64) -> Discovered {
        let nodes = self
            .nodes
            .values()
            .filter(|node| node.is_ready(now) && node.keepalive > 0)
            .filter_map(|node| node.key);
        let wanted: BTreeSet<Key> = nodes
            .chain(
                self.peers
                    .values()
                    .filter(|peer| peer.is_ready())
                    .map(|peer| peer.key),
            )
            .collect();
        let heard = device
            .iter()
            .filter(|peer| peer.has_session && wanted.contains(&peer.key));
        heard
            .filter_map(|peer| Some((peer.key.to_string(), peer.endpoint?)))
            .collect()
    }

    /// Returns the current Node of an event, if it is the own one.
    pub(super) fn own_in(&self, event: &Event) -> Option<Node> {
        let object: &Value = match event {
            Event::Added(object) | Event::Updated(_, object) | Event::Deleted(object) => object,
        };
        Some(Node::read(object)).filter(|node| self.is_me(node))
    }
}
