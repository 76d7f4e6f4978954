//! Step 4: from the plan to single writes, in the order in which they may
//! happen on one cluster.

use std::collections::{BTreeMap, BTreeSet};

use kube::Client;
use mw_core::kilo::peer::WantedPeer;
use mw_core::kilo::plan::{Changes, Delete, Update};
use mw_core::kilo::planner::Planner;
use mw_core::names::{ClusterId, MeshId, PeerName};

use crate::fleet::Source;
use crate::kilo::engine::Engine;
use crate::kilo::observe::Member;
use crate::kilo::record::Record;
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
    Delete(Delete),
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
                let offer = self.has_surely_left(member).then(|| operations(planner, cluster, |mesh| self.may_write(mesh, cluster)));
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

    /// No Peer is written before the finalizer that will remove it is in place,
    /// and none by a mesh whose own credentials do not work.
    fn may_write(&self, mesh: Option<&MeshId>, cluster: &ClusterId) -> bool {
        let Some(mesh) = mesh else { return true };
        let Some(record) = self.records.get(mesh).filter(|record| self.acts_on(mesh) && record.has_finalizer()) else { return false };
        let mut own = self.links_of(record, cluster).peekable();
        own.peek().is_none() || own.any(|(_, member)| member.is_usable())
    }

    /// The links of a mesh that lead to a cluster.
    fn links_of<'a>(&'a self, record: &Record, cluster: &'a ClusterId) -> impl Iterator<Item = (ClusterId, &'a Member)> {
        let ids: BTreeSet<ClusterId> = record.entries().values().map(Source::id).collect();
        let leads = move |id: &ClusterId| self.representatives.get(id).unwrap_or(id) == cluster;
        ids.into_iter().filter(leads).filter_map(|id| Some((id.clone(), self.members.get(&id)?)))
    }

    /// The clients of meshes that reach a cluster through another link than
    /// the one that it is followed through.
    pub(super) fn own_clients(&self) -> BTreeMap<(ClusterId, MeshId), Client> {
        let mut clients = BTreeMap::new();
        let shared: BTreeSet<&ClusterId> = self.representatives.iter().filter(|(id, of)| id != of).map(|(_, of)| of).collect();
        for cluster in shared {
            for record in self.records.values() {
                let own: Vec<(ClusterId, &Member)> = self.links_of(record, cluster).filter(|(_, member)| member.is_usable()).collect();
                if own.iter().any(|(id, _)| id == cluster) {
                    continue;
                }
                if let Some(live) = own.first().and_then(|(_, member)| member.link.live.as_ref()) {
                    clients.insert((cluster.clone(), record.id().clone()), live.client.clone());
                }
            }
        }
        clients
    }
}

pub(super) fn operations(planner: &Planner, cluster: &ClusterId, may_write: impl Fn(Option<&MeshId>) -> bool) -> Vec<Operation> {
    let mut operations = Vec::new();
    for (mesh, changes) in planner.changes(cluster).into_iter().filter(|(mesh, _)| may_write(*mesh)) {
        let Changes { create, update, delete, held: _, keep: _ } = changes;
        let mut add = |phase, name, act| operations.push(Operation { phase, name, mesh: mesh.cloned(), act });
        for (name, delete) in delete {
            add(Phase::Deletes, name, Act::Delete(delete));
        }
        for (name, mut update) in update {
            // What is left of it is planned when that is written.
            update.after = update.first.take().unwrap_or(update.after);
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
