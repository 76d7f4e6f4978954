//! All inputs of planning.

use std::collections::{BTreeMap, BTreeSet};

use crate::cilium::facts::{CaId, ClusterSeen};
use crate::cilium::object::{Binding, GlobalService, Intent, ObjectId};
use crate::cilium::plan::Link;
use crate::names::{ClusterId, Owner, Workspace};
use crate::seen::Seen;
use crate::time::Timestamp;

/// All inputs of planning; see the [contract](crate::cilium).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct World {
    /// Options of the provider.
    pub options: Options,
    /// The time of planning.
    pub now: Timestamp,
    /// All ClusterMeshBindings.
    pub bindings: BTreeMap<ObjectId, Binding>,
    /// All GlobalServices.
    pub services: BTreeMap<ObjectId, GlobalService>,
    /// All ConnectivityIntents.
    pub intents: BTreeMap<ObjectId, Intent>,
    /// The observed state of each cluster that a ref leads to.
    pub clusters: BTreeMap<ClusterId, ClusterSeen>,
    /// The connection to each cluster, while it works.
    pub origins: BTreeMap<ClusterId, Origin>,
    /// Dial results and readiness of links.
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
    /// The owner of the credentials.
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
    /// Writes that wait for a successful dial.
    pub verify_dial: VerifyDial,
    /// True if a missing cilium-ca may be created.
    pub sync_ca: bool,
    /// The namespace of Cilium.
    pub cilium_namespace: String,
    /// Time after which the deletion of an object stops waiting for a cluster
    /// that does not answer.
    pub cleanup_timeout_seconds: u64,
    /// True if objects may select Services and pods in system namespaces.
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
    /// The last answer; `None` if there was none.
    pub dial: Option<Dialled>,
    /// The reader's own view of the remote.
    pub reader: Seen<ReaderView>,
}

/// The answer to a dial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dialled {
    /// Fingerprint of the dialled material.
    pub fingerprint: String,
    /// The time of the answer.
    pub at: Timestamp,
    /// The answer.
    pub outcome: DialOutcome,
}

/// The result of a connection attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DialOutcome {
    /// The remote's cluster-config was read.
    Read {
        /// The cluster-id in it.
        id: u32,
        /// The heartbeat that the remote's operator writes.
        heartbeat: Heartbeat,
    },
    /// No cluster-config was read.
    Failed {
        /// The stage that failed.
        kind: DialFailure,
        /// Details for users.
        text: String,
    },
}

/// The heartbeat key in a remote's etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heartbeat {
    /// Its timestamp, and when it was last observed to change.
    At {
        /// The timestamp written by the remote.
        time: Timestamp,
        /// The time by our clock; `None` if only one value was observed.
        moved: Option<Timestamp>,
    },
    /// Missing.
    Absent {
        /// The time of the first dial that missed it.
        since: Timestamp,
    },
}

/// The stage at which a dial failed, in the order of the stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DialFailure {
    /// Any failure before a server answered, for users who must not know more.
    Unreachable,
    /// The host name can't be resolved.
    Dns,
    /// The process must not connect to this address.
    Address,
    /// No TCP connection.
    Tcp,
    /// No TLS, or a failed handshake.
    Tls,
    /// A certificate that one of the two sides does not trust.
    Certificate,
    /// The etcd user may not read.
    Permission,
    /// A different cluster answered.
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

/// A remote as seen by its reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReaderView {
    /// True if the reader reports the remote as ready.
    pub ready: bool,
    /// The time of the observation.
    pub at: Timestamp,
}
