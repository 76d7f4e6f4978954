//! Steps that change a fleet: nodes are added, changed and removed, people edit
//! Peers, clusters become unreachable, plans are applied, time passes. Each
//! step is applied to a `World` and, if requested, to a `Planner` in parallel.

use std::collections::BTreeMap;

use mw_core::kilo::guard::{History, Resting};
use mw_core::kilo::node::Node;
use mw_core::kilo::peer::{Labels, PeerFacts, WantedPeer};
use mw_core::kilo::plan::Plan;
use mw_core::kilo::planner::{Planner, World};
use mw_core::kilo::{Departures, LastDiscovery, plan};
use mw_core::names::{ClusterId, ClusterName, NodeName, PeerName};
use mw_core::seen::Seen;
use mw_core::time::Timestamp;
use proptest::prelude::*;

use crate::fleet::{CLUSTERS, ForeignDesign, NODES, NodeDesign, foreign, node};

#[derive(Debug, Clone)]
pub(crate) enum Step {
    SetNode(NodeDesign),
    /// A Node's delete event is observed.
    RemoveNode(u8, u8),
    /// A Node is missing from a later list.
    LoseNode(u8, u8),
    LoseAllNodes(u8),
    /// Kilo's agent stops cleanly.
    Bare(u8, u8),
    /// Kilo's agent crashes and leaves its annotations behind.
    Silence(u8, u8),
    Unknown(u8),
    /// Its Peers can be read, its Nodes can't.
    NodesUnknown(u8),
    Foreign(ForeignDesign),
    EditPeer {
        target: u8,
        peer: u8,
        edit: u8,
    },
    DropPeer {
        target: u8,
        peer: u8,
    },
    Apply,
    Wait(u8),
    DeleteMesh,
    DropCluster(u8),
    Confirm,
    Heartbeat(u8),
    /// Every Node of a cluster gets a new key.
    Rekey(u8),
    /// Sets or clears the fact that all Nodes of a cluster are new.
    Replace(u8),
    /// Exhausts or refills the budget of a source on a target.
    Rest {
        target: u8,
        source: u8,
        arrivals: bool,
    },
    /// The nodes of a cluster no longer list a discovered key; it is still
    /// remembered for some seconds.
    Vanish {
        target: u8,
        of: (u8, u8),
        at: u8,
        lasts: u8,
    },
    /// Records in the guard's history that a Peer was deleted.
    Remember {
        target: u8,
        peer: u8,
    },
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let cluster = || 0..4u8;
    prop_oneof![
        8 => node().prop_map(Step::SetNode),
        2 => (cluster(), 0..7u8).prop_map(|(c, n)| Step::RemoveNode(c, n)),
        2 => (cluster(), 0..7u8).prop_map(|(c, n)| Step::LoseNode(c, n)),
        1 => cluster().prop_map(Step::LoseAllNodes),
        2 => (cluster(), 0..7u8).prop_map(|(c, n)| Step::Bare(c, n)),
        3 => (cluster(), 0..7u8).prop_map(|(c, n)| Step::Silence(c, n)),
        1 => cluster().prop_map(Step::Unknown),
        1 => cluster().prop_map(Step::NodesUnknown),
        3 => foreign().prop_map(Step::Foreign),
        3 => (cluster(), 0..8u8, 0..9u8).prop_map(|(target, peer, edit)| Step::EditPeer { target, peer, edit }),
        1 => (cluster(), 0..8u8).prop_map(|(target, peer)| Step::DropPeer { target, peer }),
        5 => Just(Step::Apply),
        2 => (0..120u8).prop_map(Step::Wait),
        1 => Just(Step::DeleteMesh),
        1 => (1..4u8).prop_map(Step::DropCluster),
        1 => Just(Step::Confirm),
        1 => (0..3u8).prop_map(Step::Heartbeat),
        1 => cluster().prop_map(Step::Rekey),
        2 => cluster().prop_map(Step::Replace),
        1 => (cluster(), 0..8u8).prop_map(|(target, peer)| Step::Remember { target, peer }),
        1 => (cluster(), (cluster(), 0..7u8), 0..4u8, 0..120u8).prop_map(|(target, of, at, lasts)| Step::Vanish { target, of, at, lasts }),
        2 => (cluster(), cluster(), any::<bool>()).prop_map(|(target, source, arrivals)| Step::Rest { target, source, arrivals }),
    ]
}

