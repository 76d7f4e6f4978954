//! The rights the operator needs, and no more: on the hub, and on every other
//! cluster. The tests run with exactly these.

use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::crd::{YamlError, to_yaml};

pub const HUB_FILE: &str = "config/rbac/hub.yaml";
pub const REMOTE_FILE: &str = "config/rbac/remote.yaml";

const OPERATOR: &str = "meshwright-operator";
const NAMESPACE: &str = "kilo-system";
/// The names that clusters prepared for the Go operator already have.
pub const READER: &str = "clustermesh-reader";
const REMOTE_ROLE: &str = "kilo-clustermesh-remote";
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
    PolicyRule { resource_names: Some(vec![name.to_owned()]), ..rule }
}

/// In every cluster of a mesh.
pub fn member_rules() -> Vec<PolicyRule> {
    vec![rule("", "nodes", &["list", "watch"]), rule(KILO, "peers", &["get", "list", "watch", "create", "patch", "delete"])]
}

/// On the hub, beyond those of a member and of one namespace.
pub fn hub_rules() -> Vec<PolicyRule> {
    let crds = |verbs: &[&str]| rule("apiextensions.k8s.io", "customresourcedefinitions", verbs);
    vec![
        rule(KILO, "clustermeshes", &["list", "watch"]),
        named("kube-system", rule("", "namespaces", &["get"])),
        crds(&["create"]),
        named("clustermeshes.kilo.squat.ai", crds(&["get", "patch"])),
    ]
}

/// In every namespace whose meshes are acted on.
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

/// For the cluster in which the operator runs.
pub fn hub_yaml() -> Result<String, YamlError> {
    let account = ServiceAccount { metadata: meta(OPERATOR, Some(NAMESPACE)), ..ServiceAccount::default() };
    let role = ClusterRole {
        metadata: meta(OPERATOR, None),
        rules: Some(member_rules().into_iter().chain(hub_rules()).collect()),
        ..ClusterRole::default()
    };
    let subjects = Some(vec![subject(OPERATOR, NAMESPACE)]);
    let binding =
        ClusterRoleBinding { metadata: meta(OPERATOR, None), role_ref: role_ref("ClusterRole", OPERATOR), subjects: subjects.clone() };
    let own = Role { metadata: meta(OPERATOR, Some(NAMESPACE)), rules: Some(namespace_rules()) };
    let own_binding = RoleBinding { metadata: meta(OPERATOR, Some(NAMESPACE)), role_ref: role_ref("Role", OPERATOR), subjects };
    Ok([to_yaml(&account)?, to_yaml(&role)?, to_yaml(&binding)?, to_yaml(&own)?, to_yaml(&own_binding)?].join("---\n"))
}

/// For every other cluster of a mesh.
pub fn remote_yaml() -> Result<String, YamlError> {
    let account = ServiceAccount { metadata: meta(READER, Some(READER_NAMESPACE)), ..ServiceAccount::default() };
    let role = ClusterRole { metadata: meta(REMOTE_ROLE, None), rules: Some(member_rules()), ..ClusterRole::default() };
    let binding = ClusterRoleBinding {
        metadata: meta(READER, None),
        role_ref: role_ref("ClusterRole", REMOTE_ROLE),
        subjects: Some(vec![subject(READER, READER_NAMESPACE)]),
    };
    let annotations = [("kubernetes.io/service-account.name".to_owned(), READER.to_owned())];
    let token = Secret {
        metadata: ObjectMeta { annotations: Some(annotations.into()), ..meta(&format!("{READER}-token"), Some(READER_NAMESPACE)) },
        type_: Some("kubernetes.io/service-account-token".to_owned()),
        ..Secret::default()
    };
    Ok([to_yaml(&account)?, to_yaml(&role)?, to_yaml(&binding)?, to_yaml(&token)?].join("---\n"))
}

pub(crate) fn meta(name: &str, namespace: Option<&str>) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), namespace: namespace.map(str::to_owned), ..ObjectMeta::default() }
}

pub(crate) fn role_ref(kind: &str, name: &str) -> RoleRef {
    RoleRef { api_group: "rbac.authorization.k8s.io".to_owned(), kind: kind.to_owned(), name: name.to_owned() }
}

pub(crate) fn subject(name: &str, namespace: &str) -> Subject {
    Subject { kind: "ServiceAccount".to_owned(), name: name.to_owned(), namespace: Some(namespace.to_owned()), ..Subject::default() }
}
