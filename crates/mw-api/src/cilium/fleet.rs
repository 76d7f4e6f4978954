//! Cluster inventory: KubernetesClusters of tenants and Clusters of the management
//! plane. Both belong to other controllers and are only read.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::NamespaceResourceScope;
use serde::Deserialize;

use crate::lean::{self, null_is_default, served};

/// Annotation of a KubernetesCluster with the ID of the load balancer of its
/// clustermesh-apiserver.
const ANNOTATION_ELB_ID: &str = "networking.edge-portal.eu/elb-id";
/// Name of the capability that reports the state of Cilium.
const CAPABILITY_CILIUM: &str = "cilium-cni";

/// A cluster as seen by a tenant.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct KubernetesCluster {
    /// Object metadata without managedFields.
    #[serde(default, deserialize_with = "lean::meta")]
    pub metadata: ObjectMeta,
    /// Observed state.
    #[serde(default, deserialize_with = "null_is_default")]
    pub status: KubernetesClusterStatus,
}

/// Observed state of a KubernetesCluster.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct KubernetesClusterStatus {
    /// Phase; `Ready` if the cluster can be used.
    pub phase: Option<String>,
}

/// A cluster as seen by the management plane. Also reads Cluster API's Cluster, which
/// has the same form of conditions.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct Cluster {
    /// Object metadata without managedFields.
    #[serde(default, deserialize_with = "lean::meta")]
    pub metadata: ObjectMeta,
    /// Observed state.
    #[serde(default, deserialize_with = "null_is_default")]
    pub status: ClusterStatus,
}

/// Observed state of a Cluster.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterStatus {
    /// All conditions, of any type.
    #[serde(deserialize_with = "null_is_default")]
    pub conditions: Vec<ClusterCondition>,
    /// Secret with the kubeconfig of the cluster.
    pub kubeconfig_secret_ref: Option<KubeconfigRef>,
    /// Capabilities of the cluster, e.g. its CNI.
    #[serde(deserialize_with = "null_is_default")]
    pub capabilities: Vec<Capability>,
}

/// A condition of a Cluster.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct ClusterCondition {
    /// Type of the condition, e.g. `Ready`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
}

/// Reference to a Secret with a kubeconfig.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct KubeconfigRef {
    /// Name of the Secret.
    pub name: String,
    /// Key in the Secret. If unset, `kubeconfig` and `value` are tried in this order.
    pub key: Option<String>,
}

/// A capability of a cluster.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Capability {
    /// Name of the capability, e.g. `cilium-cni`.
    pub name: String,
    /// Properties of the capability, e.g. its `status`.
    #[serde(deserialize_with = "null_is_default")]
    pub details: BTreeMap<String, String>,
    /// Time of the last change, as written by the management plane.
    pub last_transition_time: Option<String>,
}

impl KubernetesCluster {
    /// Reports whether the cluster can be used.
    pub fn is_ready(&self) -> bool {
        self.status.phase.as_deref() == Some("Ready")
    }

    /// Returns the ID of the load balancer of the clustermesh-apiserver.
    pub fn elb_id(&self) -> Option<&str> {
        self.metadata
            .annotations
            .as_ref()?
            .get(ANNOTATION_ELB_ID)
            .map(String::as_str)
    }
}

impl Cluster {
    /// Reports whether the condition of this type is `True`; `None` if there is no such
    /// condition.
    pub fn condition(&self, kind: &str) -> Option<bool> {
        self.status
            .conditions
            .iter()
            .find(|condition| condition.kind == kind)
            .map(|condition| condition.status == "True")
    }

    /// Returns the state of Cilium as recorded by the management plane, without
    /// contacting the cluster.
    pub fn cilium(&self) -> Option<&Capability> {
        self.status
            .capabilities
            .iter()
            .find(|capability| capability.name == CAPABILITY_CILIUM)
    }
}

impl Capability {
    /// Returns the detail `status`.
    pub fn state(&self) -> Option<&str> {
        self.details.get("status").map(String::as_str)
    }

    /// Reports whether Cilium is recorded as missing or broken.
    pub fn is_missing(&self) -> bool {
        matches!(self.state(), Some("not-installed" | "error"))
    }
}

served!(
    KubernetesCluster,
    NamespaceResourceScope,
    "platform.edge-portal.eu",
    "v1alpha1",
    "KubernetesCluster",
    "kubernetesclusters"
);

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_cluster_is_read_as_the_management_plane_writes_it() {
        let cluster: Cluster = serde_json::from_value(json!({
            "metadata": { "name": "ffm-1" },
            "spec": { "provider": "OTC" },
            "status": {
                "conditions": [{ "type": "Ready", "status": "True", "reason": "x" }],
                "kubeconfigSecretRef": { "name": "s" },
                "capabilities": [{ "name": "cilium-cni", "details": { "status": "not-installed" }, "lastTransitionTime": "t" }],
            },
        }))
        .unwrap();
        assert_eq!(
            (cluster.condition("Ready"), cluster.condition("Available")),
            (Some(true), None)
        );
        assert!(cluster.cilium().unwrap().is_missing());
        assert_eq!(cluster.status.kubeconfig_secret_ref.unwrap().key, None);
        let bare: Cluster = serde_json::from_value(
            json!({ "status": { "conditions": null, "capabilities": null } }),
        )
        .unwrap();
        assert_eq!((bare.condition("Ready"), bare.cilium()), (None, None));
    }

    #[test]
    fn a_tenants_cluster_is_ready_by_its_phase() {
        let read = |value| serde_json::from_value::<KubernetesCluster>(value).unwrap();
        let ready = read(
            json!({ "metadata": { "annotations": { ANNOTATION_ELB_ID: "e" } }, "status": { "phase": "Ready" } }),
        );
        assert_eq!((ready.is_ready(), ready.elb_id()), (true, Some("e")));
        let new = read(json!({ "status": null }));
        assert_eq!((new.is_ready(), new.elb_id()), (false, None));
    }
}
