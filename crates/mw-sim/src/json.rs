//! Helpers for JSON values.

use serde_json::{Map, Value};

/// Returns the value at a path, or null.
pub(crate) fn at<'a>(value: &'a Value, place: &[&str]) -> &'a Value {
    place
        .iter()
        .try_fold(value, |value, name| value.get(name))
        .unwrap_or(&Value::Null)
}

/// Returns a string of the metadata, or an empty string.
pub(crate) fn meta_text<'a>(object: &'a Value, field: &str) -> &'a str {
    meta(object, field)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

pub(crate) fn meta<'a>(object: &'a Value, field: &str) -> Option<&'a Value> {
    object.get("metadata")?.get(field)
}

/// Returns the metadata, which is created if missing.
pub(crate) fn meta_mut(object: &mut Value) -> &mut Map<String, Value> {
    child_mut(map_mut(object), "metadata")
}

/// Returns a field as a map, which is created if missing.
pub(crate) fn child_mut<'a>(
    map: &'a mut Map<String, Value>,
    name: &str,
) -> &'a mut Map<String, Value> {
    map_mut(map.entry(name).or_insert(Value::Null))
}

/// Returns a value as a map. Other types are replaced by an empty map.
pub(crate) fn map_mut(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let Value::Object(map) = value else {
        unreachable!("replaced by a map above")
    };
    map
}

/// Returns the name of a JSON type.
pub(crate) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Returns the strings of a list, ignoring other types.
pub(crate) fn texts(list: Option<&Value>) -> impl Iterator<Item = &str> {
    list.and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

/// Returns `group/version`, or the version alone for the core group.
pub(crate) fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}
