//! ClusterMeshes with their published status, for `meshwright status`.

use kube::core::{ApiResource, DynamicObject};
use mw_api::kilo::clustermesh::{ClusterMesh, ClusterMeshStatus};
use mw_core::names::MeshId;

use crate::kilo::LEASE_NAME;
use crate::kilo::record::Record;
use crate::published_status::Published;

/// A ClusterMesh with its published status.
#[derive(Debug, Clone, PartialEq)]
pub struct PublishedMesh {
    pub id: MeshId,
    pub generation: i64,
    pub deleting: bool,
    /// Clusters of the spec, in its order.
    pub clusters: Vec<String>,
    /// Reason why the spec can't be parsed.
    pub misread: Option<String>,
    pub status: ClusterMeshStatus,
}

impl Published for PublishedMesh {
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
        PublishedMesh {
            id: record.id().clone(),
            generation: record.generation(),
            deleting: record.deleted_at().is_some(),
            clusters: record
                .state
                .mesh
                .spec
                .clusters
                .iter()
                .map(|entry| entry.name.clone())
                .collect(),
            misread: record.misread,
            status: record.state.status,
        }
    }

    fn id(&self) -> MeshId {
        self.id.clone()
    }
}
