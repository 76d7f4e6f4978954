//! Nodes, Secrets, Leases, Events and Namespaces.

use serde_json::{Value, json};

use crate::subject::Subject;

crate::behaviours![
    a_secret_merges_its_plain_texts,
    a_secret_holds_base64_only,
    the_keys_of_a_secret_are_checked,
    the_type_of_a_secret_stays,
    a_secret_can_be_made_immutable,
    a_certificate_needs_its_key,
    a_large_secret_is_refused,
    unknown_fields_of_built_in_kinds_are_dropped,
    wrong_types_in_built_in_kinds_are_refused,
    a_lease_is_taken_renewed_and_released,
    of_two_that_take_a_lease_one_wins,
    a_lease_is_checked,
    an_event_is_taken_as_it_is,
    an_event_is_checked,
    an_event_lies_where_its_object_lies,
    a_node_keeps_its_addresses_and_annotations,
    annotations_of_a_node_come_and_go,
    the_pod_networks_of_a_node_stay,
    a_new_namespace_is_active_and_labelled,
    there_are_namespaces_from_the_beginning,
    generations_are_for_custom_resources,
    secrets_come_in_pages,
    secrets_are_deleted_by_selector,
    a_node_is_watched_by_name,
    a_node_status_can_be_put,
];

async fn a_secret_merges_its_plain_texts(on: Subject) -> Value {
    let secret = json!({ "metadata": { "name": "a" }, "data": { "x": "eA==", "y": "eQ==" }, "stringData": { "y": "ü", "z": "" } });
    let made = on.post(&on.secrets(), secret).await;
    let changed = on
        .merge(
            &format!("{}/a", on.secrets()),
            json!({ "stringData": { "x": "new" }, "data": { "y": null } }),
        )
        .await;
    json!([made.told(), changed.told()])
}

async fn a_secret_holds_base64_only(on: Subject) -> Value {
    let mut seen = Vec::new();
    for data in [
        json!({ "x": "not base64" }),
        json!({ "x": "eA=" }),
        json!({ "x": 7 }),
        json!({ "x": "" }),
        json!({ "x": null }),
    ] {
        seen.push(
            on.post(
                &on.secrets(),
                json!({ "metadata": { "name": "a" }, "data": data }),
            )
            .await
            .brief(),
        );
        on.delete(&format!("{}/a", on.secrets())).await;
    }
    json!(seen)
}

async fn the_keys_of_a_secret_are_checked(on: Subject) -> Value {
    let mut seen = Vec::new();
    for key in ["a b", "", "..", "a/b", "a.b-c_D1"] {
        seen.push(
            on.post(
                &on.secrets(),
                json!({ "metadata": { "name": "a" }, "data": { key: "" } }),
            )
            .await
            .brief(),
        );
    }
    json!(seen)
}

async fn the_type_of_a_secret_stays(on: Subject) -> Value {
    on.made(&on.secrets(), json!({ "metadata": { "name": "a" } }))
        .await;
    let path = format!("{}/a", on.secrets());
    json!([
        on.merge(&path, json!({ "type": "x/y" })).await.told(),
        on.merge(&path, json!({ "type": null })).await.told()
    ])
}

async fn a_certificate_needs_its_key(on: Subject) -> Value {
    let mut seen = Vec::new();
    for data in [
        json!({}),
        json!({ "tls.crt": "" }),
        json!({ "tls.crt": "", "tls.key": "", "ca.crt": "eA==" }),
    ] {
        let secret =
            json!({ "metadata": { "name": "a" }, "type": "kubernetes.io/tls", "data": data });
        seen.push(on.post(&on.secrets(), secret).await.told());
    }
    seen.push(
        on.merge(
            &format!("{}/a", on.secrets()),
            json!({ "data": { "tls.key": null } }),
        )
        .await
        .told(),
    );
    json!(seen)
}

async fn a_secret_can_be_made_immutable(on: Subject) -> Value {
    on.made(
        &on.secrets(),
        json!({ "metadata": { "name": "a" }, "immutable": true, "data": { "x": "" } }),
    )
    .await;
    let path = format!("{}/a", on.secrets());
    json!([
        on.merge(&path, json!({ "data": { "y": "" } }))
            .await
            .brief(),
        on.merge(&path, json!({ "immutable": false })).await.brief(),
        on.merge(&path, json!({ "metadata": { "labels": { "a": "b" } } }))
            .await
            .told(),
    ])
}

