//! Watches.

use serde_json::{Value, json};

use crate::creating::widget;
use crate::subject::{Subject, version};

crate::behaviours![
    a_watch_tells_what_happens_after_its_version,
    a_watch_without_version_begins_with_what_is_there,
    a_watch_of_any_version_begins_with_what_is_there,
    a_watch_with_a_selector_sees_objects_come_and_go,
    a_watch_by_name_sees_one_object,
    a_watch_of_one_namespace_sees_no_other,
    what_is_gone_is_told_as_it_last_was,
    a_watch_ends_after_its_time,
    a_stream_of_what_is_there_ends_with_a_bookmark,
    a_stream_without_bookmarks_has_no_end_mark,
    a_stream_needs_its_match,
    a_stream_may_leave_out_what_is_there,
    a_match_without_stream_is_refused,
    a_watch_from_a_version_not_yet_there_waits,
    a_watch_goes_on_from_the_version_of_an_event,
    a_write_without_change_is_no_event,
    a_watch_with_a_wrong_version_is_refused,
    the_items_of_a_list_and_of_a_watch_are_the_same,
    a_status_write_is_an_event,
];

async fn a_watch_tells_what_happens_after_its_version(on: Subject) -> Value {
    let made = on.made(&on.widgets(), widget("a")).await;
    on.made(&on.widgets(), widget("b")).await;
    let mut watch = on
        .watch(&format!(
            "{}?watch=true&resourceVersion={}",
            on.widgets(),
            version(&made)
        ))
        .await;
    on.merge(
        &format!("{}/a", on.widgets()),
        json!({ "spec": { "size": 2 } }),
    )
    .await;
    on.delete(&format!("{}/b", on.widgets())).await;
    let mut events = vec![json!(watch.code)];
    for _ in 0..4 {
        events.push(watch.next().await);
    }
    json!(events)
}

async fn a_watch_without_version_begins_with_what_is_there(on: Subject) -> Value {
    on.made(&on.widgets(), widget("b")).await;
    on.made(&on.widgets(), widget("a")).await;
    let mut watch = on.watch(&format!("{}?watch=true", on.widgets())).await;
    let mut first = vec![watch.short().await, watch.short().await];
    // A real server sends them in any order.
    first.sort_by_key(Value::to_string);
    on.made(&on.widgets(), widget("c")).await;
    json!([first, watch.short().await, watch.short().await])
}

async fn a_watch_of_any_version_begins_with_what_is_there(on: Subject) -> Value {
    on.made(&on.widgets(), widget("a")).await;
    // A consistent read, after which a lagging cache has seen the object.
    on.get(&on.widgets()).await;
    let mut watch = on
        .watch(&format!("{}?watch=true&resourceVersion=0", on.widgets()))
        .await;
    let first = watch.short().await;
    on.made(&on.widgets(), widget("c")).await;
    json!([first, watch.short().await, watch.short().await])
}

async fn a_watch_with_a_selector_sees_objects_come_and_go(on: Subject) -> Value {
    let label = |color: &str| json!({ "metadata": { "labels": { "color": color } } });
    let path = format!("{}/a", on.widgets());
    let made = on.made(&on.widgets(), widget("a")).await;
    let mut watch = on
        .watch(&format!(
            "{}?watch=true&labelSelector=color%3Dred&resourceVersion={}",
            on.widgets(),
            version(&made)
        ))
        .await;
    on.merge(&path, label("blue")).await;
    on.merge(&path, label("red")).await;
    on.merge(&path, json!({ "spec": { "size": 2 } })).await;
    let last = on
        .merge(
            &path,
            json!({ "metadata": { "labels": { "color": "blue" } }, "spec": { "size": 3 } }),
        )
        .await;
    on.merge(&path, label("green")).await;
    on.merge(&path, label("red")).await;
    on.delete(&path).await;
    let mut events = Vec::new();
    for index in 0..6 {
        let Some(event) = watch.raw().await else {
            break;
        };
        if index == 2 {
            assert_eq!(
                version(&event["object"]),
                last.version(),
                "an object that no longer matches has the version of the change"
            );
        }
        events.push(json!({ "type": event["type"], "labels": event["object"]["metadata"]["labels"], "spec": event["object"]["spec"] }));
    }
    assert_eq!(events.len(), 5);
    json!(events)
}

