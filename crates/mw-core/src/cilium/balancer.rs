//! The load balancer id that a KubernetesCluster names for its
//! clustermesh-apiserver: set on that Service if it has none, and never
//! removed.

use std::collections::BTreeMap;

use crate::cilium::finding::{Finding, Step};
use crate::cilium::membership::Mesh;
use crate::cilium::plan::ElbWrite;
use crate::cilium::world::World;
use crate::names::ClusterId;
use crate::problem::Reason;
use crate::text::quoted;

/// The writes; the oldest binding decides.
pub(super) fn writes(world: &World, meshes: &[Mesh<'_>]) -> BTreeMap<ClusterId, ElbWrite> {
    let mut writes = BTreeMap::new();
    for mesh in meshes {
        for (name, id) in mesh
            .binding
            .spec
            .elb_ids
            .iter()
            .filter(|(_, id)| is_uuid(id))
        {
            let Some(cluster) = mesh
                .binding
                .common
                .cluster(name)
                .filter(|_| mesh.binding.spec.refs.contains(name))
            else {
                continue;
            };
            let Some(seen) = world
                .clusters
                .get(cluster)
                .filter(|seen| seen.silent.is_none())
            else {
                continue;
            };
            if let Some(Some(service)) = seen.service.known()
                && service.elb_id.is_none()
            {
                let write = ElbWrite {
                    resource_version: service.resource_version.clone(),
                    id: id.clone(),
                };
                writes.entry(cluster.clone()).or_insert(write);
            }
        }
    }
    writes
}

/// The reason why the load balancer id of a ref is not used.
pub(super) fn refused(world: &World, mesh: &Mesh<'_>, name: &str) -> Option<Finding> {
    let id = mesh.binding.spec.elb_ids.get(name)?;
    if !is_uuid(id) {
        let text = format!("elb-id {} is not a UUID", quoted(id));
        return Some(
            Finding::remark(Step::ApiServer, Reason::ELBIDRefused, text)
                .hint("correct the annotation on the KubernetesCluster"),
        );
    }
    let service = world
        .clusters
        .get(mesh.binding.common.cluster(name)?)?
        .service
        .known()?
        .as_ref()?;
    let other = service.elb_id.as_ref().filter(|other| *other != id)?;
    let text = format!(
        "the Service has the load balancer {}, not {}",
        quoted(other),
        quoted(id)
    );
    Some(
        Finding::remark(Step::ApiServer, Reason::ELBIDRefused, text)
            .hint("remove annotation kubernetes.io/elb.id from the Service so that it can be set"),
    )
}

fn is_uuid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    lengths == [8, 4, 4, 4, 12]
        && groups
            .iter()
            .all(|group| group.bytes().all(|b| b.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_has_five_groups_of_hex_digits() {
        assert!(is_uuid("41fae315-2964-49c4-afde-bc6d358cd031"));
        for bad in [
            "",
            "41fae315",
            "41fae315-2964-49c4-afde-bc6d358cd03",
            "41fae315-2964-49c4-afde-bc6d358cd03g",
        ] {
            assert!(!is_uuid(bad), "{bad}");
        }
    }
}
