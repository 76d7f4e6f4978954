//! The planner: takes specs and observations one by one and keeps the wanted
//! state of every cluster up to date. The cost of a change depends on what it
//! affects; the result equals planning everything from scratch.

mod intake;
mod members;
mod memory;
mod meshes;
mod pending;
mod targets;

use std::collections::{BTreeMap, BTreeSet};

use crate::endpoint::Endpoint;
use crate::key::PublicKey;
use crate::kilo::discovered::Vanished;
use crate::kilo::entry::Entry;
use crate::kilo::guard::{HeldLine, History, Released};
use crate::kilo::mesh_state::{MeshState, mesh_at};
use crate::kilo::node::Nodes;
use crate::kilo::ownership::{OrphanOf, Orphans, Owner, Register};
use crate::kilo::peer_history::CarrierIndex;
use crate::kilo::plan::MeshPlan;
use crate::kilo::planner::pending::Pending;
use crate::kilo::sources::Cluster;
use crate::kilo::spec::{Mesh, MeshSpec};
use crate::kilo::target::Target;
pub use crate::kilo::world::{ClusterSeen, LinkFacts, Links, Listing, Options, World};
use crate::names::{ClusterId, ClusterName, MeshId};
use crate::problem::Problem;
use crate::seen::Seen;
use crate::time::Timestamp;

/// Keeps the plan of all meshes up to date. Methods named `set_*` and
/// `remove_*` only record a change; [`Planner::refresh`] plans for all of them.
#[derive(Debug)]
pub struct Planner {
    pub(super) options: Options,
    pub(super) now: Timestamp,
    pub(super) inputs: BTreeMap<MeshId, Mesh>,
    identities: BTreeMap<(MeshId, ClusterName), ClusterId>,
    links: Links,
    pub(super) register: Register,
    /// Sorted by id; the position identifies a mesh.
    pub(super) meshes: Vec<MeshState>,
    /// Problems of a mesh's spec, by position.
    pub(super) remarks: Vec<Vec<Problem>>,
    by_age: Vec<usize>,
    pub(super) clusters: BTreeMap<ClusterId, Cluster>,
    pub(super) targets: BTreeMap<ClusterId, Target>,
    carrier_index: CarrierIndex,
    pub(super) orphans: Orphans,
    history: History,
    vanished: BTreeMap<ClusterId, Vanished>,
    released: Released,
    pending: Pending,
}

impl Planner {
    /// Starts from complete inputs and plans the sources; [`Planner::refresh`]
    /// evaluates the targets.
    pub fn new(world: World) -> Planner {
        let World {
            options,
            now,
            meshes,
            clusters,
            identities,
            links,
            orphans,
            history,
            vanished,
        } = world;
        let mut planner = Planner {
            register: Register::default(),
            options,
            now,
            inputs: meshes,
            identities,
            links,
            meshes: Vec::new(),
            remarks: Vec::new(),
            by_age: Vec::new(),
            clusters: BTreeMap::new(),
            targets: BTreeMap::new(),
            carrier_index: CarrierIndex::default(),
            orphans,
            history,
            vanished,
            released: Released::default(),
            pending: Pending::default(),
        };
        planner.add_clusters(clusters);
        planner.replan_everything();
        planner
    }

    fn add_clusters(&mut self, clusters: BTreeMap<ClusterId, ClusterSeen>) {
        let mut listed = Vec::new();
        for (id, seen) in clusters {
            let ClusterSeen {
                nodes,
                peers,
                departures,
            } = seen;
            let cluster = Cluster {
                nodes,
                departures,
                peers_unknown: peers.why_unknown().map(str::to_owned),
            };
            self.clusters.insert(id.clone(), cluster);
            if let Seen::Known(peers) = peers {
                listed.push((id, peers));
            }
        }
        self.register_meshes(listed.iter().flat_map(|(_, peers)| peers.values()));
        for (id, peers) in listed {
            let entries = peers
                .into_iter()
                .map(|(name, facts)| (name, Entry::new(facts, &self.register)))
                .collect();
            self.targets.insert(id, Target::new(entries));
        }
    }

    /// The held orphans.
    pub fn held_orphans(&self) -> &BTreeSet<HeldLine> {
        &self.orphans.held
    }

