//! The three kinds of the Cilium back end, and what its clusters hold.

pub(crate) mod dumps;
pub(crate) mod objects;
