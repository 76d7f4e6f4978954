//! Inputs that changed since the last plan, and planning the sources for them.

use std::collections::{BTreeMap, BTreeSet};

use crate::key::PublicKey;
use crate::kilo::mesh::Member;
use crate::kilo::mesh_state::{MeshState, mesh_at};
use crate::kilo::planner::Planner;
use crate::kilo::source::SourcePlan;
use crate::names::{ClusterId, MeshId, PeerName};

/// What has to be planned again.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// All meshes: the owners of Peers may have changed.
    pub(super) everything: bool,
    /// Clusters whose Nodes or vanished endpoints changed.
    pub(super) nodes: BTreeSet<ClusterId>,
    /// Peers that changed on some target.
    pub(super) peers: BTreeSet<PeerName>,
    /// Changed Peers that are part of the history of a mesh.
    past: BTreeMap<(MeshId, PeerName), Past>,
    /// The time changed.
    pub(super) time: bool,
}

/// Old and new states of a Peer, on all targets and since the last plan.
#[derive(Debug, Default)]
struct Past {
    labels: BTreeSet<String>,
    keys: BTreeSet<PublicKey>,
    /// It carried or carries cluster-wide networks.
    wide: bool,
}

impl Pending {
    pub(super) fn note_past(
        &mut self,
        mesh: &MeshId,
        name: &PeerName,
        labels: &BTreeSet<String>,
        keys: &BTreeSet<PublicKey>,
        wide: bool,
    ) {
        let past = self.past.entry((mesh.clone(), name.clone())).or_default();
        past.labels.extend(labels.iter().cloned());
        past.keys.extend(keys);
        past.wide |= wide;
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
            past,
            time,
        } = std::mem::take(&mut self.pending);
        if everything {
            self.reassign();
        } else {
            for cluster in &nodes {
                self.replan_cluster(cluster);
            }
            for ((mesh, name), past) in &past {
                self.replan_past(mesh, name, past);
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
    fn replan_past(&mut self, id: &MeshId, name: &PeerName, past: &Past) {
        let Past { labels, keys, wide } = past;
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
        let speaks = |position: &usize| {
            active.members.get(*position).is_some_and(|member| {
                let nodes = self
                    .clusters
                    .get(&member.id)
                    .and_then(|cluster| cluster.nodes.known());
                let bare = nodes.is_some_and(|nodes| nodes.values().any(|node| node.is_away()));
                let decides = |plan: &SourcePlan| plan.reads_routes || plan.kept.contains_key(name);
                let routes = member.plan.as_ref().is_some_and(decides);
                *wide
                    || bare
                    || routes
                    || PeerName::of(&active.id.name, &member.name, "anchor") == *name
            })
        };
        let by_label = labels.iter().filter_map(|label| active.position_of(label));
        let positions: BTreeSet<usize> = by_label
            .chain(active.named_like(name))
            .filter(speaks)
            .collect();
        for position in positions {
            self.plan_members(mesh, Some(position));
        }
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
