//! One cluster of a mesh as a source: its Peers before any target-specific
//! change, and the state of its nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::cidr::Cidr;
use crate::key::PublicKey;
use crate::kilo::anchor::{self, Eligible};
use crate::kilo::declared::DeclaredIndex;
use crate::kilo::duplicates::{Losers, verdicts};
use crate::kilo::host_route::{self, Claim, Withheld};
use crate::kilo::node::{Node, Nodes};
use crate::kilo::peer::{BaseParts, BasePeer, Labels};
use crate::kilo::spec::MeshSpec;
use crate::kilo::survey::{Candidate, Passed, Skip, Survey, Surveyor};
use crate::names::{ClusterName, NodeName, PeerName};
use crate::problem::{Problem, Reason};
use crate::text::{listed, shell_quoted};
use crate::time::Timestamp;

/// Kubernetes assigns one pod CIDR per IP family to a node.
const MOST_POD_CIDRS: usize = 2;
/// Limit for prefixes that the nodes of one Peer contribute, besides the
/// declared ones. Pod CIDRs and the host route are always kept.
const MOST_ALLOWED_IPS: usize = 256;

/// The reason for keeping an existing Peer unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// The agent removed its annotations recently.
    Grace,
    /// No agent of its location has checked in recently.
    SilentLocation,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct SourcePlan {
    pub(super) base: BTreeMap<PeerName, Arc<BasePeer>>,
    pub(super) kept: BTreeMap<PeerName, (NodeName, Kept)>,
    /// Peers whose configured endpoint is inside another cluster's networks.
    pub(super) endpoint_inside: BTreeMap<PeerName, ClusterName>,
    /// Configured endpoints inside the source's own networks, with their keys.
    pub(super) inner_endpoints: BTreeMap<IpAddr, BTreeSet<PublicKey>>,
    /// Peers of nodes whose location has another leader that has a Peer.
    pub(super) led_by_another: BTreeSet<PeerName>,
    pub(super) skipped: BTreeMap<NodeName, Skip>,
    pub(super) carried: BTreeMap<NodeName, Option<NodeName>>,
    pub(super) anchor: Option<NodeName>,
    /// The anchor's Peer, if one is planned.
    pub(super) anchor_peer: Option<Arc<BasePeer>>,
    pub(super) extras: Vec<Cidr>,
    pub(super) problems: Vec<Problem>,
    pub(super) recheck_at: Option<Timestamp>,
    /// True if existing Peers decide about host routes: several nodes have the
    /// same WireGuard address, or a leader has not published its own yet.
    pub(super) reads_routes: bool,
}

/// History of the source, read from its existing Peers.
pub(super) trait Memory {
    /// The number of readable targets on which each Peer carries one of
    /// `extras`.
    fn carriers(&self, extras: &[Cidr]) -> BTreeMap<PeerName, usize>;
    /// Keys of legacy anchor Peers, with the number of targets.
    fn legacy_anchor_keys(&self) -> BTreeMap<PublicKey, usize>;
    /// The anchor of the previous plan.
    fn last_anchor(&self) -> Option<&NodeName>;
    /// Reports whether a readable target has that Peer.
    fn exists(&self, name: &PeerName) -> bool;
    /// Prefixes that the Peer carries on readable targets.
    fn prefixes(&self, name: &PeerName) -> BTreeSet<Cidr>;
}

pub(super) struct SourcePlanner<'a> {
    pub(super) surveyor: Surveyor<'a>,
    pub(super) declared: &'a DeclaredIndex,
    pub(super) labels: Arc<Labels>,
    pub(super) nodes: &'a Nodes,
    pub(super) survey: &'a Survey,
    pub(super) position: usize,
    pub(super) losers: &'a Losers,
    pub(super) memory: &'a dyn Memory,
    /// Reports whether another member can get a Peer with this key: not if one
    /// of its own nodes has the key.
    pub(super) takes_key: &'a dyn Fn(PublicKey) -> bool,
    pub(super) earlier: &'a BTreeMap<PeerName, Arc<BasePeer>>,
    pub(super) now: Timestamp,
    pub(super) node_grace: u64,
}

