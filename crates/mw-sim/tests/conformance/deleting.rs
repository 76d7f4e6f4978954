//! DELETE.

use serde_json::{Value, json};

use crate::creating::widget;
use crate::subject::{Subject, version};

crate::behaviours![
    a_delete_answers_with_a_status,
    a_delete_of_what_is_not_there_is_not_found,
    a_delete_with_another_uid_conflicts,
    a_delete_with_an_old_version_conflicts,
    a_delete_with_the_right_uid_and_version_succeeds,
    a_finalizer_holds_an_object_that_is_deleted,
    a_second_delete_changes_nothing,
    the_last_finalizer_takes_the_object_with_it,
    no_finalizer_is_added_to_a_deleted_object,
    finalizers_of_a_deleted_object_can_be_removed_one_by_one,
    a_deleted_object_can_still_be_changed,
    a_deleted_object_can_not_be_undeleted,
    a_name_is_taken_until_the_finalizers_are_gone,
    an_object_made_again_is_another_one,
    a_delete_bumps_no_generation_of_kinds_that_have_none,
    a_delete_can_be_told_to_work_in_the_background,
    a_grace_period_is_ignored,
    a_collection_is_deleted_by_selector,
    a_collection_with_finalizers_is_marked,
    a_deleted_namespace_takes_nothing_new,
];

async fn a_delete_answers_with_a_status(on: Subject) -> Value {
    on.made(&on.widgets(), widget("a")).await;
    on.made(&on.secrets(), json!({ "metadata": { "name": "a" } }))
        .await;
    on.made(&on.leases(), json!({ "metadata": { "name": "a" } }))
        .await;
    on.made(
        "/api/v1/nodes",
        json!({ "metadata": { "name": on.own("a") } }),
    )
    .await;
    json!([
        on.delete(&format!("{}/a", on.widgets())).await.told(),
        on.delete(&format!("{}/a", on.secrets())).await.told(),
        on.delete(&format!("{}/a", on.leases())).await.told(),
        on.delete(&format!("/api/v1/nodes/{}", on.own("a")))
            .await
            .told(),
        on.get(&format!("{}/a", on.widgets())).await.told(),
    ])
}

async fn a_delete_of_what_is_not_there_is_not_found(on: Subject) -> Value {
    json!([
        on.delete(&format!("{}/a", on.widgets())).await.told(),
        on.delete(&format!("{}/a", on.secrets())).await.told()
    ])
}

async fn a_delete_with_another_uid_conflicts(on: Subject) -> Value {
    on.made(&on.widgets(), widget("a")).await;
    on.made(&on.secrets(), json!({ "metadata": { "name": "a" } }))
        .await;
    let options = json!({ "preconditions": { "uid": "00000000-0000-4000-8000-000000000000" } });
    json!([
        on.delete_with(&format!("{}/a", on.widgets()), options.clone())
            .await
            .told(),
        on.delete_with(&format!("{}/a", on.secrets()), options)
            .await
            .told(),
    ])
}

async fn a_delete_with_an_old_version_conflicts(on: Subject) -> Value {
    let made = on.made(&on.widgets(), widget("a")).await;
    let path = format!("{}/a", on.widgets());
    on.merge(&path, json!({ "spec": { "size": 2 } })).await;
    let options = json!({ "preconditions": { "uid": made["metadata"]["uid"], "resourceVersion": made["metadata"]["resourceVersion"] } });
    let seen = on.delete_with(&path, options).await;
    json!([seen.told(), on.get(&path).await.code])
}

async fn a_delete_with_the_right_uid_and_version_succeeds(on: Subject) -> Value {
    let made = on.made(&on.widgets(), widget("a")).await;
    let options = json!({ "preconditions": { "uid": made["metadata"]["uid"], "resourceVersion": made["metadata"]["resourceVersion"] } });
    on.delete_with(&format!("{}/a", on.widgets()), options)
        .await
        .told()
}

