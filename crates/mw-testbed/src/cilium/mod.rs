//! Cilium's control plane of a mesh, on a cluster of the testbed.
//!
//! Real are the processes that carry a mesh: an etcd with TLS, users and roles,
//! `clustermesh-apiserver clustermesh`, which fills it from the API server, and
//! `clustermesh-apiserver kvstoremesh`, which connects to the remotes by what
//! the two connection Secrets hold. What it says is the proof that the Secrets
//! are right.
//!
//! The testbed stands in for the rest: for Helm (the objects) and certgen (the
//! certificates), for the controllers (the status of those objects; nobody
//! schedules a pod), for the kubelet (Secrets become files, at once), for the
//! load balancer and node ports (addresses of loopback that lead to etcd), and
//! for the network between API server and pods. There are no agents and no
//! datapath. Without KVStoreMesh a kvstoremesh process reads the agents' volume
//! in their place: connecting to remotes is the same code in both. With it,
//! [`Cilium::agent_views`] says what they would find in their own cluster's etcd.

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

/// How Cilium is installed.
#[derive(Debug, Clone)]
pub struct CiliumSpec {
    /// cluster-name, if it is set.
    pub name: Option<String>,
    /// cluster-id, if it is set.
    pub id: Option<u32>,
    /// Who signs the certificates. Without one there are none, and the pods
    /// wait for them.
    pub ca: Option<Ca>,
    /// Whether Secret cilium-ca is there; with cert-manager it may not be.
    pub ca_secret: bool,
    /// Who is trusted besides the own CA, as client and as server.
    pub trusted: Vec<Ca>,
    pub kvstoremesh: bool,
    /// Whether the agents' volume offers local-etcd-client, as of charts newer
    /// than the program: its etcd knows no such user.
    pub local_client: bool,
    pub exposure: Exposure,
    /// Whether the server certificate is also for the addresses of the Service.
    pub covers_addresses: bool,
    /// The hostAliases of the pods that read remotes.
    pub host_aliases: BTreeMap<String, Ipv4Addr>,
    /// Names that the pods resolve without hostAliases.
    pub dns: BTreeMap<String, Ipv4Addr>,
    pub nodes: usize,
}

impl CiliumSpec {
    /// Whole, with KVStoreMesh and a load balancer whose address is in the
    /// certificate.
    pub fn new(name: &str, id: u32, ca: &Ca) -> Self {
        Self {
            name: Some(name.to_owned()),
            id: Some(id),
            ca: Some(ca.clone()),
            ca_secret: true,
            trusted: Vec::new(),
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

/// How a mesh's etcd is reached from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exposure {
    /// With none the load balancer is not ready yet.
    LoadBalancer {
        addresses: usize,
    },
    /// It has one address, but tells its name only.
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
