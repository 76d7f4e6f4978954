//! Watch cache: the objects of one kind in one cluster as last observed, and
//! whether they are still current.

use std::collections::BTreeMap;

use mw_core::seen::Seen;

use crate::failure::Failure;
use crate::fleet::Feed;
use crate::fleet::follow::{Observed, Version};
use crate::own_writes::{OwnWrites, Stamped};

/// An object with its UID and version.
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
pub struct WatchCache<K, T> {
    feed: Feed,
    items: BTreeMap<K, Item<T>>,
    recent: OwnWrites<K, Item<T>>,
    lists: u64,
}

impl<K, T> Default for WatchCache<K, T> {
    fn default() -> Self {
        WatchCache {
            feed: Feed::Starting,
            items: BTreeMap::new(),
            recent: OwnWrites::default(),
            lists: 0,
        }
    }
}

/// Effect of an observation on the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Noted {
    Nothing,
    /// The objects changed.
    Changed,
    /// Events may have been missed: relist.
    Relist,
    /// A failed attempt; `lost` if the cached objects are no longer valid.
    Failed {
        failure: Failure,
        lost: bool,
    },
}

impl<K: Ord + Clone, T: Clone + PartialEq> WatchCache<K, T> {
    pub fn observe(&mut self, seen: Observed<(K, Item<T>)>) -> Noted {
        match seen {
            Observed::Broken(failure) => {
                let lost = self.feed.fail(&failure);
                Noted::Failed { failure, lost }
            }
            Observed::Established if self.feed == Feed::Doubtful => {
                self.feed = Feed::Established;
                Noted::Nothing
            }
            // A cache that was invalid is valid again after a list.
            Observed::Established => Noted::Relist,
            Observed::Listed { items, version } => {
                let before = std::mem::replace(&mut self.feed, Feed::Established);
                self.lists += 1;
                let mut items: BTreeMap<K, Item<T>> = items.into_iter().collect();
                self.recent.amend(&mut items, version);
                let same = before == Feed::Established && self.items == items;
                self.items = items;
                if same { Noted::Nothing } else { Noted::Changed }
            }
            Observed::Set {
                item: (key, item),
                version,
            } => {
                if !self.recent.is_news(&key, &item, version) {
                    return Noted::Nothing;
                }
                let before = self.items.insert(key, item.clone());
                if before.is_some_and(|before| before.of == item.of) {
                    Noted::Nothing
                } else {
                    Noted::Changed
                }
            }
            Observed::Gone {
                item: (key, item),
                version,
            } => {
                if !self.recent.is_gone(&key, &item, version) {
                    return Noted::Nothing;
                }
                if self.items.remove(&key).is_some() {
                    Noted::Changed
                } else {
                    Noted::Nothing
                }
            }
        }
    }

    /// Takes in the response to our own write.
    pub fn written(&mut self, key: K, item: Item<T>) {
        self.recent.present(&key, &item);
        self.items.insert(key, item);
    }

    /// Removes an object that was not found, or that we deleted.
    pub fn absent(&mut self, key: &K) {
        if let Some(item) = self.items.remove(key) {
            self.recent.deleted(key, &item.uid);
        }
    }

    pub fn is_starting(&self) -> bool {
        self.feed == Feed::Starting
    }

    /// Returns the number of lists so far.
    pub fn lists(&self) -> u64 {
        self.lists
    }

    pub fn failure(&self) -> Option<&Failure> {
        self.feed.failure()
    }

    /// Returns the objects if they are current.
    pub fn known(&self) -> Seen<&BTreeMap<K, Item<T>>> {
        match &self.feed {
            Feed::Starting => Seen::Unknown("not observed yet".to_owned()),
            Feed::Down(failure) => Seen::Unknown(failure.to_string()),
            Feed::Established | Feed::Doubtful => Seen::Known(&self.items),
        }
    }

    /// Returns the objects as last observed, even if they may be out of date.
    pub fn last_known(&self) -> Seen<&BTreeMap<K, Item<T>>> {
        if self.lists > 0 {
            Seen::Known(&self.items)
        } else {
            self.known()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(version: &str, of: u8) -> Item<u8> {
        Item {
            uid: "u".to_owned(),
            version: Version::of(Some(version)),
            of,
        }
    }

    fn set(version: &str, of: u8) -> Observed<(&'static str, Item<u8>)> {
        Observed::Set {
            item: ("a", item(version, of)),
            version: Version::of(Some(version)),
        }
    }

    fn listed(
        version: &str,
        items: Vec<(&'static str, Item<u8>)>,
    ) -> Observed<(&'static str, Item<u8>)> {
        Observed::Listed {
            items,
            version: Version::of(Some(version)),
        }
    }

    fn values(watch_cache: &WatchCache<&'static str, u8>) -> Option<Vec<u8>> {
        watch_cache
            .known()
            .known()
            .map(|items| items.values().map(|item| item.of).collect())
    }

    #[test]
    fn what_is_not_listed_is_not_known() {
        let mut watch_cache = WatchCache::default();
        assert_eq!(values(&watch_cache), None);
        assert_eq!(watch_cache.observe(listed("5", Vec::new())), Noted::Changed);
        assert_eq!(values(&watch_cache), Some(Vec::new()));
        watch_cache.observe(Observed::Broken(Failure::Unauthorized));
        assert_eq!(values(&watch_cache), None);
        assert_eq!(watch_cache.observe(Observed::Established), Noted::Relist);
        assert_eq!(values(&watch_cache), None);
        assert_eq!(watch_cache.observe(listed("5", Vec::new())), Noted::Changed);
    }

    #[test]
    fn only_what_differs_is_a_change() {
        let mut watch_cache = WatchCache::default();
        watch_cache.observe(listed("5", vec![("a", item("3", 1))]));
        assert_eq!(watch_cache.observe(set("6", 1)), Noted::Nothing);
        assert_eq!(watch_cache.observe(set("7", 2)), Noted::Changed);
        assert_eq!(
            watch_cache.observe(listed("8", vec![("a", item("7", 2))])),
            Noted::Nothing
        );
    }

    #[test]
    fn a_write_counts_before_the_watch_tells() {
        let mut watch_cache = WatchCache::default();
        watch_cache.observe(listed("5", vec![("a", item("3", 1))]));
        watch_cache.written("a", item("9", 2));
        assert_eq!(watch_cache.observe(set("8", 1)), Noted::Nothing);
        watch_cache.observe(listed("8", vec![("a", item("8", 1))]));
        assert_eq!(values(&watch_cache), Some(vec![2]));
        watch_cache.absent(&"a");
        watch_cache.observe(listed("9", vec![("a", item("9", 2))]));
        assert_eq!(values(&watch_cache), Some(Vec::new()));
    }
}
