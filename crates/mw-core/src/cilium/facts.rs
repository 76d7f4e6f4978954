//! Observed state of one cluster, reduced to what the rules need. Certificates
//! are already parsed; everything else is raw text.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::cilium::secret::SecretBytes;
use crate::cilium::version::{ADMIN_CERTIFICATE, Version};
use crate::names::{CiliumName, NodeName};
use crate::seen::Seen;
use crate::time::Timestamp;

/// Our field manager.
pub const MANAGER: &str = "meshwright";

/// One target cluster. `Known(None)` means that the object does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSeen {
    /// The reason why it is unreachable or must not be read.
    pub silent: Option<Silence>,
    /// The DaemonSet cilium.
    pub agents: Seen<Option<Agents>>,
    /// The ConfigMap cilium-config.
    pub config: Seen<Option<Config>>,
    /// The identity that this provider last read itself, used while `config` is
    /// not known. Never taken from a status.
    pub remembered: Option<Identity>,
    /// The Secrets with the certificates of the mesh.
    pub certificates: Seen<Certificates>,
    /// The Deployment clustermesh-apiserver.
    pub apiserver: Seen<Option<ApiServer>>,
    /// The Service clustermesh-apiserver.
    pub service: Seen<Option<MeshService>>,
    /// The addresses at which a NodePort is reachable.
    pub nodes: Seen<BTreeMap<NodeName, NodeAddresses>>,
    /// The two connection Secrets; a missing one is not in the map.
    pub secrets: Seen<BTreeMap<ConnectionSecret, SecretSeen>>,
    /// The ConfigMap clustermesh-remote-users.
    pub users: Seen<Option<RemoteUsers>>,
    /// Hubble's Deployments.
    pub hubble: Seen<Hubble>,
    /// All Namespaces.
    pub namespaces: Seen<BTreeMap<String, NamespaceSeen>>,
    /// All Services.
    pub services: Seen<BTreeMap<ServiceName, ServiceSeen>>,
    /// All EndpointSlices.
    pub slices: Seen<Vec<SliceSeen>>,
    /// All Cilium policies of both kinds, ours and others.
    pub policies: Seen<BTreeMap<PolicyKey, PolicySeen>>,
    /// The CRDs of Cilium's policies.
    pub policy_crds: Seen<PolicyCrds>,
}

impl ClusterSeen {
    /// Reports whether agents use the admin certificate, which is not read: up
    /// to Cilium 1.15, which has no local certificate.
    pub fn uses_admin_certificate(&self) -> bool {
        let agents = self.agents.known().and_then(Option::as_ref);
        match agents.and_then(|agents| agents.version) {
            Some(version) => version <= ADMIN_CERTIFICATE,
            None => self
                .certificates
                .known()
                .is_some_and(Certificates::lacks_local),
        }
    }
}

impl Certificates {
    /// Reports whether there is no local certificate.
    pub fn lacks_local(&self) -> bool {
        matches!(self.local, Seen::Known(None))
    }
}

/// The reason why a cluster can't be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Silence {
    /// No answer; it may answer again.
    Unreachable(String),
    /// Access denied: verb and resource.
    Forbidden(String),
}

/// cluster-name and cluster-id, if set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    /// cluster-name; `None` if missing, invalid or Cilium's default.
    pub name: Option<CiliumName>,
    /// cluster-id; `None` if missing, invalid or 0.
    pub id: Option<u32>,
}

/// The ConfigMap cilium-config.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// The resourceVersion, a precondition of
    /// [`IdentityWrite`](crate::cilium::plan::IdentityWrite).
    pub resource_version: String,
    /// Raw value of cluster-name.
    pub cluster_name: String,
    /// Raw value of cluster-id.
    pub cluster_id: String,
    /// max-connected-clusters, or Cilium's default.
    pub max_clusters: u32,
    /// ENI or Alibaba Cloud IPAM, or chained to aws-cni: ids from 128 on are
    /// not supported.
    pub small_ids: bool,
    /// The time at which we set the name or the id, if we did.
    pub set_by_us: Option<Timestamp>,
    /// clustermesh-default-global-namespace; true unless disabled.
    pub namespaces_global: bool,
}

/// The DaemonSet of Cilium's agents.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Agents {
    /// Number of nodes with a ready agent.
    pub ready: u32,
    /// Number of nodes that should run an agent.
    pub desired: u32,
    /// The version of its image; `None` if the tag names none.
    pub version: Option<Version>,
    /// The files in its clustermesh volume.
    pub client_files: BTreeSet<String>,
    /// Names in the hostAliases of its pods.
    pub host_aliases: BTreeSet<String>,
    /// Start time of its oldest pod.
    pub oldest_start: Option<Timestamp>,
}

