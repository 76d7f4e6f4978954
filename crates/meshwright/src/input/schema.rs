//! Checks a tree against its CRD schema and reports all errors: unknown fields, wrong types,
//! missing fields.
//!
//! The result always fits the schema. Obvious mistakes are corrected, so that the core can validate
//! the rest.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use mw_core::text::printable;
use serde_json::{Map, Value as Json};

use crate::input::tree::{Entry, Span, Tree, Value};

#[derive(Debug)]
pub(crate) struct Mistake {
    pub(crate) path: String,
    pub(crate) span: Span,
    pub(crate) message: String,
    pub(crate) help: String,
    /// Path that was probably meant.
    pub(crate) meant: Option<String>,
}

/// The value, corrected to fit the schema, and all errors.
pub(crate) fn conform(tree: &Tree, schema: &JSONSchemaProps, path: &str) -> (Json, Vec<Mistake>) {
    let mut check = Check::default();
    let json = check
        .value(tree, tree.highlight(), schema, path)
        .unwrap_or_else(|| stand_in(schema));
    (json, check.mistakes)
}

#[derive(Default)]
struct Check {
    mistakes: Vec<Mistake>,
}

impl Check {
    fn say(&mut self, path: &str, span: Span, message: String, help: String) {
        self.mistakes.push(Mistake {
            path: path.to_owned(),
            span,
            message,
            help,
            meant: None,
        });
    }

    /// Reports an unknown field and returns the known name that was probably meant.
    fn unknown<'a>(&mut self, entry: &Entry, known: &[&'a str], parent: &str) -> Option<&'a str> {
        let path = format!("{parent}.{}", printable(&entry.key, 80));
        let near = nearest(&entry.key, known);
        let (help, meant) = match near {
            Some(name) => (
                format!("did you mean {name}?"),
                Some(format!("{parent}.{name}")),
            ),
            None => (format!("known fields: {}", known.join(", ")), None),
        };
        self.mistakes.push(Mistake {
            path,
            span: entry.key_span,
            message: "unknown field".to_owned(),
            help,
            meant,
        });
        near
    }

    /// Returns None if the type is wrong and can't be corrected. `key` is the place to mark for a
    /// collection.
    fn value(
        &mut self,
        tree: &Tree,
        key: Span,
        schema: &JSONSchemaProps,
        path: &str,
    ) -> Option<Json> {
        match (schema.type_.as_deref(), &tree.value) {
            (Some("object"), Value::Map(entries)) => {
                Some(self.fields(tree, key, entries, schema, path))
            }
            (Some("array"), Value::List(items)) => Some(self.items(items, schema, path)),
            (Some("string"), Value::Text(_))
            | (Some("boolean"), Value::Bool(_))
            | (Some("integer"), Value::Int(_))
            | (None, _) => Some(tree.to_json()),
            (Some(wanted), found) => {
                let place = if matches!(found, Value::Map(_) | Value::List(_) | Value::Null) {
                    key
                } else {
                    tree.span
                };
                self.say(
                    path,
                    place,
                    format!("must be {}, not {found}", words(wanted)),
                    remedy(wanted, tree),
                );
                evident(wanted, tree)
            }
        }
    }

    fn fields(
        &mut self,
        tree: &Tree,
        key: Span,
        entries: &[Entry],
        schema: &JSONSchemaProps,
        path: &str,
    ) -> Json {
        if let Some(JSONSchemaPropsOrBool::Schema(of)) = &schema.additional_properties {
            return self.free_fields(entries, of, path);
        }
        let mut json = Map::new();
        let known = schema.properties.as_ref();
        for entry in entries {
            match known.and_then(|known| known.get(&entry.key)) {
                // The API server drops nulls, so they count as absent.
                Some(_) if matches!(entry.value.value, Value::Null) => {}
                Some(schema) => {
                    let place = if entry.value.span.len() == 0 {
                        entry.key_span
                    } else {
                        entry.value.span
                    };
                    let place = if matches!(entry.value.value, Value::Map(_) | Value::List(_)) {
                        entry.key_span
                    } else {
                        place
                    };
                    if let Some(value) = self.value(
                        &entry.value,
                        place,
                        schema,
                        &format!("{path}.{}", entry.key),
                    ) {
                        json.insert(entry.key.clone(), value);
                    }
                }
                None => {
                    let names: Vec<&str> = known
                        .into_iter()
                        .flatten()
                        .map(|(name, _)| name.as_str())
                        .collect();
                    let meant = self.unknown(entry, &names, path);
                    let absent =
                        meant.filter(|name| !entries.iter().any(|entry| entry.key == *name));
                    if let Some((name, schema)) =
                        absent.and_then(|name| Some((name, known?.get(name)?)))
                        && let Some(value) = self.value(
                            &entry.value,
                            entry.key_span,
                            schema,
                            &format!("{path}.{name}"),
                        )
                    {
                        json.insert(name.to_owned(), value);
                    }
                }
            }
        }
        for name in schema
            .required
            .iter()
            .flatten()
            .filter(|name| !json.contains_key(*name))
            .cloned()
            .collect::<Vec<_>>()
        {
            let below = format!("{path}.{name}");
            if !self
                .mistakes
                .iter()
                .any(|mistake| mistake.path == below || mistake.meant.as_ref() == Some(&below))
            {
                let place = if key.len() == 0 {
                    tree.highlight()
                } else {
                    key
                };
                self.say(
                    &below,
                    place,
                    "is missing".to_owned(),
                    description(known.and_then(|known| known.get(&name))),
                );
            }
            if let Some(schema) = known.and_then(|known| known.get(&name)) {
                json.insert(name, stand_in(schema));
            }
        }
        Json::Object(json)
    }

    /// A map with arbitrary keys and values of one type.
    fn free_fields(&mut self, entries: &[Entry], schema: &JSONSchemaProps, path: &str) -> Json {
        let mut json = Map::new();
        for entry in entries {
            let below = format!("{path}.{}", printable(&entry.key, 80));
            if let Some(value) = self.value(&entry.value, entry.key_span, schema, &below) {
                json.insert(entry.key.clone(), value);
            }
        }
        Json::Object(json)
    }

    fn items(&mut self, items: &[Tree], schema: &JSONSchemaProps, path: &str) -> Json {
        let Some(JSONSchemaPropsOrArray::Schema(of)) = &schema.items else {
            return items.iter().map(Tree::to_json).collect();
        };
        let mut conformed = Vec::new();
        for (at, item) in items.iter().enumerate() {
            // Keep a placeholder: paths of later items depend on the index.
            conformed.push(
                self.value(item, item.highlight(), of, &format!("{path}[{at}]"))
                    .unwrap_or_else(|| stand_in(of)),
            );
        }
        Json::Array(conformed)
    }
}

