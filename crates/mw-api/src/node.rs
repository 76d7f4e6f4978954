//! A Kubernetes `Node`, reduced to the fields that are read. Image lists and other
//! large fields would cost memory at every heartbeat.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::ClusterResourceScope;
use serde::Deserialize;

use crate::lean;

/// A Kubernetes Node.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct Node {
    /// Object metadata without managedFields.
    #[serde(default, deserialize_with = "lean::meta")]
    pub metadata: ObjectMeta,
    /// Pod CIDRs.
    #[serde(default, deserialize_with = "lean::null_is_default")]
    pub spec: NodeSpec,
    /// Addresses and conditions.
    #[serde(default, deserialize_with = "lean::null_is_default")]
    pub status: NodeStatus,
}

/// Pod CIDRs of a node.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeSpec {
    /// `spec.podCIDR`; empty if unset.
    #[serde(
        rename = "podCIDR",
        default,
        deserialize_with = "lean::null_is_default"
    )]
    pub pod_cidr: String,
    /// `spec.podCIDRs`, the first of which is `podCIDR`.
    #[serde(
        rename = "podCIDRs",
        default,
        deserialize_with = "lean::null_is_default"
    )]
    pub pod_cidrs: Vec<String>,
}

/// Addresses and conditions of a node.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeStatus {
    /// All addresses, of any type.
    #[serde(default, deserialize_with = "lean::null_is_default")]
    pub addresses: Vec<NodeAddress>,
    /// All conditions, of any type.
    #[serde(default, deserialize_with = "lean::null_is_default")]
    pub conditions: Vec<NodeCondition>,
}

/// An address of a node.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct NodeAddress {
    /// Type of the address, e.g. `InternalIP` or `ExternalIP`.
    #[serde(rename = "type")]
    pub kind: String,
    /// IP address or host name.
    pub address: String,
}

/// A condition of a node.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct NodeCondition {
    /// Type of the condition, e.g. `Ready`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
}

impl Node {
    pub(crate) fn addresses(&self, kind: &str) -> Vec<String> {
        self.status
            .addresses
            .iter()
            .filter(|address| address.kind == kind)
            .map(|address| address.address.clone())
            .collect()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.status
            .conditions
            .iter()
            .any(|condition| condition.kind == "Ready" && condition.status == "True")
    }
}

lean::served!(Node, ClusterResourceScope, "", "v1", "Node", "nodes");
