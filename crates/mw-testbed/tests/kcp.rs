//! The stand-in for kcp behaves like kcp was observed to, grouped by the sections of
//! the facts about kcp.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test may fail loudly"
)]

mod common;
#[path = "kcp/seat.rs"]
mod seat;

use mw_testbed::Kcp;
use mw_testbed::kcp::{accepted, binding, rejected};
use seat::{APPLY, BINDINGS, MERGE, Seat, Toy, content, shared, until};
use serde_json::{Value, json};

const JSON: &str = "application/json";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";

fn claim(group: &str, resource: &str) -> Value {
    json!({ "group": group, "resource": resource, "verbs": ["*"] })
}

fn secret(name: &str, labels: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "namespace": "default", "labels": labels } })
}

fn manager_operations(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    entries
        .iter()
        .map(|entry| {
            format!(
                "{} {}",
                entry["manager"].as_str().unwrap(),
                entry["operation"].as_str().unwrap()
            )
        })
        .collect()
}

#[tokio::test]
async fn section_2_a_workspace_has_a_path_and_an_id_and_objects_carry_the_id() {
    let Some(kcp) = shared().await else { return };
    let id = kcp.id("tenant-a");
    assert!(
        id.len() == 16
            && id
                .chars()
                .all(|one| one.is_ascii_lowercase() || one.is_ascii_digit()),
        "{id}"
    );
    let by_path = Seat::new(
        kcp,
        &format!("{}/clusters/root:tenant-a", kcp.url()),
        kcp.admin_token(),
    )
    .await;
    let by_id = Seat::new(
        kcp,
        &format!("{}/clusters/{id}", kcp.url()),
        kcp.admin_token(),
    )
    .await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "two", "namespace": "default" } });
    let (code, made) = by_path.send("POST", maps, JSON, &map).await;
    assert_eq!(
        (code, &made["metadata"]["annotations"]["kcp.io/cluster"]),
        (201, &json!(id))
    );

    // The annotation can't be changed, but the attempt counts as a write.
    let evil = json!({ "metadata": { "annotations": { "kcp.io/cluster": "evil" } } });
    let (code, patched) = by_id.patch(&format!("{maps}/two"), evil).await;
    assert_eq!(
        (code, &patched["metadata"]["annotations"]["kcp.io/cluster"]),
        (200, &json!(id))
    );
    assert_ne!(
        made["metadata"]["resourceVersion"],
        patched["metadata"]["resourceVersion"]
    );
    let mut watch = by_id
        .watch(&format!("{maps}?fieldSelector=metadata.name%3Dtwo"))
        .await;
    assert_eq!(watch.told().await, format!("ADDED {id}/two"));

    // If an API is too new for OpenAPI v3, kubectl requests v2, and only accepts this
    // format.
    let (code, openapi) = by_path
        .get_as(
            "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
            "/openapi/v2",
        )
        .await;
    assert!(
        code == 200 && openapi.get("swagger").is_none() && openapi.get("text").is_some(),
        "JSON in place of protobuf"
    );

    // The token of a service account determines the workspace.
    let rules = [common::rule("", "configmaps", &["get"])];
    let token = kcp
        .workspace("tenant-a")
        .unwrap()
        .service_account("default", "native", &rules)
        .await
        .unwrap();
    let native = Seat::new(kcp, kcp.url(), &token).await;
    assert_eq!(
        native.get(&format!("{maps}/two")).await.1["metadata"]["annotations"]["kcp.io/cluster"],
        json!(id)
    );
    let foreign = Seat::new(
        kcp,
        &format!("{}/clusters/root:tenant-b", kcp.url()),
        &token,
    )
    .await;
    assert_eq!(foreign.code("GET", &format!("{maps}/two")).await, 403);
}

#[tokio::test]
async fn section_3_endpoints_and_identity_come_and_go_with_exports_and_bindings() {
    let Some(toy) = Toy::new("phases", &[]).await else {
        return;
    };
    let export = toy
        .tenant("system")
        .get(&format!(
            "/apis/apis.kcp.io/v1alpha2/apiexports/{}",
            toy.group
        ))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        export["spec"]["resources"][0]["storage"],
        json!({ "crd": {} })
    );
    assert_eq!(
        export["spec"]["identity"]["secretRef"],
        json!({ "name": toy.group, "namespace": "kcp-system" })
    );
    assert!(toy.identity_hash.len() == 64 && export["status"]["identityHash"] == toy.identity_hash);
    assert_eq!(
        export["metadata"]["annotations"]["kcp.io/path"],
        "root:system"
    );
    assert!(toy.kcp.endpoints("system", &toy.group).is_empty());

    let across = toy.across().await;
    let mut bindings = across.watch(&format!("{BINDINGS}?resourceVersion=0")).await;
    toy.bind("tenant-a", &[]).await;
    let id = toy.kcp.id("tenant-a");
    let mut phases = Vec::new();
    while phases.last() != Some(&json!("Bound")) {
        let event = bindings.next().await.unwrap();
        assert_eq!(
            event["object"]["metadata"]["annotations"]["kcp.io/path"],
            "root:tenant-a"
        );
        assert_eq!(
            event["type"],
            if phases.is_empty() {
                "ADDED"
            } else {
                "MODIFIED"
            }
        );
        phases.push(event["object"]["status"]["phase"].clone());
    }
    assert_eq!(phases, [Value::Null, json!("Binding"), json!("Bound")]);
    until(
        async || toy.kcp.endpoints("system", &toy.group),
        |found| *found == [toy.endpoint()],
    )
    .await;

    let bound = toy
        .tenant("tenant-a")
        .get(&format!("{BINDINGS}/{}", toy.group))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        bound["status"]["apiExportClusterName"],
        toy.kcp.id("system")
    );
    assert_eq!(
        bound["status"]["boundResources"][0]["schema"]["identityHash"],
        toy.identity_hash
    );
    assert_eq!(
        bound["metadata"]["finalizers"],
        json!(["apis.kcp.io/apibinding-finalizer"])
    );

    // A second binding of the same export binds nothing.
    let second = binding("zweite", "system", &toy.group, &[]);
    toy.tenant("tenant-a").create(&second).await.unwrap();
    let path = format!("{BINDINGS}/zweite");
    let ready = |object: &Value| {
        object["status"]["conditions"]
            .as_array()
            .is_some_and(|all| all.iter().any(|one| one["reason"] == "NamingConflicts"))
    };
    let refused = until(
        async || toy.tenant("tenant-a").get(&path).await.unwrap().unwrap(),
        ready,
    )
    .await;
    assert_eq!(refused["status"]["phase"], "Binding");
    toy.kcp.unbind("tenant-a", "zweite").await.unwrap();

    toy.unbind("tenant-a").await;
    bindings.until(&format!("DELETED {id}/{}", toy.group)).await;
    until(
        async || toy.kcp.endpoints("system", &toy.group),
        Vec::is_empty,
    )
    .await;
}

