//! State shared by the parts of the planner.

use std::collections::{BTreeMap, BTreeSet};

use crate::cilium::identity::Identities;
use crate::cilium::link::Links;
use crate::cilium::membership::Mesh;
use crate::cilium::plan::TargetPlan;
use crate::cilium::world::World;
use crate::names::ClusterId;
use crate::text::printable;

/// A ref is any text written by a tenant.
const LONGEST_REF: usize = 253;

#[derive(Debug)]
pub(super) struct Context<'a> {
    pub(super) world: &'a World,
    /// The valid bindings, the oldest first.
    pub(super) meshes: Vec<Mesh<'a>>,
    pub(super) identities: Identities,
    pub(super) links: Links,
    /// The clusters where nothing is removed, because an invalid binding may
    /// have written there.
    pub(super) untouchable: BTreeSet<&'a ClusterId>,
}

/// The writes collected so far.
pub(super) type Targets = BTreeMap<ClusterId, TargetPlan>;

impl Context<'_> {
    /// The rank of a binding by age.
    pub(super) fn rank(&self, mesh: &Mesh<'_>) -> usize {
        self.meshes
            .iter()
            .position(|of| of.binding.common.id == mesh.binding.common.id)
            .unwrap_or(usize::MAX)
    }

    /// A ref, with the Cilium name if it differs.
    pub(super) fn shown(&self, mesh: &Mesh<'_>, name: &str) -> String {
        let cilium = mesh
            .binding
            .common
            .cluster(name)
            .and_then(|cluster| self.identities.name(cluster));
        let shown = printable(name, LONGEST_REF);
        match cilium.filter(|cilium| cilium.as_str() != name) {
            Some(cilium) => format!("{shown} (Cilium name {cilium})"),
            None => shown,
        }
    }
}
