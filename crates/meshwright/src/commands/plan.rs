//! `meshwright plan`

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use mw_controller::cilium::{Examination, PublishedObject, is_workspace};
use mw_controller::clock::Clock;
use mw_controller::install::read_hub_uid;
use mw_controller::kilo::{PublishedMesh, Snapshot, SnapshotError};
use mw_controller::published_status::{Interest, is_served};
use mw_core::condition::READY;
use mw_core::kilo::plan::{Condition, Plan};
use mw_core::kilo::planner::{ClusterSeen, Options, World};
use mw_core::kilo::spec::duration_seconds;
use mw_core::kilo::{Absent, Departures, Orphans};
use mw_core::names::{ClusterId, ClusterName, MeshId};
use mw_core::problem::{Problem, Reason};
use mw_core::seen::Seen;
use mw_core::text::{listed, printable};
use mw_core::time::Timestamp;

use crate::commands::cilium::plan::{self as cilium_plan, Request};
use crate::commands::live::{self, Circumstances, HubArgs, PROVIDER_FLAGS};
use crate::exit_code::Answer;
use crate::input::back_end::{BackEnd, back_end};
use crate::input::finding::{self, Finding};
use crate::input::kilo::dumps::{self, Fleet};
use crate::input::kilo::meshes::{self, Declared};
use crate::input::object::{Opened, open_all};
use crate::input::source::{Contents, Reader};
use crate::output::{self, Format, Planned};

/// Show what would be created, updated and deleted in each cluster, live or from files.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// Plan this ClusterMesh or Cilium object of the hub, live; writes nothing.
    #[arg(value_name = "NAME", required_unless_present_any = ["files", "namespace", "all_namespaces"])]
    name: Option<String>,

    /// Read ClusterMeshes or Cilium objects from this YAML or JSON file; repeatable; "-" is
    /// standard input.
    #[arg(short = 'f', long = "filename", value_name = "FILE", conflicts_with_all = LIVE)]
    files: Vec<PathBuf>,

    /// Read the objects of a cluster from a kubectl dump (see below); repeatable, also for one
    /// cluster.
    #[arg(long = "cluster", value_name = "NAME=FILE", value_parser = named_file, requires = "files")]
    clusters: Vec<(String, PathBuf)>,

    /// Use this UID of the hub's Namespace kube-system if it cannot be read; names of Cilium
    /// policies derive from it.
    #[arg(long, value_name = "UID")]
    hub_uid: Option<String>,

    /// Treat the files as all objects of the hub, and show leftovers as deletes.
    #[arg(long, requires = "files")]
    all_meshes: bool,

    /// Look for Cilium in this namespace of every cluster.
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    cilium_namespace: String,

    /// Keep the Peer of a node that lost its annotations for this long, e.g. 90s, 5m or 0.
    #[arg(long, value_name = "DURATION", default_value = "90s", value_parser = seconds)]
    node_grace: u64,

    /// Plan as of this time (RFC 3339) instead of now.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    now: Option<Timestamp>,

    /// Print the plan in this format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,

    #[command(flatten)]
    hub: HubArgs,
}

/// Flags that conflict with planning from files.
const LIVE: [&str; 8] = [
    "name",
    "namespace",
    "all_namespaces",
    "kubeconfig",
    "context",
    "request_timeout",
    "kubeconfig_allow",
    "workspace",
];

const EXAMPLE: &str = "\
A live plan reads each cluster once, with the kubeconfigs that the mesh names, and so knows what
an operator knows right after a restart. A running operator knows more: if it saw a Node being
deleted, it deletes the Peers of that Node; if the Node is only missing, many such deletes are
held. With -A, leftovers of meshes that no longer exist are shown as well.

Examples:
  meshwright plan prod -n kilo

  kubectl --context eu get nodes,peers -o yaml > eu.yaml
  kubectl --context us get nodes,peers -o yaml > us.yaml
  meshwright plan -f mesh.yaml --cluster eu=eu.yaml --cluster us=us.yaml

Files with ClusterMeshBindings, GlobalServices or ConnectivityIntents need three dumps of each
cluster. Only names of the Secrets in them are shown. Nothing is dialled.
  kubectl --context eu get ds,deploy,pods,cm,secrets -n kube-system --show-managed-fields -o yaml \\
    > eu-1.yaml
  kubectl --context eu get nodes,namespaces,svc,endpointslices -A --show-managed-fields -o yaml \\
    > eu-2.yaml
  kubectl --context eu get crds,ciliumnetworkpolicies,ciliumclusterwidenetworkpolicies -A -o yaml \\
    > eu-3.yaml
  meshwright plan -f binding.yaml -f service.yaml --cluster eu=eu-1.yaml --cluster eu=eu-2.yaml ...

