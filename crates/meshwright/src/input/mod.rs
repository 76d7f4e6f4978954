//! From files to what the planner takes, with a place for everything that is
//! wrong with them.

pub(crate) mod finding;
pub(crate) mod fleet;
pub(crate) mod meshes;
mod object;
mod schema;
pub(crate) mod source;
pub(crate) mod tree;
mod typed;

#[cfg(test)]
mod fuzz;
