//! Results of our own writes that the watch has not delivered yet. A watch lags
//! behind the response to a write, and its older events must not undo it.

use std::collections::BTreeMap;

use crate::fleet::follow::Version;

/// An object with its UID and version.
pub trait Stamped: Clone {
    fn uid(&self) -> &str;
    fn version(&self) -> Version;
}

#[derive(Debug)]
pub struct OwnWrites<K, T>(BTreeMap<K, Memory<T>>);

/// After so many lists that contradict the response to a write, the response is
/// no longer trusted.
const MOST_CONTRADICTIONS: u32 = 3;

#[derive(Debug)]
struct Memory<T> {
    written: Written<T>,
    /// Number of lists that contradicted the write.
    contradicted: u32,
}

#[derive(Debug)]
enum Written<T> {
    Present(Box<T>),
    /// The object with this UID was deleted.
    Deleted(String),
}

impl<K, T> Default for OwnWrites<K, T> {
    fn default() -> Self {
        OwnWrites(BTreeMap::new())
    }
}

impl<K: Ord + Clone, T: Stamped> OwnWrites<K, T> {
    pub fn present(&mut self, name: &K, item: &T) {
        self.0.insert(
            name.clone(),
            Memory {
                written: Written::Present(Box::new(item.clone())),
                contradicted: 0,
            },
        );
    }

    pub fn deleted(&mut self, name: &K, uid: &str) {
        self.0.insert(
            name.clone(),
            Memory {
                written: Written::Deleted(uid.to_owned()),
                contradicted: 0,
            },
        );
    }

    /// Reports whether a watch event is newer than our own write.
    pub fn is_news(&mut self, name: &K, item: &T, version: Version) -> bool {
        let known = match self.0.get(name).map(|memory| &memory.written) {
            Some(Written::Present(ours)) => ours.version(),
            Some(Written::Deleted(uid)) => return *uid != item.uid(),
            None => return true,
        };
        if version >= known {
            self.0.remove(name);
        }
        version > known
    }

    /// Reports whether a delete event is newer than our own write.
    pub fn is_gone(&mut self, name: &K, item: &T, version: Version) -> bool {
        match self.0.get(name).map(|memory| &memory.written) {
            Some(Written::Deleted(uid)) if *uid == item.uid() => {
                self.0.remove(name);
                false
            }
            Some(Written::Present(ours))
                if ours.uid() != item.uid() || ours.version() > version =>
            {
                false
            }
            _ => {
                self.0.remove(name);
                true
            }
        }
    }

    /// Applies the writes that are newer than a list to it.
    pub fn amend(&mut self, listed: &mut BTreeMap<K, T>, version: Version) {
        self.0.retain(|_, memory| {
            memory.contradicted += 1;
            let says_otherwise = match &memory.written {
                Written::Present(ours) => ours.version() > version,
                Written::Deleted(uid) => listed.values().any(|item| item.uid() == uid),
            };
            says_otherwise && memory.contradicted < MOST_CONTRADICTIONS
        });
        for (name, memory) in &self.0 {
            match &memory.written {
                Written::Present(ours) => _ = listed.insert(name.clone(), (**ours).clone()),
                Written::Deleted(_) => _ = listed.remove(name),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone)]
    struct Thing {
        uid: &'static str,
        version: &'static str,
    }

    impl Stamped for Thing {
        fn uid(&self) -> &str {
            self.uid
        }

        fn version(&self) -> Version {
            at(self.version)
        }
    }

    fn thing(uid: &'static str, version: &'static str) -> Thing {
        Thing { uid, version }
    }

    fn at(version: &str) -> Version {
        Version::of(Some(version))
    }

    #[test]
    fn a_late_event_does_not_undo_a_write() {
        let mut recent = OwnWrites::default();
        recent.present(&"p", &thing("u", "9"));
        assert!(
            !recent.is_news(&"p", &thing("u", "8"), at("8")),
            "older than the write"
        );
        assert!(
            !recent.is_news(&"p", &thing("u", "9"), at("9")),
            "the write itself"
        );
        assert!(
            recent.is_news(&"p", &thing("u", "9"), at("9")),
            "nothing is remembered after that"
        );
    }

    #[test]
    fn what_was_deleted_stays_deleted_until_another_comes() {
        let mut recent = OwnWrites::default();
        recent.deleted(&"p", "u");
        assert!(!recent.is_news(&"p", &thing("u", "8"), at("8")));
        assert!(recent.is_news(&"p", &thing("other", "12"), at("12")));
        assert!(
            !recent.is_gone(&"p", &thing("u", "9"), at("9")),
            "known already"
        );
        assert!(recent.is_gone(&"p", &thing("u", "9"), at("9")));
    }

    #[test]
    fn the_end_of_an_earlier_one_says_nothing_of_ours() {
        let mut recent = OwnWrites::default();
        recent.present(&"p", &thing("new", "12"));
        assert!(!recent.is_gone(&"p", &thing("old", "11"), at("11")));
        assert!(recent.is_gone(&"p", &thing("new", "13"), at("13")));
    }

    #[test]
    fn a_list_made_before_a_write_is_amended() {
        let mut recent = OwnWrites::default();
        recent.present(&"p", &thing("u", "9"));
        recent.deleted(&"q", "x");
        let mut listed = BTreeMap::from([("q", thing("x", "3"))]);
        recent.amend(&mut listed, at("8"));
        assert_eq!(listed.keys().copied().collect::<Vec<_>>(), ["p"]);
        let mut later = BTreeMap::new();
        recent.amend(&mut later, at("10"));
        assert!(later.is_empty(), "what is not in a later list is gone");
    }

    #[test]
    fn lists_that_say_otherwise_again_and_again_are_believed() {
        let mut recent = OwnWrites::default();
        recent.present(&"a", &thing("1", "90"));
        recent.deleted(&"b", "2");
        let listed = || BTreeMap::from([("b", thing("2", "3"))]);
        for _ in 1..MOST_CONTRADICTIONS {
            let mut items = listed();
            recent.amend(&mut items, at("5"));
            assert!(items.contains_key("a") && !items.contains_key("b"));
        }
        let mut items = listed();
        recent.amend(&mut items, at("5"));
        assert!(!items.contains_key("a") && items.contains_key("b"));
    }
}
