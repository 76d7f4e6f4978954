//! Objects of the Kilo back end: its custom resource, Kilo's Peer, Nodes, and their
//! conversions to and from the core's types.

pub mod clustermesh;
pub mod convert;
pub mod peer;
