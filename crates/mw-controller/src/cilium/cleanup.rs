//! Finalizers and the annotation of touched clusters: set before the first
//! write, removed when everything the object wrote is deleted.

use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::core::DynamicObject;
use mw_core::cilium::facts::MANAGER;
use mw_core::cilium::plan::{ObjectOutcome, Teardown};
use mw_core::condition::event;
use mw_core::text::listed;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::cilium::diff::touches;
use crate::cilium::engine::{Engine, Event};
use crate::cilium::record::{Kind, Record, RecordId};
use crate::failure::Failure;
use crate::kube_event::NewEvent;

impl Engine {
    pub(super) fn clean_up(&mut self) {
        let now = self.turned_at;
        let ready: Vec<RecordId> = self
            .records
            .iter()
            .filter(|(_, of)| of.may_be_written(now))
            .map(|(id, _)| id.clone())
            .collect();
        for id in ready {
            let Some(record) = self.records.get(&id) else {
                continue;
            };
            if record.is_deleted() {
                self.release(&id);
            } else if let Some(patch) =
                touches(&self.plan, id.0, &id.1).and_then(|touches| record.marks(touches))
            {
                self.patch(&id, None, patch);
            }
        }
    }

    /// Removes the finalizer of a deleted object once its cleanup is complete.
    fn release(&mut self, id: &RecordId) {
        let Some(record) = self.records.get(id).filter(|record| record.is_held()) else {
            return;
        };
        let Some(teardown) = self
            .teardown(id)
            .filter(|teardown| teardown.is_done() && self.is_certain(record))
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

    pub(super) fn teardown(&self, (kind, id): &RecordId) -> Option<&Teardown> {
        fn of<P>(outcome: &ObjectOutcome<P>) -> Option<&Teardown> {
            outcome.teardown.as_ref()
        }
        match kind {
            Kind::Binding => of(&self.plan.bindings.get(id)?.outcome),
            Kind::Service => of(&self.plan.services.get(id)?.outcome),
            Kind::Intent => of(&self.plan.intents.get(id)?.outcome),
        }
    }

    /// Reports whether the clusters it touched have no write in flight whose
    /// result could still leave something behind.
    fn is_certain(&self, record: &Record) -> bool {
        let clusters = self
            .resolved(record.kind, record.id())
            .into_iter()
            .flat_map(|common| common.touched_clusters());
        let members =
            clusters.filter_map(|cluster| self.members.get(self.representatives.get(cluster)?));
        members
            .into_iter()
            .all(|member| member.writer.is_certain() || member.link.trouble().is_some())
    }

    /// Patches an object: one write at a time, conditional on the known version.
    pub(super) fn patch(
        &mut self,
        id: &RecordId,
        subresource: Option<&'static str>,
        mut patch: Value,
    ) {
        let Some(object_source) = self
            .records
            .get(id)
            .map(|record| record.object_source.clone())
        else {
            return;
        };
        let client = match self.client_of(&object_source, &id.1.workspace) {
            Ok(client) => client,
            Err(why) => {
                return warn!(kind = id.0.as_str(), object = %id.1, error = why, "cannot write the object");
            }
        };
        let Some(record) = self.records.get_mut(id) else {
            return;
        };
        record.busy = true;
        if let Some(metadata) = patch
            .as_object_mut()
            .map(|fields| fields.entry("metadata").or_insert_with(|| json!({})))
        {
            metadata["uid"] = record.uid().into();
            metadata["resourceVersion"] = record
                .meta
                .resource_version
                .clone()
                .unwrap_or_default()
                .into();
        }
        let api: Api<DynamicObject> =
            Api::namespaced_with(client, &id.1.namespace, &id.0.resource());
        let (events, id) = (self.sender.clone(), id.clone());
        self.tasks.spawn(async move {
            let params = PatchParams {
                field_manager: Some(MANAGER.to_owned()),
                ..PatchParams::default()
            };
            let patch = Patch::Merge(&patch);
            let result = match subresource {
                Some(subresource) => {
                    api.patch_subresource(subresource, &id.1.name, &params, &patch)
                        .await
                }
                None => api.patch(&id.1.name, &params, &patch).await,
            };
            let result = result.map(Box::new).map_err(|error| Failure::of(&error));
            _ = events.send(Event::Patched { id, result }).await;
        });
    }

    /// Earliest retry of a failed write to an object.
    pub(super) fn records_due(&self) -> Option<Instant> {
        let now = self.turned_at;
        self.records
            .values()
            .filter(|record| !record.busy)
            .filter_map(|record| record.not_before)
            .filter(|at| *at > now)
            .min()
    }
}
