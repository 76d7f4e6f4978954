//! ClusterMeshes that are missing. One that carries our finalizer can't vanish
//! unless we removed it, and a list can lie: absence counts only after the mesh
//! was looked for by its name as well.

use std::collections::{BTreeMap, BTreeSet};

use kube::Api;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject};
use mw_api::clustermesh::ClusterMesh;
use mw_core::kilo::{Absent, OrphanOf, Orphans};
use mw_core::names::{MeshId, is_hashed_label, label_value};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::backoff::Backoff;
use crate::failure::Failure;
use crate::kilo::engine::{Engine, Event};

/// More are not remembered: later ones count as any other orphan.
const MOST_FINISHED: usize = 1000;
/// More names than a hub has: labels in a cluster can say anything.
const MOST_SEARCHES: usize = 1000;
const SEARCHES_AT_ONCE: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Absences {
    /// Meshes with our finalizer that a list or an event did without.
    missing: BTreeSet<MeshId>,
    /// By name: the namespaces that have a mesh of that name.
    searches: BTreeMap<String, Search>,
    /// Since when the Peers of a mesh have been orphans whose name is not known.
    nameless: BTreeMap<OrphanOf, (Instant, u64)>,
    /// Meshes that were cleaned up and let go by this process.
    finished: BTreeSet<OrphanOf>,
    /// How often all ClusterMeshes were listed.
    lists: u64,
}

#[derive(Debug)]
enum Search {
    UnderWay,
    Failed { again: Instant, backoff: Backoff },
    Found(BTreeSet<String>),
}

impl Absences {
    /// Forgets what was found: it may be otherwise now.
    pub(super) fn doubt(&mut self) {
        self.searches.retain(|_, search| matches!(search, Search::UnderWay | Search::Failed { .. }));
        self.nameless.clear();
    }

    pub(super) fn note_list(&mut self) {
        self.lists += 1;
    }

    /// The mesh is there after all.
    pub(super) fn returned(&mut self, mesh: &MeshId) {
        self.missing.remove(mesh);
    }

    pub(super) fn finished(&mut self, mesh: &MeshId) {
        self.missing.remove(mesh);
        if self.finished.len() < MOST_FINISHED {
            self.finished.insert(OrphanOf { mesh: label_value(&mesh.name), namespace: Some(label_value(&mesh.namespace)) });
        }
    }

    /// When a search that failed is tried again.
    pub(super) fn due(&self) -> Option<Instant> {
        let again = |search: &Search| if let Search::Failed { again, .. } = search { Some(*again) } else { None };
        self.searches.values().filter_map(again).min()
    }

    fn is_absent(&self, name: &str, namespace: Option<&str>) -> bool {
        match self.searches.get(name) {
            Some(Search::Found(namespaces)) => match namespace {
                Some(namespace) => !namespaces.contains(namespace),
                None => namespaces.is_empty(),
            },
            _ => false,
        }
    }
}

impl Engine {
    /// A mesh was not where it should be.
    pub(super) fn mesh_is_missing(&mut self, mesh: MeshId) {
        warn!(%mesh, "the ClusterMesh is missing although its finalizer is in place; looking for it by name");
        // An earlier search says nothing of what happened since.
        self.absences.searches.remove(&mesh.name);
        self.absences.missing.insert(mesh);
    }

    /// Looks for every mesh whose absence matters and is not confirmed yet.
    pub(super) fn look_for_missing_meshes(&mut self) {
        let orphaned = match &self.planner {
            Some(planner) if self.all_listed => planner.orphaned(),
            _ => BTreeSet::new(),
        };
        let now = self.turned_at;
        self.absences.nameless.retain(|of, _| orphaned.contains(of));
        let mut names: BTreeSet<String> = self.absences.missing.iter().map(|mesh| mesh.name.clone()).collect();
        for of in &orphaned {
            match is_hashed_label(&of.mesh) {
                true => _ = self.absences.nameless.entry(of.clone()).or_insert((now, self.absences.lists)),
                false if is_object_name(&of.mesh) && names.len() < MOST_SEARCHES => _ = names.insert(of.mesh.clone()),
                false => {}
            }
        }
        self.absences.searches.retain(|name, search| names.contains(name) || matches!(search, Search::UnderWay));
        let under_way = |search: &&Search| matches!(search, Search::UnderWay);
        let mut running = self.absences.searches.values().filter(under_way).count();
        for name in names {
            let due = match self.absences.searches.get(&name) {
                None => true,
                Some(Search::Failed { again, .. }) => *again <= now,
                Some(Search::UnderWay | Search::Found(_)) => false,
            };
            if due && running < SEARCHES_AT_ONCE {
                running += 1;
                self.search(name);
            }
        }
        self.tell_of_absence(&orphaned);
    }