/// The Deployment clustermesh-apiserver.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ApiServer {
    /// Number of available replicas.
    pub available: u32,
    /// True if it runs KVStoreMesh, which then reads the remotes for the
    /// agents.
    pub kvstoremesh: bool,
    /// The version of its image; `None` if the tag names none.
    pub version: Option<Version>,
    /// The files in the clustermesh volume of KVStoreMesh.
    pub client_files: BTreeSet<String>,
    /// Names in the hostAliases of its pods.
    pub host_aliases: BTreeSet<String>,
    /// True if its etcd has a user for each entry of the ConfigMap
    /// clustermesh-remote-users: authMode `migration` or `cluster`.
    pub cluster_users: bool,
    /// True if its pods do not start without that ConfigMap.
    pub mounts_users: bool,
}

/// The ConfigMap with the etcd users of a clustermesh-apiserver, besides the
/// built-in ones.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RemoteUsers {
    /// The ConfigMap's UID.
    pub uid: String,
    /// The resourceVersion, a precondition of
    /// [`UsersWrite`](crate::cilium::plan::UsersWrite).
    pub resource_version: String,
    /// users.yaml; empty if missing.
    pub text: String,
    /// True if Helm manages it and rewrites it at each upgrade.
    pub of_helm: bool,
}

/// The Service clustermesh-apiserver.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MeshService {
    /// The resourceVersion, a precondition of
    /// [`ElbWrite`](crate::cilium::plan::ElbWrite).
    pub resource_version: String,
    /// Its type: ClusterIP, NodePort or LoadBalancer.
    pub kind: String,
    /// All ports.
    pub ports: Vec<MeshPort>,
    /// Addresses in status.loadBalancer.ingress.
    pub ingress_ips: Vec<String>,
    /// Host names in status.loadBalancer.ingress.
    pub ingress_hostnames: Vec<String>,
    /// kubernetes.io/elb.id, if set.
    pub elb_id: Option<String>,
}

/// A port of the Service clustermesh-apiserver.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MeshPort {
    /// The port's name; may be empty.
    pub name: String,
    /// The port at cluster and load balancer addresses.
    pub port: u16,
    /// The port at the nodes' addresses; `None` for a ClusterIP Service.
    pub node_port: Option<u16>,
}

/// A Node, as far as a NodePort depends on it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeAddresses {
    /// The Node's Ready condition.
    pub ready: bool,
    /// Addresses of type InternalIP.
    pub internal: Vec<String>,
    /// Addresses of type ExternalIP.
    pub external: Vec<String>,
}

/// Identifies a CA; computed by the parser, equal for equal CAs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CaId(pub String);

/// The certificates of the mesh. One whose Secret exists but can't be parsed is
/// unknown, not missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificates {
    /// The Secret cilium-ca.
    pub root: Seen<Option<RootCa>>,
    /// True if the credentials may not read cilium-ca, which is needed only for
    /// copying it.
    pub root_withheld: bool,
    /// clustermesh-apiserver-server-cert.
    pub server: Seen<Option<Certificate>>,
    /// clustermesh-apiserver-remote-cert.
    pub remote: Seen<Option<Certificate>>,
    /// clustermesh-apiserver-local-cert.
    pub local: Seen<Option<Certificate>>,
}

/// The Secret cilium-ca, which Helm and certgen use to issue certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootCa {
    /// Identifies the CA; equal in clusters that share it.
    pub ca: CaId,
    /// The certificate in PEM form, for a copy in another cluster.
    pub certificate: SecretBytes,
    /// `None` if the Secret does not contain it, as with cert-manager.
    pub key: Option<SecretBytes>,
    /// The labels and annotations that mark it as managed by Helm.
    pub helm_labels: BTreeMap<String, String>,
    /// See `helm_labels`.
    pub helm_annotations: BTreeMap<String, String>,
    /// Expiry of the CA.
    pub not_after: Timestamp,
    /// The issuing method of the CA.
    pub maker: Maker,
}

/// The issuing method of a certificate, which also renews it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Maker {
    /// The chart issues it at each upgrade.
    Helm,
    /// The cert-manager Certificate of this name.
    CertManager(String),
    /// Cilium's certgen, as a Job or a CronJob.
    Job,
}

/// One Secret with tls.crt, tls.key and ca.crt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The CA that signed it.
    pub issuer: CaId,
    /// The CAs in ca.crt: one, or a bundle.
    pub trusts: BTreeSet<CaId>,
    /// The subject's CN: for a client certificate, the etcd user.
    pub common_name: String,
    /// DNS names and addresses for which it is valid.
    pub names: Vec<String>,
    /// Expiry of the certificate.
    pub not_after: Timestamp,
    /// Expiry of the first CA in ca.crt.
    pub ca_not_after: Timestamp,
    /// The issuing method of the certificate.
    pub maker: Maker,
    /// The Secret's files, for a copy in a connection Secret.
    pub files: ClientFiles,
}

