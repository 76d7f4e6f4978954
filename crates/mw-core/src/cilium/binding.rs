//! The status of a ClusterMeshBinding: its rows, its phase and its conditions,
//! from what was found and what was verified.

use std::collections::BTreeSet;

use crate::cilium::balancer;
use crate::cilium::expected;
use crate::cilium::finding::{Fault, Finding, Step};
use crate::cilium::link::LinkPlan;
use crate::cilium::membership::Mesh;
use crate::cilium::object::Binding;
use crate::cilium::plan::{BindingPhase, BindingPlan, Condition, Link, Outcome, Row, Status};
use crate::cilium::scene::Scene;
use crate::cilium::survey::{survey, unresolved};
use crate::cilium::teardown;
use crate::cilium::verify::Evident;
use crate::condition::cilium::{kind, reason};
use crate::names::ClusterId;
use crate::problem::{Problem, Reason};
use crate::seen::Seen;
use crate::text::{listed, printable};
use crate::time::Timestamp;

/// For so long after the keys were written a mesh that was never up is on its way.
const BRING_UP_SECONDS: u64 = 60;
/// Texts of clusters and servers are cut before they reach a status.
const LONGEST_MESSAGE: usize = 1000;
/// The most rows that a condition's message tells of.
const MOST_TOLD: usize = 20;

/// A finding at a ref, and the ref of the remote where it is about a link.
struct At<'a> {
    row: &'a str,
    remote: Option<&'a str>,
    finding: Finding,
}

/// How many links there are and what is known of them.
#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    links: usize,
    verified: usize,
    unverifiable: usize,
    awaited: usize,
    in_place: usize,
}

pub(super) fn plan(scene: &Scene<'_>, mesh: &Mesh<'_>) -> BindingPlan {
    let refs = &mesh.binding.spec.refs;
    let mut found: Vec<At<'_>> = refs.iter().flat_map(|name| findings(scene, mesh, name)).collect();
    found.sort_by_key(|at| at.finding.step);
    let rows: Vec<Row> = refs.iter().map(|name| row(scene, mesh, name, &found)).collect();
    let tally = tally(scene, mesh);
    let conflict = scene.links.conflicts.contains_key(&mesh.binding.common.id);
    let (phase, unverifiable) = phase(scene, mesh, &found, tally, conflict);
    let mut conditions = vec![
        ready(phase, &found, tally, &rows),
        mesh_connected(phase, tally, unverifiable, refs.len()),
        degraded(phase, unverifiable, conflict),
    ];
    conditions.extend(expected::conditions(scene, mesh));
    conditions.extend(identity_applied(scene, mesh));
    let touches = touches(scene, mesh);
    let problems = found.iter().map(|at| at.problem(scene, mesh)).collect();
    let outcome = Outcome { phase, conditions, problems, touches, teardown: None };
    BindingPlan { outcome, rows, awaits_dials: tally.awaited > 0 || awaits_a_write(scene, mesh) }
}

/// The refs to note: all that lead somewhere, and those noted before, unless
/// they left and nothing of this binding stands there any more.
fn touches(scene: &Scene<'_>, mesh: &Mesh<'_>) -> BTreeSet<String> {
    let Binding { common, spec, .. } = mesh.binding;
    let current = spec.refs.iter().filter(|name| common.cluster(name).is_some());
    let stays = |name: &&String| spec.refs.contains(name) || teardown::binding_waits(scene, mesh.binding, name);
    current.chain(common.touched.iter().filter(stays)).cloned().collect()
}

/// A binding that can't be acted on.
pub(super) fn refused(scene: &Scene<'_>, mesh: &Mesh<'_>, problems: Vec<Problem>) -> BindingPlan {
    let rows = mesh.binding.spec.refs.iter().map(|name| row(scene, mesh, name, &[])).collect();
    let told: Vec<String> = problems.iter().map(|problem| format!("{} {}", problem.subject, problem.message)).collect();
    let message = listed(&told, MOST_TOLD);
    let conditions = vec![
        Condition { kind: kind::READY, status: Status::False, reason: Reason::InvalidSpec.as_str(), message: message.clone() },
        Condition { kind: kind::MESH_CONNECTED, status: Status::False, reason: reason::FAILED, message },
        degraded(BindingPhase::Error, false, false),
    ];
    let touches = mesh.binding.common.touched.iter().cloned().collect();
    let outcome = Outcome { phase: BindingPhase::Error, conditions, problems, touches, teardown: None };
    BindingPlan { outcome, rows, awaits_dials: false }
}

