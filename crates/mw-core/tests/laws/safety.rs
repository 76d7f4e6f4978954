//! Things that a plan never does.

use std::collections::BTreeMap;

use mw_core::kilo::guard::{DeleteCause, HeldLine};
use mw_core::kilo::peer::{Labels, PeerFacts};
use mw_core::kilo::plan;
use mw_core::kilo::plan::{Changes, HeldChange, HeldFor, MeshPlan};
use mw_core::kilo::planner::World;
use mw_core::names::{ClusterId, PeerName};
use mw_core::seen::Seen;
use proptest::prelude::*;

use crate::harness::law;
use crate::kilo_rules;
use crate::shape::{after_applying, writes};

fn peers<'a>(world: &'a World, target: &ClusterId) -> &'a BTreeMap<PeerName, PeerFacts> {
    world.clusters[target].peers.known().unwrap()
}

#[test]
fn a_plan_names_nothing_that_is_not_ours() {
    law(|_, world, first| {
        let of_meshes = first.meshes.values().flat_map(|mesh| &mesh.targets);
        for (target, changes) in of_meshes.chain(&first.orphans) {
            let held = peers(world, target);
            for (name, update) in &changes.update {
                prop_assert!(
                    kilo_rules::may_be_touched(world, &held[name], Some(&update.after)),
                    "update {} on {}",
                    name,
                    target
                );
            }
            for name in changes
                .delete
                .keys()
                .chain(changes.held_lines(target).iter().map(|line| &line.name))
            {
                prop_assert!(
                    kilo_rules::may_be_touched(world, &held[name], None),
                    "delete {} on {}",
                    name,
                    target
                );
            }
            for name in changes.create.keys() {
                let goes = first
                    .meshes
                    .values()
                    .filter_map(|mesh| mesh.targets.get(target))
                    .chain(first.orphans.get(target));
                let goes = goes
                    .into_iter()
                    .any(|changes: &Changes| changes.delete.contains_key(name));
                prop_assert!(
                    goes || !held.contains_key(name),
                    "create {} on {}",
                    name,
                    target
                );
            }
        }
        Ok(())
    });
}

#[test]
fn another_hubs_peers_are_never_touched() {
    law(|_, world, first| {
        let after = after_applying(world, first);
        for (target, seen) in &world.clusters {
            let Seen::Known(before) = &seen.peers else {
                continue;
            };
            for (name, peer) in before
                .iter()
                .filter(|(_, peer)| peer.labels.hub.as_deref() == Some("hub-2"))
            {
                prop_assert_eq!(peers(&after, target).get(name), Some(peer));
            }
        }
        Ok(())
    });
}

#[test]
fn every_write_carries_what_it_was_planned_from() {
    law(|_, world, first| {
        for (target, changes) in first
            .meshes
            .values()
            .flat_map(|mesh| &mesh.targets)
            .chain(&first.orphans)
        {
            let held = peers(world, target);
            let updates = changes
                .update
                .iter()
                .map(|(name, update)| (name, &update.on));
            let deletes = changes
                .delete
                .iter()
                .map(|(name, delete)| (name, &delete.on));
            let waiting = changes
                .held
                .iter()
                .filter_map(|(name, held)| match &held.change {
                    HeldChange::Create(_) => None,
                    HeldChange::Update(update) => Some((name, &update.on)),
                    HeldChange::Delete(delete) => Some((name, &delete.on)),
                });
            for (name, on) in updates.chain(deletes).chain(waiting) {
                prop_assert_eq!(
                    (&*on.uid, &*on.resource_version),
                    (
                        held[name].uid.as_str(),
                        held[name].resource_version.as_str()
                    )
                );
            }
        }
        Ok(())
    });
}

#[test]
fn a_target_never_gets_its_own_keys() {
    law(|_, world, first| {
        for (target, peer) in writes(first) {
            let nodes = world.clusters[target].nodes.known().unwrap();
            prop_assert!(
                nodes.values().all(|node| node.key != Ok(Some(peer.key()))),
                "{} on {}",
                peer.name(),
                target
            );
        }
        Ok(())
    });
}

