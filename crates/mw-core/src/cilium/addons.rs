//! Components that a binding expects in its clusters and that meshwright does
//! not install: KVStoreMesh and Hubble. Reported in conditions, without effect
//! on the phase.

use crate::cilium::context::Context;
use crate::cilium::facts::ClusterSeen;
use crate::cilium::membership::Mesh;
use crate::cilium::plan::{Condition, Status};
use crate::condition::cilium::{kind, reason};
use crate::text::listed;

const HELM: &str = "helm upgrade cilium cilium/cilium -n kube-system --reuse-values";

pub(super) fn conditions(context: &Context<'_>, mesh: &Mesh<'_>) -> Vec<Condition> {
    let spec = &mesh.binding.spec;
    let mut conditions = Vec::new();
    if spec.kvstoremesh {
        let has = |seen: &ClusterSeen| {
            seen.apiserver
                .known()
                .map(|server| server.as_ref().is_some_and(|server| server.kvstoremesh))
        };
        conditions.push(condition(
            context,
            mesh,
            kind::KVSTOREMESH_READY,
            "clustermesh.apiserver.kvstoremesh.enabled=true",
            has,
        ));
    }
    if spec.hubble || spec.hubble_ui {
        let has = |seen: &ClusterSeen| {
            seen.hubble
                .known()
                .map(|hubble| (!spec.hubble || hubble.relay) && (!spec.hubble_ui || hubble.ui))
        };
        let value = if spec.hubble_ui {
            "hubble.relay.enabled=true,hubble.ui.enabled=true"
        } else {
            "hubble.relay.enabled=true"
        };
        conditions.push(condition(context, mesh, kind::HUBBLE_READY, value, has));
    }
    conditions
}

fn condition(
    context: &Context<'_>,
    mesh: &Mesh<'_>,
    kind: &'static str,
    value: &str,
    has: impl Fn(&ClusterSeen) -> Option<bool>,
) -> Condition {
    let mut missing = Vec::new();
    let mut unknown = Vec::new();
    for name in &mesh.binding.spec.refs {
        let seen = mesh
            .binding
            .common
            .cluster(name)
            .and_then(|id| context.world.clusters.get(id));
        match seen.and_then(&has) {
            Some(true) => {}
            Some(false) => missing.push(context.shown(mesh, name)),
            None => unknown.push(context.shown(mesh, name)),
        }
    }
    match (missing.is_empty(), unknown.is_empty()) {
        (false, _) => {
            let message = format!(
                "not installed in {}: {HELM} --set {value}",
                listed(&missing, 20)
            );
            Condition {
                kind,
                status: Status::False,
                reason: reason::NOT_INSTALLED,
                message,
            }
        }
        (true, false) => {
            let message = format!("unknown for {}", listed(&unknown, 20));
            Condition {
                kind,
                status: Status::Unknown,
                reason: reason::NOT_KNOWN,
                message,
            }
        }
        (true, true) => Condition {
            kind,
            status: Status::True,
            reason: reason::INSTALLED,
            message: String::new(),
        },
    }
}