/// The value converted to the expected type, if that is unambiguous.
fn evident(wanted: &str, tree: &Tree) -> Option<Json> {
    match (wanted, &tree.value) {
        ("array", Value::Text(text)) => Some(Json::from(vec![text.as_str()])),
        ("string", Value::Int(number)) => Some(number.to_string().into()),
        ("string", Value::Bool(flag)) => Some(flag.to_string().into()),
        ("integer", Value::Text(text)) => text.parse::<i64>().ok().map(Json::from),
        ("boolean", Value::Text(text)) => text.parse::<bool>().ok().map(Json::from),
        _ => None,
    }
}

/// The empty value of a type.
fn stand_in(schema: &JSONSchemaProps) -> Json {
    match schema.type_.as_deref() {
        Some("string") => Json::from(""),
        Some("array") => Json::Array(Vec::new()),
        Some("integer") => Json::from(0),
        Some("boolean") => Json::Bool(false),
        _ => {
            let known = schema.properties.as_ref();
            let required = schema.required.iter().flatten();
            Json::Object(
                required
                    .filter_map(|name| Some((name.clone(), stand_in(known?.get(name)?))))
                    .collect(),
            )
        }
    }
}

fn words(schema_type: &str) -> &'static str {
    match schema_type {
        "string" => "a string",
        "array" => "a list",
        "integer" => "an integer",
        "boolean" => "true or false",
        _ => "a mapping",
    }
}

fn remedy(wanted: &str, tree: &Tree) -> String {
    match (wanted, &tree.value) {
        ("array", Value::Text(text)) => format!("write it as a list: [{}]", printable(text, 60)),
        ("array", Value::Map(_)) => "start each entry with \"- \"".to_owned(),
        ("string", Value::Bool(_) | Value::Int(_) | Value::Large(_) | Value::Float(_)) => {
            "put it in quotes".to_owned()
        }
        ("string", Value::List(items)) if items.len() == 1 => {
            "write the value without the list".to_owned()
        }
        ("integer", Value::Text(text)) if text.parse::<i64>().is_ok() => {
            format!("write {text} without quotes")
        }
        ("boolean", Value::Text(text)) if ["true", "false"].contains(&text.as_str()) => {
            format!("write {text} without quotes")
        }
        _ => "run `meshwright crd` to see the schema".to_owned(),
    }
}

/// First sentence of the field's description in the CRD.
fn description(schema: Option<&JSONSchemaProps>) -> String {
    let text = schema
        .and_then(|schema| schema.description.as_deref())
        .unwrap_or_default();
    text.split(". ")
        .next()
        .unwrap_or_default()
        .trim_end_matches('.')
        .to_owned()
}

/// The known name that was probably meant.
pub(crate) fn nearest<'a>(given: &str, known: &[&'a str]) -> Option<&'a str> {
    let lower = given.to_lowercase();
    let (far, name) = known
        .iter()
        .map(|name| (distance(&lower, &name.to_lowercase()), *name))
        .min()?;
    (far <= 2.max(name.len() / 4) && far < name.len()).then_some(name)
}

/// Levenshtein distance, for short names.
pub(crate) fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().take(100).enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (above, b) in row.iter_mut().skip(1).zip(&other) {
            let cost = (diagonal + usize::from(a != *b))
                .min(*above + 1)
                .min(left + 1);
            diagonal = std::mem::replace(above, cost);
            left = cost;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_counts_edits() {
        assert_eq!(distance("podcidr", "podcidrs"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "abc"), 0);
    }

    #[test]
    fn only_a_near_name_is_suggested() {
        assert_eq!(nearest("podCidrs", &["name", "podCIDRs"]), Some("podCIDRs"));
        assert_eq!(nearest("bananas", &["name", "local"]), None);
    }
}
