//! The policies of a ConnectivityIntent in each cluster: written where they are
//! wanted, and deleted where they are not.

use std::collections::{BTreeMap, BTreeSet};

use crate::cilium::context::Targets;
use crate::cilium::facts::{ClusterSeen, NamespaceSeen, PolicyFeatures, PolicyKey, PolicySeen};
use crate::cilium::intent::Active;
use crate::cilium::object::ObjectId;
use crate::cilium::plan::{PolicyChanges, PolicyUpdate, WantedPolicy};
use crate::cilium::planner::at;
use crate::cilium::policy::is_of;
use crate::cilium::rule::Rule;
use crate::cilium::world::World;
use crate::names::ClusterId;
use crate::precondition::Precondition;
use crate::problem::{Problem, Reason};
use crate::text::quoted;

/// Progress in one cluster.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Applied,
    /// The namespace does not exist.
    Skipped,
    Untried,
    Failing,
}

/// Plans the policy in one cluster. Adds the problems there.
pub(super) fn apply(
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
pub(super) fn leave_others(world: &World, active: &Active<'_>, targets: &mut Targets) {
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
pub(super) fn own_clusters<'a>(
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
pub(super) fn exists(namespaces: &BTreeMap<String, NamespaceSeen>, name: &str) -> bool {
    namespaces
        .get(name)
        .is_some_and(|namespace| !namespace.deleting)
}

pub(super) fn remove(
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
