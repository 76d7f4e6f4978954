//! The status as data, for `status -o json` and `-o yaml`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff;
use mw_api::kilo::clustermesh::{ClusterStatus, HeldDeletes};
use mw_controller::kilo::PublishedMesh;
use mw_controller::published_status::{Published, PublishedLease, PublishedStatus};
use mw_core::kilo::view::{MeshView, PairState};
use serde::Serialize;

use crate::output::kilo::matrix::Matrix;
use crate::output::kilo::status::{Overview, told_matrix};
use crate::output::presence::{Presence, Verdict, presence, presence_words};

#[derive(Debug, Serialize)]
pub(crate) struct StatusReport {
    operator: Keeper,
    /// Reason why the data may be out of date.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
    meshes: Vec<Mesh>,
}

/// The process that writes the status.
#[derive(Debug, Serialize)]
pub(crate) struct Keeper {
    state: &'static str,
    message: String,
    leases: Vec<Lease>,
}

impl Keeper {
    pub(crate) fn of<T: Published>(published_status: &PublishedStatus<T>) -> Keeper {
        Keeper::told(
            (presence(published_status), presence_words(published_status)),
            published_status,
        )
    }

    /// Overrides state and message, if more is known than the Leases tell.
    pub(crate) fn told<T>(
        (presence, message): (Presence, String),
        published_status: &PublishedStatus<T>,
    ) -> Keeper {
        let leases = published_status
            .leases
            .iter()
            .flatten()
            .map(lease)
            .collect();
        Keeper {
            state: presence.as_str(),
            message,
            leases,
        }
    }
}

#[derive(Debug, Serialize)]
struct Lease {
    namespace: String,
    holder: String,
    renewed: Option<Time>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Mesh {
    mesh: String,
    ready: Ready,
    deleting: bool,
    conditions: Vec<Condition>,
    clusters: Vec<ClusterStatus>,
    pairs: Vec<Pair>,
    held_deletes: Vec<HeldDeletes>,
    /// Only with --live.
    #[serde(skip_serializing_if = "Option::is_none")]
    live: Option<Live>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Ready {
    status: bool,
    reason: String,
    message: String,
    since: Option<Time>,
}

#[derive(Debug, Default, Serialize)]
struct Pair {
    source: String,
    target: String,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    create: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    update: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delete: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<usize>,
}

#[derive(Debug, Serialize)]
struct Live {
    ready: Option<Ready>,
    unknown: Vec<Unknown>,
}

#[derive(Debug, Serialize)]
struct Unknown {
    cluster: String,
    message: String,
}

impl From<Verdict> for Ready {
    fn from(verdict: Verdict) -> Ready {
        let Verdict {
            ready,
            reason,
            message,
            since,
        } = verdict;
        Ready {
            status: ready,
            reason,
            message,
            since,
        }
    }
}

impl StatusReport {
    pub(crate) fn of(overview: &Overview<'_>) -> StatusReport {
        let published_status = overview.published_status;
        StatusReport {
            operator: Keeper::of(published_status),
            trouble: published_status.trouble.as_ref().map(ToString::to_string),
            meshes: published_status
                .objects
                .iter()
                .map(|mesh| self::mesh(mesh, overview.views.get(&mesh.id)))
                .collect(),
        }
    }
}

fn lease(lease: &PublishedLease) -> Lease {
    let renewed = lease
        .renewed
        .and_then(|at| jiff::Timestamp::from_second(at.0).ok())
        .map(Time);
    Lease {
        namespace: lease.namespace.clone(),
        holder: lease.holder.clone(),
        renewed,
    }
}

fn mesh(mesh: &PublishedMesh, view: Option<&MeshView>) -> Mesh {
    let matrix = view.map_or_else(|| told_matrix(mesh), Matrix::of_view);
    Mesh {
        mesh: mesh.id.to_string(),
        ready: Verdict::of(mesh).into(),
        deleting: mesh.deleting,
        conditions: mesh.status.conditions.clone().unwrap_or_default(),
        clusters: mesh.status.clusters.clone().unwrap_or_default(),
        pairs: matrix
            .pairs
            .into_iter()
            .map(|((source, target), state)| pair(source, target, state.as_ref()))
            .collect(),
        held_deletes: mesh.status.held_deletes.clone().unwrap_or_default(),
        live: view.map(live),
    }
}

fn pair(source: String, target: String, state: Option<&PairState>) -> Pair {
    let pair = |state| Pair {
        source,
        target,
        state,
        ..Pair::default()
    };
    match state {
        None => pair("untold"),
        Some(PairState::Applied) => pair("applied"),
        Some(PairState::Unknown) => pair("unknown"),
        Some(PairState::Duplicate) => pair("duplicate"),
        Some(PairState::Held(count)) => Pair {
            held: Some(*count),
            ..pair("held")
        },
        Some(PairState::Pending {
            create,
            update,
            delete,
        }) => Pair {
            create: Some(*create),
            update: Some(*update),
            delete: Some(*delete),
            ..pair("pending")
        },
    }
}

fn live(view: &MeshView) -> Live {
    let ready = view.ready.as_ref().map(|ready| Ready {
        status: ready.status,
        reason: ready.reason.to_owned(),
        message: ready.message.clone(),
        since: None,
    });
    let unknown = view.clusters.iter().filter_map(|cluster| {
        let message = cluster.unknown.clone()?;
        Some(Unknown {
            cluster: cluster.name.to_string(),
            message,
        })
    });
    Live {
        ready,
        unknown: unknown.collect(),
    }
}
