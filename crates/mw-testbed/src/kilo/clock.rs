//! The agents' time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// All agents of a fleet have the same one: they compare what others wrote
/// with their own time.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    started: Instant,
    epoch: Duration,
    speed: u32,
}

impl Clock {
    /// So many of its seconds are one of ours.
    pub fn new(speed: u32) -> Self {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started: Instant::now(), epoch, speed }
    }

    /// As agents write it.
    pub fn unix_seconds(&self) -> u64 {
        (self.epoch + self.started.elapsed() * self.speed).as_secs()
    }

    /// How long one of its durations is for us.
    pub fn real(&self, duration: Duration) -> Duration {
        duration / self.speed
    }
}
