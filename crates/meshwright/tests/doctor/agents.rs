//! Simulates Kilo's agents and the kubelets: a deleted kilo pod comes back and annotates its node
//! again.

use std::time::Duration;

use mw_sim::kilo::{Node, Site};
use mw_testbed::Cluster;
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/kube-system/pods";

pub(crate) fn now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

/// Creates a kilo pod on each node.
pub(crate) async fn start(cluster: &Cluster, site: &Site) {
    for node in site.nodes.keys() {
        cluster.create(&pod(node)).await.unwrap();
        check_in(cluster, site, node).await;
    }
}

fn pod(node: &str) -> Value {
    let metadata = json!({ "name": format!("kilo-{node}"), "namespace": "kube-system", "labels": { "app.kubernetes.io/name": "kilo" } });
    let container = json!({ "name": "kilo", "image": "squat/kilo" });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": { "nodeName": node, "containers": [container], "serviceAccountName": "kilo" } })
}

async fn check_in(cluster: &Cluster, site: &Site, node: &str) {
    let model = site
        .nodes
        .get(node)
        .cloned()
        .unwrap_or_else(|| Node::new(site.number, node[1..].parse().unwrap()));
    let mut annotations: serde_json::Map<String, Value> = model
        .annotations
        .iter()
        .map(|(name, value)| (format!("kilo.squat.ai/{name}"), json!(value)))
        .collect();
    annotations.insert(
        "kilo.squat.ai/last-seen".to_owned(),
        json!(now().to_string()),
    );
    let patch = json!({ "metadata": { "annotations": annotations } });
    cluster
        .merge_patch(&format!("/api/v1/nodes/{node}"), &patch)
        .await
        .unwrap();
}

/// Checks in, as agents do twice a minute; a hanging agent does not.
async fn tick(cluster: &Cluster) {
    for node in cluster.list("/api/v1/nodes").await.unwrap_or_default() {
        let last = node["metadata"]["annotations"]["kilo.squat.ai/last-seen"]
            .as_str()
            .and_then(|text| text.parse::<u64>().ok());
        if last.is_some_and(|last| now() - last < 600 && now() - last >= 30) {
            let path = format!(
                "/api/v1/nodes/{}",
                node["metadata"]["name"].as_str().unwrap()
            );
            let annotations = json!({ "kilo.squat.ai/last-seen": now().to_string() });
            // The node may have been deleted meanwhile.
            _ = cluster
                .merge_patch(
                    &path,
                    &json!({ "metadata": { "annotations": annotations } }),
                )
                .await;
        }
    }
}

/// Runs until dropped.
pub(crate) async fn look_after(cluster: &Cluster, site: &Site) -> ! {
    loop {
        tick(cluster).await;
        for pod in cluster.list(PODS).await.unwrap_or_default() {
            if pod["metadata"]["deletionTimestamp"].is_string() {
                let (name, node) = (
                    pod["metadata"]["name"].as_str().unwrap(),
                    pod["spec"]["nodeName"].as_str().unwrap(),
                );
                cluster
                    .request(
                        "DELETE",
                        &format!("{PODS}/{name}?gracePeriodSeconds=0"),
                        None,
                    )
                    .await
                    .unwrap();
                cluster.create(&self::pod(node)).await.unwrap();
                check_in(cluster, site, node).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Adds a node whose agent has not annotated it yet.
pub(crate) async fn join(cluster: &Cluster, site: u8, at: u8) {
    let mut node = Node::new(site, at);
    node.annotations.clear();
    cluster.create(&node.object()).await.unwrap();
    cluster.create(&pod(&node.name)).await.unwrap();
}
