//! Step 5: writes. Every cluster has a writer of its own, which knows the
//! newest wanted state and is never waited for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use mw_api::convert::{merge_patch, peer_facts, peer_object};
use mw_api::peer::Peer;
use mw_core::kilo::peer::PeerFacts;
use mw_core::kilo::planner::Planner;
use mw_core::names::{ClusterId, MeshId, PeerName};
use mw_core::time::Timestamp;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::failure::Failure;
use crate::fleet::follow::{Observed, Version};
use crate::kilo::diff::{Act, Operation, Phase};
use crate::kilo::engine::{Engine, Event};
use crate::metrics::WriteLabels;

/// Requests at the same time on one cluster.
const AT_ONCE: usize = 16;
/// Kilo reloads all peers for every change, so changes that follow each other
/// closely are written together.
const GATHER: Duration = Duration::from_millis(50);
const ENDPOINT_MEMORY_SECONDS: i64 = 60;

#[derive(Debug, Default)]
pub(super) struct Writer {
    queue: VecDeque<Operation>,
    /// What is to replace the queue once the time has come.
    offered: Option<Vec<Operation>>,
    in_flight: BTreeMap<PeerName, Operation>,
    /// Those under way that are no longer what is wanted.
    strays: BTreeSet<PeerName>,
    /// What a watch said last of a Peer that is being written.
    early: BTreeMap<PeerName, Observed<PeerFacts>>,
    quiet_until: Option<Instant>,
    /// What failed has to be planned again.
    asks: bool,
    /// A write may have taken effect that was never answered.
    in_doubt: bool,
    pub(super) troubles: BTreeMap<PeerName, Trouble>,
}

/// A write that failed.
#[derive(Debug, Clone)]
pub(super) struct Trouble {
    pub(super) failure: Failure,
    pub(super) verb: &'static str,
    attempts: u32,
    retry_at: Instant,
}

impl Trouble {
    /// Whether a person should know: a conflict that solves itself is none.
    pub(super) fn lasts(&self) -> bool {
        self.attempts > 1 || !matches!(self.failure, Failure::Conflict(_))
    }
}

/// What came of a write.
#[derive(Debug)]
pub(super) struct Outcome {
    name: PeerName,
    /// None for what belongs to no mesh any more.
    mesh: Option<MeshId>,
    change: u64,
    verb: &'static str,
    uid: Option<Box<str>>,
    result: Result<Found, Failure>,
}

#[derive(Debug)]
enum Found {
    Present(Box<PeerFacts>),
    Absent,
    /// Somebody was faster, and this is what is there now.
    Otherwise(Option<Box<PeerFacts>>),
}

impl Writer {
    /// The newest state of what is to be done. It takes effect at once after a
    /// quiet time, else together with what else comes in the meantime.
    pub(super) fn offer(&mut self, operations: Vec<Operation>) {
        let names: BTreeSet<&PeerName> = operations.iter().map(|operation| &operation.name).collect();
        self.troubles.retain(|name, _| names.contains(name));
        self.offered = Some(operations);
        self.asks = false;
    }

    /// Keeps what a watch says of a Peer that is being written until the answer
    /// is there; gives back what is not.
    pub(super) fn keep_early(&mut self, seen: Observed<PeerFacts>) -> Option<Observed<PeerFacts>> {
        let (Observed::Set { item, .. } | Observed::Gone { item, .. }) = &seen else { return Some(seen) };
        let name = PeerName::from(item.name.as_str());
        if !self.in_flight.contains_key(&name) {
            return Some(seen);
        }
        self.early.insert(name, seen);
        None
    }

    /// A list says it all again, also of what is being written.
    pub(super) fn keep_listed(&mut self, listed: &BTreeMap<PeerName, PeerFacts>) {
        let of = |name: &PeerName| {
            let item = listed.get(name)?.clone();
            let version = Version::of(Some(&item.resource_version));
            Some((name.clone(), Observed::Set { item, version }))
        };
        self.early = self.in_flight.keys().filter_map(of).collect();
        self.in_doubt = false;
    }

    /// Whether it is known what came of all that was sent.
    pub(super) fn is_certain(&self) -> bool {
        self.in_flight.is_empty() && !self.in_doubt
    }

