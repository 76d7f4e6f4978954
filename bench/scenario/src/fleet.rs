//! Five clusters with nodes as Kilo and a kubelet leave them, one mesh, and the
//! roles as they are shipped.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use base64ct::{Base64, Encoding};
use floor::{Address, Server};
use mw_testbed::{Cluster, PEER_CRD, Testbed, eventually};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::options::Options;

pub(crate) const NAMES: [&str; 5] = ["hub", "east", "north", "south", "west"];
pub(crate) const NAMESPACE: &str = "kilo-system";
pub(crate) const HUB_ACCOUNT: &str = "meshwright-operator";
pub(crate) const REMOTE_ACCOUNT: &str = "clustermesh-reader";
pub(crate) const PEERS: &str = "/apis/kilo.squat.ai/v1alpha1/peers";
const MESH: &str = "/apis/kilo.squat.ai/v1alpha1/namespaces/kilo-system/clustermeshes/bench";
const HUB_ROLES: &str = include_str!("../../../config/rbac/hub.yaml");
const REMOTE_ROLES: &str = include_str!("../../../config/rbac/remote.yaml");
const MESH_CRD: &str = include_str!("../../../config/crd/kilo.squat.ai_clustermeshes.yaml");
const DEADLINE: Duration = Duration::from_secs(300);

pub(crate) struct Fleet {
    bed: Testbed,
    folder: TempDir,
    /// The operator's own accounts, which the floor uses too.
    pub(crate) addresses: Vec<Address>,
    /// For what the benchmark itself does.
    pub(crate) admins: Vec<Server>,
}

impl Fleet {
    pub(crate) async fn start(options: &Options) -> Self {
        let bed = Testbed::start(&NAMES).await.unwrap_or_else(|error| panic!("{error}"));
        let mut addresses = Vec::new();
        let mut admins = Vec::new();
        for name in NAMES {
            let cluster = bed.cluster(name).unwrap();
            cluster.install_crd(PEER_CRD).await.unwrap();
            let token = account(cluster, name == NAMES[0], options.foreign).await;
            let address = |token: &str| Address { url: cluster.url().to_owned(), ca: cluster.ca_pem().to_owned(), token: token.to_owned() };
            addresses.push(address(&token));
            admins.push(Server::new(address(cluster.admin_token()), "bench").unwrap());
        }
        let fleet = Self { bed, folder: tempfile::tempdir().unwrap(), addresses, admins };
        fleet.declare().await;
        fleet
    }

