//! Permission to write, valid while this process certainly holds the Lease.
//! Checked right before every write, so that a process that was suspended stops
//! at its next request.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

use crate::lease::{LEASE_DURATION, RENEW_DEADLINE};

#[derive(Debug, Clone)]
pub struct Permit(Arc<Mutex<Until>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// No leader election.
    Forever,
    Never,
    Moment(Instant),
}

impl Permit {
    /// Returns a permit for a process without leader election.
    pub fn always() -> Permit {
        Permit(Arc::new(Mutex::new(Until::Forever)))
    }

    /// Returns a permit for a process that has not acquired the Lease yet.
    pub fn none() -> Permit {
        Permit(Arc::new(Mutex::new(Until::Never)))
    }

    pub fn extend(&self, until: Option<Instant>) {
        *self.lock() = until.map_or(Until::Never, Until::Moment);
    }

    pub fn holds(&self) -> bool {
        match *self.lock() {
            Until::Forever => true,
            Until::Never => false,
            Until::Moment(until) => Instant::now() < until,
        }
    }

    /// Returns when a write that starts now must have ended, because another
    /// process may become leader then.
    pub fn writes_end(&self) -> Option<Instant> {
        match *self.lock() {
            Until::Forever => None,
            Until::Never => Some(Instant::now()),
            Until::Moment(until) => Some(until + LEASE_DURATION.saturating_sub(RENEW_DEADLINE)),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Until> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_permit_ends_by_itself() {
        let permit = Permit::none();
        assert!(!permit.holds());
        permit.extend(Some(Instant::now() + Duration::from_secs(10)));
        assert!(permit.holds());
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(!permit.holds());
        assert!(Permit::always().holds());
    }
}
