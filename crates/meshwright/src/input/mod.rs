//! Reads files into planner input, and reports every error with its place in the file.

pub(crate) mod back_end;
pub(crate) mod cilium;
pub(crate) mod finding;
pub(crate) mod kilo;
pub(crate) mod object;
mod register;
pub(crate) mod schema;
mod shape;
pub(crate) mod source;
pub(crate) mod tree;
mod typed;

#[cfg(test)]
mod fuzz;
