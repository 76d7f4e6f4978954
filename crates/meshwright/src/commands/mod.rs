//! One file per command.

pub(crate) mod cilium;
pub(crate) mod completions;
pub(crate) mod crd;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod explain;
mod kcp;
pub(crate) mod kilo;
mod live;
pub(crate) mod man;
pub(crate) mod plan;
mod process;
pub(crate) mod rbac;
pub(crate) mod status;
