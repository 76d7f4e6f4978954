//! Accelerated time of agents.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A clock shared by all agents of a fleet: they compare timestamps of others with
/// their own time.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    started: Instant,
    epoch: Duration,
    speed: u32,
}

impl Clock {
    /// Creates a clock that runs this many times faster than real time.
    pub fn new(speed: u32) -> Self {
        let epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            started: Instant::now(),
            epoch,
            speed,
        }
    }

    /// Returns the time as agents write it.
    pub fn unix_seconds(&self) -> u64 {
        (self.epoch + self.started.elapsed() * self.speed).as_secs()
    }

    /// Converts a duration of this clock to real time.
    pub fn real(&self, duration: Duration) -> Duration {
        duration / self.speed
    }
}
