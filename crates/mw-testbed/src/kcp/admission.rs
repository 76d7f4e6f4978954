//! Admission of objects of `apis.kcp.io`: the checks of kcp before it stores them.

use std::collections::BTreeSet;

use serde_json::Value;

use super::model::{CLAIM_LABELS, array, string};

/// Names that a schema must specify. An API server fills in some of them for a CRD, kcp
/// does not.
const NAMES: [&str; 4] = ["plural", "singular", "kind", "listKind"];
/// Name of the core group in schema names, where it can't be empty.
const CORE: &str = "core";
/// Resources that every workspace serves, so that a claim on them needs no identity.
const BUILT_IN: [(&str, &[&str]); 10] = [
    (
        "",
        &[
            "namespaces",
            "configmaps",
            "events",
            "resourcequotas",
            "secrets",
            "serviceaccounts",
        ],
    ),
    (
        "rbac.authorization.k8s.io",
        &[
            "clusterroles",
            "clusterrolebindings",
            "roles",
            "rolebindings",
        ],
    ),
    ("certificates.k8s.io", &["certificatesigningrequests"]),
    ("coordination.k8s.io", &["leases"]),
    (
        "admissionregistration.k8s.io",
        &[
            "mutatingwebhookconfigurations",
            "validatingwebhookconfigurations",
            "mutatingadmissionpolicies",
            "mutatingadmissionpolicybindings",
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
        ],
    ),
    ("events.k8s.io", &["events"]),
    ("apiextensions.k8s.io", &["customresourcedefinitions"]),
    ("core.kcp.io", &["logicalclusters"]),
    (
        "authorization.k8s.io",
        &["subjectaccessreviews", "localsubjectaccessreviews"],
    ),
    ("authentication.k8s.io", &["tokenreviews"]),
];

/// Reports whether every workspace serves a resource.
pub(super) fn is_built_in(group: &str, resource: &str) -> bool {
    BUILT_IN
        .iter()
        .any(|(of, resources)| *of == group && resources.contains(&resource))
}

/// Reports whether only kcp itself may write a label or annotation. The suffix of the
/// whole key counts, so `kcp.io/cluster` is not reserved.
fn is_reserved(key: &str) -> bool {
    key.ends_with("kcp.io") && !key.starts_with(CLAIM_LABELS)
}

/// Reports whether an object has a reserved key.
pub(super) fn has_reserved(object: &Value) -> bool {
    let keys = |field: &str| {
        object
            .pointer(field)
            .and_then(Value::as_object)
            .into_iter()
            .flat_map(|of| of.keys())
    };
    keys("/metadata/annotations")
        .chain(keys("/metadata/labels"))
        .any(|key| is_reserved(key))
}

/// Returns kcp's message for the first reserved key that a write sets, changes or
/// removes.
pub(super) fn reserved(before: &Value, after: &Value) -> Option<String> {
    ["annotation", "label"].into_iter().find_map(|what| {
        let of = |object: &'_ Value| {
            object
                .pointer(&format!("/metadata/{what}s"))
                .and_then(Value::as_object)
                .cloned()
                .unwrap_or_default()
        };
        let (before, after) = (of(before), of(after));
        let changed = before
            .keys()
            .chain(after.keys())
            .find(|key| is_reserved(key) && before.get(*key) != after.get(*key))?;
        Some(format!("modification of reserved {what}: {changed:?}"))
    })
}

fn invalid(path: &str, value: &str, why: &str) -> String {
    format!("{path}: Invalid value: {value:?}: {why}")
}

/// Reports whether a text consists of lower-case letters, digits and hyphens, starts
/// with a letter and does not end with a hyphen.
fn is_label(text: &str) -> bool {
    let fits = text
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    fits && text.starts_with(|first: char| first.is_ascii_lowercase()) && !text.ends_with('-')
}

