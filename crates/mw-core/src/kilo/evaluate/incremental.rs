//! Evaluation of a target only where something changed.

use std::collections::{BTreeMap, BTreeSet};

use crate::kilo::decide::Pair;
use crate::kilo::evaluate::Evaluation;
use crate::kilo::mesh_state::MeshState;
use crate::kilo::target::{Dirt, SourceAt, Target};
use crate::kilo::verdict::PeerVerdict;
use crate::names::PeerName;

impl Evaluation<'_> {
    /// Evaluates only what changed and what depends on it. Returns false if
    /// Peers turn out to conflict.
    pub(super) fn run_where_changed(&self, target: &mut Target, dirt: Dirt) -> bool {
        let [(mesh, own)] = self.memberships.as_slice() else {
            return false;
        };
        let Some(active) = self.meshes().get(*mesh).and_then(MeshState::active) else {
            return false;
        };
        let mut open: BTreeSet<PeerName> = dirt.names;
        let mut whole: BTreeSet<usize> = BTreeSet::new();
        let mut add_source = |open: &mut BTreeSet<PeerName>, target: &Target, source: usize| {
            if source != *own && whole.insert(source) {
                open.extend(self.names_of(target, (*mesh, source)));
            }
        };
        for (_, source) in dirt.sources {
            add_source(&mut open, target, source);
        }
        let mut verdicts: BTreeMap<PeerName, Option<PeerVerdict>> = BTreeMap::new();
        while let Some(name) = open.pop_first() {
            if verdicts.contains_key(&name) {
                continue;
            }
            let verdict = target
                .entries
                .get(&name)
                .map(|entry| self.context.verdict(&name, entry));
            let stays = target
                .entries
                .get(&name)
                .zip(verdict.as_ref())
                .and_then(|(entry, verdict)| verdict.retained(entry));
            for change in target.retained.set(&name, stays) {
                let owners = change
                    .prefixes
                    .iter()
                    .flat_map(|cidr| active.declared.owners(*cidr))
                    .chain(change.endpoint.and_then(|ip| active.declared.owner(ip)));
                let by_network: Vec<usize> = owners
                    .filter_map(|owner| active.position_of(owner.as_str()))
                    .collect();
                let by_key = change
                    .key
                    .map(|key| active.clusters_with_key(key))
                    .unwrap_or_default();
                for source in by_network
                    .iter()
                    .chain(by_key)
                    .copied()
                    .chain(change.source.map(|(_, source)| source))
                {
                    add_source(&mut open, target, source);
                }
            }
            verdicts.insert(name, verdict);
        }
        self.evaluate_names(target, (*mesh, *own), &verdicts);
        self.guard(target);
        !target.has_blockers()
    }

    fn evaluate_names(
        &self,
        target: &mut Target,
        (mesh, own): SourceAt,
        verdicts: &BTreeMap<PeerName, Option<PeerVerdict>>,
    ) {
        let Some(active) = self.meshes().get(mesh).and_then(MeshState::active) else {
            return;
        };
        verdicts.keys().for_each(|name| target.forget(name));
        let mut pairs: BTreeMap<usize, Option<Pair<'_>>> = BTreeMap::new();
        let mut results = Vec::new();
        for (name, verdict) in verdicts {
            let labelled = target
                .entries
                .get(name)
                .and_then(|entry| entry.labels().source.as_deref());
            let source = active
                .wanted_by(name, labelled)
                .filter(|source| *source != own && self.takes(mesh, *source));
            if let Some(source) = source
                && let Some(pair) = pairs
                    .entry(source)
                    .or_insert_with(|| self.pair((mesh, source), &target.retained, &target.entries))
                && let Some(base) = active
                    .members
                    .get(source)
                    .and_then(|member| member.plan.as_ref())
                    .and_then(|plan| plan.base.get(name))
            {
                results.push((
                    name,
                    self.judge(
                        &target.entries,
                        pair,
                        (mesh, source),
                        base,
                        verdict.as_ref(),
                    ),
                ));
            }
        }
        target.entangled |= pairs.values().flatten().any(Pair::is_entangled);
        drop(pairs);
        self.delete_surplus(
            target,
            verdicts
                .iter()
                .filter_map(|(name, verdict)| Some((name, verdict.as_ref()?))),
        );
        for (name, outcome) in results {
            target.note(mesh, name, outcome);
        }
    }

    /// All Peer names that concern a source on this target.
    fn names_of(&self, target: &Target, at: SourceAt) -> BTreeSet<PeerName> {
        let mut names: BTreeSet<PeerName> = self.base(at).map(|base| base.name.clone()).collect();
        if let Some(mesh) = self.meshes().get(at.0).and_then(MeshState::active)
            && let Some(member) = mesh.members.get(at.1)
        {
            names.extend(
                target
                    .groups
                    .get(&(at.0, member.name.as_str().into()))
                    .into_iter()
                    .flatten()
                    .cloned(),
            );
            // Labels can be edited: a Peer named like those of the source may
            // belong to it.
            let start = mesh.name_start_of(&member.name).unwrap_or_default();
            let named = target
                .entries
                .range(PeerName::from(start.as_str())..)
                .map(|(name, _)| name);
            names.extend(
                named
                    .take_while(|name| name.as_str().starts_with(&start))
                    .cloned(),
            );
        }
        let pending = target
            .outcomes
            .iter()
            .filter(|((_, mesh), outcome)| *mesh == Some(at.0) && outcome.source == Some(at.1));
        names.extend(pending.map(|((name, _), _)| name.clone()));
        names
    }
}
