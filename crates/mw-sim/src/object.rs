//! Stored objects: shared, and serialized at most once.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

/// An object at one version. Immutable: a write creates a new one.
#[derive(Debug)]
pub(crate) struct Object {
    pub value: Arc<Value>,
    pub version: u64,
    whole: OnceLock<Bytes>,
    bare: OnceLock<Bytes>,
}

impl Object {
    pub(crate) fn new(value: Value, version: u64) -> Arc<Object> {
        Arc::new(Object {
            value: Arc::new(value),
            version,
            whole: OnceLock::new(),
            bare: OnceLock::new(),
        })
    }

    pub(crate) fn bytes(&self) -> Bytes {
        self.whole.get_or_init(|| written(&*self.value)).clone()
    }

    /// Returns the JSON without apiVersion and kind, as in lists of built-in kinds.
    pub(crate) fn bare_bytes(&self) -> Bytes {
        self.bare
            .get_or_init(|| written(&Bare(&self.value)))
            .clone()
    }
}

/// Serializes a value that can't fail to serialize: strings, numbers, lists and maps
/// with string keys.
pub(crate) fn written(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value)
        .map(Bytes::from)
        .unwrap_or_default()
}

struct Bare<'a>(&'a Value);

impl Serialize for Bare<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let fields = self.0.as_object().into_iter().flatten();
        for (name, value) in fields.filter(|(name, _)| *name != "apiVersion" && *name != "kind") {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}
