//! POST.

use http::Method;
use serde_json::{Value, json};

use crate::subject::{JSON, Subject, version};

crate::behaviours![
    a_created_object_is_completed_by_the_server,
    a_created_object_can_be_read_as_it_was_answered,
    a_second_object_of_a_name_is_refused,
    a_name_can_be_generated,
    a_given_name_wins_over_a_prefix,
    an_object_without_name_is_refused,
    the_namespace_may_be_left_out_of_the_object,
    a_different_namespace_in_the_object_is_refused,
    a_namespace_in_an_object_that_has_none_is_dropped,
    nothing_is_created_in_a_namespace_that_is_not_there,
    a_new_object_must_not_name_a_version,
    what_only_servers_write_is_not_taken_from_a_client,
    the_wrong_kind_is_refused,
    the_wrong_version_is_refused,
    a_custom_resource_must_say_its_kind,
    a_built_in_object_need_not_say_its_kind,
    what_is_no_json_is_refused,
    a_post_to_a_name_depends_on_the_kind,
    a_post_to_all_namespaces_is_not_allowed,
    an_unknown_resource_is_not_found,
    an_unknown_version_of_a_known_group_is_not_found,
    versions_rise_with_each_write_whatever_the_kind,
];

pub(crate) fn widget(name: &str) -> Value {
    json!({ "apiVersion": "conformance.test/v1", "kind": "Widget", "metadata": { "name": name }, "spec": { "size": 1 } })
}

pub(crate) fn gadget(name: &str) -> Value {
    json!({ "apiVersion": "conformance.test/v1", "kind": "Gadget", "metadata": { "name": name }, "spec": { "size": 1 } })
}

pub(crate) const GADGETS: &str = "/apis/conformance.test/v1/gadgets";

async fn a_created_object_is_completed_by_the_server(on: Subject) -> Value {
    let seen = on.post(&on.widgets(), widget("a")).await;
    assert_eq!(seen.body["metadata"]["generation"], 1);
    assert_eq!(seen.body["metadata"]["uid"].as_str().unwrap().len(), 36);
    assert_eq!(
        seen.body["metadata"]["creationTimestamp"]
            .as_str()
            .unwrap()
            .len(),
        20
    );
    seen.told()
}

async fn a_created_object_can_be_read_as_it_was_answered(on: Subject) -> Value {
    let made = on.post(&on.widgets(), widget("a")).await;
    let read = on.get(&format!("{}/a", on.widgets())).await;
    assert_eq!(made.body, read.body);
    read.told()
}

async fn a_second_object_of_a_name_is_refused(on: Subject) -> Value {
    on.made(&on.widgets(), widget("a")).await;
    let custom = on.post(&on.widgets(), widget("a")).await;
    let built_in = on
        .post(
            "/api/v1/namespaces",
            json!({ "metadata": { "name": on.namespace } }),
        )
        .await;
    assert_eq!((custom.code, built_in.code), (409, 409));
    json!([custom.told(), built_in.told()])
}

async fn a_name_can_be_generated(on: Subject) -> Value {
    let mut object = widget("");
    object["metadata"] = json!({ "generateName": "some-" });
    let mut seen = on.post(&on.widgets(), object).await;
    let name = seen.body["metadata"]["name"].as_str().unwrap().to_owned();
    assert!(name.starts_with("some-") && name.len() == 10, "{name}");
    seen.body["metadata"]["name"] = "generated".into();
    seen.told()
}

async fn a_given_name_wins_over_a_prefix(on: Subject) -> Value {
    let mut object = widget("given");
    object["metadata"]["generateName"] = "some-".into();
    on.post(&on.widgets(), object).await.told()
}

async fn an_object_without_name_is_refused(on: Subject) -> Value {
    let custom = on.post(&on.widgets(), widget("")).await;
    let built_in = on.post(&on.secrets(), json!({ "metadata": {} })).await;
    json!([custom.told(), built_in.told()])
}

async fn the_namespace_may_be_left_out_of_the_object(on: Subject) -> Value {
    let left_out = on.post(&on.widgets(), widget("a")).await;
    let mut object = widget("b");
    object["metadata"]["namespace"] = on.namespace.clone().into();
    json!([left_out.told(), on.post(&on.widgets(), object).await.told()])
}

async fn a_different_namespace_in_the_object_is_refused(on: Subject) -> Value {
    let mut object = widget("a");
    object["metadata"]["namespace"] = "default".into();
    on.post(&on.widgets(), object).await.told()
}

async fn a_namespace_in_an_object_that_has_none_is_dropped(on: Subject) -> Value {
    let mut object = gadget(&on.own("a"));
    object["metadata"]["namespace"] = "default".into();
    on.post(GADGETS, object).await.told()
}

async fn nothing_is_created_in_a_namespace_that_is_not_there(on: Subject) -> Value {
    let path = "/apis/conformance.test/v1/namespaces/nowhere/widgets";
    let secrets = "/api/v1/namespaces/nowhere/secrets";
    json!([
        on.post(path, widget("a")).await.told(),
        on.post(secrets, json!({ "metadata": { "name": "a" } }))
            .await
            .told()
    ])
}

