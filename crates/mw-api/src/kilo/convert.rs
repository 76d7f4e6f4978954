//! Conversions from Kubernetes objects to the core's facts, and from the core's wanted
//! Peers to objects and patches. Strings are passed on unparsed; the core interprets
//! them.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mw_core::kilo::node::{ANNOTATION_PREFIX, ANNOTATIONS, NodeFacts};
use mw_core::kilo::peer::{
    EndpointFacts, LABEL_HUB, LABEL_MESH, LABEL_NAMESPACE, LABEL_SOURCE, Labels, PeerFacts,
    PeerSpecFacts, WantedPeer,
};
use mw_core::kilo::plan::{Precondition, Update};
use mw_core::kilo::spec::{Mesh, RawCluster, RawSpec, SecretRef};
use mw_core::names::MeshId;
use serde_json::{Map, Value, json};

use crate::kilo::clustermesh::{
    ANNOTATION_CONFIRM_DELETES, ANNOTATION_TAKE_OVER_HUB, ClusterEntry, ClusterMesh,
    ClusterMeshSpec, KubeconfigSecretRef,
};
use crate::kilo::peer::{DnsOrIp, Peer, PeerEndpoint, PeerSpec};
use crate::node::Node;
use crate::time;

/// Converts a ClusterMesh. The caller fills `running` and `held`, which the object does
/// not contain.
pub fn mesh(object: &ClusterMesh) -> Mesh {
    let meta = &object.metadata;
    let annotation = |key: &str| {
        meta.annotations
            .as_ref()
            .and_then(|all| all.get(key))
            .cloned()
    };
    Mesh {
        id: MeshId::new(
            meta.namespace.as_deref().unwrap_or("default"),
            meta.name.as_deref().unwrap_or_default(),
        ),
        created: meta.creation_timestamp.as_ref().map(time::timestamp),
        deleting: meta.deletion_timestamp.is_some(),
        confirm_deletes: annotation(ANNOTATION_CONFIRM_DELETES),
        held: BTreeSet::new(),
        anchors: BTreeMap::new(),
        take_over_hub: annotation(ANNOTATION_TAKE_OVER_HUB),
        spec: raw_spec(&object.spec),
        running: None,
        recalled: false,
    }
}

fn raw_spec(spec: &ClusterMeshSpec) -> RawSpec {
    let ClusterMeshSpec {
        clusters,
        cleanup_timeout,
        max_delete_percent,
    } = spec;
    RawSpec {
        clusters: clusters.iter().map(raw_cluster).collect(),
        cleanup_timeout: cleanup_timeout.clone(),
        max_delete_percent: *max_delete_percent,
    }
}

fn raw_cluster(entry: &ClusterEntry) -> RawCluster {
    // Destructured without `..`, so that a new field can't be forgotten here.
    let ClusterEntry {
        name,
        local,
        kubeconfig_secret_ref,
        pod_cidrs,
        wireguard_cidr,
        wireguard_port,
        service_cidr,
        additional_cidrs,
        allowed_networks,
        persistent_keepalive,
        topology_label,
        endpoint_from,
    } = entry.clone();
    RawCluster {
        name,
        local: local.unwrap_or_default(),
        kubeconfig_secret: kubeconfig_secret_ref
            .map(|KubeconfigSecretRef { name, key }| SecretRef { name, key }),
        pod_cidrs,
        wireguard_cidr,
        service_cidr,
        additional_cidrs,
        allowed_networks,
        wireguard_port,
        persistent_keepalive,
        topology_label,
        endpoint_from,
    }
}

/// Converts a Node. The caller fills `bare_since`, which the object does not contain.
pub fn node_facts(node: &Node) -> NodeFacts {
    let meta = &node.metadata;
    NodeFacts {
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        labels: meta.labels.clone().unwrap_or_default(),
        kilo: kilo_annotations(meta),
        pod_cidrs: pod_cidrs(node),
        internal_ips: node.addresses("InternalIP"),
        external_ips: node.addresses("ExternalIP"),
        ready: node.is_ready(),
        bare_since: None,
    }
}

