//! Example objects of each kind, written to `examples/cilium/`.

use std::collections::BTreeMap;

use kube::core::ObjectMeta;

use crate::cilium::MeshRef;
use crate::cilium::binding::{
    ClusterMeshBinding, ClusterMeshBindingSpec, ClusterRef, Hubble, MeshConfig,
};
use crate::cilium::intent::{ConnectivityIntent, ConnectivityIntentSpec, Peer, Port};
use crate::cilium::service::{GlobalService, GlobalServiceSpec, ServiceSelector};
use crate::crd::{YamlError, to_yaml};

/// Path of the ClusterMeshBinding example from the repository root.
pub const BINDING_FILE: &str = "examples/cilium/mesh-binding.yaml";
/// Path of the GlobalService example from the repository root.
pub const SERVICE_FILE: &str = "examples/cilium/global-service.yaml";
/// Path of the ConnectivityIntent example from the repository root.
pub const INTENT_FILE: &str = "examples/cilium/connectivity-intent.yaml";

fn meta(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some("default".to_owned()),
        ..ObjectMeta::default()
    }
}

fn mesh_ref() -> MeshRef {
    MeshRef {
        name: "edge-mesh-eu".to_owned(),
    }
}

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// Returns a binding of two clusters that reach each other through load balancers.
pub fn binding() -> ClusterMeshBinding {
    let cluster = |name: &str| ClusterRef {
        name: name.to_owned(),
    };
    let config = MeshConfig {
        service_type: text("LoadBalancer"),
        enable_kv_store_mesh: Some(true),
        hubble: Some(Hubble {
            enabled: Some(true),
            ui: Some(false),
        }),
    };
    let spec = ClusterMeshBindingSpec {
        cluster_refs: vec![cluster("cluster-ffm-1"), cluster("cluster-ber-2")],
        mesh_config: Some(config),
    };
    ClusterMeshBinding {
        metadata: meta("edge-mesh-eu"),
        spec,
        status: None,
    }
}

/// Returns a GlobalService that exports one Service from both clusters and prefers
/// local endpoints.
pub fn service() -> GlobalService {
    let selector = ServiceSelector {
        namespace: text("production"),
        name: text("nginx"),
        label_selector: None,
    };
    let spec = GlobalServiceSpec {
        mesh_ref: mesh_ref(),
        selector: Some(selector),
        affinity: text("local"),
        ..GlobalServiceSpec::default()
    };
    GlobalService {
        metadata: meta("nginx-global"),
        spec,
        status: None,
    }
}

/// Returns an intent that allows the front end of any cluster to reach the back end of
/// any cluster.
pub fn intent() -> ConnectivityIntent {
    let port = |number: i64| Port {
        protocol: text("TCP"),
        port: Some(number),
        end_port: None,
    };
    let labels = BTreeMap::from([("role".to_owned(), "web".to_owned())]);
    let spec = ConnectivityIntentSpec {
        mesh_ref: mesh_ref(),
        action: text("Allow"),
        policy_mode: text("Namespaced"),
        source: Some(Peer {
            namespace: text("production"),
            name: None,
            selector: Some(labels),
        }),
        destination: Some(Peer {
            namespace: text("production"),
            name: text("backend"),
            selector: None,
        }),
        ports: Some(vec![port(8080), port(443)]),
        ..ConnectivityIntentSpec::default()
    };
    ConnectivityIntent {
        metadata: meta("frontend-to-backend"),
        spec,
        status: None,
    }
}

/// Returns the example files by their path from the repository root.
pub fn files() -> Result<Vec<(&'static str, String)>, YamlError> {
    Ok(vec![
        (BINDING_FILE, to_yaml(&binding())?),
        (SERVICE_FILE, to_yaml(&service())?),
        (INTENT_FILE, to_yaml(&intent())?),
    ])
}