#[tokio::test]
async fn section_3_schemas_are_immutable_and_foreign_claims_need_an_identity() {
    let Some(toy) = Toy::new("immutable", &[]).await else {
        return;
    };
    let system = Seat::new(
        toy.kcp,
        &format!("{}/clusters/root:system", toy.kcp.url()),
        toy.kcp.admin_token(),
    )
    .await;
    let schema = format!(
        "/apis/apis.kcp.io/v1alpha1/apiresourceschemas/v1.widgets.{}",
        toy.group
    );
    assert_eq!(
        system
            .patch(&schema, json!({ "spec": { "scope": "Cluster" } }))
            .await
            .0,
        403
    );
    assert_eq!(
        system
            .patch(&schema, json!({ "metadata": { "labels": { "a": "b" } } }))
            .await
            .0,
        200
    );
    let nameless = json!({ "kind": "Widget", "plural": "widgets", "singular": "widget" });
    let mut other = toy.tenant("system").get(&schema).await.unwrap().unwrap();
    other["metadata"] = json!({ "name": format!("v2.widgets.{}", toy.group) });
    other["spec"]["names"] = nameless;
    let (code, refused) = system
        .send(
            "POST",
            "/apis/apis.kcp.io/v1alpha1/apiresourceschemas",
            JSON,
            &other,
        )
        .await;
    assert_eq!(code, 403);
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains("[spec.names.listKind: Required value]"),
        "{refused}"
    );
    let export = format!("/apis/apis.kcp.io/v1alpha2/apiexports/{}", toy.group);
    let claims = json!({ "spec": { "permissionClaims": [{ "group": "other.example.dev", "resource": "things", "verbs": ["*"] }] } });
    let (code, refused) = system.patch(&export, claims).await;
    assert_eq!(code, 403);
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains("identityHash is required for API types that are not built-in"),
        "{refused}"
    );
    // Workspaces do not serve every group without a dot.
    let claims = json!({ "spec": { "permissionClaims": [{ "group": "apps", "resource": "deployments", "verbs": ["*"] }] } });
    assert_eq!(system.patch(&export, claims).await.0, 403);
    let resources = json!([{ "group": toy.group, "name": "widgets", "schema": format!("v1.gadgets.{}", toy.group) }]);
    let (code, refused) = system
        .patch(&export, json!({ "spec": { "resources": resources } }))
        .await;
    assert_eq!(code, 403);
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains(&format!("must end in .widgets.{}", toy.group)),
        "{refused}"
    );
}

#[tokio::test]
async fn section_3_a_schema_is_judged_as_a_crd_is_and_a_claim_is_answered_with_one_selector() {
    let Some(toy) = Toy::new("structural", &[claim("", "secrets")]).await else {
        return;
    };
    let system = Seat::new(
        toy.kcp,
        &format!("{}/clusters/root:system", toy.kcp.url()),
        toy.kcp.admin_token(),
    )
    .await;
    let schemas = "/apis/apis.kcp.io/v1alpha1/apiresourceschemas";
    let found = toy
        .tenant("system")
        .get(&format!("{schemas}/v1.widgets.{}", toy.group))
        .await
        .unwrap()
        .unwrap();
    let with = |name: &str, pointer: &str, value: Value| {
        let mut schema = json!({ "apiVersion": found["apiVersion"], "kind": found["kind"], "spec": found["spec"] });
        schema["metadata"] = json!({ "name": format!("{name}.widgets.{}", toy.group) });
        *schema.pointer_mut(pointer).unwrap() = value;
        schema
    };
    for (schema, why) in [
        (
            with(
                "v2",
                "/spec/versions/0/schema/properties/spec/properties/size",
                json!({ "minimum": 0 }),
            ),
            "type: Required value",
        ),
        (
            with(
                "v2",
                "/spec/versions/0/schema",
                json!({ "openAPIV3Schema": {} }),
            ),
            "type",
        ),
        (
            with("2", "/spec/scope", json!("Namespaced")),
            "must match ^[a-z]",
        ),
    ] {
        let (code, refused) = system.send("POST", schemas, JSON, &schema).await;
        assert_eq!(code, 403, "{refused}");
        assert!(
            refused["message"].as_str().unwrap().contains(why),
            "{refused}"
        );
    }
    let tenant = Seat::new(
        toy.kcp,
        &format!("{}/clusters/root:tenant-a", toy.kcp.url()),
        toy.kcp.admin_token(),
    )
    .await;
    let mut unselective = accepted("", "secrets", &["get"]);
    unselective["selector"] = json!({});
    let asked = binding(&toy.group, "system", &toy.group, &[unselective]);
    let (code, refused) = tenant.send("POST", BINDINGS, JSON, &asked).await;
    assert_eq!(code, 403);
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains("either one of matchAll, matchLabels, or matchExpressions"),
        "{refused}"
    );
    toy.bind("tenant-a", &[]).await;
    let elsewhere = json!({ "spec": { "reference": { "export": { "name": "other", "path": "root:system" } } } });
    let (code, refused) = tenant
        .patch(&format!("{BINDINGS}/{}", toy.group), elsewhere)
        .await;
    assert_eq!(code, 422, "{refused}");
    toy.unbind("tenant-a").await;
}

#[tokio::test]
async fn section_4_what_the_virtual_workspace_refuses_and_how() {
    let Some(toy) = Toy::new("refusals", &[]).await else {
        return;
    };
    let (kcp, widgets) = (toy.kcp, toy.widgets());
    let across = toy.across().await;
    // Before the first binding.
    assert_eq!(
        across.get(&widgets).await.1["message"],
        "the server could not find the requested resource"
    );
    assert_eq!(
        (
            across.code("GET", &widgets).await,
            across.names(BINDINGS).await.len()
        ),
        (404, 0)
    );
    toy.bind("tenant-a", &[]).await;
    toy.make("tenant-a", "g1").await;

    let escaped = Seat::new(kcp, &format!("{}/clusters/%2A", toy.endpoint()), &toy.token).await;
    assert_eq!(escaped.names(&widgets).await.len(), 1);
    let (code, body) = across
        .get(&widgets.replace("widgets", "namespaces/default/widgets"))
        .await;
    assert!(
        code == 400
            && body["message"]
                .as_str()
                .unwrap()
                .starts_with("cross-cluster LIST and WATCH are required to be cross-namespace")
    );
    let one = toy.widget_path("g1");
    for method in ["GET", "DELETE"] {
        let (code, body) = across.send(method, &one, JSON, &Value::Null).await;
        assert_eq!(
            (code, &body["message"]),
            (
                404,
                &json!("the server could not find the requested resource")
            ),
            "{method}"
        );
    }
    assert_eq!(across.code("POST", &widgets).await, 404);
    assert_eq!(across.code("DELETE", &widgets).await, 404);
    let (code, body) = across.patch(&one, json!({})).await;
    assert!(
        code == 404
            && body["message"]
                .as_str()
                .unwrap()
                .ends_with("\"g1\" not found")
    );

    for url in [
        format!("{}/clusters/root:tenant-a{widgets}", toy.endpoint()),
        toy.endpoint().to_owned(),
        format!("{}/clusters", toy.endpoint()),
    ] {
        let answer = kcp.request(&toy.token, "GET", &url, None).await.unwrap();
        assert_eq!(
            (answer.code, &answer.body["message"]),
            (
                403,
                &json!("Path not resolved to a valid virtual workspace")
            ),
            "{url}"
        );
    }
    let by_path = toy.endpoint().replace(&kcp.id("system"), "root:system");
    let (code, text) = kcp
        .text(&toy.token, &format!("{by_path}/clusters/*{widgets}"))
        .await
        .unwrap();
    assert!(
        code == 500 && text.contains("API export not found") && !text.starts_with('{'),
        "{code} {text}"
    );
    assert_eq!(
        kcp.text(
            &toy.token,
            &format!("{}/clusters/*/apis/apps/v1/deployments", toy.endpoint())
        )
        .await
        .unwrap(),
        (404, "404 page not found\n".into())
    );

    // Unbound and nonexistent workspaces are indistinguishable.
    for id in [kcp.id("tenant-b"), "81e9v9xl4sknmmzg".into()] {
        let answer = kcp
            .request(
                &toy.token,
                "GET",
                &format!("{}/clusters/{id}{widgets}", toy.endpoint()),
                None,
            )
            .await
            .unwrap();
        let said = format!(
            "widgets.{0} is forbidden: User \"system:serviceaccount:default:refusals-provider\" cannot list resource \"widgets\" in API group \"{0}\" at the cluster scope: access denied",
            toy.group
        );
        assert_eq!(
            (answer.code, answer.body["message"].as_str().unwrap()),
            (403, said.as_str())
        );
    }
    let within = toy.within("tenant-a").await;
    assert_eq!(within.code("GET", "/apis/apps/v1/deployments").await, 403);
    let url = format!("{}/clusters/*{widgets}", toy.endpoint());
    assert_eq!(
        kcp.request("nonsense", "GET", &url, None)
            .await
            .unwrap()
            .code,
        401
    );
    let anonymous = kcp.request("", "GET", &url, None).await.unwrap();
    assert!(
        anonymous.code == 403
            && anonymous.body["message"]
                .as_str()
                .unwrap()
                .contains("system:anonymous")
    );
    let outside = format!("{}/clusters/*{widgets}", kcp.url());
    assert_eq!(
        kcp.request(kcp.admin_token(), "GET", &outside, None)
            .await
            .unwrap()
            .code,
        403
    );
}

