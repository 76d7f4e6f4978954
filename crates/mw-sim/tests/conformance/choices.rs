//! Schemas with alternatives, like those of network policies.

use serde_json::{Value, json};

use crate::subject::Subject;

crate::behaviours![
    one_of_several_fields_must_be_there,
    networks_are_checked,
    numbers_or_texts_fit_a_pattern_as_texts,
    a_whole_map_has_one_manager,
    lists_without_type_are_whole,
];

fn policies(on: &Subject) -> String {
    format!(
        "/apis/conformance.test/v1/namespaces/{}/policies",
        on.namespace
    )
}

fn policy(spec: Value) -> Value {
    json!({ "apiVersion": "conformance.test/v1", "kind": "Policy", "metadata": { "name": "a" }, "spec": spec })
}

async fn each(on: &Subject, specs: impl IntoIterator<Item = Value>) -> Value {
    let mut seen = Vec::new();
    for spec in specs {
        seen.push(on.post(&policies(on), policy(spec)).await.brief());
        on.delete(&format!("{}/a", policies(on))).await;
    }
    json!(seen)
}

async fn one_of_several_fields_must_be_there(on: Subject) -> Value {
    let specs = [
        json!({ "ingress": [], "pods": {} }),
        json!({ "ingress": [], "egress": [], "nodes": {} }),
        json!({ "ingress": [] }),
        json!({ "pods": {} }),
        json!({ "egress": [], "pods": {}, "nodes": {} }),
        json!({}),
    ];
    let told = on.post(&policies(&on), policy(json!({ "pods": {} }))).await;
    let twice = on
        .post(
            &policies(&on),
            policy(json!({ "egress": [], "pods": {}, "nodes": {} })),
        )
        .await;
    let mut bare = policy(Value::Null);
    bare.as_object_mut().unwrap().remove("spec");
    json!([
        each(&on, specs).await,
        told.told(),
        twice.told(),
        on.post(&policies(&on), bare).await.told()
    ])
}

async fn networks_are_checked(on: Subject) -> Value {
    let networks = [
        "10.0.0.0/8",
        "10.0.0.1/8",
        "fd00::/8",
        "10.0.0.0",
        "10.0.0.0/33",
        "x/8",
        "",
        "10.0.0/8",
        "::/129",
    ];
    let all = each(
        &on,
        networks.map(|network| json!({ "ingress": [network], "pods": {} })),
    )
    .await;
    json!([
        all,
        on.post(
            &policies(&on),
            policy(json!({ "ingress": ["x"], "pods": {}, "host": "not a host" }))
        )
        .await
        .told()
    ])
}

async fn numbers_or_texts_fit_a_pattern_as_texts(on: Subject) -> Value {
    let items = [
        json!(5),
        json!("5"),
        json!("Echo"),
        json!("x"),
        json!(55),
        json!(1.5),
        json!(true),
        json!({}),
    ];
    each(
        &on,
        items.map(|item| json!({ "egress": [item], "pods": {} })),
    )
    .await
}

async fn a_whole_map_has_one_manager(on: Subject) -> Value {
    let path = format!("{}/a", policies(&on));
    let with = |labels: Value| {
        policy(json!({ "ingress": ["10.0.0.0/8"], "pods": { "matchLabels": labels } }))
    };
    let made = on.apply("one", &path, with(json!({ "a": "1" }))).await;
    let refused = on
        .apply(
            "two",
            &path,
            policy(json!({ "pods": { "matchLabels": { "b": "2" } } })),
        )
        .await;
    let patched = on
        .merge(
            &format!("{path}?fieldManager=two"),
            json!({ "spec": { "pods": { "matchLabels": { "b": "2" } } } }),
        )
        .await;
    json!([
        made.told(),
        refused.told(),
        patched.told(),
        on.apply("one", &path, policy(json!({ "ingress": ["10.0.0.0/8"] })))
            .await
            .told()
    ])
}

async fn lists_without_type_are_whole(on: Subject) -> Value {
    let path = format!("{}/a", policies(&on));
    let mut object = policy(json!({ "ingress": ["10.0.0.0/8"], "nodes": { "a": "b" } }));
    object["specs"] = json!([{ "x": 1 }]);
    let made = on
        .post(&format!("{}?fieldManager=one", policies(&on)), object)
        .await;
    let changed = on
        .merge(
            &format!("{path}?fieldManager=two"),
            json!({ "specs": [{ "x": 2 }], "spec": { "ingress": [] } }),
        )
        .await;
    json!([made.told(), changed.told()])
}
