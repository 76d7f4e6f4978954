//! The one node of a source whose Peer carries the cluster-wide networks.

use std::collections::BTreeMap;

use crate::cidr::Cidr;
use crate::kilo::node::Node;
use crate::kilo::spec::{ClusterSpec, Networks};
use crate::names::NodeName;

/// Declared networks that no single node covers.
pub(super) fn extras<'a>(spec: &ClusterSpec, nodes: impl Iterator<Item = &'a Node>) -> Vec<Cidr> {
    match &spec.networks {
        Networks::Typed {
            service,
            additional,
            ..
        } => service.iter().chain(additional).copied().collect(),
        Networks::Flat(list) => {
            let mut left = list.clone();
            for node in nodes {
                let wireguard = node.wireguard_ip.as_ref().ok().copied().flatten();
                let stands_for = |net: Cidr| {
                    node.pod_cidrs.iter().any(|pods| net.contains(*pods))
                        || node
                            .internal_addresses()
                            .chain(wireguard)
                            .any(|ip| net.contains_address(ip))
                };
                left.retain(|net| !stands_for(*net));
            }
            left
        }
    }
}

/// A node that qualifies as anchor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Eligible<'a> {
    pub(super) node: &'a NodeName,
    pub(super) ready: bool,
    /// True if its agent is alive.
    pub(super) alive: bool,
}

/// Picks the anchor. `eligible` is sorted by name; `present` counts the targets
/// on which a node's Peer carries an extra now. A node whose Peer is kept
/// unchanged stays anchor.
pub(super) fn choose(
    eligible: &[Eligible<'_>],
    kept: &[&NodeName],
    present: &BTreeMap<NodeName, usize>,
) -> Option<NodeName> {
    let on_targets = |node: &NodeName| present.get(node).copied().unwrap_or(0);
    let most = |nodes: &mut dyn Iterator<Item = Eligible<'_>>| {
        nodes
            .filter(|e| on_targets(e.node) > 0)
            .min_by_key(|e| {
                (
                    !e.ready,
                    std::cmp::Reverse(on_targets(e.node)),
                    e.node.clone(),
                )
            })
            .map(|e| e.node.clone())
    };
    let held = most(&mut kept.iter().map(|node| Eligible {
        node,
        ready: false,
        alive: false,
    }));
    if held.is_some() {
        return held;
    }
    let present = most(&mut eligible.iter().copied());
    let present = eligible.iter().find(|e| Some(e.node) == present.as_ref());
    let wanted: [fn(&Eligible<'_>) -> bool; 3] = [|e| e.ready && e.alive, |e| e.ready, |_| true];
    let chosen = wanted.iter().find_map(|fits| {
        present
            .filter(|e| fits(e))
            .or_else(|| eligible.iter().find(|e| fits(e)))
    });
    chosen.map(|e| e.node.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(
        eligible: &[(&str, bool)],
        present: &[(&str, usize)],
        kept: &[&str],
    ) -> Option<String> {
        let eligible: Vec<(&str, bool, bool)> = eligible
            .iter()
            .map(|(name, ready)| (*name, *ready, true))
            .collect();
        choice_of(&eligible, present, kept)
    }

    fn choice_of(
        eligible: &[(&str, bool, bool)],
        present: &[(&str, usize)],
        kept: &[&str],
    ) -> Option<String> {
        let names: Vec<NodeName> = eligible
            .iter()
            .map(|(name, ..)| NodeName::from(*name))
            .collect();
        let eligible: Vec<Eligible<'_>> = names
            .iter()
            .zip(eligible)
            .map(|(node, (_, ready, alive))| Eligible {
                node,
                ready: *ready,
                alive: *alive,
            })
            .collect();
        let kept: Vec<NodeName> = kept.iter().map(|name| NodeName::from(*name)).collect();
        let present = present
            .iter()
            .map(|(name, count)| (NodeName::from(*name), *count))
            .collect();
        choose(&eligible, &kept.iter().collect::<Vec<_>>(), &present).map(|node| node.to_string())
    }

    #[test]
    fn a_ready_anchor_stays_and_a_failed_one_moves_to_the_first_ready_node() {
        let some = |name: &str| Some(name.to_owned());
        assert_eq!(
            choice(&[("a", true), ("b", true)], &[("b", 1)], &[]),
            some("b")
        );
        assert_eq!(
            choice(&[("a", true), ("b", false)], &[("b", 1)], &[]),
            some("a")
        );
        assert_eq!(
            choice(&[("a", false), ("b", false)], &[("b", 1)], &[]),
            some("b")
        );
        assert_eq!(choice(&[("a", false), ("b", true)], &[], &[]), some("b"));
        assert_eq!(choice(&[("a", false)], &[], &[]), some("a"));
        assert_eq!(choice(&[], &[("b", 1)], &[]), None);
    }

    #[test]
    fn a_live_agent_goes_before_a_silent_one_and_a_ready_node_before_both() {
        let some = |name: &str| Some(name.to_owned());
        assert_eq!(
            choice_of(&[("a", true, true), ("b", true, false)], &[("b", 1)], &[]),
            some("a")
        );
        assert_eq!(
            choice_of(&[("a", true, false), ("b", true, false)], &[("b", 1)], &[]),
            some("b")
        );
        assert_eq!(
            choice_of(&[("a", true, false), ("b", false, true)], &[("b", 1)], &[]),
            some("a")
        );
        assert_eq!(
            choice_of(&[("a", true, false), ("b", true, true)], &[], &[]),
            some("b")
        );
        assert_eq!(
            choice_of(&[("a", false, true), ("b", false, false)], &[("b", 1)], &[]),
            some("b")
        );
    }

    #[test]
    fn the_anchor_on_more_targets_stays() {
        let three = [("a", true), ("b", true), ("c", false)];
        assert_eq!(
            choice(&three, &[("a", 1), ("b", 2), ("c", 3)], &[]),
            Some("b".to_owned())
        );
    }

    #[test]
    fn a_node_whose_peer_is_kept_keeps_the_role() {
        assert_eq!(
            choice(&[("a", true)], &[("z", 1)], &["z"]),
            Some("z".to_owned())
        );
        assert_eq!(choice(&[("a", true)], &[], &["z"]), Some("a".to_owned()));
    }
}
