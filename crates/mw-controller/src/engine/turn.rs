//! The event loop: waits for events or a deadline, then runs one turn.

use std::collections::BTreeSet;
use std::time::Duration;

use kube::core::DynamicObject;
use mw_core::names::ClusterId;
use mw_core::time::Timestamp;
use tokio::time::{Instant, sleep_until};

use crate::backoff::Backoff;
use crate::engine::{Engine, Steps};
use crate::failure::Failure;
use crate::fleet::Attempt;
use crate::fleet::follow::WatchConfig;
use crate::fleet::list::Scope;
use crate::metrics::FailureLabels;

/// Maximum number of events per turn.
const BATCH: usize = 4096;
/// A deadline that is farther away is checked again after this time.
const LONGEST_WAIT: u64 = 86_400;

pub(crate) enum Event<B: Steps> {
    Attempted {
        cluster: ClusterId,
        epoch: u64,
        fingerprint: [u8; 32],
        attempt: Attempt,
    },
    Written {
        cluster: ClusterId,
        epoch: u64,
        outcome: B::Outcome,
    },
    Patched {
        id: B::RecordId,
        result: Result<Box<DynamicObject>, Failure>,
    },
    /// Namespaces that have an object of a name.
    Searched {
        key: B::SearchKey,
        found: Result<BTreeSet<String>, Failure>,
    },
    Input(B::Input),
}

impl<B: Steps> Engine<B> {
    /// Runs the event loop. Never returns; dropping the future aborts its tasks.
    pub(crate) async fn run(mut self) {
        let readiness = self.environment.readiness.clone();
        B::follow(&mut self);
        loop {
            B::tell_readiness(&self);
            let wake = self.wake();
            let first = readiness.beating(self.next_event(wake)).await;
            self.take_in(first);
            self.turn();
        }
    }

    pub(crate) async fn next_event(&mut self, wake: Instant) -> Option<Event<B>> {
        tokio::select! {
            biased;
            event = self.inbox.receiver.recv() => event,
            () = sleep_until(wake) => None,
        }
    }

    /// Takes in an event and all others that wait.
    pub(crate) fn take_in(&mut self, first: Option<Event<B>>) {
        self.tick();
        let Some(first) = first else { return };
        self.dispatch(first);
        for _ in 0..BATCH {
            let Ok(event) = self.inbox.receiver.try_recv() else {
                break;
            };
            self.dispatch(event);
        }
    }

    fn tick(&mut self) {
        let now = self.environment.clock.now();
        B::tick(self, now);
        self.now = now;
    }

    fn dispatch(&mut self, event: Event<B>) {
        match event {
            Event::Attempted {
                cluster,
                epoch,
                fingerprint,
                attempt,
            } => self.observe_attempt(&cluster, epoch, fingerprint, attempt),
            Event::Written {
                cluster,
                epoch,
                outcome,
            } => B::observe_write(self, &cluster, epoch, outcome),
            Event::Patched { id, result } => self.observe_patch(&id, result),
            Event::Searched { key, found } => self.observe_search(&key, &found),
            Event::Input(input) => B::observe(self, input),
        }
    }

    /// Runs the steps, each in the file of its name.
    fn turn(&mut self) {
        let Some(plan) = self.turn_without_writes() else {
            return;
        };
        let operations = B::diff(self, &plan);
        self.apply(operations);
        B::clean_up(self, &plan);
        B::verify(self, &plan);
        B::report(self, &plan);
    }

    /// Runs the steps that only read. Returns nothing while the objects are not listed.
    pub(crate) fn turn_without_writes(&mut self) -> Option<B::Plan> {
        self.turned_at = Instant::now();
        while self.tasks.try_join_next().is_some() {}
        if self.turned_at >= self.resync.next {
            self.relist_all();
        }
        if !B::is_complete(self) {
            return None;
        }
        B::validate(self);
        let changes = self.changes.take_for_plan();
        Some(B::plan(self, changes))
    }

    /// Relists everything, in case an event was lost.
    fn relist_all(&mut self) {
        self.hub_relist.ring();
        self.members
            .values()
            .for_each(|member| member.link.relist());
        self.schedule_resync();
    }

    pub(super) fn schedule_resync(&mut self) {
        let share = 0.9 + 0.2 * self.environment.random.f64();
        self.resync.next = Instant::now() + self.resync.interval.mul_f64(share);
    }

    /// Returns when to run a turn without an event.
    pub(crate) fn wake(&self) -> Instant {
        let times = [
            Some(self.resync.next),
            self.reports.due,
            self.writers_due(),
            self.linger_due(),
            self.records_due(),
            self.searches.due().filter(|at| *at > self.turned_at),
        ];
        times
            .into_iter()
            .chain(B::dues(self))
            .flatten()
            .min()
            .unwrap_or(self.resync.next)
    }

    /// Returns the moment of a time of the clock.
    pub(crate) fn until(&self, at: Timestamp) -> Instant {
        let seconds = u64::try_from(at.0.saturating_sub(self.now.0)).unwrap_or_default();
        Instant::now() + Duration::from_secs(seconds.min(LONGEST_WAIT))
    }

    pub(crate) fn backoff(&mut self) -> Backoff {
        Backoff::of_watch(self.environment.random.fork())
    }

    /// Returns the configuration of a watch on the hub.
    pub(crate) fn hub_watch_config(&mut self, scope: Scope) -> WatchConfig {
        WatchConfig {
            scope,
            backoff: self.backoff(),
            relist: self.hub_relist.listen(),
            resync: self.resync.interval,
        }
    }

    pub(crate) fn count_plan(&self, started: Instant) {
        let metrics = &self.environment.metrics;
        metrics.plans.inc();
        metrics
            .plan_seconds
            .observe(started.elapsed().as_secs_f64());
    }

    pub(crate) fn count_failure(&self, cluster: &str, failure: &Failure) {
        let metrics = &self.environment.metrics;
        let labels = FailureLabels {
            cluster: metrics.cluster(&ClusterId::from(cluster)),
            category: failure.category(),
        };
        metrics.failures.get_or_create(&labels).inc();
    }
}
