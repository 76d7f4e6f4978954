//! `meshwright plan`

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use mw_core::kilo::plan::{Condition, Plan};
use mw_core::kilo::planner::{ClusterSeen, Options, World};
use mw_core::kilo::spec::duration_seconds;
use mw_core::kilo::{Absent, Departures, Orphans};
use mw_core::names::{ClusterId, ClusterName, MeshId};
use mw_core::problem::{Problem, Reason};
use mw_core::seen::Seen;
use mw_core::text::{listed, printable};
use mw_core::time::Timestamp;

use crate::answer::Answer;
use crate::commands::cilium_plan::{self, Request};
use crate::commands::live::{self, Circumstances, HubArgs};
use crate::input::back_end::{BackEnd, back_end};
use crate::input::finding::{self, Finding};
use crate::input::fleet::{self, Fleet};
use crate::input::meshes::{self, Declared};
use crate::input::object::{Opened, open_all};
use crate::input::source::{Contents, Reader};
use crate::output::{self, Format, Planned};

/// Show what would be created, updated and deleted in each cluster: live, or from files alone.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// Name of a ClusterMesh on the hub, to plan it live. Nothing is written.
    #[arg(value_name = "NAME", required_unless_present_any = ["files", "namespace", "all_namespaces"])]
    name: Option<String>,

    /// File with ClusterMesh objects, or with those of the Cilium back end, YAML or JSON; may be
    /// repeated; "-" reads standard input.
    #[arg(short = 'f', long = "filename", value_name = "FILE", conflicts_with_all = LIVE)]
    files: Vec<PathBuf>,

    /// What a cluster holds, as kubectl prints it (below); may be repeated, also for one cluster.
    #[arg(long = "cluster", value_name = "NAME=FILE", value_parser = named_file, requires = "files")]
    clusters: Vec<(String, PathBuf)>,

    /// UID of the hub's Namespace kube-system, if that is not in the local cluster's file or may
    /// not be read. The names of Cilium's policies come from it.
    #[arg(long, value_name = "UID")]
    hub_uid: Option<String>,

    /// The files hold all objects of the hub: what none of them wants is shown as to be deleted.
    #[arg(long, requires = "files")]
    all_meshes: bool,

    /// Namespace that Cilium runs in, in all clusters.
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system", requires = "files")]
    cilium_namespace: String,

    /// How long a node that lost its annotations keeps its Peer: 90s, 5m, or 0.
    #[arg(long, value_name = "DURATION", default_value = "90s", value_parser = seconds)]
    node_grace: u64,

    /// Plan as of this moment instead of now (RFC 3339).
    #[arg(long, value_name = "TIME", value_parser = moment)]
    now: Option<Timestamp>,

    /// How to print the plan.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,

    #[command(flatten)]
    hub: HubArgs,
}

/// What makes no sense with files.
const LIVE: [&str; 7] = ["name", "namespace", "all_namespaces", "kubeconfig", "context", "request_timeout", "kubeconfig_allow"];

const EXAMPLE: &str = "\
Live, meshwright looks once with the kubeconfigs that the mesh names and sees what an operator sees
after a restart. One that has been running knows more: a Node that it saw deleted is a good reason
to delete its Peers, a Node that is only missing is not, and many such deletes are held.
With -A what is left of meshes that do not exist is shown as well.

Examples:
  meshwright plan prod -n kilo

  kubectl --context eu get nodes,peers -o yaml > eu.yaml
  kubectl --context us get nodes,peers -o yaml > us.yaml
  meshwright plan -f mesh.yaml --cluster eu=eu.yaml --cluster us=us.yaml

With ClusterMeshBindings, GlobalServices and ConnectivityIntents in the files, three dumps of each
cluster are needed. Of the Secrets in them only names are shown. Nothing is dialled.
  kubectl --context eu get ds,deploy,pods,cm,secrets -n kube-system --show-managed-fields -o yaml \\
    > eu-1.yaml
  kubectl --context eu get nodes,namespaces,svc,endpointslices -A --show-managed-fields -o yaml \\
    > eu-2.yaml
  kubectl --context eu get crds,ciliumnetworkpolicies,ciliumclusterwidenetworkpolicies -A -o yaml \\
    > eu-3.yaml
  meshwright plan -f binding.yaml -f service.yaml --cluster eu=eu-1.yaml --cluster eu=eu-2.yaml ...

Exit codes: 0 nothing to do; 1 changes are pending or a problem is an error; 2 the input is wrong,
or the hub can't be asked.";

fn named_file(text: &str) -> Result<(String, PathBuf), String> {
    let (name, file) = text.split_once('=').ok_or("expected NAME=FILE")?;
    // A ref of the Cilium back end may be several labels.
    name.split('.').try_for_each(|label| ClusterName::try_from(label).map(drop)).map_err(|wrong| wrong.to_string())?;
    if file.is_empty() {
        return Err("the file is missing after =".to_owned());
    }
    Ok((name.to_owned(), PathBuf::from(file)))
}

