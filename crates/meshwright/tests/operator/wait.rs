//! Waits for states, and fails with the last observed one.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use mw_testbed::eventually;
use serde_json::Value;

/// Deadline for what takes a second or two on an idle machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(40);

/// Waits for a state, and fails the scenario with the last reason.
#[track_caller]
pub(crate) fn until<T, F, Fut>(what: impl Into<String>, check: F) -> impl Future<Output = T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, String>>,
{
    let (what, at) = (what.into(), std::panic::Location::caller());
    async move {
        eventually(DEADLINE, check)
            .await
            .unwrap_or_else(|error| panic!("{at}: {what}: {error}"))
    }
}

#[track_caller]
pub(crate) fn none<T: Debug>(found: &[T], message: &str) {
    assert!(found.is_empty(), "{message}: {found:#?}");
}

/// A condition of an object, or null.
pub(crate) fn condition(object: &Value, kind: &str) -> Value {
    let conditions = object["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    conditions
        .into_iter()
        .find(|condition| condition["type"] == kind)
        .unwrap_or_default()
}
