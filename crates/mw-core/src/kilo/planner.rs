//! The planner: takes what was declared and seen, piece by piece, and knows at
//! any time what every cluster must hold. A change costs what it touches; the
//! result is the same as if everything had been planned anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::kilo::decide::{Departures, MeshState, Scene, Sources, Stance, mesh_at};
use crate::kilo::evaluate::{Deletes, Evaluation, Target};
use crate::kilo::guard::held_hash;
use crate::kilo::liveness;
use crate::kilo::mark::{mark_own, mark_source, source_change};
use crate::kilo::mesh::{ActiveMesh, Moment};
use crate::kilo::node::{Node, Nodes};
use crate::kilo::overlap::{Admission, Applicant, admit};
use crate::kilo::ownership::{Owner, Register};
use crate::kilo::past::{Landmarks, Past, group};
use crate::kilo::peer::PeerFacts;
use crate::kilo::plan::MeshPlan;
use crate::kilo::source::SourcePlan;
use crate::kilo::spec::{Mesh, MeshSpec, Validated, validate};
use crate::kilo::target::Entry;
use crate::names::{ClusterId, ClusterName, MeshId, NodeName, PeerName};
use crate::problem::Problem;
use crate::seen::Seen;
use crate::time::Timestamp;

/// How to plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// UID of the hub's kube-system namespace, where it is known.
    pub hub: Option<String>,
    /// For how long a node that lost its annotations keeps its Peer.
    pub node_grace_seconds: u64,
    /// The meshes given are all there are on the hub, so that a Peer of any
    /// other mesh is an orphan.
    pub all_meshes_known: bool,
    /// Remove what the Go operator left of meshes that do not exist.
    pub sweep_legacy: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { hub: None, node_grace_seconds: 90, all_meshes_known: false, sweep_legacy: true }
    }
}

/// What one cluster was seen to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSeen {
    pub nodes: Seen<Nodes>,
    pub peers: Seen<BTreeMap<PeerName, PeerFacts>>,
    pub departures: Departures,
}

/// One resource of a cluster, all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listing {
    Nodes(Seen<Nodes>),
    Peers(Seen<BTreeMap<PeerName, PeerFacts>>),
}

const NOT_LISTED: &str = "it was not listed yet";

/// Everything that planning depends on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct World {
    pub options: Options,
    pub now: Timestamp,
    pub meshes: BTreeMap<MeshId, Mesh>,
    pub clusters: BTreeMap<ClusterId, ClusterSeen>,
    /// Entries that stand for a cluster of another name.
    pub identities: BTreeMap<(MeshId, ClusterName), ClusterId>,
}

#[derive(Debug)]
pub struct Planner {
    pub(super) options: Options,
    pub(super) now: Timestamp,
    pub(super) inputs: BTreeMap<MeshId, Mesh>,
    identities: BTreeMap<(MeshId, ClusterName), ClusterId>,
    pub(super) register: Register,
    /// Sorted by id; the position stands for a mesh.
    pub(super) meshes: Vec<MeshState>,
    /// What is wrong with a mesh as declared, by position.
    pub(super) remarks: Vec<Vec<Problem>>,
    by_age: Vec<usize>,
    pub(super) clusters: BTreeMap<ClusterId, Cluster>,
    pub(super) targets: BTreeMap<ClusterId, Target>,
    landmarks: Landmarks,
    released: Deletes,
}

/// A cluster as a source. What it holds as a target is in `targets`, where
/// that is known.
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
        self.0.get(cluster).map_or(ANY, |cluster| &cluster.departures)
    }
}

