//! PATCH.

use http::Method;
use serde_json::{Value, json};

use crate::creating::widget;
use crate::subject::{JSON, MERGE, Subject, version};

crate::behaviours![
    a_merge_patch_changes_adds_and_removes,
    a_merge_patch_that_changes_nothing_keeps_the_version,
    a_merge_patch_with_an_old_version_conflicts,
    a_merge_patch_with_the_right_version_and_uid_applies,
    a_merge_patch_with_another_uid_is_invalid,
    a_merge_patch_with_another_uid_and_an_old_version_conflicts,
    a_merge_patch_replaces_lists_whole,
    a_merge_patch_can_not_rename,
    a_merge_patch_can_not_change_the_kind,
    a_merge_patch_that_is_no_object_is_refused,
    a_merge_patch_of_what_is_not_there_is_not_found,
    a_merge_patch_to_nonsense_is_invalid,
    a_merge_patch_of_unknown_fields_is_pruned,
    a_json_patch_is_applied_step_by_step,
    a_json_patch_whose_test_fails_changes_nothing,
    a_json_patch_that_does_not_fit_is_invalid,
    a_json_patch_that_is_none_is_refused,
    a_strategic_merge_patch_of_a_custom_resource_is_not_known,
    a_patch_of_an_unknown_type_is_not_known,
    finalizers_are_patched_like_other_lists,
];

async fn a_merge_patch_changes_adds_and_removes(on: Subject) -> Value {
    let mut object = widget("a");
    object["spec"] = json!({ "size": 1, "color": "red", "names": { "a": "1", "b": "2" } });
    on.made(&on.widgets(), object).await;
    let patch = json!({ "spec": { "size": 2, "color": null, "names": { "a": null, "c": "3" }, "tags": ["x"] } });
    on.merge(&format!("{}/a", on.widgets()), patch).await.told()
}

async fn a_merge_patch_that_changes_nothing_keeps_the_version(on: Subject) -> Value {
    let path = format!("{}/a", on.widgets());
    let made = on.made(&on.widgets(), widget("a")).await;
    let mut watch = on
        .watch(&format!(
            "{}?watch=true&resourceVersion={}",
            on.widgets(),
            version(&made)
        ))
        .await;
    for patch in [
        json!({}),
        json!({ "spec": { "size": 1 } }),
        json!({ "spec": { "color": null } }),
        json!({ "metadata": { "labels": {} } }),
    ] {
        let seen = on.merge(&path, patch).await;
        assert_eq!((seen.code, seen.version()), (200, version(&made)));
    }
    json!(watch.shorts().await)
}

async fn a_merge_patch_with_an_old_version_conflicts(on: Subject) -> Value {
    let made = on.made(&on.widgets(), widget("a")).await;
    let path = format!("{}/a", on.widgets());
    on.merge(&path, json!({ "spec": { "size": 2 } })).await;
    let patch = json!({ "metadata": { "resourceVersion": made["metadata"]["resourceVersion"] }, "spec": { "size": 3 } });
    let seen = on.merge(&path, patch).await;
    assert_eq!(seen.code, 409);
    json!([seen.told(), on.get(&path).await.told()])
}

async fn a_merge_patch_with_the_right_version_and_uid_applies(on: Subject) -> Value {
    let made = on.made(&on.widgets(), widget("a")).await;
    let metadata = json!({ "resourceVersion": made["metadata"]["resourceVersion"], "uid": made["metadata"]["uid"] });
    on.merge(
        &format!("{}/a", on.widgets()),
        json!({ "metadata": metadata, "spec": { "size": 3 } }),
    )
    .await
    .told()
}

const OTHER_UID: &str = "00000000-0000-4000-8000-000000000000";

async fn a_merge_patch_with_another_uid_is_invalid(on: Subject) -> Value {
    on.made(&on.widgets(), widget("a")).await;
    let custom = on
        .merge(
            &format!("{}/a", on.widgets()),
            json!({ "metadata": { "uid": OTHER_UID }, "spec": { "size": 3 } }),
        )
        .await;
    on.made(&on.secrets(), json!({ "metadata": { "name": "a" } }))
        .await;
    let built_in = on
        .merge(
            &format!("{}/a", on.secrets()),
            json!({ "metadata": { "uid": OTHER_UID } }),
        )
        .await;
    json!([custom.told(), built_in.told()])
}

async fn a_merge_patch_with_another_uid_and_an_old_version_conflicts(on: Subject) -> Value {
    on.made(&on.widgets(), widget("a")).await;
    let patch =
        json!({ "metadata": { "uid": OTHER_UID, "resourceVersion": "1" }, "spec": { "size": 3 } });
    on.merge(&format!("{}/a", on.widgets()), patch).await.told()
}

