//! Recent events that the planner's guard counts: deletes without a good reason,
//! Nodes that were deleted and recreated, entries whose credentials were edited.
//! Kept for a time window, measured with the monotonic clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mw_core::kilo::guard::History as Counted;
use mw_core::kilo::node::Node;
use mw_core::names::{ClusterId, ClusterName, MeshId, NodeName, PeerName};
use tokio::time::Instant;

use crate::kilo::engine::Engine;

const WINDOW: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub(super) struct History {
    /// By target, mesh and source.
    removed: BTreeMap<(ClusterId, MeshId, ClusterName), BTreeMap<PeerName, Instant>>,
    redirected: BTreeMap<(MeshId, ClusterName), Instant>,
}

impl History {
    pub(super) fn note_removal(
        &mut self,
        target: &ClusterId,
        mesh: &MeshId,
        source: &ClusterName,
        name: &PeerName,
        now: Instant,
    ) {
        let key = (target.clone(), mesh.clone(), source.clone());
        self.removed
            .entry(key)
            .or_default()
            .entry(name.clone())
            .or_insert(now);
    }

    pub(super) fn note_redirection(&mut self, mesh: &MeshId, cluster: ClusterName, now: Instant) {
        self.redirected.insert((mesh.clone(), cluster), now);
    }

    fn forget_before(&mut self, now: Instant) {
        let counts = |at: &Instant| now.duration_since(*at) < WINDOW;
        self.removed
            .values_mut()
            .for_each(|names| names.retain(|_, at| counts(at)));
        self.removed.retain(|_, names| !names.is_empty());
        self.redirected.retain(|_, at| counts(at));
    }
}

/// UIDs of the Nodes that a link led to.
#[derive(Debug, Default)]
pub(super) struct Lineage {
    uids: BTreeSet<Box<str>>,
    /// The last list shared no UID with earlier ones.
    replaced: bool,
    /// Nodes with a delete event.
    deleted: BTreeMap<NodeName, Instant>,
    /// Deleted Nodes that exist again.
    recreated: BTreeSet<NodeName>,
}

impl Lineage {
    /// Takes in a list. Watch events cover every change of a Node; a list may come
    /// from another cluster.
    pub(super) fn listed<'a>(&mut self, nodes: impl Iterator<Item = &'a Node>) {
        let uids: BTreeSet<Box<str>> = nodes.map(|node| node.uid.as_str().into()).collect();
        self.replaced = !uids.is_empty() && !self.uids.is_empty() && self.uids.is_disjoint(&uids);
        if !self.replaced && !uids.is_empty() {
            self.uids = uids;
        }
    }

    pub(super) fn is_replaced(&self) -> bool {
        self.replaced
    }

    /// Reports whether this Node was seen before.
    pub(super) fn knows(&self, node: &Node) -> bool {
        self.uids.contains(node.uid.as_str())
    }

    pub(super) fn seen(&mut self, node: &Node) {
        if self.deleted.contains_key(&node.name) {
            self.recreated.insert(node.name.clone());
        }
        if !self.replaced {
            self.uids.insert(node.uid.as_str().into());
        }
    }

    pub(super) fn gone(&mut self, node: &Node, now: Instant) {
        self.recreated.remove(&node.name);
        self.deleted
            .retain(|_, at| now.duration_since(*at) < WINDOW);
        self.deleted.insert(node.name.clone(), now);
        if !self.replaced && self.uids.len() > 1 {
            self.uids.remove(node.uid.as_str());
        }
    }

    /// Accepts the current Nodes as the Nodes of the cluster.
    fn accept<'a>(&mut self, nodes: impl Iterator<Item = &'a Node>) {
        self.uids = nodes.map(|node| node.uid.as_str().into()).collect();
        self.replaced = false;
    }
}

impl Engine {
    /// Passes the recent events to the planner's guard.
    pub(super) fn hand_over_history(&mut self) {
        let now = self.turned_at;
        self.state.guard.history.forget_before(now);
        self.refill_budgets();
        let counts = |at: &Instant| now.duration_since(*at) < WINDOW;
        let mut history = Counted {
            removed: self
                .state
                .guard
                .history
                .removed
                .iter()
                .map(|(key, names)| (key.clone(), names.keys().cloned().collect()))
                .collect(),
            redirected: self
                .state
                .guard
                .history
                .redirected
                .keys()
                .cloned()
                .collect(),
            resting: self.state.guard.budgets.resting(),
            ..Counted::default()
        };
        for (id, member) in &self.members {
            let lineage = &member.state.lineage;
            if lineage.replaced {
                history.replaced.insert(id.clone());
            }
            let recreated = lineage
                .recreated
                .iter()
                .filter(|name| lineage.deleted.get(*name).is_some_and(counts));
            let recreated: BTreeSet<NodeName> = recreated.cloned().collect();
            if !recreated.is_empty() {
                history.recreated.insert(id.clone(), recreated);
            }
        }
        if let Some(planner) = &mut self.state.planner {
            planner.set_history(history);
        }
    }

    /// Accepts the Nodes of replaced clusters for which nothing is held any more.
    pub(super) fn accept_replaced(&mut self) {
        let Some(planner) = &self.state.planner else {
            return;
        };
        for (id, member) in self
            .members
            .iter_mut()
            .filter(|(_, member)| member.state.lineage.replaced)
        {
            if let Some(nodes) = planner.settled_nodes(id) {
                member
                    .state
                    .lineage
                    .accept(nodes.values().map(AsRef::as_ref));
                self.changes.links = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, uid: &str) -> Node {
        Node::read(mw_core::kilo::node::NodeFacts {
            name: name.to_owned(),
            uid: uid.to_owned(),
            ..Default::default()
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_of_strangers_is_another_cluster_and_events_are_not() {
        let mut lineage = Lineage::default();
        lineage.listed([node("a", "1"), node("b", "2")].iter());
        assert!(!lineage.replaced, "the first list is accepted");
        lineage.listed([node("a", "3")].iter());
        assert!(lineage.replaced);
        lineage.listed([node("b", "2")].iter());
        assert!(!lineage.replaced, "the former Nodes are back");
        lineage.gone(&node("b", "2"), Instant::now());
        lineage.seen(&node("b", "9"));
        lineage.listed([node("b", "9")].iter());
        assert!(!lineage.replaced, "each step was seen");
        lineage.listed(std::iter::empty());
        assert!(!lineage.replaced, "an empty list is the guard's own case");
        lineage.listed([node("c", "7")].iter());
        assert!(lineage.replaced, "and it does not make strangers welcome");
    }
}
