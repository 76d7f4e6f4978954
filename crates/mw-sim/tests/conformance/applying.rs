//! Server-side apply.

use http::Method;
use serde_json::{Value, json};

use crate::creating::widget;
use crate::subject::{APPLY, MERGE, Subject, version};

crate::behaviours![
    applying_creates_what_is_not_there,
    applying_the_same_again_writes_nothing,
    what_is_left_out_the_next_time_goes,
    all_of_a_map_can_be_left_out,
    nothing_but_the_name_can_be_applied,
    a_value_of_another_conflicts,
    all_conflicts_are_told,
    a_conflict_with_one_who_applied_names_no_version,
    an_equal_value_is_shared,
    a_shared_value_can_not_be_changed_by_one,
    one_of_two_who_share_lets_go,
    one_who_wrote_and_one_who_applied_share,
    the_last_one_lets_go,
    force_takes_fields_over,
    an_update_takes_an_applied_field_over,
    a_merge_patch_takes_an_applied_field_over,
    a_merge_patch_removes_an_applied_field,
    a_removed_field_can_be_applied_again,
    applying_with_another_uid_is_invalid,
    applying_with_uid_and_version_holds_both,
    applying_with_an_old_version_conflicts,
    applying_with_a_uid_to_what_is_gone_conflicts,
    applying_with_a_version_to_what_is_not_there,
    an_unknown_field_can_not_be_applied,
    a_wrong_type_can_not_be_applied,
    a_doubled_field_is_refused_when_strict,
    applying_needs_a_manager,
    force_is_for_applying_only,
    applying_into_a_namespace_that_is_not_there,
    applying_needs_the_right_kind_and_name,
    managers_can_not_be_applied,
    yaml_can_be_applied,
    what_is_no_object_can_not_be_applied,
    the_status_is_applied_at_its_own_path,
    a_status_is_not_applied_to_what_is_not_there,
    what_is_deleted_and_made_again_is_nobodys,
    a_deleted_object_with_finalizers_can_be_applied,
    lists_of_named_entries_are_merged,
    sets_are_merged,
    whole_lists_are_replaced,
    finalizers_are_a_set,
    free_fields_are_taken_apart,
    defaults_are_nobodys,
    plain_texts_of_a_secret_can_be_applied,
    invalid_values_can_not_be_applied,
    applying_is_seen_by_watches,
    one_without_the_right_can_not_apply,
];

fn secret(data: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "a" }, "data": data })
}

fn config_map(data: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" }, "data": data })
}

fn sized(spec: Value) -> Value {
    let mut object = widget("a");
    object["spec"] = spec;
    object
}

async fn applying_creates_what_is_not_there(on: Subject) -> Value {
    let mut labelled = config_map(json!({ "x": "1" }));
    labelled["metadata"]["annotations"] = json!({ "a.test/x": "y" });
    json!([
        on.apply(
            "one",
            &format!("{}/a", on.secrets()),
            secret(json!({ "x": "eA==" }))
        )
        .await
        .told(),
        on.apply("one", &format!("{}/a", on.config_maps()), labelled)
            .await
            .told(),
        on.apply("one", &format!("{}/a", on.widgets()), widget("a"))
            .await
            .told(),
    ])
}

async fn applying_the_same_again_writes_nothing(on: Subject) -> Value {
    let path = format!("{}/a", on.secrets());
    let first = on
        .apply("one", &path, secret(json!({ "x": "eA==", "y": "" })))
        .await;
    let mut watch = on
        .watch(&format!(
            "{}?watch=true&resourceVersion={}",
            on.secrets(),
            first.version()
        ))
        .await;
    let again = on
        .apply("one", &path, secret(json!({ "x": "eA==", "y": "" })))
        .await;
    assert_eq!((again.code, again.version()), (200, first.version()));
    assert_eq!(again.body, first.body);
    let custom = format!("{}/a", on.widgets());
    let (first, again) = (
        on.apply("one", &custom, widget("a")).await,
        on.apply("one", &custom, widget("a")).await,
    );
    assert_eq!(first.version(), again.version());
    json!([watch.shorts().await, again.told()])
}

