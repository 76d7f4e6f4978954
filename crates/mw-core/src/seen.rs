//! Observed state, or the reason why it is not known.
//!
//! Unknown is not empty: no rule may treat the two alike, so there is no
//! conversion to an `Option` or a default here.

/// Observed state of something remote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen<T> {
    /// The state as last observed.
    Known(T),
    /// The reason why it is not known, for users.
    Unknown(String),
}

impl<T> Seen<T> {
    /// The observed state; `None` if it is not known. Don't read `None` as
    /// empty.
    pub fn known(&self) -> Option<&T> {
        match self {
            Seen::Known(value) => Some(value),
            Seen::Unknown(_) => None,
        }
    }

    /// Like [`Seen::known`], to update the state in place.
    pub fn known_mut(&mut self) -> Option<&mut T> {
        match self {
            Seen::Known(value) => Some(value),
            Seen::Unknown(_) => None,
        }
    }

    /// The reason why the state is not known, for users; `None` if it is known.
    pub fn why_unknown(&self) -> Option<&str> {
        match self {
            Seen::Known(_) => None,
            Seen::Unknown(why) => Some(why),
        }
    }
}
