//! The planner: takes specs and observations one by one and keeps the wanted
//! state of every cluster up to date. The cost of a change depends on what it
//! affects; the result equals planning everything from scratch.

mod intake;
mod memory;
mod pending;

use std::collections::{BTreeMap, BTreeSet};

use crate::endpoint::Endpoint;
use crate::key::PublicKey;
use crate::kilo::decide::{Departures, MeshMode, MeshState, Sources, TargetContext, mesh_at};
use crate::kilo::evaluate::{Evaluation, Released, Target};
use crate::kilo::guard::{HeldLine, History};
use crate::kilo::history::{Landmarks, PeerHistory, group};
use crate::kilo::invalidate::{mark_own, mark_source, source_change};
use crate::kilo::mesh::{ActiveMesh, Clusters, Moment};
use crate::kilo::node::Nodes;
use crate::kilo::overlap::{Admission, Applicant, admit};
use crate::kilo::ownership::{OrphanOf, Orphans, Owner, Register};
use crate::kilo::peer::PeerFacts;
use crate::kilo::plan::MeshPlan;
use crate::kilo::planner::pending::Pending;
use crate::kilo::roaming::Roaming;
use crate::kilo::spec::{Mesh, MeshSpec, Validated, validate};
use crate::kilo::target::{Entry, Vanished};
use crate::names::{ClusterId, ClusterName, MeshId, PeerName};
use crate::problem::Problem;
use crate::seen::Seen;
use crate::time::Timestamp;

/// Planner options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// UID of the hub's kube-system namespace, if known.
    pub hub: Option<String>,
    /// Grace period of a node that lost its annotations.
    pub node_grace_seconds: u64,
    /// Delete Peers that the Go operator left for meshes that do not exist.
    pub sweep_legacy: bool,
    /// The namespace of the operator's Lease, where held orphans are confirmed.
    pub lease_namespace: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            hub: None,
            node_grace_seconds: 90,
            sweep_legacy: true,
            lease_namespace: None,
        }
    }
}

/// Observed state of one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSeen {
    /// Its Nodes, which make it a source.
    pub nodes: Seen<Nodes>,
    /// Its Peers, which make it a target.
    pub peers: Seen<BTreeMap<PeerName, PeerFacts>>,
    /// The Nodes known to be deleted, which explains deletes of their Peers.
    pub departures: Departures,
}

/// A complete list of one resource of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listing {
    /// All Nodes.
    Nodes(Seen<Nodes>),
    /// All Peers.
    Peers(Seen<BTreeMap<PeerName, PeerFacts>>),
}

/// The credentials for each cluster, as far as they limit what may be done
/// there. A cluster without an entry is not limited, as when planning from
/// files.
pub type Links = BTreeMap<ClusterId, LinkFacts>;

/// Limits of the credentials for one cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LinkFacts {
    /// Only meshes of this namespace act through the link.
    pub namespace: Option<String>,
    /// Common id of the cluster if links of several owners are proven to lead
    /// to it.
    pub proven: Option<ClusterId>,
    /// Links that may lead to the same cluster.
    pub kin: BTreeSet<ClusterId>,
}

/// All inputs of planning.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct World {
    /// Options that don't change while the planner lives.
    pub options: Options,
    /// The time of planning.
    pub now: Timestamp,
    /// All ClusterMeshes in scope.
    pub meshes: BTreeMap<MeshId, Mesh>,
    /// The observed state of each cluster that an entry refers to.
    pub clusters: BTreeMap<ClusterId, ClusterSeen>,
    /// Entries that refer to a cluster with a different name.
    pub identities: BTreeMap<(MeshId, ClusterName), ClusterId>,
    /// Limits of the credentials; empty when planning from files.
    pub links: Links,
    /// State of Peers whose mesh does not exist.
    pub orphans: Orphans,
    /// Earlier events for the guard.
    pub history: History,
    /// Discovered endpoints to remember, by the cluster that discovered them.
    pub vanished: BTreeMap<ClusterId, Vanished>,
}

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
    landmarks: Landmarks,
    pub(super) orphans: Orphans,
    history: History,
    vanished: BTreeMap<ClusterId, Vanished>,
    released: Released,
    pending: Pending,
}