struct Chosen<'a> {
    candidate: &'a Candidate,
    passed: &'a Passed,
    wireguard_ip: Option<IpAddr>,
}

impl<'a> SourcePlanner<'a> {
    pub(super) fn plan(&self) -> SourcePlan {
        let mut plan = SourcePlan {
            skipped: self.survey.skipped.clone(),
            ..SourcePlan::default()
        };
        let mut chosen: Vec<Chosen<'a>> = Vec::new();
        let mut leaderless: Vec<(&Candidate, Skip)> = Vec::new();
        for (candidate, verdict) in
            self.survey
                .candidates
                .iter()
                .zip(verdicts(self.position, self.survey, self.losers))
        {
            match verdict {
                Ok(passed) => {
                    let wireguard_ip = passed
                        .wireguard_ip
                        .or_else(|| self.address_before(candidate));
                    chosen.push(Chosen {
                        candidate,
                        passed,
                        wireguard_ip,
                    });
                }
                Err(skip) => {
                    if candidate.location.is_some() {
                        leaderless.push((candidate, skip.clone()));
                    }
                    plan.skipped.insert(candidate.node.name.clone(), skip);
                }
            }
        }
        chosen.sort_by(|a, b| a.candidate.peer_name.cmp(&b.candidate.peer_name));
        let peered: BTreeSet<&NodeName> = chosen.iter().map(|c| &c.candidate.node.name).collect();
        self.keep_silent_locations(&mut plan);
        self.keep_nodes_in_grace(&mut plan, &peered);
        leaderless
            .iter()
            .for_each(|(candidate, skip)| self.report_leaderless(&mut plan, candidate, skip));
        self.look_at_endpoints(&mut plan, &chosen);
        self.choose_anchor(&mut plan, &chosen, &peered);
        let withheld = self.withhold_host_routes(&mut plan, &chosen);
        self.make_peers(&mut plan, &chosen, &withheld);
        self.note_carried(&mut plan, &peered);
        self.check_keepalive(&mut plan, &chosen);
        plan
    }

    fn cluster(&self) -> &ClusterName {
        self.surveyor.cluster
    }

    fn peer_name(&self, node: &NodeName) -> PeerName {
        PeerName::of(self.surveyor.mesh, self.cluster(), node.as_str())
    }

    /// Reports whether a Peer of this name would belong to this node: the first
    /// candidate with the name takes precedence over other nodes.
    fn has_name(&self, node: &Node, name: &PeerName) -> bool {
        let first = self
            .survey
            .candidates
            .iter()
            .find(|candidate| candidate.peer_name == *name);
        first.is_none_or(|candidate| candidate.node.name == node.name)
    }

    /// The WireGuard address that a node's existing Peer carries.
    fn address_before(&self, candidate: &Candidate) -> Option<IpAddr> {
        let internal: BTreeSet<IpAddr> = self
            .nodes
            .values()
            .flat_map(|node| node.internal_addresses())
            .collect();
        let mut hosts = self
            .memory
            .prefixes(&candidate.peer_name)
            .into_iter()
            .filter_map(Cidr::as_host);
        hosts.find(|ip| self.surveyor.spec.networks.allows_wireguard(*ip) && !internal.contains(ip))
    }

    /// The leader of a node's location, if it has a Peer. A clean stop removes
    /// a node's granularity too, but not its location.
    fn led_by(&self, node: &Node, peered: &BTreeSet<&NodeName>) -> Option<&NodeName> {
        if self.survey.leaders.is_empty()
            || !(node.is_bare() || (node.location_granularity && node.kilo_internal.is_some()))
        {
            return None;
        }
        let leader = self.survey.leaders.get(&self.surveyor.location(node))?;
        (*leader != node.name && peered.contains(leader)).then_some(leader)
    }

