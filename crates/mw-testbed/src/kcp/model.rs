//! APIExports and APIBindings, parsed from their objects.

use serde_json::{Value, json};
use sha2::{Digest, Sha224};

pub(super) const CLUSTER: &str = "kcp.io/cluster";
pub(super) const PATH: &str = "kcp.io/path";
pub(super) const FINALIZER: &str = "apis.kcp.io/apibinding-finalizer";
pub(super) const EXPORT_LABEL: &str = "internal.apis.kcp.io/export";
/// Label of a CRD with the UID of its binding.
pub(super) const BINDING_LABEL: &str = "internal.apis.kcp.io/binding";
pub(super) const CLAIM_LABELS: &str = "claimed.internal.apis.kcp.io/";

/// A resource without a version.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupResource {
    pub(super) group: String,
    pub(super) resource: String,
}

impl GroupResource {
    pub(super) fn new(group: &str, resource: &str) -> Self {
        Self {
            group: group.to_owned(),
            resource: resource.to_owned(),
        }
    }
}

/// Formats as in error messages: `widgets.toy.example.dev`.
impl std::fmt::Display for GroupResource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.group.as_str() {
            "" => f.write_str(&self.resource),
            group => write!(f, "{}.{group}", self.resource),
        }
    }
}

/// Key of an export: the ID of the provider's workspace, and the name of the export.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ExportKey {
    pub(super) provider: String,
    pub(super) name: String,
}

impl ExportKey {
    pub(super) fn hash(&self) -> String {
        base62(&Sha224::digest(format!("{}|{}", self.provider, self.name)))
    }

    /// Returns the label of objects that are claimed for this export.
    pub(super) fn claim_label(&self) -> String {
        format!("{CLAIM_LABELS}{}", self.hash())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) what: GroupResource,
    /// Identity hash of the export; empty for built-in resources.
    pub(super) identity_hash: String,
    pub(super) verbs: Vec<String>,
}

impl Claim {
    fn read(claim: &Value) -> Self {
        Self {
            what: GroupResource::new(string(claim, "/group"), string(claim, "/resource")),
            identity_hash: string(claim, "/identityHash").to_owned(),
            verbs: strings(claim, "/verbs"),
        }
    }

    /// Reports whether both are on the same resource with the same identity.
    pub(super) fn is(&self, other: &Claim) -> bool {
        self.what == other.what && self.identity_hash == other.identity_hash
    }

    /// Reports whether the claim includes a resource. Events of the core group include
    /// those of events.k8s.io.
    pub(super) fn covers(&self, what: &GroupResource) -> bool {
        let alias = what.resource == "events"
            && what.group == "events.k8s.io"
            && self.what == GroupResource::new("", "events");
        self.what == *what || alias
    }

    pub(super) fn allows(&self, verb: &str) -> bool {
        self.verbs
            .iter()
            .any(|allowed| allowed == "*" || allowed == verb)
    }

    /// Returns the value of the label on claimed objects.
    pub(super) fn hash(&self) -> String {
        base62(&Sha224::digest(format!(
            "{}|{}",
            self.what, self.identity_hash
        )))
    }

