//! Survey of one cluster: its segments and their leaders, the nodes that
//! qualify for Peers, and all checks that need no other cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::endpoint::Endpoint;
use crate::key::PublicKey;
use crate::kilo::liveness::alive;
use crate::kilo::node::{Node, Nodes, Publicness};
use crate::kilo::spec::ClusterSpec;
use crate::names::{ClusterName, NodeName, PeerName};
use crate::text::printable;

/// The reason why a node has no Peer. The names are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SkipReason {
    /// An earlier node of the mesh has the same Peer name.
    PeerNameDuplicate,
    /// No pod CIDR, or the first one does not parse.
    NodeNoPodCIDR,
    /// The first pod CIDR is outside the declared networks.
    NodePodCIDROutOfRange,
    /// Kilo has assigned no WireGuard address.
    NodeNoWireguardIP,
    /// The WireGuard address does not parse.
    WGIPInvalid,
    /// The WireGuard address is outside the declared network.
    WGIPOutOfRange,
    /// Kilo has published no key.
    NodeNoPublicKey,
    /// The key does not parse.
    PublicKeyInvalid,
    /// Another node of the mesh keeps the same key.
    PublicKeyDuplicate,
    /// No endpoint is configured, and no pair of clusters has a keepalive or
    /// the Peer already.
    NodeNoEndpoint,
    /// The endpoint does not parse or can't be dialled.
    NodeEndpointInvalid,
    /// The node belongs to a location and its agent has not checked in
    /// recently.
    NodeAgentSilent,
}

impl SkipReason {
    /// All reasons, in the order of their declaration.
    pub const ALL: [SkipReason; 12] = [
        SkipReason::PeerNameDuplicate,
        SkipReason::NodeNoPodCIDR,
        SkipReason::NodePodCIDROutOfRange,
        SkipReason::NodeNoWireguardIP,
        SkipReason::WGIPInvalid,
        SkipReason::WGIPOutOfRange,
        SkipReason::NodeNoPublicKey,
        SkipReason::PublicKeyInvalid,
        SkipReason::PublicKeyDuplicate,
        SkipReason::NodeNoEndpoint,
        SkipReason::NodeEndpointInvalid,
        SkipReason::NodeAgentSilent,
    ];
}

impl SkipReason {
    /// The stable name, as in events and status.
    pub fn as_str(self) -> &'static str {
        match self {
            SkipReason::PeerNameDuplicate => "PeerNameDuplicate",
            SkipReason::NodeNoPodCIDR => "NodeNoPodCIDR",
            SkipReason::NodePodCIDROutOfRange => "NodePodCIDROutOfRange",
            SkipReason::NodeNoWireguardIP => "NodeNoWireguardIP",
            SkipReason::WGIPInvalid => "WGIPInvalid",
            SkipReason::WGIPOutOfRange => "WGIPOutOfRange",
            SkipReason::NodeNoPublicKey => "NodeNoPublicKey",
            SkipReason::PublicKeyInvalid => "PublicKeyInvalid",
            SkipReason::PublicKeyDuplicate => "PublicKeyDuplicate",
            SkipReason::NodeNoEndpoint => "NodeNoEndpoint",
            SkipReason::NodeEndpointInvalid => "NodeEndpointInvalid",
            SkipReason::NodeAgentSilent => "NodeAgentSilent",
        }
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A node without a Peer: the failed check and its details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skip {
    /// The check that failed.
    pub reason: SkipReason,
    /// The observed value, for users; printable and truncated.
    pub message: String,
}

impl Skip {
    pub(super) fn new(reason: SkipReason, message: impl AsRef<str>) -> Skip {
        Skip {
            reason,
            message: printable(message.as_ref(), 500),
        }
    }
}

/// A node that runs WireGuard and so is a candidate for a Peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) node: Arc<Node>,
    pub(super) alive: bool,
    pub(super) peer_name: PeerName,
    /// The nodes whose networks its Peer carries, including itself, sorted by
    /// name.
    pub(super) carries: Vec<Arc<Node>>,
    /// Set for the leader of a location.
    pub(super) location: Option<String>,
    pub(super) verdict: Result<Passed, Skip>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Passed {
    pub(super) key: PublicKey,
    /// `None` if the leader of a location has not published it yet.
    pub(super) wireguard_ip: Option<IpAddr>,
    pub(super) endpoint: Option<Endpoint>,
}

/// A location without a live agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SilentLocation {
    pub(super) location: String,
    pub(super) nodes: Vec<NodeName>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Survey {
    pub(super) alive: BTreeSet<NodeName>,
    /// Live nodes first, then by name.
    pub(super) candidates: Vec<Arc<Candidate>>,
    /// Carried node to leader.
    pub(super) carried: BTreeMap<NodeName, NodeName>,
    /// Nodes of a location that are neither leader nor carried.
    pub(super) skipped: BTreeMap<NodeName, Skip>,
    pub(super) silent: Vec<SilentLocation>,
    /// Location to leader.
    pub(super) leaders: BTreeMap<String, NodeName>,
}

/// Inputs of a survey besides the nodes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Surveyor<'a> {
    pub(super) mesh: &'a str,
    pub(super) cluster: &'a ClusterName,
    pub(super) spec: &'a ClusterSpec,
}

