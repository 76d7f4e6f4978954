//! Minimal RBAC rules of the operator, on the hub and on every other cluster. The tests
//! run with exactly these rules.

use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::crd::{YamlError, to_yaml};

/// Path of the hub's RBAC manifest from the repository root.
pub(crate) const HUB_FILE: &str = "config/rbac/hub.yaml";
/// Path of the RBAC manifest of the other clusters from the repository root.
pub(crate) const REMOTE_FILE: &str = "config/rbac/remote.yaml";
/// Path of the RBAC manifest for --metrics-secure from the repository root.
pub(crate) const SECURE_METRICS_FILE: &str = "config/rbac/secure-metrics.yaml";

const OPERATOR: &str = "meshwright-operator";
const NAMESPACE: &str = "kilo-system";
const SECURE_METRICS: &str = "meshwright-secure-metrics";
const METRICS_READER: &str = "meshwright-metrics-reader";
/// ServiceAccount of the operator in remote clusters. The same name as in clusters that
/// were prepared for the Go operator.
pub const READER: &str = "clustermesh-reader";
const REMOTE_ROLE: &str = "kilo-clustermesh-remote";
/// Namespace of [`READER`].
pub const READER_NAMESPACE: &str = "kube-system";

const KILO: &str = "kilo.squat.ai";
const LEASE: &str = "f27237f1.squat.ai";

fn rule(group: &str, resource: &str, verbs: &[&str]) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        ..PolicyRule::default()
    }
}

pub(crate) fn named(name: &str, rule: PolicyRule) -> PolicyRule {
    PolicyRule {
        resource_names: Some(vec![name.to_owned()]),
        ..rule
    }
}

/// Returns the rules needed in every cluster of a mesh.
pub fn member_rules() -> Vec<PolicyRule> {
    vec![
        rule("", "nodes", &["list", "watch"]),
        rule(
            KILO,
            "peers",
            &["get", "list", "watch", "create", "patch", "delete"],
        ),
    ]
}

/// Returns the cluster-wide rules needed on the hub, in addition to [`member_rules`]
/// and [`namespace_rules`].
pub fn hub_rules() -> Vec<PolicyRule> {
    let crds = |verbs: &[&str]| rule("apiextensions.k8s.io", "customresourcedefinitions", verbs);
    vec![
        rule(KILO, "clustermeshes", &["list", "watch"]),
        named("kube-system", rule("", "namespaces", &["get"])),
        crds(&["create"]),
        named("clustermeshes.kilo.squat.ai", crds(&["get", "patch"])),
    ]
}

/// Returns the rules needed in every namespace whose meshes the operator reconciles.
pub fn namespace_rules() -> Vec<PolicyRule> {
    let leases = |verbs: &[&str]| rule("coordination.k8s.io", "leases", verbs);
    vec![
        rule(KILO, "clustermeshes", &["patch"]),
        rule(KILO, "clustermeshes/status", &["patch"]),
        rule("", "secrets", &["list", "watch"]),
        rule("events.k8s.io", "events", &["create"]),
        leases(&["create"]),
        named(LEASE, leases(&["get", "update"])),
    ]
}

/// Returns the manifest for the cluster that the operator runs in.
pub fn hub_yaml() -> Result<String, YamlError> {
    let account = ServiceAccount {
        metadata: meta(OPERATOR, Some(NAMESPACE)),
        ..ServiceAccount::default()
    };
    let role = ClusterRole {
        metadata: meta(OPERATOR, None),
        rules: Some(member_rules().into_iter().chain(hub_rules()).collect()),
        ..ClusterRole::default()
    };
    let subjects = Some(vec![subject(OPERATOR, NAMESPACE)]);
    let binding = ClusterRoleBinding {
        metadata: meta(OPERATOR, None),
        role_ref: role_ref("ClusterRole", OPERATOR),
        subjects: subjects.clone(),
    };
    let own = Role {
        metadata: meta(OPERATOR, Some(NAMESPACE)),
        rules: Some(namespace_rules()),
    };
    let own_binding = RoleBinding {
        metadata: meta(OPERATOR, Some(NAMESPACE)),
        role_ref: role_ref("Role", OPERATOR),
        subjects,
    };
    Ok([
        to_yaml(&account)?,
        to_yaml(&role)?,
        to_yaml(&binding)?,
        to_yaml(&own)?,
        to_yaml(&own_binding)?,
    ]
    .join("---\n"))
}

