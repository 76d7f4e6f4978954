//! Minimal RBAC rules of the Cilium back end: for the kubeconfig of a target cluster,
//! and for the provider on a hub or on the management plane of kcp.

use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use crate::cilium::GROUP;
use crate::crd::{YamlError, to_yaml};
use crate::rbac::{meta, named, role_ref, subject};

/// Path of the manifest for target clusters from the repository root.
pub(crate) const TARGET_FILE: &str = "config/rbac/cilium-target.yaml";
/// Path of the optional manifest that allows copying a missing CA from another member.
pub(crate) const TARGET_CA_FILE: &str = "config/rbac/cilium-target-ca.yaml";
/// Path of the optional manifest that limits the Secrets that role can create. Needs
/// Kubernetes 1.30.
pub(crate) const TARGET_CA_POLICY_FILE: &str = "config/rbac/cilium-target-ca-policy.yaml";
/// Path of the optional manifest that allows reading KVStoreMesh's metrics.
pub(crate) const TARGET_METRICS_FILE: &str = "config/rbac/cilium-target-metrics.yaml";
/// Path of the manifest with the connection Secrets, without data.
pub(crate) const CONNECTION_SECRETS_FILE: &str = "config/cilium-connection-secrets.yaml";
/// Path of the manifest for a hub from the repository root.
pub(crate) const HUB_FILE: &str = "config/rbac/cilium-hub.yaml";
/// Path of the manifest for the management plane from the repository root.
pub(crate) const MANAGEMENT_FILE: &str = "config/rbac/cilium-management.yaml";

pub(crate) const PROVIDER: &str = "meshwright-provider";
pub(crate) const PROVIDER_NAMESPACE: &str = "meshwright";
/// Name of the Lease that elects the leader among several providers.
pub const LEASE: &str = "meshwright-provider";

pub(crate) const MANAGER: &str = "meshwright-management";
pub(crate) const MANAGEMENT_NAMESPACE: &str = "default";

/// ServiceAccount of the provider in every target cluster.
pub const TARGET: &str = "meshwright-target";
/// Namespace that Cilium runs in.
pub const CILIUM_NAMESPACE: &str = "kube-system";

/// Secret of the CA. Only the optional role may read and create it.
pub const CA_SECRET: &str = "cilium-ca";
/// Secrets with the certificates and connections of the mesh. No other Secrets are
/// read.
pub const READ_SECRETS: [&str; 5] = [
    "cilium-clustermesh",
    "cilium-kvstoremesh",
    "clustermesh-apiserver-local-cert",
    "clustermesh-apiserver-remote-cert",
    "clustermesh-apiserver-server-cert",
];
/// ConfigMap that lists the etcd users of remote clusters.
pub const REMOTE_USERS: &str = "clustermesh-remote-users";
const WRITTEN_SECRETS: [&str; 2] = ["cilium-clustermesh", "cilium-kvstoremesh"];

pub(crate) fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> PolicyRule {
    let owned = |texts: &[&str]| {
        texts
            .iter()
            .map(|text| (*text).to_owned())
            .collect::<Vec<_>>()
    };
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(owned(resources)),
        verbs: owned(verbs),
        ..PolicyRule::default()
    }
}

fn among(names: &[&str], rule: PolicyRule) -> PolicyRule {
    PolicyRule {
        resource_names: Some(names.iter().map(|name| (*name).to_owned()).collect()),
        ..rule
    }
}

/// Returns the cluster-wide rules for a target cluster.
pub fn target_rules() -> Vec<PolicyRule> {
    let policies = ["ciliumnetworkpolicies", "ciliumclusterwidenetworkpolicies"];
    let crds = [
        "ciliumclusterwidenetworkpolicies.cilium.io",
        "ciliumnetworkpolicies.cilium.io",
    ];
    vec![
        rule("", &["nodes", "namespaces"], &["list", "watch"]),
        rule("", &["services"], &["get", "list", "watch", "patch"]),
        rule("discovery.k8s.io", &["endpointslices"], &["list", "watch"]),
        rule(
            "cilium.io",
            &policies,
            &["get", "list", "watch", "create", "patch", "delete"],
        ),
        among(
            &crds,
            rule(
                "apiextensions.k8s.io",
                &["customresourcedefinitions"],
                &["list", "watch"],
            ),
        ),
    ]
}

/// Returns the rules for the namespace that Cilium runs in.
pub fn cilium_rules() -> Vec<PolicyRule> {
    vec![
        rule("apps", &["daemonsets", "deployments"], &["list", "watch"]),
        rule("", &["pods"], &["list", "watch"]),
        named(
            "cilium-config",
            rule("", &["configmaps"], &["get", "list", "watch", "patch"]),
        ),
        // Created with server-side apply, which RBAC can limit to a name.
        named(
            REMOTE_USERS,
            rule("", &["configmaps"], &["create", "list", "watch", "patch"]),
        ),
        among(
            &READ_SECRETS,
            rule("", &["secrets"], &["get", "list", "watch"]),
        ),
        among(&WRITTEN_SECRETS, rule("", &["secrets"], &["patch"])),
    ]
}