/// A cluster as a source. Its state as a target is in `targets`, if known.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) nodes: Seen<Nodes>,
    departures: Departures,
    pub(super) peers_unknown: Option<String>,
}

struct ClusterMap<'a>(&'a BTreeMap<ClusterId, Cluster>);

impl Sources for ClusterMap<'_> {
    fn nodes(&self, cluster: &ClusterId) -> Option<&Nodes> {
        self.0.get(cluster)?.nodes.known()
    }

    fn left(&self, cluster: &ClusterId) -> &Departures {
        const ANY: &Departures = &Departures::AnyMissing;
        self.0
            .get(cluster)
            .map_or(ANY, |cluster| &cluster.departures)
    }
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
            landmarks: Landmarks::default(),
            orphans,
            history,
            vanished,
            released: Released::default(),
            pending: Pending::default(),
        };
        let mut peers = Vec::new();
        for (id, seen) in clusters {
            let ClusterSeen {
                nodes,
                peers: held,
                departures,
            } = seen;
            planner.clusters.insert(
                id.clone(),
                Cluster {
                    nodes,
                    departures,
                    peers_unknown: held.why_unknown().map(str::to_owned),
                },
            );
            peers.push((id, held));
        }
        planner.register_meshes(
            peers
                .iter()
                .filter_map(|(_, held)| held.known())
                .flat_map(BTreeMap::values),
        );
        for (id, held) in peers {
            if let Seen::Known(held) = held {
                let entries = held
                    .into_iter()
                    .map(|(name, facts)| (name, Entry::new(facts, &planner.register)))
                    .collect();
                planner.targets.insert(id, Target::new(entries));
            }
        }
        planner.replan_everything();
        planner
    }

    fn register_meshes<'a>(&mut self, peers: impl Iterator<Item = &'a PeerFacts>) {
        let meshes = self
            .inputs
            .iter()
            .map(|(id, mesh)| (id, mesh.take_over_hub.as_deref()));
        self.register = Register::new(self.options.hub.as_deref(), meshes);
        self.register.note_hubs(peers.map(|peer| &peer.labels));
    }

    /// Replaces the meshes.
    pub fn set_meshes(
        &mut self,
        meshes: BTreeMap<MeshId, Mesh>,
        identities: BTreeMap<(MeshId, ClusterName), ClusterId>,
        links: Links,
    ) {
        (self.inputs, self.identities, self.links) = (meshes, identities, links);
        self.pending.everything = true;
    }

    /// Replaces the state of meshes that do not exist.
    pub fn set_orphans(&mut self, orphans: Orphans) {
        if self.orphans != orphans {
            self.orphans = orphans;
            self.targets
                .values_mut()
                .for_each(|target| target.dirt.all = true);
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

    /// Replaces the history used by the guard.
    pub fn set_history(&mut self, history: History) {
        if self.history != history {
            self.history = history;
            self.targets
                .values_mut()
                .for_each(|target| target.dirt.all = true);
        }
    }

    /// Replaces the discovered endpoints that a cluster's nodes no longer list.
    pub fn set_vanished(&mut self, cluster: &ClusterId, vanished: Vanished) {
        if self.vanished.get(cluster).cloned().unwrap_or_default() != vanished {
            self.vanished.insert(cluster.clone(), vanished);
            self.pending.nodes.insert(cluster.clone());
        }
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

    /// Assigns all Peers to their owners anew and replans everything.
    fn reassign(&mut self) {
        let mut register = std::mem::take(&mut self.register);
        let known = self
            .inputs
            .iter()
            .map(|(id, mesh)| (id, mesh.take_over_hub.as_deref()));
        register = Register::new(register.hub(), known);
        register.note_hubs(
            self.targets
                .values()
                .flat_map(|target| target.entries.values())
                .map(Entry::labels),
        );
        self.register = register;
        self.replan_everything();
    }

    fn replan_everything(&mut self) {
        self.form_meshes();
        self.released = self.confirmed_before();
        self.landmarks = Landmarks::default();
        for (id, target) in &mut self.targets {
            target.groups.clear();
            target.strangers.clear();
            target.dirt.all = true;
            let names: Vec<PeerName> = target.entries.keys().cloned().collect();
            for name in names {
                if let Some(entry) = target.entries.get_mut(&name) {
                    entry.owner = self.register.owner(entry.labels());
                }
                let wide = group(target, &self.meshes, &name, true);
                self.landmarks.put(id, &name, wide);
            }
        }
        for mesh in 0..self.meshes.len() {
            self.plan_mesh(mesh);
        }
    }

    fn form_meshes(&mut self) {
        let validated: BTreeMap<&MeshId, _> = self
            .inputs
            .iter()
            .map(|(id, mesh)| (id, validate(&mesh.spec)))
            .collect();
        let acting = |id: &&MeshId| self.inputs.get(*id).is_some_and(|mesh| !mesh.deleting);
        let mut applicants: Vec<Applicant<'_>> = Vec::new();
        for (id, result) in &validated {
            if let (Ok((spec, _)), Some(mesh)) = (result, self.inputs.get(*id))
                && acting(id)
            {
                let running = mesh.running.as_ref();
                let members = self.proven(&self.members(id, spec));
                applicants.push(Applicant {
                    mesh: id,
                    created: mesh.created,
                    spec,
                    running,
                    recalled: mesh.recalled,
                    members,
                });
            }
        }
        let admissions = admit(&applicants);
        let mut meshes = Vec::new();
        let mut remarks = Vec::new();
        for (id, mesh) in &self.inputs {
            let (mode, said) = self.mode(mesh, validated.get(id), admissions.get(id));
            meshes.push(MeshState {
                id: id.clone(),
                mode,
            });
            remarks.push(said);
        }
        let mut by_age: Vec<usize> = (0..meshes.len()).collect();
        let age = |at: &usize| {
            meshes
                .get(*at)
                .and_then(|mesh| self.inputs.get(&mesh.id))
                .map(|mesh| (mesh.created.is_none(), mesh.created))
        };
        by_age.sort_by_key(|at| (age(at), *at));
        (self.meshes, self.remarks, self.by_age) = (meshes, remarks, by_age);
    }

    fn members(&self, mesh: &MeshId, spec: &MeshSpec) -> BTreeMap<ClusterName, ClusterId> {
        spec.clusters
            .keys()
            .map(|name| (name.clone(), self.cluster_id(mesh, name)))
            .collect()
    }

    /// The ids of the clusters across owners, where proven.
    fn proven(
        &self,
        members: &BTreeMap<ClusterName, ClusterId>,
    ) -> BTreeMap<ClusterName, ClusterId> {
        let proven = |id: &ClusterId| {
            self.links
                .get(id)
                .and_then(|link| link.proven.clone())
                .unwrap_or_else(|| id.clone())
        };
        members
            .iter()
            .map(|(name, id)| (name.clone(), proven(id)))
            .collect()
    }

    pub(super) fn cluster_id(&self, mesh: &MeshId, name: &ClusterName) -> ClusterId {
        self.identities
            .get(&(mesh.clone(), name.clone()))
            .cloned()
            .unwrap_or_else(|| ClusterId::from(name.as_str()))
    }

    fn mode(
        &self,
        mesh: &Mesh,
        validated: Option<&Validated>,
        admission: Option<&Admission>,
    ) -> (MeshMode, Vec<Problem>) {
        if mesh.deleting {
            return (MeshMode::Deleting, Vec::new());
        }
        let (spec, mut remarks) = match validated {
            Some(Ok((spec, remarks))) => (Some(spec), remarks.clone()),
            Some(Err(problems)) => (None, problems.clone()),
            None => (None, Vec::new()),
        };
        let overlaps = admission
            .map(|admission| admission.overlaps.as_slice())
            .unwrap_or_default();
        remarks.extend_from_slice(overlaps);
        let running = mesh
            .running
            .as_ref()
            .filter(|_| !mesh.recalled || overlaps.is_empty());
        let chosen = spec.filter(|_| overlaps.is_empty()).or(running);
        let Some(chosen) = chosen else {
            return (MeshMode::HeldBack, remarks);
        };
        let duplicates = admission
            .map(|admission| admission.duplicates.clone())
            .unwrap_or_default();
        let ids = self.members(&mesh.id, chosen);
        let clusters = Clusters {
            proven: self.proven(&ids),
            ids,
        };
        let active = ActiveMesh::new(
            mesh.id.clone(),
            chosen.clone(),
            &clusters,
            duplicates,
            self.options.hub.as_deref(),
        );
        (MeshMode::Active(Box::new(active)), remarks)
    }

    /// Surveys and plans every member of a mesh.
    fn plan_mesh(&mut self, mesh: usize) {
        let Some(MeshState {
            mode: MeshMode::Active(active),
            ..
        }) = self.meshes.get_mut(mesh)
        else {
            return;
        };
        let sources = ClusterMap(&self.clusters);
        active.survey_all(&Roaming {
            targets: &self.targets,
            sources: &sources,
            vanished: &self.vanished,
            now: self.now,
        });
        self.settle(mesh);
        self.plan_members(mesh, None);
    }

    fn settle(&mut self, mesh: usize) -> bool {
        let Some(MeshState {
            mode: MeshMode::Active(active),
            ..
        }) = self.meshes.get_mut(mesh)
        else {
            return false;
        };
        let sources = ClusterMap(&self.clusters);
        let past = PeerHistory::of(active, &self.targets, &self.landmarks, &sources);
        active.settle(&past)
    }

    /// Plans one member as a source, or all, and marks what depends on it.
    fn plan_members(&mut self, mesh: usize, only: Option<usize>) {
        let nothing = Vanished::new();
        let Some(MeshState {
            mode: MeshMode::Active(active),
            ..
        }) = self.meshes.get_mut(mesh)
        else {
            return;
        };
        let all_dirty = only.is_none() && self.targets.values().all(|target| target.dirt.all);
        let positions = only.map_or(0..active.members.len(), |position| position..position + 1);
        for position in positions {
            let Some(member) = active.members.get(position) else {
                continue;
            };
            let id = member.id.clone();
            let source = (member.name.clone(), active.name_start_of(&member.name));
            let old_own = member.own.clone();
            let nodes = self
                .clusters
                .get(&id)
                .and_then(|cluster| cluster.nodes.known());
            let last_anchor = self
                .inputs
                .get(&active.id)
                .and_then(|mesh| mesh.anchors.get(&member.name))
                .cloned();
            let sources = ClusterMap(&self.clusters);
            let past = PeerHistory::of(active, &self.targets, &self.landmarks, &sources)
                .about(source, last_anchor);
            let vanished = self.vanished.get(&id).unwrap_or(&nothing);
            let moment = Moment {
                now: self.now,
                node_grace: self.options.node_grace_seconds,
                vanished,
            };
            let old = active.plan(position, nodes, &past, moment);
            let Some(member) = active.members.get(position) else {
                continue;
            };
            if all_dirty {
                continue;
            }
            let change = source_change(old.as_ref(), member.plan.as_ref());
            mark_source(&mut self.targets, active, (mesh, position), &change);
            if let Some(target) = self.targets.get_mut(&id) {
                mark_own(target, active, mesh, &old_own, &member.own);
            }
        }
    }

    /// Removes clusters that are no longer used.
    pub fn forget_clusters(&mut self, gone: &BTreeSet<ClusterId>) {
        self.clusters.retain(|id, _| !gone.contains(id));
        self.targets.retain(|id, _| !gone.contains(id));
        self.vanished.retain(|id, _| !gone.contains(id));
        self.pending.everything = true;
    }

    fn replan_cluster(&mut self, cluster: &ClusterId) {
        for mesh in 0..self.meshes.len() {
            let Some(MeshState {
                mode: MeshMode::Active(active),
                ..
            }) = self.meshes.get_mut(mesh)
            else {
                continue;
            };
            let Some(position) = active.position(cluster) else {
                continue;
            };
            self.survey_members(mesh, &[position]);
            self.survey_unsettled(mesh, None);
        }
    }

    /// Surveys and replans members, and all members that depend on them.
    fn survey_members(&mut self, mesh: usize, positions: &[usize]) {
        let Some(MeshState {
            mode: MeshMode::Active(active),
            ..
        }) = self.meshes.get_mut(mesh)
        else {
            return;
        };
        let mut contested = active.is_contested();
        let sources = ClusterMap(&self.clusters);
        let roaming = Roaming {
            targets: &self.targets,
            sources: &sources,
            vanished: &self.vanished,
            now: self.now,
        };
        positions
            .iter()
            .for_each(|position| active.survey(*position, &roaming));
        contested |= active.is_contested();
        if contested {
            // A key that several nodes have affects all members.
            self.settle(mesh);
            self.plan_members(mesh, None);
            return;
        }
        positions
            .iter()
            .for_each(|position| self.plan_members(mesh, Some(*position)));
    }

    /// Surveys members again whose nodes without an endpoint may have gained or
    /// lost their Peers because Peers or discovered endpoints changed.
    fn survey_unsettled(&mut self, mesh: usize, name: Option<&PeerName>) {
        let Some(active) = self.meshes.get(mesh).and_then(MeshState::active) else {
            return;
        };
        let sources = ClusterMap(&self.clusters);
        let roaming = Roaming {
            targets: &self.targets,
            sources: &sources,
            vanished: &self.vanished,
            now: self.now,
        };
        let unsettled = active.unsettled(&roaming, name);
        if !unsettled.is_empty() {
            self.survey_members(mesh, &unsettled);
        }
    }

    /// Plans for all inputs that changed: the sources, then every target that
    /// they concern. Returns these targets.
    pub fn refresh(&mut self) -> BTreeSet<ClusterId> {
        self.settle_sources();
        let mut stale = self.stale();
        let dirty = !stale.is_empty();
        let before = self.confirmed_before();
        if dirty && self.released != before {
            // Held changes must be determined as if nothing were confirmed.
            self.released = before;
            self.targets
                .values_mut()
                .for_each(|target| target.dirt.all = true);
        }
        stale.extend(self.evaluate_all());
        if dirty
            && (self.orphans.confirm.is_some()
                || self
                    .inputs
                    .values()
                    .any(|mesh| mesh.confirm_deletes.is_some()))
        {
            stale.extend(self.release_confirmed());
        }
        stale
    }

    fn stale(&self) -> BTreeSet<ClusterId> {
        self.targets
            .iter()
            .filter(|(_, target)| !target.dirt.is_clean())
            .map(|(id, _)| id.clone())
            .collect()
    }

    fn evaluate_all(&mut self) -> BTreeSet<ClusterId> {
        let stale = self.stale();
        stale.iter().for_each(|id| self.evaluate(id));
        stale
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

    /// Evaluates one target. Confirmed changes are handled only by `refresh`,
    /// because they concern all targets of a mesh.
    pub fn evaluate(&mut self, id: &ClusterId) {
        self.settle_sources();
        let Some(mut target) = self.targets.remove(id) else {
            return;
        };
        if !target.dirt.is_clean() {
            self.evaluate_target(id, &mut target);
        }
        self.targets.insert(id.clone(), target);
    }

    fn evaluate_target(&self, id: &ClusterId, target: &mut Target) {
        // While its keys and addresses are not known, nothing can be written
        // safely, but Peers that no mesh wants can be deleted.
        let readable = self
            .clusters
            .get(id)
            .is_some_and(|cluster| cluster.nodes.known().is_some());
        let position = |at: &usize| {
            Some((*at, self.meshes.get(*at)?.active()?.position(id)?)).filter(|_| readable)
        };
        let other_hub = || {
            target
                .strangers()
                .any(|(_, entry)| *entry.owner == Owner::OtherHub)
        };
        let anybodys = LinkFacts::default();
        let evaluation = Evaluation {
            context: TargetContext {
                target: id,
                link: self.links.get(id).unwrap_or(&anybodys),
                meshes: &self.meshes,
                sources: &ClusterMap(&self.clusters),
                absent: &self.orphans.absent,
                sweep_ghosts: self.options.sweep_legacy && !other_hub(),
            },
            memberships: self.by_age.iter().filter_map(position).collect(),
            released: &self.released,
            held_before: &|mesh| Some(&self.inputs.get(&self.meshes.get(mesh)?.id)?.held),
            max_delete_percent: &|mesh| {
                self.meshes
                    .get(mesh)
                    .and_then(MeshState::active)
                    .map_or(0, |mesh| mesh.spec.max_delete_percent)
            },
            orphans_before: &self.orphans.held,
            history: &self.history,
            hub_known: self.register.hub().is_some(),
            now: self.now,
        };
        evaluation.run(target);
        if !readable {
            target.keep_certain_deletes();
        }
    }
}
