//! The Peers of a source, and the prefixes of each.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::cidr::Cidr;
use crate::kilo::host_route::{self, Claim, Withheld};
use crate::kilo::node::Nodes;
use crate::kilo::peer::{BaseParts, BasePeer};
use crate::kilo::source::{Chosen, SourcePlan, SourcePlanner};
use crate::kilo::survey::Candidate;
use crate::problem::{Problem, Reason};
use crate::text::listed;

/// Kubernetes assigns one pod CIDR per IP family to a node.
const MOST_POD_CIDRS: usize = 2;

/// Limit for prefixes that the nodes of one Peer contribute, besides the
/// declared ones. Pod CIDRs and the host route are always kept.
const MOST_ALLOWED_IPS: usize = 256;

/// The prefixes of all Peers of the source so far, and those left out.
#[derive(Default)]
struct Assigned {
    used: BTreeSet<Cidr>,
    /// Pod CIDRs of more than one node, with the node that does not get it.
    twice: Vec<String>,
    /// Prefixes that contain an endpoint of the source.
    swallowed: Vec<Cidr>,
    /// Prefixes above a limit.
    surplus: Vec<Cidr>,
}

impl<'a> SourcePlanner<'a> {
    pub(super) fn withhold_host_routes(
        &self,
        plan: &mut SourcePlan,
        chosen: &[Chosen<'a>],
    ) -> Withheld {
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
                .history
                .prefixes(name)
                .into_iter()
                .filter_map(Cidr::as_host);
            kept.extend(hosts.map(|address| (address, node.clone())));
        }
        let carries = |claim: &Claim<'_>| {
            self.history
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

    pub(super) fn make_peers(
        &self,
        plan: &mut SourcePlan,
        chosen: &[Chosen<'_>],
        withheld: &Withheld,
    ) {
        let shared = shared_addresses(self.nodes);
        let mut assigned = Assigned::default();
        for Chosen {
            candidate,
            passed,
            wireguard_ip,
        } in chosen
        {
            let host_route = wireguard_ip
                .filter(|_| !withheld.contains_key(&candidate.node.name))
                .map(Cidr::host);
            let all = self.prefixes(plan, candidate, host_route, &shared, &mut assigned);
            let (out, allowed): (Vec<Cidr>, Vec<Cidr>) = all.iter().partition(|cidr| {
                plan.inner_endpoints
                    .range(cidr.first()..=cidr.last())
                    .next()
                    .is_some()
            });
            let parts = BaseParts {
                name: candidate.peer_name.clone(),
                node: candidate.node.name.clone(),
                labels: Arc::clone(&self.labels),
                key: passed.key,
                endpoint: passed.endpoint.clone(),
                allowed_ips: allowed,
                all_ips: (!out.is_empty()).then_some(all),
            };
            assigned.swallowed.extend(out);
            let peer = BasePeer::share(self.earlier.get(&candidate.peer_name), parts);
            if plan.anchor.as_ref() == Some(&peer.node) {
                plan.anchor_peer = Some(Arc::clone(&peer));
            }
            plan.base.insert(peer.name.clone(), peer);
        }
        self.report_prefixes(plan, &assigned.twice, &assigned.swallowed);
        self.report_surplus(plan, &assigned.surplus);
    }

    /// The prefixes of one Peer: pod CIDRs, the host route, internal addresses,
    /// and the cluster-wide networks if it is the anchor's.
    fn prefixes(
        &self,
        plan: &SourcePlan,
        candidate: &Candidate,
        host_route: Option<Cidr>,
        shared: &BTreeSet<IpAddr>,
        assigned: &mut Assigned,
    ) -> Vec<Cidr> {
        let networks = &self.surveyor.spec.networks;
        let mut all = Vec::new();
        for node in &candidate.carries {
            let (pods, more) = node
                .pod_cidrs
                .split_at_checked(MOST_POD_CIDRS)
                .unwrap_or((&node.pod_cidrs, &[]));
            assigned.surplus.extend(more);
            for pods in pods.iter().filter(|pods| networks.allows_pods(**pods)) {
                if assigned.used.insert(*pods) {
                    all.push(*pods);
                } else {
                    assigned.twice.push(format!("{pods} (node {})", node.name));
                }
            }
        }
        let mut internal: Vec<Cidr> = candidate
            .carries
            .iter()
            .flat_map(|node| node.internal_addresses())
            .filter(|ip| networks.declares_internal(*ip) && !shared.contains(ip))
            .map(Cidr::host)
            .collect();
        let room = MOST_ALLOWED_IPS.saturating_sub(all.len() + 1);
        assigned
            .surplus
            .extend(internal.split_off(internal.len().min(room)));
        let extras = plan
            .extras
            .iter()
            .copied()
            .filter(|_| plan.anchor.as_ref() == Some(&candidate.node.name));
        for cidr in host_route.into_iter().chain(internal).chain(extras) {
            if assigned.used.insert(cidr) {
                all.push(cidr);
            }
        }
        all
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
