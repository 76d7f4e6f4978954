//! The only source of wall clock time. Durations are measured with tokio's
//! monotonic clock instead.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use k8s_openapi::jiff;
use mw_core::time::Timestamp;

#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> jiff::Timestamp + Send + Sync>);

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

impl Clock {
    pub fn new(read: impl Fn() -> jiff::Timestamp + Send + Sync + 'static) -> Clock {
        Clock(Arc::new(read))
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the one place where the wall clock is read"
    )]
    pub fn system() -> Clock {
        Clock::new(jiff::Timestamp::now)
    }

    pub fn now(&self) -> Timestamp {
        Timestamp((self.0)().as_second())
    }

    pub fn time(&self) -> Time {
        // metav1.Time has a resolution of one second.
        let now = (self.0)();
        Time(jiff::Timestamp::from_second(now.as_second()).unwrap_or(now))
    }

    pub fn micro_time(&self) -> MicroTime {
        MicroTime((self.0)())
    }
}