#[tokio::test]
async fn section_4_discovery_knows_what_is_exported_and_claimed_and_nothing_else() {
    let Some(toy) = Toy::new("discovery", &[claim("", "events")]).await else {
        return;
    };
    toy.bind("tenant-a", &[]).await;
    for seat in [toy.across().await, toy.within("tenant-a").await] {
        let (code, groups) = seat.get("/apis").await;
        let groups: Vec<_> = groups["groups"]
            .as_array()
            .unwrap()
            .iter()
            .map(|group| group["name"].as_str().unwrap())
            .collect();
        assert_eq!(
            (code, groups),
            (
                200,
                vec!["apis.kcp.io", toy.group.as_str(), "events.k8s.io"]
            )
        );
        let (_, resources) = seat.get(&format!("/apis/{}/v1alpha1", toy.group)).await;
        let names: Vec<_> = resources["resources"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["widgets", "widgets/status"]);
        assert_eq!(
            seat.get("/api/v1").await.1["resources"]
                .as_array()
                .unwrap()
                .len(),
            1
        );
        for path in ["/api", "/version", "/openapi/v3"] {
            assert_eq!(seat.code("GET", path).await, 200, "{path}");
        }
    }
}

#[tokio::test]
async fn section_4_tables_and_partial_metadata_are_merged_and_protobuf_is_refused() {
    let Some(toy) = Toy::new("media", &[]).await else {
        return;
    };
    toy.bind_with_same(&["tenant-a", "tenant-b"]).await;
    let (across, widgets) = (toy.across().await, toy.widgets());
    let (code, table) = across
        .get_as("application/json;as=Table;v=v1;g=meta.k8s.io", &widgets)
        .await;
    let rows = table["rows"].as_array().unwrap();
    assert_eq!(
        (code, &table["kind"], rows.len()),
        (200, &json!("Table"), 2)
    );
    assert_ne!(
        rows[0]["object"]["metadata"]["annotations"],
        rows[1]["object"]["metadata"]["annotations"]
    );
    let (_, partial) = across
        .get_as(
            "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
            &widgets,
        )
        .await;
    let version = &partial["items"][0]["metadata"]["annotations"]["kcp.io/original-api-version"];
    assert_eq!(
        (version, partial["items"][0].get("spec")),
        (&json!(format!("{}/v1alpha1", toy.group)), None)
    );
    assert_eq!(
        across
            .get_as("application/vnd.kubernetes.protobuf", &widgets)
            .await
            .0,
        406
    );
}

#[tokio::test]
async fn section_5_a_list_is_sorted_by_cluster_and_comes_in_pages_at_one_revision() {
    let Some(toy) = Toy::new("lists", &[]).await else {
        return;
    };
    toy.bind_with_same(&["tenant-a", "tenant-b", "tenant-c"])
        .await;
    for tenant in ["tenant-a", "tenant-b", "tenant-c"] {
        toy.make(tenant, &format!("of-{tenant}")).await;
    }
    let (across, widgets) = (toy.across().await, toy.widgets());
    let names = across.names(&widgets).await;
    let mut expected: Vec<String> = Vec::new();
    for tenant in ["tenant-a", "tenant-b", "tenant-c"] {
        expected.extend([
            format!("{}/of-{tenant}", toy.kcp.id(tenant)),
            format!("{}/same", toy.kcp.id(tenant)),
        ]);
    }
    expected.sort();
    assert_eq!(names, expected);

    let (_, first) = across.get(&format!("{widgets}?limit=4")).await;
    assert_eq!(
        (
            first["items"].as_array().unwrap().len(),
            &first["metadata"]["remainingItemCount"]
        ),
        (4, &json!(2))
    );
    toy.make("tenant-a", "later").await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let (_, second) = across
        .get(&format!("{widgets}?limit=4&continue={token}"))
        .await;
    assert_eq!(
        (
            second["items"].as_array().unwrap().len(),
            &second["metadata"]["continue"]
        ),
        (2, &json!(""))
    );
    assert_eq!(
        first["metadata"]["resourceVersion"],
        second["metadata"]["resourceVersion"]
    );
    let at = first["metadata"]["resourceVersion"].as_str().unwrap();
    assert_eq!(
        across
            .names(&format!(
                "{widgets}?resourceVersion={at}&resourceVersionMatch=Exact"
            ))
            .await
            .len(),
        6
    );
    assert!(
        across
            .names(&format!(
                "{widgets}?resourceVersion={at}&resourceVersionMatch=NotOlderThan"
            ))
            .await
            .len()
            >= 6
    );
    assert_eq!(across.names(&widgets).await.len(), 7);

    assert_eq!(
        across
            .names(&format!("{widgets}?fieldSelector=metadata.name%3Dsame"))
            .await
            .len(),
        3
    );
    assert_eq!(
        across
            .names(&format!(
                "{widgets}?fieldSelector=metadata.namespace%3Ddefault"
            ))
            .await
            .len(),
        0,
        "silently nothing"
    );
    assert_eq!(
        across
            .code("GET", &format!("{widgets}?fieldSelector=spec.size%3D1"))
            .await,
        400
    );
    let within = toy.within("tenant-b").await;
    assert_eq!(
        within
            .names(&format!(
                "{widgets}?fieldSelector=metadata.namespace%3Ddefault"
            ))
            .await
            .len(),
        2
    );
}

