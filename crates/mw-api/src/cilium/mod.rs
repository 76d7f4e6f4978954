//! Objects of the Cilium back end: its three custom resources, the clusters they refer
//! to, Cilium's objects in a target cluster, and kcp's objects.

pub mod binding;
pub mod convert;
pub mod examples;
pub mod fleet;
pub mod intent;
pub mod kcp;
pub mod managers;
pub mod observe;
pub mod policy;
pub mod rbac;
pub mod service;
pub mod target;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// API group of the three custom resources.
pub const GROUP: &str = "networking.edge-portal.eu";
/// API version of the three custom resources.
pub const VERSION: &str = "v1alpha1";

/// Prefix of all finalizers, of the Go provider as well as ours.
pub const FINALIZER_PREFIX: &str = "networking.edge-portal.eu/";
/// Finalizer of a ClusterMeshBinding.
pub const BINDING_FINALIZER: &str = "networking.edge-portal.eu/mesh-cleanup";
/// Finalizer of a GlobalService.
pub const SERVICE_FINALIZER: &str = "networking.edge-portal.eu/globalservice-cleanup";
/// Finalizer of a ConnectivityIntent.
pub const INTENT_FINALIZER: &str = "networking.edge-portal.eu/connectivityintent-cleanup";
/// Annotation with the references to all clusters that this object may have written to.
/// Cleanup needs it when the binding is already deleted.
pub const ANNOTATION_TOUCHED: &str = "networking.edge-portal.eu/touched-clusters";

/// Reference to a ClusterMeshBinding.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq, Default)]
pub struct MeshRef {
    /// Name of a ClusterMeshBinding in the namespace of this object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

fn conditions(generator: &mut SchemaGenerator) -> Schema {
    let condition = generator.subschema_for::<Condition>();
    json_schema!({
        "type": "array", "items": condition, "maxItems": 32,
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
    })
}

/// Schema for a list of cluster names, limited to the size of a mesh.
fn refs(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "maxItems": MOST_CLUSTERS, "items": { "type": "string", "maxLength": 253 } })
}

fn texts(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "maxProperties": 64, "additionalProperties": { "type": "string", "maxLength": 1024 } })
}

/// Maximum number of clusters in a mesh: a cluster and the 511 that Cilium connects to
/// it at most.
pub const MOST_CLUSTERS: usize = 512;
