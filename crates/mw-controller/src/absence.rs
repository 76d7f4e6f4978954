//! Searches by name for objects that are missing although they have our finalizer.
//! Such an object can't disappear before we remove the finalizer, and a list can be
//! wrong.

use std::collections::{BTreeMap, BTreeSet};

use kube::Api;
use kube::api::ListParams;
use kube::core::DynamicObject;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::failure::Failure;

const AT_ONCE: usize = 8;

/// Searches for the namespaces that have an object of a name.
#[derive(Debug)]
pub(crate) struct Searches<K>(BTreeMap<K, Search>);

#[derive(Debug)]
enum Search {
    UnderWay(Option<Backoff>),
    Failed { again: Instant, backoff: Backoff },
    Ended(BTreeSet<String>),
}

impl<K> Default for Searches<K> {
    fn default() -> Self {
        Searches(BTreeMap::new())
    }
}

impl<K: Ord + Clone> Searches<K> {
    /// Returns the searches to start now, and forgets results that are not needed.
    pub(crate) fn start(&mut self, needed: &BTreeSet<K>, now: Instant) -> Vec<K> {
        self.0.retain(|key, search| needed.contains(key) || matches!(search, Search::UnderWay(_)));
        let running = self.0.values().filter(|search| matches!(search, Search::UnderWay(_))).count();
        let is_due = |key: &&K| match self.0.get(*key) {
            None => true,
            Some(Search::Failed { again, .. }) => *again <= now,
            Some(Search::UnderWay(_) | Search::Ended(_)) => false,
        };
        let due: Vec<K> = needed.iter().filter(is_due).take(AT_ONCE.saturating_sub(running)).cloned().collect();
        for key in &due {
            let backoff = match self.0.remove(key) {
                Some(Search::Failed { backoff, .. }) => Some(backoff),
                _ => None,
            };
            self.0.insert(key.clone(), Search::UnderWay(backoff));
        }
        due
    }

    /// Records the result of a search. A failed one is retried after a backoff.
    pub(crate) fn end(&mut self, key: K, found: &Result<BTreeSet<String>, Failure>, new_backoff: impl FnOnce() -> Backoff) {
        let ended = match (found, self.0.remove(&key)) {
            (Ok(namespaces), _) => Search::Ended(namespaces.clone()),
            (Err(failure), before) => {
                let mut backoff = match before {
                    Some(Search::UnderWay(Some(backoff))) => backoff,
                    _ => new_backoff(),
                };
                Search::Failed { again: Instant::now() + backoff.next(failure.retry_after()), backoff }
            }
        };
        self.0.insert(key, ended);
    }

    /// Discards a result that may be out of date.
    pub(crate) fn forget(&mut self, key: &K) {
        self.0.remove(key);
    }

    /// Discards all results.
    pub(crate) fn forget_all(&mut self) {
        self.0.retain(|_, search| !matches!(search, Search::Ended(_)));
    }

    /// Returns the namespaces that were found.
    pub(crate) fn namespaces(&self, key: &K) -> Option<&BTreeSet<String>> {
        match self.0.get(key) {
            Some(Search::Ended(namespaces)) => Some(namespaces),
            _ => None,
        }
    }

    /// Returns when a failed search is retried.
    pub(crate) fn due(&self) -> Option<Instant> {
        let again = |search: &Search| if let Search::Failed { again, .. } = search { Some(*again) } else { None };
        self.0.values().filter_map(again).min()
    }
}

/// Returns the namespaces that have an object of this name.
pub(crate) async fn search(api: &Api<DynamicObject>, name: &str) -> Result<BTreeSet<String>, Failure> {
    let params = ListParams::default().fields(&format!("metadata.name={name}"));
    let list = api.list(&params).await.map_err(|error| Failure::of(&error))?;
    let strange = list.items.iter().any(|item| item.metadata.name.as_deref() != Some(name));
    let more = list.metadata.continue_.is_some_and(|token| !token.is_empty());
    match strange || more {
        true => Err(Failure::Unreadable(format!("a search for the name {name} returned other objects"))),
        false => Ok(list.items.into_iter().filter_map(|item| item.metadata.namespace).collect()),
    }
}