async fn a_large_secret_is_refused(on: Subject) -> Value {
    let of = |length: usize| json!({ "metadata": { "name": "a" }, "stringData": { "x": "y".repeat(length) } });
    json!([
        on.post(&on.secrets(), of((1 << 20) + 8)).await.brief(),
        on.post(&on.secrets(), of(1 << 20)).await.code
    ])
}

async fn unknown_fields_of_built_in_kinds_are_dropped(on: Subject) -> Value {
    let secret = on
        .post(
            &on.secrets(),
            json!({ "metadata": { "name": "a" }, "spec": 1, "Data": {} }),
        )
        .await
        .told();
    let node = json!({ "metadata": { "name": on.own("a") }, "spec": { "unknown": 1, "podCIDR": "10.0.0.0/24" }, "more": {} });
    json!([
        secret,
        on.post("/api/v1/nodes", node)
            .await
            .parts(&["/spec", "/more"])
    ])
}

async fn wrong_types_in_built_in_kinds_are_refused(on: Subject) -> Value {
    let node = |spec: Value| json!({ "metadata": { "name": on.own("a") }, "spec": spec });
    json!([
        on.post("/api/v1/nodes", node(json!([]))).await.brief(),
        on.post("/api/v1/nodes", node(json!({ "podCIDRs": "x" })))
            .await
            .brief(),
        on.post("/api/v1/nodes", node(json!({ "unschedulable": "x" })))
            .await
            .brief(),
        on.post(
            &on.leases(),
            json!({ "metadata": { "name": "a" }, "spec": { "renewTime": "now" } })
        )
        .await
        .brief(),
        on.post(
            &on.leases(),
            json!({ "metadata": { "name": "a" }, "spec": { "leaseDurationSeconds": 1.5 } })
        )
        .await
        .brief(),
    ])
}

fn lease(holder: &str, seconds: u32) -> Value {
    json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": "a" }, "spec": {
        "holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 0,
        "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": format!("2026-01-01T00:00:{seconds:02}.000000Z"),
    }})
}

async fn a_lease_is_taken_renewed_and_released(on: Subject) -> Value {
    let path = format!("{}/a", on.leases());
    let taken = on.post(&on.leases(), lease("one", 0)).await;
    let mut renewed = lease("one", 2);
    renewed["metadata"]["resourceVersion"] = taken.body["metadata"]["resourceVersion"].clone();
    let renewed = on.put(&path, renewed).await;
    let mut released = renewed.body.clone();
    released["spec"] = json!({ "leaseTransitions": 1, "renewTime": "2026-01-01T00:00:03.000000Z", "leaseDurationSeconds": 1 });
    json!([
        taken.told(),
        renewed.told(),
        on.put(&path, released).await.told()
    ])
}

async fn of_two_that_take_a_lease_one_wins(on: Subject) -> Value {
    let path = format!("{}/a", on.leases());
    let found = on.post(&on.leases(), lease("old", 0)).await;
    let mut seen = vec![on.post(&on.leases(), lease("two", 0)).await.told()];
    for holder in ["one", "two"] {
        let mut taken = lease(holder, 20);
        taken["metadata"]["resourceVersion"] = found.body["metadata"]["resourceVersion"].clone();
        seen.push(on.put(&path, taken).await.told());
    }
    json!(seen)
}

async fn a_lease_is_checked(on: Subject) -> Value {
    let mut seen = Vec::new();
    for spec in [
        json!({ "leaseDurationSeconds": 0 }),
        json!({ "leaseDurationSeconds": -1 }),
        json!({ "leaseTransitions": -1 }),
        json!({ "holderIdentity": "" }),
        json!({}),
    ] {
        seen.push(
            on.post(
                &on.leases(),
                json!({ "metadata": { "name": "a" }, "spec": spec }),
            )
            .await
            .told(),
        );
    }
    json!(seen)
}

fn events(on: &Subject) -> String {
    format!("/apis/events.k8s.io/v1/namespaces/{}/events", on.namespace)
}

fn event(on: &Subject) -> Value {
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": { "generateName": "a-" },
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "conformance.test/x", "reportingInstance": "x-0",
        "action": "Try", "reason": "Tried", "note": "It was tried.", "type": "Normal",
        "regarding": { "apiVersion": "conformance.test/v1", "kind": "Widget", "name": "a", "namespace": on.namespace },
    })
}

