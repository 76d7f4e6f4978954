//! Objects of a Cilium installation, as rendered by its chart, reduced to the fields
//! that are read.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use base64ct::{Base64, Encoding};
use k8s_openapi::api::rbac::v1::PolicyRule;
use serde_json::{Value, json};

use super::certificates::{ADMIN, Ca, Files, LOCAL, REMOTE, SERVER};
use super::pod::{ETCD_PORT, KVSTOREMESH_METRICS_PORT, METRICS_PORT};
use super::volume::{Kind, Source, Volume};
use super::{AuthMode, CiliumSpec, Exposure};

pub(super) const ETCD_SECRETS: &str = "etcd-server-secrets";
const USERS: &str = "clustermesh-remote-users";
pub(super) const USERS_FOLDER: &str = "/var/lib/cilium/etcd-config";
const AGENT: &str = "k8s-app=cilium";
const SERVER_LABEL: &str = "k8s-app=clustermesh-apiserver";

/// Returns the RBAC rules of clustermesh-apiserver.
pub(super) fn rules() -> Vec<PolicyRule> {
    let owned = |texts: &[&str]| {
        texts
            .iter()
            .map(|text| (*text).to_owned())
            .collect::<Vec<_>>()
    };
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| PolicyRule {
        api_groups: Some(owned(&[group])),
        resources: Some(owned(resources)),
        verbs: owned(verbs),
        ..PolicyRule::default()
    };
    let read = ["get", "list", "watch"];
    vec![
        rule(
            "cilium.io",
            &[
                "ciliumidentities",
                "ciliumexternalworkloads",
                "ciliumendpoints",
                "ciliumnodes",
            ],
            &read,
        ),
        rule(
            "apiextensions.k8s.io",
            &["customresourcedefinitions"],
            &["list", "watch"],
        ),
        rule("", &["endpoints", "namespaces", "services"], &read),
        rule("discovery.k8s.io", &["endpointslices"], &read),
    ]
}

/// Returns the volume with etcd's certificate.
pub(super) fn etcd_volume() -> Volume {
    secrets(ETCD_SECRETS, vec![source(SERVER, false, Some(""))])
}

/// Returns the volume of clients that write to etcd.
pub(super) fn admin_volume() -> Volume {
    secrets("etcd-admin-client", vec![source(ADMIN, false, Some(""))])
}

/// Returns the volume from which kvstoremesh reads its remotes.
pub(super) fn kvstoremesh_volume() -> Volume {
    let sources = vec![
        source("cilium-kvstoremesh", true, None),
        source(REMOTE, true, Some("common-etcd-client")),
    ];
    secrets("kvstoremesh-secrets", sources)
}

/// Returns the volume from which the agents read their remotes.
pub(super) fn agent_volume(spec: &CiliumSpec) -> Volume {
    let mut sources = vec![
        source("cilium-clustermesh", true, None),
        source(REMOTE, true, Some("common-etcd-client")),
    ];
    if spec.local_client {
        sources.push(source(LOCAL, true, Some("local-etcd-client")));
    }
    secrets("clustermesh-secrets", sources)
}

/// Returns the volume with the users that etcd gets besides its built-in ones. Its
/// ConfigMap is not optional: without it the pod does not start.
pub(super) fn users_volume() -> Volume {
    let users = Source {
        object: USERS,
        optional: false,
        items: Some(vec![("users.yaml", "users.yaml".to_owned())]),
    };
    Volume {
        name: "etcd-users-config",
        kind: Kind::ConfigMaps,
        sources: vec![users],
    }
}

fn secrets(name: &'static str, sources: Vec<Source>) -> Volume {
    Volume {
        name,
        kind: Kind::Secrets,
        sources,
    }
}

/// Returns the arguments with which container apiserver creates these users.
pub(super) fn users_arguments(mode: AuthMode) -> Vec<String> {
    match mode {
        AuthMode::Legacy => Vec::new(),
        AuthMode::Migration | AuthMode::Cluster => {
            vec![
                "--cluster-users-enabled".to_owned(),
                format!("--cluster-users-config-path={USERS_FOLDER}/users.yaml"),
            ]
        }
    }
}

/// Returns a source with all keys of the Secret, or with the three files of a client
/// certificate under this name; an empty name keeps the names of the keys.
fn source(secret: &'static str, optional: bool, client: Option<&str>) -> Source {
    let items = client.map(|client| match client {
        "" => ["ca.crt", "tls.crt", "tls.key"]
            .map(|key| (key, key.to_owned()))
            .into(),
        client => vec![
            ("tls.key", format!("{client}.key")),
            ("tls.crt", format!("{client}.crt")),
            ("ca.crt", format!("{client}-ca.crt")),
        ],
    });
    Source {
        object: secret,
        optional,
        items,
    }
}

pub(super) fn config_map(name: Option<&str>, id: Option<u32>) -> Value {
    let mut data = BTreeMap::from([
        ("identity-allocation-mode", "crd".to_owned()),
        ("ipam", "cluster-pool".to_owned()),
    ]);
    data.extend(name.map(|name| ("cluster-name", name.to_owned())));
    data.extend(id.map(|id| ("cluster-id", id.to_string())));
    let mut object = named("v1", "ConfigMap", "cilium-config");
    add(&mut object, "data", json!(data));
    object
}