fn findings<'a>(scene: &Scene<'_>, mesh: &Mesh<'a>, name: &'a str) -> Vec<At<'a>> {
    let at = |finding: Finding| At { row: name, remote: None, finding };
    let Some(cluster) = mesh.binding.common.cluster(name) else {
        return unresolved(mesh.binding.common.refs.get(name)).map(at).into_iter().collect();
    };
    let Some(seen) = scene.world.clusters.get(cluster) else {
        return vec![at(Finding::waiting(Step::Credentials, Reason::ClusterUnreachable, "nothing was seen of it yet"))];
    };
    let mut found: Vec<Finding> = twice(mesh, name, cluster).into_iter().chain(survey(seen, scene.world.now)).collect();
    found.extend(scene.identities.told(cluster, scene.rank(mesh)).cloned());
    if found.iter().all(|finding| finding.step != Step::ApiServer) && seen.silent.is_none() {
        let address = scene.links.addresses.get(&(cluster.clone(), mesh.reach));
        found.extend(address.and_then(|address| address.as_ref().err().cloned()));
    }
    found.extend(balancer::refused(scene.world, mesh, name));
    if scene.links.conflicts.get(&mesh.binding.common.id).is_some_and(|remotes| remotes.contains(cluster)) {
        let text = format!("an older binding reaches it otherwise than by {}", mesh.reach.as_str());
        found.push(Finding::waiting(Step::Keys, Reason::Conflict, text).hint("give both the same meshConfig.serviceType"));
    }
    let links = neighbours(scene, mesh, cluster).into_iter().flat_map(|(remote, plan)| {
        plan.findings.iter().map(move |finding| At { row: name, remote: Some(remote), finding: finding.clone() })
    });
    found.into_iter().map(at).chain(links).collect()
}

fn twice(mesh: &Mesh<'_>, name: &str, cluster: &ClusterId) -> Option<Finding> {
    let other = mesh.binding.spec.refs.iter().find(|other| *other != name && mesh.binding.common.cluster(other) == Some(cluster))?;
    let text = format!("leads to the same cluster as {other}");
    Some(Finding::permanent(Step::Identity, Reason::SameClusterTwice, text).hint("remove one of the two refs"))
}

/// The links of a reader, with the refs of the remotes.
fn neighbours<'a, 'b>(scene: &'b Scene<'_>, mesh: &Mesh<'a>, reader: &ClusterId) -> Vec<(&'a str, &'b LinkPlan)> {
    let to = |remote: &&'a ClusterId| {
        let link = Link { reader: reader.clone(), remote: (*remote).clone() };
        Some((mesh.ref_of(remote)?, scene.links.plans.get(&link)?))
    };
    mesh.members().iter().filter_map(to).collect()
}

impl At<'_> {
    fn message(&self, scene: &Scene<'_>, mesh: &Mesh<'_>) -> String {
        let told = self.finding.message(|other| match mesh.ref_of(other) {
            Some(name) => scene.shown(mesh, name),
            None => "another cluster".to_owned(),
        });
        let remote = self.remote.map(|remote| format!("to {}: ", scene.shown(mesh, remote))).unwrap_or_default();
        printable(&format!("cluster {}: {remote}{told}", scene.shown(mesh, self.row)), LONGEST_MESSAGE)
    }

    fn problem(&self, scene: &Scene<'_>, mesh: &Mesh<'_>) -> Problem {
        self.finding.problem(&format!("cluster {}", self.row), &self.message(scene, mesh))
    }
}

