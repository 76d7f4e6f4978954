//! The spec of a ClusterMesh, as declared and as validated. After `validate`, the
//! raw form is not used again.

mod validate;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::cidr::{Cidr, Family};
use crate::kilo::guard::HeldLine;
use crate::kilo::node::EndpointFrom;
use crate::names::{ClusterName, MeshId, NodeName};
use crate::time::Timestamp;

pub use validate::{Validated, duration_seconds, validate};

/// A ClusterMesh on the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mesh {
    /// Its namespace and name.
    pub id: MeshId,
    /// The creation time: the older mesh wins conflicts.
    pub created: Option<Timestamp>,
    /// True if it has a deletion timestamp.
    pub deleting: bool,
    /// The hash with which the user confirmed held deletes.
    pub confirm_deletes: Option<String>,
    /// Changes held by the previous plan. Deletes stay held until they are
    /// confirmed or explained: Peers that are created meanwhile must not lower
    /// their percentage.
    pub held: BTreeSet<HeldLine>,
    /// The anchors of the previous plan. They count if no Peer shows the anchor
    /// any more, e.g. between a delete and the following write.
    pub anchors: BTreeMap<ClusterName, NodeName>,
    /// The UID of a former hub whose Peers this mesh takes over.
    pub take_over_hub: Option<String>,
    /// The spec as declared, unvalidated.
    pub spec: RawSpec,
    /// The last spec that was reconciled. It stays in effect if `spec` overlaps
    /// with another mesh.
    pub running: Option<MeshSpec>,
    /// True if `running` was read from the status, not decided by this process.
    pub recalled: bool,
}

/// The spec of a ClusterMesh as declared. [`validate`] turns it into a
/// [`MeshSpec`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawSpec {
    /// The members, in the declared order.
    pub clusters: Vec<RawCluster>,
    /// A duration such as `10m`; `None` for the default.
    pub cleanup_timeout: Option<String>,
    /// Percentage from 0 to 100; `None` for the default.
    pub max_delete_percent: Option<i64>,
}

/// A member as declared.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawCluster {
    /// The name in the mesh.
    pub name: String,
    /// True if the member is the hub itself.
    pub local: bool,
    /// The Secret with a kubeconfig; required unless `local`.
    pub kubeconfig_secret: Option<SecretRef>,
    /// Networks of pods; `None` in the flat form.
    pub pod_cidrs: Option<Vec<String>>,
    /// Network of WireGuard addresses; `None` in the flat form.
    pub wireguard_cidr: Option<String>,
    /// Network of Services.
    pub service_cidr: Option<String>,
    /// Other networks behind the cluster's nodes.
    pub additional_cidrs: Option<Vec<String>>,
    /// The flat form: one list instead of the four fields above.
    pub allowed_networks: Option<Vec<String>>,
    /// The port for an ExternalIP; `None` for the default.
    pub wireguard_port: Option<i64>,
    /// Interval in seconds; `None` or 0 for no keepalives.
    pub persistent_keepalive: Option<i64>,
    /// The Node label that names a location; `None` for the default.
    pub topology_label: Option<String>,
    /// The name of an [`EndpointFrom`]; `None` for the default.
    pub endpoint_from: Option<String>,
}

/// A Secret in the namespace of the ClusterMesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretRef {
    /// The Secret's name.
    pub name: String,
    /// The key in its data; `None` to look for the common ones.
    pub key: Option<String>,
}

/// A valid spec, with all defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshSpec {
    /// The members by name.
    pub clusters: BTreeMap<ClusterName, ClusterSpec>,
    /// Time after which a deleted mesh stops waiting for a cluster that does
    /// not answer.
    pub cleanup_timeout_seconds: u64,
    /// Share of a source's Peers on a target that may be deleted without a
    /// known reason, from 0 to 100.
    pub max_delete_percent: u8,
}

/// A valid member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSpec {
    /// Position in `spec.clusters`, used in messages.
    pub index: usize,
    /// True if the member is the hub itself.
    pub local: bool,
    /// The Secret with a kubeconfig; `None` if `local`.
    pub kubeconfig_secret: Option<SecretRef>,
    /// The networks that other clusters may route to it.
    pub networks: Networks,
    /// The port of endpoints made of an ExternalIP.
    pub wireguard_port: u16,
    /// Interval in seconds; 0 for no keepalives.
    pub keepalive: u16,
    /// The Node label that names a location.
    pub topology_label: String,
    /// Policy for endpoints that Kilo detected.
    pub endpoint_from: EndpointFrom,
}