/// Reports whether another cluster gets the Peer of a node without an endpoint.
pub(super) type Roams<'a> = &'a dyn Fn(&PeerName, PublicKey) -> bool;

impl Candidate {
    /// The key of a node that passes every check except that it has no
    /// endpoint.
    pub(super) fn roaming_key(&self) -> Option<PublicKey> {
        match &self.verdict {
            Ok(Passed {
                key,
                endpoint: None,
                ..
            }) => Some(*key),
            Err(Skip {
                reason: SkipReason::NodeNoEndpoint,
                ..
            }) => self.node.key.clone().ok().flatten(),
            _ => None,
        }
    }

    /// Reports whether the result still matches the existing Peers.
    pub(super) fn is_settled(&self, roams: Roams<'_>) -> bool {
        self.roaming_key()
            .is_none_or(|key| roams(&self.peer_name, key) == self.verdict.is_ok())
    }
}

impl Surveyor<'_> {
    /// Candidates of the earlier survey are reused if their node is unchanged.
    pub(super) fn survey(&self, nodes: &Nodes, earlier: &Survey, roams: Roams<'_>) -> Survey {
        let mut survey = Survey {
            alive: alive(nodes),
            ..Survey::default()
        };
        let before: BTreeMap<&NodeName, &Arc<Candidate>> = earlier
            .candidates
            .iter()
            .map(|candidate| (&candidate.node.name, candidate))
            .collect();
        let mut locations: BTreeMap<String, Vec<&Arc<Node>>> = BTreeMap::new();
        for node in nodes.values() {
            if node.location_granularity && node.kilo_internal.is_some() {
                locations.entry(self.location(node)).or_default().push(node);
            } else {
                let alive = survey.alive.contains(&node.name);
                let same = |old: &&&Arc<Candidate>| {
                    old.location.is_none()
                        && old.alive == alive
                        && Arc::ptr_eq(&old.node, node)
                        && old.is_settled(roams)
                };
                let candidate = before
                    .get(&node.name)
                    .filter(same)
                    .map(|old| Arc::clone(old));
                let fresh =
                    || Arc::new(self.candidate((node, alive), vec![Arc::clone(node)], None, roams));
                survey.candidates.push(candidate.unwrap_or_else(fresh));
            }
        }
        for (location, members) in locations {
            self.survey_location(&mut survey, location, &members, roams);
        }
        survey
            .candidates
            .sort_by(|a, b| (!a.alive, &a.node.name).cmp(&(!b.alive, &b.node.name)));
        survey
    }

    /// The annotation if it is set, even if empty; otherwise the topology
    /// label.
    pub(super) fn location(&self, node: &Node) -> String {
        let label = || {
            node.labels
                .get(&self.spec.topology_label)
                .cloned()
                .unwrap_or_default()
        };
        node.location.clone().unwrap_or_else(label)
    }

    fn survey_location(
        &self,
        survey: &mut Survey,
        location: String,
        members: &[&Arc<Node>],
        roams: Roams<'_>,
    ) {
        let mut ready = Vec::new();
        for node in members {
            match self.unready(node, survey.alive.contains(&node.name)) {
                None => ready.push(*node),
                Some(skip) => {
                    survey.skipped.insert(node.name.clone(), skip);
                }
            }
        }
        let Some(leader) = leader(&ready) else {
            if members
                .iter()
                .all(|node| !survey.alive.contains(&node.name))
            {
                let nodes = members.iter().map(|node| node.name.clone()).collect();
                survey.silent.push(SilentLocation { location, nodes });
            }
            return;
        };
        let mut carries = Vec::new();
        for node in ready {
            match self.pods_in_range(node) {
                Err(skip) if node.name != leader.name => {
                    survey.skipped.insert(node.name.clone(), skip);
                    continue;
                }
                _ => carries.push(Arc::clone(node)),
            }
            if node.name != leader.name {
                survey
                    .carried
                    .insert(node.name.clone(), leader.name.clone());
            }
        }
        survey.leaders.insert(location.clone(), leader.name.clone());
        survey.candidates.push(Arc::new(self.candidate(
            (leader, true),
            carries,
            Some(location),
            roams,
        )));
    }

    /// The reason why Kilo ignores a node of a location, in the order of the
    /// checks.
    fn unready(&self, node: &Node, alive: bool) -> Option<Skip> {
        if let Err(skip) = self.pod_cidr(node) {
            return Some(skip);
        }
        let key = self.key(node);
        if key.is_ok() && node.kilo_endpoint.is_some() && alive {
            return None;
        }
        if let Err(skip) = self.pods_in_range(node).and(key) {
            return Some(skip);
        }
        if node.kilo_endpoint.is_none() {
            return Some(Skip::new(
                SkipReason::NodeNoEndpoint,
                "Kilo's agent published no valid endpoint, so Kilo leaves the node out of its location",
            ));
        }
        Some(Skip::new(
            SkipReason::NodeAgentSilent,
            "Kilo's agent on this node has not checked in for 60s",
        ))
    }

    fn candidate(
        &self,
        node: (&Arc<Node>, bool),
        carries: Vec<Arc<Node>>,
        location: Option<String>,
        roams: Roams<'_>,
    ) -> Candidate {
        let (node, alive) = node;
        let peer_name = PeerName::of(self.mesh, self.cluster, node.name.as_str());
        let verdict = self.judge(node, location.is_some(), &|key| roams(&peer_name, key));
        Candidate {
            node: Arc::clone(node),
            alive,
            peer_name,
            carries,
            verdict,
            location,
        }
    }

    /// A leader publishes its address up to 30s after it became leader.
    fn judge(
        &self,
        node: &Node,
        leads: bool,
        roams: &dyn Fn(PublicKey) -> bool,
    ) -> Result<Passed, Skip> {
        self.pod_cidr(node)?;
        self.pods_in_range(node)?;
        let wireguard_ip = match self.wireguard_ip(node) {
            Err(skip) if leads && skip.reason == SkipReason::NodeNoWireguardIP => None,
            found => Some(found?),
        };
        let key = self.key(node)?;
        let endpoint = self.endpoint(node, &|| roams(key))?;
        Ok(Passed {
            key,
            wireguard_ip,
            endpoint,
        })
    }

    fn pod_cidr(&self, node: &Node) -> Result<(), Skip> {
        match &node.first_pod_cidr {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(Skip::new(
                SkipReason::NodeNoPodCIDR,
                "the Node has no spec.podCIDRs",
            )),
            Err(text) => Err(Skip::new(
                SkipReason::NodeNoPodCIDR,
                format!("the Node's pod CIDR {} is invalid", text.0),
            )),
        }
    }

    fn pods_in_range(&self, node: &Node) -> Result<(), Skip> {
        match &node.first_pod_cidr {
            Ok(Some(cidr)) if !self.spec.networks.allows_pods(*cidr) => {
                let message = format!(
                    "pod CIDR {cidr} is outside the networks declared for cluster {}",
                    self.cluster
                );
                Err(Skip::new(SkipReason::NodePodCIDROutOfRange, message))
            }
            _ => Ok(()),
        }
    }

    fn wireguard_ip(&self, node: &Node) -> Result<IpAddr, Skip> {
        match &node.wireguard_ip {
            Ok(Some(ip)) if self.spec.networks.allows_wireguard(*ip) => Ok(*ip),
            Ok(Some(ip)) => {
                let message = format!(
                    "WireGuard address {ip} is outside the range declared for cluster {}",
                    self.cluster
                );
                Err(Skip::new(SkipReason::WGIPOutOfRange, message))
            }
            Ok(None) => Err(Skip::new(
                SkipReason::NodeNoWireguardIP,
                "annotation kilo.squat.ai/wireguard-ip is missing or empty",
            )),
            Err(text) => Err(Skip::new(
                SkipReason::WGIPInvalid,
                format!(
                    "annotation kilo.squat.ai/wireguard-ip is {}, not a CIDR",
                    text.0
                ),
            )),
        }
    }

    fn key(&self, node: &Node) -> Result<PublicKey, Skip> {
        match &node.key {
            Ok(Some(key)) => Ok(*key),
            Ok(None) => Err(Skip::new(
                SkipReason::NodeNoPublicKey,
                "annotation kilo.squat.ai/key is missing",
            )),
            Err(text) => {
                let message = format!(
                    "annotation kilo.squat.ai/key is {}, not a WireGuard public key",
                    text.0
                );
                Err(Skip::new(SkipReason::PublicKeyInvalid, message))
            }
        }
    }

    fn endpoint(&self, node: &Node, roams: &dyn Fn() -> bool) -> Result<Option<Endpoint>, Skip> {
        match node.configured_endpoint(self.spec.wireguard_port, self.spec.endpoint_from) {
            Ok(None) if !roams() => Err(Skip::new(
                SkipReason::NodeNoEndpoint,
                "no annotation clustermesh-endpoint or force-endpoint, no ExternalIP, no public address in annotation endpoint, no persistentKeepalive in any cluster of the mesh, and no existing Peer without an endpoint",
            )),
            Ok(endpoint) => Ok(endpoint),
            Err(text) => Err(Skip::new(
                SkipReason::NodeEndpointInvalid,
                format!("the node's endpoint is {}, not a usable host:port", text.0),
            )),
        }
    }
}

/// Kilo's choice among the ready nodes of a location, which are sorted by name.
fn leader<'a>(ready: &[&'a Arc<Node>]) -> Option<&'a Arc<Node>> {
    let public = |node: &Node| node.kilo_endpoint == Some(Publicness::Public);
    let first = |wanted: &dyn Fn(&Node) -> bool| ready.iter().copied().find(|node| wanted(node));
    first(&|node| node.leads && public(node))
        .or_else(|| first(&|node| node.leads))
        .or_else(|| first(&public))
        .or_else(|| ready.first().copied())
}