async fn a_merge_patch_replaces_lists_whole(on: Subject) -> Value {
    let mut object = widget("a");
    object["spec"] = json!({ "size": 1, "parts": [{ "name": "x", "count": 5 }, { "name": "y" }] });
    on.made(&on.widgets(), object).await;
    on.merge(
        &format!("{}/a", on.widgets()),
        json!({ "spec": { "parts": [{ "name": "x" }] } }),
    )
    .await
    .told()
}

async fn a_merge_patch_can_not_rename(on: Subject) -> Value {
    on.made(&on.widgets(), widget("a")).await;
    let path = format!("{}/a", on.widgets());
    let mut seen = Vec::new();
    for metadata in [
        json!({ "name": "b" }),
        json!({ "name": null }),
        json!({ "namespace": "default" }),
        json!({ "namespace": null }),
    ] {
        seen.push(
            on.merge(&path, json!({ "metadata": metadata }))
                .await
                .brief(),
        );
    }
    json!(seen)
}

async fn a_merge_patch_can_not_change_the_kind(on: Subject) -> Value {
    on.made(&on.widgets(), widget("a")).await;
    let path = format!("{}/a", on.widgets());
    let mut seen = Vec::new();
    for patch in [
        json!({ "kind": "Gadget" }),
        json!({ "apiVersion": "conformance.test/v2" }),
    ] {
        seen.push(on.merge(&path, patch).await.told());
    }
    for patch in [json!({ "kind": null }), json!({ "apiVersion": null })] {
        seen.push(on.merge(&path, patch).await.brief());
    }
    on.made(&on.secrets(), json!({ "metadata": { "name": "a" } }))
        .await;
    for patch in [
        json!({ "kind": "Node" }),
        json!({ "kind": null }),
        json!({ "apiVersion": "v2" }),
    ] {
        seen.push(
            on.merge(&format!("{}/a", on.secrets()), patch)
                .await
                .brief(),
        );
    }
    json!(seen)
}

async fn a_merge_patch_that_is_no_object_is_refused(on: Subject) -> Value {
    on.made(&on.widgets(), widget("a")).await;
    let path = format!("{}/a", on.widgets());
    let mut seen = Vec::new();
    for body in ["[]", "7", "{", "\"x\""] {
        seen.push(
            on.send_raw(
                &on.client,
                Method::PATCH,
                &path,
                MERGE,
                body.as_bytes().to_vec(),
            )
            .await
            .brief(),
        );
    }
    json!(seen)
}

async fn a_merge_patch_of_what_is_not_there_is_not_found(on: Subject) -> Value {
    json!([
        on.merge(
            &format!("{}/a", on.widgets()),
            json!({ "spec": { "size": 1 } })
        )
        .await
        .told(),
        on.merge(
            &format!("{}/a/status", on.widgets()),
            json!({ "status": {} })
        )
        .await
        .told(),
        on.merge(&format!("{}/a", on.secrets()), json!({}))
            .await
            .told(),
    ])
}

async fn a_merge_patch_to_nonsense_is_invalid(on: Subject) -> Value {
    on.made(&on.widgets(), widget("a")).await;
    let path = format!("{}/a", on.widgets());
    let mut seen = Vec::new();
    for patch in [
        json!({ "spec": null }),
        json!({ "spec": { "size": null } }),
        json!({ "spec": { "size": "x" } }),
        json!({ "spec": [] }),
    ] {
        seen.push(on.merge(&path, patch).await.told());
    }
    json!(seen)
}

async fn a_merge_patch_of_unknown_fields_is_pruned(on: Subject) -> Value {
    let made = on.made(&on.widgets(), widget("a")).await;
    let path = format!("{}/a", on.widgets());
    let pruned = on
        .merge(
            &path,
            json!({ "spec": { "unknown": 1 }, "more": {}, "metadata": { "less": 1 } }),
        )
        .await;
    assert_eq!(pruned.version(), version(&made));
    let strict = on
        .merge(
            &format!("{path}?fieldValidation=Strict"),
            json!({ "spec": { "unknown": 1 } }),
        )
        .await;
    json!([pruned.told(), strict.brief()])
}