#[tokio::test]
async fn section_5_a_streaming_list_ends_once_and_tenants_join_and_leave_an_open_watch() {
    let Some(toy) = Toy::new("watches", &[]).await else {
        return;
    };
    let [a, b, c] = ["tenant-a", "tenant-b", "tenant-c"].map(|tenant| toy.kcp.id(tenant));
    toy.bind_with_same(&["tenant-a", "tenant-b"]).await;
    let (across, widgets) = (toy.across().await, toy.widgets());
    let streaming =
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = across.watch(&format!("{widgets}?{streaming}")).await;
    let mut initial = [watch.told().await, watch.told().await];
    initial.sort();
    let mut expected = [format!("ADDED {a}/same"), format!("ADDED {b}/same")];
    expected.sort();
    assert_eq!(initial, expected);
    let end = watch.next().await.unwrap();
    assert_eq!(end["type"], "BOOKMARK");
    assert_eq!(
        end["object"]["metadata"]["annotations"],
        json!({ "k8s.io/initial-events-end": "true" })
    );
    assert_eq!(end["object"]["kind"], "Widget");

    toy.tenant("tenant-b")
        .merge_patch(&toy.widget_path("same"), &json!({ "spec": { "size": 2 } }))
        .await
        .unwrap();
    let modified = watch.until(&format!("MODIFIED {b}/same")).await;
    let resumed_at = modified["object"]["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();

    // Objects may exist before the watch notices that the tenant is bound.
    toy.bind("tenant-c", &[]).await;
    toy.make("tenant-c", "late").await;
    assert_eq!(watch.told().await, format!("ADDED {c}/late"));
    toy.unbind("tenant-a").await;
    assert_eq!(watch.told().await, format!("DELETED {a}/same"));
    toy.make("tenant-b", "after").await;
    assert_eq!(
        watch.told().await,
        format!("ADDED {b}/after"),
        "other tenants are not affected"
    );
    toy.bind("tenant-a", &[]).await;
    toy.make("tenant-a", "again").await;
    assert_eq!(
        watch.told().await,
        format!("ADDED {a}/again"),
        "a tenant can bind again"
    );

    // A new watch resumes where the first one was, also for tenants that were added
    // later.
    let mut resumed = across
        .watch(&format!("{widgets}?resourceVersion={resumed_at}"))
        .await;
    let mut told = [
        resumed.told().await,
        resumed.told().await,
        resumed.told().await,
    ];
    told.sort();
    let mut expected = [
        format!("ADDED {a}/again"),
        format!("ADDED {b}/after"),
        format!("ADDED {c}/late"),
    ];
    expected.sort();
    assert_eq!(told, expected);
    assert!(resumed.is_silent().await);

    let mut short = across
        .watch(&format!(
            "{widgets}?resourceVersion={resumed_at}&timeoutSeconds=1"
        ))
        .await;
    while short.next().await.is_some() {}
    let mut old = across.watch(&format!("{widgets}?resourceVersion=1")).await;
    let error = old.next().await.unwrap();
    assert_eq!(
        (
            &error["type"],
            &error["object"]["code"],
            &error["object"]["reason"]
        ),
        (&json!("ERROR"), &json!(410), &json!("Expired"))
    );
    assert_eq!(old.next().await, None);
}

#[tokio::test]
async fn section_5_a_switched_schema_ends_watches_with_an_error_and_bindings_follow() {
    let Some(toy) = Toy::new("switched", &[]).await else {
        return;
    };
    toy.bind("tenant-a", &[]).await;
    toy.make("tenant-a", "kept").await;
    let (across, widgets) = (toy.across().await, toy.widgets());
    let mut bindings = across.watch(BINDINGS).await;
    let mut watch = across.watch(&widgets).await;
    watch.told().await;
    toy.kcp
        .switch_schema("system", &toy.group, "widgets")
        .await
        .unwrap();
    let error = watch.next().await.unwrap();
    let message = "unable to decode an event from the watch stream: context canceled";
    assert_eq!(
        (
            &error["type"],
            &error["object"]["code"],
            &error["object"]["message"]
        ),
        (&json!("ERROR"), &json!(500), &json!(message))
    );
    assert_eq!(watch.next().await, None);
    let new = format!("switched-v1.widgets.{}", toy.group);
    while bindings.next().await.unwrap()["object"]["status"]["boundResources"][0]["schema"]["name"]
        != new
    {}
    until(
        async || across.get(&widgets).await,
        |(code, list)| *code == 200 && list["items"].as_array().unwrap().len() == 1,
    )
    .await;
}

#[tokio::test]
async fn section_6_patches_and_puts_are_as_usual_but_for_the_default_manager() {
    let Some(toy) = Toy::new("writes", &[]).await else {
        return;
    };
    toy.bind("tenant-a", &[]).await;
    let within = toy.within("tenant-a").await;
    let (collection, one) = (
        toy.widget_path("").trim_end_matches('/').to_owned(),
        toy.widget_path("w"),
    );
    let (code, made) = within
        .send("POST", &collection, JSON, &toy.widget("w", 1))
        .await;
    assert_eq!(
        (code, manager_operations(&made)),
        (201, vec!["kcp Update".to_owned()])
    );
    assert_eq!(
        made["metadata"]["annotations"]["kcp.io/cluster"],
        toy.kcp.id("tenant-a")
    );

    let (code, patched) = within
        .patch(
            &one,
            json!({ "spec": { "size": 2 }, "status": { "phase": "ignored" } }),
        )
        .await;
    assert_eq!(
        (code, &patched["spec"]["size"], &patched["status"]),
        (200, &json!(2), &Value::Null)
    );
    let (_, again) = within.patch(&one, json!({ "spec": { "size": 2 } })).await;
    assert_eq!(
        again["metadata"]["resourceVersion"],
        patched["metadata"]["resourceVersion"]
    );
    let (code, ready) = within
        .patch(
            &format!("{one}/status?fieldManager=me"),
            json!({ "status": { "phase": "Ready" } }),
        )
        .await;
    assert_eq!((code, &ready["status"]["phase"]), (200, &json!("Ready")));

    let stale = made["metadata"]["resourceVersion"].clone();
    assert_eq!(
        within
            .patch(
                &one,
                json!({ "metadata": { "resourceVersion": stale } , "spec": { "size": 5 } })
            )
            .await
            .0,
        409
    );
    assert_eq!(within.send("PUT", &one, JSON, &made).await.0, 409);
    let test = json!([{ "op": "test", "path": "/spec/size", "value": 9 }]);
    let (code, refused) = within
        .send("PATCH", &one, "application/json-patch+json", &test)
        .await;
    assert_eq!((code, &refused["reason"]), (422, &json!("Invalid")));
    assert_eq!(
        within
            .send(
                "PATCH",
                &one,
                "application/strategic-merge-patch+json",
                &json!({})
            )
            .await
            .0,
        415
    );
    assert_eq!(
        within
            .patch(&one, json!({ "spec": { "size": -1 } }))
            .await
            .0,
        422
    );

    let elsewhere = collection.replace("default", "nosuch");
    let (code, missing) = within
        .send("POST", &elsewhere, JSON, &json!({ "apiVersion": made["apiVersion"], "kind": "Widget", "metadata": { "name": "w" } }))
        .await;
    assert_eq!(
        (code, &missing["message"]),
        (404, &json!("namespaces \"nosuch\" not found"))
    );

    // Sends back an object of the virtual workspace: the cluster ID is not stored.
    let (_, mut read) = within.get(&one).await;
    read["spec"]["colour"] = json!("red");
    assert_eq!(within.send("PUT", &one, JSON, &read).await.0, 200);
    let stored = toy.tenant("tenant-a").get(&one).await.unwrap().unwrap();
    assert_eq!(
        (
            &stored["metadata"]["annotations"],
            &stored["spec"]["colour"]
        ),
        (&Value::Null, &json!("red"))
    );
    let (code, deleted) = within.send("DELETE", &one, JSON, &Value::Null).await;
    assert_eq!((code, &deleted["status"]), (200, &json!("Success")));
    // The audit log of the tenant contains the impersonated user.
    let user = "system:serviceaccount:default:writes-provider";
    let seen = |records: &Vec<String>| {
        records.contains(&"create".to_owned()) && records.contains(&"delete".to_owned())
    };
    let verbs = async || {
        toy.tenant("tenant-a")
            .audit()
            .unwrap()
            .into_iter()
            .filter(|one| one.user == user)
            .map(|one| one.verb)
            .collect()
    };
    until(verbs, seen).await;
}

#[tokio::test]
async fn labels_and_annotations_that_end_in_kcp_io_are_refused_on_both_ways_in() {
    let Some(toy) = Toy::new("reserved", &[]).await else {
        return;
    };
    toy.bind("tenant-a", &[]).await;
    let url = format!("{}/clusters/root:tenant-a", toy.kcp.url());
    let (within, direct) = (
        toy.within("tenant-a").await,
        Seat::new(toy.kcp, &url, toy.kcp.admin_token()).await,
    );
    let (collection, one) = (
        toy.widget_path("").trim_end_matches('/').to_owned(),
        toy.widget_path("w"),
    );
    let mut marked = toy.widget("w", 1);
    marked["metadata"]["labels"] = json!({ "some.kcp.io": "mine" });
    // Only kcp may write it, so this bypasses kcp.
    toy.tenant("tenant-a").create(&marked).await.unwrap();
    for seat in [&within, &direct] {
        let mut second = toy.widget("second", 1);
        second["metadata"]["annotations"] = json!({ "some.kcp.io": "mine" });
        let (code, refused) = seat.send("POST", &collection, JSON, &second).await;
        let told = "forbidden: modification of reserved annotation: \"some.kcp.io\"";
        assert!(
            code == 403 && refused["message"].as_str().unwrap().ends_with(told),
            "{refused}"
        );
        for labels in [
            json!({ "some.kcp.io": "other" }),
            json!({ "some.kcp.io": null }),
            json!({ "another.kcp.io": "" }),
        ] {
            let (code, refused) = seat
                .patch(&one, json!({ "metadata": { "labels": labels } }))
                .await;
            assert!(
                code == 403
                    && refused["message"]
                        .as_str()
                        .unwrap()
                        .contains("reserved label"),
                "{labels}: {refused}"
            );
        }
        let (_, mut read) = seat.get(&one).await;
        read["metadata"]["labels"] = Value::Null;
        assert_eq!(
            seat.send("PUT", &one, JSON, &read).await.0,
            403,
            "left out of a PUT"
        );
        let mut applied = toy.widget("w", 1);
        applied["metadata"]["labels"] = json!({ "another.kcp.io": "mine" });
        assert_eq!(
            seat.send("PATCH", &format!("{one}?fieldManager=me"), APPLY, &applied)
                .await
                .0,
            403
        );

        // Writes that do not touch reserved keys are admitted, also keys that only
        // start with kcp.io.
        let fine = json!({ "metadata": { "labels": { "mine": "yes" }, "annotations": { "kcp.io/cluster": "evil" } } });
        assert_eq!(seat.patch(&one, fine).await.0, 200);
        assert_eq!(
            seat.patch(
                &format!("{one}/status"),
                json!({ "status": { "phase": "Ready" } })
            )
            .await
            .0,
            200
        );
    }
    assert_eq!(
        toy.tenant("tenant-a").get(&one).await.unwrap().unwrap()["metadata"]["labels"]["some.kcp.io"],
        "mine"
    );
}

#[tokio::test]
async fn section_6_an_apply_never_prunes_and_lands_as_an_update() {
    let Some(toy) = Toy::new("applies", &[]).await else {
        return;
    };
    toy.bind("tenant-a", &[]).await;
    let within = toy.within("tenant-a").await;
    let one = toy.widget_path("w");
    let mut wanted = toy.widget("w", 1);
    wanted["spec"]["colour"] = json!("red");
    wanted["metadata"]["labels"] = json!({ "mine": "yes" });
    wanted["metadata"]["finalizers"] = json!(["example.dev/hold"]);
    let apply = format!("{one}?fieldManager=me");
    assert_eq!(
        within
            .send(
                "PATCH",
                &format!("{one}/status?fieldManager=me"),
                APPLY,
                &wanted
            )
            .await
            .0,
        405
    );
    let (code, made) = within.send("PATCH", &apply, APPLY, &wanted).await;
    assert_eq!(
        (code, manager_operations(&made)),
        (200, vec!["me Update".to_owned()])
    );

    let (code, pruned) = within
        .send("PATCH", &apply, APPLY, &toy.widget("w", 1))
        .await;
    assert_eq!(code, 200, "{pruned}");
    for kept in [
        "/spec/colour",
        "/metadata/labels/mine",
        "/metadata/finalizers/0",
    ] {
        assert!(pruned.pointer(kept).is_some(), "{kept} is kept");
    }
    // A field of another manager.
    toy.tenant("tenant-a")
        .merge_patch(
            &format!("{one}?fieldManager=other"),
            &json!({ "spec": { "size": 7 } }),
        )
        .await
        .unwrap();
    let (code, conflict) = within
        .send("PATCH", &apply, APPLY, &toy.widget("w", 3))
        .await;
    assert_eq!(
        (code, &conflict["details"]["causes"][0]["reason"]),
        (409, &json!("FieldManagerConflict")),
        "{conflict}"
    );
    let (code, forced) = within
        .send(
            "PATCH",
            &format!("{apply}&force=true"),
            APPLY,
            &toy.widget("w", 3),
        )
        .await;
    assert_eq!(
        (code, &forced["spec"]["size"], &forced["spec"]["colour"]),
        (200, &json!(3), &json!("red"))
    );
    assert!(!manager_operations(&forced).contains(&"me Apply".to_owned()));

    // Fields that the manager applied directly to the workspace are not pruned either,
    // although an apply there does prune.
    let mut direct = toy.widget("v", 1);
    direct["spec"]["colour"] = json!("blue");
    toy.tenant("tenant-a").apply(&direct).await.unwrap();
    let (_, kept) = within
        .send(
            "PATCH",
            &format!("{}?fieldManager=testbed", toy.widget_path("v")),
            APPLY,
            &toy.widget("v", 1),
        )
        .await;
    assert_eq!(kept["spec"]["colour"], "blue");

    // A merge patch does remove fields, also the last finalizer of a terminating
    // object.
    let mut watch = within
        .watch(&format!(
            "{}?fieldSelector=metadata.name%3Dw",
            toy.widgets()
        ))
        .await;
    let id = toy.kcp.id("tenant-a");
    assert_eq!(watch.told().await, format!("ADDED {id}/w"));
    within.send("DELETE", &one, JSON, &Value::Null).await;
    assert_eq!(watch.told().await, format!("MODIFIED {id}/w"));
    assert_eq!(
        within
            .patch(&one, json!({ "metadata": { "finalizers": null } }))
            .await
            .0,
        200
    );
    watch.until(&format!("DELETED {id}/w")).await;
}

#[tokio::test]
async fn section_7_rights_are_those_on_the_content_of_the_export() {
    let Some(toy) = Toy::new("rights", &[]).await else {
        return;
    };
    toy.bind("tenant-a", &[]).await;
    toy.make("tenant-a", "w").await;
    let (system, kcp) = (toy.tenant("system"), toy.kcp);
    let reader = system
        .service_account(
            "default",
            "rights-reader",
            &[content(&toy.group, &["get", "list", "watch"])],
        )
        .await
        .unwrap();
    let url = format!("{}/clusters/{}", toy.endpoint(), kcp.id("tenant-a"));
    let within = Seat::new(kcp, &url, &reader).await;
    let one = toy.widget_path("w");
    assert_eq!(within.code("GET", &one).await, 200);
    assert_eq!(within.patch(&one, json!({})).await.0, 403);
    assert_eq!(within.code("DELETE", &one).await, 403);
    system
        .service_account(
            "default",
            "rights-reader",
            &[content(&toy.group, &["get", "list", "watch", "patch"])],
        )
        .await
        .unwrap();
    assert_eq!(within.patch(&one, json!({})).await.0, 200);
    assert_eq!(
        within
            .patch(
                &format!("{one}/status"),
                json!({ "status": { "phase": "Ready" } })
            )
            .await
            .0,
        200,
        "of any subresource"
    );
    let (code, _) = within
        .send(
            "PATCH",
            &format!("{}?fieldManager=me", toy.widget_path("new")),
            APPLY,
            &toy.widget("new", 1),
        )
        .await;
    assert_eq!(code, 403, "an apply that creates needs create");
    let slices = "/apis/apis.kcp.io/v1alpha1/apiexportendpointslices";
    let slice = |token: String| async move {
        Seat::new(kcp, &format!("{}/clusters/root:system", kcp.url()), &token)
            .await
            .code("GET", slices)
            .await
    };
    assert_eq!(
        (slice(reader).await, slice(toy.token.clone()).await),
        (403, 200)
    );
    let direct = Seat::new(
        kcp,
        &format!("{}/clusters/root:tenant-a", kcp.url()),
        &toy.token,
    )
    .await;
    assert_eq!(
        direct.code("GET", &one).await,
        403,
        "tenants give a provider nothing"
    );

    // A user also needs access to the provider's workspace.
    let alice = kcp.user("alice").unwrap();
    let as_alice = Seat::new(kcp, &url, &alice).await;
    let to_alice = |name: &str, role: &str| {
        let subject =
            json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice" });
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": name },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role }, "subjects": [subject],
        })
    };
    system
        .create(&to_alice("alice-content", "default-rights-provider"))
        .await
        .unwrap();
    assert_eq!(as_alice.code("GET", &one).await, 403);
    system
        .create(&to_alice("alice-access", "system:kcp:workspace:access"))
        .await
        .unwrap();
    until(
        async || as_alice.code("GET", &one).await,
        |code| *code == 200,
    )
    .await;

    // A tenant's user may bind an export if it has the verb `bind` in the provider's
    // workspace.
    let tenant_b = kcp.workspace("tenant-b").unwrap();
    tenant_b
        .create(&to_alice("alice-access", "system:kcp:workspace:access"))
        .await
        .unwrap();
    tenant_b
        .create(&to_alice("alice-admin", "cluster-admin"))
        .await
        .unwrap();
    let in_b = Seat::new(
        kcp,
        &format!("{}/clusters/root:tenant-b", kcp.url()),
        &alice,
    )
    .await;
    let wanted = binding(&toy.group, "system", &toy.group, &[]);
    let refused = until(
        async || in_b.send("POST", BINDINGS, JSON, &wanted).await.1,
        |body| body["code"] == 403,
    )
    .await;
    let said = format!(
        "unable to create APIBinding: no permission to bind to export root:system:{}",
        toy.group
    );
    until(
        async || in_b.send("POST", BINDINGS, JSON, &wanted).await.1["message"].clone(),
        |message| message.as_str().unwrap().contains(&said),
    )
    .await;
    assert!(refused["message"].as_str().is_some());
    let bind = common::rule("apis.kcp.io", "apiexports", &["bind"]);
    system.create(&json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "rights-bind" }, "rules": [bind] })).await.unwrap();
    system
        .create(&to_alice("rights-bind", "rights-bind"))
        .await
        .unwrap();
    until(
        async || in_b.send("POST", BINDINGS, JSON, &wanted).await.0,
        |code| *code == 201,
    )
    .await;
}

