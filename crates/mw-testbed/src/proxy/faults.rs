//! Faults of a proxy, its request log, and triggers at the N-th request.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

use super::request::{Match, RequestInfo, Verb};

/// Effect of a fault on a request.
#[derive(Debug, Clone)]
pub enum Effect {
    /// Forwarded later. Several delays add up, and combine with other effects.
    Delay(Duration),
    /// The connection is closed, and the API server never gets the request.
    DropBefore,
    /// The request takes effect, then the connection is closed without an answer.
    DropAfter,
    /// Never answered and never forwarded.
    Hang,
    /// Answered with a Status of this code instead of being forwarded.
    Answer { code: u16, retry_after: Option<u32> },
    /// Forwarded; the answer, or each event of a watch, is modified.
    Edit(Edit),
    /// Answered with a fake object instead of being forwarded.
    Reply(Reply),
}

impl Effect {
    /// Modifies an answer, or an event of a watch. Events for which `edit` returns
    /// `None` are omitted.
    pub fn edit(edit: impl Fn(Value) -> Option<Value> + Send + Sync + 'static) -> Self {
        Self::Edit(Edit(Arc::new(edit)))
    }

    /// Creates a new answer for each request.
    pub fn reply(reply: impl Fn(&RequestInfo) -> Value + Send + Sync + 'static) -> Self {
        Self::Reply(Reply(Arc::new(reply)))
    }

    /// Answers with a Status of this code; 429 has a Retry-After of one second.
    pub fn answer(code: u16) -> Self {
        Self::Answer {
            code,
            retry_after: (code == 429).then_some(1),
        }
    }
}

/// Function of [`Effect::edit`].
#[derive(Clone)]
pub struct Edit(Arc<dyn Fn(Value) -> Option<Value> + Send + Sync>);

impl Edit {
    pub(crate) fn apply(&self, answer: Value) -> Option<Value> {
        (self.0)(answer)
    }
}

impl fmt::Debug for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Edit")
    }
}

/// Function of [`Effect::reply`].
#[derive(Clone)]
pub struct Reply(Arc<dyn Fn(&RequestInfo) -> Value + Send + Sync>);

impl Reply {
    pub(crate) fn make(&self, request: &RequestInfo) -> Value {
        (self.0)(request)
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reply")
    }
}

/// A fault and the requests it applies to.
#[derive(Debug, Clone)]
pub struct Fault {
    on: Match,
    effect: Effect,
    skip: u64,
    times: Option<u64>,
}

impl Fault {
    pub fn new(on: Match, effect: Effect) -> Self {
        Self {
            on,
            effect,
            skip: 0,
            times: None,
        }
    }

    /// Limits the fault to the next `times` matching requests.
    pub fn times(mut self, times: u64) -> Self {
        self.times = Some(times);
        self
    }

    /// Skips the first `skip` matching requests.
    pub fn skip(mut self, skip: u64) -> Self {
        self.skip = skip;
        self
    }

    /// Reports whether the fault applies to this request, and counts the request.
    fn strikes(&mut self, request: &RequestInfo) -> bool {
        if !self.on.matches(request) || self.times == Some(0) {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        self.times = self.times.map(|times| times - 1);
        true
    }
}

/// Identifies a fault of one proxy, to remove it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FaultId(u64);

/// Result of a request as seen by the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProxyOutcome {
    Code(u16),
    Dropped,
    Hung,
}

/// Moment of a trigger, relative to the effect of its request. In both cases the
/// connection is closed without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    Before,
    After,
}

pub(crate) type Hook = Box<dyn FnOnce() + Send>;

/// Fires once, at the N-th matching request that would reach an API server. If several
/// proxies share it, their requests are counted together.
#[derive(Clone)]
pub struct Trigger {
    on: Arc<Match>,
    moment: Moment,
    state: Arc<Mutex<(u64, Option<Hook>)>>,
}