#[test]
fn a_target_never_gets_its_own_networks_or_addresses() {
    law(|_, world, first| {
        for (target, peer) in writes(first) {
            let nodes = world.clusters[target].nodes.known().unwrap();
            let mesh = world
                .meshes
                .values()
                .find(|mesh| Some(&mesh.id.name) == peer.labels().mesh.as_ref())
                .unwrap();
            let own = mesh
                .spec
                .clusters
                .iter()
                .find(|cluster| cluster.name == target.as_str())
                .unwrap();
            let declared = [&own.pod_cidrs, &own.additional_cidrs, &own.allowed_networks]
                .into_iter()
                .flatten()
                .flatten();
            let declared: Vec<String> = declared
                .chain(&own.wireguard_cidr)
                .chain(&own.service_cidr)
                .cloned()
                .collect();
            for cidr in peer.spec().allowed_ips {
                prop_assert!(
                    declared.iter().all(|net| !kilo_rules::overlap(net, &cidr)),
                    "{} on {}",
                    cidr,
                    target
                );
                for address in nodes.values().flat_map(|node| node.addresses()) {
                    let host = format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 });
                    prop_assert!(
                        !kilo_rules::overlap(&host, &cidr),
                        "{} covers {} of {}",
                        cidr,
                        address,
                        target
                    );
                }
            }
        }
        Ok(())
    });
}

#[test]
fn no_tunnel_runs_through_itself() {
    law(|_, world, first| {
        let after = after_applying(world, first);
        for (target, peer) in writes(first) {
            for cidr in peer.spec().allowed_ips {
                for other in peers(&after, target)
                    .values()
                    .filter(|other| other.labels.source == peer.labels().source && !other.deleting)
                {
                    // A Peer that is not written in this pass keeps its previous
                    // endpoint.
                    let written = writes(first)
                        .any(|(at, wanted)| at == target && wanted.name().as_str() == other.name);
                    let Some(address) = other
                        .spec
                        .endpoint
                        .as_ref()
                        .filter(|_| written)
                        .and_then(|endpoint| endpoint.address())
                    else {
                        continue;
                    };
                    let host = format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 });
                    prop_assert!(
                        !kilo_rules::overlap(&host, &cidr),
                        "{} of {} covers {} on {}",
                        cidr,
                        peer.name(),
                        address,
                        target
                    );
                }
            }
        }
        Ok(())
    });
}

#[test]
fn an_unknown_source_loses_nothing() {
    law(|_, world, first| {
        for (id, mesh) in &first.meshes {
            if world.meshes[id].deleting {
                continue;
            }
            for (target, changes) in &mesh.targets {
                for (name, delete) in changes
                    .delete
                    .iter()
                    .filter(|(_, delete)| delete.cause != DeleteCause::TargetLeft)
                {
                    let source = peers(world, target)[name]
                        .labels
                        .source
                        .clone()
                        .unwrap_or_default();
                    let unknown = mesh.clusters.iter().any(|(name, cluster)| {
                        name.as_str() == source && cluster.unknown.is_some()
                    });
                    let nodes_unknown = world
                        .clusters
                        .get(&ClusterId::from(source.as_str()))
                        .is_none_or(|seen| seen.nodes.known().is_none());
                    prop_assert!(
                        !(unknown && nodes_unknown),
                        "{} on {}: {:?}",
                        name,
                        target,
                        delete.cause
                    );
                }
            }
        }
        Ok(())
    });
}

#[test]
fn an_unknown_target_is_given_nothing() {
    law(|_, world, first| {
        for (target, changes) in first
            .meshes
            .values()
            .flat_map(|mesh| &mesh.targets)
            .chain(&first.orphans)
        {
            let seen = &world.clusters[target];
            prop_assert!(
                changes.is_empty() || seen.peers.known().is_some(),
                "{}",
                target
            );
            if seen.nodes.known().is_none() {
                prop_assert!(
                    changes.create.is_empty() && changes.update.is_empty(),
                    "{}",
                    target
                );
                let certain = [
                    DeleteCause::MeshDeleted,
                    DeleteCause::Orphan,
                    DeleteCause::SourceLeft,
                    DeleteCause::TargetLeft,
                ];
                prop_assert!(
                    changes
                        .delete
                        .values()
                        .all(|delete| certain.contains(&delete.cause)),
                    "{}: {:?}",
                    target,
                    changes.delete
                );
                // Orphans that are most of the hub's Peers are held there too.
                let held = changes.held.values().map(|held| &held.change);
                let orphans = |change: &HeldChange| matches!(change, HeldChange::Delete(delete) if delete.cause == DeleteCause::Orphan);
                prop_assert!(
                    held.into_iter().all(orphans),
                    "{}: {:?}",
                    target,
                    changes.held
                );
            }
        }
        Ok(())
    });
}

