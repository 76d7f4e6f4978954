//! The progress and conditions of a GlobalService.

use std::collections::BTreeSet;

use crate::cilium::binding_dependents::{conditions, touches};
use crate::cilium::context::Context;
use crate::cilium::export::{Active, Claimant, Others, WORDS, Wanted, is_ours_to_set};
use crate::cilium::facts::{ClusterSeen, ServiceName};
use crate::cilium::plan::{Endpoints, ObjectOutcome, ServicePhase, ServicePlan};
use crate::cilium::sharing::claimants;
use crate::cilium::version::GLOBAL_NAMESPACES;
use crate::cilium::world::World;
use crate::names::ClusterId;
use crate::problem::{Problem, Reason};
use crate::text::quoted;

/// Progress in one cluster.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Exported,
    Missing,
    Untried,
    Failing,
}

pub(super) fn status(
    context: &Context<'_>,
    one: &Active<'_>,
    wanted: &Wanted<'_>,
    held: &BTreeSet<&ClusterId>,
) -> ServicePlan {
    let mut problems = Vec::new();
    let mut progress = Vec::new();
    let mut plan = ServicePlan::default();
    for name in &one.targets {
        let state = progress_in(context.world, one, name, wanted, held, &mut problems);
        if state == Progress::Exported {
            plan.exported.push((*name).clone());
        }
        plan.endpoints.extend(endpoints(context.world, one, name));
        progress.push(state);
    }
    let count = |state: Progress| progress.iter().filter(|of| **of == state).count();
    let (exported, missing, untried) = (
        count(Progress::Exported),
        count(Progress::Missing),
        count(Progress::Untried),
    );
    let phase = match () {
        () if missing == one.targets.len() => ServicePhase::Error,
        () if untried > 0 => ServicePhase::Exporting,
        () if exported == one.targets.len() && problems.is_empty() => ServicePhase::Exported,
        () => ServicePhase::Degraded,
    };
    let done = phase == ServicePhase::Exported;
    let conditions = conditions(WORDS, &[], done, phase == ServicePhase::Degraded, &problems);
    let written = one.targets.iter().copied().filter(|name| {
        one.seen(context.world, name)
            .is_some_and(|(_, seen)| has_match(one, seen))
    });
    plan.outcome = ObjectOutcome {
        phase,
        conditions,
        problems,
        touches: touches(&one.of.common, written),
        teardown: None,
    };
    plan
}

fn has_match(one: &Active<'_>, seen: &ClusterSeen) -> bool {
    one.matches(seen).is_some_and(|matches| !matches.is_empty())
}

/// The progress in one cluster. Adds the problems there.
fn progress_in(
    world: &World,
    one: &Active<'_>,
    cluster: &str,
    wanted: &Wanted<'_>,
    held: &BTreeSet<&ClusterId>,
    problems: &mut Vec<Problem>,
) -> Progress {
    let Some((id, seen)) = one
        .seen(world, cluster)
        .filter(|(_, seen)| seen.silent.is_none())
    else {
        problems.push(problem(
            cluster,
            Reason::ClusterUnreachable,
            "can't be read",
            "check the status of the binding",
        ));
        return Progress::Failing;
    };
    let Some(matches) = one.matches(seen) else {
        return Progress::Untried;
    };
    if matches.is_empty() {
        problems.push(problem(
            cluster,
            Reason::ServiceNotFound,
            "Service not found",
            "create the Service in that cluster",
        ));
        return Progress::Missing;
    }
    if !is_global(seen, &one.export.namespace) {
        problems.push(problem(
            cluster,
            Reason::NamespaceNotGlobal,
            &format!("namespace {} is not global", quoted(&one.export.namespace)),
            "annotate the namespace with clustermesh.cilium.io/global=true",
        ));
    }
    let mut exported = true;
    let claimants: Vec<Claimant<'_>> = claimants(world, id).collect();
    for (name, service) in matches {
        let agreed = wanted.get(&(id, name));
        let others = Others::of(world, wanted, held, &claimants, name, service);
        for (key, value) in &one.export.annotations {
            let is_agreed =
                agreed.and_then(|agreed| agreed.get(key.as_str())) == Some(&value.as_str());
            if !is_agreed {
                problems.push(problem(
                    cluster,
                    Reason::Conflict,
                    &format!(
                        "an older GlobalService sets a different value of {key} on {}",
                        name.name
                    ),
                    "use the same value in both",
                ));
            } else if !is_ours_to_set(service, &others, key, value) {
                problems.push(problem(
                    cluster,
                    Reason::AnnotationOwnedByOther,
                    &format!(
                        "{key} on {} has a different value, set by another field manager",
                        name.name
                    ),
                    "remove that annotation from the Service so that meshwright can set it",
                ));
            } else {
                exported &= service
                    .annotations
                    .get(key)
                    .is_some_and(|held| held.value == *value);
            }
        }
    }
    if exported {
        Progress::Exported
    } else {
        Progress::Untried
    }
}

fn problem(cluster: &str, reason: Reason, text: &str, hint: &str) -> Problem {
    let subject = format!("cluster {cluster}");
    let message = format!("{subject}: {text}");
    Problem::new(reason, subject, message, hint)
}

/// Since 1.20 a namespace can be excluded from being global.
fn is_global(seen: &ClusterSeen, namespace: &str) -> bool {
    let version = seen
        .agents
        .known()
        .and_then(Option::as_ref)
        .and_then(|agents| agents.version);
    if version.is_none_or(|version| version < GLOBAL_NAMESPACES) {
        return true;
    }
    let by_default = seen
        .config
        .known()
        .and_then(Option::as_ref)
        .is_none_or(|config| config.namespaces_global);
    let annotated = seen
        .namespaces
        .known()
        .and_then(|all| all.get(namespace))
        .and_then(|of| of.global.as_deref());
    annotated.map_or(by_default, |value| value.eq_ignore_ascii_case("true"))
}

fn endpoints(world: &World, one: &Active<'_>, name: &str) -> Option<Endpoints> {
    let (_, seen) = one.seen(world, name)?;
    let services: BTreeSet<&ServiceName> = one
        .matches(seen)?
        .into_iter()
        .map(|(service, _)| service)
        .collect();
    let slices = seen
        .slices
        .known()?
        .iter()
        .filter(|slice| slice.managed_by != SYNCED_SLICES && services.contains(&slice.service));
    let ready: BTreeSet<&String> = slices.flat_map(|slice| &slice.ready).collect();
    Some(Endpoints {
        cluster: name.to_owned(),
        ready: ready.len(),
    })
}

/// Manager of Cilium's own copies of other clusters' endpoints.
const SYNCED_SLICES: &str = "endpointslice-mesh-controller.cilium.io";