async fn a_json_patch_is_applied_step_by_step(on: Subject) -> Value {
    let mut object = widget("a");
    object["spec"] = json!({ "size": 1, "tags": ["x"], "color": "red" });
    on.made(&on.widgets(), object).await;
    let steps = json!([
        { "op": "test", "path": "/spec/size", "value": 1 },
        { "op": "replace", "path": "/spec/size", "value": 2 },
        { "op": "add", "path": "/spec/tags/-", "value": "y" },
        { "op": "add", "path": "/spec/tags/0", "value": "w" },
        { "op": "remove", "path": "/spec/color" },
        { "op": "add", "path": "/metadata/labels", "value": { "a.b/c": "d" } },
        { "op": "replace", "path": "/metadata/labels/a.b~1c", "value": "e" },
        { "op": "copy", "from": "/spec/size", "path": "/spec/weight" },
        { "op": "move", "from": "/spec/mode", "path": "/spec/note" },
    ]);
    on.steps(&format!("{}/a", on.widgets()), steps).await.told()
}

async fn a_json_patch_whose_test_fails_changes_nothing(on: Subject) -> Value {
    on.made(&on.widgets(), widget("a")).await;
    let path = format!("{}/a", on.widgets());
    let steps = json!([{ "op": "replace", "path": "/spec/size", "value": 2 }, { "op": "test", "path": "/spec/size", "value": 9 }]);
    let seen = on.steps(&path, steps).await;
    json!([seen.brief(), on.get(&path).await.told()])
}

async fn a_json_patch_that_does_not_fit_is_invalid(on: Subject) -> Value {
    on.made(&on.widgets(), widget("a")).await;
    let path = format!("{}/a", on.widgets());
    let mut seen = Vec::new();
    for step in [
        json!({ "op": "remove", "path": "/spec/color" }),
        json!({ "op": "replace", "path": "/spec/color", "value": "red" }),
        json!({ "op": "add", "path": "/spec/names/x", "value": "y" }),
        json!({ "op": "add", "path": "/spec/tags/7", "value": "y" }),
        json!({ "op": "test", "path": "/spec/nothing", "value": 1 }),
        json!({ "op": "test", "path": "/spec/nothing", "value": null }),
        json!({ "op": "test", "path": "/nothing/at/all", "value": null }),
        json!({ "op": "replace", "path": "/spec/names/x", "value": "y" }),
        json!({ "op": "copy", "from": "/spec/nothing", "path": "/spec/word" }),
        json!({ "op": "move", "from": "/spec/nothing", "path": "/spec/word" }),
        json!({ "op": "jump", "path": "/spec/word" }),
        json!({ "path": "/spec/word" }),
    ] {
        seen.push(on.steps(&path, json!([step])).await.brief());
    }
    json!(seen)
}

async fn a_json_patch_that_is_none_is_refused(on: Subject) -> Value {
    on.made(&on.widgets(), widget("a")).await;
    let path = format!("{}/a", on.widgets());
    let mut seen = Vec::new();
    for patch in [json!({}), json!("x")] {
        seen.push(on.steps(&path, patch).await.brief());
    }
    seen.push(on.steps(&path, json!([])).await.told());
    json!(seen)
}

async fn a_strategic_merge_patch_of_a_custom_resource_is_not_known(on: Subject) -> Value {
    on.made(&on.widgets(), widget("a")).await;
    let path = format!("{}/a", on.widgets());
    on.send(
        Method::PATCH,
        &path,
        "application/strategic-merge-patch+json",
        Some(json!({})),
    )
    .await
    .brief()
}

async fn a_patch_of_an_unknown_type_is_not_known(on: Subject) -> Value {
    on.made(&on.widgets(), widget("a")).await;
    on.made(&on.secrets(), json!({ "metadata": { "name": "a" } }))
        .await;
    json!([
        on.send(
            Method::PATCH,
            &format!("{}/a", on.widgets()),
            JSON,
            Some(json!({}))
        )
        .await
        .brief(),
        on.send(
            Method::PATCH,
            &format!("{}/a", on.secrets()),
            "text/plain",
            Some(json!({}))
        )
        .await
        .brief(),
    ])
}

async fn finalizers_are_patched_like_other_lists(on: Subject) -> Value {
    let path = format!("{}/a", on.widgets());
    let made = on.made(&on.widgets(), widget("a")).await;
    let version = made["metadata"]["resourceVersion"].clone();
    let added = on
        .merge(
            &path,
            json!({ "metadata": { "finalizers": ["a.test/x"], "resourceVersion": version } }),
        )
        .await;
    let removed = on
        .merge(&path, json!({ "metadata": { "finalizers": null } }))
        .await;
    let emptied = on
        .merge(&path, json!({ "metadata": { "finalizers": [] } }))
        .await;
    assert_eq!(removed.version(), emptied.version());
    json!([added.told(), removed.told(), emptied.told()])
}
