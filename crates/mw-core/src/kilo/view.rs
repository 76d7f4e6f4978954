//! A plan as shown to people: which clusters peer, which nodes carry others,
//! and all problems. Used by the terminal, the dashboard and the status.

use std::collections::BTreeMap;

use crate::condition::kilo::kind;
use crate::kilo::plan::{ClusterPlan, Condition, MeshPlan};
use crate::kilo::survey::Skip;
use crate::names::{ClusterName, MeshId, NodeName};
use crate::problem::{Problem, Reason};

/// One mesh, built from its plan with [`MeshView::of`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshView {
    /// The mesh.
    pub mesh: MeshId,
    /// The condition Ready; `None` if the plan has none.
    pub ready: Option<Condition>,
    /// The members, sorted by name.
    pub clusters: Vec<ClusterView>,
    /// Every ordered pair of members, sorted by source.
    pub pairs: Vec<PairView>,
    /// All problems of the mesh.
    pub problems: Vec<Problem>,
}

/// One member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterView {
    /// The name in the mesh.
    pub name: ClusterName,
    /// The reason why its Nodes or Peers are not known.
    pub unknown: Option<String>,
    /// Sorted by name.
    pub nodes: Vec<NodeView>,
}

/// One node of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    /// The Node's name.
    pub name: NodeName,
    /// The way in which other clusters reach it, if they do.
    pub role: Role,
}

/// The role of a node in the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Its Peer also carries the cluster-wide networks.
    Anchor,
    /// It has a Peer in other clusters.
    Peer,
    /// Carried by the leader of its location; `None` if the leader has no Peer.
    Carried(Option<NodeName>),
    /// Its Peer is kept unchanged for now.
    Held,
    /// It has no Peer, and no other node carries it.
    Skipped(Skip),
}

/// State of the Peers of one cluster in another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairView {
    /// The cluster whose nodes the Peers lead to.
    pub source: ClusterName,
    /// The cluster that has the Peers.
    pub target: ClusterName,
    /// The state of the Peers.
    pub state: PairState,
}

/// The state of the Peers of one source on one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PairState {
    /// All possible Peers are written.
    Applied,
    /// Number of changes to write.
    Pending {
        /// Peers to create.
        create: usize,
        /// Peers to change.
        update: usize,
        /// Peers to delete.
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
    /// Summarises a plan.
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
