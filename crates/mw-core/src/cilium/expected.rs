//! What a binding expects to run in its clusters and nobody here installs:
//! KVStoreMesh and Hubble. It is told in a condition and changes no phase.

use crate::cilium::facts::ClusterSeen;
use crate::cilium::membership::Mesh;
use crate::cilium::plan::{Condition, Status};
use crate::cilium::scene::Scene;
use crate::condition::cilium::{kind, reason};
use crate::text::listed;

const HELM: &str = "helm upgrade cilium cilium/cilium -n kube-system --reuse-values";

pub(super) fn conditions(scene: &Scene<'_>, mesh: &Mesh<'_>) -> Vec<Condition> {
    let spec = &mesh.binding.spec;
    let mut conditions = Vec::new();
    if spec.kvstoremesh {
        let has = |seen: &ClusterSeen| seen.apiserver.known().map(|server| server.as_ref().is_some_and(|server| server.kvstoremesh));
        conditions.push(condition(scene, mesh, kind::KVSTOREMESH_READY, "clustermesh.apiserver.kvstoremesh.enabled=true", has));
    }
    if spec.hubble || spec.hubble_ui {
        let has = |seen: &ClusterSeen| seen.hubble.known().map(|hubble| (!spec.hubble || hubble.relay) && (!spec.hubble_ui || hubble.ui));
        let value = if spec.hubble_ui { "hubble.relay.enabled=true,hubble.ui.enabled=true" } else { "hubble.relay.enabled=true" };
        conditions.push(condition(scene, mesh, kind::HUBBLE_READY, value, has));
    }
    conditions
}

fn condition(scene: &Scene<'_>, mesh: &Mesh<'_>, kind: &'static str, value: &str, has: impl Fn(&ClusterSeen) -> Option<bool>) -> Condition {
    let mut missing = Vec::new();
    let mut unknown = Vec::new();
    for name in &mesh.binding.spec.refs {
        let seen = mesh.binding.common.cluster(name).and_then(|id| scene.world.clusters.get(id));
        match seen.and_then(&has) {
            Some(true) => {}
            Some(false) => missing.push(scene.shown(mesh, name)),
            None => unknown.push(scene.shown(mesh, name)),
        }
    }
    match (missing.is_empty(), unknown.is_empty()) {
        (false, _) => {
            let message = format!("not installed in {}: {HELM} --set {value}", listed(&missing, 20));
            Condition { kind, status: Status::False, reason: reason::NOT_INSTALLED, message }
        }
        (true, false) => {
            let message = format!("not known of {}", listed(&unknown, 20));
            Condition { kind, status: Status::Unknown, reason: reason::NOT_KNOWN, message }
        }
        (true, true) => Condition { kind, status: Status::True, reason: reason::INSTALLED, message: String::new() },
    }
}
