//! A write to a cluster, in displayable form. Values of Secrets are never shown.

use std::collections::{BTreeMap, BTreeSet};

use mw_api::cilium::policy::policy_object;
use mw_controller::cilium::{Act, Operation, operations};
use mw_core::cilium::facts::{ClusterSeen, Config, ServiceName};
use mw_core::cilium::plan::{
    AnnotationApply, CaCreate, ElbWrite, IdentityWrite, PolicyUpdate, SecretApply, UsersWrite,
    WantedPolicy,
};
use serde::Serialize;
use serde_json::Value as Json;

use crate::output::cilium::Planned;

const REDACTED: &str = "(redacted)";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    Create,
    Update,
    Delete,
}

#[derive(Debug, Serialize)]
pub(super) struct Change {
    #[serde(skip)]
    pub(super) mark: Mark,
    pub(super) kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    /// Cluster that the object is copied from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) from: Option<String>,
    /// Keys or annotations that change. Other fields of shared objects are not shown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) fields: Vec<Field>,
    /// A policy before and after the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) before: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) after: Option<Json>,
}

#[derive(Debug, Serialize)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) before: Option<String>,
    pub(super) after: Option<String>,
}

impl Field {
    pub(super) fn is_secret(&self) -> bool {
        [&self.before, &self.after]
            .into_iter()
            .flatten()
            .any(|value| value == REDACTED)
    }
}

/// Changes by target, in execution order. Targets that can't be read are omitted.
pub(super) fn changes(planned: &Planned<'_>) -> BTreeMap<String, Vec<Change>> {
    let home = planned.world.options.cilium_namespace.as_str();
    let of = |(id, seen): (&_, &ClusterSeen)| {
        let target = planned.plan.targets.get(id);
        let operations = target.map(operations).unwrap_or_default();
        (
            ToString::to_string(id),
            operations
                .into_iter()
                .map(|operation| change(operation, seen, home))
                .collect(),
        )
    };
    planned.world.clusters.iter().map(of).collect()
}

fn change(operation: Operation, seen: &ClusterSeen, home: &str) -> Change {
    let Operation { place, act } = operation;
    let (namespace, name) = place.object(home);
    let mut change = Change {
        mark: Mark::Update,
        kind: place.kind(),
        namespace: namespace.map(str::to_owned),
        name: name.to_owned(),
        from: None,
        fields: Vec::new(),
        before: None,
        after: None,
    };
    match act {
        Act::Identify(write) => {
            change.fields = identity(write, seen.config.known().and_then(Option::as_ref))
        }
        Act::CreateAuthority(CaCreate { from, .. }) => {
            change.mark = Mark::Create;
            change.from = Some(from.to_string());
            change.fields = ["ca.crt", "ca.key"]
                .map(|key| secret(key, false, true))
                .into();
        }
        Act::Balance(ElbWrite { id, .. }) => {
            change.fields = vec![Field {
                name: "kubernetes.io/elb.id".to_owned(),
                before: None,
                after: Some(id),
            }];
        }
        Act::ListUsers(write) => {
            change.mark = if write.on.is_some() {
                Mark::Update
            } else {
                Mark::Create
            };
            change.fields = users(&write);
        }
        Act::ApplyKeys(_, apply) => {
            change.mark = if apply.on.is_some() {
                Mark::Update
            } else {
                Mark::Create
            };
            change.fields = keys(&apply);
        }
        Act::Annotate(service, apply) => change.fields = annotations(&service, apply, seen),
        Act::CreatePolicy(wanted) => {
            change.mark = Mark::Create;
            change.after = Some(policy_object(&wanted));
        }
        Act::UpdatePolicy(update) => {
            let PolicyUpdate {
                on: _,
                before,
                after,
            } = *update;
            let found = seen.policies.known().and_then(|all| all.get(&after.key));
            let labels = found.map_or_else(BTreeMap::new, |found| found.labels.clone());
            change.before = Some(policy_object(&WantedPolicy {
                key: after.key.clone(),
                labels,
                spec: before,
            }));
            change.after = Some(policy_object(&after));
        }
        Act::DeletePolicy(..) => change.mark = Mark::Delete,
    }
    change
}

fn identity(write: IdentityWrite, config: Option<&Config>) -> Vec<Field> {
    let before =
        |of: fn(&Config) -> &String| config.map(of).filter(|text| !text.is_empty()).cloned();
    let name = write.name.map(|name| {
        (
            "cluster-name",
            before(|config| &config.cluster_name),
            name.to_string(),
        )
    });
    let id = write.id.map(|id| {
        (
            "cluster-id",
            before(|config| &config.cluster_id),
            id.to_string(),
        )
    });
    let field = |(name, before, after): (&str, _, _)| Field {
        name: name.to_owned(),
        before,
        after: Some(after),
    };
    name.into_iter().chain(id).map(field).collect()
}

fn secret(key: &str, was: bool, will_be: bool) -> Field {
    let value = |there: bool| there.then(|| REDACTED.to_owned());
    Field {
        name: key.to_owned(),
        before: value(was),
        after: value(will_be),
    }
}

/// One field per user.
fn users(write: &UsersWrite) -> Vec<Field> {
    let role = || Some("remote".to_owned());
    let added = write.added.iter().map(|user| Field {
        name: user.clone(),
        before: None,
        after: role(),
    });
    let removed = write.removed.iter().map(|user| Field {
        name: user.clone(),
        before: role(),
        after: None,
    });
    added.chain(removed).collect()
}

/// One field per key.
fn keys(apply: &SecretApply) -> Vec<Field> {
    let SecretApply {
        on: _,
        data: _,
        added,
        changed,
        removed,
    } = apply;
    let all: BTreeSet<&String> = added.iter().chain(changed).chain(removed).collect();
    all.into_iter()
        .map(|key| secret(key, !added.contains(key), !removed.contains(key)))
        .collect()
}

/// Annotations that differ from the current ones, regardless of their field manager.
fn annotations(service: &ServiceName, apply: AnnotationApply, seen: &ClusterSeen) -> Vec<Field> {
    let AnnotationApply {
        on: _,
        annotations,
        removed,
    } = apply;
    let found = seen
        .services
        .known()
        .and_then(|services| services.get(service));
    let before = |key: &String| {
        found
            .and_then(|found| found.annotations.get(key))
            .map(|held| held.value.clone())
    };
    let set = annotations
        .into_iter()
        .map(|(key, value)| (before(&key), key, Some(value)));
    // Annotations that others also manage stay.
    let stays = |key: &String| {
        found
            .and_then(|found| found.annotations.get(key))
            .is_some_and(|held| !held.is_ours_alone())
    };
    let gone = removed
        .into_iter()
        .filter(|key| !stays(key))
        .map(|key| (before(&key), key, None));
    let mut fields: Vec<Field> = set
        .chain(gone)
        .filter(|(before, _, after)| before != after)
        .map(|(before, name, after)| Field {
            name,
            before,
            after,
        })
        .collect();
    fields.sort_by(|one, other| one.name.cmp(&other.name));
    fields
}
