//! Kubernetes events about a mesh.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event as KubeEvent;
use kube::Api;
use kube::api::PostParams;
use mw_api::kilo::clustermesh::ClusterMeshStatus;
use mw_core::condition::event;
use mw_core::kilo::plan::MeshPlan;
use mw_core::names::MeshId;
use tracing::debug;

use crate::kilo::engine::Engine;
use crate::kilo::record::Record;
use crate::kube_event::{MOST_AT_ONCE, NewEvent, Said};

const CONTROLLER: &str = "kilo-clustermesh.io/operator";
/// Maximum number of skip events per cluster and pass; the rest is summarized.
const MOST_SKIPS: usize = 20;

impl Engine {
    /// Emits events for new problems, and forgets those that are resolved.
    pub(super) fn announce(&mut self, id: &MeshId, plan: &MeshPlan) {
        let Some(record) = self.records.get_mut(id) else {
            return;
        };
        let mut notices = Vec::new();
        let mut said = BTreeSet::new();
        for problem in &plan.problems {
            let key = (
                problem.reason.to_string(),
                problem.subject.clone(),
                problem.message.clone(),
            );
            let hint = if problem.hint.is_empty() {
                String::new()
            } else {
                format!("; {}", problem.hint)
            };
            let message = format!("{}{hint}", problem.told());
            note(
                record,
                &mut said,
                key,
                || NewEvent {
                    reason: problem.reason.as_str(),
                    action: "Plan",
                    warning: true,
                    message,
                },
                &mut notices,
            );
        }
        skips(record, plan, &mut said, &mut notices);
        record.notices.said = said;
        self.emit(id, notices);
    }

    pub(super) fn emit(&mut self, id: &MeshId, mut notices: Vec<NewEvent>) {
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
        let events: Vec<KubeEvent> = notices
            .into_iter()
            .map(|notice| self.event(record, notice))
            .collect();
        let api: Api<KubeEvent> = Api::namespaced(self.environment.hub.clone(), &id.namespace);
        let (dropped, mesh) = (self.environment.metrics.events_dropped.clone(), id.clone());
        self.tasks.spawn(async move {
            for event in events {
                if let Err(error) = api.create(&PostParams::default(), &event).await {
                    debug!(%mesh, error = %crate::failure::Failure::of(&error), "failed to write an event");
                    dropped.inc();
                }
            }
        });
    }

    fn event(&self, record: &Record, notice: NewEvent) -> KubeEvent {
        let MeshId { namespace, name } = record.id().clone();
        let regarding = ObjectReference {
            api_version: Some(mw_api::kilo::peer::API_VERSION.to_owned()),
            kind: Some("ClusterMesh".to_owned()),
            name: Some(name),
            namespace: Some(namespace),
            uid: Some(record.uid().to_owned()),
            resource_version: record.meta.resource_version.clone(),
            ..ObjectReference::default()
        };
        notice.event(regarding, CONTROLLER, self.environment.clock.micro_time())
    }
}

fn note(
    record: &Record,
    said: &mut BTreeSet<Said>,
    key: Said,
    notice: impl FnOnce() -> NewEvent,
    notices: &mut Vec<NewEvent>,
) {
    if !record.notices.said.contains(&key) && !said.contains(&key) {
        notices.push(notice());
    }
    said.insert(key);
}

fn skips(record: &Record, plan: &MeshPlan, said: &mut BTreeSet<Said>, notices: &mut Vec<NewEvent>) {
    for (cluster, of) in &plan.clusters {
        let before = notices.len();
        for (node, skip) in &of.skipped {
            let subject = format!("{cluster}/{node}");
            let message = format!("{subject}: {}", skip.message);
            let reason = skip.reason.as_str();
            let key = skip_key(cluster.as_str(), node.as_str(), reason);
            note(
                record,
                said,
                key,
                || NewEvent {
                    reason,
                    action: "SkipNodePeering",
                    warning: true,
                    message,
                },
                notices,
            );
        }
        let more = notices.len().saturating_sub(before + MOST_SKIPS);
        if more > 0 {
            notices.truncate(before + MOST_SKIPS);
            let message = format!(
                "{cluster}: {more} more nodes are skipped; run meshwright plan to list them all"
            );
            notices.push(NewEvent {
                reason: event::NODES_SKIPPED,
                action: "SkipNodePeering",
                warning: true,
                message,
            });
        }
    }
}

fn skip_key(cluster: &str, node: &str, reason: &str) -> Said {
    (
        reason.to_owned(),
        format!("{cluster}/{node}"),
        String::new(),
    )
}

/// Returns the events that an earlier process certainly emitted.
pub(super) fn said_before(status: &ClusterMeshStatus) -> BTreeSet<Said> {
    let clusters = status.clusters.iter().flatten();
    let skipped = clusters.flat_map(|cluster| {
        cluster
            .skipped
            .iter()
            .flatten()
            .map(move |skip| (cluster, skip))
    });
    skipped
        .map(|(cluster, skip)| skip_key(&cluster.name, &skip.node, &skip.reason))
        .collect()
}