#[tokio::test]
async fn section_8_a_tenant_opens_exactly_what_it_accepts() {
    let claims = [
        json!({ "group": "", "resource": "secrets", "verbs": ["get", "list", "watch", "create", "patch"] }),
        claim("", "configmaps"),
    ];
    let Some(toy) = Toy::new("claims", &claims).await else {
        return;
    };
    let a = toy.kcp.id("tenant-a");
    let tenant = toy.tenant("tenant-a");
    tenant
        .create(&secret("claims-before", json!({})))
        .await
        .unwrap();
    let read = accepted("", "secrets", &["get", "list", "watch", "delete"]);
    toy.bind("tenant-a", std::slice::from_ref(&read)).await;
    let (across, within) = (toy.across().await, toy.within("tenant-a").await);
    let one = format!("{SECRETS}/claims-before");
    assert_eq!(within.code("GET", &one).await, 200);
    assert_eq!(
        within.code("DELETE", &one).await,
        403,
        "the export does not ask for it"
    );
    assert_eq!(
        within.patch(&one, json!({})).await.0,
        403,
        "not granted by the tenant"
    );
    assert_eq!(
        within.code("GET", "/api/v1/configmaps").await,
        403,
        "not accepted"
    );

    let named = format!("{a}/claims-before");
    let listed = async |path: &str| {
        across
            .names(path)
            .await
            .into_iter()
            .filter(|name| *name == named)
            .count()
    };
    until(
        async || listed("/api/v1/secrets").await,
        |count| *count == 1,
    )
    .await;
    let labels = tenant.get(&one).await.unwrap().unwrap()["metadata"]["labels"].clone();
    assert!(
        labels
            .as_object()
            .unwrap()
            .keys()
            .any(|key| key.starts_with("claimed.internal.apis.kcp.io/")),
        "{labels}"
    );
    // Rejected at run time: hidden from the provider, not from the tenant.
    let mut watch = across.watch("/api/v1/secrets").await;
    watch.until(&format!("ADDED {named}")).await;
    toy.bind(
        "tenant-a",
        &[rejected("", "secrets", &["get", "list", "watch"])],
    )
    .await;
    watch.until(&format!("DELETED {named}")).await;
    until(async || within.code("GET", &one).await, |code| *code == 403).await;
    toy.bind("tenant-a", &[read]).await;
    watch.until(&format!("ADDED {named}")).await;

    // Claimed objects stay visible after the tenant unbinds, until their next write.
    toy.unbind("tenant-a").await;
    assert_eq!(
        (
            listed("/api/v1/secrets").await,
            within.code("GET", &one).await
        ),
        (1, 403)
    );
    tenant
        .merge_patch(&one, &json!({ "data": { "a": "Yg==" } }))
        .await
        .unwrap();
    watch.until(&format!("DELETED {named}")).await;
}

