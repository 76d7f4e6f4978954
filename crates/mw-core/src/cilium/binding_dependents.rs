//! Common parts of GlobalService and ConnectivityIntent: both depend on a
//! binding and report progress in the same form.

use std::collections::{BTreeMap, BTreeSet};

use crate::cilium::object::{Binding, Common, ObjectId};
use crate::cilium::plan::{BindingPhase, BindingPlan, Condition, ObjectOutcome, Status};
use crate::cilium::world::World;
use crate::condition::cilium::{kind, reason};
use crate::names::ClusterId;
use crate::problem::{Problem, Reason};
use crate::text::{listed, quoted};

const MESH_REF: &str = "spec.meshRef";

/// The reason why an object is not reconciled.
pub(super) enum Unmet {
    /// The spec is invalid.
    Refused(Vec<Problem>),
    /// Expected to pass.
    Later(Problem),
    /// The user must act.
    Never(Problem),
}

/// The binding that an object names, if it is Connected or Degraded.
pub(super) fn binding<'a>(
    world: &'a World,
    bindings: &BTreeMap<ObjectId, BindingPlan>,
    common: &Common,
    mesh: &str,
) -> Result<&'a Binding, Unmet> {
    let id = common.id.neighbour(mesh);
    let Some(binding) = world.bindings.get(&id) else {
        if !world.listed.contains(&common.id.workspace) {
            return Err(not_ready("ClusterMeshBindings are not listed yet"));
        }
        return Err(Unmet::Never(Problem::new(
            Reason::BindingNotFound,
            MESH_REF,
            format!("ClusterMeshBinding not found: {}", quoted(mesh)),
            "correct meshRef.name, or create the binding",
        )));
    };
    if binding.common.deleting.is_some() {
        return Err(not_ready(&format!(
            "ClusterMeshBinding {} is being deleted",
            quoted(mesh)
        )));
    }
    match bindings.get(&id).map(|plan| plan.outcome.phase) {
        Some(BindingPhase::Connected | BindingPhase::Degraded) => Ok(binding),
        phase => {
            let phase = phase.unwrap_or_default().as_str();
            Err(not_ready(&format!(
                "ClusterMeshBinding {} is {phase}",
                quoted(mesh)
            )))
        }
    }
}

fn not_ready(text: &str) -> Unmet {
    Unmet::Later(Problem::new(
        Reason::MeshNotReady,
        MESH_REF,
        text,
        "check the status of the binding",
    ))
}

/// Condition types and reasons of one kind.
#[derive(Debug, Clone, Copy)]
pub(super) struct Words {
    /// The condition for completion, and its reason then.
    pub(super) done: &'static str,
    pub(super) everywhere: &'static str,
    /// The reason while in progress.
    pub(super) doing: &'static str,
}

/// Accepted, the completion condition, Ready and Degraded, from problems and
/// progress.
pub(super) fn conditions(
    words: Words,
    refused: &[Problem],
    done: bool,
    degraded: bool,
    problems: &[Problem],
) -> Vec<Condition> {
    let first = refused
        .first()
        .or(problems.first())
        .map_or(words.doing, |problem| problem.reason.as_str());
    let message = if refused.is_empty() {
        messages(problems)
    } else {
        validation_failed(refused)
    };
    let state = |kind: &'static str, reason: &'static str| {
        if done {
            is_true(kind, reason)
        } else {
            Condition {
                message: message.clone(),
                ..is_false(kind, first)
            }
        }
    };
    let accepted = if refused.is_empty() {
        is_true(kind::ACCEPTED, reason::SPEC_VALID)
    } else {
        Condition {
            message: validation_failed(refused),
            ..is_false(kind::ACCEPTED, Reason::InvalidSpec.as_str())
        }
    };
    let degradation = if degraded {
        Condition {
            message: message.clone(),
            ..is_true(kind::DEGRADED, first)
        }
    } else {
        is_false(kind::DEGRADED, reason::NOT_DEGRADED)
    };
    vec![
        accepted,
        state(words.done, words.everywhere),
        state(kind::READY, words.done),
        degradation,
    ]
}

fn is_true(kind: &'static str, reason: &'static str) -> Condition {
    Condition {
        kind,
        status: Status::True,
        reason,
        message: String::new(),
    }
}

fn is_false(kind: &'static str, reason: &'static str) -> Condition {
    Condition {
        status: Status::False,
        ..is_true(kind, reason)
    }
}

fn messages(problems: &[Problem]) -> String {
    let texts: Vec<&str> = problems
        .iter()
        .map(|problem| problem.message.as_str())
        .collect();
    listed(&texts, 20)
}

/// The outcome of an object that is not reconciled. Everything written so far
/// stays.
pub(super) fn stopped<P>(
    words: Words,
    common: &Common,
    unmet: Unmet,
    pending: P,
    error: P,
) -> ObjectOutcome<P> {
    let (phase, refused, problems) = match unmet {
        Unmet::Refused(wrong) => (error, wrong, Vec::new()),
        Unmet::Later(problem) => (pending, Vec::new(), vec![problem]),
        Unmet::Never(problem) => (error, Vec::new(), vec![problem]),
    };
    let conditions = conditions(words, &refused, false, false, &problems);
    let problems = refused.into_iter().chain(problems).collect();
    ObjectOutcome {
        phase,
        conditions,
        problems,
        touches: touches(common, [].iter()),
        teardown: None,
    }
}

fn validation_failed(problems: &[Problem]) -> String {
    let texts: Vec<String> = problems
        .iter()
        .map(|problem| format!("{} {}", problem.subject, problem.message))
        .collect();
    format!("validation failed: {}", texts.join("; "))
}

/// The clusters to which an object may have written and that are not planned
/// for: it is not reconciled, or it lost access. Nothing that it may want is
/// removed there.
pub(super) fn held_clusters(common: &Common, acted_on: bool) -> BTreeSet<&ClusterId> {
    match (acted_on, common.deleting) {
        (_, Some(_)) => BTreeSet::new(),
        (true, None) => common.lost.values().collect(),
        (false, None) => common
            .lost
            .values()
            .chain(common.touched_clusters())
            .collect(),
    }
}

/// The refs to record before writing: recorded ones and those written to now.
pub(super) fn touches<'a>(
    common: &'a Common,
    now: impl Iterator<Item = &'a String>,
) -> BTreeSet<String> {
    common.touched.iter().chain(now).cloned().collect()
}
