//! A user's mistake, or a situation that the user must know about, as a value.

use std::fmt;

use crate::text::printable;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    Error,
    Warning,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident: $severity:ident,)*) => {
        /// The reason of a problem. The names are stable: conditions, events,
        /// metrics and the documentation use them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason { $($(#[$doc])* $name,)* }

        impl Reason {
            pub const ALL: &'static [Reason] = &[$(Reason::$name,)*];

            pub fn as_str(self) -> &'static str {
                match self { $(Reason::$name => stringify!($name),)* }
            }

            pub fn severity(self) -> Severity {
                match self { $(Reason::$name => Severity::$severity,)* }
            }
        }
    };
}

reasons! {
    InvalidSpec: Error,
    CIDROverlap: Error,
    DuplicatePeering: Error,
    DeletionHeld: Error,
    ClusterUnreachable: Warning,
    CIDRHostBits: Warning,
    AmbiguousOwner: Error,
    AnchorUnavailable: Error,
    DiscoveredEndpointsInvalid: Warning,
    EndpointInsideMesh: Error,
    HubConflict: Error,
    KeepaliveNotSet: Warning,
    KeyOfTarget: Error,
    KeyTaken: Error,
    LegacyGhost: Warning,
    LocationSilent: Warning,
    LocationWithoutPeer: Error,
    NodeInGrace: Warning,
    NodeNoEndpoint: Warning,
    NothingToRoute: Error,
    PeerNameTaken: Error,
    PeerTerminating: Warning,
    PodCIDRDuplicate: Warning,
    PrefixContainsEndpoint: Warning,
    PrefixOfAnotherFamily: Warning,
    PrefixOverlapsTarget: Error,
    PrefixTaken: Error,
    SourceFlapping: Error,
    SourceReplaced: Error,
    TooManyPrefixes: Warning,
    WGIPDuplicate: Warning,
    AccessDenied: Error,
    AddressPending: Warning,
    AnnotationOwnedByOther: Warning,
    APIServerNotFound: Error,
    APIServerNotReady: Warning,
    BindingNotFound: Error,
    CertificateExpired: Error,
    CertificateMissing: Warning,
    CertificateUnreadable: Error,
    CiliumConfigMissing: Error,
    CiliumNotFound: Error,
    CiliumNotReady: Warning,
    CiliumTooOld: Error,
    ClientFilesMissing: Error,
    ClusterIDInvalid: Error,
    ClusterIDMismatch: Warning,
    ClusterNameRefused: Error,
    ClusterNotReady: Warning,
    ClusterShared: Error,
    Conflict: Error,
    DenyIncomplete: Warning,
    DialAddress: Error,
    DialCertificate: Error,
    DialDNS: Warning,
    DialName: Error,
    DialPermission: Error,
    DialTCP: Warning,
    DialTLS: Error,
    DialUnreachable: Warning,
    DuplicateClusterID: Error,
    DuplicateClusterName: Error,
    ELBIDRefused: Warning,
    IdentityIncomplete: Warning,
    KeyManagedByOther: Warning,
    KeyOwnedByOther: Error,
    KubeconfigInvalid: Error,
    MaxConnectedClustersDiffer: Error,
    MeshNotReady: Warning,
    NamespaceMissing: Warning,
    NamespaceNotGlobal: Warning,
    NoClusterIDLeft: Error,
    NotVerifiable: Warning,
    NotVerified: Warning,
    OwnerMissing: Warning,
    PolicyCRDMissing: Error,
    PolicyNameTaken: Error,
    RemoteUserMissing: Warning,
    RemoteUsersOfHelm: Warning,
    RestartRequired: Warning,
    SameClusterTwice: Error,
    ServerNameMismatch: Error,
    ServiceNotFound: Error,
    ServiceTypeMismatch: Error,
    UnknownTargetCluster: Error,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A problem: what is wrong, with which object, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    pub reason: Reason,
    /// The affected object: a path in the spec, a node, a pair of clusters.
    pub subject: String,
    pub message: String,
    pub hint: String,
}

/// Longer texts are truncated, as they go into events and conditions.
const LONGEST: usize = 1000;

impl Problem {
    /// The texts may contain names chosen by a member, so control characters
    /// are removed.
    pub fn new(
        reason: Reason,
        subject: impl AsRef<str>,
        message: impl AsRef<str>,
        hint: impl AsRef<str>,
    ) -> Self {
        Problem {
            reason,
            subject: printable(subject.as_ref(), LONGEST),
            message: printable(message.as_ref(), LONGEST),
            hint: printable(hint.as_ref(), LONGEST),
        }
    }

    /// The message, prefixed with the subject unless it already starts with it.
    pub fn told(&self) -> String {
        match self.message.strip_prefix(self.subject.as_str()) {
            Some(rest) if rest.starts_with([':', ' ']) => self.message.clone(),
            _ => format!("{}: {}", self.subject, self.message),
        }
    }

    pub fn is_error(&self) -> bool {
        self.reason.severity() == Severity::Error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_told_once() {
        let told = |message: &str| {
            Problem::new(Reason::ClusterUnreachable, "cluster a", message, "").told()
        };
        assert_eq!(
            told("cluster a: does not answer"),
            "cluster a: does not answer"
        );
        assert_eq!(told("does not answer"), "cluster a: does not answer");
        assert_eq!(
            told("cluster ab is another"),
            "cluster a: cluster ab is another"
        );
    }
}