    /// Returns the verbs that both sides allow.
    pub(super) fn verbs_with(&self, other: &Claim) -> Vec<String> {
        match (self.allows("*"), other.allows("*")) {
            (true, _) => other.verbs.clone(),
            (_, true) => self.verbs.clone(),
            _ => self
                .verbs
                .iter()
                .filter(|verb| other.allows(verb))
                .cloned()
                .collect(),
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Export {
    pub(super) key: ExportKey,
    pub(super) uid: String,
    pub(super) identity_hash: String,
    /// Resources with the names of their schemas.
    pub(super) resources: Vec<(GroupResource, String)>,
    pub(super) claims: Vec<Claim>,
}

impl Export {
    pub(super) fn read(provider: &str, object: &Value) -> Self {
        let resource = |one: &Value| {
            (
                GroupResource::new(string(one, "/group"), string(one, "/name")),
                string(one, "/schema").to_owned(),
            )
        };
        Self {
            key: ExportKey {
                provider: provider.to_owned(),
                name: string(object, "/metadata/name").to_owned(),
            },
            uid: string(object, "/metadata/uid").to_owned(),
            identity_hash: string(object, "/status/identityHash").to_owned(),
            resources: array(object, "/spec/resources")
                .iter()
                .map(resource)
                .collect(),
            claims: array(object, "/spec/permissionClaims")
                .iter()
                .map(Claim::read)
                .collect(),
        }
    }

    pub(super) fn exports(&self, what: &GroupResource) -> bool {
        self.resources.iter().any(|(exported, _)| exported == what)
    }

    pub(super) fn claim(&self, what: &GroupResource) -> Option<&Claim> {
        self.claims.iter().find(|claim| claim.covers(what))
    }
}

/// A claim with the answer of the tenant.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answered {
    pub(super) claim: Claim,
    pub(super) accepted: bool,
    pub(super) selector: Value,
}

impl Answered {
    fn read(claim: &Value) -> Self {
        Self {
            claim: Claim::read(claim),
            // Claims in the status were accepted and have no state.
            accepted: matches!(string(claim, "/state"), "Accepted" | ""),
            selector: claim.get("selector").cloned().unwrap_or(Value::Null),
        }
    }

    pub(super) fn object(&self) -> Value {
        let mut object = json!({
            "group": self.claim.what.group, "resource": self.claim.what.resource, "verbs": self.claim.verbs, "selector": self.selector,
        });
        if let (false, Some(fields)) = (self.claim.identity_hash.is_empty(), object.as_object_mut())
        {
            fields.insert(
                "identityHash".into(),
                self.claim.identity_hash.clone().into(),
            );
        }
        object
    }

    pub(super) fn match_labels(&self) -> Vec<(String, String)> {
        let labels = self.selector.get("matchLabels").and_then(Value::as_object);
        labels
            .into_iter()
            .flatten()
            .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
            .collect()
    }

    pub(super) fn selects(&self, object: &Value) -> bool {
        let label = |key: &str| {
            object
                .pointer("/metadata/labels")
                .and_then(|labels| labels.get(key))
                .and_then(Value::as_str)
        };
        let labels = self
            .match_labels()
            .iter()
            .all(|(key, value)| label(key) == Some(value));
        labels
            && array(&self.selector, "/matchExpressions")
                .iter()
                .all(|expression| holds(expression, label(string(expression, "/key"))))
    }
}

fn holds(expression: &Value, label: Option<&str>) -> bool {
    let listed = || {
        strings(expression, "/values")
            .iter()
            .any(|value| Some(value.as_str()) == label)
    };
    match string(expression, "/operator") {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => label.is_some(),
        _ => label.is_none(),
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Bound {
    pub(super) what: GroupResource,
    pub(super) version: String,
    pub(super) schema: String,
    pub(super) identity_hash: String,
}

#[derive(Debug, Clone)]
pub(super) struct Binding {
    /// ID of the tenant's workspace.
    pub(super) workspace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) created: String,
    pub(super) export_path: String,
    pub(super) export_name: String,
    pub(super) terminating: bool,
    pub(super) phase: String,
    pub(super) bound: Vec<Bound>,
    pub(super) answered: Vec<Answered>,
    pub(super) applied: Vec<Answered>,
    pub(super) object: Value,
}

impl Binding {
    pub(super) fn read(workspace: &str, object: &Value) -> Self {
        let bound = |one: &Value| Bound {
            what: GroupResource::new(string(one, "/group"), string(one, "/resource")),
            version: string(one, "/storageVersions/0").to_owned(),
            schema: string(one, "/schema/name").to_owned(),
            identity_hash: string(one, "/schema/identityHash").to_owned(),
        };
        Self {
            workspace: workspace.to_owned(),
            name: string(object, "/metadata/name").to_owned(),
            uid: string(object, "/metadata/uid").to_owned(),
            created: string(object, "/metadata/creationTimestamp").to_owned(),
            export_path: string(object, "/spec/reference/export/path").to_owned(),
            export_name: string(object, "/spec/reference/export/name").to_owned(),
            terminating: object.pointer("/metadata/deletionTimestamp").is_some(),
            phase: string(object, "/status/phase").to_owned(),
            bound: array(object, "/status/boundResources")
                .iter()
                .map(bound)
                .collect(),
            answered: array(object, "/spec/permissionClaims")
                .iter()
                .map(Answered::read)
                .collect(),
            applied: array(object, "/status/appliedPermissionClaims")
                .iter()
                .map(Answered::read)
                .collect(),
            object: object.clone(),
        }
    }

    pub(super) fn binds(&self, what: &GroupResource) -> bool {
        self.bound.iter().any(|bound| bound.what == *what)
    }

    /// Returns the accepted claim on a resource, if it is in effect.
    pub(super) fn claim(&self, what: &GroupResource) -> Option<&Answered> {
        self.applied
            .iter()
            .find(|answered| answered.claim.covers(what))
    }
}

pub(super) fn string<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

pub(super) fn array<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object
        .pointer(pointer)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

pub(super) fn strings(object: &Value, pointer: &str) -> Vec<String> {
    array(object, pointer)
        .iter()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

/// Returns the revision of an object, its resourceVersion.
pub(super) fn revision(object: &Value) -> u64 {
    string(object, "/metadata/resourceVersion")
        .parse()
        .unwrap_or(0)
}

/// Sets a label or annotation in a map below `/metadata`.
pub(super) fn set_metadata(object: &mut Value, map: &str, key: &str, value: &str) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    let map = metadata.entry(map).or_insert_with(|| json!({}));
    if let Some(map) = map.as_object_mut() {
        map.insert(key.to_owned(), value.into());
    }
}

pub(super) fn base62(bytes: &[u8]) -> String {
    in_digits(
        bytes,
        b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
    )
}

/// Returns the ID of a workspace's logical cluster: 16 characters that do not reveal
/// its path.
pub(super) fn cluster_id(path: &str) -> String {
    in_digits(
        &Sha224::digest(path),
        b"0123456789abcdefghijklmnopqrstuvwxyz",
    )
    .chars()
    .take(16)
    .collect()
}

/// Formats a large number, with the least significant digit first.
fn in_digits(bytes: &[u8], digits: &[u8]) -> String {
    let (mut number, base) = (bytes.to_vec(), digits.len());
    let mut text = String::new();
    while number.iter().any(|byte| *byte != 0) {
        let mut rest = 0_usize;
        for byte in &mut number {
            let value = rest * 256 + usize::from(*byte);
            *byte = u8::try_from(value / base).unwrap_or_default();
            rest = value % base;
        }
        text.extend(digits.get(rest).map(|digit| char::from(*digit)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(verbs: &[&str]) -> Claim {
        Claim::read(&json!({ "group": "", "resource": "events", "verbs": verbs }))
    }

    #[test]
    fn the_verbs_of_a_claim_are_those_that_both_sides_allow() {
        assert_eq!(
            claim(&["*"]).verbs_with(&claim(&["get", "list"])),
            ["get", "list"]
        );
        assert_eq!(
            claim(&["get", "patch"]).verbs_with(&claim(&["*"])),
            ["get", "patch"]
        );
        assert_eq!(
            claim(&["get", "patch"]).verbs_with(&claim(&["patch", "create"])),
            ["patch"]
        );
        assert!(claim(&[]).covers(&GroupResource::new("events.k8s.io", "events")));
        assert!(!claim(&[]).covers(&GroupResource::new("", "secrets")));
    }

    #[test]
    fn selectors_are_read_as_kubernetes_reads_them() {
        let object = json!({ "metadata": { "labels": { "share": "toy" } } });
        let selects = |selector: Value| {
            Answered {
                claim: claim(&[]),
                accepted: true,
                selector,
            }
            .selects(&object)
        };
        assert!(
            selects(json!({ "matchAll": true }))
                && selects(json!({ "matchLabels": { "share": "toy" } }))
        );
        let expression = |operator: &str, values: &[&str]| {
            selects(
                json!({ "matchExpressions": [{ "key": "share", "operator": operator, "values": values }] }),
            )
        };
        assert!(
            expression("In", &["toy"]) && expression("Exists", &[]) && expression("NotIn", &["no"])
        );
        assert!(
            !expression("DoesNotExist", &[])
                && !expression("NotIn", &["toy"])
                && !expression("In", &["no"])
        );
    }
}