pub(super) fn ca_secret(ca: &Ca) -> Value {
    let mut object = secret(
        "cilium-ca",
        "Opaque",
        [("ca.crt", ca.pem()), ("ca.key", &ca.key())],
    );
    mark_as_helms(&mut object);
    object
}

/// Returns the ConfigMap of users as the chart renders it. With KVStoreMesh the agents read
/// their own cluster's etcd as one of them.
pub(super) fn users(spec: &CiliumSpec, cluster: &str) -> Value {
    let own = if spec.kvstoremesh {
        format!("\n- name: remote-{cluster}\n  role: remote\n")
    } else {
        String::new()
    };
    let mut object = named("v1", "ConfigMap", USERS);
    add(
        &mut object,
        "data",
        json!({ "users.yaml": format!("users:{own}") }),
    );
    mark_as_helms(&mut object);
    object
}

/// Adds Helm's ownership labels and annotations.
fn mark_as_helms(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata") {
        add(
            metadata,
            "labels",
            json!({ "app.kubernetes.io/managed-by": "Helm" }),
        );
        add(
            metadata,
            "annotations",
            json!({ "meta.helm.sh/release-name": "cilium", "meta.helm.sh/release-namespace": "kube-system" }),
        );
    }
}

pub(super) fn certificate_secret(name: &str, files: &Files) -> Value {
    secret(name, "kubernetes.io/tls", files.by_key())
}

fn secret<'a>(
    name: &str,
    kind: &str,
    data: impl IntoIterator<Item = (&'static str, &'a str)>,
) -> Value {
    let data: BTreeMap<&str, String> = data
        .into_iter()
        .map(|(key, text)| (key, Base64::encode_string(text.as_bytes())))
        .collect();
    let mut object = named("v1", "Secret", name);
    add(&mut object, "type", json!(kind));
    add(&mut object, "data", json!(data));
    object
}

pub(super) fn service_account() -> Value {
    named("v1", "ServiceAccount", "cilium")
}

pub(super) fn daemon_set(spec: &CiliumSpec, version: &str) -> Value {
    let mut object = named("apps/v1", "DaemonSet", "cilium");
    let template =
        json!({ "metadata": { "labels": labels(AGENT) }, "spec": agent_pod(spec, version) });
    add(
        &mut object,
        "spec",
        json!({ "selector": { "matchLabels": labels(AGENT) }, "template": template }),
    );
    label(&mut object, AGENT);
    object
}

pub(super) fn deployment(spec: &CiliumSpec, version: &str) -> Value {
    let mut object = named("apps/v1", "Deployment", "clustermesh-apiserver");
    let template = json!({ "metadata": { "labels": labels(SERVER_LABEL) }, "spec": server_pod(spec, version) });
    add(
        &mut object,
        "spec",
        json!({ "replicas": 1, "selector": { "matchLabels": labels(SERVER_LABEL) }, "template": template }),
    );
    label(&mut object, SERVER_LABEL);
    object
}

fn agent_pod(spec: &CiliumSpec, version: &str) -> Value {
    let volume = agent_volume(spec);
    let mount = json!({ "name": volume.name, "mountPath": "/var/lib/cilium/clustermesh", "readOnly": true });
    let container = json!({ "name": "cilium-agent", "image": format!("cilium/cilium:{version}"), "volumeMounts": [mount] });
    let mut pod = json!({ "serviceAccountName": "cilium", "containers": [container], "volumes": [volume.spec()] });
    if !spec.kvstoremesh {
        add(&mut pod, "hostAliases", host_aliases(spec));
    }
    pod
}

fn server_pod(spec: &CiliumSpec, version: &str) -> Value {
    let port =
        |name: &str, port: u16| json!([{ "name": name, "containerPort": port, "protocol": "TCP" }]);
    let container = |name: &str, ports: Value| json!({ "name": name, "image": format!("cilium/clustermesh-apiserver:{version}"), "ports": ports });
    let mut apiserver = container("apiserver", port("apiserv-metrics", METRICS_PORT));
    let mut volumes = vec![etcd_volume().spec(), admin_volume().spec()];
    let users = users_arguments(spec.auth_mode);
    if !users.is_empty() {
        add(&mut apiserver, "args", json!(users));
        let volume = users_volume();
        add(
            &mut apiserver,
            "volumeMounts",
            json!([{ "name": volume.name, "mountPath": USERS_FOLDER, "readOnly": true }]),
        );
        volumes.push(volume.spec());
    }
    let mut containers = vec![container("etcd", port("etcd", ETCD_PORT)), apiserver];
    if spec.kvstoremesh {
        containers.push(container(
            "kvstoremesh",
            port("kvmesh-metrics", KVSTOREMESH_METRICS_PORT),
        ));
        volumes.push(kvstoremesh_volume().spec());
    }
    let mut pod = json!({ "serviceAccountName": "clustermesh-apiserver", "containers": containers, "volumes": volumes });
    if spec.kvstoremesh {
        add(&mut pod, "hostAliases", host_aliases(spec));
    }
    pod
}