#[tokio::test]
async fn section_8_a_selector_hides_other_objects_and_labels_new_ones() {
    let Some(toy) = Toy::new("selector", &[claim("", "secrets")]).await else {
        return;
    };
    let tenant = toy.tenant("tenant-b");
    tenant
        .create(&secret("selector-in", json!({ "share": "toy" })))
        .await
        .unwrap();
    tenant
        .create(&secret("selector-out", json!({ "share": "no" })))
        .await
        .unwrap();
    let mut answered = accepted("", "secrets", &["*"]);
    answered["selector"] = json!({ "matchLabels": { "share": "toy" } });
    toy.bind("tenant-b", &[answered]).await;
    let (across, within) = (toy.across().await, toy.within("tenant-b").await);
    assert_eq!(
        within.names(SECRETS).await,
        [format!("{}/selector-in", toy.kcp.id("tenant-b"))]
    );
    until(
        async || across.names("/api/v1/secrets").await,
        |names| *names == [format!("{}/selector-in", toy.kcp.id("tenant-b"))],
    )
    .await;
    assert_eq!(
        within.code("GET", &format!("{SECRETS}/selector-out")).await,
        404
    );
    let (code, refused) = within
        .send(
            "DELETE",
            &format!("{SECRETS}/selector-out"),
            JSON,
            &Value::Null,
        )
        .await;
    assert!(
        code == 403
            && refused["message"]
                .as_str()
                .unwrap()
                .contains("object does not match required labels")
    );
    let (code, made) = within
        .send("POST", SECRETS, JSON, &secret("selector-new", json!({})))
        .await;
    assert_eq!(
        (code, &made["metadata"]["labels"]["share"]),
        (201, &json!("toy"))
    );
    let (code, refused) = within
        .send(
            "POST",
            SECRETS,
            JSON,
            &secret("selector-wrong", json!({ "share": "no" })),
        )
        .await;
    assert!(
        code == 403
            && refused["message"]
                .as_str()
                .unwrap()
                .contains("protected label share must have value toy")
    );
}

#[tokio::test]
async fn section_8_foreign_resources_need_the_right_identity_on_both_sides() {
    let Some(fleet) = Toy::new("fleet", &[]).await else {
        return;
    };
    let mut things = claim(&fleet.group, "widgets");
    things["identityHash"] = json!(fleet.identity_hash);
    let toy = Toy::of(fleet.kcp, "foreign", &[things, claim("", "events")]).await;
    let mut answered = accepted(&fleet.group, "widgets", &["get", "list", "watch"]);
    answered["identityHash"] = json!(fleet.identity_hash);
    let across = toy.across().await;
    toy.bind(
        "tenant-c",
        &[
            answered.clone(),
            accepted("", "events", &["create", "patch"]),
        ],
    )
    .await;
    let within = toy.within("tenant-c").await;
    assert_eq!(
        (
            across.code("GET", &fleet.widgets()).await,
            within.code("GET", &fleet.widgets()).await
        ),
        (404, 403),
        "nobody has it"
    );

    fleet.bind("tenant-c", &[]).await;
    fleet.make("tenant-c", "cluster-1").await;
    let named = format!("{}/cluster-1", toy.kcp.id("tenant-c"));
    assert_eq!(
        within.names(&fleet.widgets()).await,
        std::slice::from_ref(&named)
    );
    until(
        async || across.names(&fleet.widgets()).await,
        |names| *names == std::slice::from_ref(&named),
    )
    .await;
    assert_eq!(
        within
            .patch(&fleet.widget_path("cluster-1"), json!({}))
            .await
            .0,
        403
    );
    answered["identityHash"] = json!("0".repeat(64));
    let wrong = binding(
        &toy.group,
        "system",
        &toy.group,
        std::slice::from_ref(&answered),
    );
    toy.tenant("tenant-c").apply(&wrong).await.unwrap();
    until(
        async || within.code("GET", &fleet.widgets()).await,
        |code| *code == 403,
    )
    .await;
    // An equally wrong identity on both sides is accepted, and claims nothing.
    let system = Seat::new(
        toy.kcp,
        &format!("{}/clusters/root:system", toy.kcp.url()),
        toy.kcp.admin_token(),
    )
    .await;
    let mut claims = json!([claim(&fleet.group, "widgets"), claim("", "events")]);
    claims[0]["identityHash"] = answered["identityHash"].clone();
    let export = format!("/apis/apis.kcp.io/v1alpha2/apiexports/{}", toy.group);
    assert_eq!(
        system
            .patch(&export, json!({ "spec": { "permissionClaims": claims } }))
            .await
            .0,
        200
    );
    toy.bind("tenant-c", &[answered]).await;
    until(
        async || across.code("GET", &fleet.widgets()).await,
        |code| *code == 404,
    )
    .await;

    // Events of both groups, for writing only.
    toy.bind("tenant-c", &[accepted("", "events", &["create", "patch"])])
        .await;
    let event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": { "name": "e", "namespace": "default" }, "action": "Testing",
        "eventTime": "2024-01-01T00:00:00.000000Z", "note": "n", "reason": "Test", "reportingController": "example.dev/c",
        "reportingInstance": "i", "type": "Normal", "regarding": { "kind": "Widget", "name": "w", "namespace": "default" },
    });
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    until(
        async || within.send("POST", events, JSON, &event).await.0,
        |code| matches!(code, 201 | 409),
    )
    .await;
    assert_eq!(within.code("GET", events).await, 403);
    // The API server of a workspace may record Events of its own.
    let written = format!("{}/e", toy.kcp.id("tenant-c"));
    until(
        async || across.names("/api/v1/events").await,
        |names| names.contains(&written),
    )
    .await;
}

