//! Write queue of one cluster: holds the newest planned operations and returns
//! those that may be sent now, in a safe order. The owner sends them and reports
//! the results; the queue itself never blocks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::time::Duration;

use tokio::time::Instant;

use crate::failure::Failure;

/// Maximum number of concurrent requests to one cluster.
const AT_ONCE: usize = 16;
/// Changes in quick succession are written together: Kilo and Cilium reconfigure
/// on each of them.
const GATHER: Duration = Duration::from_millis(50);

/// One write.
pub trait Operation: Clone + PartialEq + Debug {
    /// Object that is written; two writes to the same object never run concurrently.
    type Name: Ord + Clone + Debug;
    /// Only operations in the same lane are ordered.
    type Lane: Ord + Debug;
    /// In a lane, each phase ends before the next begins.
    type Phase: Ord + Copy + Default + Debug;

    fn name(&self) -> &Self::Name;
    fn lane(&self) -> Self::Lane;
    fn phase(&self) -> Self::Phase;
}

#[derive(Debug)]
pub struct Writer<O: Operation> {
    queue: VecDeque<O>,
    /// Operations that replace the queue when it is due.
    offered: Option<Vec<O>>,
    in_flight: BTreeMap<O::Name, O>,
    /// Operations in flight that are no longer planned.
    strays: BTreeSet<O::Name>,
    /// A response arrived after `offered` was planned.
    outdated: bool,
    quiet_until: Option<Instant>,
    /// The operations have to be planned again.
    asks: bool,
    /// A write without a response may have taken effect.
    in_doubt: bool,
    pub troubles: BTreeMap<O::Name, Trouble>,
}

impl<O: Operation> Default for Writer<O> {
    fn default() -> Self {
        Writer {
            queue: VecDeque::new(),
            offered: None,
            in_flight: BTreeMap::new(),
            strays: BTreeSet::new(),
            outdated: false,
            quiet_until: None,
            asks: false,
            in_doubt: false,
            troubles: BTreeMap::new(),
        }
    }
}

/// A write that failed.
#[derive(Debug, Clone)]
pub struct Trouble {
    pub failure: Failure,
    pub verb: &'static str,
    attempts: u32,
    retry_at: Instant,
}

impl Trouble {
    /// Reports whether to show the failure to users: a single conflict is not shown.
    pub fn lasts(&self) -> bool {
        self.attempts > 1 || !matches!(self.failure, Failure::Conflict(_))
    }
}

impl<O: Operation> Writer<O> {
    /// Replaces the planned operations. They take effect at once after a quiet
    /// period, else together with what is offered in the meantime.
    pub fn offer(&mut self, operations: Vec<O>) {
        let names: BTreeSet<&O::Name> = operations.iter().map(Operation::name).collect();
        self.troubles.retain(|name, _| names.contains(name));
        self.offered = Some(operations);
        (self.asks, self.outdated) = (false, false);
    }

    /// Clears the planned operations and asks for new ones.
    pub fn postpone(&mut self) {
        self.offer(Vec::new());
        self.asks = true;
    }

    /// Clears everything but the operations in flight, when the connection is lost.
    pub fn drop_queue(&mut self) {
        *self = Writer {
            in_flight: std::mem::take(&mut self.in_flight),
            in_doubt: self.in_doubt,
            ..Writer::default()
        };
    }

    /// Records that the objects were relisted.
    pub fn was_listed(&mut self) {
        self.in_doubt = false;
    }

    /// Records a write without a response: it may have taken effect.
    pub fn doubt(&mut self) {
        self.in_doubt = true;
    }

    /// Reports whether the result of every write is known.
    pub fn is_certain(&self) -> bool {
        self.in_flight.is_empty() && !self.in_doubt
    }

    pub fn asks(&self) -> bool {
        self.asks
    }

    /// Reports whether the waiting operations were planned before the last response.
    pub fn is_outdated(&self) -> bool {
        self.outdated && self.offered.is_some()
    }

    pub fn is_under_way(&self, name: &O::Name) -> bool {
        self.in_flight.contains_key(name)
    }

