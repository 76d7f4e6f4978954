//! All decisions on one target: Peers to create, update and delete, held
//! changes, and remarks for the user.
//!
//! A target is evaluated either as a whole or only where something changed. The
//! incremental way is used if Peers of different sources can't conflict; both
//! ways use the same decisions and must agree.

mod claims;
mod guard;
mod incremental;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::kilo::decide::{Decision, Note, Pair};
use crate::kilo::entry::Entry;
use crate::kilo::guard::{DeleteCause, HeldLine, History, Released};
use crate::kilo::mesh_state::MeshState;
use crate::kilo::outcome::{Act, PeerOutcome};
use crate::kilo::ownership::Owner;
use crate::kilo::peer::BasePeer;
use crate::kilo::plan::{Delete, Precondition, Update};
use crate::kilo::retained::RetainedPeers;
use crate::kilo::target::{SourceAt, Target};
use crate::kilo::verdict::{PeerVerdict, TargetContext};
use crate::names::{ClusterName, PeerName};
use crate::problem::Reason;
use crate::time::Timestamp;

/// Everything that the evaluation of one target depends on.
pub(super) struct Evaluation<'a> {
    pub(super) context: TargetContext<'a>,
    /// Active meshes that this cluster is a member of, oldest first: position
    /// of the mesh and of the cluster in it.
    pub(super) memberships: Vec<SourceAt>,
    /// Changes that the user confirmed.
    pub(super) released: &'a Released,
    /// Changes held by the previous plan.
    pub(super) held_before: &'a dyn Fn(usize) -> Option<&'a BTreeSet<HeldLine>>,
    /// Orphans held by the previous plan.
    pub(super) orphans_before: &'a BTreeSet<HeldLine>,
    pub(super) history: &'a History,
    pub(super) max_delete_percent: &'a dyn Fn(usize) -> u8,
    pub(super) hub_known: bool,
    pub(super) now: Timestamp,
}

