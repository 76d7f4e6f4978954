//! The status as data: what `status -o json` and `-o yaml` show of the Cilium
//! back end.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use mw_api::cilium::binding::MeshStatus;
use mw_api::cilium::intent::ProbeStatus;
use mw_api::cilium::service::EndpointSummary;
use mw_operator::cilium::{Kind, ObjectGlance, ObjectStatus};
use mw_operator::glance::Glance;
use serde::Serialize;

use crate::output::cilium::status::verdict;
use crate::output::status_report::{Keeper, Ready};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StatusReport {
    provider: Keeper,
    /// Why this may not be all that is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    provider_trouble: Option<String>,
    bindings: Vec<Object>,
    services: Vec<Object>,
    intents: Vec<Object>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Object {
    namespace: String,
    name: String,
    phase: Option<String>,
    ready: Ready,
    deleting: bool,
    last_sync_time: Option<Time>,
    conditions: Vec<Condition>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mesh: Option<String>,
    #[serde(flatten)]
    more: More,
}

/// What a status has beyond that of the other kinds.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", untagged)]
enum More {
    Binding {
        cluster_refs: Vec<String>,
        clusters: Vec<MeshStatus>,
    },
    Service {
        exported_clusters: Vec<String>,
        endpoints: Vec<EndpointSummary>,
    },
    Intent {
        applied_clusters: Vec<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        probe: Option<ProbeStatus>,
    },
}

impl StatusReport {
    pub(crate) fn of(glance: &Glance<ObjectGlance>) -> StatusReport {
        let all = |kind: Kind| glance.objects.iter().filter(|of| of.kind == kind).map(|of| object(glance, of)).collect();
        StatusReport {
            provider: Keeper::of(glance),
            provider_trouble: glance.trouble.as_ref().map(ToString::to_string),
            bindings: all(Kind::Binding),
            services: all(Kind::Service),
            intents: all(Kind::Intent),
        }
    }
}

fn object(glance: &Glance<ObjectGlance>, object: &ObjectGlance) -> Object {
    let more = match &object.status {
        ObjectStatus::Binding(status) => {
            More::Binding { cluster_refs: object.clusters.clone(), clusters: status.mesh_status.clone().unwrap_or_default() }
        }
        ObjectStatus::Service(status) => More::Service {
            exported_clusters: status.exported_clusters.clone().unwrap_or_default(),
            endpoints: status.endpoint_summary.clone().unwrap_or_default(),
        },
        ObjectStatus::Intent(status) => {
            More::Intent { applied_clusters: status.applied_clusters.clone().unwrap_or_default(), probe: status.probe_status.clone() }
        }
    };
    Object {
        namespace: object.namespace.clone(),
        name: object.name.clone(),
        phase: object.status.phase().map(str::to_owned),
        ready: verdict(glance, object).into(),
        deleting: object.deleting,
        last_sync_time: object.status.last_sync().cloned(),
        conditions: object.status.conditions().to_vec(),
        mesh: object.mesh.clone(),
        more,
    }
}
