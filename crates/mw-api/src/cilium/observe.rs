//! Conversions from the objects of a target cluster to the core's facts. Strings are
//! passed on unparsed; the core interprets them. Certificates are not parsed here.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::ByteString;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mw_core::cilium::facts::{
    Agents, ApiServer, ClientFiles, Config, Maker, MeshPort, MeshService, NamespaceSeen,
    NodeAddresses, RemoteUsers, SecretSeen, ServiceName, ServiceSeen, SliceSeen,
};
use mw_core::cilium::secret::SecretBytes;
use mw_core::cilium::version::Version;

use crate::cilium::managers::{changed_by_us, held, managers};
use crate::cilium::rbac::REMOTE_USERS;
use crate::cilium::target::{
    ConfigMap, Container, DaemonSet, Deployment, EndpointSlice, Namespace, PodSpec, Secret,
    Service, VolumeConfigMap,
};
use crate::node::Node;

const CLUSTER_NAME: &str = "cluster-name";
const CLUSTER_ID: &str = "cluster-id";
const DEFAULT_MAX_CLUSTERS: u32 = 255;
/// The only key of the ConfigMap clustermesh-remote-users.
pub const USERS_KEY: &str = "users.yaml";
/// Annotation in which cert-manager names the Certificate of a Secret.
const CERTIFICATE: &str = "cert-manager.io/certificate-name";
const ELB_ID: &str = "kubernetes.io/elb.id";

/// Converts the DaemonSet of the agents. The caller fills `oldest_start`, which the
/// object does not contain.
pub fn agents(set: &DaemonSet) -> Agents {
    let pods = &set.spec.template.spec;
    Agents {
        ready: count(set.status.number_ready),
        desired: count(set.status.desired_number_scheduled),
        version: version(pods, "cilium-agent").or_else(|| chart_version(&set.metadata)),
        client_files: client_paths(pods),
        host_aliases: host_aliases(pods),
        oldest_start: None,
    }
}

/// Converts the Deployment clustermesh-apiserver.
pub fn api_server(deployment: &Deployment) -> ApiServer {
    let pods = &deployment.spec.template.spec;
    ApiServer {
        available: count(deployment.status.available_replicas),
        kvstoremesh: pods
            .containers
            .iter()
            .any(|container| container.name == "kvstoremesh"),
        version: version(pods, "kvstoremesh"),
        client_files: client_paths(pods),
        host_aliases: host_aliases(pods),
        cluster_users: pods
            .containers
            .iter()
            .filter(|container| container.name == "apiserver")
            .any(has_cluster_users),
        mounts_users: pods
            .volumes
            .iter()
            .filter_map(|volume| volume.config_map.as_ref())
            .any(is_users),
    }
}

/// Reports whether --cluster-users-enabled is set. If the flag is repeated, the last
/// one counts.
fn has_cluster_users(container: &Container) -> bool {
    let mut values = container.args.iter().filter_map(|arg| {
        match arg.strip_prefix("--cluster-users-enabled")? {
            "" => Some(true),
            value => value.strip_prefix('=').map(|value| value == "true"),
        }
    });
    values.next_back().unwrap_or(false)
}

fn is_users(volume: &VolumeConfigMap) -> bool {
    volume.name == REMOTE_USERS && volume.optional != Some(true)
}

/// Converts the ConfigMap clustermesh-remote-users.
pub fn remote_users(map: &ConfigMap) -> RemoteUsers {
    RemoteUsers {
        uid: map.metadata.uid.clone().unwrap_or_default(),
        resource_version: map.metadata.resource_version.clone().unwrap_or_default(),
        text: map.data.get(USERS_KEY).cloned().unwrap_or_default(),
        of_helm: !helm_marks(&map.metadata).0.is_empty(),
    }
}

fn count(number: i64) -> u32 {
    u32::try_from(number.max(0)).unwrap_or(u32::MAX)
}

/// Returns the version of the named container. If there is no such container, the
/// version of the first container that has one.
fn version(pods: &PodSpec, container: &str) -> Option<Version> {
    match pods.containers.iter().find(|of| of.name == container) {
        Some(named) => Version::of_image(&named.image),
        None => pods
            .containers
            .iter()
            .find_map(|of| Version::of_image(&of.image)),
    }
}

