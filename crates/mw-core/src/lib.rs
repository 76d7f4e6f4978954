//! The pure part of meshwright: computes the wanted state of every cluster from
//! specs and observed state. No I/O, no clock, no randomness, no logging; the
//! same input gives the same output, byte for byte.

#![warn(missing_docs)]

pub mod cidr;
pub mod cilium;
pub mod condition;
pub mod endpoint;
pub mod key;
pub mod kilo;
pub mod names;
pub mod precondition;
pub mod problem;
pub mod seen;
pub mod text;
pub mod time;
