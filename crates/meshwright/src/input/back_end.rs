//! Detects the back end from the kinds of the objects in the files.

use mw_api::cilium::GROUP;
use mw_controller::cilium::Kind;

use crate::input::finding::{self, Finding};
use crate::input::kilo::meshes;
use crate::input::object::{Object, Opened};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BackEnd {
    Kilo,
    Cilium,
}

/// Defaults to Kilo if no kind is recognized; loading then reports the expected kinds.
pub(crate) fn back_end(files: &[Opened]) -> Result<BackEnd, Finding> {
    let objects = || {
        files.iter().flat_map(|opened| {
            opened
                .objects
                .iter()
                .map(move |object| (&opened.file, object))
        })
    };
    let kilo = objects().find(|(_, object)| object.kind == meshes::KIND);
    let cilium = objects().find(|(_, object)| is_of_cilium(object));
    match (kilo, cilium) {
        (_, None) => Ok(BackEnd::Kilo),
        (None, Some(_)) => Ok(BackEnd::Cilium),
        (Some((of_kilo, mesh)), Some((file, object))) => {
            let place = finding::place(of_kilo, mesh.tree.locate("kind"));
            let message = format!(
                "{} belongs to the Cilium back end, but the ClusterMesh in {place} to the Kilo back end",
                object.resource()
            );
            Err(Finding::error(message)
                .at(file, object.tree.locate("kind"))
                .help("plan the two back ends separately"))
        }
    }
}

fn is_of_cilium(object: &Object) -> bool {
    let group = object.api_version.split_once('/').map(|(group, _)| group);
    group == Some(GROUP) || Kind::ALL.iter().any(|kind| kind.as_str() == object.kind)
}
