//! Conversions from the three custom resources to the core's objects. The caller fills
//! `refs`: resolving references needs other objects.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use mw_core::cilium::object::{
    Binding, BindingSpec, Common, GlobalService as CoreService, Intent, IntentSpec, ObjectId,
    PeerSpec, PortSpec, ServiceSpec,
};

use crate::cilium::ANNOTATION_TOUCHED;
use crate::cilium::binding::{ClusterMeshBinding, ClusterMeshBindingSpec, MeshConfig};
use crate::cilium::intent::{ConnectivityIntent, ConnectivityIntentSpec, Peer, Port, Probe};
use crate::cilium::service::{GlobalService, GlobalServiceSpec, ServiceSelector};
use crate::time::timestamp;

/// Converts a ClusterMeshBinding. The caller fills `elb_ids`, which come from the
/// KubernetesClusters.
pub fn binding(workspace: &str, object: &ClusterMeshBinding) -> Binding {
    let ClusterMeshBindingSpec {
        cluster_refs,
        mesh_config,
    } = &object.spec;
    let MeshConfig {
        service_type,
        enable_kv_store_mesh,
        hubble,
    } = mesh_config.clone().unwrap_or_default();
    let hubble = hubble.unwrap_or_default();
    let phase = object
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    Binding {
        common: common(workspace, object.meta()),
        spec: BindingSpec {
            refs: cluster_refs.iter().map(|of| of.name.clone()).collect(),
            service_type,
            kvstoremesh: enable_kv_store_mesh.unwrap_or_default(),
            hubble: hubble.enabled.unwrap_or_default(),
            hubble_ui: hubble.ui.unwrap_or_default(),
            elb_ids: BTreeMap::new(),
        },
        was_up: matches!(phase, Some("Connected" | "Degraded")),
    }
}

/// Converts a GlobalService.
pub fn global_service(workspace: &str, object: &GlobalService) -> CoreService {
    let GlobalServiceSpec {
        mesh_ref,
        selector,
        target_clusters,
        global_annotations,
        shared,
        affinity,
    } = object.spec.clone();
    let ServiceSelector {
        namespace,
        name,
        label_selector,
    } = selector.unwrap_or_default();
    CoreService {
        common: common(workspace, object.meta()),
        spec: ServiceSpec {
            mesh: mesh_ref.name,
            namespace,
            name,
            labels: label_selector,
            targets: target_clusters.unwrap_or_default(),
            annotations: global_annotations.unwrap_or_default(),
            shared,
            affinity,
        },
    }
}

/// Converts a ConnectivityIntent.
pub fn intent(workspace: &str, object: &ConnectivityIntent) -> Intent {
    let ConnectivityIntentSpec {
        mesh_ref,
        action,
        policy_mode,
        source,
        destination,
        ports,
        probe,
        isolate,
    } = object.spec.clone();
    let Probe {
        enabled,
        interval_seconds,
    } = probe.unwrap_or_default();
    Intent {
        common: common(workspace, object.meta()),
        spec: IntentSpec {
            mesh: mesh_ref.name,
            action,
            mode: policy_mode,
            source: peer(source),
            destination: peer(destination),
            ports: ports.unwrap_or_default().into_iter().map(port).collect(),
            probe: enabled.unwrap_or_default(),
            probe_interval: interval_seconds,
            isolate,
        },
    }
}

fn peer(peer: Option<Peer>) -> PeerSpec {
    let Peer {
        namespace,
        name,
        selector,
    } = peer.unwrap_or_default();
    PeerSpec {
        namespace,
        name,
        selector,
    }
}

fn port(port: Port) -> PortSpec {
    let Port {
        protocol,
        port,
        end_port,
    } = port;
    PortSpec {
        protocol,
        port,
        end_port,
    }
}

