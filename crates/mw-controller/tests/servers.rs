//! Tests on a real API server: the installed CRD, the Lease, and a client made from a
//! member's kubeconfig.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail loudly")]

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Api;
use kube::api::ListParams;
use mw_controller::kubeconfig::{Allowed, config, inspect};
use mw_controller::lease::{Elector, LeaseError, attempt};
use mw_controller::metrics::Metrics;
use mw_controller::permit::Permit;
use mw_controller::transport::{Rules, Timeouts, client};
use mw_core::names::ClusterId;
use mw_testbed::{Cluster, Testbed};
use serde_json::{Value, json};

const MESHES: &str = "/apis/kilo.squat.ai/v1alpha1/namespaces/default/clustermeshes";

async fn hub() -> Option<Testbed> {
    let bed = Testbed::start_or_skip(&["hub"]).await?;
    let crd = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../config/crd/kilo.squat.ai_clustermeshes.yaml");
    bed.cluster("hub")
        .unwrap()
        .install_crd(&std::fs::read_to_string(crd).unwrap())
        .await
        .unwrap();
    Some(bed)
}

fn mesh(name: &str, clusters: Value) -> Value {
    json!({"apiVersion": "kilo.squat.ai/v1alpha1", "kind": "ClusterMesh", "metadata": {"name": name, "finalizers": ["kilo-clustermesh.io/cleanup"]}, "spec": {"clusters": clusters}})
}

async fn code(cluster: &Cluster, object: &Value) -> u16 {
    cluster
        .request("POST", MESHES, Some(object))
        .await
        .unwrap()
        .code
}

#[tokio::test]
async fn the_crd_takes_both_forms_and_fills_in_defaults() {
    let Some(bed) = hub().await else { return };
    let hub = bed.cluster("hub").unwrap();
    let typed = json!({"name": "a", "local": true, "podCIDRs": ["10.1.0.0/16"], "wireguardCIDR": "10.4.0.0/16"});
    let flat = json!({"name": "b", "kubeconfigSecretRef": {"name": "b"}, "allowedNetworks": ["10.2.0.0/16", "fd00:2::/48"]});
    assert_eq!(code(hub, &mesh("both", json!([typed, flat]))).await, 201);
    let stored = hub.get(&format!("{MESHES}/both")).await.unwrap().unwrap();
    assert_eq!(stored["spec"]["maxDeletePercent"], 50);
    assert_eq!(stored["spec"]["cleanupTimeout"], "10m");
    assert_eq!(stored["spec"]["clusters"][0]["wireguardPort"], 51820);
    let mixed = json!({"name": "b", "podCIDRs": ["10.2.0.0/16"], "wireguardCIDR": "10.5.0.0/16", "allowedNetworks": ["10.3.0.0/16"]});
    let neither = json!({"name": "b", "serviceCIDR": "10.3.0.0/16"});
    let malformed = json!({"name": "b", "allowedNetworks": ["10.3.0.0"]});
    let bad_name = json!({"name": "B", "allowedNetworks": ["10.3.0.0/16"]});
    for (at, bad) in [mixed, neither, malformed, bad_name]
        .into_iter()
        .enumerate()
    {
        assert_eq!(
            code(hub, &mesh("bad", json!([typed, bad]))).await,
            422,
            "case {at}"
        );
    }
    assert_eq!(code(hub, &mesh("alone", json!([typed]))).await, 422);
}

#[tokio::test]
async fn what_the_go_operators_crd_accepted_can_lose_its_finalizer() {
    let Some(bed) = hub().await else { return };
    let hub = bed.cluster("hub").unwrap();
    let entry = |name: &str| json!({"name": name, "local": true, "podCIDRs": ["10.1.0.0/16"], "wireguardCIDR": "10.4.0.0/16"});
    let without_secret = json!({"name": "c", "allowedNetworks": ["10.2.0.0/16"]});
    // Equal names, several local clusters, a remote one without credentials.
    assert_eq!(
        code(
            hub,
            &mesh("old", json!([entry("a"), entry("a"), without_secret]))
        )
        .await,
        201
    );
    let path = format!("{MESHES}/old");
    hub.delete(&path).await.unwrap();
    hub.merge_patch(&path, &json!({"metadata": {"finalizers": null}}))
        .await
        .unwrap();
    assert_eq!(hub.get(&path).await.unwrap(), None);
}

#[tokio::test]
async fn a_member_is_reached_with_an_inspected_kubeconfig_and_one_candidate_leads() {
    let Some(bed) = hub().await else { return };
    let hub = bed.cluster("hub").unwrap();
    let access = inspect(hub.admin_kubeconfig().as_bytes(), &Allowed::default()).unwrap();
    let config = config(&access, &Allowed::default()).await.unwrap();
    let timeouts = Timeouts::of(Duration::from_secs(3));
    let rules = Rules {
        timeouts,
        permit: Permit::always(),
        metrics: Metrics::default().of_cluster(&ClusterId::from("hub")),
    };
    let client = client(config, rules).unwrap();
    assert_eq!(
        Api::<Node>::all(client.clone())
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .len(),
        0
    );

    let leases: Api<Lease> = Api::namespaced(client, "default");
    let wall: MicroTime = serde_json::from_value(json!("2026-01-01T00:00:00.000000Z")).unwrap();
    let (mut one, mut two) = (
        Elector::new("f27237f1.squat.ai", "one"),
        Elector::new("f27237f1.squat.ai", "two"),
    );
    let (first, second) = tokio::join!(
        attempt(&leases, &mut one, &wall),
        attempt(&leases, &mut two, &wall)
    );
    let led = [&first, &second]
        .iter()
        .filter(|result| matches!(result, Ok(true)))
        .count();
    assert_eq!(led, 1, "{first:?} {second:?}");
    assert!(
        [first, second]
            .iter()
            .all(|result| matches!(result, Ok(_) | Err(LeaseError::Conflict)))
    );
}