    /// What another connection said does not count.
    pub(super) fn forget_early(&mut self) {
        self.early.clear();
    }

    /// Nothing for now, but ask again.
    pub(super) fn postpone(&mut self) {
        self.offer(Vec::new());
        self.asks = true;
    }

    pub(super) fn asks(&self) -> bool {
        self.asks
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.in_flight.is_empty() && self.offered.as_ref().is_none_or(Vec::is_empty)
    }

    pub(super) fn pending(&self) -> usize {
        self.queue.len() + self.in_flight.len()
    }

    /// Tries again at once what failed before.
    pub(super) fn forgive(&mut self) {
        self.troubles.values_mut().for_each(|trouble| trouble.retry_at = Instant::now());
    }

    /// When there is something to send although nothing happens until then.
    fn due(&self, now: Instant) -> Option<Instant> {
        let offered = self.offered.as_ref().filter(|offered| !offered.is_empty()).and(self.quiet_until);
        let retry = self.queue.iter().filter_map(|operation| self.troubles.get(&operation.name)).map(|trouble| trouble.retry_at).min();
        // What is overdue waits for an answer, which will wake us.
        [offered, retry].into_iter().flatten().filter(|at| *at > now).min()
    }

    /// What may be sent now.
    fn next(&mut self, now: Instant) -> Vec<Operation> {
        if self.quiet_until.is_none_or(|until| now >= until)
            && let Some(offered) = self.offered.take()
        {
            if !offered.is_empty() {
                self.quiet_until = Some(now + GATHER);
            }
            // Of what is under way the answer decides what is left to do.
            let (under_way, rest): (Vec<_>, Vec<_>) =
                offered.into_iter().partition(|operation| self.in_flight.contains_key(&operation.name));
            self.asks |= !under_way.is_empty();
            self.queue = VecDeque::from(rest);
            let wanted = |operation: &&Operation| under_way.iter().any(|wanted| wanted == *operation);
            let strays = self.in_flight.values().filter(|operation| !wanted(operation)).map(|operation| operation.name.clone());
            self.strays = strays.collect();
        }
        let mut ready = Vec::new();
        let mut phase = self.in_flight.values().map(|operation| operation.phase).min();
        if !self.strays.is_empty() {
            // They may yet take a key or prefix that others are to have.
            phase = Some(Phase::Deletes);
        }
        let mut waiting = VecDeque::new();
        while self.in_flight.len() + ready.len() < AT_ONCE
            && let Some(operation) = self.queue.pop_front()
        {
            let resting = self.troubles.get(&operation.name).is_some_and(|trouble| trouble.retry_at > now);
            if phase.is_some_and(|phase| operation.phase > phase) {
                waiting.push_back(operation);
                break;
            }
            if !resting {
                phase = Some(operation.phase);
                ready.push(operation);
            } else {
                // What failed holds back the phases after its own.
                phase = Some(operation.phase);
                waiting.push_back(operation);
            }
        }
        // Those that have to wait stay ahead of those not looked at.
        waiting.append(&mut self.queue);
        self.queue = waiting;
        self.in_flight.extend(ready.iter().map(|operation| (operation.name.clone(), operation.clone())));
        ready
    }

    /// The answer to a write is there.
    fn answered(&mut self, name: &PeerName) {
        self.in_flight.remove(name);
        if self.strays.remove(name) {
            self.queue.clear();
            self.asks = true;
        }
    }
}

impl Engine {
    pub(super) fn apply(&mut self) {
        let now = self.turned_at;
        let mut pending = 0;
        for (id, member) in &mut self.members {
            let Some(live) = &member.link.live else {
                member.writer = Writer {
                    in_flight: std::mem::take(&mut member.writer.in_flight),
                    in_doubt: member.writer.in_doubt,
                    ..Writer::default()
                };
                continue;
            };
            if member.swap.is_some() {
                // What was planned was planned for the connection before.
                continue;
            }
            for operation in member.writer.next(now) {
                let (client, events) = (live.client.clone(), self.sender.clone());
                let (cluster, epoch) = (id.clone(), member.link.epoch);
                let change = self.changes;
                self.tasks.spawn(async move {
                    debug!(%cluster, peer = %operation.name, change, verb = operation.act.verb(), "writing");
                    let outcome = write(client, operation, change).await;
                    _ = events.send(Event::Written { cluster, epoch, outcome }).await;
                });
            }
            pending += member.writer.pending();
        }
        self.environment.metrics.pending.set(super::observe::count(pending));
        if pending == 0
            && self.members.values().all(|member| member.writer.is_idle())
            && let Some(since) = self.changing_since.take()
        {
            self.environment.metrics.converged_after(since.elapsed());
        }
    }