    /// The mesh, and the Secrets it names.
    async fn declare(&self) {
        let hub = self.cluster(0);
        hub.install_crd(MESH_CRD).await.unwrap();
        let mut entries = vec![entry(0)];
        entries[0]["local"] = json!(true);
        for (at, cluster) in NAMES.iter().enumerate().skip(1) {
            let name = format!("{cluster}-kubeconfig");
            let kubeconfig = self.cluster(at).kubeconfig(&self.addresses[at].url, &self.addresses[at].token);
            let metadata = json!({ "name": name, "namespace": NAMESPACE });
            let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": { "kubeconfig": kubeconfig } });
            hub.create(&secret).await.unwrap();
            let mut entry = entry(at);
            entry["kubeconfigSecretRef"] = json!({ "name": name, "key": "kubeconfig" });
            entries.push(entry);
        }
        std::fs::write(self.kubeconfig(), hub.kubeconfig(&self.addresses[0].url, &self.addresses[0].token)).unwrap();
        let metadata = json!({ "name": "bench", "namespace": NAMESPACE });
        let spec = json!({ "clusters": entries });
        let mesh = json!({ "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "ClusterMesh", "metadata": metadata, "spec": spec });
        hub.create(&mesh).await.unwrap();
    }

    pub(crate) fn cluster(&self, at: usize) -> &Cluster {
        self.bed.cluster(NAMES[at]).unwrap()
    }

    /// Of the hub, for the operator.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.folder.path().join("operator.log")
    }

    /// Adds the nodes of these numbers to every cluster.
    pub(crate) async fn grow(&self, from: usize, to: usize) {
        for at in 0..NAMES.len() {
            for number in from..to {
                self.request(at, "POST", "/api/v1/nodes", &node(at, number)).await;
            }
        }
    }

    pub(crate) async fn request(&self, at: usize, method: &str, path: &str, body: &Value) -> Value {
        let content = if method == "PATCH" { MERGE_PATCH } else { JSON };
        let request = self.admins[at].prepare(method, path, content, body.to_string()).unwrap();
        let (code, answer) = self.admins[at].send(request).await.unwrap();
        assert!(code < 300, "{method} {path} answered {code}: {}", String::from_utf8_lossy(&answer));
        serde_json::from_slice(&answer).unwrap()
    }

    /// Every cluster holds a Peer for each node of the others, and the mesh,
    /// where its status says so, is ready.
    pub(crate) async fn converged(&self, nodes: usize) {
        let wanted = (NAMES.len() - 1) * nodes;
        for (at, name) in NAMES.iter().enumerate() {
            eventually(DEADLINE, || async {
                let peers = self.cluster(at).list(PEERS).await.map_err(|error| error.to_string())?;
                let meshed = peers.iter().filter(|peer| is_meshed(peer)).count();
                if meshed == wanted { Ok(()) } else { Err(format!("{name} has {meshed} Peers of {wanted}")) }
            })
            .await
            .unwrap();
        }
        eventually(DEADLINE, || async {
            let mesh = self.cluster(0).get(MESH).await.map_err(|error| error.to_string())?.unwrap_or_default();
            let conditions = mesh["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let ready = conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
            if ready { Ok(()) } else { Err(format!("the mesh is not ready: {}", mesh["status"])) }
        })
        .await
        .unwrap();
    }
}

pub(crate) const JSON: &str = "application/json";
pub(crate) const MERGE_PATCH: &str = "application/merge-patch+json";

/// Of a mesh, whoever runs it.
pub(crate) fn is_meshed(peer: &Value) -> bool {
    peer["metadata"]["labels"]["kilo-clustermesh.io/mesh"] == "bench"
}

/// Gives the operator its rights on a cluster, and returns its token.
async fn account(cluster: &Cluster, hub: bool, foreign: bool) -> String {
    let (namespace, name, roles) = if hub { (NAMESPACE, HUB_ACCOUNT, HUB_ROLES) } else { ("kube-system", REMOTE_ACCOUNT, REMOTE_ROLES) };
    cluster.apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } })).await.unwrap();
    cluster.apply_yaml(roles).await.unwrap();
    if foreign {
        let subject = json!({ "kind": "ServiceAccount", "name": name, "namespace": namespace });
        let role = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" });
        let binding = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": "bench" }, "roleRef": role, "subjects": [subject] });
        cluster.apply(&binding).await.unwrap();
    }
    for role in serde_saphyr::from_multiple::<Value>(roles).unwrap() {
        for rule in role["rules"].as_array().into_iter().flatten() {
            may(cluster, &format!("system:serviceaccount:{namespace}:{name}"), rule, &role["metadata"]["namespace"]).await;
        }
    }
    cluster.request_token(namespace, name, 7200).await.unwrap()
}

/// Waits until the authorizer has learnt of a rule.
async fn may(cluster: &Cluster, user: &str, rule: &Value, namespace: &Value) {
    let resource = rule["resources"][0].as_str().unwrap_or_default();
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let access = json!({ "verb": rule["verbs"][0], "group": rule["apiGroups"][0], "resource": resource, "subresource": subresource,
        "name": rule["resourceNames"][0], "namespace": namespace });
    let spec = json!({ "user": user, "resourceAttributes": access });
    let review = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec });
    eventually(DEADLINE, || async {
        let answer = cluster.create(&review).await.map_err(|error| error.to_string())?;
        if answer["status"]["allowed"] == true { Ok(()) } else { Err(format!("not yet: {access}")) }
    })
    .await
    .unwrap();
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

/// A valid public key that depends on the text only.
pub(crate) fn key(text: &str) -> String {
    Base64::encode_string(&Sha256::digest(text.as_bytes()))
}

/// About as large as a Node of a real cluster: a kubelet lists images there.
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
    let annotations: BTreeMap<String, String> = kilo.into_iter().map(|(key, value)| (format!("kilo.squat.ai/{key}"), value)).collect();
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
