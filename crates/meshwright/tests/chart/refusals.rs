//! Invalid values are rejected with a message that names valid ones.

use serde_json::{Value, json};

use crate::render::Helm;
use crate::rendering::NAMESPACE;
use crate::trials::scenarios;

scenarios![
    the_schema_refuses_nonsense,
    what_no_schema_can_say_is_refused_with_a_hint,
    every_value_is_in_the_schema_and_has_a_default
];

/// A value at a dotted path.
fn at(path: &str, value: Value) -> Value {
    path.rsplit('.')
        .fold(value, |inner, key| json!({ key: inner }))
}

#[track_caller]
fn refused(values: &Value, with: &str) {
    let complaint = Helm::locate()
        .unwrap()
        .template(NAMESPACE, values)
        .expect_err(&values.to_string());
    assert!(complaint.contains(with), "{values}: {complaint}");
}

async fn the_schema_refuses_nonsense() {
    let nonsense = [
        (
            "replicas",
            json!(2),
            "additional properties 'replicas' not allowed",
        ),
        (
            "operator.enable",
            json!(true),
            "additional properties 'enable' not allowed",
        ),
        (
            "provider.kcpKubeconfig.name",
            json!("kcp"),
            "additional properties 'name' not allowed",
        ),
        (
            "resources.limit",
            json!({}),
            "additional properties 'limit' not allowed",
        ),
        ("operator.enabled", json!("yes"), "got string, want boolean"),
        ("replicaCount", json!("2"), "got string, want integer"),
        ("replicaCount", json!(-1), "/replicaCount"),
        ("replicaCount", json!(1.5), "/replicaCount"),
        ("leaderElect", json!("true"), "got string, want boolean"),
        ("metricsBindAddress", json!(8080), "got number, want string"),
        (
            "metricsBindAddress",
            json!("8080"),
            "does not match pattern",
        ),
        (
            "healthProbeBindAddress",
            json!("localhost:8081"),
            "does not match pattern",
        ),
        (
            "image.pullPolicy",
            json!("Sometimes"),
            "value must be one of",
        ),
        ("image.repository", json!(""), "/image/repository"),
        ("image.tag", json!("a b"), "does not match pattern"),
        ("resyncPeriod", json!("0s"), "/resyncPeriod"),
        ("resyncPeriod", json!("soon"), "does not match pattern"),
        ("requestTimeout", json!("1.5s"), "does not match pattern"),
        ("kubeconfigAllow", json!(["exec"]), "value must be one of"),
        (
            "allowAddress",
            json!(["127.0.0.1"]),
            "does not match pattern",
        ),
        (
            "allowAddress",
            json!(["fe80::/64,::/0"]),
            "does not match pattern",
        ),
        ("logFormat", json!("xml"), "value must be one of"),
        ("logLevel", json!("loud"), "value must be one of"),
        ("nodeSelector", json!({ "a": 1 }), "got number, want string"),
        ("tolerations", json!({}), "got object, want array"),
        (
            "serviceAccount.name",
            json!("Upper"),
            "does not match pattern",
        ),
        (
            "operator.namespaces",
            json!(["a.b"]),
            "does not match pattern",
        ),
        (
            "operator.namespaces",
            json!(["a", "a"]),
            "/operator/namespaces",
        ),
        (
            "operator.kubeconfigSecrets",
            json!([""]),
            "does not match pattern",
        ),
        ("operator.nodeGrace", json!("1d"), "does not match pattern"),
        (
            "operator.sweepLegacy",
            json!("always"),
            "value must be one of",
        ),
        ("provider.mode", json!("moon"), "value must be one of"),
        (
            "provider.verifyDial",
            json!("maybe"),
            "value must be one of",
        ),
        ("provider.syncCa", json!(true), "value must be one of"),
        (
            "provider.kcpExternalUrl",
            json!("kcp.example:6443"),
            "does not match pattern",
        ),
        (
            "provider.mgmtClusterResource",
            json!("clusters"),
            "does not match pattern",
        ),
        (
            "provider.allowAnnotationPrefix",
            json!(["a,b"]),
            "does not match pattern",
        ),
        (
            "networkPolicy.metricsFrom",
            json!([{}]),
            "/networkPolicy/metricsFrom/0",
        ),
        (
            "podDisruptionBudget.maxUnavailable",
            json!(0),
            "/podDisruptionBudget/maxUnavailable",
        ),
    ];
    for (path, value, with) in nonsense {
        refused(&at(path, value), with);
    }
}

async fn what_no_schema_can_say_is_refused_with_a_hint() {
    let kcp = |secret: &str| json!({ "provider": { "enabled": true, "mode": "kcp", secret: { "secretName": "given" } } });
    let hub = json!({ "provider": { "enabled": true, "kcpKubeconfig": { "secretName": "kcp" } } });
    refused(
        &at("operator.enabled", json!(false)),
        "set operator.enabled or provider.enabled",
    );
    refused(
        &at("leaderElect", json!(false)),
        "set leaderElect=true or replicaCount=1",
    );
    refused(
        &at("healthProbeBindAddress", json!("127.0.0.1:8081")),
        "use :8081, or 0",
    );
    refused(
        &at("healthProbeBindAddress", json!(":8080")),
        "have the same port",
    );
    refused(
        &json!({ "metricsBindAddress": "0", "serviceMonitor": { "enabled": true } }),
        "set metricsBindAddress",
    );
    refused(
        &kcp("kcpKubeconfig"),
        "provider.mgmtKubeconfig.secretName is required",
    );
    refused(
        &kcp("mgmtKubeconfig"),
        "provider.kcpKubeconfig.secretName is required",
    );
    refused(
        &hub,
        "provider.kcpKubeconfig is only valid with provider.mode=kcp",
    );
}

/// Paths of all values. Free-form values count as one path.
fn paths(value: &Value, path: &str, open: &dyn Fn(&str) -> bool) -> Vec<String> {
    match value.as_object() {
        Some(fields) if !open(path) => fields
            .iter()
            .flat_map(|(key, value)| paths(value, &format!("{path}/{key}"), open))
            .collect(),
        _ => vec![path.to_owned()],
    }
}

async fn every_value_is_in_the_schema_and_has_a_default() {
    let read = |name: &str| {
        std::fs::read_to_string(crate::render::root().join("charts/meshwright").join(name)).unwrap()
    };
    let schema: Value = serde_json::from_str(&read("values.schema.json")).unwrap();
    let values: Value = serde_saphyr::from_str(&read("values.yaml")).unwrap();
    let mut wanted = Vec::new();
    fields(&schema, &schema, "", &mut wanted);
    // Helm's own value, for which no chart has a default.
    wanted.retain(|path| path != "/global");
    let is_open = |path: &str| wanted.iter().any(|known| known == path);
    let mut found = paths(&values, "", &is_open);
    wanted.sort();
    found.sort();
    assert_eq!(found, wanted);
}

fn fields(schema: &Value, part: &Value, path: &str, found: &mut Vec<String>) {
    let part = part["$ref"]
        .as_str()
        .map_or(part, |reference| schema.pointer(&reference[1..]).unwrap());
    match part["properties"]
        .as_object()
        .filter(|_| path != "/resources")
    {
        Some(properties) => {
            assert_eq!(
                part["additionalProperties"], false,
                "{path} lets anything in"
            );
            for (name, part) in properties {
                fields(schema, part, &format!("{path}/{name}"), found);
            }
        }
        None => found.push(path.to_owned()),
    }
}