/// Returns the version from the chart label, for images that are referenced by digest
/// only.
fn chart_version(meta: &ObjectMeta) -> Option<Version> {
    meta.labels
        .as_ref()?
        .get("helm.sh/chart")
        .and_then(|label| Version::of_chart(label))
}

/// Returns the tool that issued the certificate in a Secret.
pub fn maker(meta: &ObjectMeta) -> Maker {
    let annotations = meta.annotations.as_ref();
    // The name becomes part of a command in a hint.
    let is_name = |name: &&String| {
        name.bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b))
    };
    let certificate = annotations
        .and_then(|all| all.get(CERTIFICATE))
        .filter(is_name);
    match (certificate, helm_marks(meta).0.is_empty()) {
        (Some(name), _) => Maker::CertManager(name.clone()),
        (None, false) => Maker::Helm,
        (None, true) => Maker::Job,
    }
}

fn client_paths(pods: &PodSpec) -> BTreeSet<String> {
    let sources = pods
        .volumes
        .iter()
        .filter_map(|volume| volume.projected.as_ref())
        .flat_map(|projected| &projected.sources);
    let items = sources
        .flat_map(|source| [&source.secret, &source.config_map])
        .flatten()
        .flat_map(|of| &of.items);
    items.map(|item| item.path.clone()).collect()
}

fn host_aliases(pods: &PodSpec) -> BTreeSet<String> {
    pods.host_aliases
        .iter()
        .flat_map(|alias| alias.hostnames.iter().cloned())
        .collect()
}

/// Converts the ConfigMap cilium-config.
pub fn config(map: &ConfigMap) -> Config {
    let value = |key: &str| {
        map.data
            .get(key)
            .map(|text| text.trim().to_owned())
            .unwrap_or_default()
    };
    let ipam = value("ipam");
    Config {
        resource_version: map.metadata.resource_version.clone().unwrap_or_default(),
        cluster_name: value(CLUSTER_NAME),
        cluster_id: value(CLUSTER_ID),
        max_clusters: value("max-connected-clusters")
            .parse()
            .unwrap_or(DEFAULT_MAX_CLUSTERS),
        small_ids: ["eni", "alibabacloud"].contains(&ipam.as_str())
            || value("cni-chaining-mode") == "aws-cni",
        set_by_us: changed_by_us(&map.metadata, &["data"], &[CLUSTER_NAME, CLUSTER_ID]),
        namespaces_global: value("clustermesh-default-global-namespace") != "false",
    }
}

/// Converts the Service clustermesh-apiserver.
pub fn mesh_service(service: &Service) -> MeshService {
    let ingress = || service.status.load_balancer.ingress.iter();
    let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let port = |number: i64| u16::try_from(number).ok().filter(|port| *port > 0);
    let ports = service.spec.ports.iter();
    MeshService {
        resource_version: service
            .metadata
            .resource_version
            .clone()
            .unwrap_or_default(),
        kind: service.spec.kind.clone(),
        ports: ports
            .filter_map(|of| {
                Some(MeshPort {
                    name: of.name.clone(),
                    port: port(of.port)?,
                    node_port: port(of.node_port),
                })
            })
            .collect(),
        ingress_ips: ingress().filter_map(|of| text(&of.ip)).collect(),
        ingress_hostnames: ingress().filter_map(|of| text(&of.hostname)).collect(),
        elb_id: service
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(ELB_ID))
            .cloned(),
    }
}

/// Converts the addresses of a node.
pub fn node_addresses(node: &Node) -> NodeAddresses {
    NodeAddresses {
        ready: node.is_ready(),
        internal: node.addresses("InternalIP"),
        external: node.addresses("ExternalIP"),
    }
}

/// Converts a Secret with connections to remote clusters. The caller fills `ends`,
/// which needs parsed certificates.
pub fn connection_secret(secret: &Secret) -> SecretSeen {
    let meta = &secret.metadata;
    SecretSeen {
        uid: meta.uid.clone().unwrap_or_default(),
        resource_version: meta.resource_version.clone().unwrap_or_default(),
        keys: held(&secret.data, &managers(meta, &["data"]), secret_bytes),
        written: changed_by_us(meta, &["data"], &[]),
        ends: BTreeMap::new(),
    }
}