fn kilo_annotations(meta: &ObjectMeta) -> BTreeMap<String, String> {
    let all = meta.annotations.iter().flatten();
    all.filter_map(|(key, value)| {
        let key = key.strip_prefix(ANNOTATION_PREFIX)?;
        ANNOTATIONS
            .contains(&key)
            .then(|| (key.to_owned(), value.clone()))
    })
    .collect()
}

fn pod_cidrs(node: &Node) -> Vec<String> {
    match node.spec.pod_cidrs.as_slice() {
        [] => Some(node.spec.pod_cidr.clone())
            .filter(|cidr| !cidr.is_empty())
            .into_iter()
            .collect(),
        several => several.to_vec(),
    }
}

/// Converts a Peer. The caller fills `endpoint_written`, which the object does not
/// contain.
pub fn peer_facts(peer: &Peer) -> PeerFacts {
    let Peer { metadata, spec } = peer;
    let label = |key: &str| {
        metadata
            .labels
            .as_ref()
            .and_then(|all| all.get(key))
            .cloned()
    };
    PeerFacts {
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        resource_version: metadata.resource_version.clone().unwrap_or_default(),
        deleting: metadata.deletion_timestamp.is_some(),
        labels: Labels {
            mesh: label(LABEL_MESH),
            source: label(LABEL_SOURCE),
            namespace: label(LABEL_NAMESPACE),
            hub: label(LABEL_HUB),
        },
        spec: spec_facts(spec),
        endpoint_written: None,
    }
}

fn spec_facts(spec: &PeerSpec) -> PeerSpecFacts {
    let PeerSpec {
        allowed_ips,
        endpoint,
        persistent_keepalive,
        preshared_key: _,
        public_key,
    } = spec;
    PeerSpecFacts {
        public_key: public_key.clone(),
        endpoint: endpoint.as_ref().map(
            |PeerEndpoint {
                 dns_or_ip: DnsOrIp { dns, ip },
                 port,
             }| EndpointFacts {
                dns: dns.clone(),
                ip: ip.clone(),
                port: *port,
            },
        ),
        keepalive: persistent_keepalive.unwrap_or_default(),
        allowed_ips: allowed_ips.clone(),
    }
}

/// Returns the Peer object to create.
pub fn peer_object(wanted: &WantedPeer) -> Peer {
    object(wanted.name().as_str(), wanted.labels(), wanted.spec())
}

/// Returns the JSON merge patch that turns the observed Peer into the wanted one. It
/// contains uid and resourceVersion, so the API server rejects it if the Peer was
/// changed or replaced in the meantime.
pub fn merge_patch(update: &Update) -> Value {
    let mut patch = patch(&update.on, update.after.labels(), update.after.spec());
    if let (true, Value::Object(fields)) = (update.adopts, &mut patch) {
        // The specs differ at most in the order of entries, which adoption preserves.
        fields.remove("spec");
    }
    patch
}

/// Returns the whole object as it is after the merge patch of `update`.
pub fn merge_into(before: &Value, update: &Update) -> Value {
    let mut after = before.clone();
    let mut patch = merge_patch(update);
    if let Some(Value::Object(metadata)) = patch.get_mut("metadata") {
        // Preconditions are not part of the result.
        metadata.retain(|key, _| key == "labels");
    }
    apply_merge_patch(&mut after, patch);
    after
}

fn object(name: &str, labels: &Labels, spec: PeerSpecFacts) -> Peer {
    let PeerSpecFacts {
        public_key,
        endpoint,
        keepalive,
        allowed_ips,
    } = spec;
    let labels = labels
        .entries()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    Peer {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        spec: PeerSpec {
            allowed_ips,
            endpoint: endpoint.map(|EndpointFacts { dns, ip, port }| PeerEndpoint {
                dns_or_ip: DnsOrIp { dns, ip },
                port,
            }),
            persistent_keepalive: Some(keepalive).filter(|seconds| *seconds != 0),
            preshared_key: None,
            public_key,
        },
    }
}

