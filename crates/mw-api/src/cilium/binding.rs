//! The `ClusterMeshBinding` custom resource. The doc comments below become the
//! descriptions in the schema. It demands only what can't be worked with: the
//! rest is answered with a phase.
#![allow(unreachable_pub, reason = "KubeSchema copies each struct, with its `pub`, into a function")]
#![allow(clippy::duplicated_attributes, reason = "printer columns of the same type")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::MOST_CLUSTERS;

/// Which clusters form the mesh, and how they are reached.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[kube(
    group = "networking.edge-portal.eu",
    version = "v1alpha1",
    kind = "ClusterMeshBinding",
    plural = "clustermeshbindings",
    singular = "clustermeshbinding",
    shortname = "cmb",
    namespaced,
    status = "ClusterMeshBindingStatus",
    derive = "PartialEq",
    doc = "A ClusterMeshBinding connects two or more clusters that run Cilium into one Cluster Mesh.",
    printcolumn(name = "Phase", type_ = "string", description = "How far the mesh is connected", json_path = ".status.phase"),
    printcolumn(name = "Clusters", type_ = "string", description = "The clusters of the mesh", json_path = ".spec.clusterRefs"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        description = "Whether every link was verified",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterMeshBindingSpec {
    /// The clusters to connect, two at least, each once.
    #[schemars(schema_with = "cluster_refs")]
    pub cluster_refs: Vec<ClusterRef>,

    /// How the clusters are reached, and what is expected to run in them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mesh_config: Option<MeshConfig>,
}

/// One cluster of the mesh.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq, Default)]
pub struct ClusterRef {
    /// The name of a KubernetesCluster in the namespace of this object; on a
    /// hub, of the Secret with the cluster's kubeconfig.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

fn cluster_refs(generator: &mut SchemaGenerator) -> Schema {
    let item = generator.subschema_for::<ClusterRef>();
    json_schema!({
        "type": "array", "items": item, "minItems": 2, "maxItems": MOST_CLUSTERS,
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
    })
}

/// How the clusters are reached, and what is expected to run in them.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct MeshConfig {
    /// By which kind of Service the clusters reach each other's
    /// clustermesh-apiserver. The Service itself is never changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["LoadBalancer", "NodePort"], "default" = "LoadBalancer"))]
    pub service_type: Option<String>,

    /// Expect KVStoreMesh in every cluster. It is checked, not installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_kv_store_mesh: Option<bool>,

    /// Expect Hubble in every cluster. It is checked, not installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hubble: Option<Hubble>,
}

/// What is expected of Hubble.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hubble {
    /// Expect Hubble and its relay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,

    /// Expect Hubble's user interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ui: Option<bool>,
}

/// What the provider last saw and did. Written by the provider alone.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ClusterMeshBindingStatus {
    /// Pending, Connecting, Connected, Degraded or Error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,

    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// When the clusters were last compared with the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sync_time: Option<Time>,

    /// One row per cluster, in the order of clusterRefs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MOST_CLUSTERS))]
    pub mesh_status: Option<Vec<MeshStatus>>,

    /// Ready, MeshConnected, Degraded and others, each with a reason and a message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::conditions")]
    pub conditions: Option<Vec<Condition>>,
}

/// What is known of one cluster of the mesh.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct MeshStatus {
    /// The cluster's name in clusterRefs.
    pub cluster_name: String,

    /// Cilium's cluster-id there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<i64>,

    /// Whether all links from and to it were verified.
    #[serde(default)]
    pub connected: bool,

    /// Nodes on which Cilium's agent is ready.
    #[serde(default)]
    pub ready_nodes: i64,

    /// Nodes on which Cilium's agent should run.
    #[serde(default)]
    pub total_nodes: i64,

    /// What is wrong with it, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// When its links were last verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_verified: Option<Time>,
}
