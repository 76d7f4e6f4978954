//! Lists all objects of a cluster, to find what an installation leaves behind.

use std::collections::BTreeSet;

use mw_testbed::Cluster;
use serde_json::Value;

/// `resource namespace/name` of all objects except events, which expire, and the API server's own
/// objects in kube-system.
pub(crate) async fn everything(cluster: &Cluster) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let groups = cluster.request("GET", "/apis", None).await.unwrap().body;
    let versions = groups["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|group| group["preferredVersion"]["groupVersion"].as_str().unwrap());
    let roots: Vec<String> = std::iter::once("/api/v1".to_owned())
        .chain(versions.map(|version| format!("/apis/{version}")))
        .collect();
    for root in roots {
        let resources = cluster.request("GET", &root, None).await.unwrap().body;
        for resource in resources["resources"].as_array().into_iter().flatten() {
            let name = resource["name"].as_str().unwrap();
            let is_listed = resource["verbs"]
                .as_array()
                .unwrap()
                .iter()
                .any(|verb| verb == "list");
            if is_listed && name != "events" {
                found.extend(
                    cluster
                        .list(&format!("{root}/{name}"))
                        .await
                        .unwrap()
                        .iter()
                        .map(|object| of(name, object)),
                );
            }
        }
    }
    found.retain(|object| !object.contains(" kube-system/"));
    found
}

fn of(resource: &str, object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    format!("{resource} {}/{}", text("namespace"), text("name"))
}
