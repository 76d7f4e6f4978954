//! An object as written in a file: the place of every field, and its schema errors.

use std::collections::BTreeMap;
use std::rc::Rc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mw_core::problem::{Problem, Reason};
use mw_core::text::printable;
use serde_json::Value as Json;

use crate::input::finding::{self, Finding};
use crate::input::object::Object;
use crate::input::schema::{Mistake, conform, nearest};
use crate::input::source::SourceFile;
use crate::input::tree::{Span, Tree};
use crate::input::typed;

/// An object and its place in a file.
#[derive(Debug)]
pub(crate) struct Written {
    file: Rc<SourceFile>,
    tree: Tree,
    /// Places that can't be derived from the path.
    places: BTreeMap<String, Span>,
}

impl Written {
    pub(crate) fn new(file: &Rc<SourceFile>, tree: Tree, mistakes: Vec<Mistake>) -> Written {
        let places = mistakes
            .into_iter()
            .map(|mistake| (mistake.path, mistake.span))
            .collect();
        Written {
            file: Rc::clone(file),
            tree,
            places,
        }
    }

    pub(crate) fn finding(&self, problem: &Problem) -> Finding {
        let message = format!(
            "{}: {}",
            problem.subject.trim_end_matches('.'),
            problem.message
        );
        let finding = Finding::error(printable(&message, 500))
            .help(problem.hint.as_str())
            .at(&self.file, self.span(problem));
        if problem.is_error() {
            finding
        } else {
            finding.warning()
        }
    }

    /// `file:line:column`
    pub(crate) fn place(&self, problem: &Problem) -> String {
        finding::place(&self.file, self.span(problem))
    }

    /// Place of the object's name.
    pub(crate) fn name_place(&self) -> String {
        finding::place(&self.file, self.tree.locate("metadata.name"))
    }

    fn span(&self, problem: &Problem) -> Span {
        self.places
            .get(&problem.subject)
            .copied()
            .unwrap_or_else(|| self.tree.locate(&problem.subject))
    }
}

/// Metadata of an object, which must have a name.
pub(crate) fn metadata(file: &Rc<SourceFile>, object: &Object) -> Result<ObjectMeta, Finding> {
    object.name(file)?;
    let metadata = object
        .tree
        .get("metadata")
        .map(typed::read::<ObjectMeta>)
        .transpose();
    let metadata = metadata.map_err(|wrong| {
        let message = format!(
            "cannot read the metadata of {}: {}",
            printable(&object.kind, 80),
            printable(&wrong.message, 200)
        );
        Finding::error(message).at(
            file,
            wrong.span.unwrap_or_else(|| object.tree.locate("metadata")),
        )
    })?;
    Ok(metadata.unwrap_or_default())
}

/// Schema of the spec in a CRD.
pub(crate) fn spec_schema(crd: CustomResourceDefinition) -> Option<JSONSchemaProps> {
    crd.spec
        .versions
        .into_iter()
        .next()?
        .schema?
        .open_api_v3_schema?
        .properties?
        .remove("spec")
}

/// The spec, corrected to fit the schema, and all schema errors of the object. `purpose` is the
/// help text if the spec is missing.
pub(crate) fn spec(
    tree: &Tree,
    schema: Option<&JSONSchemaProps>,
    purpose: &str,
) -> (Json, Vec<Mistake>) {
    let mut mistakes = Vec::new();
    const KNOWN: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];
    for entry in tree
        .entries()
        .iter()
        .filter(|entry| !KNOWN.contains(&entry.key.as_str()))
    {
        let near = nearest(&entry.key, &KNOWN);
        let help = near.map_or_else(
            || format!("known fields: {}", KNOWN.join(", ")),
            |name| format!("did you mean {name}?"),
        );
        let message = "unknown field".to_owned();
        mistakes.push(Mistake {
            path: printable(&entry.key, 80),
            span: entry.key_span,
            message,
            help,
            meant: near.map(str::to_owned),
        });
    }
    let json = match (tree.get("spec"), schema) {
        (Some(written), Some(schema)) => {
            let (json, wrong) = conform(written, schema, "spec");
            mistakes.extend(wrong);
            json
        }
        (written, _) => {
            if written.is_none()
                && !mistakes
                    .iter()
                    .any(|mistake| mistake.meant.as_deref() == Some("spec"))
            {
                let (message, help) = ("is missing".to_owned(), purpose.to_owned());
                mistakes.push(Mistake {
                    path: "spec".to_owned(),
                    span: tree.locate("metadata.name"),
                    message,
                    help,
                    meant: None,
                });
            }
            written.map_or(Json::Null, Tree::to_json)
        }
    };
    (json, mistakes)
}

/// Error for a spec that fits the schema but not the Rust type.
pub(crate) fn unreadable(tree: &Tree, why: &str) -> Mistake {
    let span = tree.locate("spec");
    Mistake {
        path: "spec".to_owned(),
        span,
        message: printable(why, 200),
        help: String::new(),
        meant: None,
    }
}

/// Schema errors as problems, plus the `others`, without those that only follow from a schema
/// error.
pub(crate) fn problems(
    mistakes: &[Mistake],
    others: impl IntoIterator<Item = Problem>,
) -> Vec<Problem> {
    let problem = |mistake: &Mistake| {
        Problem::new(
            Reason::InvalidSpec,
            &mistake.path,
            &mistake.message,
            &mistake.help,
        )
    };
    let mut problems: Vec<Problem> = mistakes.iter().map(problem).collect();
    let explained: Vec<&str> = mistakes
        .iter()
        .flat_map(|m| [Some(m.path.as_str()), m.meant.as_deref()])
        .flatten()
        .collect();
    let follows = |subject: &str| {
        explained.iter().any(|path| {
            subject
                .strip_prefix(path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        })
    };
    problems.extend(
        others
            .into_iter()
            .filter(|problem| !follows(&problem.subject)),
    );
    problems.sort();
    problems
}