    pub fn under_way(&self) -> impl Iterator<Item = &O::Name> {
        self.in_flight.keys()
    }

    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
            && self.in_flight.is_empty()
            && self.offered.as_ref().is_none_or(Vec::is_empty)
    }

    pub fn pending(&self) -> usize {
        self.queue.len() + self.in_flight.len()
    }

    /// Retries failed writes at once.
    pub fn forgive(&mut self) {
        self.troubles
            .values_mut()
            .for_each(|trouble| trouble.retry_at = Instant::now());
    }

    /// Returns when there is something to send without any new event.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        let offered = self
            .offered
            .as_ref()
            .filter(|offered| !offered.is_empty())
            .and(self.quiet_until);
        let retry = self
            .queue
            .iter()
            .filter_map(|operation| self.troubles.get(operation.name()))
            .map(|trouble| trouble.retry_at)
            .min();
        // Overdue operations wait for a response, which wakes the engine.
        [offered, retry]
            .into_iter()
            .flatten()
            .filter(|at| *at > now)
            .min()
    }

    /// Returns the operations to send now.
    pub fn next(&mut self, now: Instant) -> Vec<O> {
        if self.quiet_until.is_none_or(|until| now >= until)
            && let Some(offered) = self.offered.take()
        {
            self.take_over(offered, now);
        }
        let mut phases: BTreeMap<O::Lane, O::Phase> = BTreeMap::new();
        for (name, operation) in &self.in_flight {
            // A stray may still claim a key or prefix that others need.
            let phase = if self.strays.contains(name) {
                O::Phase::default()
            } else {
                operation.phase()
            };
            phases
                .entry(operation.lane())
                .and_modify(|least| *least = phase.min(*least))
                .or_insert(phase);
        }
        let mut ready = Vec::new();
        let mut waiting = VecDeque::new();
        while self.in_flight.len() + ready.len() < AT_ONCE
            && let Some(operation) = self.queue.pop_front()
        {
            let least = phases
                .entry(operation.lane())
                .or_insert_with(|| operation.phase());
            let waits = operation.phase() > *least;
            // A failed operation holds back later phases, like one in flight.
            *least = operation.phase().min(*least);
            let resting = self
                .troubles
                .get(operation.name())
                .is_some_and(|trouble| trouble.retry_at > now);
            match waits || resting {
                true => waiting.push_back(operation),
                false => ready.push(operation),
            }
        }
        // Waiting operations stay ahead of those not reached.
        waiting.append(&mut self.queue);
        self.queue = waiting;
        self.in_flight.extend(
            ready
                .iter()
                .map(|operation| (operation.name().clone(), operation.clone())),
        );
        ready
    }

    fn take_over(&mut self, offered: Vec<O>, now: Instant) {
        if !offered.is_empty() {
            self.quiet_until = Some(now + GATHER);
        }
        // For objects with a write in flight, the response decides what is left to do.
        let (under_way, rest): (Vec<_>, Vec<_>) = offered
            .into_iter()
            .partition(|operation| self.in_flight.contains_key(operation.name()));
        self.asks |= !under_way.is_empty();
        self.queue = VecDeque::from(rest);
        let wanted = |operation: &&O| under_way.iter().any(|wanted| wanted == *operation);
        let strays = self
            .in_flight
            .values()
            .filter(|operation| !wanted(operation))
            .map(|operation| operation.name().clone());
        self.strays = strays.collect();
    }

    /// Records the response to a write.
    pub fn answered(&mut self, name: &O::Name) {
        self.in_flight.remove(name);
        self.outdated = true;
        if self.strays.remove(name) {
            self.queue.clear();
            self.asks = true;
        }
    }

    /// Records success.
    pub fn succeed(&mut self, name: &O::Name) {
        self.troubles.remove(name);
    }

    /// Records a failure; `jitter` is at most 1.
    pub fn fail(&mut self, name: O::Name, verb: &'static str, failure: Failure, jitter: f64) {
        let attempts = self
            .troubles
            .get(&name)
            .map_or(0, |trouble| trouble.attempts)
            .saturating_add(1);
        // The first conflict is retried at once.
        let first = matches!(failure, Failure::Conflict(_)) && attempts == 1;
        let wait = Duration::from_millis(if first { 0 } else { 250 << attempts.min(8) })
            .min(Duration::from_secs(60))
            .mul_f64(jitter);
        let wait = failure.retry_after().map_or(wait, |asked| wait.max(asked));
        // Later phases must wait for the retry: ask for a new plan.
        self.queue.clear();
        self.asks = true;
        self.troubles.insert(
            name,
            Trouble {
                failure,
                verb,
                attempts,
                retry_at: Instant::now() + wait,
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, PartialEq)]
    struct Step {
        name: &'static str,
        lane: u8,
        phase: u8,
    }

    impl Operation for Step {
        type Name = &'static str;
        type Lane = u8;
        type Phase = u8;

        fn name(&self) -> &&'static str {
            &self.name
        }

        fn lane(&self) -> u8 {
            self.lane
        }

        fn phase(&self) -> u8 {
            self.phase
        }
    }

    fn step(name: &'static str, phase: u8) -> Step {
        Step {
            name,
            lane: 0,
            phase,
        }
    }

    fn sent(writer: &mut Writer<Step>) -> Vec<&'static str> {
        writer
            .next(Instant::now())
            .into_iter()
            .map(|operation| operation.name)
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_phase_ends_before_the_next_begins() {
        let mut writer = Writer::default();
        writer.offer(vec![step("a", 0), step("b", 1), step("c", 2)]);
        assert_eq!(sent(&mut writer), ["a"]);
        assert!(sent(&mut writer).is_empty());
        writer.answered(&"a");
        assert_eq!(sent(&mut writer), ["b"]);
        writer.answered(&"b");
        assert_eq!(sent(&mut writer), ["c"]);
        assert!(!writer.is_idle());
        writer.answered(&"c");
        assert!(writer.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_phase_that_comes_later_is_still_the_first() {
        let mut writer = Writer::default();
        writer.offer(vec![step("a", 2)]);
        assert_eq!(sent(&mut writer), ["a"]);
        tokio::time::advance(GATHER).await;
        writer.offer(vec![step("gone", 0), step("a", 2), step("new", 2)]);
        assert_eq!(sent(&mut writer), ["gone"]);
        writer.answered(&"gone");
        assert_eq!(sent(&mut writer), ["new"]);
    }

    #[tokio::test(start_paused = true)]
    async fn lanes_do_not_wait_for_each_other() {
        let mut writer = Writer::default();
        let other = |name, phase| Step {
            name,
            lane: 1,
            phase,
        };
        writer.offer(vec![
            step("a", 0),
            other("x", 1),
            step("b", 1),
            other("y", 2),
        ]);
        assert_eq!(sent(&mut writer), ["a", "x"]);
        writer.answered(&"x");
        writer.fail("a", "update", Failure::Unauthorized, 1.0);
        writer.answered(&"a");
        tokio::time::advance(GATHER).await;
        writer.offer(vec![step("a", 0), step("b", 1), other("y", 2)]);
        assert_eq!(sent(&mut writer), ["y"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_change_acts_at_once_and_what_follows_closely_acts_together() {
        let mut writer = Writer::default();
        writer.offer(vec![step("a", 2)]);
        assert_eq!(sent(&mut writer), ["a"]);
        writer.answered(&"a");
        writer.offer(vec![step("b", 2)]);
        assert!(sent(&mut writer).is_empty());
        writer.offer(vec![step("b", 2), step("c", 2)]);
        assert_eq!(writer.due(Instant::now()), Some(Instant::now() + GATHER));
        tokio::time::advance(GATHER).await;
        assert_eq!(sent(&mut writer), ["b", "c"]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_failed_waits_longer_each_time_and_holds_back_later_phases() {
        let mut writer = Writer::default();
        let wanted = || vec![step("a", 0), step("b", 2)];
        writer.offer(wanted());
        assert_eq!(sent(&mut writer), ["a"]);
        writer.answered(&"a");
        writer.fail("a", "delete", Failure::Forbidden(String::new()), 1.0);
        assert!(
            sent(&mut writer).is_empty() && writer.asks(),
            "b must not be faster than a"
        );
        tokio::time::advance(GATHER).await;
        writer.offer(wanted());
        assert!(sent(&mut writer).is_empty());
        let due = writer.due(Instant::now()).unwrap();
        tokio::time::advance(due - Instant::now()).await;
        assert_eq!(sent(&mut writer), ["a"]);
        assert_eq!(writer.due(Instant::now()), None, "an answer will wake us");
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_a_few_requests_run_at_once() {
        const NAMES: [&str; 18] = [
            "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q",
            "r",
        ];
        let mut writer = Writer::default();
        writer.offer(NAMES.into_iter().map(|name| step(name, 2)).collect());
        assert_eq!(sent(&mut writer).len(), AT_ONCE);
        writer.answered(&"a");
        assert_eq!(sent(&mut writer), ["q"]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_under_way_is_not_sent_again_from_an_old_state() {
        let mut writer = Writer::default();
        writer.offer(vec![step("a", 2)]);
        assert_eq!(sent(&mut writer), ["a"]);
        tokio::time::advance(GATHER).await;
        writer.offer(vec![step("a", 2), step("b", 2)]);
        assert_eq!(sent(&mut writer), ["b"]);
        writer.answered(&"a");
        assert!(sent(&mut writer).is_empty() && writer.asks());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_under_way_but_no_longer_wanted_holds_back_what_may_clash_with_it() {
        let mut writer = Writer::default();
        writer.offer(vec![step("old", 2)]);
        assert_eq!(sent(&mut writer), ["old"]);
        tokio::time::advance(GATHER).await;
        writer.offer(vec![step("gone", 0), step("new", 2)]);
        assert_eq!(sent(&mut writer), ["gone"]);
        writer.answered(&"gone");
        assert!(sent(&mut writer).is_empty());
        writer.answered(&"old");
        assert!(
            sent(&mut writer).is_empty() && writer.asks(),
            "it may have to be deleted first"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_offered_before_an_answer_is_outdated() {
        let mut writer = Writer::default();
        writer.offer(vec![step("a", 2)]);
        sent(&mut writer);
        writer.offer(vec![step("a", 2), step("b", 2)]);
        assert!(!writer.is_outdated());
        writer.answered(&"a");
        assert!(writer.is_outdated());
        writer.offer(vec![step("b", 2)]);
        assert!(!writer.is_outdated());
    }

    #[tokio::test(start_paused = true)]
    async fn a_single_conflict_is_tried_again_at_once() {
        let mut writer = Writer::default();
        writer.fail("a", "update", Failure::Conflict(409), 1.0);
        writer.offer(vec![step("a", 2)]);
        assert!(!writer.troubles.values().any(Trouble::lasts));
        assert_eq!(sent(&mut writer), ["a"]);
        writer.answered(&"a");
        writer.fail("a", "update", Failure::Conflict(409), 1.0);
        assert!(writer.troubles.values().all(Trouble::lasts));
    }
}
