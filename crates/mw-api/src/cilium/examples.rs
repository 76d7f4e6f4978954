//! One example of each kind, as the files under `examples/cilium/`.

use std::collections::BTreeMap;

use kube::core::ObjectMeta;

use crate::cilium::MeshRef;
use crate::cilium::binding::{ClusterMeshBinding, ClusterMeshBindingSpec, ClusterRef, Hubble, MeshConfig};
use crate::cilium::intent::{ConnectivityIntent, ConnectivityIntentSpec, Peer, Port};
use crate::cilium::service::{GlobalService, GlobalServiceSpec, ServiceSelector};
use crate::crd::{YamlError, to_yaml};

pub const BINDING_FILE: &str = "examples/cilium/mesh-binding.yaml";
pub const SERVICE_FILE: &str = "examples/cilium/global-service.yaml";
pub const INTENT_FILE: &str = "examples/cilium/connectivity-intent.yaml";

fn meta(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), namespace: Some("default".to_owned()), ..ObjectMeta::default() }
}

fn mesh_ref() -> MeshRef {
    MeshRef { name: "edge-mesh-eu".to_owned() }
}

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// Two clusters, reached through their load balancers.
pub fn binding() -> ClusterMeshBinding {
    let cluster = |name: &str| ClusterRef { name: name.to_owned() };
    let config = MeshConfig {
        service_type: text("LoadBalancer"),
        enable_kv_store_mesh: Some(true),
        hubble: Some(Hubble { enabled: Some(true), ui: Some(false) }),
    };
    let spec = ClusterMeshBindingSpec { cluster_refs: vec![cluster("cluster-ffm-1"), cluster("cluster-ber-2")], mesh_config: Some(config) };
    ClusterMeshBinding { metadata: meta("edge-mesh-eu"), spec, status: None }
}

/// One Service, on both clusters, with the own endpoints preferred.
pub fn service() -> GlobalService {
    let selector = ServiceSelector { namespace: text("production"), name: text("nginx"), label_selector: None };
    let spec =
        GlobalServiceSpec { mesh_ref: mesh_ref(), selector: Some(selector), affinity: text("local"), ..GlobalServiceSpec::default() };
    GlobalService { metadata: meta("nginx-global"), spec, status: None }
}

/// The front end of any cluster may reach the back end of any cluster.
pub fn intent() -> ConnectivityIntent {
    let port = |number: i64| Port { protocol: text("TCP"), port: Some(number), end_port: None };
    let labels = BTreeMap::from([("role".to_owned(), "web".to_owned())]);
    let spec = ConnectivityIntentSpec {
        mesh_ref: mesh_ref(),
        action: text("Allow"),
        policy_mode: text("Namespaced"),
        source: Some(Peer { namespace: text("production"), name: None, selector: Some(labels) }),
        destination: Some(Peer { namespace: text("production"), name: text("backend"), selector: None }),
        ports: Some(vec![port(8080), port(443)]),
        ..ConnectivityIntentSpec::default()
    };
    ConnectivityIntent { metadata: meta("frontend-to-backend"), spec, status: None }
}

/// The files by their path from the repository's root.
pub fn files() -> Result<Vec<(&'static str, String)>, YamlError> {
    Ok(vec![(BINDING_FILE, to_yaml(&binding())?), (SERVICE_FILE, to_yaml(&service())?), (INTENT_FILE, to_yaml(&intent())?)])
}