fn held(name: &str) -> Value {
    let mut object = widget(name);
    object["metadata"]["finalizers"] = json!(["a.test/one", "a.test/two"]);
    object
}

async fn a_finalizer_holds_an_object_that_is_deleted(on: Subject) -> Value {
    let made = on.made(&on.widgets(), held("a")).await;
    let path = format!("{}/a", on.widgets());
    let deleted = on.delete(&path).await;
    assert!(deleted.version() > version(&made));
    json!([deleted.told(), on.get(&path).await.told()])
}

async fn a_second_delete_changes_nothing(on: Subject) -> Value {
    on.made(&on.widgets(), held("a")).await;
    let path = format!("{}/a", on.widgets());
    let (first, second) = (on.delete(&path).await, on.delete(&path).await);
    assert_eq!(
        first.body["metadata"]["resourceVersion"],
        second.body["metadata"]["resourceVersion"]
    );
    second.told()
}

async fn the_last_finalizer_takes_the_object_with_it(on: Subject) -> Value {
    let made = on.made(&on.widgets(), held("a")).await;
    let path = format!("{}/a", on.widgets());
    let mut watch = on
        .watch(&format!(
            "{}?watch=true&resourceVersion={}",
            on.widgets(),
            version(&made)
        ))
        .await;
    on.delete(&path).await;
    let freed = on
        .merge(
            &path,
            json!({ "metadata": { "finalizers": null }, "spec": { "size": 3 } }),
        )
        .await;
    let gone = on.get(&path).await;
    json!([
        freed.told(),
        gone.told(),
        watch.next().await,
        watch.next().await,
        watch.next().await
    ])
}

async fn no_finalizer_is_added_to_a_deleted_object(on: Subject) -> Value {
    on.made(&on.widgets(), held("a")).await;
    let path = format!("{}/a", on.widgets());
    on.delete(&path).await;
    let finalizers = json!(["a.test/one", "a.test/two", "a.test/three"]);
    on.merge(&path, json!({ "metadata": { "finalizers": finalizers } }))
        .await
        .told()
}

async fn finalizers_of_a_deleted_object_can_be_removed_one_by_one(on: Subject) -> Value {
    on.made(&on.widgets(), held("a")).await;
    let path = format!("{}/a", on.widgets());
    on.delete(&path).await;
    let one = on
        .merge(
            &path,
            json!({ "metadata": { "finalizers": ["a.test/two"] } }),
        )
        .await;
    let steps = json!([{ "op": "remove", "path": "/metadata/finalizers/0" }]);
    json!([
        one.told(),
        on.steps(&path, steps).await.told(),
        on.get(&path).await.code
    ])
}

async fn a_deleted_object_can_still_be_changed(on: Subject) -> Value {
    on.made(&on.widgets(), held("a")).await;
    let path = format!("{}/a", on.widgets());
    on.delete(&path).await;
    let spec = on.merge(&path, json!({ "spec": { "size": 7 } })).await;
    json!([
        spec.told(),
        on.merge(
            &format!("{path}/status"),
            json!({ "status": { "phase": "Going" } })
        )
        .await
        .told()
    ])
}

async fn a_deleted_object_can_not_be_undeleted(on: Subject) -> Value {
    on.made(&on.widgets(), held("a")).await;
    let path = format!("{}/a", on.widgets());
    on.delete(&path).await;
    let patch =
        json!({ "metadata": { "deletionTimestamp": null, "deletionGracePeriodSeconds": null } });
    on.merge(&path, patch).await.told()
}

async fn a_name_is_taken_until_the_finalizers_are_gone(on: Subject) -> Value {
    on.made(&on.widgets(), held("a")).await;
    let path = format!("{}/a", on.widgets());
    on.delete(&path).await;
    let taken = on.post(&on.widgets(), widget("a")).await;
    on.merge(&path, json!({ "metadata": { "finalizers": [] } }))
        .await;
    json!([
        taken.told(),
        on.post(&on.widgets(), widget("a")).await.told()
    ])
}