fn common(workspace: &str, meta: &ObjectMeta) -> Common {
    let annotation = |key: &str| {
        meta.annotations
            .as_ref()
            .and_then(|all| all.get(key))
            .map(String::as_str)
    };
    let touched = annotation(ANNOTATION_TOUCHED)
        .unwrap_or_default()
        .split(',')
        .map(str::trim);
    Common {
        id: ObjectId::new(
            workspace,
            meta.namespace.as_deref().unwrap_or("default"),
            meta.name.as_deref().unwrap_or_default(),
        ),
        created: meta.creation_timestamp.as_ref().map(timestamp),
        deleting: meta.deletion_timestamp.as_ref().map(timestamp),
        refs: BTreeMap::new(),
        lost: BTreeMap::new(),
        lost_uids: BTreeMap::new(),
        touched: touched
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mw_core::time::Timestamp;
    use serde_json::{Value, json};

    fn object(kind: &str, spec: Value) -> Value {
        let metadata = json!({
            "name": "x", "namespace": "net", "creationTimestamp": "1970-01-01T00:01:40Z", "deletionTimestamp": "1970-01-01T00:03:20Z",
            "annotations": { ANNOTATION_TOUCHED: "a, b,,c" },
        });
        json!({ "apiVersion": "networking.edge-portal.eu/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec })
    }

    #[test]
    fn a_binding_keeps_its_refs_in_order_and_its_times() {
        let spec = json!({ "clusterRefs": [{ "name": "b" }, { "name": "a" }],
            "meshConfig": { "serviceType": "NodePort", "enableKvStoreMesh": true, "hubble": { "enabled": true, "ui": true } } });
        let mut value = object("ClusterMeshBinding", spec);
        value["status"] = json!({ "phase": "Degraded" });
        let binding = binding("w1", &serde_json::from_value(value).unwrap());
        assert_eq!(binding.common.id, ObjectId::new("w1", "net", "x"));
        assert_eq!(
            (binding.common.created, binding.common.deleting),
            (Some(Timestamp(100)), Some(Timestamp(200)))
        );
        assert_eq!(binding.common.touched, ["a", "b", "c"]);
        assert_eq!(
            (binding.spec.refs.as_slice(), binding.was_up),
            (&["b".to_owned(), "a".to_owned()][..], true)
        );
        assert_eq!(binding.spec.service_type.as_deref(), Some("NodePort"));
        assert!(binding.spec.kvstoremesh && binding.spec.hubble && binding.spec.hubble_ui);
    }

    #[test]
    fn a_global_service_keeps_every_field() {
        let spec = json!({ "meshRef": { "name": "m" }, "selector": { "namespace": "n", "name": "s", "labelSelector": { "a": "b" } },
            "targetClusters": ["a"], "globalAnnotations": { "k": "v" }, "shared": false, "affinity": "local" });
        let service = global_service(
            "w1",
            &serde_json::from_value(object("GlobalService", spec)).unwrap(),
        );
        let text = |text: &str| Some(text.to_owned());
        let map = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let expected = ServiceSpec {
            mesh: "m".to_owned(),
            namespace: text("n"),
            name: text("s"),
            labels: Some(map("a", "b")),
            targets: vec!["a".to_owned()],
            annotations: map("k", "v"),
            shared: Some(false),
            affinity: text("local"),
        };
        assert_eq!(service.spec, expected);
        let bare = global_service(
            "w1",
            &serde_json::from_value(object(
                "GlobalService",
                json!({ "meshRef": { "name": "m" } }),
            ))
            .unwrap(),
        );
        assert_eq!(
            bare.spec,
            ServiceSpec {
                mesh: "m".to_owned(),
                ..ServiceSpec::default()
            }
        );
    }

    #[test]
    fn an_intent_keeps_every_field() {
        let spec = json!({ "meshRef": { "name": "m" }, "action": "Deny", "policyMode": "Clusterwide", "isolate": false,
            "source": { "namespace": "n", "name": "s" }, "destination": { "selector": { "a": "b" } },
            "ports": [{ "protocol": "TCP", "port": 1, "endPort": 2 }], "probe": { "enabled": true, "intervalSeconds": 30 } });
        let intent = intent(
            "w1",
            &serde_json::from_value(object("ConnectivityIntent", spec)).unwrap(),
        );
        let text = |text: &str| Some(text.to_owned());
        let expected = IntentSpec {
            mesh: "m".to_owned(),
            action: text("Deny"),
            mode: text("Clusterwide"),
            source: PeerSpec {
                namespace: text("n"),
                name: text("s"),
                selector: None,
            },
            destination: PeerSpec {
                selector: Some(BTreeMap::from([("a".to_owned(), "b".to_owned())])),
                ..PeerSpec::default()
            },
            ports: vec![PortSpec {
                protocol: text("TCP"),
                port: Some(1),
                end_port: Some(2),
            }],
            probe: true,
            probe_interval: Some(30),
            isolate: Some(false),
        };
        assert_eq!(intent.spec, expected);
    }
}
