//! All decisions on one target: Peers to create, update and delete, held
//! changes, and remarks for the user.
//!
//! A target is evaluated either as a whole or only where something changed. The
//! incremental way is used if Peers of different sources can't conflict; both
//! ways use the same decisions and must agree.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::key::PublicKey;
use crate::kilo::decide::{Decision, MeshState, Note, Pair, PeerVerdict, TargetContext, mesh_at};
use crate::kilo::guard::{self, DeleteCause, HeldLine, History, Resting};
use crate::kilo::ownership::Owner;
use crate::kilo::peer::{BasePeer, WantedPeer};
use crate::kilo::plan::{Delete, Held, HeldChange, HeldFor, Precondition, Update};
use crate::kilo::target::{Content, Entry, RetainedPeer, RetainedPeers};
use crate::names::{ClusterId, ClusterName, MeshId, PeerName};
use crate::problem::Reason;
use crate::time::Timestamp;

/// A source of a mesh, both by position.
pub(super) type SourceAt = (usize, usize);

/// The planned change of one Peer. Unchanged Peers have no entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PeerOutcome {
    pub(super) source: Option<usize>,
    pub(super) act: Act,
    pub(super) notes: Vec<Note>,
    pub(super) recheck_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Act {
    Nothing,
    /// Already as wanted.
    Keep(WantedPeer),
    Create(WantedPeer),
    Update(Update),
    Delete(Delete),
    Held(Held),
    /// In conflict, but not certainly ours: it stays and blocks others.
    Leave,
}

/// Outcomes by name and mesh; orphans belong to no mesh.
pub(super) type Outcomes = BTreeMap<(PeerName, Option<usize>), PeerOutcome>;

/// Held changes that the user confirmed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Released {
    /// By mesh.
    pub(super) of_meshes: BTreeMap<usize, BTreeSet<HeldLine>>,
    pub(super) orphans: BTreeSet<HeldLine>,
}

#[derive(Debug, Default)]
pub(super) struct Target {
    pub(super) entries: BTreeMap<PeerName, Entry>,
    /// Names of the Peers of one mesh and source label.
    pub(super) groups: BTreeMap<(usize, Box<str>), BTreeSet<PeerName>>,
    /// Names of the Peers of no mesh.
    pub(super) strangers: BTreeSet<PeerName>,
    pub(super) outcomes: Outcomes,
    pub(super) dirt: Dirt,
    /// True if a change is held here.
    pub(super) holds: bool,
    retained: RetainedPeers,
    /// Peers of different sources can conflict: evaluate as a whole.
    entangled: bool,
}

/// Changes of one source that may have to be held.
#[derive(Default)]
struct Doubts {
    deletes: BTreeSet<PeerName>,
    rekeyed: BTreeMap<PeerName, PublicKey>,
}

/// Parts of a target to evaluate again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Dirt {
    pub(super) all: bool,
    pub(super) sources: BTreeSet<SourceAt>,
    pub(super) names: BTreeSet<PeerName>,
}

