//! Every manifest in a page parses, and meshwright's own kinds pass the validation that a cluster
//! applies.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use mw_api::cilium::convert;
use mw_core::cilium::plan::{Condition, Status};
use mw_core::cilium::world::World;
use mw_core::condition::cilium::kind;
use mw_core::kilo::spec::validate;
use mw_core::problem::{Problem, Reason};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::page::pages;

#[test]
fn every_manifest_is_accepted() {
    let mut ours = 0;
    for page in pages() {
        for block in page
            .blocks()
            .iter()
            .filter(|block| block.language == "yaml")
        {
            let documents: Vec<Value> = serde_saphyr::from_multiple(&block.text)
                .unwrap_or_else(|wrong| panic!("{}: {wrong}", page.path));
            for object in documents
                .iter()
                .filter(|object| object.get("kind").is_some())
            {
                ours += usize::from(is_accepted(object, &page.path));
            }
        }
    }
    assert!(ours > 0, "no manifest was found");
}

/// Validates an object. Returns false for kinds that are not meshwright's.
fn is_accepted(object: &Value, place: &str) -> bool {
    let kind = object["kind"].as_str().unwrap();
    let crds = [mw_api::crd::crds(), mw_api::crd::cilium_crds()].concat();
    let Some(crd) = crds.iter().find(|crd| crd.spec.names.kind == kind) else {
        return false;
    };
    let [version] = crd.spec.versions.as_slice() else {
        panic!("{kind} has several versions")
    };
    assert_eq!(
        object["apiVersion"],
        format!("{}/{}", crd.spec.group, version.name),
        "{place}"
    );
    assert_known(
        &object["spec"],
        spec_schema(crd),
        &format!("{place}: {kind}.spec"),
    );
    match kind {
        "ClusterMesh" => {
            let problems = validate(&mw_api::kilo::convert::mesh(&read(object, place)).spec)
                .map_or_else(|wrong| wrong, |(_, remarks)| remarks);
            assert_eq!(problems, [], "{place}");
        }
        kind => is_accepted_by_the_planner(kind, object, place),
    }
    true
}

fn is_accepted_by_the_planner(of: &str, object: &Value, place: &str) {
    let mut world = World::default();
    match of {
        "ClusterMeshBinding" => {
            let binding = convert::binding("", &read(object, place));
            world.bindings.insert(binding.common.id.clone(), binding);
        }
        "GlobalService" => {
            let service = convert::global_service("", &read(object, place));
            world.services.insert(service.common.id.clone(), service);
        }
        "ConnectivityIntent" => {
            let intent = convert::intent("", &read(object, place));
            world.intents.insert(intent.common.id.clone(), intent);
        }
        kind => panic!("{place}: nobody validates {kind}"),
    }
    let plan = mw_core::cilium::plan(&world);
    let bindings = plan
        .bindings
        .values()
        .map(|plan| (&plan.outcome.conditions, &plan.outcome.problems));
    let services = plan
        .services
        .values()
        .map(|plan| (&plan.outcome.conditions, &plan.outcome.problems));
    let intents = plan
        .intents
        .values()
        .map(|plan| (&plan.outcome.conditions, &plan.outcome.problems));
    for (conditions, problems) in bindings.chain(services).chain(intents) {
        let refused: Vec<&Problem> = problems
            .iter()
            .filter(|problem| problem.reason == Reason::InvalidSpec)
            .collect();
        let is_accepted = |condition: &Condition| {
            condition.kind != kind::ACCEPTED || condition.status == Status::True
        };
        assert!(
            refused.is_empty() && conditions.iter().all(is_accepted),
            "{place}: {refused:?} {conditions:?}"
        );
    }
}

fn read<T: DeserializeOwned>(object: &Value, place: &str) -> T {
    serde_json::from_value(object.clone()).unwrap_or_else(|wrong| panic!("{place}: {wrong}"))
}

fn spec_schema(crd: &CustomResourceDefinition) -> &JSONSchemaProps {
    let schema = crd.spec.versions[0]
        .schema
        .as_ref()
        .and_then(|schema| schema.open_api_v3_schema.as_ref())
        .unwrap();
    &schema.properties.as_ref().unwrap()["spec"]
}

/// Fails for unknown fields, which an API server would silently drop.
fn assert_known(value: &Value, schema: &JSONSchemaProps, path: &str) {
    match (value, &schema.properties, &schema.items) {
        (Value::Object(fields), Some(known), _) => {
            for (name, value) in fields {
                let schema = known
                    .get(name)
                    .unwrap_or_else(|| panic!("{path}.{name} is not a known field"));
                assert_known(value, schema, &format!("{path}.{name}"));
            }
            for name in schema.required.iter().flatten() {
                assert!(fields.contains_key(name), "{path}.{name} is missing");
            }
        }
        (Value::Array(items), _, Some(JSONSchemaPropsOrArray::Schema(schema))) => {
            items
                .iter()
                .for_each(|value| assert_known(value, schema, &format!("{path}[]")));
        }
        _ => {}
    }
}
