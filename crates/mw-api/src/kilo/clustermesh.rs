//! The `ClusterMesh` custom resource. The doc comments below become the descriptions in
//! the CRD and in the API reference.
//!
//! The schema must accept every object that the earlier operator's CRD accepted: before
//! Kubernetes 1.30 every write validates the whole object, so a stricter rule would
//! block even the removal of a finalizer from an old object. Checks such as the number
//! of local entries, unique names and missing kubeconfigs are therefore left to the
//! controller.
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
use mw_core::kilo::spec::{
    DEFAULT_MAX_DELETE_PERCENT, DEFAULT_TOPOLOGY_LABEL, DEFAULT_WIREGUARD_PORT, MOST_CIDRS,
    MOST_CLUSTERS,
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Annotation with the hash of the held deletes that the operator may carry out. Only
/// exactly these deletes go ahead.
pub(crate) const ANNOTATION_CONFIRM_DELETES: &str = "kilo-clustermesh.io/confirm-deletes";
/// Annotation with the UID of a former hub whose Peers this mesh takes over.
pub(crate) const ANNOTATION_TAKE_OVER_HUB: &str = "kilo-clustermesh.io/take-over-hub";
/// Annotation that triggers a full resync of the mesh whenever its value changes.
pub const ANNOTATION_RECONCILE_TRIGGER: &str = "reconcile-trigger";
/// Finalizer that keeps a deleted mesh until its Peers are deleted in all clusters.
pub const FINALIZER: &str = "kilo-clustermesh.io/cleanup";

/// Maximum number of skipped nodes listed in the status of a cluster.
pub const MOST_SKIPPED: usize = 20;

/// Desired state of the mesh: the clusters to connect, and limits for deletions.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[kube(
    group = "kilo.squat.ai",
    version = "v1alpha1",
    kind = "ClusterMesh",
    plural = "clustermeshes",
    singular = "clustermesh",
    shortname = "cmesh",
    namespaced,
    status = "ClusterMeshStatus",
    derive = "PartialEq",
    doc = "A ClusterMesh connects two or more clusters that run Kilo into one WireGuard network.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        description = "True if all Peers are written in all clusters",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "Clusters",
        type_ = "integer",
        description = "Clusters in the mesh",
        json_path = ".status.totals.clusters"
    ),
    printcolumn(
        name = "Peers",
        type_ = "integer",
        description = "Peers in all clusters",
        json_path = ".status.totals.peers"
    ),
    printcolumn(
        name = "Skipped",
        type_ = "integer",
        description = "Skipped nodes",
        json_path = ".status.totals.skipped"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterMeshSpec {
    /// Clusters to connect, at least two. Names must be unique, and at most one cluster
    /// may be `local`.
    #[schemars(length(min = 2, max = MOST_CLUSTERS))]
    pub clusters: Vec<ClusterEntry>,

    /// Time that the deletion of this mesh waits for an unreachable cluster. After
    /// that, the finalizer is removed and the Peers in that cluster are left behind; the
    /// operator deletes them if the cluster becomes reachable through another mesh.
    /// Hours, minutes and seconds as whole numbers, e.g. 90s, 10m or 1h30m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 2, max = 32),
        regex(pattern = r"^([0-9]{1,9}h)?([0-9]{1,9}m)?([0-9]{1,9}s)?$"),
        extend("default" = DEFAULT_CLEANUP_TIMEOUT)
    )]
    pub cleanup_timeout: Option<String>,

    /// Largest share of a cluster's Peers, in percent, that the operator deletes from
    /// another cluster within 10 minutes without a known cause, or whose keys it changes
    /// at once. Larger changes are held until they are confirmed with the annotation
    /// kilo-clustermesh.io/confirm-deletes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100), extend("default" = DEFAULT_MAX_DELETE_PERCENT))]
    pub max_delete_percent: Option<i64>,
}

