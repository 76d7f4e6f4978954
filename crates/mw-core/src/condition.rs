//! Types and reasons of conditions and events that are not the reason of a
//! `Problem`. They are stable: scripts wait for them, and the documentation has
//! an entry for each.

macro_rules! words {
    ($($name:ident = $word:literal;)*) => {
        $(pub const $name: &str = $word;)*
        pub const ALL: &[&str] = &[$($name,)*];
    };
}

/// The condition that all our kinds have.
pub const READY: &str = "Ready";

/// Conditions of a ClusterMesh.
pub mod kilo {
    pub mod kind {
        words! {
            ANCHOR_AVAILABLE = "AnchorAvailable";
            CREDENTIALS_CURRENT = "CredentialsCurrent";
            KEEPALIVE_EFFECTIVE = "KeepaliveEffective";
            NETWORKS_OVERLAP = "NetworksOverlap";
            READY = "Ready";
            SCOPE_LIMITED = "ScopeLimited";
        }
    }

    pub mod reason {
        words! {
            APPLY_FAILED = "ApplyFailed";
            AVAILABLE = "Available";
            DELETING = "Deleting";
            EFFECTIVE = "Effective";
            LIST_FORBIDDEN = "ListForbidden";
            NETWORKS_OVERLAP = "NetworksOverlap";
            NEW_CREDENTIALS_FAIL = "NewCredentialsFail";
            NO_OVERLAP = "NoOverlap";
            PROGRESSING = "Progressing";
            RECONCILED = "Reconciled";
        }
    }
}

/// Conditions of the three kinds of the Cilium backend.
pub mod cilium {
    pub mod kind {
        words! {
            ACCEPTED = "Accepted";
            APPLIED = "Applied";
            CERTIFICATES_EXPIRING = "CertificatesExpiring";
            DEGRADED = "Degraded";
            EXPORTED = "Exported";
            HUBBLE_READY = "HubbleReady";
            IDENTITY_APPLIED = "IdentityApplied";
            KVSTOREMESH_READY = "KVStoreMeshReady";
            MESH_CONNECTED = "MeshConnected";
            REACHABLE = "Reachable";
            READY = "Ready";
            VERSION_SKEW = "VersionSkew";
        }
    }

    pub mod reason {
        words! {
            ALL_CLUSTERS_APPLIED = "AllClustersApplied";
            ALL_CLUSTERS_EXPORTED = "AllClustersExported";
            APPLIED = "Applied";
            APPLYING = "Applying";
            AUTHORITY = "CA";
            CILIUM = "Cilium";
            CLUSTERMESH_APISERVER = "ClusterMeshAPIServer";
            CONNECTED = "Connected";
            CONNECTING = "Connecting";
            CREDENTIALS = "Credentials";
            DELETING = "Deleting";
            ENDS_SOON = "EndsSoon";
            EXPORTED = "Exported";
            EXPORTING = "Exporting";
            FAILED = "Failed";
            IDENTITY = "Identity";
            INSTALLED = "Installed";
            KEYS = "Keys";
            MESH_ESTABLISHED = "MeshEstablished";
            MINORS_APART = "MinorsApart";
            NO_EVIDENCE = "NoEvidence";
            NOT_DEGRADED = "NotDegraded";
            NOT_INSTALLED = "NotInstalled";
            NOT_KNOWN = "NotKnown";
            PARTIAL = "Partial";
            SPEC_VALID = "SpecValid";
            VERIFY = "Verify";
        }
    }
}

/// Reasons of events that no condition has.
pub mod event {
    words! {
        CLEANUP_INCOMPLETE = "CleanupIncomplete";
        CLEANUP_SKIPPED = "CleanupSkipped";
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