async fn what_is_left_out_the_next_time_goes(on: Subject) -> Value {
    let path = format!("{}/a", on.secrets());
    on.apply("one", &path, secret(json!({ "x": "eA==", "y": "eQ==" })))
        .await;
    let less = on.apply("one", &path, secret(json!({ "y": "eQ==" }))).await;
    let custom = format!("{}/a", on.widgets());
    on.apply(
        "one",
        &custom,
        sized(json!({ "size": 1, "color": "red", "names": { "a": "1", "b": "2" } })),
    )
    .await;
    let fewer = on
        .apply(
            "one",
            &custom,
            sized(json!({ "size": 2, "names": { "b": "2" } })),
        )
        .await;
    json!([less.told(), fewer.told()])
}

async fn all_of_a_map_can_be_left_out(on: Subject) -> Value {
    let path = format!("{}/a", on.secrets());
    on.apply("one", &path, secret(json!({ "x": "eA==" }))).await;
    let emptied = on.apply("one", &path, secret(json!({}))).await;
    let custom = format!("{}/a", on.widgets());
    on.apply(
        "one",
        &custom,
        sized(
            json!({ "size": 1, "names": { "a": "1" }, "tags": ["t"], "parts": [{ "name": "p" }] }),
        ),
    )
    .await;
    let bare = on.apply("one", &custom, sized(json!({ "size": 1 }))).await;
    json!([emptied.told(), bare.told()])
}

async fn nothing_but_the_name_can_be_applied(on: Subject) -> Value {
    let bare = || json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "a" } });
    let path = format!("{}/a", on.secrets());
    let made = on.apply("one", &path, bare()).await;
    on.apply("one", &path, secret(json!({ "x": "eA==" }))).await;
    json!([made.told(), on.apply("one", &path, bare()).await.told()])
}

async fn a_value_of_another_conflicts(on: Subject) -> Value {
    on.made(
        &format!("{}?fieldManager=helm", on.secrets()),
        secret(json!({ "x": "eA==", "y": "eQ==" })),
    )
    .await;
    let path = format!("{}/a", on.secrets());
    let refused = on
        .apply("one", &path, secret(json!({ "x": "bmV3", "z": "eg==" })))
        .await;
    assert_eq!(refused.code, 409);
    json!([refused.told(), on.get(&path).await.told()])
}

async fn all_conflicts_are_told(on: Subject) -> Value {
    on.made(
        &format!("{}?fieldManager=helm", on.widgets()),
        sized(json!({ "size": 1, "names": { "a.b": "1" }, "tags": ["x"] })),
    )
    .await;
    let path = format!("{}/a", on.widgets());
    on.merge(
        &format!("{path}?fieldManager=second"),
        json!({ "spec": { "color": "red", "parts": [{ "name": "p", "count": 2 }] } }),
    )
    .await;
    let mut wanted = sized(
        json!({ "size": 2, "color": "blue", "names": { "a.b": "2" }, "parts": [{ "name": "p", "count": 3 }] }),
    );
    wanted["metadata"]["labels"] = json!({ "l": "m" });
    let refused = on.apply("one", &path, wanted).await;
    let texts = refused.body["message"].as_str().unwrap().to_owned();
    json!([refused.told(), texts])
}

async fn a_conflict_with_one_who_applied_names_no_version(on: Subject) -> Value {
    let path = format!("{}/a", on.secrets());
    on.apply("two", &path, secret(json!({ "x": "eA==" }))).await;
    let status = format!("{}/b/status", on.widgets());
    on.made(&on.widgets(), widget("b")).await;
    on.merge(
        &format!("{status}?fieldManager=two"),
        json!({ "status": { "phase": "x" } }),
    )
    .await;
    let mut wanted = widget("b");
    wanted.as_object_mut().unwrap().remove("spec");
    wanted["status"] = json!({ "phase": "y" });
    json!([
        on.apply("one", &path, secret(json!({ "x": "bmV3" })))
            .await
            .told(),
        on.apply("one", &status, wanted).await.told()
    ])
}

