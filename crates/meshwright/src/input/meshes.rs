//! ClusterMeshes from files.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mw_api::clustermesh::{ClusterMesh, ClusterMeshSpec};
use mw_core::kilo::spec::{Mesh, RawSpec, validate};
use mw_core::names::MeshId;
use mw_core::problem::{Problem, Reason};
use mw_core::text::{printable, quoted};
use serde_json::Value as Json;

use crate::input::finding::{self, Finding};
use crate::input::object::{Object, objects, twice};
use crate::input::schema::{Mistake, conform, nearest};
use crate::input::source::{Reader, SourceFile};
use crate::input::tree::{Span, Tree};
use crate::input::typed;

const API_VERSION: &str = "kilo.squat.ai/v1alpha1";

/// A ClusterMesh with the place it came from.
#[derive(Debug)]
pub(crate) struct Declared {
    /// For the planner. Its spec is empty where the shape of the written one is
    /// wrong: such a mesh exists, but nothing may be done on its behalf.
    pub(crate) mesh: Mesh,
    /// The spec as far as it could be read.
    pub(crate) raw: RawSpec,
    /// What is wrong with it, where the planner can't see that.
    pub(crate) misshapen: Vec<Problem>,
    file: Rc<SourceFile>,
    tree: Tree,
    /// Places that the path alone does not give.
    places: BTreeMap<String, Span>,
}

impl Declared {
    /// Whether a problem is about something in the file.
    pub(crate) fn is_about_the_file(problem: &Problem) -> bool {
        matches!(problem.reason, Reason::InvalidSpec | Reason::CIDROverlap | Reason::CIDRHostBits)
    }

    /// What is wrong with the mesh taken by itself.
    pub(crate) fn own_problems(&self) -> Vec<Problem> {
        match self.misshapen.is_empty() {
            true if self.mesh.deleting => Vec::new(),
            true => validate(&self.raw).map_or_else(|errors| errors, |(_, remarks)| remarks),
            false => self.misshapen.clone(),
        }
    }

    pub(crate) fn finding(&self, problem: &Problem) -> Finding {
        let message = format!("{}: {}", problem.subject.trim_end_matches('.'), problem.message);
        let finding = Finding::error(printable(&message, 500)).help(problem.hint.as_str()).at(&self.file, self.span(problem));
        if problem.is_error() { finding } else { finding.warning() }
    }

    /// `file:line:column`
    pub(crate) fn place(&self, problem: &Problem) -> String {
        finding::place(&self.file, self.span(problem))
    }

    fn span(&self, problem: &Problem) -> Span {
        self.places.get(&problem.subject).copied().unwrap_or_else(|| self.tree.locate(&problem.subject))
    }
}

pub(crate) fn load(paths: &[PathBuf], reader: &mut Reader, findings: &mut Vec<Finding>) -> BTreeMap<MeshId, Declared> {
    let schema = schema();
    let mut meshes: BTreeMap<MeshId, Declared> = BTreeMap::new();
    for path in paths {
        let (file, documents) = match reader.read(path) {
            Ok(read) => read,
            Err(wrong) => {
                findings.push(wrong);
                continue;
            }
        };
        let before = (meshes.len(), findings.len());
        for object in objects(&file, documents, findings) {
            match declared(&file, object, schema.as_ref(), &meshes) {
                Ok(mesh) => _ = meshes.insert(mesh.mesh.id.clone(), mesh),
                Err(wrong) => findings.push(wrong),
            }
        }
        if (meshes.len(), findings.len()) == before {
            findings.push(Finding::error(format!("{} holds no ClusterMesh", file.name)).help("-f takes files with ClusterMesh objects"));
        }
    }
    meshes
}

fn schema() -> Option<JSONSchemaProps> {
    let versions = mw_api::crd::crds().into_iter().next()?.spec.versions;
    versions.into_iter().next()?.schema?.open_api_v3_schema?.properties?.remove("spec")
}

