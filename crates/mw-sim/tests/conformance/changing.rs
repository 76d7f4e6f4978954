//! PUT.

use serde_json::{Value, json};

use crate::creating::{GADGETS, gadget, widget};
use crate::subject::{Subject, version};

crate::behaviours![
    a_put_with_the_right_version_replaces,
    a_put_with_an_old_version_conflicts,
    a_put_without_version_depends_on_the_kind,
    a_put_with_another_uid_conflicts,
    a_put_of_what_is_not_there_depends_on_the_kind,
    a_put_of_another_name_is_refused,
    a_put_without_name_is_refused,
    a_put_of_another_namespace_is_refused,
    a_put_that_changes_nothing_keeps_the_version,
    a_put_removes_what_it_leaves_out,
    a_generation_counts_changes_of_the_spec_only,
    without_status_subresource_a_change_of_the_status_counts_too,
    a_put_can_not_change_what_only_servers_write,
    a_put_can_not_mark_as_deleted,
    a_put_of_a_collection_is_not_allowed,
];

async fn a_put_with_the_right_version_replaces(on: Subject) -> Value {
    let mut object = on.made(&on.widgets(), widget("a")).await;
    let before = version(&object);
    object["spec"]["size"] = 2.into();
    let seen = on.put(&format!("{}/a", on.widgets()), object).await;
    assert!(seen.version() > before);
    seen.told()
}

async fn a_put_with_an_old_version_conflicts(on: Subject) -> Value {
    let mut object = on.made(&on.widgets(), widget("a")).await;
    on.merge(
        &format!("{}/a", on.widgets()),
        json!({ "spec": { "size": 2 } }),
    )
    .await;
    object["spec"]["size"] = 3.into();
    let custom = on.put(&format!("{}/a", on.widgets()), object).await;
    let mut secret = on
        .made(&on.secrets(), json!({ "metadata": { "name": "a" } }))
        .await;
    on.merge(
        &format!("{}/a", on.secrets()),
        json!({ "metadata": { "labels": { "a": "b" } } }),
    )
    .await;
    secret["metadata"]["labels"] = json!({ "c": "d" });
    let built_in = on.put(&format!("{}/a", on.secrets()), secret).await;
    assert_eq!((custom.code, built_in.code), (409, 409));
    json!([custom.told(), built_in.told()])
}

async fn a_put_without_version_depends_on_the_kind(on: Subject) -> Value {
    on.made(&on.widgets(), widget("a")).await;
    on.made(&on.secrets(), json!({ "metadata": { "name": "a" } }))
        .await;
    on.made(&on.leases(), json!({ "metadata": { "name": "a" } }))
        .await;
    let node = on.own("a");
    on.made("/api/v1/nodes", json!({ "metadata": { "name": node } }))
        .await;
    let labelled = |name: &str| json!({ "metadata": { "name": name, "labels": { "a": "b" } } });
    let mut changed = widget("a");
    changed["spec"]["size"] = 2.into();
    json!([
        on.put(&format!("{}/a", on.widgets()), changed).await.told(),
        on.put(&format!("{}/a", on.secrets()), labelled("a"))
            .await
            .told(),
        on.put(&format!("{}/a", on.leases()), labelled("a"))
            .await
            .told(),
        on.put(&format!("/api/v1/nodes/{node}"), labelled(&node))
            .await
            .parts(&["/metadata/labels"]),
    ])
}

async fn a_put_with_another_uid_conflicts(on: Subject) -> Value {
    let mut object = on.made(&on.widgets(), widget("a")).await;
    object["metadata"]["uid"] = "00000000-0000-4000-8000-000000000000".into();
    object["spec"]["size"] = 2.into();
    let seen = on.put(&format!("{}/a", on.widgets()), object).await;
    assert_eq!(seen.code, 409);
    // The message contains an etcd key.
    seen.brief()
}

async fn a_put_of_what_is_not_there_depends_on_the_kind(on: Subject) -> Value {
    let mut named = widget("a");
    named["metadata"]["resourceVersion"] = "5".into();
    json!([
        on.put(&format!("{}/a", on.widgets()), widget("a"))
            .await
            .told(),
        on.put(&format!("{}/a", on.widgets()), named).await.told(),
        on.put(
            &format!("{}/a", on.secrets()),
            json!({ "metadata": { "name": "a" } })
        )
        .await
        .told(),
        on.put(
            &format!("{}/a", on.leases()),
            json!({ "metadata": { "name": "a" } })
        )
        .await
        .told(),
    ])
}

async fn a_put_of_another_name_is_refused(on: Subject) -> Value {
    let object = on.made(&on.widgets(), widget("a")).await;
    on.made(&on.secrets(), json!({ "metadata": { "name": "a" } }))
        .await;
    let secret = on
        .put(
            &format!("{}/a", on.secrets()),
            json!({ "metadata": { "name": "b" } }),
        )
        .await;
    json!([
        on.put(&format!("{}/b", on.widgets()), object).await.told(),
        secret.told()
    ])
}

