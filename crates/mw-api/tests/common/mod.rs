//! Structural validation of an API server, for the schema tests.

use std::collections::BTreeSet;

use regex_lite::Regex;
use serde_json::Value;

/// Calls `visit` with the path of every schema in the tree.
pub(crate) fn walk(schema: &Value, path: &str, visit: &mut impl FnMut(&str, &Value)) {
    visit(path, schema);
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        walk(child, &format!("{path}.{name}"), visit);
    }
    if let Some(items) = schema.get("items") {
        walk(items, &format!("{path}[]"), visit);
    }
}

/// Validates like an API server, without CEL rules, and returns the violations.
pub(crate) fn refusals(schema: &Value, value: &Value, path: &str) -> Vec<String> {
    let mut found = Vec::new();
    let bound = |key: &str| schema[key].as_f64();
    let mut outside = |size: f64, least: &str, most: &str| {
        if bound(least).is_some_and(|least| size < least)
            || bound(most).is_some_and(|most| size > most)
        {
            found.push(format!("{path}: size or value {size}"));
        }
    };
    match (schema["type"].as_str().unwrap(), value) {
        ("object", Value::Object(fields)) => {
            let missing = |name: &&str| !fields.contains_key(*name);
            let required = schema["required"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str);
            found.extend(
                required
                    .filter(missing)
                    .map(|name| format!("{path}.{name}: missing")),
            );
            for (name, child) in fields {
                if let Some(schema) = schema["properties"]
                    .get(name)
                    .or(schema.get("additionalProperties"))
                {
                    found.extend(refusals(schema, child, &format!("{path}.{name}")));
                }
            }
        }
        ("array", Value::Array(items)) => {
            outside(items.len() as f64, "minItems", "maxItems");
            let keys: Vec<&str> = schema["x-kubernetes-list-map-keys"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            let of = |item: &Value| {
                keys.iter()
                    .map(|key| item[*key].to_string())
                    .collect::<Vec<_>>()
            };
            if !keys.is_empty() && items.iter().map(of).collect::<BTreeSet<_>>().len() < items.len()
            {
                found.push(format!("{path}: duplicate {keys:?}"));
            }
            found.extend(
                items.iter().enumerate().flat_map(|(i, item)| {
                    refusals(&schema["items"], item, &format!("{path}[{i}]"))
                }),
            );
        }
        ("string", Value::String(text)) => {
            outside(text.chars().count() as f64, "minLength", "maxLength");
            if schema["pattern"]
                .as_str()
                .is_some_and(|pattern| !Regex::new(pattern).unwrap().is_match(text))
            {
                found.push(format!("{path}: pattern"));
            }
            if schema["enum"]
                .as_array()
                .is_some_and(|words| !words.contains(value))
            {
                found.push(format!("{path}: not one of {}", schema["enum"]));
            }
        }
        ("integer", Value::Number(number)) => {
            outside(number.as_f64().unwrap(), "minimum", "maximum")
        }
        ("boolean", Value::Bool(_)) => {}
        (kind, _) => found.push(format!("{path}: not of type {kind}")),
    }
    found
}
