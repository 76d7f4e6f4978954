//! `meshwright plan` of the Cilium back end, from files or live.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use mw_controller::cilium::{Examination, Kind, Object};
use mw_core::cilium::facts::ClusterSeen;
use mw_core::cilium::object::{Binding, ObjectId, Resolution};
use mw_core::cilium::plan::{Condition, ObjectOutcome, Plan};
use mw_core::cilium::world::{Options, VerifyDial, World};
use mw_core::condition::cilium::kind;
use mw_core::names::ClusterId;
use mw_core::problem::{Problem, Reason};
use mw_core::text::printable;
use mw_core::time::Timestamp;

use crate::commands::plan::{Input, refuse, say, verdict};
use crate::exit_code::Answer;
use crate::input::cilium::dumps::{self, Dumps};
use crate::input::cilium::objects::{self, Declared, Objects};
use crate::input::finding::{self, Finding};
use crate::input::object::Opened;
use crate::output::cilium::Planned;
use crate::output::{self, Format};

#[derive(Debug)]
pub(in crate::commands) struct Request<'a> {
    pub(in crate::commands) clusters: &'a [(String, PathBuf)],
    pub(in crate::commands) hub_uid: Option<&'a str>,
    pub(in crate::commands) all_objects: bool,
    pub(in crate::commands) cilium_namespace: &'a str,
    pub(in crate::commands) now: Timestamp,
    pub(in crate::commands) output: Format,
}

/// Workspace of objects whose hub is unknown.
const SOME_HUB: &str = "";

const NOT_DIALLED: &str = "nothing was dialled: no link counts as verified; the provider tests the keys of a remote before it \
    writes them";
const NAMELESS_HUB: &str = "policy names derive from the hub: without --hub-uid they differ from the provider's, and existing policies \
    count as foreign";

pub(in crate::commands) fn run(
    request: &Request<'_>,
    files: Vec<Opened>,
    input: Input,
) -> Result<Answer> {
    let Input {
        mut reader,
        mut findings,
    } = input;
    let objects = objects::load(files, request.hub_uid.unwrap_or(SOME_HUB), &mut findings);
    let dumps = dumps::load(request.clusters, &mut reader, &mut findings);
    let remarks: Vec<String> = dumps
        .iter()
        .flat_map(|(name, dump)| dump.remarks().into_iter().map(move |of| (name, of)))
        .map(told)
        .collect();
    let world = world(request, &objects, dumps);
    let plan = correct(mw_core::cilium::plan(&world), &objects);
    let in_files: Vec<Finding> = in_files(&plan, &objects).collect();
    if !findings.is_empty() {
        findings.extend(in_files);
        refuse(findings);
        return Ok(Answer::Impossible);
    }
    remarks.iter().for_each(|remark| say(remark));
    if !in_files.is_empty() {
        say(&finding::render(in_files));
    }
    let nameless = objects
        .keys()
        .any(|(kind, id)| *kind == Kind::Intent && id.workspace.as_str() == SOME_HUB);
    let notes: Vec<String> = [Some(NOT_DIALLED), Some(NAMELESS_HUB).filter(|_| nameless)]
        .into_iter()
        .flatten()
        .map(str::to_owned)
        .collect();
    let planned = Planned {
        plan: &plan,
        world: &world,
        objects: &objects,
        notes: &notes,
    };
    output::write_cilium_plan(&planned, request.output)?;
    let problems: Vec<Problem> = objects::problems(&plan)
        .map(|(_, problem)| problem)
        .collect();
    Ok(verdict(problems.iter(), plan.has_changes()))
}

const NOT_ALL: &str =
    "deletes of leftovers are shown only with -A, which reads all objects of the hub";

/// Prints the plan made from the live clusters, including dial results.
pub(in crate::commands) fn show_live(
    seen: &Examination,
    all: bool,
    output: Format,
) -> Result<Answer> {
    let notes: Vec<String> = Some(NOT_ALL)
        .filter(|_| !all)
        .into_iter()
        .map(str::to_owned)
        .collect();
    output::write_cilium_plan(
        &Planned {
            plan: &seen.plan,
            world: &seen.world,
            objects: &Objects::new(),
            notes: &notes,
        },
        output,
    )?;
    let problems: Vec<Problem> = objects::problems(&seen.plan)
        .map(|(_, problem)| problem)
        .collect();
    Ok(verdict(problems.iter(), seen.plan.has_changes()))
}

