//! The `ClusterMesh` custom resource. The doc comments below become the
//! descriptions in the CRD and so the API reference.
//!
//! The schema must not refuse what the earlier operator's CRD accepted: before
//! Kubernetes 1.30 every write checks the whole object, so a stricter rule
//! would block even the removal of a finalizer from an old object. How many
//! entries are local, equal names and missing kubeconfigs are therefore the
//! controller's to report.
#![allow(unreachable_pub, reason = "KubeSchema copies each struct, with its `pub`, into a function")]
#![allow(clippy::duplicated_attributes, reason = "printer columns of the same type")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use mw_core::kilo::spec::{DEFAULT_MAX_DELETE_PERCENT, DEFAULT_TOPOLOGY_LABEL, DEFAULT_WIREGUARD_PORT, MOST_CIDRS, MOST_CLUSTERS};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Annotation: the hash of exactly the held deletes that may go ahead.
pub const ANNOTATION_CONFIRM_DELETES: &str = "kilo-clustermesh.io/confirm-deletes";
/// Annotation: the UID of a former hub whose Peers this mesh takes over.
pub const ANNOTATION_TAKE_OVER_HUB: &str = "kilo-clustermesh.io/take-over-hub";
/// Annotation: any change of its value runs a full resync of the mesh.
pub const ANNOTATION_RECONCILE_TRIGGER: &str = "reconcile-trigger";
/// Finalizer that holds a deleted mesh until its Peers are gone.
pub const FINALIZER: &str = "kilo-clustermesh.io/cleanup";

/// The longest list of skipped nodes in a cluster's status.
pub const MOST_SKIPPED: usize = 20;

/// What the mesh joins and how carefully it is changed.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[kube(
    group = "kilo.squat.ai",
    version = "v1alpha1",
    kind = "ClusterMesh",
    plural = "clustermeshes",
    singular = "clustermesh",
    shortname = "cm",
    shortname = "cmesh",
    namespaced,
    status = "ClusterMeshStatus",
    derive = "PartialEq",
    doc = "A ClusterMesh joins two or more clusters that run Kilo into one WireGuard network.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        description = "Whether every pair of clusters is connected as declared",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Clusters", type_ = "integer", description = "Clusters in the mesh", json_path = ".status.totals.clusters"),
    printcolumn(name = "Peers", type_ = "integer", description = "Peers held in all clusters", json_path = ".status.totals.peers"),
    printcolumn(name = "Skipped", type_ = "integer", description = "Nodes that take no part", json_path = ".status.totals.skipped"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterMeshSpec {
    /// The clusters to join, two at least. At most one of them is `local`, and
    /// all names differ.
    #[schemars(length(min = 2, max = MOST_CLUSTERS))]
    pub clusters: Vec<ClusterEntry>,

    /// How long the deletion of this mesh waits for a cluster that does not
    /// answer before it is released with that cluster's Peers left behind.
    /// Whole hours, minutes and seconds, such as 90s, 10m or 1h30m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 2, max = 32),
        regex(pattern = r"^([0-9]{1,9}h)?([0-9]{1,9}m)?([0-9]{1,9}s)?$"),
        extend("default" = DEFAULT_CLEANUP_TIMEOUT)
    )]
    pub cleanup_timeout: Option<String>,

    /// The largest share of a cluster's Peers, in percent, that may go from
    /// another cluster at once without a good reason. More than that is held
    /// back until somebody confirms it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100), extend("default" = DEFAULT_MAX_DELETE_PERCENT))]
    pub max_delete_percent: Option<i64>,
}

/// The core's default of 600 seconds, as people write it.
const DEFAULT_CLEANUP_TIMEOUT: &str = "10m";

/// One cluster of the mesh. Its networks are given in one of two forms: either
/// `podCIDRs` and `wireguardCIDR` (with `serviceCIDR` and `additionalCIDRs` as
/// needed), or `allowedNetworks` alone.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[x_kube(validation = Rule::new(ONE_FORM).message(ONE_FORM_MESSAGE))]
#[serde(rename_all = "camelCase")]
pub struct ClusterEntry {
    /// The cluster's name in this mesh: lower-case letters, digits and dashes,
    /// at most 63 characters, different from all others.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,

    /// True for the one cluster in which the operator runs and this object
    /// lives. It needs no kubeconfig.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<bool>,

    /// The Secret with this cluster's kubeconfig, in the namespace of this
    /// object. Needed for every cluster that is not local.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeconfig_secret_ref: Option<KubeconfigSecretRef>,

    /// The ranges of the cluster's pod addresses; several for dual stack. Only
    /// nodes whose first pod CIDR lies in one of them take part.
    #[serde(rename = "podCIDRs", default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "some_cidrs")]
    pub pod_cidrs: Option<Vec<String>>,

    /// The range of Kilo's WireGuard addresses in this cluster, as given to
    /// Kilo with --subnet.
    #[serde(rename = "wireguardCIDR", default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cidr")]
    pub wireguard_cidr: Option<String>,

    /// The port to which WireGuard traffic is sent on nodes that are reached
    /// by their ExternalIP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535), extend("default" = DEFAULT_WIREGUARD_PORT))]
    pub wireguard_port: Option<i64>,

    /// The range of the cluster's Service addresses, to make them reachable
    /// from the other clusters. An empty text is the same as none.
    #[serde(rename = "serviceCIDR", default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cidr_or_empty")]
    pub service_cidr: Option<String>,

