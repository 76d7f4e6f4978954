//! False answers to reads, as effects of a proxy. Only the answer changes: the request
//! needs its permissions, unless the proxy answers it itself, and writes act on the
//! real state.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use super::faults::Effect;

/// A list without items.
pub fn empty_list() -> Effect {
    Effect::edit(|mut list| {
        keep(&mut list, 0);
        Some(list)
    })
}

/// A list that ends after this many items. With `counted`, `remainingItemCount` gives
/// the number of missing items, but there is no continue token.
pub fn truncated_list(most: usize, counted: bool) -> Effect {
    Effect::edit(move |mut list| {
        let missing = keep(&mut list, most);
        if counted {
            set(&mut list, "remainingItemCount", json!(missing));
        }
        Some(list)
    })
}

/// A list whose pages contain this many copies of an object, under names that no
/// earlier page had, and that never ends.
pub fn endless_list(page: u64, object: &Value) -> Effect {
    let object = object.clone();
    let count = AtomicU64::new(0);
    Effect::reply(move |_| {
        let first = count.fetch_add(page, Ordering::Relaxed);
        let copy = |number: u64| {
            let mut copy = object.clone();
            set(&mut copy, "name", json!(format!("endless-{number}")));
            set(&mut copy, "uid", json!(format!("endless-{number}")));
            copy
        };
        let items: Vec<Value> = (first..first + page).map(copy).collect();
        let kind = format!(
            "{}List",
            object
                .get("kind")
                .and_then(Value::as_str)
                .unwrap_or_default()
        );
        let metadata =
            json!({ "resourceVersion": "1000000", "continue": format!("endless-{first}") });
        json!({ "apiVersion": object.get("apiVersion"), "kind": kind, "metadata": metadata, "items": items })
    })
}

/// The first items of a list, with an earlier resourceVersion.
pub fn older_list(most: usize, version: &str) -> Effect {
    let version = version.to_owned();
    Effect::edit(move |mut list| {
        keep(&mut list, most);
        set(&mut list, "resourceVersion", json!(version));
        Some(list)
    })
}

/// Objects with other UIDs, by name, in lists and watches.
pub fn other_uids(uids: BTreeMap<String, String>) -> Effect {
    Effect::edit(move |mut answer| {
        for object in objects(&mut answer) {
            let name = object
                .pointer("/metadata/name")
                .and_then(Value::as_str)
                .unwrap_or_default();
            if let Some(uid) = uids.get(name) {
                let uid = json!(uid);
                set(object, "uid", uid);
            }
        }
        Some(answer)
    })
}

/// Replaces a text wherever it occurs.
pub fn rewritten(from: String, to: String) -> Effect {
    Effect::edit(move |answer| serde_json::from_str(&answer.to_string().replace(&from, &to)).ok())
}

/// Objects with a label of this many bytes, in lists and watches.
pub fn fat(bytes: usize) -> Effect {
    let text = json!("x".repeat(bytes));
    Effect::edit(move |mut answer| {
        for object in objects(&mut answer) {
            let labels = object
                .pointer("/metadata/labels")
                .and_then(Value::as_object)
                .cloned();
            let mut labels = labels.unwrap_or_default();
            labels.insert("fat".to_owned(), text.clone());
            set(object, "labels", Value::Object(labels));
        }
        Some(answer)
    })
}

/// A watch without DELETED events.
pub fn without_deletes() -> Effect {
    Effect::edit(|event| {
        Some(event).filter(|event| event.get("type").and_then(Value::as_str) != Some("DELETED"))
    })
}

/// Returns the items of a list, the object of an event, or the object itself.
fn objects(answer: &mut Value) -> Vec<&mut Value> {
    if answer.get("items").is_some_and(Value::is_array) {
        return answer
            .get_mut("items")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
            .collect();
    }
    match answer.get("object").is_some() {
        true => answer.get_mut("object").into_iter().collect(),
        false => vec![answer],
    }
}

/// Truncates a list to this many items, and returns the number of removed ones.
fn keep(list: &mut Value, most: usize) -> usize {
    let Some(items) = list.get_mut("items").and_then(Value::as_array_mut) else {
        return 0;
    };
    let missing = items.len().saturating_sub(most);
    items.truncate(most);
    if let Some(metadata) = list.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("continue");
        metadata.remove("remainingItemCount");
    }
    missing
}

fn set(object: &mut Value, field: &str, value: Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert(field.to_owned(), value);
    }
}
