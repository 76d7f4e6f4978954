//! A plan as shown to people: which clusters peer, which nodes carry others,
//! and all problems. Used by the terminal, the dashboard and the status.

use std::collections::BTreeMap;

use crate::condition::kilo::kind;
use crate::kilo::plan::{ClusterPlan, Condition, MeshPlan};
use crate::kilo::survey::Skip;
use crate::names::{ClusterName, MeshId, NodeName};
use crate::problem::{Problem, Reason};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshView {
    pub mesh: MeshId,
    pub ready: Option<Condition>,
    pub clusters: Vec<ClusterView>,
    pub pairs: Vec<PairView>,
    pub problems: Vec<Problem>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterView {
    pub name: ClusterName,
    pub unknown: Option<String>,
    /// Sorted by name.
    pub nodes: Vec<NodeView>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    pub name: NodeName,
    pub role: Role,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Its Peer also carries the cluster-wide networks.
    Anchor,
    Peer,
    /// Carried by the leader of its location; `None` if the leader has no Peer.
    Carried(Option<NodeName>),
    /// Its Peer is kept unchanged for now.
    Held,
    Skipped(Skip),
}

/// State of the Peers of one cluster in another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairView {
    pub source: ClusterName,
    pub target: ClusterName,
    pub state: PairState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PairState {
    /// All possible Peers are written.
    Applied,
    Pending {
        create: usize,
        update: usize,
        delete: usize,
    },
    /// Number of changes that wait for a confirmation.
    Held(usize),
    /// One of the two can't be read.
    Unknown,
    /// An older mesh connects these two clusters.
    Duplicate,
}

impl MeshView {
    pub fn of(mesh: &MeshId, plan: &MeshPlan) -> MeshView {
        let names: Vec<&ClusterName> = plan.clusters.keys().collect();
        let mut pairs = Vec::new();
        for source in &names {
            for target in names.iter().filter(|target| *target != source) {
                pairs.push(PairView {
                    source: (*source).clone(),
                    target: (*target).clone(),
                    state: pair_state(plan, source, target),
                });
            }
        }
        MeshView {
            mesh: mesh.clone(),
            ready: plan
                .conditions
                .iter()
                .find(|condition| condition.kind == kind::READY)
                .cloned(),
            clusters: plan
                .clusters
                .iter()
                .map(|(name, cluster)| cluster_view(name, cluster))
                .collect(),
            pairs,
            problems: plan.problems.clone(),
        }
    }
}

fn cluster_view(name: &ClusterName, plan: &ClusterPlan) -> ClusterView {
    let mut roles: BTreeMap<&NodeName, Role> = BTreeMap::new();
    roles.extend(plan.peers.keys().map(|node| (node, Role::Peer)));
    roles.extend(
        plan.carried
            .iter()
            .map(|(node, by)| (node, Role::Carried(by.clone()))),
    );
    roles.extend(
        plan.skipped
            .iter()
            .map(|(node, skip)| (node, Role::Skipped(skip.clone()))),
    );
    roles.extend(plan.held.iter().map(|node| (node, Role::Held)));
    roles.extend(plan.anchor.iter().map(|node| (node, Role::Anchor)));
    let nodes = roles
        .into_iter()
        .map(|(name, role)| NodeView {
            name: name.clone(),
            role,
        })
        .collect();
    ClusterView {
        name: name.clone(),
        unknown: plan.unknown.clone(),
        nodes,
    }
}

fn pair_state(plan: &MeshPlan, source: &ClusterName, target: &ClusterName) -> PairState {
    let cluster = |name: &ClusterName| plan.clusters.get(name);
    let unknown =
        |name: &ClusterName| cluster(name).is_none_or(|cluster| cluster.unknown.is_some());
    if unknown(source) || unknown(target) {
        return PairState::Unknown;
    }
    let either_way = [
        format!("{source} and {target}"),
        format!("{target} and {source}"),
    ];
    if plan.problems.iter().any(|problem| {
        problem.reason == Reason::DuplicatePeering && either_way.contains(&problem.subject)
    }) {
        return PairState::Duplicate;
    }
    let Some(changes) = cluster(target).and_then(|cluster| plan.targets.get(cluster.id.as_ref()?))
    else {
        return PairState::Applied;
    };
    let of_source = |label: Option<&str>| label == Some(source.as_str());
    let held = changes
        .held
        .values()
        .filter(|held| held.source() == Some(source.as_str()))
        .count();
    let create = changes
        .create
        .values()
        .filter(|peer| of_source(peer.labels().source.as_deref()))
        .count();
    let update = changes
        .update
        .values()
        .filter(|update| of_source(update.after.labels().source.as_deref()))
        .count();
    let delete = changes
        .delete
        .values()
        .filter(|delete| delete.source.as_ref() == Some(source))
        .count();
    match (held, create + update + delete) {
        (0, 0) => PairState::Applied,
        (0, _) => PairState::Pending {
            create,
            update,
            delete,
        },
        _ => PairState::Held(held),
    }
}
