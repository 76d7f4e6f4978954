//! Kubernetes times as the core's.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use mw_core::time::Timestamp;

/// Converts a Kubernetes time, truncated to seconds.
pub fn timestamp(time: &Time) -> Timestamp {
    Timestamp(time.0.as_second())
}
