//! The `ClusterMeshBinding` custom resource. The doc comments below become the
//! descriptions in the schema. The schema rejects only objects that can't be processed
//! at all; other mistakes are reported in the status.
#![allow(
    unreachable_pub,
    reason = "KubeSchema copies each struct, with its `pub`, into a function"
)]
#![allow(
    clippy::duplicated_attributes,
    reason = "printer columns of the same type"
)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::MOST_CLUSTERS;

/// Desired state of the mesh: the clusters to connect, and how they reach each other.
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
    printcolumn(
        name = "Phase",
        type_ = "string",
        description = "Progress of connecting the mesh",
        json_path = ".status.phase"
    ),
    printcolumn(
        name = "Clusters",
        type_ = "string",
        description = "Clusters of the mesh",
        json_path = ".spec.clusterRefs"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        description = "True if every link is verified",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterMeshBindingSpec {
    /// Clusters to connect, at least two, without duplicates.
    #[schemars(schema_with = "cluster_refs")]
    pub cluster_refs: Vec<ClusterRef>,

    /// Connection settings, and the components that are expected in every cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mesh_config: Option<MeshConfig>,
}

/// Reference to a cluster of the mesh.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq, Default)]
pub struct ClusterRef {
    /// Name of a KubernetesCluster in the namespace of this object. On a hub: the Secret
    /// NAME or NAME-kubeconfig with the kubeconfig of the cluster, or the only Secret
    /// with this value of the label networking.edge-portal.eu/cluster or
    /// cluster.x-k8s.io/cluster-name.
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

/// Connection settings, and the components that are expected in every cluster.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct MeshConfig {
    /// Type of the Service through which the clusters reach each other's
    /// clustermesh-apiserver. The type of an existing Service is never changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["LoadBalancer", "NodePort"], "default" = "LoadBalancer"))]
    pub service_type: Option<String>,

    /// Expect KVStoreMesh in every cluster. It is checked, not installed; if it is
    /// missing, the condition KVStoreMeshReady is False.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_kv_store_mesh: Option<bool>,

    /// Expect Hubble in every cluster. It is checked, not installed; if it is missing,
    /// the condition HubbleReady is False.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hubble: Option<Hubble>,
}

/// Expected components of Hubble.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hubble {
    /// Expect Hubble and Hubble Relay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,

    /// Expect Hubble UI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ui: Option<bool>,
}

/// Observed state of the mesh, written by the provider.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ClusterMeshBindingStatus {
    /// Phase of the mesh: Pending, Connecting, Connected, Degraded or Error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,

    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Time when the clusters were last compared with the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sync_time: Option<Time>,

    /// Status of each cluster, in the order of clusterRefs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MOST_CLUSTERS))]
    pub mesh_status: Option<Vec<MeshStatus>>,

    /// Conditions of the mesh, e.g. Ready, MeshConnected and Degraded, each with a
    /// reason and a message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::conditions")]
    pub conditions: Option<Vec<Condition>>,
}

/// Observed state of one cluster.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct MeshStatus {
    /// Name of the cluster in clusterRefs.
    pub cluster_name: String,

    /// Cilium's cluster-id of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<i64>,

    /// True if all links from and to the cluster are verified.
    #[serde(default)]
    pub connected: bool,

    /// Number of nodes with a ready Cilium agent.
    #[serde(default)]
    pub ready_nodes: i64,

    /// Number of nodes that should run a Cilium agent.
    #[serde(default)]
    pub total_nodes: i64,

    /// Description of the problem with this cluster, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// Time when the links of the cluster were last verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_verified: Option<Time>,
}