A kcp workspace has no credentials of clusters: there, plan needs the provider's --kcp-kubeconfig
and --mgmt-kubeconfig. Tenants run `meshwright status` and `meshwright doctor` instead.

Exit codes: 0 nothing to do; 1 changes pending or errors found; 2 invalid input, or the hub cannot
be read.";

fn named_file(text: &str) -> Result<(String, PathBuf), String> {
    let (name, file) = text.split_once('=').ok_or("expected NAME=FILE")?;
    // Cluster refs of the Cilium back end may have several labels.
    name.split('.')
        .try_for_each(|label| ClusterName::try_from(label).map(drop))
        .map_err(|wrong| wrong.to_string())?;
    if file.is_empty() {
        return Err("no file after =".to_owned());
    }
    Ok((name.to_owned(), PathBuf::from(file)))
}

fn seconds(text: &str) -> Result<u64, String> {
    match text {
        "0" => Ok(0),
        _ => duration_seconds(text)
            .ok_or_else(|| "expected a duration such as 90s, 5m or 0".to_owned()),
    }
}

fn moment(text: &str) -> Result<Timestamp, String> {
    let time: Time = serde_json::from_value(text.into())
        .map_err(|_| "expected a time such as 2026-01-31T12:00:00Z")?;
    Ok(Timestamp(time.0.as_second()))
}

pub(crate) fn run(args: &Args) -> Result<Answer> {
    match args.files.is_empty() {
        true => from_clusters(args),
        false => from_files(args),
    }
}

fn from_clusters(args: &Args) -> Result<Answer> {
    let Some(snapshot) = live::block_on(snapshot(args))? else {
        return live_cilium(args);
    };
    if let Some(namespace) = &snapshot.limited_to {
        say(&format!(
            "note: cannot list ClusterMeshes in other namespaces; only those in {namespace} are checked for overlaps\n"
        ));
    }
    let (plan, fleet) = live::planned(snapshot, args.hub.all_namespaces);
    output::write_plan(
        &Planned {
            plan: &plan,
            fleet: &fleet,
            declared: &BTreeMap::new(),
        },
        args.output,
    )?;
    Ok(answer(&plan))
}

/// Reads the selected ClusterMeshes. None if there are none, but objects of the Cilium back end
/// exist.
async fn snapshot(args: &Args) -> Result<Option<Snapshot>> {
    if args.hub.reads_as_provider() {
        return Ok(None);
    }
    let (hub, namespace) = args.hub.hub().await?;
    let interest = args.hub.interest(args.name.as_deref(), &namespace);
    let cilium = is_served::<PublishedObject>(&hub).await.unwrap_or(false);
    let under = Circumstances {
        hub_uid: args.hub_uid.clone(),
        node_grace: Duration::from_secs(args.node_grace),
        now: args.now.unwrap_or_else(clock),
    };
    if cilium && !is_served::<PublishedMesh>(&hub).await.unwrap_or(true) {
        return Ok(None);
    }
    match args.hub.snapshot(hub, &interest, under).await {
        Ok(snapshot) if cilium && snapshot.asked.is_empty() => Ok(None),
        Err(wrong)
            if cilium
                && matches!(
                    wrong.downcast_ref(),
                    Some(SnapshotError::NoMesh(_) | SnapshotError::NoResource)
                ) =>
        {
            Ok(None)
        }
        other => other.map(Some),
    }
}

/// Plans the objects of the Cilium back end with the kubeconfigs of their Secrets, or as the
/// provider of a kcp workspace.
fn live_cilium(args: &Args) -> Result<Answer> {
    let seen = live::block_on(async {
        let (hub, namespace) = args.hub.hub().await?;
        let interest = args.hub.interest(args.name.as_deref(), &namespace);
        let seen = match args
            .hub
            .survey_as_provider(&interest, &args.cilium_namespace)
            .await?
        {
            Some(seen) => seen,
            None => on_hub(args, hub, &interest).await?,
        };
        if seen.world.bindings.is_empty()
            && seen.world.services.is_empty()
            && seen.world.intents.is_empty()
        {
            let what = args
                .name
                .as_deref()
                .map(|name| format!(" {name}"))
                .unwrap_or_default();
            bail!("no ClusterMesh or Cilium object{what} found");
        }
        Ok(seen)
    })?;
    cilium_plan::show_live(
        &seen,
        args.hub.all_namespaces || args.hub.reads_as_provider(),
        args.output,
    )
}

