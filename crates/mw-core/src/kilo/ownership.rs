//! Ownership of a Peer, derived from its labels. Foreign Peers are never
//! changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::kilo::guard::HeldLine;
use crate::kilo::peer::Labels;
use crate::names::{MeshId, label_value};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    /// One of the hub's meshes.
    Mesh(MeshId),
    /// Ours by the hub's label, but its mesh does not exist.
    Orphan,
    /// Written by the Go operator for a mesh that does not exist.
    Ghost,
    /// Written by the Go operator; several meshes have that name.
    Ambiguous(BTreeSet<MeshId>),
    /// Belongs to this mesh by name, but two hubs claim that mesh.
    HubConflict(MeshId),
    /// Belongs to another hub.
    OtherHub,
    Foreign,
}

/// A mesh that does not exist, as named by the labels of its Peers. Peers of
/// the Go operator have no namespace label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrphanOf {
    /// The value of the mesh label.
    pub mesh: String,
    /// The value of the namespace label.
    pub namespace: Option<String>,
}

impl OrphanOf {
    pub(super) fn of(labels: &Labels) -> Option<OrphanOf> {
        Some(OrphanOf {
            mesh: labels.mesh.clone()?,
            namespace: labels.namespace.clone(),
        })
    }
}

/// Meshes known not to exist, so that their Peers may be deleted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Absent {
    /// Not known, so no Peer is an orphan.
    #[default]
    Unknown,
    /// All meshes of the hub are given, so any other does not exist.
    AllOthers,
    /// Meshes that were looked up and not found. True for a mesh whose cleanup
    /// was finished by this process.
    Confirmed(BTreeMap<OrphanOf, bool>),
}

impl Absent {
    pub(super) fn includes(&self, labels: &Labels) -> bool {
        match self {
            Absent::Unknown => false,
            Absent::AllOthers => true,
            Absent::Confirmed(meshes) => {
                OrphanOf::of(labels).is_some_and(|of| meshes.contains_key(&of))
            }
        }
    }

    pub(super) fn was_finished(&self, labels: &Labels) -> bool {
        match self {
            Absent::Unknown | Absent::AllOthers => false,
            Absent::Confirmed(meshes) => {
                OrphanOf::of(labels).is_some_and(|of| meshes.get(&of) == Some(&true))
            }
        }
    }
}

/// State of Peers whose mesh does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Orphans {
    /// The meshes known not to exist.
    pub absent: Absent,
    /// The hash with which the user confirmed held orphans.
    pub confirm: Option<String>,
    /// Orphans held by the previous plan.
    pub held: BTreeSet<HeldLine>,
}

/// The hub's meshes, by the values of the labels.
#[derive(Debug, Clone, Default)]
pub(super) struct Register {
    hub: Option<String>,
    by_labels: BTreeMap<(String, String), MeshId>,
    by_name: BTreeMap<String, BTreeSet<MeshId>>,
    take_over: BTreeMap<MeshId, String>,
    conflicts: BTreeMap<MeshId, BTreeSet<String>>,
    /// One value per mesh, shared by all its Peers.
    owners: BTreeMap<MeshId, Arc<Owner>>,
}

impl Register {
    pub(super) fn new<'a>(
        hub: Option<&str>,
        meshes: impl Iterator<Item = (&'a MeshId, Option<&'a str>)>,
    ) -> Register {
        let mut register = Register {
            hub: hub.map(str::to_owned),
            ..Register::default()
        };
        for (id, take_over) in meshes {
            let (name, namespace) = (label_value(&id.name), label_value(&id.namespace));
            register
                .by_name
                .entry(name.clone())
                .or_default()
                .insert(id.clone());
            register.by_labels.insert((name, namespace), id.clone());
            register
                .owners
                .insert(id.clone(), Arc::new(Owner::Mesh(id.clone())));
            register
                .take_over
                .extend(take_over.map(|uid| (id.clone(), uid.to_owned())));
        }
        register
    }

    pub(super) fn hub(&self) -> Option<&str> {
        self.hub.as_deref()
    }

    /// Without the hub's UID, the mesh's name and namespace decide; if two hubs
    /// use the same ones, the owner of a Peer is ambiguous.
    pub(super) fn note_hubs<'a>(&mut self, peers: impl Iterator<Item = &'a Labels>) {
        if self.hub.is_some() {
            return;
        }
        let mut hubs: BTreeMap<MeshId, BTreeSet<String>> = BTreeMap::new();
        for labels in peers {
            if let (Some(mesh), Some(hub)) = (self.by_label(labels), &labels.hub) {
                hubs.entry(mesh.clone()).or_default().insert(hub.clone());
            }
        }
        hubs.retain(|_, uids| uids.len() > 1);
        self.conflicts = hubs;
    }

    pub(super) fn conflicts(&self) -> &BTreeMap<MeshId, BTreeSet<String>> {
        &self.conflicts
    }

    fn by_label(&self, labels: &Labels) -> Option<&MeshId> {
        let key = (labels.mesh.clone()?, labels.namespace.clone()?);
        self.by_labels.get(&key)
    }

    pub(super) fn owner(&self, labels: &Labels) -> Arc<Owner> {
        match self.judge(labels) {
            Owner::Mesh(id) => self
                .owners
                .get(&id)
                .map_or_else(|| Arc::new(Owner::Mesh(id.clone())), Arc::clone),
            owner => Arc::new(owner),
        }
    }

    fn judge(&self, labels: &Labels) -> Owner {
        match (&labels.mesh, &labels.namespace, &labels.hub) {
            (Some(_), Some(_), hub) => self.labelled_owner(labels, hub.as_deref()),
            (Some(mesh), None, None) if labels.source.is_some() => {
                match self.by_name.get(mesh).map(|ids| (ids.len(), ids)) {
                    None => Owner::Ghost,
                    Some((1, ids)) => ids
                        .first()
                        .map_or(Owner::Ghost, |id| Owner::Mesh(id.clone())),
                    Some((_, ids)) => Owner::Ambiguous(ids.clone()),
                }
            }
            (_, _, Some(hub)) if self.hub.as_deref().is_some_and(|own| own != hub) => {
                Owner::OtherHub
            }
            _ => Owner::Foreign,
        }
    }

    fn labelled_owner(&self, labels: &Labels, hub: Option<&str>) -> Owner {
        let mesh = self.by_label(labels);
        match (&self.hub, hub) {
            (Some(own), Some(hub)) => match mesh {
                Some(id) if own == hub || self.take_over.get(id).is_some_and(|old| old == hub) => {
                    Owner::Mesh(id.clone())
                }
                None if own == hub => Owner::Orphan,
                _ => Owner::OtherHub,
            },
            // We always write the hub's label, so it was removed later. Such a
            // Peer is taken back only if its name and key match exactly.
            (Some(_), None) => Owner::Foreign,
            (None, hub) => match mesh {
                Some(id) if hub.is_some() && self.conflicts.contains_key(id) => {
                    Owner::HubConflict(id.clone())
                }
                Some(id) => Owner::Mesh(id.clone()),
                None => Owner::Orphan,
            },
        }
    }
}

/// Reports whether every label that is set has the value that we would write.
pub(super) fn may_be_taken_back(found: &Labels, wanted: &Labels) -> bool {
    let fits = |found: &Option<String>, wanted: &Option<String>| found.is_none() || found == wanted;
    let Labels {
        mesh,
        source,
        namespace,
        hub,
    } = found;
    fits(mesh, &wanted.mesh)
        && fits(source, &wanted.source)
        && fits(namespace, &wanted.namespace)
        && fits(hub, &wanted.hub)
}