const EVENT_PARTS: [&str; 7] = [
    "/eventTime",
    "/reportingController",
    "/action",
    "/reason",
    "/note",
    "/type",
    "/regarding",
];

async fn an_event_is_taken_as_it_is(on: Subject) -> Value {
    on.post(&events(&on), event(&on)).await.parts(&EVENT_PARTS)
}

async fn an_event_is_checked(on: Subject) -> Value {
    let mut seen = Vec::new();
    for (field, value) in [
        ("eventTime", Value::Null),
        ("reportingController", Value::Null),
        ("reportingInstance", Value::Null),
        ("action", Value::Null),
        ("reason", json!("")),
        ("type", json!("Bad")),
        ("note", json!("x".repeat(1025))),
        ("reason", json!("x".repeat(129))),
        ("eventTime", json!("now")),
    ] {
        let mut wrong = event(&on);
        wrong[field] = value;
        seen.push(on.post(&events(&on), wrong).await.brief());
    }
    json!(seen)
}

async fn an_event_lies_where_its_object_lies(on: Subject) -> Value {
    let mut elsewhere = event(&on);
    elsewhere["regarding"]["namespace"] = "default".into();
    let mut nowhere = event(&on);
    nowhere["regarding"]
        .as_object_mut()
        .unwrap()
        .remove("namespace");
    let in_default = on
        .post(
            "/apis/events.k8s.io/v1/namespaces/default/events",
            nowhere.clone(),
        )
        .await;
    json!([
        on.post(&events(&on), elsewhere).await.brief(),
        on.post(&events(&on), nowhere).await.brief(),
        in_default.code
    ])
}

fn node(on: &Subject) -> Value {
    json!({
        "metadata": { "name": on.own("a"), "annotations": { "kilo.squat.ai/key": "x" }, "labels": { "topology.kubernetes.io/region": "r" } },
        "spec": { "podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"], "unschedulable": false },
        "status": {
            "addresses": [{ "type": "InternalIP", "address": "10.0.0.1" }, { "type": "Hostname", "address": "a" }],
            "conditions": [{ "type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z" }],
            "capacity": { "cpu": "2", "memory": "4Gi" },
        },
    })
}

async fn a_node_keeps_its_addresses_and_annotations(on: Subject) -> Value {
    let parts = [
        "/kind",
        "/metadata/annotations",
        "/metadata/labels",
        "/metadata/generation",
        "/spec/podCIDR",
        "/spec/podCIDRs",
        "/status/addresses",
    ];
    let made = on.post("/api/v1/nodes", node(&on)).await.parts(&parts);
    json!([
        made,
        on.get(&format!("/api/v1/nodes/{}", on.own("a")))
            .await
            .parts(&parts)
    ])
}

async fn annotations_of_a_node_come_and_go(on: Subject) -> Value {
    on.made("/api/v1/nodes", node(&on)).await;
    let path = format!("/api/v1/nodes/{}", on.own("a"));
    let part = ["/metadata/annotations"];
    let more = on
        .merge(
            &path,
            json!({ "metadata": { "annotations": { "b": "c" } } }),
        )
        .await
        .parts(&part);
    let none = on
        .merge(&path, json!({ "metadata": { "annotations": null } }))
        .await
        .parts(&part);
    let steps = json!([{ "op": "add", "path": "/metadata/annotations", "value": { "d": "e" } }]);
    json!([more, none, on.steps(&path, steps).await.parts(&part)])
}

async fn the_pod_networks_of_a_node_stay(on: Subject) -> Value {
    on.made("/api/v1/nodes", node(&on)).await;
    let path = format!("/api/v1/nodes/{}", on.own("a"));
    let other = on
        .merge(
            &path,
            json!({ "spec": { "podCIDR": "10.2.0.0/24", "podCIDRs": ["10.2.0.0/24"] } }),
        )
        .await;
    let none = on
        .merge(
            &path,
            json!({ "spec": { "podCIDR": null, "podCIDRs": null } }),
        )
        .await;
    let bare = on.own("b");
    on.made("/api/v1/nodes", json!({ "metadata": { "name": bare } }))
        .await;
    let late = on
        .merge(
            &format!("/api/v1/nodes/{bare}"),
            json!({ "spec": { "podCIDR": "10.2.0.0/24", "podCIDRs": ["10.2.0.0/24"] } }),
        )
        .await;
    let both = |networks: Value| json!({ "metadata": { "name": on.own("c") }, "spec": { "podCIDRs": networks } });
    let same_family = on
        .post("/api/v1/nodes", both(json!(["10.2.0.0/24", "10.3.0.0/24"])))
        .await;
    let dual = on
        .post("/api/v1/nodes", both(json!(["10.2.0.0/24", "fd00::/64"])))
        .await;
    json!([
        same_family.brief(),
        dual.parts(&["/spec/podCIDR", "/spec/podCIDRs"]),
        other.brief(),
        none.brief(),
        late.parts(&["/spec/podCIDR", "/spec/podCIDRs"])
    ])
}

