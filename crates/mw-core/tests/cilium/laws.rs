//! Laws of the planner, checked on random fleets.

use std::collections::{BTreeMap, BTreeSet};

use mw_core::cilium::facts::{ClusterSeen, ConnectionSecret};
use mw_core::cilium::object::{Binding, Common, ObjectId, Refusal, Resolution};
use mw_core::cilium::plan;
use mw_core::cilium::plan::{BindingPhase, Condition, Plan, TargetPlan};
use mw_core::cilium::world::{DialOutcome, World};
use mw_core::names::ClusterId;
use mw_core::seen::Seen;
use proptest::prelude::*;

use crate::apply::{apply, settle};
use crate::drawn::{HIDDEN, STRANGER, law, problems};

#[test]
fn planning_twice_gives_the_same_plan() {
    law(|world, first| {
        prop_assert_eq!(first, &plan(world));
        Ok(())
    });
}

/// Some changes take several rounds: an identity before keys, a new policy
/// before the old one is deleted.
#[test]
fn applying_plans_leaves_an_empty_plan() {
    law(|world, _| {
        let mut world = world.clone();
        for _ in 0..5 {
            let next = plan(&world);
            if !next.has_changes() {
                return Ok(());
            }
            apply(&next, &mut world);
        }
        prop_assert!(
            !plan(&world).has_changes(),
            "still to do: {:#?}",
            plan(&world).targets
        );
        Ok(())
    });
}

#[test]
fn the_order_of_clusters_does_not_matter() {
    // The first cluster with a CA provides it for the others, and rows follow
    // the spec.
    let writes = |plan: &Plan| -> BTreeMap<ClusterId, TargetPlan> {
        plan.targets
            .iter()
            .map(|(id, target)| {
                (
                    id.clone(),
                    TargetPlan {
                        ca: None,
                        ..target.clone()
                    },
                )
            })
            .collect()
    };
    law(|world, first| {
        let mut turned = world.clone();
        turned
            .bindings
            .values_mut()
            .for_each(|of| of.spec.refs.reverse());
        let second = plan(&turned);
        prop_assert_eq!(writes(first), writes(&second));
        prop_assert_eq!(&first.dials, &second.dials);
        for (id, of) in &first.bindings {
            prop_assert_eq!(of.outcome.phase, second.bindings[id].outcome.phase);
        }
        Ok(())
    });
}

fn is_loss(target: &TargetPlan) -> bool {
    target.secrets.values().any(|of| !of.removed.is_empty())
        || target.services.values().any(|of| !of.removed.is_empty())
        || target
            .users
            .as_ref()
            .is_some_and(|of| !of.removed.is_empty())
        || !target.policies.delete.is_empty()
        || target
            .policies
            .update
            .values()
            .any(|of| !sources(&of.before).is_subset(&sources(&of.after.spec)))
}

fn sources(spec: &serde_json::Value) -> BTreeSet<String> {
    let rules = spec
        .get("ingress")
        .or(spec.get("ingressDeny"))
        .and_then(|rules| rules.as_array());
    let sources = rules
        .into_iter()
        .flatten()
        .flat_map(|rule| rule["fromEndpoints"].as_array().into_iter().flatten());
    sources.map(ToString::to_string).collect()
}

/// If anything in a settled world becomes unknown, nothing is removed.
#[test]
fn unknown_loses_nothing() {
    law(|world, _| {
        let mut world = world.clone();
        settle(&mut world);
        for id in world.clusters.keys().cloned().collect::<Vec<_>>() {
            for part in 0..=PARTS {
                let mut less = world.clone();
                forget(less.clusters.get_mut(&id).unwrap(), part);
                let plan = plan(&less);
                let losses: Vec<_> = plan
                    .targets
                    .iter()
                    .filter(|(_, target)| is_loss(target))
                    .collect();
                prop_assert!(losses.is_empty(), "part {} of {}: {:#?}", part, id, losses);
            }
        }
        let mut less = world.clone();
        (less.listed, less.settled) = Default::default();
        less.bindings.clear();
        less.services.clear();
        prop_assert!(!plan(&less).targets.values().any(is_loss));
        Ok(())
    });
}

