//! Builds the `Plan` from the planner's state.

mod problems;

use std::collections::{BTreeMap, BTreeSet};

use crate::kilo::mesh::{ActiveMesh, Member};
use crate::kilo::mesh_state::{MeshMode, MeshState};
use crate::kilo::outcome::Act;
use crate::kilo::ownership::{Absent, Owner};
use crate::kilo::plan::{Changes, ClusterPlan, MeshPlan, Plan, conditions};
use crate::kilo::planner::Planner;
use crate::kilo::report::problems::{flapping_problems, held_problems, unreachable};
use crate::kilo::target::Target;
use crate::kilo::world::World;
use crate::names::{ClusterId, ClusterName, MeshId, PeerName};
use crate::problem::{Problem, Reason};
use crate::text::{listed, shell_quoted};

/// The operator's Lease. It has the name of the Go operator's Lease, so that
/// the two can't run at the same time.
pub const LEASE: &str = "f27237f1.squat.ai";

/// Plans everything from scratch. Pure: the same world gives the same plan.
pub fn plan(world: World) -> Plan {
    Planner::new(world).plan()
}

impl Planner {
    /// The complete, up-to-date plan.
    pub fn plan(&mut self) -> Plan {
        self.refresh();
        let mut plan = Plan::default();
        for (at, mesh) in self.meshes.iter().enumerate() {
            plan.meshes.insert(mesh.id.clone(), self.plan_of(at, mesh));
        }
        for (id, target) in &self.targets {
            let changes = target.changes(None);
            if !changes.is_empty() || !changes.held.is_empty() {
                plan.orphans.insert(id.clone(), changes);
            }
        }
        plan.problems = self.ghosts();
        plan.problems.extend(self.orphans_problem());
        plan.recheck_at = self.recheck_at();
        plan
    }

    /// The pending changes in one cluster by mesh, as last evaluated; changes
    /// of orphans are under `None`.
    pub fn changes(&self, target: &ClusterId) -> BTreeMap<Option<&MeshId>, Changes> {
        let Some(target) = self.targets.get(target) else {
            return BTreeMap::new();
        };
        let mut changes: BTreeMap<Option<&MeshId>, Changes> = BTreeMap::new();
        for ((name, at), outcome) in &target.outcomes {
            let mesh = at.and_then(|at| self.meshes.get(at)).map(|mesh| &mesh.id);
            if outcome.act.is_change() {
                changes.entry(mesh).or_default().take(name, &outcome.act);
            }
        }
        changes
    }

    /// The time at which to replan although nothing changed.
    pub fn recheck_at(&self) -> Option<crate::time::Timestamp> {
        let sources = self
            .meshes
            .iter()
            .filter_map(MeshState::active)
            .flat_map(|mesh| &mesh.members);
        let sources = sources.filter_map(Member::recheck_at);
        let targets = self
            .targets
            .values()
            .flat_map(|target| target.outcomes.values())
            .filter_map(|outcome| outcome.recheck_at);
        sources.chain(targets).filter(|at| *at > self.now).min()
    }

    pub(super) fn plan_of(&self, at: usize, mesh: &MeshState) -> MeshPlan {
        let mut plan = MeshPlan {
            problems: self.remarks.get(at).cloned().unwrap_or_default(),
            ..MeshPlan::default()
        };
        for (id, target) in &self.targets {
            let mut changes = target.changes(Some(at));
            changes.keep = kept(target, at, &mesh.id, &changes);
            if !changes.is_empty() || !changes.held.is_empty() || changes.keep > 0 {
                plan.targets.insert(id.clone(), changes);
            }
        }
        match &mesh.mode {
            MeshMode::Active(active) => {
                self.describe_members(&mut plan, active);
                self.describe_pairs(&mut plan, at, active);
            }
            MeshMode::Deleting => plan.problems.extend(self.unreachable(mesh)),
            MeshMode::HeldBack => {}
        }
        plan.problems.extend(self.ownership_problems(&mesh.id));
        plan.held_hash = self.held_hash(Some(at), &plan.held());
        plan.problems.extend(held_problems(&plan, &mesh.id));
        plan.problems.extend(flapping_problems(&plan));
        plan.problems.sort();
        plan.conditions = conditions(&plan);
        plan
    }

