//! What kcp refuses of the objects of `apis.kcp.io` before it stores them.

use serde_json::Value;

use super::model::{array, string};

/// The part of a version that has to be there, and where.
const NAMES: [&str; 4] = ["plural", "singular", "kind", "listKind"];

/// What is wrong with an APIResourceSchema, as kcp says it. An API server fills
/// in some of this for a CRD; kcp does not.
pub(super) fn schema(object: &Value) -> Vec<String> {
    let required = |pointer: String, path: String| string(object, &pointer).is_empty().then(|| format!("{path}: Required value"));
    let mut wrong: Vec<String> =
        NAMES.iter().filter_map(|name| required(format!("/spec/names/{name}"), format!("spec.names.{name}"))).collect();
    let name = string(object, "/metadata/name");
    let end = format!(".{}.{}", string(object, "/spec/names/plural"), string(object, "/spec/group"));
    if name.strip_suffix(&end).is_none_or(str::is_empty) {
        wrong.push(format!("metadata.name: Invalid value: {name:?}: must match <prefix>{end}"));
    }
    let versions = array(object, "/spec/versions");
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        wrong.push("spec.versions: Invalid value: must have exactly one version marked as storage version".to_owned());
    }
    for (at, version) in versions.iter().enumerate() {
        if string(version, "/schema/type") != "object" {
            wrong.push(format!("spec.versions[{at}].schema.type: Invalid value: must be object at the root"));
        }
    }
    wrong
}

/// Whether a changed APIBinding keeps what can't be changed: the export, and
/// the selectors of claims that it has.
pub(super) fn immutable(before: &Value, after: &Value) -> Option<&'static str> {
    if before.pointer("/spec/reference") != after.pointer("/spec/reference") {
        return Some("spec.reference is immutable");
    }
    let of = |claim: &Value| ["group", "resource", "identityHash"].map(|field| claim[field].as_str().unwrap_or_default().to_owned());
    let (before, after) = (array(before, "/spec/permissionClaims"), array(after, "/spec/permissionClaims"));
    let differs = |one: &&Value| after.iter().any(|other| of(one) == of(other) && one["selector"] != other["selector"]);
    before.iter().find(differs).map(|_| "permission claim selector must not be changed")
}

#[cfg(test)]
mod tests {
    use super::*;

    use serde_json::json;

    fn widget() -> Value {
        let names = json!({ "kind": "Widget", "listKind": "WidgetList", "plural": "widgets", "singular": "widget" });
        let versions = json!([{ "name": "v1", "served": true, "storage": true, "schema": { "type": "object" } }]);
        json!({
            "metadata": { "name": "v1.widgets.toy.example.dev" },
            "spec": { "group": "toy.example.dev", "names": names, "scope": "Namespaced", "versions": versions },
        })
    }

    #[test]
    fn a_schema_lacks_nothing() {
        assert_eq!(schema(&widget()), Vec::<String>::new());
        let with = |pointer: &str, value: Value| {
            let mut changed = widget();
            *changed.pointer_mut(pointer).unwrap() = value;
            schema(&changed).join(", ")
        };
        assert_eq!(with("/spec/names/listKind", Value::Null), "spec.names.listKind: Required value");
        assert!(with("/metadata/name", json!("widgets.toy.example.dev")).starts_with("metadata.name: Invalid value"));
        assert!(with("/spec/versions/0/storage", json!(false)).contains("exactly one version"));
        assert!(with("/spec/versions/0/schema", json!({ "openAPIV3Schema": {} })).contains("spec.versions[0].schema.type"));
    }

    #[test]
    fn a_binding_keeps_its_export_and_its_selectors() {
        let binding = |export: &str, selector: Value, state: &str| {
            let claim = json!({ "group": "", "resource": "events", "state": state, "selector": selector });
            json!({ "spec": { "reference": { "export": { "name": export } }, "permissionClaims": [claim] } })
        };
        let all = json!({ "matchAll": true });
        let before = binding("a", all.clone(), "Accepted");
        assert_eq!(immutable(&before, &binding("a", all.clone(), "Rejected")), None);
        assert!(immutable(&before, &binding("b", all, "Accepted")).is_some());
        assert!(immutable(&before, &binding("a", json!({ "matchLabels": { "a": "b" } }), "Accepted")).is_some());
    }
}
