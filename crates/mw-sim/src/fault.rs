//! Faults between client and server, decided by the simulation, and observers of what
//! happens.

use std::time::Duration;

use serde_json::Value;

use crate::lie::Lie;
use crate::request::{Request, Verb};

/// Decides the fate of requests and watch events. Methods are called in the order of
/// events, so a decision may depend on a count.
pub trait Faults: Send + Sync {
    /// Called once per request, before it takes effect.
    fn fate(&self, request: &Request) -> Fate {
        let _ = request;
        Fate::Answer
    }

    /// Called once per watch event, except for bookmarks.
    fn delivery(&self, watch: &Request, event_version: u64) -> Delivery {
        let _ = (watch, event_version);
        Delivery::Now
    }

    /// Called once per answered get, list and watch. A watch keeps its lies until it
    /// ends.
    fn lies(&self, request: &Request) -> Vec<Lie> {
        let _ = request;
        Vec::new()
    }
}

/// Fate of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Answer,
    /// Arrives late: takes effect and is answered after the delay.
    Delay(Duration),
    /// Takes effect immediately and is answered after the delay.
    AnswerLate(Duration),
    /// The connection breaks before the request takes effect.
    LoseRequest,
    /// The connection breaks after the request took effect.
    LoseAnswer,
    /// Rejected with this code, without effect.
    Refuse {
        code: u16,
        retry_after: Option<u32>,
    },
    /// Never answered, without effect.
    Hang,
    /// A read is answered from the state this many versions ago, like from a lagging
    /// second API server. Has no effect on writes.
    Stale {
        behind: u64,
    },
}

/// Fate of a watch event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    Now,
    /// Delivered late, as are all following events.
    After(Duration),
    /// Never delivered.
    Skip,
    /// The connection breaks before the event.
    Cut,
    /// The watch ends with 410 instead of the event.
    Gone,
}

/// Outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestOutcome {
    /// Answered. A watch counts as answered with its response header.
    Answered { code: u16 },
    /// The connection broke.
    Lost,
    /// The client stopped waiting.
    GivenUp,
}

/// A write that changed something. A delete has no `after`; deleting an object with
/// finalizers first changes its metadata.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    /// Number of the request; `None` for direct calls by the test.
    pub request: Option<u64>,
    pub user: Option<&'a str>,
    pub verb: Verb,
    pub group: &'a str,
    pub plural: &'a str,
    /// `NAMESPACE/NAME`, or the name alone.
    pub key: &'a str,
    pub version: u64,
    pub before: Option<&'a Value>,
    pub after: Option<&'a Value>,
}

/// Receives events in order, after they happened. Implementations may access the
/// cluster.
pub trait Observer: Send + Sync {
    fn ended(&self, request: &Request, outcome: &RequestOutcome) {
        let _ = (request, outcome);
    }

    fn wrote(&self, write: &Write<'_>) {
        let _ = write;
    }
}