async fn an_object_made_again_is_another_one(on: Subject) -> Value {
    let first = on.made(&on.widgets(), widget("a")).await;
    let path = format!("{}/a", on.widgets());
    on.merge(&path, json!({ "spec": { "size": 4 } })).await;
    on.delete(&path).await;
    let second = on.post(&on.widgets(), widget("a")).await;
    assert_ne!(first["metadata"]["uid"], second.body["metadata"]["uid"]);
    second.told()
}

async fn a_delete_bumps_no_generation_of_kinds_that_have_none(on: Subject) -> Value {
    on.made(
        &on.secrets(),
        json!({ "metadata": { "name": "a", "finalizers": ["a.test/b"] } }),
    )
    .await;
    let path = format!("{}/a", on.secrets());
    let deleted = on.delete(&path).await;
    json!([
        deleted.told(),
        on.merge(&path, json!({ "metadata": { "finalizers": null } }))
            .await
            .told(),
        on.get(&path).await.code
    ])
}

async fn a_delete_can_be_told_to_work_in_the_background(on: Subject) -> Value {
    on.made(&on.widgets(), widget("a")).await;
    on.made(&on.widgets(), widget("b")).await;
    let body = on
        .delete_with(
            &format!("{}/a", on.widgets()),
            json!({ "propagationPolicy": "Background" }),
        )
        .await;
    json!([
        body.told(),
        on.delete(&format!("{}/b?propagationPolicy=Background", on.widgets()))
            .await
            .told()
    ])
}

async fn a_grace_period_is_ignored(on: Subject) -> Value {
    on.made(&on.widgets(), held("a")).await;
    on.made(&on.secrets(), json!({ "metadata": { "name": "a" } }))
        .await;
    let options = json!({ "gracePeriodSeconds": 30 });
    json!([
        on.delete_with(&format!("{}/a", on.widgets()), options.clone())
            .await
            .told(),
        on.delete_with(&format!("{}/a", on.secrets()), options)
            .await
            .told(),
    ])
}

async fn a_collection_is_deleted_by_selector(on: Subject) -> Value {
    for (name, color) in [("a", "red"), ("b", "blue"), ("c", "red")] {
        let mut object = widget(name);
        object["metadata"]["labels"] = json!({ "color": color });
        on.made(&on.widgets(), object).await;
    }
    let deleted = on
        .delete(&format!("{}?labelSelector=color%3Dred", on.widgets()))
        .await;
    let left = on.get(&on.widgets()).await.names();
    assert_eq!(left, ["b"]);
    json!([deleted.code, deleted.body["kind"], deleted.names()])
}

async fn a_collection_with_finalizers_is_marked(on: Subject) -> Value {
    on.made(&on.widgets(), held("a")).await;
    on.made(&on.widgets(), widget("b")).await;
    let deleted = on.delete(&on.widgets()).await;
    json!([deleted.code, on.get(&on.widgets()).await.parts(&["/items"])])
}

async fn a_deleted_namespace_takes_nothing_new(on: Subject) -> Value {
    on.made(&on.secrets(), json!({ "metadata": { "name": "a" } }))
        .await;
    let deleted = on
        .delete(&format!("/api/v1/namespaces/{}", on.namespace))
        .await;
    let parts = [
        "/status/phase",
        "/spec",
        "/metadata/deletionTimestamp",
        "/metadata/deletionGracePeriodSeconds",
    ];
    let refused = on
        .post(&on.secrets(), json!({ "metadata": { "name": "b" } }))
        .await;
    let changed = on
        .merge(
            &format!("{}/a", on.secrets()),
            json!({ "metadata": { "labels": { "a": "b" } } }),
        )
        .await;
    json!([
        deleted.parts(&parts),
        refused.told(),
        changed.code,
        on.delete(&format!("{}/a", on.secrets())).await.code
    ])
}
