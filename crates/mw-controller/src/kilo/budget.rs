//! Rate limit for changes of the Peers of one source in one target. Every change
//! makes the target's agents reconfigure WireGuard, so a source that changes all
//! the time would interrupt the sessions of others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mw_core::kilo::guard::Resting;
use mw_core::kilo::peer::WantedPeer;
use mw_core::kilo::plan::Changes;
use mw_core::names::{ClusterId, ClusterName, MeshId, PeerName};
use tokio::time::Instant;

use crate::kilo::engine::Engine;

/// Limit for turns that update existing Peers.
const CHANGES: Limit = Limit {
    most: 10,
    refill: Duration::from_secs(30),
};
/// Limit for turns that create Peers of new nodes or delete Peers of removed ones.
const ARRIVALS: Limit = Limit {
    most: 60,
    refill: Duration::from_secs(1),
};

/// By target, mesh and source.
pub(super) type SourceKey = (ClusterId, MeshId, ClusterName);

#[derive(Debug, Clone, Copy)]
struct Limit {
    most: u32,
    refill: Duration,
}

#[derive(Debug)]
struct Bucket<T> {
    limit: Limit,
    tokens: u32,
    refilled: Instant,
    /// Changes that a token was spent on and that are not written yet.
    paid: BTreeMap<PeerName, T>,
    is_empty: bool,
}

impl<T: PartialEq> Bucket<T> {
    fn new(limit: Limit, now: Instant) -> Bucket<T> {
        Bucket {
            limit,
            tokens: limit.most,
            refilled: now,
            paid: BTreeMap::new(),
            is_empty: false,
        }
    }

    fn refill(&mut self, now: Instant) {
        while self.tokens < self.limit.most && self.refilled + self.limit.refill <= now {
            self.tokens += 1;
            self.refilled += self.limit.refill;
        }
        if self.tokens == self.limit.most {
            self.refilled = now;
        }
    }

    /// Spends one token for all changes; none if all were paid for before.
    fn pay(&mut self, wanted: BTreeMap<PeerName, T>, now: Instant) {
        self.refill(now);
        let is_paid = wanted
            .iter()
            .all(|(name, change)| self.paid.get(name) == Some(change));
        self.is_empty = !is_paid && self.tokens == 0;
        if !is_paid && !self.is_empty {
            self.tokens -= 1;
        }
        if !self.is_empty {
            self.paid = wanted;
        }
    }

    fn due(&self) -> Option<Instant> {
        self.is_empty.then_some(self.refilled + self.limit.refill)
    }

    fn is_full(&self) -> bool {
        self.tokens == self.limit.most && self.paid.is_empty()
    }
}

#[derive(Debug)]
struct Purse {
    changes: Bucket<WantedPeer>,
    /// True for a first Peer.
    arrivals: Bucket<bool>,
}

#[derive(Debug, Default)]
pub(super) struct Budgets(BTreeMap<SourceKey, Purse>);

impl Budgets {
    /// Returns the sources that are out of tokens, and for which changes.
    pub(super) fn resting(&self) -> BTreeMap<SourceKey, Resting> {
        let resting = self.0.iter().map(|(key, of)| {
            (
                key.clone(),
                Resting {
                    changes: of.changes.is_empty,
                    arrivals: of.arrivals.is_empty,
                },
            )
        });
        resting
            .filter(|(_, rest)| *rest != Resting::default())
            .collect()
    }

    /// Returns when the first of them gets a token.
    pub(super) fn due(&self) -> Option<Instant> {
        self.0
            .values()
            .flat_map(|of| [of.changes.due(), of.arrivals.due()])
            .flatten()
            .min()
    }

    /// Refills the buckets. Returns true if a waiting source may continue.
    fn refill(&mut self, now: Instant) -> bool {
        let mut goes_on = false;
        for of in self.0.values_mut() {
            if of.changes.due().is_some_and(|due| due <= now) {
                (of.changes.is_empty, goes_on) = (false, true);
            }
            if of.arrivals.due().is_some_and(|due| due <= now) {
                (of.arrivals.is_empty, goes_on) = (false, true);
            }
        }
        self.0.retain(|_, of| {
            of.changes.refill(now);
            of.arrivals.refill(now);
            !(of.changes.is_full() && of.arrivals.is_full())
        });
        goes_on
    }

