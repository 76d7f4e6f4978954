//! Missing ClusterMeshes. A ClusterMesh with our finalizer can't disappear unless
//! we removed the finalizer, and a list can be wrong: a mesh counts as absent only
//! after two searches by name found nothing either.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mw_core::kilo::{Absent, OrphanOf, Orphans};
use mw_core::names::{MeshId, is_hashed_label, label_value};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::kilo::engine::Engine;

/// Limits the remembered meshes; Peers of later ones are ordinary orphans.
const MOST_FINISHED: usize = 1000;
/// Limits the searched names, which come from labels that anyone may write.
const MOST_SEARCHES: usize = 1000;
/// Time between two searches that must agree. A wrong answer seldom comes alone.
pub(super) const APART: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Absences {
    /// Meshes with our finalizer that are missing from a list, or reported as deleted.
    missing: BTreeSet<MeshId>,
    /// Orphans whose mesh name is known only as a hash: first seen, and number of lists then.
    nameless: BTreeMap<OrphanOf, (Instant, u64)>,
    /// UIDs of the meshes that this process cleaned up and let go.
    finished: BTreeMap<OrphanOf, String>,
    /// Number of lists of ClusterMeshes.
    lists: u64,
}

impl Absences {
    /// Discards what lists have told.
    pub(super) fn doubt(&mut self) {
        self.nameless.clear();
    }

    pub(super) fn note_list(&mut self) {
        self.lists += 1;
    }

    /// Records that the mesh exists after all, or another one of its name.
    pub(super) fn returned(&mut self, mesh: &MeshId, uid: &str) {
        self.missing.remove(mesh);
        let of = orphans_of(mesh);
        if self
            .finished
            .get(&of)
            .is_some_and(|finished| finished != uid)
        {
            self.finished.remove(&of);
        }
    }

    /// Records that the cleanup of a mesh ended. Called before its finalizer is
    /// removed: the watch may report the deletion before that write is answered.
    pub(super) fn finished(&mut self, mesh: &MeshId, uid: &str) {
        if self.finished.len() < MOST_FINISHED {
            self.finished.insert(orphans_of(mesh), uid.to_owned());
        }
    }

    /// Reports whether a mesh may be gone. Nothing is written to it meanwhile.
    pub(super) fn is_missing(&self, mesh: &MeshId) -> bool {
        self.missing.contains(mesh)
    }
}

impl Engine {
    /// Records a mesh that is unexpectedly missing.
    pub(super) fn mesh_is_missing(&mut self, mesh: MeshId) {
        let name = mesh.name.clone();
        if self.state.absences.missing.insert(mesh.clone()) {
            warn!(%mesh, "ClusterMesh disappeared although it has our finalizer; searching for it by name");
            // The result of an earlier search may be out of date.
            self.searches.forget(&name);
        }
    }

    /// Searches for missing meshes, and for the meshes of orphans.
    pub(super) fn look_for_missing_meshes(&mut self) {
        let orphaned = match &self.state.planner {
            Some(planner) if self.state.hub.all_listed => planner.orphaned(),
            _ => BTreeSet::new(),
        };
        let now = self.turned_at;
        self.state
            .absences
            .nameless
            .retain(|of, _| orphaned.contains(of));
        let mut names: BTreeSet<String> = self
            .state
            .absences
            .missing
            .iter()
            .map(|mesh| mesh.name.clone())
            .collect();
        for of in &orphaned {
            if is_hashed_label(&of.mesh) {
                let absences = &mut self.state.absences;
                let first = (now, absences.lists);
                absences.nameless.entry(of.clone()).or_insert(first);
            } else if is_object_name(&of.mesh) && names.len() < MOST_SEARCHES {
                names.insert(of.mesh.clone());
            }
        }
        self.search(&names);
        self.tell_of_absence(&orphaned);
    }

    pub(super) fn take_searched(&mut self, name: &String, namespaces: &BTreeSet<String>) {
        let has_ended = self.searches.namespaces(name).is_some();
        let missing: Vec<MeshId> = self
            .state
            .absences
            .missing
            .iter()
            .filter(|mesh| mesh.name == *name)
            .cloned()
            .collect();
        for mesh in missing {
            if namespaces.contains(&mesh.namespace) {
                // The list or event without it was wrong.
                self.state.absences.missing.remove(&mesh);
                self.hub_relist.ring();
            } else if has_ended {
                info!(%mesh, "ClusterMesh is deleted");
                self.state.absences.missing.remove(&mesh);
                self.records.remove(&mesh);
                self.changes.records = true;
            }
        }
        self.touch_status();
    }

    /// Reports whether searches found no mesh of this name.
    fn is_absent(&self, name: &String, namespace: Option<&str>) -> bool {
        self.searches
            .namespaces(name)
            .is_some_and(|namespaces| match namespace {
                Some(namespace) => !namespaces.contains(namespace),
                None => namespaces.is_empty(),
            })
    }

    fn tell_of_absence(&mut self, orphaned: &BTreeSet<OrphanOf>) {
        let absences = &self.state.absences;
        let lists_apart = |of: &OrphanOf| {
            absences.nameless.get(of).is_some_and(|(since, lists)| {
                absences.lists > *lists
                    && self.turned_at.duration_since(*since) >= self.settings.resync.mul_f64(0.9)
            })
        };
        let absent = |of: &&OrphanOf| {
            if is_hashed_label(&of.mesh) {
                lists_apart(of)
            } else {
                self.is_absent(&of.mesh, of.namespace.as_deref())
            }
        };
        let confirmed = orphaned
            .iter()
            .filter(absent)
            .map(|of| (of.clone(), absences.finished.contains_key(of)))
            .collect();
        let absent = if self.state.hub.all_listed {
            Absent::Confirmed(confirmed)
        } else {
            Absent::Unknown
        };
        let confirm = self
            .environment
            .lease_annotations
            .get(ANNOTATION_CONFIRM_ORPHANS);
        if let Some(planner) = &mut self.state.planner {
            let held = planner.held_orphans().clone();
            planner.set_orphans(Orphans {
                absent,
                confirm,
                held,
            });
        }
    }
}

fn orphans_of(mesh: &MeshId) -> OrphanOf {
    OrphanOf {
        mesh: label_value(&mesh.name),
        namespace: Some(label_value(&mesh.namespace)),
    }
}

fn is_object_name(text: &str) -> bool {
    let plain = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.')
    };
    !text.is_empty() && text.bytes().all(plain)
}

/// Annotation of the operator's Lease with the hash that confirms the deletion of held orphans.
const ANNOTATION_CONFIRM_ORPHANS: &str = "kilo-clustermesh.io/confirm-orphans";
