//! The result of planning: the changes on every target, the state of every
//! node, problems and conditions.

use std::collections::{BTreeMap, BTreeSet};

use crate::cidr::Cidr;
use crate::condition::kilo::{kind, reason};
use crate::kilo::guard::{DeleteCause, HeldLine};
use crate::kilo::peer::WantedPeer;
use crate::kilo::survey::Skip;
use crate::names::{ClusterId, ClusterName, MeshId, NodeName, PeerName};
pub use crate::precondition::Precondition;
use crate::problem::{Problem, Reason};
use crate::text::listed;
use crate::time::Timestamp;

/// The plan of all meshes, from [`plan`](crate::kilo::plan()).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Every mesh that was given, also those that are invalid or rejected.
    pub meshes: BTreeMap<MeshId, MeshPlan>,
    /// Peers of meshes that do not exist, by cluster.
    pub orphans: BTreeMap<ClusterId, Changes>,
    /// Problems that belong to no mesh.
    pub problems: Vec<Problem>,
    /// The time at which to replan although nothing changed.
    pub recheck_at: Option<Timestamp>,
}

/// The plan of one mesh, as returned by
/// [`Planner::mesh_plan`](crate::kilo::planner::Planner::mesh_plan).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MeshPlan {
    /// The changes in each cluster that has or gets Peers of the mesh.
    pub targets: BTreeMap<ClusterId, Changes>,
    /// The state of each member; empty while the mesh is deleted or rejected.
    pub clusters: BTreeMap<ClusterName, ClusterPlan>,
    /// All problems of the mesh, sorted.
    pub problems: Vec<Problem>,
    /// Conditions of the status that follow from the plan.
    pub conditions: Vec<Condition>,
    /// The hash that confirms the held changes, if there are any.
    pub held_hash: Option<String>,
}

/// Changes to one mesh's Peers in one cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// Peers to create.
    pub create: BTreeMap<PeerName, WantedPeer>,
    /// Peers to change.
    pub update: BTreeMap<PeerName, Update>,
    /// Peers to delete.
    pub delete: BTreeMap<PeerName, Delete>,
    /// Changes that wait for a confirmation or for a budget.
    pub held: BTreeMap<PeerName, Held>,
    /// Number of unchanged Peers of the mesh.
    pub keep: usize,
}

/// A change of an existing Peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// The observed Peer, on which the write is conditional.
    pub on: Precondition,
    /// The Peer after all steps of the change.
    pub after: WantedPeer,
    /// Only labels are added: the Peer is adopted or taken back.
    pub adopts: bool,
    /// A key or prefix is removed from this Peer, so that another Peer can get
    /// it next.
    pub takes_away: bool,
    /// The Peer's key changes.
    pub rekeys: bool,
    /// The Peer to write first, without the prefixes that another Peer still
    /// has to lose.
    pub first: Option<WantedPeer>,
}

/// A change that waits, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The change that would be written.
    pub change: HeldChange,
    /// The reason for holding it, and so the way to release it.
    pub why: HeldFor,
}

/// The reason for holding a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldFor {
    /// Too many unexplained deletes.
    Deletes,
    /// The source looks like a different cluster.
    Replaced,
    /// The source changes too often; the change waits for its budget, not for
    /// the user.
    Budget,
}

/// A change as it would be written if it were not held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeldChange {
    /// A Peer to create.
    Create(WantedPeer),
    /// A Peer to change.
    Update(Update),
    /// A Peer to delete.
    Delete(Delete),
}

impl Held {
    /// The cluster of the Peer's node, if it is in the mesh.
    pub fn source(&self) -> Option<&str> {
        match &self.change {
            HeldChange::Create(peer) => peer.labels().source.as_deref(),
            HeldChange::Update(update) => update.after.labels().source.as_deref(),
            HeldChange::Delete(delete) => delete.source.as_ref().map(ClusterName::as_str),
        }
    }