/// Returns the rules for copying a missing CA, for Cilium's namespace. RBAC can't limit
/// creation to a name, so the holder could also create a token Secret for any account
/// in the namespace; [`ca_policy_yaml`] prevents that.
fn ca_rules() -> Vec<PolicyRule> {
    vec![
        named(CA_SECRET, rule("", &["secrets"], &["list", "watch"])),
        rule("", &["secrets"], &["create"]),
    ]
}

/// Returns the rules for reading KVStoreMesh's metrics, for Cilium's namespace. The
/// holder can send GET requests to every pod in it.
fn metrics_rules() -> Vec<PolicyRule> {
    vec![rule("", &["pods/proxy"], &["get"])]
}

/// Returns the rules for a hub: the three custom resources, the kubeconfig Secrets, and
/// CRDs and events for the provider itself.
pub fn hub_rules() -> Vec<PolicyRule> {
    let kinds = [
        "clustermeshbindings",
        "globalservices",
        "connectivityintents",
    ];
    let statuses = kinds.map(|kind| format!("{kind}/status"));
    let crds: Vec<String> = kinds.iter().map(|kind| format!("{kind}.{GROUP}")).collect();
    let crd = |verbs: &[&str]| {
        rule(
            "apiextensions.k8s.io",
            &["customresourcedefinitions"],
            verbs,
        )
    };
    vec![
        rule(GROUP, &kinds, &["list", "watch", "patch"]),
        PolicyRule {
            resources: Some(statuses.into()),
            ..rule(GROUP, &[], &["patch"])
        },
        rule("", &["secrets"], &["list", "watch"]),
        rule("events.k8s.io", &["events"], &["create"]),
        named("kube-system", rule("", &["namespaces"], &["get"])),
        crd(&["create"]),
        PolicyRule {
            resource_names: Some(crds),
            ..crd(&["get", "patch"])
        },
    ]
}

/// Returns the rules for the management plane: Clusters of either group and their
/// kubeconfig Secrets.
fn management_rules() -> Vec<PolicyRule> {
    let clusters = |group: &str| rule(group, &["clusters"], &["list", "watch"]);
    vec![
        clusters("platform.edge-portal.eu"),
        clusters("cluster.x-k8s.io"),
        rule("", &["secrets"], &["list", "watch"]),
    ]
}

/// Returns the rules for the namespace of the provider's Lease.
pub(crate) fn lease_rules() -> Vec<PolicyRule> {
    let leases = |verbs: &[&str]| rule("coordination.k8s.io", &["leases"], verbs);
    vec![
        leases(&["create"]),
        named(LEASE, leases(&["get", "update"])),
    ]
}

