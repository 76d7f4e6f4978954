//! The workspaces from which the answer to one request comes.

use std::sync::Arc;

use super::model::{Claim, EXPORT_LABEL, ExportKey, GroupResource};
use super::world::{Workspace, World};

/// Why a resource is there at all.
#[derive(Debug, Clone)]
pub(super) enum Through {
    /// The export's own resource.
    Export,
    /// The bindings to the export, always there to be read.
    Bindings,
    Claim(Claim),
}

#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) world: Arc<World>,
    pub(super) shard: usize,
    pub(super) export: ExportKey,
    pub(super) what: GroupResource,
    pub(super) through: Through,
    /// In each workspace.
    pub(super) path: String,
    /// The only workspace that is asked; all of the shard without it.
    pub(super) only: Option<String>,
}

/// One workspace that takes part.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) workspace: Arc<Workspace>,
    /// Differs when a tenant has left and come back.
    pub(super) key: String,
    /// What is visible there, as a label selector.
    pub(super) labels: String,
    /// The workspace knows nothing of the resource before this revision.
    pub(super) since: u64,
}

impl Source {
    /// Sorted by id.
    pub(super) fn places(&self) -> Vec<Place> {
        let workspaces = self.world.workspaces().into_iter();
        let asked = workspaces.filter(|one| one.shard == self.shard && self.only.as_ref().is_none_or(|only| *only == one.id));
        asked.filter_map(|workspace| self.place(workspace)).collect()
    }

    fn place(&self, workspace: Arc<Workspace>) -> Option<Place> {
        let place = |key: &str, labels: String| {
            let since = self.world.served_since(&workspace.id, &self.what);
            Some(Place { key: key.to_owned(), labels, since, workspace: workspace.clone() })
        };
        match &self.through {
            Through::Bindings => place("", format!("{EXPORT_LABEL}={}", self.export.hash())),
            Through::Export => {
                let binding = self.world.binding_to(&self.export, &workspace.id).filter(|binding| binding.binds(&self.what))?;
                place(&binding.uid, String::new())
            }
            Through::Claim(claim) => {
                let key = if claim.identity_hash.is_empty() { String::new() } else { self.bound_elsewhere(&workspace, claim)? };
                let labels = if self.only.is_some() {
                    let binding = self.world.binding_to(&self.export, &workspace.id)?;
                    let labels = binding.claim(&self.what)?.match_labels();
                    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
                } else {
                    format!("{}={}", self.export.claim_label(), claim.hash())
                };
                place(&key, labels)
            }
        }
    }

    /// The binding by which a workspace has a resource of a foreign export.
    fn bound_elsewhere(&self, workspace: &Workspace, claim: &Claim) -> Option<String> {
        let bindings = self.world.bindings(&workspace.id).into_iter();
        let is_it = |binding: &super::model::Binding| {
            binding.bound.iter().any(|bound| bound.what == claim.what && bound.identity_hash == claim.identity_hash)
        };
        bindings.filter(is_it).map(|binding| binding.uid).next()
    }

    /// The `apiVersion` of the objects.
    pub(super) fn version(&self) -> String {
        let segments: Vec<&str> = self.path.split('/').filter(|segment| !segment.is_empty()).collect();
        match segments.as_slice() {
            ["apis", group, version, ..] => format!("{group}/{version}"),
            [_, version, ..] => (*version).to_owned(),
            _ => String::new(),
        }
    }

    /// Names what is watched, whoever watches it.
    pub(super) fn name(&self) -> String {
        format!("{} {:?} {} {:?}", self.shard, self.export, self.path, self.only)
    }
}
