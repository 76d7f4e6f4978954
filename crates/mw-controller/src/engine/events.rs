//! Kubernetes Events about objects.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event as KubeEvent;
use kube::Api;
use kube::api::PostParams;
use mw_core::names::ClusterId;
use mw_core::problem::Problem;
use prometheus_client::metrics::counter::Counter;
use tokio::time::sleep;
use tracing::{debug, warn};

use crate::backoff::Backoff;
use crate::engine::{Engine, RecordId, Steps};
use crate::failure::Failure;
use crate::kube_event::{MOST_AT_ONCE, NewEvent, Said};
use crate::metrics::FailureLabels;

const MOST_ATTEMPTS: usize = 10;

/// Collects the Events that were not emitted before.
pub(crate) struct Notices<'a> {
    before: &'a BTreeSet<Said>,
    pub(crate) said: BTreeSet<Said>,
    pub(crate) new: Vec<NewEvent>,
}

impl<'a> Notices<'a> {
    pub(crate) fn since(before: &'a BTreeSet<Said>) -> Notices<'a> {
        Notices {
            before,
            said: BTreeSet::new(),
            new: Vec::new(),
        }
    }

    pub(crate) fn note(&mut self, key: Said, notice: impl FnOnce() -> NewEvent) {
        if !self.before.contains(&key) && !self.said.contains(&key) {
            self.new.push(notice());
        }
        self.said.insert(key);
    }

    pub(crate) fn problems(&mut self, problems: &[Problem]) {
        for problem in problems {
            let key = (
                problem.reason.to_string(),
                problem.subject.clone(),
                problem.message.clone(),
            );
            self.note(key, || NewEvent {
                reason: problem.reason.as_str(),
                action: "Plan",
                warning: true,
                message: message(problem),
            });
        }
    }
}

fn message(problem: &Problem) -> String {
    if problem.hint.is_empty() {
        problem.told()
    } else {
        format!("{}; {}", problem.told(), problem.hint)
    }
}

impl<B: Steps> Engine<B> {
    /// Records the Events about an object, and writes the new ones.
    pub(crate) fn announce(&mut self, id: &B::RecordId, said: BTreeSet<Said>, new: Vec<NewEvent>) {
        if let Some(record) = self.records.get_mut(id) {
            record.said = said;
            self.emit(id, new);
        }
    }

    pub(crate) fn emit(&mut self, id: &B::RecordId, mut notices: Vec<NewEvent>) {
        let Some(record) = self.records.get(id).filter(|_| !notices.is_empty()) else {
            return;
        };
        let metrics = &self.environment.metrics;
        if notices.len() > MOST_AT_ONCE {
            metrics
                .events_dropped
                .inc_by(u64::try_from(notices.len() - MOST_AT_ONCE).unwrap_or_default());
            notices.truncate(MOST_AT_ONCE);
        }
        let resource = id.resource();
        let regarding = ObjectReference {
            api_version: Some(resource.api_version),
            kind: Some(resource.kind),
            name: Some(id.name().to_owned()),
            namespace: Some(id.namespace().to_owned()),
            uid: Some(record.uid().to_owned()),
            resource_version: record.meta.resource_version.clone(),
            ..ObjectReference::default()
        };
        let clock = &self.environment.clock;
        let events: Vec<KubeEvent> = notices
            .into_iter()
            .map(|notice| notice.event(regarding.clone(), B::CONTROLLER, clock.micro_time()))
            .collect();
        let Ok(client) = B::client_of(self, id) else {
            return;
        };
        let api = Api::namespaced(client, id.namespace());
        let writer = EventWriter {
            api,
            object: id.full_name(),
            retry: self.event_retry(),
            dropped: self.environment.metrics.events_dropped.clone(),
        };
        self.tasks.spawn(writer.write(events));
    }

    fn event_retry(&mut self) -> Option<Retry> {
        let backoff = B::event_backoff(self)?;
        let metrics = &self.environment.metrics;
        let labels = FailureLabels {
            cluster: metrics.cluster(&ClusterId::from("kcp")),
            category: Failure::Quota(String::new()).category(),
        };
        let refused = metrics.failures.get_or_create_owned(&labels);
        Some(Retry { backoff, refused })
    }
}

/// Retries of Events that a quota rejects.
struct Retry {
    backoff: Backoff,
    refused: Counter,
}

/// Writes Events in a task.
struct EventWriter {
    api: Api<KubeEvent>,
    object: String,
    retry: Option<Retry>,
    dropped: Counter,
}

impl EventWriter {
    async fn write(mut self, events: Vec<KubeEvent>) {
        for event in events {
            if let Err(failure) = self.write_one(&event).await {
                debug!(object = self.object, error = %failure, "failed to write an Event");
                self.dropped.inc();
            }
        }
    }

    /// Writes an Event and retries while a quota rejects it: older Events expire and
    /// make room.
    async fn write_one(&mut self, event: &KubeEvent) -> Result<(), Failure> {
        for attempt in 1.. {
            let written = self.api.create(&PostParams::default(), event).await;
            let Err(error) = written else {
                if let Some(retry) = &mut self.retry {
                    retry.backoff.reset();
                }
                return Ok(());
            };
            let failure = Failure::of(&error);
            let is_quota = matches!(failure, Failure::Quota(_));
            let Some(retry) = self.retry.as_mut().filter(|_| is_quota) else {
                return Err(failure);
            };
            retry.refused.inc();
            warn!(object = self.object, error = %failure, "quota rejects an Event");
            if attempt >= MOST_ATTEMPTS {
                return Err(failure);
            }
            sleep(retry.backoff.next(failure.retry_after())).await;
        }
        Ok(())
    }
}
