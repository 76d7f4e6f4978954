//! Time is always handed in: this crate has no clock.

/// Seconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp(pub i64);

impl Timestamp {
    pub fn plus(self, seconds: u64) -> Timestamp {
        Timestamp(self.0.saturating_add(i64::try_from(seconds).unwrap_or(i64::MAX)))
    }
}