/// Returns the manifest for the cluster that `--hub` selects.
pub fn hub_yaml() -> Result<String, YamlError> {
    let account = ServiceAccount {
        metadata: meta(PROVIDER, Some(PROVIDER_NAMESPACE)),
        ..ServiceAccount::default()
    };
    let role = ClusterRole {
        metadata: meta(PROVIDER, None),
        rules: Some(hub_rules()),
        ..ClusterRole::default()
    };
    let subjects = Some(vec![subject(PROVIDER, PROVIDER_NAMESPACE)]);
    let binding = ClusterRoleBinding {
        metadata: meta(PROVIDER, None),
        role_ref: role_ref("ClusterRole", PROVIDER),
        subjects: subjects.clone(),
    };
    let own = Role {
        metadata: meta(PROVIDER, Some(PROVIDER_NAMESPACE)),
        rules: Some(lease_rules()),
    };
    let own_binding = RoleBinding {
        metadata: meta(PROVIDER, Some(PROVIDER_NAMESPACE)),
        role_ref: role_ref("Role", PROVIDER),
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

/// Returns the manifest for the management plane of a provider on kcp, in the namespace
/// of the Clusters.
pub fn management_yaml() -> Result<String, YamlError> {
    let own = meta(MANAGER, Some(MANAGEMENT_NAMESPACE));
    let account = ServiceAccount {
        metadata: own.clone(),
        ..ServiceAccount::default()
    };
    let rules = management_rules()
        .into_iter()
        .chain(lease_rules())
        .collect();
    let role = Role {
        metadata: own.clone(),
        rules: Some(rules),
    };
    let subjects = Some(vec![subject(MANAGER, MANAGEMENT_NAMESPACE)]);
    let binding = RoleBinding {
        metadata: own,
        role_ref: role_ref("Role", MANAGER),
        subjects,
    };
    Ok([to_yaml(&account)?, to_yaml(&role)?, to_yaml(&binding)?].join("---\n"))
}

/// Returns the manifest for every cluster of a binding.
pub fn target_yaml() -> Result<String, YamlError> {
    let account = ServiceAccount {
        metadata: meta(TARGET, Some(CILIUM_NAMESPACE)),
        ..ServiceAccount::default()
    };
    let role = ClusterRole {
        metadata: meta(TARGET, None),
        rules: Some(target_rules()),
        ..ClusterRole::default()
    };
    let subjects = Some(vec![subject(TARGET, CILIUM_NAMESPACE)]);
    let binding = ClusterRoleBinding {
        metadata: meta(TARGET, None),
        role_ref: role_ref("ClusterRole", TARGET),
        subjects: subjects.clone(),
    };
    let own = Role {
        metadata: meta(TARGET, Some(CILIUM_NAMESPACE)),
        rules: Some(cilium_rules()),
    };
    let own_binding = RoleBinding {
        metadata: meta(TARGET, Some(CILIUM_NAMESPACE)),
        role_ref: role_ref("Role", TARGET),
        subjects,
    };
    let annotations = [(
        "kubernetes.io/service-account.name".to_owned(),
        TARGET.to_owned(),
    )];
    let token = Secret {
        metadata: ObjectMeta {
            annotations: Some(annotations.into()),
            ..meta(&format!("{TARGET}-token"), Some(CILIUM_NAMESPACE))
        },
        type_: Some("kubernetes.io/service-account-token".to_owned()),
        ..Secret::default()
    };
    let documents = [
        to_yaml(&account)?,
        to_yaml(&role)?,
        to_yaml(&binding)?,
        to_yaml(&own)?,
        to_yaml(&own_binding)?,
        to_yaml(&token)?,
    ];
    Ok(documents.join("---\n"))
}

/// Returns the role that allows a target's account to copy a missing CA.
pub fn target_ca_yaml() -> Result<String, YamlError> {
    optional_role(&format!("{TARGET}-ca"), ca_rules())
}

/// Returns the role that allows a target's account to read KVStoreMesh's metrics.
pub fn target_metrics_yaml() -> Result<String, YamlError> {
    optional_role(&format!("{TARGET}-metrics"), metrics_rules())
}

fn optional_role(name: &str, rules: Vec<PolicyRule>) -> Result<String, YamlError> {
    let own = meta(name, Some(CILIUM_NAMESPACE));
    let role = Role {
        metadata: own.clone(),
        rules: Some(rules),
    };
    let subjects = Some(vec![subject(TARGET, CILIUM_NAMESPACE)]);
    let binding = RoleBinding {
        metadata: own,
        role_ref: role_ref("Role", name),
        subjects,
    };
    Ok([to_yaml(&role)?, to_yaml(&binding)?].join("---\n"))
}

/// Returns the admission policy that limits a target's account to creating the CA
/// Secret.
pub fn ca_policy_yaml() -> Result<String, YamlError> {
    let name = format!("{TARGET}-ca");
    let api_version = "admissionregistration.k8s.io/v1";
    let account = format!("system:serviceaccount:{CILIUM_NAMESPACE}:{TARGET}");
    let secrets = json!({ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["secrets"] });
    let policy = json!({
        "apiVersion": api_version, "kind": "ValidatingAdmissionPolicy", "metadata": { "name": name },
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [secrets] },
            "matchConditions": [{ "name": "by-meshwright", "expression": format!("request.userInfo.username == '{account}'") }],
            "validations": [{
                "expression": format!(
                    "request.namespace == '{CILIUM_NAMESPACE}' && object.metadata.name == '{CA_SECRET}' && object.type == 'Opaque'"
                ),
                "message": format!("{TARGET} may only create the Secret {CA_SECRET} with type Opaque"),
            }],
        },
    });
    let spec = json!({ "policyName": name, "validationActions": ["Deny"] });
    let binding = json!({ "apiVersion": api_version, "kind": "ValidatingAdmissionPolicyBinding", "metadata": { "name": name }, "spec": spec });
    Ok([to_yaml(&policy)?, to_yaml(&binding)?].join("---\n"))
}

/// Returns the connection Secrets without data. The provider may change them, but
/// neither create nor delete them.
pub fn connection_secrets_yaml() -> Result<String, YamlError> {
    let secret = |name: &str| {
        let metadata = meta(name, Some(CILIUM_NAMESPACE));
        to_yaml(&Secret {
            metadata,
            type_: Some("Opaque".to_owned()),
            ..Secret::default()
        })
    };
    let secrets: Vec<String> = WRITTEN_SECRETS
        .into_iter()
        .map(secret)
        .collect::<Result<_, _>>()?;
    Ok(secrets.join("---\n"))
}
