//! One cluster as a target: its observed Peers, their planned changes, and what
//! must be evaluated again.

use std::collections::{BTreeMap, BTreeSet};

use crate::kilo::entry::{Content, Entry};
use crate::kilo::guard::DeleteCause;
use crate::kilo::outcome::{Act, Outcomes, PeerOutcome};
use crate::kilo::plan::{Held, HeldChange, HeldFor};
use crate::kilo::retained::RetainedPeers;
use crate::names::PeerName;

/// A source of a mesh, both by position.
pub(super) type SourceAt = (usize, usize);

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
    pub(super) retained: RetainedPeers,
    /// Peers of different sources can conflict: evaluate as a whole.
    pub(super) entangled: bool,
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
    pub(super) fn has_blockers(&self) -> bool {
        self.outcomes
            .values()
            .any(|outcome| matches!(outcome.act, Act::Held(_) | Act::Leave))
    }

    /// Number of Peers of all the hub's meshes.
    pub(super) fn count_of_hub(&self) -> usize {
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
    pub(super) fn hold(&mut self, name: &PeerName, mesh: Option<usize>, why: HeldFor) {
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

    pub(super) fn forget(&mut self, name: &PeerName) {
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
    pub(super) fn note(&mut self, mesh: usize, name: &PeerName, outcome: PeerOutcome) {
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
