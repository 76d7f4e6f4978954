//! Names, labels, annotations and other metadata.

use serde_json::{Value, json};

use crate::creating::widget;
use crate::subject::Subject;

crate::behaviours![
    names_are_subdomains,
    names_of_namespaces_are_labels,
    a_prefix_of_names_is_checked,
    labels_are_checked,
    annotations_are_checked,
    too_many_annotations_are_refused,
    finalizers_are_checked,
    owners_are_checked,
    metadata_of_a_wrong_type_is_refused,
    metadata_is_checked_on_a_change_too,
    empty_metadata_is_left_out,
    unknown_metadata_is_left_out,
];

async fn with(on: &Subject, metadata: Value) -> Value {
    let mut object = widget("a");
    object["metadata"] = metadata;
    on.post(&on.widgets(), object).await.told()
}

async fn names_are_subdomains(on: Subject) -> Value {
    let mut seen = Vec::new();
    for name in [
        "A",
        "a_b",
        "a/b",
        "-a",
        "a-",
        "a..b",
        "a b",
        &"x".repeat(254),
    ] {
        seen.push(with(&on, json!({ "name": name })).await);
    }
    for name in ["a.b-c.1", "0", &"x".repeat(253)] {
        assert_eq!(with(&on, json!({ "name": name })).await["code"], 201);
    }
    seen.push(
        on.post(&on.secrets(), json!({ "metadata": { "name": "A" } }))
            .await
            .told(),
    );
    json!(seen)
}

async fn names_of_namespaces_are_labels(on: Subject) -> Value {
    let mut seen = Vec::new();
    for name in ["a.b", "A", &"x".repeat(64)] {
        seen.push(
            on.post(
                "/api/v1/namespaces",
                json!({ "metadata": { "name": name } }),
            )
            .await
            .told(),
        );
    }
    json!(seen)
}

async fn a_prefix_of_names_is_checked(on: Subject) -> Value {
    json!([
        with(&on, json!({ "generateName": "A-" })).await["code"],
        with(&on, json!({ "generateName": "" })).await
    ])
}

async fn labels_are_checked(on: Subject) -> Value {
    let mut seen = Vec::new();
    for labels in [
        json!({ "": "x" }),
        json!({ "a b": "x" }),
        json!({ "a/b/c": "x" }),
        json!({ "A.x/b": "x" }),
        json!({ "/b": "x" }),
        json!({ "x.io/": "x" }),
        json!({ "a": "x y" }),
        json!({ "a": "-x" }),
        json!({ "a": "x".repeat(64) }),
        json!({ "x".repeat(64): "x" }),
    ] {
        seen.push(with(&on, json!({ "name": "a", "labels": labels })).await);
    }
    let fine = json!({ "a": "", "x.io/B_c.d-1": "A_b.c-1", "c": "x".repeat(63) });
    seen.push(with(&on, json!({ "name": "a", "labels": fine })).await);
    json!(seen)
}

async fn annotations_are_checked(on: Subject) -> Value {
    let mut seen = Vec::new();
    for annotations in [
        json!({ "a b": "x" }),
        json!({ "": "x" }),
        json!({ "a/b/c": "x" }),
    ] {
        seen.push(with(&on, json!({ "name": "a", "annotations": annotations })).await);
    }
    seen.push(
        with(
            &on,
            json!({ "name": "a", "annotations": { "A.X/b": "any thing: \n \u{1f600}", "c": "" } }),
        )
        .await,
    );
    json!(seen)
}

async fn too_many_annotations_are_refused(on: Subject) -> Value {
    let of = |length: usize| json!({ "name": "a", "annotations": { "a": "x".repeat(length) } });
    json!([
        with(&on, of(256 << 10)).await,
        with(&on, of((256 << 10) - 1)).await["code"]
    ])
}

async fn finalizers_are_checked(on: Subject) -> Value {
    json!([
        with(&on, json!({ "name": "a", "finalizers": ["a b"] })).await["code"],
        with(&on, json!({ "name": "b", "finalizers": [""] })).await["code"],
        with(&on, json!({ "name": "c", "finalizers": ["x.io/a"] })).await["code"],
    ])
}

async fn owners_are_checked(on: Subject) -> Value {
    let owner = json!({ "apiVersion": "v1", "kind": "Secret", "name": "x", "uid": "y" });
    let mut nameless = owner.clone();
    nameless["name"] = "".into();
    json!([
        with(&on, json!({ "name": "a", "ownerReferences": [owner] })).await,
        with(&on, json!({ "name": "b", "ownerReferences": [nameless] })).await["code"],
    ])
}

async fn metadata_of_a_wrong_type_is_refused(on: Subject) -> Value {
    let mut seen = Vec::new();
    for metadata in [
        json!({ "name": 7 }),
        json!({ "name": "a", "labels": [] }),
        json!({ "name": "a", "labels": { "a": 1 } }),
        json!({ "name": "a", "finalizers": "x" }),
        json!({ "name": "a", "creationTimestamp": "yesterday" }),
    ] {
        let mut object = widget("a");
        object["metadata"] = metadata.clone();
        seen.push(on.post(&on.widgets(), object).await.brief());
        seen.push(
            on.post(&on.secrets(), json!({ "metadata": metadata }))
                .await
                .brief(),
        );
    }
    json!(seen)
}

async fn metadata_is_checked_on_a_change_too(on: Subject) -> Value {
    on.made(&on.widgets(), widget("a")).await;
    let path = format!("{}/a", on.widgets());
    let mut seen = Vec::new();
    for metadata in [
        json!({ "labels": { "a": "x y" } }),
        json!({ "annotations": { "a b": "x" } }),
        json!({ "labels": { "a": 1 } }),
    ] {
        seen.push(
            on.merge(&path, json!({ "metadata": metadata }))
                .await
                .brief(),
        );
    }
    json!(seen)
}

async fn empty_metadata_is_left_out(on: Subject) -> Value {
    let empty = json!({ "name": "a", "labels": {}, "annotations": null, "finalizers": [], "ownerReferences": [], "generateName": "" });
    let secret = on
        .post(&on.secrets(), json!({ "metadata": empty }))
        .await
        .told();
    json!([with(&on, empty).await, secret])
}

async fn unknown_metadata_is_left_out(on: Subject) -> Value {
    let more = json!({ "name": "a", "clusterName": "x", "unknown": { "a": 1 } });
    json!([
        with(&on, more.clone()).await,
        on.post(&on.secrets(), json!({ "metadata": more }))
            .await
            .told()
    ])
}
