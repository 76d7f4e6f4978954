//! The precondition of a write.

/// The version of an object from which a change was planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Precondition {
    pub uid: Box<str>,
    pub resource_version: Box<str>,
}
