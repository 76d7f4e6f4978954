//! Schema validation of custom resources.

use serde_json::{Value, json};

use crate::creating::widget;
use crate::subject::Subject;

crate::behaviours![
    defaults_are_filled_in,
    unknown_fields_are_pruned,
    unknown_fields_are_refused_when_strict,
    fields_given_twice_are_refused_when_strict,
    required_fields_must_be_there,
    types_are_checked,
    whole_numbers_may_be_written_with_a_fraction,
    numbers_have_bounds,
    large_numbers_are_checked_by_their_format,
    texts_have_bounds_and_patterns,
    only_listed_values_are_taken,
    lists_have_bounds,
    sets_have_no_entry_twice,
    maps_by_key_have_no_key_twice,
    times_are_checked,
    a_port_is_a_number_or_a_text,
    maps_have_values_of_one_type,
    null_is_taken_where_allowed,
    null_gives_way_to_a_default,
    what_is_free_is_kept_as_it_is,
    rules_are_checked,
    rules_are_not_checked_when_much_is_wrong,
    several_mistakes_are_told_at_once,
    a_mesh_with_mistakes_is_refused,
    a_mesh_is_completed_with_defaults,
    a_mesh_whose_networks_are_given_twice_is_refused,
    conditions_of_a_mesh_are_told_apart_by_type,
    a_peer_keeps_what_it_is_given,
    a_peer_of_the_wrong_shape_is_refused,
];

async fn of(on: &Subject, spec: Value) -> Value {
    let mut object = widget("a");
    object["spec"] = spec;
    let seen = on.post(&on.widgets(), object).await;
    if seen.code == 201 {
        on.delete(&format!("{}/a", on.widgets())).await;
        return seen.body["spec"].clone();
    }
    seen.told()
}

async fn all_of(on: &Subject, specs: impl IntoIterator<Item = Value>) -> Value {
    let mut seen = Vec::new();
    for spec in specs {
        seen.push(of(on, spec).await);
    }
    json!(seen)
}

async fn defaults_are_filled_in(on: Subject) -> Value {
    all_of(&on, [json!({ "size": 1 }), json!({ "size": 1, "mode": "other", "parts": [{ "name": "a" }, { "name": "b", "count": 0 }] })])
        .await
}

async fn unknown_fields_are_pruned(on: Subject) -> Value {
    let mut object = widget("a");
    object["more"] = json!(1);
    object["spec"] = json!({ "size": 1, "unknown": {}, "parts": [{ "name": "x", "y": 1 }], "either": { "a": "1", "c": "2" } });
    on.post(&on.widgets(), object).await.told()
}

async fn unknown_fields_are_refused_when_strict(on: Subject) -> Value {
    let path = format!("{}?fieldValidation=Strict", on.widgets());
    let mut seen = Vec::new();
    for (pointer, value) in [
        ("spec", json!({ "size": 1, "unknown": 1 })),
        ("more", json!(1)),
    ] {
        let mut object = widget("a");
        object[pointer] = value;
        seen.push(on.post(&path, object).await.told());
    }
    let mut object = widget("a");
    object["metadata"]["unknown"] = 1.into();
    seen.push(on.post(&path, object).await.told());
    let mut object = widget("a");
    object["spec"]["parts"] = json!([{ "name": "x", "y": 1 }]);
    seen.push(on.post(&path, object).await.told());
    seen.push(
        on.post(
            &format!("{}?fieldValidation=Strict", on.secrets()),
            json!({ "metadata": { "name": "a" }, "more": 1 }),
        )
        .await
        .told(),
    );
    seen.push(on.post(&path, widget("a")).await.told());
    json!(seen)
}

async fn fields_given_twice_are_refused_when_strict(on: Subject) -> Value {
    let text = widget("a")
        .to_string()
        .replace("\"size\":1", "\"size\":1,\"size\":2")
        .into_bytes();
    let (method, json) = (http::Method::POST, crate::subject::JSON);
    let path = format!("{}?fieldValidation=Strict", on.widgets());
    let strict = on
        .send_raw(&on.client, method.clone(), &path, json, text.clone())
        .await;
    json!([
        strict.told(),
        on.send_raw(&on.client, method, &on.widgets(), json, text)
            .await
            .told()
    ])
}

async fn required_fields_must_be_there(on: Subject) -> Value {
    all_of(&on, [json!({}), json!({ "size": 1, "parts": [{}] })]).await
}

async fn types_are_checked(on: Subject) -> Value {
    let wrong = [
        json!({ "size": "1" }),
        json!({ "size": 1.5 }),
        json!({ "size": true }),
        json!({ "size": 1, "word": 7 }),
        json!({ "size": 1, "on": "true" }),
        json!({ "size": 1, "weight": "heavy" }),
        json!({ "size": 1, "tags": "x" }),
        json!({ "size": 1, "tags": [1] }),
        json!({ "size": 1, "either": [] }),
        json!({ "size": 1, "free": 7 }),
        json!("spec"),
    ];
    all_of(&on, wrong).await
}

