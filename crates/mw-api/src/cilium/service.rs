//! The `GlobalService` custom resource. The doc comments below become the
//! descriptions in the schema.
#![allow(unreachable_pub, reason = "KubeSchema copies each struct, with its `pub`, into a function")]
#![allow(clippy::duplicated_attributes, reason = "printer columns of the same type")]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{MOST_CLUSTERS, MeshRef};

/// Which Services are exported, and where.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[kube(
    group = "networking.edge-portal.eu",
    version = "v1alpha1",
    kind = "GlobalService",
    plural = "globalservices",
    singular = "globalservice",
    shortname = "gs",
    namespaced,
    status = "GlobalServiceStatus",
    derive = "PartialEq",
    doc = "A GlobalService exports Services across the clusters of a ClusterMeshBinding.",
    printcolumn(name = "Phase", type_ = "string", description = "How far the Services are exported", json_path = ".status.phase"),
    printcolumn(name = "Mesh", type_ = "string", description = "The ClusterMeshBinding", json_path = ".spec.meshRef.name"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        description = "Whether the Services are exported everywhere",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct GlobalServiceSpec {
    /// The mesh across which the Services are exported.
    pub mesh_ref: MeshRef,

    /// The Services on the clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<ServiceSelector>,

    /// The clusters of the mesh on which the Services are exported; without
    /// any, all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::refs")]
    pub target_clusters: Option<Vec<String>>,

    /// Further annotations for the Services, of Cilium's prefixes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::texts")]
    pub global_annotations: Option<BTreeMap<String, String>>,

    /// Whether a cluster offers its own endpoints to the others. Without it
    /// they are offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<bool>,

    /// Which endpoints are preferred: those of the own cluster or the others'.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["local", "remote"]))]
    pub affinity: Option<String>,
}

/// Services by name or by labels.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ServiceSelector {
    /// The namespace of the Services on the clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub namespace: Option<String>,

    /// The name of one Service. Either this or labelSelector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub name: Option<String>,

    /// Labels that the Services carry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::texts")]
    pub label_selector: Option<BTreeMap<String, String>>,
}

/// What the provider last saw and did. Written by the provider alone.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct GlobalServiceStatus {
    /// Pending, Exporting, Exported, Degraded or Error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,

    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// When the clusters were last compared with the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sync_time: Option<Time>,

    /// The clusters on which the Services are exported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::refs")]
    pub exported_clusters: Option<Vec<String>>,

    /// The endpoints that each cluster has of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MOST_CLUSTERS))]
    pub endpoint_summary: Option<Vec<EndpointSummary>>,

    /// Accepted, Exported, Ready and Degraded, each with a reason and a message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::conditions")]
    pub conditions: Option<Vec<Condition>>,
}

/// The endpoints of the Services on one cluster.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct EndpointSummary {
    /// The cluster's name in the mesh.
    pub cluster_name: String,
    /// Endpoints of this cluster that are ready.
    #[serde(default)]
    pub endpoints: i64,
    /// Whether there is one at least.
    #[serde(default)]
    pub ready: bool,
}
