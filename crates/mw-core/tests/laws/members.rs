//! A member's data affects only that member.

use std::collections::BTreeSet;
use std::sync::Arc;

use mw_core::kilo::SkipReason;
use mw_core::kilo::node::{EndpointFrom, Node};
use mw_core::kilo::plan;
use mw_core::kilo::planner::{ClusterSeen, World};
use mw_core::names::{ClusterId, ClusterName, NodeName, PeerName};
use mw_core::seen::Seen;
use proptest::prelude::*;

use crate::fleet::CLUSTERS;
use crate::harness::law;
use crate::kilo_rules;
use crate::shape::{after_applying, writes};
use crate::steps::Step;

fn nodes_mut<'a>(
    world: &'a mut World,
    cluster: &ClusterId,
) -> Option<&'a mut mw_core::kilo::Nodes> {
    world.clusters.get_mut(cluster)?.nodes.known_mut()
}

#[test]
fn claims_of_one_member_cost_no_other_member_what_it_holds() {
    law(|scenario, world, first| {
        let settled = after_applying(world, first);
        // The last cluster of the mesh turns hostile: it claims every node that
        // was ever set in the scenario.
        let hostile = (scenario.fleet.clusters.len() - 1) as u8;
        let hostile_id = ClusterId::from(CLUSTERS[usize::from(hostile)]);
        let mut after = settled.clone();
        let designs = scenario.steps.iter().filter_map(|step| match step {
            Step::SetNode(design) => Some(design),
            _ => None,
        });
        for design in designs
            .chain(&scenario.fleet.nodes)
            .filter(|design| design.cluster != hostile)
        {
            let stolen = Node {
                name: design.node_name(),
                ..design.node(world.now.0).as_ref().clone()
            };
            if let Some(nodes) = nodes_mut(&mut after, &hostile_id) {
                nodes.insert(stolen.name.clone(), Arc::new(stolen));
            }
        }
        let then = plan(after.clone());
        let end = after_applying(&after, &then);
        for (target, peer) in writes(first).filter(|(target, _)| **target != hostile_id) {
            if peer.labels().source.as_deref() == Some(hostile_id.as_str()) {
                continue;
            }
            let Seen::Known(held) = &end.clusters[target].peers else {
                continue;
            };
            let now = held.get(peer.name());
            prop_assert!(now.is_some(), "{} is gone from {}", peer.name(), target);
            let now = &now.unwrap().spec;
            prop_assert_eq!(&now.public_key, &peer.key().to_base64());
            // The anchor may move between a member's own nodes.
            let of_source = held
                .values()
                .filter(|other| other.labels.source == peer.labels().source);
            let routed: BTreeSet<&String> = of_source
                .flat_map(|other| &other.spec.allowed_ips)
                .collect();
            for cidr in peer.spec().allowed_ips {
                prop_assert!(
                    routed.contains(&cidr),
                    "{} lost {} on {}",
                    peer.name(),
                    cidr,
                    target
                );
            }
        }
        Ok(())
    });
}

#[test]
fn endpoints_seen_by_one_target_never_reach_another() {
    law(|scenario, world, first| {
        let blind = (scenario.fleet.nodes.len() % scenario.fleet.clusters.len()) as u8;
        let blind_id = ClusterId::from(CLUSTERS[usize::from(blind)]);
        let mut without = world.clone();
        let Some(nodes) = nodes_mut(&mut without, &blind_id) else {
            return Ok(());
        };
        for node in nodes.values_mut() {
            *node = Arc::new(Node {
                discovered: Ok(Default::default()),
                ..node.as_ref().clone()
            });
        }
        let other = plan(without);
        for (id, mesh) in &first.meshes {
            for (target, changes) in mesh
                .targets
                .iter()
                .filter(|(target, _)| **target != blind_id)
            {
                prop_assert_eq!(Some(changes), other.meshes[id].targets.get(target));
            }
        }
        Ok(())
    });
}

