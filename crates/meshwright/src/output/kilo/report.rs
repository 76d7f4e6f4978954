//! The plan as data: the stable format of `-o json` and `-o yaml`.

use std::collections::BTreeMap;

use mw_core::kilo::plan::{Changes, HeldChange, MeshPlan};
use mw_core::names::{ClusterId, MeshId, PeerName};
use mw_core::problem::{Problem, Reason, Severity};
use serde::Serialize;
use serde_json::Value as Json;

use crate::input::kilo::dumps::Dump;
use crate::output::Planned;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    targets: BTreeMap<String, Target>,
    held_hash: Option<String>,
    /// Only if several meshes hold deletes, each of which is confirmed separately.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    held_hashes: BTreeMap<String, String>,
    skipped: Vec<Skipped>,
    problems: Vec<Reported>,
    conditions: Vec<Condition>,
}

/// Lists are sorted by name.
#[derive(Debug, Default, Serialize)]
struct Target {
    create: Vec<Json>,
    update: Vec<Update>,
    delete: Vec<Json>,
    held: Vec<Json>,
    keep: usize,
}

#[derive(Debug, Serialize)]
struct Update {
    before: Json,
    after: Json,
}

#[derive(Debug, Serialize)]
struct Skipped {
    mesh: String,
    cluster: String,
    node: String,
    reason: String,
    message: String,
}

#[derive(Debug, Serialize)]
struct Reported {
    /// Null if the problem belongs to no mesh.
    mesh: Option<String>,
    reason: &'static str,
    severity: &'static str,
    subject: String,
    message: String,
    hint: String,
}

#[derive(Debug, Serialize)]
struct Condition {
    mesh: String,
    #[serde(rename = "type")]
    kind: &'static str,
    status: &'static str,
    reason: &'static str,
    message: String,
}

impl Report {
    pub(crate) fn of(planned: &Planned<'_>) -> Report {
        let plan = planned.plan;
        let hashes: BTreeMap<String, String> = plan
            .meshes
            .iter()
            .filter_map(|(id, mesh)| Some((id.to_string(), mesh.held_hash.clone()?)))
            .collect();
        let single = hashes.len() == 1;
        Report {
            targets: targets(planned),
            held_hash: hashes.values().next().filter(|_| single).cloned(),
            held_hashes: if single { BTreeMap::new() } else { hashes },
            skipped: plan
                .meshes
                .iter()
                .flat_map(|(id, mesh)| skipped(id, mesh))
                .collect(),
            problems: plan
                .problems()
                .map(|(id, problem)| reported(id, problem))
                .collect(),
            conditions: plan
                .meshes
                .iter()
                .flat_map(|(id, mesh)| conditions(id, mesh))
                .collect(),
        }
    }
}

fn targets(planned: &Planned<'_>) -> BTreeMap<String, Target> {
    let mut targets: BTreeMap<String, Target> = BTreeMap::new();
    let members = planned
        .plan
        .meshes
        .values()
        .flat_map(|mesh| mesh.clusters.values());
    for id in members
        .filter(|cluster| cluster.unknown.is_none())
        .filter_map(|cluster| cluster.id.as_ref())
    {
        targets.entry(id.to_string()).or_default();
    }
    // Merges the changes of all meshes on one target.
    let mut by_target: BTreeMap<&ClusterId, Vec<&Changes>> = BTreeMap::new();
    for (id, changes) in planned
        .plan
        .meshes
        .values()
        .flat_map(|mesh| &mesh.targets)
        .chain(&planned.plan.orphans)
    {
        by_target.entry(id).or_default().push(changes);
    }
    for (id, all) in by_target {
        targets.insert(id.to_string(), target(&all, planned.fleet.get(id.as_str())));
    }
    targets
}

fn target(all: &[&Changes], dump: Option<&Dump>) -> Target {
    let seen = |name: &PeerName| {
        dump.and_then(|dump| dump.objects.get(name))
            .cloned()
            .unwrap_or_default()
    };
    let mut create = BTreeMap::new();
    let mut update = BTreeMap::new();
    let mut delete = BTreeMap::new();
    let mut held = BTreeMap::new();
    for changes in all {
        create.extend(changes.create.iter().map(|(name, peer)| {
            // Serializing a Peer does not fail.
            (
                name,
                serde_json::to_value(mw_api::kilo::convert::peer_object(peer)).unwrap_or_default(),
            )
        }));
        update.extend(changes.update.iter().map(|(name, update)| {
            let before = seen(name);
            let after = mw_api::kilo::convert::merge_into(&before, update);
            (
                name,
                Update {
                    before: redacted(before),
                    after: redacted(after),
                },
            )
        }));
        delete.extend(
            changes
                .delete
                .keys()
                .map(|name| (name, redacted(seen(name)))),
        );
        held.extend(changes.held.iter().map(|(name, held)| match &held.change {
            HeldChange::Create(peer) => (
                name,
                serde_json::to_value(mw_api::kilo::convert::peer_object(peer)).unwrap_or_default(),
            ),
            HeldChange::Update(_) | HeldChange::Delete(_) => (name, redacted(seen(name))),
        }));
    }
    Target {
        create: create.into_values().collect(),
        update: update.into_values().collect(),
        delete: delete.into_values().collect(),
        held: held.into_values().collect(),
        keep: all.iter().map(|changes| changes.keep).sum(),
    }
}

const REDACTED: &str = "<redacted>";

/// Removes the presharedKey, which `kubectl apply` also copies into an annotation.
fn redacted(mut peer: Json) -> Json {
    if let Some(key) = peer.pointer_mut("/spec/presharedKey") {
        *key = REDACTED.into();
    }
    let annotations = peer
        .pointer_mut("/metadata/annotations")
        .and_then(Json::as_object_mut);
    for (_, value) in annotations.into_iter().flatten() {
        if value
            .as_str()
            .is_some_and(|text| text.contains("presharedKey"))
        {
            *value = REDACTED.into();
        }
    }
    peer
}

fn skipped(id: &MeshId, mesh: &MeshPlan) -> Vec<Skipped> {
    let nodes = mesh.clusters.iter().flat_map(|(cluster, of)| {
        of.skipped
            .iter()
            .map(move |(node, skip)| (cluster, node, skip))
    });
    nodes
        .map(|(cluster, node, skip)| Skipped {
            mesh: id.to_string(),
            cluster: cluster.to_string(),
            node: node.to_string(),
            reason: skip.reason.to_string(),
            message: skip.message.clone(),
        })
        .collect()
}

fn reported(id: Option<&MeshId>, problem: &Problem) -> Reported {
    let Problem {
        reason,
        subject,
        message,
        hint,
    } = problem.clone();
    Reported {
        mesh: id.map(ToString::to_string),
        reason: reason.as_str(),
        severity: severity(reason),
        subject,
        message,
        hint,
    }
}

pub(crate) fn severity(reason: Reason) -> &'static str {
    match reason.severity() {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}

fn conditions(id: &MeshId, mesh: &MeshPlan) -> Vec<Condition> {
    let condition = |of: &mw_core::kilo::plan::Condition| Condition {
        mesh: id.to_string(),
        kind: of.kind,
        status: if of.status { "True" } else { "False" },
        reason: of.reason,
        message: of.message.clone(),
    };
    mesh.conditions.iter().map(condition).collect()
}
