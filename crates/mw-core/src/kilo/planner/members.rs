//! Surveys and plans the members of a mesh as sources.

use crate::kilo::discovered::Vanished;
use crate::kilo::invalidate::{mark_own, mark_source, source_change};
use crate::kilo::mesh::Moment;
use crate::kilo::mesh_state::{MeshMode, MeshState};
use crate::kilo::peer_history::PeerHistory;
use crate::kilo::planner::Planner;
use crate::kilo::roaming::Roaming;
use crate::kilo::sources::Sources;
use crate::names::{ClusterId, PeerName};

impl Planner {
    /// Surveys and plans every member of a mesh.
    pub(super) fn plan_mesh(&mut self, mesh: usize) {
        let Some(MeshState {
            mode: MeshMode::Active(active),
            ..
        }) = self.meshes.get_mut(mesh)
        else {
            return;
        };
        let sources = Sources(&self.clusters);
        active.survey_all(&Roaming {
            targets: &self.targets,
            sources,
            vanished: &self.vanished,
            now: self.now,
        });
        self.settle(mesh);
        self.plan_members(mesh, None);
    }

    pub(super) fn settle(&mut self, mesh: usize) -> bool {
        let Some(MeshState {
            mode: MeshMode::Active(active),
            ..
        }) = self.meshes.get_mut(mesh)
        else {
            return false;
        };
        let sources = Sources(&self.clusters);
        let history = PeerHistory::of(active, &self.targets, &self.carrier_index, sources);
        active.settle(&history)
    }

    /// Plans one member as a source, or all, and marks what depends on it.
    pub(super) fn plan_members(&mut self, mesh: usize, only: Option<usize>) {
        let nothing = Vanished::new();
        let Some(MeshState {
            mode: MeshMode::Active(active),
            ..
        }) = self.meshes.get_mut(mesh)
        else {
            return;
        };
        let all_dirty = only.is_none() && self.targets.values().all(|target| target.dirt.all);
        let positions = only.map_or(0..active.members.len(), |position| position..position + 1);
        for position in positions {
            let Some(member) = active.members.get(position) else {
                continue;
            };
            let id = member.id.clone();
            let source = (member.name.clone(), active.name_start_of(&member.name));
            let old_own = member.own.clone();
            let nodes = self
                .clusters
                .get(&id)
                .and_then(|cluster| cluster.nodes.known());
            let last_anchor = self
                .inputs
                .get(&active.id)
                .and_then(|mesh| mesh.anchors.get(&member.name))
                .cloned();
            let sources = Sources(&self.clusters);
            let history = PeerHistory::of(active, &self.targets, &self.carrier_index, sources)
                .about(source, last_anchor);
            let vanished = self.vanished.get(&id).unwrap_or(&nothing);
            let moment = Moment {
                now: self.now,
                node_grace: self.options.node_grace_seconds,
                vanished,
            };
            let old = active.plan(position, nodes, &history, moment);
            let Some(member) = active.members.get(position) else {
                continue;
            };
            if all_dirty {
                continue;
            }
            let change = source_change(old.as_ref(), member.plan.as_ref());
            mark_source(&mut self.targets, active, (mesh, position), &change);
            if let Some(target) = self.targets.get_mut(&id) {
                mark_own(target, active, mesh, &old_own, &member.own);
            }
        }
    }

    pub(super) fn replan_cluster(&mut self, cluster: &ClusterId) {
        for mesh in 0..self.meshes.len() {
            let Some(MeshState {
                mode: MeshMode::Active(active),
                ..
            }) = self.meshes.get_mut(mesh)
            else {
                continue;
            };
            let Some(position) = active.position(cluster) else {
                continue;
            };
            self.survey_members(mesh, &[position]);
            self.survey_unsettled(mesh, None);
        }
    }

    /// Surveys and replans members, and all members that depend on them.
    fn survey_members(&mut self, mesh: usize, positions: &[usize]) {
        let Some(MeshState {
            mode: MeshMode::Active(active),
            ..
        }) = self.meshes.get_mut(mesh)
        else {
            return;
        };
        let mut contested = active.is_contested();
        let sources = Sources(&self.clusters);
        let roaming = Roaming {
            targets: &self.targets,
            sources,
            vanished: &self.vanished,
            now: self.now,
        };
        positions
            .iter()
            .for_each(|position| active.survey(*position, &roaming));
        contested |= active.is_contested();
        if contested {
            // A key that several nodes have affects all members.
            self.settle(mesh);
            self.plan_members(mesh, None);
            return;
        }
        positions
            .iter()
            .for_each(|position| self.plan_members(mesh, Some(*position)));
    }

    /// Surveys members again whose nodes without an endpoint may have gained or
    /// lost their Peers because Peers or discovered endpoints changed.
    pub(super) fn survey_unsettled(&mut self, mesh: usize, name: Option<&PeerName>) {
        let Some(active) = self.meshes.get(mesh).and_then(MeshState::active) else {
            return;
        };
        let sources = Sources(&self.clusters);
        let roaming = Roaming {
            targets: &self.targets,
            sources,
            vanished: &self.vanished,
            now: self.now,
        };
        let unsettled = active.unsettled(&roaming, name);
        if !unsettled.is_empty() {
            self.survey_members(mesh, &unsettled);
        }
    }
}