fn id(cluster: u8) -> ClusterId {
    ClusterId::from(CLUSTERS[usize::from(cluster)])
}

impl Step {
    pub(crate) fn play(&self, world: &mut World, mut beside: Option<&mut Planner>) {
        match self {
            Step::SetNode(design) => set_node(
                world,
                &mut beside,
                &design.cluster_id(),
                design.node(world.now.0).as_ref().clone(),
            ),
            Step::RemoveNode(c, n) => remove_node(world, &mut beside, &id(*c), *n),
            Step::LoseNode(c, n) => relist(world, &mut beside, &id(*c), |name| {
                name != NODES[usize::from(*n)]
            }),
            Step::LoseAllNodes(c) => relist(world, &mut beside, &id(*c), |_| false),
            Step::Bare(c, n) => bare(world, &mut beside, &id(*c), *n),
            Step::Silence(c, n) => silence(world, &mut beside, &id(*c), *n),
            Step::Unknown(c) => unknown(world, &mut beside, &id(*c)),
            Step::NodesUnknown(c) => nodes_unknown(world, &mut beside, &id(*c)),
            Step::Foreign(design) => {
                set_peer(world, &mut beside, &design.target_id(), design.peer())
            }
            Step::EditPeer { target, peer, edit } => {
                edit_peer(world, &mut beside, &id(*target), *peer, *edit)
            }
            Step::DropPeer { target, peer } => drop_peer(world, &mut beside, &id(*target), *peer),
            Step::Apply => {
                let plan = plan(world.clone());
                apply(&plan, world, &mut beside);
            }
            Step::Wait(seconds) => {
                world.now = Timestamp(world.now.0 + i64::from(*seconds));
                if let Some(planner) = beside {
                    planner.set_now(world.now);
                }
            }
            Step::DeleteMesh => change_meshes(world, &mut beside, |world| {
                if let Some(mesh) = world.meshes.values_mut().next() {
                    mesh.deleting = true;
                }
            }),
            Step::DropCluster(c) => change_meshes(world, &mut beside, |world| {
                if let Some(mesh) = world
                    .meshes
                    .values_mut()
                    .next()
                    .filter(|mesh| mesh.spec.clusters.len() > 2)
                {
                    mesh.spec
                        .clusters
                        .retain(|cluster| cluster.name != CLUSTERS[usize::from(*c)]);
                }
            }),
            Step::Confirm => {
                let hashes: Vec<_> = plan(world.clone())
                    .meshes
                    .into_iter()
                    .filter_map(|(id, mesh)| Some((id, mesh.held_hash?)))
                    .collect();
                change_meshes(world, &mut beside, |world| {
                    for (id, hash) in hashes {
                        world.meshes.get_mut(&id).unwrap().confirm_deletes = Some(hash);
                    }
                });
            }
            Step::Heartbeat(c) => heartbeat(world, &mut beside, &id(*c)),
            Step::Rekey(c) => rekey(world, &mut beside, &id(*c)),
            Step::Replace(c) => remember(world, &mut beside, |history| {
                if !history.replaced.remove(&id(*c)) {
                    history.replaced.insert(id(*c));
                }
            }),
            Step::Rest {
                target,
                source,
                arrivals,
            } => rest(world, &mut beside, &id(*target), *source, *arrivals),
            Step::Vanish {
                target,
                of,
                at,
                lasts,
            } => vanish(world, &mut beside, &id(*target), *of, (*at, *lasts)),
            Step::Remember { target, peer } => {
                remember_peer(world, &mut beside, &id(*target), *peer)
            }
        }
    }
}

type Beside<'a> = Option<&'a mut Planner>;

fn remember(world: &mut World, beside: &mut Beside<'_>, change: impl FnOnce(&mut History)) {
    change(&mut world.history);
    if let Some(planner) = beside {
        planner.set_history(world.history.clone());
    }
}