impl Evaluation<'_> {
    pub(super) fn run(&self, target: &mut Target) {
        let dirt = std::mem::take(&mut target.dirt);
        let entangled = target.entangled || !self.hub_known;
        if dirt.all || entangled || !self.run_where_changed(target, dirt) {
            self.run_as_a_whole(target);
        }
        target.stagger();
    }

    fn meshes(&self) -> &[MeshState] {
        self.context.meshes
    }

    fn run_as_a_whole(&self, target: &mut Target) {
        target.outcomes.clear();
        target.retained = RetainedPeers::default();
        let mut verdicts = BTreeMap::new();
        for (name, entry) in &target.entries {
            let verdict = self.context.verdict(name, entry);
            target.retained.set(name, verdict.retained(entry));
            verdicts.insert(name.clone(), verdict);
        }
        self.delete_surplus(target, verdicts.iter());
        let lost = self.lost_claims(target);
        let retained = std::mem::take(&mut target.retained);
        let mut entangled = false;
        for (mesh, source) in self.sources() {
            let Some(pair) = self.pair((mesh, source), &retained, &target.entries) else {
                continue;
            };
            entangled |= pair.is_entangled();
            for base in self.base((mesh, source)) {
                let outcome = match lost.get(&(mesh, base.name.clone())) {
                    Some(note) => self.lose(target, (mesh, source), base, &verdicts, note),
                    None => self.judge(
                        &target.entries,
                        &pair,
                        (mesh, source),
                        base,
                        verdicts.get(&base.name),
                    ),
                };
                target.note(mesh, &base.name, outcome);
            }
        }
        self.guard(target);
        let blocked = target.has_blockers();
        if blocked {
            self.make_way_for_held(target, retained.clone(), verdicts);
        }
        target.retained = retained;
        target.entangled = blocked || entangled;
    }

    /// Every source of every mesh whose Peers this cluster gets.
    fn sources(&self) -> Vec<SourceAt> {
        let mut sources = Vec::new();
        for (mesh, own) in &self.memberships {
            let members = self
                .meshes()
                .get(*mesh)
                .and_then(MeshState::active)
                .map_or(0, |mesh| mesh.members.len());
            sources.extend(
                (0..members)
                    .filter(|source| source != own)
                    .map(|source| (*mesh, source)),
            );
        }
        sources.retain(|(mesh, source)| self.takes(*mesh, *source));
        sources
    }

    fn own_position(&self, mesh: usize) -> Option<usize> {
        self.memberships
            .iter()
            .find(|(at, _)| *at == mesh)
            .map(|(_, own)| *own)
    }

    fn takes(&self, mesh: usize, source: usize) -> bool {
        let Some(own) = self.own_position(mesh).filter(|own| *own != source) else {
            return false;
        };
        let Some(active) = self.meshes().get(mesh).and_then(MeshState::active) else {
            return false;
        };
        active.older_mesh_with(source, own).is_none()
    }

    fn base(&self, (mesh, source): SourceAt) -> impl Iterator<Item = &Arc<BasePeer>> {
        let active = self.meshes().get(mesh).and_then(MeshState::active);
        let plan = active
            .and_then(|mesh| mesh.members.get(source))
            .and_then(|member| member.plan.as_ref());
        plan.into_iter().flat_map(|plan| plan.base.values())
    }

    fn pair<'b>(
        &'b self,
        (mesh, source): SourceAt,
        retained: &'b RetainedPeers,
        entries: &BTreeMap<PeerName, Entry>,
    ) -> Option<Pair<'b>> {
        let active = self.meshes().get(mesh)?.active()?;
        Pair::new(
            (mesh, active),
            source,
            self.own_position(mesh)?,
            (retained, entries),
            self.now,
        )
    }

    fn delete_surplus<'b>(
        &self,
        target: &mut Target,
        verdicts: impl Iterator<Item = (&'b PeerName, &'b PeerVerdict)>,
    ) {
        for (name, verdict) in verdicts {
            if let (
                PeerVerdict::Surplus {
                    mesh,
                    source,
                    cause,
                },
                Some(entry),
            ) = (verdict, target.entries.get(name))
            {
                let act = Act::Delete(Delete {
                    on: precondition(entry),
                    cause: *cause,
                    source: self.source_name(*mesh, *source),
                });
                target.outcomes.insert(
                    (name.clone(), *mesh),
                    PeerOutcome {
                        source: *source,
                        act,
                        notes: Vec::new(),
                        recheck_at: None,
                    },
                );
            }
        }
    }

    fn source_name(&self, mesh: Option<usize>, source: Option<usize>) -> Option<ClusterName> {
        Some(
            self.meshes()
                .get(mesh?)?
                .active()?
                .members
                .get(source?)?
                .name
                .clone(),
        )
    }

    fn lose(
        &self,
        target: &Target,
        at: SourceAt,
        base: &Arc<BasePeer>,
        verdicts: &BTreeMap<PeerName, PeerVerdict>,
        note: &Note,
    ) -> PeerOutcome {
        let decision = Decision {
            notes: vec![note.clone()],
            ..Decision::default()
        };
        let entry = target
            .entries
            .get(&base.name)
            .filter(|_| is_wanted(verdicts.get(&base.name), at));
        self.outcome(at, decision, entry)
    }

    /// The outcome for one wanted Peer.
    fn judge(
        &self,
        entries: &BTreeMap<PeerName, Entry>,
        pair: &Pair<'_>,
        at: SourceAt,
        base: &Arc<BasePeer>,
        verdict: Option<&PeerVerdict>,
    ) -> PeerOutcome {
        let entry = entries.get(&base.name);
        let goes =
            matches!(verdict, Some(PeerVerdict::Surplus { mesh, .. }) if *mesh != Some(at.0));
        match entry {
            Some(entry) if is_wanted(verdict, at) => {
                self.outcome(at, pair.decide(base, Some(entry)), Some(entry))
            }
            // The old Peer is deleted in the same pass, before this one is
            // created.
            Some(_) if goes => self.outcome(at, pair.decide(base, None), None),
            Some(entry) => {
                let notes = self
                    .name_taken(at.0, &base.name, entry)
                    .into_iter()
                    .collect();
                self.outcome(
                    at,
                    Decision {
                        notes,
                        ..Decision::default()
                    },
                    None,
                )
            }
            None => self.outcome(at, pair.decide(base, None), None),
        }
    }

    /// The change that turns the existing Peer into the wanted one.
    fn outcome(&self, at: SourceAt, decision: Decision, entry: Option<&Entry>) -> PeerOutcome {
        let Decision {
            wanted,
            notes,
            recheck_at,
        } = decision;
        let act = match (wanted, entry) {
            (None, None) => Act::Nothing,
            // Our labels were removed: a Peer that can't be taken back is
            // left alone.
            (None, Some(entry)) if !matches!(entry.owner.as_ref(), Owner::Mesh(_)) => Act::Leave,
            (None, Some(entry)) => Act::Delete(Delete {
                on: precondition(entry),
                cause: DeleteCause::Withheld,
                source: self.source_name(Some(at.0), Some(at.1)),
            }),
            (Some(wanted), None) => Act::Create(wanted),
            (Some(wanted), Some(entry)) if entry.equals(&wanted) => Act::Keep(wanted),
            (Some(after), Some(entry)) => Act::Update(Update {
                on: precondition(entry),
                adopts: entry.same_spec(&after),
                rekeys: entry.key().is_some_and(|key| key != after.key()),
                takes_away: entry.key() != Some(after.key())
                    || entry
                        .prefixes()
                        .iter()
                        .any(|cidr| !after.allowed_ips().contains(cidr)),
                after,
                first: None,
            }),
        };
        PeerOutcome {
            source: Some(at.1),
            act,
            notes,
            recheck_at,
        }
    }

    fn name_taken(&self, mesh: usize, name: &PeerName, entry: &Entry) -> Option<Note> {
        let id = self.meshes().get(mesh).map(|mesh| &mesh.id);
        match entry.owner.as_ref() {
            // Reported once for the whole mesh.
            Owner::Ambiguous(_) | Owner::HubConflict(_) => None,
            Owner::Mesh(owner) if Some(owner) == id && entry.deleting => Some(Note {
                reason: Reason::PeerTerminating,
                about: format!("{name}: being deleted; it is recreated afterwards"),
            }),
            Owner::Mesh(owner) if Some(owner) == id => Some(Note {
                reason: Reason::PeerNameTaken,
                about: format!("{name}: the Peer of another cluster's node has this name"),
            }),
            _ => Some(Note {
                reason: Reason::PeerNameTaken,
                about: format!("{name}: a Peer that meshwright does not manage has this name"),
            }),
        }
    }
}

fn is_wanted(verdict: Option<&PeerVerdict>, (mesh, source): SourceAt) -> bool {
    matches!(verdict, Some(PeerVerdict::Wanted { mesh: m, source: s }) if (*m, *s) == (mesh, source))
}

fn precondition(entry: &Entry) -> Precondition {
    Precondition {
        uid: entry.uid.clone(),
        resource_version: entry.resource_version.clone(),
    }
}
