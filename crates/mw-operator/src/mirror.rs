//! The objects of one kind in one cluster, as they were last seen, and whether
//! that still counts.

use std::collections::BTreeMap;

use mw_core::seen::Seen;

use crate::failure::Failure;
use crate::fleet::Feed;
use crate::fleet::follow::{Observed, Version};
use crate::recent::{Recent, Stamped};

/// An object as it was at some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item<T> {
    pub uid: String,
    pub version: Version,
    pub of: T,
}

impl<T: Clone> Stamped for Item<T> {
    fn uid(&self) -> &str {
        &self.uid
    }

    fn version(&self) -> Version {
        self.version
    }
}

#[derive(Debug)]
pub struct Mirror<K, T> {
    feed: Feed,
    items: BTreeMap<K, Item<T>>,
    recent: Recent<K, Item<T>>,
    lists: u64,
}

impl<K, T> Default for Mirror<K, T> {
    fn default() -> Self {
        Mirror { feed: Feed::Starting, items: BTreeMap::new(), recent: Recent::default(), lists: 0 }
    }
}

/// What an observation means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Noted {
    Nothing,
    /// What is known changed.
    Changed,
    /// Something may have been missed: list again.
    Relist,
    /// A failed attempt; `lost` if what was seen no longer counts.
    Failed {
        failure: Failure,
        lost: bool,
    },
}

impl<K: Ord + Clone, T: Clone + PartialEq> Mirror<K, T> {
    pub fn observe(&mut self, seen: Observed<(K, Item<T>)>) -> Noted {
        match seen {
            Observed::Broken(failure) => {
                let lost = self.feed.fail(&failure);
                Noted::Failed { failure, lost }
            }
            Observed::Standing if self.feed == Feed::Doubtful => {
                self.feed = Feed::Standing;
                Noted::Nothing
            }
            // What was lost counts again once it was listed.
            Observed::Standing => Noted::Relist,
            Observed::Listed { items, version } => {
                let before = std::mem::replace(&mut self.feed, Feed::Standing);
                self.lists += 1;
                let mut items: BTreeMap<K, Item<T>> = items.into_iter().collect();
                self.recent.amend(&mut items, version);
                let same = before == Feed::Standing && self.items == items;
                self.items = items;
                if same { Noted::Nothing } else { Noted::Changed }
            }
            Observed::Set { item: (key, item), version } => {
                if !self.recent.is_news(&key, &item, version) {
                    return Noted::Nothing;
                }
                let before = self.items.insert(key, item.clone());
                if before.is_some_and(|before| before.of == item.of) { Noted::Nothing } else { Noted::Changed }
            }
            Observed::Gone { item: (key, item), version } => {
                if !self.recent.is_gone(&key, &item, version) {
                    return Noted::Nothing;
                }
                if self.items.remove(&key).is_some() { Noted::Changed } else { Noted::Nothing }
            }
        }
    }

    /// The answer to a write of ours.
    pub fn written(&mut self, key: K, item: Item<T>) {
        self.recent.present(&key, &item);
        self.items.insert(key, item);
    }

    /// What was not there when we looked, or is not after we deleted it.
    pub fn absent(&mut self, key: &K) {
        if let Some(item) = self.items.remove(key) {
            self.recent.deleted(key, &item.uid);
        }
    }

    pub fn is_starting(&self) -> bool {
        self.feed == Feed::Starting
    }

    /// How often it was listed.
    pub fn lists(&self) -> u64 {
        self.lists
    }

    pub fn failure(&self) -> Option<&Failure> {
        self.feed.failure()
    }

    /// What is there, as far as that is known.
    pub fn known(&self) -> Seen<&BTreeMap<K, Item<T>>> {
        match &self.feed {
            Feed::Starting => Seen::Unknown("it was not listed yet".to_owned()),
            Feed::Down(failure) => Seen::Unknown(failure.to_string()),
            Feed::Standing | Feed::Doubtful => Seen::Known(&self.items),
        }
    }

    /// What was there when it was last known, for those to whom that is better
    /// than nothing.
    pub fn last_known(&self) -> Seen<&BTreeMap<K, Item<T>>> {
        if self.lists > 0 { Seen::Known(&self.items) } else { self.known() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(version: &str, of: u8) -> Item<u8> {
        Item { uid: "u".to_owned(), version: Version::of(Some(version)), of }
    }

    fn set(version: &str, of: u8) -> Observed<(&'static str, Item<u8>)> {
        Observed::Set { item: ("a", item(version, of)), version: Version::of(Some(version)) }
    }

    fn listed(version: &str, items: Vec<(&'static str, Item<u8>)>) -> Observed<(&'static str, Item<u8>)> {
        Observed::Listed { items, version: Version::of(Some(version)) }
    }

    fn values(mirror: &Mirror<&'static str, u8>) -> Option<Vec<u8>> {
        mirror.known().known().map(|items| items.values().map(|item| item.of).collect())
    }

    #[test]
    fn what_is_not_listed_is_not_known() {
        let mut mirror = Mirror::default();
        assert_eq!(values(&mirror), None);
        assert_eq!(mirror.observe(listed("5", Vec::new())), Noted::Changed);
        assert_eq!(values(&mirror), Some(Vec::new()));
        mirror.observe(Observed::Broken(Failure::Unauthorized));
        assert_eq!(values(&mirror), None);
        assert_eq!(mirror.observe(Observed::Standing), Noted::Relist);
        assert_eq!(values(&mirror), None);
        assert_eq!(mirror.observe(listed("5", Vec::new())), Noted::Changed);
    }

    #[test]
    fn only_what_differs_is_a_change() {
        let mut mirror = Mirror::default();
        mirror.observe(listed("5", vec![("a", item("3", 1))]));
        assert_eq!(mirror.observe(set("6", 1)), Noted::Nothing);
        assert_eq!(mirror.observe(set("7", 2)), Noted::Changed);
        assert_eq!(mirror.observe(listed("8", vec![("a", item("7", 2))])), Noted::Nothing);
    }

    #[test]
    fn a_write_counts_before_the_watch_tells() {
        let mut mirror = Mirror::default();
        mirror.observe(listed("5", vec![("a", item("3", 1))]));
        mirror.written("a", item("9", 2));
        assert_eq!(mirror.observe(set("8", 1)), Noted::Nothing);
        mirror.observe(listed("8", vec![("a", item("8", 1))]));
        assert_eq!(values(&mirror), Some(vec![2]));
        mirror.absent(&"a");
        mirror.observe(listed("9", vec![("a", item("9", 2))]));
        assert_eq!(values(&mirror), Some(Vec::new()));
    }
}
