//! The form of a plan, whatever its input.

use std::collections::{BTreeMap, BTreeSet};

use mw_core::kilo::peer::WantedPeer;
use mw_core::kilo::plan;
use mw_core::kilo::plan::Plan;
use mw_core::kilo::planner::World;
use mw_core::names::ClusterId;
use mw_core::seen::Seen;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::harness::law;
use crate::kilo_rules;
use crate::steps::apply;

/// Every Peer that a plan writes, with its target.
pub(crate) fn writes(plan: &Plan) -> impl Iterator<Item = (&ClusterId, &WantedPeer)> {
    plan.meshes
        .values()
        .flat_map(|mesh| &mesh.targets)
        .flat_map(|(target, changes)| {
            let updates = changes.update.values().map(|update| &update.after);
            changes
                .create
                .values()
                .chain(updates)
                .map(move |peer| (target, peer))
        })
}

pub(crate) fn after_applying(world: &World, plan: &Plan) -> World {
    let mut after = world.clone();
    apply(plan, &mut after, &mut None);
    after
}

#[test]
fn planning_twice_gives_the_same_plan() {
    law(|_, world, first| {
        prop_assert_eq!(first, &plan(world.clone()));
        Ok(())
    });
}

#[test]
fn applying_the_plan_leaves_an_empty_plan() {
    law(|_, world, first| {
        let again = plan(after_applying(world, first));
        prop_assert!(
            !again.has_changes(),
            "still to do: {:#?}",
            again
                .meshes
                .values()
                .map(|m| &m.targets)
                .collect::<Vec<_>>()
        );
        Ok(())
    });
}

#[test]
fn the_order_of_clusters_and_networks_does_not_matter() {
    law(|_, world, first| {
        let mut turned = world.clone();
        for mesh in turned.meshes.values_mut() {
            mesh.spec.clusters.reverse();
            for cluster in &mut mesh.spec.clusters {
                cluster.pod_cidrs.iter_mut().for_each(|list| list.reverse());
                cluster
                    .additional_cidrs
                    .iter_mut()
                    .for_each(|list| list.reverse());
                cluster
                    .allowed_networks
                    .iter_mut()
                    .for_each(|list| list.reverse());
            }
        }
        let as_sets =
            |plan: &Plan| -> BTreeMap<(ClusterId, String), (BTreeSet<String>, Option<String>)> {
                let set = |peer: &WantedPeer| {
                    peer.allowed_ips().iter().map(ToString::to_string).collect()
                };
                writes(plan)
                    .map(|(target, peer)| {
                        (
                            (target.clone(), peer.name().to_string()),
                            (set(peer), peer.endpoint().map(ToString::to_string)),
                        )
                    })
                    .collect()
            };
        prop_assert_eq!(as_sets(first), as_sets(&plan(turned)));
        Ok(())
    });
}

#[test]
fn every_written_peer_passes_kilos_validation() {
    law(|_, _, first| {
        for (_, peer) in writes(first) {
            kilo_rules::validate(peer).map_err(TestCaseError::fail)?;
        }
        Ok(())
    });
}

#[test]
fn every_name_is_one_that_kubernetes_takes() {
    law(|_, _, first| {
        for (_, peer) in writes(first) {
            let name = peer.name().as_str();
            let fits =
                |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
            prop_assert!(name.len() <= 253 && name.bytes().all(fits), "{name}");
            prop_assert!(
                name.starts_with(|c: char| c.is_alphanumeric())
                    && name.ends_with(|c: char| c.is_alphanumeric()),
                "{name}"
            );
        }
        Ok(())
    });
}

#[test]
fn no_prefix_of_ours_is_twice_on_a_target() {
    law(|_, world, first| {
        let after = after_applying(world, first);
        for (target, peer) in writes(first) {
            let Seen::Known(peers) = &after.clusters[target].peers else {
                continue;
            };
            let own: BTreeSet<String> = peer.spec().allowed_ips.into_iter().collect();
            prop_assert_eq!(own.len(), peer.allowed_ips().len());
            for (name, other) in peers.iter().filter(|(name, _)| *name != peer.name()) {
                let shared: Vec<&String> = other
                    .spec
                    .allowed_ips
                    .iter()
                    .filter(|ip| own.contains(*ip))
                    .collect();
                prop_assert!(
                    shared.is_empty(),
                    "{:?} on {} and {} in {}",
                    shared,
                    peer.name(),
                    name,
                    target
                );
            }
        }
        Ok(())
    });
}

#[test]
fn no_update_gives_a_prefix_before_another_has_lost_it() {
    law(|_, world, first| {
        for (target, changes) in first.meshes.values().flat_map(|mesh| &mesh.targets) {
            let Seen::Known(peers) = &world.clusters[target].peers else {
                continue;
            };
            let taking = || {
                changes
                    .update
                    .iter()
                    .filter(|(_, update)| update.takes_away)
            };
            for (name, update) in taking() {
                let written = update
                    .first
                    .as_ref()
                    .unwrap_or(&update.after)
                    .spec()
                    .allowed_ips;
                let others = taking()
                    .filter(|(other, _)| *other != name)
                    .flat_map(|(other, _)| &peers[other].spec.allowed_ips);
                let early: BTreeSet<&String> =
                    others.filter(|cidr| written.contains(cidr)).collect();
                // A Peer with no other prefixes is written as a whole.
                prop_assert!(
                    early.is_empty() || early.len() == update.after.allowed_ips().len(),
                    "{:?} of {} on {}",
                    early,
                    name,
                    target
                );
            }
        }
        Ok(())
    });
}

