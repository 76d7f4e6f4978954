//! The generated files under `config/` are up to date, byte for byte.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use mw_api::crd;
use serde_json::Value;

#[test]
fn the_generated_files_are_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (path, content) in crd::files().unwrap() {
        let stored = std::fs::read_to_string(root.join(path)).unwrap_or_default();
        assert!(
            stored == content,
            "{path} is out of date: run `make generate` and commit the result"
        );
    }
}

#[test]
fn the_yaml_says_the_same_as_the_objects() {
    for object in crd::crds() {
        let read: Value = serde_saphyr::from_str(&crd::to_yaml(&object).unwrap()).unwrap();
        let read: k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition =
            serde_json::from_value(read).unwrap();
        assert_eq!(read, object);
    }
}

#[test]
fn the_yaml_has_sorted_keys_and_whole_numbers() {
    let object = serde_json::json!({ "b": 65535.0, "a": { "d": 0.5, "c": [1.0] } });
    let yaml = crd::to_yaml(&object).unwrap();
    assert_eq!(yaml, "a:\n  c:\n    - 1\n  d: 0.5\nb: 65535\n");
}
