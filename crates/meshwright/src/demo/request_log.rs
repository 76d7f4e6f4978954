//! Counts of the requests and writes that the operator made.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mw_sim::{Observer, Request, RequestOutcome, Verb, Write};
use tokio::sync::Notify;

/// User of the demo's own reads, which are not counted.
pub(super) const VIEWER: &str = "viewer";

/// Totals since the start, without the Lease, which is renewed all the time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) requests: u64,
    pub(crate) writes: u64,
    pub(crate) peer_writes: u64,
    pub(crate) peers_deleted: u64,
    /// Requests with credentials that are no longer valid.
    pub(crate) unauthorized: u64,
}

#[derive(Debug, Default)]
pub(super) struct RequestLog {
    kept: Mutex<Kept>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Kept {
    counts: Counts,
    /// Kinds that each user watches.
    watched: BTreeMap<String, BTreeSet<String>>,
}

impl RequestLog {
    pub(super) fn counts(&self) -> Counts {
        self.kept().counts
    }

    pub(super) fn watches(&self, user: &str, kinds: &[&str]) -> bool {
        let kept = self.kept();
        kept.watched
            .get(user)
            .is_some_and(|watched| kinds.iter().all(|kind| watched.contains(*kind)))
    }

    /// Waits until something happened since the last call. For one waiter.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for RequestLog {
    fn ended(&self, request: &Request, outcome: &RequestOutcome) {
        let plural = request
            .target
            .as_ref()
            .map(|target| target.plural.as_str())
            .unwrap_or_default();
        if request.user.as_deref() == Some(VIEWER) || plural == "leases" {
            return;
        }
        let mut kept = self.kept();
        kept.counts.requests += 1;
        kept.counts.unauthorized += u64::from(*outcome == RequestOutcome::Answered { code: 401 });
        if let (Verb::Watch, RequestOutcome::Answered { code: 200 }, Some(user)) =
            (request.verb, outcome, &request.user)
        {
            kept.watched
                .entry(user.to_string())
                .or_default()
                .insert(plural.to_owned());
            self.changed.notify_one();
        }
    }

    fn wrote(&self, write: &Write<'_>) {
        // Changes made by the demo itself have no request.
        if write.request.is_none() || write.plural == "leases" {
            return;
        }
        let (is_peer, is_gone) = (write.plural == "peers", write.after.is_none());
        let mut kept = self.kept();
        kept.counts.writes += 1;
        kept.counts.peer_writes += u64::from(is_peer);
        kept.counts.peers_deleted += u64::from(is_peer && is_gone);
        self.changed.notify_one();
    }
}
