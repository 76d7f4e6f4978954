//! A user's mistake, or a situation that the user must know about, as a value.

use std::fmt;

use crate::text::printable;

/// The severity of a [`Reason`]; all problems with the same reason have the
/// same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Something does not work until a person acts.
    Error,
    /// The rest works, or it may resolve itself.
    Warning,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident: $severity:ident,)*) => {
        /// The reason of a problem. The names are stable: conditions, events,
        /// metrics and the documentation use them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason { $($(#[$doc])* $name,)* }

        impl Reason {
            /// All reasons, in the order of their declaration.
            pub const ALL: &'static [Reason] = &[$(Reason::$name,)*];

            /// The stable name, as in conditions, events and metrics.
            pub fn as_str(self) -> &'static str {
                match self { $(Reason::$name => stringify!($name),)* }
            }

            /// The severity of every problem with this reason.
            pub fn severity(self) -> Severity {
                match self { $(Reason::$name => Severity::$severity,)* }
            }
        }
    };
}

reasons! {
    /// A field of the spec is invalid; the subject is its path.
    InvalidSpec: Error,
    /// Two clusters declare overlapping networks.
    CIDROverlap: Error,
    /// An older mesh connects the same two clusters.
    DuplicatePeering: Error,
    /// Deletes of Peers wait for a confirmation.
    DeletionHeld: Error,
    /// A cluster does not answer, or can't be read.
    ClusterUnreachable: Warning,
    /// A declared network has host bits; they are masked.
    CIDRHostBits: Warning,
    /// A Peer of the Go operator fits several meshes.
    AmbiguousOwner: Error,
    /// No node can carry the cluster-wide networks.
    AnchorUnavailable: Error,
    /// A node's annotation discovered-endpoints does not parse.
    DiscoveredEndpointsInvalid: Warning,
    /// A node's endpoint is inside another cluster's networks.
    EndpointInsideMesh: Error,
    /// The Peers of a mesh carry the UIDs of several hubs.
    HubConflict: Error,
    /// A keepalive is declared, but Kilo on the nodes sends none.
    KeepaliveNotSet: Warning,
    /// A node of the target has the key of a Peer.
    KeyOfTarget: Error,
    /// Another Peer on the target has the key of a Peer.
    KeyTaken: Error,
    /// Peers of the Go operator belong to a mesh that does not exist here.
    LegacyGhost: Warning,
    /// No agent of a location has checked in recently.
    LocationSilent: Warning,
    /// The leader of a location fails a check.
    LocationWithoutPeer: Error,
    /// A node lost its annotations; its Peer is kept for a grace period.
    NodeInGrace: Warning,
    /// A node has no endpoint; see also
    /// [`SkipReason`](crate::kilo::SkipReason).
    NodeNoEndpoint: Warning,
    /// No prefix of a Peer is allowed on the target.
    NothingToRoute: Error,
    /// Another Peer on the target has the name of a Peer.
    PeerNameTaken: Error,
    /// A Peer is being deleted; a finalizer delays that.
    PeerTerminating: Warning,
    /// Two nodes of a cluster have the same pod CIDR.
    PodCIDRDuplicate: Warning,
    /// A prefix contains the endpoint of a tunnel.
    PrefixContainsEndpoint: Warning,
    /// The target's nodes do not route the IP family of a prefix.
    PrefixOfAnotherFamily: Warning,
    /// A prefix overlaps addresses of the target's nodes.
    PrefixOverlapsTarget: Error,
    /// Another Peer on the target has a prefix.
    PrefixTaken: Error,
    /// A source changes too often; its changes wait.
    SourceFlapping: Error,
    /// A source looks like a different cluster; its changes wait for a
    /// confirmation.
    SourceReplaced: Error,
    /// A node or Peer exceeds the limit for prefixes.
    TooManyPrefixes: Warning,
    /// Two nodes of a cluster have the same WireGuard address.
    WGIPDuplicate: Warning,
    /// The cluster rejects the credentials or a request.
    AccessDenied: Error,
    /// The Service clustermesh-apiserver has no address yet.
    AddressPending: Warning,
    /// Another field manager set an annotation to another value.
    AnnotationOwnedByOther: Warning,
    /// The cluster has no clustermesh-apiserver.
    APIServerNotFound: Error,
    /// No replica of clustermesh-apiserver is available.
    APIServerNotReady: Warning,
    /// meshRef names a ClusterMeshBinding that does not exist.
    BindingNotFound: Error,
    /// A certificate of clustermesh-apiserver has expired.
    CertificateExpired: Error,
    /// A Secret of clustermesh-apiserver does not exist yet.
    CertificateMissing: Warning,
    /// A Secret of clustermesh-apiserver does not parse.
    CertificateUnreadable: Error,
    /// The cluster has no ConfigMap cilium-config.
    CiliumConfigMissing: Error,
    /// The cluster has no Cilium.
    CiliumNotFound: Error,
    /// No Cilium agent is ready.
    CiliumNotReady: Warning,
    /// The cluster's Cilium lacks a field of the policy.
    CiliumTooOld: Error,
    /// Cilium's clustermesh volume lacks the client certificate.
    ClientFilesMissing: Error,
    /// cluster-id is not a number that Cilium accepts.
    ClusterIDInvalid: Error,
    /// A clustermesh-apiserver reports another id than cilium-config.
    ClusterIDMismatch: Warning,
    /// Cilium does not accept cluster-name.
    ClusterNameRefused: Error,
    /// The Cluster does not exist or is not Ready.
    ClusterNotReady: Warning,
    /// An older object of another owner uses the same cluster.
    ClusterShared: Error,
    /// An older object requests another value in the same place.
    Conflict: Error,
    /// A Deny omits a cluster whose Cilium name is not known.
    DenyIncomplete: Warning,
    /// The provider must not connect to the remote's address.
    DialAddress: Error,
    /// One side of a dial rejects the other's certificate.
    DialCertificate: Error,
    /// The provider can't resolve the remote's host name.
    DialDNS: Warning,
    /// A different cluster answered a dial.
    DialName: Error,
    /// The remote's etcd does not permit reads.
    DialPermission: Error,
    /// The remote accepts no TCP connection from the provider.
    DialTCP: Warning,
    /// The remote does not speak TLS.
    DialTLS: Error,
    /// A dial failed, without the details for a kcp tenant.
    DialUnreachable: Warning,
    /// Two clusters that would be connected have the same cluster-id.
    DuplicateClusterID: Error,
    /// Two clusters that would be connected have the same cluster-name.
    DuplicateClusterName: Error,
    /// The requested load balancer is invalid, or the Service has another.
    ELBIDRefused: Warning,
    /// cluster-name or cluster-id are not set yet.
    IdentityIncomplete: Warning,
    /// Another field manager wrote the keys of a link that works.
    KeyManagedByOther: Warning,
    /// Another field manager wrote the keys of a link that does not work.
    KeyOwnedByOther: Error,
    /// The kubeconfig is missing, does not parse or is refused.
    KubeconfigInvalid: Error,
    /// Two clusters that would be connected differ in max-connected-clusters.
    MaxConnectedClustersDiffer: Error,
    /// The binding is not connected yet, or is being deleted.
    MeshNotReady: Warning,
    /// No cluster of the mesh has the destination's namespace.
    NamespaceMissing: Warning,
    /// The Service's namespace is excluded from the mesh.
    NamespaceNotGlobal: Warning,
    /// All cluster-ids are in use by connected clusters.
    NoClusterIDLeft: Error,
    /// The keys are written, but the link can't be verified.
    NotVerifiable: Warning,
    /// The key is written, but the link is not verified.
    NotVerified: Warning,
    /// The Cluster names no workspaces that may use it.
    OwnerMissing: Warning,
    /// The cluster lacks the CRD of the policy.
    PolicyCRDMissing: Error,
    /// Another policy has the name of the policy.
    PolicyNameTaken: Error,
    /// The remote's etcd does not list the reader yet.
    RemoteUserMissing: Warning,
    /// Helm manages the list of etcd users and may reset it.
    RemoteUsersOfHelm: Warning,
    /// Cilium must restart to read its new name or id.
    RestartRequired: Warning,
    /// Two refs of a binding lead to the same cluster.
    SameClusterTwice: Error,
    /// The server certificate does not cover the remote's address.
    ServerNameMismatch: Error,
    /// No Service of a cluster matches the selector.
    ServiceNotFound: Error,
    /// The Service has another type than the binding requests.
    ServiceTypeMismatch: Error,
    /// targetClusters names a cluster that is not in the binding.
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
    /// The stable reason, which also decides the severity.
    pub reason: Reason,
    /// The affected object: a path in the spec, a node, a pair of clusters.
    pub subject: String,
    /// The observed value and its effect, for users.
    pub message: String,
    /// The next step for the user, often a command; may be empty.
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

    /// Reports whether the [severity](Severity) is error.
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