    fn describe_members(&self, plan: &mut MeshPlan, mesh: &ActiveMesh) {
        for member in &mesh.members {
            let mut cluster = ClusterPlan {
                id: Some(member.id.clone()),
                unknown: self.why_unknown(&member.id),
                ..ClusterPlan::default()
            };
            cluster.nodes = self
                .clusters
                .get(&member.id)
                .and_then(|seen| seen.nodes.known())
                .map_or(0, BTreeMap::len);
            if let Some(why) = &cluster.unknown {
                plan.problems.push(unreachable(member.name.as_str(), why));
            }
            if let Some(source) = &member.plan {
                cluster.peers = source
                    .base
                    .values()
                    .map(|peer| (peer.node.clone(), peer.name.clone()))
                    .collect();
                cluster.carried = source.carried.clone();
                let exists = |name: &PeerName| {
                    self.targets
                        .values()
                        .any(|target| target.entries.contains_key(name))
                };
                cluster.held = source
                    .kept
                    .iter()
                    .filter(|(name, _)| exists(name))
                    .map(|(_, (node, _))| node.clone())
                    .collect();
                cluster.held.sort();
                cluster.skipped = source.skipped.clone();
                cluster.anchor = source.anchor.clone();
                cluster.extras = source.extras.clone();
                plan.problems.extend(source.problems.iter().cloned());
                plan.problems.extend(member.own.problems.iter().cloned());
            }
            plan.clusters.insert(member.name.clone(), cluster);
        }
    }

    /// The reason why a cluster can be neither read nor written.
    fn why_unknown(&self, id: &ClusterId) -> Option<String> {
        let Some(cluster) = self.clusters.get(id) else {
            return Some("not observed yet".to_owned());
        };
        cluster
            .nodes
            .why_unknown()
            .or(cluster.peers_unknown.as_deref())
            .map(str::to_owned)
    }

    fn unreachable(&self, mesh: &MeshState) -> Vec<Problem> {
        let clusters = self
            .inputs
            .get(&mesh.id)
            .map(|mesh| mesh.spec.clusters.as_slice())
            .unwrap_or_default();
        let why = |name: &str| {
            let cluster = ClusterName::try_from(name).ok()?;
            self.why_unknown(&self.cluster_id(&mesh.id, &cluster))
                .map(|why| unreachable(name, &why))
        };
        clusters
            .iter()
            .filter_map(|cluster| why(&cluster.name))
            .collect()
    }

    /// Reports the notes of all targets, once per pair of clusters and reason.
    fn describe_pairs(&self, plan: &mut MeshPlan, at: usize, mesh: &ActiveMesh) {
        for (target_at, to) in mesh.members.iter().enumerate() {
            let mut notes: BTreeMap<(usize, Reason), Vec<String>> = BTreeMap::new();
            let outcomes = self.targets.get(&to.id).map(|target| &target.outcomes);
            for (_, outcome) in outcomes
                .into_iter()
                .flatten()
                .filter(|((_, of), _)| *of == Some(at))
            {
                for note in &outcome.notes {
                    notes
                        .entry((outcome.source.unwrap_or_default(), note.reason))
                        .or_default()
                        .push(note.about.clone());
                }
            }
            for ((source, reason), about) in notes {
                let from = mesh
                    .members
                    .get(source)
                    .map(|member| member.name.to_string())
                    .unwrap_or_default();
                plan.problems.push(Problem::new(
                    reason,
                    format!("{from} on {}", to.name),
                    listed(&about, 5),
                    hint(reason),
                ));
            }
            for (source_at, from) in mesh
                .members
                .iter()
                .enumerate()
                .filter(|(source_at, _)| *source_at < target_at)
            {
                if let Some(older) = mesh.older_mesh_with(source_at, target_at) {
                    let message =
                        format!("mesh {older} is older and already connects these two clusters");
                    let hint =
                        "remove one of the two clusters from this mesh, or delete the other mesh";
                    plan.problems.push(Problem::new(
                        Reason::DuplicatePeering,
                        format!("{} and {}", from.name, to.name),
                        message,
                        hint,
                    ));
                }
            }
        }
    }

    fn ownership_problems(&self, id: &MeshId) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (cluster, target) in &self.targets {
            let ambiguous =
                |owner: &Owner| matches!(owner, Owner::Ambiguous(ids) if ids.contains(id));
            let names: Vec<&PeerName> = target
                .strangers()
                .filter(|(_, entry)| ambiguous(&entry.owner))
                .map(|(name, _)| name)
                .collect();
            if !names.is_empty() {
                problems.push(Problem::new(
                    Reason::AmbiguousOwner,
                    cluster.to_string(),
                    format!("Peers of the Go operator match several meshes named {}: {}", id.name, listed(&names, 5)),
                    "rename one of the meshes, or label these Peers with kilo-clustermesh.io/mesh-namespace and kilo-clustermesh.io/hub",
                ));
            }
        }
        if let Some(hubs) = self.register.conflicts().get(id) {
            let hubs: Vec<&String> = hubs.iter().collect();
            problems.push(Problem::new(
                Reason::HubConflict,
                id.to_string(),
                format!(
                    "Peers of this mesh carry the UIDs of several hubs: {}; they are not changed",
                    listed(&hubs, 5)
                ),
                "set --hub-uid, or add the hub's Namespace kube-system to the local cluster's file",
            ));
        }
        problems
    }

    /// Reports Peers that the Go operator left for meshes that do not exist,
    /// unless they are deleted.
    fn ghosts(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (id, target) in self
            .targets
            .iter()
            .filter(|_| self.orphans.absent != Absent::Unknown)
        {
            let left = |(name, entry): &(&PeerName, &crate::kilo::entry::Entry)| {
                *entry.owner == Owner::Ghost
                    && !target.outcomes.contains_key(&((*name).clone(), None))
            };
            let names: Vec<&PeerName> = target
                .strangers()
                .filter(left)
                .map(|(name, _)| name)
                .collect();
            if !names.is_empty() {
                problems.push(Problem::new(
                    Reason::LegacyGhost,
                    id.to_string(),
                    format!(
                        "Peers of the Go operator whose ClusterMesh does not exist on this hub: {}",
                        listed(&names, 5)
                    ),
                    "another hub may own them; if not, delete them with kubectl delete peer",
                ));
            }
        }
        problems
    }
}