/// Returns an error if the name is not `<prefix>.<plural>.<group>`.
fn schema_name(object: &Value) -> Option<String> {
    let (name, plural) = (
        string(object, "/metadata/name"),
        string(object, "/spec/names/plural"),
    );
    // `schema` reports a missing plural.
    if plural.is_empty() {
        return None;
    }
    let end = suffix(plural, string(object, "/spec/group"));
    match name.strip_suffix(&end) {
        None => Some(invalid(
            "metadata.name",
            name,
            &format!("must end in {end}"),
        )),
        Some(prefix) if is_label(prefix) => None,
        Some(_) => Some(invalid(
            "metadata.name",
            name,
            &format!("must match ^[a-z]([-a-z0-9]*[a-z0-9])?$ in front of {end}"),
        )),
    }
}

fn suffix(plural: &str, group: &str) -> String {
    format!(".{plural}.{}", if group.is_empty() { CORE } else { group })
}

/// Returns the errors of an APIResourceSchema, in kcp's words. Whether its versions are
/// structural schemas is checked by an API server, as part of a CRD.
pub(super) fn schema(object: &Value) -> Vec<String> {
    let mut wrong: Vec<String> = schema_name(object).into_iter().collect();
    let group = string(object, "/spec/group");
    if group == CORE {
        wrong.push(invalid(
            "spec.group",
            group,
            "must be empty string for the core group",
        ));
    } else if !group.is_empty() && !group.contains('.') {
        wrong.push(invalid(
            "spec.group",
            group,
            "should be a domain with at least one dot",
        ));
    }
    let versions = array(object, "/spec/versions");
    for (at, version) in versions.iter().enumerate() {
        let (path, name) = (format!("spec.versions[{at}]"), string(version, "/name"));
        if !is_label(name) {
            wrong.push(invalid(
                &format!("{path}.name"),
                name,
                "a DNS-1035 label must consist of lower case alphanumeric characters or '-'",
            ));
        }
        if version.get("schema").is_none_or(Value::is_null) {
            wrong.push(format!("{path}.schema: Required value"));
        }
    }
    let names: BTreeSet<&str> = versions
        .iter()
        .map(|version| string(version, "/name"))
        .collect();
    if names.len() != versions.len() {
        wrong.push("spec.versions: Invalid value: must contain unique version names".to_owned());
    }
    if versions
        .iter()
        .filter(|version| version["storage"] == true)
        .count()
        != 1
    {
        wrong.push(
            "spec.versions: Invalid value: must have exactly one version marked as storage version"
                .to_owned(),
        );
    }
    let required = |name: &&&str| string(object, &format!("/spec/names/{name}")).is_empty();
    wrong.extend(
        NAMES
            .iter()
            .filter(required)
            .map(|name| format!("spec.names.{name}: Required value")),
    );
    wrong
}

/// Returns the first error of an APIExport.
pub(super) fn export(object: &Value) -> Option<String> {
    let unknown = |(at, claim): (usize, &Value)| {
        let (group, resource) = (string(claim, "/group"), string(claim, "/resource"));
        let needed = string(claim, "/identityHash").is_empty()
            && !is_built_in(group, resource)
            && group != "apis.kcp.io";
        let why = "identityHash is required for API types that are not built-in";
        needed.then(|| {
            invalid(
                &format!("spec.permissionClaims[{at}].identityHash"),
                "",
                why,
            )
        })
    };
    let misnamed = |(at, resource): (usize, &Value)| {
        let (end, schema) = (
            suffix(string(resource, "/name"), string(resource, "/group")),
            string(resource, "/schema"),
        );
        (!schema.ends_with(&end)).then(|| {
            invalid(
                &format!("spec.resources[{at}].schema"),
                schema,
                &format!("must end in {end}"),
            )
        })
    };
    let claims = array(object, "/spec/permissionClaims").iter().enumerate();
    let resources = array(object, "/spec/resources").iter().enumerate();
    claims
        .filter_map(unknown)
        .chain(resources.filter_map(misnamed))
        .next()
}

