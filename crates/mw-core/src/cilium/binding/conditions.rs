//! The conditions of a binding.

use std::collections::BTreeSet;

use crate::cilium::binding::{At, MOST_TOLD, Tally};
use crate::cilium::context::Context;
use crate::cilium::expiry;
use crate::cilium::facts::ClusterSeen;
use crate::cilium::finding::{Fault, Step};
use crate::cilium::membership::Mesh;
use crate::cilium::plan::{BindingPhase, Condition, Row, Status};
use crate::cilium::verify::Evident;
use crate::condition::cilium::{kind, reason};
use crate::names::ClusterId;
use crate::problem::Reason;
use crate::text::listed;

pub(super) fn ready(
    phase: BindingPhase,
    found: &[At<'_>],
    tally: Tally,
    rows: &[Row],
) -> Condition {
    let kind = kind::READY;
    if phase == BindingPhase::Connected {
        return Condition {
            kind,
            status: Status::True,
            reason: reason::CONNECTED,
            message: "all links are verified".to_owned(),
        };
    }
    let first = found
        .iter()
        .find(|at| at.finding.fault != Fault::Remark)
        .map(|at| at.finding.step);
    let step = first.unwrap_or(if tally.in_place == tally.links {
        Step::Verify
    } else {
        Step::Keys
    });
    let told: Vec<&str> = rows
        .iter()
        .filter_map(|row| row.message.as_deref())
        .collect();
    let message = if told.is_empty() {
        format!("{} of {} links are verified", tally.verified, tally.links)
    } else {
        listed(&told, MOST_TOLD)
    };
    Condition {
        kind,
        status: Status::False,
        reason: step.reason(),
        message,
    }
}

pub(super) fn mesh_connected(
    phase: BindingPhase,
    tally: Tally,
    unverifiable: bool,
    clusters: usize,
) -> Condition {
    let kind = kind::MESH_CONNECTED;
    let verified = format!("{} of {} links are verified", tally.verified, tally.links);
    let no = |reason: &'static str| Condition {
        kind,
        status: Status::False,
        reason,
        message: verified.clone(),
    };
    match phase {
        _ if tally.verified == tally.links => {
            let message = format!("Mesh established between {clusters} clusters");
            Condition {
                kind,
                status: Status::True,
                reason: reason::MESH_ESTABLISHED,
                message,
            }
        }
        BindingPhase::Degraded if unverifiable => {
            let message = "the keys are written, but no link can be verified".to_owned();
            Condition {
                kind,
                status: Status::Unknown,
                reason: Reason::NotVerifiable.as_str(),
                message,
            }
        }
        BindingPhase::Degraded => no(reason::PARTIAL),
        BindingPhase::Error => no(reason::FAILED),
        _ => no(reason::CONNECTING),
    }
}

pub(super) fn degraded(phase: BindingPhase, unverifiable: bool, conflict: bool) -> Condition {
    let kind = kind::DEGRADED;
    let (is, reason) = match phase {
        BindingPhase::Degraded if conflict => (true, Reason::Conflict.as_str()),
        BindingPhase::Degraded if unverifiable => (true, Reason::NotVerifiable.as_str()),
        BindingPhase::Degraded => (true, reason::PARTIAL),
        _ => (false, reason::NOT_DEGRADED),
    };
    Condition {
        kind,
        status: is.into(),
        reason,
        message: String::new(),
    }
}

/// Reports whether an identity that we set is in effect; `None` if we set none.
pub(super) fn identity_applied(context: &Context<'_>, mesh: &Mesh<'_>) -> Option<Condition> {
    let set: Vec<(&str, bool)> = mesh
        .members()
        .into_iter()
        .filter_map(|id| Some((mesh.ref_of(id)?, in_force(context, id)?)))
        .collect();
    let pending: BTreeSet<&str> = set
        .iter()
        .filter(|(_, in_force)| !in_force)
        .map(|(name, _)| *name)
        .collect();
    if set.is_empty() {
        return None;
    }
    let kind = kind::IDENTITY_APPLIED;
    Some(if pending.is_empty() {
        Condition {
            kind,
            status: Status::True,
            reason: reason::APPLIED,
            message: String::new(),
        }
    } else {
        Condition {
            kind,
            status: Status::False,
            reason: Reason::RestartRequired.as_str(),
            message: restart(context, mesh, &pending),
        }
    })
}

