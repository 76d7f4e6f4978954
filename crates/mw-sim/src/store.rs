//! Storage of a server: objects by kind, and the changes since the last compaction.
//! Independent of requests.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::Value;
use tokio::sync::Notify;

use crate::json::meta_mut;
use crate::kind::Kind;
use crate::object::Object;

/// Objects sorted by key, `NAMESPACE/NAME` or `NAME`, like in etcd.
pub(crate) type Objects = BTreeMap<Arc<str>, Arc<Object>>;

/// Maximum number of changes kept per kind without a compaction.
const LONGEST_LOG: usize = 20_000;

/// A change of an object.
#[derive(Debug)]
pub(crate) struct Entry {
    pub key: Arc<str>,
    pub version: u64,
    pub before: Option<Arc<Object>>,
    /// New state; `None` for a delete.
    pub after: Option<Arc<Object>>,
    line: OnceLock<Bytes>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Added,
    Modified,
    Deleted,
}

impl Entry {
    /// Returns the event for a watch of all objects.
    pub(crate) fn line(&self) -> Bytes {
        let change = match (&self.before, &self.after) {
            (None, _) => Change::Added,
            (Some(_), Some(_)) => Change::Modified,
            (Some(_), None) => Change::Deleted,
        };
        self.line.get_or_init(|| self.line_as(change)).clone()
    }

    /// Returns the event as this kind of change, for a watch that may see the object
    /// only before or only after it. A removed object has its last content and the
    /// version of the change.
    pub(crate) fn line_as(&self, change: Change) -> Bytes {
        match (change, &self.before, &self.after) {
            (Change::Deleted, Some(before), _) => {
                let mut last = Value::clone(&before.value);
                meta_mut(&mut last).insert(
                    "resourceVersion".to_owned(),
                    self.version.to_string().into(),
                );
                event("DELETED", &crate::object::written(&last))
            }
            (Change::Added, _, Some(after)) => event("ADDED", &after.bytes()),
            (_, _, Some(after)) => event("MODIFIED", &after.bytes()),
            (_, _, None) => Bytes::new(),
        }
    }
}

/// Returns a line of a watch.
pub(crate) fn event(name: &str, object: &[u8]) -> Bytes {
    let mut line = BytesMut::with_capacity(object.len() + 40);
    line.put_slice(b"{\"type\":\"");
    line.put_slice(name.as_bytes());
    line.put_slice(b"\",\"object\":");
    line.put_slice(object);
    line.put_slice(b"}\n");
    line.freeze()
}

/// All objects of a kind.
#[derive(Debug)]
pub(crate) struct Collection {
    pub kind: Arc<Kind>,
    pub objects: Objects,
    log: VecDeque<Arc<Entry>>,
    /// Oldest version that is not compacted.
    pub floor: u64,
    /// Newest version that is no longer in the log.
    trimmed: u64,
    /// Notified of every change.
    pub changed: Arc<Notify>,
}

impl Collection {
    pub(crate) fn new(kind: Arc<Kind>, version: u64) -> Collection {
        let (objects, log) = (Objects::new(), VecDeque::new());
        Collection {
            kind,
            objects,
            log,
            floor: version,
            trimmed: version,
            changed: Arc::default(),
        }
    }

    pub(crate) fn record(
        &mut self,
        key: Arc<str>,
        version: u64,
        after: Option<Arc<Object>>,
    ) -> Arc<Entry> {
        let before = match &after {
            Some(after) => self.objects.insert(Arc::clone(&key), Arc::clone(after)),
            None => self.objects.remove(&key),
        };
        let entry = Arc::new(Entry {
            key,
            version,
            before,
            after,
            line: OnceLock::new(),
        });
        self.log.push_back(Arc::clone(&entry));
        if self.log.len() > LONGEST_LOG {
            for forgotten in self.log.drain(..LONGEST_LOG / 2) {
                self.trimmed = forgotten.version;
            }
            self.floor = self.floor.max(self.trimmed);
        }
        self.changed.notify_waiters();
        entry
    }

    /// Returns the changes after a version; `None` if they are no longer all in the log.
    /// Compaction alone does not matter, so open watches can continue.
    pub(crate) fn since(&self, version: u64) -> Option<impl Iterator<Item = &Arc<Entry>>> {
        if version < self.trimmed {
            return None;
        }
        let start = self.log.partition_point(|entry| entry.version <= version);
        Some(self.log.range(start..))
    }

    /// Resets all objects to a version, or to the oldest known one.
    pub(crate) fn restore(&mut self, version: u64) {
        self.objects = self.at(version);
        let kept = self.log.partition_point(|entry| entry.version <= version);
        self.log.truncate(kept);
        (self.floor, self.trimmed) = (self.floor.min(version), self.trimmed.min(version));
    }

    /// Returns the objects at a version, or at the oldest known one.
    pub(crate) fn at(&self, version: u64) -> Objects {
        let mut objects = self.objects.clone();
        for entry in self
            .log
            .iter()
            .rev()
            .take_while(|entry| entry.version > version)
        {
            match &entry.before {
                Some(before) => objects.insert(Arc::clone(&entry.key), Arc::clone(before)),
                None => objects.remove(&entry.key),
            };
        }
        objects
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn collection() -> Collection {
        Collection::new(Arc::clone(&crate::builtin::kinds()[0]), 0)
    }

    fn object(version: u64) -> Arc<Object> {
        Object::new(
            json!({ "metadata": { "resourceVersion": version.to_string() } }),
            version,
        )
    }

    fn versions(objects: &Objects) -> Vec<(String, u64)> {
        objects
            .iter()
            .map(|(key, object)| (key.to_string(), object.version))
            .collect()
    }

    #[test]
    fn the_past_can_be_told_as_it_was() {
        let mut all = collection();
        all.record("a".into(), 1, Some(object(1)));
        all.record("b".into(), 2, Some(object(2)));
        all.record("a".into(), 3, Some(object(3)));
        all.record("b".into(), 4, None);
        let at = |version| versions(&all.at(version));
        let of = |list: &[(&str, u64)]| {
            list.iter()
                .map(|(key, version)| ((*key).to_owned(), *version))
                .collect::<Vec<_>>()
        };
        assert_eq!(at(0), of(&[]));
        assert_eq!(at(1), of(&[("a", 1)]));
        assert_eq!(at(2), of(&[("a", 1), ("b", 2)]));
        assert_eq!(at(3), of(&[("a", 3), ("b", 2)]));
        assert_eq!(at(4), of(&[("a", 3)]));
        assert_eq!(
            all.since(2)
                .unwrap()
                .map(|entry| entry.version)
                .collect::<Vec<_>>(),
            [3, 4]
        );
    }

    #[test]
    fn the_log_has_an_end() {
        let mut all = collection();
        for version in 1..=(LONGEST_LOG as u64 + 1) {
            all.record("a".into(), version, Some(object(version)));
        }
        assert_eq!(all.floor, LONGEST_LOG as u64 / 2);
        assert!(all.since(all.floor - 1).is_none());
        assert_eq!(all.since(all.floor).unwrap().count(), LONGEST_LOG / 2 + 1);
    }
}
