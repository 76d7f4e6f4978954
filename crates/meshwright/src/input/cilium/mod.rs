//! The three kinds of the Cilium back end, and the dumps of its clusters.

pub(crate) mod dumps;
pub(crate) mod objects;