fn remember_peer(world: &mut World, beside: &mut Beside<'_>, target: &ClusterId, peer: u8) {
    let Some(facts) = peer_at(world, target, peer) else {
        return;
    };
    let (Labels { source, .. }, Some(mesh)) = (&facts.labels, world.meshes.keys().next().cloned())
    else {
        return;
    };
    let Some(source) = source
        .as_deref()
        .and_then(|source| ClusterName::try_from(source).ok())
    else {
        return;
    };
    let removed = PeerName::of(&mesh.name, &source, &format!("gone-{peer}"));
    remember(world, beside, |history| {
        _ = history
            .removed
            .entry((target.clone(), mesh, source))
            .or_default()
            .insert(removed)
    });
}

fn vanish(
    world: &mut World,
    beside: &mut Beside<'_>,
    target: &ClusterId,
    (cluster, node): (u8, u8),
    (at, lasts): (u8, u8),
) {
    let key = crate::fleet::key(cluster, node)
        .as_str()
        .try_into()
        .unwrap();
    let endpoint = format!("203.0.113.{}:51820", 10 * cluster + at)
        .as_str()
        .try_into()
        .unwrap();
    let vanished = world.vanished.entry(target.clone()).or_default();
    vanished.insert(
        key,
        LastDiscovery {
            endpoint,
            until: world.now.plus(u64::from(lasts)),
        },
    );
    if let Some(planner) = beside {
        planner.set_vanished(target, vanished.clone());
    }
}

fn rest(
    world: &mut World,
    beside: &mut Beside<'_>,
    target: &ClusterId,
    source: u8,
    arrivals: bool,
) {
    let Some(mesh) = world.meshes.keys().next().cloned() else {
        return;
    };
    let key = (
        target.clone(),
        mesh,
        ClusterName::try_from(CLUSTERS[usize::from(source)]).unwrap(),
    );
    remember(world, beside, |history| {
        if history.resting.remove(&key).is_none() {
            history.resting.insert(
                key,
                Resting {
                    changes: !arrivals,
                    arrivals,
                },
            );
        }
    });
}

fn rekey(world: &mut World, beside: &mut Beside<'_>, cluster: &ClusterId) {
    let Some(Seen::Known(nodes)) = world.clusters.get(cluster).map(|seen| &seen.nodes) else {
        return;
    };
    let rekeyed = |(at, node): (u8, &std::sync::Arc<Node>)| {
        let key = crate::fleet::key(
            200 + at,
            u8::try_from(cluster.as_str().len() % 256).unwrap_or_default()
                ^ cluster.as_str().as_bytes()[0],
        );
        Node {
            key: Ok(mw_core::key::PublicKey::try_from(key.as_str()).ok()),
            ..node.as_ref().clone()
        }
    };
    let nodes: Vec<Node> = (0..)
        .zip(nodes.values())
        .filter(|(_, node)| matches!(node.key, Ok(Some(_))))
        .map(rekeyed)
        .collect();
    for node in nodes {
        set_node(world, beside, cluster, node);
    }
}

fn set_node(world: &mut World, beside: &mut Beside<'_>, cluster: &ClusterId, node: Node) {
    crate::fleet::put_node(world, cluster, std::sync::Arc::new(node.clone()));
    if let Some(planner) = beside {
        planner.set_node(cluster, node);
    }
}

fn remove_node(world: &mut World, beside: &mut Beside<'_>, cluster: &ClusterId, node: u8) {
    let name: NodeName = NODES[usize::from(node)].into();
    let Some(seen) = world.clusters.get_mut(cluster) else {
        return;
    };
    let mut gone = None;
    if let Seen::Known(nodes) = &mut seen.nodes {
        gone = nodes.remove(&name);
    }
    if let Departures::Seen(left) = &mut seen.departures {
        let key = gone.and_then(|node| node.key.clone().ok().flatten());
        let last = left.entry(name.clone()).or_default();
        *last = key.or(*last);
    }
    if let Some(planner) = beside {
        planner.remove_node(cluster, &name);
    }
}

