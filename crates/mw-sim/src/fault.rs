//! What can go wrong on the way to a server and back, as the simulation decides
//! it, and what the simulation is told.

use std::time::Duration;

use serde_json::Value;

use crate::lie::Lie;
use crate::request::{Request, Verb};

/// Decides what becomes of requests and watch events. All methods are asked in
/// the order in which things happen, so a decision may depend on the count.
pub trait Faults: Send + Sync {
    /// Asked once for each request, before it takes effect.
    fn fate(&self, request: &Request) -> Fate {
        let _ = request;
        Fate::Answer
    }

    /// Asked once for each event of a watch, not for bookmarks.
    fn delivery(&self, watch: &Request, event_version: u64) -> Delivery {
        let _ = (watch, event_version);
        Delivery::Now
    }

    /// Asked once for each get, list and watch that is answered. A watch lies
    /// until it ends.
    fn lies(&self, request: &Request) -> Vec<Lie> {
        let _ = request;
        Vec::new()
    }
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Answer,
    /// It arrives late: takes effect then, and is answered.
    Delay(Duration),
    /// It takes effect at once and is answered late.
    AnswerLate(Duration),
    /// The connection breaks before it took effect.
    LoseRequest,
    /// The connection breaks after it took effect.
    LoseAnswer,
    /// Answered with this code, without effect.
    Refuse {
        code: u16,
        retry_after: Option<u32>,
    },
    /// Never answered, without effect.
    Hang,
    /// A read is answered from the state this many versions ago, as by a second
    /// API server that lags. A write ignores it.
    Stale {
        behind: u64,
    },
}

/// What becomes of an event of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    Now,
    /// Late, and all that follow it with it.
    After(Duration),
    /// Never.
    Skip,
    /// The connection breaks before it.
    Cut,
    /// The watch ends with 410 in place of it.
    Gone,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A watch ends with its first answer.
    Answered { code: u16 },
    /// The connection broke.
    Lost,
    /// Whoever asked no longer waits.
    GivenUp,
}

/// A write that changed something. Deletes have no `after`; deleting an object
/// that has finalizers is a change of its metadata first.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    /// Nothing for what the tester's own hand does.
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

/// Is told what happens, after it happened and in its order. May look at the
/// cluster.
pub trait Observer: Send + Sync {
    fn ended(&self, request: &Request, outcome: &Outcome) {
        let _ = (request, outcome);
    }

    fn wrote(&self, write: &Write<'_>) {
        let _ = write;
    }
}
