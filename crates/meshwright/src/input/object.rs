//! Kubernetes objects in a file: single, multi-document, or in a List.

use std::path::PathBuf;
use std::rc::Rc;

use mw_core::text::{printable, quoted};

use crate::input::finding::Finding;
use crate::input::source::{Contents, Reader, SourceFile};
use crate::input::tree::{Tree, Value};

#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) tree: Tree,
}

/// A file that could be read.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: Rc<SourceFile>,
    pub(crate) objects: Vec<Object>,
    /// True if parts of it could not be read; these are in the findings.
    pub(crate) faulty: bool,
}

/// Opens all readable files and reports errors of the others.
pub(crate) fn open_all(
    paths: &[PathBuf],
    contents: Contents,
    reader: &mut Reader,
    findings: &mut Vec<Finding>,
) -> Vec<Opened> {
    let mut opened = Vec::new();
    for path in paths {
        match reader.read(path, contents) {
            Ok((file, documents)) => {
                let before = findings.len();
                let objects = objects(&file, documents, findings);
                opened.push(Opened {
                    file,
                    objects,
                    faulty: findings.len() > before,
                });
            }
            Err(wrong) => findings.push(wrong),
        }
    }
    opened
}

impl Object {
    /// The resource in kubectl's notation, e.g. `Deployment.apps`.
    pub(crate) fn resource(&self) -> String {
        match self.api_version.split_once('/') {
            Some((group, _)) => printable(&format!("{}.{group}", self.kind), 80),
            None => printable(&self.kind, 80),
        }
    }

    /// `namespace/name`, or only the name.
    pub(crate) fn full_name(&self, file: &Rc<SourceFile>) -> Result<String, Finding> {
        let name = self.name(file)?;
        let namespace = self
            .tree
            .get("metadata")
            .and_then(|metadata| metadata.get("namespace"))
            .and_then(Tree::text);
        Ok(namespace.map_or_else(
            || name.to_owned(),
            |namespace| format!("{namespace}/{name}"),
        ))
    }

    /// The name, or an error if it is missing.
    pub(crate) fn name(&self, file: &Rc<SourceFile>) -> Result<&str, Finding> {
        let name = self
            .tree
            .get("metadata")
            .and_then(|metadata| metadata.get("name"));
        match name.and_then(Tree::text) {
            Some(name) if !name.is_empty() => Ok(name),
            _ => Err(
                Finding::error(format!("{} has no name", printable(&self.kind, 80)))
                    .at(file, self.tree.locate("metadata.name"))
                    .help("set metadata.name to a string"),
            ),
        }
    }
}

/// All objects of the documents, with Lists expanded.
fn objects(
    file: &Rc<SourceFile>,
    documents: Vec<Tree>,
    findings: &mut Vec<Finding>,
) -> Vec<Object> {
    let mut found = Vec::new();
    for document in documents {
        open(file, document, None, &mut found, findings);
    }
    found
}

/// `inherited`: apiVersion and kind of a typed list, which its items omit.
fn open(
    file: &Rc<SourceFile>,
    tree: Tree,
    inherited: Option<(&str, &str)>,
    found: &mut Vec<Object>,
    findings: &mut Vec<Finding>,
) {
    let text = |key: &str| tree.get(key).and_then(Tree::text).map(str::to_owned);
    let kind = text("kind").or(inherited.map(|(_, kind)| kind.to_owned()));
    let api_version = text("apiVersion").or(inherited.map(|(version, _)| version.to_owned()));
    let (Some(kind), Some(api_version)) = (kind, api_version) else {
        let is = match &tree.value {
            Value::Map(_) => "this object has no apiVersion or no kind".to_owned(),
            other => format!("expected a Kubernetes object, found {other}"),
        };
        let help = "dump objects with kubectl get ... -o yaml";
        findings.push(Finding::error(is).at(file, tree.highlight()).help(help));
        return;
    };
    match kind.strip_suffix("List") {
        Some(of) if inherited.is_none() => {
            let inherited = (!of.is_empty()).then_some((api_version.as_str(), of));
            open_list(file, tree, inherited, found, findings);
        }
        _ => found.push(Object {
            api_version,
            kind,
            tree,
        }),
    }
}

fn open_list(
    file: &Rc<SourceFile>,
    tree: Tree,
    inherited: Option<(&str, &str)>,
    found: &mut Vec<Object>,
    findings: &mut Vec<Finding>,
) {
    let place = tree.locate("items");
    let Value::Map(entries) = tree.value else {
        return;
    };
    match entries
        .into_iter()
        .find(|entry| entry.key == "items")
        .map(|entry| entry.value.value)
    {
        Some(Value::List(items)) => items
            .into_iter()
            .for_each(|item| open(file, item, inherited, found, findings)),
        // The API server sometimes writes an empty list as null.
        Some(Value::Null) => {}
        Some(other) => findings
            .push(Finding::error(format!("items must be a list, not {other}")).at(file, place)),
        None => findings.push(
            Finding::error("this list has no items")
                .at(file, place)
                .help("the file may be truncated; dump it again"),
        ),
    }
}

/// Error for an object that is defined twice.
pub(crate) fn twice(file: &Rc<SourceFile>, object: &Object, what: &str, first: &str) -> Finding {
    Finding::error(format!("duplicate {what}; first defined in {first}"))
        .at(file, object.tree.locate("metadata.name"))
        .help(format!(
            "remove one of the two: it is ambiguous which {} counts",
            quoted(&object.kind).trim_matches('"')
        ))
}