fn relist(
    world: &mut World,
    beside: &mut Beside<'_>,
    cluster: &ClusterId,
    keep: impl Fn(&str) -> bool,
) {
    let Some(seen) = world.clusters.get_mut(cluster) else {
        return;
    };
    if let Seen::Known(nodes) = &mut seen.nodes {
        nodes.retain(|name, _| keep(name.as_str()));
    }
    if let Some(planner) = beside {
        planner.set_nodes(cluster, seen.nodes.clone());
    }
}

fn bare(world: &mut World, beside: &mut Beside<'_>, cluster: &ClusterId, node: u8) {
    let name = NODES[usize::from(node)].into();
    let Some(Seen::Known(nodes)) = world.clusters.get(cluster).map(|seen| &seen.nodes) else {
        return;
    };
    let Some(node) = nodes.get(&name) else { return };
    let mut node = node.as_ref().clone();
    node.key = Ok(None);
    node.last_seen = None;
    node.wireguard_ip = Ok(None);
    node.kilo_internal = None;
    node.location_granularity = false;
    node.bare_since = Some(world.now);
    set_node(world, beside, cluster, node);
}

fn silence(world: &mut World, beside: &mut Beside<'_>, cluster: &ClusterId, node: u8) {
    let name = NODES[usize::from(node)].into();
    let Some(Seen::Known(nodes)) = world.clusters.get(cluster).map(|seen| &seen.nodes) else {
        return;
    };
    let Some(node) = nodes.get(&name) else { return };
    let silent = Node {
        last_seen: node.last_seen.map(|at| at - 1000),
        ..node.as_ref().clone()
    };
    set_node(world, beside, cluster, silent);
}

fn nodes_unknown(world: &mut World, beside: &mut Beside<'_>, cluster: &ClusterId) {
    let Some(seen) = world.clusters.get_mut(cluster) else {
        return;
    };
    seen.nodes = Seen::Unknown("no answer".to_owned());
    if let Some(planner) = beside {
        planner.set_nodes(cluster, seen.nodes.clone());
    }
}

fn unknown(world: &mut World, beside: &mut Beside<'_>, cluster: &ClusterId) {
    nodes_unknown(world, beside, cluster);
    let Some(seen) = world.clusters.get_mut(cluster) else {
        return;
    };
    seen.peers = Seen::Unknown("no answer".to_owned());
    if let Some(planner) = beside {
        planner.set_peers(cluster, seen.peers.clone());
    }
}

pub(crate) fn set_peer(
    world: &mut World,
    beside: &mut Beside<'_>,
    cluster: &ClusterId,
    facts: PeerFacts,
) {
    if world
        .clusters
        .get(cluster)
        .is_none_or(|seen| seen.peers.known().is_none())
    {
        return;
    }
    crate::fleet::put_peer(world, cluster, facts.clone());
    if let Some(planner) = beside {
        planner.set_peer(cluster, facts);
    }
}

fn peer_at(world: &World, cluster: &ClusterId, at: u8) -> Option<PeerFacts> {
    let peers = world.clusters.get(cluster)?.peers.known()?;
    peers
        .values()
        .nth(usize::from(at) % peers.len().max(1))
        .cloned()
}

fn edit_peer(world: &mut World, beside: &mut Beside<'_>, cluster: &ClusterId, peer: u8, edit: u8) {
    let Some(mut facts) = peer_at(world, cluster, peer) else {
        return;
    };
    facts.resource_version.push('e');
    match edit {
        0 => facts.spec.allowed_ips.push("10.88.0.0/16".to_owned()),
        1 => _ = facts.spec.allowed_ips.pop(),
        2 => facts.spec.keepalive = 99,
        3 => facts.spec.endpoint = None,
        4 => facts.labels = Labels::default(),
        5 => {
            facts.labels = Labels {
                namespace: None,
                hub: None,
                ..facts.labels
            }
        }
        6 => facts.spec.public_key = crate::fleet::key(250, peer),
        7 => facts.labels.source = Some("b".to_owned()),
        _ => facts.deleting = true,
    }
    set_peer(world, beside, cluster, facts);
}

