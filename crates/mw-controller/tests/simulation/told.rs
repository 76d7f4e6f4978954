//! Record of the lies that were told, to judge for how long they excuse wrong
//! decisions of the operator.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mw_sim::{Lie, Request, RequestOutcome, Verb};
use tokio::time::Instant;

use crate::bed::RESYNC;

/// Time after which a lie has no effect any more: the next full resync, at its
/// latest, and its writes.
const EFFECT: Duration = Duration::from_secs(RESYNC.as_secs() / 10 * 11 + 40);
/// Shorter than the time between two searches for a ClusterMesh that must agree.
const APART: Duration = Duration::from_millis(4_900);

#[derive(Debug, Default)]
pub(crate) struct Told(Mutex<State>);

/// A server and a kind.
type About = (String, String);

#[derive(Debug, Default)]
struct State {
    /// Answers with a lie that have not arrived yet, by server and number.
    on_their_way: BTreeMap<(String, u64), Vec<Lie>>,
    all: BTreeMap<About, Episode>,
    /// Lies that can't be told from the truth: objects may have been deleted.
    plausible: BTreeMap<About, Episode>,
    /// Lies that show an earlier state, or that of another server.
    outdated: BTreeMap<About, Episode>,
    /// Time since which a server may lie, whether or not anybody asked yet.
    begun: BTreeMap<About, Instant>,
    /// By name: false answers to searches for a ClusterMesh since the last honest one.
    searches: BTreeMap<String, Vec<Instant>>,
}

/// Lies of one server about one kind, each in effect when the next was told.
#[derive(Debug)]
struct Episode {
    since: Instant,
    last: Instant,
}

impl Episode {
    fn is_over(&self) -> bool {
        self.last.elapsed() > EFFECT
    }
}

fn note(episodes: &mut BTreeMap<About, Episode>, about: &About) {
    let now = Instant::now();
    let new = || Episode {
        since: now,
        last: now,
    };
    let episode = episodes.entry(about.clone()).or_insert_with(new);
    if episode.is_over() {
        *episode = new();
    }
    episode.last = now;
}

impl Told {
    /// Records that a server lies about a kind from now on.
    pub(crate) fn begins(&self, cluster: &str, kind: &str) {
        let about = (cluster.to_owned(), kind.to_owned());
        let mut state = self.lock();
        if lasts(&state.all, cluster, kind).is_none() {
            state.begun.remove(&about);
        }
        state.begun.entry(about).or_insert_with(Instant::now);
    }

    /// Records the lies in an answer before it is sent.
    pub(crate) fn tell(&self, request: &Request, lies: &[Lie]) {
        if !lies.is_empty() {
            self.lock()
                .on_their_way
                .insert((request.cluster.to_string(), request.number), lies.to_vec());
        }
    }

    /// Records what a client learnt from an answer.
    pub(crate) fn ended(&self, request: &Request, outcome: &RequestOutcome) {
        let mut state = self.lock();
        let sent = (request.cluster.to_string(), request.number);
        let lies = state.on_their_way.remove(&sent).unwrap_or_default();
        let Some(target) = request
            .target
            .as_ref()
            .filter(|_| matches!(outcome, RequestOutcome::Answered { .. }))
        else {
            return;
        };
        let about = (sent.0, target.plural.clone());
        if !lies.is_empty() {
            note(&mut state.all, &about);
        }
        if lies.iter().any(is_plausible) {
            note(&mut state.plausible, &about);
        }
        if lies.iter().any(is_outdated) {
            note(&mut state.outdated, &about);
        }
        let found = *outcome == RequestOutcome::Answered { code: 200 };
        if let Some(name) = searched(request).filter(|_| found) {
            let searches = state.searches.entry(name.to_owned()).or_default();
            match lies.is_empty() {
                true => searches.clear(),
                false => searches.push(Instant::now()),
            }
        }
    }

    /// Records that a process starts, which knows nothing of earlier answers.
    pub(crate) fn forget_searches(&self) {
        self.lock().searches.clear();
    }

    /// Reports whether a server lied about a kind, and that may still have an effect.
    pub(crate) fn about(&self, cluster: &str, kind: &str) -> bool {
        lasts(&self.lock().all, cluster, kind).is_some()
    }

    /// Like [`Told::about`], for lies that can't be told from the truth.
    pub(crate) fn plausibly_about(&self, cluster: &str, kind: &str) -> bool {
        lasts(&self.lock().plausible, cluster, kind).is_some()
    }

    /// Time since which a server may show an outdated state of a kind.
    pub(crate) fn outdated_since(&self, cluster: &str, kind: &str) -> Option<Instant> {
        let state = self.lock();
        let told = lasts(&state.outdated, cluster, kind)?;
        let begun = state.begun.get(&(cluster.to_owned(), kind.to_owned()));
        begun.copied().or(Some(told))
    }

    /// Reports whether the hub hid a ClusterMesh as required for it to count as
    /// deleted: from two searches for its name, some seconds apart.
    pub(crate) fn hides_mesh(&self, hub: &str, name: &str) -> bool {
        let twice = |searches: &Vec<Instant>| {
            let ends = searches.first().zip(searches.last());
            ends.is_some_and(|(first, last)| *last - *first >= APART)
        };
        self.plausibly_about(hub, "clustermeshes")
            && self.lock().searches.get(name).is_some_and(twice)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lasts(episodes: &BTreeMap<About, Episode>, cluster: &str, kind: &str) -> Option<Instant> {
    episodes
        .get(&(cluster.to_owned(), kind.to_owned()))
        .filter(|episode| !episode.is_over())
        .map(|episode| episode.since)
}

/// Reports whether a lie is indistinguishable from the truth.
fn is_plausible(lie: &Lie) -> bool {
    matches!(
        lie,
        Lie::Truncated { counted: false, .. } | Lie::Frozen { .. }
    )
}

fn is_outdated(lie: &Lie) -> bool {
    matches!(lie, Lie::Frozen { .. } | Lie::Another { .. })
}

/// Name of the ClusterMesh that a request searches for.
fn searched(request: &Request) -> Option<&str> {
    let is_list = request.verb == Verb::List;
    let meshes = request.target.as_ref()?.plural == "clustermeshes";
    let selector = request.query.field_selector.as_deref()?;
    selector
        .strip_prefix("metadata.name=")
        .filter(|_| is_list && meshes)
}
