//! The precondition of a write.

/// The version of an object from which a change was planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Precondition {
    /// The object's UID; a recreated object has another.
    pub uid: Box<str>,
    /// The object's resourceVersion when it was observed.
    pub resource_version: Box<str>,
}
