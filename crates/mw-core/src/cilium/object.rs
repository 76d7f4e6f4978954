//! The three kinds as declared, with raw values, and what the provider knows
//! about the clusters they name.

use std::collections::BTreeMap;
use std::fmt;

use crate::names::{ClusterId, Workspace};
use crate::time::Timestamp;

/// One object of one of the three kinds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectId {
    /// The tenant.
    pub workspace: Workspace,
    /// The namespace in the workspace or on the hub.
    pub namespace: String,
    /// The name in that namespace.
    pub name: String,
}

impl ObjectId {
    /// Combines the three parts, which are not validated.
    pub fn new(workspace: &str, namespace: &str, name: &str) -> Self {
        ObjectId {
            workspace: Workspace::from(workspace),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// The object of this name in the same workspace and namespace.
    pub fn neighbour(&self, name: &str) -> ObjectId {
        ObjectId {
            name: name.to_owned(),
            ..self.clone()
        }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.workspace, self.namespace, self.name)
    }
}

/// Fields that all three kinds share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Common {
    /// The object.
    pub id: ObjectId,
    /// The creation time; `None` counts as the youngest.
    pub created: Option<Timestamp>,
    /// The time of its deletion.
    pub deleting: Option<Timestamp>,
    /// The resolution of each ref that the object names or has recorded.
    pub refs: BTreeMap<String, Resolution>,
    /// The clusters to which refs of its spec led that can't be resolved now.
    /// Everything the object wants there is kept.
    pub lost: BTreeMap<String, ClusterId>,
    /// The UIDs of the clusters to which such refs led, as far as this process
    /// learnt them. They outlive the credentials, and `lost`.
    pub lost_uids: BTreeMap<String, String>,
    /// The refs to which this object may have written.
    pub touched: Vec<String>,
}

/// The cluster that a ref leads to, as far as credentials are concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    /// This cluster; its reachability is part of the cluster's state.
    Cluster(ClusterId),
    /// The cluster is not Ready, its object does not exist or may not be read.
    Pending(String),
    /// The Cluster does not name its owner; the text has the command that sets
    /// it.
    OwnerMissing(String),
    /// The Cluster names other owners. For this object it does not exist, and
    /// the keys that lead to it are removed.
    Revoked(String),
    /// The credentials are unusable, or Cilium is known not to be installed:
    /// the user must act.
    Refused(Refusal),
    /// No answer yet, so it is not known which cluster it is.
    Unreachable(String),
    /// Cluster, KubernetesCluster or Secret do not exist: cleanup is
    /// impossible.
    Gone(String),
}

/// The reason why a cluster is unusable before the first request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The Secret or its key is missing, or it is not a kubeconfig or not an
    /// allowed one.
    Kubeconfig(String),
    /// 401 or 403, with verb and resource.
    Forbidden(String),
    /// The capability cilium-cni says that Cilium is not installed.
    Capability {
        /// Status of the capability, as published by the management plane.
        status: String,
        /// The time of that check, as published.
        checked: Option<String>,
    },
    /// An older object of another owner uses the same cluster.
    Shared,
}

/// A ClusterMeshBinding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// Fields of all kinds.
    pub common: Common,
    /// The spec as declared.
    pub spec: BindingSpec,
    /// True if it was Connected or Degraded before, so this is not its first
    /// bring-up.
    pub was_up: bool,
}

/// The spec of a ClusterMeshBinding as declared.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BindingSpec {
    /// clusterRefs: the names of the member clusters.
    pub refs: Vec<String>,
    /// The wanted type of the Service clustermesh-apiserver; `None` accepts
    /// any.
    pub service_type: Option<String>,
    /// True if KVStoreMesh is requested, which is only reported.
    pub kvstoremesh: bool,
    /// True if Hubble Relay is requested, which is only reported.
    pub hubble: bool,
    /// True if Hubble UI is requested, which is only reported.
    pub hubble_ui: bool,
    /// By ref: the load balancer id that its KubernetesCluster names.
    pub elb_ids: BTreeMap<String, String>,
}

/// A GlobalService.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalService {
    /// Fields of all kinds.
    pub common: Common,
    /// The spec as declared.
    pub spec: ServiceSpec,
}