impl Dirt {
    pub(super) fn is_clean(&self) -> bool {
        *self == Dirt::default()
    }
}

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
            target.retained.set(name, stay(entry, &verdict));
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

    /// Two meshes can want the same key or the same Peer name here. The mesh
    /// that already has it keeps it, otherwise the older mesh wins.
    fn lost_claims(&self, target: &Target) -> BTreeMap<(usize, PeerName), Note> {
        let mut lost = BTreeMap::new();
        if self.memberships.len() < 2 {
            return lost;
        }
        let mut keys: BTreeMap<_, Vec<(usize, &PeerName)>> = BTreeMap::new();
        let mut names: BTreeMap<_, Vec<(usize, &PeerName)>> = BTreeMap::new();
        for (mesh, source) in self.sources() {
            for base in self.base((mesh, source)) {
                keys.entry(base.key).or_default().push((mesh, &base.name));
                names
                    .entry(&base.name)
                    .or_default()
                    .push((mesh, &base.name));
            }
        }
        let owns = |mesh: usize, name: &PeerName| {
            let id = self.meshes().get(mesh).map(|mesh| &mesh.id);
            target.entries.get(name).filter(
                |entry| matches!(entry.owner.as_ref(), Owner::Mesh(owner) if Some(owner) == id),
            )
        };
        for claims in names.values().filter(|claims| claims.len() > 1) {
            let winner = claims
                .iter()
                .find(|(mesh, name)| owns(*mesh, name).is_some())
                .or(claims.first());
            for (mesh, name) in claims.iter().filter(|claim| Some(*claim) != winner) {
                let about = format!("{name}: another mesh has a Peer with this name here");
                lost.insert(
                    (*mesh, (*name).clone()),
                    Note {
                        reason: Reason::PeerNameTaken,
                        about,
                    },
                );
            }
        }
        for (key, mut claims) in keys {
            claims.retain(|(mesh, name)| !lost.contains_key(&(*mesh, (*name).clone())));
            let holds = |(mesh, name): &&(usize, &PeerName)| {
                owns(*mesh, name).is_some_and(|entry| entry.key() == Some(key))
            };
            let winner = claims.iter().find(holds).or(claims.first()).copied();
            for (mesh, name) in claims.iter().filter(|claim| Some(**claim) != winner) {
                let about =
                    format!("{name}: another mesh has a Peer with the same public key here");
                lost.insert(
                    (*mesh, (*name).clone()),
                    Note {
                        reason: Reason::KeyTaken,
                        about,
                    },
                );
            }
        }
        lost
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
            // Somebody removed our labels: a Peer that can't be taken back is
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

    /// Holds changes that look like a mistake.
    fn guard(&self, target: &mut Target) {
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
    fn make_way_for_held(
        &self,
        target: &mut Target,
        mut retained: RetainedPeers,
        mut verdicts: BTreeMap<PeerName, PeerVerdict>,
    ) {
        for ((name, mesh), outcome) in &target.outcomes {
            if let (Act::Held(_) | Act::Leave, Some(entry)) =
                (&outcome.act, target.entries.get(name))
            {
                retained.set(name, Some(RetainedPeers::stay(entry, false, None)));
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
                        .map(|entry| RetainedPeers::stay(entry, false, None)),
                );
            }
            frozen.extend(more);
        }
    }

    /// Evaluates only what changed and what depends on it. Returns false if
    /// Peers turn out to conflict.
    fn run_where_changed(&self, target: &mut Target, dirt: Dirt) -> bool {
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
                .and_then(|(entry, verdict)| stay(entry, verdict));
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
        self.evaluate(target, (*mesh, *own), &verdicts);
        self.guard(target);
        !target.has_blockers()
    }

    fn evaluate(
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

impl Target {
    pub(super) fn new(entries: BTreeMap<PeerName, Entry>) -> Target {
        Target {
            entries,
            ..Target::default()
        }
    }

    /// Number of Peers of a mesh.
    pub(super) fn count_of(&self, mesh: usize) -> usize {
        let first = (mesh, Box::from(""));
        self.groups
            .range(first..)
            .take_while(|((at, _), _)| *at == mesh)
            .map(|(_, names)| names.len())
            .sum()
    }

    /// The Peers of no mesh.
    pub(super) fn strangers(&self) -> impl Iterator<Item = (&PeerName, &Entry)> {
        self.strangers
            .iter()
            .filter_map(|name| self.entries.get_key_value(name))
    }

    /// Reports whether Peers stay here that were expected to be deleted.
    fn has_blockers(&self) -> bool {
        self.outcomes
            .values()
            .any(|outcome| matches!(outcome.act, Act::Held(_) | Act::Leave))
    }

    /// Number of Peers of all the hub's meshes.
    fn count_of_hub(&self) -> usize {
        self.groups.values().map(BTreeSet::len).sum()
    }

    /// Reports whether a change of a source is held, or may have to be.
    pub(super) fn has_doubts(&self, (mesh, source): SourceAt) -> bool {
        let of_source = self
            .outcomes
            .iter()
            .filter(|((_, at), outcome)| *at == Some(mesh) && outcome.source == Some(source));
        of_source
            .map(|(_, outcome)| &outcome.act)
            .any(|act| match act {
                Act::Held(_) => true,
                Act::Delete(delete) => !delete.cause.is_good_reason(),
                Act::Update(update) => update.rekeys,
                Act::Nothing | Act::Keep(_) | Act::Create(_) | Act::Leave => false,
            })
    }

    /// Holds a change.
    fn hold(&mut self, name: &PeerName, mesh: Option<usize>, why: HeldFor) {
        let Some(outcome) = self.outcomes.get_mut(&(name.clone(), mesh)) else {
            return;
        };
        let change = match &outcome.act {
            Act::Create(peer) => HeldChange::Create(peer.clone()),
            Act::Update(update) => HeldChange::Update(update.clone()),
            Act::Delete(delete) => HeldChange::Delete(delete.clone()),
            Act::Nothing | Act::Keep(_) | Act::Held(_) | Act::Leave => return,
        };
        outcome.act = Act::Held(Held { change, why });
    }

    /// Drops all changes except deletes that don't depend on the cluster's
    /// nodes.
    pub(super) fn keep_certain_deletes(&mut self) {
        use DeleteCause::{MeshDeleted, Orphan, SourceLeft, TargetLeft};
        let certain = |act: &Act| match act {
            Act::Delete(delete)
            | Act::Held(Held {
                change: HeldChange::Delete(delete),
                ..
            }) => {
                matches!(delete.cause, MeshDeleted | Orphan | SourceLeft | TargetLeft)
            }
            _ => false,
        };
        self.outcomes.retain(|_, outcome| certain(&outcome.act));
    }

    fn forget(&mut self, name: &PeerName) {
        let of_name: Vec<_> = self
            .outcomes
            .range((name.clone(), None)..=(name.clone(), Some(usize::MAX)))
            .map(|(key, _)| key.clone())
            .collect();
        for key in of_name {
            self.outcomes.remove(&key);
        }
    }

    /// Stores an outcome unless there is nothing to do or report. A Peer that
    /// is as wanted becomes a pointer to the wanted Peer.
    fn note(&mut self, mesh: usize, name: &PeerName, outcome: PeerOutcome) {
        if let (Act::Keep(wanted), Some(entry)) = (&outcome.act, self.entries.get_mut(name)) {
            entry.content = Content::Same(wanted.clone());
        }
        let key = (name.clone(), Some(mesh));
        match outcome.act {
            Act::Keep(_) | Act::Nothing
                if outcome.notes.is_empty() && outcome.recheck_at.is_none() =>
            {
                self.outcomes.remove(&key)
            }
            _ => self.outcomes.insert(key, outcome),
        };
    }
}

fn stay(entry: &Entry, verdict: &PeerVerdict) -> Option<RetainedPeer> {
    match verdict {
        PeerVerdict::Stays { foreign, source } => {
            Some(RetainedPeers::stay(entry, *foreign, *source))
        }
        PeerVerdict::Wanted { .. } | PeerVerdict::Surplus { .. } => None,
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