fn row(scene: &Scene<'_>, mesh: &Mesh<'_>, name: &str, found: &[At<'_>]) -> Row {
    let cluster = mesh.binding.common.cluster(name);
    let seen = cluster.and_then(|cluster| scene.world.clusters.get(cluster));
    let agents = seen.and_then(|seen| seen.agents.known()).and_then(Option::as_ref);
    let messages: Vec<String> = found.iter().filter(|at| at.row == name).map(|at| at.message(scene, mesh)).collect();
    let last_verified = cluster.and_then(|cluster| verified(scene, mesh, cluster));
    Row {
        cluster: name.to_owned(),
        id: cluster.and_then(|cluster| scene.identities.of.get(cluster)).and_then(|identity| identity.id),
        connected: last_verified.is_some(),
        ready_nodes: agents.map_or(0, |agents| agents.ready),
        total_nodes: agents.map_or(0, |agents| agents.desired),
        message: Some(messages.join("; ")).filter(|message| !message.is_empty()),
        last_verified,
    }
}

/// Since when all links from and to a cluster are known to work.
fn verified(scene: &Scene<'_>, mesh: &Mesh<'_>, cluster: &ClusterId) -> Option<Timestamp> {
    let mut oldest = None;
    for (link, plan) in links_of(scene, mesh) {
        if link.reader != *cluster && link.remote != *cluster {
            continue;
        }
        let Some(Evident::Verified(at)) = plan.map(|plan| &plan.evident) else { return None };
        oldest = Some(oldest.map_or(*at, |oldest: Timestamp| oldest.min(*at)));
    }
    oldest.filter(|_| mesh.is_resolved())
}

fn links_of<'b>(scene: &'b Scene<'_>, mesh: &Mesh<'_>) -> Vec<(Link, Option<&'b LinkPlan>)> {
    let pairs = crate::cilium::link::pairs(mesh).into_iter();
    let links = pairs.map(|(reader, remote)| Link { reader: reader.clone(), remote: remote.clone() });
    links.map(|link| (link.clone(), scene.links.plans.get(&link))).collect()
}

