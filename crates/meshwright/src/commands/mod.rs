//! One file per command.

mod cilium_plan;
pub(crate) mod completions;
pub(crate) mod crd;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod explain;
mod live;
pub(crate) mod man;
pub(crate) mod operator;
pub(crate) mod plan;
mod process;
pub(crate) mod provider;
pub(crate) mod rbac;
pub(crate) mod status;
