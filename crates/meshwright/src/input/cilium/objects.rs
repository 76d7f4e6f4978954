//! ClusterMeshBindings, GlobalServices and ConnectivityIntents from files.

use std::collections::BTreeMap;
use std::rc::Rc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use mw_api::cilium::kcp::ANNOTATION_CLUSTER;
use mw_controller::cilium::{Kind, Object as Declaration};
use mw_core::cilium::object::ObjectId;
use mw_core::cilium::world::World;
use mw_core::problem::{Problem, Reason};
use mw_core::text::{printable, quoted};
use serde_json::{Value as Json, json};

use crate::input::finding::Finding;
use crate::input::object::{Object, Opened, twice};
use crate::input::shape::{self, Written};
use crate::input::source::SourceFile;

/// An object and its place in a file.
#[derive(Debug)]
pub(crate) struct Declared {
    /// Planner input. If the schema check fails, the spec is left empty: the object exists, but
    /// nothing may be done for it.
    pub(crate) object: Declaration,
    /// Schema errors, which the planner can't see.
    pub(crate) misshapen: Vec<Problem>,
    pub(crate) written: Written,
}

pub(crate) type Objects = BTreeMap<(Kind, ObjectId), Declared>;

/// Loads the objects. `hub` is the workspace of those without a kcp workspace annotation.
pub(crate) fn load(files: Vec<Opened>, hub: &str, findings: &mut Vec<Finding>) -> Objects {
    let schemas: Vec<JSONSchemaProps> = mw_api::crd::cilium_crds()
        .into_iter()
        .filter_map(shape::spec_schema)
        .collect();
    let mut objects = Objects::new();
    for Opened {
        file,
        objects: found,
        faulty,
    } in files
    {
        if found.is_empty() && !faulty {
            let message = format!("{} contains no object of the Cilium back end", file.name);
            findings.push(Finding::error(message).help(KINDS));
        }
        for object in found {
            match declared(&file, object, &schemas, hub, &objects) {
                Ok((id, declared)) => _ = objects.insert(id, declared),
                Err(wrong) => findings.push(wrong),
            }
        }
    }
    objects
}

const KINDS: &str = "-f takes ClusterMeshBindings, GlobalServices and ConnectivityIntents";

fn declared(
    file: &Rc<SourceFile>,
    object: Object,
    schemas: &[JSONSchemaProps],
    hub: &str,
    earlier: &Objects,
) -> Result<((Kind, ObjectId), Declared), Finding> {
    let kind = kind(file, &object)?;
    let metadata = shape::metadata(file, &object)?;
    let schema = Kind::ALL
        .iter()
        .zip(schemas)
        .find(|(of, _)| **of == kind)
        .map(|(_, schema)| schema);
    let (spec, mut mistakes) = shape::spec(
        &object.tree,
        schema,
        "see examples/cilium for one of each kind",
    );
    let workspace = metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(ANNOTATION_CLUSTER))
        .map_or(hub, String::as_str);
    let read = |spec: Json| {
        let phase = object
            .tree
            .get("status")
            .and_then(|status| status.get("phase"))
            .and_then(|phase| phase.text());
        let api_version = kind.resource().api_version;
        let value = json!({
            "apiVersion": api_version, "kind": kind.as_str(), "metadata": metadata, "spec": spec, "status": { "phase": phase },
        });
        Declaration::read(kind, workspace, value).ok_or_else(|| {
            let message = format!(
                "cannot read {} {}",
                kind.as_str(),
                quoted(metadata.name.as_deref().unwrap_or_default())
            );
            Finding::error(message).at(file, object.tree.locate("metadata"))
        })
    };
    let (conformed, misread) = read(spec)?;
    if let Some(why) = misread.filter(|_| mistakes.is_empty()) {
        mistakes.push(shape::unreadable(&object.tree, &why));
    }
    let id = (kind, conformed.common().id.clone());
    if let Some(first) = earlier.get(&id) {
        let what = format!(
            "{} {}",
            kind.as_str(),
            printable(&format!("{}/{}", id.1.namespace, id.1.name), 320)
        );
        return Err(twice(file, &object, &what, &first.written.name_place()));
    }
    // An object that is being deleted needs no valid spec.
    let sound = mistakes.is_empty() || conformed.common().deleting.is_some();
    let misshapen = if sound {
        Vec::new()
    } else {
        shape::problems(&mistakes, spec_problems(&conformed))
    };
    let object_read = if sound {
        conformed
    } else {
        read(Json::Null)?.0
    };
    Ok((
        id,
        Declared {
            object: object_read,
            misshapen,
            written: Written::new(file, object.tree, mistakes),
        },
    ))
}

fn kind(file: &Rc<SourceFile>, object: &Object) -> Result<Kind, Finding> {
    let wrong = |path: &str, found: &str, help: &str| {
        let message = format!(
            "expected an object of the Cilium back end, found {path} {}",
            quoted(found)
        );
        Err(Finding::error(message)
            .at(file, object.tree.locate(path))
            .help(help))
    };
    let Some(kind) = Kind::ALL
        .into_iter()
        .find(|kind| kind.as_str() == object.kind)
    else {
        return wrong(
            "kind",
            &object.kind,
            &format!("{KINDS}; pass the objects of a cluster with --cluster NAME=FILE"),
        );
    };
    let version = kind.resource().api_version;
    if object.api_version != version {
        return wrong(
            "apiVersion",
            &object.api_version,
            &format!("write apiVersion: {version}"),
        );
    }
    Ok(kind)
}

/// Errors that the planner finds in the spec of a single object.
fn spec_problems(object: &Declaration) -> Vec<Problem> {
    let mut world = World::default();
    enter(object.clone(), &mut world);
    let plan = mw_core::cilium::plan(&world);
    problems(&plan)
        .filter(|(_, problem)| problem.reason == Reason::InvalidSpec)
        .map(|(_, problem)| problem)
        .collect()
}

pub(crate) fn enter(object: Declaration, world: &mut World) {
    let id = object.common().id.clone();
    match object {
        Declaration::Binding(of) => _ = world.bindings.insert(id, of),
        Declaration::Service(of) => _ = world.services.insert(id, of),
        Declaration::Intent(of) => _ = world.intents.insert(id, of),
    }
}

/// All problems of a plan by object. Subjects of spec errors are turned into paths in the object.
pub(crate) fn problems(
    plan: &mw_core::cilium::plan::Plan,
) -> impl Iterator<Item = ((Kind, &ObjectId), Problem)> {
    let bindings = plan
        .bindings
        .iter()
        .map(|(id, plan)| ((Kind::Binding, id), &plan.outcome.problems));
    let services = plan
        .services
        .iter()
        .map(|(id, plan)| ((Kind::Service, id), &plan.outcome.problems));
    let intents = plan
        .intents
        .iter()
        .map(|(id, plan)| ((Kind::Intent, id), &plan.outcome.problems));
    let all = bindings.chain(services).chain(intents);
    all.flat_map(|(of, problems)| problems.iter().map(move |problem| (of, in_spec(problem))))
}

fn in_spec(problem: &Problem) -> Problem {
    match problem.reason == Reason::InvalidSpec && !problem.subject.starts_with("spec") {
        true => Problem {
            subject: format!("spec.{}", problem.subject),
            ..problem.clone()
        },
        false => problem.clone(),
    }
}
