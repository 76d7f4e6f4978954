//! ClusterMeshes as people ask about them.

use kube::core::{ApiResource, DynamicObject};
use mw_api::clustermesh::{ClusterMesh, ClusterMeshStatus};
use mw_core::names::MeshId;

use crate::glance::Glanced;
use crate::kilo::LEASE_NAME;
use crate::kilo::record::Record;

/// A ClusterMesh as people ask about it.
#[derive(Debug, Clone, PartialEq)]
pub struct MeshGlance {
    pub id: MeshId,
    pub generation: i64,
    pub deleting: bool,
    /// The clusters of the spec, in its order.
    pub clusters: Vec<String>,
    /// Why the spec can't be read.
    pub misread: Option<String>,
    pub status: ClusterMeshStatus,
}

impl Glanced for MeshGlance {
    type Kind = ();
    type Id = MeshId;
    const LEASE: &'static str = LEASE_NAME;
    const PLURAL: &'static str = "ClusterMeshes";

    fn kinds() -> &'static [()] {
        &[()]
    }

    fn resource((): ()) -> ApiResource {
        ApiResource::erase::<ClusterMesh>(&())
    }

    fn read((): (), object: DynamicObject) -> Self {
        let record = Record::read(&object);
        MeshGlance {
            id: record.id().clone(),
            generation: record.generation(),
            deleting: record.deleted_at().is_some(),
            clusters: record.mesh.spec.clusters.iter().map(|entry| entry.name.clone()).collect(),
            misread: record.misread,
            status: record.status,
        }
    }

    fn id(&self) -> MeshId {
        self.id.clone()
    }
}
