//! What goes wrong on the way to the servers and back: decided beforehand, by
//! the count of requests, so that every fault can be left out by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mw_sim::{Delivery, Fate, Faults, Lie, Lies, Request, Verb};
use tokio::sync::Notify;

/// The name under which all operators write; where credentials are told apart,
/// with `@` and whose they are behind it.
pub(crate) const OPERATOR: &str = "operator";

/// Whether a request or a write is an operator's.
pub(crate) fn is_operator(user: Option<&str>) -> bool {
    user.is_some_and(|user| user == OPERATOR || user.strip_prefix(OPERATOR).is_some_and(|whose| whose.starts_with('@')))
}

/// One thing that goes wrong once, at the n-th request to a cluster or the
/// n-th event that its watches bring, counted from 1.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fault {
    Request {
        cluster: String,
        nth: u64,
        fate: Fate,
    },
    /// As `Request`, but only writes count.
    Write {
        cluster: String,
        nth: u64,
        fate: Fate,
    },
    Event {
        cluster: String,
        nth: u64,
        delivery: Delivery,
    },
}

/// The operator dies at its n-th write of the run, to whatever cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Crash {
    pub(crate) at_write: u64,
    /// The write takes effect before.
    pub(crate) after: bool,
}

/// Nobody waits that long.
const FOR_EVER: Duration = Duration::from_secs(1_000_000);

#[derive(Debug)]
pub(crate) struct Script {
    state: Mutex<State>,
    pub(crate) lies: Lies,
    /// Told when the operator has to die.
    pub(crate) crashed: Notify,
}

#[derive(Debug, Default)]
struct State {
    requests: BTreeMap<(String, u64), Fate>,
    writes: BTreeMap<(String, u64), Fate>,
    events: BTreeMap<(String, u64), Delivery>,
    crashes: Vec<Crash>,
    counted: BTreeMap<String, [u64; 3]>,
    written: u64,
    /// Clusters of which another server answers that lags: by how many versions,
    /// and how many lists it still answers.
    lagging: BTreeMap<String, (u64, u64)>,
    /// What was listed before through the same connection.
    listed: BTreeSet<(String, String)>,
    /// From the moment of a crash until the operator is gone.
    dead: bool,
    /// All faults are over.
    healed: bool,
}

const REQUEST: usize = 0;
const WRITE: usize = 1;
const EVENT: usize = 2;

impl Script {
    pub(crate) fn new(faults: &[Fault], crashes: &[Crash]) -> Script {
        let mut state = State { crashes: crashes.to_vec(), ..State::default() };
        for fault in faults.iter().cloned() {
            match fault {
                Fault::Request { cluster, nth, fate } => _ = state.requests.insert((cluster, nth), fate),
                Fault::Write { cluster, nth, fate } => _ = state.writes.insert((cluster, nth), fate),
                Fault::Event { cluster, nth, delivery } => _ = state.events.insert((cluster, nth), delivery),
            }
        }
        Script { state: Mutex::new(state), lies: Lies::default(), crashed: Notify::new() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing goes wrong from here on.
    pub(crate) fn heal(&self) {
        self.lock().healed = true;
    }

    /// The operator that had to die is gone.
    pub(crate) fn buried(&self) {
        self.lock().dead = false;
    }

    /// The server in use goes away, and one that lags takes over for a while.
    pub(crate) fn lag(&self, cluster: &str, behind: u64) {
        self.lock().lagging.insert(cluster.to_owned(), (behind, 4));
    }

    /// Somebody begins to follow a cluster anew, or all of them.
    pub(crate) fn forget_lists(&self, cluster: Option<&str>) {
        self.lock().listed.retain(|(of, _)| cluster.is_some_and(|cluster| cluster != of));
    }

    /// How many writes operators have tried.
    pub(crate) fn written(&self) -> u64 {
        self.lock().written
    }
}

impl State {
    fn count(&mut self, cluster: &str, what: usize) -> u64 {
        let counts = self.counted.entry(cluster.to_owned()).or_default();
        counts[what] += 1;
        counts[what]
    }

    fn crash(&mut self, request: &Request) -> Option<Crash> {
        if !request.verb.writes() || is_lease(request) {
            return None;
        }
        self.written += 1;
        let at = self.written;
        self.crashes.iter().find(|crash| crash.at_write == at).copied()
    }
}

/// A list that never ends must not stop the run: whoever has read that much of
/// it has failed already.
fn is_far_gone(request: &Request) -> bool {
    let page = request.query.continue_token.as_deref().and_then(|token| token.strip_prefix("endless-"));
    page.and_then(|page| page.parse::<u64>().ok()).is_some_and(|page| page > 1_000)
}

/// Renewals go on for ever and would count as writes.
fn is_lease(request: &Request) -> bool {
    request.target.as_ref().is_some_and(|target| target.plural == "leases")
}

impl Faults for Script {
    fn fate(&self, request: &Request) -> Fate {
        let mut state = self.lock();
        if !is_operator(request.user.as_deref()) {
            return Fate::Answer;
        }
        if state.dead {
            return Fate::Hang;
        }
        if is_far_gone(request) {
            return Fate::Refuse { code: 410, retry_after: None };
        }
        if let Some(crash) = state.crash(request) {
            state.dead = true;
            self.crashed.notify_one();
            return if crash.after { Fate::AnswerLate(FOR_EVER) } else { Fate::Hang };
        }
        if state.healed {
            return Fate::Answer;
        }
        let cluster = request.cluster.to_string();
        let nth = state.count(&cluster, REQUEST);
        let of_write = (request.verb.writes() && !is_lease(request)).then(|| state.count(&cluster, WRITE));
        let of_write = of_write.and_then(|nth| state.writes.get(&(cluster.clone(), nth)).copied());
        let fate = of_write.or_else(|| state.requests.get(&(cluster, nth)).copied()).unwrap_or(Fate::Answer);
        let kind = (request.cluster.to_string(), request.target.as_ref().map(|target| target.plural.clone()).unwrap_or_default());
        // New credentials are tried out with a list of one.
        let tries = request.path_and_query.ends_with("limit=1");
        let first = tries || request.verb == Verb::Get || (request.verb == Verb::List && state.listed.insert(kind));
        let lagging = state.lagging.get_mut(request.cluster.as_ref()).filter(|_| request.verb == Verb::List);
        let fate = match lagging {
            Some((behind, left)) if *left > 0 => {
                *left -= 1;
                Fate::Stale { behind: *behind }
            }
            _ => fate,
        };
        match fate {
            // Whoever begins to follow knows nothing yet: what he reads first must
            // be the truth, as it is on real servers, which read it from a quorum.
            Fate::Stale { .. } if first => Fate::Answer,
            fate => fate,
        }
    }

    fn delivery(&self, watch: &Request, _: u64) -> Delivery {
        let mut state = self.lock();
        if state.healed || !is_operator(watch.user.as_deref()) {
            return Delivery::Now;
        }
        let cluster = watch.cluster.to_string();
        let nth = state.count(&cluster, EVENT);
        if state.lagging.get(&cluster).is_some_and(|(_, left)| *left > 0) {
            return Delivery::Gone;
        }
        state.events.get(&(cluster, nth)).copied().unwrap_or(Delivery::Now)
    }

    fn lies(&self, request: &Request) -> Vec<Lie> {
        if is_operator(request.user.as_deref()) { self.lies.about(request) } else { Vec::new() }
    }
}