    fn report_leaderless(&self, plan: &mut SourcePlan, candidate: &Candidate, skip: &Skip) {
        let Some(location) = &candidate.location else {
            return;
        };
        // The Peer of the previous leader still carries the location.
        let in_grace = plan
            .kept
            .values()
            .filter(|(_, why)| *why == Kept::Grace)
            .filter_map(|(node, _)| self.nodes.get(node));
        if in_grace
            .into_iter()
            .any(|node| self.surveyor.location(node) == *location)
        {
            return;
        }
        plan.problems.push(Problem::new(
            Reason::LocationWithoutPeer,
            format!("{}/{location}", self.cluster()),
            format!(
                "node {} leads location \"{location}\" but can't be a Peer: {} ({})",
                candidate.node.name, skip.message, skip.reason
            ),
            "no other Peer carries this location: fix the node, or let Kilo choose another leader",
        ));
    }

    fn keep_silent_locations(&self, plan: &mut SourcePlan) {
        for silent in &self.survey.silent {
            for node in silent.nodes.iter().filter_map(|node| self.nodes.get(node)) {
                let name = self.peer_name(&node.name);
                if self.has_name(node, &name) {
                    plan.kept
                        .insert(name, (node.name.clone(), Kept::SilentLocation));
                }
            }
            plan.problems.push(Problem::new(
                Reason::LocationSilent,
                format!("{}/{}", self.cluster(), silent.location),
                format!(
                    "no Kilo agent of location \"{}\" has checked in for 60s: {}",
                    silent.location,
                    listed(&silent.nodes, 5)
                ),
                "the Peer is kept unchanged; check the kilo pods on these nodes",
            ));
        }
    }

    /// Every rollout of Kilo's DaemonSet removes a node's annotations for some
    /// seconds.
    fn keep_nodes_in_grace(&self, plan: &mut SourcePlan, peered: &BTreeSet<&NodeName>) {
        for node in self
            .nodes
            .values()
            .filter(|node| node.is_away() && !peered.contains(&node.name))
        {
            let ends = node.bare_since.map(|since| since.plus(self.node_grace));
            let over = self.node_grace == 0 || ends.is_some_and(|ends| ends <= self.now);
            let led = self.led_by(node, peered).is_some();
            let name = self.peer_name(&node.name);
            if over || led || !self.has_name(node, &name) || !self.memory.exists(&name) {
                continue;
            }
            plan.kept.insert(name, (node.name.clone(), Kept::Grace));
            plan.skipped.remove(&node.name);
            plan.recheck_at = plan.recheck_at.into_iter().chain(ends).min();
            plan.problems.push(Problem::new(
                Reason::NodeInGrace,
                format!("{}/{}", self.cluster(), node.name),
                format!("Kilo's annotations are missing on the node; its Peer is held for a grace period of {}s", self.node_grace),
                "expected while Kilo restarts; otherwise check the kilo pod on this node",
            ));
        }
    }

