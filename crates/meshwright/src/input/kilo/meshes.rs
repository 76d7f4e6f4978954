//! ClusterMeshes from files.

use std::collections::BTreeMap;
use std::rc::Rc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use mw_api::kilo::clustermesh::{ClusterMesh, ClusterMeshSpec};
use mw_core::kilo::spec::{Mesh, RawSpec, validate};
use mw_core::names::MeshId;
use mw_core::problem::{Problem, Reason};
use mw_core::text::{printable, quoted};

use crate::input::finding::Finding;
use crate::input::object::{Object, Opened, twice};
use crate::input::schema::Mistake;
use crate::input::shape::{self, Written};
use crate::input::source::SourceFile;
use crate::input::tree::Tree;

pub(crate) const KIND: &str = "ClusterMesh";
const API_VERSION: &str = "kilo.squat.ai/v1alpha1";

/// A ClusterMesh and its place in a file.
#[derive(Debug)]
pub(crate) struct Declared {
    /// Planner input. If the schema check fails, the spec is left empty: the mesh exists, but
    /// nothing may be done for it.
    pub(crate) mesh: Mesh,
    /// The readable part of the spec.
    pub(crate) raw: RawSpec,
    /// Schema errors, which the planner can't see.
    pub(crate) misshapen: Vec<Problem>,
    pub(crate) written: Written,
}

impl Declared {
    /// Reports whether a problem is caused by the contents of the file.
    pub(crate) fn is_about_the_file(problem: &Problem) -> bool {
        matches!(
            problem.reason,
            Reason::InvalidSpec | Reason::CIDROverlap | Reason::CIDRHostBits
        )
    }

    /// Problems of this mesh alone, without looking at other meshes or clusters.
    pub(crate) fn own_problems(&self) -> Vec<Problem> {
        match self.misshapen.is_empty() {
            true if self.mesh.deleting => Vec::new(),
            true => validate(&self.raw).map_or_else(|errors| errors, |(_, remarks)| remarks),
            false => self.misshapen.clone(),
        }
    }
}

pub(crate) fn load(files: Vec<Opened>, findings: &mut Vec<Finding>) -> BTreeMap<MeshId, Declared> {
    let schema = mw_api::crd::crds()
        .into_iter()
        .next()
        .and_then(shape::spec_schema);
    let mut meshes: BTreeMap<MeshId, Declared> = BTreeMap::new();
    for Opened {
        file,
        objects,
        faulty,
    } in files
    {
        if objects.is_empty() && !faulty {
            findings.push(
                Finding::error(format!("{} contains no ClusterMesh", file.name))
                    .help("-f takes files with ClusterMesh objects"),
            );
        }
        for object in objects {
            match declared(&file, object, schema.as_ref(), &meshes) {
                Ok(mesh) => _ = meshes.insert(mesh.mesh.id.clone(), mesh),
                Err(wrong) => findings.push(wrong),
            }
        }
    }
    meshes
}

fn declared(
    file: &Rc<SourceFile>,
    object: Object,
    schema: Option<&JSONSchemaProps>,
    earlier: &BTreeMap<MeshId, Declared>,
) -> Result<Declared, Finding> {
    expect_clustermesh(file, &object)?;
    let metadata = shape::metadata(file, &object)?;
    let (spec, mistakes) = spec(&object.tree, schema);
    let raw_object = ClusterMesh {
        metadata,
        spec,
        status: None,
    };
    let mut mesh = mw_api::kilo::convert::mesh(&raw_object);
    if let Some(first) = earlier.get(&mesh.id) {
        let what = format!("ClusterMesh {}", printable(&mesh.id.to_string(), 200));
        return Err(twice(file, &object, &what, &first.written.name_place()));
    }
    let raw = mesh.spec.clone();
    // A mesh that is being deleted needs no valid spec.
    let misshapen = if mesh.deleting {
        Vec::new()
    } else {
        misshapen(&raw, &mistakes)
    };
    if !misshapen.is_empty() {
        mesh.spec = RawSpec::default();
    }
    Ok(Declared {
        mesh,
        raw,
        misshapen,
        written: Written::new(file, object.tree, mistakes),
    })
}

fn expect_clustermesh(file: &Rc<SourceFile>, object: &Object) -> Result<(), Finding> {
    let wrong = |path: &str, found: &str, wanted: &str| {
        let message = format!(
            "expected a ClusterMesh of {API_VERSION}, found {path} {}",
            quoted(found)
        );
        Finding::error(message)
            .at(file, object.tree.locate(path))
            .help(wanted)
    };
    match (object.kind.as_str(), object.api_version.as_str()) {
        (KIND, API_VERSION) => Ok(()),
        (KIND, version) => Err(wrong(
            "apiVersion",
            version,
            &format!("write apiVersion: {API_VERSION}"),
        )),
        ("Node" | "Peer" | "Namespace", _) => Err(wrong(
            "kind",
            &object.kind,
            "pass the objects of a cluster with --cluster NAME=FILE",
        )),
        (kind, _) => Err(wrong("kind", kind, "-f takes ClusterMesh objects only")),
    }
}

/// The spec, corrected to fit the schema, and all schema errors.
fn spec(tree: &Tree, schema: Option<&JSONSchemaProps>) -> (ClusterMeshSpec, Vec<Mistake>) {
    let (json, mut mistakes) = shape::spec(
        tree,
        schema,
        "a ClusterMesh lists its clusters in spec.clusters",
    );
    match serde_json::from_value(json) {
        Ok(spec) => (spec, mistakes),
        Err(wrong) => {
            if mistakes.is_empty() {
                mistakes.push(shape::unreadable(tree, &wrong.to_string()));
            }
            (ClusterMeshSpec::default(), mistakes)
        }
    }
}

/// Schema errors as problems, plus the validation errors of the rest.
fn misshapen(raw: &RawSpec, mistakes: &[Mistake]) -> Vec<Problem> {
    match mistakes.is_empty() {
        true => Vec::new(),
        false => shape::problems(
            mistakes,
            validate(raw).map_or_else(|errors| errors, |(_, remarks)| remarks),
        ),
    }
}
