//! managedFields after create, update and patch.

use http::Request;
use kube::client::Body;
use serde_json::{Value, json};

use crate::creating::{GADGETS, gadget, widget};
use crate::subject::{JSON, Subject};

crate::behaviours![
    who_creates_manages_all_of_it,
    who_changes_a_field_manages_it,
    who_removes_a_field_manages_nothing,
    who_says_the_same_manages_nothing,
    who_manages_nothing_any_more_is_forgotten,
    the_user_agent_names_who_gives_no_manager,
    the_status_has_managers_of_its_own,
    a_status_write_that_says_more_is_noted,
    a_kind_without_status_subresource_has_one_manager,
    managers_may_be_sent_back_as_they_were,
    managers_can_be_changed_by_a_client,
    managers_can_be_forgotten,
    what_was_there_before_the_first_apply_is_kept_apart,
    the_oldest_of_many_writers_become_one,
    generated_names_are_managed,
    finalizers_are_managed_one_by_one,
    named_entries_are_managed_one_by_one,
    a_node_is_managed_in_parts,
    two_addresses_of_a_type_are_one_field,
    a_lease_is_managed_field_by_field,
    an_event_is_managed_with_its_references_whole,
    a_namespace_is_managed_with_its_label,
    a_config_map_is_managed_key_by_key,
    the_keys_of_a_config_map_are_checked,
    a_config_map_can_be_made_immutable,
    a_mark_for_deletion_changes_no_manager,
];

async fn who_creates_manages_all_of_it(on: Subject) -> Value {
    let mut object = widget("a");
    object["metadata"]["labels"] = json!({ "l": "m" });
    object["spec"] = json!({
        "size": 1, "names": { "a": "1" }, "tags": ["t"], "parts": [{ "name": "p" }], "few": [1, 2], "free": { "x": { "y": [] } }, "port": 1,
        "either": { "a": "x" }, "note": null,
    });
    object["status"] = json!({ "phase": "x" });
    let secret = json!({ "metadata": { "name": "a" }, "data": { "x": "" }, "stringData": { "y": "z" }, "type": "a.test/b" });
    json!([
        on.post(&on.widgets(), object).await.told(),
        on.post(&on.secrets(), secret).await.told()
    ])
}

async fn who_changes_a_field_manages_it(on: Subject) -> Value {
    let made = on
        .made(&format!("{}?fieldManager=one", on.widgets()), widget("a"))
        .await;
    let path = format!("{}/a", on.widgets());
    let patched = on
        .merge(
            &format!("{path}?fieldManager=two"),
            json!({ "spec": { "size": 2, "names": { "a": "1" } } }),
        )
        .await;
    let mut object = patched.body.clone();
    object["spec"]["names"]["b"] = "2".into();
    object["metadata"]["annotations"] = json!({ "x": "y" });
    let put = on.put(&format!("{path}?fieldManager=three"), object).await;
    let steps = json!([{ "op": "replace", "path": "/spec/names/a", "value": "9" }]);
    let stepped = on.steps(&format!("{path}?fieldManager=one"), steps).await;
    assert!(made["metadata"]["managedFields"].is_array());
    json!([patched.told(), put.told(), stepped.told()])
}

async fn who_removes_a_field_manages_nothing(on: Subject) -> Value {
    let mut object = widget("a");
    object["spec"] = json!({ "size": 1, "names": { "a": "1" }, "color": "red" });
    on.made(&format!("{}?fieldManager=one", on.widgets()), object)
        .await;
    let path = format!("{}/a?fieldManager=two", on.widgets());
    let some = on
        .merge(
            &path,
            json!({ "spec": { "names": { "a": null }, "color": null } }),
        )
        .await;
    json!([
        some.told(),
        on.merge(&path, json!({ "spec": { "names": null } }))
            .await
            .told()
    ])
}

async fn who_says_the_same_manages_nothing(on: Subject) -> Value {
    let made = on
        .made(&format!("{}?fieldManager=one", on.widgets()), widget("a"))
        .await;
    let path = format!("{}/a?fieldManager=two", on.widgets());
    let seen = on.merge(&path, json!({ "spec": { "size": 1 } })).await;
    assert_eq!(seen.body, made);
    seen.told()
}

async fn who_manages_nothing_any_more_is_forgotten(on: Subject) -> Value {
    on.made(
        &format!("{}?fieldManager=one", on.secrets()),
        json!({ "metadata": { "name": "a" } }),
    )
    .await;
    let path = format!("{}/a", on.secrets());
    on.merge(
        &format!("{path}?fieldManager=two"),
        json!({ "data": { "x": "eA==" } }),
    )
    .await;
    let taken = on
        .merge(
            &format!("{path}?fieldManager=three"),
            json!({ "data": { "x": "eQ==" } }),
        )
        .await;
    json!([
        taken.told(),
        on.merge(&format!("{path}?fieldManager=one"), json!({ "data": null }))
            .await
            .told()
    ])
}

