//! Kubernetes objects of a target cluster, reduced to the fields that are read.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::core::{ClusterResourceScope, NamespaceResourceScope};
use serde::Deserialize;

use crate::lean::{self, null_is_default, served};

/// A DaemonSet, e.g. the Cilium agents.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct DaemonSet {
    /// Object metadata without managedFields.
    #[serde(default, deserialize_with = "lean::meta")]
    pub metadata: ObjectMeta,
    /// Pod template.
    #[serde(default, deserialize_with = "null_is_default")]
    pub spec: WorkloadSpec,
    /// Pod counts.
    #[serde(default, deserialize_with = "null_is_default")]
    pub status: DaemonSetStatus,
}

/// Pod counts of a DaemonSet.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonSetStatus {
    /// Number of nodes with a ready pod.
    pub number_ready: i64,
    /// Number of nodes that should run a pod.
    pub desired_number_scheduled: i64,
}

/// A Deployment: clustermesh-apiserver, hubble-relay or hubble-ui.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct Deployment {
    /// Object metadata without managedFields.
    #[serde(default, deserialize_with = "lean::meta")]
    pub metadata: ObjectMeta,
    /// Pod template.
    #[serde(default, deserialize_with = "null_is_default")]
    pub spec: WorkloadSpec,
    /// Pod counts.
    #[serde(default, deserialize_with = "null_is_default")]
    pub status: DeploymentStatus,
}

/// Pod counts of a Deployment.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentStatus {
    /// Number of available pods.
    pub available_replicas: i64,
}

/// Spec of a DaemonSet or Deployment.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct WorkloadSpec {
    /// Pod template.
    #[serde(deserialize_with = "null_is_default")]
    pub template: PodTemplate,
}

/// Pod template of a workload.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct PodTemplate {
    /// Spec of its pods.
    #[serde(deserialize_with = "null_is_default")]
    pub spec: PodSpec,
}

/// Spec of a pod.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Containers without init containers.
    #[serde(deserialize_with = "null_is_default")]
    pub containers: Vec<Container>,
    /// Additional entries of /etc/hosts.
    #[serde(deserialize_with = "null_is_default")]
    pub host_aliases: Vec<HostAlias>,
    /// All volumes.
    #[serde(deserialize_with = "null_is_default")]
    pub volumes: Vec<Volume>,
}

/// A container of a pod.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct Container {
    /// Name of the container.
    pub name: String,
    /// Image reference.
    pub image: String,
    /// Arguments of the command.
    #[serde(deserialize_with = "null_is_default")]
    pub args: Vec<String>,
}

/// An entry of /etc/hosts.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct HostAlias {
    /// Host names of the entry.
    #[serde(deserialize_with = "null_is_default")]
    pub hostnames: Vec<String>,
}

/// A volume of a pod.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Volume {
    /// Set if the volume is projected.
    pub projected: Option<Projected>,
    /// Set if the volume is a ConfigMap.
    pub config_map: Option<VolumeConfigMap>,
}

/// ConfigMap of a volume.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct VolumeConfigMap {
    /// Name of the ConfigMap.
    pub name: String,
    /// True if pods start without the ConfigMap.
    pub optional: Option<bool>,
}

/// A projected volume.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct Projected {
    /// Secrets and ConfigMaps of the volume.
    #[serde(deserialize_with = "null_is_default")]
    pub sources: Vec<ProjectedSource>,
}

/// A source of a projected volume.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct ProjectedSource {
    /// Set if the source is a Secret.
    pub secret: Option<ProjectedItems>,
    /// Set if the source is a ConfigMap.
    pub config_map: Option<ProjectedItems>,
}

/// Selected keys of a Secret or ConfigMap.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct ProjectedItems {
    /// One item per key.
    #[serde(deserialize_with = "null_is_default")]
    pub items: Vec<ProjectedItem>,
}

/// A key that is projected to a file.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct ProjectedItem {
    /// Relative path of the file.
    pub path: String,
}

/// A pod, reduced to its start time.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct Pod {
    /// Object metadata without managedFields.
    #[serde(default, deserialize_with = "lean::meta")]
    pub metadata: ObjectMeta,
    /// Observed state.
    #[serde(default, deserialize_with = "null_is_default")]
    pub status: PodStatus,
}

/// Observed state of a pod.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// Time when the kubelet accepted the pod.
    pub start_time: Option<Time>,
}

