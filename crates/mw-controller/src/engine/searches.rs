//! Searches by name for objects that are missing although they have our finalizer.
//! Such an object can't disappear before we remove the finalizer, and a list can be
//! wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::Api;
use kube::api::ListParams;
use kube::core::DynamicObject;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::engine::{Engine, Event, Steps};
use crate::failure::Failure;
use crate::fleet::HUB;

const AT_ONCE: usize = 8;

/// Searches for the namespaces that have an object of a name.
#[derive(Debug)]
pub(crate) struct Searches<K> {
    all: BTreeMap<K, Search>,
    /// Time between two searches that must agree; zero if one is enough.
    apart: Duration,
}

#[derive(Debug)]
struct Search {
    state: State,
    backoff: Option<Backoff>,
    /// Namespaces found so far; None before the first answer.
    found: Option<BTreeSet<String>>,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    UnderWay,
    Due(Instant),
    Ended,
}

impl<K: Ord + Clone> Searches<K> {
    /// `apart` is the time between two searches that must agree; zero if one is enough.
    pub(super) fn new(apart: Duration) -> Self {
        Searches {
            all: BTreeMap::new(),
            apart,
        }
    }

    /// Returns the searches to start now, and forgets results that are not needed.
    fn start(&mut self, needed: &BTreeSet<K>, now: Instant) -> Vec<K> {
        self.all
            .retain(|key, search| needed.contains(key) || search.state == State::UnderWay);
        let running = self
            .all
            .values()
            .filter(|search| search.state == State::UnderWay)
            .count();
        let is_due = |key: &&K| {
            self.all
                .get(*key)
                .is_none_or(|search| matches!(search.state, State::Due(at) if at <= now))
        };
        let due: Vec<K> = needed
            .iter()
            .filter(is_due)
            .take(AT_ONCE.saturating_sub(running))
            .cloned()
            .collect();
        for key in &due {
            let search = self.all.entry(key.clone()).or_insert(Search {
                state: State::UnderWay,
                backoff: None,
                found: None,
            });
            search.state = State::UnderWay;
        }
        due
    }

    /// Records the result of a search. A failed one is retried after a backoff.
    fn end(
        &mut self,
        key: K,
        found: &Result<BTreeSet<String>, Failure>,
        new_backoff: impl FnOnce() -> Backoff,
    ) {
        let search = self.all.entry(key).or_insert(Search {
            state: State::UnderWay,
            backoff: None,
            found: None,
        });
        search.state = match found {
            Ok(namespaces) => {
                let is_first = search.found.is_none() && !self.apart.is_zero();
                search
                    .found
                    .get_or_insert_default()
                    .extend(namespaces.iter().cloned());
                if is_first {
                    State::Due(Instant::now() + self.apart)
                } else {
                    State::Ended
                }
            }
            Err(failure) => {
                let backoff = search.backoff.get_or_insert_with(new_backoff);
                State::Due(Instant::now() + backoff.next(failure.retry_after()))
            }
        };
    }

    /// Discards a result that may be out of date.
    pub(crate) fn forget(&mut self, key: &K) {
        self.all.remove(key);
    }

    /// Discards all results.
    pub(crate) fn forget_all(&mut self) {
        self.all.retain(|_, search| search.state == State::UnderWay);
        self.all.values_mut().for_each(|search| search.found = None);
    }

    /// Returns the namespaces that were found.
    pub(crate) fn namespaces(&self, key: &K) -> Option<&BTreeSet<String>> {
        let search = self
            .all
            .get(key)
            .filter(|search| search.state == State::Ended)?;
        search.found.as_ref()
    }

    /// Returns when a search is due.
    pub(super) fn due(&self) -> Option<Instant> {
        let at = |search: &Search| {
            if let State::Due(at) = search.state {
                Some(at)
            } else {
                None
            }
        };
        self.all.values().filter_map(at).min()
    }
}

impl<B: Steps> Engine<B> {
    /// Starts the searches that are due, and forgets those that are not needed.
    pub(crate) fn search(&mut self, needed: &BTreeSet<B::SearchKey>) {
        for key in self.searches.start(needed, self.turned_at) {
            let (resource, name) = B::searched(&key);
            let api = Api::all_with(self.environment.hub.clone(), &resource);
            let events = self.inbox.sender.clone();
            self.tasks.spawn(async move {
                let found = search(&api, &name).await;
                _ = events.send(Event::Searched { key, found }).await;
            });
        }
    }

    pub(super) fn observe_search(
        &mut self,
        key: &B::SearchKey,
        found: &Result<BTreeSet<String>, Failure>,
    ) {
        let random = &mut self.environment.random;
        self.searches
            .end(key.clone(), found, || Backoff::of_watch(random.fork()));
        match found {
            Ok(namespaces) => B::observe_search(self, key, namespaces),
            Err(failure) => self.count_failure(HUB, failure),
        }
    }
}

/// Returns the namespaces that have an object of this name.
async fn search(api: &Api<DynamicObject>, name: &str) -> Result<BTreeSet<String>, Failure> {
    let params = ListParams::default().fields(&format!("metadata.name={name}"));
    let list = api
        .list(&params)
        .await
        .map_err(|error| Failure::of(&error))?;
    let strange = list
        .items
        .iter()
        .any(|item| item.metadata.name.as_deref() != Some(name));
    let more = list
        .metadata
        .continue_
        .is_some_and(|token| !token.is_empty());
    if strange || more {
        return Err(Failure::Unreadable(format!(
            "a search for the name {name} returned other objects"
        )));
    }
    Ok(list
        .items
        .into_iter()
        .filter_map(|item| item.metadata.namespace)
        .collect())
}