    pub(super) fn writers_due(&self) -> Option<Instant> {
        let now = self.turned_at;
        let lingers = self.linger_due().filter(|at| *at > now);
        self.members.values().filter_map(|member| member.writer.due(now)).chain(lingers).min()
    }

    pub(super) fn observe_write(&mut self, cluster: &ClusterId, epoch: u64, outcome: Outcome) {
        let Outcome { name, mesh, change, verb, uid, result } = outcome;
        let mesh = mesh.map_or_else(|| "-".to_owned(), |mesh| mesh.to_string());
        let counted = match &result {
            Ok(Found::Otherwise(_)) => "conflict",
            Ok(_) => "done",
            Err(failure) => failure.category(),
        };
        let labels = WriteLabels { cluster: cluster.to_string(), kind: "Peer", verb, result: counted };
        self.environment.metrics.writes.get_or_create(&labels).inc();
        let now = self.now;
        let jitter = 0.5 + 0.5 * self.environment.random.f64();
        let stands = self.stands_for_itself(cluster);
        let Some(member) = self.members.get_mut(cluster) else { return };
        member.writer.answered(&name);
        let early = member.writer.early.remove(&name);
        if member.link.epoch != epoch {
            if let Some(seen) = early {
                self.observe_peer(cluster, stands, seen);
            }
            return;
        }
        match result {
            Ok(Found::Present(facts)) => {
                info!(mesh, %cluster, peer = %name, change, "Peer {verb}d");
                member.writer.troubles.remove(&name);
                member.remember_endpoint(&name, now);
                member.recent.present(&facts);
                let facts = PeerFacts { endpoint_written: Some(now), ..*facts };
                self.take_written(stands, |planner| planner.set_peer(cluster, facts));
            }
            Ok(Found::Absent) => {
                info!(mesh, %cluster, peer = %name, change, "Peer {verb}d");
                member.writer.troubles.remove(&name);
                member.recent.deleted(&name, uid.as_deref().unwrap_or_default());
                self.take_written(stands, |planner| planner.remove_peer(cluster, &name));
            }
            Ok(Found::Otherwise(facts)) => {
                debug!(mesh, %cluster, peer = %name, change, "Peer changed since it was looked at");
                member.writer.fail(name.clone(), verb, Failure::Conflict(409), jitter);
                match facts {
                    Some(facts) => {
                        member.recent.present(&facts);
                        let facts = member.with_endpoint_time(*facts);
                        self.take_written(stands, |planner| planner.set_peer(cluster, facts));
                    }
                    None => self.take_written(stands, |planner| planner.remove_peer(cluster, &name)),
                }
            }
            Err(failure) => {
                let looks_again = !failure.is_an_answer();
                warn!(mesh, %cluster, peer = %name, change, error = %failure, "{verb} of a Peer failed");
                member.writer.fail(name, verb, failure.clone(), jitter);
                if looks_again {
                    member.writer.in_doubt = true;
                    member.link.relist();
                }
                self.count_failure(cluster.as_str(), &failure);
            }
        }
        if let Some(seen) = early {
            self.observe_peer(cluster, stands, seen);
        }
        self.touch_status();
    }

    fn take_written(&mut self, stands: bool, take: impl FnOnce(&mut Planner)) {
        if stands {
            self.flush_listings();
            if let Some(planner) = &mut self.planner {
                take(planner);
            }
        }
    }
}

impl super::observe::Member {
    fn remember_endpoint(&mut self, name: &PeerName, now: Timestamp) {
        self.endpoints.retain(|_, at| now.0 - at.0 < ENDPOINT_MEMORY_SECONDS);
        self.endpoints.insert(name.clone(), now);
    }
}