    /// The change that the user confirms: a delete or a new key. Other changes
    /// of a replaced source follow.
    fn line(&self, target: &ClusterId, name: &PeerName) -> Option<HeldLine> {
        let line = |key| {
            Some(HeldLine {
                target: target.clone(),
                name: name.clone(),
                key,
            })
        };
        match &self.change {
            _ if self.why == HeldFor::Budget => None,
            HeldChange::Delete(_) => line(None),
            HeldChange::Update(update) if update.rekeys => line(Some(update.after.key())),
            HeldChange::Update(_) | HeldChange::Create(_) => None,
        }
    }
}

/// The deletion of a Peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delete {
    /// The observed Peer, on which the delete is conditional.
    pub on: Precondition,
    /// The reason for deleting it, on which the guard decides.
    pub cause: DeleteCause,
    /// The cluster of the Peer's node, if it is in the mesh.
    pub source: Option<ClusterName>,
}

/// State of a cluster in a mesh.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClusterPlan {
    /// The cluster that the entry refers to; always set by the planner.
    pub id: Option<ClusterId>,
    /// The reason why its state is not known.
    pub unknown: Option<String>,
    /// Number of its Nodes; 0 while they are not known.
    pub nodes: usize,
    /// Nodes that have a Peer in other clusters, with its name.
    pub peers: BTreeMap<NodeName, PeerName>,
    /// Carried node to the leader that carries it; `None` if the leader has no
    /// Peer.
    pub carried: BTreeMap<NodeName, Option<NodeName>>,
    /// Nodes whose existing Peer is kept unchanged.
    pub held: Vec<NodeName>,
    /// Nodes without a Peer, and the check they failed.
    pub skipped: BTreeMap<NodeName, Skip>,
    /// The node whose Peer carries the cluster-wide networks.
    pub anchor: Option<NodeName>,
    /// The networks that the anchor carries besides those of its own nodes.
    pub extras: Vec<Cidr>,
}

impl Changes {
    /// The held changes on one target that the user confirms.
    pub fn held_lines(&self, target: &ClusterId) -> Vec<HeldLine> {
        self.held
            .iter()
            .filter_map(|(name, held)| held.line(target, name))
            .collect()
    }

    /// Reports whether nothing is to be written now. Held changes don't count.
    pub fn is_empty(&self) -> bool {
        self.create.is_empty() && self.update.is_empty() && self.delete.is_empty()
    }
}

impl MeshPlan {
    /// Reports whether a write is pending in any cluster.
    pub fn has_changes(&self) -> bool {
        self.targets.values().any(|changes| !changes.is_empty())
    }

    /// The changes to confirm; input of the next plan.
    pub fn held(&self) -> BTreeSet<HeldLine> {
        self.targets
            .iter()
            .flat_map(|(target, changes)| changes.held_lines(target))
            .collect()
    }
}

impl Plan {
    /// The orphans to confirm; input of the next plan.
    pub fn held_orphans(&self) -> BTreeSet<HeldLine> {
        self.orphans
            .iter()
            .flat_map(|(target, changes)| changes.held_lines(target))
            .collect()
    }

    /// Reports whether a write is pending for any mesh or orphan.
    pub fn has_changes(&self) -> bool {
        self.meshes.values().any(MeshPlan::has_changes)
            || self.orphans.values().any(|changes| !changes.is_empty())
    }

    /// All problems, with the mesh they belong to; `None` for those of no mesh.
    pub fn problems(&self) -> impl Iterator<Item = (Option<&MeshId>, &Problem)> {
        let of_meshes = self
            .meshes
            .iter()
            .flat_map(|(id, mesh)| mesh.problems.iter().map(move |problem| (Some(id), problem)));
        of_meshes.chain(self.problems.iter().map(|problem| (None, problem)))
    }
}

