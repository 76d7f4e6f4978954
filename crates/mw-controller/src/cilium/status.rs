//! Step 8: writes the status of each object, and only if it differs.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff;
use mw_api::cilium::binding::{ClusterMeshBindingStatus, MeshStatus};
use mw_api::cilium::intent::{ConnectivityIntentStatus, ProbeStatus};
use mw_api::cilium::service::{EndpointSummary, GlobalServiceStatus};
use mw_core::cilium::plan::{
    BindingPhase, BindingPlan, IntentPlan, Plan, Row, ServicePlan, Status,
};
use mw_core::condition::cilium::kind;
use mw_core::problem::Reason;
use mw_core::text::printable;
use mw_core::time::Timestamp;
use serde_json::Value;
use tracing::{debug, info};

use crate::cilium::diff::Place;
use crate::cilium::engine::Engine;
use crate::cilium::record::{Kind, Record, RecordId};
use crate::conditions::{Wanted, difference, is_too_large, merged};
use crate::engine::WHILE_WRITING;
use crate::failure::Failure;
use crate::writer::Trouble;

const LONGEST_MESSAGE: usize = 500;

/// Inputs of a status other than the plan.
struct Facts<'a> {
    record: &'a Record,
    /// A lasting write failure that concerns this object.
    failed: Option<String>,
    now: Time,
}

impl Engine {
    pub(super) fn report(&mut self, plan: &Plan) {
        let now = self.turned_at;
        self.reports.due = None;
        let Some(touched) = self.reports.touched else {
            return;
        };
        let idle = self.members.values().all(|member| member.writer.is_idle());
        let earliest = if idle {
            self.reports.earliest().unwrap_or(now)
        } else {
            touched + WHILE_WRITING
        };
        if now < earliest {
            self.reports.due = Some(earliest);
            return;
        }
        (self.reports.touched, self.reports.reported_at) = (None, Some(now));
        let ids: Vec<RecordId> = self.records.keys().cloned().collect();
        ids.iter().for_each(|id| self.report_object(id, plan));
        self.measure(plan);
        // Retries objects that could not be written yet.
        self.reports.due = self.reports.retry_at(now);
    }

    fn report_object(&mut self, id: &RecordId, plan: &Plan) {
        let Some(record) = self
            .records
            .get(id)
            .filter(|record| record.state.astray.is_none())
        else {
            return;
        };
        let facts = Facts {
            record,
            failed: self.failed(id),
            now: self.environment.clock.time(),
        };
        let status = match id.0 {
            Kind::Binding => plan
                .bindings
                .get(&id.1)
                .filter(|plan| !self.is_premature(record, plan))
                .map(|plan| of_binding(&facts, plan)),
            Kind::Service => plan
                .services
                .get(&id.1)
                .map(|plan| of_service(&facts, plan)),
            Kind::Intent => plan.intents.get(&id.1).map(|plan| of_intent(&facts, plan)),
        };
        let Some(status) = status else { return };
        self.announce_problems(id, plan);
        let Some(record) = self.records.get(id) else {
            return;
        };
        if self.is_same(&record.state.status, &status) {
            return;
        }
        if !record.may_be_written(self.turned_at) {
            self.touch_status();
            return;
        }
        let phase = |status: &Value| {
            status
                .get("phase")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        if phase(&record.state.status) != phase(&status) {
            info!(kind = id.0.as_str(), object = %id.1, from = phase(&record.state.status), to = phase(&status), "phase changed");
        }
        debug!(kind = id.0.as_str(), object = %id.1, "writing the status");
        let patch = difference(&record.state.status, status);
        self.patch(id, Some("status"), patch);
    }

    /// Reports whether a status would get worse only because a dial or list is pending.
    fn is_premature(&self, record: &Record, plan: &BindingPlan) -> bool {
        let before = record.state.status.get("phase").and_then(Value::as_str);
        let worse = match before {
            None => return self.is_awaiting(record),
            Some("Connected") => plan.outcome.phase != BindingPhase::Connected,
            Some("Degraded") => !matches!(
                plan.outcome.phase,
                BindingPhase::Connected | BindingPhase::Degraded
            ),
            Some(_) => false,
        };
        worse && (plan.awaits_dials || self.is_awaiting(record))
    }

    /// Returns a write that keeps failing on one of the object's clusters.
    fn failed(&self, id: &RecordId) -> Option<String> {
        let common = self.resolved(id.0, &id.1)?;
        common.refs.keys().find_map(|name| {
            let member = self.members.get(
                self.state
                    .identities
                    .representatives
                    .get(common.cluster(name)?)?,
            )?;
            let concerns = |place: &Place| match id.0 {
                Kind::Binding => !matches!(place, Place::Service(_) | Place::Policy(_)),
                Kind::Service => matches!(place, Place::Service(_)),
                Kind::Intent => matches!(place, Place::Policy(_)),
            };
            let mut lasting = member
                .writer
                .troubles
                .iter()
                .filter(|(place, trouble)| concerns(place) && trouble.lasts());
            let (place, Trouble { verb, failure, .. }) = lasting.next()?;
            Some(match place {
                // It may be for another tenant's object: do not show its name.
                Place::Service(_) | Place::Policy(_) => {
                    format!("cluster {name}: writing failed: {failure}")
                }
                place => format!(
                    "cluster {name}: failed to {verb} {place}: {failure}{}",
                    remedy(place, failure)
                ),
            })
        })
    }

    /// Reports whether only timestamps differ and the last update is recent.
    fn is_same(&self, before: &Value, after: &Value) -> bool {
        let last = before
            .get("lastSyncTime")
            .and_then(|time| serde_json::from_value::<Time>(time.clone()).ok());
        let age = last.map(|last| self.state.world.now.0.saturating_sub(last.0.as_second()));
        let check = i64::try_from(self.settings.check.as_secs()).unwrap_or(i64::MAX);
        timeless(before) == timeless(after) && age.is_some_and(|age| (0..check).contains(&age))
    }
}

/// Fix for a write that the target's role does not allow.
fn remedy(place: &Place, failure: &Failure) -> &'static str {
    match (place, failure) {
        (Place::Secret(_), Failure::Forbidden(_)) => {
            "; apply config/cilium-connection-secrets.yaml and config/rbac/cilium-target.yaml in this cluster"
        }
        (Place::Authority, Failure::Forbidden(_)) => {
            "; apply config/rbac/cilium-target-ca.yaml in this cluster, or start the provider with --sync-ca=off"
        }
        _ => "",
    }
}

