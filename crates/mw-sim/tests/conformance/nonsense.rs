//! Objects with an arbitrary value in one place, like those of people and broken
//! programs. Both sides must accept or reject the same objects, because of the same
//! fields.

use serde_json::{Value, json};

use crate::subject::Subject;

crate::behaviours![
    nonsense_in_a_widget_is_judged_the_same,
    nonsense_in_a_mesh_is_judged_the_same,
    nonsense_in_a_peer_is_judged_the_same,
    nonsense_in_a_node_is_judged_the_same,
    nonsense_in_a_lease_is_judged_the_same,
    nonsense_in_a_secret_is_judged_the_same,
    nonsense_in_an_event_is_judged_the_same,
    nonsense_in_metadata_is_judged_the_same,
];

fn pool() -> Vec<Value> {
    vec![
        Value::Null,
        json!(true),
        json!(0),
        json!(-1),
        json!(1.5),
        json!(7_000_000_000_u64),
        json!(1e30),
        json!(""),
        json!("x"),
        json!("10.0.0.0/8"),
        json!("2026-01-01T00:00:00Z"),
        json!("a b/ü\n"),
        json!([]),
        json!([null]),
        json!(["x"]),
        json!([{}]),
        json!({}),
        json!({ "a": "b" }),
        json!({ "a": 1 }),
    ]
}

/// Collects all paths in an object, except for the root.
fn places(value: &Value, path: &str, all: &mut Vec<String>) {
    let entries: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, field)| (name.replace('/', "~1"), field))
            .collect(),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .map(|(index, item)| (index.to_string(), item))
            .collect(),
        _ => return,
    };
    for (name, below) in entries {
        let path = format!("{path}/{name}");
        all.push(path.clone());
        places(below, &path, all);
    }
}

/// Creates objects with each value of the pool at each path below `parts`, and returns
/// the answers.
async fn judge(on: &Subject, collection: &str, object: &Value, parts: &[&str]) -> Value {
    let mut all = Vec::new();
    places(object, "", &mut all);
    let mut seen = serde_json::Map::new();
    for place in all
        .iter()
        .filter(|place| parts.iter().any(|part| place.starts_with(part)))
    {
        for value in pool() {
            let mut wrong = object.clone();
            *wrong.pointer_mut(place).unwrap() = value.clone();
            let answer = on.post(collection, wrong).await;
            if answer.code == 201 {
                let name = answer.body["metadata"]["name"].as_str().unwrap();
                on.delete(&format!("{collection}/{name}")).await;
            }
            seen.insert(format!("{place} = {value}"), answer.brief());
        }
    }
    json!(seen)
}

async fn nonsense_in_a_widget_is_judged_the_same(on: Subject) -> Value {
    let mut object = crate::creating::widget("a");
    object["spec"] = json!({
        "size": 1, "color": "red", "word": "abc", "mode": "x", "note": "x", "weight": 1, "on": true, "when": "2026-01-01T00:00:00Z",
        "port": 1, "free": { "x": 1 }, "names": { "a": "b" }, "tags": ["a"], "parts": [{ "name": "a", "count": 1 }], "few": [1, 2],
        "either": { "a": "x" },
    });
    judge(&on, &on.widgets(), &object, &["/spec"]).await
}

async fn nonsense_in_a_mesh_is_judged_the_same(on: Subject) -> Value {
    let one = json!({
        "name": "a", "local": true, "podCIDRs": ["10.1.0.0/16"], "wireguardCIDR": "10.4.0.0/16", "serviceCIDR": "10.5.0.0/16",
        "additionalCIDRs": ["10.6.0.0/16"], "persistentKeepalive": 1, "topologyLabel": "x", "wireguardPort": 1,
    });
    let two = json!({ "name": "b", "allowedNetworks": ["10.7.0.0/16"], "kubeconfigSecretRef": { "name": "x", "key": "y" } });
    let mesh = json!({
        "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "ClusterMesh", "metadata": { "name": "a" },
        "spec": { "clusters": [one, two], "cleanupTimeout": "10m", "maxDeletePercent": 50 },
    });
    let path = format!(
        "/apis/kilo.squat.ai/v1alpha1/namespaces/{}/clustermeshes",
        on.namespace
    );
    judge(&on, &path, &mesh, &["/spec"]).await
}

async fn nonsense_in_a_peer_is_judged_the_same(on: Subject) -> Value {
    let peer = json!({
        "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "Peer", "metadata": { "name": on.own("a") },
        "spec": {
            "allowedIPs": ["10.1.0.1/32"], "publicKey": "x", "persistentKeepalive": 1, "presharedKey": "x",
            "endpoint": { "dnsOrIP": { "ip": "1.1.1.1" }, "port": 51820 },
        },
    });
    judge(&on, "/apis/kilo.squat.ai/v1alpha1/peers", &peer, &["/spec"]).await
}

async fn nonsense_in_a_node_is_judged_the_same(on: Subject) -> Value {
    let node = json!({
        "metadata": { "name": on.own("a") },
        "spec": { "podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"], "unschedulable": false, "providerID": "x" },
        "status": { "addresses": [{ "type": "InternalIP", "address": "10.0.0.1" }], "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    judge(&on, "/api/v1/nodes", &node, &["/spec", "/status"]).await
}

async fn nonsense_in_a_lease_is_judged_the_same(on: Subject) -> Value {
    let spec = json!({
        "holderIdentity": "x", "leaseDurationSeconds": 15, "leaseTransitions": 0,
        "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T00:00:00.000000Z",
    });
    judge(
        &on,
        &on.leases(),
        &json!({ "metadata": { "name": "a" }, "spec": spec }),
        &["/spec"],
    )
    .await
}

async fn nonsense_in_a_secret_is_judged_the_same(on: Subject) -> Value {
    let secret = json!({ "metadata": { "name": "a" }, "data": { "x": "eA==" }, "stringData": { "y": "z" }, "type": "x/y", "immutable": true });
    judge(
        &on,
        &on.secrets(),
        &secret,
        &["/data", "/stringData", "/type", "/immutable"],
    )
    .await
}

async fn nonsense_in_an_event_is_judged_the_same(on: Subject) -> Value {
    let event = json!({
        "metadata": { "name": "a" }, "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "conformance.test/x",
        "reportingInstance": "x-0", "action": "Try", "reason": "Tried", "note": "It was tried.", "type": "Normal",
        "regarding": { "apiVersion": "conformance.test/v1", "kind": "Widget", "name": "a", "namespace": on.namespace, "uid": "x" },
    });
    let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", on.namespace);
    let parts = [
        "/eventTime",
        "/reporting",
        "/action",
        "/reason",
        "/note",
        "/type",
        "/regarding",
    ];
    judge(&on, &path, &event, &parts).await
}

async fn nonsense_in_metadata_is_judged_the_same(on: Subject) -> Value {
    let mut object = crate::creating::widget("a");
    object["metadata"] = json!({
        "name": "a", "labels": { "a": "b" }, "annotations": { "a": "b" }, "generation": 1, "uid": "x",
        "creationTimestamp": "2026-01-01T00:00:00Z", "ownerReferences": [{ "apiVersion": "v1", "kind": "x", "name": "y", "uid": "z" }],
    });
    let parts = [
        "/metadata/name",
        "/metadata/labels",
        "/metadata/annotations",
        "/metadata/generation",
        "/metadata/uid",
        "/metadata/creation",
        "/metadata/owner",
    ];
    let secret = json!({ "metadata": object["metadata"] });
    json!([
        judge(&on, &on.widgets(), &object, &parts).await,
        judge(&on, &on.secrets(), &secret, &parts).await
    ])
}
