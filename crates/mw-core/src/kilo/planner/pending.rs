//! Inputs that changed since the last plan, and planning the sources for them.

use std::collections::{BTreeMap, BTreeSet};

use crate::key::PublicKey;
use crate::kilo::mesh::Member;
use crate::kilo::mesh_state::{MeshState, mesh_at};
use crate::kilo::planner::Planner;
use crate::names::{ClusterId, MeshId, PeerName};

/// Inputs that changed since the last plan.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// All meshes: the owners of Peers may have changed.
    pub(super) everything: bool,
    /// Clusters whose Nodes or vanished endpoints changed.
    pub(super) nodes: BTreeSet<ClusterId>,
    /// Peers that changed on some target.
    pub(super) peers: BTreeSet<PeerName>,
    /// Changed Peers that are part of the history of a mesh.
    history: BTreeMap<(MeshId, PeerName), ChangedPeer>,
    /// The time changed.
    pub(super) time: bool,
}

/// Old and new states of a Peer, on all targets and since the last plan.
#[derive(Debug, Default)]
struct ChangedPeer {
    labels: BTreeSet<String>,
    keys: BTreeSet<PublicKey>,
    /// It carried or carries cluster-wide networks.
    wide: bool,
}

impl Pending {
    pub(super) fn note_history(
        &mut self,
        mesh: &MeshId,
        name: &PeerName,
        labels: &BTreeSet<String>,
        keys: &BTreeSet<PublicKey>,
        wide: bool,
    ) {
        let peer = self
            .history
            .entry((mesh.clone(), name.clone()))
            .or_default();
        peer.labels.extend(labels.iter().cloned());
        peer.keys.extend(keys);
        peer.wide |= wide;
    }
}

impl Planner {
    /// Brings all sources up to date with the inputs. Which targets they change is
    /// known afterwards, but not evaluated.
    pub fn settle_sources(&mut self) {
        let Pending {
            everything,
            nodes,
            peers,
            history,
            time,
        } = std::mem::take(&mut self.pending);
        if everything {
            self.reassign();
        } else {
            for cluster in &nodes {
                self.replan_cluster(cluster);
            }
            for ((mesh, name), peer) in &history {
                self.replan_for_peer(mesh, name, peer);
            }
            for name in &peers {
                (0..self.meshes.len()).for_each(|mesh| self.survey_unsettled(mesh, Some(name)));
            }
        }
        if time {
            self.replan_due();
        }
    }

    /// Replans the sources whose history a changed Peer affects.
    fn replan_for_peer(&mut self, id: &MeshId, name: &PeerName, peer: &ChangedPeer) {
        let ChangedPeer { labels, keys, wide } = peer;
        let Some((mesh, state)) = mesh_at(&self.meshes, id) else {
            return;
        };
        let Some(active) = state.active() else { return };
        if active.may_be_settled_by(keys) && self.settle(mesh) {
            self.plan_members(mesh, None);
            return;
        }
        let Some(active) = self.meshes.get(mesh).and_then(MeshState::active) else {
            return;
        };
        let by_label = labels.iter().filter_map(|label| active.position_of(label));
        let positions: BTreeSet<usize> = by_label
            .chain(active.named_like(name))
            .filter(|position| {
                active
                    .members
                    .get(*position)
                    .is_some_and(|member| *wide || self.reads_peer(&active.id, member, name))
            })
            .collect();
        for position in positions {
            self.plan_members(mesh, Some(position));
        }
    }

    /// Reports whether a change of this Peer can change the plan of a source.
    fn reads_peer(&self, mesh: &MeshId, member: &Member, name: &PeerName) -> bool {
        let nodes = self
            .clusters
            .get(&member.id)
            .and_then(|cluster| cluster.nodes.known());
        let plan = member.plan.as_ref();
        nodes.is_some_and(|nodes| nodes.values().any(|node| node.is_away()))
            || plan.is_some_and(|plan| plan.reads_routes || plan.kept.contains_key(name))
            || PeerName::of(&mesh.name, &member.name, "anchor") == *name
    }

    /// Replans the sources and marks the Peers that waited for this time.
    fn replan_due(&mut self) {
        let now = self.now;
        for mesh in 0..self.meshes.len() {
            let Some(active) = self.meshes.get(mesh).and_then(MeshState::active) else {
                continue;
            };
            let due = |member: &Member| member.recheck_at().is_some_and(|at| at <= now);
            let positions: Vec<usize> = active
                .members
                .iter()
                .enumerate()
                .filter(|(_, member)| due(member))
                .map(|(at, _)| at)
                .collect();
            for position in &positions {
                self.plan_members(mesh, Some(*position));
            }
            if !positions.is_empty() {
                self.survey_unsettled(mesh, None);
            }
        }
        for target in self.targets.values_mut() {
            let due = target
                .outcomes
                .iter()
                .filter(|(_, outcome)| outcome.recheck_at.is_some_and(|at| at <= now));
            let names: Vec<PeerName> = due.map(|((name, _), _)| name.clone()).collect();
            target.dirt.names.extend(names);
        }
    }
}
