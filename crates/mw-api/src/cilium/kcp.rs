//! kcp objects: manifests with which a provider workspace offers the three custom
//! resources and a tenant binds them, and the kcp objects that are read.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionNames, CustomResourceDefinitionVersion,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::ClusterResourceScope;
use mw_core::names::short_hash;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cilium::GROUP;
use crate::cilium::rbac::rule;
use crate::crd::{YamlError, cilium_crds, to_yaml};
use crate::lean::{self, null_is_default, served};
use crate::rbac::{named, subject};

/// Path of the APIExport manifest from the repository root.
pub const EXPORT_FILE: &str = "config/kcp-cilium-mesh-apiexport.yaml";
/// Path of the APIBinding manifest from the repository root.
pub const BINDING_FILE: &str = "config/kcp-cilium-mesh-apibinding.yaml";
/// Path of the merge patch that adds the permission claim on KubernetesClusters to the
/// export.
pub(crate) const FLEET_CLAIM_FILE: &str = "config/kcp-cilium-mesh-fleet-claim.yaml";
/// Path of the RBAC manifest of the provider workspace from the repository root.
pub const RBAC_FILE: &str = "config/kcp-cilium-mesh-rbac.yaml";

/// Name of the APIExport that provides KubernetesClusters to tenants.
pub const FLEET_EXPORT: &str = "edge-portal-fleet";
/// Name of the APIExport of the three custom resources.
pub const EXPORT: &str = "edge-portal-networking";
/// Default workspace of the export.
pub const PROVIDER_WORKSPACE: &str = "root:system";
/// Placeholder for the identity hash of the fleet export, which differs per
/// installation.
pub const FLEET_IDENTITY: &str = "REPLACE-WITH-THE-IDENTITY-HASH-OF-edge-portal-fleet";

const FLEET_GROUP: &str = "platform.edge-portal.eu";
const FLEET_CLUSTERS: &str = "kubernetesclusters";
const PROVIDER: &str = "kcp-cilium-mesh-provider";
const PROVIDER_NAMESPACE: &str = "default";

/// Annotation of every object in kcp with the logical cluster of the object.
pub const ANNOTATION_CLUSTER: &str = "kcp.io/cluster";
/// Annotation of an APIBinding with the path of its workspace.
pub const ANNOTATION_PATH: &str = "kcp.io/path";

/// A tenant's APIBinding to the export.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct ApiBinding {
    /// Object metadata without managedFields.
    #[serde(default, deserialize_with = "lean::meta")]
    pub metadata: ObjectMeta,
    /// Bound export and accepted claims.
    #[serde(default, deserialize_with = "null_is_default")]
    pub spec: ApiBindingSpec,
    /// Observed state.
    #[serde(default, deserialize_with = "null_is_default")]
    pub status: ApiBindingStatus,
}

/// Desired state of an APIBinding.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiBindingSpec {
    /// Export that is bound.
    #[serde(deserialize_with = "null_is_default")]
    pub reference: BindingReference,
    /// Answers of the tenant to the claims of the export.
    #[serde(deserialize_with = "null_is_default")]
    pub permission_claims: Vec<Claim>,
}

/// Reference of an APIBinding.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct BindingReference {
    /// Export that is bound.
    #[serde(deserialize_with = "null_is_default")]
    pub export: ExportRef,
}

/// Observed state of an APIBinding.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiBindingStatus {
    /// Phase; `Bound` if the resources are served.
    pub phase: Option<String>,
    /// Resources that the workspace gets from this binding.
    #[serde(deserialize_with = "null_is_default")]
    pub bound_resources: Vec<BoundResource>,
    /// Accepted claims that are in effect.
    #[serde(deserialize_with = "null_is_default")]
    pub applied_permission_claims: Vec<Claim>,
    /// Claims that the export requests.
    #[serde(deserialize_with = "null_is_default")]
    pub export_permission_claims: Vec<Claim>,
}

/// A resource that a workspace gets from an APIBinding.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct BoundResource {
    /// API group of the resource.
    #[serde(deserialize_with = "null_is_default")]
    pub group: String,
    /// Plural name of the resource.
    pub resource: String,
    /// Schema of the resource.
    #[serde(deserialize_with = "null_is_default")]
    pub schema: BoundSchema,
}

/// Schema of a bound resource.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct BoundSchema {
    /// Identity hash of the export that provides the resource.
    pub identity_hash: String,
}

/// A permission claim: access to a resource that the provider requests and the tenant
/// accepts or rejects.
#[derive(Deserialize, Serialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Claim {
    /// API group of the resource.
    #[serde(deserialize_with = "null_is_default")]
    pub group: String,
    /// Plural name of the resource.
    pub resource: String,
    /// Identity hash of the export that provides the resource; none for built-in
    /// resources.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity_hash: Option<String>,
    /// Requested verbs.
    #[serde(deserialize_with = "null_is_default")]
    pub verbs: Vec<String>,
    /// Objects that are covered; only set in the tenant's answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<Value>,
    /// `Accepted` or `Rejected`; only set in the tenant's answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