fn seconds(text: &str) -> Result<u64, String> {
    match text {
        "0" => Ok(0),
        _ => duration_seconds(text).ok_or_else(|| "write it like 90s, 5m or 0".to_owned()),
    }
}

fn moment(text: &str) -> Result<Timestamp, String> {
    let time: Time = serde_json::from_value(text.into()).map_err(|_| "write it like 2026-01-31T12:00:00Z")?;
    Ok(Timestamp(time.0.as_second()))
}

pub(crate) fn run(args: &Args) -> Result<Answer> {
    match args.files.is_empty() {
        true => from_clusters(args),
        false => from_files(args),
    }
}

fn from_clusters(args: &Args) -> Result<Answer> {
    let look = live::block_on(async {
        let (hub, namespace) = args.hub.hub().await?;
        let interest = args.hub.interest(args.name.as_deref(), &namespace);
        let under = Circumstances {
            hub_uid: args.hub_uid.clone(),
            node_grace: Duration::from_secs(args.node_grace),
            now: args.now.unwrap_or_else(clock),
        };
        args.hub.look(hub, &interest, under).await
    })?;
    if let Some(namespace) = &look.limited_to {
        say(&format!("note: ClusterMeshes of other namespaces can't be listed: overlap is looked for in {namespace} only\n"));
    }
    let (plan, fleet) = live::planned(look, args.hub.all_namespaces);
    output::write_plan(&Planned { plan: &plan, fleet: &fleet, declared: &BTreeMap::new() }, args.output)?;
    Ok(answer(&plan))
}

fn from_files(args: &Args) -> Result<Answer> {
    let mut input = Input::default();
    let files = open_all(&args.files, Contents::Plain, &mut input.reader, &mut input.findings);
    match back_end(&files) {
        Ok(BackEnd::Kilo) => of_meshes(args, files, input),
        Ok(BackEnd::Cilium) => {
            let request = Request {
                clusters: &args.clusters,
                hub_uid: args.hub_uid.as_deref(),
                all_objects: args.all_meshes,
                cilium_namespace: &args.cilium_namespace,
                now: args.now.unwrap_or_else(clock),
                output: args.output,
            };
            cilium_plan::run(&request, files, input)
        }
        Err(mixed) => {
            input.findings.push(mixed);
            refuse(input.findings);
            Ok(Answer::Impossible)
        }
    }
}

/// What is read, and what is wrong with it.
#[derive(Debug, Default)]
pub(super) struct Input {
    pub(super) reader: Reader,
    pub(super) findings: Vec<Finding>,
}

fn of_meshes(args: &Args, files: Vec<Opened>, input: Input) -> Result<Answer> {
    let Input { mut reader, mut findings } = input;
    let meshes = meshes::load(files, &mut findings);
    let fleet = fleet::load(&args.clusters, &mut reader, &mut findings);
    let locals = match local_identities(&meshes, &fleet) {
        Ok(locals) => locals,
        Err(wrong) => {
            findings.push(wrong);
            Locals::default()
        }
    };
    if !findings.is_empty() {
        let own = meshes.values().flat_map(|mesh| mesh.own_problems().into_iter().map(|problem| mesh.written.finding(&problem)));
        findings.extend(own.filter(Finding::is_error));
        refuse(findings);
        return Ok(Answer::Impossible);
    }
    say_what_was_ignored(&fleet, &meshes);
    let misshapen = meshes.iter().filter(|(_, mesh)| !mesh.misshapen.is_empty()).map(|(id, mesh)| (id, mesh.misshapen.as_slice()));
    let plan = correct(mw_core::kilo::plan(world(args, &meshes, &fleet, locals)), misshapen);
    show_findings(&plan, &meshes);
    let planned = Planned { plan: &plan, fleet: &fleet, declared: &meshes };
    output::write_plan(&planned, args.output)?;
    Ok(answer(&plan))
}

/// Nothing can be planned from half-read input, but all that is wrong with it
/// can be said.
pub(super) fn refuse(findings: Vec<Finding>) {
    let count = findings.len();
    let errors = if count == 1 { "an error".to_owned() } else { format!("{count} errors") };
    say(&format!("{}nothing was planned: {errors} in the input\n", finding::render(findings)));
}

fn show_findings(plan: &Plan, meshes: &BTreeMap<MeshId, Declared>) {
    let in_files = plan.problems().filter(|(_, problem)| Declared::is_about_the_file(problem));
    let findings: Vec<Finding> = in_files.filter_map(|(id, problem)| Some(meshes.get(id?)?.written.finding(problem))).collect();
    if !findings.is_empty() {
        say(&finding::render(findings));
    }
}

fn say_what_was_ignored(fleet: &Fleet, meshes: &BTreeMap<MeshId, Declared>) {
    let is_member = |name: &String| meshes.values().any(|mesh| mesh.raw.clusters.iter().any(|cluster| cluster.name == *name));
    for (cluster, dump) in fleet {
        let kinds: Vec<String> = dump.register.ignored.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        if !kinds.is_empty() {
            say(&format!("note: {cluster}: ignored {}\n", listed(&kinds, 10)));
        }
        if dump.nodes.is_empty() && is_member(cluster) {
            say(&format!("note: {cluster}: its file holds no Node; deletes on its account are held\n"));
        }
    }
}