async fn on_hub(args: &Args, hub: kube::Client, interest: &Interest) -> Result<Examination> {
    if is_workspace(&hub).await.unwrap_or(false) {
        bail!(
            "cannot plan in a kcp workspace: it has no credentials of clusters; run `meshwright status` or `meshwright doctor` to see what \
             the provider found, or, as the platform's administrator, plan with {PROVIDER_FLAGS}"
        );
    }
    let hub_uid = match &args.hub_uid {
        Some(uid) => uid.clone(),
        None => read_hub_uid(&hub)
            .await
            .context("cannot read Namespace kube-system of the hub")?,
    };
    let examiner = args.hub.examiner(
        hub,
        hub_uid,
        args.cilium_namespace.clone(),
        &Clock::system(),
    );
    examiner
        .survey(interest)
        .await
        .context("cannot read the objects of the Cilium back end")
}

fn from_files(args: &Args) -> Result<Answer> {
    let mut input = Input::default();
    let files = open_all(
        &args.files,
        Contents::Plain,
        &mut input.reader,
        &mut input.findings,
    );
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

/// File reader, and the findings so far.
#[derive(Debug, Default)]
pub(super) struct Input {
    pub(super) reader: Reader,
    pub(super) findings: Vec<Finding>,
}

fn of_meshes(args: &Args, files: Vec<Opened>, input: Input) -> Result<Answer> {
    let Input {
        mut reader,
        mut findings,
    } = input;
    let meshes = meshes::load(files, &mut findings);
    let fleet = dumps::load(&args.clusters, &mut reader, &mut findings);
    let locals = match local_identities(&meshes, &fleet) {
        Ok(locals) => locals,
        Err(wrong) => {
            findings.push(wrong);
            Locals::default()
        }
    };
    if !findings.is_empty() {
        let own = meshes.values().flat_map(|mesh| {
            mesh.own_problems()
                .into_iter()
                .map(|problem| mesh.written.finding(&problem))
        });
        findings.extend(own.filter(Finding::is_error));
        refuse(findings);
        return Ok(Answer::Impossible);
    }
    say_what_was_ignored(&fleet, &meshes);
    let misshapen = meshes
        .iter()
        .filter(|(_, mesh)| !mesh.misshapen.is_empty())
        .map(|(id, mesh)| (id, mesh.misshapen.as_slice()));
    let plan = correct(
        mw_core::kilo::plan(world(args, &meshes, &fleet, locals)),
        misshapen,
    );
    show_findings(&plan, &meshes);
    let planned = Planned {
        plan: &plan,
        fleet: &fleet,
        declared: &meshes,
    };
    output::write_plan(&planned, args.output)?;
    Ok(answer(&plan))
}

/// Prints all findings. Nothing can be planned from partly read input.
pub(super) fn refuse(findings: Vec<Finding>) {
    let count = findings.len();
    let errors = if count == 1 {
        "1 error".to_owned()
    } else {
        format!("{count} errors")
    };
    say(&format!(
        "{}nothing was planned: {errors} in the input\n",
        finding::render(findings)
    ));
}

fn show_findings(plan: &Plan, meshes: &BTreeMap<MeshId, Declared>) {
    let in_files = plan
        .problems()
        .filter(|(_, problem)| Declared::is_about_the_file(problem));
    let findings: Vec<Finding> = in_files
        .filter_map(|(id, problem)| Some(meshes.get(id?)?.written.finding(problem)))
        .collect();
    if !findings.is_empty() {
        say(&finding::render(findings));
    }
}

fn say_what_was_ignored(fleet: &Fleet, meshes: &BTreeMap<MeshId, Declared>) {
    let is_member = |name: &String| {
        meshes.values().any(|mesh| {
            mesh.raw
                .clusters
                .iter()
                .any(|cluster| cluster.name == *name)
        })
    };
    for (cluster, dump) in fleet {
        let kinds: Vec<String> = dump
            .register
            .ignored
            .iter()
            .map(|(kind, count)| format!("{count} {kind}"))
            .collect();
        if !kinds.is_empty() {
            say(&format!(
                "note: {cluster}: ignored {}\n",
                listed(&kinds, 10)
            ));
        }
        if dump.nodes.is_empty() && is_member(cluster) {
            say(&format!(
                "note: {cluster}: its file holds no Node, so deletes of its Peers are held\n"
            ));
        }
    }
}

pub(super) fn say(text: &str) {
    // A closed stderr must not change the result.
    _ = anstream::stderr().write_all(text.as_bytes());
}

/// The hub, as named by the local entries of all meshes.
#[derive(Debug, Default)]
struct Locals {
    identities: BTreeMap<(MeshId, ClusterName), ClusterId>,
    /// Name under which the hub has a file.
    hub: Option<String>,
}

fn local_identities(meshes: &BTreeMap<MeshId, Declared>, fleet: &Fleet) -> Result<Locals, Finding> {
    let local = meshes.iter().flat_map(|(id, mesh)| {
        mesh.raw
            .clusters
            .iter()
            .filter(|entry| entry.local)
            .map(move |entry| (id, entry))
    });
    let entries: Vec<(&MeshId, ClusterName)> = local
        .filter_map(|(id, entry)| Some((id, ClusterName::try_from(entry.name.as_str()).ok()?)))
        .collect();
    // A mesh with two local entries is invalid; it must not invalidate others.
    let counts = |id: &MeshId| entries.iter().filter(|(of, _)| *of == id).count() == 1;
    let entries: Vec<&(&MeshId, ClusterName)> =
        entries.iter().filter(|(id, _)| counts(id)).collect();
    let names: BTreeSet<&ClusterName> = entries.iter().map(|(_, name)| name).collect();
    let with_file: Vec<&ClusterName> = names
        .iter()
        .copied()
        .filter(|name| fleet.contains_key(name.as_str()))
        .collect();
    if with_file.len() > 1 {
        let message = format!(
            "local entries {} are the same cluster, the hub, but each has its own file",
            listed(&with_file, 10)
        );
        return Err(
            Finding::error(message).help("pass the hub's dump under one of these names only")
        );
    }
    let hub = with_file.first().or(names.first()).copied();
    let Some(hub) = hub else {
        return Ok(Locals::default());
    };
    let other = entries.iter().filter(|(_, name)| name != hub);
    let identities = other
        .map(|(id, name)| (((*id).clone(), name.clone()), ClusterId::from(hub.as_str())))
        .collect();
    Ok(Locals {
        identities,
        hub: with_file.first().map(ToString::to_string),
    })
}

fn world(args: &Args, meshes: &BTreeMap<MeshId, Declared>, fleet: &Fleet, locals: Locals) -> World {
    let found = locals.hub.and_then(|name| fleet.get(&name)?.uid.clone());
    let options = Options {
        hub: args.hub_uid.clone().or(found),
        node_grace_seconds: args.node_grace,
        ..Options::default()
    };
    let seen = |dump: &dumps::Dump| ClusterSeen {
        nodes: Seen::Known(dump.nodes.clone()),
        peers: Seen::Known(dump.peers.clone()),
        departures: Departures::AnyMissing,
    };
    let absent = if args.all_meshes {
        Absent::AllOthers
    } else {
        Absent::Unknown
    };
    World {
        options,
        now: args.now.unwrap_or_else(clock),
        meshes: meshes
            .iter()
            .map(|(id, declared)| (id.clone(), declared.mesh.clone()))
            .collect(),
        clusters: fleet
            .iter()
            .map(|(name, dump)| (ClusterId::from(name.as_str()), seen(dump)))
            .collect(),
        identities: locals.identities,
        orphans: Orphans {
            absent,
            ..Orphans::default()
        },
        ..World::default()
    }
}

fn clock() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Timestamp(
        since
            .ok()
            .and_then(|since| i64::try_from(since.as_secs()).ok())
            .unwrap_or_default(),
    )
}