/// The commands that put a new identity into effect in these clusters.
fn restart(context: &Context<'_>, mesh: &Mesh<'_>, pending: &BTreeSet<&str>) -> String {
    let names: Vec<String> = pending
        .iter()
        .map(|name| context.shown(mesh, name))
        .collect();
    let clusters: Vec<&ClusterId> = pending
        .iter()
        .filter_map(|name| mesh.binding.common.cluster(name))
        .collect();
    let reissue = reissue_first(context, &clusters);
    let namespace = &context.world.options.cilium_namespace;
    format!(
        "in {}: restart Cilium, and then all workloads: kubectl -n {namespace} rollout restart daemonset/cilium \
         deployment/cilium-operator deployment/clustermesh-apiserver{reissue}",
        listed(&names, MOST_TOLD)
    )
}

/// The commands to run before the restart, for clusters whose certificates may
/// carry another name.
fn reissue_first(context: &Context<'_>, clusters: &[&ClusterId]) -> String {
    let reissues: Vec<String> = clusters
        .iter()
        .filter_map(|cluster| reissue(context, cluster))
        .collect();
    if reissues.is_empty() {
        return String::new();
    }
    let uses_admin = |cluster: &&ClusterId| {
        let seen = context.world.clusters.get(*cluster);
        seen.is_some_and(ClusterSeen::uses_admin_certificate)
    };
    let check = if clusters.iter().any(uses_admin) {
        format!(
            "; then check the admin certificate of Cilium 1.15, which the provider can't read: {}",
            expiry::show_admin_certificate(&context.world.options.cilium_namespace)
        )
    } else {
        String::new()
    };
    format!(
        "; first reissue the certificates, which may carry another name: {}{check}",
        listed(&reissues, MOST_TOLD)
    )
}

/// The command that reissues certificates that may carry another name. It sets
/// the identity too: otherwise Helm would restore the previous one.
fn reissue(context: &Context<'_>, cluster: &ClusterId) -> Option<String> {
    let (name, id) = context.identities.full(cluster)?;
    let seen = context.world.clusters.get(cluster)?;
    let certificates = seen.certificates.known()?;
    let issued = [
        ("local-", &certificates.local),
        ("remote-", &certificates.remote),
    ];
    let stale = issued.into_iter().any(|(kind, of)| {
        of.known()
            .and_then(Option::as_ref)
            .and_then(|of| of.common_name.strip_prefix(kind))
            .is_some_and(|to| to != name.as_str())
    });
    let unseen = seen.uses_admin_certificate() || certificates.lacks_local();
    let namespace = &context.world.options.cilium_namespace;
    let helm = "helm upgrade cilium cilium/cilium";
    (stale || unseen).then(|| {
        format!(
            "{helm} -n {namespace} --reuse-values --set cluster.name={name} --set cluster.id={id}"
        )
    })
}

/// Reports whether an identity that we set is in effect; `None` if we did not
/// set it.
fn in_force(context: &Context<'_>, cluster: &ClusterId) -> Option<bool> {
    let seen = context.world.clusters.get(cluster)?;
    let set = seen.config.known()?.as_ref()?.set_by_us?;
    let started = seen
        .agents
        .known()
        .and_then(Option::as_ref)
        .and_then(|agents| agents.oldest_start);
    let mut readers = context
        .links
        .plans
        .iter()
        .filter(|(link, _)| link.remote == *cluster);
    let read = readers.any(|(_, plan)| matches!(plan.evident, Evident::Verified(_)));
    Some(read && started.is_some_and(|started| started >= set))
}