async fn a_watch_by_name_sees_one_object(on: Subject) -> Value {
    let made = on.made(&on.widgets(), widget("a")).await;
    let mut watch = on
        .watch(&format!(
            "{}?watch=true&fieldSelector=metadata.name%3Db&resourceVersion={}",
            on.widgets(),
            version(&made)
        ))
        .await;
    on.merge(
        &format!("{}/a", on.widgets()),
        json!({ "spec": { "size": 2 } }),
    )
    .await;
    on.made(&on.widgets(), widget("b")).await;
    json!(watch.shorts().await)
}

async fn a_watch_of_one_namespace_sees_no_other(on: Subject) -> Value {
    let other = on.own("other");
    on.made(
        "/api/v1/namespaces",
        json!({ "metadata": { "name": other } }),
    )
    .await;
    let made = on.made(&on.widgets(), widget("a")).await;
    let from = version(&made);
    let mut one = on
        .watch(&format!(
            "{}?watch=true&resourceVersion={from}",
            on.widgets()
        ))
        .await;
    let mut object = widget("b");
    object["metadata"]["labels"] = json!({ "of": on.namespace });
    let query = format!(
        "watch=true&resourceVersion={from}&labelSelector=of%3D{}",
        on.namespace
    );
    let mut all = on
        .watch(&format!("/apis/conformance.test/v1/widgets?{query}"))
        .await;
    on.made(
        &format!("/apis/conformance.test/v1/namespaces/{other}/widgets"),
        object,
    )
    .await;
    json!([one.shorts().await, all.shorts().await])
}

async fn what_is_gone_is_told_as_it_last_was(on: Subject) -> Value {
    let made = on
        .made(
            &on.secrets(),
            json!({ "metadata": { "name": "a" }, "data": { "x": "eA==" } }),
        )
        .await;
    let mut watch = on
        .watch(&format!(
            "{}?watch=true&resourceVersion={}",
            on.secrets(),
            version(&made)
        ))
        .await;
    on.delete(&format!("{}/a", on.secrets())).await;
    let gone = watch.raw().await.unwrap();
    assert!(version(&gone["object"]) > version(&made));
    json!([gone["type"], gone["object"]["data"], gone["object"]["kind"]])
}

async fn a_watch_ends_after_its_time(on: Subject) -> Value {
    let made = on.made(&on.widgets(), widget("a")).await;
    let path = format!(
        "{}?watch=true&timeoutSeconds=2&resourceVersion={}",
        on.widgets(),
        version(&made)
    );
    let mut watch = on.watch(&path).await;
    let mut seen = Vec::new();
    while seen.len() < 10 && seen.last().is_none_or(|last| last != "over") {
        seen.push(watch.short().await);
    }
    seen.dedup();
    json!(seen)
}

async fn a_stream_of_what_is_there_ends_with_a_bookmark(on: Subject) -> Value {
    on.made(&on.widgets(), widget("a")).await;
    let last = on.made(&on.widgets(), widget("b")).await;
    let query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = on.watch(&format!("{}?{query}", on.widgets())).await;
    let first = [watch.short().await, watch.short().await];
    let mark = watch.raw().await.unwrap();
    assert!(version(&mark["object"]) >= version(&last));
    on.made(&on.widgets(), widget("c")).await;
    let parts = [
        "/type",
        "/object/kind",
        "/object/apiVersion",
        "/object/metadata/annotations",
    ];
    let parts: Vec<&Value> = parts
        .iter()
        .map(|part| mark.pointer(part).unwrap_or(&Value::Null))
        .collect();
    json!([first, parts, watch.shorts().await])
}

async fn a_stream_without_bookmarks_has_no_end_mark(on: Subject) -> Value {
    on.made(&on.widgets(), widget("a")).await;
    let mut watch = on
        .watch(&format!(
            "{}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
            on.widgets()
        ))
        .await;
    json!(watch.shorts().await)
}

