//! Workspaces that contribute to the answer of a request.

use std::sync::Arc;

use super::model::{Claim, EXPORT_LABEL, ExportKey, GroupResource};
use super::world::{Workspace, World};

/// Reason why a resource is visible.
#[derive(Debug, Clone)]
pub(super) enum Through {
    /// Resource of the export.
    Export,
    /// APIBindings to the export, which are always readable.
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
    /// Path in each workspace.
    pub(super) path: String,
    /// The only workspace to ask; `None` for all workspaces of the shard.
    pub(super) only: Option<String>,
}

/// A contributing workspace.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) workspace: Arc<Workspace>,
    /// Changes when a tenant unbinds and binds again.
    pub(super) key: String,
    /// Label selector of visible objects.
    pub(super) labels: String,
    /// Revision from which on the workspace serves the resource.
    pub(super) since: u64,
}

impl Source {
    /// Returns the workspaces, sorted by ID.
    pub(super) fn places(&self) -> Vec<Place> {
        let workspaces = self.world.workspaces().into_iter();
        let asked = workspaces.filter(|one| {
            one.shard == self.shard && self.only.as_ref().is_none_or(|only| *only == one.id)
        });
        asked
            .filter_map(|workspace| self.place(workspace))
            .collect()
    }

    fn place(&self, workspace: Arc<Workspace>) -> Option<Place> {
        let place = |key: &str, labels: String| {
            let since = self.world.served_since(&workspace.id, &self.what);
            Some(Place {
                key: key.to_owned(),
                labels,
                since,
                workspace: workspace.clone(),
            })
        };
        match &self.through {
            Through::Bindings => place("", format!("{EXPORT_LABEL}={}", self.export.hash())),
            Through::Export => {
                let binding = self
                    .world
                    .binding_to(&self.export, &workspace.id)
                    .filter(|binding| binding.binds(&self.what))?;
                place(&binding.uid, String::new())
            }
            Through::Claim(claim) => {
                let key = if claim.identity_hash.is_empty() {
                    String::new()
                } else {
                    self.bound_elsewhere(&workspace, claim)?
                };
                let labels = if self.only.is_some() {
                    let binding = self.world.binding_to(&self.export, &workspace.id)?;
                    let labels = binding.claim(&self.what)?.match_labels();
                    labels
                        .iter()
                        .map(|(key, value)| format!("{key}={value}"))
                        .collect::<Vec<_>>()
                        .join(",")
                } else {
                    format!("{}={}", self.export.claim_label(), claim.hash())
                };
                place(&key, labels)
            }
        }
    }

    /// Returns the UID of the binding through which a workspace has a resource of another
    /// export.
    fn bound_elsewhere(&self, workspace: &Workspace, claim: &Claim) -> Option<String> {
        let bindings = self.world.bindings(&workspace.id).into_iter();
        let is_it = |binding: &super::model::Binding| {
            binding
                .bound
                .iter()
                .any(|bound| bound.what == claim.what && bound.identity_hash == claim.identity_hash)
        };
        bindings.filter(is_it).map(|binding| binding.uid).next()
    }

    /// Returns the `apiVersion` of the objects.
    pub(super) fn version(&self) -> String {
        let segments: Vec<&str> = self
            .path
            .split('/')
            .filter(|segment| !segment.is_empty())
            .collect();
        match segments.as_slice() {
            ["apis", group, version, ..] => format!("{group}/{version}"),
            [_, version, ..] => (*version).to_owned(),
            _ => String::new(),
        }
    }

    /// Returns a key of what is watched, independently of the client.
    pub(super) fn name(&self) -> String {
        format!(
            "{} {:?} {} {:?}",
            self.shard, self.export, self.path, self.only
        )
    }
}
