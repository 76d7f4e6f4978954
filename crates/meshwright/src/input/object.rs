//! Kubernetes objects in a file: alone, one document after another, or as a
//! list.

use std::rc::Rc;

use mw_core::text::{printable, quoted};

use crate::input::finding::Finding;
use crate::input::source::SourceFile;
use crate::input::tree::{Tree, Value};

#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) tree: Tree,
}

impl Object {
    /// For people: `Deployment.apps`, as kubectl writes it.
    pub(crate) fn resource(&self) -> String {
        match self.api_version.split_once('/') {
            Some((group, _)) => printable(&format!("{}.{group}", self.kind), 80),
            None => printable(&self.kind, 80),
        }
    }

    /// The name, or what is wrong with it.
    pub(crate) fn name(&self, file: &Rc<SourceFile>) -> Result<&str, Finding> {
        let name = self.tree.get("metadata").and_then(|metadata| metadata.get("name"));
        match name.and_then(Tree::text) {
            Some(name) if !name.is_empty() => Ok(name),
            _ => Err(Finding::error(format!("a {} needs a name", printable(&self.kind, 80)))
                .at(file, self.tree.locate("metadata.name"))
                .help("give it as a string in metadata.name")),
        }
    }
}

/// Every object of the documents, lists opened.
pub(crate) fn objects(file: &Rc<SourceFile>, documents: Vec<Tree>, findings: &mut Vec<Finding>) -> Vec<Object> {
    let mut found = Vec::new();
    for document in documents {
        open(file, document, None, &mut found, findings);
    }
    found
}

/// `inherited`: apiVersion and kind of the items of a typed list, which do not
/// repeat them.
fn open(file: &Rc<SourceFile>, tree: Tree, inherited: Option<(&str, &str)>, found: &mut Vec<Object>, findings: &mut Vec<Finding>) {
    let text = |key: &str| tree.get(key).and_then(Tree::text).map(str::to_owned);
    let kind = text("kind").or(inherited.map(|(_, kind)| kind.to_owned()));
    let api_version = text("apiVersion").or(inherited.map(|(version, _)| version.to_owned()));
    let (Some(kind), Some(api_version)) = (kind, api_version) else {
        let is = match &tree.value {
            Value::Map(_) => "this has no apiVersion or no kind".to_owned(),
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
        _ => found.push(Object { api_version, kind, tree }),
    }
}

fn open_list(file: &Rc<SourceFile>, tree: Tree, inherited: Option<(&str, &str)>, found: &mut Vec<Object>, findings: &mut Vec<Finding>) {
    let place = tree.locate("items");
    let Value::Map(entries) = tree.value else { return };
    match entries.into_iter().find(|entry| entry.key == "items").map(|entry| entry.value.value) {
        Some(Value::List(items)) => items.into_iter().for_each(|item| open(file, item, inherited, found, findings)),
        // The API server writes an empty list as null in places.
        Some(Value::Null) => {}
        Some(other) => findings.push(Finding::error(format!("items must be a list, not {other}")).at(file, place)),
        None => findings.push(Finding::error("this list has no items").at(file, place).help("the file may be cut off: dump it again")),
    }
}

/// An object that is there twice.
pub(crate) fn twice(file: &Rc<SourceFile>, object: &Object, what: &str, first: &str) -> Finding {
    Finding::error(format!("{what} is there twice; it was already in {first}"))
        .at(file, object.tree.locate("metadata.name"))
        .help(format!("remove one of the two: which {} counts can't be guessed", quoted(&object.kind).trim_matches('"')))
}