fn patch(on: &Precondition, labels: &Labels, spec: PeerSpecFacts) -> Value {
    let preconditions = [("uid", &on.uid), ("resourceVersion", &on.resource_version)];
    changes(
        preconditions.map(|(key, value)| (key.to_owned(), value.as_ref().into())),
        labels,
        spec,
    )
}

/// Returns the fields that we own of a Peer, with null for those that must be absent.
/// Unknown labels and the presharedKey are omitted, so the patch keeps them.
fn changes<const N: usize>(
    preconditions: [(String, Value); N],
    labels: &Labels,
    spec: PeerSpecFacts,
) -> Value {
    let PeerSpecFacts {
        public_key,
        endpoint,
        keepalive,
        allowed_ips,
    } = spec;
    let labels: Map<String, Value> = labels
        .entries()
        .map(|(key, value)| (key.to_owned(), value.into()))
        .collect();
    let mut metadata = Map::from_iter(preconditions);
    metadata.insert("labels".to_owned(), labels.into());
    // Kilo prefers dns over ip, so the one that is not wanted must be removed.
    let endpoint = endpoint.map(|EndpointFacts { dns, ip, port }| json!({ "dnsOrIP": { "dns": dns, "ip": ip }, "port": port }));
    json!({
        "metadata": metadata,
        "spec": {
            "allowedIPs": allowed_ips,
            "endpoint": endpoint,
            "persistentKeepalive": Some(keepalive).filter(|seconds| *seconds != 0),
            "publicKey": public_key,
        },
    })
}

/// Applies a JSON merge patch (RFC 7386) like the API server does.
fn apply_merge_patch(target: &mut Value, patch: Value) {
    let Value::Object(changes) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(fields) = target else {
        return;
    };
    for (key, change) in changes {
        if change.is_null() {
            fields.remove(&key);
        } else {
            apply_merge_patch(fields.entry(key).or_insert(Value::Null), change);
        }
    }
}

#[cfg(test)]
mod tests {
    use mw_core::time::Timestamp;

    use super::*;

    fn labels() -> Labels {
        let text = |text: &str| Some(text.to_owned());
        Labels {
            mesh: text("prod"),
            source: text("a"),
            namespace: text("net"),
            hub: None,
        }
    }

    fn wanted(endpoint: Option<EndpointFacts>, keepalive: i64) -> PeerSpecFacts {
        PeerSpecFacts {
            public_key: "KEY".to_owned(),
            endpoint,
            keepalive,
            allowed_ips: vec!["10.1.0.0/24".to_owned()],
        }
    }

    fn at_ip() -> EndpointFacts {
        EndpointFacts {
            dns: None,
            ip: Some("198.51.100.1".to_owned()),
            port: 51820,
        }
    }

    fn at_name() -> EndpointFacts {
        EndpointFacts {
            dns: Some("a.example".to_owned()),
            ip: None,
            port: 51820,
        }
    }

    fn stored() -> Value {
        json!({
            "apiVersion": "kilo.squat.ai/v1alpha1",
            "kind": "Peer",
            "metadata": {
                "name": "prod--a--n1", "uid": "u1", "resourceVersion": "7",
                "labels": { "team": "net", "kilo-clustermesh.io/mesh": "old", "kilo-clustermesh.io/hub": "h1" },
                "annotations": { "note": "mine" },
            },
            "spec": {
                "allowedIPs": ["10.9.0.0/24"],
                "endpoint": { "dnsOrIP": { "dns": "a.example" }, "port": 1 },
                "persistentKeepalive": 25,
                "presharedKey": "c2VjcmV0",
                "publicKey": "OLD",
            },
        })
    }

