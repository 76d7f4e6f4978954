//! Parsed YAML or JSON with the place of every value.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value as Json};
use serde_saphyr::{Location, Spanned};

/// Byte range in a file. 32 bits suffice for the largest file, and every value of a large dump has
/// a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Span {
    start: u32,
    len: u32,
}

impl Span {
    pub(crate) fn new(start: usize, len: usize) -> Span {
        let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Span {
            start: narrow(start),
            len: narrow(len),
        }
    }

    pub(crate) fn start(self) -> usize {
        usize::try_from(self.start).unwrap_or(usize::MAX)
    }

    pub(crate) fn end(self) -> usize {
        self.start()
            .saturating_add(usize::try_from(self.len).unwrap_or(usize::MAX))
    }

    pub(crate) fn len(self) -> usize {
        self.end() - self.start()
    }

    fn of(location: Location) -> Span {
        let narrow = |n: Option<u64>| n.and_then(|n| u32::try_from(n).ok()).unwrap_or_default();
        Span {
            start: narrow(location.span().byte_offset()),
            len: narrow(location.span().byte_len()),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) value: Value,
    /// For collections, only the start.
    pub(crate) span: Span,
}

#[derive(Debug)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Int(i64),
    /// Only for numbers that do not fit `Int`.
    Large(u64),
    Float(f64),
    Text(String),
    List(Vec<Tree>),
    Map(Vec<Entry>),
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) key_span: Span,
    pub(crate) value: Tree,
}

impl Tree {
    pub(crate) fn entries(&self) -> &[Entry] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    pub(crate) fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries().iter().find(|entry| entry.key == key)
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Tree> {
        self.entry(key).map(|entry| &entry.value)
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Span to mark for this value: all of a scalar, the first entry of a collection.
    pub(crate) fn highlight(&self) -> Span {
        match &self.value {
            Value::Map(entries) => {
                entries
                    .first()
                    .map_or(self.span, |first| match &first.value.value {
                        Value::Map(_) | Value::List(_) | Value::Null => first.key_span,
                        _ => Span::new(
                            first.key_span.start(),
                            first
                                .value
                                .span
                                .end()
                                .saturating_sub(first.key_span.start()),
                        ),
                    })
            }
            Value::List(items) => items
                .first()
                .filter(|_| self.span.len == 0)
                .map_or(self.span, Tree::highlight),
            _ => self.span,
        }
    }

    /// Span of a path such as `spec.clusters[1].podCIDRs[0]`, or of its nearest existing parent.
    pub(crate) fn locate(&self, path: &str) -> Span {
        let (mut here, mut place) = (self, self.highlight());
        for step in path
            .split(['.', '['])
            .map(|step| step.trim_end_matches(']'))
            .filter(|step| !step.is_empty())
        {
            match &here.value {
                Value::Map(_) => {
                    let Some(entry) = here.entry(step) else { break };
                    here = &entry.value;
                    // A block collection has no text to mark, but its key has.
                    place = if matches!(here.value, Value::Map(_) | Value::List(_) | Value::Null) {
                        entry.key_span
                    } else {
                        here.span
                    };
                }
                Value::List(items) => {
                    let Some(item) = step.parse::<usize>().ok().and_then(|at| items.get(at)) else {
                        break;
                    };
                    here = item;
                    place = item.highlight();
                }
                _ => break,
            }
        }
        place
    }

    pub(crate) fn to_json(&self) -> Json {
        match &self.value {
            Value::Null => Json::Null,
            Value::Bool(flag) => Json::Bool(*flag),
            Value::Int(number) => Json::from(*number),
            Value::Large(number) => Json::from(*number),
            Value::Float(number) => Number::from_f64(*number).map_or(Json::Null, Json::Number),
            Value::Text(text) => Json::from(text.as_str()),
            Value::List(items) => items.iter().map(Tree::to_json).collect(),
            Value::Map(entries) => Json::Object(
                entries
                    .iter()
                    .map(|entry| (entry.key.clone(), entry.value.to_json()))
                    .collect::<Map<_, _>>(),
            ),
        }
    }
}

/// Describes the type in error messages.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Value::Null => "empty",
            Value::Bool(_) => "a boolean",
            Value::Int(_) | Value::Large(_) => "a number",
            Value::Float(_) => "a fractional number",
            Value::Text(_) => "a string",
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
        })
    }
}

impl From<Spanned<Value>> for Tree {
    fn from(spanned: Spanned<Value>) -> Tree {
        Tree {
            value: spanned.value,
            span: Span::of(spanned.referenced),
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tree, D::Error> {
        Spanned::<Value>::deserialize(deserializer).map(Tree::from)
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Bool(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Int(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(i64::try_from(number).map_or(Value::Large(number), Value::Int))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Float(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, value)) = map.next_entry::<Spanned<String>, Tree>()? {
            entries.push(Entry {
                key_span: Span::of(key.referenced),
                key: key.value,
                value,
            });
        }
        Ok(Value::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# grün\nspec:\n  clusters:\n  - name: \"ä\"\n    podCIDRs: [10.1.0.0/16, x]\n  - {name: b}\n  none:\n";

    fn at(path: &str) -> &'static str {
        let tree: Tree = serde_saphyr::from_str(TEXT).unwrap();
        let span = tree.locate(path);
        &TEXT[span.start()..span.end()]
    }

    #[test]
    fn a_path_leads_to_its_text() {
        assert_eq!(at("spec.clusters[0].name"), "\"ä\"");
        assert_eq!(at("spec.clusters[0].podCIDRs[1]"), "x");
        assert_eq!(at("spec.clusters[0].podCIDRs"), "podCIDRs");
        assert_eq!(at("spec.clusters[1]"), "name: b");
    }

    #[test]
    fn a_path_to_nothing_leads_to_what_is_above_it() {
        assert_eq!(at("spec.clusters[0].wireguardCIDR"), "name: \"ä\"");
        assert_eq!(at("spec.clusters[7].name"), "clusters");
        assert_eq!(at("spec.clusters[1]."), "name: b");
        assert_eq!(at("spec.none.more"), "none");
        assert_eq!(at("nowhere"), "spec");
    }

    #[test]
    fn values_stay_what_yaml_says_they_are() {
        let tree: Tree =
            serde_saphyr::from_str("{a: 1, b: \"1\", c: true, d: \"true\", e: 1.5, f: null, g: -1, h: 18446744073709551615}").unwrap();
        let json = serde_json::json!({ "a": 1, "b": "1", "c": true, "d": "true", "e": 1.5, "f": null, "g": -1, "h": u64::MAX });
        assert_eq!(tree.to_json(), json);
    }
}
