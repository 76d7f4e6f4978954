//! The result of planning: the writes of every target, the dials, and the
//! phase, conditions and problems of each object.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::cilium::facts::{ClientFiles, ConnectionSecret, PolicyKey, ServiceName};
use crate::cilium::object::ObjectId;
use crate::cilium::peer_file::remote_of;
use crate::cilium::secret::SecretBytes;
use crate::cilium::version::Version;
use crate::names::{CiliumName, ClusterId};
use crate::precondition::Precondition;
use crate::problem::Problem;
use crate::time::Timestamp;

/// The plan of all objects, from [`plan`](crate::cilium::plan()).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// The writes in each cluster; one without writes is left out.
    pub targets: BTreeMap<ClusterId, TargetPlan>,
    /// The dials, with their material and the expected identity.
    pub dials: BTreeMap<Link, Dial>,
    /// The result for each ClusterMeshBinding.
    pub bindings: BTreeMap<ObjectId, BindingPlan>,
    /// The result for each GlobalService.
    pub services: BTreeMap<ObjectId, ServicePlan>,
    /// The result for each ConnectivityIntent.
    pub intents: BTreeMap<ObjectId, IntentPlan>,
    /// The time at which to replan although nothing changed.
    pub recheck_at: Option<Timestamp>,
}

/// `reader` connects to `remote`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    /// The cluster that dials and gets the keys.
    pub reader: ClusterId,
    /// The cluster whose clustermesh-apiserver is dialled.
    pub remote: ClusterId,
}

/// All writes in one cluster. Empty if everything is up to date.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TargetPlan {
    /// cluster-name and cluster-id.
    pub identity: Option<IdentityWrite>,
    /// The copy of another cluster's CA.
    pub ca: Option<CaCreate>,
    /// The id of the load balancer.
    pub elb: Option<ElbWrite>,
    /// The etcd users of its readers.
    pub users: Option<UsersWrite>,
    /// The keys of its remotes.
    pub secrets: BTreeMap<ConnectionSecret, SecretApply>,
    /// The annotations of global Services.
    pub services: BTreeMap<ServiceName, AnnotationApply>,
    /// The policies of ConnectivityIntents.
    pub policies: PolicyChanges,
}

/// Fields of the ConfigMap cilium-config that are not set yet: a patch with the
/// resourceVersion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityWrite {
    /// The resourceVersion that was planned from.
    pub resource_version: String,
    /// The name to set; `None` if it is already set.
    pub name: Option<CiliumName>,
    /// The id to set; `None` if it is already set.
    pub id: Option<u32>,
}

/// The Secret cilium-ca, to be created and never overwritten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaCreate {
    /// The cluster whose CA is copied.
    pub from: ClusterId,
    /// ca.crt.
    pub certificate: SecretBytes,
    /// ca.key.
    pub key: SecretBytes,
    /// Labels of the original that mark it as managed by Helm.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the original that mark it as managed by Helm.
    pub annotations: BTreeMap<String, String>,
}

/// kubernetes.io/elb.id on the Service clustermesh-apiserver if it is not set:
/// a patch with the resourceVersion. It is not removed on deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElbWrite {
    /// The resourceVersion that was planned from.
    pub resource_version: String,
    /// The id, as named by the KubernetesCluster.
    pub id: String,
}

/// users.yaml of the ConfigMap clustermesh-remote-users. Its text can't be
/// split into owned fields, so it is a patch with the resourceVersion, or an
/// apply that creates it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsersWrite {
    /// The observed ConfigMap; `None` to create it.
    pub on: Option<Precondition>,
    /// users.yaml after the write.
    pub text: String,
    /// The users that this write adds.
    pub added: BTreeSet<String>,
    /// The users that this write removes.
    pub removed: BTreeSet<String>,
}

/// A server-side apply of all our keys in one Secret.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SecretApply {
    /// The observed Secret; `None` to create it. An apply removes our
    /// keys that it leaves out, so it must not be based on an older one.
    pub on: Option<Precondition>,
    /// All keys that we own there from now on.
    pub data: BTreeMap<String, SecretBytes>,
    /// The keys that this apply adds.
    pub added: BTreeSet<String>,
    /// The keys whose values this apply changes.
    pub changed: BTreeSet<String>,
    /// The keys that this apply removes.
    pub removed: BTreeSet<String>,
}

