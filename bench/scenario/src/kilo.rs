//! Five clusters with nodes as annotated by Kilo and reported by a kubelet, in one
//! mesh.

use std::collections::BTreeMap;

use base64ct::{Base64, Encoding};
use mw_testbed::{PEER_CRD, eventually};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::fleet::{Account, DEADLINE, Fleet, NAMES, account};
use crate::options::Options;

pub(crate) const HUB: Account = Account {
    namespace: "kilo-system",
    name: "meshwright-operator",
    roles: include_str!("../../../config/rbac/hub.yaml"),
};
pub(crate) const REMOTE: Account = Account {
    namespace: "kube-system",
    name: "clustermesh-reader",
    roles: include_str!("../../../config/rbac/remote.yaml"),
};
pub(crate) const PEERS: &str = "/apis/kilo.squat.ai/v1alpha1/peers";
pub(crate) const NODES: &str = "/api/v1/nodes";
const MESH: &str = "/apis/kilo.squat.ai/v1alpha1/namespaces/kilo-system/clustermeshes/bench";
const MESH_CRD: &str = include_str!("../../../config/crd/kilo.squat.ai_clustermeshes.yaml");

pub(crate) async fn start(options: &Options) -> Fleet {
    let mut fleet = Fleet::start(HUB.namespace).await;
    for at in 0..NAMES.len() {
        fleet.cluster(at).install_crd(PEER_CRD).await.unwrap();
        let token = account(
            fleet.cluster(at),
            if at == 0 { &HUB } else { &REMOTE },
            options.foreign,
        )
        .await;
        fleet.addresses.push(fleet.address(at, &token));
    }
    fleet.write_kubeconfig(fleet.token(0));
    declare(&fleet).await;
    fleet
}

/// Creates the mesh and its Secrets.
async fn declare(fleet: &Fleet) {
    let hub = fleet.cluster(0);
    hub.install_crd(MESH_CRD).await.unwrap();
    let mut entries = vec![entry(0)];
    entries[0]["local"] = json!(true);
    for (at, cluster) in NAMES.iter().enumerate().skip(1) {
        let name = format!("{cluster}-kubeconfig");
        fleet.give_access(at, &name).await;
        let mut entry = entry(at);
        entry["kubeconfigSecretRef"] = json!({ "name": name, "key": "kubeconfig" });
        entries.push(entry);
    }
    let metadata = json!({ "name": "bench", "namespace": HUB.namespace });
    let spec = json!({ "clusters": entries });
    let mesh = json!({ "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "ClusterMesh", "metadata": metadata, "spec": spec });
    hub.create(&mesh).await.unwrap();
}

/// Adds the nodes with these numbers to every cluster.
pub(crate) async fn grow(fleet: &Fleet, from: usize, to: usize) {
    for at in 0..NAMES.len() {
        for number in from..to {
            fleet.request(at, "POST", NODES, &node(at, number)).await;
        }
    }
}

/// Waits until every cluster has a Peer for each node of the others, and the mesh has
/// the condition Ready.
pub(crate) async fn converged(fleet: &Fleet, nodes: usize) {
    let wanted = (NAMES.len() - 1) * nodes;
    for (at, name) in NAMES.iter().enumerate() {
        eventually(DEADLINE, || async {
            let peers = fleet
                .cluster(at)
                .list(PEERS)
                .await
                .map_err(|error| error.to_string())?;
            let meshed = peers.iter().filter(|peer| is_meshed(peer)).count();
            if meshed == wanted {
                Ok(())
            } else {
                Err(format!("{name} has {meshed} Peers of {wanted}"))
            }
        })
        .await
        .unwrap();
    }
    eventually(DEADLINE, || async {
        let mesh = fleet
            .cluster(0)
            .get(MESH)
            .await
            .map_err(|error| error.to_string())?
            .unwrap_or_default();
        let conditions = mesh["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let ready = conditions
            .iter()
            .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
        if ready {
            Ok(())
        } else {
            Err(format!("the mesh is not ready: {}", mesh["status"]))
        }
    })
    .await
    .unwrap();
}

/// Reports whether a Peer belongs to the mesh, regardless of the operator.
pub(crate) fn is_meshed(peer: &Value) -> bool {
    peer["metadata"]["labels"]["kilo-clustermesh.io/mesh"] == "bench"
}

fn entry(at: usize) -> Value {
    json!({
        "name": NAMES[at],
        "podCIDRs": [format!("10.{}.0.0/16", 10 + at)],
        "wireguardCIDR": format!("10.{}.0.0/16", 100 + at),
        "serviceCIDR": format!("10.{}.0.0/16", 200 + at),
    })
}

pub(crate) fn node_name(number: usize) -> String {
    format!("node-{number:03}")
}

/// Returns a valid public key derived from the text.
pub(crate) fn key(text: &str) -> String {
    Base64::encode_string(&Sha256::digest(text.as_bytes()))
}

/// Returns a Node about as large as in a real cluster, where a kubelet lists images.
fn node(cluster: usize, number: usize) -> Value {
    let (name, host) = (node_name(number), number + 1);
    let kilo = [
        ("key", key(&format!("{cluster}/{number}"))),
        ("wireguard-ip", format!("10.{}.0.{host}/16", 100 + cluster)),
        ("endpoint", format!("198.18.{cluster}.{host}:51820")),
        ("force-endpoint", format!("198.18.{cluster}.{host}:51820")),
        ("internal-ip", format!("192.168.{cluster}.{host}/24")),
        ("granularity", "full".to_owned()),
        ("last-seen", "1800000000".to_owned()),
        ("discovered-endpoints", "{}".to_owned()),
    ];
    let annotations: BTreeMap<String, String> = kilo
        .into_iter()
        .map(|(key, value)| (format!("kilo.squat.ai/{key}"), value))
        .collect();
    let pods = format!("10.{}.{number}.0/24", 10 + cluster);
    let condition = |kind: &str, status: &str| {
        json!({ "type": kind, "status": status, "reason": format!("KubeletHas{kind}"), "message": "as the kubelet says it, in a sentence",
            "lastHeartbeatTime": "2027-01-15T08:00:00Z", "lastTransitionTime": "2027-01-15T08:00:00Z" })
    };
    let image = |at: usize| {
        let repository = format!("registry.example.com/some-team/some-application-{at}");
        json!({ "names": [format!("{repository}@sha256:{:064x}", at), format!("{repository}:v1.2.{at}")], "sizeBytes": 123_456_789 })
    };
    let amounts = json!({ "cpu": "16", "memory": "65536000Ki", "pods": "110", "ephemeral-storage": "103079844Ki" });
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": name, "annotations": annotations, "labels": {
            "kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
            "node.kubernetes.io/instance-type": "large", "topology.kubernetes.io/region": NAMES[cluster], "topology.kubernetes.io/zone": "a",
        } },
        "spec": { "podCIDR": pods, "podCIDRs": [pods], "providerID": format!("bench://{}/{name}", NAMES[cluster]) },
        "status": {
            "addresses": [{ "type": "InternalIP", "address": format!("192.168.{cluster}.{host}") }, { "type": "Hostname", "address": name }],
            "allocatable": amounts, "capacity": amounts,
            "conditions": [condition("MemoryPressure", "False"), condition("DiskPressure", "False"),
                condition("PIDPressure", "False"), condition("Ready", "True")],
            "images": (0..20).map(image).collect::<Vec<_>>(),
        },
    })
}
