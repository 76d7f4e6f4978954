//! Built-in kinds: their fields and their specific rules.

use std::sync::{Arc, OnceLock};

use base64ct::{Base64, Encoding};
use serde_json::{Value, json};

use crate::json::{at, child_mut, map_mut, meta, meta_mut, meta_text};
use crate::kind::{Builtin, Kind};
use crate::refusal::{FieldError, Refusal};
use crate::schema::Schema;
use crate::schema::build::{
    any, atomic, base64, int, int32, kept, keyed, list, map, micro_time, object, opaque, quantity,
    set, text, time, truth,
};

/// Type of Secrets with a certificate and its key.
const TLS: &str = "kubernetes.io/tls";

/// Limit for all data of a Secret or ConfigMap together.
const MOST_DATA: usize = 1 << 20;

pub(crate) fn kinds() -> &'static [Arc<Kind>] {
    static KINDS: OnceLock<Vec<Arc<Kind>>> = OnceLock::new();
    KINDS.get_or_init(|| {
        let core = ("", "v1");
        [
            kind(
                core,
                ("nodes", "Node", &["no"]),
                false,
                Builtin::Node,
                node(),
            ),
            kind(
                core,
                ("namespaces", "Namespace", &["ns"]),
                false,
                Builtin::Namespace,
                namespace(),
            ),
            kind(
                core,
                ("secrets", "Secret", &[]),
                true,
                Builtin::Secret,
                secret(),
            ),
            kind(
                core,
                ("configmaps", "ConfigMap", &["cm"]),
                true,
                Builtin::ConfigMap,
                config_map(),
            ),
            kind(
                core,
                ("services", "Service", &["svc"]),
                true,
                Builtin::Service,
                service(),
            ),
            kind(
                core,
                ("pods", "Pod", &["po"]),
                true,
                Builtin::Pod,
                root([("spec", kept(opaque())), ("status", kept(opaque()))]),
            ),
            kind(
                ("discovery.k8s.io", "v1"),
                ("endpointslices", "EndpointSlice", &[]),
                true,
                Builtin::EndpointSlice,
                endpoint_slice(),
            ),
            kind(
                ("apps", "v1"),
                ("daemonsets", "DaemonSet", &["ds"]),
                true,
                Builtin::DaemonSet,
                daemon_set(),
            ),
            kind(
                ("apps", "v1"),
                ("deployments", "Deployment", &["deploy"]),
                true,
                Builtin::Deployment,
                deployment(),
            ),
            kind(
                ("events.k8s.io", "v1"),
                ("events", "Event", &["ev"]),
                true,
                Builtin::Event,
                event(),
            ),
            kind(
                ("coordination.k8s.io", "v1"),
                ("leases", "Lease", &[]),
                true,
                Builtin::Lease,
                lease(),
            ),
            kind(
                ("apiextensions.k8s.io", "v1"),
                (
                    "customresourcedefinitions",
                    "CustomResourceDefinition",
                    &["crd", "crds"],
                ),
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

fn kind(
    group: (&str, &str),
    names: (&str, &str, &[&str]),
    namespaced: bool,
    builtin: Builtin,
    schema: Schema,
) -> Kind {
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
        status_subresource: has_status(builtin),
        fields: schema.with_metadata(),
        schema,
        builtin: Some(builtin),
    }
}

fn has_status(builtin: Builtin) -> bool {
    use Builtin::{DaemonSet, Definition, Deployment, Namespace, Node, Pod, Service};
    matches!(
        builtin,
        Node | Namespace | Service | Pod | DaemonSet | Deployment | Definition
    )
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
    let taint = object([
        ("key", kept(text())),
        ("value", text()),
        ("effect", kept(text())),
        ("timeAdded", time()),
    ]);
    let address = object([("type", kept(text())), ("address", kept(text()))]);
    let spec = object([
        ("podCIDR", text()),
        ("podCIDRs", set(text())),
        ("providerID", text()),
        ("unschedulable", truth()),
        ("taints", list(taint)),
        ("externalID", text()),
        ("configSource", opaque()),
    ]);
    let status = object([
        ("addresses", keyed(["type"], address)),
        ("conditions", keyed(["type"], condition)),
        ("capacity", map(quantity())),
        ("allocatable", map(quantity())),
        ("phase", text()),
        ("nodeInfo", opaque()),
        ("daemonEndpoints", opaque()),
        ("images", list(any())),
        ("volumesInUse", list(text())),
        ("volumesAttached", list(any())),
        ("config", opaque()),
        ("runtimeHandlers", list(any())),
        ("features", opaque()),
        ("declaredFeatures", list(text())),
    ]);
    root([("spec", kept(spec)), ("status", kept(status))])
}

fn namespace() -> Schema {
    let status = object([("phase", text()), ("conditions", keyed(["type"], any()))]);
    root([
        ("spec", kept(object([("finalizers", list(text()))]))),
        ("status", kept(status)),
    ])
}

fn secret() -> Schema {
    root([
        ("data", map(base64())),
        ("stringData", map(text())),
        ("type", text()),
        ("immutable", kept(truth())),
    ])
}

fn config_map() -> Schema {
    root([
        ("data", map(text())),
        ("binaryData", map(base64())),
        ("immutable", kept(truth())),
    ])
}

fn condition() -> Schema {
    object([
        ("type", kept(text())),
        ("status", kept(text())),
        ("observedGeneration", int()),
        ("lastUpdateTime", time()),
        ("lastTransitionTime", time()),
        ("reason", kept(text())),
        ("message", kept(text())),
    ])
}

fn service() -> Schema {
    let mut protocol = text();
    protocol.default = Some("TCP".into());
    let port = object([
        ("name", text()),
        ("protocol", protocol),
        ("appProtocol", kept(text())),
        ("port", kept(int32())),
        ("targetPort", kept(quantity())),
        ("nodePort", int32()),
    ]);
    let spec = object([
        ("ports", keyed(["port", "protocol"], port)),
        ("selector", atomic(map(text()))),
        ("clusterIP", text()),
        ("clusterIPs", list(text())),
        ("type", text()),
        ("externalIPs", list(text())),
        ("sessionAffinity", text()),
        ("loadBalancerIP", text()),
        ("loadBalancerSourceRanges", list(text())),
        ("externalName", text()),
        ("externalTrafficPolicy", text()),
        ("healthCheckNodePort", int32()),
        ("publishNotReadyAddresses", truth()),
        ("sessionAffinityConfig", opaque()),
        ("ipFamilies", list(text())),
        ("ipFamilyPolicy", kept(text())),
        ("allocateLoadBalancerNodePorts", kept(truth())),
        ("loadBalancerClass", kept(text())),
        ("internalTrafficPolicy", kept(text())),
        ("trafficDistribution", kept(text())),
    ]);
    let balancer = object([("ingress", list(any()))]);
    root([
        ("spec", kept(spec)),
        (
            "status",
            kept(object([
                ("loadBalancer", kept(balancer)),
                ("conditions", keyed(["type"], condition())),
            ])),
        ),
    ])
}

fn endpoint_slice() -> Schema {
    root([
        ("addressType", kept(text())),
        ("endpoints", kept(list(any()))),
        ("ports", kept(list(any()))),
    ])
}

fn label_selector() -> Schema {
    atomic(object([
        ("matchLabels", map(text())),
        ("matchExpressions", list(any())),
    ]))
}

fn daemon_set() -> Schema {
    let spec = object([
        ("selector", label_selector()),
        ("template", kept(opaque())),
        ("updateStrategy", opaque()),
        ("minReadySeconds", int32()),
        ("revisionHistoryLimit", kept(int32())),
    ]);
    let status = object([
        ("currentNumberScheduled", kept(int32())),
        ("numberMisscheduled", kept(int32())),
        ("desiredNumberScheduled", kept(int32())),
        ("numberReady", kept(int32())),
        ("observedGeneration", int()),
        ("updatedNumberScheduled", int32()),
        ("numberAvailable", int32()),
        ("numberUnavailable", int32()),
        ("collisionCount", kept(int32())),
        ("conditions", keyed(["type"], condition())),
    ]);
    root([("spec", kept(spec)), ("status", kept(status))])
}

fn deployment() -> Schema {
    let spec = object([
        ("replicas", kept(int32())),
        ("selector", label_selector()),
        ("template", kept(opaque())),
        ("strategy", opaque()),
        ("minReadySeconds", int32()),
        ("revisionHistoryLimit", kept(int32())),
        ("paused", truth()),
        ("progressDeadlineSeconds", kept(int32())),
    ]);
    let status = object([
        ("observedGeneration", int()),
        ("replicas", int32()),
        ("updatedReplicas", int32()),
        ("readyReplicas", int32()),
        ("availableReplicas", int32()),
        ("unavailableReplicas", int32()),
        ("terminatingReplicas", kept(int32())),
        ("collisionCount", kept(int32())),
        ("conditions", keyed(["type"], condition())),
    ]);
    root([("spec", kept(spec)), ("status", kept(status))])
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
        atomic(object([
            ("apiVersion", text()),
            ("kind", text()),
            ("namespace", text()),
            ("name", text()),
            ("uid", text()),
            ("resourceVersion", text()),
            ("fieldPath", text()),
        ]))
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
        (
            "series",
            object([("count", kept(int32())), ("lastObservedTime", micro_time())]),
        ),
        (
            "deprecatedSource",
            object([("component", text()), ("host", text())]),
        ),
        ("deprecatedFirstTimestamp", time()),
        ("deprecatedLastTimestamp", time()),
        ("deprecatedCount", int32()),
    ])
}

/// Fills in defaults when an object is decoded, so that they are managed by its writer.
pub(crate) fn fill(kind: &Kind, object: &mut Value) -> Result<(), Refusal> {
    match kind.builtin {
        None => return Ok(()),
        Some(Builtin::Namespace) => {
            let name = meta_text(object, "name").to_owned();
            // A default, so that selectors can match it.
            child_mut(meta_mut(object), "labels")
                .insert("kubernetes.io/metadata.name".to_owned(), name.into());
        }
        Some(Builtin::Secret) => fill_secret(object)?,
        Some(Builtin::Node) => fill_node(object),
        Some(_) => {}
    }
    if let Value::Object(parts) = kind.empty() {
        parts
            .into_iter()
            .for_each(|(name, part)| _ = map_mut(object).entry(name).or_insert(part));
    }
    Ok(())
}

/// Sets fields that only the server sets, before validation.
pub(crate) fn prepare(kind: &Kind, object: &mut Value, old: Option<&Value>) {
    match kind.builtin {
        Some(Builtin::Namespace) => prepare_namespace(object, old),
        Some(Builtin::Node) => prepare_node(object, old.is_none()),
        Some(Builtin::Pod) if old.is_none() => {
            _ = map_mut(object).insert("status".to_owned(), json!({ "phase": "Pending" }))
        }
        Some(Builtin::Service | Builtin::DaemonSet | Builtin::Deployment) if old.is_none() => {
            map_mut(object).insert("status".to_owned(), at(&kind.empty(), &["status"]).clone());
        }
        _ => {}
    }
}

/// Makes `podCIDR` and `podCIDRs` agree.
fn fill_node(object: &mut Value) {
    let spec = child_mut(map_mut(object), "spec");
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
}

/// Adds the not-ready taint to a new node. Nothing removes it, because no controller
/// runs.
fn prepare_node(object: &mut Value, is_new: bool) {
    let spec = child_mut(map_mut(object), "spec");
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
    let root = map_mut(object);
    let kept = |part: &str| old.map(|old| at(old, &[part]).clone());
    root.insert(
        "spec".to_owned(),
        kept("spec").unwrap_or_else(|| json!({ "finalizers": ["kubernetes"] })),
    );
    if old.is_none() {
        root.insert("status".to_owned(), json!({ "phase": "Active" }));
    }
}

fn fill_secret(object: &mut Value) -> Result<(), Refusal> {
    let root = map_mut(object);
    if let Some(Value::Object(texts)) = root.remove("stringData") {
        let data = child_mut(root, "data");
        for (key, text) in texts {
            data.insert(
                key,
                Base64::encode_string(text.as_str().unwrap_or_default().as_bytes()).into(),
            );
        }
    }
    let kind = root.entry("type").or_insert_with(|| "Opaque".into());
    match kind.as_str() {
        Some(name) if name.starts_with("kubernetes.io/") && name != TLS => Err(
            Refusal::unsupported(format!("Secrets of the type {name:?}")),
        ),
        _ => Ok(()),
    }
}

pub(crate) fn errors(builtin: Builtin, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    match builtin {
        Builtin::Secret => secret_errors(object, old),
        Builtin::ConfigMap => config_map_errors(object, old),
        Builtin::Lease => lease_errors(object),
        Builtin::Event => event_errors(object),
        Builtin::Node => node_errors(object, old),
        _ => Vec::new(),
    }
}

fn secret_errors(object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = key_errors(object, "data");
    if bytes_in(object, "data") > MOST_DATA {
        errors.push(FieldError::too_long("data", MOST_DATA));
    }
    if *at(object, &["type"]) == TLS {
        let missing = ["tls.crt", "tls.key"]
            .into_iter()
            .filter(|key| at(object, &["data", key]).is_null());
        errors.extend(missing.map(|key| FieldError::required(&format!("data[{key}]"), "")));
    }
    let Some(old) = old else { return errors };
    if at(object, &["type"]) != at(old, &["type"]) {
        errors.push(FieldError::invalid(
            "type",
            at(object, &["type"]),
            "field is immutable",
        ));
    }
    errors.extend(immutable_errors(object, old, &["data"]));
    errors
}

fn config_map_errors(object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = [key_errors(object, "data"), key_errors(object, "binaryData")].concat();
    for key in at(object, &["data"])
        .as_object()
        .into_iter()
        .flat_map(serde_json::Map::keys)
    {
        if !at(object, &["binaryData", key]).is_null() {
            errors.push(FieldError::invalid(
                &format!("data[{key}]"),
                &json!(key),
                "duplicate of key present in binaryData",
            ));
        }
    }
    let texts = at(object, &["data"]).as_object().into_iter().flatten();
    let size: usize = texts
        .map(|(_, text)| text.as_str().unwrap_or_default().len())
        .sum();
    if size + bytes_in(object, "binaryData") > MOST_DATA {
        errors.push(FieldError::too_long("[]", MOST_DATA));
    }
    errors.extend(
        old.into_iter()
            .flat_map(|old| immutable_errors(object, old, &["data", "binaryData"])),
    );
    errors
}

fn key_errors(object: &Value, part: &str) -> Vec<FieldError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_wrong = |key: &&String| {
        key.is_empty()
            || key.len() > 253
            || !key.bytes().all(fits)
            || *key == "."
            || key.starts_with("..")
    };
    let why = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  \
               or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
    let keys = at(object, &[part])
        .as_object()
        .into_iter()
        .flat_map(serde_json::Map::keys);
    keys.filter(is_wrong)
        .map(|key| FieldError::invalid(&format!("{part}[{key}]"), &json!(key), why))
        .collect()
}