async fn a_new_namespace_is_active_and_labelled(on: Subject) -> Value {
    let name = on.own("a");
    let made =
        on.post("/api/v1/namespaces", json!({ "metadata": { "name": name, "labels": { "a": "b" } }, "spec": { "finalizers": [] } })).await;
    let changed = on
        .merge(
            &format!("/api/v1/namespaces/{name}"),
            json!({ "metadata": { "labels": null }, "status": { "phase": "x" } }),
        )
        .await;
    json!([made.told(), changed.told()])
}

async fn there_are_namespaces_from_the_beginning(on: Subject) -> Value {
    json!([
        on.get("/api/v1/namespaces/default").await.told(),
        on.get("/api/v1/namespaces/kube-system").await.told()
    ])
}

async fn generations_are_for_custom_resources(on: Subject) -> Value {
    let lease = on.made(&on.leases(), lease("one", 0)).await;
    let secret = on
        .made(&on.secrets(), json!({ "metadata": { "name": "a" } }))
        .await;
    json!([
        lease["metadata"]["generation"],
        secret["metadata"]["generation"]
    ])
}

async fn secrets_come_in_pages(on: Subject) -> Value {
    for name in ["a", "b", "c"] {
        on.made(&on.secrets(), json!({ "metadata": { "name": name } }))
            .await;
    }
    let first = on.get(&format!("{}?limit=2", on.secrets())).await;
    let token = first.body["metadata"]["continue"].as_str().unwrap();
    let second = on
        .get(&format!("{}?limit=2&continue={token}", on.secrets()))
        .await;
    json!([first.told(), second.told()])
}

async fn secrets_are_deleted_by_selector(on: Subject) -> Value {
    on.made(
        &on.secrets(),
        json!({ "metadata": { "name": "a", "labels": { "x": "y" } } }),
    )
    .await;
    on.made(&on.secrets(), json!({ "metadata": { "name": "b" } }))
        .await;
    let deleted = on
        .delete(&format!("{}?labelSelector=x%3Dy", on.secrets()))
        .await;
    json!([
        deleted.code,
        deleted.body["kind"],
        deleted.names(),
        on.get(&on.secrets()).await.names()
    ])
}

async fn a_node_is_watched_by_name(on: Subject) -> Value {
    let made = on.made("/api/v1/nodes", node(&on)).await;
    let from = crate::subject::version(&made);
    let query = format!(
        "watch=true&fieldSelector=metadata.name%3D{}&resourceVersion={from}",
        on.own("a")
    );
    let mut watch = on.watch(&format!("/api/v1/nodes?{query}")).await;
    on.made(
        "/api/v1/nodes",
        json!({ "metadata": { "name": on.own("b") } }),
    )
    .await;
    on.merge(
        &format!("/api/v1/nodes/{}", on.own("a")),
        json!({ "metadata": { "labels": { "c": "d" } } }),
    )
    .await;
    on.delete(&format!("/api/v1/nodes/{}", on.own("a"))).await;
    json!(watch.shorts().await)
}

async fn a_node_status_can_be_put(on: Subject) -> Value {
    let mut made = on.made("/api/v1/nodes", node(&on)).await;
    let path = format!("/api/v1/nodes/{}/status", on.own("a"));
    made["status"]["addresses"] = json!([{ "type": "InternalIP", "address": "10.0.0.9" }]);
    made["spec"]["unschedulable"] = true.into();
    let parts = ["/status/addresses", "/spec/unschedulable"];
    let right = on.put(&path, made.clone()).await.parts(&parts);
    json!([right, on.put(&path, made).await.told()])
}