/// Reports the schema errors of malformed meshes, for which the planner saw an empty spec.
pub(crate) fn correct<'a>(
    mut plan: Plan,
    misshapen: impl Iterator<Item = (&'a MeshId, &'a [Problem])>,
) -> Plan {
    for (id, wrong) in misshapen {
        let Some(of_mesh) = plan.meshes.get_mut(id) else {
            continue;
        };
        of_mesh
            .problems
            .retain(|problem| problem.reason != Reason::InvalidSpec);
        of_mesh.problems.extend(wrong.iter().cloned());
        of_mesh.problems.sort();
        let said = wrong
            .first()
            .map(|first| format!("{}: {}", first.subject, first.message))
            .unwrap_or_default();
        let is_ready = |condition: &&mut Condition| condition.kind == READY;
        if let Some(ready) = of_mesh.conditions.iter_mut().find(is_ready) {
            ready.message = printable(&said, 500);
        }
    }
    plan
}

fn answer(plan: &Plan) -> Answer {
    verdict(
        plan.problems().map(|(_, problem)| problem),
        plan.has_changes(),
    )
}

pub(super) fn verdict<'a>(
    problems: impl Iterator<Item = &'a Problem>,
    has_changes: bool,
) -> Answer {
    let of_problem = |problem: &Problem| match (problem.reason, problem.is_error()) {
        (Reason::InvalidSpec, _) => Answer::Impossible,
        (_, true) => Answer::No,
        (_, false) => Answer::Yes,
    };
    let worst = problems.map(of_problem).max().unwrap_or(Answer::Yes);
    worst.max(if has_changes { Answer::No } else { Answer::Yes })
}
