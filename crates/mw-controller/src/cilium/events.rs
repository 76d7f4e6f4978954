//! Kubernetes Events about objects.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event as KubeEvent;
use kube::Api;
use kube::api::PostParams;
use mw_core::cilium::object::ObjectId;
use mw_core::names::ClusterId;
use mw_core::problem::Problem;
use prometheus_client::metrics::counter::Counter;
use tokio::time::sleep;
use tracing::{debug, warn};

use crate::backoff::Backoff;
use crate::cilium::engine::Engine;
use crate::cilium::record::{Kind, RecordId};
use crate::failure::Failure;
use crate::kube_event::{MOST_AT_ONCE, NewEvent, Said};
use crate::metrics::FailureLabels;

const CONTROLLER: &str = "networking.edge-portal.eu/meshwright";
/// First pause between attempts to write an Event that a quota rejects.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
const MOST_ATTEMPTS: usize = 10;

/// Writes an Event and retries while a quota rejects it: older Events expire and
/// make room.
async fn written(
    api: &Api<KubeEvent>,
    event: &KubeEvent,
    object: &ObjectId,
    refused: &Counter,
    backoff: &mut Backoff,
) -> Result<(), Failure> {
    for attempt in 1.. {
        let failure = match api.create(&PostParams::default(), event).await {
            Ok(_) => {
                backoff.reset();
                return Ok(());
            }
            Err(error) => Failure::of(&error),
        };
        if !matches!(failure, Failure::Quota(_)) {
            return Err(failure);
        }
        refused.inc();
        warn!(%object, error = %failure, "quota rejects an Event");
        if attempt >= MOST_ATTEMPTS {
            return Err(failure);
        }
        sleep(backoff.next(failure.retry_after())).await;
    }
    Ok(())
}

impl Engine {
    /// Emits Events for new problems and forgets resolved ones.
    pub(super) fn announce(&mut self, id: &RecordId) {
        let problems: &[Problem] = match id.0 {
            Kind::Binding => self
                .plan
                .bindings
                .get(&id.1)
                .map(|plan| plan.outcome.problems.as_slice()),
            Kind::Service => self
                .plan
                .services
                .get(&id.1)
                .map(|plan| plan.outcome.problems.as_slice()),
            Kind::Intent => self
                .plan
                .intents
                .get(&id.1)
                .map(|plan| plan.outcome.problems.as_slice()),
        }
        .unwrap_or_default();
        let Some(record) = self.records.get_mut(id) else {
            return;
        };
        let mut said: BTreeSet<Said> = BTreeSet::new();
        let mut notices = Vec::new();
        for problem in problems {
            let key = (
                problem.reason.to_string(),
                problem.subject.clone(),
                problem.message.clone(),
            );
            if !record.said.contains(&key) && !said.contains(&key) {
                let hint = if problem.hint.is_empty() {
                    String::new()
                } else {
                    format!("; {}", problem.hint)
                };
                let message = format!("{}{hint}", problem.told());
                notices.push(NewEvent {
                    reason: problem.reason.as_str(),
                    action: "Plan",
                    warning: true,
                    message,
                });
            }
            said.insert(key);
        }
        record.said = said;
        self.emit(id, notices);
    }

    pub(super) fn emit(&mut self, id: &RecordId, mut notices: Vec<NewEvent>) {
        let Some(record) = self.records.get(id).filter(|_| !notices.is_empty()) else {
            return;
        };
        if notices.len() > MOST_AT_ONCE {
            self.environment
                .metrics
                .events_dropped
                .inc_by(u64::try_from(notices.len() - MOST_AT_ONCE).unwrap_or_default());
            notices.truncate(MOST_AT_ONCE);
        }
        let resource = id.0.resource();
        let regarding = ObjectReference {
            api_version: Some(resource.api_version),
            kind: Some(resource.kind),
            name: Some(id.1.name.clone()),
            namespace: Some(id.1.namespace.clone()),
            uid: Some(record.uid().to_owned()),
            resource_version: record.meta.resource_version.clone(),
            ..ObjectReference::default()
        };
        let clock = &self.environment.clock;
        let events: Vec<KubeEvent> = notices
            .into_iter()
            .map(|notice| notice.event(regarding.clone(), CONTROLLER, clock.micro_time()))
            .collect();
        let object_source = record.object_source.clone();
        let Ok(client) = self.client_of(&object_source, &id.1.workspace) else {
            return;
        };
        let api: Api<KubeEvent> = Api::namespaced(client, &id.1.namespace);
        let (dropped, object) = (
            self.environment.metrics.events_dropped.clone(),
            id.1.clone(),
        );
        let cluster = self.environment.metrics.cluster(&ClusterId::from("kcp"));
        let labels = FailureLabels {
            cluster,
            category: Failure::Quota(String::new()).category(),
        };
        let failures = self
            .environment
            .metrics
            .failures
            .get_or_create_owned(&labels);
        let random = self.environment.random.fork();
        self.tasks.spawn(async move {
            let mut backoff = Backoff::new(random, FIRST_PAUSE, LONGEST_PAUSE);
            for event in events {
                if let Err(failure) = written(&api, &event, &object, &failures, &mut backoff).await
                {
                    debug!(%object, error = %failure, "failed to write an Event");
                    dropped.inc();
                }
            }
        });
    }
}