impl Planner {
    pub fn new(world: World) -> Planner {
        let World { options, now, meshes, clusters, identities } = world;
        let mut planner = Planner {
            register: Register::default(),
            options,
            now,
            inputs: meshes,
            identities,
            meshes: Vec::new(),
            remarks: Vec::new(),
            by_age: Vec::new(),
            clusters: BTreeMap::new(),
            targets: BTreeMap::new(),
            landmarks: Landmarks::default(),
            released: Deletes::new(),
        };
        let mut peers = Vec::new();
        for (id, seen) in clusters {
            let ClusterSeen { nodes, peers: held, departures } = seen;
            planner.clusters.insert(id.clone(), Cluster { nodes, departures, peers_unknown: held.why_unknown().map(str::to_owned) });
            peers.push((id, held));
        }
        planner.register_meshes(peers.iter().filter_map(|(_, held)| held.known()).flat_map(BTreeMap::values));
        for (id, held) in peers {
            if let Seen::Known(held) = held {
                let entries = held.into_iter().map(|(name, facts)| (name, Entry::new(facts, &planner.register))).collect();
                planner.targets.insert(id, Target::new(entries));
            }
        }
        planner.replan_everything();
        planner
    }

    fn register_meshes<'a>(&mut self, peers: impl Iterator<Item = &'a PeerFacts>) {
        let meshes = self.inputs.iter().map(|(id, mesh)| (id, mesh.take_over_hub.as_deref()));
        self.register = Register::new(self.options.hub.as_deref(), meshes);
        self.register.note_hubs(peers.map(|peer| &peer.labels));
    }

    /// Replaces the meshes: everything is planned anew.
    pub fn set_meshes(&mut self, meshes: BTreeMap<MeshId, Mesh>, identities: BTreeMap<(MeshId, ClusterName), ClusterId>) {
        self.identities = identities;
        self.reassign(meshes);
    }

    /// Whether the meshes given are all there are on the hub.
    pub fn set_all_meshes_known(&mut self, known: bool) {
        if self.options.all_meshes_known != known {
            self.options.all_meshes_known = known;
            self.targets.values_mut().for_each(|target| target.dirt.all = true);
        }
    }

    fn reassign(&mut self, meshes: BTreeMap<MeshId, Mesh>) {
        self.inputs = meshes;
        let mut register = std::mem::take(&mut self.register);
        let known = self.inputs.iter().map(|(id, mesh)| (id, mesh.take_over_hub.as_deref()));
        register = Register::new(register.hub(), known);
        register.note_hubs(self.targets.values().flat_map(|target| target.entries.values()).map(Entry::labels));
        self.register = register;
        self.replan_everything();
    }

    fn replan_everything(&mut self) {
        self.form_meshes();
        self.released = self.confirmed_before();
        self.landmarks = Landmarks::default();
        for (id, target) in &mut self.targets {
            target.groups.clear();
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
        let validated: BTreeMap<&MeshId, _> = self.inputs.iter().map(|(id, mesh)| (id, validate(&mesh.spec))).collect();
        let acting = |id: &&MeshId| self.inputs.get(*id).is_some_and(|mesh| !mesh.deleting);
        let mut applicants: Vec<Applicant<'_>> = Vec::new();
        for (id, result) in &validated {
            if let (Ok((spec, _)), Some(mesh)) = (result, self.inputs.get(*id))
                && acting(id)
            {
                let running = mesh.running.as_ref();
                applicants.push(Applicant { mesh: id, created: mesh.created, spec, running, members: self.members(id, spec) });
            }
        }
        let admissions = admit(&applicants);
        let mut meshes = Vec::new();
        let mut remarks = Vec::new();
        for (id, mesh) in &self.inputs {
            let (stance, said) = self.stance(mesh, validated.get(id), admissions.get(id));
            meshes.push(MeshState { id: id.clone(), stance });
            remarks.push(said);
        }
        let mut by_age: Vec<usize> = (0..meshes.len()).collect();
        let age =
            |at: &usize| meshes.get(*at).and_then(|mesh| self.inputs.get(&mesh.id)).map(|mesh| (mesh.created.is_none(), mesh.created));
        by_age.sort_by_key(|at| (age(at), *at));
        (self.meshes, self.remarks, self.by_age) = (meshes, remarks, by_age);
    }

    fn members(&self, mesh: &MeshId, spec: &MeshSpec) -> BTreeMap<ClusterName, ClusterId> {
        spec.clusters.keys().map(|name| (name.clone(), self.cluster_id(mesh, name))).collect()
    }

    pub(super) fn cluster_id(&self, mesh: &MeshId, name: &ClusterName) -> ClusterId {
        self.identities.get(&(mesh.clone(), name.clone())).cloned().unwrap_or_else(|| ClusterId::from(name.as_str()))
    }

    fn stance(&self, mesh: &Mesh, validated: Option<&Validated>, admission: Option<&Admission>) -> (Stance, Vec<Problem>) {
        if mesh.deleting {
            return (Stance::Deleting, Vec::new());
        }
        let (spec, mut remarks) = match validated {
            Some(Ok((spec, remarks))) => (Some(spec), remarks.clone()),
            Some(Err(problems)) => (None, problems.clone()),
            None => (None, Vec::new()),
        };
        let overlaps = admission.map(|admission| admission.overlaps.as_slice()).unwrap_or_default();
        remarks.extend_from_slice(overlaps);
        let chosen = spec.filter(|_| overlaps.is_empty()).or(mesh.running.as_ref());
        let Some(chosen) = chosen else { return (Stance::HeldBack, remarks) };
        let duplicates = admission.map(|admission| admission.duplicates.clone()).unwrap_or_default();
        let ids = self.members(&mesh.id, chosen);
        let active = ActiveMesh::new(mesh.id.clone(), chosen.clone(), &ids, duplicates, self.options.hub.as_deref());
        (Stance::Active(Box::new(active)), remarks)
    }

    /// Surveys and plans every member of a mesh.
    fn plan_mesh(&mut self, mesh: usize) {
        let Some(MeshState { stance: Stance::Active(active), .. }) = self.meshes.get_mut(mesh) else { return };
        active.survey_all(|id| self.clusters.get(id).and_then(|cluster| cluster.nodes.known()));
        self.settle(mesh);
        self.plan_members(mesh, None);
    }

    fn settle(&mut self, mesh: usize) -> bool {
        let Some(MeshState { stance: Stance::Active(active), .. }) = self.meshes.get_mut(mesh) else { return false };
        let past = Past {
            mesh: active.id.clone(),
            members: Arc::clone(&active.by_id),
            targets: &self.targets,
            landmarks: &self.landmarks,
            sources: &ClusterMap(&self.clusters),
            last_anchor: None,
            source: None,
        };
        active.settle(&past)
    }

    /// Plans one member as a source, or all, and marks what follows from it.
    fn plan_members(&mut self, mesh: usize, only: Option<usize>) {
        let moment = Moment { now: self.now, node_grace: self.options.node_grace_seconds };
        let Some(MeshState { stance: Stance::Active(active), .. }) = self.meshes.get_mut(mesh) else { return };
        let all_dirty = only.is_none() && self.targets.values().all(|target| target.dirt.all);
        let positions = only.map_or(0..active.members.len(), |position| position..position + 1);
        for position in positions {
            let Some(member) = active.members.get(position) else { continue };
            let id = member.id.clone();
            let source = Some((member.name.clone(), active.name_start_of(&member.name)));
            let old_own = member.own.clone();
            let nodes = self.clusters.get(&id).and_then(|cluster| cluster.nodes.known());
            let past = Past {
                mesh: active.id.clone(),
                members: Arc::clone(&active.by_id),
                targets: &self.targets,
                landmarks: &self.landmarks,
                sources: &ClusterMap(&self.clusters),
                last_anchor: self.inputs.get(&active.id).and_then(|mesh| mesh.anchors.get(&member.name)).cloned(),
                source,
            };
            let old = active.plan(position, nodes, &past, moment);
            let Some(member) = active.members.get(position) else { continue };
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

    /// A Node was seen, for the first time or anew. False if that changes
    /// nothing for anybody.
    pub fn set_node(&mut self, cluster: &ClusterId, node: Node) -> bool {
        let Some(nodes) = self.clusters.get_mut(cluster).and_then(|cluster| cluster.nodes.known_mut()) else { return false };
        let name = node.name.clone();
        let before = nodes.get(&name).cloned();
        if before.as_deref() == Some(&node) {
            return false;
        }
        let is_heartbeat = |old: &Node| old.last_seen.is_some() && node.last_seen.is_some() && old.but_last_seen(&node);
        let alive = before.filter(|old| is_heartbeat(old)).map(|_| liveness::alive(nodes));
        nodes.insert(name.clone(), Arc::new(node));
        // A heartbeat that leaves everybody as alive as before changes nothing.
        let quiet = alive.is_some_and(|alive| liveness::alive(nodes) == alive);
        if let Some(Departures::Seen(left)) = self.clusters.get_mut(cluster).map(|cluster| &mut cluster.departures) {
            left.remove(&name);
        }
        if !quiet {
            self.replan_cluster(cluster);
        }
        !quiet
    }

    /// A Node was seen to be deleted.
    pub fn remove_node(&mut self, cluster: &ClusterId, name: &NodeName) {
        let Some(known) = self.clusters.get_mut(cluster) else { return };
        if let Departures::Seen(left) = &mut known.departures {
            left.insert(name.clone());
        }
        if let Some(nodes) = known.nodes.known_mut() {
            nodes.remove(name);
        }
        self.replan_cluster(cluster);
    }

    /// All Nodes of a cluster were listed, or it can't be read any more.
    pub fn set_nodes(&mut self, cluster: &ClusterId, nodes: Seen<Nodes>) {
        self.take_nodes(cluster, nodes);
        self.replan_cluster(cluster);
    }

    fn take_nodes(&mut self, cluster: &ClusterId, nodes: Seen<Nodes>) {
        self.cluster_mut(cluster).nodes = nodes;
        if let Some(target) = self.targets.get_mut(cluster) {
            target.dirt.all = true;
        }
    }

    fn cluster_mut(&mut self, cluster: &ClusterId) -> &mut Cluster {
        let unseen = || Cluster {
            nodes: Seen::Unknown(NOT_LISTED.to_owned()),
            departures: Departures::default(),
            peers_unknown: Some(NOT_LISTED.to_owned()),
        };
        self.clusters.entry(cluster.clone()).or_insert_with(unseen)
    }

    /// What was listed of several clusters, or why it can't be: planned once.
    pub fn set_listings(&mut self, listings: Vec<(ClusterId, Listing)>) {
        let mut nodes = BTreeSet::new();
        let mut peers = false;
        for (cluster, listing) in listings {
            match listing {
                Listing::Nodes(seen) => {
                    self.take_nodes(&cluster, seen);
                    nodes.insert(cluster);
                }
                Listing::Peers(seen) => {
                    self.take_peers(&cluster, seen);
                    peers = true;
                }
            }
        }
        match peers {
            true => self.replan_inputs(),
            false => nodes.iter().for_each(|cluster| self.replan_cluster(cluster)),
        }
    }

    /// Clusters that no longer concern anybody.
    pub fn forget_clusters(&mut self, gone: &BTreeSet<ClusterId>) {
        self.clusters.retain(|id, _| !gone.contains(id));
        self.targets.retain(|id, _| !gone.contains(id));
        self.replan_inputs();
    }

    fn replan_inputs(&mut self) {
        let meshes = std::mem::take(&mut self.inputs);
        self.reassign(meshes);
    }

    fn replan_cluster(&mut self, cluster: &ClusterId) {
        for mesh in 0..self.meshes.len() {
            let Some(MeshState { stance: Stance::Active(active), .. }) = self.meshes.get_mut(mesh) else { continue };
            let Some(position) = active.position(cluster) else { continue };
            let contested = active.is_contested();
            active.survey(position, self.clusters.get(cluster).and_then(|cluster| cluster.nodes.known()));
            let contested = contested || active.is_contested();
            if contested {
                // Who has a key that several have concerns them all.
                self.settle(mesh);
            }
            self.plan_members(mesh, (!contested).then_some(position));
        }
    }

    /// A Peer was seen, for the first time or anew.
    pub fn set_peer(&mut self, cluster: &ClusterId, facts: PeerFacts) {
        let name = PeerName::from(facts.name.as_str());
        let entry = Entry::new(facts, &self.register);
        self.replace_peer(cluster, &name, Some(entry));
    }

    pub fn remove_peer(&mut self, cluster: &ClusterId, name: &PeerName) {
        self.replace_peer(cluster, name, None);
    }

    fn replace_peer(&mut self, cluster: &ClusterId, name: &PeerName, entry: Option<Entry>) {
        let Some(target) = self.targets.get_mut(cluster) else { return };
        group(target, &self.meshes, name, false);
        let was_wide = self.landmarks.take(cluster, name);
        let old = match entry {
            Some(entry) => target.entries.insert(name.clone(), entry),
            None => target.entries.remove(name),
        };
        let is_wide = group(target, &self.meshes, name, true);
        if target.entries.contains_key(name) {
            self.landmarks.put(cluster, name, is_wide);
        }
        target.dirt.names.insert(name.clone());
        let new = target.entries.get(name);
        let owners: Vec<Arc<Owner>> = old.iter().chain(new).map(|entry| Arc::clone(&entry.owner)).collect();
        let sweeping = |owner: &Arc<Owner>| matches!(owner.as_ref(), Owner::OtherHub | Owner::Ghost | Owner::Orphan);
        target.dirt.all |= owners.iter().any(sweeping);
        let speaks_of = |entry: &Entry| (entry.labels().source.clone(), entry.key(), entry.prefixes(), entry.deleting);
        let same_past = old.as_ref().map(speaks_of) == new.map(speaks_of) && owners.windows(2).all(|pair| pair.first() == pair.last());
        let wide = was_wide || is_wide;
        let labels: BTreeSet<String> = old.iter().chain(new).filter_map(|entry| entry.labels().source.clone()).collect();
        if self.register.hub().is_none() {
            // Every Peer can change whose the others are.
            self.replan_inputs();
            return;
        }
        for owner in owners.iter().filter(|_| !same_past) {
            if let Owner::Mesh(id) = owner.as_ref() {
                self.remember(id, name, &labels, wide);
            }
        }
    }

    /// Plans those sources again whose past a changed Peer speaks of.
    fn remember(&mut self, id: &MeshId, name: &PeerName, labels: &BTreeSet<String>, wide: bool) {
        let Some((mesh, state)) = mesh_at(&self.meshes, id) else { return };
        let Some(active) = state.active() else { return };
        if active.is_contested() && self.settle(mesh) {
            self.plan_members(mesh, None);
            return;
        }
        let Some(active) = self.meshes.get(mesh).and_then(MeshState::active) else { return };
        let speaks = |position: &usize| {
            active.members.get(*position).is_some_and(|member| {
                let nodes = self.clusters.get(&member.id).and_then(|cluster| cluster.nodes.known());
                let bare = nodes.is_some_and(|nodes| nodes.values().any(|node| node.is_bare()));
                wide || bare || PeerName::of(&active.id.name, &member.name, "anchor") == *name
            })
        };
        let by_label = labels.iter().filter_map(|label| active.position_of(label));
        let positions: BTreeSet<usize> = by_label.chain(active.named_like(name)).filter(speaks).collect();
        for position in positions {
            self.plan_members(mesh, Some(position));
        }
    }

    /// All Peers of a cluster were listed, or they can't be read any more.
    pub fn set_peers(&mut self, cluster: &ClusterId, peers: Seen<BTreeMap<PeerName, PeerFacts>>) {
        self.take_peers(cluster, peers);
        self.replan_inputs();
    }

    fn take_peers(&mut self, cluster: &ClusterId, peers: Seen<BTreeMap<PeerName, PeerFacts>>) {
        self.cluster_mut(cluster).peers_unknown = peers.why_unknown().map(str::to_owned);
        match peers {
            Seen::Known(held) => {
                let entries = held.into_iter().map(|(name, facts)| (name, Entry::new(facts, &self.register))).collect();
                self.targets.insert(cluster.clone(), Target::new(entries));
            }
            Seen::Unknown(_) => _ = self.targets.remove(cluster),
        }
    }

    /// Time passed: what waited for it is planned again.
    pub fn set_now(&mut self, now: Timestamp) {
        self.now = now;
        for mesh in 0..self.meshes.len() {
            let Some(active) = self.meshes.get(mesh).and_then(MeshState::active) else { continue };
            let due = |plan: &SourcePlan| plan.recheck_at.is_some_and(|at| at <= now);
            let positions: Vec<usize> =
                active.members.iter().enumerate().filter(|(_, member)| member.plan.as_ref().is_some_and(due)).map(|(at, _)| at).collect();
            for position in positions {
                self.plan_members(mesh, Some(position));
            }
        }
        for target in self.targets.values_mut() {
            let due = target.outcomes.iter().filter(|(_, outcome)| outcome.recheck_at.is_some_and(|at| at <= now));
            let names: Vec<PeerName> = due.map(|((name, _), _)| name.clone()).collect();
            target.dirt.names.extend(names);
        }
    }

    /// Brings every target up to date, and tells which were not.
    pub fn refresh(&mut self) -> BTreeSet<ClusterId> {
        let mut stale = self.stale();
        let dirty = !stale.is_empty();
        let before = self.confirmed_before();
        if dirty && self.released != before {
            // What is held must be found out as if nothing were released.
            self.released = before;
            self.targets.values_mut().for_each(|target| target.dirt.all = true);
        }
        stale.extend(self.evaluate_all());
        if dirty && self.inputs.values().any(|mesh| mesh.confirm_deletes.is_some()) {
            stale.extend(self.release_confirmed());
        }
        stale
    }

    fn stale(&self) -> BTreeSet<ClusterId> {
        self.targets.iter().filter(|(_, target)| !target.dirt.is_clean()).map(|(id, _)| id.clone()).collect()
    }

    fn evaluate_all(&mut self) -> BTreeSet<ClusterId> {
        let stale = self.stale();
        stale.iter().for_each(|id| self.evaluate(id));
        stale
    }

    /// What was decided counts as decided before from now on: who is anchor,
    /// and what is held, so that it stays held until it is confirmed or no
    /// longer doubtful. True if what is held changed.
    pub fn remember_decisions(&mut self) -> bool {
        let mut changed = false;
        for active in self.meshes.iter().filter_map(MeshState::active) {
            let Some(input) = self.inputs.get_mut(&active.id) else { continue };
            for member in &active.members {
                if let Some(anchor) = member.plan.as_ref().and_then(|plan| plan.anchor.as_ref())
                    && input.anchors.get(&member.name) != Some(anchor)
                {
                    input.anchors.insert(member.name.clone(), anchor.clone());
                }
            }
        }
        if !self.targets.values().any(|target| target.holds) && self.inputs.values().all(|mesh| mesh.held.is_empty()) {
            return false;
        }
        for (at, mesh) in self.meshes.iter().enumerate() {
            let held = self.targets.iter().flat_map(|(id, target)| target.held(at).map(move |name| (id.clone(), name.clone())));
            let held: BTreeSet<(ClusterId, PeerName)> = held.collect();
            if let Some(input) = self.inputs.get_mut(&mesh.id).filter(|input| input.held != held) {
                input.held = held;
                changed = true;
            }
        }
        changed
    }

    /// How many Peers of a mesh a cluster holds, where that is known.
    pub fn peers_of(&self, mesh: &MeshId, cluster: &ClusterId) -> Option<usize> {
        let ours = |entry: &&Entry| matches!(entry.owner.as_ref(), Owner::Mesh(id) if id == mesh);
        Some(self.targets.get(cluster)?.entries.values().filter(ours).count())
    }

    /// A mesh as it was given, with what is remembered of it.
    pub fn input(&self, mesh: &MeshId) -> Option<&Mesh> {
        self.inputs.get(mesh)
    }

    /// The spec that a mesh is acted on with.
    pub fn running(&self, mesh: &MeshId) -> Option<&MeshSpec> {
        mesh_at(&self.meshes, mesh)?.1.active().map(|active| &active.spec)
    }

    /// What a mesh amounts to, as last evaluated.
    pub fn mesh_plan(&self, mesh: &MeshId) -> Option<MeshPlan> {
        let (at, state) = mesh_at(&self.meshes, mesh)?;
        Some(self.plan_of(at, state))
    }

    /// Whether a cluster is known to hold no Peer of this hub.
    pub fn is_swept(&self, cluster: &ClusterId) -> bool {
        let ours = |entry: &Entry| matches!(entry.owner.as_ref(), Owner::Mesh(_) | Owner::Orphan);
        self.targets.get(cluster).is_some_and(|target| !target.entries.values().any(ours))
    }

    /// Deletes that were held before and are confirmed as they were then:
    /// some of them may have been carried out since.
    fn confirmed_before(&self) -> Deletes {
        let confirmed = |(at, mesh): (usize, &MeshState)| {
            let mesh = self.inputs.get(&mesh.id)?;
            let hash = self.held_hash(at, &mesh.held)?;
            (mesh.confirm_deletes.as_ref() == Some(&hash)).then(|| (at, mesh.held.clone()))
        };
        self.meshes.iter().enumerate().filter_map(confirmed).collect()
    }

    /// The hash of a mesh's held deletes, by the names that the mesh has for
    /// its clusters.
    pub(super) fn held_hash(&self, mesh: usize, held: &BTreeSet<(ClusterId, PeerName)>) -> Option<String> {
        let active = self.meshes.get(mesh).and_then(MeshState::active);
        let called = |id: &ClusterId| {
            let member = active.and_then(|mesh| mesh.members.get(mesh.position(id)?));
            member.map_or_else(|| id.to_string(), |member| member.name.to_string())
        };
        held_hash(held.iter().map(|(target, name)| (called(target), name.to_string())))
    }

    /// Releases what is held now, where exactly that was confirmed.
    fn release_confirmed(&mut self) -> BTreeSet<ClusterId> {
        for (at, mesh) in self.meshes.iter().enumerate() {
            let Some(confirmed) = self.inputs.get(&mesh.id).and_then(|mesh| mesh.confirm_deletes.as_deref()) else { continue };
            let held = self.targets.iter().flat_map(|(id, target)| target.held(at).map(move |name| (id.clone(), name.clone())));
            let held: BTreeSet<(ClusterId, PeerName)> = held.collect();
            if self.held_hash(at, &held).as_deref() == Some(confirmed) {
                for (target, _) in &held {
                    self.targets.entry(target.clone()).or_default().dirt.all = true;
                }
                self.released.insert(at, held);
            }
        }
        self.evaluate_all()
    }

    /// Brings one target up to date. Held deletes that a person confirmed are
    /// looked at by `refresh` alone: they concern all targets of a mesh.
    pub fn evaluate(&mut self, id: &ClusterId) {
        let Some(mut target) = self.targets.remove(id) else { return };
        if !target.dirt.is_clean() {
            self.evaluate_target(id, &mut target);
        }
        self.targets.insert(id.clone(), target);
    }

    fn evaluate_target(&self, id: &ClusterId, target: &mut Target) {
        // While its own keys and addresses are unknown nothing is safe to write
        // there, but what no mesh wants there can go.
        let readable = self.clusters.get(id).is_some_and(|cluster| cluster.nodes.known().is_some());
        let position = |at: &usize| Some((*at, self.meshes.get(*at)?.active()?.position(id)?)).filter(|_| readable);
        let other_hub = || target.entries.values().any(|entry| *entry.owner == Owner::OtherHub);
        let evaluation = Evaluation {
            scene: Scene {
                target: id,
                meshes: &self.meshes,
                sources: &ClusterMap(&self.clusters),
                sweep_orphans: self.options.all_meshes_known,
                sweep_ghosts: self.options.all_meshes_known && self.options.sweep_legacy && !other_hub(),
            },
            memberships: self.by_age.iter().filter_map(position).collect(),
            released: &self.released,
            held_before: &|mesh| Some(&self.inputs.get(&self.meshes.get(mesh)?.id)?.held),
            max_delete_percent: &|mesh| self.meshes.get(mesh).and_then(MeshState::active).map_or(0, |mesh| mesh.spec.max_delete_percent),
            hub_known: self.register.hub().is_some(),
            now: self.now,
        };
        evaluation.run(target);
        if !readable {
            target.keep_certain_deletes();
        }
    }
}
