//! The demonstration: clusters in this process, the operator on them, and a
//! story that is played to it. Arguments and printing are the command's.

pub(crate) mod fleet;
mod ledger;
pub(crate) mod story;
pub(crate) mod view;
