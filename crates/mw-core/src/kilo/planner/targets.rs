//! Evaluates the targets that changes concern.

use std::collections::BTreeSet;

use crate::kilo::evaluate::Evaluation;
use crate::kilo::mesh_state::MeshState;
use crate::kilo::ownership::Owner;
use crate::kilo::planner::Planner;
use crate::kilo::sources::Sources;
use crate::kilo::target::Target;
use crate::kilo::verdict::TargetContext;
use crate::kilo::world::LinkFacts;
use crate::names::ClusterId;

impl Planner {
    /// Plans for all inputs that changed: the sources, then every target that
    /// they concern. Returns these targets.
    pub fn refresh(&mut self) -> BTreeSet<ClusterId> {
        self.settle_sources();
        let mut stale = self.stale();
        let dirty = !stale.is_empty();
        let before = self.confirmed_before();
        if dirty && self.released != before {
            // Held changes must be determined as if nothing were confirmed.
            self.released = before;
            self.targets
                .values_mut()
                .for_each(|target| target.dirt.all = true);
        }
        stale.extend(self.evaluate_all());
        if dirty
            && (self.orphans.confirm.is_some()
                || self
                    .inputs
                    .values()
                    .any(|mesh| mesh.confirm_deletes.is_some()))
        {
            stale.extend(self.release_confirmed());
        }
        stale
    }

    fn stale(&self) -> BTreeSet<ClusterId> {
        self.targets
            .iter()
            .filter(|(_, target)| !target.dirt.is_clean())
            .map(|(id, _)| id.clone())
            .collect()
    }

    pub(super) fn evaluate_all(&mut self) -> BTreeSet<ClusterId> {
        let stale = self.stale();
        stale.iter().for_each(|id| self.evaluate(id));
        stale
    }

    /// Evaluates one target. Confirmed changes are handled only by `refresh`,
    /// because they concern all targets of a mesh.
    pub fn evaluate(&mut self, id: &ClusterId) {
        self.settle_sources();
        let Some(mut target) = self.targets.remove(id) else {
            return;
        };
        if !target.dirt.is_clean() {
            self.evaluate_target(id, &mut target);
        }
        self.targets.insert(id.clone(), target);
    }

    fn evaluate_target(&self, id: &ClusterId, target: &mut Target) {
        // While its keys and addresses are not known, nothing can be written
        // safely, but Peers that no mesh wants can be deleted.
        let readable = self
            .clusters
            .get(id)
            .is_some_and(|cluster| cluster.nodes.known().is_some());
        let position = |at: &usize| {
            Some((*at, self.meshes.get(*at)?.active()?.position(id)?)).filter(|_| readable)
        };
        let other_hub = || {
            target
                .strangers()
                .any(|(_, entry)| *entry.owner == Owner::OtherHub)
        };
        let anybodys = LinkFacts::default();
        let evaluation = Evaluation {
            context: TargetContext {
                target: id,
                link: self.links.get(id).unwrap_or(&anybodys),
                meshes: &self.meshes,
                sources: Sources(&self.clusters),
                absent: &self.orphans.absent,
                sweep_ghosts: self.options.sweep_legacy && !other_hub(),
            },
            memberships: self.by_age.iter().filter_map(position).collect(),
            released: &self.released,
            held_before: &|mesh| Some(&self.inputs.get(&self.meshes.get(mesh)?.id)?.held),
            max_delete_percent: &|mesh| {
                self.meshes
                    .get(mesh)
                    .and_then(MeshState::active)
                    .map_or(0, |mesh| mesh.spec.max_delete_percent)
            },
            orphans_before: &self.orphans.held,
            history: &self.history,
            hub_known: self.register.hub().is_some(),
            now: self.now,
        };
        evaluation.run(target);
        if !readable {
            target.keep_certain_deletes();
        }
    }
}