#[test]
fn a_heartbeat_changes_nothing() {
    law(|_, world, first| {
        let mut later = world.clone();
        for seen in later.clusters.values_mut() {
            let Seen::Known(nodes) = &mut seen.nodes else {
                continue;
            };
            for node in nodes.values_mut() {
                *node = Arc::new(Node {
                    last_seen: node.last_seen.map(|at| at + 30),
                    ..node.as_ref().clone()
                });
            }
        }
        prop_assert_eq!(first, &plan(later));
        Ok(())
    });
}

#[test]
fn a_node_in_its_grace_loses_nothing() {
    law(|_, world, first| {
        let settled = after_applying(world, first);
        let mut rolled = settled.clone();
        let mut made_bare = Vec::new();
        for (cluster, seen) in &mut rolled.clusters {
            let Seen::Known(nodes) = &mut seen.nodes else {
                continue;
            };
            // One node of each cluster: the first that is in no location.
            let alone = |node: &Node| {
                !node.name.as_str().eq_ignore_ascii_case("node-a")
                    && !node.location_granularity
                    && node.location.is_none()
            };
            let Some(node) = nodes.values().find(|node| alone(node)).cloned() else {
                continue;
            };
            let leads = nodes.values().any(|other| {
                other.location_granularity
                    && other.location.as_deref().unwrap_or_default().is_empty()
            });
            if leads {
                continue;
            }
            let mut bare = node.as_ref().clone();
            (bare.key, bare.last_seen, bare.wireguard_ip) = (Ok(None), None, Ok(None));
            bare.bare_since = Some(world.now);
            made_bare.push((cluster.to_string(), bare.name.to_string()));
            nodes.insert(bare.name.clone(), Arc::new(bare));
        }
        let then = plan(rolled.clone());
        for (id, mesh) in &then.meshes {
            for (target, changes) in &mesh.targets {
                let bare = |name: &&PeerName| {
                    let held = &settled.clusters[target].peers.known().unwrap()[*name];
                    let source = held.labels.source.clone().unwrap_or_default();
                    let of = |node: &str| {
                        ClusterName::try_from(source.as_str())
                            .is_ok_and(|source| PeerName::of(&id.name, &source, node) == **name)
                    };
                    let member = mesh.clusters.keys().any(|name| name.as_str() == source);
                    member
                        && source != target.as_str()
                        && made_bare
                            .iter()
                            .any(|(cluster, node)| *cluster == source && of(node))
                };
                if world.meshes[id].deleting {
                    continue;
                }
                let lost: Vec<_> = changes
                    .delete
                    .keys()
                    .chain(changes.update.keys())
                    .filter(bare)
                    .collect();
                prop_assert!(lost.is_empty(), "{:?} on {}", lost, target);
            }
        }
        Ok(())
    });
}

