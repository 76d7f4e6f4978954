//! Simulated clusters in this process, the operator on them, and the steps of the demo. Arguments
//! and printing are in `commands::demo`.

pub(crate) mod fleet;
mod request_log;
pub(crate) mod story;
pub(crate) mod view;
