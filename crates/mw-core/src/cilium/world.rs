//! Everything that planning depends on.

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
    /// The clusters of which all objects and refs are known that may lead
    /// there, so that what none of them wants may go.
    pub settled: BTreeSet<ClusterId>,
}

/// How a cluster is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    pub owner: Owner,
    /// UID of the Namespace kube-system as the cluster reports it. A cluster
    /// can report any UID.
    pub uid: String,
    /// The one private CA that the connection in use was verified against.
    pub private_ca: Option<CaId>,
}

/// How to plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub verify_dial: VerifyDial,
    /// A missing cilium-ca may be created.
    pub sync_ca: bool,
    /// Where Cilium runs.
    pub cilium_namespace: String,
    pub cleanup_timeout_seconds: u64,
    pub allow_system_namespaces: bool,
    /// Prefixes of annotations that are allowed beside Cilium's.
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

/// What a failed dial keeps us from writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VerifyDial {
    /// Everything but what failed for DNS or TCP: the clusters may reach each
    /// other where we can't.
    #[default]
    Warn,
    /// Everything.
    Require,
    /// Nothing is dialled.
    Off,
}

/// What is known of one link beyond what its clusters hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    pub dial: Option<Dialled>,
    /// What the reader itself says of the remote.
    pub reader: Seen<ReaderView>,
}

/// The answer to a dial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dialled {
    /// Of the material that was dialled with.
    pub fingerprint: String,
    pub at: Timestamp,
    pub outcome: DialOutcome,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DialOutcome {
    /// The remote's cluster-config was there.
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
    /// The time it says, and when it was last seen to change.
    At { time: Timestamp, moved: Option<Timestamp> },
    /// Not there, and since when.
    Absent { since: Timestamp },
}

/// What a dial failed at, in the order in which a dial gets there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DialFailure {
    /// What failed before a server answered, to somebody who must not know more.
    Unreachable,
    Dns,
    /// The process does not connect to this address.
    Address,
    Tcp,
    Tls,
    Certificate,
    Permission,
    Name,
}

impl DialFailure {
    /// Whether the clusters may reach each other all the same.
    pub(super) fn is_unreachable(self) -> bool {
        matches!(self, DialFailure::Unreachable | DialFailure::Dns | DialFailure::Tcp)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReaderView {
    pub ready: bool,
    pub at: Timestamp,
}