fn timeless(status: &Value) -> Value {
    let mut status = status.clone();
    if let Some(fields) = status.as_object_mut() {
        fields.remove("lastSyncTime");
        for row in fields
            .get_mut("meshStatus")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            if let Some(row) = row.as_object_mut() {
                row.remove("lastVerified");
            }
        }
    }
    status
}

fn time(at: Timestamp) -> Option<Time> {
    jiff::Timestamp::from_second(at.0).ok().map(Time)
}

fn conditions(facts: &Facts<'_>, planned: &[mw_core::cilium::plan::Condition]) -> Vec<Condition> {
    let before = facts
        .record
        .state
        .status
        .get("conditions")
        .cloned()
        .unwrap_or_default();
    let before: Vec<Condition> = serde_json::from_value(before).unwrap_or_default();
    let wanted = planned.iter().map(|condition| {
        let mut wanted = Wanted {
            kind: condition.kind,
            status: condition.status.as_str(),
            reason: condition.reason,
            message: condition.message.clone(),
        };
        if let Some(why) = facts
            .record
            .misread
            .as_ref()
            .filter(|_| matches!(condition.kind, kind::READY | kind::ACCEPTED))
        {
            wanted = Wanted {
                status: "False",
                reason: Reason::InvalidSpec.as_str(),
                message: format!("cannot parse the spec: {why}"),
                ..wanted
            };
        } else if let Some(why) = facts
            .failed
            .as_ref()
            .filter(|_| condition.kind == kind::READY && condition.status != Status::True)
        {
            wanted.message = if wanted.message.is_empty() {
                why.clone()
            } else {
                format!("{}; {why}", wanted.message)
            };
        }
        wanted
    });
    merged(
        &before,
        kind::ALL,
        wanted,
        facts.record.generation(),
        &facts.now,
    )
}

fn value(status: impl serde::Serialize) -> Value {
    serde_json::to_value(status).unwrap_or_default()
}

fn of_binding(facts: &Facts<'_>, plan: &BindingPlan) -> Value {
    let row = |row: &Row| MeshStatus {
        cluster_name: row.cluster.clone(),
        cluster_id: row.id.map(i64::from),
        connected: row.connected,
        ready_nodes: row.ready_nodes.into(),
        total_nodes: row.total_nodes.into(),
        message: row
            .message
            .as_ref()
            .map(|text| printable(text, LONGEST_MESSAGE)),
        last_verified: row.last_verified.and_then(time),
    };
    let mut status = ClusterMeshBindingStatus {
        phase: Some(plan.outcome.phase.as_str().to_owned()),
        observed_generation: Some(facts.record.generation()),
        last_sync_time: Some(facts.now.clone()),
        mesh_status: Some(plan.rows.iter().map(row).collect()),
        conditions: Some(conditions(facts, &plan.outcome.conditions)),
    };
    if is_too_large(&status) {
        status
            .mesh_status
            .iter_mut()
            .flatten()
            .for_each(|row| row.message = None);
    }
    value(status)
}