async fn a_put_without_name_is_refused(on: Subject) -> Value {
    let mut object = on.made(&on.widgets(), widget("a")).await;
    object["metadata"].as_object_mut().unwrap().remove("name");
    on.put(&format!("{}/a", on.widgets()), object).await.brief()
}

async fn a_put_of_another_namespace_is_refused(on: Subject) -> Value {
    let mut object = on.made(&on.widgets(), widget("a")).await;
    object["metadata"]["namespace"] = "default".into();
    on.put(&format!("{}/a", on.widgets()), object).await.told()
}

async fn a_put_that_changes_nothing_keeps_the_version(on: Subject) -> Value {
    let object = on.made(&on.widgets(), widget("a")).await;
    let custom = on.put(&format!("{}/a", on.widgets()), object.clone()).await;
    assert_eq!(custom.version(), version(&object));
    let secret = on
        .made(&on.secrets(), json!({ "metadata": { "name": "a" } }))
        .await;
    let built_in = on
        .put(
            &format!("{}/a", on.secrets()),
            json!({ "metadata": { "name": "a", "labels": {} } }),
        )
        .await;
    assert_eq!(built_in.version(), version(&secret));
    json!([custom.told(), built_in.told()])
}

async fn a_put_removes_what_it_leaves_out(on: Subject) -> Value {
    let mut object = widget("a");
    object["spec"] = json!({ "size": 1, "color": "red", "free": { "x": [1, { "y": null }] } });
    object["metadata"]["labels"] = json!({ "a": "b" });
    let mut made = on.made(&on.widgets(), object).await;
    made["spec"] = json!({ "size": 1 });
    made["metadata"].as_object_mut().unwrap().remove("labels");
    on.put(&format!("{}/a", on.widgets()), made).await.told()
}

async fn a_generation_counts_changes_of_the_spec_only(on: Subject) -> Value {
    let path = format!("{}/a", on.widgets());
    on.made(&on.widgets(), widget("a")).await;
    let mut generations = Vec::new();
    for (path, patch) in [
        (
            path.clone(),
            json!({ "metadata": { "labels": { "a": "b" } } }),
        ),
        (path.clone(), json!({ "spec": { "size": 2 } })),
        (
            format!("{path}/status"),
            json!({ "status": { "phase": "Done" } }),
        ),
        (path.clone(), json!({ "metadata": { "generation": 17 } })),
        (path.clone(), json!({ "spec": { "size": 2 } })),
        (
            path.clone(),
            json!({ "spec": { "size": 3 }, "metadata": { "annotations": { "x": "y" } } }),
        ),
    ] {
        generations.push(on.merge(&path, patch).await.body["metadata"]["generation"].clone());
    }
    assert_eq!(generations, [1, 2, 2, 2, 2, 3]);
    json!(generations)
}

async fn without_status_subresource_a_change_of_the_status_counts_too(on: Subject) -> Value {
    let name = on.own("a");
    let mut object = gadget(&name);
    object["status"] = json!({ "phase": "New" });
    let made = on.post(GADGETS, object).await;
    let path = format!("{GADGETS}/{name}");
    let labelled = on
        .merge(&path, json!({ "metadata": { "labels": { "a": "b" } } }))
        .await;
    let changed = on
        .merge(&path, json!({ "status": { "phase": "Old" } }))
        .await;
    assert_eq!(changed.body["metadata"]["generation"], 2);
    json!([made.told(), labelled.told(), changed.told()])
}

async fn a_put_can_not_change_what_only_servers_write(on: Subject) -> Value {
    let mut object = on.made(&on.widgets(), widget("a")).await;
    let created = object["metadata"]["creationTimestamp"].clone();
    object["metadata"]["creationTimestamp"] = "2001-01-01T00:00:00Z".into();
    object["metadata"]["generation"] = 9.into();
    object["metadata"]["selfLink"] = "/x".into();
    object["spec"]["size"] = 2.into();
    let seen = on.put(&format!("{}/a", on.widgets()), object).await;
    assert_eq!(seen.body["metadata"]["creationTimestamp"], created);
    seen.told()
}

async fn a_put_can_not_mark_as_deleted(on: Subject) -> Value {
    let mut object = on.made(&on.widgets(), widget("a")).await;
    object["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z".into();
    let custom = on.put(&format!("{}/a", on.widgets()), object).await;
    json!([
        custom.brief(),
        on.get(&format!("{}/a", on.widgets())).await.told()
    ])
}

async fn a_put_of_a_collection_is_not_allowed(on: Subject) -> Value {
    json!([
        on.put(&on.widgets(), widget("a")).await.brief(),
        on.merge(&on.secrets(), json!({})).await.brief()
    ])
}
