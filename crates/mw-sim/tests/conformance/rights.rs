//! Authorization.

use http::Method;
use serde_json::{Value, json};

use crate::creating::widget;
use crate::subject::{JSON, Seen, Subject};

crate::behaviours![
    an_unknown_token_is_unauthorized,
    without_token_nothing_is_allowed,
    what_no_rule_allows_is_forbidden,
    a_rule_allows_its_verbs_only,
    a_rule_for_names_allows_these_only,
    applying_creates_what_a_rule_names,
    a_right_on_the_status_is_none_on_the_object,
    what_may_not_be_known_is_forbidden_whether_it_is_there_or_not,
    one_may_ask_what_one_may,
    everybody_may_ask_what_there_is,
];

async fn an_unknown_token_is_unauthorized(on: Subject) -> Value {
    let stranger = on.stranger(Some("nobodys")).await;
    let seen = on
        .send_raw(&stranger, Method::GET, &on.widgets(), JSON, vec![])
        .await;
    json!([
        seen.told(),
        on.send_raw(&stranger, Method::GET, "/version", JSON, vec![])
            .await
            .code
    ])
}

async fn without_token_nothing_is_allowed(on: Subject) -> Value {
    let stranger = on.stranger(None).await;
    on.send_raw(&stranger, Method::GET, &on.widgets(), JSON, vec![])
        .await
        .told()
}

async fn what_no_rule_allows_is_forbidden(on: Subject) -> Value {
    let somebody = on.somebody(json!([])).await;
    let mut seen = Vec::new();
    for (method, path) in [
        (Method::GET, on.widgets()),
        (Method::GET, format!("{}?watch=true", on.widgets())),
        (Method::GET, format!("{}/a", on.widgets())),
        (Method::POST, on.widgets()),
        (Method::PATCH, format!("{}/a", on.widgets())),
        (Method::PATCH, format!("{}/a/status", on.widgets())),
        (Method::DELETE, format!("{}/a", on.widgets())),
        (Method::DELETE, on.widgets()),
        (Method::GET, "/api/v1/nodes".to_owned()),
        (Method::PUT, "/api/v1/nodes/a".to_owned()),
        (Method::GET, "/apis/conformance.test/v1/widgets".to_owned()),
        (Method::GET, format!("/api/v1/namespaces/{}", on.namespace)),
    ] {
        seen.push(
            on.send_raw(&somebody, method, &path, JSON, b"{}".to_vec())
                .await
                .told(),
        );
    }
    json!(seen)
}

async fn a_rule_allows_its_verbs_only(on: Subject) -> Value {
    let rules = json!([{ "apiGroups": ["conformance.test"], "resources": ["widgets"], "verbs": ["get", "create"] }]);
    let somebody = on.somebody(rules).await;
    let ask = async |method: Method, path: &str, body: Value| -> Seen {
        on.send_raw(&somebody, method, path, JSON, body.to_string().into_bytes())
            .await
    };
    json!([
        ask(Method::POST, &on.widgets(), widget("a")).await.code,
        ask(Method::GET, &format!("{}/a", on.widgets()), json!({}))
            .await
            .code,
        ask(Method::GET, &on.widgets(), json!({})).await.code,
        ask(Method::PUT, &format!("{}/a", on.widgets()), json!({}))
            .await
            .code,
        ask(Method::DELETE, &format!("{}/a", on.widgets()), json!({}))
            .await
            .code,
        ask(
            Method::GET,
            "/apis/conformance.test/v1/gadgets/a",
            json!({})
        )
        .await
        .code,
    ])
}