/// The core's default of 600 seconds as a duration string.
const DEFAULT_CLEANUP_TIMEOUT: &str = "10m";

/// A cluster of the mesh. Declare its networks in one of two forms: either `podCIDRs`
/// and `wireguardCIDR` (plus `serviceCIDR` and `additionalCIDRs` as needed), or
/// `allowedNetworks` alone.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[x_kube(validation = Rule::new(ONE_FORM).message(ONE_FORM_MESSAGE))]
#[serde(rename_all = "camelCase")]
pub struct ClusterEntry {
    /// Name of the cluster in this mesh: lower-case letters, digits and dashes, at most
    /// 63 characters, unique.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub name: String,

    /// True for the cluster that the operator runs in and that holds this object. A
    /// local cluster needs no kubeconfig.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<bool>,

    /// Secret with the kubeconfig of this cluster, in the namespace of this object.
    /// Required unless the cluster is local.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeconfig_secret_ref: Option<KubeconfigSecretRef>,

    /// Pod address ranges of the cluster; more than one for dual stack. Nodes whose
    /// first pod CIDR is outside of these ranges are skipped.
    #[serde(rename = "podCIDRs", default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "some_cidrs")]
    pub pod_cidrs: Option<Vec<String>>,

    /// Range of Kilo's WireGuard addresses in this cluster; the value of Kilo's flag
    /// --subnet.
    #[serde(
        rename = "wireguardCIDR",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(schema_with = "cidr")]
    pub wireguard_cidr: Option<String>,

    /// UDP port of WireGuard on nodes that are reached at their ExternalIP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535), extend("default" = DEFAULT_WIREGUARD_PORT))]
    pub wireguard_port: Option<i64>,

    /// Service address range of the cluster. Set it to make ClusterIPs reachable from
    /// the other clusters. An empty string means none.
    #[serde(
        rename = "serviceCIDR",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(schema_with = "cidr_or_empty")]
    pub service_cidr: Option<String>,

    /// Additional ranges that are routed to this cluster, e.g. the network of its
    /// nodes.
    #[serde(
        rename = "additionalCIDRs",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(schema_with = "cidrs")]
    pub additional_cidrs: Option<Vec<String>>,

    /// All ranges of this cluster in one list, instead of podCIDRs, wireguardCIDR,
    /// serviceCIDR and additionalCIDRs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "some_cidrs")]
    pub allowed_networks: Option<Vec<String>>,

    /// WireGuard keepalive of the Peers in seconds, needed by nodes behind NAT; 0 means
    /// none. Between two clusters, the smaller non-zero value is used. Kilo takes the
    /// actual interval from the annotation kilo.squat.ai/persistent-keepalive of its own
    /// nodes, which must be set as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535), extend("default" = 0))]
    pub persistent_keepalive: Option<i64>,

    /// Node label that holds the location of a node; the value of Kilo's flag
    /// --topology-label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317), extend("default" = DEFAULT_TOPOLOGY_LABEL))]
    pub topology_label: Option<String>,

    /// `Kilo` accepts any endpoint that Kilo discovered, for nodes that have neither an
    /// endpoint annotation nor an ExternalIP. If unset, only globally routable
    /// discovered endpoints are accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), regex(pattern = r"^Kilo$"))]
    pub endpoint_from: Option<String>,
}

/// Uses only `has` and operators: they are available since Kubernetes 1.25, and their
/// CEL cost is negligible even for 1,024 entries.
const ONE_FORM: &str = "has(self.allowedNetworks) \
    ? !has(self.podCIDRs) && !has(self.wireguardCIDR) && !has(self.serviceCIDR) && !has(self.additionalCIDRs) \
    : has(self.podCIDRs) && has(self.wireguardCIDR)";
const ONE_FORM_MESSAGE: &str = "set either podCIDRs and wireguardCIDR (serviceCIDR and additionalCIDRs as needed) or allowedNetworks alone";

