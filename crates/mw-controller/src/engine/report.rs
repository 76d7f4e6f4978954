//! Timing of statuses: they wait for each other, and a while for writes in flight.

use std::time::Duration;

use tokio::time::Instant;

use crate::engine::{Engine, Steps};

/// Longest delay of a status for writes in flight.
pub(crate) const WHILE_WRITING: Duration = Duration::from_secs(1);
/// Shortest time between two reports.
pub(crate) const BETWEEN: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// Time of the first change that is not reported yet.
    pub(crate) touched: Option<Instant>,
    pub(crate) reported_at: Option<Instant>,
    /// Time of the next report.
    pub(crate) due: Option<Instant>,
}

impl Reports {
    /// Returns the earliest time of the next report.
    pub(crate) fn earliest(&self) -> Option<Instant> {
        self.reported_at.map(|last| last + BETWEEN)
    }

    /// Returns when statuses that could not be written are retried.
    pub(crate) fn retry_at(&self, now: Instant) -> Option<Instant> {
        self.touched.map(|_| now + BETWEEN)
    }
}

impl<B: Steps> Engine<B> {
    /// Schedules an update of the status.
    pub(crate) fn touch_status(&mut self) {
        self.reports.touched.get_or_insert_with(Instant::now);
    }

    /// Exports which members are reachable, and their memory.
    pub(crate) fn measure_members(&self) {
        let metrics = &self.environment.metrics;
        for (id, member) in &self.members {
            metrics
                .reachable
                .get_or_create(&metrics.cluster(id))
                .set(i64::from(member.link.trouble().is_none()));
            metrics
                .cluster_memory
                .get_or_create(&metrics.cluster(id))
                .set(count(member.link.memory()));
        }
    }
}

/// Returns a number for a gauge or a status.
pub(crate) fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