async fn a_new_object_must_not_name_a_version(on: Subject) -> Value {
    let mut object = widget("a");
    object["metadata"]["resourceVersion"] = "1".into();
    on.post(&on.widgets(), object).await.told()
}

async fn what_only_servers_write_is_not_taken_from_a_client(on: Subject) -> Value {
    let theirs = json!({
        "name": "a", "uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z", "deletionTimestamp": "2001-01-01T00:00:00Z",
        "deletionGracePeriodSeconds": 5, "generation": 7, "selfLink": "/x",
    });
    let mut object = widget("a");
    object["metadata"] = theirs.clone();
    object["status"] = json!({ "phase": "Mine" });
    let custom = on.post(&on.widgets(), object).await;
    assert_ne!(custom.body["metadata"]["uid"], "mine");
    assert_ne!(
        custom.body["metadata"]["creationTimestamp"],
        "2001-01-01T00:00:00Z"
    );
    let secret = on.post(&on.secrets(), json!({ "metadata": theirs })).await;
    json!([custom.told(), secret.told()])
}

async fn the_wrong_kind_is_refused(on: Subject) -> Value {
    let mut object = widget("a");
    object["kind"] = "Gadget".into();
    let custom = on.post(&on.widgets(), object).await.told();
    json!([
        custom,
        on.post(
            &on.secrets(),
            json!({ "kind": "Node", "apiVersion": "v1", "metadata": { "name": "a" } })
        )
        .await
        .brief()
    ])
}

async fn the_wrong_version_is_refused(on: Subject) -> Value {
    let mut object = widget("a");
    object["apiVersion"] = "conformance.test/v2".into();
    let custom = on.post(&on.widgets(), object).await.brief();
    json!([
        custom,
        on.post(
            &on.secrets(),
            json!({ "kind": "Secret", "apiVersion": "v2", "metadata": { "name": "a" } })
        )
        .await
        .brief()
    ])
}

async fn a_custom_resource_must_say_its_kind(on: Subject) -> Value {
    let (mut no_kind, mut no_version) = (widget("a"), widget("b"));
    no_kind.as_object_mut().unwrap().remove("kind");
    no_version.as_object_mut().unwrap().remove("apiVersion");
    json!([
        on.post(&on.widgets(), no_kind).await.brief(),
        on.post(&on.widgets(), no_version).await.brief()
    ])
}

async fn a_built_in_object_need_not_say_its_kind(on: Subject) -> Value {
    on.post(&on.secrets(), json!({ "metadata": { "name": "a" } }))
        .await
        .told()
}

async fn what_is_no_json_is_refused(on: Subject) -> Value {
    let mut seen = Vec::new();
    for body in ["", "{", "[]", "null", "7", "{\"metadata\": 7}"] {
        for path in [on.widgets(), on.secrets()] {
            seen.push(
                on.send_raw(
                    &on.client,
                    Method::POST,
                    &path,
                    JSON,
                    body.as_bytes().to_vec(),
                )
                .await
                .brief(),
            );
        }
    }
    json!(seen)
}

async fn a_post_to_a_name_depends_on_the_kind(on: Subject) -> Value {
    let path = format!("{}/a", on.widgets());
    json!([
        on.post(&path, widget("a")).await.told(),
        on.post(&format!("{}/a", on.secrets()), json!({}))
            .await
            .told()
    ])
}

async fn a_post_to_all_namespaces_is_not_allowed(on: Subject) -> Value {
    let mut object = widget("a");
    object["metadata"]["namespace"] = on.namespace.clone().into();
    let secret = json!({ "metadata": { "name": "a", "namespace": on.namespace } });
    json!([
        on.post("/apis/conformance.test/v1/widgets", object)
            .await
            .brief(),
        on.post("/api/v1/secrets", secret).await.brief()
    ])
}

async fn an_unknown_resource_is_not_found(on: Subject) -> Value {
    let mut seen = Vec::new();
    for path in [
        "/apis/conformance.test/v1/gizmos",
        "/apis/nobody.test/v1/gizmos/a",
        "/apis/conformance.test/v1/namespaces/default/gizmos",
    ] {
        seen.push(on.get(path).await.brief());
    }
    json!(seen)
}

async fn an_unknown_version_of_a_known_group_is_not_found(on: Subject) -> Value {
    json!([
        on.get("/apis/conformance.test/v9/gadgets").await.brief(),
        on.post("/apis/conformance.test/v9/gadgets", gadget("a"))
            .await
            .brief()
    ])
}

async fn versions_rise_with_each_write_whatever_the_kind(on: Subject) -> Value {
    let one = on.made(&on.widgets(), widget("a")).await;
    let two = on
        .made(&on.secrets(), json!({ "metadata": { "name": "a" } }))
        .await;
    let three = on.made(&on.widgets(), widget("b")).await;
    assert!(version(&one) < version(&two) && version(&two) < version(&three));
    let listed = on.get(&on.widgets()).await;
    assert!(listed.version() >= version(&three));
    json!("risen")
}
