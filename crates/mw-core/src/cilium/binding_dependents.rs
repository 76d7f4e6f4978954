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
    let subject = "spec.meshRef";
    let later = |text: String| {
        Unmet::Later(Problem::new(
            Reason::MeshNotReady,
            subject,
            text,
            "check the status of the binding",
        ))
    };
    let Some(binding) = world.bindings.get(&id) else {
        return Err(match world.listed.contains(&common.id.workspace) {
            true => {
                let text = format!("ClusterMeshBinding not found: {}", quoted(mesh));
                Unmet::Never(Problem::new(
                    Reason::BindingNotFound,
                    subject,
                    text,
                    "correct meshRef.name, or create the binding",
                ))
            }
            false => later("ClusterMeshBindings are not listed yet".to_owned()),
        });
    };
    if binding.common.deleting.is_some() {
        return Err(later(format!(
            "ClusterMeshBinding {} is being deleted",
            quoted(mesh)
        )));
    }
    match bindings.get(&id).map(|plan| plan.outcome.phase) {
        Some(BindingPhase::Connected | BindingPhase::Degraded) => Ok(binding),
        phase => {
            let phase = phase.unwrap_or_default().as_str();
            Err(later(format!(
                "ClusterMeshBinding {} is {phase}",
                quoted(mesh)
            )))
        }
    }
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
    let told = |problems: &[Problem]| {
        let texts: Vec<&str> = problems
            .iter()
            .map(|problem| problem.message.as_str())
            .collect();
        listed(&texts, 20)
    };
    let accepted = match refused.is_empty() {
        true => Condition {
            kind: kind::ACCEPTED,
            status: Status::True,
            reason: reason::SPEC_VALID,
            message: String::new(),
        },
        false => {
            let message = validation_failed(refused);
            Condition {
                kind: kind::ACCEPTED,
                status: Status::False,
                reason: Reason::InvalidSpec.as_str(),
                message,
            }
        }
    };
    let message = if refused.is_empty() {
        told(problems)
    } else {
        validation_failed(refused)
    };
    let first = refused
        .first()
        .or(problems.first())
        .map_or(words.doing, |problem| problem.reason.as_str());
    let state = |kind: &'static str, reason: &'static str| match done {
        true => Condition {
            kind,
            status: Status::True,
            reason,
            message: String::new(),
        },
        false => Condition {
            kind,
            status: Status::False,
            reason: first,
            message: message.clone(),
        },
    };
    let degradation = match degraded {
        true => Condition {
            kind: kind::DEGRADED,
            status: Status::True,
            reason: first,
            message: message.clone(),
        },
        false => Condition {
            kind: kind::DEGRADED,
            status: Status::False,
            reason: reason::NOT_DEGRADED,
            message: String::new(),
        },
    };
    vec![
        accepted,
        state(words.done, words.everywhere),
        state(kind::READY, words.done),
        degradation,
    ]
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