    fn look_at_endpoints(&self, plan: &mut SourcePlan, chosen: &[Chosen<'_>]) {
        for Chosen {
            candidate, passed, ..
        } in chosen
        {
            let Some((endpoint, ip)) = passed
                .endpoint
                .as_ref()
                .and_then(|endpoint| Some((endpoint, endpoint.ip()?)))
            else {
                continue;
            };
            match self.declared.owner(ip) {
                Some(owner) if owner == self.cluster() => {
                    plan.inner_endpoints
                        .entry(ip)
                        .or_default()
                        .insert(passed.key);
                }
                Some(owner) => {
                    plan.endpoint_inside
                        .insert(candidate.peer_name.clone(), owner.clone());
                    plan.problems.push(Problem::new(
                        Reason::EndpointInsideMesh,
                        format!("{}/{}", self.cluster(), candidate.node.name),
                        format!("endpoint {endpoint} is inside a network declared by cluster {owner}"),
                        "set annotation kilo.squat.ai/clustermesh-endpoint to an endpoint outside the mesh's networks",
                    ));
                }
                None => {}
            }
        }
    }

    fn choose_anchor(
        &self,
        plan: &mut SourcePlan,
        chosen: &[Chosen<'_>],
        peered: &BTreeSet<&NodeName>,
    ) {
        plan.extras = anchor::extras(self.surveyor.spec, self.nodes.values().map(Arc::as_ref));
        if plan.extras.is_empty() {
            return;
        }
        let mut eligible = self.eligible(plan, chosen, true);
        if eligible.is_empty() && self.surveyor.spec.keepalive > 0 {
            eligible = self.eligible(plan, chosen, false);
        }
        eligible.sort_by_key(|e| e.node);
        let kept: Vec<&NodeName> = plan.kept.values().map(|(node, _)| node).collect();
        plan.anchor = anchor::choose(
            &eligible,
            &kept,
            &self.present_anchors(&plan.extras, peered),
        );
        if plan.anchor.is_none() {
            plan.problems.push(Problem::new(
                Reason::AnchorUnavailable,
                self.cluster().to_string(),
                format!(
                    "no node can carry {}: these networks are unreachable from the other clusters",
                    listed(&plan.extras, 5)
                ),
                "at least one node must pass all checks and have an endpoint",
            ));
        }
    }

    fn eligible<'b>(
        &self,
        plan: &SourcePlan,
        chosen: &'b [Chosen<'_>],
        with_endpoint: bool,
    ) -> Vec<Eligible<'b>> {
        let fits = |c: &&Chosen<'_>| {
            let inside = plan.endpoint_inside.contains_key(&c.candidate.peer_name);
            c.passed.endpoint.is_some() == with_endpoint
                && !inside
                && (self.takes_key)(c.passed.key)
        };
        let eligible = |c: &'b Chosen<'_>| {
            let candidate = c.candidate;
            Eligible {
                node: &candidate.node.name,
                ready: candidate.node.ready,
                alive: candidate.alive,
            }
        };
        chosen.iter().filter(fits).map(eligible).collect()
    }

    /// The role stays with a location when another node becomes its leader.
    fn present_anchors(
        &self,
        extras: &[Cidr],
        peered: &BTreeSet<&NodeName>,
    ) -> BTreeMap<NodeName, usize> {
        let carriers = self.memory.carriers(extras);
        // A node that is really named "anchor" owns that Peer.
        let anchor_is_a_node = self
            .nodes
            .values()
            .any(|node| node.name.as_str().eq_ignore_ascii_case("anchor"));
        let legacy = if anchor_is_a_node {
            BTreeMap::new()
        } else {
            self.memory.legacy_anchor_keys()
        };
        if carriers.is_empty() && legacy.is_empty() {
            let last = self.memory.last_anchor();
            let leader = last
                .and_then(|node| self.nodes.get(node))
                .and_then(|node| self.led_by(node, peered));
            return leader
                .or(last)
                .map(|node| (node.clone(), 1))
                .into_iter()
                .collect();
        }
        let named: BTreeMap<&NodeName, &PeerName> = self
            .survey
            .candidates
            .iter()
            .map(|c| (&c.node.name, &c.peer_name))
            .collect();
        let mut present = BTreeMap::new();
        for node in self.nodes.values() {
            let name = named
                .get(&node.name)
                .map_or_else(|| self.peer_name(&node.name), |name| (*name).clone());
            let by_name = carriers
                .get(&name)
                .filter(|_| self.has_name(node, &name))
                .copied()
                .unwrap_or(0);
            let by_key = node
                .key
                .as_ref()
                .ok()
                .copied()
                .flatten()
                .and_then(|key| legacy.get(&key))
                .copied()
                .unwrap_or(0);
            if by_name + by_key > 0 {
                let holder = self.led_by(node, peered).unwrap_or(&node.name);
                *present.entry(holder.clone()).or_default() += by_name + by_key;
            }
        }
        present
    }

    fn withhold_host_routes(&self, plan: &mut SourcePlan, chosen: &[Chosen<'a>]) -> Withheld {
        let claim = |c: &Chosen<'a>| {
            Some(Claim {
                node: &c.candidate.node.name,
                address: c.wireguard_ip?,
            })
        };
        let claims: Vec<Claim<'_>> = chosen.iter().filter_map(claim).collect();
        let mut kept = BTreeMap::new();
        for (name, (node, _)) in &plan.kept {
            let hosts = self
                .memory
                .prefixes(name)
                .into_iter()
                .filter_map(Cidr::as_host);
            kept.extend(hosts.map(|address| (address, node.clone())));
        }
        let carries = |claim: &Claim<'_>| {
            self.memory
                .prefixes(&self.peer_name(claim.node))
                .contains(&Cidr::host(claim.address))
        };
        plan.reads_routes = !host_route::shared(&claims).is_empty()
            || chosen.iter().any(|c| c.passed.wireguard_ip.is_none());
        let withheld = host_route::withheld(&claims, &kept, carries);
        if !withheld.is_empty() {
            let told: Vec<String> = withheld
                .iter()
                .map(|(node, (address, holder))| {
                    format!("{address} of {node} (also used by {holder})")
                })
                .collect();
            plan.problems.push(Problem::new(
                Reason::WGIPDuplicate,
                self.cluster().to_string(),
                format!("no host route for duplicate WireGuard addresses: {}", listed(&told, 5)),
                "expected for up to 30s after a node is added or removed, while Kilo renumbers its nodes; if it persists, restart the kilo pod of the node with the wrong address",
            ));
        }
        withheld
    }

    fn make_peers(&self, plan: &mut SourcePlan, chosen: &[Chosen<'_>], withheld: &Withheld) {
        let shared = shared_addresses(self.nodes);
        let mut used = BTreeSet::new();
        let mut twice: Vec<String> = Vec::new();
        let mut swallowed: Vec<Cidr> = Vec::new();
        let mut surplus: Vec<Cidr> = Vec::new();
        for Chosen {
            candidate,
            passed,
            wireguard_ip,
        } in chosen
        {
            let mut all = Vec::new();
            let networks = &self.surveyor.spec.networks;
            for node in &candidate.carries {
                let (pods, more) = node
                    .pod_cidrs
                    .split_at_checked(MOST_POD_CIDRS)
                    .unwrap_or((&node.pod_cidrs, &[]));
                surplus.extend(more);
                for pods in pods.iter().filter(|pods| networks.allows_pods(**pods)) {
                    match used.insert(*pods) {
                        true => all.push(*pods),
                        false => twice.push(format!("{pods} (node {})", node.name)),
                    }
                }
            }
            let internal = candidate
                .carries
                .iter()
                .flat_map(|node| node.internal_addresses());
            let mut internal: Vec<Cidr> = internal
                .filter(|ip| networks.declares_internal(*ip) && !shared.contains(ip))
                .map(Cidr::host)
                .collect();
            surplus.extend(
                internal.split_off(
                    internal
                        .len()
                        .min(MOST_ALLOWED_IPS.saturating_sub(all.len() + 1)),
                ),
            );
            let extras = plan
                .extras
                .iter()
                .copied()
                .filter(|_| plan.anchor.as_ref() == Some(&candidate.node.name));
            let host_route = wireguard_ip
                .filter(|_| !withheld.contains_key(&candidate.node.name))
                .map(Cidr::host);
            for cidr in host_route.into_iter().chain(internal).chain(extras) {
                if used.insert(cidr) {
                    all.push(cidr);
                }
            }
            let swallows = |cidr: &Cidr| {
                plan.inner_endpoints
                    .range(cidr.first()..=cidr.last())
                    .next()
                    .is_some()
            };
            let (out, allowed): (Vec<Cidr>, Vec<Cidr>) =
                all.iter().partition(|cidr| swallows(cidr));
            let parts = BaseParts {
                name: candidate.peer_name.clone(),
                node: candidate.node.name.clone(),
                labels: Arc::clone(&self.labels),
                key: passed.key,
                endpoint: passed.endpoint.clone(),
                allowed_ips: allowed,
                all_ips: (!out.is_empty()).then_some(all),
            };
            swallowed.extend(out);
            let peer = BasePeer::share(self.earlier.get(&candidate.peer_name), parts);
            if plan.anchor.as_ref() == Some(&peer.node) {
                plan.anchor_peer = Some(Arc::clone(&peer));
            }
            plan.base.insert(peer.name.clone(), peer);
        }
        self.report_prefixes(plan, &twice, &swallowed);
        self.report_surplus(plan, &surplus);
    }

    fn report_surplus(&self, plan: &mut SourcePlan, surplus: &[Cidr]) {
        if surplus.is_empty() {
            return;
        }
        plan.problems.push(Problem::new(
            Reason::TooManyPrefixes,
            self.cluster().to_string(),
            format!("prefixes left out of its Peers: {}", listed(surplus, 5)),
            format!("a node can have {MOST_POD_CIDRS} pod CIDRs, a Peer {MOST_ALLOWED_IPS} prefixes of its nodes; declare whole ranges in additionalCIDRs"),
        ));
    }

    fn report_prefixes(&self, plan: &mut SourcePlan, twice: &[String], swallowed: &[Cidr]) {
        if !twice.is_empty() {
            plan.problems.push(Problem::new(
                Reason::PodCIDRDuplicate,
                self.cluster().to_string(),
                format!("pod CIDRs used by more than one node: {}", listed(twice, 5)),
                "only the first Peer by name routes each of them; give every node its own pod CIDR",
            ));
        }
        if !swallowed.is_empty() {
            plan.problems.push(Problem::new(
                Reason::PrefixContainsEndpoint,
                self.cluster().to_string(),
                format!("not routed because they contain an endpoint of the cluster's own nodes: {}", listed(swallowed, 5)),
                "a tunnel can't run through itself; to route these too, give the nodes endpoints outside the declared networks",
            ));
        }
    }

    fn note_carried(&self, plan: &mut SourcePlan, peered: &BTreeSet<&NodeName>) {
        for (node, leader) in &self.survey.carried {
            plan.carried.insert(
                node.clone(),
                peered.contains(leader).then(|| leader.clone()),
            );
        }
        for node in self
            .nodes
            .values()
            .filter(|node| self.led_by(node, peered).is_some())
        {
            plan.led_by_another.insert(self.peer_name(&node.name));
        }
    }

    fn check_keepalive(&self, plan: &mut SourcePlan, chosen: &[Chosen<'_>]) {
        let seconds = self.surveyor.spec.keepalive;
        if seconds == 0 {
            return;
        }
        let mut without: Vec<&NodeName> = chosen
            .iter()
            .filter(|c| !c.candidate.node.keepalive_set)
            .map(|c| &c.candidate.node.name)
            .collect();
        without.sort();
        let Some(first) = without.first() else { return };
        plan.problems.push(Problem::new(
            Reason::KeepaliveNotSet,
            self.cluster().to_string(),
            format!("Kilo sends no keepalives from {}: it reads the interval from its own Node, where annotation kilo.squat.ai/persistent-keepalive is missing", listed(&without, 5)),
            format!("kubectl annotate node {} kilo.squat.ai/persistent-keepalive={seconds}", shell_quoted(first.as_str())),
        ));
    }
}

/// The smaller of the two clusters' intervals, ignoring those that are not set.
pub(super) fn keepalive(mesh: &MeshSpec, one: &ClusterName, other: &ClusterName) -> u16 {
    let of = |name: &ClusterName| {
        mesh.clusters
            .get(name)
            .map(|spec| spec.keepalive)
            .filter(|seconds| *seconds > 0)
    };
    of(one).into_iter().chain(of(other)).min().unwrap_or(0)
}

/// Internal addresses that more than one node of the cluster has.
fn shared_addresses(nodes: &Nodes) -> BTreeSet<IpAddr> {
    let mut all: Vec<IpAddr> = Vec::with_capacity(nodes.len());
    for node in nodes.values() {
        let mut own: Vec<IpAddr> = node.internal_addresses().collect();
        own.sort();
        own.dedup();
        all.extend(own);
    }
    all.sort();
    all.windows(2)
        .filter(|pair| pair.first() == pair.last())
        .filter_map(|pair| pair.first().copied())
        .collect()
}
