//! The status of a ClusterMeshBinding: rows, phase and conditions, from
//! findings and verified links.

use std::collections::BTreeSet;

use crate::cilium::addons;
use crate::cilium::balancer;
use crate::cilium::context::Context;
use crate::cilium::expiry;
use crate::cilium::facts::ClusterSeen;
use crate::cilium::finding::{Fault, Finding, Step};
use crate::cilium::link::LinkPlan;
use crate::cilium::membership::Mesh;
use crate::cilium::object::Binding;
use crate::cilium::plan::{BindingPhase, BindingPlan, Condition, Link, ObjectOutcome, Row, Status};
use crate::cilium::skew;
use crate::cilium::survey::{survey, unresolved};
use crate::cilium::teardown;
use crate::cilium::verify::Evident;
use crate::condition::cilium::{kind, reason};
use crate::names::ClusterId;
use crate::problem::{Problem, Reason};
use crate::text::{listed, printable};
use crate::time::Timestamp;

/// Time after the keys were written during which a mesh that was never up is
/// connecting.
const BRING_UP_SECONDS: u64 = 60;
/// Texts of clusters and servers are truncated before they reach a status.
const LONGEST_MESSAGE: usize = 1000;
/// Maximum number of rows in a condition's message.
const MOST_TOLD: usize = 20;

/// A finding at a ref, and the ref of the remote where it is about a link.
struct At<'a> {
    row: &'a str,
    remote: Option<&'a str>,
    finding: Finding,
}

/// Number of links by state.
#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    links: usize,
    verified: usize,
    unverifiable: usize,
    awaited: usize,
    in_place: usize,
}

pub(super) fn plan(context: &Context<'_>, mesh: &Mesh<'_>) -> BindingPlan {
    let refs = &mesh.binding.spec.refs;
    let mut found: Vec<At<'_>> = refs
        .iter()
        .flat_map(|name| findings(context, mesh, name))
        .collect();
    found.sort_by_key(|at| at.finding.step);
    let rows: Vec<Row> = refs
        .iter()
        .map(|name| row(context, mesh, name, &found))
        .collect();
    let tally = tally(context, mesh);
    let conflict = context
        .links
        .conflicts
        .contains_key(&mesh.binding.common.id);
    let (phase, unverifiable) = phase(context, mesh, &found, tally, conflict);
    let mut conditions = vec![
        ready(phase, &found, tally, &rows),
        mesh_connected(phase, tally, unverifiable, refs.len()),
        degraded(phase, unverifiable, conflict),
    ];
    conditions.extend(addons::conditions(context, mesh));
    conditions.extend(identity_applied(context, mesh));
    let behind = skew::behind(context, mesh);
    conditions.extend(skew::condition(context, mesh, &behind));
    conditions.extend(expiry::condition(context, mesh));
    let touches = touches(context, mesh);
    let problems = found.iter().map(|at| at.problem(context, mesh)).collect();
    let outcome = ObjectOutcome {
        phase,
        conditions,
        problems,
        touches,
        teardown: None,
    };
    let awaits_dials = tally.awaited > 0 || awaits_a_write(context, mesh);
    BindingPlan {
        outcome,
        rows,
        awaits_dials,
        skew: skew::minors(context, mesh),
        behind,
    }
}

/// The refs to record: all that lead to a cluster, and recorded ones, unless
/// they were removed and nothing of this binding is left there.
fn touches(context: &Context<'_>, mesh: &Mesh<'_>) -> BTreeSet<String> {
    let Binding { common, spec, .. } = mesh.binding;
    let current = spec
        .refs
        .iter()
        .filter(|name| common.cluster(name).is_some());
    let stays = |name: &&String| {
        spec.refs.contains(name) || teardown::binding_waits(context, mesh.binding, name)
    };
    current
        .chain(common.touched.iter().filter(stays))
        .cloned()
        .collect()
}

