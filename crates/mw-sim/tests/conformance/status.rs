//! The subresource `status`.

use serde_json::{Value, json};

use crate::creating::{GADGETS, gadget, widget};
use crate::subject::Subject;

crate::behaviours![
    the_status_is_written_at_its_own_path_only,
    at_the_path_of_the_status_all_else_is_ignored,
    a_status_without_content_is_removed,
    defaults_of_the_status_are_filled_in,
    a_status_is_validated,
    a_status_write_needs_the_right_version_too,
    a_kind_without_status_subresource_has_no_such_path,
    the_status_can_be_read_alone,
    the_status_of_a_node_is_apart_from_its_spec,
    metadata_can_be_changed_with_the_status_of_a_node,
];

async fn the_status_is_written_at_its_own_path_only(on: Subject) -> Value {
    let path = format!("{}/a", on.widgets());
    on.made(&on.widgets(), widget("a")).await;
    let ignored = on
        .merge(&path, json!({ "status": { "phase": "Done" } }))
        .await;
    let written = on
        .merge(
            &format!("{path}/status"),
            json!({ "status": { "phase": "Done" } }),
        )
        .await;
    let kept = on
        .merge(&path, json!({ "spec": { "size": 2 }, "status": null }))
        .await;
    assert_eq!(ignored.body.get("status"), None);
    json!([ignored.told(), written.told(), kept.told()])
}

async fn at_the_path_of_the_status_all_else_is_ignored(on: Subject) -> Value {
    on.made(&on.widgets(), widget("a")).await;
    let patch = json!({
        "metadata": { "labels": { "a": "b" }, "finalizers": ["a.test/b"] }, "spec": { "size": 5 }, "status": { "phase": "Done" },
    });
    on.merge(&format!("{}/a/status", on.widgets()), patch)
        .await
        .told()
}

async fn a_status_without_content_is_removed(on: Subject) -> Value {
    let path = format!("{}/a/status", on.widgets());
    on.made(&on.widgets(), widget("a")).await;
    on.merge(&path, json!({ "status": { "phase": "Done" } }))
        .await;
    on.merge(&path, json!({ "status": null })).await.told()
}

async fn defaults_of_the_status_are_filled_in(on: Subject) -> Value {
    on.made(&on.widgets(), widget("a")).await;
    on.merge(
        &format!("{}/a/status", on.widgets()),
        json!({ "status": {} }),
    )
    .await
    .told()
}

async fn a_status_is_validated(on: Subject) -> Value {
    on.made(&on.widgets(), widget("a")).await;
    let path = format!("{}/a/status", on.widgets());
    let wrong = on.merge(&path, json!({ "status": { "phase": 7 } })).await;
    json!([
        wrong.told(),
        on.merge(
            &path,
            json!({ "status": { "phase": "Done", "unknown": 1 } })
        )
        .await
        .told()
    ])
}

async fn a_status_write_needs_the_right_version_too(on: Subject) -> Value {
    let made = on.made(&on.widgets(), widget("a")).await;
    let path = format!("{}/a", on.widgets());
    on.merge(&path, json!({ "spec": { "size": 2 } })).await;
    let metadata = json!({ "resourceVersion": made["metadata"]["resourceVersion"] });
    let patched = on
        .merge(
            &format!("{path}/status"),
            json!({ "metadata": metadata, "status": { "phase": "Done" } }),
        )
        .await;
    let put = on.put(&format!("{path}/status"), made).await;
    let mut unnamed = widget("a");
    unnamed["status"] = json!({ "phase": "Done" });
    json!([
        patched.told(),
        put.told(),
        on.put(&format!("{path}/status"), unnamed).await.told()
    ])
}

async fn a_kind_without_status_subresource_has_no_such_path(on: Subject) -> Value {
    let name = on.own("a");
    on.made(GADGETS, gadget(&name)).await;
    let path = format!("{GADGETS}/{name}/status");
    json!([
        on.get(&path).await.brief(),
        on.merge(&path, json!({ "status": { "phase": "Done" } }))
            .await
            .brief()
    ])
}

async fn the_status_can_be_read_alone(on: Subject) -> Value {
    on.made(&on.widgets(), widget("a")).await;
    on.get(&format!("{}/a/status", on.widgets())).await.told()
}

async fn the_status_of_a_node_is_apart_from_its_spec(on: Subject) -> Value {
    let path = format!("/api/v1/nodes/{}", on.own("a"));
    let node = json!({
        "metadata": { "name": on.own("a") }, "spec": { "podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"] },
        "status": { "addresses": [{ "type": "InternalIP", "address": "10.0.0.1" }] },
    });
    let parts = ["/spec", "/status/addresses", "/metadata/generation"];
    let made = on.post("/api/v1/nodes", node).await.parts(&parts);
    let change = json!({ "spec": { "unschedulable": true }, "status": { "addresses": [{ "type": "ExternalIP", "address": "1.1.1.1" }] } });
    let main = on.merge(&path, change.clone()).await.parts(&parts);
    json!([
        made,
        main,
        on.merge(&format!("{path}/status"), change)
            .await
            .parts(&parts)
    ])
}

async fn metadata_can_be_changed_with_the_status_of_a_node(on: Subject) -> Value {
    let path = format!("/api/v1/nodes/{}/status", on.own("a"));
    on.made(
        "/api/v1/nodes",
        json!({ "metadata": { "name": on.own("a") } }),
    )
    .await;
    let patch = json!({ "metadata": { "annotations": { "a": "b" }, "labels": { "c": "d" } } });
    on.merge(&path, patch)
        .await
        .parts(&["/metadata/annotations", "/metadata/labels"])
}