fn declared(
    file: &Rc<SourceFile>,
    object: Object,
    schema: Option<&JSONSchemaProps>,
    earlier: &BTreeMap<MeshId, Declared>,
) -> Result<Declared, Finding> {
    expect_clustermesh(file, &object)?;
    object.name(file)?;
    let metadata = object.tree.get("metadata").map(typed::read::<ObjectMeta>).transpose();
    let metadata = metadata.map_err(|wrong| {
        let message = format!("the metadata of a ClusterMesh can't be read: {}", printable(&wrong.message, 200));
        Finding::error(message).at(file, wrong.span.unwrap_or_else(|| object.tree.locate("metadata")))
    })?;
    let (spec, mistakes) = spec(&object.tree, schema);
    let raw_object = ClusterMesh { metadata: metadata.unwrap_or_default(), spec, status: None };
    let mut mesh = mw_api::convert::mesh(&raw_object);
    if let Some(first) = earlier.get(&mesh.id) {
        let first = finding::place(&first.file, first.tree.locate("metadata.name"));
        return Err(twice(file, &object, &format!("ClusterMesh {}", printable(&mesh.id.to_string(), 200)), &first));
    }
    let raw = mesh.spec.clone();
    // What is being deleted needs no valid spec.
    let misshapen = if mesh.deleting { Vec::new() } else { misshapen(&raw, &mistakes) };
    if !misshapen.is_empty() {
        mesh.spec = RawSpec::default();
    }
    let places = mistakes.into_iter().map(|mistake| (mistake.path, mistake.span)).collect();
    Ok(Declared { mesh, raw, misshapen, file: Rc::clone(file), tree: object.tree, places })
}

fn expect_clustermesh(file: &Rc<SourceFile>, object: &Object) -> Result<(), Finding> {
    let wrong = |path: &str, found: &str, wanted: &str| {
        let message = format!("expected a ClusterMesh of {API_VERSION}, found {path} {}", quoted(found));
        Finding::error(message).at(file, object.tree.locate(path)).help(wanted)
    };
    match (object.kind.as_str(), object.api_version.as_str()) {
        ("ClusterMesh", API_VERSION) => Ok(()),
        ("ClusterMesh", version) => Err(wrong("apiVersion", version, &format!("write apiVersion: {API_VERSION}"))),
        ("Node" | "Peer" | "Namespace", _) => Err(wrong("kind", &object.kind, "what a cluster holds is given with --cluster NAME=FILE")),
        (kind, _) => Err(wrong("kind", kind, "-f takes ClusterMesh objects only")),
    }
}

/// The spec in the right shape, and everything in which it was not.
fn spec(tree: &Tree, schema: Option<&JSONSchemaProps>) -> (ClusterMeshSpec, Vec<Mistake>) {
    let mut mistakes = Vec::new();
    const KNOWN: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];
    for entry in tree.entries().iter().filter(|entry| !KNOWN.contains(&entry.key.as_str())) {
        let near = nearest(&entry.key, &KNOWN);
        let help = near.map_or_else(|| format!("known here: {}", KNOWN.join(", ")), |name| format!("did you mean {name}?"));
        let message = "is not a known field".to_owned();
        mistakes.push(Mistake { path: printable(&entry.key, 80), span: entry.key_span, message, help, meant: near.map(str::to_owned) });
    }
    let json = match (tree.get("spec"), schema) {
        (Some(written), Some(schema)) => {
            let (json, wrong) = conform(written, schema, "spec");
            mistakes.extend(wrong);
            json
        }
        (written, _) => {
            if written.is_none() && !mistakes.iter().any(|mistake| mistake.meant.as_deref() == Some("spec")) {
                let (message, help) = ("is missing".to_owned(), "a ClusterMesh lists its clusters in spec.clusters".to_owned());
                mistakes.push(Mistake { path: "spec".to_owned(), span: tree.locate("metadata.name"), message, help, meant: None });
            }
            written.map_or(Json::Null, Tree::to_json)
        }
    };
    match serde_json::from_value(json) {
        Ok(spec) => (spec, mistakes),
        Err(wrong) => {
            // The schema and the type differ: say at least that.
            if mistakes.is_empty() {
                let message = printable(&wrong.to_string(), 200);
                let span = tree.locate("spec");
                mistakes.push(Mistake { path: "spec".to_owned(), span, message, help: String::new(), meant: None });
            }
            (ClusterMeshSpec::default(), mistakes)
        }
    }
}

/// The mistakes as problems, with what the core finds wrong in the rest. What
/// only follows from a mistake is left out.
fn misshapen(raw: &RawSpec, mistakes: &[Mistake]) -> Vec<Problem> {
    if mistakes.is_empty() {
        return Vec::new();
    }
    let problem = |mistake: &Mistake| Problem::new(Reason::InvalidSpec, &mistake.path, &mistake.message, &mistake.help);
    let mut problems: Vec<Problem> = mistakes.iter().map(problem).collect();
    let explained: Vec<&str> = mistakes.iter().flat_map(|m| [Some(m.path.as_str()), m.meant.as_deref()]).flatten().collect();
    let follows = |subject: &str| {
        explained.iter().any(|path| subject.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '['])))
    };
    let others = validate(raw).map_or_else(|errors| errors, |(_, remarks)| remarks);
    problems.extend(others.into_iter().filter(|problem| !follows(&problem.subject)));
    problems.sort();
    problems
}
