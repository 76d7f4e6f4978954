//! The anchor of a source.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::cidr::Cidr;
use crate::kilo::anchor::{self, Eligible};
use crate::kilo::source::{Chosen, SourcePlan, SourcePlanner};
use crate::names::{NodeName, PeerName};
use crate::problem::{Problem, Reason};
use crate::text::listed;

impl SourcePlanner<'_> {
    pub(super) fn choose_anchor(
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
        let carriers = self.history.carriers(extras);
        // A node that is really named "anchor" owns that Peer.
        let anchor_is_a_node = self
            .nodes
            .values()
            .any(|node| node.name.as_str().eq_ignore_ascii_case("anchor"));
        let legacy = if anchor_is_a_node {
            BTreeMap::new()
        } else {
            self.history.legacy_anchor_keys()
        };
        if carriers.is_empty() && legacy.is_empty() {
            let last = self.history.last_anchor();
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
}