/// Removes the labels and annotations of a Secret that nothing reads.
pub fn trimmed(secret: Secret) -> Secret {
    let Secret { metadata, data } = secret;
    let (labels, mut annotations) = helm_marks(&metadata);
    annotations.extend(
        metadata
            .annotations
            .iter()
            .flat_map(|all| all.get_key_value(CERTIFICATE))
            .map(|(key, name)| (key.clone(), name.clone())),
    );
    let ObjectMeta {
        name,
        namespace,
        uid,
        resource_version,
        deletion_timestamp,
        managed_fields,
        ..
    } = metadata;
    let (labels, annotations) = (Some(labels), Some(annotations));
    let metadata = ObjectMeta {
        name,
        namespace,
        uid,
        resource_version,
        deletion_timestamp,
        managed_fields,
        labels,
        annotations,
        ..ObjectMeta::default()
    };
    Secret { metadata, data }
}

fn secret_bytes(bytes: &ByteString) -> SecretBytes {
    SecretBytes::new(&bytes.0)
}

/// Returns the three files of a certificate Secret, if all are present.
pub fn client_files(secret: &Secret) -> Option<ClientFiles> {
    let file = |key: &str| {
        secret
            .data
            .get(key)
            .filter(|bytes| !bytes.0.is_empty())
            .map(secret_bytes)
    };
    Some(ClientFiles {
        ca: file("ca.crt")?,
        certificate: file("tls.crt")?,
        key: file("tls.key")?,
    })
}

/// Returns the labels and annotations by which Helm recognizes objects of a release.
pub fn helm_marks(meta: &ObjectMeta) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
    let of_helm =
        |key: &str| key == "app.kubernetes.io/managed-by" || key.starts_with("meta.helm.sh/");
    let chosen = |all: &Option<BTreeMap<String, String>>| -> BTreeMap<String, String> {
        let all = all.iter().flatten().filter(|(key, _)| of_helm(key));
        all.map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    };
    (chosen(&meta.labels), chosen(&meta.annotations))
}

/// Converts a Namespace.
pub fn namespace(namespace: &Namespace) -> NamespaceSeen {
    let annotations = namespace.metadata.annotations.as_ref();
    NamespaceSeen {
        global: annotations
            .and_then(|all| all.get("clustermesh.cilium.io/global"))
            .cloned(),
        deleting: namespace.metadata.deletion_timestamp.is_some(),
    }
}

/// Converts a Service.
pub fn service(service: &Service) -> (ServiceName, ServiceSeen) {
    let meta = &service.metadata;
    let annotations = meta.annotations.iter().flatten();
    let seen = ServiceSeen {
        uid: meta.uid.clone().unwrap_or_default(),
        resource_version: meta.resource_version.clone().unwrap_or_default(),
        external_name: service.spec.kind == "ExternalName",
        deleting: meta.deletion_timestamp.is_some(),
        labels: meta.labels.clone().unwrap_or_default(),
        annotations: held(
            annotations,
            &managers(meta, &["metadata", "annotations"]),
            String::clone,
        ),
    };
    (
        service_name(meta, meta.name.clone().unwrap_or_default()),
        seen,
    )
}

fn service_name(meta: &ObjectMeta, name: String) -> ServiceName {
    ServiceName {
        namespace: meta.namespace.clone().unwrap_or_default(),
        name,
    }
}