/// The plan of a binding with an invalid spec.
pub(super) fn refused(
    context: &Context<'_>,
    mesh: &Mesh<'_>,
    problems: Vec<Problem>,
) -> BindingPlan {
    let rows = mesh
        .binding
        .spec
        .refs
        .iter()
        .map(|name| row(context, mesh, name, &[]))
        .collect();
    let told: Vec<String> = problems
        .iter()
        .map(|problem| format!("{} {}", problem.subject, problem.message))
        .collect();
    let message = listed(&told, MOST_TOLD);
    let conditions = vec![
        Condition {
            kind: kind::READY,
            status: Status::False,
            reason: Reason::InvalidSpec.as_str(),
            message: message.clone(),
        },
        Condition {
            kind: kind::MESH_CONNECTED,
            status: Status::False,
            reason: reason::FAILED,
            message,
        },
        degraded(BindingPhase::Error, false, false),
    ];
    let touches = mesh.binding.common.touched.iter().cloned().collect();
    let outcome = ObjectOutcome {
        phase: BindingPhase::Error,
        conditions,
        problems,
        touches,
        teardown: None,
    };
    BindingPlan {
        outcome,
        rows,
        awaits_dials: false,
        ..BindingPlan::default()
    }
}

fn findings<'a>(context: &Context<'_>, mesh: &Mesh<'a>, name: &'a str) -> Vec<At<'a>> {
    let at = |finding: Finding| At {
        row: name,
        remote: None,
        finding,
    };
    let Some(cluster) = mesh.binding.common.cluster(name) else {
        return unresolved(mesh.binding.common.refs.get(name))
            .map(at)
            .into_iter()
            .collect();
    };
    let Some(seen) = context.world.clusters.get(cluster) else {
        return vec![at(Finding::waiting(
            Step::Credentials,
            Reason::ClusterUnreachable,
            "not observed yet",
        ))];
    };
    let mut found: Vec<Finding> = twice(mesh, name, cluster)
        .into_iter()
        .chain(survey(seen, context.world.now))
        .collect();
    found.extend(
        context
            .identities
            .told(cluster, context.rank(mesh))
            .cloned(),
    );
    if found.iter().all(|finding| finding.step != Step::ApiServer) && seen.silent.is_none() {
        let address = context.links.addresses.get(&(cluster.clone(), mesh.reach));
        found.extend(address.and_then(|address| address.as_ref().err().cloned()));
    }
    found.extend(balancer::refused(context.world, mesh, name));
    if context
        .links
        .conflicts
        .get(&mesh.binding.common.id)
        .is_some_and(|remotes| remotes.contains(cluster))
    {
        let text = format!(
            "an older binding uses a different serviceType than {}",
            mesh.reach.as_str()
        );
        found.push(
            Finding::waiting(Step::Keys, Reason::Conflict, text)
                .hint("set the same meshConfig.serviceType in both bindings"),
        );
    }
    let links = neighbours(context, mesh, cluster)
        .into_iter()
        .flat_map(|(remote, plan)| {
            plan.findings.iter().map(move |finding| At {
                row: name,
                remote: Some(remote),
                finding: finding.clone(),
            })
        });
    found.into_iter().map(at).chain(links).collect()
}

fn twice(mesh: &Mesh<'_>, name: &str, cluster: &ClusterId) -> Option<Finding> {
    let other = mesh
        .binding
        .spec
        .refs
        .iter()
        .find(|other| *other != name && mesh.binding.common.cluster(other) == Some(cluster))?;
    let text = format!("is the same cluster as {other}");
    Some(
        Finding::permanent(Step::Identity, Reason::SameClusterTwice, text)
            .hint("remove one of the two refs"),
    )
}

/// The links of a reader, with the refs of the remotes.
fn neighbours<'a, 'b>(
    context: &'b Context<'_>,
    mesh: &Mesh<'a>,
    reader: &ClusterId,
) -> Vec<(&'a str, &'b LinkPlan)> {
    let to = |remote: &&'a ClusterId| {
        let link = Link {
            reader: reader.clone(),
            remote: (*remote).clone(),
        };
        Some((mesh.ref_of(remote)?, context.links.plans.get(&link)?))
    };
    mesh.members().iter().filter_map(to).collect()
}