    /// Meshes that are named by Peers and not known to exist.
    pub fn orphaned(&self) -> BTreeSet<OrphanOf> {
        let strangers = self.targets.values().flat_map(Target::strangers);
        let orphans = strangers
            .filter(|(_, entry)| matches!(entry.owner.as_ref(), Owner::Orphan | Owner::Ghost));
        orphans
            .filter_map(|(_, entry)| OrphanOf::of(entry.labels()))
            .collect()
    }

    /// The Nodes of a cluster, if it is a source, and every target that gets its
    /// Peers is known and has no change that may have to be held.
    pub fn settled_nodes(&self, cluster: &ClusterId) -> Option<&Nodes> {
        let nodes = self.clusters.get(cluster)?.nodes.known()?;
        let mut is_source = false;
        for (at, active) in self
            .meshes
            .iter()
            .enumerate()
            .filter_map(|(at, mesh)| Some((at, mesh.active()?)))
        {
            let Some(source) = active.position(cluster) else {
                continue;
            };
            is_source = true;
            let settled = |target: &Target| !target.has_doubts((at, source));
            let others = active.members.iter().filter(|member| member.id != *cluster);
            if !others
                .map(|member| self.targets.get(&member.id))
                .all(|target| target.is_some_and(settled))
            {
                return None;
            }
        }
        is_source.then_some(nodes)
    }

    /// The discovered endpoints that a cluster's nodes list now; `None` if its
    /// nodes are not known.
    pub fn observed(&self, cluster: &ClusterId) -> Option<BTreeMap<PublicKey, Endpoint>> {
        self.clusters.get(cluster)?.nodes.known()?;
        let meshes = self.meshes.iter().filter_map(MeshState::active);
        let members = meshes.filter_map(|mesh| mesh.members.get(mesh.position(cluster)?));
        Some(
            members
                .flat_map(|member| member.own.observed())
                .map(|(key, endpoint)| (*key, endpoint.clone()))
                .collect(),
        )
    }

    pub(super) fn cluster_id(&self, mesh: &MeshId, name: &ClusterName) -> ClusterId {
        self.identities
            .get(&(mesh.clone(), name.clone()))
            .cloned()
            .unwrap_or_else(|| ClusterId::from(name.as_str()))
    }

    /// Number of Peers of a mesh in a cluster, if known.
    pub fn peers_of(&self, mesh: &MeshId, cluster: &ClusterId) -> Option<usize> {
        let target = self.targets.get(cluster)?;
        Some(mesh_at(&self.meshes, mesh).map_or(0, |(at, _)| target.count_of(at)))
    }

    /// A mesh as given, with its remembered decisions.
    pub fn input(&self, mesh: &MeshId) -> Option<&Mesh> {
        self.inputs.get(mesh)
    }

    /// The spec that a mesh currently runs with.
    pub fn running(&self, mesh: &MeshId) -> Option<&MeshSpec> {
        mesh_at(&self.meshes, mesh)?
            .1
            .active()
            .map(|active| &active.spec)
    }

    /// The plan of a mesh, as last evaluated.
    pub fn mesh_plan(&self, mesh: &MeshId) -> Option<MeshPlan> {
        let (at, state) = mesh_at(&self.meshes, mesh)?;
        Some(self.plan_of(at, state))
    }

    /// Reports whether a cluster is known to hold no Peer of this hub that may
    /// be deleted through this link.
    pub fn is_swept(&self, cluster: &ClusterId) -> bool {
        let namespace = self
            .links
            .get(cluster)
            .and_then(|link| link.namespace.as_ref());
        let acts = |at: usize| {
            self.meshes
                .get(at)
                .is_some_and(|mesh| namespace.is_none_or(|of| *of == mesh.id.namespace))
        };
        let swept = |target: &Target| {
            target
                .groups
                .iter()
                .all(|((mesh, _), names)| names.is_empty() || !acts(*mesh))
                && !target
                    .strangers()
                    .any(|(_, entry)| *entry.owner == Owner::Orphan)
        };
        // Peers that were just listed have no owner yet.
        !self.pending.everything && self.targets.get(cluster).is_some_and(swept)
    }
}