fn told((cluster, remark): (&String, String)) -> String {
    format!("note: {cluster}: {}\n", printable(&remark, 500))
}

/// Findings for invalid specs, with their place in the files.
fn in_files<'a>(plan: &'a Plan, objects: &'a Objects) -> impl Iterator<Item = Finding> + 'a {
    let wrong =
        objects::problems(plan).filter(|(_, problem)| problem.reason == Reason::InvalidSpec);
    wrong.filter_map(|((kind, id), problem)| {
        Some(objects.get(&(kind, id.clone()))?.written.finding(&problem))
    })
}

fn world(request: &Request<'_>, objects: &Objects, dumps: Dumps) -> World {
    let (leads, clusters) = clusters(dumps, request.cilium_namespace);
    let options = Options {
        // Nothing is dialled here, so no plan may wait for a dial result.
        verify_dial: VerifyDial::Off,
        cilium_namespace: request.cilium_namespace.to_owned(),
        ..Options::default()
    };
    let mut world = World {
        options,
        now: request.now,
        clusters,
        ..World::default()
    };
    for Declared { object, .. } in objects.values() {
        let mut object = object.clone();
        let binding = object
            .mesh()
            .and_then(|mesh| binding(objects, object.common().id.neighbour(mesh)));
        let names = object
            .names(binding)
            .into_iter()
            .chain(object.common().touched.clone());
        object.common_mut().refs = names
            .map(|name| (name.clone(), resolution(&leads, &name)))
            .collect();
        objects::enter(object, &mut world);
    }
    if request.all_objects {
        world.settled = world.clusters.keys().cloned().collect();
        world.listed = objects.keys().map(|(_, id)| id.workspace.clone()).collect();
    }
    world
}

fn binding(objects: &Objects, id: ObjectId) -> Option<&Binding> {
    match &objects.get(&(Kind::Binding, id))?.object {
        Object::Binding(of) => Some(of),
        Object::Service(_) | Object::Intent(_) => None,
    }
}

/// Maps each name to a cluster, and each cluster to its observed state. Two names may refer to the
/// same cluster.
fn clusters(
    dumps: Dumps,
    home: &str,
) -> (
    BTreeMap<String, ClusterId>,
    BTreeMap<ClusterId, ClusterSeen>,
) {
    let (mut leads, mut clusters) = (BTreeMap::new(), BTreeMap::new());
    let mut by_uid: BTreeMap<String, ClusterId> = BTreeMap::new();
    for (name, dump) in dumps {
        let (uid, seen) = dump.dump.seen(home);
        let own = ClusterId::from(name.as_str());
        let id = uid.map_or_else(
            || own.clone(),
            |uid| by_uid.entry(uid).or_insert_with(|| own.clone()).clone(),
        );
        clusters.entry(id.clone()).or_insert(seen);
        leads.insert(name, id);
    }
    (leads, clusters)
}

fn resolution(leads: &BTreeMap<String, ClusterId>, name: &str) -> Resolution {
    match leads.get(name) {
        Some(id) => Resolution::Cluster(id.clone()),
        None => Resolution::Unreachable(format!("no file given: add --cluster {name}=FILE")),
    }
}

/// Reports the schema errors of malformed objects, for which the planner saw an empty spec.
fn correct(mut plan: Plan, objects: &Objects) -> Plan {
    for ((kind, id), declared) in objects
        .iter()
        .filter(|(_, declared)| !declared.misshapen.is_empty())
    {
        match kind {
            Kind::Binding => plan
                .bindings
                .get_mut(id)
                .into_iter()
                .for_each(|plan| misshapen(&mut plan.outcome, &declared.misshapen)),
            Kind::Service => plan
                .services
                .get_mut(id)
                .into_iter()
                .for_each(|plan| misshapen(&mut plan.outcome, &declared.misshapen)),
            Kind::Intent => plan
                .intents
                .get_mut(id)
                .into_iter()
                .for_each(|plan| misshapen(&mut plan.outcome, &declared.misshapen)),
        }
    }
    plan
}

fn misshapen<P>(outcome: &mut ObjectOutcome<P>, wrong: &[Problem]) {
    outcome.problems = wrong.to_vec();
    let said = wrong
        .first()
        .map(|first| format!("{}: {}", first.subject, first.message))
        .unwrap_or_default();
    for Condition { message, .. } in outcome
        .conditions
        .iter_mut()
        .filter(|condition| [kind::READY, kind::ACCEPTED].contains(&condition.kind))
    {
        *message = printable(&said, 500);
    }
}