async fn the_user_agent_names_who_gives_no_manager(on: Subject) -> Value {
    let mut seen = Vec::new();
    for agent in [
        "kubectl/v1.34 (linux)",
        "plain",
        "/nothing",
        "with space/1",
        &"long".repeat(40),
    ] {
        let body = json!({ "metadata": { "generateName": "a-" }, "data": { "x": "" } })
            .to_string()
            .into_bytes();
        let request = Request::post(on.secrets())
            .header("content-type", JSON)
            .header("accept", JSON)
            .header("user-agent", agent);
        let answer = on
            .client
            .send(request.body(Body::from(body)).unwrap())
            .await
            .unwrap();
        let bytes = answer.into_body().collect_bytes().await.unwrap();
        let made: Value = serde_json::from_slice(&bytes).unwrap();
        seen.push(made["metadata"]["managedFields"][0]["manager"].clone());
    }
    json!(seen)
}

async fn the_status_has_managers_of_its_own(on: Subject) -> Value {
    on.made(&format!("{}?fieldManager=one", on.widgets()), widget("a"))
        .await;
    let path = format!("{}/a/status?fieldManager=one", on.widgets());
    let first = on.merge(&path, json!({ "status": { "phase": "x" } })).await;
    let second = on
        .merge(
            &path.replace("=one", "=two"),
            json!({ "status": { "phase": "y", "seen": 3 } }),
        )
        .await;
    let none = on.merge(&path, json!({ "status": null })).await;
    json!([first.told(), second.told(), none.told()])
}

async fn a_status_write_that_says_more_is_noted(on: Subject) -> Value {
    let made = on
        .made(&format!("{}?fieldManager=one", on.widgets()), widget("a"))
        .await;
    let path = format!("{}/a/status?fieldManager=two", on.widgets());
    let seen = on
        .merge(
            &path,
            json!({ "metadata": { "labels": { "a": "b" } }, "spec": { "size": 9 } }),
        )
        .await;
    assert!(seen.version() > crate::subject::version(&made));
    seen.told()
}

async fn a_kind_without_status_subresource_has_one_manager(on: Subject) -> Value {
    let mut object = gadget(&on.own("a"));
    object["status"] = json!({ "phase": "x" });
    on.post(&format!("{GADGETS}?fieldManager=one"), object)
        .await
        .parts(&["/metadata/managedFields"])
}

async fn managers_may_be_sent_back_as_they_were(on: Subject) -> Value {
    let mut made = on
        .made(
            &format!("{}?fieldManager=one", on.secrets()),
            json!({ "metadata": { "name": "a" }, "data": { "x": "" } }),
        )
        .await;
    made["data"]["y"] = "eQ==".into();
    let path = format!("{}/a?fieldManager=two", on.secrets());
    let put = on.put(&path, made.clone()).await;
    made["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("managedFields");
    made["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("resourceVersion");
    made["data"]["z"] = "eg==".into();
    json!([put.told(), on.put(&path, made).await.told()])
}

async fn managers_can_be_changed_by_a_client(on: Subject) -> Value {
    on.made(
        &format!("{}?fieldManager=one", on.secrets()),
        json!({ "metadata": { "name": "a" }, "data": { "x": "" } }),
    )
    .await;
    let path = format!("{}/a", on.secrets());
    let entry = json!({ "manager": "other", "operation": "Apply", "apiVersion": "v1", "time": "2024-01-01T00:00:00Z",
        "fieldsType": "FieldsV1", "fieldsV1": { "f:data": { "f:x": {} } } });
    on.merge(
        &format!("{path}?fieldManager=two"),
        json!({ "metadata": { "managedFields": [entry] }, "data": { "y": "" } }),
    )
    .await
    .told()
}

async fn managers_can_be_forgotten(on: Subject) -> Value {
    let mut seen = Vec::new();
    for (name, none) in [("a", json!([])), ("b", json!([{}])), ("c", Value::Null)] {
        on.made(
            &on.secrets(),
            json!({ "metadata": { "name": name }, "data": { "x": "" } }),
        )
        .await;
        let path = format!("{}/{name}", on.secrets());
        seen.push(
            on.merge(&path, json!({ "metadata": { "managedFields": none } }))
                .await
                .told(),
        );
        seen.push(on.merge(&path, json!({ "data": { "y": "" } })).await.told());
    }
    json!(seen)
}

async fn what_was_there_before_the_first_apply_is_kept_apart(on: Subject) -> Value {
    on.made(
        &on.secrets(),
        json!({ "metadata": { "name": "a", "labels": { "l": "m" } }, "data": { "x": "" } }),
    )
    .await;
    let path = format!("{}/a", on.secrets());
    on.merge(&path, json!({ "metadata": { "managedFields": [] } }))
        .await;
    let wanted = |value: &str| json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "a" }, "data": { "x": value, "y": "" } });
    json!([
        on.apply("one", &path, wanted("eA==")).await.told(),
        on.apply("one", &path, wanted("")).await.told()
    ])
}