fn tally(scene: &Scene<'_>, mesh: &Mesh<'_>) -> Tally {
    let refs = mesh.binding.spec.refs.len();
    let mut tally = Tally { links: refs * refs.saturating_sub(1), ..Tally::default() };
    for plan in links_of(scene, mesh).into_iter().filter_map(|(_, plan)| plan) {
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

/// A dial whose answer decides whether keys are written.
fn awaits_a_write(scene: &Scene<'_>, mesh: &Mesh<'_>) -> bool {
    links_of(scene, mesh).iter().filter_map(|(link, plan)| Some((link, (*plan)?))).any(|(link, plan)| {
        let answered = |dial: &crate::cilium::plan::Dial| {
            let dialled = scene.world.evidence.get(link).and_then(|evidence| evidence.dial.as_ref());
            dialled.is_some_and(|dialled| dialled.fingerprint == dial.fingerprint)
        };
        plan.dial.as_ref().is_some_and(|dial| !answered(dial))
    })
}

/// The phase, and whether it is for want of any evidence.
fn phase(scene: &Scene<'_>, mesh: &Mesh<'_>, found: &[At<'_>], tally: Tally, conflict: bool) -> (BindingPhase, bool) {
    let any = |fault: Fault| found.iter().any(|at| at.finding.fault == fault);
    let unverifiable = tally.verified == 0 && tally.unverifiable > 0 && !any(Fault::Permanent);
    if tally.verified == tally.links && !any(Fault::Permanent) {
        return (if conflict { BindingPhase::Degraded } else { BindingPhase::Connected }, false);
    }
    if tally.verified > 0 || unverifiable {
        let coming_up = bring_up_ends(scene, mesh).is_some();
        return if coming_up { (BindingPhase::Connecting, false) } else { (BindingPhase::Degraded, unverifiable) };
    }
    let phase = match (any(Fault::Permanent), any(Fault::NotReady)) {
        (true, _) => BindingPhase::Error,
        (false, true) => BindingPhase::Pending,
        (false, false) => BindingPhase::Connecting,
    };
    (phase, false)
}

/// Until when a mesh that was never up counts as coming up.
pub(super) fn bring_up_ends(scene: &Scene<'_>, mesh: &Mesh<'_>) -> Option<Timestamp> {
    let secrets = mesh.members().into_iter().filter_map(|id| scene.world.clusters.get(id)?.secrets.known());
    let written = secrets.flat_map(|secrets| secrets.values().filter_map(|secret| secret.written)).max()?;
    Some(written.plus(BRING_UP_SECONDS)).filter(|end| !mesh.binding.was_up && scene.world.now < *end)
}

fn ready(phase: BindingPhase, found: &[At<'_>], tally: Tally, rows: &[Row]) -> Condition {
    let kind = kind::READY;
    if phase == BindingPhase::Connected {
        return Condition { kind, status: Status::True, reason: reason::CONNECTED, message: "every link is verified".to_owned() };
    }
    let first = found.iter().find(|at| at.finding.fault != Fault::Remark).map(|at| at.finding.step);
    let step = first.unwrap_or(if tally.in_place == tally.links { Step::Verify } else { Step::Keys });
    let told: Vec<&str> = rows.iter().filter_map(|row| row.message.as_deref()).collect();
    let message = match told.is_empty() {
        true => format!("{} of {} links are verified", tally.verified, tally.links),
        false => listed(&told, MOST_TOLD),
    };
    Condition { kind, status: Status::False, reason: step.reason(), message }
}

fn mesh_connected(phase: BindingPhase, tally: Tally, unverifiable: bool, clusters: usize) -> Condition {
    let kind = kind::MESH_CONNECTED;
    let verified = format!("{} of {} links are verified", tally.verified, tally.links);
    let no = |reason: &'static str| Condition { kind, status: Status::False, reason, message: verified.clone() };
    match phase {
        _ if tally.verified == tally.links => {
            let message = format!("Mesh established between {clusters} clusters");
            Condition { kind, status: Status::True, reason: reason::MESH_ESTABLISHED, message }
        }
        BindingPhase::Degraded if unverifiable => {
            let message = "the keys are written, but no link can be verified by anyone".to_owned();
            Condition { kind, status: Status::Unknown, reason: Reason::NotVerifiable.as_str(), message }
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
    Condition { kind, status: is.into(), reason, message: String::new() }
}

/// Whether what we set of an identity is in force; nothing where we set nothing.
fn identity_applied(scene: &Scene<'_>, mesh: &Mesh<'_>) -> Option<Condition> {
    let set: Vec<(&str, bool)> = mesh.members().into_iter().filter_map(|id| Some((mesh.ref_of(id)?, in_force(scene, id)?))).collect();
    let pending: BTreeSet<&str> = set.iter().filter(|(_, in_force)| !in_force).map(|(name, _)| *name).collect();
    let kind = kind::IDENTITY_APPLIED;
    match (set.is_empty(), pending.is_empty()) {
        (true, _) => None,
        (false, true) => Some(Condition { kind, status: Status::True, reason: reason::APPLIED, message: String::new() }),
        (false, false) => {
            let names: Vec<String> = pending.iter().map(|name| scene.shown(mesh, name)).collect();
            let reissues: Vec<String> = pending.iter().filter_map(|name| reissue(scene, mesh.binding.common.cluster(name)?)).collect();
            let reissue = match reissues.is_empty() {
                true => String::new(),
                false => format!("; first reissue the certificates, which may carry another name: {}", listed(&reissues, MOST_TOLD)),
            };
            let namespace = &scene.world.options.cilium_namespace;
            let message = format!(
                "in {}: restart Cilium, and then all workloads: kubectl -n {namespace} rollout restart daemonset/cilium \
                 deployment/cilium-operator deployment/clustermesh-apiserver{reissue}",
                listed(&names, MOST_TOLD)
            );
            Some(Condition { kind, status: Status::False, reason: Reason::RestartRequired.as_str(), message })
        }
    }
}

/// The command that reissues certificates which may be for another name. It
/// sets the identity too: without it Helm would put the former one back.
fn reissue(scene: &Scene<'_>, cluster: &ClusterId) -> Option<String> {
    let (name, id) = scene.identities.full(cluster)?;
    let certificates = scene.world.clusters.get(cluster)?.certificates.known()?;
    let issued = [("local-", &certificates.local), ("remote-", &certificates.remote)];
    let stale = issued.into_iter().any(|(kind, of)| {
        of.known().and_then(Option::as_ref).and_then(|of| of.common_name.strip_prefix(kind)).is_some_and(|to| to != name.as_str())
    });
    // Cilium 1.15 has no local certificate, and that of the admin is not read.
    let unseen = matches!(certificates.local, Seen::Known(None));
    let namespace = &scene.world.options.cilium_namespace;
    let helm = "helm upgrade cilium cilium/cilium";
    (stale || unseen).then(|| format!("{helm} -n {namespace} --reuse-values --set cluster.name={name} --set cluster.id={id}"))
}

/// Whether an identity that we set is in force; nothing where somebody else did.
fn in_force(scene: &Scene<'_>, cluster: &ClusterId) -> Option<bool> {
    let seen = scene.world.clusters.get(cluster)?;
    let set = seen.config.known()?.as_ref()?.set_by_us?;
    let started = seen.agents.known().and_then(Option::as_ref).and_then(|agents| agents.oldest_start);
    let mut readers = scene.links.plans.iter().filter(|(link, _)| link.remote == *cluster);
    let read = readers.any(|(_, plan)| matches!(plan.evident, Evident::Verified(_)));
    Some(read && started.is_some_and(|started| started >= set))
}