async fn an_equal_value_is_shared(on: Subject) -> Value {
    on.made(
        &format!("{}?fieldManager=helm", on.secrets()),
        secret(json!({ "x": "eA==" })),
    )
    .await;
    let path = format!("{}/a", on.secrets());
    let before = on.get(&path).await;
    let shared = on.apply("one", &path, secret(json!({ "x": "eA==" }))).await;
    assert!(shared.version() > before.version());
    json!([
        shared.told(),
        on.apply("two", &path, secret(json!({ "x": "eA==", "y": "eQ==" })))
            .await
            .told()
    ])
}

async fn a_shared_value_can_not_be_changed_by_one(on: Subject) -> Value {
    let path = format!("{}/a", on.secrets());
    on.apply("one", &path, secret(json!({ "x": "eA==" }))).await;
    on.apply("two", &path, secret(json!({ "x": "eA==" }))).await;
    on.apply("one", &path, secret(json!({ "x": "bmV3" })))
        .await
        .told()
}

async fn one_of_two_who_share_lets_go(on: Subject) -> Value {
    let path = format!("{}/a", on.secrets());
    on.apply("one", &path, secret(json!({ "x": "eA==" }))).await;
    on.apply("two", &path, secret(json!({ "x": "eA==" }))).await;
    on.apply("one", &path, secret(json!({ "y": "eQ==" })))
        .await
        .told()
}

async fn one_who_wrote_and_one_who_applied_share(on: Subject) -> Value {
    on.made(
        &format!("{}?fieldManager=helm", on.secrets()),
        secret(json!({ "x": "eA==", "h": "" })),
    )
    .await;
    let path = format!("{}/a", on.secrets());
    on.apply("one", &path, secret(json!({ "x": "eA==" }))).await;
    on.apply("one", &path, secret(json!({ "y": "eQ==" })))
        .await
        .told()
}

async fn the_last_one_lets_go(on: Subject) -> Value {
    let path = format!("{}/a", on.secrets());
    on.apply("one", &path, secret(json!({ "x": "eA==" }))).await;
    on.apply("two", &path, secret(json!({ "x": "eA==", "z": "eg==" })))
        .await;
    on.apply("one", &path, secret(json!({ "y": "eQ==" }))).await;
    on.apply("two", &path, secret(json!({ "z": "eg==" })))
        .await
        .told()
}

async fn force_takes_fields_over(on: Subject) -> Value {
    on.made(
        &format!("{}?fieldManager=helm", on.secrets()),
        secret(json!({ "x": "eA==", "y": "eQ==" })),
    )
    .await;
    let path = format!("{}/a?force=true", on.secrets());
    let path = path.replace('?', "?fieldManager=one&");
    on.send(
        Method::PATCH,
        &path,
        APPLY,
        Some(secret(json!({ "x": "bmV3" }))),
    )
    .await
    .told()
}

async fn an_update_takes_an_applied_field_over(on: Subject) -> Value {
    let path = format!("{}/a", on.secrets());
    on.apply("one", &path, secret(json!({ "x": "eA==", "y": "eQ==" })))
        .await;
    let taken = on
        .put(
            &format!("{path}?fieldManager=editor"),
            secret(json!({ "x": "bmV3", "y": "eQ==" })),
        )
        .await;
    let refused = on
        .apply("one", &path, secret(json!({ "x": "eA==", "y": "eQ==" })))
        .await;
    json!([
        taken.told(),
        refused.told(),
        on.apply("one", &path, secret(json!({ "y": "eQ==" })))
            .await
            .told()
    ])
}

