//! An object with our finalizer, as last observed, and the writes to it.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::warn;

use crate::engine::{Engine, Event, Steps};
use crate::failure::Failure;
use crate::fleet::HUB;
use crate::fleet::follow::Version;
use crate::kube_event::Said;

/// Key of a record.
pub(crate) trait RecordId: Ord + Clone + Send + 'static {
    fn resource(&self) -> ApiResource;
    fn namespace(&self) -> &str;
    fn name(&self) -> &str;
    /// Returns the name of the object in messages.
    fn full_name(&self) -> String;
}

#[derive(Debug)]
pub(crate) struct Record<T> {
    pub(crate) meta: ObjectMeta,
    pub(crate) version: Version,
    /// Reason why the spec can't be parsed.
    pub(crate) misread: Option<String>,
    /// Events emitted so far.
    pub(crate) said: BTreeSet<Said>,
    /// A write to it is in flight.
    busy: bool,
    /// Earliest retry after a failed write.
    not_before: Option<Instant>,
    failures: u32,
    /// Part of the back end.
    pub(crate) state: T,
}

impl<T> Record<T> {
    pub(crate) fn new(object: &DynamicObject, misread: Option<String>, state: T) -> Record<T> {
        Record {
            meta: ObjectMeta {
                managed_fields: None,
                ..object.metadata.clone()
            },
            version: Version::of(object.metadata.resource_version.as_deref()),
            misread,
            said: BTreeSet::new(),
            busy: false,
            not_before: None,
            failures: 0,
            state,
        }
    }

    pub(crate) fn uid(&self) -> &str {
        self.meta.uid.as_deref().unwrap_or_default()
    }

    pub(crate) fn generation(&self) -> i64 {
        self.meta.generation.unwrap_or_default()
    }

    pub(crate) fn is_deleted(&self) -> bool {
        self.meta.deletion_timestamp.is_some()
    }

    pub(crate) fn finalizers(&self) -> impl Iterator<Item = &String> {
        self.meta.finalizers.iter().flatten()
    }

    /// Retries a failed write at once.
    pub(crate) fn forgive(&mut self) {
        (self.failures, self.not_before) = (0, None);
    }

    /// Reports whether no write is in flight and none has to wait after a failure.
    pub(crate) fn may_be_written(&self, now: Instant) -> bool {
        !self.busy && self.not_before.is_none_or(|at| now >= at)
    }

    fn fail(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(now + Duration::from_millis(100 << self.failures.min(8)));
    }

    /// Returns the patch with the UID and the version that we know as preconditions.
    fn conditional(&self, mut patch: Value) -> Value {
        if let Some(metadata) = patch
            .as_object_mut()
            .map(|fields| fields.entry("metadata").or_insert_with(|| json!({})))
        {
            metadata["uid"] = self.uid().into();
            metadata["resourceVersion"] = self
                .meta
                .resource_version
                .clone()
                .unwrap_or_default()
                .into();
        }
        patch
    }
}

impl<B: Steps> Engine<B> {
    /// Patches an object, conditional on the version we know. One write at a time.
    pub(crate) fn patch(
        &mut self,
        id: &B::RecordId,
        subresource: Option<&'static str>,
        patch: Value,
    ) {
        if !self.records.contains_key(id) {
            return;
        }
        let client = match B::client_of(self, id) {
            Ok(client) => client,
            Err(why) => {
                return warn!(
                    kind = id.resource().kind,
                    object = id.full_name(),
                    error = why,
                    "cannot write the object"
                );
            }
        };
        let Some(record) = self.records.get_mut(id) else {
            return;
        };
        record.busy = true;
        let patch = record.conditional(patch);
        let api: Api<DynamicObject> = Api::namespaced_with(client, id.namespace(), &id.resource());
        let (events, id) = (self.inbox.sender.clone(), id.clone());
        self.tasks.spawn(async move {
            let params = PatchParams {
                field_manager: B::MANAGER.map(str::to_owned),
                ..PatchParams::default()
            };
            let (name, patch) = (id.name(), Patch::Merge(&patch));
            let result = match subresource {
                Some(subresource) => {
                    api.patch_subresource(subresource, name, &params, &patch)
                        .await
                }
                None => api.patch(name, &params, &patch).await,
            };
            let result = result.map(Box::new).map_err(|error| Failure::of(&error));
            _ = events.send(Event::Patched { id, result }).await;
        });
    }

    pub(super) fn observe_patch(
        &mut self,
        id: &B::RecordId,
        result: Result<Box<DynamicObject>, Failure>,
    ) {
        let now = Instant::now();
        let Some(record) = self.records.get_mut(id) else {
            return;
        };
        record.busy = false;
        match result {
            Ok(object) => {
                record.forgive();
                let gone = object.metadata.deletion_timestamp.is_some()
                    && object.metadata.finalizers.iter().flatten().next().is_none();
                if gone {
                    B::drop_object(self, id, &object);
                } else {
                    let version = Version::of(object.metadata.resource_version.as_deref());
                    B::take_object(self, id, &object, version);
                }
            }
            Err(failure) => {
                let missed = matches!(failure, Failure::NotFound(_)) && B::miss_object(self, id);
                if !missed {
                    self.records
                        .entry(id.clone())
                        .and_modify(|record| record.fail(now));
                    B::warn_of_patch(id, &failure);
                    self.count_failure(HUB, &failure);
                }
            }
        }
        self.touch_status();
    }

    /// Returns when a failed write to an object is retried.
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
