//! What the Cilium back end stores and touches: its three kinds, the clusters
//! they refer to, Cilium's objects in a target, and what kcp serves them with.

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

/// The group of the three kinds.
pub const GROUP: &str = "networking.edge-portal.eu";
pub const VERSION: &str = "v1alpha1";

/// Every finalizer of the Go provider and of ours begins with this.
pub const FINALIZER_PREFIX: &str = "networking.edge-portal.eu/";
pub const BINDING_FINALIZER: &str = "networking.edge-portal.eu/mesh-cleanup";
pub const SERVICE_FINALIZER: &str = "networking.edge-portal.eu/globalservice-cleanup";
pub const INTENT_FINALIZER: &str = "networking.edge-portal.eu/connectivityintent-cleanup";
/// Annotation: the refs of clusters that this object may have left something
/// on, so that cleanup knows them when the binding is gone.
pub const ANNOTATION_TOUCHED: &str = "networking.edge-portal.eu/touched-clusters";

/// The ClusterMeshBinding that an object relies on.
#[derive(Serialize, Deserialize, JsonSchema, Debug, Clone, PartialEq, Eq, Default)]
pub struct MeshRef {
    /// The name of a ClusterMeshBinding in the namespace of this object.
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

/// Names of clusters, as many as one mesh can hold.
fn refs(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "maxItems": MOST_CLUSTERS, "items": { "type": "string", "maxLength": 253 } })
}

fn texts(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "maxProperties": 64, "additionalProperties": { "type": "string", "maxLength": 1024 } })
}

/// The most that Cilium connects to one cluster, and itself.
pub const MOST_CLUSTERS: usize = 512;
