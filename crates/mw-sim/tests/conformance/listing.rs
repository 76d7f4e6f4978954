//! GET of collections.

use serde_json::{Value, json};

use crate::creating::widget;
use crate::subject::{Side, Subject, version};

crate::behaviours![
    a_list_is_in_the_order_of_names,
    an_empty_list_has_a_version,
    items_of_built_in_kinds_do_not_say_their_kind,
    a_list_of_all_namespaces_holds_those_of_each,
    a_list_in_pages_shows_the_state_of_the_first_page,
    the_rest_of_a_list_is_counted_unless_it_is_chosen_from,
    a_page_with_a_version_is_refused,
    a_broken_continue_token_is_refused,
    labels_choose,
    fields_choose_by_name,
    unknown_fields_do_not_choose,
    a_selector_that_makes_no_sense_is_refused,
    a_list_of_any_version_is_whole,
    a_list_not_older_than_a_version_is_the_newest,
    a_list_of_an_exact_version_shows_the_past,
    a_limit_with_a_version_means_that_version,
    a_version_from_the_future_is_not_waited_for,
    a_match_without_version_is_refused,
    a_version_that_is_no_number_is_refused,
    a_list_in_a_namespace_that_is_not_there_is_empty,
    a_forgotten_version_is_gone,
];

async fn four(on: &Subject) -> u64 {
    let mut last = 0;
    for (name, color) in [("b", "red"), ("a.b", "blue"), ("c", "red"), ("a", "green")] {
        let mut object = widget(name);
        object["metadata"]["labels"] = json!({ "color": color });
        if color == "red" {
            object["metadata"]["labels"]["warm"] = "yes".into();
        }
        last = version(&on.made(&on.widgets(), object).await);
    }
    last
}

async fn a_list_is_in_the_order_of_names(on: Subject) -> Value {
    four(&on).await;
    let listed = on.get(&on.widgets()).await;
    assert_eq!(listed.names(), ["a", "a.b", "b", "c"]);
    listed.told()
}

async fn an_empty_list_has_a_version(on: Subject) -> Value {
    let listed = on.get(&on.widgets()).await;
    assert!(listed.version() > 0);
    json!([listed.told(), on.get(&on.secrets()).await.told()])
}

async fn items_of_built_in_kinds_do_not_say_their_kind(on: Subject) -> Value {
    on.made(
        &on.secrets(),
        json!({ "metadata": { "name": "a" }, "data": { "x": "eA==" } }),
    )
    .await;
    on.get(&on.secrets()).await.told()
}

async fn a_list_of_all_namespaces_holds_those_of_each(on: Subject) -> Value {
    let other = on.own("other");
    on.made(
        "/api/v1/namespaces",
        json!({ "metadata": { "name": other } }),
    )
    .await;
    let mut object = widget("a");
    object["metadata"]["labels"] = json!({ "of": on.namespace });
    on.made(&on.widgets(), object.clone()).await;
    on.made(
        &format!("/apis/conformance.test/v1/namespaces/{other}/widgets"),
        object,
    )
    .await;
    let listed = on
        .get(&format!(
            "/apis/conformance.test/v1/widgets?labelSelector=of%3D{}",
            on.namespace
        ))
        .await;
    let places: Vec<&Value> = listed.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["metadata"]["namespace"])
        .collect();
    json!(places)
}

async fn a_list_in_pages_shows_the_state_of_the_first_page(on: Subject) -> Value {
    four(&on).await;
    let first = on.get(&format!("{}?limit=2", on.widgets())).await;
    on.made(&on.widgets(), widget("bb")).await;
    on.delete(&format!("{}/c", on.widgets())).await;
    let token = first.body["metadata"]["continue"].as_str().unwrap();
    let second = on
        .get(&format!("{}?limit=2&continue={token}", on.widgets()))
        .await;
    assert_eq!(
        (first.names(), second.names()),
        (vec!["a".into(), "a.b".into()], vec!["b".into(), "c".into()])
    );
    assert_eq!(first.version(), second.version());
    json!([
        first.parts(&["/metadata"]),
        second.parts(&["/metadata"]),
        on.get(&on.widgets()).await.names()
    ])
}

