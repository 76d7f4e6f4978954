//! From files to what the planner takes, with a place for everything that is
//! wrong with them.

pub(crate) mod back_end;
pub(crate) mod cilium;
pub(crate) mod finding;
pub(crate) mod fleet;
pub(crate) mod meshes;
pub(crate) mod object;
mod register;
pub(crate) mod schema;
mod shape;
pub(crate) mod source;
pub(crate) mod tree;
mod typed;

#[cfg(test)]
mod fuzz;
