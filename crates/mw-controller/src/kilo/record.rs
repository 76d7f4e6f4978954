//! A ClusterMesh on the hub, with state that we keep about it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
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
use tokio::time::Instant;

use crate::fleet::Source;
use crate::fleet::follow::Version;
use crate::kilo::events::said_before;

#[derive(Debug)]
pub(super) struct Record {
    pub(super) meta: ObjectMeta,
    pub(super) version: Version,
    pub(super) mesh: Mesh,
    /// Reason why the object can't be parsed as a ClusterMesh.
    pub(super) misread: Option<String>,
    pub(super) status: ClusterMeshStatus,
    pub(super) notices: Notices,
    /// An earlier process held more deletes than fit into the status.
    pub(super) holds_everything: bool,
    /// The spec is refused, and the previous one stays in force.
    pub(super) keeps_running: bool,
    /// The planner has it, and is now the source of held deletes and anchors.
    pub(super) handed_over: bool,
    /// Number of lists of each cluster's Secret when the deletion was first seen.
    pub(super) secrets_then: Option<BTreeMap<ClusterId, u64>>,
    /// A write to it is in flight.
    pub(super) busy: bool,
    /// Earliest time of the retry after a failed write.
    pub(super) not_before: Option<Instant>,
    pub(super) failures: u32,
}

/// Events emitted so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Notices {
    pub(super) said: BTreeSet<(String, String, String)>,
}

impl Record {
    /// Retries a failed write at once.
    pub(super) fn forgive(&mut self) {
        (self.failures, self.not_before) = (0, None);
    }

    pub(super) fn read(object: &DynamicObject) -> Record {
        let value = serde_json::to_value(object).unwrap_or_default();
        let (read, misread) = match serde_json::from_value::<ClusterMesh>(value.clone()) {
            Ok(mesh) => (mesh, None),
            Err(wrong) => (
                without_spec(object, value.get("status")),
                Some(printable(&wrong.to_string(), 300)),
            ),
        };
        Record {
            meta: ObjectMeta {
                managed_fields: None,
                ..object.metadata.clone()
            },
            version: Version::of(object.metadata.resource_version.as_deref()),
            mesh: mw_api::kilo::convert::mesh(&read),
            misread,
            status: read.status.unwrap_or_default(),
            notices: Notices::default(),
            holds_everything: false,
            keeps_running: false,
            handed_over: false,
            secrets_then: None,
            busy: false,
            not_before: None,
            failures: 0,
        }
    }

    /// Takes over a newer state of the same object and keeps our own state. Returns
    /// false if nothing relevant changed.
    pub(super) fn renew(&mut self, newer: Record) -> bool {
        let finalized = self.has_finalizer();
        let before = (self.mesh.clone(), self.misread.clone());
        let Record {
            meta,
            version,
            mesh,
            misread,
            status,
            ..
        } = newer;
        let held = std::mem::take(&mut self.mesh.held);
        let anchors = std::mem::take(&mut self.mesh.anchors);
        let (running, recalled) = (self.mesh.running.take(), self.mesh.recalled);
        self.mesh = Mesh {
            held,
            anchors,
            running,
            recalled,
            ..mesh
        };
        (self.meta, self.version, self.misread, self.status) = (meta, version, misread, status);
        before != (self.mesh.clone(), self.misread.clone()) || finalized != self.has_finalizer()
    }

    /// Restores what an earlier process left in the status: the spec in force and
    /// the held deletes.
    pub(super) fn recalled(mut self) -> Record {
        let condition = |kind: &str| {
            self.status
                .conditions
                .iter()
                .flatten()
                .find(|condition| condition.type_ == kind)
        };
        let admitted =
            condition(kind::NETWORKS_OVERLAP).is_some_and(|condition| condition.status == "False");
        if admitted && self.status.observed_generation == self.meta.generation {
            self.mesh.running = validate(&self.mesh.spec).ok().map(|(spec, _)| spec);
            self.mesh.recalled = self.mesh.running.is_some();
        }
        let mut held: BTreeSet<HeldLine> = BTreeSet::new();
        for on in self.status.held_deletes.iter().flatten() {
            let entry = self
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
                self.holds_everything = true;
            }
        }
        self.mesh.held = held;
        self.notices.said = said_before(&self.status);
        self
    }

    /// Returns the input for the planner.
    pub(super) fn input(&self) -> Mesh {
        let mut mesh = self.mesh.clone();
        if self.holds_everything {
            mesh.spec.max_delete_percent = Some(0);
        }
        mesh
    }

    /// Returns the clusters whose entries name other credentials in a newer spec.
    pub(super) fn redirected_by(&self, newer: &Record) -> Vec<ClusterName> {
        let credentials = |of: &RawCluster| (of.local, of.kubeconfig_secret.clone());
        let former = |name: &str| {
            self.mesh
                .spec
                .clusters
                .iter()
                .find(|entry| entry.name == name)
                .map(credentials)
        };
        let moved =
            newer.mesh.spec.clusters.iter().filter(|entry| {
                former(&entry.name).is_some_and(|former| former != credentials(entry))
            });
        moved
            .filter_map(|entry| ClusterName::try_from(entry.name.as_str()).ok())
            .collect()
    }

    pub(super) fn uid(&self) -> &str {
        self.meta.uid.as_deref().unwrap_or_default()
    }

    pub(super) fn generation(&self) -> i64 {
        self.meta.generation.unwrap_or_default()
    }

    pub(super) fn has_finalizer(&self) -> bool {
        self.meta
            .finalizers
            .iter()
            .flatten()
            .any(|name| name == FINALIZER)
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
            namespace: self.mesh.id.namespace.clone(),
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
            .mesh
            .spec
            .clusters
            .iter()
            .filter_map(|entry| Some((self.source_of(entry)?, entry.name.clone())));
        let runs = self.mesh.running.iter().flat_map(|spec| &spec.clusters);
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
        let running = self.mesh.running.as_ref().filter(|_| self.keeps_running);
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
                let entries = self.mesh.spec.clusters.iter();
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
        &self.mesh.id
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