/// A condition of the ClusterMesh, without its timestamps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// A type from [`condition::kilo::kind`](crate::condition::kilo::kind).
    pub kind: &'static str,
    /// True for status "True", false for "False".
    pub status: bool,
    /// A reason from
    /// [`condition::kilo::reason`](crate::condition::kilo::reason) or the name
    /// of a [`Reason`].
    pub reason: &'static str,
    /// Details for users; may be empty.
    pub message: String,
}

/// The conditions derived from a mesh's problems and pending changes.
pub(super) fn conditions(plan: &MeshPlan) -> Vec<Condition> {
    let overlap = flag(
        plan,
        (kind::NETWORKS_OVERLAP, false),
        Reason::CIDROverlap,
        reason::NO_OVERLAP,
    );
    let anchor = flag(
        plan,
        (kind::ANCHOR_AVAILABLE, true),
        Reason::AnchorUnavailable,
        reason::AVAILABLE,
    );
    let keepalive = flag(
        plan,
        (kind::KEEPALIVE_EFFECTIVE, true),
        Reason::KeepaliveNotSet,
        reason::EFFECTIVE,
    );
    vec![ready(plan), overlap, anchor, keepalive]
}

/// A condition that has the status `good` unless there is a problem with this
/// reason; `fine` is the reason then.
fn flag(
    plan: &MeshPlan,
    (kind, good): (&'static str, bool),
    reason: Reason,
    fine: &'static str,
) -> Condition {
    let problem = plan
        .problems
        .iter()
        .find(|problem| problem.reason == reason);
    match problem {
        Some(problem) => Condition {
            kind,
            status: !good,
            reason: reason.as_str(),
            message: with_hint(problem),
        },
        None => Condition {
            kind,
            status: good,
            reason: fine,
            message: String::new(),
        },
    }
}

/// Includes the hint, because many people only read the condition.
fn with_hint(problem: &Problem) -> String {
    match problem.hint.as_str() {
        "" => format!("{}: {}", problem.subject, problem.message),
        hint => format!("{}: {}; {hint}", problem.subject, problem.message),
    }
}

fn ready(plan: &MeshPlan) -> Condition {
    let first = [
        Reason::InvalidSpec,
        Reason::CIDROverlap,
        Reason::DuplicatePeering,
        Reason::SourceReplaced,
        Reason::DeletionHeld,
        Reason::ClusterUnreachable,
        Reason::SourceFlapping,
    ];
    let mut errors: Vec<&Problem> = plan
        .problems
        .iter()
        .filter(|problem| problem.is_error())
        .collect();
    errors.sort_by_key(|problem| problem.reason.as_str());
    let worst = first
        .iter()
        .find_map(|reason| {
            plan.problems
                .iter()
                .find(|problem| problem.reason == *reason)
        })
        .or(errors.first().copied());
    let no = |reason: &'static str, message: String| Condition {
        kind: kind::READY,
        status: false,
        reason,
        message,
    };
    match worst {
        Some(problem) if problem.reason == Reason::CIDROverlap => {
            no(reason::NETWORKS_OVERLAP, problem.message.clone())
        }
        Some(problem) => no(
            problem.reason.as_str(),
            with_hint(problem) + &also(plan, problem),
        ),
        None if plan.has_changes() => no(reason::PROGRESSING, "changes are pending".to_owned()),
        None => {
            let message = "all Peers are written in all clusters".to_owned();
            Condition {
                kind: kind::READY,
                status: true,
                reason: reason::RECONCILED,
                message,
            }
        }
    }
}

/// The other problems with the same reason, as the end of a message.
fn also(plan: &MeshPlan, problem: &Problem) -> String {
    let others: Vec<String> = plan
        .problems
        .iter()
        .filter(|other| other.reason == problem.reason && *other != problem)
        .map(|other| format!("{}: {}", other.subject, other.message))
        .collect();
    if others.is_empty() {
        String::new()
    } else {
        format!("; also {}", listed(&others, 5))
    }
}