/// The spec of a GlobalService as declared.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServiceSpec {
    /// meshRef: the name of a binding in the same namespace.
    pub mesh: String,
    /// The namespace of the Services; required.
    pub namespace: Option<String>,
    /// The Services' name; `None` if `labels` selects them.
    pub name: Option<String>,
    /// The labels that select Services; `None` if `name` does.
    pub labels: Option<BTreeMap<String, String>>,
    /// targetClusters: refs of the binding; empty for all of them.
    pub targets: Vec<String>,
    /// Annotations to set besides Cilium's own.
    pub annotations: BTreeMap<String, String>,
    /// Value of annotation service.cilium.io/shared, if set.
    pub shared: Option<bool>,
    /// Value of annotation service.cilium.io/affinity, if set.
    pub affinity: Option<String>,
}

/// A ConnectivityIntent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intent {
    /// Fields of all kinds.
    pub common: Common,
    /// The spec as declared.
    pub spec: IntentSpec,
}

/// The spec of a ConnectivityIntent as declared.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IntentSpec {
    /// meshRef: the name of a binding in the same namespace.
    pub mesh: String,
    /// Allow or Deny; required.
    pub action: Option<String>,
    /// Namespaced or Clusterwide; `None` for the former.
    pub mode: Option<String>,
    /// The pods that connect.
    pub source: PeerSpec,
    /// The pods that are connected to; they get the policy.
    pub destination: PeerSpec,
    /// The ports; empty for all of them.
    pub ports: Vec<PortSpec>,
    /// True if a probe is requested.
    pub probe: bool,
    /// Interval of the probe in seconds.
    pub probe_interval: Option<i64>,
    /// True or `None` if an Allow drops everything else.
    pub isolate: Option<bool>,
}

/// One side of a ConnectivityIntent as declared.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerSpec {
    /// The namespace of the pods; optional only in mode Clusterwide.
    pub namespace: Option<String>,
    /// Value of their label `app`, instead of `selector`.
    pub name: Option<String>,
    /// The labels that select them.
    pub selector: Option<BTreeMap<String, String>>,
}

/// A port or a range as declared.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PortSpec {
    /// TCP, UDP or SCTP; `None` for TCP.
    pub protocol: Option<String>,
    /// The port, or the first one of a range.
    pub port: Option<i64>,
    /// The last port of a range.
    pub end_port: Option<i64>,
}

impl Common {
    /// Sort key: the older object wins conflicts.
    pub fn age(&self) -> (Timestamp, &ObjectId) {
        (self.created.unwrap_or(Timestamp(i64::MAX)), &self.id)
    }

    /// The cluster that a ref leads to, if known.
    pub fn cluster(&self, name: &str) -> Option<&ClusterId> {
        match self.refs.get(name) {
            Some(Resolution::Cluster(id)) => Some(id),
            _ => None,
        }
    }

    /// Reports whether one of these refs can't be resolved and may lead to the
    /// cluster that reports a UID: it led there, or this object may have
    /// written through it to an unknown cluster.
    pub(super) fn may_have_led_to(&self, names: &[String], uid: &str) -> bool {
        let is_lost = |name: &&String| self.cluster(name).is_none() && !self.is_revoked(name);
        let led_there = |name: &String| {
            self.lost_uids
                .get(name)
                .map_or_else(|| self.touched.contains(name), |led| led == uid)
        };
        self.deleting.is_none() && names.iter().filter(is_lost).any(led_there)
    }

    /// Reports whether a ref is known to lead to no cluster of this object.
    pub fn is_revoked(&self, name: &str) -> bool {
        matches!(self.refs.get(name), Some(Resolution::Revoked(_)))
    }

    /// All clusters that its refs lead to.
    pub fn clusters(&self) -> impl Iterator<Item = &ClusterId> {
        self.refs.keys().filter_map(|name| self.cluster(name))
    }

    /// The clusters to which this object may have written.
    pub fn touched_clusters(&self) -> impl Iterator<Item = &ClusterId> {
        self.touched.iter().filter_map(|name| self.cluster(name))
    }
}
