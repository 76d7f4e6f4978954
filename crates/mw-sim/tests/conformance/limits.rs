//! Size limits and media types.

use http::Method;
use http::Request;
use kube::client::Body;
use serde_json::{Value, json};

use crate::creating::widget;
use crate::subject::{JSON, Subject};

crate::behaviours![
    a_body_of_more_than_three_megabytes_is_refused,
    an_object_that_is_too_large_to_keep_is_refused,
    an_answer_of_an_unknown_type_is_not_given,
    a_get_of_an_impossible_name_is_not_found,
    a_body_of_an_unknown_type_is_refused,
    an_object_can_be_asked_for_not_older_than_a_version,
];

async fn a_body_of_more_than_three_megabytes_is_refused(on: Subject) -> Value {
    let mut object = widget("a");
    object["spec"]["free"] = json!({ "x": "y".repeat((3 << 20) + 10) });
    on.send(Method::POST, &on.widgets(), JSON, Some(object))
        .await
        .brief()
}

async fn an_object_that_is_too_large_to_keep_is_refused(on: Subject) -> Value {
    let mut object = widget("a");
    object["spec"]["free"] = json!({ "x": "y".repeat(1_700_000) });
    let made = on.post(&on.widgets(), object).await;
    on.made(&on.widgets(), widget("b")).await;
    let grown = on
        .merge(
            &format!("{}/b", on.widgets()),
            json!({ "spec": { "free": { "x": "y".repeat(1_700_000) } } }),
        )
        .await;
    let mut fits = widget("c");
    fits["spec"]["free"] = json!({ "x": "y".repeat(1_400_000) });
    json!([
        made.told(),
        grown.told(),
        on.post(&on.widgets(), fits).await.code
    ])
}

async fn an_answer_of_an_unknown_type_is_not_given(on: Subject) -> Value {
    let mut seen = Vec::new();
    for accept in [
        "text/plain",
        "application/json",
        "*/*",
        "text/html, application/json;q=0.5",
    ] {
        let request = Request::get(on.widgets())
            .header("accept", accept)
            .body(Body::empty())
            .unwrap();
        seen.push(on.client.send(request).await.unwrap().status().as_u16());
    }
    json!(seen)
}

async fn a_get_of_an_impossible_name_is_not_found(on: Subject) -> Value {
    json!([
        on.get(&format!("{}/A_b", on.widgets())).await.told(),
        on.get(&format!("{}/A_b", on.secrets())).await.told()
    ])
}

async fn a_body_of_an_unknown_type_is_refused(on: Subject) -> Value {
    json!([
        on.send(Method::POST, &on.widgets(), "text/plain", Some(widget("a")))
            .await
            .brief(),
        on.send(
            Method::POST,
            &on.secrets(),
            "text/plain",
            Some(json!({ "metadata": { "name": "a" } }))
        )
        .await
        .brief(),
        on.send(
            Method::POST,
            &on.widgets(),
            "application/json; charset=utf-8",
            Some(widget("a"))
        )
        .await
        .code,
        on.send(Method::POST, &on.widgets(), "", Some(widget("b")))
            .await
            .code,
    ])
}

async fn an_object_can_be_asked_for_not_older_than_a_version(on: Subject) -> Value {
    let made = on.made(&on.widgets(), widget("a")).await;
    let path = format!("{}/a?resourceVersion", on.widgets());
    json!([
        on.get(&format!("{path}={}", crate::subject::version(&made)))
            .await
            .told(),
        on.get(&format!("{path}=0")).await.code,
        on.get(&format!("{path}=900000000")).await.brief(),
    ])
}
