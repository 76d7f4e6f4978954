//! A ClusterMesh on the hub, with state that we keep about it.

use std::collections::{BTreeMap, BTreeSet};

use kube::core::DynamicObject;
use mw_api::kilo::clustermesh::{
    ANNOTATION_RECONCILE_TRIGGER, ClusterMesh, ClusterMeshSpec, ClusterMeshStatus, FINALIZER,
};
use mw_core::condition::kilo::kind;
use mw_core::kilo::guard::HeldLine;
use mw_core::kilo::spec::{Mesh, RawCluster, SecretRef, validate};
use mw_core::names::{ClusterId, ClusterName, MeshId};
use mw_core::text::printable;
use mw_core::time::Timestamp;

use crate::fleet::Source;
use crate::kilo::events::said_before;

pub(super) type Record = crate::engine::Record<MeshState>;

#[derive(Debug)]
pub(super) struct MeshState {
    pub(super) mesh: Mesh,
    pub(super) status: ClusterMeshStatus,
    /// An earlier process held more deletes than fit into the status.
    pub(super) holds_everything: bool,
    /// The spec is refused, and the previous one stays in force.
    pub(super) keeps_running: bool,
    /// The planner has it, and is now the source of held deletes and anchors.
    pub(super) handed_over: bool,
    /// Number of lists of each cluster's Secret when the deletion was first seen.
    pub(super) secrets_then: Option<BTreeMap<ClusterId, u64>>,
}

impl Record {
    pub(super) fn read(object: &DynamicObject) -> Record {
        let value = serde_json::to_value(object).unwrap_or_default();
        let (read, misread) = match serde_json::from_value::<ClusterMesh>(value.clone()) {
            Ok(mesh) => (mesh, None),
            Err(wrong) => (
                without_spec(object, value.get("status")),
                Some(printable(&wrong.to_string(), 300)),
            ),
        };
        let state = MeshState {
            mesh: mw_api::kilo::convert::mesh(&read),
            status: read.status.unwrap_or_default(),
            holds_everything: false,
            keeps_running: false,
            handed_over: false,
            secrets_then: None,
        };
        Record::new(object, misread, state)
    }

    /// Takes over a newer state of the same object and keeps our own state. Returns
    /// false if nothing relevant changed.
    pub(super) fn renew(&mut self, newer: Record) -> bool {
        let finalized = self.has_finalizer();
        let before = (self.state.mesh.clone(), self.misread.clone());
        let Record {
            meta,
            version,
            misread,
            state: MeshState { mesh, status, .. },
            ..
        } = newer;
        let known = &mut self.state.mesh;
        let held = std::mem::take(&mut known.held);
        let anchors = std::mem::take(&mut known.anchors);
        let (running, recalled) = (known.running.take(), known.recalled);
        self.state.mesh = Mesh {
            held,
            anchors,
            running,
            recalled,
            ..mesh
        };
        (self.meta, self.version, self.misread) = (meta, version, misread);
        self.state.status = status;
        before != (self.state.mesh.clone(), self.misread.clone())
            || finalized != self.has_finalizer()
    }

    /// Restores what an earlier process left in the status: the spec in force and
    /// the held deletes.
    pub(super) fn recalled(mut self) -> Record {
        let condition = |kind: &str| {
            self.state
                .status
                .conditions
                .iter()
                .flatten()
                .find(|condition| condition.type_ == kind)
        };
        let admitted =
            condition(kind::NETWORKS_OVERLAP).is_some_and(|condition| condition.status == "False");
        if admitted && self.state.status.observed_generation == self.meta.generation {
            self.state.mesh.running = validate(&self.state.mesh.spec).ok().map(|(spec, _)| spec);
            self.state.mesh.recalled = self.state.mesh.running.is_some();
        }
        let mut held: BTreeSet<HeldLine> = BTreeSet::new();
        for on in self.state.status.held_deletes.iter().flatten() {
            let entry = self
                .state
                .mesh
                .spec
                .clusters
                .iter()
                .find(|entry| entry.name == on.cluster);
            let Some(cluster) = entry
                .and_then(|entry| self.source_of(entry))
                .map(|source| source.id())
            else {
                continue;
            };
            held.extend(
                on.peers
                    .iter()
                    .filter_map(|line| HeldLine::read(cluster.clone(), line)),
            );
            if usize::try_from(on.count).is_ok_and(|count| count > on.peers.len()) {
                // Not all names are known, so every delete needs a confirmation.
                self.state.holds_everything = true;
            }
        }
        self.state.mesh.held = held;
        self.said = said_before(&self.state.status);
        self
    }