/// Returns the decoded size of base64 values.
fn bytes_in(object: &Value, part: &str) -> usize {
    let values = at(object, &[part])
        .as_object()
        .into_iter()
        .flatten()
        .map(|(_, value)| value.as_str().unwrap_or_default());
    values
        .map(|text| {
            text.len() / 4 * 3 - text.bytes().rev().take_while(|byte| *byte == b'=').count()
        })
        .sum()
}

fn immutable_errors(object: &Value, old: &Value, parts: &[&str]) -> Vec<FieldError> {
    if *at(old, &["immutable"]) != true {
        return Vec::new();
    }
    let why = "field is immutable when `immutable` is set";
    let switched = (*at(object, &["immutable"]) != true).then_some("immutable");
    let changed = parts
        .iter()
        .copied()
        .filter(|part| at(object, &[part]) != at(old, &[part]));
    switched
        .into_iter()
        .chain(changed)
        .map(|field| FieldError::forbidden(field, why))
        .collect()
}

fn lease_errors(object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = at(object, &["spec"]);
    if at(spec, &["leaseDurationSeconds"])
        .as_i64()
        .is_some_and(|seconds| seconds <= 0)
    {
        errors.push(FieldError::invalid(
            "spec.leaseDurationSeconds",
            at(spec, &["leaseDurationSeconds"]),
            "must be greater than 0",
        ));
    }
    if at(spec, &["leaseTransitions"])
        .as_i64()
        .is_some_and(|count| count < 0)
    {
        errors.push(FieldError::invalid(
            "spec.leaseTransitions",
            at(spec, &["leaseTransitions"]),
            "must be greater than or equal to 0",
        ));
    }
    errors
}

