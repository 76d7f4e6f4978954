//! Creates a missing cilium-ca as a copy from another cluster of the same
//! binding, so that certificates issued with it are trusted everywhere. An
//! existing one is never overwritten.

use std::collections::BTreeMap;

use crate::cilium::facts::{Certificate, Certificates, ClusterSeen, RootCa};
use crate::cilium::membership::Mesh;
use crate::cilium::plan::CaCreate;
use crate::cilium::world::World;
use crate::names::ClusterId;
use crate::seen::Seen;

/// The CAs to create, by cluster. The oldest binding decides.
pub(super) fn creations(world: &World, meshes: &[Mesh<'_>]) -> BTreeMap<ClusterId, CaCreate> {
    let mut creations = BTreeMap::new();
    if !world.options.sync_ca {
        return creations;
    }
    for mesh in meshes {
        let Some((from, root)) = source(world, mesh) else {
            continue;
        };
        let Some(key) = &root.key else { continue };
        for target in mesh
            .members()
            .into_iter()
            .filter(|target| is_of_one_owner(world, from, target))
        {
            let lacking =
                readable(world, target).is_some_and(|certificates| may_have(certificates, root));
            if lacking {
                let create = CaCreate {
                    from: from.clone(),
                    certificate: root.certificate.clone(),
                    key: key.clone(),
                    labels: root.helm_labels.clone(),
                    annotations: root.helm_annotations.clone(),
                };
                creations.entry(target.clone()).or_insert(create);
            }
        }
    }
    creations
}

/// The key of a CA is never copied to another owner's cluster.
fn is_of_one_owner(world: &World, one: &ClusterId, other: &ClusterId) -> bool {
    let owner = |cluster: &ClusterId| world.origins.get(cluster).map(|origin| &origin.owner);
    owner(one) == owner(other)
}

/// The first ref, in the order of the spec, whose CA can be copied.
fn source<'a>(world: &'a World, mesh: &Mesh<'a>) -> Option<(&'a ClusterId, &'a RootCa)> {
    let clusters = mesh
        .binding
        .spec
        .refs
        .iter()
        .filter_map(|name| mesh.binding.common.cluster(name));
    let roots = clusters.filter_map(|id| Some((id, readable(world, id)?.root.known()?.as_ref()?)));
    let mut with_key = roots.filter(|(_, root)| root.key.is_some());
    with_key.next()
}

fn readable<'a>(world: &'a World, cluster: &ClusterId) -> Option<&'a Certificates> {
    let seen: &ClusterSeen = world.clusters.get(cluster)?;
    seen.certificates.known().filter(|_| seen.silent.is_none())
}

/// Reports whether the cluster has no CA, and no certificate that another CA
/// issued or may have issued.
fn may_have(certificates: &Certificates, root: &RootCa) -> bool {
    let Certificates {
        root: own,
        root_withheld: _,
        server,
        remote,
        local,
    } = certificates;
    let of_it = |seen: &Seen<Option<Certificate>>| {
        seen.known()
            .is_some_and(|of| of.as_ref().is_none_or(|of| of.issuer == root.ca))
    };
    *own == Seen::Known(None) && [server, remote, local].into_iter().all(of_it)
}
