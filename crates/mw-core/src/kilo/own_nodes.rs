//! Constraints that a cluster's own nodes put on the Peers it gets.

use std::collections::{BTreeMap, BTreeSet};

use crate::cidr::{Cidr, Family};
use crate::endpoint::Endpoint;
use crate::key::PublicKey;
use crate::kilo::declared::DeclaredIndex;
use crate::kilo::discovered::Vanished;
use crate::kilo::node::Nodes;
use crate::kilo::source::SourcePlan;
use crate::kilo::spec::ClusterSpec;
use crate::kilo::survey::Survey;
use crate::names::{ClusterName, NodeName};
use crate::problem::Problem;
use crate::time::Timestamp;

/// Constraints that a cluster's own nodes put on the Peers it gets in one mesh.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct OwnNodes {
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

impl OwnNodes {
    pub(super) fn of(
        (cluster, spec): (&ClusterName, &ClusterSpec),
        nodes: &Nodes,
        survey: &Survey,
        plan: &SourcePlan,
        declared: &DeclaredIndex,
        (vanished, now): (&Vanished, Timestamp),
    ) -> OwnNodes {
        let mut own = OwnNodes {
            family: routed_family(nodes, spec.networks.wireguard_family()),
            ..OwnNodes::default()
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
    use std::sync::Arc;

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