    /// Spends tokens for the planned changes in one target. Returns true if a source has to wait now.
    fn pay(&mut self, target: &ClusterId, mesh: &MeshId, changes: &Changes, now: Instant) -> bool {
        let mut wanted: BTreeMap<ClusterName, Wanted> = BTreeMap::new();
        let source = |peer: &WantedPeer| {
            peer.labels()
                .source
                .as_deref()
                .and_then(|name| ClusterName::try_from(name).ok())
        };
        for (name, update) in &changes.update {
            let Some(source) = source(&update.after) else {
                continue;
            };
            // Each half of a split update is a separate change.
            let next = update.first.as_ref().unwrap_or(&update.after);
            wanted
                .entry(source)
                .or_default()
                .0
                .insert(name.clone(), next.clone());
        }
        let first = changes
            .create
            .iter()
            .filter_map(|(name, peer)| Some((name, source(peer)?, true)));
        let gone = changes
            .delete
            .iter()
            .filter_map(|(name, delete)| Some((name, delete.source.clone()?, false)));
        for (name, source, arrives) in first.chain(gone) {
            wanted
                .entry(source)
                .or_default()
                .1
                .insert(name.clone(), arrives);
        }
        let known = self
            .0
            .keys()
            .filter(|(of, id, _)| of == target && id == mesh)
            .map(|(_, _, source)| source.clone());
        let sources: BTreeSet<ClusterName> = wanted.keys().cloned().chain(known).collect();
        let mut waits = false;
        for source in sources {
            let (updates, arrivals) = wanted.remove(&source).unwrap_or_default();
            let fresh = || Purse {
                changes: Bucket::new(CHANGES, now),
                arrivals: Bucket::new(ARRIVALS, now),
            };
            let purse = self
                .0
                .entry((target.clone(), mesh.clone(), source))
                .or_insert_with(fresh);
            let before = (purse.changes.is_empty, purse.arrivals.is_empty);
            // The changes of a waiting source are not in the plan.
            if !before.0 {
                purse.changes.pay(updates, now);
            }
            if !before.1 {
                purse.arrivals.pay(arrivals, now);
            }
            waits |= before != (purse.changes.is_empty, purse.arrivals.is_empty);
        }
        waits
    }
}

/// Updates, and creates (true) and deletes (false), of one source.
type Wanted = (BTreeMap<PeerName, WantedPeer>, BTreeMap<PeerName, bool>);

impl Engine {
    /// Spends tokens for the planned changes in these targets. Returns true if a
    /// source has to wait, so that a new plan is needed.
    pub(super) fn pay(&mut self, stale: &BTreeSet<ClusterId>) -> bool {
        let Some(planner) = &self.state.planner else {
            return false;
        };
        let mut waits = false;
        for cluster in stale {
            if !self
                .members
                .get(cluster)
                .is_some_and(|member| member.is_usable())
            {
                continue;
            }
            for (mesh, changes) in planner.changes(cluster) {
                if let Some(mesh) = mesh.filter(|mesh| self.acts_on(mesh)) {
                    waits |= self
                        .state
                        .guard
                        .budgets
                        .pay(cluster, mesh, &changes, self.turned_at);
                }
            }
        }
        waits
    }

    /// Refills the budgets of all sources.
    pub(super) fn refill_budgets(&mut self) {
        self.state.guard.budgets.refill(self.turned_at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(change: u32) -> BTreeMap<PeerName, u32> {
        BTreeMap::from([(PeerName::from("a"), change)])
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_changes_without_end_is_written_every_30_seconds() {
        let mut bucket = Bucket::new(CHANGES, Instant::now());
        for change in 0..10 {
            bucket.pay(wanted(change), Instant::now());
            assert!(!bucket.is_empty, "{change}");
            bucket.pay(wanted(change), Instant::now());
            bucket.pay(BTreeMap::new(), Instant::now());
        }
        bucket.pay(wanted(10), Instant::now());
        assert!(bucket.is_empty);
        assert_eq!(bucket.due(), Some(Instant::now() + CHANGES.refill));
        tokio::time::advance(CHANGES.refill).await;
        bucket.pay(wanted(10), Instant::now());
        assert!(!bucket.is_empty);
        bucket.pay(wanted(11), Instant::now());
        assert!(bucket.is_empty, "one token, one change");
    }
}
