//! What a kcp provider workspace needs to offer the three kinds, and what a
//! tenant applies to use them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionNames, CustomResourceDefinitionVersion,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::ClusterResourceScope;
use mw_core::names::short_hash;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cilium::GROUP;
use crate::cilium::rbac::rule;
use crate::crd::{YamlError, cilium_crds, to_yaml};
use crate::lean::{self, null_is_default, served};
use crate::rbac::{named, subject};

pub const EXPORT_FILE: &str = "config/kcp-cilium-mesh-apiexport.yaml";
pub const BINDING_FILE: &str = "config/kcp-cilium-mesh-apibinding.yaml";
/// A merge patch that adds the claim on tenants' clusters to the export.
pub const FLEET_CLAIM_FILE: &str = "config/kcp-cilium-mesh-fleet-claim.yaml";
pub const RBAC_FILE: &str = "config/kcp-cilium-mesh-rbac.yaml";

pub const EXPORT: &str = "edge-portal-networking";
/// The workspace with the export, where nothing else is said.
pub const PROVIDER_WORKSPACE: &str = "root:system";
/// Stands where the fleet export's identity goes, which differs per installation.
pub const FLEET_IDENTITY: &str = "REPLACE-WITH-THE-IDENTITY-HASH-OF-edge-portal-fleet";

const FLEET_GROUP: &str = "platform.edge-portal.eu";
const FLEET_CLUSTERS: &str = "kubernetesclusters";
const PROVIDER: &str = "kcp-cilium-mesh-provider";
const PROVIDER_NAMESPACE: &str = "default";

/// Annotation of every object in kcp: the logical cluster it is in.
pub const ANNOTATION_CLUSTER: &str = "kcp.io/cluster";
/// Annotation of an APIBinding: the path of its workspace.
pub const ANNOTATION_PATH: &str = "kcp.io/path";

/// A tenant's APIBinding to the export.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct ApiBinding {
    #[serde(default, deserialize_with = "lean::meta")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    pub spec: ApiBindingSpec,
    #[serde(default, deserialize_with = "null_is_default")]
    pub status: ApiBindingStatus,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiBindingSpec {
    #[serde(deserialize_with = "null_is_default")]
    pub permission_claims: Vec<Claim>,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiBindingStatus {
    #[serde(deserialize_with = "null_is_default")]
    pub applied_permission_claims: Vec<Claim>,
}

/// What a tenant lets the provider see, or does not.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct Claim {
    #[serde(deserialize_with = "null_is_default")]
    pub group: String,
    pub resource: String,
    /// `Accepted` or `Rejected`, where it is the tenant's answer.
    pub state: Option<String>,
}

impl ApiBinding {
    /// Whether the tenant's clusters can be seen: its answer, and whether that
    /// is in force.
    pub fn shows_clusters(&self) -> bool {
        let is_it = |claim: &&Claim| claim.group == FLEET_GROUP && claim.resource == FLEET_CLUSTERS;
        let accepted = self.spec.permission_claims.iter().filter(is_it).any(|claim| claim.state.as_deref() == Some("Accepted"));
        accepted && self.status.applied_permission_claims.iter().any(|claim| is_it(&claim))
    }
}

/// Where an export is served.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct EndpointSlice {
    #[serde(default, deserialize_with = "lean::meta")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    pub spec: EndpointSliceSpec,
    #[serde(default, deserialize_with = "null_is_default")]
    pub status: EndpointSliceStatus,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct EndpointSliceSpec {
    pub export: ExportRef,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct ExportRef {
    pub name: String,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct EndpointSliceStatus {
    #[serde(deserialize_with = "null_is_default")]
    pub endpoints: Vec<Endpoint>,
}

#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct Endpoint {
    pub url: String,
}

impl EndpointSlice {
    pub fn urls(&self) -> impl Iterator<Item = String> {
        self.status.endpoints.iter().map(|endpoint| endpoint.url.trim_end_matches('/').to_owned()).filter(|url| !url.is_empty())
    }
}

served!(ApiBinding, ClusterResourceScope, "apis.kcp.io", "v1alpha2", "APIBinding", "apibindings");
served!(EndpointSlice, ClusterResourceScope, "apis.kcp.io", "v1alpha1", "APIExportEndpointSlice", "apiexportendpointslices");

/// The APIResourceSchema of a CRD. Its name comes from its content, because in
/// kcp such a schema can't be changed.
pub fn schema(crd: &CustomResourceDefinition) -> Result<Value, YamlError> {
    // A CRD gets its listKind from the API server, kcp asks for it.
    let list_kind = crd.spec.names.list_kind.clone().unwrap_or_else(|| format!("{}List", crd.spec.names.kind));
    let names = CustomResourceDefinitionNames { list_kind: Some(list_kind), ..crd.spec.names.clone() };
    let spec = json!({
        "group": crd.spec.group,
        "names": names,
        "scope": crd.spec.scope,
        "versions": crd.spec.versions.iter().map(version).collect::<Vec<_>>(),
    });
    let name = format!("v{}.{}.{GROUP}", short_hash(&to_yaml(&spec)?), crd.spec.names.plural);
    Ok(json!({ "apiVersion": "apis.kcp.io/v1alpha1", "kind": "APIResourceSchema", "metadata": { "name": name }, "spec": spec }))
}

/// As in a CRD, but for the schema, which stands there bare.
fn version(version: &CustomResourceDefinitionVersion) -> Value {
    json!({
        "name": version.name,
        "served": version.served,
        "storage": version.storage,
        "subresources": version.subresources,
        "additionalPrinterColumns": version.additional_printer_columns,
        "schema": version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref()),
    })
}

