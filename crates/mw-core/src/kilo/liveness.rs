//! Liveness of Kilo agents, judged by the cluster's own clocks, not by ours.

use std::collections::BTreeSet;

use crate::kilo::node::{Node, Nodes};
use crate::names::NodeName;

const SILENT_AFTER_SECONDS: i64 = 60;

/// The nodes whose agent checked in recently, compared with the newest
/// check-in, or with the second newest of three or more, so that one clock that
/// runs ahead can't mark all others dead.
pub(super) fn alive(nodes: &Nodes) -> BTreeSet<NodeName> {
    let mut seen: Vec<i64> = nodes.values().filter_map(|node| node.last_seen).collect();
    seen.sort_unstable_by(|a, b| b.cmp(a));
    let yardstick = match seen.as_slice() {
        [] => return nodes.keys().cloned().collect(),
        [_, second, _, ..] => *second,
        [newest, ..] => *newest,
    };
    let lives = |node: &Node| {
        node.last_seen
            .is_some_and(|at| yardstick.saturating_sub(at) < SILENT_AFTER_SECONDS)
    };
    nodes
        .iter()
        .filter(|(_, node)| lives(node))
        .map(|(name, _)| name.clone())
        .collect()
}