/// Returns the rules needed on the hub to serve metrics over HTTPS.
pub(crate) fn secure_metrics_rules() -> Vec<PolicyRule> {
    vec![
        rule("authentication.k8s.io", "tokenreviews", &["create"]),
        rule("authorization.k8s.io", "subjectaccessreviews", &["create"]),
    ]
}

/// Returns the manifest for --metrics-secure: rules for the accounts of operator and
/// provider, and the role that allows an account to read their metrics.
pub fn secure_metrics_yaml() -> Result<String, YamlError> {
    use crate::cilium::rbac::{MANAGEMENT_NAMESPACE, MANAGER, PROVIDER, PROVIDER_NAMESPACE};
    let accounts = [
        (OPERATOR, NAMESPACE),
        (PROVIDER, PROVIDER_NAMESPACE),
        (MANAGER, MANAGEMENT_NAMESPACE),
    ];
    let role = ClusterRole {
        metadata: meta(SECURE_METRICS, None),
        rules: Some(secure_metrics_rules()),
        ..ClusterRole::default()
    };
    let binding = ClusterRoleBinding {
        metadata: meta(SECURE_METRICS, None),
        role_ref: role_ref("ClusterRole", SECURE_METRICS),
        subjects: Some(
            accounts
                .map(|(name, namespace)| subject(name, namespace))
                .into(),
        ),
    };
    let url = PolicyRule {
        non_resource_urls: Some(vec!["/metrics".to_owned()]),
        verbs: vec!["get".to_owned()],
        ..PolicyRule::default()
    };
    let reader = ClusterRole {
        metadata: meta(METRICS_READER, None),
        rules: Some(vec![url]),
        ..ClusterRole::default()
    };
    Ok([to_yaml(&role)?, to_yaml(&binding)?, to_yaml(&reader)?].join("---\n"))
}

/// Returns the manifest for every other cluster of a mesh.
pub fn remote_yaml() -> Result<String, YamlError> {
    let account = ServiceAccount {
        metadata: meta(READER, Some(READER_NAMESPACE)),
        ..ServiceAccount::default()
    };
    let role = ClusterRole {
        metadata: meta(REMOTE_ROLE, None),
        rules: Some(member_rules()),
        ..ClusterRole::default()
    };
    let binding = ClusterRoleBinding {
        metadata: meta(READER, None),
        role_ref: role_ref("ClusterRole", REMOTE_ROLE),
        subjects: Some(vec![subject(READER, READER_NAMESPACE)]),
    };
    let annotations = [(
        "kubernetes.io/service-account.name".to_owned(),
        READER.to_owned(),
    )];
    let token = Secret {
        metadata: ObjectMeta {
            annotations: Some(annotations.into()),
            ..meta(&format!("{READER}-token"), Some(READER_NAMESPACE))
        },
        type_: Some("kubernetes.io/service-account-token".to_owned()),
        ..Secret::default()
    };
    Ok([
        to_yaml(&account)?,
        to_yaml(&role)?,
        to_yaml(&binding)?,
        to_yaml(&token)?,
    ]
    .join("---\n"))
}

pub(crate) fn meta(name: &str, namespace: Option<&str>) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: namespace.map(str::to_owned),
        ..ObjectMeta::default()
    }
}

pub(crate) fn role_ref(kind: &str, name: &str) -> RoleRef {
    RoleRef {
        api_group: "rbac.authorization.k8s.io".to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
    }
}

pub(crate) fn subject(name: &str, namespace: &str) -> Subject {
    Subject {
        kind: "ServiceAccount".to_owned(),
        name: name.to_owned(),
        namespace: Some(namespace.to_owned()),
        ..Subject::default()
    }
}