    fn search(&mut self, name: String) {
        self.absences.searches.insert(name.clone(), Search::UnderWay);
        let api: Api<DynamicObject> = Api::all_with(self.environment.hub.clone(), &ApiResource::erase::<ClusterMesh>(&()));
        let events = self.sender.clone();
        self.tasks.spawn(async move {
            let params = ListParams::default().fields(&format!("metadata.name={name}"));
            let found = api.list(&params).await.map_err(|error| Failure::of(&error));
            let found = found.and_then(|list| {
                let strange = list.items.iter().any(|item| item.metadata.name.as_deref() != Some(&name));
                let more = list.metadata.continue_.is_some_and(|token| !token.is_empty());
                let namespaces = list.items.into_iter().filter_map(|item| item.metadata.namespace).collect();
                match strange || more {
                    true => Err(Failure::Unreadable(format!("a search for ClusterMeshes named {name} found others"))),
                    false => Ok(namespaces),
                }
            });
            _ = events.send(Event::Searched { name, found }).await;
        });
    }

    pub(super) fn observe_search(&mut self, name: String, found: Result<BTreeSet<String>, Failure>) {
        match found {
            Err(failure) => {
                self.count_failure("hub", &failure);
                let mut backoff = match self.absences.searches.remove(&name) {
                    Some(Search::Failed { backoff, .. }) => backoff,
                    _ => self.backoff(),
                };
                let again = Instant::now() + backoff.next(failure.retry_after());
                self.absences.searches.insert(name, Search::Failed { again, backoff });
            }
            Ok(namespaces) => {
                let missing: Vec<MeshId> = self.absences.missing.iter().filter(|mesh| mesh.name == name).cloned().collect();
                for mesh in missing {
                    self.absences.missing.remove(&mesh);
                    match namespaces.contains(&mesh.namespace) {
                        // Whatever did without it was wrong.
                        true => self.hub_relist.ring(),
                        false => {
                            info!(%mesh, "the ClusterMesh is gone");
                            self.records.remove(&mesh);
                            self.records_changed = true;
                        }
                    }
                }
                self.absences.searches.insert(name, Search::Found(namespaces));
                self.touch_status();
            }
        }
    }

    fn tell_of_absence(&mut self, orphaned: &BTreeSet<OrphanOf>) {
        let absences = &self.absences;
        let lists_apart = |of: &OrphanOf| {
            absences.nameless.get(of).is_some_and(|(since, lists)| {
                absences.lists > *lists && self.turned_at.duration_since(*since) >= self.settings.resync.mul_f64(0.9)
            })
        };
        let absent = |of: &&OrphanOf| match is_hashed_label(&of.mesh) {
            true => lists_apart(of),
            false => absences.is_absent(&of.mesh, of.namespace.as_deref()),
        };
        let confirmed = orphaned.iter().filter(absent).map(|of| (of.clone(), absences.finished.contains(of))).collect();
        let absent = if self.all_listed { Absent::Confirmed(confirmed) } else { Absent::Unknown };
        let confirm = self.environment.lease_annotations.get(ANNOTATION_CONFIRM_ORPHANS);
        if let Some(planner) = &mut self.planner {
            let held = planner.held_orphans().clone();
            planner.set_orphans(Orphans { absent, confirm, held });
        }
    }
}

fn is_object_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    !text.is_empty() && text.bytes().all(plain)
}

/// On the operator's Lease: the hash that releases held orphans.
const ANNOTATION_CONFIRM_ORPHANS: &str = "kilo-clustermesh.io/confirm-orphans";
