//! Status of the Cilium back end as data, for `status -o json` and `-o yaml`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use mw_api::cilium::binding::MeshStatus;
use mw_api::cilium::intent::ProbeStatus;
use mw_api::cilium::service::EndpointSummary;
use mw_controller::cilium::{Kind, ObjectStatus, PublishedObject};
use serde::Serialize;

use crate::output::cilium::status::{keeper, verdict};
use crate::output::cilium::{Overview, View};
use crate::output::kilo::status_report::{Keeper, Ready};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StatusReport {
    provider: Keeper,
    /// Reason why the data may be out of date.
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
    /// Only with --live.
    #[serde(skip_serializing_if = "Option::is_none")]
    live: Option<View>,
    #[serde(flatten)]
    more: More,
}

/// Fields specific to a kind.
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
    pub(crate) fn of(overview: Overview<'_>) -> StatusReport {
        let published_status = overview.published_status;
        let all = |kind: Kind| {
            published_status
                .objects
                .iter()
                .filter(|of| of.kind == kind)
                .map(|of| object(overview, of))
                .collect()
        };
        StatusReport {
            provider: Keeper::told(keeper(published_status), published_status),
            provider_trouble: published_status.trouble.as_ref().map(ToString::to_string),
            bindings: all(Kind::Binding),
            services: all(Kind::Service),
            intents: all(Kind::Intent),
        }
    }
}

fn object(
    Overview {
        published_status,
        views,
    }: Overview<'_>,
    object: &PublishedObject,
) -> Object {
    let more = match &object.status {
        ObjectStatus::Binding(status) => More::Binding {
            cluster_refs: object.clusters.clone(),
            clusters: status.mesh_status.clone().unwrap_or_default(),
        },
        ObjectStatus::Service(status) => More::Service {
            exported_clusters: status.exported_clusters.clone().unwrap_or_default(),
            endpoints: status.endpoint_summary.clone().unwrap_or_default(),
        },
        ObjectStatus::Intent(status) => More::Intent {
            applied_clusters: status.applied_clusters.clone().unwrap_or_default(),
            probe: status.probe_status.clone(),
        },
    };
    Object {
        namespace: object.namespace.clone(),
        name: object.name.clone(),
        phase: object.status.phase().map(str::to_owned),
        ready: verdict(published_status, object).into(),
        deleting: object.deleting,
        last_sync_time: object.status.last_sync().cloned(),
        conditions: object.status.conditions().to_vec(),
        mesh: object.mesh.clone(),
        live: views
            .get(&(object.kind, object.namespace.clone(), object.name.clone()))
            .cloned(),
        more,
    }
}
