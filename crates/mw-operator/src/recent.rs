//! What our own writes told us before the watch does. A watch lags behind the
//! answer to a write; what it says of the time before must not undo it.

use std::collections::BTreeMap;

use crate::fleet::follow::Version;

/// An object as it was at some time.
pub trait Stamped: Clone {
    fn uid(&self) -> &str;
    fn version(&self) -> Version;
}

#[derive(Debug)]
pub struct Recent<K, T>(BTreeMap<K, Memory<T>>);

/// A server whose lists contradict what it answered to a write so often is
/// believed no more: one of the two was a lie.
const MOST_CONTRADICTIONS: u32 = 3;

#[derive(Debug)]
struct Memory<T> {
    written: Written<T>,
    /// How many lists said otherwise.
    contradicted: u32,
}

#[derive(Debug)]
enum Written<T> {
    Present(Box<T>),
    /// The object with this uid is gone.
    Deleted(String),
}

impl<K, T> Default for Recent<K, T> {
    fn default() -> Self {
        Recent(BTreeMap::new())
    }
}

impl<K: Ord + Clone, T: Stamped> Recent<K, T> {
    pub fn present(&mut self, name: &K, item: &T) {
        self.0.insert(name.clone(), Memory { written: Written::Present(Box::new(item.clone())), contradicted: 0 });
    }

    pub fn deleted(&mut self, name: &K, uid: &str) {
        self.0.insert(name.clone(), Memory { written: Written::Deleted(uid.to_owned()), contradicted: 0 });
    }

    /// Whether the watch says something new with this.
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

    /// Whether the watch says something new with this deletion.
    pub fn is_gone(&mut self, name: &K, item: &T, version: Version) -> bool {
        match self.0.get(name).map(|memory| &memory.written) {
            Some(Written::Deleted(uid)) if *uid == item.uid() => {
                self.0.remove(name);
                false
            }
            Some(Written::Present(ours)) if ours.uid() != item.uid() || ours.version() > version => false,
            _ => {
                self.0.remove(name);
                true
            }
        }
    }

    /// Brings a list up to what was written after it was made.
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
        let mut recent = Recent::default();
        recent.present(&"p", &thing("u", "9"));
        assert!(!recent.is_news(&"p", &thing("u", "8"), at("8")), "older than the write");
        assert!(!recent.is_news(&"p", &thing("u", "9"), at("9")), "the write itself");
        assert!(recent.is_news(&"p", &thing("u", "9"), at("9")), "nothing is remembered after that");
    }

    #[test]
    fn what_was_deleted_stays_deleted_until_another_comes() {
        let mut recent = Recent::default();
        recent.deleted(&"p", "u");
        assert!(!recent.is_news(&"p", &thing("u", "8"), at("8")));
        assert!(recent.is_news(&"p", &thing("other", "12"), at("12")));
        assert!(!recent.is_gone(&"p", &thing("u", "9"), at("9")), "known already");
        assert!(recent.is_gone(&"p", &thing("u", "9"), at("9")));
    }

    #[test]
    fn the_end_of_an_earlier_one_says_nothing_of_ours() {
        let mut recent = Recent::default();
        recent.present(&"p", &thing("new", "12"));
        assert!(!recent.is_gone(&"p", &thing("old", "11"), at("11")));
        assert!(recent.is_gone(&"p", &thing("new", "13"), at("13")));
    }

    #[test]
    fn a_list_made_before_a_write_is_amended() {
        let mut recent = Recent::default();
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
        let mut recent = Recent::default();
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
