//! A mesh and how it is handled.

use crate::kilo::mesh::ActiveMesh;
use crate::names::MeshId;

/// A mesh and how it is handled.
#[derive(Debug)]
pub(super) struct MeshState {
    pub(super) id: MeshId,
    pub(super) mode: MeshMode,
}

#[derive(Debug)]
pub(super) enum MeshMode {
    Active(Box<ActiveMesh>),
    Deleting,
    /// Invalid or rejected: its Peers are left unchanged.
    HeldBack,
}

impl MeshState {
    pub(super) fn active(&self) -> Option<&ActiveMesh> {
        match &self.mode {
            MeshMode::Active(mesh) => Some(mesh),
            _ => None,
        }
    }
}

/// Looks up a mesh in the list, which is sorted by id; the position identifies
/// the mesh.
pub(super) fn mesh_at<'a>(meshes: &'a [MeshState], id: &MeshId) -> Option<(usize, &'a MeshState)> {
    let at = meshes.binary_search_by(|mesh| mesh.id.cmp(id)).ok()?;
    Some((at, meshes.get(at)?))
}