/// If a workspace is not bound, perhaps because it is moving to another shard,
/// keys of its remotes stay unless another binding there names them too.
#[test]
fn an_unbound_workspace_loses_no_key_that_is_its_own() {
    law(|world, _| {
        let mut world = world.clone();
        settle(&mut world);
        let workspaces: BTreeSet<_> = world
            .bindings
            .keys()
            .map(|id| id.workspace.clone())
            .collect();
        for workspace in workspaces {
            let mut less = world.clone();
            less.bindings.retain(|id, _| id.workspace != workspace);
            less.services.retain(|id, _| id.workspace != workspace);
            less.intents.retain(|id, _| id.workspace != workspace);
            less.unbound = less.clusters.keys().cloned().collect();
            for (target, writes) in &plan(&less).targets {
                let near = neighbour_names(&less, target);
                let removed = writes.secrets.values().flat_map(|apply| &apply.removed);
                let strange: Vec<_> = removed
                    .filter(|key| !near.contains(key.split('.').next().unwrap()))
                    .collect();
                prop_assert!(
                    strange.is_empty(),
                    "{} loses {:?}, near are {:?}",
                    target,
                    strange,
                    near
                );
            }
        }
        Ok(())
    });
}

/// Cilium names of the clusters in bindings that name or touched a cluster.
fn neighbour_names(world: &World, target: &ClusterId) -> BTreeSet<String> {
    let clusters = |of: &Binding| -> Vec<ClusterId> {
        of.spec
            .refs
            .iter()
            .chain(&of.common.touched)
            .filter_map(|name| of.common.cluster(name).cloned())
            .collect()
    };
    let near = world
        .bindings
        .values()
        .map(clusters)
        .filter(|all| all.contains(target))
        .flatten();
    let names = |seen: &ClusterSeen| {
        let read = seen
            .config
            .known()
            .and_then(Option::as_ref)
            .map(|config| config.cluster_name.clone());
        let remembered = seen
            .remembered
            .as_ref()
            .and_then(|identity| identity.name.as_ref())
            .map(ToString::to_string);
        read.into_iter().chain(remembered)
    };
    near.filter_map(|id| world.clusters.get(&id))
        .flat_map(names)
        .collect()
}

/// An unresolved ref is unknown, not absent: nothing is removed anywhere,
/// whether or not the cluster is still reachable otherwise.
#[test]
fn losing_the_way_to_a_cluster_loses_nothing() {
    law(|world, _| {
        let mut world = world.clone();
        settle(&mut world);
        for cluster in world.clusters.keys() {
            for (at, way) in lost_ways().into_iter().enumerate() {
                for scope in [
                    Loses::Everybody,
                    Loses::EverybodyAndReach,
                    Loses::OneOwner(at),
                ] {
                    let mut less = world.clone();
                    lose_way(&mut less, cluster, &way, scope);
                    let plan = plan(&less);
                    let excused = |id: &ClusterId| {
                        matches!(scope, Loses::EverybodyAndReach) && is_same(&world, cluster, id)
                    };
                    let losses: Vec<_> = plan
                        .targets
                        .iter()
                        .filter(|(id, target)| is_loss(target) && !excused(id))
                        .collect();
                    prop_assert!(
                        losses.is_empty(),
                        "{:?} to {} for {:?}: {:#?}",
                        way,
                        cluster,
                        scope,
                        losses
                    );
                }
            }
        }
        Ok(())
    });
}

/// Reports whether two owners are proven to use one cluster. If the older
/// owner's use is forgotten, the younger may act there; the stories cover what
/// it removes, because the two views of a random world differ.
fn is_same(world: &World, one: &ClusterId, other: &ClusterId) -> bool {
    let proof = |id: &ClusterId| {
        world
            .origins
            .get(id)
            .and_then(|origin| Some((origin.private_ca.clone()?, origin.uid.clone())))
    };
    proof(one).is_some() && proof(one) == proof(other)
}

