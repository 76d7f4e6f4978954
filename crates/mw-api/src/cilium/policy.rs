//! Cilium's network policies. Policies with our labels are managed by us alone; the
//! CRDs are installed by Cilium.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{ClusterResourceScope, NamespaceResourceScope};
use mw_core::cilium::facts::{PolicyFeatures, PolicyKey, PolicySeen};
use mw_core::cilium::plan::{PolicyUpdate, WantedPolicy};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::lean::{self, null_is_default, served};

/// API version of Cilium's policies.
pub const API_VERSION: &str = "cilium.io/v2";
/// Name of the CRD of namespaced policies.
pub const NAMESPACED_CRD: &str = "ciliumnetworkpolicies.cilium.io";
/// Name of the CRD of cluster-wide policies.
pub const CLUSTERWIDE_CRD: &str = "ciliumclusterwidenetworkpolicies.cilium.io";

/// A namespaced policy.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct CiliumNetworkPolicy {
    /// Object metadata without managedFields.
    #[serde(default, deserialize_with = "lean::meta")]
    pub metadata: ObjectMeta,
    /// Policy rule, unparsed.
    #[serde(default, deserialize_with = "null_is_default")]
    pub spec: Value,
}

/// A cluster-wide policy.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct CiliumClusterwideNetworkPolicy {
    /// Object metadata without managedFields.
    #[serde(default, deserialize_with = "lean::meta")]
    pub metadata: ObjectMeta,
    /// Policy rule, unparsed.
    #[serde(default, deserialize_with = "null_is_default")]
    pub spec: Value,
}

served!(
    CiliumNetworkPolicy,
    NamespaceResourceScope,
    "cilium.io",
    "v2",
    "CiliumNetworkPolicy",
    "ciliumnetworkpolicies"
);
served!(
    CiliumClusterwideNetworkPolicy,
    ClusterResourceScope,
    "cilium.io",
    "v2",
    "CiliumClusterwideNetworkPolicy",
    "ciliumclusterwidenetworkpolicies"
);

/// The CRD of a policy, read to learn which fields the installed Cilium supports.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct Definition {
    /// Object metadata without managedFields.
    #[serde(default, deserialize_with = "lean::meta")]
    pub metadata: ObjectMeta,
    /// Spec with the schemas, unparsed.
    #[serde(default, deserialize_with = "null_is_default")]
    pub spec: Value,
}

served!(
    Definition,
    ClusterResourceScope,
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions"
);

/// Converts a policy of either kind.
pub fn policy_seen(metadata: &ObjectMeta, spec: &Value) -> (PolicyKey, PolicySeen) {
    let key = PolicyKey {
        namespace: metadata.namespace.clone(),
        name: metadata.name.clone().unwrap_or_default(),
    };
    let seen = PolicySeen {
        uid: metadata.uid.clone().unwrap_or_default(),
        resource_version: metadata.resource_version.clone().unwrap_or_default(),
        deleting: metadata.deletion_timestamp.is_some(),
        labels: metadata.labels.clone().unwrap_or_default(),
        spec: spec.clone(),
    };
    (key, seen)
}

