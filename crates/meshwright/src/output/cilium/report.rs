//! The plan as data: the stable format of `-o json` and `-o yaml`.

use std::collections::BTreeMap;

use mw_controller::cilium::Kind;
use mw_core::cilium::plan::{BindingPlan, Endpoints, Row};
use mw_core::problem::Problem;
use serde::Serialize;

use crate::output::cilium::change::{Change, Mark, changes};
use crate::output::cilium::{Planned, Result, results};
use crate::output::kilo::report::severity;

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    targets: BTreeMap<String, Target>,
    objects: Vec<Object>,
    problems: Vec<Reported>,
    notes: Vec<String>,
}

/// Changes in execution order.
#[derive(Debug, Default, Serialize)]
struct Target {
    create: Vec<Change>,
    update: Vec<Change>,
    delete: Vec<Change>,
}

/// The status that an object would get.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Object {
    kind: &'static str,
    namespace: String,
    name: String,
    phase: &'static str,
    conditions: Vec<Condition>,
    #[serde(skip_serializing_if = "Option::is_none")]
    clusters: Option<Vec<Cluster>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exported_clusters: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoints: Option<BTreeMap<String, usize>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    applied_clusters: Option<Vec<String>>,
}

#[derive(Debug, Serialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: &'static str,
    status: &'static str,
    reason: &'static str,
    message: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Cluster {
    name: String,
    cluster_id: Option<u32>,
    connected: bool,
    ready_nodes: u32,
    total_nodes: u32,
    message: Option<String>,
}

#[derive(Debug, Serialize)]
struct Reported {
    kind: &'static str,
    namespace: String,
    name: String,
    reason: &'static str,
    severity: &'static str,
    subject: String,
    message: String,
    hint: String,
}

impl Report {
    pub(crate) fn of(planned: &Planned<'_>) -> Report {
        let results = results(planned.plan);
        Report {
            targets: changes(planned)
                .into_iter()
                .map(|(name, changes)| (name, target(changes)))
                .collect(),
            objects: results
                .iter()
                .map(|result| object(planned, result))
                .collect(),
            problems: results
                .iter()
                .flat_map(|result| {
                    result
                        .problems
                        .iter()
                        .map(|problem| reported(result, problem))
                })
                .collect(),
            notes: planned.notes.to_vec(),
        }
    }
}

fn target(changes: Vec<Change>) -> Target {
    let mut target = Target::default();
    for change in changes {
        match change.mark {
            Mark::Create => target.create.push(change),
            Mark::Update => target.update.push(change),
            Mark::Delete => target.delete.push(change),
        }
    }
    target
}

fn object(planned: &Planned<'_>, result: &Result<'_>) -> Object {
    let condition = |of: &mw_core::cilium::plan::Condition| Condition {
        kind: of.kind,
        status: of.status.as_str(),
        reason: of.reason,
        message: of.message.clone(),
    };
    let service = planned
        .plan
        .services
        .get(result.id)
        .filter(|_| result.kind == Kind::Service);
    let intent = planned
        .plan
        .intents
        .get(result.id)
        .filter(|_| result.kind == Kind::Intent);
    Object {
        kind: result.kind.as_str(),
        namespace: result.id.namespace.clone(),
        name: result.id.name.clone(),
        phase: result.phase,
        conditions: result.conditions.iter().map(condition).collect(),
        clusters: planned
            .plan
            .bindings
            .get(result.id)
            .filter(|_| result.kind == Kind::Binding)
            .map(clusters),
        exported_clusters: service.map(|service| service.exported.clone()),
        endpoints: service.map(|service| {
            service
                .endpoints
                .iter()
                .map(|Endpoints { cluster, ready }| (cluster.clone(), *ready))
                .collect()
        }),
        applied_clusters: intent.map(|intent| intent.applied.clone()),
    }
}

fn clusters(binding: &BindingPlan) -> Vec<Cluster> {
    let cluster = |row: &Row| Cluster {
        name: row.cluster.clone(),
        cluster_id: row.id,
        connected: row.connected,
        ready_nodes: row.ready_nodes,
        total_nodes: row.total_nodes,
        message: row.message.clone(),
    };
    binding.rows.iter().map(cluster).collect()
}

fn reported(result: &Result<'_>, problem: &Problem) -> Reported {
    let Problem {
        reason,
        subject,
        message,
        hint,
    } = problem.clone();
    Reported {
        kind: result.kind.as_str(),
        namespace: result.id.namespace.clone(),
        name: result.id.name.clone(),
        reason: reason.as_str(),
        severity: severity(reason),
        subject,
        message,
        hint,
    }
}
