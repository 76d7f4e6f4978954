//! The built-in kinds: their fields, and the rules that only they have.

use std::sync::{Arc, OnceLock};

use base64ct::{Base64, Encoding};
use serde_json::{Value, json};

use crate::json::{at, child_mut, map_mut, meta, meta_mut, meta_text};
use crate::kind::{Builtin, Kind};
use crate::refusal::{FieldError, Refusal};
use crate::schema::Schema;
use crate::schema::build::{any, base64, int32, kept, list, map, micro_time, object, quantity, text, time, truth};

/// Of all the data of a Secret.
const LARGEST_SECRET: usize = 1 << 20;

pub(crate) fn kinds() -> &'static [Arc<Kind>] {
    static KINDS: OnceLock<Vec<Arc<Kind>>> = OnceLock::new();
    KINDS.get_or_init(|| {
        let core = ("", "v1");
        [
            kind(core, ("nodes", "Node", &["no"]), false, Builtin::Node, node()),
            kind(core, ("namespaces", "Namespace", &["ns"]), false, Builtin::Namespace, namespace()),
            kind(core, ("secrets", "Secret", &[]), true, Builtin::Secret, secret()),
            kind(("events.k8s.io", "v1"), ("events", "Event", &["ev"]), true, Builtin::Event, event()),
            kind(("coordination.k8s.io", "v1"), ("leases", "Lease", &[]), true, Builtin::Lease, lease()),
            kind(
                ("apiextensions.k8s.io", "v1"),
                ("customresourcedefinitions", "CustomResourceDefinition", &["crd", "crds"]),
                false,
                Builtin::Definition,
                root([("spec", any()), ("status", any())]),
            ),
            kind(
                ("authorization.k8s.io", "v1"),
                ("selfsubjectaccessreviews", "SelfSubjectAccessReview", &[]),
                false,
                Builtin::AccessReview,
                root([("spec", any()), ("status", any())]),
            ),
        ]
        .map(Arc::new)
        .to_vec()
    })
}

fn kind(group: (&str, &str), names: (&str, &str, &[&str]), namespaced: bool, builtin: Builtin, schema: Schema) -> Kind {
    let (plural, kind, short_names) = names;
    Kind {
        group: group.0.to_owned(),
        version: group.1.to_owned(),
        plural: plural.to_owned(),
        singular: kind.to_lowercase(),
        kind: kind.to_owned(),
        list_kind: format!("{kind}List"),
        short_names: short_names.iter().map(|name| (*name).to_owned()).collect(),
        categories: Vec::new(),
        namespaced,
        status_subresource: matches!(builtin, Builtin::Node | Builtin::Namespace | Builtin::Definition),
        schema,
        builtin: Some(builtin),
    }
}

fn root<const N: usize>(fields: [(&str, Schema); N]) -> Schema {
    let mut schema = object(fields);
    for own in ["apiVersion", "kind"] {
        schema.properties.insert(own.to_owned(), text());
    }
    schema.properties.insert("metadata".to_owned(), kept(any()));
    schema
}

fn node() -> Schema {
    let condition = object([
        ("type", kept(text())),
        ("status", kept(text())),
        ("reason", text()),
        ("message", text()),
        ("lastHeartbeatTime", time()),
        ("lastTransitionTime", time()),
    ]);
    let taint = object([("key", kept(text())), ("value", text()), ("effect", kept(text())), ("timeAdded", time())]);
    let address = object([("type", kept(text())), ("address", kept(text()))]);
    let spec = object([
        ("podCIDR", text()),
        ("podCIDRs", list(text())),
        ("providerID", text()),
        ("unschedulable", truth()),
        ("taints", list(taint)),
        ("externalID", text()),
        ("configSource", any()),
    ]);
    let status = object([
        ("addresses", list(address)),
        ("conditions", list(condition)),
        ("capacity", map(quantity())),
        ("allocatable", map(quantity())),
        ("phase", text()),
        ("nodeInfo", any()),
        ("daemonEndpoints", any()),
        ("images", list(any())),
        ("volumesInUse", list(text())),
        ("volumesAttached", list(any())),
        ("config", any()),
        ("runtimeHandlers", list(any())),
        ("features", any()),
        ("declaredFeatures", list(text())),
    ]);
    root([("spec", kept(spec)), ("status", kept(status))])
}

fn namespace() -> Schema {
    let status = object([("phase", text()), ("conditions", list(any()))]);
    root([("spec", kept(object([("finalizers", list(text()))]))), ("status", kept(status))])
}

fn secret() -> Schema {
    root([("data", map(base64())), ("stringData", map(text())), ("type", text()), ("immutable", kept(truth()))])
}