impl SecretApply {
    /// Reports whether it removes all keys of a remote. Single keys change with the way
    /// to connect to it.
    pub fn disconnects(&self) -> bool {
        let remotes: BTreeSet<&str> = self.data.keys().map(|key| remote_of(key)).collect();
        self.removed
            .iter()
            .any(|key| !remotes.contains(remote_of(key)))
    }
}

/// A server-side apply of all our annotations on one Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnotationApply {
    /// The observed Service: an apply removes our annotations that it leaves
    /// out.
    pub on: Precondition,
    /// All annotations that we own there from now on.
    pub annotations: BTreeMap<String, String>,
    /// The annotations that this apply removes.
    pub removed: BTreeSet<String>,
}

/// Changes of policies in one cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PolicyChanges {
    /// Policies to create.
    pub create: BTreeMap<PolicyKey, WantedPolicy>,
    /// Policies to change.
    pub update: BTreeMap<PolicyKey, PolicyUpdate>,
    /// Policies to delete.
    pub delete: BTreeMap<PolicyKey, Precondition>,
}

/// A policy as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedPolicy {
    /// Namespace and name, which also decide the kind.
    pub key: PolicyKey,
    /// Labels that show the intent that it belongs to.
    pub labels: BTreeMap<String, String>,
    /// The spec of the policy.
    pub spec: Value,
}

/// A change of an existing policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyUpdate {
    /// The observed policy, on which the write is conditional.
    pub on: Precondition,
    /// The observed spec, so that a patch can remove unwanted fields.
    pub before: Value,
    /// The policy as wanted.
    pub after: WantedPolicy,
}

/// The target of a connection attempt. Equal fingerprints mean equal material.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dial {
    /// Identifies the material; evidence with another one is ignored.
    pub fingerprint: String,
    /// Addresses or one host name, all with the same port.
    pub hosts: Vec<String>,
    /// The port of all hosts.
    pub port: u16,
    /// The name for which the certificate must be valid, if it is not the host.
    pub server_name: Option<String>,
    /// The client files, and the CA to trust.
    pub files: ClientFiles,
    /// The name of the cluster-config to find there.
    pub cluster_name: CiliumName,
    /// The id to find in the cluster-config.
    pub cluster_id: u32,
}

/// A condition of an object, without its timestamps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// A type from [`condition::cilium::kind`](crate::condition::cilium::kind).
    pub kind: &'static str,
    /// The status.
    pub status: Status,
    /// A reason from
    /// [`condition::cilium::reason`](crate::condition::cilium::reason) or the
    /// name of a [`Reason`](crate::problem::Reason).
    pub reason: &'static str,
    /// Details for users; may be empty.
    pub message: String,
}

/// Status of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// The state that decides it is not known.
    Unknown,
}

impl Status {
    /// The text of the status.
    pub fn as_str(self) -> &'static str {
        match self {
            Status::True => "True",
            Status::False => "False",
            Status::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Status {
    fn from(is: bool) -> Self {
        if is { Status::True } else { Status::False }
    }
}

/// The phase of a ClusterMeshBinding, in the order of progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum BindingPhase {
    /// A requirement is missing.
    #[default]
    Pending,
    /// Links are coming up.
    Connecting,
    /// Every link is verified.
    Connected,
    /// Some links work and some do not.
    Degraded,
    /// No link works, and a person has to act.
    Error,
}

/// The phase of a GlobalService, in the order of progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum ServicePhase {
    /// A requirement is missing.
    #[default]
    Pending,
    /// A cluster has not been tried yet.
    Exporting,
    /// The Services are global in all clusters.
    Exported,
    /// They are global in some clusters only.
    Degraded,
    /// They are global in no cluster, and a person has to act.
    Error,
}

/// The phase of a ConnectivityIntent, in the order of progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum IntentPhase {
    /// A requirement is missing.
    #[default]
    Pending,
    /// A cluster has not been tried yet.
    Applying,
    /// The policy is in force in all clusters.
    Applied,
    /// It is in force in some clusters only.
    Degraded,
    /// It is in force in no cluster, and a person has to act.
    Error,
}