impl Writer {
    fn fail(&mut self, name: PeerName, verb: &'static str, failure: Failure, jitter: f64) {
        let attempts = self.troubles.get(&name).map_or(0, |trouble| trouble.attempts).saturating_add(1);
        // A conflict is no failure, unless it comes again and again.
        let first = matches!(failure, Failure::Conflict(_)) && attempts == 1;
        let wait = Duration::from_millis(if first { 0 } else { 250 << attempts.min(8) }).min(Duration::from_secs(60)).mul_f64(jitter);
        let wait = failure.retry_after().map_or(wait, |asked| wait.max(asked));
        // What comes after it must wait for it: all is asked for anew.
        self.queue.clear();
        self.asks = true;
        self.troubles.insert(name, Trouble { failure, verb, attempts, retry_at: Instant::now() + wait });
    }
}

impl Act {
    fn verb(&self) -> &'static str {
        match self {
            Act::Create(_) => "create",
            Act::Update(_) => "update",
            Act::Delete(_) => "delete",
        }
    }
}

async fn write(client: Client, operation: Operation, change: u64) -> Outcome {
    let Operation { phase: _, name, mesh, act } = operation;
    let api: Api<Peer> = Api::all(client);
    let verb = act.verb();
    let uid = match &act {
        Act::Create(_) => None,
        Act::Update(update) => Some(update.on.uid.clone()),
        Act::Delete(on) => Some(on.uid.clone()),
    };
    let result = match send(&api, &name, act).await.map_err(|error| Failure::of(&error)) {
        // Somebody was faster: look again.
        Err(Failure::Conflict(_) | Failure::NotFound(_)) => look(&api, &name).await,
        other => other,
    };
    Outcome { name, mesh, change, verb, uid, result }
}

async fn send(api: &Api<Peer>, name: &PeerName, act: Act) -> Result<Found, kube::Error> {
    let present = |peer: &Peer| Found::Present(Box::new(peer_facts(peer)));
    match act {
        // Bodies are made when they are sent: of hundreds that wait many are planned anew before.
        Act::Create(peer) => api.create(&PostParams::default(), &peer_object(&peer)).await.map(|peer| present(&peer)),
        Act::Update(update) => {
            api.patch(name.as_str(), &PatchParams::default(), &Patch::Merge(&merge_patch(&update))).await.map(|peer| present(&peer))
        }
        Act::Delete(on) => {
            let preconditions = Preconditions { uid: Some(on.uid.to_string()), resource_version: Some(on.resource_version.to_string()) };
            let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            let deleted = api.delete(name.as_str(), &params).await?;
            // With a finalizer the Peer is still there, on its way out.
            let lingers = deleted.left().filter(|peer| peer.metadata.deletion_timestamp.is_some());
            Ok(lingers.map_or(Found::Absent, |peer| present(&peer)))
        }
    }
}