async fn the_oldest_of_many_writers_become_one(on: Subject) -> Value {
    on.made(
        &format!("{}?fieldManager=w00", on.secrets()),
        json!({ "metadata": { "name": "a" } }),
    )
    .await;
    let path = format!("{}/a", on.secrets());
    let mut last = Value::Null;
    for at in 1..=12 {
        let key = format!("k{at:02}");
        last = on
            .merge(
                &format!("{path}?fieldManager=w{at:02}"),
                json!({ "data": { key: "" } }),
            )
            .await
            .told();
    }
    last
}

async fn generated_names_are_managed(on: Subject) -> Value {
    on.post(
        &on.secrets(),
        json!({ "metadata": { "generateName": "a-" } }),
    )
    .await
    .parts(&["/metadata/managedFields"])
}

async fn finalizers_are_managed_one_by_one(on: Subject) -> Value {
    let mut object = widget("a");
    object["metadata"]["finalizers"] = json!(["a.test/x"]);
    object["metadata"]["ownerReferences"] =
        json!([{ "apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u1" }]);
    on.made(&format!("{}?fieldManager=one", on.widgets()), object)
        .await;
    let path = format!("{}/a", on.widgets());
    let more = on
        .merge(
            &format!("{path}?fieldManager=two"),
            json!({ "metadata": { "finalizers": ["a.test/y", "a.test/x"] } }),
        )
        .await;
    let less = on
        .merge(
            &format!("{path}?fieldManager=three"),
            json!({ "metadata": { "finalizers": ["a.test/y"] } }),
        )
        .await;
    json!([more.told(), less.told()])
}

async fn named_entries_are_managed_one_by_one(on: Subject) -> Value {
    let mut object = widget("a");
    object["spec"]["parts"] = json!([{ "name": "a" }, { "name": "b", "count": 2 }]);
    on.made(&format!("{}?fieldManager=one", on.widgets()), object)
        .await;
    let path = format!("{}/a?fieldManager=two", on.widgets());
    let changed = on
        .merge(
            &path,
            json!({ "spec": { "parts": [{ "name": "b", "count": 3 }, { "name": "c" }] } }),
        )
        .await;
    json!([
        changed.told(),
        on.merge(&path, json!({ "spec": { "parts": [] } }))
            .await
            .told()
    ])
}

async fn a_node_is_managed_in_parts(on: Subject) -> Value {
    let (name, time) = (on.own("n"), "2026-01-01T00:00:00Z");
    let node = json!({
        "metadata": { "name": name, "annotations": { "a.test/x": "1" } }, "spec": { "podCIDR": "10.0.0.0/24", "providerID": "x" },
        "status": { "capacity": { "cpu": "1" }, "addresses": [{ "type": "InternalIP", "address": "192.0.2.1" }],
            "conditions": [{ "type": "Ready", "status": "True", "lastHeartbeatTime": time, "lastTransitionTime": time }] },
    });
    let made = on.post("/api/v1/nodes?fieldManager=one", node).await;
    let path = format!("/api/v1/nodes/{name}");
    let spec = on
        .merge(
            &format!("{path}?fieldManager=two"),
            json!({ "metadata": { "annotations": { "a.test/y": "2" } }, "spec": { "unschedulable": true } }),
        )
        .await;
    let conditions = json!([
        { "type": "Ready", "status": "False", "reason": "Down", "lastHeartbeatTime": time, "lastTransitionTime": time },
        { "type": "Extra", "status": "True", "lastHeartbeatTime": time, "lastTransitionTime": time },
    ]);
    let status = on
        .merge(
            &format!("{path}/status?fieldManager=three"),
            json!({ "status": { "conditions": conditions } }),
        )
        .await;
    json!([
        made.parts(&["/metadata"]),
        spec.parts(&["/metadata"]),
        status.parts(&["/metadata"])
    ])
}

async fn two_addresses_of_a_type_are_one_field(on: Subject) -> Value {
    let name = on.own("n");
    let address = |address: &str| json!({ "type": "InternalIP", "address": address });
    on.made(
        "/api/v1/nodes?fieldManager=one",
        json!({ "metadata": { "name": name } }),
    )
    .await;
    let path = format!("/api/v1/nodes/{name}/status");
    let mut seen = Vec::new();
    for (manager, addresses) in [
        ("two", json!([address("192.0.2.1"), address("192.0.2.2")])),
        ("three", json!([address("192.0.2.1"), address("192.0.2.3")])),
        ("four", json!([address("192.0.2.1")])),
        ("five", json!([address("192.0.2.1"), address("192.0.2.2")])),
    ] {
        let patch = json!({ "status": { "addresses": addresses } });
        seen.push(
            on.merge(&format!("{path}?fieldManager={manager}"), patch)
                .await
                .parts(&["/metadata/managedFields"]),
        );
    }
    json!(seen)
}