fn host_aliases(spec: &CiliumSpec) -> Value {
    spec.host_aliases
        .iter()
        .map(|(name, address)| json!({ "ip": address, "hostnames": [name] }))
        .collect()
}

/// Returns the pod of the Deployment.
pub(super) fn server(spec: &CiliumSpec, version: &str) -> Value {
    let mut object = named("v1", "Pod", "clustermesh-apiserver-0");
    let mut pod = server_pod(spec, version);
    add(&mut pod, "nodeName", json!(node_name(0)));
    add(&mut object, "spec", pod);
    label(&mut object, SERVER_LABEL);
    object
}

/// Returns the pod of the DaemonSet on a node.
pub(super) fn agent(spec: &CiliumSpec, version: &str, node: usize) -> Value {
    let mut object = named("v1", "Pod", &format!("cilium-{node}"));
    let mut pod = agent_pod(spec, version);
    add(&mut pod, "nodeName", json!(node_name(node)));
    add(&mut object, "spec", pod);
    label(&mut object, AGENT);
    object
}

/// Returns the status of a pod that has been running since `start`.
pub(super) fn pod_status(start: &str, address: Option<Ipv4Addr>, ready: bool) -> Value {
    let ready = if ready { "True" } else { "False" };
    let mut status = json!({ "phase": "Running", "startTime": start, "conditions": [{ "type": "Ready", "status": ready }] });
    if let Some(address) = address {
        add(&mut status, "podIP", json!(address));
        add(&mut status, "podIPs", json!([{ "ip": address }]));
    }
    json!({ "status": status })
}

pub(super) fn daemon_set_status(nodes: usize, ready: usize) -> Value {
    json!({ "status": { "desiredNumberScheduled": nodes, "currentNumberScheduled": nodes, "numberReady": ready, "numberMisscheduled": 0 } })
}

pub(super) fn deployment_status(available: bool) -> Value {
    let count = u8::from(available);
    json!({ "status": { "replicas": 1, "readyReplicas": count, "availableReplicas": count, "unavailableReplicas": 1 - count } })
}

pub(super) fn service(exposure: &Exposure) -> Value {
    let kind = match exposure {
        Exposure::LoadBalancer { .. } | Exposure::LoadBalancerName(_) => "LoadBalancer",
        Exposure::NodePort => "NodePort",
    };
    let mut object = named("v1", "Service", "clustermesh-apiserver");
    let ports = json!([{ "port": ETCD_PORT, "protocol": "TCP" }]);
    add(
        &mut object,
        "spec",
        json!({ "type": kind, "selector": labels(SERVER_LABEL), "ports": ports }),
    );
    label(&mut object, SERVER_LABEL);
    object
}

/// Returns the addresses of the load balancer, or its host name.
pub(super) fn service_status(exposure: &Exposure, addresses: &[IpAddr]) -> Value {
    let ingress: Value = match exposure {
        Exposure::LoadBalancer { .. } => addresses
            .iter()
            .map(|address| json!({ "ip": address }))
            .collect(),
        Exposure::LoadBalancerName(name) => json!([{ "hostname": name }]),
        Exposure::NodePort => json!([]),
    };
    json!({ "status": { "loadBalancer": { "ingress": ingress } } })
}

pub(super) fn node_name(number: usize) -> String {
    format!("node-{number}")
}

pub(super) fn node(number: usize) -> Value {
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": node_name(number) } })
}

pub(super) fn node_status(address: Ipv4Addr) -> Value {
    json!({ "status": {
        "addresses": [{ "type": "InternalIP", "address": address }],
        "conditions": [{ "type": "Ready", "status": "True" }],
    }})
}

/// Returns the path of one of these objects.
pub(super) fn path(object: &Value) -> String {
    let text = |pointer: &str| {
        object
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let root = if text("/apiVersion").contains('/') {
        "apis"
    } else {
        "api"
    };
    let namespace = match text("/metadata/namespace") {
        "" => String::new(),
        name => format!("/namespaces/{name}"),
    };
    let plural = format!("{}s", text("/kind").to_lowercase());
    format!(
        "/{root}/{}{namespace}/{plural}/{}",
        text("/apiVersion"),
        text("/metadata/name")
    )
}

fn named(version: &str, kind: &str, name: &str) -> Value {
    json!({ "apiVersion": version, "kind": kind, "metadata": { "name": name, "namespace": "kube-system" } })
}

fn label(object: &mut Value, selector: &str) {
    if let Some(metadata) = object.get_mut("metadata") {
        add(metadata, "labels", labels(selector));
    }
}

fn labels(selector: &str) -> Value {
    let (key, value) = selector.split_once('=').unwrap_or((selector, ""));
    json!({ key: value })
}

fn add(object: &mut Value, key: &str, value: Value) {
    if let Some(object) = object.as_object_mut() {
        object.insert(key.to_owned(), value);
    }
}