#[test]
fn doubtful_deletes_stay_below_the_share_or_are_held() {
    law(|_, world, first| {
        for (id, mesh) in first
            .meshes
            .iter()
            .filter(|(id, _)| world.meshes[*id].confirm_deletes.is_none())
        {
            let percent = world.meshes[id].spec.max_delete_percent.unwrap() as usize;
            for (target, changes) in &mesh.targets {
                for source in mesh.clusters.keys() {
                    let of_source = peers(world, target).values().filter(|peer| {
                        let labels = &peer.labels;
                        let ours = labels.hub.as_deref() == world.options.hub.as_deref()
                            && labels.namespace.as_ref() == Some(&id.namespace);
                        let go = labels.hub.is_none() && labels.namespace.is_none();
                        !peer.deleting
                            && labels.mesh.as_ref() == Some(&id.name)
                            && labels.source.as_deref() == Some(source.as_str())
                            && (ours || go)
                    });
                    let doubtful = |delete: &&mw_core::kilo::plan::Delete| {
                        delete.source.as_ref() == Some(source)
                            && matches!(
                                delete.cause,
                                DeleteCause::NotWanted | DeleteCause::Withheld
                            )
                    };
                    let gone = changes.delete.values().filter(doubtful).count();
                    let total = of_source.count().max(gone);
                    prop_assert!(
                        gone * 100 <= percent * total,
                        "{} of {} from {} on {}",
                        gone,
                        total,
                        source,
                        target
                    );
                    let empty = world.clusters[&ClusterId::from(source.as_str())]
                        .nodes
                        .known()
                        .is_some_and(BTreeMap::is_empty);
                    prop_assert!(
                        !(empty && gone > 0),
                        "the empty source {} loses {} on {}",
                        source,
                        gone,
                        target
                    );
                }
            }
        }
        Ok(())
    });
}

/// Anybody who may write a status can claim that any deletes are held. Without
/// any claim the law above holds too: clearing the status releases nothing.
#[test]
fn a_forged_status_releases_no_delete() {
    law(|_, world, first| {
        for id in world.meshes.keys() {
            let mut forged = world.clone();
            let known = world
                .clusters
                .iter()
                .filter_map(|(target, seen)| Some((target, seen.peers.known()?)));
            let lines = known.flat_map(|(target, peers)| {
                peers
                    .keys()
                    .map(|name| HeldLine {
                        target: target.clone(),
                        name: name.clone(),
                        key: None,
                    })
                    .collect::<Vec<_>>()
            });
            forged.meshes.get_mut(id).unwrap().held = lines.collect();
            let planned = plan(forged);
            for (target, changes) in &planned.meshes[id].targets {
                for name in changes.delete.keys() {
                    prop_assert!(
                        first.meshes[id].targets[target].delete.contains_key(name),
                        "{} on {}",
                        name,
                        target
                    );
                }
            }
        }
        Ok(())
    });
}

