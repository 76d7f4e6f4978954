//! Whether a status can be believed: is there anybody who keeps it, and does
//! it speak of the spec as it is now.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use mw_core::text::printable;
use mw_core::time::Timestamp;
use mw_operator::glance::{Glance, Glanced, LeaseGlance};

use crate::output::layout::{mean, styled};

/// Ready, as far as it can be believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) ready: bool,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) since: Option<Time>,
}

/// What a status says, and of which spec.
#[derive(Debug)]
pub(crate) struct Told<'a> {
    pub(crate) conditions: &'a [Condition],
    /// The generation it speaks of.
    pub(crate) of: Option<i64>,
    /// That of the spec.
    pub(crate) generation: i64,
    pub(crate) deleting: bool,
}

impl Told<'_> {
    /// A status that speaks of an earlier spec says nothing of this one.
    pub(crate) fn verdict(&self, nobody: &str) -> Verdict {
        let no = |reason: &str, message: String| Verdict { ready: false, reason: reason.to_owned(), message, since: None };
        let Some(ready) = self.conditions.iter().find(|condition| condition.type_ == "Ready") else {
            return no("NoStatus", nobody.to_owned());
        };
        let of = self.of.or(ready.observed_generation).unwrap_or_default();
        if of != self.generation && !self.deleting {
            return no("SpecChanged", format!("the spec is of generation {}, the status still of {of}", self.generation));
        }
        Verdict {
            ready: ready.status == "True" && !self.deleting,
            reason: ready.reason.clone(),
            message: ready.message.clone(),
            since: Some(ready.last_transition_time.clone()),
        }
    }
}

/// Whether anybody keeps the objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    Running,
    /// It holds the Lease, but has not renewed it.
    Silent,
    Absent,
    Unknown,
}

impl Presence {
    /// In reports.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Presence::Running => "running",
            Presence::Silent => "silent",
            Presence::Absent => "absent",
            Presence::Unknown => "unknown",
        }
    }
}

pub(crate) fn presence<T>(glance: &Glance<T>) -> Presence {
    match &glance.leases {
        Err(_) => Presence::Unknown,
        Ok(leases) if leases.iter().any(|lease| lease.is_alive(glance.now)) => Presence::Running,
        Ok(leases) if leases.iter().any(|lease| !lease.holder.is_empty()) => Presence::Silent,
        Ok(_) => Presence::Absent,
    }
}

/// In words; a green status that nobody keeps may be as old as it likes.
pub(crate) fn presence_words<T: Glanced>(glance: &Glance<T>) -> String {
    let renewed = |lease: &LeaseGlance| lease.renewed.map_or_else(|| "never".to_owned(), |at| format!("{} ago", age(glance.now, at)));
    let told = |alive: bool| {
        let held = glance.leases.iter().flatten().filter(|lease| !lease.holder.is_empty() && lease.is_alive(glance.now) == alive);
        let held = held.map(|lease| {
            let holder = printable(&lease.holder, 100);
            format!("{holder} in namespace {} (Lease renewed {})", printable(&lease.namespace, 63), renewed(lease))
        });
        held.collect::<Vec<_>>().join(", ")
    };
    match presence(glance) {
        Presence::Running => told(true),
        Presence::Silent => format!("{} may be dead: what follows may be old", told(false)),
        Presence::Absent => {
            format!("nobody holds the Lease {}: unless one runs without --leader-elect, what follows may be old", T::LEASE)
        }
        Presence::Unknown => {
            let failure = glance.leases.as_ref().err().map(ToString::to_string).unwrap_or_default();
            format!("not known, and what follows may be old: its Lease can't be read: {}", printable(&failure, 300))
        }
    }
}

/// A line where the hub can't be followed any more.
pub(crate) fn trouble<T>(glance: &Glance<T>) -> String {
    let said = glance.trouble.as_ref().map(|trouble| format!("the hub can't be followed: {trouble}; what follows may be old"));
    said.map(|said| format!("{}\n", styled(&printable(&said, 500), mean::bad()))).unwrap_or_default()
}

pub(crate) fn at(time: &Time) -> Timestamp {
    Timestamp(time.0.as_second())
}

/// `90 s`, `5 min`, `3 h`, `2 d`: no more than people want to know.
pub(crate) fn age(now: Timestamp, then: Timestamp) -> String {
    match now.0.saturating_sub(then.0).max(0) {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}
