//! ConnectivityIntents: the policy in each cluster of the mesh, and the
//! progress of each intent. A deleted policy fails open, so a policy is deleted
//! only if it is known not to be wanted.

mod policies;

use std::collections::{BTreeMap, BTreeSet};

use crate::cilium::binding_dependents::{self, Unmet, Words, conditions, touches};
use crate::cilium::context::{Context, Targets};
use crate::cilium::facts::{
    ClusterSeen, NamespaceSeen, PolicyCrds, PolicyFeatures, PolicyKey, PolicySeen,
};
use crate::cilium::intent::policies::{
    Progress, apply, exists, leave_others, own_clusters, remove,
};
use crate::cilium::object::{Binding, Intent, ObjectId};
use crate::cilium::plan::{
    BindingPlan, Condition, IntentPhase, IntentPlan, ObjectOutcome, Status, WantedPolicy,
};
use crate::cilium::policy::{is_of, key, named_in, render};
use crate::cilium::rule::{Rule, read};
use crate::cilium::teardown;
use crate::cilium::world::World;
use crate::condition::cilium::{kind, reason};
use crate::names::{CiliumName, ClusterId};
use crate::problem::{Problem, Reason};
use crate::text::{listed, quoted};

const WORDS: Words = Words {
    done: kind::APPLIED,
    everywhere: reason::ALL_CLUSTERS_APPLIED,
    doing: reason::APPLYING,
};
const NOTHING_PROBED: &str = "not probed: probes are not implemented yet";

/// A valid intent.
struct Active<'a> {
    of: &'a Intent,
    rule: Rule,
    binding: &'a Binding,
    /// The known Cilium names of the mesh's clusters.
    names: BTreeSet<CiliumName>,
    /// The refs whose Cilium names are not known.
    nameless: Vec<&'a String>,
    key: PolicyKey,
}

impl Active<'_> {
    /// The features of the CRD that the policy needs, if it exists.
    fn features(&self, crds: &PolicyCrds) -> Option<PolicyFeatures> {
        if self.rule.clusterwide {
            crds.clusterwide
        } else {
            crds.namespaced
        }
    }

    /// Reports whether a cluster can't have the policy for want of a namespace.
    fn lacks_namespace(&self, namespaces: &BTreeMap<String, NamespaceSeen>) -> bool {
        self.key
            .namespace
            .as_ref()
            .is_some_and(|namespace| !exists(namespaces, namespace))
    }

    /// The policy for a cluster. While a name is not known, clusters named by
    /// the existing policy stay in it: it may be one of them.
    fn policy(&self, found: Option<&PolicySeen>) -> WantedPolicy {
        let kept = found
            .filter(|_| !self.nameless.is_empty())
            .map(|found| named_in(&found.spec))
            .unwrap_or_default();
        let names: BTreeSet<&CiliumName> = self.names.iter().chain(&kept).collect();
        render(&self.of.common.id, &self.rule, &names)
    }
}

pub(super) fn plan(
    context: &Context<'_>,
    bindings: &BTreeMap<ObjectId, BindingPlan>,
    targets: &mut Targets,
) -> BTreeMap<ObjectId, IntentPlan> {
    let mut plans = BTreeMap::new();
    for of in context.world.intents.values() {
        let plan = match of.common.deleting {
            Some(_) => deletion(context.world, of, targets),
            None => match activate(context, bindings, of) {
                Ok(active) => act(context, &active, targets),
                Err(unmet) => stopped(of, unmet),
            },
        };
        plans.insert(of.common.id.clone(), with_probe(of, plan));
    }
    plans
}

fn stopped(of: &Intent, unmet: Unmet) -> IntentPlan {
    let outcome = binding_dependents::stopped(
        WORDS,
        &of.common,
        unmet,
        IntentPhase::Pending,
        IntentPhase::Error,
    );
    IntentPlan {
        outcome,
        ..IntentPlan::default()
    }
}

fn activate<'a>(
    context: &Context<'a>,
    bindings: &BTreeMap<ObjectId, BindingPlan>,
    of: &'a Intent,
) -> Result<Active<'a>, Unmet> {
    let world = context.world;
    let rule = read(&of.spec, world.options.allow_system_namespaces).map_err(Unmet::Refused)?;
    let binding = binding_dependents::binding(world, bindings, &of.common, &of.spec.mesh)?;
    if let Some(problem) = shared(world, of, binding).filter(|_| rule.clusterwide) {
        return Err(Unmet::Never(problem));
    }
    let refs = &binding.spec.refs;
    let name = |of: &String| {
        binding
            .common
            .cluster(of)
            .and_then(|id| context.identities.name(id))
            .cloned()
    };
    let names: BTreeSet<CiliumName> = refs.iter().filter_map(name).collect();
    if names.is_empty() {
        let text = "no Cilium name of any cluster of the mesh is known";
        return Err(Unmet::Later(Problem::new(
            Reason::MeshNotReady,
            "spec.meshRef",
            text,
            "check the status of the binding",
        )));
    }
    let nameless = refs
        .iter()
        .filter(|of| name(of).is_none() && !binding.common.is_revoked(of))
        .collect();
    let key = key(&of.common.id, &rule);
    Ok(Active {
        of,
        rule,
        binding,
        names,
        nameless,
        key,
    })
}

