//! Exponential backoff with jitter, never shorter than the server asked for.

use std::time::Duration;

#[derive(Debug, Clone)]
pub struct Backoff {
    random: fastrand::Rng,
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    pub fn new(random: fastrand::Rng, first: Duration, longest: Duration) -> Backoff {
        Backoff {
            random,
            first,
            longest,
            failures: 0,
        }
    }

    /// Returns the backoff of watches: 200 ms to 10 s.
    pub fn of_watch(random: fastrand::Rng) -> Backoff {
        Backoff::new(random, Duration::from_millis(200), Duration::from_secs(10))
    }

    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Returns the number of consecutive failures.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Returns the next delay: between half of the current step and all of it.
    pub fn next(&mut self, asked: Option<Duration>) -> Duration {
        let step = self
            .first
            .saturating_mul(1 << self.failures.min(16))
            .min(self.longest);
        self.failures = self.failures.saturating_add(1);
        let wait = step / 2 + (step / 2).mul_f64(self.random.f64());
        wait.max(asked.unwrap_or_default().min(self.longest * 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_limit_and_start_again() {
        let mut backoff = Backoff::new(
            fastrand::Rng::with_seed(1),
            Duration::from_millis(100),
            Duration::from_secs(2),
        );
        let waits: Vec<Duration> = (0..8).map(|_| backoff.next(None)).collect();
        for (at, wait) in waits.iter().enumerate() {
            let step = Duration::from_millis(100 << at).min(Duration::from_secs(2));
            assert!(*wait >= step / 2 && *wait <= step, "{at}: {wait:?}");
        }
        backoff.reset();
        assert!(backoff.next(None) <= Duration::from_millis(100));
        assert_eq!(
            backoff.next(Some(Duration::from_secs(3))),
            Duration::from_secs(3)
        );
    }
}