impl At<'_> {
    fn message(&self, context: &Context<'_>, mesh: &Mesh<'_>) -> String {
        let told = self.finding.message(|other| match mesh.ref_of(other) {
            Some(name) => context.shown(mesh, name),
            None => "another cluster".to_owned(),
        });
        let remote = self
            .remote
            .map(|remote| format!("to {}: ", context.shown(mesh, remote)))
            .unwrap_or_default();
        printable(
            &format!("cluster {}: {remote}{told}", context.shown(mesh, self.row)),
            LONGEST_MESSAGE,
        )
    }

    fn problem(&self, context: &Context<'_>, mesh: &Mesh<'_>) -> Problem {
        self.finding.problem(
            &format!("cluster {}", self.row),
            &self.message(context, mesh),
        )
    }
}

fn row(context: &Context<'_>, mesh: &Mesh<'_>, name: &str, found: &[At<'_>]) -> Row {
    let cluster = mesh.binding.common.cluster(name);
    let seen = cluster.and_then(|cluster| context.world.clusters.get(cluster));
    let agents = seen
        .and_then(|seen| seen.agents.known())
        .and_then(Option::as_ref);
    let messages: Vec<String> = found
        .iter()
        .filter(|at| at.row == name)
        .map(|at| at.message(context, mesh))
        .collect();
    let last_verified = cluster.and_then(|cluster| verified(context, mesh, cluster));
    Row {
        cluster: name.to_owned(),
        id: cluster
            .and_then(|cluster| context.identities.of.get(cluster))
            .and_then(|identity| identity.id),
        connected: last_verified.is_some(),
        ready_nodes: agents.map_or(0, |agents| agents.ready),
        total_nodes: agents.map_or(0, |agents| agents.desired),
        message: Some(messages.join("; ")).filter(|message| !message.is_empty()),
        last_verified,
    }
}

/// The time since which all links from and to a cluster are verified.
fn verified(context: &Context<'_>, mesh: &Mesh<'_>, cluster: &ClusterId) -> Option<Timestamp> {
    let mut oldest = None;
    for (link, plan) in links_of(context, mesh) {
        if link.reader != *cluster && link.remote != *cluster {
            continue;
        }
        let Some(Evident::Verified(at)) = plan.map(|plan| &plan.evident) else {
            return None;
        };
        oldest = Some(oldest.map_or(*at, |oldest: Timestamp| oldest.min(*at)));
    }
    oldest.filter(|_| mesh.is_resolved())
}

fn links_of<'b>(context: &'b Context<'_>, mesh: &Mesh<'_>) -> Vec<(Link, Option<&'b LinkPlan>)> {
    let pairs = crate::cilium::link::pairs(mesh).into_iter();
    let links = pairs.map(|(reader, remote)| Link {
        reader: reader.clone(),
        remote: remote.clone(),
    });
    links
        .map(|link| (link.clone(), context.links.plans.get(&link)))
        .collect()
}

fn tally(context: &Context<'_>, mesh: &Mesh<'_>) -> Tally {
    let refs = mesh.binding.spec.refs.len();
    let mut tally = Tally {
        links: refs * refs.saturating_sub(1),
        ..Tally::default()
    };
    for plan in links_of(context, mesh)
        .into_iter()
        .filter_map(|(_, plan)| plan)
    {
        match plan.evident {
            Evident::Verified(_) => tally.verified += 1,
            Evident::Unverifiable => tally.unverifiable += 1,
            Evident::Awaited => tally.awaited += 1,
            Evident::Not => {}
        }
        tally.in_place += usize::from(plan.in_place);
    }
    tally
}

