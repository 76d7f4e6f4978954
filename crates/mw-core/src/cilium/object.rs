//! The three kinds as they were declared: texts as they stand in the object,
//! and what the provider knows of the clusters they name.

use std::collections::BTreeMap;
use std::fmt;

use crate::names::{ClusterId, Workspace};
use crate::time::Timestamp;

/// One object of one of the three kinds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectId {
    pub workspace: Workspace,
    pub namespace: String,
    pub name: String,
}

impl ObjectId {
    pub fn new(workspace: &str, namespace: &str, name: &str) -> Self {
        ObjectId { workspace: Workspace::from(workspace), namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// The object of this name next to this one.
    pub fn neighbour(&self, name: &str) -> ObjectId {
        ObjectId { name: name.to_owned(), ..self.clone() }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.workspace, self.namespace, self.name)
    }
}

/// What all three kinds have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Common {
    pub id: ObjectId,
    pub created: Option<Timestamp>,
    /// Since when it is being deleted.
    pub deleting: Option<Timestamp>,
    /// What each ref leads to that the object names or has touched before.
    pub refs: BTreeMap<String, Resolution>,
    /// The clusters to which refs of its spec led that can't be resolved at
    /// the moment. What the object wants there stays.
    pub lost: BTreeMap<String, ClusterId>,
    /// The refs on which something of this object may stand.
    pub touched: Vec<String>,
}

/// Where a ref leads, as far as credentials are concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    /// To this cluster; whether it answers is the cluster's to say.
    Cluster(ClusterId),
    /// The cluster is not Ready, its object is missing or may not be read.
    Pending(String),
    /// The Cluster does not name its owner; the text has the command that does.
    OwnerMissing(String),
    /// The Cluster names other owners. To this object it does not exist, and
    /// the keys that lead to it go.
    Revoked(String),
    /// There are credentials and they are no good, or Cilium is known not to
    /// be there: nothing but a person's doing mends it.
    Refused(Refusal),
    /// No answer yet, so it is not known which cluster it is.
    Unreachable(String),
    /// Cluster, KubernetesCluster or Secret are gone: there is nothing to
    /// clean up with.
    Gone(String),
}

/// What makes a cluster unusable before it is asked anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The Secret or its key is missing, it is no kubeconfig, or one that is
    /// not allowed.
    Kubeconfig(String),
    /// 401 or 403, with verb and resource.
    Forbidden(String),
    /// The capability cilium-cni says that Cilium is not there.
    Capability { status: String, checked: Option<String> },
    /// An older object of another owner uses the same cluster.
    Shared,
}

/// A ClusterMeshBinding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    pub common: Common,
    pub spec: BindingSpec,
    /// It was Connected or Degraded before, so this is not its first bring-up.
    pub was_up: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BindingSpec {
    pub refs: Vec<String>,
    pub service_type: Option<String>,
    pub kvstoremesh: bool,
    pub hubble: bool,
    pub hubble_ui: bool,
    /// By ref: the load balancer that its KubernetesCluster names.
    pub elb_ids: BTreeMap<String, String>,
}

/// A GlobalService.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalService {
    pub common: Common,
    pub spec: ServiceSpec,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServiceSpec {
    pub mesh: String,
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub labels: Option<BTreeMap<String, String>>,
    pub targets: Vec<String>,
    pub annotations: BTreeMap<String, String>,
    pub shared: Option<bool>,
    pub affinity: Option<String>,
}

/// A ConnectivityIntent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intent {
    pub common: Common,
    pub spec: IntentSpec,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IntentSpec {
    pub mesh: String,
    pub action: Option<String>,
    pub mode: Option<String>,
    pub source: PeerSpec,
    pub destination: PeerSpec,
    pub ports: Vec<PortSpec>,
    pub probe: bool,
    pub probe_interval: Option<i64>,
    pub isolate: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerSpec {
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub selector: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PortSpec {
    pub protocol: Option<String>,
    pub port: Option<i64>,
    pub end_port: Option<i64>,
}

impl Common {
    /// The older object wins where two want different things.
    pub fn age(&self) -> (Timestamp, &ObjectId) {
        (self.created.unwrap_or(Timestamp(i64::MAX)), &self.id)
    }

    /// The cluster behind a ref, where it is known.
    pub fn cluster(&self, name: &str) -> Option<&ClusterId> {
        match self.refs.get(name) {
            Some(Resolution::Cluster(id)) => Some(id),
            _ => None,
        }
    }

    /// Whether a ref is known to lead to no cluster of this object.
    pub fn is_revoked(&self, name: &str) -> bool {
        matches!(self.refs.get(name), Some(Resolution::Revoked(_)))
    }

    /// All clusters that its refs lead to.
    pub fn clusters(&self) -> impl Iterator<Item = &ClusterId> {
        self.refs.keys().filter_map(|name| self.cluster(name))
    }

    /// The clusters on which something of this object may stand.
    pub fn touched_clusters(&self) -> impl Iterator<Item = &ClusterId> {
        self.touched.iter().filter_map(|name| self.cluster(name))
    }
}