async fn a_merge_patch_takes_an_applied_field_over(on: Subject) -> Value {
    let path = format!("{}/a", on.widgets());
    on.apply(
        "one",
        &path,
        sized(json!({ "size": 1, "names": { "a": "1", "b": "2" } })),
    )
    .await;
    let patch =
        json!({ "spec": { "names": { "a": "9" } }, "metadata": { "annotations": { "n": "m" } } });
    let taken = on
        .merge(&format!("{path}?fieldManager=editor"), patch)
        .await;
    let refused = on
        .apply(
            "one",
            &path,
            sized(json!({ "size": 1, "names": { "a": "1" } })),
        )
        .await;
    json!([taken.told(), refused.told()])
}

async fn a_merge_patch_removes_an_applied_field(on: Subject) -> Value {
    let path = format!("{}/a", on.secrets());
    on.apply("one", &path, secret(json!({ "x": "eA==" }))).await;
    on.merge(
        &format!("{path}?fieldManager=editor"),
        json!({ "data": { "x": null } }),
    )
    .await
    .told()
}

async fn a_removed_field_can_be_applied_again(on: Subject) -> Value {
    let path = format!("{}/a", on.secrets());
    on.apply("one", &path, secret(json!({ "x": "eA==", "y": "" })))
        .await;
    on.merge(&path, json!({ "data": { "x": null } })).await;
    on.apply("one", &path, secret(json!({ "x": "eA==", "y": "" })))
        .await
        .told()
}

const OTHER_UID: &str = "00000000-0000-4000-8000-000000000000";

async fn applying_with_another_uid_is_invalid(on: Subject) -> Value {
    on.made(&on.secrets(), secret(json!({}))).await;
    on.made(&on.widgets(), widget("a")).await;
    let mut one = secret(json!({ "x": "eA==" }));
    one["metadata"]["uid"] = OTHER_UID.into();
    let mut two = sized(json!({ "size": 1 }));
    two["metadata"]["uid"] = OTHER_UID.into();
    json!([
        on.apply("one", &format!("{}/a", on.secrets()), one)
            .await
            .told(),
        on.apply("one", &format!("{}/a", on.widgets()), two)
            .await
            .told(),
    ])
}