/// Converts an EndpointSlice.
pub fn slice(slice: &EndpointSlice) -> SliceSeen {
    let meta = &slice.metadata;
    let label = |key: &str| {
        meta.labels
            .as_ref()
            .and_then(|all| all.get(key))
            .cloned()
            .unwrap_or_default()
    };
    // The API defines a missing `ready` as ready.
    let ready = slice
        .endpoints
        .iter()
        .filter(|endpoint| endpoint.conditions.ready.unwrap_or(true));
    let behind = ready.filter_map(|endpoint| {
        let pod = endpoint
            .target_ref
            .as_ref()
            .and_then(|target| target.uid.clone());
        pod.or_else(|| endpoint.addresses.first().cloned())
    });
    SliceSeen {
        service: service_name(meta, label("kubernetes.io/service-name")),
        managed_by: label("endpointslice.kubernetes.io/managed-by"),
        ready: behind.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mw_core::time::Timestamp;
    use serde_json::{Value, json};

    fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_agents_are_read_from_their_daemonset() {
        let items = |prefix: &str| json!([{ "key": "tls.key", "path": format!("{prefix}.key") }]);
        let set: DaemonSet = read(json!({
            "metadata": { "name": "cilium" },
            "spec": { "template": { "spec": {
                "containers": [{ "name": "x", "image": "x:v9.9" }, { "name": "cilium-agent", "image": "r/cilium:v1.20.2@sha256:a" }],
                "hostAliases": [{ "ip": "192.0.2.1", "hostnames": ["b.mesh.cilium.io"] }],
                "volumes": [{ "name": "other" }, { "projected": { "sources": [
                    { "secret": { "name": "cilium-clustermesh" } },
                    { "secret": { "items": items("common-etcd-client") } }, { "secret": { "items": items("local-etcd-client") } },
                ] } }],
            } } },
            "status": { "numberReady": 2, "desiredNumberScheduled": 3 },
        }));
        let agents = agents(&set);
        assert_eq!(
            (agents.ready, agents.desired, agents.version),
            (
                2,
                3,
                Some(Version {
                    major: 1,
                    minor: 20
                })
            )
        );
        let mut by_digest = set.clone();
        by_digest.spec.template.spec.containers[1].image = "r/cilium@sha256:a".to_owned();
        assert_eq!(
            super::agents(&by_digest).version,
            None,
            "no claim without a tag or a label"
        );
        by_digest.metadata.labels = Some(BTreeMap::from([(
            "helm.sh/chart".to_owned(),
            "cilium-1.19.3".to_owned(),
        )]));
        assert_eq!(
            super::agents(&by_digest).version,
            Some(Version {
                major: 1,
                minor: 19
            })
        );
        assert_eq!(
            agents.client_files.iter().collect::<Vec<_>>(),
            ["common-etcd-client.key", "local-etcd-client.key"]
        );
        assert!(agents.host_aliases.contains("b.mesh.cilium.io"));
        let bare: DaemonSet =
            read(json!({ "metadata": { "name": "a-cilium" }, "spec": null, "status": null }));
        assert_eq!(super::agents(&bare), Agents::default());
    }

    #[test]
    fn kvstoremesh_is_a_container_of_the_deployment() {
        let with = |names: &[&str]| -> Deployment {
            let containers: Vec<Value> = names
                .iter()
                .map(|name| json!({ "name": name, "image": "r/c:v1.15.19" }))
                .collect();
            read(
                json!({ "spec": { "template": { "spec": { "containers": containers } } }, "status": { "availableReplicas": 1 } }),
            )
        };
        let plain = api_server(&with(&["etcd", "apiserver"]));
        assert_eq!(
            (plain.available, plain.kvstoremesh, plain.version),
            (
                1,
                false,
                Some(Version {
                    major: 1,
                    minor: 15
                })
            )
        );
        assert!(api_server(&with(&["etcd", "apiserver", "kvstoremesh"])).kvstoremesh);
    }

    #[test]
    fn the_identity_is_read_as_it_stands() {
        let entry = json!({ "manager": "meshwright", "operation": "Update", "time": "1970-01-01T00:00:07Z",
            "fieldsV1": { "f:data": { "f:cluster-id": {} } } });
        let map: ConfigMap = read(json!({
            "metadata": { "resourceVersion": "3", "managedFields": [entry] },
            "data": { "cluster-name": "a", "cluster-id": "1", "max-connected-clusters": "511", "ipam": "eni" },
        }));
        let expected = Config {
            resource_version: "3".to_owned(),
            cluster_name: "a".to_owned(),
            cluster_id: "1".to_owned(),
            max_clusters: 511,
            small_ids: true,
            set_by_us: Some(Timestamp(7)),
            namespaces_global: true,
        };
        assert_eq!(config(&map), expected);
        let bare = config(&ConfigMap::default());
        assert_eq!(
            (
                bare.cluster_name.as_str(),
                bare.max_clusters,
                bare.small_ids,
                bare.set_by_us
            ),
            ("", 255, false, None)
        );
    }

    #[test]
    fn the_mesh_service_gives_its_addresses_and_ports() {
        let service: Service = read(json!({
            "metadata": { "annotations": { "kubernetes.io/elb.id": "e" } },
            "spec": { "type": "LoadBalancer", "ports": [{ "name": "etcd", "port": 2379, "nodePort": 32379 }, { "port": 0 }] },
            "status": { "loadBalancer": { "ingress": [{ "ip": "192.0.2.1" }, { "hostname": "lb.example" }, { "ip": "" }] } },
        }));
        let seen = mesh_service(&service);
        assert_eq!(
            (seen.kind.as_str(), seen.elb_id.as_deref()),
            ("LoadBalancer", Some("e"))
        );
        assert_eq!(
            (seen.ingress_ips, seen.ingress_hostnames),
            (vec!["192.0.2.1".to_owned()], vec!["lb.example".to_owned()])
        );
        assert_eq!(
            seen.ports,
            [MeshPort {
                name: "etcd".to_owned(),
                port: 2379,
                node_port: Some(32379)
            }]
        );
    }

    #[test]
    fn a_secret_is_carried_with_its_managers_but_never_shown() {
        let fields = json!({ "f:data": { "f:b": {} } });
        let entry = json!({ "manager": "meshwright", "operation": "Apply", "time": "1970-01-01T00:00:07Z", "fieldsV1": fields });
        let secret: Secret = read(
            json!({ "metadata": { "uid": "u", "managedFields": [entry] }, "data": { "b": "c2VjcmV0", "c": "" } }),
        );
        let seen = connection_secret(&secret);
        assert!(
            !format!("{secret:?} {seen:?}").contains("secret\"")
                && !format!("{secret:?} {seen:?}").contains("c2VjcmV0")
        );
        assert_eq!(
            (
                seen.keys["b"].value.expose(),
                seen.keys["b"].is_ours_alone(),
                seen.written
            ),
            (&b"secret"[..], true, Some(Timestamp(7)))
        );
        assert!(!seen.keys["c"].is_ours());
        assert_eq!(client_files(&secret), None);
    }

    #[test]
    fn a_pod_counts_once_however_often_it_is_listed() {
        let pod = |ready: Value| json!({ "addresses": ["10.0.0.1"], "conditions": { "ready": ready }, "targetRef": { "uid": "p1" } });
        let bare = json!({ "addresses": ["10.0.0.9"] });
        let seen = slice(&read(json!({
            "metadata": { "namespace": "shop", "labels": {
                "kubernetes.io/service-name": "web", "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io" } },
            "endpoints": [pod(json!(true)), pod(json!(true)), bare, { "addresses": ["10.0.0.3"], "conditions": { "ready": false } }],
        })));
        assert_eq!(
            seen.service,
            ServiceName {
                namespace: "shop".to_owned(),
                name: "web".to_owned()
            }
        );
        assert_eq!(seen.ready.iter().collect::<Vec<_>>(), ["10.0.0.9", "p1"]);
    }

    #[test]
    fn a_certificate_tells_by_what_it_was_made() {
        let of = |meta: Value| maker(&read::<ObjectMeta>(meta));
        assert_eq!(
            of(json!({ "labels": { "app.kubernetes.io/managed-by": "Helm" } })),
            Maker::Helm
        );
        let certificate =
            json!({ "annotations": { "cert-manager.io/certificate-name": "remote" } });
        assert_eq!(of(certificate), Maker::CertManager("remote".to_owned()));
        assert_eq!(of(json!({})), Maker::Job);
    }

    #[test]
    fn helms_marks_are_told_from_others() {
        let meta: ObjectMeta = read(json!({
            "labels": { "app.kubernetes.io/managed-by": "Helm", "team": "net" },
            "annotations": { "meta.helm.sh/release-name": "cilium", "note": "x" },
        }));
        let (labels, annotations) = helm_marks(&meta);
        assert_eq!((labels.len(), annotations.len()), (1, 1));
    }
}