impl Trigger {
    /// Creates a trigger. `nth` counts from 1. The hook may block: it runs on its own
    /// thread.
    pub fn new(on: Match, nth: u64, moment: Moment, hook: impl FnOnce() + Send + 'static) -> Self {
        Self {
            on: Arc::new(on),
            moment,
            state: Arc::new(Mutex::new((nth, Some(Box::new(hook))))),
        }
    }

    pub fn has_fired(&self) -> bool {
        lock(&self.state).1.is_none()
    }

    fn count(&self, request: &RequestInfo) -> Option<(Moment, Hook)> {
        if !self.on.matches(request) {
            return None;
        }
        let mut state = lock(&self.state);
        state.0 = state.0.saturating_sub(1);
        if state.0 == 0 {
            state.1.take().map(|hook| (self.moment, hook))
        } else {
            None
        }
    }
}

impl fmt::Debug for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trigger")
            .field("on", &self.on)
            .field("moment", &self.moment)
            .finish_non_exhaustive()
    }
}

/// Decision about one request.
pub(crate) struct Verdict {
    pub(crate) delay: Duration,
    pub(crate) action: Action,
}

pub(crate) enum Action {
    Forward,
    Fire(Moment, Hook),
    Fault(Effect),
}

/// State of a proxy.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    off: bool,
    next: u64,
    faults: BTreeMap<FaultId, Fault>,
    triggers: Vec<Trigger>,
    seen: Vec<(RequestInfo, ProxyOutcome)>,
}

impl Faults {
    pub(crate) fn add(&self, fault: Fault) -> FaultId {
        let mut inner = lock(&self.inner);
        inner.next += 1;
        let id = FaultId(inner.next);
        inner.faults.insert(id, fault);
        id
    }

    pub(crate) fn remove(&self, id: FaultId) {
        lock(&self.inner).faults.remove(&id);
    }

    pub(crate) fn clear(&self) {
        let mut inner = lock(&self.inner);
        inner.faults.clear();
        inner.triggers.clear();
    }

    pub(crate) fn switch(&self, on: bool) {
        lock(&self.inner).off = !on;
    }

    pub(crate) fn add_trigger(&self, trigger: Trigger) {
        lock(&self.inner).triggers.push(trigger);
    }

    pub(crate) fn record(&self, request: &RequestInfo, outcome: ProxyOutcome) {
        lock(&self.inner).seen.push((request.clone(), outcome));
    }

    pub(crate) fn seen(&self) -> Vec<(RequestInfo, ProxyOutcome)> {
        lock(&self.inner).seen.clone()
    }

    pub(crate) fn forget(&self) {
        lock(&self.inner).seen.clear();
    }

    pub(crate) fn counts(&self) -> BTreeMap<(Verb, String, ProxyOutcome), u64> {
        let mut counts = BTreeMap::new();
        for (request, outcome) in &lock(&self.inner).seen {
            *counts
                .entry((request.verb, request.resource.clone(), *outcome))
                .or_default() += 1;
        }
        counts
    }

    pub(crate) fn count(&self, on: &Match) -> u64 {
        lock(&self.inner)
            .seen
            .iter()
            .filter(|(request, _)| on.matches(request))
            .map(|_| 1)
            .sum()
    }

    /// Decides about a request. Faults come before triggers: a request that is not
    /// forwarded has no effect, so it does not count for triggers.
    pub(crate) fn judge(&self, request: &RequestInfo) -> Verdict {
        let mut inner = lock(&self.inner);
        let mut verdict = Verdict {
            delay: Duration::ZERO,
            action: Action::Forward,
        };
        if inner.off {
            return verdict;
        }
        for fault in inner.faults.values_mut() {
            if fault.strikes(request) {
                match &fault.effect {
                    Effect::Delay(delay) => verdict.delay += *delay,
                    effect => {
                        verdict.action = Action::Fault(effect.clone());
                        break;
                    }
                }
            }
        }
        if matches!(verdict.action, Action::Forward)
            && let Some((moment, hook)) = inner
                .triggers
                .iter()
                .find_map(|trigger| trigger.count(request))
        {
            verdict.action = Action::Fire(moment, hook);
        }
        verdict
    }
}

/// A panic in a hook of a test must not be hidden by a poisoned lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