/// Returns the errors of an APIBinding, regardless of its previous state.
pub(super) fn binding(object: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    if string(object, "/spec/reference/export/name").is_empty() {
        wrong.push("spec.reference.export.name: Required value".to_owned());
    }
    for (at, claim) in array(object, "/spec/permissionClaims").iter().enumerate() {
        let path = format!("spec.permissionClaims[{at}].selector");
        let labels = claim
            .pointer("/selector/matchLabels")
            .and_then(Value::as_object)
            .is_some_and(|labels| !labels.is_empty());
        let expressions = !array(claim, "/selector/matchExpressions").is_empty();
        let all = claim.pointer("/selector/matchAll") == Some(&Value::Bool(true));
        match (all, labels, expressions) {
            (true, true, _) => wrong.push(format!("{path}.matchLabels: Invalid value: matchLabels cannot be used with matchAll")),
            (true, _, true) => wrong.push(format!("{path}.matchExpressions: Invalid value: matchExpressions cannot be used with matchAll")),
            (false, false, false) => {
                wrong.push(format!("{path}: Required value: either one of matchAll, matchLabels, or matchExpressions must be set"));
            }
            _ => {}
        }
    }
    wrong
}

/// Returns an error if an update of an APIBinding changes immutable fields: the export,
/// and the selectors of existing claims.
pub(super) fn immutable(before: &Value, after: &Value) -> Option<&'static str> {
    if before.pointer("/spec/reference") != after.pointer("/spec/reference") {
        return Some("spec.reference: Invalid value: APIExport reference must not be changed");
    }
    let of = |claim: &Value| {
        ["group", "resource", "identityHash"]
            .map(|field| claim[field].as_str().unwrap_or_default().to_owned())
    };
    let (before, after) = (
        array(before, "/spec/permissionClaims"),
        array(after, "/spec/permissionClaims"),
    );
    let differs = |one: &&Value| {
        after
            .iter()
            .any(|other| of(one) == of(other) && one["selector"] != other["selector"])
    };
    before
        .iter()
        .find(differs)
        .map(|_| "spec.permissionClaims: Invalid value: Permission claim selector is immutable")
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
        assert_eq!(
            with("/spec/names/listKind", Value::Null),
            "spec.names.listKind: Required value"
        );
        assert!(
            with("/metadata/name", json!("widgets.toy.example.dev"))
                .starts_with("metadata.name: Invalid value")
        );
        assert!(with("/spec/versions/0/storage", json!(false)).contains("exactly one version"));
        assert!(
            with("/metadata/name", json!("1.widgets.toy.example.dev"))
                .contains("must match ^[a-z]")
        );
        assert_eq!(
            with("/spec/versions/0/schema", Value::Null),
            "spec.versions[0].schema: Required value"
        );
        assert!(
            with("/spec/versions/0/name", json!("1"))
                .contains("spec.versions[0].name: Invalid value")
        );
        let mut twice = widget();
        let again = json!({ "name": "v1", "served": true, "storage": false, "schema": { "type": "object" } });
        twice["spec"]["versions"]
            .as_array_mut()
            .unwrap()
            .push(again);
        assert_eq!(
            schema(&twice),
            ["spec.versions: Invalid value: must contain unique version names"]
        );
        let mut dotless = widget();
        (dotless["spec"]["group"], dotless["metadata"]["name"]) =
            (json!("toy"), json!("v1.widgets.toy"));
        assert_eq!(
            schema(&dotless),
            ["spec.group: Invalid value: \"toy\": should be a domain with at least one dot"]
        );
    }

    #[test]
    fn an_export_claims_what_is_built_in_or_names_an_identity_and_its_schemas_are_named_after_their_resources()
     {
        let of = |claim: Value, schema: &str| {
            let resources =
                json!([{ "group": "toy.example.dev", "name": "widgets", "schema": schema }]);
            export(&json!({ "spec": { "permissionClaims": [claim], "resources": resources } }))
        };
        let events = json!({ "group": "", "resource": "events" });
        assert_eq!(of(events.clone(), "v1.widgets.toy.example.dev"), None);
        let deployments = json!({ "group": "apps", "resource": "deployments" });
        let refused = of(deployments, "v1.widgets.toy.example.dev").unwrap();
        assert!(
            refused.starts_with("spec.permissionClaims[0].identityHash: Invalid value"),
            "{refused}"
        );
        assert_eq!(
            of(
                json!({ "group": "apis.kcp.io", "resource": "apiexports" }),
                "v1.widgets.toy.example.dev"
            ),
            None
        );
        let refused = of(events, "v1.gadgets.toy.example.dev").unwrap();
        assert!(
            refused.contains("must end in .widgets.toy.example.dev"),
            "{refused}"
        );
    }

    #[test]
    fn a_key_that_ends_in_kcp_io_is_reserved() {
        let of = |labels: Value| json!({ "metadata": { "labels": labels } });
        let marked = of(json!({ "some.kcp.io": "" }));
        let told = Some("modification of reserved label: \"some.kcp.io\"".to_owned());
        assert_eq!(reserved(&Value::Null, &marked), told);
        assert_eq!(reserved(&marked, &of(json!({}))), told);
        assert_eq!(reserved(&marked, &of(json!({ "some.kcp.io": "a" }))), told);
        assert_eq!(
            reserved(&marked, &of(json!({ "some.kcp.io": "", "a": "b" }))),
            None
        );
        assert_eq!(
            reserved(
                &Value::Null,
                &of(json!({ "kcp.io/cluster": "a", "claimed.internal.apis.kcp.io/kcp.io": "b" }))
            ),
            None
        );
        let annotated = json!({ "metadata": { "annotations": { "a/kcp.io": "b" } } });
        assert_eq!(
            reserved(&Value::Null, &annotated),
            Some("modification of reserved annotation: \"a/kcp.io\"".to_owned())
        );
        assert!(has_reserved(&annotated) && !has_reserved(&of(json!({ "kcp.io/path": "a" }))));
    }

    #[test]
    fn a_claim_is_answered_with_one_selector() {
        let of = |selector: Value| {
            let claim = json!({ "group": "", "resource": "events", "state": "Accepted", "selector": selector });
            binding(
                &json!({ "spec": { "reference": { "export": { "name": "a" } }, "permissionClaims": [claim] } }),
            )
        };
        assert_eq!(of(json!({ "matchAll": true })), Vec::<String>::new());
        assert_eq!(
            of(json!({ "matchLabels": { "a": "b" } })),
            Vec::<String>::new()
        );
        assert!(of(json!({}))[0].contains("either one of matchAll"));
        assert!(
            of(json!({ "matchAll": true, "matchLabels": { "a": "b" } }))[0]
                .contains("cannot be used with matchAll")
        );
        assert_eq!(
            binding(&json!({ "spec": {} })),
            ["spec.reference.export.name: Required value"]
        );
    }

    #[test]
    fn a_binding_keeps_its_export_and_its_selectors() {
        let binding = |export: &str, selector: Value, state: &str| {
            let claim =
                json!({ "group": "", "resource": "events", "state": state, "selector": selector });
            json!({ "spec": { "reference": { "export": { "name": export } }, "permissionClaims": [claim] } })
        };
        let all = json!({ "matchAll": true });
        let before = binding("a", all.clone(), "Accepted");
        assert_eq!(
            immutable(&before, &binding("a", all.clone(), "Rejected")),
            None
        );
        assert!(immutable(&before, &binding("b", all, "Accepted")).is_some());
        assert!(
            immutable(
                &before,
                &binding("a", json!({ "matchLabels": { "a": "b" } }), "Accepted")
            )
            .is_some()
        );
    }
}
