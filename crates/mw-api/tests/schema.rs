//! Objects that the ClusterMesh schema accepts and rejects; the schema is valid on an
//! API server of Kubernetes 1.28.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use common::{refusals, walk};
use mw_api::crd;
use mw_api::kilo::clustermesh::ClusterMesh;
use mw_api::kilo::convert;
use mw_core::cidr::Cidr;
use mw_core::kilo::spec::{RawSpec, validate};
use regex_lite::Regex;
use serde_json::{Value, json};

fn schema() -> Value {
    let crd = serde_json::to_value(&crd::crds()[0]).unwrap();
    crd.pointer("/spec/versions/0/schema/openAPIV3Schema")
        .unwrap()
        .clone()
}

fn spec_schema() -> Value {
    schema()["properties"]["spec"].clone()
}

fn refused(spec: &Value) -> Vec<String> {
    refusals(&spec_schema(), spec, "spec")
}

fn raw(spec: &Value) -> RawSpec {
    let object = json!({ "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "ClusterMesh", "metadata": { "name": "prod" }, "spec": spec });
    convert::mesh(&serde_json::from_value::<ClusterMesh>(object).unwrap()).spec
}

fn typed() -> Value {
    json!({ "name": "a", "local": true, "podCIDRs": ["10.1.0.0/16", "fd00:1::/48"], "wireguardCIDR": "10.4.0.0/16" })
}

fn flat() -> Value {
    json!({ "name": "b", "kubeconfigSecretRef": { "name": "b" }, "allowedNetworks": ["10.2.0.0/16", "10.5.0.0/16"] })
}

fn with(mut entry: Value, field: &str, value: Value) -> Value {
    entry[field] = value;
    json!({ "clusters": [entry, flat()] })
}

/// `cm` is the short name of ConfigMap.
#[test]
fn the_short_name_of_a_clustermesh_belongs_to_no_other_kind() {
    assert_eq!(
        crd::crds()[0].spec.names.short_names,
        Some(vec!["cmesh".to_owned()])
    );
}

#[test]
fn rules_use_only_what_kubernetes_1_28_knows() {
    let functions = [
        "has",
        "size",
        "all",
        "exists",
        "exists_one",
        "filter",
        "map",
        "matches",
        "startsWith",
        "endsWith",
        "contains",
    ];
    let call = Regex::new(r"([A-Za-z_][A-Za-z0-9_]*)\s*\(").unwrap();
    let mut rules = 0;
    walk(&schema(), "", &mut |path, node| {
        for rule in node["x-kubernetes-validations"]
            .as_array()
            .into_iter()
            .flatten()
        {
            rules += 1;
            let fields: Vec<&str> = rule
                .as_object()
                .unwrap()
                .keys()
                .map(String::as_str)
                .collect();
            assert_eq!(fields, ["message", "rule"], "{path}");
            let text = rule["rule"].as_str().unwrap();
            assert!(
                !text.contains("oldSelf") && !text.contains("?."),
                "{path}: {text}"
            );
            for name in call.captures_iter(text).map(|found| found[1].to_owned()) {
                assert!(
                    functions.contains(&name.as_str()),
                    "{path}: {name} in {text}"
                );
            }
        }
    });
    assert_eq!(rules, 1);
}

#[test]
fn the_schema_is_structural_and_has_no_nulls() {
    let formats = ["int64", "date-time"];
    walk(&schema(), "", &mut |path, node| {
        assert!(node["type"].is_string(), "{path} has no type");
        for key in [
            "$ref",
            "anyOf",
            "oneOf",
            "allOf",
            "not",
            "nullable",
            "enum",
            "additionalProperties",
        ] {
            assert!(node.get(key).is_none(), "{path} has {key}");
        }
        assert!(
            node["format"]
                .as_str()
                .is_none_or(|format| formats.contains(&format)),
            "{path}: {}",
            node["format"]
        );
    });
}

#[test]
fn everything_people_write_is_bounded_and_described() {
    walk(&spec_schema(), "spec", &mut |path, node| {
        let bounds: &[&str] = match node["type"].as_str().unwrap() {
            "array" => &["maxItems"],
            "string" => &["maxLength"],
            "integer" => &["minimum", "maximum"],
            _ => &[],
        };
        assert!(
            bounds.iter().all(|key| node[*key].is_number()),
            "{path} lacks one of {bounds:?}"
        );
        assert!(
            path.ends_with("s[]") || node["description"].is_string(),
            "{path} has no description"
        );
    });
    let status = &schema()["properties"]["status"]["properties"];
    assert_eq!(status["clusters"]["maxItems"], json!(1024));
    assert_eq!(
        status["clusters"]["items"]["properties"]["skipped"]["maxItems"],
        json!(20)
    );
    assert_eq!(
        status["conditions"]["x-kubernetes-list-map-keys"],
        json!(["type"])
    );
}

#[test]
fn only_the_name_of_a_cluster_is_required() {
    let entry = &spec_schema()["properties"]["clusters"]["items"];
    assert_eq!(entry["required"], json!(["name"]));
    let mut names: Vec<&str> = entry["properties"]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    names.sort_unstable();
    let expected = "additionalCIDRs allowedNetworks endpointFrom kubeconfigSecretRef local name persistentKeepalive podCIDRs serviceCIDR \
                    topologyLabel wireguardCIDR wireguardPort";
    assert_eq!(names.join(" "), expected);
    // A list map would reject duplicate names, which existing objects may have.
    assert!(
        spec_schema()["properties"]["clusters"]
            .get("x-kubernetes-list-type")
            .is_none()
    );
}

#[test]
fn both_forms_of_networks_are_accepted() {
    let spec =
        json!({ "clusters": [typed(), flat()], "cleanupTimeout": "1h30m", "maxDeletePercent": 0 });
    assert_eq!(refused(&spec), Vec::<String>::new());
    let (mesh, remarks) = validate(&raw(&spec)).unwrap();
    assert_eq!(
        (
            mesh.clusters.len(),
            mesh.cleanup_timeout_seconds,
            mesh.max_delete_percent,
            remarks
        ),
        (2, 5400, 0, Vec::new())
    );
}

#[test]
fn the_defaults_of_the_schema_are_those_of_the_core() {
    let plain = json!({ "clusters": [typed(), flat()] });
    let mut filled = plain.clone();
    let schema = spec_schema();
    let defaults = |schema: &Value, into: &mut Value| {
        for (name, field) in schema["properties"].as_object().unwrap() {
            if let Some(default) = field.get("default") {
                into[name] = default.clone();
            }
        }
    };
    defaults(&schema, &mut filled);
    filled["clusters"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .for_each(|entry| defaults(&schema["properties"]["clusters"]["items"], entry));
    assert_eq!(filled["clusters"][0]["wireguardPort"], json!(51820));
    assert_eq!(refused(&filled), Vec::<String>::new());
    assert_eq!(validate(&raw(&filled)), validate(&raw(&plain)));
}

#[test]
fn objects_of_the_earlier_operator_stay_updatable() {
    let typed = |name: &str, local: bool| json!({ "name": name, "local": local, "podCIDRs": ["10.1.0.0/16"], "wireguardCIDR": "10.4.0.0/16" });
    let flat = json!({ "name": "a", "allowedNetworks": ["10.2.0.0/16"] });
    for (why, clusters) in [
        (
            "two local clusters",
            json!([typed("a", true), typed("b", true)]),
        ),
        (
            "no local cluster, no Secret",
            json!([typed("a", false), typed("b", false)]),
        ),
        ("equal names", json!([typed("a", true), flat])),
        (
            "equal networks",
            json!([typed("a", true), typed("b", false)]),
        ),
    ] {
        let spec = json!({ "clusters": clusters });
        assert_eq!(refused(&spec), Vec::<String>::new(), "{why}");
        // Duplicate networks are found by the overlap check.
        assert!(
            why == "equal networks" || validate(&raw(&spec)).is_err(),
            "{why}"
        );
    }
    // An empty serviceCIDR is the earlier operator's default. In other fields the
    // controller reports empty strings.
    let with_empty = |field: &str, value: Value| with(typed("a", true), field, value);
    for (field, value, valid) in [
        ("serviceCIDR", json!(""), true),
        ("podCIDRs", json!([""]), false),
        ("additionalCIDRs", json!([""]), false),
    ] {
        let mut spec = with_empty(field, value);
        spec["clusters"][1] = json!({ "name": "b", "kubeconfigSecretRef": { "name": "b" }, "allowedNetworks": ["10.2.0.0/16"] });
        assert_eq!(refused(&spec), Vec::<String>::new(), "{field}");
        assert_eq!(validate(&raw(&spec)).is_ok(), valid, "{field}");
    }
    let status = json!({ "clusters": [{ "name": "a", "registeredPeers": 3, "skippedNodes": 0 }], "conditions": [] });
    assert_eq!(
        refusals(&schema()["properties"]["status"], &status, "status"),
        Vec::<String>::new()
    );
}

#[test]
fn mistakes_that_admission_can_detect_are_refused() {
    for (field, value) in [
        ("name", json!("A")),
        ("name", json!("")),
        ("name", json!("a".repeat(64))),
        ("podCIDRs", json!([])),
        ("podCIDRs", json!(["10.1.0.0"])),
        ("podCIDRs", json!(vec!["10.1.0.0/16"; 65])),
        ("allowedNetworks", json!([])),
        ("wireguardCIDR", json!("")),
        ("serviceCIDR", json!("10.96.0.0/33")),
        ("additionalCIDRs", json!(["all"])),
        ("kubeconfigSecretRef", json!({ "key": "value" })),
        ("wireguardPort", json!(0)),
        ("wireguardPort", json!(65536)),
        ("persistentKeepalive", json!(-1)),
        ("topologyLabel", json!("")),
        ("endpointFrom", json!("Node")),
    ] {
        assert!(
            !refused(&with(typed(), field, value.clone())).is_empty(),
            "{field}: {value}"
        );
    }
    for (field, value) in [
        ("cleanupTimeout", json!("10")),
        ("cleanupTimeout", json!("")),
        ("cleanupTimeout", json!("1m1h")),
        ("maxDeletePercent", json!(101)),
        ("clusters", json!([typed()])),
    ] {
        let mut spec = json!({ "clusters": [typed(), flat()] });
        spec[field] = value.clone();
        assert!(!refused(&spec).is_empty(), "{field}: {value}");
    }
    assert_eq!(
        refused(&with(typed(), "additionalCIDRs", json!([]))),
        Vec::<String>::new()
    );
    assert_eq!(
        refused(&with(typed(), "endpointFrom", json!("Kilo"))),
        Vec::<String>::new()
    );
}

#[test]
fn the_cidr_pattern_never_refuses_what_the_core_understands() {
    let pattern = spec_schema()
        .pointer("/properties/clusters/items/properties/wireguardCIDR/pattern")
        .unwrap()
        .clone();
    let pattern = Regex::new(pattern.as_str().unwrap()).unwrap();
    let addresses = [
        "0.0.0.0",
        "10.1.0.0",
        "199.249.250.255",
        "256.0.0.0",
        "010.0.0.0",
        "1.2.3",
        "::",
        "fd00:1::",
        "FD00::A",
        "::ffff:10.0.0.0",
    ];
    for (address, length) in addresses
        .iter()
        .flat_map(|address| (0..=200).map(move |length| (address, length)))
    {
        let text = format!("{address}/{length}");
        assert_eq!(
            pattern.is_match(&text),
            Cidr::try_from(text.as_str()).is_ok(),
            "{text}"
        );
    }
    for bad in [
        "10.0.0.0/08",
        "10.0.0.0/+8",
        " 10.0.0.0/8",
        "10.0.0.0/8\n",
        "10.0.0.0/8/8",
        "fe80::1%eth0/64",
        "/8",
        "10.0.0.0/",
    ] {
        assert!(
            !pattern.is_match(bad) && Cidr::try_from(bad).is_err(),
            "{bad}"
        );
    }
}