/// A ConfigMap with managedFields, which show the keys that are managed by others.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct ConfigMap {
    /// Object metadata with managedFields.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Data by key.
    #[serde(default, deserialize_with = "null_is_default")]
    pub data: BTreeMap<String, String>,
}

/// A Secret with managedFields. Debug output omits its values.
#[derive(Deserialize, Clone, PartialEq, Default)]
pub struct Secret {
    /// Object metadata with managedFields.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Data by key.
    #[serde(default, deserialize_with = "null_is_default")]
    pub data: BTreeMap<String, ByteString>,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secret")
            .field("name", &self.metadata.name)
            .field("keys", &self.data.keys())
            .finish_non_exhaustive()
    }
}

/// A Service with managedFields.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct Service {
    /// Object metadata with managedFields.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Type and ports.
    #[serde(default, deserialize_with = "null_is_default")]
    pub spec: ServiceSpec,
    /// Addresses of the load balancer.
    #[serde(default, deserialize_with = "null_is_default")]
    pub status: ServiceStatus,
}

/// Spec of a Service.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct ServiceSpec {
    /// Type, e.g. `ClusterIP` or `LoadBalancer`.
    #[serde(rename = "type")]
    pub kind: String,
    /// All ports.
    #[serde(deserialize_with = "null_is_default")]
    pub ports: Vec<ServicePort>,
}

/// A port of a Service.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    /// Name of the port.
    pub name: String,
    /// Port of the Service.
    pub port: i64,
    /// Port on every node; 0 if there is none.
    pub node_port: i64,
}

/// Observed state of a Service.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    /// State of the load balancer.
    #[serde(deserialize_with = "null_is_default")]
    pub load_balancer: LoadBalancer,
}

/// State of a load balancer.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct LoadBalancer {
    /// Addresses of the load balancer.
    #[serde(deserialize_with = "null_is_default")]
    pub ingress: Vec<Ingress>,
}

/// An address of a load balancer.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct Ingress {
    /// IP address, if it has one.
    pub ip: Option<String>,
    /// Host name, if it has one.
    pub hostname: Option<String>,
}

/// An EndpointSlice: some or all endpoints of a Service.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct EndpointSlice {
    /// Object metadata without managedFields.
    #[serde(default, deserialize_with = "lean::meta")]
    pub metadata: ObjectMeta,
    /// Endpoints of the slice.
    #[serde(default, deserialize_with = "null_is_default")]
    pub endpoints: Vec<Endpoint>,
}

/// An endpoint of a Service.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Endpoint {
    /// Addresses of the endpoint.
    #[serde(deserialize_with = "null_is_default")]
    pub addresses: Vec<String>,
    /// Readiness of the endpoint.
    #[serde(deserialize_with = "null_is_default")]
    pub conditions: EndpointConditions,
    /// Object behind the endpoint, usually a pod.
    pub target_ref: Option<TargetRef>,
}

/// Conditions of an endpoint.
#[derive(Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
#[serde(default)]
pub struct EndpointConditions {
    /// True if the endpoint accepts traffic; unset counts as true.
    pub ready: Option<bool>,
}

/// Reference to the object behind an endpoint.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct TargetRef {
    /// UID of the object.
    pub uid: Option<String>,
}

/// A Namespace.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct Namespace {
    /// Object metadata without managedFields.
    #[serde(default, deserialize_with = "lean::meta")]
    pub metadata: ObjectMeta,
}

served!(
    DaemonSet,
    NamespaceResourceScope,
    "apps",
    "v1",
    "DaemonSet",
    "daemonsets"
);
served!(
    Deployment,
    NamespaceResourceScope,
    "apps",
    "v1",
    "Deployment",
    "deployments"
);
served!(Pod, NamespaceResourceScope, "", "v1", "Pod", "pods");
served!(
    ConfigMap,
    NamespaceResourceScope,
    "",
    "v1",
    "ConfigMap",
    "configmaps"
);
served!(
    Secret,
    NamespaceResourceScope,
    "",
    "v1",
    "Secret",
    "secrets"
);
served!(
    Service,
    NamespaceResourceScope,
    "",
    "v1",
    "Service",
    "services"
);
served!(
    EndpointSlice,
    NamespaceResourceScope,
    "discovery.k8s.io",
    "v1",
    "EndpointSlice",
    "endpointslices"
);
served!(
    Namespace,
    ClusterResourceScope,
    "",
    "v1",
    "Namespace",
    "namespaces"
);
