//! Observed state, or the reason why it is not known.
//!
//! Unknown is not empty: no rule may treat the two alike, so there is no
//! conversion to an `Option` or a default here.

/// Observed state of something remote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen<T> {
    Known(T),
    /// The reason why it is not known, for users.
    Unknown(String),
}

impl<T> Seen<T> {
    pub fn known(&self) -> Option<&T> {
        match self {
            Seen::Known(value) => Some(value),
            Seen::Unknown(_) => None,
        }
    }

    pub fn known_mut(&mut self) -> Option<&mut T> {
        match self {
            Seen::Known(value) => Some(value),
            Seen::Unknown(_) => None,
        }
    }

    pub fn why_unknown(&self) -> Option<&str> {
        match self {
            Seen::Known(_) => None,
            Seen::Unknown(why) => Some(why),
        }
    }
}