#[test]
fn a_node_with_a_smaller_name_does_not_move_the_anchor() {
    law(|_, world, first| {
        let settled = after_applying(world, first);
        let before = plan(settled.clone());
        let mut joined = settled.clone();
        for (at, name) in CLUSTERS.iter().enumerate() {
            let design = crate::fleet::NodeDesign::good(at as u8);
            let mut facts = design.facts(world.now.0);
            facts.name = "a-first".to_owned();
            facts.pod_cidrs = vec![format!("10.{}.200.0/24", 1 + at)];
            facts.external_ips = vec!["198.51.100.200".to_owned()];
            facts
                .kilo
                .insert("key".to_owned(), crate::fleet::key(90, at as u8));
            facts.kilo.insert(
                "wireguard-ip".to_owned(),
                format!("10.{}.0.200/16", 101 + at),
            );
            if let Some(nodes) = nodes_mut(&mut joined, &ClusterId::from(*name)) {
                nodes.insert("a-first".into(), Arc::new(Node::read(facts)));
            }
        }
        let after = plan(joined.clone());
        for (id, mesh) in &before.meshes {
            for (name, cluster) in &mesh.clusters {
                let Some(anchor) = &cluster.anchor else {
                    continue;
                };
                let nodes = joined.clusters[&ClusterId::from(name.as_str())]
                    .nodes
                    .known()
                    .unwrap();
                // A node without an endpoint is anchor only while no other node has
                // one.
                let lasting = |node: &Arc<Node>| {
                    node.ready
                        && kilo_rules::is_alive(nodes, node)
                        && matches!(
                            node.configured_endpoint(51820, EndpointFrom::Global),
                            Ok(Some(_))
                        )
                };
                let ready = nodes.get(anchor).is_some_and(lasting);
                let same_extras = after.meshes[id].clusters[name].extras == cluster.extras;
                let carried = settled
                    .clusters
                    .values()
                    .filter_map(|seen| seen.peers.known())
                    .flat_map(|peers| peers.values())
                    .any(|peer| {
                        let ours = peer.labels.hub.as_deref() == Some(crate::fleet::HUB)
                            && peer.labels.mesh.as_ref() == Some(&id.name);
                        let of_anchor = cluster
                            .peers
                            .get(anchor)
                            .is_some_and(|name| name.as_str() == peer.name);
                        ours && of_anchor
                            && !peer.deleting
                            && cluster
                                .extras
                                .iter()
                                .any(|extra| peer.spec.allowed_ips.contains(&extra.to_string()))
                    });
                let still = after.meshes[id].clusters[name].peers.contains_key(anchor);
                if ready && carried && still && same_extras {
                    prop_assert_eq!(
                        Some(anchor),
                        after.meshes[id].clusters[name].anchor.as_ref(),
                        "{}",
                        name
                    );
                }
            }
        }
        Ok(())
    });
}

#[test]
fn a_shared_wireguard_address_costs_no_node_its_peer() {
    law(|_, world, first| {
        let settled = after_applying(world, first);
        let before = plan(settled.clone());
        let holds = |seen: &ClusterSeen, peer: &PeerName| {
            seen.peers
                .known()
                .is_some_and(|peers| peers.contains_key(peer))
        };
        let is_written = |peer: &PeerName| settled.clusters.values().any(|seen| holds(seen, peer));
        let mut shared = settled.clone();
        for seen in shared.clusters.values_mut() {
            let Seen::Known(nodes) = &mut seen.nodes else {
                continue;
            };
            // Kilo renumbers: the next node by name publishes before this one
            // does.
            let addresses: Vec<_> = nodes
                .values()
                .map(|node| node.wireguard_ip.clone())
                .collect();
            let next = addresses.iter().skip(1).chain(addresses.last());
            for (node, address) in nodes
                .values_mut()
                .zip(next)
                .filter(|(node, _)| matches!(node.wireguard_ip, Ok(Some(_))))
                .step_by(2)
            {
                if let Ok(Some(ip)) = address {
                    *node = Arc::new(Node {
                        wireguard_ip: Ok(Some(*ip)),
                        ..node.as_ref().clone()
                    });
                }
            }
        }
        let then = plan(shared);
        for (id, mesh) in before
            .meshes
            .iter()
            .filter(|(id, _)| !world.meshes[*id].deleting)
        {
            for (name, cluster) in &mesh.clusters {
                // Addresses outside the declared range are skipped for another
                // reason.
                let after = &then.meshes[id].clusters[name];
                let outside = |node: &NodeName| {
                    after
                        .skipped
                        .get(node)
                        .is_some_and(|skip| skip.reason == SkipReason::WGIPOutOfRange)
                };
                // So are Peers that no target wants, e.g. one with a key of the only
                // target.
                let is_held = |peer: &PeerName| {
                    mesh.targets
                        .values()
                        .any(|changes| changes.held.contains_key(peer))
                };
                for (node, _) in cluster
                    .peers
                    .iter()
                    .filter(|(node, peer)| is_written(peer) && !is_held(peer) && !outside(node))
                {
                    prop_assert!(
                        after.peers.contains_key(node),
                        "{} of {} lost its Peer",
                        node,
                        name
                    );
                }
            }
        }
        Ok(())
    });
}