/// Fields that the results of all three kinds share.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObjectOutcome<Phase> {
    /// The phase to publish.
    pub phase: Phase,
    /// The conditions to publish; others of ours are removed.
    pub conditions: Vec<Condition>,
    /// All problems, for events and `doctor`.
    pub problems: Vec<Problem>,
    /// The refs to record on the object before anything is written for it.
    pub touches: BTreeSet<String>,
    /// Set only for an object that is being deleted.
    pub teardown: Option<Teardown>,
}

/// Cleanup progress of a deleted object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Teardown {
    /// The refs where something of it is left or may be left.
    pub waits_for: BTreeSet<String>,
    /// The refs that were given up, with the reason.
    pub left_behind: BTreeMap<String, String>,
}

impl Teardown {
    /// Reports whether the finalizer may be removed.
    pub fn is_done(&self) -> bool {
        self.waits_for.is_empty()
    }
}

/// The result for a ClusterMeshBinding.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BindingPlan {
    /// Results that all kinds have.
    pub outcome: ObjectOutcome<BindingPhase>,
    /// In the order of clusterRefs.
    pub rows: Vec<Row>,
    /// True if dials are unanswered: this status may change soon.
    pub awaits_dials: bool,
    /// The number of minor Cilium releases between its oldest and its newest
    /// cluster.
    pub skew: Option<u16>,
    /// The clusters that are too far behind the newest one, the oldest first.
    pub behind: Vec<Behind>,
}

/// A cluster whose Cilium has to be upgraded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Behind {
    /// The ref.
    pub cluster: String,
    /// Its version.
    pub runs: Version,
}

/// A cluster's row in the status.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Row {
    /// The ref.
    pub cluster: String,
    /// cluster-id; `None` while it is not known.
    pub id: Option<u32>,
    /// True if all its links are verified, in both directions.
    pub connected: bool,
    /// Number of nodes with a ready Cilium agent.
    pub ready_nodes: u32,
    /// Number of nodes that should run one.
    pub total_nodes: u32,
    /// All its problems, for users; `None` if it has none.
    pub message: Option<String>,
    /// The time of the oldest evidence for its links; `None` unless all of
    /// them are verified.
    pub last_verified: Option<Timestamp>,
}

/// The result for a GlobalService.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServicePlan {
    /// Results that all kinds have.
    pub outcome: ObjectOutcome<ServicePhase>,
    /// The refs where its Services are global.
    pub exported: Vec<String>,
    /// Number of endpoints in each cluster where it is known.
    pub endpoints: Vec<Endpoints>,
}

/// The endpoints of a global Service in one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoints {
    /// The ref.
    pub cluster: String,
    /// Number of ready endpoints, without those of other clusters.
    pub ready: usize,
}

/// The result for a ConnectivityIntent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IntentPlan {
    /// Results that all kinds have.
    pub outcome: ObjectOutcome<IntentPhase>,
    /// The refs where the policy is in force.
    pub applied: Vec<String>,
    /// The probe's result, if a probe is requested.
    pub probe: Option<&'static str>,
}

macro_rules! shown_by_name {
    ($($phase:ident: $($name:ident)*;)*) => {$(
        impl $phase {
            /// The phase as published.
            pub fn as_str(self) -> &'static str {
                match self { $($phase::$name => stringify!($name),)* }
            }
        }
    )*};
}

shown_by_name! {
    BindingPhase: Pending Connecting Connected Degraded Error;
    ServicePhase: Pending Exporting Exported Degraded Error;
    IntentPhase: Pending Applying Applied Degraded Error;
}

impl PolicyChanges {
    /// Reports whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.create.is_empty() && self.update.is_empty() && self.delete.is_empty()
    }
}

impl TargetPlan {
    /// Reports whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        *self == TargetPlan::default()
    }
}

impl Plan {
    /// Reports whether a write is pending in any cluster.
    pub fn has_changes(&self) -> bool {
        self.targets.values().any(|target| !target.is_empty())
    }
}
