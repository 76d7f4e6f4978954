//! What is told of an object in Kubernetes events.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event as KubeEvent;
use kube::Api;
use kube::api::PostParams;
use mw_core::problem::Problem;
use tracing::debug;

use crate::cilium::engine::Engine;
use crate::cilium::record::{Kind, RecordId};
use crate::notice::{MOST_AT_ONCE, Notice, Said};

const CONTROLLER: &str = "networking.edge-portal.eu/meshwright";

impl Engine {
    /// Tells what was not told yet, and forgets what is no longer true.
    pub(super) fn announce(&mut self, id: &RecordId) {
        let problems: &[Problem] = match id.0 {
            Kind::Binding => self.plan.bindings.get(&id.1).map(|plan| plan.outcome.problems.as_slice()),
            Kind::Service => self.plan.services.get(&id.1).map(|plan| plan.outcome.problems.as_slice()),
            Kind::Intent => self.plan.intents.get(&id.1).map(|plan| plan.outcome.problems.as_slice()),
        }
        .unwrap_or_default();
        let Some(record) = self.records.get_mut(id) else { return };
        let mut said: BTreeSet<Said> = BTreeSet::new();
        let mut notices = Vec::new();
        for problem in problems {
            let key = (problem.reason.to_string(), problem.subject.clone(), problem.message.clone());
            if !record.said.contains(&key) && !said.contains(&key) {
                let hint = if problem.hint.is_empty() { String::new() } else { format!("; {}", problem.hint) };
                let message = format!("{}: {}{hint}", problem.subject, problem.message);
                notices.push(Notice { reason: problem.reason.as_str(), action: "Plan", warning: true, message });
            }
            said.insert(key);
        }
        record.said = said;
        self.emit(id, notices);
    }

    pub(super) fn emit(&mut self, id: &RecordId, mut notices: Vec<Notice>) {
        let Some(record) = self.records.get(id).filter(|_| !notices.is_empty()) else { return };
        if notices.len() > MOST_AT_ONCE {
            self.environment.metrics.events_dropped.inc_by(u64::try_from(notices.len() - MOST_AT_ONCE).unwrap_or_default());
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
        let events: Vec<KubeEvent> =
            notices.into_iter().map(|notice| notice.event(regarding.clone(), CONTROLLER, clock.micro_time())).collect();
        let realm = record.realm.clone();
        let Ok(client) = self.client_of(&realm, &id.1.workspace) else { return };
        let api: Api<KubeEvent> = Api::namespaced(client, &id.1.namespace);
        let (dropped, object) = (self.environment.metrics.events_dropped.clone(), id.1.clone());
        self.tasks.spawn(async move {
            for event in events {
                if let Err(error) = api.create(&PostParams::default(), &event).await {
                    debug!(%object, error = %crate::failure::Failure::of(&error), "an event could not be written");
                    dropped.inc();
                }
            }
        });
    }
}