#[test]
fn no_key_of_ours_is_twice_on_a_target() {
    law(|_, world, first| {
        let after = after_applying(world, first);
        for (target, peer) in writes(first) {
            let Seen::Known(peers) = &after.clusters[target].peers else {
                continue;
            };
            let key = peer.key().to_base64();
            let others: Vec<_> = peers
                .iter()
                .filter(|(name, other)| *name != peer.name() && other.spec.public_key == key)
                .collect();
            prop_assert!(
                others.is_empty(),
                "{} and {:?} in {}",
                peer.name(),
                others,
                target
            );
        }
        Ok(())
    });
}

#[test]
fn every_node_has_exactly_one_role() {
    law(|_, world, first| {
        for mesh in first.meshes.values() {
            for (name, cluster) in &mesh.clusters {
                let Some(Seen::Known(nodes)) = world
                    .clusters
                    .get(&ClusterId::from(name.as_str()))
                    .map(|seen| &seen.nodes)
                else {
                    continue;
                };
                for node in nodes.keys() {
                    let roles = [
                        cluster.peers.contains_key(node),
                        cluster.carried.contains_key(node),
                        cluster.skipped.contains_key(node),
                        cluster.held.contains(node) && !cluster.skipped.contains_key(node),
                    ];
                    prop_assert_eq!(
                        roles.iter().filter(|role| **role).count(),
                        1,
                        "{}/{}: {:?}",
                        name,
                        node,
                        roles
                    );
                }
            }
        }
        Ok(())
    });
}

#[test]
fn prefixes_are_masked_and_lie_in_the_sources_networks() {
    law(|_, world, first| {
        for (_, peer) in writes(first) {
            let labels = peer.labels();
            let mesh = world
                .meshes
                .values()
                .find(|mesh| Some(&mesh.id.name) == labels.mesh.as_ref())
                .unwrap();
            let source = mesh
                .spec
                .clusters
                .iter()
                .find(|cluster| Some(&cluster.name) == labels.source.as_ref())
                .unwrap();
            let declared = [
                &source.pod_cidrs,
                &source.additional_cidrs,
                &source.allowed_networks,
            ]
            .into_iter()
            .flatten()
            .flatten();
            let declared: Vec<&String> = declared
                .chain(&source.wireguard_cidr)
                .chain(&source.service_cidr)
                .collect();
            for cidr in peer.spec().allowed_ips {
                prop_assert!(kilo_rules::masked(&cidr).is_some(), "{}", cidr);
                prop_assert!(
                    declared.iter().any(|net| kilo_rules::overlap(net, &cidr)),
                    "{} of {}",
                    cidr,
                    peer.name()
                );
            }
        }
        Ok(())
    });
}

#[test]
fn the_keepalive_of_a_pair_is_the_smaller_one_on_both_sides() {
    law(|_, world, first| {
        for (target, peer) in writes(first) {
            let labels = peer.labels();
            let mesh = world
                .meshes
                .values()
                .find(|mesh| Some(&mesh.id.name) == labels.mesh.as_ref())
                .unwrap();
            let of = |name: &str| {
                mesh.spec
                    .clusters
                    .iter()
                    .find(|c| c.name == name)
                    .and_then(|c| c.persistent_keepalive)
                    .filter(|k| *k > 0)
            };
            let expected = of(labels.source.as_deref().unwrap())
                .into_iter()
                .chain(of(target.as_str()))
                .min()
                .unwrap_or(0);
            prop_assert_eq!(i64::from(peer.keepalive()), expected);
        }
        Ok(())
    });
}

#[test]
fn an_extra_rides_on_one_peer_of_its_source_alone() {
    law(|_, world, first| {
        let after = after_applying(world, first);
        for (target, seen) in &after.clusters {
            let Seen::Known(peers) = &seen.peers else {
                continue;
            };
            for mesh in world.meshes.values() {
                for extra in mesh
                    .spec
                    .clusters
                    .iter()
                    .filter_map(|cluster| cluster.service_cidr.as_ref())
                {
                    let carriers = writes(first)
                        .filter(|(at, peer)| {
                            *at == target && peer.spec().allowed_ips.contains(extra)
                        })
                        .count();
                    let all = peers
                        .values()
                        .filter(|peer| peer.spec.allowed_ips.contains(extra))
                        .count();
                    prop_assert!(
                        carriers == 0 || all == 1,
                        "{} is on {} Peers of {}",
                        extra,
                        all,
                        target
                    );
                }
            }
        }
        Ok(())
    });
}

#[test]
fn a_carried_node_is_routed_by_its_leaders_peer() {
    law(|_, world, first| {
        for (target, peer) in writes(first) {
            let labels = peer.labels();
            let mesh = first
                .meshes
                .iter()
                .find(|(id, _)| Some(&id.name) == labels.mesh.as_ref())
                .unwrap()
                .1;
            let (name, cluster) = mesh
                .clusters
                .iter()
                .find(|(name, _)| Some(name.as_str()) == labels.source.as_deref())
                .unwrap();
            let Seen::Known(nodes) = &world.clusters[&ClusterId::from(name.as_str())].nodes else {
                continue;
            };
            for (carried, _) in cluster
                .carried
                .iter()
                .filter(|(_, by)| by.as_ref() == Some(peer.node()))
            {
                let pods = nodes[carried].first_pod_cidr.clone().unwrap().unwrap();
                let elsewhere = writes(first)
                    .any(|(at, other)| at == target && other.allowed_ips().contains(&pods));
                let said = mesh
                    .problems
                    .iter()
                    .any(|problem| problem.message.contains(&pods.to_string()));
                prop_assert!(
                    elsewhere || said || peer.allowed_ips().contains(&pods),
                    "{} of {} on {}",
                    pods,
                    carried,
                    target
                );
            }
        }
        Ok(())
    });
}