impl Planner {
    /// The problem that reports held orphans.
    pub fn orphans_problem(&self) -> Option<Problem> {
        let lines = self.held_lines(None);
        let hash = self.held_hash(None, &lines)?;
        let mut counts: BTreeMap<&ClusterId, usize> = BTreeMap::new();
        lines
            .iter()
            .for_each(|line| *counts.entry(&line.target).or_default() += 1);
        let held: Vec<String> = counts
            .iter()
            .map(|(target, count)| format!("{count} on {target}"))
            .collect();
        let namespace = self
            .options
            .lease_namespace
            .as_deref()
            .map_or_else(|| "NAMESPACE".to_owned(), shell_quoted);
        Some(Problem::new(
            Reason::DeletionHeld,
            "orphans",
            format!(
                "deletes are held: most of this hub's Peers in these clusters belong to ClusterMeshes that do not exist: {}",
                listed(&held, 5)
            ),
            format!(
                "if these meshes were deleted on purpose, run: kubectl annotate lease -n {namespace} {LEASE} kilo-clustermesh.io/confirm-orphans={hash} --overwrite"
            ),
        ))
    }
}

/// Number of our Peers without a change.
fn kept(target: &Target, at: usize, mesh: &MeshId, changes: &Changes) -> usize {
    let ours = |name: &PeerName| {
        target
            .entries
            .get(name)
            .is_some_and(|entry| matches!(entry.owner.as_ref(), Owner::Mesh(id) if id == mesh))
    };
    let touched: BTreeSet<&PeerName> = changes
        .update
        .keys()
        .chain(changes.delete.keys())
        .chain(changes.held.keys())
        .collect();
    target.count_of(at) - touched.into_iter().filter(|name| ours(name)).count()
}

fn hint(reason: Reason) -> &'static str {
    match reason {
        Reason::KeyOfTarget => {
            "two nodes have the same key pair: delete /var/lib/kilo/key on one of them and restart its kilo pod"
        }
        Reason::KeyTaken => {
            "WireGuard allows one peer per key: delete the other Peer, or give the node a new key"
        }
        Reason::PrefixTaken => "remove the prefix from the other Peer, or delete that Peer",
        Reason::PrefixOverlapsTarget => {
            "routing it would cut off local traffic; declare networks that do not overlap the other cluster's node addresses"
        }
        Reason::PrefixOfAnotherFamily => {
            "Kilo routes one IP family on nodes with an internal IP; with granularity full, and only then, nodes annotated with kilo.squat.ai/force-internal-ip=- route both"
        }
        Reason::PrefixContainsEndpoint => {
            "the tunnel would run through itself; move the endpoint out of the network, or the network out of the mesh"
        }
        Reason::NodeNoEndpoint => {
            "set annotation kilo.squat.ai/clustermesh-endpoint on the nodes, or persistentKeepalive for one of the two clusters"
        }
        Reason::NothingToRoute => "see the other problems of this pair",
        Reason::PeerNameTaken => "rename or delete the conflicting Peer",
        Reason::PeerTerminating => "a finalizer blocks the deletion of the Peer",
        _ => "",
    }
}

impl Target {
    pub(super) fn changes(&self, mesh: Option<usize>) -> Changes {
        let mut changes = Changes::default();
        for ((name, _), outcome) in self.outcomes.iter().filter(|((_, at), _)| *at == mesh) {
            changes.take(name, &outcome.act);
        }
        changes
    }
}

impl Act {
    fn is_change(&self) -> bool {
        matches!(
            self,
            Act::Create(_) | Act::Update(_) | Act::Delete(_) | Act::Held(_)
        )
    }
}

impl Changes {
    fn take(&mut self, name: &PeerName, act: &Act) {
        match act.clone() {
            Act::Nothing | Act::Keep(_) | Act::Leave => {}
            Act::Create(peer) => _ = self.create.insert(name.clone(), peer),
            Act::Update(update) => _ = self.update.insert(name.clone(), update),
            Act::Delete(delete) => _ = self.delete.insert(name.clone(), delete),
            Act::Held(held) => _ = self.held.insert(name.clone(), held),
        }
    }
}