impl Claim {
    /// Reports whether this is the claim on KubernetesClusters.
    pub fn is_on_clusters(&self) -> bool {
        self.group == FLEET_GROUP && self.resource == FLEET_CLUSTERS
    }

    /// Reports whether both claims are on the same resource, regardless of the export
    /// that provides it.
    pub fn is_alike(&self, other: &Claim) -> bool {
        self.group == other.group && self.resource == other.resource
    }

    /// Reports whether the tenant accepted the claim.
    pub fn is_accepted(&self) -> bool {
        self.state.as_deref() == Some("Accepted")
    }

    /// Returns this claim, accepted for all objects.
    pub fn accepted(&self) -> Claim {
        Claim {
            state: Some("Accepted".to_owned()),
            selector: Some(json!({ "matchAll": true })),
            ..self.clone()
        }
    }
}

/// An APIExport, of the provider or of the fleet.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct ApiExport {
    /// Object metadata without managedFields.
    #[serde(default, deserialize_with = "lean::meta")]
    pub metadata: ObjectMeta,
    /// Exported resources and requested claims.
    #[serde(default, deserialize_with = "null_is_default")]
    pub spec: ApiExportSpec,
    /// Observed state.
    #[serde(default, deserialize_with = "null_is_default")]
    pub status: ApiExportStatus,
}

/// Desired state of an APIExport.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiExportSpec {
    /// Exported resources.
    #[serde(deserialize_with = "null_is_default")]
    pub resources: Vec<ExportedResource>,
    /// Claims that tenants are asked to accept.
    #[serde(deserialize_with = "null_is_default")]
    pub permission_claims: Vec<Claim>,
}

/// An exported resource.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
#[serde(default)]
pub struct ExportedResource {
    /// Plural name of the resource.
    pub name: String,
    /// Name of the APIResourceSchema.
    pub schema: String,
}

/// Observed state of an APIExport.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiExportStatus {
    /// Identity hash of the export, set by kcp.
    pub identity_hash: Option<String>,
}

impl ApiBinding {
    /// Returns the identity hash of the export that provides KubernetesClusters, if
    /// this binding provides them.
    pub fn fleet_identity(&self) -> Option<&str> {
        let is_it =
            |bound: &&BoundResource| bound.group == FLEET_GROUP && bound.resource == FLEET_CLUSTERS;
        self.status
            .bound_resources
            .iter()
            .find(is_it)
            .map(|bound| bound.schema.identity_hash.as_str())
    }

    /// Reports whether the provider can read the tenant's KubernetesClusters: the claim
    /// is accepted and in effect.
    pub fn shows_clusters(&self) -> bool {
        let accepted = self
            .spec
            .permission_claims
            .iter()
            .any(|claim| claim.is_on_clusters() && claim.is_accepted());
        accepted
            && self
                .status
                .applied_permission_claims
                .iter()
                .any(Claim::is_on_clusters)
    }
}

/// An APIExportEndpointSlice: the URLs at which an export is served.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct EndpointSlice {
    /// Object metadata without managedFields.
    #[serde(default, deserialize_with = "lean::meta")]
    pub metadata: ObjectMeta,
    /// Export of the URLs.
    #[serde(default, deserialize_with = "null_is_default")]
    pub spec: EndpointSliceSpec,
    /// URLs of the export.
    #[serde(default, deserialize_with = "null_is_default")]
    pub status: EndpointSliceStatus,
}

/// Desired state of an APIExportEndpointSlice.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct EndpointSliceSpec {
    /// Export of the URLs.
    pub export: ExportRef,
}

/// Reference to an APIExport.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct ExportRef {
    /// Name of the export.
    pub name: String,
    /// Path of the export's workspace; the same workspace if unset.
    pub path: Option<String>,
}

/// Observed state of an APIExportEndpointSlice.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct EndpointSliceStatus {
    /// One endpoint per shard.
    #[serde(deserialize_with = "null_is_default")]
    pub endpoints: Vec<Endpoint>,
}

/// An endpoint of an export.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub struct Endpoint {
    /// URL of the virtual workspace.
    pub url: String,
}

impl EndpointSlice {
    /// Returns the URLs without trailing slashes.
    pub fn urls(&self) -> impl Iterator<Item = String> {
        self.status
            .endpoints
            .iter()
            .map(|endpoint| endpoint.url.trim_end_matches('/').to_owned())
            .filter(|url| !url.is_empty())
    }
}

served!(
    ApiBinding,
    ClusterResourceScope,
    "apis.kcp.io",
    "v1alpha2",
    "APIBinding",
    "apibindings"
);
served!(
    ApiExport,
    ClusterResourceScope,
    "apis.kcp.io",
    "v1alpha2",
    "APIExport",
    "apiexports"
);
served!(
    EndpointSlice,
    ClusterResourceScope,
    "apis.kcp.io",
    "v1alpha1",
    "APIExportEndpointSlice",
    "apiexportendpointslices"
);

