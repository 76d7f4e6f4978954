//! CustomResourceDefinitions of meshwright, and the files generated from them.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::CustomResourceExt;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::chart;
use crate::cilium::binding::ClusterMeshBinding;
use crate::cilium::intent::ConnectivityIntent;
use crate::cilium::service::GlobalService;
use crate::cilium::{self, examples, kcp};
use crate::kilo::clustermesh::ClusterMesh;
use crate::{rbac, reference};

/// Path of the ClusterMesh CRD from the repository root.
const CLUSTERMESH_FILE: &str = "config/crd/kilo.squat.ai_clustermeshes.yaml";

const HEADER: &str = "# Generated from crates/mw-api by `make generate`. Do not edit.\n";

/// Error while writing an object as YAML.
#[derive(Debug, thiserror::Error)]
pub enum YamlError {
    /// The object can't be serialized as JSON.
    #[error("cannot serialize the object as JSON")]
    Json(#[source] serde_json::Error),
    /// The JSON value can't be serialized as YAML.
    #[error("cannot serialize the object as YAML")]
    Yaml(#[source] serde_saphyr::SerializeError),
}

/// Paths of the Cilium back end's CRDs, in the order of [`cilium_crds`].
const CILIUM_FILES: [&str; 3] = [
    "config/crd/networking.edge-portal.eu_clustermeshbindings.yaml",
    "config/crd/networking.edge-portal.eu_globalservices.yaml",
    "config/crd/networking.edge-portal.eu_connectivityintents.yaml",
];

/// Returns the CRDs that the operator installs. Kilo's Peer CRD is not included.
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![revised(ClusterMesh::crd())]
}

/// Returns the CRDs of the Cilium back end. kcp gets them as APIResourceSchemas.
pub fn cilium_crds() -> Vec<CustomResourceDefinition> {
    vec![
        revised(ClusterMeshBinding::crd()),
        revised(GlobalService::crd()),
        revised(ConnectivityIntent::crd()),
    ]
}

/// Returns all generated files by their path from the repository root.
pub fn files() -> Result<BTreeMap<&'static str, String>, YamlError> {
    let mut contents = vec![
        (CLUSTERMESH_FILE, to_yaml(&revised(ClusterMesh::crd()))?),
        (rbac::HUB_FILE, rbac::hub_yaml()?),
        (rbac::SECURE_METRICS_FILE, rbac::secure_metrics_yaml()?),
        (rbac::REMOTE_FILE, rbac::remote_yaml()?),
        (kcp::EXPORT_FILE, kcp::export_yaml(None)?),
        (
            kcp::FLEET_CLAIM_FILE,
            kcp::fleet_claim_yaml(kcp::FLEET_IDENTITY)?,
        ),
        (
            kcp::BINDING_FILE,
            kcp::binding_yaml(kcp::PROVIDER_WORKSPACE, None)?,
        ),
        (kcp::RBAC_FILE, kcp::rbac_yaml()?),
        (
            cilium::rbac::MANAGEMENT_FILE,
            cilium::rbac::management_yaml()?,
        ),
        (cilium::rbac::TARGET_FILE, cilium::rbac::target_yaml()?),
        (
            cilium::rbac::TARGET_CA_FILE,
            cilium::rbac::target_ca_yaml()?,
        ),
        (
            cilium::rbac::TARGET_CA_POLICY_FILE,
            cilium::rbac::ca_policy_yaml()?,
        ),
        (
            cilium::rbac::TARGET_METRICS_FILE,
            cilium::rbac::target_metrics_yaml()?,
        ),
        (
            cilium::rbac::CONNECTION_SECRETS_FILE,
            cilium::rbac::connection_secrets_yaml()?,
        ),
        (cilium::rbac::HUB_FILE, cilium::rbac::hub_yaml()?),
    ];
    for (path, crd) in CILIUM_FILES.into_iter().zip(cilium_crds()) {
        contents.push((path, to_yaml(&crd)?));
    }
    contents.extend(examples::files()?);
    contents.extend(chart::files()?);
    let mut files: BTreeMap<_, _> = contents
        .into_iter()
        .map(|(path, content)| (path, format!("{HEADER}{content}")))
        .collect();
    files.insert(
        reference::KILO_FILE,
        reference::page("API reference: Kilo back end", &crds()),
    );
    files.insert(
        reference::CILIUM_FILE,
        reference::page("API reference: Cilium back end", &cilium_crds()),
    );
    Ok(files)
}

/// Serializes an object as YAML with sorted keys, so that equal objects give equal
/// bytes regardless of the map order of serde_json's features.
pub fn to_yaml<T: Serialize>(object: &T) -> Result<String, YamlError> {
    let value = serde_json::to_value(object).map_err(YamlError::Json)?;
    let options = serde_saphyr::ser_options! { compact_list_indent: false };
    serde_saphyr::to_string_with_options(&tidy(value), options).map_err(YamlError::Yaml)
}

fn revised(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    for version in &mut crd.spec.versions {
        if let Some(schema) = version
            .schema
            .as_mut()
            .and_then(|schema| schema.open_api_v3_schema.as_mut())
        {
            revise(schema);
        }
    }
    crd
}

/// Adjusts what the derive macro can't be configured to omit.
fn revise(schema: &mut JSONSchemaProps) {
    refuse_nulls(schema);
    join_lines(schema);
    schema
        .properties
        .iter_mut()
        .flat_map(BTreeMap::values_mut)
        .for_each(revise);
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        revise(items);
    }
}

/// Removes `nullable`, which the derive macro sets on every optional field. With it,
/// the API server would store an explicit null, count it as present in CEL rules, and
/// not apply the default; without it, nulls are dropped.
fn refuse_nulls(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
}

/// Joins wrapped lines: the line breaks of a doc comment mean nothing in the CRD.
fn join_lines(schema: &mut JSONSchemaProps) {
    if let Some(description) = &mut schema.description {
        let paragraphs: Vec<String> = description
            .split("\n\n")
            .map(|paragraph| paragraph.replace('\n', " "))
            .collect();
        *description = paragraphs.join("\n\n");
    }
}

/// Sorts keys and writes whole numbers without a fraction: bounds are floating-point
/// numbers in the typed schema.
fn tidy(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let sorted: BTreeMap<String, Value> = fields.into_iter().collect();
            Value::Object(
                sorted
                    .into_iter()
                    .map(|(key, value)| (key, tidy(value)))
                    .collect::<Map<_, _>>(),
            )
        }
        Value::Array(items) => items.into_iter().map(tidy).collect(),
        Value::Number(number) => whole(&number).map_or(Value::Number(number), Value::from),
        other => other,
    }
}

/// Returns the integer value of a floating-point number, if it is whole and every JSON
/// parser represents it exactly.
fn whole(number: &serde_json::Number) -> Option<i64> {
    let float = number.as_f64().filter(|_| number.is_f64())?;
    let text = format!("{float:.0}");
    text.parse::<i64>()
        .ok()
        .filter(|_| float.fract() == 0.0 && float.abs() < 9e15)
}