fn lost_ways() -> Vec<Resolution> {
    let why = || "lost".to_owned();
    vec![
        Resolution::Pending(why()),
        Resolution::OwnerMissing(why()),
        Resolution::Unreachable(why()),
        Resolution::Refused(Refusal::Kubeconfig(why())),
        Resolution::Refused(Refusal::Forbidden(why())),
        Resolution::Refused(Refusal::Capability {
            status: "error".to_owned(),
            checked: None,
        }),
    ]
}

/// Owners that lose access to a cluster.
#[derive(Debug, Clone, Copy)]
enum Loses {
    Everybody,
    /// And the process forgot where the refs led, as after a restart.
    EverybodyAndReach,
    /// One of the objects, with those that depend on it.
    OneOwner(usize),
}

fn lose_way(world: &mut World, cluster: &ClusterId, way: &Resolution, scope: Loses) {
    let meshes: Vec<ObjectId> = world.bindings.keys().cloned().collect();
    let chosen = match scope {
        Loses::OneOwner(at) if !meshes.is_empty() => meshes.get(at % meshes.len()),
        _ => None,
    };
    let remembers = !matches!(scope, Loses::EverybodyAndReach);
    let lose = |common: &mut Common, mesh: &ObjectId, named: &[String]| {
        if chosen.is_some_and(|chosen| chosen != mesh) || common.deleting.is_some() {
            return;
        }
        let refs: Vec<String> = named
            .iter()
            .filter(|name| common.cluster(name) == Some(cluster))
            .cloned()
            .collect();
        for name in refs {
            common.refs.insert(name.clone(), way.clone());
            if remembers {
                common.lost.insert(name, cluster.clone());
            }
        }
    };
    let named: BTreeMap<ObjectId, Vec<String>> = world
        .bindings
        .iter()
        .map(|(id, of)| (id.clone(), of.spec.refs.clone()))
        .collect();
    for of in world.services.values_mut() {
        let mesh = of.common.id.neighbour(&of.spec.mesh);
        lose(
            &mut of.common,
            &mesh,
            named.get(&mesh).map_or(&[], Vec::as_slice),
        );
    }
    for of in world.intents.values_mut() {
        let mesh = of.common.id.neighbour(&of.spec.mesh);
        lose(
            &mut of.common,
            &mesh,
            named.get(&mesh).map_or(&[], Vec::as_slice),
        );
    }
    for (id, of) in &mut world.bindings {
        lose(&mut of.common, id, &of.spec.refs.clone());
    }
    if !remembers {
        world.clusters.remove(cluster);
        world.settled.remove(cluster);
    }
}

const PARTS: usize = 18;

fn forget(seen: &mut ClusterSeen, part: usize) {
    let why = || "forgotten".to_owned();
    match part {
        0 => seen.agents = Seen::Unknown(why()),
        1 => seen.config = Seen::Unknown(why()),
        2 => seen.certificates = Seen::Unknown(why()),
        3 => seen.apiserver = Seen::Unknown(why()),
        4 => seen.service = Seen::Unknown(why()),
        5 => seen.nodes = Seen::Unknown(why()),
        6 => seen.secrets = Seen::Unknown(why()),
        7 => seen.hubble = Seen::Unknown(why()),
        8 => seen.namespaces = Seen::Unknown(why()),
        9 => seen.services = Seen::Unknown(why()),
        10 => seen.slices = Seen::Unknown(why()),
        11 => seen.policies = Seen::Unknown(why()),
        12 => seen.policy_crds = Seen::Unknown(why()),
        13 => seen.users = Seen::Unknown(why()),
        14..18 => {
            let Some(certificates) = seen.certificates.known_mut() else {
                return;
            };
            match part {
                14 => certificates.root = Seen::Unknown(why()),
                15 => certificates.server = Seen::Unknown(why()),
                16 => certificates.remote = Seen::Unknown(why()),
                _ => certificates.local = Seen::Unknown(why()),
            }
        }
        _ => {
            (0..PARTS).for_each(|part| forget(seen, part));
            seen.silent = Some(mw_core::cilium::facts::Silence::Unreachable(why()));
        }
    }
}

