//! CustomResourceDefinitions and discovery.

use http::Method;
use serde_json::{Value, json};

use crate::subject::Subject;

crate::behaviours![
    a_definition_is_served_and_says_so,
    a_definition_goes_with_its_objects,
    a_second_definition_of_a_name_is_refused,
    a_definition_that_is_as_applied_stays_as_it_is,
    groups_and_resources_are_told,
    the_version_is_told,
];

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn definition(on: &Subject) -> (String, Value) {
    let plural = format!("things{}", on.namespace);
    let name = format!("{plural}.conformance.test");
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": { "name": name },
        "spec": {
            "group": "conformance.test", "scope": "Cluster", "names": { "kind": format!("Thing{}", on.namespace), "plural": plural },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                "type": "object", "properties": { "spec": { "type": "object", "properties": { "a": { "type": "string" } } } },
            }}}],
        },
    });
    (name, crd)
}

fn is_established(crd: &Value) -> bool {
    let conditions = crd["status"]["conditions"].as_array().into_iter().flatten();
    conditions
        .into_iter()
        .any(|condition| condition["type"] == "Established" && condition["status"] == "True")
}

async fn a_definition_is_served_and_says_so(on: Subject) -> Value {
    let (name, crd) = definition(&on);
    let made = on.post(DEFINITIONS, crd).await;
    let served = on
        .until(&format!("{DEFINITIONS}/{name}"), |seen| {
            is_established(&seen.body)
        })
        .await;
    let plural = name.split('.').next().unwrap();
    let path = format!("/apis/conformance.test/v1/{plural}");
    let listed = on.until(&path, |seen| seen.code == 200).await;
    json!([
        made.code,
        served.parts(&[
            "/spec",
            "/status/acceptedNames",
            "/status/storedVersions",
            "/status/conditions"
        ]),
        listed.told()
    ])
}

async fn a_definition_goes_with_its_objects(on: Subject) -> Value {
    let (name, crd) = definition(&on);
    on.made(DEFINITIONS, crd.clone()).await;
    let path = format!(
        "/apis/conformance.test/v1/{}",
        name.split('.').next().unwrap()
    );
    on.until(&path, |seen| seen.code == 200).await;
    let thing = json!({ "apiVersion": "conformance.test/v1", "kind": crd["spec"]["names"]["kind"], "metadata": { "name": "a" } });
    let mut made = on.post(&path, thing.clone()).await;
    while made.code == 404 {
        made = on.post(&path, thing.clone()).await;
    }
    let deleted = on.delete(&format!("{DEFINITIONS}/{name}")).await;
    let gone = on
        .until(&format!("{DEFINITIONS}/{name}"), |seen| seen.code == 404)
        .await;
    let empty = on.until(&path, |seen| seen.code == 404).await;
    json!([made.code, deleted.code, gone.told(), empty.brief()])
}

async fn a_second_definition_of_a_name_is_refused(on: Subject) -> Value {
    let (_, crd) = definition(&on);
    on.made(DEFINITIONS, crd.clone()).await;
    on.post(DEFINITIONS, crd).await.told()
}

async fn a_definition_that_is_as_applied_stays_as_it_is(on: Subject) -> Value {
    let (name, crd) = definition(&on);
    let path = format!("{DEFINITIONS}/{name}?fieldManager=x&force=true");
    let apply = "application/apply-patch+yaml";
    let first = on
        .send(Method::PATCH, &path, apply, Some(crd.clone()))
        .await;
    on.until(&format!("{DEFINITIONS}/{name}"), |seen| {
        is_established(&seen.body)
    })
    .await;
    let second = on.send(Method::PATCH, &path, apply, Some(crd)).await;
    json!([
        first.code,
        second.code,
        second.parts(&["/metadata/generation"])
    ])
}

async fn groups_and_resources_are_told(on: Subject) -> Value {
    let groups = on.get("/apis").await;
    let named = groups.body["groups"]
        .as_array()
        .unwrap()
        .iter()
        .find(|group| group["name"] == "kilo.squat.ai")
        .unwrap();
    let of = |list: &Value, name: &str| {
        let found = list["resources"]
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["name"] == name)
            .cloned()
            .unwrap_or_default();
        let mut verbs: Vec<String> =
            serde_json::from_value(found["verbs"].clone()).unwrap_or_default();
        verbs.sort();
        json!([
            found["kind"],
            found["namespaced"],
            found["singularName"],
            found["shortNames"],
            found["categories"],
            verbs
        ])
    };
    let own = on.get("/apis/conformance.test/v1").await.body;
    let core = on.get("/api/v1").await.body;
    json!([
        named,
        own["groupVersion"],
        of(&own, "widgets"),
        of(&own, "widgets/status"),
        of(&own, "gadgets"),
        of(&core, "nodes"),
        of(&core, "namespaces"),
        of(&core, "nodes/status"),
        on.get("/api").await.body["versions"],
        on.get("/apis/nobody.test/v1").await.code,
    ])
}

async fn the_version_is_told(on: Subject) -> Value {
    let seen = on.get("/version").await;
    json!([seen.code, seen.body["major"]])
}
