//! Discovery in a virtual workspace: exported and claimed resources, and APIBindings.

use std::collections::{BTreeMap, BTreeSet};

use hyper::Method;
use serde_json::{Value, json};

use super::admission::is_built_in;
use super::answer::{self, Refusal};
use super::model::{Export, GroupResource, array, string};
use super::target::Target;
use super::world::{Kind, World};
use crate::http::JSON;
use crate::serve::Served;

const VERBS: [&str; 8] = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];

/// Entries of resource lists, by group and version.
type Resources = BTreeMap<(String, String), Vec<Value>>;

pub(super) async fn answer(
    world: &World,
    export: &Export,
    target: &Target,
) -> Result<Served, Refusal> {
    let served = collect(world, export).await?;
    let segments: Vec<&str> = target
        .path
        .split('/')
        .filter(|segment| !segment.is_empty())
        .collect();
    let groups: BTreeSet<&String> = served
        .keys()
        .map(|(group, _)| group)
        .filter(|group| !group.is_empty())
        .collect();
    let found = match segments.as_slice() {
        ["version"] => return version(world, export).await,
        ["openapi", "v3"] => Some(json!({ "paths": {} })),
        ["api"] => Some(
            json!({ "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [] }),
        ),
        ["apis"] => {
            let groups: Vec<Value> = groups.iter().map(|name| group(&served, name)).collect();
            Some(json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups }))
        }
        ["apis", name] => groups
            .iter()
            .any(|group| group == name)
            .then(|| group(&served, name)),
        ["api", version] => resources(&served, "", version),
        ["apis", group, version] => resources(&served, group, version),
        _ => None,
    };
    Ok(answer::json(
        200,
        &found.ok_or_else(answer::no_such_resource)?,
    ))
}

fn group(served: &Resources, name: &str) -> Value {
    let versions: Vec<Value> = served
        .keys()
        .filter(|(group, _)| group == name)
        .map(|(_, version)| json!({ "groupVersion": format!("{name}/{version}"), "version": version }))
        .collect();
    let mut group = json!({ "kind": "APIGroup", "apiVersion": "v1", "name": name, "preferredVersion": versions.last() });
    if let Some(fields) = group.as_object_mut() {
        fields.insert("versions".into(), versions.into());
    }
    group
}

fn resources(served: &Resources, group: &str, version: &str) -> Option<Value> {
    let resources = served.get(&(group.to_owned(), version.to_owned()))?;
    let name = if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    };
    Some(
        json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": resources }),
    )
}

async fn version(world: &World, export: &Export) -> Result<Served, Refusal> {
    let provider = world
        .workspace(&export.key.provider)
        .ok_or_else(answer::no_such_resource)?;
    let version = provider
        .http
        .expect(Method::GET, "/version", JSON, None)
        .await;
    version
        .map(|version| answer::json(200, &version))
        .map_err(|error| answer::unreachable(&error))
}

async fn collect(world: &World, export: &Export) -> Result<Resources, Refusal> {
    let mut served = Resources::new();
    let bindings = json!({
        "name": "apibindings", "singularName": "apibinding", "namespaced": false, "kind": "APIBinding", "verbs": ["get", "list", "watch"],
    });
    served.insert(("apis.kcp.io".into(), "v1alpha2".into()), vec![bindings]);
    for (what, _) in &export.resources {
        add_exported(world, export, what, &mut served);
    }
    for claim in &export.claims {
        if !claim.identity_hash.is_empty() {
            if let Some(foreign) = world.export_with_identity(&claim.identity_hash) {
                add_exported(world, &foreign, &claim.what, &mut served);
            }
        } else if is_built_in(&claim.what.group, &claim.what.resource) {
            add_built_in(world, export, &claim.what, &mut served).await?;
            if claim.what == GroupResource::new("", "events") {
                add_built_in(
                    world,
                    export,
                    &GroupResource::new("events.k8s.io", "events"),
                    &mut served,
                )
                .await?;
            }
        }
    }
    Ok(served)
}

/// Adds an exported resource, from its schema.
fn add_exported(world: &World, export: &Export, what: &GroupResource, served: &mut Resources) {
    let schema = export
        .resources
        .iter()
        .find(|(exported, _)| exported == what)
        .map(|(_, schema)| schema);
    let Some(schema) =
        schema.and_then(|schema| world.object(&export.key.provider, Kind::Schema, schema))
    else {
        return;
    };
    let kind = string(&schema, "/spec/names/kind");
    let entry = |name: String, verbs: &[&str]| {
        json!({
            "name": name, "singularName": string(&schema, "/spec/names/singular"), "kind": kind, "verbs": verbs,
            "namespaced": schema.pointer("/spec/scope") == Some(&json!("Namespaced")),
            "shortNames": array(&schema, "/spec/names/shortNames"),
        })
    };
    for version in array(&schema, "/spec/versions")
        .iter()
        .filter(|version| version["served"] == true)
    {
        let resources = served
            .entry((what.group.clone(), string(version, "/name").to_owned()))
            .or_default();
        resources.push(entry(what.resource.clone(), &VERBS));
        if version.pointer("/subresources/status").is_some() {
            resources.push(entry(
                format!("{}/status", what.resource),
                &["get", "patch", "update"],
            ));
        }
    }
}

/// Adds a built-in resource, from the discovery of the provider's workspace.
async fn add_built_in(
    world: &World,
    export: &Export,
    what: &GroupResource,
    served: &mut Resources,
) -> Result<(), Refusal> {
    let Some(provider) = world.workspace(&export.key.provider) else {
        return Ok(());
    };
    let get = async |path: String| match provider.http.send(Method::GET, &path, JSON, None).await {
        Ok(answered) => Ok(answered.body),
        Err(error) => Err(answer::unreachable(&error)),
    };
    let (path, version) = if what.group.is_empty() {
        ("/api/v1".to_owned(), "v1".to_owned())
    } else {
        let group = get(format!("/apis/{}", what.group)).await?;
        let preferred = string(&group, "/preferredVersion/version").to_owned();
        (format!("/apis/{}/{preferred}", what.group), preferred)
    };
    let list = get(path).await?;
    let found = array(&list, "/resources")
        .iter()
        .filter(|resource| resource["name"] == what.resource);
    served
        .entry((what.group.clone(), version))
        .or_default()
        .extend(found.cloned());
    Ok(())
}