/// Returns the policy object to create.
pub fn policy_object(wanted: &WantedPolicy) -> Value {
    let WantedPolicy { key, labels, spec } = wanted;
    let (kind, metadata) = match &key.namespace {
        Some(namespace) => (
            "CiliumNetworkPolicy",
            json!({ "name": key.name, "namespace": namespace, "labels": labels }),
        ),
        None => (
            "CiliumClusterwideNetworkPolicy",
            json!({ "name": key.name, "labels": labels }),
        ),
    };
    json!({ "apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec })
}

/// Returns the JSON merge patch that turns the observed policy into the wanted one. It
/// contains uid and resourceVersion, so the API server rejects it if the policy was
/// changed or replaced in the meantime.
pub fn policy_patch(update: &PolicyUpdate) -> Value {
    let PolicyUpdate { on, before, after } = update;
    json!({
        "metadata": { "uid": on.uid, "resourceVersion": on.resource_version, "labels": after.labels },
        "spec": difference(before, &after.spec),
    })
}

/// Returns the JSON merge patch (RFC 7386) between two values: null for removed keys,
/// nothing for equal ones. Lists are replaced as a whole.
fn difference(before: &Value, after: &Value) -> Value {
    let (Value::Object(before), Value::Object(after)) = (before, after) else {
        return after.clone();
    };
    let gone = before
        .keys()
        .filter(|key| !after.contains_key(*key))
        .map(|key| (key.clone(), Value::Null));
    let changed = after
        .iter()
        .filter(|(key, value)| before.get(*key) != Some(value));
    let changed = changed.map(|(key, value)| {
        (
            key.clone(),
            before
                .get(key)
                .map_or_else(|| value.clone(), |old| difference(old, value)),
        )
    });
    Value::Object(gone.chain(changed).collect::<Map<_, _>>())
}

/// Returns the optional fields that the CRD of a policy supports.
pub fn policy_features(crd: &Value) -> PolicyFeatures {
    let versions = crd
        .pointer("/spec/versions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let schemas = versions
        .filter(|version| version.get("name").is_some_and(|name| name == "v2"))
        .filter_map(|version| version.pointer(SPEC));
    schemas.fold(PolicyFeatures::default(), |_, spec| PolicyFeatures {
        default_deny: spec.get("enableDefaultDeny").is_some(),
        end_port: spec.pointer(END_PORT).is_some(),
    })
}

const SPEC: &str = "/schema/openAPIV3Schema/properties/spec/properties";
const END_PORT: &str =
    "/ingress/items/properties/toPorts/items/properties/ports/items/properties/endPort";

#[cfg(test)]
mod tests {
    use super::*;
    use mw_core::precondition::Precondition;
    use std::collections::BTreeMap;

    fn wanted(namespace: Option<&str>) -> WantedPolicy {
        WantedPolicy {
            key: PolicyKey {
                namespace: namespace.map(str::to_owned),
                name: "p".to_owned(),
            },
            labels: BTreeMap::from([("l".to_owned(), "v".to_owned())]),
            spec: json!({ "ingress": [1], "endpointSelector": { "matchLabels": { "a": "b" } } }),
        }
    }

    #[test]
    fn a_policy_is_written_and_read_back_as_it_was_wanted() {
        for namespace in [Some("shop"), None] {
            let object = policy_object(&wanted(namespace));
            let read: CiliumNetworkPolicy = serde_json::from_value(object.clone()).unwrap();
            let (key, seen) = policy_seen(&read.metadata, &read.spec);
            assert_eq!(
                (key, seen.labels, seen.spec),
                (
                    wanted(namespace).key,
                    wanted(namespace).labels,
                    wanted(namespace).spec
                )
            );
            assert_eq!(object["kind"] == "CiliumNetworkPolicy", namespace.is_some());
        }
    }

    #[test]
    fn a_patch_removes_what_is_not_wanted_and_names_its_preconditions() {
        let before = json!({ "ingressDeny": [2], "ingress": [1], "endpointSelector": { "matchLabels": { "a": "c", "x": "y" } } });
        let on = Precondition {
            uid: "u".into(),
            resource_version: "7".into(),
        };
        let patch = policy_patch(&PolicyUpdate {
            on,
            before,
            after: wanted(None),
        });
        let spec = json!({ "ingressDeny": null, "endpointSelector": { "matchLabels": { "a": "b", "x": null } } });
        assert_eq!(
            patch,
            json!({ "metadata": { "uid": "u", "resourceVersion": "7", "labels": { "l": "v" } }, "spec": spec })
        );
    }

    #[test]
    fn the_features_of_a_crd_are_read_from_its_schema() {
        let ports = json!({ "items": { "properties": { "ports": { "items": { "properties": { "endPort": {} } } } } } });
        let spec = json!({ "properties": { "enableDefaultDeny": {}, "ingress": { "items": { "properties": { "toPorts": ports } } } } });
        let crd = json!({ "spec": { "versions": [{ "name": "v2", "schema": { "openAPIV3Schema": { "properties": { "spec": spec } } } }] } });
        assert_eq!(
            policy_features(&crd),
            PolicyFeatures {
                default_deny: true,
                end_port: true
            }
        );
        assert_eq!(policy_features(&json!({})), PolicyFeatures::default());
    }
}
