//! Streaming parser of lists that holds the text of only one object at a time. A
//! page of Nodes has megabytes, their projections kilobytes.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use crate::failure::Failure;

/// etcd's size limit for an object.
pub const LARGEST_OBJECT: usize = 3 << 19;
/// A list without its items is a few hundred bytes.
const LARGEST_ENVELOPE: usize = 64 << 10;

/// The metadata of a page.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PageMeta {
    pub(super) resource_version: String,
    #[serde(rename = "continue")]
    pub(super) token: String,
    pub(super) remaining_item_count: Option<u64>,
}

#[derive(Deserialize)]
struct Envelope {
    metadata: PageMeta,
    // The items were cut out; a list without this field is invalid.
    #[serde(rename = "items", deserialize_with = "nothing")]
    _items: (),
}

fn nothing<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    Option::<[(); 0]>::deserialize(deserializer).map(drop)
}

/// Parses one page in pieces.
#[derive(Debug, Default)]
pub(super) struct PageReader {
    place: Place,
    /// The page without its items.
    envelope: Vec<u8>,
    /// The object that is being read.
    object: Vec<u8>,
    /// Nesting outside of the items.
    depth: usize,
    string: StringState,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    #[default]
    Outside,
    BetweenItems,
    /// In an object, at this depth.
    Item(usize),
}

/// Tells braces inside a string from structural ones.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum StringState {
    #[default]
    No,
    Inside,
    Escaped,
}

impl StringState {
    /// Returns true if the byte is not part of a string.
    fn step(&mut self, byte: u8) -> bool {
        let before = *self;
        *self = match (before, byte) {
            (StringState::No, b'"') | (StringState::Escaped, _) => StringState::Inside,
            (StringState::Inside, b'\\') => StringState::Escaped,
            (StringState::Inside, b'"') => StringState::No,
            _ => before,
        };
        before == StringState::No && byte != b'"'
    }
}

