//! Types and reasons of conditions and events that are not the reason of a
//! `Problem`. They are stable: scripts wait for them, and the documentation has
//! an entry for each.

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident = $word:literal;)*) => {
        $($(#[$doc])* pub const $name: &str = $word;)*
        /// All of them, sorted by name.
        pub const ALL: &[&str] = &[$($name,)*];
    };
}

/// The condition that all our kinds have.
pub const READY: &str = "Ready";

/// Conditions of a ClusterMesh.
pub mod kilo {
    /// Types of these conditions.
    pub mod kind {
        words! {
            /// True if every cluster that needs an anchor has one.
            ANCHOR_AVAILABLE = "AnchorAvailable";
            /// False while a new kubeconfig does not work; absent otherwise.
            CREDENTIALS_CURRENT = "CredentialsCurrent";
            /// True if the nodes send the declared keepalives.
            KEEPALIVE_EFFECTIVE = "KeepaliveEffective";
            /// True if declared networks overlap.
            NETWORKS_OVERLAP = "NetworksOverlap";
            /// True if everything declared is in force; see [`READY`](crate::condition::READY).
            READY = "Ready";
            /// True while ClusterMeshes of other namespaces can't be listed; absent otherwise.
            SCOPE_LIMITED = "ScopeLimited";
        }
    }

    /// Reasons of these conditions, besides those of problems.
    pub mod reason {
        words! {
            /// A cluster rejected a write.
            APPLY_FAILED = "ApplyFailed";
            /// Every cluster that needs an anchor has one.
            AVAILABLE = "Available";
            /// The ClusterMesh is being deleted.
            DELETING = "Deleting";
            /// The nodes send the declared keepalives.
            EFFECTIVE = "Effective";
            /// ClusterMeshes of other namespaces can't be listed.
            LIST_FORBIDDEN = "ListForbidden";
            /// Declared networks overlap.
            NETWORKS_OVERLAP = "NetworksOverlap";
            /// A new kubeconfig does not work; the previous one is in use.
            NEW_CREDENTIALS_FAIL = "NewCredentialsFail";
            /// No declared networks overlap.
            NO_OVERLAP = "NoOverlap";
            /// Writes are pending.
            PROGRESSING = "Progressing";
            /// All Peers are written in all clusters.
            RECONCILED = "Reconciled";
        }
    }
}

/// Conditions of the three kinds of the Cilium backend.
pub mod cilium {
    /// Types of these conditions.
    pub mod kind {
        words! {
            /// True if the spec is valid.
            ACCEPTED = "Accepted";
            /// True if the policy, or a new identity, is in force.
            APPLIED = "Applied";
            /// True while a certificate expires soon; absent otherwise.
            CERTIFICATES_EXPIRING = "CertificatesExpiring";
            /// True if one part works and another does not.
            DEGRADED = "Degraded";
            /// True if the Services are global in all clusters.
            EXPORTED = "Exported";
            /// True if the requested parts of Hubble run in every cluster.
            HUBBLE_READY = "HubbleReady";
            /// True if Cilium uses the name and id that were set.
            IDENTITY_APPLIED = "IdentityApplied";
            /// True if KVStoreMesh runs in every cluster.
            KVSTOREMESH_READY = "KVStoreMeshReady";
            /// True if every link is verified.
            MESH_CONNECTED = "MeshConnected";
            /// Result of the requested probe.
            REACHABLE = "Reachable";
            /// True if everything declared is in force; see [`READY`](crate::condition::READY).
            READY = "Ready";
            /// True while Cilium's minor versions are too far apart; absent otherwise.
            VERSION_SKEW = "VersionSkew";
        }
    }

    /// Reasons of these conditions, besides those of problems.
    pub mod reason {
        words! {
            /// The policy is in force in all clusters.
            ALL_CLUSTERS_APPLIED = "AllClustersApplied";
            /// The Services are global in all clusters.
            ALL_CLUSTERS_EXPORTED = "AllClustersExported";
            /// The policy, or a new identity, is in force.
            APPLIED = "Applied";
            /// A cluster has not been tried yet.
            APPLYING = "Applying";
            /// A certificate is missing, expired or unreadable.
            AUTHORITY = "CA";
            /// Cilium is missing or not ready.
            CILIUM = "Cilium";
            /// clustermesh-apiserver is missing, not ready or has no address.
            CLUSTERMESH_APISERVER = "ClusterMeshAPIServer";
            /// Every link is verified.
            CONNECTED = "Connected";
            /// Links are coming up.
            CONNECTING = "Connecting";
            /// A cluster can't be reached with its credentials.
            CREDENTIALS = "Credentials";
            /// The object is being deleted.
            DELETING = "Deleting";
            /// A certificate expires soon.
            ENDS_SOON = "EndsSoon";
            /// The Services are global in all clusters.
            EXPORTED = "Exported";
            /// A cluster has not been tried yet.
            EXPORTING = "Exporting";
            /// Nothing works, and a person has to act.
            FAILED = "Failed";
            /// cluster-name or cluster-id is missing, invalid or not unique.
            IDENTITY = "Identity";
            /// The requested component runs in every cluster.
            INSTALLED = "Installed";
            /// A key can't be written.
            KEYS = "Keys";
            /// Every link is verified.
            MESH_ESTABLISHED = "MeshEstablished";
            /// Cilium's minor versions are too far apart.
            MINORS_APART = "MinorsApart";
            /// The requested probe has no result.
            NO_EVIDENCE = "NoEvidence";
            /// Either everything works, or nothing does.
            NOT_DEGRADED = "NotDegraded";
            /// The requested component does not run in a cluster.
            NOT_INSTALLED = "NotInstalled";
            /// A cluster can't be read.
            NOT_KNOWN = "NotKnown";
            /// Some links are verified and some are not.
            PARTIAL = "Partial";
            /// The spec is valid.
            SPEC_VALID = "SpecValid";
            /// All keys are written, but a link is not verified.
            VERIFY = "Verify";
        }
    }
}

/// Reasons of events that no condition has.
pub mod event {
    words! {
        /// A finalizer was removed although a cluster did not answer.
        CLEANUP_INCOMPLETE = "CleanupIncomplete";
        /// Cleanup skipped a cluster whose credentials are gone.
        CLEANUP_SKIPPED = "CleanupSkipped";
        /// Too many nodes are skipped to report each of them.
        NODES_SKIPPED = "NodesSkipped";
    }
}

/// Reports whether a condition may have this reason.
pub fn is_reason(word: &str) -> bool {
    kilo::reason::ALL.contains(&word)
        || cilium::reason::ALL.contains(&word)
        || crate::problem::Reason::ALL
            .iter()
            .any(|reason| reason.as_str() == word)
}