/// A cluster-wide policy would affect another workspace's pods.
fn shared(world: &World, of: &Intent, binding: &Binding) -> Option<Problem> {
    let strangers = world
        .bindings
        .values()
        .filter(|other| other.common.id.workspace != of.common.id.workspace);
    let theirs: BTreeSet<&ClusterId> = strangers
        .flat_map(|other| {
            other
                .spec
                .refs
                .iter()
                .filter_map(|name| other.common.cluster(name))
        })
        .collect();
    let name = binding.spec.refs.iter().find(|name| {
        binding
            .common
            .cluster(name)
            .is_some_and(|id| theirs.contains(id))
    })?;
    let text =
        format!("cluster {name} is also used by others, so no cluster-wide policy is written");
    Some(Problem::new(
        Reason::ClusterShared,
        format!("cluster {name}"),
        text,
        "use policyMode Namespaced",
    ))
}

fn act(context: &Context<'_>, active: &Active<'_>, targets: &mut Targets) -> IntentPlan {
    let mut problems: Vec<Problem> = hole(active).into_iter().collect();
    let mut progress = Vec::new();
    let mut plan = IntentPlan::default();
    let mut lacking_crd = Vec::new();
    for name in &active.binding.spec.refs {
        let state = apply(
            context.world,
            active,
            name,
            targets,
            &mut problems,
            &mut lacking_crd,
        );
        if state == Progress::Applied {
            plan.applied.push(name.clone());
        }
        progress.push(state);
    }
    problems.extend(crd_missing(active, &lacking_crd));
    leave_others(context.world, active, targets);
    let all = progress.len();
    let count = |state: Progress| progress.iter().filter(|of| **of == state).count();
    let (applied, skipped, untried) = (
        count(Progress::Applied),
        count(Progress::Skipped),
        count(Progress::Untried),
    );
    if skipped == all {
        problems.push(namespace_missing(active));
    }
    let phase = match () {
        () if lacking_crd.len() == all => IntentPhase::Error,
        () if untried > 0 => IntentPhase::Applying,
        () if applied > 0 && applied + skipped == all && problems.is_empty() => {
            IntentPhase::Applied
        }
        () => IntentPhase::Degraded,
    };
    let conditions = conditions(
        WORDS,
        &[],
        phase == IntentPhase::Applied,
        phase == IntentPhase::Degraded,
        &problems,
    );
    let written = active
        .binding
        .spec
        .refs
        .iter()
        .filter(|name| active.binding.common.cluster(name).is_some());
    plan.outcome = ObjectOutcome {
        phase,
        conditions,
        problems,
        touches: touches(&active.of.common, written),
        teardown: None,
    };
    plan
}

/// A Deny without one of the clusters is incomplete.
fn hole(active: &Active<'_>) -> Option<Problem> {
    let text = format!(
        "traffic from {} may pass: its Cilium name is not known",
        listed(&active.nameless, 20)
    );
    let is_hole = active.rule.deny && !active.nameless.is_empty();
    is_hole.then(|| {
        Problem::new(
            Reason::DenyIncomplete,
            "spec.source",
            text,
            "check the status of the binding",
        )
    })
}

fn namespace_missing(active: &Active<'_>) -> Problem {
    let namespace = active.rule.destination.namespace.as_deref();
    let text = format!(
        "namespace {} does not exist in any cluster",
        quoted(namespace.unwrap_or_default())
    );
    Problem::new(
        Reason::NamespaceMissing,
        "spec.destination.namespace",
        text,
        "create the namespace",
    )
}

fn crd_missing(active: &Active<'_>, names: &[String]) -> Option<Problem> {
    let kind = if active.rule.clusterwide {
        "CiliumClusterwideNetworkPolicy"
    } else {
        "CiliumNetworkPolicy"
    };
    let text = format!("{kind} CRD not found on {}", names.join(", "));
    (!names.is_empty()).then(|| {
        Problem::new(
            Reason::PolicyCRDMissing,
            "spec.policyMode",
            text,
            "install Cilium's CRDs in these clusters",
        )
    })
}

fn deletion(world: &World, of: &Intent, targets: &mut Targets) -> IntentPlan {
    for (id, seen) in own_clusters(world, of.common.clusters()) {
        remove(&of.common.id, id, seen, None, targets);
    }
    let remains = |_: &ClusterId, seen: &ClusterSeen| {
        let policies = seen.policies.known()?;
        Some(
            policies
                .values()
                .any(|found| is_of(&of.common.id, &found.labels)),
        )
    };
    IntentPlan {
        outcome: teardown::outcome(world, &of.common, &[], remains),
        ..IntentPlan::default()
    }
}

/// Never reports success without a probe.
fn with_probe(of: &Intent, mut plan: IntentPlan) -> IntentPlan {
    if of.spec.probe && of.common.deleting.is_none() {
        let message = NOTHING_PROBED.to_owned();
        plan.outcome.conditions.push(Condition {
            kind: kind::REACHABLE,
            status: Status::Unknown,
            reason: reason::NO_EVIDENCE,
            message,
        });
        plan.probe = Some(NOTHING_PROBED);
    }
    plan
}