fn drop_peer(world: &mut World, beside: &mut Beside<'_>, cluster: &ClusterId, peer: u8) {
    if let Some(facts) = peer_at(world, cluster, peer) {
        remove_peer(world, beside, cluster, &PeerName::from(facts.name.as_str()));
    }
}

fn remove_peer(world: &mut World, beside: &mut Beside<'_>, cluster: &ClusterId, name: &PeerName) {
    if let Some(Seen::Known(peers)) = world.clusters.get_mut(cluster).map(|seen| &mut seen.peers) {
        peers.remove(name);
    }
    if let Some(planner) = beside {
        planner.remove_peer(cluster, name);
    }
}

fn change_meshes(world: &mut World, beside: &mut Beside<'_>, change: impl FnOnce(&mut World)) {
    change(world);
    if let Some(planner) = beside {
        planner.set_meshes(
            world.meshes.clone(),
            world.identities.clone(),
            world.links.clone(),
        );
    }
}

fn heartbeat(world: &mut World, beside: &mut Beside<'_>, cluster: &ClusterId) {
    let Some(Seen::Known(nodes)) = world.clusters.get(cluster).map(|seen| &seen.nodes) else {
        return;
    };
    let beaten: Vec<Node> = nodes
        .values()
        .map(|node| Node {
            last_seen: node.last_seen.map(|at| at + 30),
            ..node.as_ref().clone()
        })
        .collect();
    for node in beaten {
        set_node(world, beside, cluster, node);
    }
}

/// The Peer in a cluster after our write.
fn written(wanted: &WantedPeer, before: Option<&PeerFacts>, now: Timestamp) -> PeerFacts {
    let endpoint_same = before.is_some_and(|before| before.spec.endpoint == wanted.spec().endpoint);
    PeerFacts {
        name: wanted.name().to_string(),
        uid: before.map_or_else(
            || format!("uid-{}", wanted.name()),
            |before| before.uid.clone(),
        ),
        resource_version: before.map_or_else(
            || "1".to_owned(),
            |before| format!("{}u", before.resource_version),
        ),
        deleting: false,
        labels: wanted.labels().clone(),
        spec: wanted.spec(),
        endpoint_written: match endpoint_same {
            true => before.and_then(|before| before.endpoint_written),
            false => Some(now),
        },
    }
}

/// Carries out a plan, deletes first, and records the held changes.
pub(crate) fn apply(plan: &Plan, world: &mut World, beside: &mut Beside<'_>) {
    if plan
        .meshes
        .iter()
        .any(|(id, mesh)| world.meshes[id].held != mesh.held())
    {
        change_meshes(world, beside, |world| {
            for (id, mesh) in &plan.meshes {
                world.meshes.get_mut(id).unwrap().held = mesh.held();
            }
        });
    }
    if world.orphans.held != plan.held_orphans() {
        world.orphans.held = plan.held_orphans();
        if let Some(planner) = beside {
            planner.set_orphans(world.orphans.clone());
        }
    }
    let all: BTreeMap<ClusterId, Vec<_>> = plan
        .meshes
        .values()
        .flat_map(|mesh| &mesh.targets)
        .chain(&plan.orphans)
        .fold(BTreeMap::new(), |mut all, (id, changes)| {
            all.entry(id.clone()).or_insert_with(Vec::new).push(changes);
            all
        });
    for (cluster, changes) in all {
        for name in changes.iter().flat_map(|changes| changes.delete.keys()) {
            remove_peer(world, beside, &cluster, name);
        }
        let updates = changes
            .iter()
            .flat_map(|changes| changes.update.values().map(|update| &update.after));
        for wanted in updates.chain(changes.iter().flat_map(|changes| changes.create.values())) {
            let before = world.clusters[&cluster]
                .peers
                .known()
                .and_then(|peers| peers.get(wanted.name()))
                .cloned();
            let facts = written(wanted, before.as_ref(), world.now);
            set_peer(world, beside, &cluster, facts);
        }
    }
}
