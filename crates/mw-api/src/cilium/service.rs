//! The `GlobalService` custom resource. The doc comments below become the
//! descriptions in the schema.
#![allow(
    unreachable_pub,
    reason = "KubeSchema copies each struct, with its `pub`, into a function"
)]
#![allow(
    clippy::duplicated_attributes,
    reason = "printer columns of the same type"
)]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{MOST_CLUSTERS, MeshRef};

/// Desired export: the Services to export, and the clusters on which they are exported.
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
    printcolumn(
        name = "Phase",
        type_ = "string",
        description = "Progress of exporting the Services",
        json_path = ".status.phase"
    ),
    printcolumn(
        name = "Mesh",
        type_ = "string",
        description = "ClusterMeshBinding of the mesh",
        json_path = ".spec.meshRef.name"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        description = "True if the Services are exported on all clusters",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct GlobalServiceSpec {
    /// Mesh in which the Services are exported.
    pub mesh_ref: MeshRef,

    /// Services to export.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<ServiceSelector>,

    /// Clusters of the mesh on which the Services are exported. If empty, all clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::refs")]
    pub target_clusters: Option<Vec<String>>,

    /// Additional annotations for the Services. Keys must start with service.cilium.io/,
    /// io.cilium/ or a prefix that the provider allows with --allow-annotation-prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::texts")]
    pub global_annotations: Option<BTreeMap<String, String>>,

    /// Share the endpoints of each cluster with the other clusters. If unset, they are
    /// shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<bool>,

    /// Preferred endpoints: those of the local cluster or those of remote clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["local", "remote"]))]
    pub affinity: Option<String>,
}

/// Services, selected by name or by labels.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ServiceSelector {
    /// Namespace of the Services on the clusters. Required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub namespace: Option<String>,

    /// Name of a Service. Mutually exclusive with labelSelector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub name: Option<String>,

    /// Labels of the Services, at least one. Mutually exclusive with name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::texts")]
    pub label_selector: Option<BTreeMap<String, String>>,
}

/// Observed state of the export, written by the provider.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct GlobalServiceStatus {
    /// Phase of the export: Pending, Exporting, Exported, Degraded or Error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,

    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Time when the clusters were last compared with the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sync_time: Option<Time>,

    /// Clusters on which the Services are exported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::refs")]
    pub exported_clusters: Option<Vec<String>>,

    /// Local endpoints of each cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MOST_CLUSTERS))]
    pub endpoint_summary: Option<Vec<EndpointSummary>>,

    /// Conditions of the export: Accepted, Exported, Ready and Degraded, each with a
    /// reason and a message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::conditions")]
    pub conditions: Option<Vec<Condition>>,
}

/// Endpoints of the Services on one cluster.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct EndpointSummary {
    /// Name of the cluster in the mesh.
    pub cluster_name: String,
    /// Number of ready endpoints on this cluster.
    #[serde(default)]
    pub endpoints: i64,
    /// True if there is at least one ready endpoint.
    #[serde(default)]
    pub ready: bool,
}