/// Reference to a Secret with a kubeconfig.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct KubeconfigSecretRef {
    /// Name of the Secret.
    #[schemars(length(max = 253))]
    pub name: String,

    /// Key in the Secret. If unset, `value`, `kubeconfig` and `admin.conf` are tried in
    /// this order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub key: Option<String>,
}

/// Observed state of the mesh, written by the operator.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ClusterMeshStatus {
    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Conditions of the mesh, e.g. Ready and NetworksOverlap, each with a reason and a
    /// message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 32),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Option<Vec<Condition>>,

    /// Sums over all clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub totals: Option<Totals>,

    /// Status of each cluster of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MOST_CLUSTERS))]
    pub clusters: Option<Vec<ClusterStatus>>,

    /// Deletes and key changes that wait for confirmation. They are recorded here so
    /// that they stay held when the operator restarts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MOST_CLUSTERS))]
    pub held_deletes: Option<Vec<HeldDeletes>>,
}

/// Held deletes and key changes in one cluster.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct HeldDeletes {
    /// Name of the cluster in the mesh.
    pub cluster: String,
    /// Number of Peers in this cluster that would be deleted or get another key.
    pub count: i64,
    /// Names of these Peers, followed by `=` and the new key if they would get one. If
    /// there are fewer entries than `count`, every delete of this mesh without a known
    /// cause is held after a restart.
    #[serde(default)]
    pub peers: Vec<String>,
}

/// Maximum number of Peer names in `heldDeletes`, over all clusters.
pub const MOST_HELD: usize = 1000;

/// Sums over all clusters of a mesh.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, Copy, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    /// Number of clusters in the mesh.
    #[serde(default)]
    pub clusters: i64,
    /// Number of Peers of this mesh in all clusters.
    #[serde(default)]
    pub peers: i64,
    /// Number of skipped nodes.
    #[serde(default)]
    pub skipped: i64,
}

/// Observed state of one cluster.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// Name of the cluster in the mesh.
    pub name: String,

    /// Number of Peers of this mesh in this cluster.
    #[serde(default)]
    pub registered_peers: i64,

    /// Number of skipped nodes of this cluster.
    #[serde(default)]
    pub skipped_nodes: i64,

    /// True if the API server of the cluster is reachable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reachable: Option<bool>,

    /// Time of the last answer before the cluster became unreachable. Updated only when
    /// `reachable` changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_contact: Option<Time>,

    /// Number of nodes in this cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<i64>,

    /// Number of nodes that are reached through the leader of their location.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carried_nodes: Option<i64>,

    /// Node whose Peer carries the cluster-wide networks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anchor_node: Option<String>,

    /// Description of the problem with this cluster, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// First 20 skipped nodes by name, each with the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MOST_SKIPPED))]
    pub skipped: Option<Vec<SkippedNode>>,
}

/// A node that takes no part in the mesh, and the reason.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct SkippedNode {
    /// Name of the node.
    pub node: String,
    /// Machine-readable reason.
    pub reason: String,
    /// Human-readable reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Matches exactly the valid IPv4 CIDRs. For IPv6 it checks only the characters and the
/// prefix length, to keep the pattern short.
const CIDR_PATTERN: &str = "^(\
    ((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])/(3[0-2]|[12]?[0-9])\
    |[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*/(12[0-8]|1[01][0-9]|[1-9]?[0-9])\
    )$";

fn cidr(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "maxLength": 64, "pattern": CIDR_PATTERN })
}

/// Also accepts empty strings, which objects of the earlier operator may contain.
fn cidr_or_empty(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "maxLength": 64, "pattern": format!("^$|{CIDR_PATTERN}") })
}

fn cidrs(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "maxItems": MOST_CIDRS, "items": cidr_or_empty(generator) })
}

fn some_cidrs(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "minItems": 1, "maxItems": MOST_CIDRS, "items": cidr_or_empty(generator) })
}