#[tokio::test]
async fn section_9_who_leaves_waits_for_finalizers_and_is_then_refused() {
    let Some(toy) = Toy::new("leaving", &[]).await else {
        return;
    };
    toy.bind("tenant-b", &[]).await;
    let b = toy.kcp.id("tenant-b");
    let mut held = toy.widget("held", 1);
    held["metadata"]["finalizers"] = json!(["example.dev/hold"]);
    toy.tenant("tenant-b").create(&held).await.unwrap();
    toy.make("tenant-b", "free").await;
    let (across, within, widgets) = (
        toy.across().await,
        toy.within("tenant-b").await,
        toy.widgets(),
    );
    let mut bindings = across.watch(BINDINGS).await;
    let mut watch = across.watch(&widgets).await;
    let mut own = within.watch(&widgets).await;
    let binding = format!("{b}/{}", toy.group);
    bindings.until(&format!("ADDED {binding}")).await;

    toy.tenant("tenant-b")
        .delete(&format!("{BINDINGS}/{}", toy.group))
        .await
        .unwrap();
    assert!(bindings.until(&format!("MODIFIED {binding}")).await["object"]["metadata"]["deletionTimestamp"].is_string());
    watch.until(&format!("DELETED {b}/free")).await;
    let path = format!("{BINDINGS}/{}", toy.group);
    let remains = |object: &Value| {
        object["status"]["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["reason"] == "SomeFinalizersRemain")
    };
    until(
        async || toy.tenant("tenant-b").get(&path).await.unwrap().unwrap(),
        remains,
    )
    .await;

    // The object can still be read and written, so that the provider can clean up.
    let one = toy.widget_path("held");
    assert!(within.get(&one).await.1["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(
        within
            .patch(
                &format!("{one}/status"),
                json!({ "status": { "phase": "Terminating" } })
            )
            .await
            .0,
        200
    );
    assert_eq!(
        within
            .patch(&one, json!({ "metadata": { "finalizers": [] } }))
            .await
            .0,
        200
    );
    watch.until(&format!("DELETED {b}/held")).await;
    bindings.until(&format!("DELETED {binding}")).await;
    until(
        async || within.code("GET", &widgets).await,
        |code| *code == 403,
    )
    .await;
    own.until(&format!("DELETED {b}/held")).await;
    assert!(
        own.is_silent().await && watch.is_silent().await,
        "open watches stay open"
    );
    assert_eq!(across.code("GET", &widgets).await, 404);
}

#[tokio::test]
async fn the_export_and_binding_of_this_repository_work_with_the_role_that_goes_with_them() {
    let Some(kcp) = shared().await else { return };
    let fleet = Toy::of(kcp, "edge-portal-fleet", &[]).await;
    // The fleet's real resource is defined elsewhere; one of the same name replaces it.
    let placeholder = "REPLACE-WITH-THE-IDENTITY-HASH-OF-edge-portal-fleet";
    kcp.export(
        "system",
        include_str!("../../../config/kcp-cilium-mesh-apiexport.yaml"),
    )
    .await
    .unwrap();
    let claim = include_str!("../../../config/kcp-cilium-mesh-fleet-claim.yaml")
        .replace(placeholder, &fleet.identity_hash);
    let claim: Value = serde_saphyr::from_str(&claim).unwrap();
    let ours = "/apis/apis.kcp.io/v1alpha2/apiexports/edge-portal-networking";
    let system = Seat::new(
        kcp,
        &format!("{}/clusters/root:system", kcp.url()),
        kcp.admin_token(),
    )
    .await;
    assert_eq!(system.patch(ours, claim.clone()).await.0, 200);
    kcp.workspace("system")
        .unwrap()
        .apply_yaml(include_str!("../../../config/kcp-cilium-mesh-rbac.yaml"))
        .await
        .unwrap();
    let mut wanted: Value = serde_saphyr::from_str(include_str!(
        "../../../config/kcp-cilium-mesh-apibinding.yaml"
    ))
    .unwrap();
    let mut accepted = claim["spec"]["permissionClaims"].clone();
    for claim in accepted.as_array_mut().unwrap() {
        (claim["state"], claim["selector"]) = ("Accepted".into(), json!({ "matchAll": true }));
    }
    wanted["spec"]["permissionClaims"] = accepted;
    // A tenant binds through kcp, with the permission that the role grants to
    // everybody.
    let as_tenant = Seat::new(
        kcp,
        &format!("{}/clusters/root:tenant-c", kcp.url()),
        kcp.admin_token(),
    )
    .await;
    until(
        async || as_tenant.send("POST", BINDINGS, JSON, &wanted).await.0,
        |code| matches!(code, 201 | 409),
    )
    .await;
    kcp.bind("tenant-c", &wanted).await.unwrap();
    let endpoints = until(
        async || kcp.endpoints("system", "edge-portal-networking"),
        |found| found.len() == 1,
    )
    .await;

    let token = kcp
        .workspace("system")
        .unwrap()
        .request_token("default", "kcp-cilium-mesh-provider", 600)
        .await
        .unwrap();
    let across = Seat::new(kcp, &format!("{}/clusters/*", endpoints[0]), &token).await;
    for resource in [
        "clustermeshbindings",
        "globalservices",
        "connectivityintents",
    ] {
        let path = format!("/apis/networking.edge-portal.eu/v1alpha1/{resource}");
        until(
            async || across.get(&path).await,
            |(code, list)| *code == 200 && list["items"] == json!([]),
        )
        .await;
    }
    let within = Seat::new(
        kcp,
        &format!("{}/clusters/{}", endpoints[0], kcp.id("tenant-c")),
        &token,
    )
    .await;
    let mesh = json!({
        "apiVersion": "networking.edge-portal.eu/v1alpha1", "kind": "ClusterMeshBinding",
        "metadata": { "name": "mesh", "namespace": "default" }, "spec": { "clusterRefs": [{ "name": "a" }, { "name": "b" }] },
    });
    kcp.workspace("tenant-c")
        .unwrap()
        .create(&mesh)
        .await
        .unwrap();
    let path =
        "/apis/networking.edge-portal.eu/v1alpha1/namespaces/default/clustermeshbindings/mesh";
    let (code, said) = within
        .send(
            "PATCH",
            &format!("{path}/status"),
            MERGE,
            &json!({ "status": { "phase": "Pending" } }),
        )
        .await;
    assert_eq!((code, &said["status"]["phase"]), (200, &json!("Pending")));
    assert_eq!(
        within.code("DELETE", path).await,
        403,
        "the role does not say delete"
    );
    assert_eq!(
        within.code("GET", "/api/v1/events").await,
        403,
        "events are only written"
    );
}

#[tokio::test]
async fn section_5_after_a_restart_no_watch_resumes_and_section_3_a_shard_has_an_endpoint_of_its_own()
 {
    let Some(mut kcp) = Kcp::start_or_skip(&["system", "tenant-a"]).await else {
        return;
    };
    kcp.add_shard(&["tenant-z"]).await.unwrap();
    let toy = Toy::of(&kcp, "sharded", &[claim("", "secrets")]).await;
    // Delays as observed in kcp.
    let [binding, claims] = [300, 400].map(std::time::Duration::from_millis);
    kcp.delay_bindings(binding);
    kcp.delay_claims(claims);
    let start = std::time::Instant::now();
    toy.bind("tenant-a", &[accepted("", "secrets", &["get"])])
        .await;
    assert!(start.elapsed() >= binding.max(claims));
    until(
        async || kcp.endpoints("system", &toy.group),
        |found| *found == [toy.endpoint()],
    )
    .await;
    toy.bind("tenant-z", &[]).await;
    let endpoints = until(
        async || kcp.endpoints("system", &toy.group),
        |found| found.len() == 2,
    )
    .await;
    toy.make("tenant-a", "here").await;
    toy.make("tenant-z", "there").await;
    let [first, second] = [0, 1].map(|at| format!("{}/clusters/*", endpoints[at]));
    let (first, second) = (
        Seat::new(&kcp, &first, &toy.token).await,
        Seat::new(&kcp, &second, &toy.token).await,
    );
    let (a, z) = (kcp.id("tenant-a"), kcp.id("tenant-z"));
    assert_eq!(first.names(&toy.widgets()).await, [format!("{a}/here")]);
    assert_eq!(second.names(&toy.widgets()).await, [format!("{z}/there")]);
    let wrong = Seat::new(&kcp, &format!("{}/clusters/{z}", endpoints[0]), &toy.token).await;
    assert_eq!(
        wrong.code("GET", &toy.widgets()).await,
        403,
        "a shard knows its own tenants only"
    );

    let (_, list) = first.get(&toy.widgets()).await;
    let before = list["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut watch = first
        .watch(&format!("{}?resourceVersion={before}", toy.widgets()))
        .await;
    kcp.restart().await.unwrap();
    assert_eq!(watch.next().await, None, "the connection broke");
    let resume = async || {
        Some(
            first
                .watch(&format!("{}?resourceVersion={before}", toy.widgets()))
                .await
                .next()
                .await,
        )
    };
    let error = resume().await.flatten().unwrap();
    assert_eq!(
        (&error["type"], &error["object"]["code"]),
        (&json!("ERROR"), &json!(410))
    );
    assert_eq!(first.names(&toy.widgets()).await.len(), 1);
    let (_, list) = second.get(&toy.widgets()).await;
    let after = list["metadata"]["resourceVersion"].as_str().unwrap();
    let mut watch = second
        .watch(&format!("{}?resourceVersion={after}", toy.widgets()))
        .await;
    toy.make("tenant-z", "after").await;
    assert_eq!(watch.told().await, format!("ADDED {z}/after"));

    // Nothing is left behind.
    let pids = kcp.pids();
    drop(kcp);
    let alive = async || {
        pids.iter()
            .filter(|pid| nix::sys::signal::kill(nix::unistd::Pid::from_raw(**pid), None).is_ok())
            .count()
    };
    until(alive, |alive| *alive == 0).await;
}

/// `away` is long enough for requests to arrive during the move.
#[tokio::test]
async fn a_workspace_moves_to_another_shard_with_its_uids_and_without_its_revisions() {
    let Some(mut kcp) = Kcp::start_or_skip(&["system", "tenant-a", "tenant-b"]).await else {
        return;
    };
    kcp.add_shard(&["tenant-z"]).await.unwrap();
    let (group, token, widgets, id) = {
        let toy = Toy::of(&kcp, "moving", &[]).await;
        for tenant in ["tenant-a", "tenant-b", "tenant-z"] {
            toy.bind(tenant, &[]).await;
        }
        toy.make("tenant-a", "one").await;
        (
            toy.group.clone(),
            toy.token.clone(),
            toy.widgets(),
            kcp.id("tenant-a"),
        )
    };
    let endpoints = until(
        async || kcp.endpoints("system", &group),
        |found| found.len() == 2,
    )
    .await;
    let [old, new] = [0, 1].map(|at| format!("{}/clusters/*", endpoints[at]));
    let (old, new) = (
        Seat::new(&kcp, &old, &token).await,
        Seat::new(&kcp, &new, &token).await,
    );
    let within = Seat::new(&kcp, &format!("{}/clusters/{id}", endpoints[0]), &token).await;
    let before = old.get(&widgets).await.1["items"][0]["metadata"].clone();
    let (mut leaving, mut bindings, mut coming) = (
        old.watch(&widgets).await,
        old.watch(BINDINGS).await,
        new.watch(&format!("{BINDINGS}?resourceVersion=0")).await,
    );
    leaving.until(&format!("ADDED {id}/one")).await;
    let meanwhile = async {
        // Deletions that nobody requested.
        let gone = leaving.until(&format!("DELETED {id}/one")).await;
        assert_eq!(
            gone["object"]["metadata"]["deletionTimestamp"],
            Value::Null,
            "{gone}"
        );
        let gone = bindings.until(&format!("DELETED {id}/{group}")).await;
        assert_eq!(
            gone["object"]["metadata"]["deletionTimestamp"],
            Value::Null,
            "{gone}"
        );
        let (code, refused) = within.get(&format!("{widgets}?limit=1")).await;
        assert_eq!(
            (code, refused["text"].as_str()),
            (503, Some("logical cluster is being migrated\n"))
        );
        assert_eq!(
            within
                .code("GET", &format!("{widgets}?resourceVersion=7"))
                .await,
            410
        );
    };
    let (moved, ()) = tokio::join!(
        kcp.move_workspace("tenant-a", 1, std::time::Duration::from_secs(3)),
        meanwhile
    );
    moved.unwrap();
    coming.until(&format!("ADDED {id}/{group}")).await;
    let found = until(
        async || new.get(&widgets).await.1["items"].clone(),
        |items| !items[0].is_null(),
    )
    .await;
    let after = &found[0]["metadata"];
    assert_eq!(
        (&after["uid"], &after["name"]),
        (&before["uid"], &json!("one"))
    );
    assert_ne!(after["resourceVersion"], before["resourceVersion"]);
    assert_eq!(
        within.code("GET", &widgets).await,
        403,
        "the shard that it left does not know it"
    );
    kcp.workspace("tenant-a")
        .unwrap()
        .get(&format!("{widgets}/nothing"))
        .await
        .unwrap();

    // A hanging shard accepts connections and requests.
    kcp.hang_endpoint(1, true).await.unwrap();
    let url = format!("{}/clusters/*{widgets}", endpoints[1]);
    let asked = tokio::time::timeout(
        std::time::Duration::from_secs(1),
        kcp.request(&token, "GET", &url, None),
    );
    assert!(asked.await.is_err(), "the shard answered");
    assert_eq!(
        old.code("GET", &widgets).await,
        200,
        "the other shard goes on"
    );
    kcp.hang_endpoint(1, false).await.unwrap();
    let new = Seat::new(&kcp, &format!("{}/clusters/*", endpoints[1]), &token).await;
    assert_eq!(new.code("GET", &widgets).await, 200);

    // An exhausted quota.
    kcp.use_up_quota("tenant-a", &["widgets/status"]);
    let within = Seat::new(&kcp, &format!("{}/clusters/{id}", endpoints[1]), &token).await;
    let path = format!("/apis/{group}/v1alpha1/namespaces/default/widgets/one");
    let (code, refused) = within
        .patch(
            &format!("{path}/status"),
            json!({ "status": { "phase": "on" } }),
        )
        .await;
    assert_eq!(code, 403);
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains("exceeded quota: "),
        "{refused}"
    );
    assert_eq!(
        within
            .patch(&path, json!({ "spec": { "size": 2 } }))
            .await
            .0,
        200
    );
}