/// Without the identity of the fleet's export nothing of it can be claimed: kcp
/// takes a wrong one silently, and then shows no clusters.
fn claims(fleet_identity: Option<&str>) -> Vec<Value> {
    let clusters = fleet_identity
        .map(|hash| json!({ "group": FLEET_GROUP, "resource": FLEET_CLUSTERS, "identityHash": hash, "verbs": ["get", "list", "watch"] }));
    let events = json!({ "group": "", "resource": "events", "verbs": ["create", "patch"] });
    clusters.into_iter().chain([events]).collect()
}

/// The schemas and the APIExport, for the provider workspace.
pub fn export_yaml(fleet_identity: Option<&str>) -> Result<String, YamlError> {
    let crds = cilium_crds();
    let schemas = crds.iter().map(schema).collect::<Result<Vec<Value>, YamlError>>()?;
    let resources = crds.iter().zip(&schemas).map(|(crd, schema)| {
        let name = schema.pointer("/metadata/name");
        json!({ "group": crd.spec.group, "name": crd.spec.names.plural, "schema": name, "storage": { "crd": {} } })
    });
    let export = json!({
        "apiVersion": "apis.kcp.io/v1alpha2", "kind": "APIExport", "metadata": { "name": EXPORT },
        "spec": { "resources": resources.collect::<Vec<_>>(), "permissionClaims": claims(fleet_identity) },
    });
    documents(&[schemas, vec![export]].concat())
}

/// Adds the claim on tenants' clusters to an APIExport that is there.
pub fn fleet_claim_yaml(fleet_identity: &str) -> Result<String, YamlError> {
    to_yaml(&json!({ "spec": { "permissionClaims": claims(Some(fleet_identity)) } }))
}

/// The APIBinding, for each tenant.
pub fn binding_yaml(provider_workspace: &str, fleet_identity: Option<&str>) -> Result<String, YamlError> {
    let accepted = claims(fleet_identity).into_iter().map(|mut claim| {
        if let Value::Object(fields) = &mut claim {
            fields.extend([("state".to_owned(), json!("Accepted")), ("selector".to_owned(), json!({ "matchAll": true }))]);
        }
        claim
    });
    let binding = json!({
        "apiVersion": "apis.kcp.io/v1alpha2", "kind": "APIBinding", "metadata": { "name": EXPORT },
        "spec": {
            "reference": { "export": { "path": provider_workspace, "name": EXPORT } },
            "permissionClaims": accepted.collect::<Vec<_>>(),
        },
    });
    to_yaml(&binding)
}

/// The provider's account and rights in the provider workspace, and the right
/// of everybody to bind.
pub fn rbac_yaml() -> Result<String, YamlError> {
    let content = named(EXPORT, rule("apis.kcp.io", &["apiexports/content"], &["list", "watch", "create", "patch"]));
    let slices = rule("apis.kcp.io", &["apiexportendpointslices"], &["list", "watch"]);
    let bind = named(EXPORT, rule("apis.kcp.io", &["apiexports"], &["bind"]));
    let role =
        |name: &str, rules: Value| json!({ "apiVersion": RBAC, "kind": "ClusterRole", "metadata": { "name": name }, "rules": rules });
    let bound = |name: &str, subject: Value| {
        let role = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name });
        json!({ "apiVersion": RBAC, "kind": "ClusterRoleBinding", "metadata": { "name": name }, "roleRef": role, "subjects": [subject] })
    };
    let everybody = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated" });
    let binder = format!("{EXPORT}-bind");
    documents(&[
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": PROVIDER, "namespace": PROVIDER_NAMESPACE } }),
        role(PROVIDER, json!([content, slices])),
        bound(PROVIDER, json!(subject(PROVIDER, PROVIDER_NAMESPACE))),
        role(&binder, json!([bind])),
        bound(&binder, everybody),
    ])
}

const RBAC: &str = "rbac.authorization.k8s.io/v1";

fn documents(objects: &[Value]) -> Result<String, YamlError> {
    let texts: Result<Vec<String>, YamlError> = objects.iter().map(to_yaml).collect();
    Ok(texts?.join("---\n"))
}