async fn applying_with_uid_and_version_holds_both(on: Subject) -> Value {
    let made = on.made(&on.secrets(), secret(json!({}))).await;
    let mut wanted = secret(json!({ "x": "eA==" }));
    wanted["metadata"]["uid"] = made["metadata"]["uid"].clone();
    wanted["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"].clone();
    let path = format!("{}/a", on.secrets());
    let done = on.apply("one", &path, wanted.clone()).await;
    wanted["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("resourceVersion");
    let again = on.apply("one", &path, wanted).await;
    assert_eq!(done.version(), again.version());
    json!([done.told(), again.told()])
}

async fn applying_with_an_old_version_conflicts(on: Subject) -> Value {
    let made = on.made(&on.secrets(), secret(json!({}))).await;
    let path = format!("{}/a", on.secrets());
    on.merge(&path, json!({ "data": { "x": "eA==" } })).await;
    let mut wanted = secret(json!({ "y": "eQ==" }));
    wanted["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"].clone();
    let built_in = on.apply("one", &path, wanted).await;
    let made = on.made(&on.widgets(), widget("a")).await;
    let path = format!("{}/a", on.widgets());
    on.merge(&path, json!({ "spec": { "size": 2 } })).await;
    let mut wanted = sized(json!({ "color": "red" }));
    wanted["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"].clone();
    json!([built_in.told(), on.apply("one", &path, wanted).await.told()])
}

async fn applying_with_a_uid_to_what_is_gone_conflicts(on: Subject) -> Value {
    let mut one = secret(json!({ "x": "eA==" }));
    one["metadata"]["uid"] = OTHER_UID.into();
    let mut two = widget("a");
    two["metadata"]["uid"] = OTHER_UID.into();
    json!([
        on.apply("one", &format!("{}/a", on.secrets()), one)
            .await
            .told(),
        on.apply("one", &format!("{}/a", on.widgets()), two)
            .await
            .told(),
    ])
}

async fn applying_with_a_version_to_what_is_not_there(on: Subject) -> Value {
    let mut wanted = secret(json!({ "x": "eA==" }));
    wanted["metadata"]["resourceVersion"] = "5".into();
    let mut custom = widget("a");
    custom["metadata"]["resourceVersion"] = "5".into();
    json!([
        on.apply("one", &format!("{}/a", on.secrets()), wanted)
            .await
            .told(),
        on.apply("one", &format!("{}/a", on.widgets()), custom)
            .await
            .told(),
    ])
}

async fn an_unknown_field_can_not_be_applied(on: Subject) -> Value {
    let (path, custom) = (format!("{}/a", on.secrets()), format!("{}/a", on.widgets()));
    let mut seen = Vec::new();
    for strict in ["", "&fieldValidation=Strict"] {
        let mut unknown = secret(json!({}));
        unknown["unknown"] = json!(1);
        let mut below = secret(json!({}));
        below["metadata"]["unknown"] = json!(1);
        seen.push(
            on.apply(&format!("one{strict}"), &path, unknown)
                .await
                .told(),
        );
        seen.push(on.apply(&format!("one{strict}"), &path, below).await.told());
        seen.push(
            on.apply(
                &format!("one{strict}"),
                &custom,
                sized(json!({ "size": 1, "unknown": 1 })),
            )
            .await
            .told(),
        );
    }
    json!(seen)
}

async fn a_wrong_type_can_not_be_applied(on: Subject) -> Value {
    json!([
        on.apply("one", &format!("{}/a", on.secrets()), secret(json!(["x"])))
            .await
            .brief(),
        on.apply(
            "one",
            &format!("{}/a", on.secrets()),
            secret(json!({ "x": 7 }))
        )
        .await
        .brief(),
        on.apply(
            "one",
            &format!("{}/a", on.widgets()),
            sized(json!({ "size": "x" }))
        )
        .await
        .brief(),
        on.apply(
            "one",
            &format!("{}/a", on.widgets()),
            sized(json!({ "size": 1, "tags": ["x", "x"] }))
        )
        .await
        .brief(),
        on.apply(
            "one",
            &format!("{}/a", on.widgets()),
            sized(json!({ "size": 1, "parts": [{ "name": "x" }, { "name": "x" }] }))
        )
        .await
        .brief(),
    ])
}

async fn a_doubled_field_is_refused_when_strict(on: Subject) -> Value {
    let path = format!("{}/a?fieldManager=one", on.secrets());
    let body = r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"},"data":{"x":"eA==","x":"eQ=="}}"#;
    let mut seen = Vec::new();
    for strict in ["&fieldValidation=Strict", ""] {
        seen.push(
            on.send_raw(
                &on.client,
                Method::PATCH,
                &format!("{path}{strict}"),
                APPLY,
                body.as_bytes().to_vec(),
            )
            .await,
        );
    }
    json!([seen[0].brief(), seen[1].told()])
}

async fn applying_needs_a_manager(on: Subject) -> Value {
    let path = format!("{}/a", on.secrets());
    let long = "m".repeat(129);
    json!([
        on.send(Method::PATCH, &path, APPLY, Some(secret(json!({}))))
            .await
            .told(),
        on.apply("", &path, secret(json!({}))).await.told(),
        on.apply(&long, &path, secret(json!({}))).await.brief(),
        on.get(&path).await.brief(),
    ])
}

async fn force_is_for_applying_only(on: Subject) -> Value {
    on.made(&on.secrets(), secret(json!({}))).await;
    let path = format!("{}/a", on.secrets());
    json!([
        on.merge(&format!("{path}?force=true"), json!({}))
            .await
            .told(),
        on.merge(&format!("{path}?force=false"), json!({}))
            .await
            .told(),
    ])
}

async fn applying_into_a_namespace_that_is_not_there(on: Subject) -> Value {
    json!([
        on.apply(
            "one",
            "/api/v1/namespaces/nowhere/secrets/a",
            secret(json!({}))
        )
        .await
        .told(),
        on.apply(
            "one",
            "/apis/conformance.test/v1/namespaces/nowhere/widgets/a",
            widget("a")
        )
        .await
        .told(),
    ])
}

async fn applying_needs_the_right_kind_and_name(on: Subject) -> Value {
    let path = format!("{}/a", on.secrets());
    let mut seen = Vec::new();
    for (field, value) in [
        ("kind", json!("ConfigMap")),
        ("apiVersion", json!("v2")),
        ("kind", json!("")),
        ("apiVersion", json!("")),
    ] {
        let mut wrong = secret(json!({}));
        wrong[field] = value;
        seen.push(on.apply("one", &path, wrong).await.brief());
    }
    for metadata in [
        json!({}),
        json!({ "name": "b" }),
        json!({ "name": "a", "namespace": "default" }),
    ] {
        let mut wrong = secret(json!({}));
        wrong["metadata"] = metadata;
        seen.push(on.apply("one", &path, wrong).await.brief());
    }
    on.made(&on.secrets(), secret(json!({}))).await;
    let mut nameless = secret(json!({ "x": "eA==" }));
    nameless["metadata"] = json!({});
    seen.push(on.apply("one", &path, nameless).await.told());
    json!(seen)
}

async fn managers_can_not_be_applied(on: Subject) -> Value {
    let mut wrong = secret(json!({}));
    wrong["metadata"]["managedFields"] = json!([{ "manager": "one" }]);
    on.apply("one", &format!("{}/a", on.secrets()), wrong)
        .await
        .told()
}

async fn yaml_can_be_applied(on: Subject) -> Value {
    let body = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: a\n  annotations: { a.test/b: c }\ndata:\n  x: eA==\n";
    on.send_raw(
        &on.client,
        Method::PATCH,
        &format!("{}/a?fieldManager=one", on.secrets()),
        APPLY,
        body.into(),
    )
    .await
    .told()
}

async fn what_is_no_object_can_not_be_applied(on: Subject) -> Value {
    let path = format!("{}/a?fieldManager=one", on.secrets());
    let mut seen = Vec::new();
    for body in ["[]", "7", "{", "a: b: c", "x"] {
        seen.push(
            on.send_raw(&on.client, Method::PATCH, &path, APPLY, body.into())
                .await
                .brief(),
        );
    }
    json!(seen)
}

async fn the_status_is_applied_at_its_own_path(on: Subject) -> Value {
    let path = format!("{}/a", on.widgets());
    let mut whole = widget("a");
    whole["status"] = json!({ "phase": "early" });
    let made = on.apply("one", &path, whole.clone()).await;
    whole["spec"] = json!({ "size": 7 });
    whole["status"] = json!({ "phase": "late" });
    let status = on.apply("two", &format!("{path}/status"), whole).await;
    let mut less = widget("a");
    less.as_object_mut().unwrap().remove("spec");
    let gone = on.apply("two", &format!("{path}/status"), less).await;
    json!([made.told(), status.told(), gone.told()])
}

async fn a_status_is_not_applied_to_what_is_not_there(on: Subject) -> Value {
    on.apply("one", &format!("{}/a/status", on.widgets()), widget("a"))
        .await
        .told()
}

async fn what_is_deleted_and_made_again_is_nobodys(on: Subject) -> Value {
    let path = format!("{}/a", on.secrets());
    on.apply("one", &path, secret(json!({ "x": "eA==" }))).await;
    on.delete(&path).await;
    on.made(
        &format!("{}?fieldManager=helm", on.secrets()),
        secret(json!({ "y": "eQ==" })),
    )
    .await;
    json!([
        on.get(&path).await.told(),
        on.apply("one", &path, secret(json!({ "x": "eA==" })))
            .await
            .told()
    ])
}

async fn a_deleted_object_with_finalizers_can_be_applied(on: Subject) -> Value {
    let path = format!("{}/a", on.widgets());
    let mut held = widget("a");
    held["metadata"]["finalizers"] = json!(["a.test/x"]);
    on.apply("one", &path, held.clone()).await;
    let marked = on.delete(&path).await;
    held["spec"]["size"] = json!(3);
    let changed = on.apply("one", &path, held).await;
    let gone = on.apply("one", &path, widget("a")).await;
    json!([
        marked.told(),
        changed.told(),
        gone.told(),
        on.get(&path).await.brief()
    ])
}

async fn lists_of_named_entries_are_merged(on: Subject) -> Value {
    let path = format!("{}/a", on.widgets());
    let parts = |names: &[&str]| -> Vec<Value> {
        names.iter().map(|name| json!({ "name": name })).collect()
    };
    on.apply(
        "one",
        &path,
        sized(json!({ "size": 1, "parts": parts(&["a", "b", "c"]) })),
    )
    .await;
    let mut seen = vec![
        on.apply(
            "two",
            &path,
            sized(json!({ "parts": [{ "name": "d", "count": 4 }, { "name": "b" }] })),
        )
        .await
        .told(),
    ];
    seen.push(
        on.apply(
            "two",
            &path,
            sized(json!({ "parts": [{ "name": "c" }, { "name": "e" }, { "name": "a" }] })),
        )
        .await
        .told(),
    );
    seen.push(
        on.apply(
            "one",
            &path,
            sized(json!({ "size": 1, "parts": parts(&["c", "b"]) })),
        )
        .await
        .told(),
    );
    seen.push(
        on.apply(
            "one",
            &path,
            sized(json!({ "size": 1, "parts": [{ "name": "b", "count": 7 }] })),
        )
        .await
        .told(),
    );
    seen.push(
        on.apply(
            "two",
            &path,
            sized(json!({ "parts": [{ "name": "b", "count": 8 }] })),
        )
        .await
        .told(),
    );
    json!(seen)
}

async fn sets_are_merged(on: Subject) -> Value {
    let path = format!("{}/a", on.widgets());
    on.apply(
        "one",
        &path,
        sized(json!({ "size": 1, "tags": ["x", "y"] })),
    )
    .await;
    let more = on
        .apply("two", &path, sized(json!({ "tags": ["z", "y"] })))
        .await;
    let less = on.apply("one", &path, sized(json!({ "size": 1 }))).await;
    json!([
        more.told(),
        less.told(),
        on.apply("two", &path, sized(json!({ "tags": ["y", "z"] })))
            .await
            .told()
    ])
}

async fn whole_lists_are_replaced(on: Subject) -> Value {
    let path = format!("{}/a", on.widgets());
    on.apply("one", &path, sized(json!({ "size": 1, "few": [1, 2, 3] })))
        .await;
    let refused = on
        .apply("two", &path, sized(json!({ "few": [1, 2] })))
        .await;
    json!([
        refused.told(),
        on.apply("one", &path, sized(json!({ "size": 1, "few": [3, 4] })))
            .await
            .told()
    ])
}

async fn finalizers_are_a_set(on: Subject) -> Value {
    let path = format!("{}/a", on.secrets());
    let with = |finalizers: Value, owners: Value| {
        let mut object = secret(json!({}));
        object["metadata"]["finalizers"] = finalizers;
        object["metadata"]["ownerReferences"] = owners;
        object
    };
    let owner = |uid: &str| json!({ "apiVersion": "v1", "kind": "Node", "name": "n", "uid": uid });
    on.apply(
        "one",
        &path,
        with(json!(["a.test/x"]), json!([owner("u1")])),
    )
    .await;
    let both = on
        .apply(
            "two",
            &path,
            with(json!(["a.test/y"]), json!([owner("u2")])),
        )
        .await;
    let one = on.apply("one", &path, secret(json!({}))).await;
    let patched = on
        .merge(
            &format!("{path}?fieldManager=three"),
            json!({ "metadata": { "finalizers": null } }),
        )
        .await;
    json!([both.told(), one.told(), patched.told()])
}

async fn free_fields_are_taken_apart(on: Subject) -> Value {
    let path = format!("{}/a", on.widgets());
    on.apply(
        "one",
        &path,
        sized(json!({ "size": 1, "free": { "a": { "b": 1, "c": [1] }, "d": "x" }, "port": 80 })),
    )
    .await;
    let more = on
        .apply("two", &path, sized(json!({ "free": { "a": { "e": 2 } } })))
        .await;
    let refused = on
        .apply(
            "two",
            &path,
            sized(json!({ "free": { "a": { "c": [2] } }, "port": "http" })),
        )
        .await;
    let less = on
        .apply(
            "one",
            &path,
            sized(json!({ "size": 1, "free": { "d": "x" } })),
        )
        .await;
    let changed = on
        .merge(
            &path,
            json!({ "spec": { "free": { "a": 5, "d": { "f": 1 } } } }),
        )
        .await;
    json!([more.told(), refused.told(), less.told(), changed.told()])
}

async fn defaults_are_nobodys(on: Subject) -> Value {
    let path = format!("{}/a", on.widgets());
    on.apply("one", &path, sized(json!({ "size": 1 }))).await;
    let set = on
        .apply("one", &path, sized(json!({ "size": 1, "mode": "manual" })))
        .await;
    json!([
        set.told(),
        on.apply("one", &path, sized(json!({ "size": 1 })))
            .await
            .told()
    ])
}

async fn plain_texts_of_a_secret_can_be_applied(on: Subject) -> Value {
    let path = format!("{}/a", on.secrets());
    let mut plain = secret(json!({ "x": "eA==" }));
    plain["stringData"] = json!({ "y": "text" });
    json!([
        on.apply("one", &path, plain.clone()).await.told(),
        on.apply("one", &path, plain).await.told()
    ])
}

async fn invalid_values_can_not_be_applied(on: Subject) -> Value {
    json!([
        on.apply(
            "one",
            &format!("{}/a", on.widgets()),
            sized(json!({ "size": 99 }))
        )
        .await
        .told(),
        on.apply("one", &format!("{}/a", on.widgets()), sized(json!({})))
            .await
            .told(),
        on.apply(
            "one",
            &format!("{}/a", on.secrets()),
            secret(json!({ "a b": "" }))
        )
        .await
        .brief(),
        on.apply(
            "one",
            &format!("{}/a", on.secrets()),
            secret(json!({ "x": "no base64" }))
        )
        .await
        .brief(),
        on.apply("one", &format!("{}/A_B", on.secrets()), secret(json!({})))
            .await
            .brief(),
    ])
}

async fn applying_is_seen_by_watches(on: Subject) -> Value {
    let path = format!("{}/a", on.secrets());
    let made = on.made(&on.secrets(), secret(json!({}))).await;
    let mut watch = on
        .watch(&format!(
            "{}?watch=true&resourceVersion={}",
            on.secrets(),
            version(&made)
        ))
        .await;
    on.apply("one", &path, secret(json!({ "x": "eA==" }))).await;
    on.apply("two", &path, secret(json!({ "x": "eA==" }))).await;
    json!([watch.next().await, watch.next().await, watch.next().await])
}

async fn one_without_the_right_can_not_apply(on: Subject) -> Value {
    let patcher = on
        .somebody(json!([{ "apiGroups": [""], "resources": ["secrets"], "verbs": ["patch"] }]))
        .await;
    let path = format!("{}/a?fieldManager=one", on.secrets());
    let body = || secret(json!({ "x": "eA==" })).to_string().into_bytes();
    let missing = on
        .send_raw(&patcher, Method::PATCH, &path, APPLY, body())
        .await;
    on.made(&on.secrets(), secret(json!({}))).await;
    let there = on
        .send_raw(&patcher, Method::PATCH, &path, APPLY, body())
        .await;
    let merged = on
        .send_raw(&patcher, Method::PATCH, &path, MERGE, b"{}".to_vec())
        .await;
    json!([missing.brief(), there.told(), merged.brief()])
}
