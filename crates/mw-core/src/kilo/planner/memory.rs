//! Decisions of the previous plan that stay in effect: anchors, held changes,
//! and which of those the user confirmed.

use std::collections::BTreeSet;

use crate::kilo::guard::{HeldLine, Released, held_hash};
use crate::kilo::mesh_state::MeshState;
use crate::kilo::planner::Planner;
use crate::names::ClusterId;

impl Planner {
    /// Records the anchors and held changes of this plan for the next one, so
    /// that changes stay held until they are confirmed or explained. Returns
    /// true if the held changes differ from before.
    pub fn remember_decisions(&mut self) -> bool {
        let mut changed = false;
        for active in self.meshes.iter().filter_map(MeshState::active) {
            let Some(input) = self.inputs.get_mut(&active.id) else {
                continue;
            };
            for member in &active.members {
                if let Some(anchor) = member.plan.as_ref().and_then(|plan| plan.anchor.as_ref())
                    && input.anchors.get(&member.name) != Some(anchor)
                {
                    input.anchors.insert(member.name.clone(), anchor.clone());
                }
            }
        }
        for (at, mesh) in self.meshes.iter().enumerate() {
            let held = self.held_lines(Some(at));
            let lasts = self
                .released
                .of_meshes
                .get(&at)
                .is_some_and(|released| self.is_pending(released));
            if let Some(input) = self
                .inputs
                .get_mut(&mesh.id)
                .filter(|input| input.held != held && !(held.is_empty() && lasts))
            {
                input.held = held;
                changed = true;
            }
        }
        let held = self.held_lines(None);
        if self.orphans.held != held
            && !(held.is_empty() && self.is_pending(&self.released.orphans))
        {
            self.orphans.held = held;
            changed = true;
        }
        changed
    }

    /// The held changes of a mesh, or of orphans, on all targets.
    pub(in crate::kilo) fn held_lines(&self, mesh: Option<usize>) -> BTreeSet<HeldLine> {
        let holding = self.targets.iter().filter(|(_, target)| target.holds);
        holding
            .flat_map(|(id, target)| target.changes(mesh).held_lines(id))
            .collect()
    }

    /// Reports whether a confirmed change is still pending: a confirmation
    /// stays valid until all its changes are done.
    fn is_pending(&self, released: &BTreeSet<HeldLine>) -> bool {
        released.iter().any(|line| {
            let entry = self
                .targets
                .get(&line.target)
                .and_then(|target| target.entries.get(&line.name));
            entry.is_some_and(|entry| {
                !entry.deleting && (line.key.is_none() || entry.key() != line.key)
            })
        })
    }

    /// Changes that were held by the previous plan and confirmed; some of them
    /// may be done already.
    pub(super) fn confirmed_before(&self) -> Released {
        let confirmed = |(at, mesh): (usize, &MeshState)| {
            let mesh = self.inputs.get(&mesh.id)?;
            let hash = self.held_hash(Some(at), &mesh.held)?;
            (mesh.confirm_deletes.as_ref() == Some(&hash)).then(|| (at, mesh.held.clone()))
        };
        let orphans = self
            .held_hash(None, &self.orphans.held)
            .filter(|hash| self.orphans.confirm.as_ref() == Some(hash));
        Released {
            of_meshes: self
                .meshes
                .iter()
                .enumerate()
                .filter_map(confirmed)
                .collect(),
            orphans: orphans
                .map(|_| self.orphans.held.clone())
                .unwrap_or_default(),
        }
    }

    /// The hash of held changes, using the mesh's names for its clusters.
    pub(in crate::kilo) fn held_hash(
        &self,
        mesh: Option<usize>,
        held: &BTreeSet<HeldLine>,
    ) -> Option<String> {
        let active = mesh
            .and_then(|mesh| self.meshes.get(mesh))
            .and_then(MeshState::active);
        let called = |id: &ClusterId| {
            let member = active.and_then(|mesh| mesh.members.get(mesh.position(id)?));
            member.map_or_else(|| id.to_string(), |member| member.name.to_string())
        };
        held_hash(
            held.iter()
                .map(|line| format!("{}/{line}", called(&line.target))),
        )
    }

    /// Releases the changes held now if exactly these were confirmed.
    pub(super) fn release_confirmed(&mut self) -> BTreeSet<ClusterId> {
        for (at, mesh) in self.meshes.iter().enumerate() {
            let Some(confirmed) = self
                .inputs
                .get(&mesh.id)
                .and_then(|mesh| mesh.confirm_deletes.as_deref())
            else {
                continue;
            };
            let held = self.held_lines(Some(at));
            if self.held_hash(Some(at), &held).as_deref() == Some(confirmed) {
                self.released.of_meshes.insert(at, held);
            }
        }
        let orphans = self.held_lines(None);
        if self.orphans.confirm.is_some() && self.held_hash(None, &orphans) == self.orphans.confirm
        {
            self.released.orphans = orphans;
        }
        let released = self
            .released
            .of_meshes
            .values()
            .flatten()
            .chain(&self.released.orphans);
        let targets: BTreeSet<ClusterId> = released.map(|line| line.target.clone()).collect();
        for target in targets {
            if let Some(target) = self.targets.get_mut(&target) {
                target.dirt.all = true;
            }
        }
        self.evaluate_all()
    }
}
