//! Index from an address to the cluster of a mesh that declared it. The
//! networks of an active mesh are disjoint, so one sorted list and a binary
//! search are enough.

use std::net::IpAddr;
use std::sync::Arc;

use crate::cidr::Cidr;
use crate::kilo::spec::MeshSpec;
use crate::names::ClusterName;

#[derive(Debug, Default)]
pub(super) struct DeclaredIndex {
    /// Sorted by network; IPv4 sorts before IPv6.
    networks: Vec<(Cidr, Arc<ClusterName>)>,
}

impl DeclaredIndex {
    pub(super) fn of(spec: &MeshSpec) -> DeclaredIndex {
        let mut networks = Vec::new();
        for (name, cluster) in &spec.clusters {
            let name = Arc::new(name.clone());
            networks.extend(cluster.networks.all().map(|cidr| (cidr, Arc::clone(&name))));
        }
        networks.sort();
        DeclaredIndex { networks }
    }

    pub(super) fn owner(&self, address: IpAddr) -> Option<&ClusterName> {
        let after = self
            .networks
            .partition_point(|(cidr, _)| cidr.first() <= address);
        let (cidr, name) = self.networks.get(after.checked_sub(1)?)?;
        cidr.contains_address(address).then_some(name)
    }

    /// The clusters with a network that overlaps `cidr`, each once.
    pub(super) fn owners(&self, cidr: Cidr) -> Vec<&ClusterName> {
        let mut found: Vec<&ClusterName> = self.owner(cidr.first()).into_iter().collect();
        let start = self
            .networks
            .partition_point(|(net, _)| net.first() <= cidr.first());
        let inside = self
            .networks
            .get(start..)
            .unwrap_or_default()
            .iter()
            .take_while(|(net, _)| net.first() <= cidr.last());
        found.extend(inside.map(|(_, name)| name.as_ref()));
        found.sort();
        found.dedup();
        found
    }
}