    fn read(value: Value) -> Peer {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_created_peer_reads_back_as_it_was_wanted() {
        for spec in [
            wanted(Some(at_ip()), 0),
            wanted(Some(at_name()), 25),
            wanted(None, 25),
        ] {
            let written =
                serde_json::to_value(object("prod--a--n1", &labels(), spec.clone())).unwrap();
            assert_eq!(written["kind"], "Peer");
            let facts = peer_facts(&read(written));
            assert_eq!(
                (facts.name.as_str(), &facts.labels, &facts.spec),
                ("prod--a--n1", &labels(), &spec)
            );
        }
    }

    #[test]
    fn a_created_peer_holds_nothing_but_what_is_wanted() {
        let written = serde_json::to_value(object("n", &labels(), wanted(None, 0))).unwrap();
        assert_eq!(
            written["spec"],
            json!({ "allowedIPs": ["10.1.0.0/24"], "publicKey": "KEY" })
        );
    }

    #[test]
    fn a_merge_leaves_what_is_not_ours_alone() {
        for spec in [
            wanted(Some(at_ip()), 0),
            wanted(Some(at_name()), 25),
            wanted(None, 0),
        ] {
            let mut after = stored();
            apply_merge_patch(&mut after, changes([], &labels(), spec.clone()));
            assert_eq!(after["spec"]["presharedKey"], "c2VjcmV0");
            assert_eq!(after["metadata"]["annotations"]["note"], "mine");
            assert_eq!(after["metadata"]["labels"]["team"], "net");
            assert_eq!(after["metadata"]["labels"]["kilo-clustermesh.io/hub"], "h1");
            assert_eq!(
                after["metadata"]["labels"]["kilo-clustermesh.io/mesh"],
                "prod"
            );
            assert_eq!(
                after["spec"].get("endpoint").is_some(),
                spec.endpoint.is_some()
            );
            assert_eq!(
                after["spec"].get("persistentKeepalive").is_some(),
                spec.keepalive != 0
            );
            assert_eq!(peer_facts(&read(after)).spec, spec);
        }
    }

    #[test]
    fn a_patch_names_its_preconditions_and_nulls_what_must_go() {
        let on = Precondition {
            uid: "u1".into(),
            resource_version: "7".into(),
        };
        let spec = |endpoint: Value| {
            let allowed = ["10.1.0.0/24"];
            json!({ "allowedIPs": allowed, "endpoint": endpoint, "persistentKeepalive": null, "publicKey": "KEY" })
        };
        let patch = patch(&on, &labels(), wanted(Some(at_ip()), 0));
        assert_eq!(patch["metadata"]["uid"], "u1");
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert_eq!(
            patch["spec"],
            spec(json!({ "dnsOrIP": { "dns": null, "ip": "198.51.100.1" }, "port": 51820 }))
        );
        assert_eq!(
            changes([], &labels(), wanted(None, 0))["spec"],
            spec(Value::Null)
        );
    }

    #[test]
    fn a_peer_with_missing_or_null_fields_is_still_read() {
        let nulls = json!({ "allowedIPs": null, "endpoint": { "dnsOrIP": null, "port": null }, "persistentKeepalive": null,
            "presharedKey": null, "publicKey": null });
        for spec in [nulls, json!({}), Value::Null] {
            let facts = peer_facts(&read(json!({ "metadata": { "name": "x" }, "spec": spec })));
            assert_eq!(
                (
                    facts.name.as_str(),
                    facts.spec.keepalive,
                    facts.spec.allowed_ips.len()
                ),
                ("x", 0, 0)
            );
        }
        let far = read(
            json!({ "spec": { "endpoint": { "dnsOrIP": { "ip": "192.0.2.1" }, "port": 7_000_000_000_i64 } } }),
        );
        assert_eq!(
            peer_facts(&far).spec.endpoint.map(|endpoint| endpoint.port),
            Some(7_000_000_000)
        );
    }

    #[test]
    fn a_preshared_key_is_carried_but_never_shown() {
        let peer = read(stored());
        assert!(!format!("{peer:?} {peer:#?} {:?}", peer_facts(&peer)).contains("c2VjcmV0"));
        assert_eq!(
            serde_json::to_value(&peer).unwrap()["spec"],
            stored()["spec"]
        );
    }

    #[test]
    fn a_node_is_reduced_to_what_the_core_reads() {
        let node = |spec: Value| -> Node {
            let value = json!({
                "metadata": {
                    "name": "n1", "uid": "u1", "labels": { "topology.kubernetes.io/region": "eu" },
                    "annotations": { "kilo.squat.ai/key": "K", "kilo.squat.ai/cni-compatibility-ip": "x", "key": "no", "other/key": "no" },
                },
                "spec": spec,
                "status": {
                    "addresses": [
                        { "type": "ExternalIP", "address": "198.51.100.1" }, { "type": "InternalIP", "address": "10.0.0.1" },
                        { "type": "Hostname", "address": "n1" }, { "type": "InternalIP", "address": "fd00::1" },
                    ],
                    "conditions": [{ "type": "MemoryPressure", "status": "False" }, { "type": "Ready", "status": "True" }],
                },
            });
            serde_json::from_value(value).unwrap()
        };
        let facts = node_facts(&node(
            json!({ "podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd00:1::/64"] }),
        ));
        assert_eq!(
            facts.kilo,
            BTreeMap::from([("key".to_owned(), "K".to_owned())])
        );
        assert_eq!(
            (facts.internal_ips, facts.external_ips.len(), facts.ready),
            (vec!["10.0.0.1".to_owned(), "fd00::1".to_owned()], 1, true)
        );
        assert_eq!(
            (
                facts.name.as_str(),
                facts.uid.as_str(),
                facts.labels.len(),
                facts.pod_cidrs.len()
            ),
            ("n1", "u1", 1, 2)
        );
        assert_eq!(
            node_facts(&node(json!({ "podCIDR": "10.1.0.0/24", "podCIDRs": [] }))).pod_cidrs,
            ["10.1.0.0/24"]
        );
        assert_eq!(node_facts(&Node::default()), NodeFacts::default());
    }

