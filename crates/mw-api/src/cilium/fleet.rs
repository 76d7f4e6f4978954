//! Where clusters are kept: the KubernetesCluster of a tenant and the Cluster
//! of the management plane. Neither is ours; both are only read.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::NamespaceResourceScope;
use serde::Deserialize;

use crate::lean::{self, null_is_default, served};

/// Annotation of a KubernetesCluster: the load balancer of its
/// clustermesh-apiserver.
pub const ANNOTATION_ELB_ID: &str = "networking.edge-portal.eu/elb-id";
/// The capability that says whether Cilium is there.
pub const CAPABILITY_CILIUM: &str = "cilium-cni";

/// A cluster as a tenant sees it.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct KubernetesCluster {
    #[serde(default, deserialize_with = "lean::meta")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    pub status: KubernetesClusterStatus,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct KubernetesClusterStatus {
    pub phase: Option<String>,
}

/// A cluster as the management plane keeps it; also Cluster API's, whose
/// conditions have the same form.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct Cluster {
    #[serde(default, deserialize_with = "lean::meta")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    pub status: ClusterStatus,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterStatus {
    #[serde(deserialize_with = "null_is_default")]
    pub conditions: Vec<ClusterCondition>,
    pub kubeconfig_secret_ref: Option<KubeconfigRef>,
    #[serde(deserialize_with = "null_is_default")]
    pub capabilities: Vec<Capability>,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct ClusterCondition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct KubeconfigRef {
    pub name: String,
    pub key: Option<String>,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Capability {
    pub name: String,
    #[serde(deserialize_with = "null_is_default")]
    pub details: BTreeMap<String, String>,
    pub last_transition_time: Option<String>,
}

impl KubernetesCluster {
    pub fn is_ready(&self) -> bool {
        self.status.phase.as_deref() == Some("Ready")
    }

    pub fn elb_id(&self) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(ANNOTATION_ELB_ID).map(String::as_str)
    }
}

impl Cluster {
    /// What a condition says, where there is one of this type.
    pub fn condition(&self, kind: &str) -> Option<bool> {
        self.status.conditions.iter().find(|condition| condition.kind == kind).map(|condition| condition.status == "True")
    }

    /// What is known of Cilium before anybody asks the cluster.
    pub fn cilium(&self) -> Option<&Capability> {
        self.status.capabilities.iter().find(|capability| capability.name == CAPABILITY_CILIUM)
    }
}

impl Capability {
    pub fn state(&self) -> Option<&str> {
        self.details.get("status").map(String::as_str)
    }

    /// Whether it says that Cilium is not there.
    pub fn is_missing(&self) -> bool {
        matches!(self.state(), Some("not-installed" | "error"))
    }
}

served!(KubernetesCluster, NamespaceResourceScope, "platform.edge-portal.eu", "v1alpha1", "KubernetesCluster", "kubernetesclusters");

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
        assert_eq!((cluster.condition("Ready"), cluster.condition("Available")), (Some(true), None));
        assert!(cluster.cilium().unwrap().is_missing());
        assert_eq!(cluster.status.kubeconfig_secret_ref.unwrap().key, None);
        let bare: Cluster = serde_json::from_value(json!({ "status": { "conditions": null, "capabilities": null } })).unwrap();
        assert_eq!((bare.condition("Ready"), bare.cilium()), (None, None));
    }

    #[test]
    fn a_tenants_cluster_is_ready_by_its_phase() {
        let read = |value| serde_json::from_value::<KubernetesCluster>(value).unwrap();
        let ready = read(json!({ "metadata": { "annotations": { ANNOTATION_ELB_ID: "e" } }, "status": { "phase": "Ready" } }));
        assert_eq!((ready.is_ready(), ready.elb_id()), (true, Some("e")));
        let new = read(json!({ "status": null }));
        assert_eq!((new.is_ready(), new.elb_id()), (false, None));
    }
}