async fn the_rest_of_a_list_is_counted_unless_it_is_chosen_from(on: Subject) -> Value {
    four(&on).await;
    let plain = on.get(&format!("{}?limit=1", on.widgets())).await;
    let chosen = on
        .get(&format!(
            "{}?limit=1&labelSelector=color%3Dred",
            on.widgets()
        ))
        .await;
    json!([
        plain.parts(&["/metadata"]),
        chosen.parts(&["/metadata"]),
        chosen.names()
    ])
}

async fn a_page_with_a_version_is_refused(on: Subject) -> Value {
    four(&on).await;
    let first = on.get(&format!("{}?limit=2", on.widgets())).await;
    let token = first.body["metadata"]["continue"].as_str().unwrap();
    on.get(&format!(
        "{}?limit=2&continue={token}&resourceVersion={}",
        on.widgets(),
        first.version()
    ))
    .await
    .brief()
}

async fn a_broken_continue_token_is_refused(on: Subject) -> Value {
    on.get(&format!("{}?limit=2&continue=nonsense", on.widgets()))
        .await
        .brief()
}

async fn labels_choose(on: Subject) -> Value {
    four(&on).await;
    let mut seen = Vec::new();
    for selector in [
        "color%3Dred",
        "color%3D%3Dred",
        "color!%3Dred",
        "color%20in%20(red,blue)",
        "color%20notin%20(red,blue)",
        "warm",
        "!warm",
        "color%3Dred,warm%3Dyes",
        "color%3Dred,!warm",
        "nothing!%3Dx",
        "color%3D",
    ] {
        seen.push(json!([
            selector,
            on.get(&format!("{}?labelSelector={selector}", on.widgets()))
                .await
                .names()
        ]));
    }
    json!(seen)
}

async fn fields_choose_by_name(on: Subject) -> Value {
    four(&on).await;
    let mut seen = Vec::new();
    for selector in [
        "metadata.name%3Da",
        "metadata.name!%3Da",
        "metadata.name%3Dnobody",
    ] {
        seen.push(json!([
            selector,
            on.get(&format!("{}?fieldSelector={selector}", on.widgets()))
                .await
                .names()
        ]));
    }
    on.made(
        &on.secrets(),
        json!({ "metadata": { "name": "a" }, "type": "x/y" }),
    )
    .await;
    on.made(&on.secrets(), json!({ "metadata": { "name": "b" } }))
        .await;
    seen.push(json!(
        on.get(&format!("{}?fieldSelector=type%3Dx/y", on.secrets()))
            .await
            .names()
    ));
    seen.push(json!(
        on.get(&format!(
            "{}?fieldSelector=metadata.namespace%3D{}",
            on.secrets(),
            on.namespace
        ))
        .await
        .names()
    ));
    json!(seen)
}

async fn unknown_fields_do_not_choose(on: Subject) -> Value {
    json!([
        on.get(&format!("{}?fieldSelector=spec.size%3D1", on.widgets()))
            .await
            .brief(),
        on.get(&format!("{}?fieldSelector=data%3D1", on.secrets()))
            .await
            .brief(),
        on.get("/api/v1/nodes?fieldSelector=spec.podCIDR%3D1")
            .await
            .brief(),
    ])
}

async fn a_selector_that_makes_no_sense_is_refused(on: Subject) -> Value {
    let mut seen = Vec::new();
    for query in [
        "labelSelector=a%20of%20(b)",
        "labelSelector=-a",
        "labelSelector=a%3Db%20c",
        "fieldSelector=name",
    ] {
        seen.push(on.get(&format!("{}?{query}", on.widgets())).await.brief());
    }
    json!(seen)
}

