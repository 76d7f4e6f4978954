//! A Kubernetes `Node`, as far as it is read here: real ones carry lists of
//! images and much else that would cost memory at every heartbeat.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
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

impl Resource for Node {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind(_: &()) -> Cow<'_, str> {
        "Node".into()
    }

    fn group(_: &()) -> Cow<'_, str> {
        "".into()
    }

    fn version(_: &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural(_: &()) -> Cow<'_, str> {
        "nodes".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