fn event_errors(object: &Value) -> Vec<FieldError> {
    let text = |field: &str| at(object, &[field]).as_str().unwrap_or_default();
    let mut errors = Vec::new();
    let about = at(object, &["regarding", "namespace"])
        .as_str()
        .unwrap_or_default();
    let lies_in = meta_text(object, "namespace");
    if about.is_empty() && !matches!(lies_in, "default" | "kube-system") {
        errors.push(FieldError::invalid(
            "involvedObject.namespace",
            &json!(about),
            "does not match event.namespace",
        ));
    }
    if text("eventTime").is_empty() {
        errors.push(FieldError::required("eventTime", ""));
    }
    for field in [
        "reportingController",
        "reportingInstance",
        "action",
        "reason",
    ] {
        if text(field).is_empty() {
            errors.push(FieldError::required(field, ""));
        }
    }
    let controller = text("reportingController");
    let wrong = crate::meta::qualified_errors(controller);
    errors.extend(
        wrong.map(|why| FieldError::invalid("reportingController", &json!(controller), &why)),
    );
    // Errors about `note` use its former name `message`.
    for (field, name, most) in [
        ("reportingInstance", "reportingInstance", 128),
        ("action", "action", 128),
        ("reason", "reason", 128),
        ("note", "message", 1024),
    ] {
        if text(field).len() > most {
            let why = format!("can have at most {most} characters");
            errors.push(FieldError::invalid(name, &json!(""), &why));
        }
    }
    if !matches!(text("type"), "Normal" | "Warning") {
        errors.push(FieldError::invalid(
            "type",
            &json!(""),
            "has invalid value: ",
        ));
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

/// Checks that networks are valid, with at most one per IP family.
fn cidr_errors(networks: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut families = Vec::new();
    for (index, network) in networks.as_array().into_iter().flatten().enumerate() {
        match network.as_str().and_then(family) {
            Some(is_v4) => families.push(is_v4),
            None => {
                let why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
                errors.push(FieldError::invalid(
                    &format!("spec.podCIDRs[{index}]"),
                    network,
                    why,
                ));
            }
        }
    }
    if families.len() > 2 || matches!(families.as_slice(), [one, two] if one == two) {
        errors.push(FieldError::invalid(
            "spec.podCIDRs",
            networks,
            "may specify no more than one CIDR for each IP family",
        ));
    }
    errors
}

/// Reports whether a network is IPv4; `None` if it is not a network.
fn family(network: &str) -> Option<bool> {
    let (address, length) = network.split_once('/')?;
    let (address, length): (std::net::IpAddr, u8) = (address.parse().ok()?, length.parse().ok()?);
    (length <= if address.is_ipv4() { 32 } else { 128 }).then_some(address.is_ipv4())
}

/// Reports whether a Namespace is being deleted and accepts no new objects.
pub(crate) fn is_terminating(namespace: &Value) -> bool {
    meta(namespace, "deletionTimestamp").is_some()
}