async fn a_list_of_any_version_is_whole(on: Subject) -> Value {
    four(&on).await;
    // The cache of a new kind is filled after the first requests; until then the store answers them, in pages.
    let path = format!("{}?resourceVersion=0&limit=2", on.widgets());
    let listed = on.until(&path, |seen| seen.names().len() == 4).await;
    json!([listed.names(), listed.parts(&["/metadata"])])
}

async fn a_list_not_older_than_a_version_is_the_newest(on: Subject) -> Value {
    let last = four(&on).await;
    on.made(&on.widgets(), widget("d")).await;
    let plain = on
        .get(&format!("{}?resourceVersion={last}", on.widgets()))
        .await;
    let said = on
        .get(&format!(
            "{}?resourceVersion={last}&resourceVersionMatch=NotOlderThan",
            on.widgets()
        ))
        .await;
    let limited = on
        .get(&format!(
            "{}?resourceVersion={last}&resourceVersionMatch=NotOlderThan&limit=10",
            on.widgets()
        ))
        .await;
    assert!(plain.version() >= last && said.version() >= last);
    json!([plain.code, said.code, limited.code])
}

async fn a_list_of_an_exact_version_shows_the_past(on: Subject) -> Value {
    let last = four(&on).await;
    on.made(&on.widgets(), widget("d")).await;
    on.merge(
        &format!("{}/a", on.widgets()),
        json!({ "spec": { "size": 9 } }),
    )
    .await;
    on.delete(&format!("{}/b", on.widgets())).await;
    let listed = on
        .get(&format!(
            "{}?resourceVersion={last}&resourceVersionMatch=Exact",
            on.widgets()
        ))
        .await;
    assert_eq!(listed.version(), last);
    json!([listed.names(), listed.body["items"][0]["spec"]])
}

async fn a_limit_with_a_version_means_that_version(on: Subject) -> Value {
    let last = four(&on).await;
    on.made(&on.widgets(), widget("d")).await;
    let listed = on
        .get(&format!("{}?resourceVersion={last}&limit=10", on.widgets()))
        .await;
    json!([listed.names(), listed.version() == last])
}

async fn a_version_from_the_future_is_not_waited_for(on: Subject) -> Value {
    let seen = on
        .get(&format!("{}?resourceVersion=900000000", on.widgets()))
        .await;
    json!([seen.told(), seen.retry_after])
}

async fn a_match_without_version_is_refused(on: Subject) -> Value {
    let mut seen = Vec::new();
    for query in [
        "resourceVersionMatch=Exact",
        "resourceVersionMatch=Exact&resourceVersion=0",
        "resourceVersionMatch=Newest&resourceVersion=1",
    ] {
        seen.push(on.get(&format!("{}?{query}", on.widgets())).await.brief());
    }
    json!(seen)
}

async fn a_version_that_is_no_number_is_refused(on: Subject) -> Value {
    json!([
        on.get(&format!("{}?resourceVersion=new", on.widgets()))
            .await
            .brief(),
        on.get(&format!("{}?limit=x", on.widgets())).await.code
    ])
}

async fn a_list_in_a_namespace_that_is_not_there_is_empty(on: Subject) -> Value {
    on.get("/apis/conformance.test/v1/namespaces/nowhere/widgets")
        .await
        .told()
}

/// Real servers compact after minutes, and have no history from before their start.
async fn a_forgotten_version_is_gone(on: Subject) -> Value {
    four(&on).await;
    if let Side::Simulated(cluster) = &on.side {
        cluster.compact();
    }
    let mut watch = on
        .watch(&format!("{}?watch=true&resourceVersion=1", on.widgets()))
        .await;
    let mut error = watch.next().await;
    let message = error["object"]["message"].take();
    assert!(
        message
            .as_str()
            .unwrap()
            .starts_with("too old resource version"),
        "{message}"
    );
    json!([watch.code, error, watch.next().await])
}