/// Creation by apply can be limited to a name by a rule, creation by POST can't.
async fn applying_creates_what_a_rule_names(on: Subject) -> Value {
    let verbs = json!(["create", "patch"]);
    let rules = json!([{ "apiGroups": ["conformance.test"], "resources": ["widgets"], "verbs": verbs, "resourceNames": ["a"] }]);
    let somebody = on.somebody(rules).await;
    let mut seen = Vec::new();
    for name in ["a", "b"] {
        let (collection, body) = (on.widgets(), widget(name).to_string().into_bytes());
        let path = format!("{collection}/{name}?fieldManager=me");
        seen.push(
            on.send_raw(
                &somebody,
                Method::PATCH,
                &path,
                "application/apply-patch+yaml",
                body.clone(),
            )
            .await
            .code,
        );
        seen.push(
            on.send_raw(&somebody, Method::POST, &collection, JSON, body)
                .await
                .code,
        );
    }
    json!(seen)
}

async fn a_rule_for_names_allows_these_only(on: Subject) -> Value {
    let rules = json!([{ "apiGroups": [""], "resources": ["namespaces"], "verbs": ["get", "list"], "resourceNames": ["kube-system"] }]);
    let somebody = on.somebody(rules).await;
    let mut seen = Vec::new();
    for path in [
        "/api/v1/namespaces/kube-system",
        "/api/v1/namespaces/default",
        "/api/v1/namespaces",
    ] {
        seen.push(
            on.send_raw(&somebody, Method::GET, path, JSON, vec![])
                .await
                .code,
        );
    }
    json!(seen)
}

async fn a_right_on_the_status_is_none_on_the_object(on: Subject) -> Value {
    on.made(&on.widgets(), widget("a")).await;
    let rules = json!([{ "apiGroups": ["conformance.test"], "resources": ["widgets/status"], "verbs": ["patch"] }]);
    let somebody = on.somebody(rules).await;
    let patch = json!({ "status": { "phase": "Done" } })
        .to_string()
        .into_bytes();
    let path = format!("{}/a", on.widgets());
    json!([
        on.send_raw(
            &somebody,
            Method::PATCH,
            &format!("{path}/status"),
            crate::subject::MERGE,
            patch.clone()
        )
        .await
        .code,
        on.send_raw(
            &somebody,
            Method::PATCH,
            &path,
            crate::subject::MERGE,
            patch
        )
        .await
        .code,
    ])
}

async fn what_may_not_be_known_is_forbidden_whether_it_is_there_or_not(on: Subject) -> Value {
    let somebody = on.somebody(json!([])).await;
    let mut seen = Vec::new();
    for path in [
        "/apis/nobody.test/v1/things",
        "/api/v1/namespaces/nowhere/secrets/a",
        "/apis/conformance.test/v1/namespaces/nowhere/widgets",
    ] {
        seen.push(
            on.send_raw(&somebody, Method::GET, path, JSON, vec![])
                .await
                .told(),
        );
    }
    json!(seen)
}

async fn one_may_ask_what_one_may(on: Subject) -> Value {
    let rules =
        json!([{ "apiGroups": ["conformance.test"], "resources": ["widgets"], "verbs": ["list"] }]);
    let somebody = on.somebody(rules).await;
    let mut seen = Vec::new();
    for (verb, resource) in [
        ("list", "widgets"),
        ("delete", "widgets"),
        ("list", "gadgets"),
    ] {
        let attributes = json!({ "group": "conformance.test", "resource": resource, "verb": verb, "namespace": on.namespace });
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": { "resourceAttributes": attributes },
        });
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let answer = on
            .send_raw(
                &somebody,
                Method::POST,
                path,
                JSON,
                review.to_string().into_bytes(),
            )
            .await;
        seen.push(answer.parts(&["/kind", "/spec", "/status/allowed"]));
    }
    json!(seen)
}

async fn everybody_may_ask_what_there_is(on: Subject) -> Value {
    let somebody = on.somebody(json!([])).await;
    let mut seen = Vec::new();
    for path in [
        "/version",
        "/api",
        "/apis",
        "/api/v1",
        "/apis/conformance.test/v1",
    ] {
        seen.push(
            on.send_raw(&somebody, Method::GET, path, JSON, vec![])
                .await
                .code,
        );
    }
    json!(seen)
}
