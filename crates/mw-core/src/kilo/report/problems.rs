//! Problems that follow from a plan.

use std::collections::{BTreeMap, BTreeSet};

use crate::kilo::plan::{Changes, Held, HeldFor, MeshPlan};
use crate::names::{ClusterId, MeshId};
use crate::problem::{Problem, Reason};
use crate::text::{listed, shell_quoted};

pub(super) fn unreachable(name: &str, why: &str) -> Problem {
    let hint = "nothing is deleted; the cluster gets its updates when it is reachable again";
    Problem::new(
        Reason::ClusterUnreachable,
        name,
        crate::text::printable(why, 200),
        hint,
    )
}

pub(super) fn held_problems(plan: &MeshPlan, id: &MeshId) -> Vec<Problem> {
    let Some(hash) = &plan.held_hash else {
        return Vec::new();
    };
    let called = |target: &ClusterId| {
        let member = plan
            .clusters
            .iter()
            .find(|(_, cluster)| cluster.id.as_ref() == Some(target));
        member.map_or_else(|| target.to_string(), |(name, _)| name.to_string())
    };
    let command = format!(
        "kubectl annotate clustermesh -n {} {} kilo-clustermesh.io/confirm-deletes={hash} --overwrite",
        shell_quoted(&id.namespace),
        shell_quoted(&id.name)
    );
    let held_on = |is_held: &dyn Fn(&Held) -> bool| -> Vec<String> {
        let count = |changes: &Changes| changes.held.values().filter(|held| is_held(held)).count();
        counted(&plan.targets, count)
            .map(|(target, count)| format!("{count} on {}", called(target)))
            .collect()
    };
    let mut problems = Vec::new();
    let deletes = held_on(&|held| held.why == HeldFor::Deletes);
    if !deletes.is_empty() {
        let message = format!(
            "too many deletes at once, so they are held: {}",
            listed(&deletes, 5)
        );
        problems.push(Problem::new(
            Reason::DeletionHeld,
            id.to_string(),
            message,
            &command,
        ));
    }
    for source in sources(plan, HeldFor::Replaced) {
        let held = held_on(&|held| held.why == HeldFor::Replaced && held.source() == Some(source));
        let message = format!(
            "most keys or all Nodes are new, so the kubeconfig may point to a different cluster; changes are held: {}",
            listed(&held, 5)
        );
        problems.push(Problem::new(
            Reason::SourceReplaced,
            source,
            message,
            format!("check the kubeconfig Secret; if the cluster was rebuilt, run: {command}"),
        ));
    }
    problems
}

pub(super) fn flapping_problems(plan: &MeshPlan) -> Vec<Problem> {
    let flapping = |source: &str| {
        Problem::new(
            Reason::SourceFlapping,
            source,
            "its nodes change too often; their Peers in other clusters are updated only every 30s",
            "look for a Kilo agent that keeps changing its key, address or endpoint",
        )
    };
    sources(plan, HeldFor::Budget)
        .into_iter()
        .map(flapping)
        .collect()
}

/// The sources with changes held for this reason.
fn sources(plan: &MeshPlan, why: HeldFor) -> BTreeSet<&str> {
    let held = plan
        .targets
        .values()
        .flat_map(|changes| changes.held.values());
    held.filter(|held| held.why == why)
        .filter_map(Held::source)
        .collect()
}

/// The targets with a count above zero.
fn counted<'a>(
    targets: &'a BTreeMap<ClusterId, Changes>,
    count: impl Fn(&Changes) -> usize + 'a,
) -> impl Iterator<Item = (&'a ClusterId, usize)> {
    targets
        .iter()
        .map(move |(target, changes)| (target, count(changes)))
        .filter(|(_, count)| *count > 0)
}
