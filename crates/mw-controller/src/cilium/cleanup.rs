//! Step 6: finalizers and the annotation of touched clusters: set before the first
//! write, removed when everything the object wrote is deleted.

use mw_core::cilium::plan::{ObjectOutcome, Plan, Teardown};
use mw_core::condition::event;
use mw_core::text::listed;
use tracing::info;

use crate::cilium::diff::touches;
use crate::cilium::engine::Engine;
use crate::cilium::record::{Kind, Record, RecordId};
use crate::kube_event::NewEvent;

impl Engine {
    pub(super) fn clean_up(&mut self, plan: &Plan) {
        let now = self.turned_at;
        let ready: Vec<RecordId> = self
            .records
            .iter()
            .filter(|(_, of)| of.state.astray.is_none() && of.may_be_written(now))
            .map(|(id, _)| id.clone())
            .collect();
        for id in ready {
            let Some(record) = self.records.get(&id) else {
                continue;
            };
            if record.is_deleted() {
                self.release(&id, plan);
            } else if let Some(patch) =
                touches(plan, id.0, &id.1).and_then(|touches| record.marks(touches))
            {
                self.patch(&id, None, patch);
            }
        }
    }

    /// Removes the finalizer of a deleted object once its cleanup is complete.
    fn release(&mut self, id: &RecordId, plan: &Plan) {
        let Some(record) = self.records.get(id).filter(|record| record.is_held()) else {
            return;
        };
        let Some(teardown) =
            teardown(plan, id).filter(|teardown| teardown.is_done() && self.is_certain(record))
        else {
            return;
        };
        let left: Vec<String> = teardown
            .left_behind
            .iter()
            .map(|(name, why)| format!("{name} ({why})"))
            .collect();
        let patch = record.release();
        info!(kind = id.0.as_str(), object = %id.1, left_behind = left.len(), "object cleaned up");
        if !left.is_empty() {
            let message = format!(
                "cleanup timed out: objects may be left behind in {}",
                listed(&left, 20)
            );
            self.emit(
                id,
                vec![NewEvent {
                    reason: event::CLEANUP_INCOMPLETE,
                    action: "Cleanup",
                    warning: true,
                    message,
                }],
            );
        }
        self.patch(id, None, patch);
    }

    /// Reports whether the clusters it touched have no write in flight whose
    /// result could still leave something behind.
    fn is_certain(&self, record: &Record) -> bool {
        let clusters = self
            .resolved(record.state.kind, record.id())
            .into_iter()
            .flat_map(|common| common.touched_clusters());
        let members = clusters.filter_map(|cluster| {
            self.members
                .get(self.state.identities.representatives.get(cluster)?)
        });
        members
            .into_iter()
            .all(|member| member.writer.is_certain() || member.link.trouble().is_some())
    }
}

fn teardown<'a>(plan: &'a Plan, (kind, id): &RecordId) -> Option<&'a Teardown> {
    fn of<P>(outcome: &ObjectOutcome<P>) -> Option<&Teardown> {
        outcome.teardown.as_ref()
    }
    match kind {
        Kind::Binding => of(&plan.bindings.get(id)?.outcome),
        Kind::Service => of(&plan.services.get(id)?.outcome),
        Kind::Intent => of(&plan.intents.get(id)?.outcome),
    }
}