/// Reports whether an unanswered dial decides whether keys are written.
fn awaits_a_write(context: &Context<'_>, mesh: &Mesh<'_>) -> bool {
    links_of(context, mesh)
        .iter()
        .filter_map(|(link, plan)| Some((link, (*plan)?)))
        .any(|(link, plan)| {
            let answered = |dial: &crate::cilium::plan::Dial| {
                let dialled = context
                    .world
                    .evidence
                    .get(link)
                    .and_then(|evidence| evidence.dial.as_ref());
                dialled.is_some_and(|dialled| dialled.fingerprint == dial.fingerprint)
            };
            plan.dial.as_ref().is_some_and(|dial| !answered(dial))
        })
}

/// The phase, and whether it results from missing evidence only.
fn phase(
    context: &Context<'_>,
    mesh: &Mesh<'_>,
    found: &[At<'_>],
    tally: Tally,
    conflict: bool,
) -> (BindingPhase, bool) {
    let any = |fault: Fault| found.iter().any(|at| at.finding.fault == fault);
    let unverifiable = tally.verified == 0 && tally.unverifiable > 0 && !any(Fault::Permanent);
    if tally.verified == tally.links && !any(Fault::Permanent) {
        return (
            if conflict {
                BindingPhase::Degraded
            } else {
                BindingPhase::Connected
            },
            false,
        );
    }
    if tally.verified > 0 || unverifiable {
        let coming_up = bring_up_ends(context, mesh).is_some();
        return if coming_up {
            (BindingPhase::Connecting, false)
        } else {
            (BindingPhase::Degraded, unverifiable)
        };
    }
    let phase = match (any(Fault::Permanent), any(Fault::NotReady)) {
        (true, _) => BindingPhase::Error,
        (false, true) => BindingPhase::Pending,
        (false, false) => BindingPhase::Connecting,
    };
    (phase, false)
}

/// The time at which a mesh that was never up stops counting as connecting.
pub(super) fn bring_up_ends(context: &Context<'_>, mesh: &Mesh<'_>) -> Option<Timestamp> {
    let secrets = mesh
        .members()
        .into_iter()
        .filter_map(|id| context.world.clusters.get(id)?.secrets.known());
    let written = secrets
        .flat_map(|secrets| secrets.values().filter_map(|secret| secret.written))
        .max()?;
    Some(written.plus(BRING_UP_SECONDS))
        .filter(|end| !mesh.binding.was_up && context.world.now < *end)
}

fn ready(phase: BindingPhase, found: &[At<'_>], tally: Tally, rows: &[Row]) -> Condition {
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
    let message = match told.is_empty() {
        true => format!("{} of {} links are verified", tally.verified, tally.links),
        false => listed(&told, MOST_TOLD),
    };
    Condition {
        kind,
        status: Status::False,
        reason: step.reason(),
        message,
    }
}

fn mesh_connected(
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

fn degraded(phase: BindingPhase, unverifiable: bool, conflict: bool) -> Condition {
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
fn identity_applied(context: &Context<'_>, mesh: &Mesh<'_>) -> Option<Condition> {
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
    let kind = kind::IDENTITY_APPLIED;
    match (set.is_empty(), pending.is_empty()) {
        (true, _) => None,
        (false, true) => Some(Condition {
            kind,
            status: Status::True,
            reason: reason::APPLIED,
            message: String::new(),
        }),
        (false, false) => {
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
            let message = format!(
                "in {}: restart Cilium, and then all workloads: kubectl -n {namespace} rollout restart daemonset/cilium \
                 deployment/cilium-operator deployment/clustermesh-apiserver{reissue}",
                listed(&names, MOST_TOLD)
            );
            Some(Condition {
                kind,
                status: Status::False,
                reason: Reason::RestartRequired.as_str(),
                message,
            })
        }
    }
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
    let check = match clusters.iter().any(uses_admin) {
        true => format!(
            "; then check the admin certificate of Cilium 1.15, which the provider can't read: {}",
            expiry::show_admin_certificate(&context.world.options.cilium_namespace)
        ),
        false => String::new(),
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

/// Reports whether an identity that we set is in effect; `None` if somebody
/// else set it.
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
