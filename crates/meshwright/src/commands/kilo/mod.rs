//! Commands of the Kilo back end.

pub(crate) mod operator;
