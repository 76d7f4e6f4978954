//! One cluster of a mesh as a source: its Peers before any target-specific
//! change, and the state of its nodes.

mod anchor;
mod peers;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::cidr::Cidr;
use crate::key::PublicKey;
use crate::kilo::declared::DeclaredIndex;
use crate::kilo::duplicates::{Losers, verdicts};
use crate::kilo::node::{Node, Nodes};
use crate::kilo::peer::{BasePeer, Labels};
use crate::kilo::peer_history::PeerHistory;
use crate::kilo::spec::MeshSpec;
use crate::kilo::survey::{Candidate, Passed, Skip, Survey, Surveyor};
use crate::names::{ClusterName, NodeName, PeerName};
use crate::problem::{Problem, Reason};
use crate::text::{listed, shell_quoted};
use crate::time::Timestamp;

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

pub(super) struct SourcePlanner<'a> {
    pub(super) surveyor: Surveyor<'a>,
    pub(super) declared: &'a DeclaredIndex,
    pub(super) labels: Arc<Labels>,
    pub(super) nodes: &'a Nodes,
    pub(super) survey: &'a Survey,
    pub(super) position: usize,
    pub(super) losers: &'a Losers,
    pub(super) history: &'a PeerHistory<'a>,
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
            .history
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
            if over || led || !self.has_name(node, &name) || !self.history.exists(&name) {
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