async fn a_lease_is_managed_field_by_field(on: Subject) -> Value {
    let time = "2026-01-01T00:00:00.000000Z";
    let lease = json!({ "metadata": { "name": "a" }, "spec": { "holderIdentity": "x", "leaseDurationSeconds": 15, "renewTime": time } });
    let made = on
        .post(&format!("{}?fieldManager=one", on.leases()), lease)
        .await;
    let taken = on
        .merge(
            &format!("{}/a?fieldManager=two", on.leases()),
            json!({ "spec": { "holderIdentity": "y" } }),
        )
        .await;
    json!([made.told(), taken.told()])
}

async fn an_event_is_managed_with_its_references_whole(on: Subject) -> Value {
    let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", on.namespace);
    let event = json!({
        "metadata": { "name": "a" }, "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "a.test/c",
        "reportingInstance": "i", "action": "Act", "reason": "Why", "note": "text", "type": "Normal",
        "regarding": { "kind": "Secret", "name": "s", "namespace": on.namespace },
    });
    let made = on.post(&format!("{path}?fieldManager=one"), event).await;
    let series =
        json!({ "series": { "count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z" } });
    let again = on
        .merge(&format!("{path}/a?fieldManager=two"), series)
        .await;
    json!([
        made.parts(&["/metadata/managedFields"]),
        again.parts(&["/metadata/managedFields"])
    ])
}

async fn a_namespace_is_managed_with_its_label(on: Subject) -> Value {
    let made = on
        .post(
            "/api/v1/namespaces?fieldManager=one",
            json!({ "metadata": { "name": on.own("x") } }),
        )
        .await;
    let path = format!("/api/v1/namespaces/{}", on.own("x"));
    json!([
        made.told(),
        on.merge(
            &format!("{path}?fieldManager=two"),
            json!({ "metadata": { "labels": { "a": "b" } } })
        )
        .await
        .told()
    ])
}

async fn a_config_map_is_managed_key_by_key(on: Subject) -> Value {
    let object =
        json!({ "metadata": { "name": "a" }, "data": { "x": "1" }, "binaryData": { "y": "eQ==" } });
    let made = on
        .post(&format!("{}?fieldManager=one", on.config_maps()), object)
        .await;
    let path = format!("{}/a?fieldManager=two", on.config_maps());
    json!([
        made.told(),
        on.merge(&path, json!({ "data": { "x": "2", "z": "" } }))
            .await
            .told()
    ])
}

async fn the_keys_of_a_config_map_are_checked(on: Subject) -> Value {
    let mut seen = Vec::new();
    for (data, binary) in [
        (json!({ "a b": "1" }), json!({})),
        (json!({}), json!({ "a/b": "" })),
        (json!({ "x": "1" }), json!({ "x": "" })),
        (json!({ "x": 1 }), json!({})),
        (json!({}), json!({ "x": "no base64" })),
        (json!({ "x": "y".repeat((1 << 20) + 1) }), json!({})),
    ] {
        seen.push(
            on.post(
                &on.config_maps(),
                json!({ "metadata": { "name": "a" }, "data": data, "binaryData": binary }),
            )
            .await
            .brief(),
        );
    }
    json!(seen)
}

async fn a_config_map_can_be_made_immutable(on: Subject) -> Value {
    on.made(
        &on.config_maps(),
        json!({ "metadata": { "name": "a" }, "data": { "x": "1" }, "immutable": true }),
    )
    .await;
    let path = format!("{}/a", on.config_maps());
    json!([
        on.merge(&path, json!({ "data": { "x": "2" } }))
            .await
            .told(),
        on.merge(&path, json!({ "immutable": false })).await.told(),
        on.merge(&path, json!({ "metadata": { "labels": { "a": "b" } } }))
            .await
            .told(),
    ])
}

async fn a_mark_for_deletion_changes_no_manager(on: Subject) -> Value {
    let mut object = widget("a");
    object["metadata"]["finalizers"] = json!(["a.test/x"]);
    on.made(&format!("{}?fieldManager=one", on.widgets()), object)
        .await;
    let path = format!("{}/a", on.widgets());
    on.delete(&path).await;
    let marked = on.get(&path).await;
    let changed = on
        .merge(
            &format!("{path}?fieldManager=two"),
            json!({ "spec": { "size": 2 } }),
        )
        .await;
    json!([marked.told(), changed.told()])
}
