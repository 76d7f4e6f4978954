//! Writes that only [`Cluster::call`] may do, and the answers that clients get.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

use std::sync::Arc;

use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use mw_sim::{Account, Cluster, Pods, Settings, Wall};
use serde_json::{Value, json};
use tower::Service;

const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const PODS: &str = "/api/v1/namespaces/default/pods";
const SERVICES: &str = "/api/v1/namespaces/default/services";

fn cluster(managed_fields: bool) -> Cluster {
    let cluster = Cluster::new(Settings {
        name: "one".into(),
        seed: 1,
        wall: Wall::fixed(0),
        managed_fields,
    });
    cluster.set_token("t", Some(Account::admin("admin")));
    cluster
}

/// Sends a request as a client.
async fn send(
    cluster: &Cluster,
    method: Method,
    path: &str,
    content: &str,
    body: Value,
) -> (u16, String) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content);
    let answer = cluster
        .server_as("t")
        .call(request.body(Full::from(body.to_string())).unwrap())
        .await
        .unwrap();
    let code = answer.status().as_u16();
    (
        code,
        String::from_utf8(
            answer
                .into_body()
                .collect()
                .await
                .unwrap()
                .to_bytes()
                .to_vec(),
        )
        .unwrap(),
    )
}

struct Metrics(Cluster);

impl Pods for Metrics {
    fn get(&self, pod: &Value, port: &str, path: &str) -> Option<String> {
        // Access from within a request must not deadlock.
        let count = self.0.list(PODS).len();
        (port == "9964").then(|| {
            format!(
                "{} {path} {count}",
                pod["metadata"]["name"].as_str().unwrap()
            )
        })
    }
}

#[tokio::test]
async fn what_listens_in_a_pod_is_asked_through_the_proxy() {
    let cluster = cluster(false);
    let get = async |port: &str| {
        send(
            &cluster,
            Method::GET,
            &format!("{PODS}/p:{port}/proxy/metrics"),
            "",
            Value::Null,
        )
        .await
    };
    assert_eq!(get("9964").await.0, 404);
    cluster.call(
        &Method::POST,
        PODS,
        "",
        Some(&json!({ "metadata": { "name": "p" }, "spec": { "containers": [] } })),
    );
    assert_eq!(get("9964").await.0, 400, "the pod has no address yet");
    cluster.call(
        &Method::PATCH,
        &format!("{PODS}/p/status"),
        MERGE,
        Some(&json!({ "status": { "podIP": "10.0.0.1" } })),
    );
    assert_eq!(get("9964").await.0, 503);
    cluster.set_pods(Arc::new(Metrics(cluster.clone())));
    assert_eq!(get("9964").await, (200, "p /metrics 1".to_owned()));
    assert_eq!(get("1").await.0, 503);
}

#[tokio::test]
async fn clients_may_change_no_more_of_a_service_than_its_metadata() {
    let cluster = cluster(true);
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "a" }, "spec": { "ports": [{ "port": 80 }] } });
    assert_eq!(
        send(
            &cluster,
            Method::POST,
            SERVICES,
            "application/json",
            service.clone()
        )
        .await
        .0,
        501
    );
    let path = format!("{SERVICES}/a");
    let apply = format!("{path}?fieldManager=one");
    assert_eq!(
        send(&cluster, Method::PATCH, &apply, APPLY, service.clone())
            .await
            .0,
        501
    );
    assert_eq!(
        cluster.call(&Method::POST, SERVICES, "", Some(&service)).0,
        StatusCode::CREATED
    );
    assert_eq!(
        send(
            &cluster,
            Method::PATCH,
            &path,
            MERGE,
            json!({ "spec": { "type": "NodePort" } })
        )
        .await
        .0,
        501
    );
    assert_eq!(
        send(
            &cluster,
            Method::PATCH,
            &path,
            MERGE,
            json!({ "metadata": { "labels": { "a": "b" } } })
        )
        .await
        .0,
        200
    );
    assert_eq!(
        send(&cluster, Method::PATCH, &apply, APPLY, service)
            .await
            .0,
        200,
        "applying existing values changes nothing"
    );
}

#[tokio::test]
async fn what_is_not_known_can_not_be_applied() {
    let secrets = "/api/v1/namespaces/default/secrets/a?fieldManager=one";
    let secret = |data: Value| json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "a" }, "data": data });
    assert_eq!(
        send(
            &cluster(false),
            Method::PATCH,
            secrets,
            APPLY,
            secret(json!({}))
        )
        .await
        .0,
        501
    );
    let cluster = cluster(true);
    assert_eq!(
        send(&cluster, Method::PATCH, secrets, APPLY, secret(Value::Null))
            .await
            .0,
        501
    );
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "a" }, "status": { "nodeInfo": { "machineID": "x" } } });
    assert_eq!(
        send(
            &cluster,
            Method::PATCH,
            "/api/v1/nodes/a?fieldManager=one",
            APPLY,
            node
        )
        .await
        .0,
        501
    );
}

#[tokio::test]
async fn without_managed_fields_nobody_is_noted() {
    let (with, without) = (cluster(true), cluster(false));
    let managers = |cluster: &Cluster| {
        cluster.get("/api/v1/namespaces/default").unwrap()["metadata"]["managedFields"].clone()
    };
    assert_eq!(managers(&with)[0]["manager"], "kube-apiserver");
    assert_eq!(managers(&without), Value::Null);
}
