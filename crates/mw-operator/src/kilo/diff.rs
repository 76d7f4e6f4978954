//! Step 4: from the plan to single writes, in the order in which they may
//! happen on one cluster.

use std::collections::BTreeSet;

use mw_core::kilo::peer::WantedPeer;
use mw_core::kilo::plan::{Changes, Precondition, Update};
use mw_core::kilo::planner::Planner;
use mw_core::names::{ClusterId, MeshId, PeerName};

use crate::kilo::engine::Engine;
use crate::writer;

/// A key or prefix must be free before another Peer may have it: each phase
/// ends before the next begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Phase {
    #[default]
    Deletes,
    TakesAway,
    Rest,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Operation {
    pub(super) phase: Phase,
    pub(super) name: PeerName,
    pub(super) mesh: Option<MeshId>,
    pub(super) act: Act,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Act {
    Create(WantedPeer),
    Update(Box<Update>),
    Delete(Precondition),
}

impl writer::Operation for Operation {
    type Name = PeerName;
    type Lane = ();
    type Phase = Phase;

    fn name(&self) -> &PeerName {
        &self.name
    }

    fn lane(&self) {}

    fn phase(&self) -> Phase {
        self.phase
    }
}

impl Engine {
    /// Tells the writers of those clusters what is left to do there.
    pub(super) fn diff(&mut self, stale: &BTreeSet<ClusterId>) {
        let news = std::mem::take(&mut self.news);
        let Some(planner) = &self.planner else { return };
        let mut offers = Vec::new();
        for (cluster, member) in &self.members {
            let writer = &member.writer;
            // Our own writes change nothing that a busy writer does not know.
            let concerned = stale.contains(cluster) && (news || writer.is_idle());
            if concerned || writer.is_outdated() || (writer.asks() && writer.is_idle()) {
                let offer = self.has_surely_left(member).then(|| operations(planner, cluster, |mesh| self.may_write(mesh)));
                offers.push((cluster.clone(), offer));
            }
        }
        for (cluster, operations) in offers {
            if let Some(member) = self.members.get_mut(&cluster) {
                match operations {
                    Some(operations) => member.writer.offer(operations),
                    None => member.writer.postpone(),
                }
            }
        }
    }

    /// No Peer is written before the finalizer that will remove it is in place.
    fn may_write(&self, mesh: Option<&MeshId>) -> bool {
        let Some(mesh) = mesh else { return true };
        self.acts_on(mesh) && self.records.get(mesh).is_some_and(|record| record.has_finalizer())
    }
}

pub(super) fn operations(planner: &Planner, cluster: &ClusterId, may_write: impl Fn(Option<&MeshId>) -> bool) -> Vec<Operation> {
    let mut operations = Vec::new();
    for (mesh, changes) in planner.changes(cluster).into_iter().filter(|(mesh, _)| may_write(*mesh)) {
        let Changes { create, update, delete, held: _, keep: _ } = changes;
        let mut add = |phase, name, act| operations.push(Operation { phase, name, mesh: mesh.cloned(), act });
        for (name, delete) in delete {
            add(Phase::Deletes, name, Act::Delete(delete.on));
        }
        for (name, update) in update {
            let phase = if update.takes_away { Phase::TakesAway } else { Phase::Rest };
            add(phase, name, Act::Update(Box::new(update)));
        }
        for (name, peer) in create {
            add(Phase::Rest, name, Act::Create(peer));
        }
    }
    operations.sort_by(|one, other| (one.phase, &one.name).cmp(&(other.phase, &other.name)));
    operations
}