/// Everything in a cluster that is not ours.
fn foreign(seen: &ClusterSeen) -> BTreeSet<String> {
    let secrets = seen
        .secrets
        .known()
        .into_iter()
        .flatten()
        .flat_map(|(name, secret)| {
            let theirs = secret.keys.iter().filter(|(_, held)| !held.is_ours());
            theirs.map(move |(key, held)| {
                format!(
                    "{} {key} {:?} {:?}",
                    name.as_str(),
                    held.value.fingerprint(),
                    held.others()
                )
            })
        });
    let services = seen
        .services
        .known()
        .into_iter()
        .flatten()
        .flat_map(|(name, service)| {
            let theirs = service
                .annotations
                .iter()
                .filter(|(_, held)| !held.is_ours());
            theirs.map(move |(key, held)| {
                format!("{name:?} {key} {} {:?}", held.value, held.others())
            })
        });
    let policies = seen
        .policies
        .known()
        .into_iter()
        .flatten()
        .filter(|(_, of)| of.labels.is_empty());
    secrets
        .chain(services)
        .chain(policies.map(|(key, of)| format!("{key:?} {of:?}")))
        .collect()
}

/// `apply` itself asserts that no apply conflicts with another manager, and
/// that no identity in use and no CA is changed.
#[test]
fn nothing_foreign_is_touched() {
    law(|world, first| {
        let mut after = world.clone();
        apply(first, &mut after);
        for (id, seen) in &world.clusters {
            let (before, after) = (foreign(seen), foreign(&after.clusters[id]));
            prop_assert!(
                before.is_subset(&after),
                "on {}: {:?} and {:?}",
                id,
                before,
                after
            );
        }
        Ok(())
    });
}

fn texts(plan: &Plan, of_stranger: bool) -> Vec<String> {
    let is = |workspace: &str| (workspace == STRANGER) == of_stranger;
    let told = |conditions: &[Condition]| {
        conditions
            .iter()
            .map(|of| of.message.clone())
            .collect::<Vec<_>>()
    };
    let mut texts: Vec<String> = Vec::new();
    for (id, of) in plan
        .bindings
        .iter()
        .filter(|(id, _)| is(id.workspace.as_str()))
    {
        texts.extend(told(&of.outcome.conditions));
        texts.extend(
            of.rows
                .iter()
                .flat_map(|row| [Some(row.cluster.clone()), row.message.clone()])
                .flatten(),
        );
        texts.extend(
            of.outcome
                .touches
                .iter()
                .map(|name| format!("{name} of {}", id.namespace)),
        );
    }
    texts.extend(
        plan.services
            .iter()
            .filter(|(id, _)| is(id.workspace.as_str()))
            .flat_map(|(_, of)| told(&of.outcome.conditions)),
    );
    texts.extend(
        plan.intents
            .iter()
            .filter(|(id, _)| is(id.workspace.as_str()))
            .flat_map(|(_, of)| told(&of.outcome.conditions)),
    );
    let of_tenant = problems(plan)
        .into_iter()
        .filter(|(workspace, _)| is(workspace.as_str()));
    texts.extend(
        of_tenant.map(|(_, problem)| {
            format!("{} {} {}", problem.subject, problem.message, problem.hint)
        }),
    );
    texts
}

#[test]
fn no_tenant_sees_another() {
    law(|_, first| {
        for text in texts(first, false) {
            prop_assert!(!HIDDEN.iter().any(|name| text.contains(name)), "{}", text);
        }
        for text in texts(first, true) {
            prop_assert!(
                !["cluster a", "cluster c", "twin", "nowhere"]
                    .iter()
                    .any(|name| text.contains(name)),
                "{}",
                text
            );
        }
        Ok(())
    });
}

#[test]
fn no_secret_is_ever_shown() {
    law(|world, first| {
        let shown = format!("{first:?}{first:#?}{world:?}");
        prop_assert!(!shown.contains("SECRET"));
        Ok(())
    });
}