fn lease() -> Schema {
    let spec = object([
        ("holderIdentity", kept(text())),
        ("leaseDurationSeconds", kept(int32())),
        ("acquireTime", micro_time()),
        ("renewTime", micro_time()),
        ("leaseTransitions", kept(int32())),
        ("strategy", kept(text())),
        ("preferredHolder", kept(text())),
    ]);
    root([("spec", kept(spec))])
}

fn event() -> Schema {
    let reference = || {
        object([
            ("apiVersion", text()),
            ("kind", text()),
            ("namespace", text()),
            ("name", text()),
            ("uid", text()),
            ("resourceVersion", text()),
            ("fieldPath", text()),
        ])
    };
    root([
        ("eventTime", micro_time()),
        ("reportingController", text()),
        ("reportingInstance", text()),
        ("action", text()),
        ("reason", text()),
        ("note", text()),
        ("type", text()),
        ("regarding", kept(reference())),
        ("related", reference()),
        ("series", object([("count", kept(int32())), ("lastObservedTime", micro_time())])),
        ("deprecatedSource", object([("component", text()), ("host", text())])),
        ("deprecatedFirstTimestamp", time()),
        ("deprecatedLastTimestamp", time()),
        ("deprecatedCount", int32()),
    ])
}

/// What a server fills in before it validates.
pub(crate) fn prepare(builtin: Builtin, object: &mut Value, old: Option<&Value>) -> Result<(), Refusal> {
    match builtin {
        Builtin::Namespace => prepare_namespace(object, old),
        Builtin::Secret => prepare_secret(object)?,
        Builtin::Node => prepare_node(object, old.is_none()),
        Builtin::Lease => {
            child_mut(map_mut(object), "spec");
        }
        Builtin::Event | Builtin::Definition | Builtin::AccessReview => {}
    }
    Ok(())
}

/// Two fields say the same, and nobody runs on a node before it is ready.
fn prepare_node(object: &mut Value, is_new: bool) {
    let root = map_mut(object);
    child_mut(root, "status");
    let spec = child_mut(root, "spec");
    let first = spec.get("podCIDRs").and_then(|all| all.get(0)).cloned();
    match (spec.get("podCIDR").cloned(), first) {
        (Some(one), first) if first.as_ref() != Some(&one) => {
            spec.insert("podCIDRs".to_owned(), json!([one]));
        }
        (None, Some(first)) => {
            spec.insert("podCIDR".to_owned(), first);
        }
        _ => {}
    }
    let not_ready = json!({ "key": "node.kubernetes.io/not-ready", "effect": "NoSchedule" });
    if let Value::Array(taints) = spec.entry("taints").or_insert_with(|| json!([])) {
        if is_new && !taints.contains(&not_ready) {
            taints.push(not_ready);
        }
        if taints.is_empty() {
            spec.remove("taints");
        }
    }
}

fn prepare_namespace(object: &mut Value, old: Option<&Value>) {
    let name = meta_text(object, "name").to_owned();
    // Defaulted, so that selectors can choose by it.
    child_mut(meta_mut(object), "labels").insert("kubernetes.io/metadata.name".to_owned(), name.into());
    let root = map_mut(object);
    let kept = |part: &str| old.map(|old| at(old, &[part]).clone());
    root.insert("spec".to_owned(), kept("spec").unwrap_or_else(|| json!({ "finalizers": ["kubernetes"] })));
    if old.is_none() {
        root.insert("status".to_owned(), json!({ "phase": "Active" }));
    }
}

fn prepare_secret(object: &mut Value) -> Result<(), Refusal> {
    let root = map_mut(object);
    if let Some(Value::Object(texts)) = root.remove("stringData") {
        let data = child_mut(root, "data");
        for (key, text) in texts {
            data.insert(key, Base64::encode_string(text.as_str().unwrap_or_default().as_bytes()).into());
        }
    }
    let kind = root.entry("type").or_insert_with(|| "Opaque".into());
    match kind.as_str() {
        Some(name) if name.starts_with("kubernetes.io/") => Err(Refusal::unsupported(format!("Secrets of the type {name:?}"))),
        _ => Ok(()),
    }
}

pub(crate) fn errors(builtin: Builtin, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    match builtin {
        Builtin::Secret => secret_errors(object, old),
        Builtin::Lease => lease_errors(object),
        Builtin::Event => event_errors(object),
        Builtin::Node => node_errors(object, old),
        Builtin::Namespace | Builtin::Definition | Builtin::AccessReview => Vec::new(),
    }
}