/// Returns the APIResourceSchema of a CRD. Its name contains a hash of its content,
/// because kcp does not allow changes to an APIResourceSchema.
pub fn schema(crd: &CustomResourceDefinition) -> Result<Value, YamlError> {
    // The API server fills in listKind for a CRD; kcp requires it.
    let list_kind = crd
        .spec
        .names
        .list_kind
        .clone()
        .unwrap_or_else(|| format!("{}List", crd.spec.names.kind));
    let names = CustomResourceDefinitionNames {
        list_kind: Some(list_kind),
        ..crd.spec.names.clone()
    };
    let spec = json!({
        "group": crd.spec.group,
        "names": names,
        "scope": crd.spec.scope,
        "versions": crd.spec.versions.iter().map(version).collect::<Vec<_>>(),
    });
    let name = format!(
        "v{}.{}.{GROUP}",
        short_hash(&to_yaml(&spec)?),
        crd.spec.names.plural
    );
    Ok(
        json!({ "apiVersion": "apis.kcp.io/v1alpha1", "kind": "APIResourceSchema", "metadata": { "name": name }, "spec": spec }),
    )
}

/// Returns a version as in a CRD, but with the schema inlined.
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

/// Returns the permission claims of the export. The fleet resource is only claimed if
/// the identity of its export is known: kcp accepts a wrong identity without an error,
/// and then shows no clusters.
fn claims(fleet_identity: Option<&str>) -> Vec<Value> {
    let clusters = fleet_identity
        .map(|hash| json!({ "group": FLEET_GROUP, "resource": FLEET_CLUSTERS, "identityHash": hash, "verbs": ["get", "list", "watch"] }));
    let events = json!({ "group": "", "resource": "events", "verbs": ["create", "patch"] });
    clusters.into_iter().chain([events]).collect()
}

/// Returns the manifest for the provider workspace: schemas and APIExport.
pub fn export_yaml(fleet_identity: Option<&str>) -> Result<String, YamlError> {
    let crds = cilium_crds();
    let schemas = crds
        .iter()
        .map(schema)
        .collect::<Result<Vec<Value>, YamlError>>()?;
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

/// Returns the exported resources and schema names of this version.
pub fn exported() -> Result<Vec<ExportedResource>, YamlError> {
    let resource = |crd: &CustomResourceDefinition| {
        let schema = schema(crd)?
            .pointer("/metadata/name")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        Ok(ExportedResource {
            name: crd.spec.names.plural.clone(),
            schema,
        })
    };
    cilium_crds().iter().map(resource).collect()
}

/// Returns the merge patch that adds the claim on KubernetesClusters to an existing
/// APIExport.
pub fn fleet_claim_yaml(fleet_identity: &str) -> Result<String, YamlError> {
    to_yaml(&json!({ "spec": { "permissionClaims": claims(Some(fleet_identity)) } }))
}

/// Returns the APIBinding for a tenant.
pub fn binding_yaml(
    provider_workspace: &str,
    fleet_identity: Option<&str>,
) -> Result<String, YamlError> {
    let accepted = claims(fleet_identity).into_iter().map(|mut claim| {
        if let Value::Object(fields) = &mut claim {
            fields.extend([
                ("state".to_owned(), json!("Accepted")),
                ("selector".to_owned(), json!({ "matchAll": true })),
            ]);
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

/// Returns the RBAC manifest for the provider workspace: the provider's account and
/// rules, and the right of all authenticated users to bind the export.
pub fn rbac_yaml() -> Result<String, YamlError> {
    let content = named(
        EXPORT,
        rule(
            "apis.kcp.io",
            &["apiexports/content"],
            &["list", "watch", "create", "patch"],
        ),
    );
    let slices = rule(
        "apis.kcp.io",
        &["apiexportendpointslices"],
        &["list", "watch"],
    );
    let bind = named(EXPORT, rule("apis.kcp.io", &["apiexports"], &["bind"]));
    let role = |name: &str, rules: Value| json!({ "apiVersion": RBAC, "kind": "ClusterRole", "metadata": { "name": name }, "rules": rules });
    let bound = |name: &str, subject: Value| {
        let role =
            json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name });
        json!({ "apiVersion": RBAC, "kind": "ClusterRoleBinding", "metadata": { "name": name }, "roleRef": role, "subjects": [subject] })
    };
    let authenticated = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated" });
    let binder = format!("{EXPORT}-bind");
    documents(&[
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": PROVIDER, "namespace": PROVIDER_NAMESPACE } }),
        role(PROVIDER, json!([content, slices])),
        bound(PROVIDER, json!(subject(PROVIDER, PROVIDER_NAMESPACE))),
        role(&binder, json!([bind])),
        bound(&binder, authenticated),
    ])
}

const RBAC: &str = "rbac.authorization.k8s.io/v1";

fn documents(objects: &[Value]) -> Result<String, YamlError> {
    let texts: Result<Vec<String>, YamlError> = objects.iter().map(to_yaml).collect();
    Ok(texts?.join("---\n"))
}
