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
    pub agents: Seen<Option<Agents>>,
    pub config: Seen<Option<Config>>,
    /// The identity that this provider last read itself, used while `config` is
    /// not known. Never taken from a status.
    pub remembered: Option<Identity>,
    pub certificates: Seen<Certificates>,
    pub apiserver: Seen<Option<ApiServer>>,
    pub service: Seen<Option<MeshService>>,
    pub nodes: Seen<BTreeMap<NodeName, NodeAddresses>>,
    /// The two connection Secrets; a missing one is not in the map.
    pub secrets: Seen<BTreeMap<ConnectionSecret, SecretSeen>>,
    /// The ConfigMap clustermesh-remote-users.
    pub users: Seen<Option<RemoteUsers>>,
    pub hubble: Seen<Hubble>,
    pub namespaces: Seen<BTreeMap<String, NamespaceSeen>>,
    pub services: Seen<BTreeMap<ServiceName, ServiceSeen>>,
    pub slices: Seen<Vec<SliceSeen>>,
    pub policies: Seen<BTreeMap<PolicyKey, PolicySeen>>,
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
    pub name: Option<CiliumName>,
    pub id: Option<u32>,
}

/// The ConfigMap cilium-config.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
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
    pub ready: u32,
    pub desired: u32,
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
    pub available: u32,
    pub kvstoremesh: bool,
    pub version: Option<Version>,
    pub client_files: BTreeSet<String>,
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
    pub uid: String,
    pub resource_version: String,
    /// users.yaml; empty if missing.
    pub text: String,
    /// True if Helm manages it and rewrites it at each upgrade.
    pub of_helm: bool,
}

/// The Service clustermesh-apiserver.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MeshService {
    pub resource_version: String,
    pub kind: String,
    pub ports: Vec<MeshPort>,
    pub ingress_ips: Vec<String>,
    pub ingress_hostnames: Vec<String>,
    /// kubernetes.io/elb.id, if set.
    pub elb_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MeshPort {
    pub name: String,
    pub port: u16,
    pub node_port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeAddresses {
    pub ready: bool,
    pub internal: Vec<String>,
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootCa {
    pub ca: CaId,
    pub certificate: SecretBytes,
    /// `None` if the Secret does not contain it, as with cert-manager.
    pub key: Option<SecretBytes>,
    /// The labels and annotations that mark it as managed by Helm.
    pub helm_labels: BTreeMap<String, String>,
    pub helm_annotations: BTreeMap<String, String>,
    pub not_after: Timestamp,
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
    pub common_name: String,
    /// DNS names and addresses for which it is valid.
    pub names: Vec<String>,
    pub not_after: Timestamp,
    /// Expiry of the first CA in ca.crt.
    pub ca_not_after: Timestamp,
    pub maker: Maker,
    pub files: ClientFiles,
}

/// The three files of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFiles {
    pub ca: SecretBytes,
    pub certificate: SecretBytes,
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
    pub const ALL: [ConnectionSecret; 2] =
        [ConnectionSecret::ClusterMesh, ConnectionSecret::KvStoreMesh];

    pub fn as_str(self) -> &'static str {
        match self {
            ConnectionSecret::ClusterMesh => "cilium-clustermesh",
            ConnectionSecret::KvStoreMesh => "cilium-kvstoremesh",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SecretSeen {
    pub uid: String,
    pub resource_version: String,
    pub keys: BTreeMap<String, Held<SecretBytes>>,
    /// The time of our last write.
    pub written: Option<Timestamp>,
    /// Expiry of the certificates under its keys.
    pub ends: BTreeMap<String, Timestamp>,
}

/// A value in an object that we share with others, and its field managers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held<T> {
    pub value: T,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hubble {
    pub relay: bool,
    pub ui: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NamespaceSeen {
    /// clustermesh.cilium.io/global, if set.
    pub global: Option<String>,
    pub deleting: bool,
}

/// A Service's namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceName {
    pub namespace: String,
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServiceSeen {
    pub uid: String,
    pub resource_version: String,
    pub external_name: bool,
    pub deleting: bool,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, Held<String>>,
}

/// An EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceSeen {
    pub service: ServiceName,
    /// endpointslice.kubernetes.io/managed-by.
    pub managed_by: String,
    /// The target of each ready endpoint: the pod's UID, otherwise its address.
    pub ready: BTreeSet<String>,
}

/// A Cilium policy; cluster-wide if it has no namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyKey {
    pub namespace: Option<String>,
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicySeen {
    pub uid: String,
    pub resource_version: String,
    pub deleting: bool,
    pub labels: BTreeMap<String, String>,
    pub spec: Value,
}

/// Features of the policy CRDs. `None` if the CRD does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PolicyCrds {
    pub namespaced: Option<PolicyFeatures>,
    pub clusterwide: Option<PolicyFeatures>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PolicyFeatures {
    pub default_deny: bool,
    pub end_port: bool,
}