async fn look(api: &Api<Peer>, name: &PeerName) -> Result<Found, Failure> {
    let found = api.get_opt(name.as_str()).await.map_err(|error| Failure::of(&error))?;
    Ok(Found::Otherwise(found.map(|peer| Box::new(peer_facts(&peer)))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mw_core::kilo::plan::Precondition;

    fn operation(name: &str, phase: Phase) -> Operation {
        let on = Precondition { uid: "u".into(), resource_version: "1".into() };
        Operation { phase, name: PeerName::from(name), mesh: None, act: Act::Delete(on) }
    }

    fn sent(writer: &mut Writer) -> Vec<String> {
        writer.next(Instant::now()).into_iter().map(|operation| operation.name.to_string()).collect()
    }

    fn done(writer: &mut Writer, name: &str) {
        writer.answered(&PeerName::from(name));
    }

    #[tokio::test(start_paused = true)]
    async fn a_phase_ends_before_the_next_begins() {
        let mut writer = Writer::default();
        writer.offer(vec![operation("a", Phase::Deletes), operation("b", Phase::TakesAway), operation("c", Phase::Rest)]);
        assert_eq!(sent(&mut writer), ["a"]);
        assert!(sent(&mut writer).is_empty());
        done(&mut writer, "a");
        assert_eq!(sent(&mut writer), ["b"]);
        done(&mut writer, "b");
        assert_eq!(sent(&mut writer), ["c"]);
        assert!(!writer.is_idle());
        done(&mut writer, "c");
        assert!(writer.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_change_acts_at_once_and_what_follows_closely_acts_together() {
        let mut writer = Writer::default();
        writer.offer(vec![operation("a", Phase::Rest)]);
        assert_eq!(sent(&mut writer), ["a"]);
        done(&mut writer, "a");
        writer.offer(vec![operation("b", Phase::Rest)]);
        assert!(sent(&mut writer).is_empty());
        writer.offer(vec![operation("b", Phase::Rest), operation("c", Phase::Rest)]);
        assert_eq!(writer.due(Instant::now()), Some(Instant::now() + GATHER));
        tokio::time::advance(GATHER).await;
        assert_eq!(sent(&mut writer), ["b", "c"]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_failed_waits_longer_each_time_and_holds_back_later_phases() {
        let mut writer = Writer::default();
        let wanted = || vec![operation("a", Phase::Deletes), operation("b", Phase::Rest)];
        writer.offer(wanted());
        assert_eq!(sent(&mut writer), ["a"]);
        done(&mut writer, "a");
        writer.fail(PeerName::from("a"), "delete", Failure::Forbidden(String::new()), 1.0);
        assert!(sent(&mut writer).is_empty() && writer.asks(), "b must not be faster than a");
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
        let mut writer = Writer::default();
        writer.offer((0..40).map(|at| operation(&format!("p{at:02}"), Phase::Rest)).collect());
        assert_eq!(sent(&mut writer).len(), AT_ONCE);
        done(&mut writer, "p00");
        assert_eq!(sent(&mut writer), ["p16"]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_under_way_is_not_sent_again_from_an_old_state() {
        let mut writer = Writer::default();
        writer.offer(vec![operation("a", Phase::Rest)]);
        assert_eq!(sent(&mut writer), ["a"]);
        tokio::time::advance(GATHER).await;
        writer.offer(vec![operation("a", Phase::Rest), operation("b", Phase::Rest)]);
        assert_eq!(sent(&mut writer), ["b"]);
        done(&mut writer, "a");
        assert!(sent(&mut writer).is_empty() && writer.asks());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_under_way_but_no_longer_wanted_holds_back_what_may_clash_with_it() {
        let mut writer = Writer::default();
        writer.offer(vec![operation("old", Phase::Rest)]);
        assert_eq!(sent(&mut writer), ["old"]);
        tokio::time::advance(GATHER).await;
        writer.offer(vec![operation("gone", Phase::Deletes), operation("new", Phase::Rest)]);
        assert_eq!(sent(&mut writer), ["gone"]);
        done(&mut writer, "gone");
        assert!(sent(&mut writer).is_empty());
        done(&mut writer, "old");
        assert!(sent(&mut writer).is_empty() && writer.asks(), "it may have to be deleted first");
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_watch_says_of_a_peer_under_way_waits_for_the_answer() {
        let mut writer = Writer::default();
        writer.offer(vec![operation("a", Phase::Rest)]);
        sent(&mut writer);
        let seen = |name: &str| {
            let item = PeerFacts { name: name.to_owned(), ..PeerFacts::default() };
            Observed::Set { item, version: Version::default() }
        };
        assert_eq!(writer.keep_early(seen("a")), None);
        assert_eq!(writer.keep_early(seen("b")), Some(seen("b")));
        assert_eq!(writer.early.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_single_conflict_is_tried_again_at_once() {
        let mut writer = Writer::default();
        writer.fail(PeerName::from("a"), "update", Failure::Conflict(409), 1.0);
        writer.offer(vec![operation("a", Phase::Rest)]);
        assert!(!writer.troubles.values().any(Trouble::lasts));
        assert_eq!(sent(&mut writer), ["a"]);
        done(&mut writer, "a");
        writer.fail(PeerName::from("a"), "update", Failure::Conflict(409), 1.0);
        assert!(writer.troubles.values().all(Trouble::lasts));
    }
}