/// If two clusters are in one mesh, the key of one is never removed from the
/// files that the agents of the other read.
#[test]
fn a_wanted_key_is_never_absent() {
    law(|world, first| {
        for binding in world
            .bindings
            .values()
            .filter(|of| of.common.deleting.is_none())
        {
            let members: Vec<&ClusterId> = binding
                .spec
                .refs
                .iter()
                .filter_map(|name| binding.common.cluster(name))
                .collect();
            for reader in &members {
                let Some(apply) = first
                    .targets
                    .get(*reader)
                    .and_then(|target| target.secrets.get(&ConnectionSecret::ClusterMesh))
                else {
                    continue;
                };
                for remote in members.iter().filter(|remote| remote != &reader) {
                    let Some(Some(config)) = world.clusters[*remote].config.known() else {
                        continue;
                    };
                    prop_assert!(
                        !apply.removed.contains(&config.cluster_name),
                        "{} leaves {}",
                        remote,
                        reader
                    );
                }
            }
        }
        Ok(())
    });
}

/// The clusters that a binding names or has recorded.
fn of_binding(binding: &Binding) -> BTreeSet<&ClusterId> {
    binding
        .spec
        .refs
        .iter()
        .chain(&binding.common.touched)
        .filter_map(|name| binding.common.cluster(name))
        .collect()
}

/// Keys, identities, CAs and load balancers are written only in clusters of a
/// binding, and a private key is copied between two clusters only if one
/// binding names both.
#[test]
fn nothing_is_written_and_no_private_key_goes_where_no_object_leads() {
    law(|world, first| {
        let bindings: Vec<BTreeSet<&ClusterId>> = world
            .bindings
            .values()
            .filter(|of| of.common.deleting.is_none())
            .map(of_binding)
            .collect();
        let joined = |one: &ClusterId, other: &ClusterId| {
            bindings
                .iter()
                .any(|of| of.contains(one) && of.contains(other))
        };
        for (id, target) in &first.targets {
            let adds = target
                .secrets
                .values()
                .any(|of| !of.added.is_empty() || !of.changed.is_empty());
            let writes =
                adds || target.identity.is_some() || target.ca.is_some() || target.elb.is_some();
            prop_assert!(!writes || joined(id, id), "{} is in no binding", id);
            if let Some(create) = &target.ca {
                let owner = |id: &ClusterId| &world.origins[id].owner;
                prop_assert!(
                    joined(id, &create.from) && owner(id) == owner(&create.from),
                    "the key of a CA goes to {}",
                    id
                );
            }
            for apply in target.secrets.values() {
                for key in apply
                    .added
                    .iter()
                    .chain(&apply.changed)
                    .filter(|key| key.ends_with(".key"))
                {
                    let text = String::from_utf8_lossy(apply.data[key].expose()).into_owned();
                    let of = text
                        .split_whitespace()
                        .nth(1)
                        .map(crate::fleet::id)
                        .unwrap();
                    prop_assert!(joined(id, &of), "{} gets a private key of {}", id, of);
                }
            }
        }
        Ok(())
    });
}

/// Whatever clusters claim to be: an object whose cluster no other owner is
/// proven to use is planned as if the others did not exist.
#[test]
fn a_claim_changes_no_plan_but_what_is_let_go() {
    law(|world, first| {
        let mut without = world.clone();
        without
            .origins
            .values_mut()
            .filter(|origin| origin.private_ca.is_none())
            .for_each(|origin| origin.uid = origin.owner.to_string());
        let second = plan(&without);
        prop_assert_eq!(&first.dials, &second.dials);
        for (id, of) in &first.bindings {
            prop_assert_eq!(&of.rows, &second.bindings[id].rows);
        }
        Ok(())
    });
}

/// Anybody who may write a status can claim that a mesh was up. The only effect
/// is that in the mesh's first minute its exports and policies are written
/// earlier.
#[test]
fn a_forged_status_connects_nothing_and_disconnects_nothing() {
    law(|world, plan| {
        let mut forged = world.clone();
        forged
            .bindings
            .values_mut()
            .for_each(|binding| binding.was_up = !binding.was_up);
        let planned = mw_core::cilium::plan(&forged);
        let keys = |plan: &Plan| -> Vec<_> {
            let of = |target: &TargetPlan| {
                (
                    target.identity.clone(),
                    target.ca.clone(),
                    target.elb.clone(),
                    target.secrets.clone(),
                )
            };
            plan.targets
                .iter()
                .map(|(id, target)| (id.clone(), of(target)))
                .filter(|(_, of)| *of != Default::default())
                .collect()
        };
        prop_assert_eq!(keys(&planned), keys(plan));
        prop_assert_eq!(&planned.dials, &plan.dials);
        let connected = |plan: &Plan| -> Vec<ObjectId> {
            plan.bindings
                .iter()
                .filter(|(_, of)| of.outcome.phase == BindingPhase::Connected)
                .map(|(id, _)| id.clone())
                .collect()
        };
        prop_assert_eq!(connected(&planned), connected(plan));
        Ok(())
    });
}