fn secret_errors(object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut size = 0;
    for (key, value) in at(object, &["data"]).as_object().into_iter().flatten() {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if key.is_empty() || key.len() > 253 || !key.bytes().all(fits) || key == "." || key.starts_with("..") {
            let why = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  \
                       or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
            errors.push(FieldError::invalid(&format!("data[{key}]"), &json!(key), why));
        }
        let text = value.as_str().unwrap_or_default();
        size += text.len() / 4 * 3 - text.bytes().rev().take_while(|byte| *byte == b'=').count();
    }
    if size > LARGEST_SECRET {
        errors.push(FieldError::too_long("data", LARGEST_SECRET));
    }
    let Some(old) = old else { return errors };
    if at(object, &["type"]) != at(old, &["type"]) {
        errors.push(FieldError::invalid("type", at(object, &["type"]), "field is immutable"));
    }
    if *at(old, &["immutable"]) == true {
        if *at(object, &["immutable"]) != true {
            errors.push(FieldError::forbidden("immutable", "field is immutable when `immutable` is set"));
        }
        if at(object, &["data"]) != at(old, &["data"]) {
            errors.push(FieldError::forbidden("data", "field is immutable when `immutable` is set"));
        }
    }
    errors
}

fn lease_errors(object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = at(object, &["spec"]);
    if at(spec, &["leaseDurationSeconds"]).as_i64().is_some_and(|seconds| seconds <= 0) {
        errors.push(FieldError::invalid("spec.leaseDurationSeconds", at(spec, &["leaseDurationSeconds"]), "must be greater than 0"));
    }
    if at(spec, &["leaseTransitions"]).as_i64().is_some_and(|count| count < 0) {
        errors.push(FieldError::invalid("spec.leaseTransitions", at(spec, &["leaseTransitions"]), "must be greater than or equal to 0"));
    }
    errors
}

fn event_errors(object: &Value) -> Vec<FieldError> {
    let text = |field: &str| at(object, &[field]).as_str().unwrap_or_default();
    let mut errors = Vec::new();
    let about = at(object, &["regarding", "namespace"]).as_str().unwrap_or_default();
    let lies_in = meta_text(object, "namespace");
    if about.is_empty() && !matches!(lies_in, "default" | "kube-system") {
        errors.push(FieldError::invalid("involvedObject.namespace", &json!(about), "does not match event.namespace"));
    }
    if text("eventTime").is_empty() {
        errors.push(FieldError::required("eventTime", ""));
    }
    for field in ["reportingController", "reportingInstance", "action", "reason"] {
        if text(field).is_empty() {
            errors.push(FieldError::required(field, ""));
        }
    }
    let controller = text("reportingController");
    let wrong = crate::meta::qualified_errors(controller);
    errors.extend(wrong.map(|why| FieldError::invalid("reportingController", &json!(controller), &why)));
    // The note has the name that it had before.
    for (field, name, most) in
        [("reportingInstance", "reportingInstance", 128), ("action", "action", 128), ("reason", "reason", 128), ("note", "message", 1024)]
    {
        if text(field).len() > most {
            let why = format!("can have at most {most} characters");
            errors.push(FieldError::invalid(name, &json!(""), &why));
        }
    }
    if !matches!(text("type"), "Normal" | "Warning") {
        errors.push(FieldError::invalid("type", &json!(""), "has invalid value: "));
    }
    errors
}

fn node_errors(object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = cidr_errors(at(object, &["spec", "podCIDRs"]));
    let Some(old) = old else { return errors };
    for field in ["podCIDRs", "providerID"] {
        let (new, old) = (at(object, &["spec", field]), at(old, &["spec", field]));
        if !old.is_null() && new != old {
            let why = "node updates may only change labels, taints, or capacity (or configSource, if the DynamicKubeletConfig feature gate is enabled)";
            errors.push(FieldError::forbidden(&format!("spec.{field}"), why));
        }
    }
    errors
}

/// At most one network for each family.
fn cidr_errors(networks: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut families = Vec::new();
    for (index, network) in networks.as_array().into_iter().flatten().enumerate() {
        match network.as_str().and_then(family) {
            Some(is_v4) => families.push(is_v4),
            None => {
                let why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
                errors.push(FieldError::invalid(&format!("spec.podCIDRs[{index}]"), network, why));
            }
        }
    }
    if families.len() > 2 || matches!(families.as_slice(), [one, two] if one == two) {
        errors.push(FieldError::invalid("spec.podCIDRs", networks, "may specify no more than one CIDR for each IP family"));
    }
    errors
}

/// Whether a network is of IPv4; nothing when it is none.
fn family(network: &str) -> Option<bool> {
    let (address, length) = network.split_once('/')?;
    let (address, length): (std::net::IpAddr, u8) = (address.parse().ok()?, length.parse().ok()?);
    (length <= if address.is_ipv4() { 32 } else { 128 }).then_some(address.is_ipv4())
}

/// Whether new objects may be made in a Namespace.
pub(crate) fn is_terminating(namespace: &Value) -> bool {
    meta(namespace, "deletionTimestamp").is_some()
}
