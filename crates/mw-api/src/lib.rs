//! Kubernetes objects that meshwright reads and writes: its own custom resources,
//! Kilo's Peer, Cilium's objects, their conversions to and from the core's types, and
//! the generated CRDs. Nothing here talks to an API server.

#![warn(missing_docs)]

pub mod chart;
pub mod cilium;
pub mod crd;
pub mod kilo;
mod lean;
pub mod node;
pub mod rbac;
mod reference;
pub mod time;
