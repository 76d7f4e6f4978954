//! Small ways to look into JSON.

use serde_json::{Map, Value};

/// What is at a place; null when there is nothing.
pub(crate) fn at<'a>(value: &'a Value, place: &[&str]) -> &'a Value {
    place.iter().try_fold(value, |value, name| value.get(name)).unwrap_or(&Value::Null)
}

/// A text of the metadata; empty when it is not there.
pub(crate) fn meta_text<'a>(object: &'a Value, field: &str) -> &'a str {
    meta(object, field).and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn meta<'a>(object: &'a Value, field: &str) -> Option<&'a Value> {
    object.get("metadata")?.get(field)
}

/// The metadata, made when there is none.
pub(crate) fn meta_mut(object: &mut Value) -> &mut Map<String, Value> {
    child_mut(map_mut(object), "metadata")
}

/// A part that is a map, made when there is none.
pub(crate) fn child_mut<'a>(map: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    map_mut(map.entry(name).or_insert(Value::Null))
}

/// A value as a map, which it becomes when it is something else.
pub(crate) fn map_mut(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let Value::Object(map) = value else { unreachable!("it was made a map two lines before") };
    map
}

/// What people call a JSON type.
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

/// The texts of a list; what is no text is left out.
pub(crate) fn texts(list: Option<&Value>) -> impl Iterator<Item = &str> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// `group/version` split; the core group has none.
pub(crate) fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}
