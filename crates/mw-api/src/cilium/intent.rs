//! The `ConnectivityIntent` custom resource. The doc comments below become the
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

use super::MeshRef;

/// Desired connectivity: the traffic to allow or deny.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[kube(
    group = "networking.edge-portal.eu",
    version = "v1alpha1",
    kind = "ConnectivityIntent",
    plural = "connectivityintents",
    singular = "connectivityintent",
    shortname = "cint",
    namespaced,
    status = "ConnectivityIntentStatus",
    derive = "PartialEq",
    doc = "A ConnectivityIntent allows or denies traffic between pods of the clusters of a ClusterMeshBinding.",
    printcolumn(
        name = "Phase",
        type_ = "string",
        description = "Progress of applying the policy",
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
        description = "True if the policy is applied on all clusters",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ConnectivityIntentSpec {
    /// Mesh whose clusters get the policy.
    pub mesh_ref: MeshRef,

    /// Allow or deny matching traffic. Required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Allow", "Deny"]))]
    pub action: Option<String>,

    /// Scope of the policy: the namespace of the destination or the whole cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Namespaced", "Clusterwide"], "default" = "Namespaced"))]
    pub policy_mode: Option<String>,

    /// Pods that the traffic comes from, in any cluster of the mesh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Peer>,

    /// Pods that the traffic goes to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<Peer>,

    /// Ports of the destination. If empty, all ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub ports: Option<Vec<Port>>,

    /// Probe of the reachability. Not implemented yet: nothing is probed, and the
    /// condition Reachable is Unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<Probe>,

    /// For Allow: deny all other traffic to the destination, which is the default of
    /// Cilium policies. Set to false to leave other traffic unaffected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = true))]
    pub isolate: Option<bool>,
}

/// Pods, selected by namespace and by name or labels.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq, Default)]
pub struct Peer {
    /// Namespace of the pods. Required unless policyMode is Clusterwide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub namespace: Option<String>,

    /// Value of the label `app` of the pods. Mutually exclusive with selector. If
    /// neither is set, all pods of the namespace match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub name: Option<String>,

    /// Labels of the pods. Mutually exclusive with name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::texts")]
    pub selector: Option<BTreeMap<String, String>>,
}

/// A port or a port range.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// Transport protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["TCP", "UDP", "SCTP", "ANY"], "default" = "ANY"))]
    pub protocol: Option<String>,

    /// Port number, or first port of a range. Required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<i64>,

    /// Last port of a range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub end_port: Option<i64>,
}

/// Configuration of the reachability probe.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, Copy, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Probe {
    /// Request a probe of the destination.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,

    /// Interval between probes in seconds, at least 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_seconds: Option<i64>,
}

/// Observed state of the intent, written by the provider.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ConnectivityIntentStatus {
    /// Phase of the intent: Pending, Applying, Applied, Degraded or Error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,

    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Time when the clusters were last compared with the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sync_time: Option<Time>,

    /// Clusters on which the policy is applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::refs")]
    pub applied_clusters: Option<Vec<String>>,

    /// Result of the last probe. Only set if the probe is enabled; until probes are
    /// implemented, it contains only a message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe_status: Option<ProbeStatus>,

    /// Conditions of the intent: Accepted, Applied, Ready, Reachable and Degraded, each
    /// with a reason and a message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::conditions")]
    pub conditions: Option<Vec<Condition>>,
}

/// Result of the last probe.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ProbeStatus {
    /// Time of the last probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<Time>,

    /// True if the destination was reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success: Option<bool>,

    /// Result of the probe in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
