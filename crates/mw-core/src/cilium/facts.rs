//! What was seen in one cluster, reduced to what the rules read. Certificates
//! arrive parsed; everything else as the texts that were found.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::cilium::secret::SecretBytes;
use crate::cilium::version::Version;
use crate::names::{CiliumName, NodeName};
use crate::seen::Seen;
use crate::time::Timestamp;

/// Our name among the field managers.
pub const MANAGER: &str = "meshwright";

/// One target cluster. `Known(None)` is: it is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSeen {
    /// Why it does not answer at the moment, or may not be read.
    pub silent: Option<Silence>,
    pub agents: Seen<Option<Agents>>,
    pub config: Seen<Option<Config>>,
    /// What this provider itself last read of the identity. It counts while
    /// `config` is unknown. A status is never its source.
    pub remembered: Option<Identity>,
    pub certificates: Seen<Certificates>,
    pub apiserver: Seen<Option<ApiServer>>,
    pub service: Seen<Option<MeshService>>,
    pub nodes: Seen<BTreeMap<NodeName, NodeAddresses>>,
    /// The two connection Secrets; one that is missing is not in the map.
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

/// Why a cluster can't be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Silence {
    /// It does not answer; it may again.
    Unreachable(String),
    /// It refuses us: verb and resource.
    Forbidden(String),
}

/// cluster-name and cluster-id, where they are set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    pub name: Option<CiliumName>,
    pub id: Option<u32>,
}

/// The ConfigMap cilium-config.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    pub resource_version: String,
    /// cluster-name, as it stands there.
    pub cluster_name: String,
    /// cluster-id, as it stands there.
    pub cluster_id: String,
    /// max-connected-clusters; Cilium's default where it is not given.
    pub max_clusters: u32,
    /// ENI or Alibaba Cloud IPAM, or chained to aws-cni: ids from 128 on are refused.
    pub small_ids: bool,
    /// When we set the name or the id, where it was us.
    pub set_by_us: Option<Timestamp>,
    /// clustermesh-default-global-namespace, which is on unless said otherwise.
    pub namespaces_global: bool,
}

/// The DaemonSet of Cilium's agents.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Agents {
    pub ready: u32,
    pub desired: u32,
    pub version: Option<Version>,
    /// The files that its clustermesh volume offers.
    pub client_files: BTreeSet<String>,
    /// The names that its pods resolve by hostAliases.
    pub host_aliases: BTreeSet<String>,
    /// When the oldest of its pods started.
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
    /// Its etcd has a user for each entry of the ConfigMap
    /// clustermesh-remote-users: authMode `migration` or `cluster`.
    pub cluster_users: bool,
    /// Its pods do not start without that ConfigMap.
    pub mounts_users: bool,
}

/// The ConfigMap that lists the etcd users of a clustermesh-apiserver besides
/// its own ones.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RemoteUsers {
    pub uid: String,
    pub resource_version: String,
    /// users.yaml; empty where there is none.
    pub text: String,
    /// Helm knows it for its own, and writes it anew at each upgrade.
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
    /// kubernetes.io/elb.id, where it is set.
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

/// What identifies a CA: made by whoever parsed it, equal for equal CAs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CaId(pub String);

/// The certificates that the mesh runs on. One whose Secret is there and can't
/// be understood is unknown: it is not absent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificates {
    /// The Secret cilium-ca.
    pub root: Seen<Option<RootCa>>,
    /// The credentials may not read cilium-ca, which only copying it needs.
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
    /// Not there where somebody else holds it, as cert-manager does.
    pub key: Option<SecretBytes>,
    /// The labels and annotations by which Helm knows it for its own.
    pub helm_labels: BTreeMap<String, String>,
    pub helm_annotations: BTreeMap<String, String>,
}

/// One Secret with tls.crt, tls.key and ca.crt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The CA that signed it.
    pub issuer: CaId,
    /// The CAs in ca.crt: one, or a bundle.
    pub trusts: BTreeSet<CaId>,
    pub common_name: String,
    /// DNS names and addresses it is valid for.
    pub names: Vec<String>,
    pub not_after: Timestamp,
    pub files: ClientFiles,
}

/// The three files of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFiles {
    pub ca: SecretBytes,
    pub certificate: SecretBytes,
    pub key: SecretBytes,
}

/// The Secrets whose keys become files in Cilium's clustermesh folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnectionSecret {
    /// Read by the agents.
    ClusterMesh,
    /// Read by KVStoreMesh.
    KvStoreMesh,
}

impl ConnectionSecret {
    pub const ALL: [ConnectionSecret; 2] = [ConnectionSecret::ClusterMesh, ConnectionSecret::KvStoreMesh];

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
    /// When we last wrote it.
    pub written: Option<Timestamp>,
}

/// A value in an object of others, and who manages it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held<T> {
    pub value: T,
    pub managers: BTreeSet<String>,
}

impl<T> Held<T> {
    /// Whether we hold it, alone or with others.
    pub fn is_ours(&self) -> bool {
        self.managers.contains(MANAGER)
    }

    /// The managers apart from us.
    pub fn others(&self) -> Vec<&str> {
        self.managers.iter().map(String::as_str).filter(|name| *name != MANAGER).collect()
    }

    /// Whether an unforced apply may set another value.
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
    /// clustermesh.cilium.io/global, where it is set.
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
    /// What stands behind each ready endpoint: the pod's UID, else its address.
    pub ready: BTreeSet<String>,
}

/// A policy of Cilium's; without a namespace it is cluster-wide.
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

/// What the policies' CRDs can express. `None`: there is no such CRD.
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
