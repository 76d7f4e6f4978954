//! What planning yields: the writes of every target, what to dial, and for
//! each object its phase, conditions and problems.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::cilium::facts::{ClientFiles, ConnectionSecret, PolicyKey, ServiceName};
use crate::cilium::object::ObjectId;
use crate::cilium::secret::SecretBytes;
use crate::names::{CiliumName, ClusterId};
use crate::precondition::Precondition;
use crate::problem::Problem;
use crate::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    pub targets: BTreeMap<ClusterId, TargetPlan>,
    /// What to connect to, with what, and what to find there.
    pub dials: BTreeMap<Link, Dial>,
    pub bindings: BTreeMap<ObjectId, BindingPlan>,
    pub services: BTreeMap<ObjectId, ServicePlan>,
    pub intents: BTreeMap<ObjectId, IntentPlan>,
    /// When to plan again although nothing was seen to change.
    pub recheck_at: Option<Timestamp>,
}

/// `reader` connects to `remote`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    pub reader: ClusterId,
    pub remote: ClusterId,
}

/// Everything to be written in one cluster. Nothing where all is as wanted.
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

/// Fields of the ConfigMap cilium-config that are not set yet: a patch that
/// names the resourceVersion.
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

/// kubernetes.io/elb.id on the Service clustermesh-apiserver, where it is not
/// set: a patch that names the resourceVersion. It stays when we go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElbWrite {
    pub resource_version: String,
    pub id: String,
}

/// users.yaml of the ConfigMap clustermesh-remote-users. One text can't be
/// shared by fields: a patch that names the resourceVersion, or an apply that
/// creates it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsersWrite {
    /// The ConfigMap that was seen; none where it is to be created.
    pub on: Option<Precondition>,
    pub text: String,
    pub added: BTreeSet<String>,
    pub removed: BTreeSet<String>,
}

/// A server-side apply of all our keys in one Secret.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SecretApply {
    /// The Secret that was seen; none where it is to be created. Somebody may
    /// have written it since, and an apply removes what it leaves out.
    pub on: Option<Precondition>,
    /// Everything that is ours there from now on.
    pub data: BTreeMap<String, SecretBytes>,
    pub added: BTreeSet<String>,
    pub changed: BTreeSet<String>,
    /// What this apply lets go.
    pub removed: BTreeSet<String>,
}

/// A server-side apply of all our annotations on one Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnotationApply {
    /// The Service that was seen: an apply removes what it leaves out.
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
    /// The spec that was seen, so that a patch can remove what is not wanted.
    pub before: Value,
    pub after: WantedPolicy,
}

/// What to connect to. Equal fingerprints stand for equal material.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dial {
    pub fingerprint: String,
    /// Addresses or one host name, all under the same port.
    pub hosts: Vec<String>,
    pub port: u16,
    /// The name the certificate must be valid for, where that is not the host.
    pub server_name: Option<String>,
    pub files: ClientFiles,
    /// Whose cluster-config must be there, with which id.
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

/// What all three kinds' results have in common.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome<Phase> {
    pub phase: Phase,
    pub conditions: Vec<Condition>,
    pub problems: Vec<Problem>,
    /// The refs to note on the object before anything is written for it.
    pub touches: BTreeSet<String>,
    /// Only for an object that is being deleted.
    pub teardown: Option<Teardown>,
}

/// How far the cleanup of a deleted object is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Teardown {
    /// The refs on which something of it still stands or may stand.
    pub waits_for: BTreeSet<String>,
    /// The refs that were given up, with what stays there and why.
    pub left_behind: BTreeMap<String, String>,
}

impl Teardown {
    /// The finalizer may go.
    pub fn is_done(&self) -> bool {
        self.waits_for.is_empty()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BindingPlan {
    pub outcome: Outcome<BindingPhase>,
    /// In the order of clusterRefs.
    pub rows: Vec<Row>,
    /// Dials without an answer yet: what is said here may change at once.
    pub awaits_dials: bool,
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
    pub outcome: Outcome<ServicePhase>,
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
    pub outcome: Outcome<IntentPhase>,
    pub applied: Vec<String>,
    /// What there is to say of a probe, where one is asked for.
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