impl PageReader {
    /// Parses the next bytes of the page and passes on the objects they complete.
    pub(super) fn read<K: DeserializeOwned>(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(K) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        for byte in bytes {
            match self.place {
                Place::Outside => self.outside(*byte)?,
                Place::BetweenItems => self.between_items(*byte)?,
                Place::Item(depth) => {
                    if self.in_item(*byte, depth)? {
                        take(serde_json::from_slice(&self.object).map_err(|_| not_expected())?)?;
                        self.object.clear();
                        self.place = Place::BetweenItems;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the metadata after the whole page was read.
    pub(super) fn finish(self) -> Result<PageMeta, Failure> {
        let envelope: Envelope =
            serde_json::from_slice(&self.envelope).map_err(|_| not_expected())?;
        match envelope.metadata.resource_version.is_empty() {
            true => Err(Failure::Wrong("list has no resourceVersion".to_owned())),
            false => Ok(envelope.metadata),
        }
    }

    fn outside(&mut self, byte: u8) -> Result<(), Failure> {
        if self.envelope.len() >= LARGEST_ENVELOPE {
            return Err(Failure::TooLarge("list metadata exceeds 64 KiB".to_owned()));
        }
        let opens_items = byte == b'['
            && self.depth == 1
            && self.string == StringState::No
            && is_at_items(&self.envelope);
        self.envelope.push(byte);
        if opens_items {
            self.place = Place::BetweenItems;
        } else if self.string.step(byte) {
            match byte {
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
        Ok(())
    }

    fn between_items(&mut self, byte: u8) -> Result<(), Failure> {
        match byte {
            b'{' => {
                self.object.push(byte);
                self.place = Place::Item(1);
            }
            b']' => {
                self.envelope.push(byte);
                self.place = Place::Outside;
            }
            b',' | b' ' | b'\t' | b'\r' | b'\n' => {}
            _ => return Err(not_expected()),
        }
        Ok(())
    }

    /// Returns true if the object is complete.
    fn in_item(&mut self, byte: u8, depth: usize) -> Result<bool, Failure> {
        if self.object.len() >= LARGEST_OBJECT {
            return Err(Failure::TooLarge("object exceeds 1.5 MiB".to_owned()));
        }
        self.object.push(byte);
        if self.string.step(byte) {
            let depth = match byte {
                b'{' | b'[' => depth + 1,
                b'}' | b']' => depth - 1,
                _ => return Ok(false),
            };
            self.place = Place::Item(depth);
            return Ok(depth == 0);
        }
        Ok(false)
    }
}

/// Reports whether the value of `items` comes next.
fn is_at_items(envelope: &[u8]) -> bool {
    let key = envelope
        .trim_ascii_end()
        .strip_suffix(b":")
        .map(<[u8]>::trim_ascii_end);
    let before = key
        .and_then(|key| key.strip_suffix(b"\"items\""))
        .map(<[u8]>::trim_ascii_end);
    before.is_some_and(|before| matches!(before.last(), Some(b'{' | b',')))
}

pub(super) fn not_expected() -> Failure {
    Failure::Unreadable("unexpected JSON".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn read(text: &str, piece: usize) -> Result<(Vec<Value>, PageMeta), Failure> {
        let (mut reader, mut items) = (PageReader::default(), Vec::new());
        for bytes in text.as_bytes().chunks(piece.max(1)) {
            reader.read(bytes, |item: Value| {
                items.push(item);
                Ok(())
            })?;
        }
        Ok((items, reader.finish()?))
    }

    #[test]
    fn items_are_split_wherever_the_pieces_end() {
        let page = json!({
            "kind": "NodeList",
            "decoy": {"items": [{"no": 1}], "text": "\"items\":["},
            "metadata": {"resourceVersion": "5", "continue": "x", "remainingItemCount": 7},
            "items": [{"a": "}]\\\"{["}, {"b": {"items": [[1], {}]}}, {}],
        });
        for text in [
            page.to_string(),
            serde_json::to_string_pretty(&page).unwrap(),
        ] {
            for piece in 1..40 {
                let (items, meta) = read(&text, piece).unwrap();
                assert_eq!(Value::from(items), page["items"], "pieces of {piece}");
                assert_eq!(
                    meta,
                    PageMeta {
                        resource_version: "5".into(),
                        token: "x".into(),
                        remaining_item_count: Some(7)
                    }
                );
            }
        }
    }

    #[test]
    fn a_list_without_items_is_empty_only_if_it_says_so() {
        let meta = json!({"resourceVersion": "5"});
        assert_eq!(
            read(&json!({"metadata": meta, "items": []}).to_string(), 9)
                .unwrap()
                .0,
            Vec::<Value>::new()
        );
        assert_eq!(
            read(&json!({"metadata": meta, "items": null}).to_string(), 9)
                .unwrap()
                .0,
            Vec::<Value>::new()
        );
        for text in [
            "{}",
            "",
            "[]",
            "null",
            r#"{"metadata":{"resourceVersion":"5"}}"#,
            r#"{"items":[]}"#,
            r#"{"metadata":{},"items":[]}"#,
        ] {
            assert!(read(text, 9).is_err(), "{text}");
        }
    }

    #[test]
    fn a_page_that_ends_early_is_no_page() {
        let text = json!({"metadata": {"resourceVersion": "5"}, "items": [{"a": 1}, {"b": 2}]})
            .to_string();
        for end in 0..text.len() {
            assert!(read(&text[..end], 7).is_err(), "{}", &text[..end]);
        }
        assert!(read(&format!("{text} "), 7).is_ok());
        assert!(read(&format!("{text}{{"), 7).is_err());
    }

    #[test]
    fn no_object_and_no_envelope_is_endless() {
        let large = "x".repeat(LARGEST_OBJECT);
        let text =
            json!({"metadata": {"resourceVersion": "5"}, "items": [{"a": large}]}).to_string();
        assert!(
            matches!(read(&text, 4096), Err(Failure::TooLarge(why)) if why.contains("1.5 MiB"))
        );
        let text = json!({"metadata": {"resourceVersion": "5", "x": "y".repeat(LARGEST_ENVELOPE)}, "items": []}).to_string();
        assert!(matches!(read(&text, 4096), Err(Failure::TooLarge(why)) if why.contains("64 KiB")));
    }

    proptest! {
        #[test]
        fn any_bytes_get_an_answer(text in "[\\[\\]{}\",:a\\\\ \\n]{0,80}", piece in 1usize..9) {
            _ = read(&text, piece);
            _ = read(&format!("{{\"metadata\":{{\"resourceVersion\":\"1\"}},\"items\":[{text}]}}"), piece);
        }

        #[test]
        fn what_is_valid_is_read_as_serde_reads_it(texts in prop::collection::vec(any::<String>(), 0..5), piece in 1usize..50) {
            let items: Vec<Value> = texts.iter().map(|text| json!({ text: { "nested": [text] } })).collect();
            let page = json!({"items": items, "metadata": {"resourceVersion": "1"}});
            prop_assert_eq!(read(&page.to_string(), piece).unwrap().0, items);
        }
    }
}
