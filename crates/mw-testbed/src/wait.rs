//! Polling for a state instead of sleeping.

use std::fmt::Display;
use std::future::Future;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

const PAUSE: Duration = Duration::from_millis(20);

/// Retries until `check` succeeds or the deadline passes. The error then contains the
/// last reason. A check that hangs is cancelled at the deadline.
pub async fn eventually<T, E, F, Fut>(deadline: Duration, mut check: F) -> Result<T>
where
    E: Display,
    F: FnMut() -> Fut,
    Fut: Future<Output = std::result::Result<T, E>>,
{
    let start = Instant::now();
    let mut last = "the check did not finish".to_string();
    loop {
        let left = deadline.saturating_sub(start.elapsed());
        match tokio::time::timeout(left, check()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(reason)) => last = reason.to_string(),
            Err(_) => {
                return Err(Error::TimedOut {
                    seconds: deadline.as_secs_f64(),
                    last,
                });
            }
        }
        // A check that never awaits can't be cancelled.
        if left.is_zero() {
            return Err(Error::TimedOut {
                seconds: deadline.as_secs_f64(),
                last,
            });
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_check_that_never_waits_is_not_repeated_for_ever() {
        let given_up = eventually(Duration::from_millis(50), || async {
            Err::<(), _>("never")
        })
        .await;
        assert!(given_up.is_err_and(|error| error.to_string().contains("never")));
    }
}