    /// Further ranges that are reached through this cluster, such as the
    /// network of its nodes.
    #[serde(rename = "additionalCIDRs", default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "cidrs")]
    pub additional_cidrs: Option<Vec<String>>,

    /// All ranges of this cluster in one list, in place of podCIDRs,
    /// wireguardCIDR, serviceCIDR and additionalCIDRs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "some_cidrs")]
    pub allowed_networks: Option<Vec<String>>,

    /// Seconds between keepalive packets, which nodes behind NAT need; 0 means
    /// none. Between two clusters the smaller value that is not 0 counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535), extend("default" = 0))]
    pub persistent_keepalive: Option<i64>,

    /// The node label from which Kilo takes a node's location, as given to
    /// Kilo with --topology-label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317), extend("default" = DEFAULT_TOPOLOGY_LABEL))]
    pub topology_label: Option<String>,

    /// `Kilo` takes any endpoint that Kilo found by itself, for nodes without an
    /// endpoint annotation and without an ExternalIP. Without it only globally
    /// routable addresses are taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), regex(pattern = r"^Kilo$"))]
    pub endpoint_from: Option<String>,
}

/// Only `has` and the operators: they exist in every version since 1.25 and
/// cost next to nothing, even for 1,024 entries.
const ONE_FORM: &str = "has(self.allowedNetworks) \
    ? !has(self.podCIDRs) && !has(self.wireguardCIDR) && !has(self.serviceCIDR) && !has(self.additionalCIDRs) \
    : has(self.podCIDRs) && has(self.wireguardCIDR)";
const ONE_FORM_MESSAGE: &str =
    "give either podCIDRs and wireguardCIDR (serviceCIDR and additionalCIDRs as needed) or allowedNetworks alone";

/// A Secret with a kubeconfig.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct KubeconfigSecretRef {
    /// The Secret's name.
    #[schemars(length(max = 253))]
    pub name: String,

    /// The key in the Secret. Without it `value`, `kubeconfig` and
    /// `admin.conf` are tried in this order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub key: Option<String>,
}

/// What the operator last saw and did. Written by the operator alone.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ClusterMeshStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Ready, NetworksOverlap and others, each with a reason and a message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 32),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Option<Vec<Condition>>,

    /// Sums over all clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub totals: Option<Totals>,

    /// One entry per cluster of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MOST_CLUSTERS))]
    pub clusters: Option<Vec<ClusterStatus>>,

    /// Deletes that wait for somebody to confirm them, so that they stay held
    /// when the operator restarts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MOST_CLUSTERS))]
    pub held_deletes: Option<Vec<HeldDeletes>>,
}

/// Deletes that are held in one cluster.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct HeldDeletes {
    /// The cluster's name in the mesh.
    pub cluster: String,
    /// How many Peers are to go from it.
    pub count: i64,
    /// Their names. Where this is shorter than `count`, every doubtful delete
    /// of the mesh counts as held.
    #[serde(default)]
    pub peers: Vec<String>,
}

/// The most names of Peers in `heldDeletes`.
pub const MOST_HELD: usize = 1000;

/// Sums over all clusters of a mesh.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, Copy, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    /// Clusters in the mesh.
    #[serde(default)]
    pub clusters: i64,
    /// Peers of this mesh in all clusters.
    #[serde(default)]
    pub peers: i64,
    /// Nodes that take no part.
    #[serde(default)]
    pub skipped: i64,
}

/// What the operator saw of one cluster and did there.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// The cluster's name in the mesh.
    pub name: String,

    /// Peers of this mesh in this cluster.
    #[serde(default)]
    pub registered_peers: i64,

    /// Nodes of this cluster that take no part.
    #[serde(default)]
    pub skipped_nodes: i64,

    /// Whether the cluster's API server answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reachable: Option<bool>,

    /// When the cluster last answered before it became unreachable. Written
    /// only when `reachable` changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_contact: Option<Time>,

    /// Nodes of this cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<i64>,

    /// Nodes that are reached through the leader of their location.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carried_nodes: Option<i64>,

    /// The node whose Peer carries the cluster-wide networks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anchor_node: Option<String>,

    /// What is wrong with this cluster, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// The first 20 nodes that take no part, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MOST_SKIPPED))]
    pub skipped: Option<Vec<SkippedNode>>,
}

/// A node that takes no part in the mesh, and why.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct SkippedNode {
    /// The node's name.
    pub node: String,
    /// Why, in one word.
    pub reason: String,
    /// Why, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Every IPv4 CIDR and nothing else of that kind; of IPv6 the alphabet only,
/// which is what a pattern of bearable length can say.
const CIDR_PATTERN: &str = "^(\
    ((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])/(3[0-2]|[12]?[0-9])\
    |[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*/(12[0-8]|1[01][0-9]|[1-9]?[0-9])\
    )$";

fn cidr(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "maxLength": 64, "pattern": CIDR_PATTERN })
}

/// The earlier operator's objects may have empty texts.
fn cidr_or_empty(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "maxLength": 64, "pattern": format!("^$|{CIDR_PATTERN}") })
}

fn cidrs(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "maxItems": MOST_CIDRS, "items": cidr_or_empty(generator) })
}

fn some_cidrs(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "minItems": 1, "maxItems": MOST_CIDRS, "items": cidr_or_empty(generator) })
}
