//! Bindings that are reconciled, their members, and the components that the
//! members form.

use std::collections::BTreeSet;

use crate::cilium::object::Binding;
use crate::cilium::world::World;
use crate::names::ClusterId;
use crate::problem::{Problem, Reason};
use crate::text::quoted;

/// The way to reach a remote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reach {
    LoadBalancer,
    NodePort,
}

impl Reach {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Reach::LoadBalancer => "LoadBalancer",
            Reach::NodePort => "NodePort",
        }
    }
}

/// A valid binding.
#[derive(Debug)]
pub(super) struct Mesh<'a> {
    pub(super) binding: &'a Binding,
    pub(super) reach: Reach,
}

impl<'a> Mesh<'a> {
    /// The clusters that its refs resolve to, each once.
    pub(super) fn members(&self) -> BTreeSet<&'a ClusterId> {
        self.binding
            .spec
            .refs
            .iter()
            .filter_map(|name| self.binding.common.cluster(name))
            .collect()
    }

    /// Reports whether every ref resolves to a cluster.
    pub(super) fn is_resolved(&self) -> bool {
        self.binding
            .spec
            .refs
            .iter()
            .all(|name| self.binding.common.cluster(name).is_some())
    }

    /// Reports whether it is known for every ref which cluster it leads to, or
    /// that it leads to none.
    pub(super) fn is_complete(&self) -> bool {
        let common = &self.binding.common;
        self.binding
            .spec
            .refs
            .iter()
            .all(|name| common.cluster(name).is_some() || common.is_revoked(name))
    }

    /// The members, and the clusters to which access is lost.
    pub(super) fn involved(&self) -> BTreeSet<&'a ClusterId> {
        self.members()
            .into_iter()
            .chain(self.binding.common.lost.values())
            .collect()
    }

    /// Reports whether it is known which clusters its refs lead or led to.
    pub(super) fn is_known(&self) -> bool {
        let common = &self.binding.common;
        let known = |name: &String| {
            common.cluster(name).is_some()
                || common.is_revoked(name)
                || common.lost.contains_key(name)
        };
        self.binding.spec.refs.iter().all(known)
    }

    /// The ref of this mesh that leads to the cluster; the first by name if
    /// there are several.
    pub(super) fn ref_of(&self, cluster: &ClusterId) -> Option<&'a str> {
        let refs = self.binding.spec.refs.iter().map(String::as_str);
        refs.filter(|name| self.binding.common.cluster(name) == Some(cluster))
            .min()
    }
}

/// Validates a binding's spec.
pub(super) fn validate(binding: &Binding) -> Result<Reach, Vec<Problem>> {
    let mut wrong = Vec::new();
    let mut refuse = |path: &str, message: String, hint: &str| {
        wrong.push(Problem::new(Reason::InvalidSpec, path, message, hint))
    };
    let refs = &binding.spec.refs;
    let names: BTreeSet<&String> = refs.iter().collect();
    if refs.len() < 2 {
        refuse(
            "spec.clusterRefs",
            format!("lists {} cluster(s)", refs.len()),
            "a mesh connects at least two clusters",
        );
    }
    if names.len() < refs.len() {
        refuse(
            "spec.clusterRefs",
            "lists a cluster twice".to_owned(),
            "list every cluster once",
        );
    }
    if names.iter().any(|name| name.is_empty()) {
        refuse(
            "spec.clusterRefs",
            "has an entry without a name".to_owned(),
            "set a name in every entry",
        );
    }
    let reach = match binding.spec.service_type.as_deref() {
        None | Some("LoadBalancer") => Reach::LoadBalancer,
        Some("NodePort") => Reach::NodePort,
        Some(other) => {
            refuse(
                "spec.meshConfig.serviceType",
                format!("{} is not a valid value", quoted(other)),
                "use LoadBalancer or NodePort",
            );
            Reach::LoadBalancer
        }
    };
    if wrong.is_empty() {
        Ok(reach)
    } else {
        Err(wrong)
    }
}

/// The valid bindings, the oldest first.
pub(super) fn meshes(world: &World) -> Vec<Mesh<'_>> {
    let active = world
        .bindings
        .values()
        .filter(|binding| binding.common.deleting.is_none());
    let mut meshes: Vec<Mesh<'_>> = active
        .filter_map(|binding| validate(binding).ok().map(|reach| Mesh { binding, reach }))
        .collect();
    meshes.sort_by_key(|mesh| mesh.binding.common.age());
    meshes
}

/// Clusters that are connected, directly or through others.
#[derive(Debug, Default)]
pub(super) struct Component<'a> {
    pub(super) clusters: BTreeSet<&'a ClusterId>,
    /// True if a ref of one of its bindings is not resolved, so that not all
    /// members are known.
    pub(super) incomplete: bool,
}

/// Groups the clusters; every cluster is in exactly one component.
pub(super) fn components<'a>(meshes: &[Mesh<'a>]) -> Vec<Component<'a>> {
    let mut components: Vec<Component<'a>> = Vec::new();
    for mesh in meshes {
        let mut merged = Component {
            clusters: mesh.members(),
            incomplete: !mesh.is_complete(),
        };
        let (joined, apart): (Vec<_>, Vec<_>) = components
            .into_iter()
            .partition(|other| !other.clusters.is_disjoint(&merged.clusters));
        for other in joined {
            merged.clusters.extend(other.clusters);
            merged.incomplete |= other.incomplete;
        }
        components = apart;
        components.push(merged);
    }
    components
}

/// Clusters to which an invalid binding may have written: nothing is removed
/// there.
pub(super) fn untouchable(world: &World) -> BTreeSet<&ClusterId> {
    let broken = world
        .bindings
        .values()
        .filter(|binding| binding.common.deleting.is_none() && validate(binding).is_err());
    broken
        .flat_map(|binding| {
            named_or_touched(binding)
                .into_iter()
                .chain(binding.common.lost.values())
        })
        .collect()
}

/// The clusters that a binding names or has written to.
pub(super) fn named_or_touched(binding: &Binding) -> BTreeSet<&ClusterId> {
    binding
        .spec
        .refs
        .iter()
        .chain(&binding.common.touched)
        .filter_map(|name| binding.common.cluster(name))
        .collect()
}