/// Networks that a cluster may route, in one of the two forms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Networks {
    /// One field for each kind of network.
    Typed {
        /// Pod CIDRs of nodes must be inside one of these.
        pods: Vec<Cidr>,
        /// WireGuard addresses of nodes must be inside.
        wireguard: Cidr,
        /// Carried by the anchor as a whole.
        service: Option<Cidr>,
        /// Carried by the anchor as a whole. Addresses of nodes inside get a
        /// host route of their own.
        additional: Vec<Cidr>,
    },
    /// One list for all kinds of networks.
    Flat(Vec<Cidr>),
}

/// Kilo's default.
pub const DEFAULT_WIREGUARD_PORT: u16 = 51820;
/// Kilo's default.
pub const DEFAULT_TOPOLOGY_LABEL: &str = "topology.kubernetes.io/region";
/// Ten minutes.
pub const DEFAULT_CLEANUP_TIMEOUT_SECONDS: u64 = 600;
/// Half of a source's Peers on a target.
pub const DEFAULT_MAX_DELETE_PERCENT: u8 = 50;
/// Limit for the members of a mesh.
pub const MOST_CLUSTERS: usize = 1024;
/// Limit for each list of networks, also in the CRD.
pub const MOST_CIDRS: usize = 64;

impl Networks {
    /// Every declared network.
    pub fn all(&self) -> impl Iterator<Item = Cidr> + '_ {
        let (one, two, rest): (&[Cidr], [Option<Cidr>; 2], &[Cidr]) = match self {
            Networks::Typed {
                pods,
                wireguard,
                service,
                additional,
            } => (pods, [Some(*wireguard), *service], additional),
            Networks::Flat(list) => (list, [None, None], &[]),
        };
        one.iter()
            .copied()
            .chain(two.into_iter().flatten())
            .chain(rest.iter().copied())
    }

    /// The path in the cluster's entry at which a network is declared.
    pub fn path_of(&self, cidr: Cidr) -> Option<String> {
        let numbered = |field: &str, list: &[Cidr]| {
            list.iter()
                .position(|net| *net == cidr)
                .map(|at| format!("{field}[{at}]"))
        };
        match self {
            Networks::Typed {
                pods,
                wireguard,
                service,
                additional,
            } => numbered("podCIDRs", pods)
                .or_else(|| (*wireguard == cidr).then(|| "wireguardCIDR".to_owned()))
                .or_else(|| (*service == Some(cidr)).then(|| "serviceCIDR".to_owned()))
                .or_else(|| numbered("additionalCIDRs", additional)),
            Networks::Flat(list) => numbered("allowedNetworks", list),
        }
    }

    /// Reports whether a node may have this pod CIDR.
    pub(super) fn allows_pods(&self, cidr: Cidr) -> bool {
        match self {
            Networks::Typed { pods, .. } => pods.iter().any(|net| net.contains(cidr)),
            Networks::Flat(list) => list.iter().any(|net| net.contains(cidr)),
        }
    }

    /// Reports whether a node may have this WireGuard address.
    pub(super) fn allows_wireguard(&self, address: IpAddr) -> bool {
        match self {
            Networks::Typed { wireguard, .. } => wireguard.contains_address(address),
            Networks::Flat(list) => list.iter().any(|net| net.contains_address(address)),
        }
    }

    /// The IP family of the declared WireGuard network; of the first network if
    /// the entry does not declare a WireGuard network.
    pub(super) fn wireguard_family(&self) -> Option<Family> {
        let network = match self {
            Networks::Typed { wireguard, .. } => Some(wireguard),
            Networks::Flat(list) => list.iter().min(),
        };
        network.map(|network| Family::of(network.first()))
    }

    /// Reports whether a node's own address is declared to be reachable through
    /// the mesh.
    pub(super) fn declares_internal(&self, address: IpAddr) -> bool {
        match self {
            Networks::Typed { additional, .. } => {
                additional.iter().any(|net| net.contains_address(address))
            }
            Networks::Flat(list) => list.iter().any(|net| net.contains_address(address)),
        }
    }
}
