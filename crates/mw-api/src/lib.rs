//! What Kubernetes stores for us and what of others we touch: the ClusterMesh
//! custom resource, Kilo's Peer, their conversions to and from the core's
//! types, and the generated CRD. Nothing here talks to an API server.

pub mod clustermesh;
pub mod convert;
pub mod crd;
mod lean;
pub mod node;
pub mod peer;
pub mod rbac;
