//! The deletion guard on one target: holds changes that look like a mistake.

use std::collections::{BTreeMap, BTreeSet};

use crate::key::PublicKey;
use crate::kilo::evaluate::Evaluation;
use crate::kilo::guard::{self, HeldLine, Resting};
use crate::kilo::mesh_state::{MeshState, mesh_at};
use crate::kilo::outcome::{Act, PeerOutcome};
use crate::kilo::plan::HeldFor;
use crate::kilo::retained::{RetainedPeer, RetainedPeers};
use crate::kilo::target::{SourceAt, Target};
use crate::kilo::verdict::PeerVerdict;
use crate::names::{ClusterId, ClusterName, MeshId, PeerName};

/// Changes of one source that may have to be held.
#[derive(Default)]
struct Doubts {
    deletes: BTreeSet<PeerName>,
    rekeyed: BTreeMap<PeerName, PublicKey>,
}

impl Evaluation<'_> {
    /// Holds changes that look like a mistake.
    pub(super) fn guard(&self, target: &mut Target) {
        let mut doubts: BTreeMap<SourceAt, Doubts> = BTreeMap::new();
        for ((name, mesh), outcome) in &target.outcomes {
            let (Some(mesh), Some(source)) = (mesh, outcome.source) else {
                continue;
            };
            match &outcome.act {
                Act::Delete(delete) if !delete.cause.is_good_reason() => {
                    doubts
                        .entry((*mesh, source))
                        .or_default()
                        .deletes
                        .insert(name.clone());
                }
                Act::Update(update) if update.rekeys => {
                    doubts
                        .entry((*mesh, source))
                        .or_default()
                        .rekeyed
                        .insert(name.clone(), update.after.key());
                }
                _ => {}
            }
        }
        for (at, doubts) in doubts {
            self.guard_source(target, at, doubts);
        }
        self.guard_orphans(target);
        self.rest(target);
        target.holds = target
            .outcomes
            .values()
            .any(|outcome| matches!(outcome.act, Act::Held(_)));
    }

    /// Holds changes of sources that changed too often here.
    fn rest(&self, target: &mut Target) {
        let resting: Vec<(SourceAt, Resting)> = self
            .history
            .resting
            .iter()
            .filter_map(|(at, rest)| Some((self.source_at(at)?, *rest)))
            .collect();
        for ((mesh, source), rest) in resting {
            let waits = |act: &Act| match act {
                Act::Update(_) => rest.changes,
                Act::Create(_) | Act::Delete(_) => rest.arrivals,
                Act::Nothing | Act::Keep(_) | Act::Held(_) | Act::Leave => false,
            };
            let of_source = target
                .outcomes
                .iter()
                .filter(|((_, at), outcome)| *at == Some(mesh) && outcome.source == Some(source));
            let names: Vec<PeerName> = of_source
                .filter(|(_, outcome)| waits(&outcome.act))
                .map(|((name, _), _)| name.clone())
                .collect();
            names
                .iter()
                .for_each(|name| target.hold(name, Some(mesh), HeldFor::Budget));
        }
    }

    fn source_at(
        &self,
        (target, mesh, source): &(ClusterId, MeshId, ClusterName),
    ) -> Option<SourceAt> {
        let (at, state) = mesh_at(self.meshes(), mesh).filter(|_| target == self.context.target)?;
        Some((at, state.active()?.position_of(source.as_str())?))
    }

    fn guard_source(&self, target: &mut Target, at: SourceAt, doubts: Doubts) {
        let Some(peers) = self.peers_of_source(target, at) else {
            return;
        };
        let Doubts { deletes, rekeyed } = doubts;
        let released = self.released.of_meshes.get(&at.0);
        let is_released =
            |line: &HeldLine| released.is_some_and(|released| released.contains(line));
        let line = |name: &PeerName, key| HeldLine {
            target: self.context.target.clone(),
            name: name.clone(),
            key,
        };
        let lines = deletes
            .iter()
            .map(|name| line(name, None))
            .chain(rekeyed.iter().map(|(name, key)| line(name, Some(*key))));
        if self.is_replaced(at, &peers, &rekeyed) && !lines.clone().all(|line| is_released(&line)) {
            let of_source = |((_, mesh), outcome): &(&(PeerName, Option<usize>), &PeerOutcome)| {
                *mesh == Some(at.0) && outcome.source == Some(at.1)
            };
            let all: Vec<PeerName> = target
                .outcomes
                .iter()
                .filter(of_source)
                .map(|((name, _), _)| name.clone())
                .collect();
            return all
                .iter()
                .for_each(|name| target.hold(name, Some(at.0), HeldFor::Replaced));
        }
        let mut doubtful: BTreeSet<PeerName> = deletes
            .into_iter()
            .filter(|name| !is_released(&line(name, None)))
            .collect();
        if !self.holds(at, &peers, &doubtful) {
            let before = (self.held_before)(at.0);
            doubtful.retain(|name| before.is_some_and(|before| before.contains(&line(name, None))));
        }
        doubtful
            .iter()
            .for_each(|name| target.hold(name, Some(at.0), HeldFor::Deletes));
    }

    /// The Peers of a source on this target that are not terminating.
    fn peers_of_source(
        &self,
        target: &Target,
        (mesh, source): SourceAt,
    ) -> Option<BTreeSet<PeerName>> {
        let member = self
            .meshes()
            .get(mesh)
            .and_then(MeshState::active)?
            .members
            .get(source)?;
        let group = target.groups.get(&(mesh, member.name.as_str().into()));
        let lasting = |name: &&PeerName| {
            target
                .entries
                .get(*name)
                .is_some_and(|entry| !entry.deleting)
        };
        Some(
            group
                .into_iter()
                .flatten()
                .filter(lasting)
                .cloned()
                .collect(),
        )
    }

    /// Reports whether a source is probably a different cluster than before:
    /// most keys change, or all its Nodes are new.
    fn is_replaced(
        &self,
        (mesh, source): SourceAt,
        peers: &BTreeSet<PeerName>,
        rekeyed: &BTreeMap<PeerName, PublicKey>,
    ) -> bool {
        let Some(active) = self.meshes().get(mesh).and_then(MeshState::active) else {
            return false;
        };
        let Some(member) = active.members.get(source) else {
            return false;
        };
        if self.history.replaced.contains(&member.id) {
            return true;
        }
        if self
            .history
            .redirected
            .contains(&(active.id.clone(), member.name.clone()))
        {
            return false;
        }
        let recreated = self.history.recreated.get(&member.id);
        let is_recreated = |name: &&PeerName| {
            let node = member
                .plan
                .as_ref()
                .and_then(|plan| plan.base.get(*name))
                .map(|base| &base.node);
            recreated
                .zip(node)
                .is_some_and(|(recreated, node)| recreated.contains(node))
        };
        let rekeyed = rekeyed.keys().filter(|name| !is_recreated(name)).count();
        guard::is_replaced(rekeyed, peers.len(), (self.max_delete_percent)(mesh))
    }

    /// Reports whether these deletes, added to those of the last minutes, are
    /// too many.
    fn holds(
        &self,
        (mesh, source): SourceAt,
        peers: &BTreeSet<PeerName>,
        doubtful: &BTreeSet<PeerName>,
    ) -> bool {
        let Some(active) = self.meshes().get(mesh).and_then(MeshState::active) else {
            return false;
        };
        let Some(member) = active.members.get(source) else {
            return false;
        };
        let key = (
            self.context.target.clone(),
            active.id.clone(),
            member.name.clone(),
        );
        let removed = self
            .history
            .removed
            .get(&key)
            .into_iter()
            .flatten()
            .filter(|name| !peers.contains(*name))
            .count();
        let gone = doubtful
            .iter()
            .filter(|name| !peers.contains(*name))
            .count();
        let is_empty = self
            .context
            .sources
            .nodes(&member.id)
            .is_some_and(BTreeMap::is_empty);
        let of_source = peers.len() + gone + removed;
        !doubtful.is_empty()
            && guard::holds(
                doubtful.len() + removed,
                of_source,
                (self.max_delete_percent)(mesh),
                is_empty,
            )
    }

    /// An existing mesh may be missing from a list, so most of the hub's Peers
    /// are never deleted for that reason alone.
    fn guard_orphans(&self, target: &mut Target) {
        let orphans = target
            .outcomes
            .iter()
            .filter(|((_, mesh), outcome)| mesh.is_none() && matches!(outcome.act, Act::Delete(_)));
        let orphans: Vec<PeerName> = orphans.map(|((name, _), _)| name.clone()).collect();
        let line = |name: &PeerName| HeldLine {
            target: self.context.target.clone(),
            name: name.clone(),
            key: None,
        };
        let is_finished = |name: &PeerName| {
            target
                .entries
                .get(name)
                .is_some_and(|entry| self.context.absent.was_finished(entry.labels()))
        };
        let mut doubtful: Vec<PeerName> = orphans
            .into_iter()
            .filter(|name| !self.released.orphans.contains(&line(name)) && !is_finished(name))
            .collect();
        if !guard::holds_orphans(doubtful.len(), doubtful.len() + target.count_of_hub()) {
            doubtful.retain(|name| self.orphans_before.contains(&line(name)));
        }
        doubtful
            .iter()
            .for_each(|name| target.hold(name, None, HeldFor::Deletes));
    }

    /// Held Peers keep their keys and prefixes. Changes that conflict with them
    /// wait, so their Peers keep their own keys and prefixes meanwhile.
    pub(super) fn make_way_for_held(
        &self,
        target: &mut Target,
        mut retained: RetainedPeers,
        mut verdicts: BTreeMap<PeerName, PeerVerdict>,
    ) {
        for ((name, mesh), outcome) in &target.outcomes {
            if let (Act::Held(_) | Act::Leave, Some(entry)) =
                (&outcome.act, target.entries.get(name))
            {
                retained.set(name, Some(RetainedPeer::of(entry, false, None)));
                if mesh.is_none() {
                    // An orphan that was about to be deleted keeps its name.
                    verdicts.insert(
                        name.clone(),
                        PeerVerdict::Stays {
                            foreign: true,
                            source: None,
                        },
                    );
                }
            }
        }
        let mut frozen: BTreeSet<PeerName> = BTreeSet::new();
        loop {
            let mut more: Vec<PeerName> = Vec::new();
            for at in self.sources() {
                let Some(pair) = self.pair(at, &retained, &target.entries) else {
                    continue;
                };
                for base in self.base(at) {
                    let before = target.outcomes.get(&(base.name.clone(), Some(at.0)));
                    if frozen.contains(&base.name)
                        || before.is_some_and(|outcome| {
                            !matches!(outcome.act, Act::Keep(_) | Act::Create(_) | Act::Update(_))
                        })
                    {
                        continue;
                    }
                    let mut now =
                        self.judge(&target.entries, &pair, at, base, verdicts.get(&base.name));
                    if let Act::Delete(_) | Act::Leave = now.act {
                        now.act = Act::Nothing;
                        more.push(base.name.clone());
                    }
                    target.note(at.0, &base.name, now);
                }
            }
            if more.is_empty() {
                return;
            }
            for name in &more {
                retained.set(
                    name,
                    target
                        .entries
                        .get(name)
                        .map(|entry| RetainedPeer::of(entry, false, None)),
                );
            }
            frozen.extend(more);
        }
    }
}