fn of_service(facts: &Facts<'_>, plan: &ServicePlan) -> Value {
    let endpoints = plan.endpoints.iter().map(|of| EndpointSummary {
        cluster_name: of.cluster.clone(),
        endpoints: i64::try_from(of.ready).unwrap_or(i64::MAX),
        ready: of.ready > 0,
    });
    let mut status = GlobalServiceStatus {
        phase: Some(plan.outcome.phase.as_str().to_owned()),
        observed_generation: Some(facts.record.generation()),
        last_sync_time: Some(facts.now.clone()),
        exported_clusters: Some(plan.exported.clone()),
        endpoint_summary: Some(endpoints.collect()),
        conditions: Some(conditions(facts, &plan.outcome.conditions)),
    };
    if is_too_large(&status) {
        status.endpoint_summary = None;
    }
    value(status)
}

fn of_intent(facts: &Facts<'_>, plan: &IntentPlan) -> Value {
    let probe = plan.probe.map(|message| ProbeStatus {
        message: Some(message.to_owned()),
        ..ProbeStatus::default()
    });
    value(ConnectivityIntentStatus {
        phase: Some(plan.outcome.phase.as_str().to_owned()),
        observed_generation: Some(facts.record.generation()),
        last_sync_time: Some(facts.now.clone()),
        applied_clusters: Some(plan.applied.clone()),
        probe_status: probe,
        conditions: Some(conditions(facts, &plan.outcome.conditions)),
    })
}

#[cfg(test)]
mod tests {
    use kube::core::DynamicObject;
    use mw_api::cilium::MOST_CLUSTERS;
    use mw_core::cilium::plan::Endpoints;
    use serde_json::json;

    use super::*;
    use crate::cilium::object_source::ObjectSource;

    fn record(kind: Kind, spec: &Value) -> Record {
        let resource = kind.resource();
        let object = json!({
            "apiVersion": resource.api_version, "kind": resource.kind,
            "metadata": { "name": "mesh", "namespace": "net", "uid": "u", "generation": 1 }, "spec": spec,
        });
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        Record::read(ObjectSource::Hub, kind, "hub", &object).unwrap()
    }

    fn names() -> impl Iterator<Item = String> {
        (0..MOST_CLUSTERS).map(|nth| format!("{}{nth:04}", "c".repeat(249)))
    }

    fn facts(record: &Record) -> Facts<'_> {
        Facts {
            record,
            failed: None,
            now: Time(jiff::Timestamp::UNIX_EPOCH),
        }
    }

    #[test]
    fn the_status_of_a_binding_stays_small_whatever_the_clusters_say() {
        let record = record(
            Kind::Binding,
            &json!({ "clusterRefs": [{ "name": "a" }, { "name": "b" }] }),
        );
        let row = |cluster: String| Row {
            cluster,
            message: Some("x".repeat(50_000)),
            ..Row::default()
        };
        let many = BindingPlan {
            rows: names().map(row).collect(),
            ..BindingPlan::default()
        };
        let status = of_binding(&facts(&record), &many);
        assert!(!is_too_large(&status));
        assert_eq!(
            status["meshStatus"].as_array().unwrap().len(),
            MOST_CLUSTERS
        );
        let few = BindingPlan {
            rows: many.rows[..2].to_vec(),
            ..BindingPlan::default()
        };
        let told = of_binding(&facts(&record), &few)["meshStatus"][0]["message"]
            .as_str()
            .unwrap()
            .len();
        assert_eq!(told, LONGEST_MESSAGE + "…".len());
    }

    #[test]
    fn the_status_of_a_global_service_in_many_clusters_stays_small() {
        let spec = json!({ "meshRef": { "name": "mesh" }, "selector": { "namespace": "shop", "name": "cart" } });
        let record = record(Kind::Service, &spec);
        let endpoints = names()
            .map(|cluster| Endpoints { cluster, ready: 1 })
            .collect();
        let plan = ServicePlan {
            exported: names().collect(),
            endpoints,
            ..ServicePlan::default()
        };
        let status = of_service(&facts(&record), &plan);
        assert!(!is_too_large(&status));
        assert_eq!(
            status["exportedClusters"].as_array().unwrap().len(),
            MOST_CLUSTERS
        );
    }
}