pub(super) fn say(text: &str) {
    // A closed stderr is no reason not to answer.
    _ = anstream::stderr().write_all(text.as_bytes());
}

/// The cluster that the local entries of all meshes stand for.
#[derive(Debug, Default)]
struct Locals {
    identities: BTreeMap<(MeshId, ClusterName), ClusterId>,
    /// Its name, where it has a file.
    hub: Option<String>,
}

fn local_identities(meshes: &BTreeMap<MeshId, Declared>, fleet: &Fleet) -> Result<Locals, Finding> {
    let local = meshes.iter().flat_map(|(id, mesh)| mesh.raw.clusters.iter().filter(|entry| entry.local).map(move |entry| (id, entry)));
    let entries: Vec<(&MeshId, ClusterName)> =
        local.filter_map(|(id, entry)| Some((id, ClusterName::try_from(entry.name.as_str()).ok()?))).collect();
    // A mesh with two local entries is invalid; it must not make others so.
    let counts = |id: &MeshId| entries.iter().filter(|(of, _)| *of == id).count() == 1;
    let entries: Vec<&(&MeshId, ClusterName)> = entries.iter().filter(|(id, _)| counts(id)).collect();
    let names: BTreeSet<&ClusterName> = entries.iter().map(|(_, name)| name).collect();
    let with_file: Vec<&ClusterName> = names.iter().copied().filter(|name| fleet.contains_key(name.as_str())).collect();
    if with_file.len() > 1 {
        let message = format!("the local entries {} are one cluster, the hub, but each has a file of its own", listed(&with_file, 10));
        return Err(Finding::error(message).help("give the hub's dump under one of these names only"));
    }
    let hub = with_file.first().or(names.first()).copied();
    let Some(hub) = hub else { return Ok(Locals::default()) };
    let other = entries.iter().filter(|(_, name)| name != hub);
    let identities = other.map(|(id, name)| (((*id).clone(), name.clone()), ClusterId::from(hub.as_str()))).collect();
    Ok(Locals { identities, hub: with_file.first().map(ToString::to_string) })
}

fn world(args: &Args, meshes: &BTreeMap<MeshId, Declared>, fleet: &Fleet, locals: Locals) -> World {
    let found = locals.hub.and_then(|name| fleet.get(&name)?.uid.clone());
    let options = Options { hub: args.hub_uid.clone().or(found), node_grace_seconds: args.node_grace, ..Options::default() };
    let seen = |dump: &fleet::Dump| ClusterSeen {
        nodes: Seen::Known(dump.nodes.clone()),
        peers: Seen::Known(dump.peers.clone()),
        departures: Departures::AnyMissing,
    };
    let absent = if args.all_meshes { Absent::AllOthers } else { Absent::Unknown };
    World {
        options,
        now: args.now.unwrap_or_else(clock),
        meshes: meshes.iter().map(|(id, declared)| (id.clone(), declared.mesh.clone())).collect(),
        clusters: fleet.iter().map(|(name, dump)| (ClusterId::from(name.as_str()), seen(dump))).collect(),
        identities: locals.identities,
        orphans: Orphans { absent, ..Orphans::default() },
        ..World::default()
    }
}

fn clock() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Timestamp(since.ok().and_then(|since| i64::try_from(since.as_secs()).ok()).unwrap_or_default())
}

/// Of a mesh whose shape is wrong the planner saw an empty spec; what is wrong
/// with the written one is known here.
pub(crate) fn correct<'a>(mut plan: Plan, misshapen: impl Iterator<Item = (&'a MeshId, &'a [Problem])>) -> Plan {
    for (id, wrong) in misshapen {
        let Some(of_mesh) = plan.meshes.get_mut(id) else { continue };
        of_mesh.problems.retain(|problem| problem.reason != Reason::InvalidSpec);
        of_mesh.problems.extend(wrong.iter().cloned());
        of_mesh.problems.sort();
        let said = wrong.first().map(|first| format!("{}: {}", first.subject, first.message)).unwrap_or_default();
        let is_ready = |condition: &&mut Condition| condition.kind == "Ready";
        if let Some(ready) = of_mesh.conditions.iter_mut().find(is_ready) {
            ready.message = printable(&said, 500);
        }
    }
    plan
}

fn answer(plan: &Plan) -> Answer {
    verdict(plan.problems().map(|(_, problem)| problem), plan.has_changes())
}

pub(super) fn verdict<'a>(problems: impl Iterator<Item = &'a Problem>, has_changes: bool) -> Answer {
    let of_problem = |problem: &Problem| match (problem.reason, problem.is_error()) {
        (Reason::InvalidSpec, _) => Answer::Impossible,
        (_, true) => Answer::No,
        (_, false) => Answer::Yes,
    };
    let worst = problems.map(of_problem).max().unwrap_or(Answer::Yes);
    worst.max(if has_changes { Answer::No } else { Answer::Yes })
}
