//! Permissions of the roles of a Cilium target, on a real API server.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail loudly")]

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use mw_api::cilium::rbac;
use mw_controller::kubeconfig::{Allowed, config, inspect};
use mw_controller::metrics::Metrics;
use mw_controller::permit::Permit;
use mw_controller::transport::{Rules, Timeouts, client};
use mw_core::names::ClusterId;
use mw_testbed::{Cluster, Testbed, eventually};
use serde_json::{Value, json};

const HOME: &str = "kube-system";
const DEADLINE: Duration = Duration::from_secs(60);

async fn connect(kubeconfig: &str) -> Client {
    let access = inspect(kubeconfig.as_bytes(), &Allowed::default()).unwrap();
    let timeouts = Timeouts::of(Duration::from_secs(10));
    let rules = Rules {
        timeouts,
        permit: Permit::always(),
        metrics: Metrics::default().of_cluster(&ClusterId::from("target")),
    };
    client(config(&access, &Allowed::default()).await.unwrap(), rules).unwrap()
}

/// Client with the account of the shipped roles.
async fn target(cluster: &Cluster) -> Client {
    let token = cluster
        .request_token(HOME, rbac::TARGET, 3600)
        .await
        .unwrap();
    connect(&cluster.kubeconfig(cluster.url(), &token)).await
}

fn code<T>(result: Result<T, kube::Error>) -> u16 {
    match result {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(other) => panic!("{other}"),
    }
}

async fn apply_secret(secrets: &Api<Secret>, name: &str) -> u16 {
    let object = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "data": { "k": "dg==" } });
    code(
        secrets
            .patch(
                name,
                &PatchParams::apply("meshwright"),
                &Patch::Apply(&object),
            )
            .await,
    )
}

fn secret(name: &str, kind: &str, annotations: Value) -> Secret {
    serde_json::from_value(
        json!({ "metadata": { "name": name, "annotations": annotations }, "type": kind }),
    )
    .unwrap()
}

fn token_of_another(name: &str) -> Secret {
    secret(
        name,
        "kubernetes.io/service-account-token",
        json!({ "kubernetes.io/service-account.name": "default" }),
    )
}

async fn create(secrets: &Api<Secret>, secret: &Secret) -> u16 {
    code(secrets.create(&PostParams::default(), secret).await)
}

/// Waits for a response code, since roles take effect with a delay.
async fn until(what: &str, wanted: u16, attempt: impl AsyncFn() -> u16) {
    eventually(DEADLINE, || async {
        let code = attempt().await;
        if code == wanted {
            Ok(())
        } else {
            Err(format!("{what}: {code} instead of {wanted}"))
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_target_changes_the_connection_secrets_and_creates_none() {
    let Some(bed) = Testbed::start_or_skip(&["target"]).await else {
        return;
    };
    let cluster = bed.cluster("target").unwrap();
    cluster
        .apply_yaml(&rbac::target_yaml().unwrap())
        .await
        .unwrap();
    let secrets: Api<Secret> = Api::namespaced(target(cluster).await, HOME);
    cluster
        .apply_yaml(&rbac::connection_secrets_yaml().unwrap())
        .await
        .unwrap();
    for name in ["cilium-clustermesh", "cilium-kvstoremesh"] {
        until(name, 200, async || apply_secret(&secrets, name).await).await;
        cluster
            .delete(&format!("/api/v1/namespaces/{HOME}/secrets/{name}"))
            .await
            .unwrap();
        assert_eq!(
            apply_secret(&secrets, name).await,
            403,
            "{name} is gone, and only an administrator creates it"
        );
    }
    assert_eq!(create(&secrets, &token_of_another("stolen")).await, 403);
    assert_eq!(
        create(&secrets, &secret("cilium-ca", "Opaque", json!({}))).await,
        403
    );
    for name in ["cilium-ca", "clustermesh-apiserver-admin-cert"] {
        assert_eq!(
            code(secrets.get(name).await),
            403,
            "{name} holds the key of a CA or of root in etcd"
        );
    }
}

/// Without the policy, the role that copies a CA could get the token of any account
/// in the namespace.
#[tokio::test]
async fn the_policy_lets_a_target_create_the_ca_and_nothing_else() {
    let Some(bed) = Testbed::start_or_skip(&["target"]).await else {
        return;
    };
    let cluster = bed.cluster("target").unwrap();
    for roles in [rbac::target_yaml(), rbac::target_ca_yaml()] {
        cluster.apply_yaml(&roles.unwrap()).await.unwrap();
    }
    let secrets: Api<Secret> = Api::namespaced(target(cluster).await, HOME);
    until("the role allows it", 200, async || {
        create(&secrets, &token_of_another("allowed")).await
    })
    .await;
    cluster
        .apply_yaml(&rbac::ca_policy_yaml().unwrap())
        .await
        .unwrap();
    let mut tries = 0;
    loop {
        tries += 1;
        match create(&secrets, &token_of_another(&format!("denied-{tries}"))).await {
            200 if tries < 300 => tokio::time::sleep(Duration::from_millis(200)).await,
            code => {
                break assert!(
                    matches!(code, 403 | 422),
                    "the policy never denies it: {code}"
                );
            }
        }
    }
    assert!(matches!(
        create(&secrets, &secret("other", "Opaque", json!({}))).await,
        403 | 422
    ));
    let typed = secret(
        "cilium-ca",
        "kubernetes.io/service-account-token",
        json!({ "kubernetes.io/service-account.name": "default" }),
    );
    assert!(matches!(create(&secrets, &typed).await, 403 | 422));
    assert_eq!(
        create(&secrets, &secret("cilium-ca", "Opaque", json!({}))).await,
        200
    );
    // The policy does not apply to other accounts.
    let other = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "other", "namespace": HOME } });
    cluster.create(&other).await.unwrap();
}

/// A plain creation has no name when it is authorized. A server-side apply has.
#[tokio::test]
async fn server_side_apply_creates_an_object_by_a_create_right_with_its_name() {
    let Some(bed) = Testbed::start_or_skip(&["target"]).await else {
        return;
    };
    let cluster = bed.cluster("target").unwrap();
    let owned = |texts: &[&str]| {
        texts
            .iter()
            .map(|text| (*text).to_owned())
            .collect::<Vec<_>>()
    };
    let rule = PolicyRule {
        api_groups: Some(owned(&[""])),
        resources: Some(owned(&["configmaps"])),
        resource_names: Some(owned(&["clustermesh-remote-users"])),
        verbs: owned(&["create", "patch"]),
        ..PolicyRule::default()
    };
    let kubeconfig = cluster
        .service_account_kubeconfig(HOME, "applier", &[rule])
        .await
        .unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(connect(&kubeconfig).await, HOME);
    let object = |name: &str| json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": { "users.yaml": "users: []" } });
    let apply = async |name: &str| {
        code(
            maps.patch(
                name,
                &PatchParams::apply("meshwright"),
                &Patch::Apply(&object(name)),
            )
            .await,
        )
    };
    let plain: ConfigMap = serde_json::from_value(object("clustermesh-remote-users")).unwrap();
    assert_eq!(code(maps.create(&PostParams::default(), &plain).await), 403);
    assert_eq!(apply("another").await, 403);
    assert_eq!(apply("clustermesh-remote-users").await, 200);
    assert_eq!(apply("clustermesh-remote-users").await, 200);
}
