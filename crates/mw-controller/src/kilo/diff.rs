//! Step 4: turns the plan into single writes, in a safe order per cluster.

use std::collections::BTreeSet;

use kube::Client;
use mw_core::kilo::peer::WantedPeer;
use mw_core::kilo::plan::{Changes, Delete, Update};
use mw_core::kilo::planner::Planner;
use mw_core::names::{ClusterId, MeshId, PeerName};

use crate::engine::{Offer, Offers};
use crate::fleet::Source;
use crate::kilo::engine::Engine;
use crate::kilo::member::Member;
use crate::kilo::plan::Plan;
use crate::kilo::record::Record;
use crate::writer;

/// Phase of a write. Each phase ends before the next begins, since a key or prefix
/// must be free before another Peer may use it.
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
    /// Returns the operations that are left to do, by cluster.
    pub(super) fn diff(&self, plan: &Plan) -> Offers<Operation> {
        let Some(planner) = &self.state.planner else {
            return Vec::new();
        };
        let mut offers = Vec::new();
        for (cluster, member) in &self.members {
            let writer = &member.writer;
            // Without news, only our own writes changed the state, which a busy queue knows.
            let concerned = plan.stale.contains(cluster) && (plan.news || writer.is_idle());
            if concerned || writer.is_outdated() || (writer.asks() && writer.is_idle()) {
                let offer = if self.has_surely_left(member) {
                    let may_write = |mesh: Option<&MeshId>| self.may_write(mesh, cluster);
                    Offer::Replace(operations(planner, cluster, may_write))
                } else {
                    Offer::Postpone
                };
                offers.push((cluster.clone(), offer));
            }
        }
        offers
    }

    /// Reports whether Peers of a mesh may be written: only if the ClusterMesh has
    /// our finalizer and its own credentials work.
    fn may_write(&self, mesh: Option<&MeshId>, cluster: &ClusterId) -> bool {
        let Some(mesh) = mesh else { return true };
        let Some(record) = self
            .records
            .get(mesh)
            .filter(|record| self.acts_on(mesh) && record.has_finalizer())
        else {
            return false;
        };
        let mut own = self.links_of(record, cluster).peekable();
        own.peek().is_none() || own.any(|(_, member)| member.is_usable())
    }

    /// Returns the links of a mesh that lead to a cluster.
    fn links_of<'a>(
        &'a self,
        record: &Record,
        cluster: &'a ClusterId,
    ) -> impl Iterator<Item = (ClusterId, &'a Member)> {
        let ids: BTreeSet<ClusterId> = record.entries().values().map(Source::id).collect();
        let leads = move |id: &ClusterId| {
            self.state.identities.representatives.get(id).unwrap_or(id) == cluster
        };
        ids.into_iter()
            .filter(leads)
            .filter_map(|id| Some((id.clone(), self.members.get(&id)?)))
    }

    /// Returns the client of a mesh that uses another link to a cluster than the one
    /// that is watched.
    pub(super) fn own_client(&self, cluster: &ClusterId, mesh: &MeshId) -> Option<Client> {
        let mut links = self.state.identities.representatives.iter();
        if !links.any(|(id, of)| id != of && of == cluster) {
            return None;
        }
        let own: Vec<(ClusterId, &Member)> = self
            .links_of(self.records.get(mesh)?, cluster)
            .filter(|(_, member)| member.is_usable())
            .collect();
        if own.iter().any(|(id, _)| id == cluster) {
            return None;
        }
        let (_, member) = own.first()?;
        Some(member.link.live.as_ref()?.client.clone())
    }
}

pub(super) fn operations(
    planner: &Planner,
    cluster: &ClusterId,
    may_write: impl Fn(Option<&MeshId>) -> bool,
) -> Vec<Operation> {
    let mut operations = Vec::new();
    for (mesh, changes) in planner
        .changes(cluster)
        .into_iter()
        .filter(|(mesh, _)| may_write(*mesh))
    {
        let Changes {
            create,
            update,
            delete,
            held: _,
            keep: _,
        } = changes;
        let mut add = |phase, name, act| {
            operations.push(Operation {
                phase,
                name,
                mesh: mesh.cloned(),
                act,
            })
        };
        for (name, delete) in delete {
            add(Phase::Deletes, name, Act::Delete(delete));
        }
        for (name, mut update) in update {
            // The second half is planned after the first is written.
            update.after = update.first.take().unwrap_or(update.after);
            let phase = if update.takes_away {
                Phase::TakesAway
            } else {
                Phase::Rest
            };
            add(phase, name, Act::Update(Box::new(update)));
        }
        for (name, peer) in create {
            add(Phase::Rest, name, Act::Create(peer));
        }
    }
    operations.sort_by(|one, other| (one.phase, &one.name).cmp(&(other.phase, &other.name)));
    operations
}
