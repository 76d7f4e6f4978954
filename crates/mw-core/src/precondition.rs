//! What a write is conditional on.

/// An object as it was when the change was planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Precondition {
    pub uid: Box<str>,
    pub resource_version: Box<str>,
}