async fn whole_numbers_may_be_written_with_a_fraction(on: Subject) -> Value {
    let text = widget("a")
        .to_string()
        .replace("\"size\":1", "\"size\":1.0")
        .into_bytes();
    let seen = on
        .send_raw(
            &on.client,
            http::Method::POST,
            &on.widgets(),
            crate::subject::JSON,
            text,
        )
        .await;
    json!(seen.code)
}

async fn numbers_have_bounds(on: Subject) -> Value {
    all_of(
        &on,
        [
            json!({ "size": -1 }),
            json!({ "size": 11 }),
            json!({ "size": 0 }),
            json!({ "size": 10, "weight": 1.25 }),
        ],
    )
    .await
}

async fn large_numbers_are_checked_by_their_format(on: Subject) -> Value {
    json!([of(&on, json!({ "size": 3_000_000_000_u64 })).await["code"]])
}

async fn texts_have_bounds_and_patterns(on: Subject) -> Value {
    let word = |word: &str| json!({ "size": 1, "word": word });
    all_of(
        &on,
        [
            word("a"),
            word("abcdef"),
            word("a1"),
            word(""),
            word("äb"),
            word("ab"),
        ],
    )
    .await
}

async fn only_listed_values_are_taken(on: Subject) -> Value {
    all_of(
        &on,
        [
            json!({ "size": 1, "color": "green" }),
            json!({ "size": 1, "color": "" }),
            json!({ "size": 1, "color": "red" }),
        ],
    )
    .await
}

async fn lists_have_bounds(on: Subject) -> Value {
    let wrong = [
        json!({ "size": 1, "tags": ["a", "b", "c", "d"] }),
        json!({ "size": 1, "few": [1] }),
        json!({ "size": 1, "few": [] }),
        json!({ "size": 1, "few": [1, 1] }),
        json!({ "size": 1, "tags": [] }),
    ];
    all_of(&on, wrong).await
}

async fn sets_have_no_entry_twice(on: Subject) -> Value {
    all_of(&on, [json!({ "size": 1, "tags": ["a", "b", "a"] })]).await
}

async fn maps_by_key_have_no_key_twice(on: Subject) -> Value {
    all_of(&on, [json!({ "size": 1, "parts": [{ "name": "a" }, { "name": "b" }, { "name": "a", "count": 2 }] })]).await
}

async fn times_are_checked(on: Subject) -> Value {
    let when = |when: &str| json!({ "size": 1, "when": when });
    let all = [
        when("yesterday"),
        when("2026-01-01"),
        when("2026-13-01T00:00:00Z"),
        when("2026-01-01T00:00:00Z"),
        when("2026-01-01T00:00:00.123456+02:00"),
    ];
    all_of(&on, all).await
}

async fn a_port_is_a_number_or_a_text(on: Subject) -> Value {
    let port = |port: Value| json!({ "size": 1, "port": port });
    let mut seen = Vec::new();
    for value in [json!(80), json!("http"), json!(true), json!(1.5)] {
        let told = of(&on, port(value)).await;
        seen.push(json!([told["code"], told["port"]]));
    }
    json!(seen)
}

async fn maps_have_values_of_one_type(on: Subject) -> Value {
    let mut seen = Vec::new();
    for names in [json!({ "a": "b", "C d": "" }), json!({ "a": 1 })] {
        let told = of(&on, json!({ "size": 1, "names": names })).await;
        seen.push(json!([told["code"], told["names"]]));
    }
    json!(seen)
}

async fn null_is_taken_where_allowed(on: Subject) -> Value {
    all_of(
        &on,
        [
            json!({ "size": 1, "note": null }),
            json!({ "size": 1, "color": null }),
            json!({ "size": null }),
            json!({ "size": 1, "tags": [null] }),
            json!({ "size": 1, "names": { "a": null } }),
            json!({ "size": 1, "port": null }),
            json!({ "size": 1, "either": { "a": null, "b": "x" } }),
            json!({ "size": 1, "free": null }),
        ],
    )
    .await
}

async fn null_gives_way_to_a_default(on: Subject) -> Value {
    all_of(
        &on,
        [
            json!({ "size": 1, "mode": null }),
            json!({ "size": 1, "parts": [{ "name": "a", "count": null }] }),
        ],
    )
    .await
}

async fn what_is_free_is_kept_as_it_is(on: Subject) -> Value {
    all_of(
        &on,
        [json!({ "size": 1, "free": { "a": null, "b": [1, "x", { "c": {} }], "d": "", "e": 0 } })],
    )
    .await
}

async fn rules_are_checked(on: Subject) -> Value {
    let either = |either: Value| json!({ "size": 1, "either": either });
    let all = [
        either(json!({})),
        either(json!({ "a": "", "b": "" })),
        either(json!({ "a": "" })),
        either(json!({ "b": "x" })),
    ];
    all_of(&on, all).await
}

