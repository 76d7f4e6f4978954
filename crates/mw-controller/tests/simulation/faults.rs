//! Faults of requests and responses. They are chosen beforehand by request number,
//! so that each fault can be left out on its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mw_sim::{Delivery, Fate, Faults, Lie, Lies, Request, Verb};
use tokio::sync::Notify;

use crate::lies::HOSTILE_SITES;
use crate::told::Told;

/// User name of all operators; with per-namespace credentials followed by `@` and
/// the namespace.
pub(crate) const OPERATOR: &str = "operator";

/// Reports whether a user is an operator.
pub(crate) fn is_operator(user: Option<&str>) -> bool {
    user.is_some_and(|user| {
        user == OPERATOR
            || user
                .strip_prefix(OPERATOR)
                .is_some_and(|whose| whose.starts_with('@'))
    })
}

/// A fault that happens once, at the n-th request to a cluster or the n-th event of
/// its watches, counted from 1.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fault {
    Request {
        cluster: String,
        nth: u64,
        fate: Fate,
    },
    /// Like `Request`, but counts only writes.
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

/// Crash of the operator at its n-th write of the run, to any cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Crash {
    pub(crate) at_write: u64,
    /// The write takes effect before the crash.
    pub(crate) after: bool,
}

/// Longer than any timeout.
const FOR_EVER: Duration = Duration::from_secs(1_000_000);

#[derive(Debug)]
pub(crate) struct Script {
    state: Mutex<State>,
    pub(crate) lies: Lies,
    pub(crate) told: Told,
    /// Notified when the operator has to crash.
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
    /// Clusters served by a lagging server: by how many versions, and for how many
    /// more lists.
    lagging: BTreeMap<String, (u64, u64)>,
    /// Kinds that were listed before through the same connection.
    listed: BTreeSet<(String, String)>,
    /// True from a crash until the operator has stopped.
    dead: bool,
    /// True when all faults have ended.
    healed: bool,
}

const REQUEST: usize = 0;
const WRITE: usize = 1;
const EVENT: usize = 2;

impl Script {
    pub(crate) fn new(faults: &[Fault], crashes: &[Crash]) -> Script {
        let mut state = State {
            crashes: crashes.to_vec(),
            ..State::default()
        };
        for fault in faults.iter().cloned() {
            match fault {
                Fault::Request { cluster, nth, fate } => {
                    _ = state.requests.insert((cluster, nth), fate)
                }
                Fault::Write { cluster, nth, fate } => {
                    _ = state.writes.insert((cluster, nth), fate)
                }
                Fault::Event {
                    cluster,
                    nth,
                    delivery,
                } => _ = state.events.insert((cluster, nth), delivery),
            }
        }
        Script {
            state: Mutex::new(state),
            lies: Lies::default(),
            told: Told::default(),
            crashed: Notify::new(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all faults.
    pub(crate) fn heal(&self) {
        self.lock().healed = true;
    }

    /// Records that the crashed operator has stopped.
    pub(crate) fn buried(&self) {
        self.lock().dead = false;
    }

    /// Replaces the server in use with a lagging one for a while.
    pub(crate) fn lag(&self, cluster: &str, behind: u64) {
        self.lock().lagging.insert(cluster.to_owned(), (behind, 4));
    }

    /// Records that the watches of one cluster, or of all, start over.
    pub(crate) fn forget_lists(&self, cluster: Option<&str>) {
        self.lock()
            .listed
            .retain(|(of, _)| cluster.is_some_and(|cluster| cluster != of));
    }

    /// Number of writes that operators attempted.
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
        // Servers of a hostile owner cause writes forever.
        let endless = self.healed && HOSTILE_SITES.contains(&&*request.cluster);
        if !request.verb.writes() || is_lease(request) || endless {
            return None;
        }
        self.written += 1;
        let at = self.written;
        self.crashes
            .iter()
            .find(|crash| crash.at_write == at)
            .copied()
    }
}

/// Ends an endless list, so that the run can go on: a reader that got this far has
/// failed already.
fn is_far_gone(request: &Request) -> bool {
    let page = request
        .query
        .continue_token
        .as_deref()
        .and_then(|token| token.strip_prefix("endless-"));
    page.and_then(|page| page.parse::<u64>().ok())
        .is_some_and(|page| page > 1_000)
}

/// Renewals of Leases go on forever and must not count as writes.
fn is_lease(request: &Request) -> bool {
    request
        .target
        .as_ref()
        .is_some_and(|target| target.plural == "leases")
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
            return Fate::Refuse {
                code: 410,
                retry_after: None,
            };
        }
        if let Some(crash) = state.crash(request) {
            state.dead = true;
            self.crashed.notify_one();
            return if crash.after {
                Fate::AnswerLate(FOR_EVER)
            } else {
                Fate::Hang
            };
        }
        if state.healed {
            return Fate::Answer;
        }
        let cluster = request.cluster.to_string();
        let nth = state.count(&cluster, REQUEST);
        let of_write =
            (request.verb.writes() && !is_lease(request)).then(|| state.count(&cluster, WRITE));
        let of_write = of_write.and_then(|nth| state.writes.get(&(cluster.clone(), nth)).copied());
        let fate = of_write
            .or_else(|| state.requests.get(&(cluster, nth)).copied())
            .unwrap_or(Fate::Answer);
        let kind = (
            request.cluster.to_string(),
            request
                .target
                .as_ref()
                .map(|target| target.plural.clone())
                .unwrap_or_default(),
        );
        // New credentials are tested with a list of one.
        let tries = request.path_and_query.ends_with("limit=1");
        let first = tries
            || request.verb == Verb::Get
            || (request.verb == Verb::List && state.listed.insert(kind));
        let lagging = state
            .lagging
            .get_mut(request.cluster.as_ref())
            .filter(|_| request.verb == Verb::List);
        let fate = match lagging {
            Some((behind, left)) if *left > 0 => {
                *left -= 1;
                Fate::Stale { behind: *behind }
            }
            _ => fate,
        };
        match fate {
            // The first list of a new watch must be current, as on real servers,
            // which read it from a quorum.
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
        if state
            .lagging
            .get(&cluster)
            .is_some_and(|(_, left)| *left > 0)
        {
            return Delivery::Gone;
        }
        state
            .events
            .get(&(cluster, nth))
            .copied()
            .unwrap_or(Delivery::Now)
    }

    fn lies(&self, request: &Request) -> Vec<Lie> {
        if !is_operator(request.user.as_deref()) {
            return Vec::new();
        }
        let lies = self.lies.about(request);
        self.told.tell(request, &lies);
        lies
    }
}