#[test]
fn confirming_releases_exactly_what_was_held() {
    law(|_, world, first| {
        for (id, mesh) in &first.meshes {
            let Some(hash) = mesh
                .held_hash
                .clone()
                .filter(|_| world.meshes[id].confirm_deletes.is_none())
            else {
                continue;
            };
            let mut confirmed = world.clone();
            confirmed.meshes.get_mut(id).unwrap().confirm_deletes = Some(hash);
            let after = &plan(confirmed).meshes[id];
            let names = |mesh: &MeshPlan, held: bool| -> Vec<(ClusterId, PeerName)> {
                let of = |c: &Changes| match held {
                    // Changes that wait for a budget can't be confirmed.
                    true => c
                        .held
                        .iter()
                        .filter(|(_, held)| held.why != HeldFor::Budget)
                        .map(|(name, _)| name.clone())
                        .collect::<Vec<_>>(),
                    false => c
                        .delete
                        .keys()
                        .chain(c.update.keys())
                        .chain(c.create.keys())
                        .chain(c.held.keys())
                        .cloned()
                        .collect(),
                };
                mesh.targets
                    .iter()
                    .flat_map(|(target, changes)| {
                        of(changes).into_iter().map(|name| (target.clone(), name))
                    })
                    .collect()
            };
            prop_assert!(names(after, true).is_empty());
            let released = names(after, false);
            prop_assert!(names(mesh, true).iter().all(|held| released.contains(held)));
        }
        Ok(())
    });
}

#[test]
fn removing_a_mesh_removes_exactly_its_own_peers() {
    law(|_, world, _| {
        let mut without = world.clone();
        let id = without.meshes.keys().next().unwrap().clone();
        without.meshes.get_mut(&id).unwrap().deleting = true;
        let plan = plan(without.clone());
        let twin = without
            .meshes
            .keys()
            .filter(|other| other.name == id.name)
            .count()
            > 1;
        for (target, seen) in &without.clusters {
            let Seen::Known(held) = &seen.peers else {
                continue;
            };
            for (name, peer) in held {
                let Labels {
                    mesh,
                    source,
                    namespace,
                    hub,
                } = &peer.labels;
                let ours = mesh.as_ref() == Some(&id.name)
                    && namespace.as_ref() == Some(&id.namespace)
                    && hub.as_deref() == world.options.hub.as_deref();
                let go = mesh.as_ref() == Some(&id.name)
                    && source.is_some()
                    && namespace.is_none()
                    && hub.is_none()
                    && !twin;
                let goes = plan.meshes[&id]
                    .targets
                    .get(target)
                    .is_some_and(|changes| changes.delete.contains_key(name));
                prop_assert_eq!(
                    goes,
                    (ours || go) && !peer.deleting,
                    "{} on {}",
                    name,
                    target
                );
            }
        }
        let mesh = &plan.meshes[&id];
        prop_assert!(
            mesh.targets
                .values()
                .all(|changes| changes.create.is_empty()
                    && changes.update.is_empty()
                    && changes.held.is_empty())
        );
        Ok(())
    });
}

#[test]
fn adopting_the_go_operators_peers_changes_no_spec() {
    law(|_, world, first| {
        let mut legacy = after_applying(world, first);
        for seen in legacy.clusters.values_mut() {
            let Seen::Known(held) = &mut seen.peers else {
                continue;
            };
            for peer in held
                .values_mut()
                .filter(|peer| peer.labels.hub.as_deref() == Some(crate::fleet::HUB))
            {
                (peer.labels.namespace, peer.labels.hub) = (None, None);
            }
        }
        for (target, changes) in plan(legacy).meshes.values().flat_map(|mesh| &mesh.targets) {
            prop_assert!(
                changes.update.values().all(|update| update.adopts),
                "{}: {:?}",
                target,
                changes.update
            );
            prop_assert!(
                changes.create.is_empty(),
                "{}: {:?}",
                target,
                changes.create
            );
        }
        Ok(())
    });
}

#[test]
fn an_edited_peer_is_put_back_as_it_was() {
    law(|_, world, first| {
        let settled = after_applying(world, first);
        let mut edited = settled.clone();
        // A source that waits for its budget is repaired later.
        edited.history.resting.clear();
        let mut names = Vec::new();
        for (target, peer) in writes(first) {
            let Some(Seen::Known(held)) =
                edited.clusters.get_mut(target).map(|seen| &mut seen.peers)
            else {
                continue;
            };
            held.get_mut(peer.name()).unwrap().spec.keepalive = 77;
            names.push((target.clone(), peer.name().clone()));
        }
        let repaired = after_applying(&edited, &plan(edited.clone()));
        for (target, name) in names {
            prop_assert_eq!(
                &peers(&repaired, &target)[&name].spec,
                &peers(&settled, &target)[&name].spec
            );
        }
        Ok(())
    });
}