/// The three files of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFiles {
    /// ca.crt.
    pub ca: SecretBytes,
    /// tls.crt.
    pub certificate: SecretBytes,
    /// tls.key.
    pub key: SecretBytes,
}

/// The Secrets whose keys become files in Cilium's clustermesh directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnectionSecret {
    /// Read by the agents.
    ClusterMesh,
    /// Read by KVStoreMesh.
    KvStoreMesh,
}

impl ConnectionSecret {
    /// Both Secrets.
    pub const ALL: [ConnectionSecret; 2] =
        [ConnectionSecret::ClusterMesh, ConnectionSecret::KvStoreMesh];

    /// The name of the Secret.
    pub fn as_str(self) -> &'static str {
        match self {
            ConnectionSecret::ClusterMesh => "cilium-clustermesh",
            ConnectionSecret::KvStoreMesh => "cilium-kvstoremesh",
        }
    }
}

/// A connection Secret.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SecretSeen {
    /// The UID, a precondition of writes.
    pub uid: String,
    /// The resourceVersion, a precondition of writes.
    pub resource_version: String,
    /// All keys, also those of others.
    pub keys: BTreeMap<String, Held<SecretBytes>>,
    /// The time of our last write.
    pub written: Option<Timestamp>,
    /// Expiry of the certificates under its keys.
    pub ends: BTreeMap<String, Timestamp>,
}

/// A value in an object that we share with others, and its field managers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held<T> {
    /// The value as observed.
    pub value: T,
    /// The names of the managers that own the field.
    pub managers: BTreeSet<String>,
}

impl<T> Held<T> {
    /// Reports whether we own it, alone or with others.
    pub fn is_ours(&self) -> bool {
        self.managers.contains(MANAGER)
    }

    /// The managers other than us.
    pub fn others(&self) -> Vec<&str> {
        self.managers
            .iter()
            .map(String::as_str)
            .filter(|name| *name != MANAGER)
            .collect()
    }

    /// Reports whether an unforced apply may change the value.
    pub fn is_ours_alone(&self) -> bool {
        self.is_ours() && self.managers.len() == 1
    }
}

/// The parts of Hubble that run in a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hubble {
    /// True if the Deployment hubble-relay exists.
    pub relay: bool,
    /// True if the Deployment hubble-ui exists.
    pub ui: bool,
}

/// A Namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NamespaceSeen {
    /// clustermesh.cilium.io/global, if set.
    pub global: Option<String>,
    /// True if it has a deletion timestamp.
    pub deleting: bool,
}

/// A Service's namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceName {
    /// The Service's namespace.
    pub namespace: String,
    /// The Service's name.
    pub name: String,
}

/// A Service of a target.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServiceSeen {
    /// The UID, a precondition of writes.
    pub uid: String,
    /// The resourceVersion, a precondition of writes.
    pub resource_version: String,
    /// True for type ExternalName, which Cilium can't make global.
    pub external_name: bool,
    /// True if it has a deletion timestamp.
    pub deleting: bool,
    /// All labels, for selectors.
    pub labels: BTreeMap<String, String>,
    /// All annotations, with the field managers of each.
    pub annotations: BTreeMap<String, Held<String>>,
}

/// An EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceSeen {
    /// The Service that it belongs to.
    pub service: ServiceName,
    /// endpointslice.kubernetes.io/managed-by.
    pub managed_by: String,
    /// The target of each ready endpoint: the pod's UID, otherwise its address.
    pub ready: BTreeSet<String>,
}

/// A Cilium policy; cluster-wide if it has no namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyKey {
    /// The namespace; `None` for a cluster-wide policy.
    pub namespace: Option<String>,
    /// The policy's name.
    pub name: String,
}

/// A Cilium policy of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicySeen {
    /// The UID, a precondition of writes.
    pub uid: String,
    /// The resourceVersion, a precondition of writes.
    pub resource_version: String,
    /// True if it has a deletion timestamp.
    pub deleting: bool,
    /// All labels; ours show the intent that it belongs to.
    pub labels: BTreeMap<String, String>,
    /// The spec as found.
    pub spec: Value,
}

/// Features of the policy CRDs. `None` if the CRD does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PolicyCrds {
    /// CiliumNetworkPolicy.
    pub namespaced: Option<PolicyFeatures>,
    /// CiliumClusterwideNetworkPolicy.
    pub clusterwide: Option<PolicyFeatures>,
}

/// Fields that a policy CRD has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PolicyFeatures {
    /// True if it has `enableDefaultDeny`.
    pub default_deny: bool,
    /// True if it has `endPort`.
    pub end_port: bool,
}