async fn rules_are_not_checked_when_much_is_wrong(on: Subject) -> Value {
    all_of(
        &on,
        [
            json!({ "either": {} }),
            json!({ "size": 11, "either": {} }),
            json!({ "size": "x", "either": {} }),
        ],
    )
    .await
}

async fn several_mistakes_are_told_at_once(on: Subject) -> Value {
    let mut object = widget("a");
    object["spec"] = json!({ "size": 11, "color": "green", "word": "A" });
    object["metadata"]["labels"] = json!({ "a": "x y" });
    on.post(&on.widgets(), object).await.brief()
}

fn meshes(on: &Subject) -> String {
    format!(
        "/apis/kilo.squat.ai/v1alpha1/namespaces/{}/clustermeshes",
        on.namespace
    )
}

fn mesh(clusters: Value) -> Value {
    json!({
        "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "ClusterMesh", "metadata": { "name": "a" }, "spec": { "clusters": clusters },
    })
}

fn member(name: &str) -> Value {
    json!({ "name": name, "podCIDRs": ["10.1.0.0/16"], "wireguardCIDR": "10.4.0.0/16" })
}

async fn a_mesh_with_mistakes_is_refused(on: Subject) -> Value {
    let mut seen = Vec::new();
    for (name, value) in [
        ("name", json!("A")),
        ("podCIDRs", json!(["10.1.0.0"])),
        ("podCIDRs", json!([])),
        ("wireguardCIDR", json!("300.0.0.0/8")),
        ("persistentKeepalive", json!(-1)),
        ("persistentKeepalive", json!(65_536)),
        ("wireguardPort", json!("51820")),
        ("kubeconfigSecretRef", json!({})),
        ("local", json!("yes")),
    ] {
        let mut wrong = member("a");
        wrong[name] = value;
        seen.push(
            on.post(&meshes(&on), mesh(json!([wrong, member("b")])))
                .await
                .told(),
        );
    }
    seen.push(
        on.post(&meshes(&on), mesh(json!([member("a")])))
            .await
            .told(),
    );
    json!(seen)
}

async fn a_mesh_is_completed_with_defaults(on: Subject) -> Value {
    on.post(&meshes(&on), mesh(json!([member("a"), member("b")])))
        .await
        .told()
}

async fn a_mesh_whose_networks_are_given_twice_is_refused(on: Subject) -> Value {
    let mut twice = member("a");
    twice["allowedNetworks"] = json!(["10.0.0.0/8"]);
    let none = json!({ "name": "b" });
    on.post(&meshes(&on), mesh(json!([twice, none])))
        .await
        .told()
}

async fn conditions_of_a_mesh_are_told_apart_by_type(on: Subject) -> Value {
    on.made(&meshes(&on), mesh(json!([member("a"), member("b")])))
        .await;
    let condition = |kind: &str| json!({ "type": kind, "status": "True", "reason": "Fine", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let path = format!("{}/a/status", meshes(&on));
    let twice = on
        .merge(
            &path,
            json!({ "status": { "conditions": [condition("Ready"), condition("Ready")] } }),
        )
        .await;
    let two = on
        .merge(
            &path,
            json!({ "status": { "conditions": [condition("Ready"), condition("Other")] } }),
        )
        .await;
    json!([twice.told(), two.told()])
}

const PEERS: &str = "/apis/kilo.squat.ai/v1alpha1/peers";

fn peer(on: &Subject) -> Value {
    json!({
        "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "Peer", "metadata": { "name": on.own("a") },
        "spec": { "allowedIPs": ["10.1.0.1/32"], "publicKey": "x", "endpoint": { "dnsOrIP": { "ip": "1.1.1.1" }, "port": 51820 } },
    })
}

async fn a_peer_keeps_what_it_is_given(on: Subject) -> Value {
    let made = on.post(PEERS, peer(&on)).await;
    let path = format!("{PEERS}/{}", on.own("a"));
    let metadata = json!({ "uid": made.body["metadata"]["uid"], "resourceVersion": made.body["metadata"]["resourceVersion"] });
    let patch = json!({ "metadata": metadata, "spec": { "endpoint": null, "allowedIPs": ["10.1.0.2/32"], "persistentKeepalive": 10 } });
    json!([made.told(), on.merge(&path, patch).await.told()])
}

async fn a_peer_of_the_wrong_shape_is_refused(on: Subject) -> Value {
    let mut seen = Vec::new();
    for spec in [
        json!({ "publicKey": "x" }),
        json!({ "allowedIPs": [], "publicKey": 7 }),
        json!({ "allowedIPs": [], "publicKey": "x", "endpoint": { "port": 1 } }),
        json!({ "allowedIPs": [], "publicKey": "x", "endpoint": { "dnsOrIP": {}, "port": "1" } }),
        Value::Null,
    ] {
        let mut wrong = peer(&on);
        wrong["spec"] = spec;
        seen.push(on.post(PEERS, wrong).await.told());
    }
    json!(seen)
}