async fn a_stream_needs_its_match(on: Subject) -> Value {
    let mut seen = Vec::new();
    for query in [
        "sendInitialEvents=true",
        "sendInitialEvents=false",
        "sendInitialEvents=true&resourceVersionMatch=Exact",
    ] {
        seen.push(
            on.get(&format!("{}?watch=true&{query}", on.widgets()))
                .await
                .brief(),
        );
    }
    json!(seen)
}

async fn a_stream_may_leave_out_what_is_there(on: Subject) -> Value {
    let made = on.made(&on.widgets(), widget("a")).await;
    let query = "watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = on
        .watch(&format!(
            "{}?{query}&resourceVersion={}",
            on.widgets(),
            version(&made)
        ))
        .await;
    on.made(&on.widgets(), widget("b")).await;
    json!(watch.shorts().await)
}

async fn a_match_without_stream_is_refused(on: Subject) -> Value {
    on.get(&format!(
        "{}?watch=true&resourceVersion=5&resourceVersionMatch=NotOlderThan",
        on.widgets()
    ))
    .await
    .brief()
}

async fn a_watch_from_a_version_not_yet_there_waits(on: Subject) -> Value {
    let made = on.made(&on.widgets(), widget("a")).await;
    let mut watch = on
        .watch(&format!(
            "{}?watch=true&resourceVersion={}",
            on.widgets(),
            version(&made) + 500_000
        ))
        .await;
    on.made(&on.widgets(), widget("b")).await;
    json!([watch.code, watch.shorts().await])
}

async fn a_watch_goes_on_from_the_version_of_an_event(on: Subject) -> Value {
    let made = on.made(&on.widgets(), widget("a")).await;
    let mut watch = on
        .watch(&format!(
            "{}?watch=true&resourceVersion={}",
            on.widgets(),
            version(&made)
        ))
        .await;
    on.made(&on.widgets(), widget("b")).await;
    on.delete(&format!("{}/b", on.widgets())).await;
    on.made(&on.widgets(), widget("c")).await;
    watch.raw().await;
    let gone = watch.raw().await.unwrap();
    drop(watch);
    let mut again = on
        .watch(&format!(
            "{}?watch=true&resourceVersion={}",
            on.widgets(),
            version(&gone["object"])
        ))
        .await;
    json!([gone["type"], again.shorts().await])
}

async fn a_write_without_change_is_no_event(on: Subject) -> Value {
    let made = on.made(&on.widgets(), widget("a")).await;
    let path = format!("{}/a", on.widgets());
    let mut watch = on
        .watch(&format!(
            "{}?watch=true&resourceVersion={}",
            on.widgets(),
            version(&made)
        ))
        .await;
    on.merge(&path, json!({ "spec": { "size": 1 } })).await;
    on.put(&path, made.clone()).await;
    on.post(&on.widgets(), widget("a")).await;
    on.merge(
        &format!("{path}/status"),
        json!({ "status": { "phase": "Done" } }),
    )
    .await;
    on.merge(
        &format!("{path}/status"),
        json!({ "status": { "phase": "Done" } }),
    )
    .await;
    on.merge(&format!("{path}/status"), json!({ "spec": { "size": 5 } }))
        .await;
    json!(watch.shorts().await)
}

async fn a_watch_with_a_wrong_version_is_refused(on: Subject) -> Value {
    on.get(&format!("{}?watch=true&resourceVersion=new", on.widgets()))
        .await
        .brief()
}

async fn the_items_of_a_list_and_of_a_watch_are_the_same(on: Subject) -> Value {
    let made = on.made(&on.widgets(), widget("a")).await;
    let mut watch = on.watch(&format!("{}?watch=true", on.widgets())).await;
    let (told, listed) = (watch.raw().await.unwrap(), on.get(&on.widgets()).await);
    assert_eq!(told["object"], listed.body["items"][0]);
    assert_eq!(told["object"], made);
    json!("same")
}

async fn a_status_write_is_an_event(on: Subject) -> Value {
    let made = on.made(&on.widgets(), widget("a")).await;
    let mut watch = on
        .watch(&format!(
            "{}?watch=true&resourceVersion={}",
            on.widgets(),
            version(&made)
        ))
        .await;
    on.merge(
        &format!("{}/a/status", on.widgets()),
        json!({ "status": { "phase": "Done" } }),
    )
    .await;
    json!([watch.next().await, watch.next().await])
}
