//! The oldest supported API server, 1.28, accepts the CRDs under `config/`.
//! `tools/crdcheck` runs its validation code without starting a server.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail loudly")]

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

/// Returns whether the files are accepted, and the output of the check. `None` if this
/// machine cannot build it.
fn check(files: &[PathBuf]) -> Option<(bool, String)> {
    let program = mw_testbed::or_skip(mw_testbed::binaries::crdcheck())?;
    let output = Command::new(program).args(files).output().unwrap();
    let code = output.status.code();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(matches!(code, Some(0 | 1)), "{code:?}: {said}");
    Some((code == Some(0), said))
}

/// Like `check`, for a text. YAML includes JSON.
fn check_text(text: &str) -> Option<(bool, String)> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("crd.yaml");
    std::fs::write(&file, text).unwrap();
    check(&[file])
}

/// Returns a CRD whose spec has a single field, `names`.
fn crd_with(names: &Value) -> Value {
    let spec = json!({ "type": "object", "properties": { "names": names } });
    let schema = json!({ "type": "object", "properties": { "spec": spec } });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "things.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": { "kind": "Thing", "plural": "things" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }],
        },
    })
}

fn bounded_names(rule: &str) -> Value {
    let item = json!({ "type": "string", "maxLength": 10 });
    json!({ "type": "array", "maxItems": 3, "items": item, "x-kubernetes-validations": [{ "rule": rule }] })
}

#[track_caller]
fn assert_refused(text: &str, reasons: &[&str]) {
    let Some((accepted, said)) = check_text(text) else {
        return;
    };
    assert!(!accepted, "accepted: {text}");
    for reason in reasons {
        assert!(said.contains(reason), "{reason} is not among: {said}");
    }
}

#[test]
fn every_crd_under_config_is_accepted() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/crd");
    let files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    let (yaml, other): (Vec<_>, Vec<_>) = files
        .into_iter()
        .partition(|path| path.extension().is_some_and(|end| end == "yaml"));
    assert!(
        !yaml.is_empty() && other.is_empty(),
        "CRDs: {yaml:?}, not checked: {other:?}"
    );
    if let Some((accepted, said)) = check(&yaml) {
        assert!(accepted, "{said}");
    }
}

#[test]
fn a_small_crd_is_accepted_so_that_those_below_are_refused_for_one_reason_each() {
    let names = bounded_names("self.all(name, name.startsWith('a'))");
    let Some((accepted, said)) = check_text(&crd_with(&names).to_string()) else {
        return;
    };
    assert!(accepted && said.is_empty(), "{said}");
}

#[test]
fn a_field_without_a_type_is_refused() {
    let mut names = bounded_names("true");
    names["items"] = json!({ "maxLength": 10 });
    assert_refused(
        &crd_with(&names).to_string(),
        &["properties[names].items.type: Required value"],
    );
}

#[test]
fn a_rule_that_may_cost_too_much_is_refused() {
    let mut names = bounded_names("self.all(a, self.all(b, a == b || a.contains(b)))");
    names["maxItems"] = json!(100_000);
    assert_refused(
        &crd_with(&names).to_string(),
        &["estimated rule cost exceeds budget"],
    );
}

#[test]
fn fields_of_later_releases_are_refused() {
    let rule = bounded_names("self.all(name, isIP(name))");
    assert_refused(
        &crd_with(&rule).to_string(),
        &["undeclared reference to 'isIP'"],
    );
    let mut field = crd_with(&bounded_names("true"));
    field["spec"]["versions"][0]["selectableFields"] = json!([{ "jsonPath": ".spec.name" }]);
    assert_refused(
        &field.to_string(),
        &["unknown field \"spec.versions[0].selectableFields\""],
    );
}

#[test]
fn every_mistake_in_every_document_is_named() {
    let mut first = crd_with(&bounded_names("nonsense"));
    first["metadata"]["name"] = json!("others.example.com");
    let mut second = crd_with(&bounded_names("true"));
    second["spec"]["versions"][0]["storage"] = json!(false);
    assert_refused(
        &format!("{first}\n---\n{second}\n"),
        &[
            "metadata.name: Invalid value",
            "undeclared reference to 'nonsense'",
            "exactly one version marked as storage",
        ],
    );
}

#[test]
fn an_object_that_is_no_crd_is_refused() {
    assert_refused("", &["no document"]);
    assert_refused(
        &json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "a" } })
            .to_string(),
        &["no kind \"Namespace\""],
    );
    let mut old = crd_with(&bounded_names("true"));
    old["apiVersion"] = json!("apiextensions.k8s.io/v1beta1");
    assert_refused(&old.to_string(), &["is not served"]);
}
