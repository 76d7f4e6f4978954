//! All inputs of planning.

use std::collections::{BTreeMap, BTreeSet};

use crate::cilium::facts::{CaId, ClusterSeen};
use crate::cilium::object::{Binding, GlobalService, Intent, ObjectId};
use crate::cilium::plan::Link;
use crate::names::{ClusterId, Owner, Workspace};
use crate::seen::Seen;
use crate::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct World {
    pub options: Options,
    pub now: Timestamp,
    pub bindings: BTreeMap<ObjectId, Binding>,
    pub services: BTreeMap<ObjectId, GlobalService>,
    pub intents: BTreeMap<ObjectId, Intent>,
    pub clusters: BTreeMap<ClusterId, ClusterSeen>,
    pub origins: BTreeMap<ClusterId, Origin>,
    pub evidence: BTreeMap<Link, Evidence>,
    /// The workspaces whose objects are all known.
    pub listed: BTreeSet<Workspace>,
    /// The clusters for which all objects and refs that may lead there are
    /// known, so that unwanted content may be removed.
    pub settled: BTreeSet<ClusterId>,
    /// The clusters with an owner whose workspace is not bound. It may be moving
    /// to another shard of kcp, so what it wants there is not known.
    pub unbound: BTreeSet<ClusterId>,
}

/// The connection to a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    pub owner: Owner,
    /// UID of the Namespace kube-system as reported by the cluster. A cluster
    /// can report any UID.
    pub uid: String,
    /// The private CA that verified the current connection.
    pub private_ca: Option<CaId>,
}

/// Planner options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub verify_dial: VerifyDial,
    /// True if a missing cilium-ca may be created.
    pub sync_ca: bool,
    /// The namespace of Cilium.
    pub cilium_namespace: String,
    pub cleanup_timeout_seconds: u64,
    pub allow_system_namespaces: bool,
    /// Allowed annotation prefixes besides Cilium's.
    pub annotation_prefixes: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            verify_dial: VerifyDial::Warn,
            sync_ca: true,
            cilium_namespace: "kube-system".to_owned(),
            cleanup_timeout_seconds: 600,
            allow_system_namespaces: false,
            annotation_prefixes: Vec::new(),
        }
    }
}

/// Writes that a failed dial prevents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VerifyDial {
    /// All, unless DNS or TCP failed: the clusters may reach each other even if
    /// we can't.
    #[default]
    Warn,
    /// All.
    Require,
    /// Nothing is dialled.
    Off,
}

/// Evidence for one link, besides the state of its clusters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    pub dial: Option<Dialled>,
    /// The reader's own view of the remote.
    pub reader: Seen<ReaderView>,
}

/// The answer to a dial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dialled {
    /// Fingerprint of the dialled material.
    pub fingerprint: String,
    pub at: Timestamp,
    pub outcome: DialOutcome,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DialOutcome {
    /// The remote's cluster-config was read.
    Read {
        id: u32,
        heartbeat: Heartbeat,
    },
    Failed {
        kind: DialFailure,
        text: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heartbeat {
    /// Its timestamp, and when it was last observed to change.
    At {
        time: Timestamp,
        moved: Option<Timestamp>,
    },
    /// Missing, and since when.
    Absent { since: Timestamp },
}

/// The stage at which a dial failed, in the order of the stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DialFailure {
    /// Any failure before a server answered, for users who must not know more.
    Unreachable,
    Dns,
    /// The process must not connect to this address.
    Address,
    Tcp,
    Tls,
    Certificate,
    Permission,
    Name,
}

impl DialFailure {
    /// Reports whether the clusters may still reach each other.
    pub(super) fn is_unreachable(self) -> bool {
        matches!(
            self,
            DialFailure::Unreachable | DialFailure::Dns | DialFailure::Tcp
        )
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReaderView {
    pub ready: bool,
    pub at: Timestamp,
}
