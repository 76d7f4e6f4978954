//! Peers and behaviour of the Go operator.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use mw_sim::kilo::NAMESPACE;
use mw_testbed::Cluster;
use serde_json::{Value, json};

use crate::bed::PEERS;
use crate::expected::expected_peers;
use crate::fleet::Fleet;

/// Labels that it sets.
pub(crate) const KEPT: [&str; 2] = [
    "kilo-clustermesh.io/mesh",
    "kilo-clustermesh.io/source-cluster",
];

/// A Peer as the Go operator writes it.
pub(crate) fn legacy(name: &str, wanted: &Value) -> Value {
    let labels: serde_json::Map<_, _> = KEPT
        .into_iter()
        .map(|label| (label.to_owned(), wanted["labels"][label].clone()))
        .collect();
    json!({ "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "Peer", "metadata": { "name": name, "labels": labels }, "spec": wanted["spec"] })
}

pub(crate) async fn write_all(fleet: &Fleet) {
    for site in fleet.world.sites.keys() {
        for (name, wanted) in expected_peers(&fleet.world, site) {
            let mut peer = legacy(&name, &wanted);
            // It wrote allowedIPs in random order, and zeros.
            peer["spec"]["allowedIPs"].as_array_mut().unwrap().reverse();
            peer["spec"]["persistentKeepalive"] = json!(0);
            fleet.cluster(site).create(&peer).await.unwrap();
        }
    }
}

/// UIDs of all Peers in all clusters, to detect replaced ones.
pub(crate) async fn identities(fleet: &Fleet) -> Vec<(String, String, Value)> {
    let mut all = Vec::new();
    for site in fleet.world.sites.keys() {
        for peer in fleet.cluster(site).list(PEERS).await.unwrap() {
            let metadata = &peer["metadata"];
            let same = json!({ "uid": metadata["uid"], "generation": metadata["generation"], "spec": peer["spec"] });
            all.push((
                site.clone(),
                metadata["name"].as_str().unwrap().to_owned(),
                same,
            ));
        }
    }
    all
}

/// Renews the Lease, which it shares with this operator.
pub(crate) async fn renew(hub: &Cluster, holder: &str) {
    let now = MicroTime(k8s_openapi::jiff::Timestamp::now());
    let spec = json!({ "holderIdentity": holder, "leaseDurationSeconds": 15, "acquireTime": now, "renewTime": now });
    let metadata = json!({ "name": "f27237f1.squat.ai", "namespace": NAMESPACE });
    let lease = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec });
    hub.apply(&lease).await.unwrap();
}