    /// Returns the input for the planner.
    pub(super) fn input(&self) -> Mesh {
        let mut mesh = self.state.mesh.clone();
        if self.state.holds_everything {
            mesh.spec.max_delete_percent = Some(0);
        }
        mesh
    }

    /// Returns the clusters whose entries name other credentials in a newer spec.
    pub(super) fn redirected_by(&self, newer: &Record) -> Vec<ClusterName> {
        let credentials = |of: &RawCluster| (of.local, of.kubeconfig_secret.clone());
        let former = |name: &str| {
            self.state
                .mesh
                .spec
                .clusters
                .iter()
                .find(|entry| entry.name == name)
                .map(credentials)
        };
        let moved =
            newer.state.mesh.spec.clusters.iter().filter(|entry| {
                former(&entry.name).is_some_and(|former| former != credentials(entry))
            });
        moved
            .filter_map(|entry| ClusterName::try_from(entry.name.as_str()).ok())
            .collect()
    }

    pub(super) fn has_finalizer(&self) -> bool {
        self.finalizers().any(|name| name == FINALIZER)
    }

    pub(super) fn trigger(&self) -> Option<&String> {
        self.meta
            .annotations
            .as_ref()?
            .get(ANNOTATION_RECONCILE_TRIGGER)
    }

    pub(super) fn deleted_at(&self) -> Option<Timestamp> {
        self.meta
            .deletion_timestamp
            .as_ref()
            .map(|time| Timestamp(time.0.as_second()))
    }

    /// Returns the source of an entry's credentials, if it names one.
    pub(super) fn source(&self, local: bool, secret: Option<&SecretRef>) -> Option<Source> {
        if local {
            return Some(Source::Hub);
        }
        let secret = secret.filter(|secret| !secret.name.is_empty())?;
        let key = secret.key.clone().filter(|key| !key.is_empty());
        Some(Source::Secret {
            namespace: self.state.mesh.id.namespace.clone(),
            name: secret.name.clone(),
            key,
        })
    }

    pub(super) fn source_of(&self, entry: &RawCluster) -> Option<Source> {
        self.source(entry.local, entry.kubeconfig_secret.as_ref())
    }

    /// Returns every cluster that may have Peers of this mesh, even if the spec is
    /// invalid: those in the spec, those in the spec in force, and the hub.
    pub(super) fn reaches(&self) -> BTreeMap<Source, String> {
        let named = self
            .state
            .mesh
            .spec
            .clusters
            .iter()
            .filter_map(|entry| Some((self.source_of(entry)?, entry.name.clone())));
        let runs = self
            .state
            .mesh
            .running
            .iter()
            .flat_map(|spec| &spec.clusters);
        let runs = runs.filter_map(|(name, entry)| {
            Some((
                self.source(entry.local, entry.kubeconfig_secret.as_ref())?,
                name.to_string(),
            ))
        });
        let mut reaches = BTreeMap::from([(Source::Hub, "the hub".to_owned())]);
        reaches.extend(runs.chain(named));
        reaches
    }

    /// Returns the sources of the clusters in the spec that is in force.
    pub(super) fn entries(&self) -> BTreeMap<ClusterName, Source> {
        let running = self
            .state
            .mesh
            .running
            .as_ref()
            .filter(|_| self.state.keeps_running);
        match running {
            Some(spec) => {
                let entries = spec.clusters.iter();
                entries
                    .filter_map(|(name, of)| {
                        Some((
                            name.clone(),
                            self.source(of.local, of.kubeconfig_secret.as_ref())?,
                        ))
                    })
                    .collect()
            }
            None => {
                let entries = self.state.mesh.spec.clusters.iter();
                entries
                    .filter_map(|entry| {
                        Some((
                            ClusterName::try_from(entry.name.as_str()).ok()?,
                            self.source_of(entry)?,
                        ))
                    })
                    .collect()
            }
        }
    }

    pub(super) fn id(&self) -> &MeshId {
        &self.state.mesh.id
    }
}

/// Returns a ClusterMesh with an empty spec: metadata and status of an object are needed even if its spec can't be parsed.
fn without_spec(object: &DynamicObject, status: Option<&serde_json::Value>) -> ClusterMesh {
    let status = status.and_then(|status| serde_json::from_value(status.clone()).ok());
    ClusterMesh {
        metadata: object.metadata.clone(),
        spec: ClusterMeshSpec::default(),
        status,
    }
}
