//! Field managers of an object, read from its managedFields.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use mw_core::cilium::facts::{Held, MANAGER};
use mw_core::time::Timestamp;
use serde_json::Value;

/// Returns the managers of each key of a map field, such as `data` or
/// `metadata.annotations`.
pub fn managers(meta: &ObjectMeta, path: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in meta.managed_fields.iter().flatten() {
        for key in keys(entry, path) {
            found.entry(key).or_default().insert(manager(entry));
        }
    }
    found
}

/// Returns the values together with their managers.
pub fn held<'a, V: 'a, T>(
    values: impl IntoIterator<Item = (&'a String, &'a V)>,
    managers: &BTreeMap<String, BTreeSet<String>>,
    read: impl Fn(&V) -> T,
) -> BTreeMap<String, Held<T>> {
    let with_managers = |(key, value): (&String, &V)| {
        (
            key.clone(),
            Held {
                value: read(value),
                managers: managers.get(key).cloned().unwrap_or_default(),
            },
        )
    };
    values.into_iter().map(with_managers).collect()
}

/// Returns the time when our manager last changed one of these keys of a map field. If
/// `among` is empty, all keys count.
pub(super) fn changed_by_us(meta: &ObjectMeta, path: &[&str], among: &[&str]) -> Option<Timestamp> {
    let ours = meta
        .managed_fields
        .iter()
        .flatten()
        .filter(|entry| entry.manager.as_deref() == Some(MANAGER));
    let touching = ours.filter(|entry| {
        keys(entry, path)
            .iter()
            .any(|key| among.is_empty() || among.contains(&key.as_str()))
    });
    touching
        .filter_map(|entry| entry.time.as_ref())
        .map(|time| Timestamp(time.0.as_second()))
        .max()
}

/// Returns the name of a manager. Our next apply removes only fields that we applied
/// before, so fields that we patched count as managed by others.
fn manager(entry: &ManagedFieldsEntry) -> String {
    let name = entry.manager.clone().unwrap_or_default();
    match entry.operation.as_deref() {
        Some("Apply") => name,
        _ if name == MANAGER => format!("{MANAGER} (patch)"),
        _ => name,
    }
}

fn keys(entry: &ManagedFieldsEntry, path: &[&str]) -> Vec<String> {
    let Some(fields) = entry
        .fields_v1
        .as_ref()
        .filter(|_| entry.subresource.is_none())
    else {
        return Vec::new();
    };
    let below = path
        .iter()
        .try_fold(&fields.0, |at, name| at.get(format!("f:{name}")));
    let names = below
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(key, _)| key.strip_prefix("f:"));
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn meta(entries: Value) -> ObjectMeta {
        serde_json::from_value(json!({ "managedFields": entries })).unwrap()
    }

    fn entry(manager: &str, operation: &str, time: &str, fields: Value) -> Value {
        json!({ "manager": manager, "operation": operation, "time": time, "fieldsV1": fields })
    }

    #[test]
    fn every_key_has_all_its_managers() {
        let meta = meta(json!([
            entry(
                "helm",
                "Update",
                "1970-01-01T00:00:01Z",
                json!({ "f:data": { ".": {}, "f:a": {}, "f:b.key": {} } })
            ),
            entry(
                MANAGER,
                "Apply",
                "1970-01-01T00:00:02Z",
                json!({ "f:data": { "f:a": {} } })
            ),
            entry(
                MANAGER,
                "Update",
                "1970-01-01T00:00:09Z",
                json!({ "f:data": { "f:c": {} } })
            ),
        ]));
        let of = managers(&meta, &["data"]);
        assert_eq!(of["a"].iter().collect::<Vec<_>>(), ["helm", MANAGER]);
        assert_eq!(of["b.key"].iter().collect::<Vec<_>>(), ["helm"]);
        assert_eq!(of["c"].iter().collect::<Vec<_>>(), ["meshwright (patch)"]);
        assert_eq!(changed_by_us(&meta, &["data"], &["a"]), Some(Timestamp(2)));
        assert_eq!(changed_by_us(&meta, &["data"], &[]), Some(Timestamp(9)));
        assert_eq!(changed_by_us(&meta, &["data"], &["b.key"]), None);
    }

    #[test]
    fn a_subresource_or_an_empty_entry_manages_nothing() {
        let meta = meta(json!([
            { "manager": "m", "operation": "Update", "subresource": "status", "fieldsV1": { "f:metadata": { "f:annotations": { "f:x": {} } } } },
            { "manager": "m", "operation": "Update" },
        ]));
        assert!(managers(&meta, &["metadata", "annotations"]).is_empty());
    }
}
