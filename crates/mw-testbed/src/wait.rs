//! Waiting for a state, never for a time.

use std::fmt::Display;
use std::future::Future;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

const PAUSE: Duration = Duration::from_millis(20);

/// Asks again until `check` is content or the deadline passes; the error then
/// carries the last reason. A check that hangs is cut off at the deadline too.
pub async fn eventually<T, E, F, Fut>(deadline: Duration, mut check: F) -> Result<T>
where
    E: Display,
    F: FnMut() -> Fut,
    Fut: Future<Output = std::result::Result<T, E>>,
{
    let start = Instant::now();
    let mut last = "the check never came to an end".to_string();
    loop {
        let left = deadline.saturating_sub(start.elapsed());
        match tokio::time::timeout(left, check()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(reason)) => last = reason.to_string(),
            Err(_) => return Err(Error::TimedOut { seconds: deadline.as_secs_f64(), last }),
        }
        // A check that never waits is never cut off.
        if left.is_zero() {
            return Err(Error::TimedOut { seconds: deadline.as_secs_f64(), last });
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_check_that_never_waits_is_not_repeated_for_ever() {
        let given_up = eventually(Duration::from_millis(50), || async { Err::<(), _>("never") }).await;
        assert!(given_up.is_err_and(|error| error.to_string().contains("never")));
    }
}
