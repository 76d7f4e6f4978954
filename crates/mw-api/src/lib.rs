//! What Kubernetes stores for us and what of others we touch: our custom
//! resources, Kilo's Peer, Cilium's objects, their conversions to and from the
//! core's types, and the generated CRDs. Nothing here talks to an API server.

pub mod chart;
pub mod cilium;
pub mod clustermesh;
pub mod convert;
pub mod crd;
mod lean;
pub mod node;
pub mod peer;
pub mod rbac;
mod reference;
