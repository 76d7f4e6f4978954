//! What was decided before and holds on: who is anchor, which deletes are held
//! back, and which of those a person released.

use std::collections::BTreeSet;

use super::Planner;
use crate::kilo::decide::MeshState;
use crate::kilo::evaluate::Deletes;
use crate::kilo::guard::held_hash;
use crate::names::{ClusterId, PeerName};

impl Planner {
    /// What was decided counts as decided before from now on: who is anchor,
    /// and what is held, so that it stays held until it is confirmed or no
    /// longer doubtful. True if what is held changed.
    pub fn remember_decisions(&mut self) -> bool {
        let mut changed = false;
        for active in self.meshes.iter().filter_map(MeshState::active) {
            let Some(input) = self.inputs.get_mut(&active.id) else { continue };
            for member in &active.members {
                if let Some(anchor) = member.plan.as_ref().and_then(|plan| plan.anchor.as_ref())
                    && input.anchors.get(&member.name) != Some(anchor)
                {
                    input.anchors.insert(member.name.clone(), anchor.clone());
                }
            }
        }
        if !self.targets.values().any(|target| target.holds) && self.inputs.values().all(|mesh| mesh.held.is_empty()) {
            return false;
        }
        for (at, mesh) in self.meshes.iter().enumerate() {
            let held = self.targets.iter().flat_map(|(id, target)| target.held(at).map(move |name| (id.clone(), name.clone())));
            let held: BTreeSet<(ClusterId, PeerName)> = held.collect();
            if let Some(input) = self.inputs.get_mut(&mesh.id).filter(|input| input.held != held) {
                input.held = held;
                changed = true;
            }
        }
        changed
    }

    /// Deletes that were held before and are confirmed as they were then:
    /// some of them may have been carried out since.
    pub(super) fn confirmed_before(&self) -> Deletes {
        let confirmed = |(at, mesh): (usize, &MeshState)| {
            let mesh = self.inputs.get(&mesh.id)?;
            let hash = self.held_hash(at, &mesh.held)?;
            (mesh.confirm_deletes.as_ref() == Some(&hash)).then(|| (at, mesh.held.clone()))
        };
        self.meshes.iter().enumerate().filter_map(confirmed).collect()
    }

    /// The hash of a mesh's held deletes, by the names that the mesh has for
    /// its clusters.
    pub(in crate::kilo) fn held_hash(&self, mesh: usize, held: &BTreeSet<(ClusterId, PeerName)>) -> Option<String> {
        let active = self.meshes.get(mesh).and_then(MeshState::active);
        let called = |id: &ClusterId| {
            let member = active.and_then(|mesh| mesh.members.get(mesh.position(id)?));
            member.map_or_else(|| id.to_string(), |member| member.name.to_string())
        };
        held_hash(held.iter().map(|(target, name)| (called(target), name.to_string())))
    }

    /// Releases what is held now, where exactly that was confirmed.
    pub(super) fn release_confirmed(&mut self) -> BTreeSet<ClusterId> {
        for (at, mesh) in self.meshes.iter().enumerate() {
            let Some(confirmed) = self.inputs.get(&mesh.id).and_then(|mesh| mesh.confirm_deletes.as_deref()) else { continue };
            let held = self.targets.iter().flat_map(|(id, target)| target.held(at).map(move |name| (id.clone(), name.clone())));
            let held: BTreeSet<(ClusterId, PeerName)> = held.collect();
            if self.held_hash(at, &held).as_deref() == Some(confirmed) {
                for (target, _) in &held {
                    self.targets.entry(target.clone()).or_default().dirt.all = true;
                }
                self.released.insert(at, held);
            }
        }
        self.evaluate_all()
    }
}
