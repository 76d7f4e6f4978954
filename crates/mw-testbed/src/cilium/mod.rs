//! Cilium's mesh control plane on a cluster of the testbed.
//!
//! The processes of a mesh are real: an etcd with TLS, users and roles,
//! `clustermesh-apiserver clustermesh`, which fills it from the API server, and
//! `clustermesh-apiserver kvstoremesh`, which connects to the remotes with the two
//! connection Secrets. Its status proves that the Secrets are correct.
//!
//! The testbed replaces everything else: Helm (objects) and certgen (certificates), the
//! controllers (status of those objects; no pod is scheduled), the kubelet (Secrets
//! become files immediately), the load balancer and node ports (loopback addresses
//! forwarded to etcd), and the network between API server and pods. There are no agents
//! and no datapath. Without KVStoreMesh, a kvstoremesh process reads the agents' volume
//! instead of the agents: the code that connects to remotes is the same. With it,
//! [`Cilium::agent_views`] returns what the agents would find in their own cluster's
//! etcd.

mod agents;
mod certificates;
mod door;
mod etcd;
mod installation;
mod kubelet;
mod objects;
mod pod;
mod range;
mod status;
mod volume;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

pub use certificates::{Ca, Files};
pub use installation::Cilium;
pub use status::Remote;

/// Configuration of a Cilium installation.
#[derive(Debug, Clone)]
pub struct CiliumSpec {
    /// cluster-name, if set.
    pub name: Option<String>,
    /// cluster-id, if set.
    pub id: Option<u32>,
    /// CA of the certificates. Without it there are no certificates, and the pods wait
    /// for them.
    pub ca: Option<Ca>,
    /// True if the Secret cilium-ca exists; with cert-manager it may not.
    pub ca_secret: bool,
    /// Additional CAs that are trusted for clients and servers.
    pub trusted: Vec<Ca>,
    pub auth_mode: AuthMode,
    /// True if the chart renders ConfigMap clustermesh-remote-users, as charts up to 1.18
    /// do. With newer ones the pods wait until another client creates it.
    pub renders_users: bool,
    pub kvstoremesh: bool,
    /// True if the agents' volume contains local-etcd-client, like in newer charts. The
    /// etcd of this Cilium version has no such user.
    pub local_client: bool,
    pub exposure: Exposure,
    /// True if the server certificate also covers the addresses of the Service.
    pub covers_addresses: bool,
    /// hostAliases of the pods that read remotes.
    pub host_aliases: BTreeMap<String, Ipv4Addr>,
    /// Names that the pods resolve without hostAliases.
    pub dns: BTreeMap<String, Ipv4Addr>,
    pub nodes: usize,
}

impl CiliumSpec {
    /// Returns a complete installation with KVStoreMesh and a load balancer whose
    /// address is in the certificate.
    pub fn new(name: &str, id: u32, ca: &Ca) -> Self {
        Self {
            name: Some(name.to_owned()),
            id: Some(id),
            ca: Some(ca.clone()),
            ca_secret: true,
            trusted: Vec::new(),
            auth_mode: AuthMode::Legacy,
            renders_users: true,
            kvstoremesh: true,
            local_client: false,
            exposure: Exposure::LoadBalancer { addresses: 1 },
            covers_addresses: true,
            host_aliases: BTreeMap::new(),
            dns: BTreeMap::new(),
            nodes: 1,
        }
    }
}

/// `clustermesh.apiserver.tls.authMode` of the chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthMode {
    /// All readers authenticate as the etcd user `remote`.
    Legacy,
    /// Like `Legacy`, and ConfigMap clustermesh-remote-users lists more users.
    Migration,
    /// Like `Migration`, and this cluster reads others as `remote-<its name>`.
    Cluster,
}

/// External access to the etcd of a mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exposure {
    /// A load balancer with this many addresses; with none, it is not ready yet.
    LoadBalancer {
        addresses: usize,
    },
    /// A load balancer with one address, of which only the host name is published.
    LoadBalancerName(String),
    NodePort,
}

impl Exposure {
    fn addresses(&self) -> usize {
        match self {
            Self::LoadBalancer { addresses } => *addresses,
            Self::LoadBalancerName(_) => 1,
            Self::NodePort => 0,
        }
    }
}
