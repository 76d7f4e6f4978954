//! ConnectivityIntents: the policy in each cluster of the mesh, and the
//! progress of each intent. A deleted policy fails open, so a policy is deleted
//! only if it is known not to be wanted.

use std::collections::{BTreeMap, BTreeSet};

use crate::cilium::binding_dependents::{self, Unmet, Words, conditions, touches};
use crate::cilium::context::{Context, Targets};
use crate::cilium::facts::{
    ClusterSeen, NamespaceSeen, PolicyCrds, PolicyFeatures, PolicyKey, PolicySeen,
};
use crate::cilium::object::{Binding, Intent, ObjectId};
use crate::cilium::plan::{
    BindingPlan, Condition, IntentPhase, IntentPlan, ObjectOutcome, PolicyChanges, PolicyUpdate,
    Status, WantedPolicy,
};
use crate::cilium::planner::at;
use crate::cilium::policy::{is_of, key, named_in, render};
use crate::cilium::rule::{Rule, read};
use crate::cilium::teardown;
use crate::cilium::world::World;
use crate::condition::cilium::{kind, reason};
use crate::names::{CiliumName, ClusterId};
use crate::precondition::Precondition;
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

/// Progress in one cluster.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Applied,
    /// The namespace does not exist.
    Skipped,
    Untried,
    Failing,
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

/// Plans the policy in one cluster. Adds the problems there.
fn apply(
    world: &World,
    active: &Active<'_>,
    name: &str,
    targets: &mut Targets,
    problems: &mut Vec<Problem>,
    lacking_crd: &mut Vec<String>,
) -> Progress {
    let found = active
        .binding
        .common
        .cluster(name)
        .and_then(|id| Some((id, world.clusters.get(id)?)));
    let Some((id, seen)) = found.filter(|(_, seen)| seen.silent.is_none()) else {
        problems.push(problem(
            name,
            Reason::ClusterUnreachable,
            "can't be read",
            "check the status of the binding",
        ));
        return Progress::Failing;
    };
    let (Some(policies), Some(crds), Some(namespaces)) = (
        seen.policies.known(),
        seen.policy_crds.known(),
        seen.namespaces.known(),
    ) else {
        return Progress::Untried;
    };
    let Some(features) = active.features(crds) else {
        lacking_crd.push(name.to_owned());
        return Progress::Failing;
    };
    if let Some(field) = too_old(&active.rule, features) {
        problems.push(problem(
            name,
            Reason::CiliumTooOld,
            &format!("its Cilium does not support {field}, so no policy is written"),
            "upgrade Cilium in that cluster",
        ));
        return Progress::Failing;
    }
    if active.lacks_namespace(namespaces) {
        return Progress::Skipped;
    }
    let changes = &mut at(targets, id).policies;
    match policies.get(&active.key) {
        Some(found) if !is_of(&active.of.common.id, &found.labels) => {
            problems.push(problem(
                name,
                Reason::PolicyNameTaken,
                &format!(
                    "policy {} exists and is not managed by meshwright",
                    quoted(&active.key.name)
                ),
                "rename or delete that policy",
            ));
            Progress::Failing
        }
        found => compare(&active.policy(found), found, changes),
    }
}

fn problem(cluster: &str, reason: Reason, text: &str, hint: &str) -> Problem {
    let subject = format!("cluster {cluster}");
    let message = format!("{subject}: {text}");
    Problem::new(reason, subject, message, hint)
}

/// The field that a policy needs and the CRD does not support.
fn too_old(rule: &Rule, features: PolicyFeatures) -> Option<&'static str> {
    match (
        rule.spares_others() && !features.default_deny,
        rule.has_ranges() && !features.end_port,
    ) {
        (true, _) => Some("enableDefaultDeny"),
        (false, true) => Some("endPort"),
        (false, false) => None,
    }
}

fn compare(
    wanted: &WantedPolicy,
    found: Option<&PolicySeen>,
    changes: &mut PolicyChanges,
) -> Progress {
    let Some(found) = found else {
        changes.create.insert(wanted.key.clone(), wanted.clone());
        return Progress::Untried;
    };
    let labelled = wanted
        .labels
        .iter()
        .all(|(key, value)| found.labels.get(key) == Some(value));
    if found.deleting {
        return Progress::Untried;
    }
    if labelled && found.spec == wanted.spec {
        return Progress::Applied;
    }
    let update = PolicyUpdate {
        on: on(found),
        before: found.spec.clone(),
        after: wanted.clone(),
    };
    changes.update.insert(wanted.key.clone(), update);
    Progress::Untried
}

fn on(found: &PolicySeen) -> Precondition {
    Precondition {
        uid: found.uid.as_str().into(),
        resource_version: found.resource_version.as_str().into(),
    }
}

/// Deletes policies of this intent that are no longer wanted, but only after
/// the new policy exists everywhere.
fn leave_others(world: &World, active: &Active<'_>, targets: &mut Targets) {
    let wanted_on: BTreeSet<&ClusterId> = active
        .binding
        .spec
        .refs
        .iter()
        .filter_map(|name| active.binding.common.cluster(name))
        .collect();
    // An unresolved ref may have led to any of the others.
    let common = &active.binding.common;
    let all_known = active
        .binding
        .spec
        .refs
        .iter()
        .all(|name| common.cluster(name).is_some() || common.is_revoked(name));
    for (id, seen) in own_clusters(world, active.of.common.clusters().chain(common.clusters())) {
        let (may_remove, keep) = if wanted_on.contains(id) {
            (is_settled(active, seen), Some(&active.key))
        } else {
            (all_known, None)
        };
        if may_remove {
            remove(&active.of.common.id, id, seen, keep, targets);
        }
    }
}

/// Observed state of the clusters that an object's own refs lead to.
fn own_clusters<'a>(
    world: &'a World,
    ids: impl Iterator<Item = &'a ClusterId>,
) -> BTreeMap<&'a ClusterId, &'a ClusterSeen> {
    ids.filter_map(|id| Some((id, world.clusters.get(id)?)))
        .collect()
}

/// Reports whether the new policy exists here, or can't because its namespace
/// does not exist.
fn is_settled(active: &Active<'_>, seen: &ClusterSeen) -> bool {
    let key = &active.key;
    let (Some(policies), Some(namespaces)) = (seen.policies.known(), seen.namespaces.known())
    else {
        return false;
    };
    let stands = policies
        .get(key)
        .is_some_and(|found| is_of(&active.of.common.id, &found.labels) && !found.deleting);
    stands || active.lacks_namespace(namespaces)
}

/// Reports whether objects can be created in a namespace: not while it is being
/// deleted.
fn exists(namespaces: &BTreeMap<String, NamespaceSeen>, name: &str) -> bool {
    namespaces
        .get(name)
        .is_some_and(|namespace| !namespace.deleting)
}

fn remove(
    intent: &ObjectId,
    id: &ClusterId,
    seen: &ClusterSeen,
    keep: Option<&PolicyKey>,
    targets: &mut Targets,
) {
    let policies = seen
        .policies
        .known()
        .filter(|_| seen.silent.is_none())
        .into_iter()
        .flatten();
    let ours = policies.filter(|(key, found)| {
        is_of(intent, &found.labels) && keep.is_none_or(|keep| keep != *key) && !found.deleting
    });
    for (key, found) in ours {
        at(targets, id)
            .policies
            .delete
            .insert(key.clone(), on(found));
    }
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
