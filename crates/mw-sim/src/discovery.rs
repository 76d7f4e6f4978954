//! Discovery: `/version`, groups and resources, as far as clients use it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::cluster::State;
use crate::json::at;
use crate::kind::{Builtin, Kind};
use crate::refusal::Refusal;

/// Minor version of the Kubernetes release that is simulated.
const MINOR: &str = "34";

pub(crate) fn answer(state: &State, path: &str) -> Result<Value, Refusal> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match parts.as_slice() {
        ["version"] => Ok(
            json!({ "major": "1", "minor": MINOR, "gitVersion": format!("v1.{MINOR}.0+sim"), "platform": "sim/sim" }),
        ),
        ["readyz" | "livez" | "healthz"] => Ok(Value::String("ok".to_owned())),
        ["api"] => Ok(
            json!({ "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [] }),
        ),
        ["apis"] => {
            Ok(json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups(state) }))
        }
        ["apis", group] => {
            let found = groups(state)
                .into_iter()
                .find(|one| *at(one, &["name"]) == **group);
            found
                .map(|found| with_kind(found, "APIGroup"))
                .ok_or_else(Refusal::no_such_page)
        }
        ["api", version] => resources(state, "", version),
        ["apis", group, version] => resources(state, group, version),
        _ => Err(Refusal::unsupported(format!("the path {path:?}"))),
    }
}

fn with_kind(mut value: Value, kind: &str) -> Value {
    let map = crate::json::map_mut(&mut value);
    map.insert("kind".to_owned(), kind.into());
    map.insert("apiVersion".to_owned(), "v1".into());
    value
}

fn groups(state: &State) -> Vec<Value> {
    let mut versions = BTreeMap::new();
    for kind in state.kinds().filter(|kind| !kind.group.is_empty()) {
        versions.insert(kind.group.clone(), kind.version.clone());
    }
    let of = |(group, version): (String, String)| {
        let named = json!({ "groupVersion": format!("{group}/{version}"), "version": version });
        json!({ "name": group, "versions": [named], "preferredVersion": named })
    };
    versions.into_iter().map(of).collect()
}

fn resources(state: &State, group: &str, version: &str) -> Result<Value, Refusal> {
    let of_version: Vec<&Kind> = state
        .kinds()
        .filter(|kind| kind.group == group && kind.version == version)
        .collect();
    let Some(first) = of_version.first() else {
        return Err(Refusal::no_such_page());
    };
    let group_version = first.api_version();
    let mut resources = Vec::new();
    for kind in of_version {
        resources.push(resource(kind));
        if kind.status_subresource {
            resources.push(json!({
                "name": format!("{}/status", kind.plural), "singularName": "", "namespaced": kind.namespaced,
                "kind": kind.kind, "verbs": ["get", "patch", "update"],
            }));
        }
    }
    Ok(
        json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources }),
    )
}

fn resource(kind: &Kind) -> Value {
    let verbs: &[&str] = match kind.builtin {
        Some(Builtin::AccessReview) => &["create"],
        Some(Builtin::Namespace) => &[
            "create", "delete", "get", "list", "patch", "update", "watch",
        ],
        _ => &[
            "create",
            "delete",
            "deletecollection",
            "get",
            "list",
            "patch",
            "update",
            "watch",
        ],
    };
    let mut resource = json!({
        "name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced, "kind": kind.kind, "verbs": verbs,
    });
    let map = crate::json::map_mut(&mut resource);
    for (field, list) in [
        ("shortNames", &kind.short_names),
        ("categories", &kind.categories),
    ] {
        if !list.is_empty() {
            map.insert(field.to_owned(), json!(list));
        }
    }
    resource
}