    #[test]
    fn a_mesh_keeps_its_times_and_annotations() {
        let object: ClusterMesh = serde_json::from_value(json!({
            "apiVersion": "kilo.squat.ai/v1alpha1",
            "kind": "ClusterMesh",
            "metadata": {
                "name": "prod", "creationTimestamp": "1970-01-01T00:01:40Z", "deletionTimestamp": "1970-01-01T00:03:20Z",
                "annotations": { "kilo-clustermesh.io/confirm-deletes": "abc", "kilo-clustermesh.io/take-over-hub": "old" },
            },
            "spec": { "clusters": [
                {
                    "name": "a", "local": true, "kubeconfigSecretRef": { "name": "s", "key": "k" },
                    "serviceCIDR": "10.96.0.0/12", "podCIDRs": null,
                },
            ] },
        }))
        .unwrap();
        let mesh = mesh(&object);
        assert_eq!(mesh.id, MeshId::new("default", "prod"));
        assert_eq!(
            (mesh.created, mesh.deleting, mesh.running),
            (Some(Timestamp(100)), true, None)
        );
        assert_eq!(
            (
                mesh.confirm_deletes.as_deref(),
                mesh.take_over_hub.as_deref()
            ),
            (Some("abc"), Some("old"))
        );
        let expected = RawCluster {
            name: "a".to_owned(),
            local: true,
            kubeconfig_secret: Some(SecretRef {
                name: "s".to_owned(),
                key: Some("k".to_owned()),
            }),
            service_cidr: Some("10.96.0.0/12".to_owned()),
            ..RawCluster::default()
        };
        assert_eq!(mesh.spec.clusters, [expected]);
    }
}