#[test]
fn an_id_is_given_once_and_never_to_two() {
    law(|world, first| {
        let live = world.clusters.values().filter_map(|seen| {
            seen.config
                .known()?
                .as_ref()?
                .cluster_id
                .parse::<u32>()
                .ok()
        });
        let remembered = world.clusters.values().filter_map(|seen| {
            seen.remembered
                .as_ref()?
                .id
                .filter(|_| seen.config.known().is_none())
        });
        let mut taken: BTreeSet<u32> = live.chain(remembered).filter(|id| *id > 0).collect();
        for id in first
            .targets
            .values()
            .filter_map(|target| target.identity.as_ref()?.id)
        {
            prop_assert!(taken.insert(id), "{} is given twice", id);
        }
        Ok(())
    });
}

#[test]
fn connected_means_that_every_link_has_evidence() {
    law(|world, first| {
        for (id, of) in first
            .bindings
            .iter()
            .filter(|(_, of)| of.outcome.phase == BindingPhase::Connected)
        {
            let binding = &world.bindings[id];
            prop_assert!(of.rows.iter().all(|row| row.connected));
            for (reader, remote) in binding
                .spec
                .refs
                .iter()
                .flat_map(|reader| binding.spec.refs.iter().map(move |remote| (reader, remote)))
            {
                if reader != remote {
                    prop_assert!(
                        has_evidence(world, binding, reader, remote),
                        "{} -> {}",
                        reader,
                        remote
                    );
                }
            }
        }
        Ok(())
    });
}

fn has_evidence(
    world: &World,
    binding: &mw_core::cilium::object::Binding,
    reader: &str,
    remote: &str,
) -> bool {
    let (Some(reader), Some(remote)) = (
        binding.common.cluster(reader),
        binding.common.cluster(remote),
    ) else {
        return false;
    };
    let link = mw_core::cilium::plan::Link {
        reader: reader.clone(),
        remote: remote.clone(),
    };
    let Some(evidence) = world.evidence.get(&link) else {
        return false;
    };
    let name = match world.clusters[remote].config.known() {
        Some(Some(config)) => config.cluster_name.clone(),
        _ => world.clusters[remote]
            .remembered
            .as_ref()
            .and_then(|of| of.name.as_ref())
            .map(ToString::to_string)
            .unwrap_or_default(),
    };
    let secrets = world.clusters[reader].secrets.known();
    let has_key = secrets.is_some_and(|secrets| {
        secrets
            .values()
            .any(|secret| secret.keys.contains_key(&name))
    });
    let dialled = evidence
        .dial
        .as_ref()
        .is_some_and(|dialled| matches!(dialled.outcome, DialOutcome::Read { .. }));
    has_key && evidence.reader.known().map_or(dialled, |view| view.ready)
}

#[test]
fn every_policy_names_the_cluster_in_every_source() {
    law(|_, first| {
        for policy in first
            .targets
            .values()
            .flat_map(|target| target.policies.create.values())
        {
            let rules = policy
                .spec
                .get("ingress")
                .or(policy.spec.get("ingressDeny"))
                .and_then(|rules| rules.as_array())
                .unwrap();
            prop_assert_eq!(rules.len(), 1);
            let sources = rules[0]["fromEndpoints"].as_array().unwrap();
            prop_assert!(
                !sources.is_empty(),
                "a rule without a source allows all pods"
            );
            for source in sources {
                prop_assert!(
                    source["matchLabels"]
                        .get("k8s:io.cilium.k8s.policy.cluster")
                        .is_some(),
                    "{}",
                    source
                );
            }
        }
        Ok(())
    });
}
