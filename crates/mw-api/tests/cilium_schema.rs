//! Objects that the schemas of the three kinds accept and reject; the schemas are valid
//! in kcp, and the examples pass them.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use std::collections::BTreeSet;
use std::path::Path;

use common::{refusals, walk};
use mw_api::cilium::binding::ClusterMeshBinding;
use mw_api::cilium::intent::ConnectivityIntent;
use mw_api::cilium::service::GlobalService;
use mw_api::cilium::{convert, examples, kcp, rbac};
use mw_api::crd;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn crds() -> Vec<Value> {
    crd::cilium_crds()
        .iter()
        .map(|crd| serde_json::to_value(crd).unwrap())
        .collect()
}

fn schema(kind: &str) -> Value {
    let crd = crds()
        .into_iter()
        .find(|crd| crd["spec"]["names"]["kind"] == kind)
        .unwrap();
    crd.pointer("/spec/versions/0/schema/openAPIV3Schema")
        .unwrap()
        .clone()
}

#[track_caller]
fn assert_accepted(kind: &str, spec: Value) {
    assert_eq!(
        refusals(&schema(kind)["properties"]["spec"], &spec, "spec"),
        Vec::<String>::new(),
        "{spec}"
    );
}

#[track_caller]
fn assert_refused(kind: &str, spec: Value) {
    assert!(
        !refusals(&schema(kind)["properties"]["spec"], &spec, "spec").is_empty(),
        "{spec}"
    );
}

#[test]
fn names_short_names_and_columns_are_as_people_know_them() {
    let mut found = Vec::new();
    for crd in crds() {
        let names = &crd["spec"]["names"];
        let columns: Vec<&str> = crd["spec"]["versions"][0]["additionalPrinterColumns"]
            .as_array()
            .unwrap()
            .iter()
            .map(|column| column["name"].as_str().unwrap())
            .collect();
        found.push(format!(
            "{} {} {} {}",
            crd["metadata"]["name"].as_str().unwrap(),
            names["kind"],
            names["shortNames"],
            columns.join(" ")
        ));
        assert_eq!(
            (&crd["spec"]["scope"], &crd["spec"]["versions"][0]["name"]),
            (&json!("Namespaced"), &json!("v1alpha1"))
        );
        assert!(crd["spec"]["versions"][0]["subresources"]["status"].is_object());
    }
    assert_eq!(
        found,
        [
            r#"clustermeshbindings.networking.edge-portal.eu "ClusterMeshBinding" ["cmb"] Phase Clusters Ready Age"#,
            r#"globalservices.networking.edge-portal.eu "GlobalService" ["gs"] Phase Mesh Ready Age"#,
            r#"connectivityintents.networking.edge-portal.eu "ConnectivityIntent" ["cint"] Phase Mesh Ready Age"#,
        ]
    );
}

#[test]
fn the_schemas_are_structural_without_nulls_and_described() {
    for kind in ["ClusterMeshBinding", "GlobalService", "ConnectivityIntent"] {
        walk(&schema(kind), kind, &mut |path, node| {
            assert!(node["type"].is_string(), "{path} has no type");
            for key in [
                "$ref",
                "anyOf",
                "oneOf",
                "allOf",
                "not",
                "nullable",
                "x-kubernetes-validations",
            ] {
                assert!(node.get(key).is_none(), "{path} has {key}");
            }
        });
        walk(
            &schema(kind)["properties"]["spec"],
            "spec",
            &mut |path, node| {
                assert!(
                    path.ends_with("[]") || node["description"].is_string(),
                    "{kind}: {path} has no description"
                );
            },
        );
    }
}

#[test]
fn a_binding_needs_two_different_clusters_and_a_known_service_type() {
    let refs = |names: &[&str]| {
        json!(
            names
                .iter()
                .map(|name| json!({ "name": name }))
                .collect::<Vec<_>>()
        )
    };
    let kind = "ClusterMeshBinding";
    assert_accepted(kind, json!({ "clusterRefs": refs(&["a", "b"]) }));
    assert_accepted(
        kind,
        json!({ "clusterRefs": refs(&["a", "B.c_d"]), "meshConfig": { "serviceType": "NodePort" } }),
    );
    assert_refused(kind, json!({ "clusterRefs": refs(&["a"]) }));
    assert_refused(kind, json!({ "clusterRefs": refs(&["a", "a"]) }));
    assert_refused(kind, json!({ "clusterRefs": [{ "name": "a" }, {}] }));
    assert_refused(kind, json!({}));
    assert_refused(
        kind,
        json!({ "clusterRefs": refs(&["a", "b"]), "meshConfig": { "serviceType": "ClusterIP" } }),
    );
}

#[test]
fn a_global_service_needs_its_mesh_and_nothing_else() {
    let kind = "GlobalService";
    assert_accepted(kind, json!({ "meshRef": { "name": "m" } }));
    assert_accepted(
        kind,
        json!({ "meshRef": { "name": "m" }, "selector": { "name": "s", "labelSelector": {} }, "targetClusters": ["x"] }),
    );
    assert_refused(kind, json!({}));
    assert_refused(kind, json!({ "meshRef": {} }));
    assert_refused(kind, json!({ "meshRef": { "name": "" } }));
    assert_refused(
        kind,
        json!({ "meshRef": { "name": "m" }, "affinity": "none" }),
    );
    let fields = &schema(kind)["properties"]["spec"]["properties"];
    assert!(
        fields["shared"].get("default").is_none() && fields["affinity"].get("default").is_none()
    );
}

