//! ClusterMeshes, and the dumps of their clusters.

pub(crate) mod dumps;
pub(crate) mod meshes;
