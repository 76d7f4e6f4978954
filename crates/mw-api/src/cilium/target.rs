//! The objects of a target cluster, as far as they are read here. Real ones
//! carry much else.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::core::{ClusterResourceScope, NamespaceResourceScope};
use serde::Deserialize;

use crate::lean::{self, null_is_default, served};

/// Cilium's agents are such a one.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct DaemonSet {
    #[serde(default, deserialize_with = "lean::meta")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    pub spec: WorkloadSpec,
    #[serde(default, deserialize_with = "null_is_default")]
    pub status: DaemonSetStatus,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonSetStatus {
    pub number_ready: i64,
    pub desired_number_scheduled: i64,
}

/// clustermesh-apiserver, hubble-relay and hubble-ui are such.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct Deployment {
    #[serde(default, deserialize_with = "lean::meta")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    pub spec: WorkloadSpec,
    #[serde(default, deserialize_with = "null_is_default")]
    pub status: DeploymentStatus,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentStatus {
    pub available_replicas: i64,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct WorkloadSpec {
    #[serde(deserialize_with = "null_is_default")]
    pub template: PodTemplate,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct PodTemplate {
    #[serde(deserialize_with = "null_is_default")]
    pub spec: PodSpec,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    #[serde(deserialize_with = "null_is_default")]
    pub containers: Vec<Container>,
    #[serde(deserialize_with = "null_is_default")]
    pub host_aliases: Vec<HostAlias>,
    #[serde(deserialize_with = "null_is_default")]
    pub volumes: Vec<Volume>,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct Container {
    pub name: String,
    pub image: String,
    #[serde(deserialize_with = "null_is_default")]
    pub args: Vec<String>,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct HostAlias {
    #[serde(deserialize_with = "null_is_default")]
    pub hostnames: Vec<String>,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Volume {
    pub projected: Option<Projected>,
    pub config_map: Option<VolumeConfigMap>,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct VolumeConfigMap {
    pub name: String,
    /// Whether pods start without it.
    pub optional: Option<bool>,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct Projected {
    #[serde(deserialize_with = "null_is_default")]
    pub sources: Vec<ProjectedSource>,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct ProjectedSource {
    pub secret: Option<ProjectedItems>,
    pub config_map: Option<ProjectedItems>,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct ProjectedItems {
    #[serde(deserialize_with = "null_is_default")]
    pub items: Vec<ProjectedItem>,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct ProjectedItem {
    pub path: String,
}

/// A pod: since when it runs.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct Pod {
    #[serde(default, deserialize_with = "lean::meta")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    pub status: PodStatus,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    pub start_time: Option<Time>,
}

/// With its field managers: what somebody else set is not ours to change.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct ConfigMap {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    pub data: BTreeMap<String, String>,
}

/// With its field managers. Its contents are never shown.
#[derive(Deserialize, Clone, PartialEq, Default)]
pub struct Secret {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    pub data: BTreeMap<String, ByteString>,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secret").field("name", &self.metadata.name).field("keys", &self.data.keys()).finish_non_exhaustive()
    }
}

/// With its field managers.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct Service {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    pub spec: ServiceSpec,
    #[serde(default, deserialize_with = "null_is_default")]
    pub status: ServiceStatus,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct ServiceSpec {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(deserialize_with = "null_is_default")]
    pub ports: Vec<ServicePort>,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    pub name: String,
    pub port: i64,
    pub node_port: i64,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    #[serde(deserialize_with = "null_is_default")]
    pub load_balancer: LoadBalancer,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct LoadBalancer {
    #[serde(deserialize_with = "null_is_default")]
    pub ingress: Vec<Ingress>,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct Ingress {
    pub ip: Option<String>,
    pub hostname: Option<String>,
}

/// The endpoints of a Service, or some of them.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct EndpointSlice {
    #[serde(default, deserialize_with = "lean::meta")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    pub endpoints: Vec<Endpoint>,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Endpoint {
    #[serde(deserialize_with = "null_is_default")]
    pub addresses: Vec<String>,
    #[serde(deserialize_with = "null_is_default")]
    pub conditions: EndpointConditions,
    pub target_ref: Option<TargetRef>,
}

#[derive(Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
#[serde(default)]
pub struct EndpointConditions {
    pub ready: Option<bool>,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct TargetRef {
    pub uid: Option<String>,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct Namespace {
    #[serde(default, deserialize_with = "lean::meta")]
    pub metadata: ObjectMeta,
}

served!(DaemonSet, NamespaceResourceScope, "apps", "v1", "DaemonSet", "daemonsets");
served!(Deployment, NamespaceResourceScope, "apps", "v1", "Deployment", "deployments");
served!(Pod, NamespaceResourceScope, "", "v1", "Pod", "pods");
served!(ConfigMap, NamespaceResourceScope, "", "v1", "ConfigMap", "configmaps");
served!(Secret, NamespaceResourceScope, "", "v1", "Secret", "secrets");
served!(Service, NamespaceResourceScope, "", "v1", "Service", "services");
served!(EndpointSlice, NamespaceResourceScope, "discovery.k8s.io", "v1", "EndpointSlice", "endpointslices");
served!(Namespace, ClusterResourceScope, "", "v1", "Namespace", "namespaces");