#[test]
fn an_intent_needs_its_mesh_known_words_and_ports_that_exist() {
    let kind = "ConnectivityIntent";
    let with = |field: &str, value: Value| {
        let mut spec = json!({ "meshRef": { "name": "m" } });
        spec[field] = value;
        spec
    };
    assert_accepted(kind, json!({ "meshRef": { "name": "m" } }));
    assert_accepted(
        kind,
        with("source", json!({ "name": "n", "selector": { "a": "b" } })),
    );
    assert_accepted(
        kind,
        with("ports", json!([{ "port": 1, "endPort": 65535 }, {}])),
    );
    assert_accepted(kind, with("probe", json!({ "intervalSeconds": 1 })));
    for (field, value) in [
        ("action", json!("allow")),
        ("policyMode", json!("Cluster")),
        ("ports", json!([{ "port": 0 }])),
        ("ports", json!([{ "port": 65536 }])),
        ("ports", json!([{ "port": 1, "endPort": 65536 }])),
        ("ports", json!([{ "port": 1, "protocol": "ICMP" }])),
        ("meshRef", json!({})),
    ] {
        assert_refused(kind, with(field, value));
    }
}

#[test]
fn a_schema_of_kcp_is_named_by_its_content_and_stands_bare() {
    let mut names = BTreeSet::new();
    for mut crd in crd::cilium_crds() {
        let schema = kcp::schema(&crd).unwrap();
        let name = schema["metadata"]["name"].as_str().unwrap().to_owned();
        assert!(
            name.starts_with('v')
                && name.ends_with(&format!(
                    ".{}.networking.edge-portal.eu",
                    crd.spec.names.plural
                )),
            "{name}"
        );
        assert_eq!(
            name,
            kcp::schema(&crd).unwrap()["metadata"]["name"]
                .as_str()
                .unwrap()
        );
        let version = &schema["spec"]["versions"][0];
        assert_eq!(
            (
                &version["schema"]["type"],
                version["schema"].get("openAPIV3Schema")
            ),
            (&json!("object"), None)
        );
        crd.spec.versions[0]
            .schema
            .as_mut()
            .unwrap()
            .open_api_v3_schema
            .as_mut()
            .unwrap()
            .description = Some("other".to_owned());
        assert_ne!(
            name,
            kcp::schema(&crd).unwrap()["metadata"]["name"]
                .as_str()
                .unwrap()
        );
        names.insert(name);
    }
    assert_eq!(names.len(), 3);
}

#[test]
fn the_export_offers_the_schemas_and_claims_clusters_and_events_but_no_secrets() {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(&kcp::export_yaml(Some("abc")).unwrap()).unwrap();
    let (export, schemas) = documents.split_last().unwrap();
    let offered: Vec<&Value> = export["spec"]["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|resource| &resource["schema"])
        .collect();
    assert_eq!(
        offered,
        schemas
            .iter()
            .map(|schema| &schema["metadata"]["name"])
            .collect::<Vec<_>>()
    );
    let claims = |object: &Value| -> Vec<String> {
        let claims = object["spec"]["permissionClaims"].as_array().unwrap();
        claims
            .iter()
            .map(|claim| {
                format!(
                    "{} {} {}",
                    claim["resource"], claim["identityHash"], claim["verbs"]
                )
            })
            .collect()
    };
    assert_eq!(
        claims(export),
        [
            r#""kubernetesclusters" "abc" ["get","list","watch"]"#,
            r#""events" null ["create","patch"]"#
        ]
    );
    let binding: Value =
        serde_saphyr::from_str(&kcp::binding_yaml("root:p", Some("abc")).unwrap()).unwrap();
    assert_eq!(claims(&binding), claims(export));
    assert_eq!(
        binding["spec"]["reference"]["export"],
        json!({ "path": "root:p", "name": "edge-portal-networking" })
    );
}

#[test]
fn a_target_lets_us_read_only_the_secrets_of_the_mesh() {
    for rule in [rbac::target_rules(), rbac::cilium_rules()].concat() {
        let secrets = rule
            .resources
            .iter()
            .flatten()
            .any(|resource| resource == "secrets");
        assert!(!secrets || rule.resource_names.is_some(), "{rule:?}");
        assert!(
            !secrets || !rule.verbs.iter().any(|verb| verb == "create"),
            "{rule:?}"
        );
        assert!(!rule.verbs.iter().any(|verb| verb == "*"), "{rule:?}");
    }
}

fn example<T: DeserializeOwned>(file: &str) -> (T, Value) {
    let text = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .join(file),
    )
    .unwrap();
    let value: Value = serde_saphyr::from_str(&text).unwrap();
    (serde_json::from_value(value.clone()).unwrap(), value)
}

#[test]
fn the_examples_are_read_back_and_pass_the_schema() {
    let (binding, value) = example::<ClusterMeshBinding>(examples::BINDING_FILE);
    assert_eq!(
        (&binding, convert::binding("w", &binding).spec.refs.len()),
        (&examples::binding(), 2)
    );
    assert_accepted("ClusterMeshBinding", value["spec"].clone());
    let (service, value) = example::<GlobalService>(examples::SERVICE_FILE);
    assert_eq!(
        (&service, convert::global_service("w", &service).spec.mesh),
        (&examples::service(), binding.metadata.name.clone().unwrap())
    );
    assert_accepted("GlobalService", value["spec"].clone());
    let (intent, value) = example::<ConnectivityIntent>(examples::INTENT_FILE);
    assert_eq!(
        (&intent, convert::intent("w", &intent).spec.mesh),
        (&examples::intent(), binding.metadata.name.unwrap())
    );
    assert_accepted("ConnectivityIntent", value["spec"].clone());
}
