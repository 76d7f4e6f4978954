//! A Kubernetes `Node`, as far as it is read here: real ones carry lists of
//! images and much else that would cost memory at every heartbeat.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::ClusterResourceScope;
use serde::Deserialize;

use crate::lean;

#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct Node {
    #[serde(default, deserialize_with = "lean::meta")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "lean::null_is_default")]
    pub spec: NodeSpec,
    #[serde(default, deserialize_with = "lean::null_is_default")]
    pub status: NodeStatus,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeSpec {
    #[serde(rename = "podCIDR", default, deserialize_with = "lean::null_is_default")]
    pub pod_cidr: String,
    #[serde(rename = "podCIDRs", default, deserialize_with = "lean::null_is_default")]
    pub pod_cidrs: Vec<String>,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeStatus {
    #[serde(default, deserialize_with = "lean::null_is_default")]
    pub addresses: Vec<NodeAddress>,
    #[serde(default, deserialize_with = "lean::null_is_default")]
    pub conditions: Vec<NodeCondition>,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct NodeAddress {
    #[serde(rename = "type")]
    pub kind: String,
    pub address: String,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct NodeCondition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
}

lean::served!(Node, ClusterResourceScope, "", "v1", "Node", "nodes");
