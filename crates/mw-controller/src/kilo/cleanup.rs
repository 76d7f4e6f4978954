//! Step 6: finalizers, added before the first Peer is written, removed after the last one
//! is deleted. Works without a valid spec; the cluster entries are enough.

use std::collections::BTreeSet;

use mw_api::kilo::clustermesh::FINALIZER;
use mw_core::condition::event;
use mw_core::kilo::spec::{DEFAULT_CLEANUP_TIMEOUT_SECONDS, duration_seconds};
use mw_core::names::{ClusterId, MeshId};
use mw_core::text::listed;
use mw_core::time::Timestamp;
use serde_json::json;
use tracing::info;

use crate::fleet::Credentials;
use crate::kilo::engine::Engine;
use crate::kilo::member::Member;
use crate::kilo::record::Record;
use crate::kube_event::NewEvent;

/// Progress of the cleanup of a deleted mesh.
enum Cleanup {
    /// Clusters that have Peers left, or may have.
    Waits(Vec<String>),
    Done {
        gone: BTreeSet<String>,
        left_behind: Vec<String>,
    },
}

impl Engine {
    pub(super) fn clean_up(&mut self) {
        let now = self.turned_at;
        let ids: Vec<MeshId> = self
            .records
            .keys()
            .filter(|id| self.acts_on(id))
            .cloned()
            .collect();
        for id in ids {
            let Some(record) = self.records.get(&id) else {
                continue;
            };
            if !record.may_be_written(now) || self.state.absences.is_missing(&id) {
                continue;
            }
            match (record.deleted_at(), record.has_finalizer()) {
                (None, false) => self.set_finalizer(&id, true),
                (Some(since), true) => self.finish(&id, since),
                (None, true) | (Some(_), false) => {}
            }
        }
    }

    fn finish(&mut self, id: &MeshId, since: Timestamp) {
        self.look_for_secrets(id);
        let Some(record) = self.records.get(id) else {
            return;
        };
        match self.cleanup_of(record, since) {
            Cleanup::Waits(_) => {}
            Cleanup::Done { gone, left_behind } => {
                self.state.absences.finished(id, record.uid());
                let notice = |reason: &'static str, message: String| NewEvent {
                    reason,
                    action: "Cleanup",
                    warning: true,
                    message,
                };
                let mut notices = Vec::new();
                if !gone.is_empty() {
                    let names: Vec<&String> = gone.iter().collect();
                    let message = format!(
                        "no Peers were deleted in {}: clusters without a kubeconfig Secret count as gone",
                        listed(&names, 20)
                    );
                    notices.push(notice(event::CLEANUP_SKIPPED, message));
                }
                if !left_behind.is_empty() {
                    let message = format!(
                        "gave up after cleanupTimeout: Peers may be left in {}; they are deleted when a ClusterMesh lists that cluster again",
                        listed(&left_behind, 20)
                    );
                    notices.push(notice(event::CLEANUP_INCOMPLETE, message));
                }
                self.emit(id, notices);
                info!(mesh = %id, left_behind = left_behind.len(), "cleanup finished");
                self.set_finalizer(id, false);
            }
        }
    }

    /// Relists Secrets once per deleted mesh: a deleted Secret may exist again,
    /// and separate watches have no common order.
    fn look_for_secrets(&mut self, id: &MeshId) {
        let Some(record) = self
            .records
            .get_mut(id)
            .filter(|record| record.state.secrets_then.is_none())
        else {
            return;
        };
        record.state.secrets_then = Some(
            self.members
                .iter()
                .map(|(id, member)| (id.clone(), member.state.secret_lists))
                .collect(),
        );
        self.hub_relist.ring();
    }

    /// Reports whether a cluster certainly has no Secret.
    fn is_gone(&self, record: &Record, cluster: &ClusterId, member: &Member) -> bool {
        let then = record
            .state
            .secrets_then
            .as_ref()
            .map(|then| then.get(cluster).copied().unwrap_or_default());
        matches!(member.link.credentials, Credentials::Missing(_))
            && then.is_some_and(|then| member.state.secret_lists > then)
    }

    fn cleanup_of(&self, record: &Record, since: Timestamp) -> Cleanup {
        let (mut gone, mut left) = (BTreeSet::new(), Vec::new());
        for (source, name) in record.reaches() {
            let id = source.id();
            let Some(member) = self.members.get(&id) else {
                left.push(format!("{} (not observed yet)", name));
                continue;
            };
            let stands_for = self
                .state
                .identities
                .representatives
                .get(&id)
                .unwrap_or(&id);
            match self
                .state
                .planner
                .as_ref()
                .and_then(|planner| planner.peers_of(record.id(), stands_for))
            {
                Some(0) if self.is_settled(stands_for) => {}
                Some(count) => left.push(format!("{} ({count} Peers)", name)),
                None if self.is_gone(record, &id, member) => _ = gone.insert(name.clone()),
                None => {
                    let why = member
                        .link
                        .trouble()
                        .unwrap_or_else(|| "not observed yet".to_owned());
                    left.push(format!("{} ({why})", name));
                }
            }
        }
        if left.is_empty() || self.now >= deadline(record, since) {
            let left_behind = left;
            Cleanup::Done { gone, left_behind }
        } else {
            Cleanup::Waits(left)
        }
    }

    /// Reports whether the Peers of a cluster are fully known: no write or list is pending.
    fn is_settled(&self, cluster: &ClusterId) -> bool {
        let certain = self
            .members
            .get(cluster)
            .is_none_or(|member| member.writer.is_certain());
        certain && !self.state.listings.iter().any(|(of, _)| of == cluster)
    }

    /// Returns what the deletion of a mesh waits for.
    pub(super) fn cleanup_waits(&self, record: &Record) -> Option<String> {
        match self.cleanup_of(record, record.deleted_at()?) {
            Cleanup::Waits(left) => Some(format!("deleting Peers in {}", listed(&left, 5))),
            Cleanup::Done { .. } => None,
        }
    }

    pub(super) fn cleanup_due(&self) -> Option<Timestamp> {
        let acting = self
            .records
            .values()
            .filter(|record| self.acts_on(record.id()) && record.has_finalizer());
        acting
            .filter_map(|record| Some(deadline(record, record.deleted_at()?)))
            .filter(|at| *at > self.now)
            .min()
    }

    fn set_finalizer(&mut self, id: &MeshId, present: bool) {
        let Some(record) = self.records.get(id) else {
            return;
        };
        let mut finalizers: Vec<String> = record.meta.finalizers.clone().unwrap_or_default();
        finalizers.retain(|name| name != FINALIZER);
        if present {
            finalizers.push(FINALIZER.to_owned());
        }
        self.patch(
            id,
            None,
            json!({ "metadata": { "finalizers": finalizers } }),
        );
    }
}

fn deadline(record: &Record, since: Timestamp) -> Timestamp {
    let timeout = record
        .state
        .mesh
        .spec
        .cleanup_timeout
        .as_deref()
        .and_then(duration_seconds);
    since.plus(timeout.unwrap_or(DEFAULT_CLEANUP_TIMEOUT_SECONDS))
}
