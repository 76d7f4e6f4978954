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

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    pub targets: BTreeMap<ClusterId, TargetPlan>,
    /// The dials, with their material and the expected identity.
    pub dials: BTreeMap<Link, Dial>,
    pub bindings: BTreeMap<ObjectId, BindingPlan>,
    pub services: BTreeMap<ObjectId, ServicePlan>,
    pub intents: BTreeMap<ObjectId, IntentPlan>,
    /// The time at which to replan although nothing changed.
    pub recheck_at: Option<Timestamp>,
}

/// `reader` connects to `remote`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    pub reader: ClusterId,
    pub remote: ClusterId,
}

/// All writes in one cluster. Empty if everything is up to date.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TargetPlan {
    pub identity: Option<IdentityWrite>,
    pub ca: Option<CaCreate>,
    pub elb: Option<ElbWrite>,
    pub users: Option<UsersWrite>,
    pub secrets: BTreeMap<ConnectionSecret, SecretApply>,
    pub services: BTreeMap<ServiceName, AnnotationApply>,
    pub policies: PolicyChanges,
}

/// Fields of the ConfigMap cilium-config that are not set yet: a patch with the
/// resourceVersion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityWrite {
    pub resource_version: String,
    pub name: Option<CiliumName>,
    pub id: Option<u32>,
}

/// The Secret cilium-ca, to be created and never overwritten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaCreate {
    pub from: ClusterId,
    pub certificate: SecretBytes,
    pub key: SecretBytes,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

/// kubernetes.io/elb.id on the Service clustermesh-apiserver if it is not set:
/// a patch with the resourceVersion. It is not removed on deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElbWrite {
    pub resource_version: String,
    pub id: String,
}

/// users.yaml of the ConfigMap clustermesh-remote-users. Its text can't be
/// split into owned fields, so it is a patch with the resourceVersion, or an
/// apply that creates it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsersWrite {
    /// The observed ConfigMap; `None` to create it.
    pub on: Option<Precondition>,
    pub text: String,
    pub added: BTreeSet<String>,
    pub removed: BTreeSet<String>,
}

/// A server-side apply of all our keys in one Secret.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SecretApply {
    /// The observed Secret; `None` to create it. Somebody may have changed it
    /// since, and an apply removes our keys that it leaves out.
    pub on: Option<Precondition>,
    /// All keys that we own there from now on.
    pub data: BTreeMap<String, SecretBytes>,
    pub added: BTreeSet<String>,
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
    pub annotations: BTreeMap<String, String>,
    pub removed: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PolicyChanges {
    pub create: BTreeMap<PolicyKey, WantedPolicy>,
    pub update: BTreeMap<PolicyKey, PolicyUpdate>,
    pub delete: BTreeMap<PolicyKey, Precondition>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedPolicy {
    pub key: PolicyKey,
    pub labels: BTreeMap<String, String>,
    pub spec: Value,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyUpdate {
    pub on: Precondition,
    /// The observed spec, so that a patch can remove unwanted fields.
    pub before: Value,
    pub after: WantedPolicy,
}

/// The target of a connection attempt. Equal fingerprints mean equal material.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dial {
    pub fingerprint: String,
    /// Addresses or one host name, all with the same port.
    pub hosts: Vec<String>,
    pub port: u16,
    /// The name for which the certificate must be valid, if it is not the host.
    pub server_name: Option<String>,
    pub files: ClientFiles,
    /// The cluster-config to find there, and its id.
    pub cluster_name: CiliumName,
    pub cluster_id: u32,
}

/// A condition of an object, without its timestamps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub kind: &'static str,
    pub status: Status,
    pub reason: &'static str,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    True,
    False,
    Unknown,
}

impl Status {
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum BindingPhase {
    #[default]
    Pending,
    Connecting,
    Connected,
    Degraded,
    Error,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum ServicePhase {
    #[default]
    Pending,
    Exporting,
    Exported,
    Degraded,
    Error,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum IntentPhase {
    #[default]
    Pending,
    Applying,
    Applied,
    Degraded,
    Error,
}

/// Fields that the results of all three kinds share.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObjectOutcome<Phase> {
    pub phase: Phase,
    pub conditions: Vec<Condition>,
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

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BindingPlan {
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
    pub runs: Version,
}

/// A cluster's row in the status.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Row {
    pub cluster: String,
    pub id: Option<u32>,
    pub connected: bool,
    pub ready_nodes: u32,
    pub total_nodes: u32,
    pub message: Option<String>,
    pub last_verified: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServicePlan {
    pub outcome: ObjectOutcome<ServicePhase>,
    pub exported: Vec<String>,
    pub endpoints: Vec<Endpoints>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoints {
    pub cluster: String,
    pub ready: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IntentPlan {
    pub outcome: ObjectOutcome<IntentPhase>,
    pub applied: Vec<String>,
    /// The probe's result, if a probe is requested.
    pub probe: Option<&'static str>,
}

macro_rules! shown_by_name {
    ($($phase:ident: $($name:ident)*;)*) => {$(
        impl $phase {
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
    pub fn is_empty(&self) -> bool {
        self.create.is_empty() && self.update.is_empty() && self.delete.is_empty()
    }
}

impl TargetPlan {
    pub fn is_empty(&self) -> bool {
        *self == TargetPlan::default()
    }
}

impl Plan {
    pub fn has_changes(&self) -> bool {
        self.targets.values().any(|target| !target.is_empty())
    }
}
