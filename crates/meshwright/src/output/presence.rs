//! Credibility of a status: whether a process maintains it, and whether it refers to the current
//! spec.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use mw_controller::published_status::{Published, PublishedLease, PublishedStatus};
use mw_core::condition::READY;
use mw_core::text::printable;
use mw_core::time::Timestamp;

use crate::output::layout::{mean, styled};

/// Reasons that only the output has.
pub(crate) const NO_STATUS: &str = "NoStatus";
pub(crate) const SPEC_CHANGED: &str = "SpecChanged";
pub(crate) const STALE: &str = "Stale";

/// Readiness, as far as the status can be trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) ready: bool,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) since: Option<Time>,
}

/// A status, and the generations of status and spec.
#[derive(Debug)]
pub(crate) struct Told<'a> {
    pub(crate) conditions: &'a [Condition],
    /// Generation that the status refers to.
    pub(crate) of: Option<i64>,
    /// Generation of the spec.
    pub(crate) generation: i64,
    pub(crate) deleting: bool,
}

impl Told<'_> {
    /// A status of an earlier spec does not count as ready.
    pub(crate) fn verdict(&self, nobody: &str) -> Verdict {
        let no = |reason: &str, message: String| Verdict {
            ready: false,
            reason: reason.to_owned(),
            message,
            since: None,
        };
        let Some(ready) = self
            .conditions
            .iter()
            .find(|condition| condition.type_ == READY)
        else {
            return no(NO_STATUS, nobody.to_owned());
        };
        let of = self.of.or(ready.observed_generation).unwrap_or_default();
        if of != self.generation && !self.deleting {
            return no(
                SPEC_CHANGED,
                format!(
                    "spec is at generation {}, status still at generation {of}",
                    self.generation
                ),
            );
        }
        Verdict {
            ready: ready.status == "True" && !self.deleting,
            reason: ready.reason.clone(),
            message: ready.message.clone(),
            since: Some(ready.last_transition_time.clone()),
        }
    }
}

/// State of the process that writes the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    Running,
    /// Holds the Lease, but has not renewed it in time.
    Silent,
    Absent,
    Unknown,
}

impl Presence {
    /// Value in JSON and YAML.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Presence::Running => "running",
            Presence::Silent => "silent",
            Presence::Absent => "absent",
            Presence::Unknown => "unknown",
        }
    }
}

pub(crate) fn presence<T>(published_status: &PublishedStatus<T>) -> Presence {
    match &published_status.leases {
        Err(_) => Presence::Unknown,
        Ok(leases)
            if leases
                .iter()
                .any(|lease| lease.is_alive(published_status.now)) =>
        {
            Presence::Running
        }
        Ok(leases) if leases.iter().any(|lease| !lease.holder.is_empty()) => Presence::Silent,
        Ok(_) => Presence::Absent,
    }
}

/// Describes the Lease holder, with a warning if nobody maintains the status.
pub(crate) fn presence_words<T: Published>(published_status: &PublishedStatus<T>) -> String {
    let renewed = |lease: &PublishedLease| {
        lease.renewed.map_or_else(
            || "never".to_owned(),
            |at| format!("{} ago", age(published_status.now, at)),
        )
    };
    let told = |alive: bool| {
        let held = published_status.leases.iter().flatten().filter(|lease| {
            !lease.holder.is_empty() && lease.is_alive(published_status.now) == alive
        });
        let held = held.map(|lease| {
            let holder = printable(&lease.holder, 100);
            format!(
                "{holder} in namespace {} (Lease renewed {})",
                printable(&lease.namespace, 63),
                renewed(lease)
            )
        });
        held.collect::<Vec<_>>().join(", ")
    };
    match presence(published_status) {
        Presence::Running => told(true),
        Presence::Silent => format!("{} may be dead; the status below may be stale", told(false)),
        Presence::Absent => {
            format!(
                "nobody holds Lease {}; unless one runs with --leader-elect=false, the status below may be stale",
                T::LEASE
            )
        }
        Presence::Unknown => {
            let failure = published_status
                .leases
                .as_ref()
                .err()
                .map(ToString::to_string)
                .unwrap_or_default();
            format!(
                "unknown, and the status below may be stale: cannot read its Lease: {}",
                printable(&failure, 300)
            )
        }
    }
}

/// Warning line if the watch on the hub failed.
pub(crate) fn trouble<T>(published_status: &PublishedStatus<T>) -> String {
    let said = published_status.trouble.as_ref().map(|trouble| {
        format!("watch on the hub failed: {trouble}; the status below may be stale")
    });
    said.map(|said| format!("{}\n", styled(&printable(&said, 500), mean::bad())))
        .unwrap_or_default()
}

pub(crate) fn at(time: &Time) -> Timestamp {
    Timestamp(time.0.as_second())
}

/// Formats an age as `90 s`, `5 min`, `3 h` or `2 d`.
pub(crate) fn age(now: Timestamp, then: Timestamp) -> String {
    match now.0.saturating_sub(then.0).max(0) {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}
