//! The `ConnectivityIntent` custom resource. The doc comments below become the
//! descriptions in the schema.
#![allow(unreachable_pub, reason = "KubeSchema copies each struct, with its `pub`, into a function")]
#![allow(clippy::duplicated_attributes, reason = "printer columns of the same type")]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::MeshRef;

/// Who may or may not reach whom.
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
    printcolumn(name = "Phase", type_ = "string", description = "How far the policy is applied", json_path = ".status.phase"),
    printcolumn(name = "Mesh", type_ = "string", description = "The ClusterMeshBinding", json_path = ".spec.meshRef.name"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        description = "Whether the policy is applied everywhere",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ConnectivityIntentSpec {
    /// The mesh whose clusters get the policy.
    pub mesh_ref: MeshRef,

    /// Whether the traffic is allowed or denied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Allow", "Deny"]))]
    pub action: Option<String>,

    /// Whether the policy stands in the destination's namespace or is
    /// cluster-wide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Namespaced", "Clusterwide"], "default" = "Namespaced"))]
    pub policy_mode: Option<String>,

    /// The pods that the traffic comes from, in any cluster of the mesh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Peer>,

    /// The pods that the traffic goes to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<Peer>,

    /// The ports on the destination; without any, all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub ports: Option<Vec<Port>>,

    /// Whether reachability is to be probed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<Probe>,

    /// Whether an Allow cuts all other traffic to the destination, as a Cilium
    /// policy does by itself. False leaves other traffic alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = true))]
    pub isolate: Option<bool>,
}

/// Pods by namespace and name or labels.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq, Default)]
pub struct Peer {
    /// The pods' namespace. Needed unless the policy is cluster-wide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub namespace: Option<String>,

    /// The value of the pods' label `app`. Either this or selector; with
    /// neither, all pods of the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub name: Option<String>,

    /// Labels that the pods carry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::texts")]
    pub selector: Option<BTreeMap<String, String>>,
}

/// A port or a range of ports.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// The transport protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["TCP", "UDP", "SCTP", "ANY"], "default" = "ANY"))]
    pub protocol: Option<String>,

    /// The port, or the first of a range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<i64>,

    /// The last port of a range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub end_port: Option<i64>,
}

/// Whether and how often reachability is probed.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, Copy, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Probe {
    /// Whether to probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,

    /// Seconds between probes, 10 at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_seconds: Option<i64>,
}

/// What the provider last saw and did. Written by the provider alone.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ConnectivityIntentStatus {
    /// Pending, Applying, Applied, Degraded or Error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,

    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// When the clusters were last compared with the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sync_time: Option<Time>,

    /// The clusters on which the policy is applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::refs")]
    pub applied_clusters: Option<Vec<String>>,

    /// What was probed. Only there when a probe is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe_status: Option<ProbeStatus>,

    /// Accepted, Applied, Ready, Reachable and Degraded, each with a reason and
    /// a message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::conditions")]
    pub conditions: Option<Vec<Condition>>,
}

/// What was probed.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ProbeStatus {
    /// When it was last probed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<Time>,

    /// Whether the destination was reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success: Option<bool>,

    /// What was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
