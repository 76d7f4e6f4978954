//! What our own writes told us before the watch does. A watch lags behind the
//! answer to a write; what it says of the time before must not undo it.

use std::collections::BTreeMap;

use mw_core::kilo::peer::PeerFacts;
use mw_core::names::PeerName;

use crate::fleet::follow::Version;

#[derive(Debug, Default)]
pub(super) struct Recent(BTreeMap<PeerName, Written>);

#[derive(Debug)]
enum Written {
    Present(Box<PeerFacts>),
    /// The Peer with this uid is gone.
    Deleted(String),
}

impl Recent {
    pub(super) fn present(&mut self, facts: &PeerFacts) {
        self.0.insert(PeerName::from(facts.name.as_str()), Written::Present(Box::new(facts.clone())));
    }

    pub(super) fn deleted(&mut self, name: &PeerName, uid: &str) {
        self.0.insert(name.clone(), Written::Deleted(uid.to_owned()));
    }

    /// Whether the watch says something new with this.
    pub(super) fn is_news(&mut self, facts: &PeerFacts, version: Version) -> bool {
        let name = PeerName::from(facts.name.as_str());
        let known = match self.0.get(&name) {
            Some(Written::Present(ours)) => Version::of(Some(&ours.resource_version)),
            Some(Written::Deleted(uid)) => return *uid != facts.uid,
            None => return true,
        };
        if version >= known {
            self.0.remove(&name);
        }
        version > known
    }

    /// Whether the watch says something new with this deletion.
    pub(super) fn is_gone(&mut self, facts: &PeerFacts, version: Version) -> bool {
        let name = PeerName::from(facts.name.as_str());
        match self.0.get(&name) {
            Some(Written::Deleted(uid)) if *uid == facts.uid => {
                self.0.remove(&name);
                false
            }
            Some(Written::Present(ours)) if ours.uid != facts.uid || Version::of(Some(&ours.resource_version)) > version => false,
            _ => {
                self.0.remove(&name);
                true
            }
        }
    }

    /// Brings a list up to what was written after it was made.
    pub(super) fn amend(&mut self, listed: &mut BTreeMap<PeerName, PeerFacts>, version: Version) {
        self.0.retain(|_, written| match written {
            Written::Present(ours) => Version::of(Some(&ours.resource_version)) > version,
            Written::Deleted(uid) => listed.values().any(|facts| facts.uid == *uid),
        });
        for (name, written) in &self.0 {
            match written {
                Written::Present(ours) => _ = listed.insert(name.clone(), (**ours).clone()),
                Written::Deleted(_) => _ = listed.remove(name),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: &str, version: &str) -> PeerFacts {
        PeerFacts { name: "p".to_owned(), uid: uid.to_owned(), resource_version: version.to_owned(), ..PeerFacts::default() }
    }

    fn at(version: &str) -> Version {
        Version::of(Some(version))
    }

    #[test]
    fn a_late_event_does_not_undo_a_write() {
        let mut recent = Recent::default();
        recent.present(&peer("u", "9"));
        assert!(!recent.is_news(&peer("u", "8"), at("8")), "older than the write");
        assert!(!recent.is_news(&peer("u", "9"), at("9")), "the write itself");
        assert!(recent.is_news(&peer("u", "9"), at("9")), "nothing is remembered after that");
    }

    #[test]
    fn a_deleted_peer_stays_deleted_until_another_comes() {
        let mut recent = Recent::default();
        recent.deleted(&PeerName::from("p"), "u");
        assert!(!recent.is_news(&peer("u", "8"), at("8")));
        assert!(recent.is_news(&peer("other", "12"), at("12")));
        assert!(!recent.is_gone(&peer("u", "9"), at("9")), "known already");
        assert!(recent.is_gone(&peer("u", "9"), at("9")));
    }

    #[test]
    fn the_end_of_an_earlier_peer_says_nothing_of_ours() {
        let mut recent = Recent::default();
        recent.present(&peer("new", "12"));
        assert!(!recent.is_gone(&peer("old", "11"), at("11")));
        assert!(recent.is_gone(&peer("new", "13"), at("13")));
    }

    #[test]
    fn a_list_made_before_a_write_is_amended() {
        let mut recent = Recent::default();
        recent.present(&peer("u", "9"));
        recent.deleted(&PeerName::from("q"), "x");
        let q = PeerFacts { name: "q".to_owned(), ..peer("x", "3") };
        let mut listed = BTreeMap::from([(PeerName::from("q"), q)]);
        recent.amend(&mut listed, at("8"));
        assert_eq!(listed.keys().map(PeerName::as_str).collect::<Vec<_>>(), ["p"]);
        let mut later = BTreeMap::new();
        recent.amend(&mut later, at("10"));
        assert!(later.is_empty(), "what is not in a later list is gone");
    }
}
