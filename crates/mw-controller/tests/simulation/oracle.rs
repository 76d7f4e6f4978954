//! Expected Peers of every cluster, computed in the simplest way from the objects
//! on the servers. Uses none of our crates, since it would share their bugs.
//!
//! Covers only what the runs do: IPv4, unique node names, and values that are
//! either valid or obviously invalid. The choice of the anchor depends on history,
//! so it is checked, not computed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mw_sim::kilo::is_key;
use serde_json::{Value, json};

use crate::bed::{Bed, MESHES, NODES, PEERS};
use crate::lies::is_hostile;

pub(crate) const LABELS: &str = "kilo-clustermesh.io/";
const KILO: &str = "kilo.squat.ai/";

/// A Peer without the cluster-wide networks, which only the anchor carries.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wanted {
    key: String,
    endpoint: Value,
    keepalive: u64,
    allowed: BTreeSet<String>,
    /// Host routes shared by several nodes of the source: one of them carries each
    /// route, wherever it has a Peer.
    shared: BTreeSet<String>,
    source: String,
    node: String,
}

/// Describes all differences from the expected state; empty if there are none.
pub(crate) fn differences(bed: &Bed) -> Vec<String> {
    let mut wrong = Vec::new();
    let hub_uid = bed.hub_uid();
    // Objects of a hostile owner are not checked.
    let hostile = |object: &Value| {
        is_hostile(text(&object["metadata"]["namespace"]))
            || label(object, "mesh-namespace").is_some_and(is_hostile)
    };
    let honest = |mut objects: Vec<Arc<Value>>| {
        objects.retain(|object| !hostile(object));
        objects
    };
    let meshes: Vec<Arc<Value>> = honest(bed.on(&bed.hub).list(MESHES));
    for name in bed.clusters.keys() {
        let peers = honest(bed.on(name).list(PEERS));
        let ours: BTreeMap<&str, &Value> = peers
            .iter()
            .filter(|peer| label(peer, "hub") == Some(&hub_uid))
            .map(|peer| (text(&peer["metadata"]["name"]), &**peer))
            .collect();
        let others: BTreeSet<&str> = peers
            .iter()
            .filter(|peer| label(peer, "hub") != Some(&hub_uid))
            .map(|peer| text(&peer["metadata"]["name"]))
            .collect();
        let mut wanted: BTreeMap<String, (Wanted, &Value)> = BTreeMap::new();
        for mesh in &meshes {
            let found = wanted_on(bed, mesh, name).into_iter();
            wanted.extend(
                found
                    .filter(|(peer, _)| !others.contains(peer.as_str()))
                    .map(|(peer, of)| (peer, (of, &**mesh))),
            );
        }
        // Peers left in a cluster that no mesh names are deleted when one names it.
        let named = meshes
            .iter()
            .flat_map(|mesh| entries(mesh))
            .any(|entry| cluster_of(bed, entry).as_ref() == Some(name));
        let left = |peer: &Value| {
            !named
                && label(peer, "mesh").is_some_and(|mesh| bed.witness.was_left_behind(name, mesh))
        };
        let unwanted = ours.iter().filter(|(peer, _)| !wanted.contains_key(**peer));
        for (peer, _) in unwanted.filter(|(_, found)| !left(found)) {
            wrong.push(format!("{name} holds {peer}, which nobody wants"));
        }
        for route in wanted
            .values()
            .flat_map(|(wanted, _)| &wanted.shared)
            .collect::<BTreeSet<_>>()
        {
            let carries = |peer: &&Value| {
                array(&peer["spec"]["allowedIPs"])
                    .iter()
                    .any(|cidr| cidr == route.as_str())
            };
            let carriers = ours.values().copied().filter(carries).count();
            // None is possible: the carrier may have no Peer here.
            if carriers > 1 {
                wrong.push(format!(
                    "{carriers} Peers on {name} carry {route}, which several nodes have"
                ));
            }
        }
        for (peer, (wanted, mesh)) in &wanted {
            match ours.get(peer.as_str()) {
                None => wrong.push(format!("{name} lacks {peer}")),
                Some(found) => wrong.extend(
                    compare(wanted, found, mesh, &hub_uid)
                        .map(|why| format!("{peer} on {name}: {why}")),
                ),
            }
        }
    }
    meshes
        .iter()
        .for_each(|mesh| wrong.extend(anchors(bed, mesh, &hub_uid)));
    wrong
}

/// Reports whether a mesh holds the delete of a Peer that must stay, or a key that
/// is not new (`NAME=KEY`).
pub(crate) fn holds_wanted(bed: &Bed, mesh: &Value) -> bool {
    array(&mesh["status"]["heldDeletes"]).iter().any(|held| {
        let entry = entries(mesh)
            .into_iter()
            .find(|entry| entry["name"] == held["cluster"]);
        let Some(cluster) = entry.and_then(|entry| cluster_of(bed, entry)) else {
            return false;
        };
        let wanted = wanted_on(bed, mesh, &cluster);
        array(&held["peers"])
            .iter()
            .any(|line| match text(line).split_once('=') {
                None => wanted.contains_key(text(line)),
                Some((peer, key)) => wanted.get(peer).is_none_or(|wanted| wanted.key != key),
            })
    })
}

fn compare(wanted: &Wanted, found: &Value, mesh: &Value, hub_uid: &str) -> Option<String> {
    let extras = extras(mesh, &wanted.source);
    let allowed: BTreeSet<String> = array(&found["spec"]["allowedIPs"])
        .iter()
        .map(|cidr| text(cidr).to_owned())
        .collect();
    let found_as = Wanted {
        key: text(&found["spec"]["publicKey"]).to_owned(),
        endpoint: found["spec"]["endpoint"].clone(),
        keepalive: found["spec"]["persistentKeepalive"].as_u64().unwrap_or(0),
        allowed: allowed
            .into_iter()
            .filter(|cidr| !extras.contains(cidr) && !wanted.shared.contains(cidr))
            .collect(),
        ..wanted.clone()
    };
    if found_as != *wanted {
        return Some(format!("wanted {wanted:?}, found {found_as:?}"));
    }
    let labels = [
        ("mesh", text(&mesh["metadata"]["name"])),
        ("mesh-namespace", text(&mesh["metadata"]["namespace"])),
        ("source-cluster", &wanted.source),
        ("hub", hub_uid),
    ];
    let wrong = labels
        .iter()
        .find(|(name, value)| label(found, name) != Some(value));
    wrong.map(|(name, value)| {
        format!(
            "label {name} must be {value}: {}",
            found["metadata"]["labels"]
        )
    })
}

/// Expected Peers of a mesh in a cluster.
pub(crate) fn wanted_on(bed: &Bed, mesh: &Value, cluster: &str) -> BTreeMap<String, Wanted> {
    let mut wanted = BTreeMap::new();
    if !mesh["metadata"]["deletionTimestamp"].is_null() {
        return wanted;
    }
    let entries = entries(mesh);
    let Some(target) = entries
        .iter()
        .find(|entry| cluster_of(bed, entry).as_deref() == Some(cluster))
    else {
        return wanted;
    };
    for source in entries
        .iter()
        .filter(|entry| entry["name"] != target["name"])
    {
        let Some(from) = cluster_of(bed, source) else {
            continue;
        };
        let keepalive = [source, target]
            .iter()
            .filter_map(|entry| entry["persistentKeepalive"].as_u64())
            .filter(|seconds| *seconds > 0)
            .min();
        let nodes = bed.on(&from).list(NODES);
        let shared = shared_routes(bed, mesh, source, &nodes);
        let here = |node: &Value| roams(bed, mesh, source, cluster, node) || keepalive.is_some();
        for (node, carried) in speakers(&nodes, source)
            .into_iter()
            .filter(|(node, _)| takes_part(node, source, here(node)))
        {
            let key = annotation(node, "key").unwrap_or_default().to_owned();
            let mut allowed: BTreeSet<String> =
                carried.iter().flat_map(|node| pod_cidrs(node)).collect();
            allowed.extend(
                annotation(node, "wireguard-ip")
                    .map(host_route)
                    .filter(|route| !shared.contains(route)),
            );
            if let Some(declared) = declared_internal(source) {
                let internal = carried
                    .iter()
                    .filter_map(|node| annotation(node, "internal-ip"));
                allowed.extend(
                    internal
                        .filter(|ip| contains(&declared, ip))
                        .map(host_route),
                );
            }
            let endpoint = discovered(&bed.on(cluster).list(NODES), &key)
                .or_else(|| endpoint(node))
                .unwrap_or_default();
            let (source, node) = (
                text(&source["name"]).to_owned(),
                text(&node["metadata"]["name"]).to_owned(),
            );
            let name = format!("{}--{source}--{node}", text(&mesh["metadata"]["name"]));
            wanted.insert(
                name,
                Wanted {
                    key,
                    endpoint,
                    keepalive: keepalive.unwrap_or(0),
                    allowed,
                    shared: shared.clone(),
                    source,
                    node,
                },
            );
        }
    }
    wanted
}

/// Host routes shared by several nodes that have a Peer anywhere.
fn shared_routes(
    bed: &Bed,
    mesh: &Value,
    source: &Value,
    nodes: &[Arc<Value>],
) -> BTreeSet<String> {
    let entries = entries(mesh);
    let keepalive = entries
        .iter()
        .filter_map(|entry| entry["persistentKeepalive"].as_u64())
        .any(|seconds| seconds > 0);
    let others: Vec<String> = entries
        .iter()
        .filter(|entry| entry["name"] != source["name"])
        .filter_map(|entry| cluster_of(bed, entry))
        .collect();
    let anywhere = |node: &Value| {
        keepalive
            || others
                .iter()
                .any(|other| roams(bed, mesh, source, other, node))
    };
    let speakers = speakers(nodes, source)
        .into_iter()
        .filter(|(node, _)| takes_part(node, source, anywhere(node)));
    let routes: Vec<String> = speakers
        .filter_map(|(node, _)| annotation(node, "wireguard-ip").map(host_route))
        .collect();
    let is_shared = |route: &&String| routes.iter().filter(|other| other == route).count() > 1;
    routes.iter().filter(is_shared).cloned().collect()
}

/// Checks that the cluster-wide networks of each cluster are carried by one capable
/// node, the same everywhere.
fn anchors(bed: &Bed, mesh: &Value, hub_uid: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let entries = entries(mesh);
    for source in &entries {
        let (name, extras) = (text(&source["name"]), extras(mesh, text(&source["name"])));
        let Some(from) = cluster_of(bed, source).filter(|_| !extras.is_empty()) else {
            continue;
        };
        let nodes = bed.on(&from).list(NODES);
        let mut carriers: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for target in entries
            .iter()
            .filter(|entry| entry["name"] != source["name"])
        {
            let Some(on) = cluster_of(bed, target) else {
                continue;
            };
            let wanted = wanted_on(bed, mesh, &on);
            for peer in bed
                .on(&on)
                .list(PEERS)
                .iter()
                .filter(|peer| label(peer, "hub") == Some(hub_uid))
            {
                let allowed: BTreeSet<&str> = array(&peer["spec"]["allowedIPs"])
                    .iter()
                    .map(text)
                    .collect();
                let carried = extras
                    .iter()
                    .filter(|cidr| allowed.contains(cidr.as_str()))
                    .count();
                if let Some(of) = wanted
                    .get(text(&peer["metadata"]["name"]))
                    .filter(|of| of.source == name && carried > 0)
                {
                    if carried < extras.len() {
                        wrong.push(format!(
                            "{} on {on} carries only some of {extras:?}",
                            peer["metadata"]["name"]
                        ));
                    }
                    carriers
                        .entry(on.clone())
                        .or_default()
                        .push(of.node.clone());
                }
            }
            let taken = taken_names(bed, &on, hub_uid, &wanted);
            let carrying = carriers.get(&on).map(Vec::as_slice).unwrap_or_default();
            if carrying.len() > 1 {
                wrong.push(format!(
                    "the networks of {name} ride on several Peers on {on}: {carrying:?}"
                ));
            }
            if carrying.is_empty()
                && taken == 0
                && may_carry(&nodes, source, &wanted).next().is_some()
            {
                wrong.push(format!("the networks of {name} ride on no Peer on {on}"));
            }
            let able: Vec<&Value> = may_carry(&nodes, source, &wanted).collect();
            let rank = |node: &Value| (!is_ready(node), !is_alive(&nodes, node) || !is_ready(node));
            let best = able.iter().map(|node| rank(node)).min();
            for anchor in carrying.iter().filter(|_| taken == 0) {
                let Some(node) = able
                    .iter()
                    .find(|node| node["metadata"]["name"] == **anchor)
                else {
                    wrong.push(format!(
                        "the networks of {name} ride on {anchor} on {on}, which can't carry them"
                    ));
                    continue;
                };
                if Some(rank(node)) != best {
                    wrong.push(format!("the networks of {name} ride on {anchor} on {on}, while others are Ready and their agents alive"));
                }
            }
        }
        let all: BTreeSet<&String> = carriers.values().flatten().collect();
        if all.len() > 1 {
            wrong.push(format!(
                "the networks of {name} ride on different nodes: {carriers:?}"
            ));
        }
    }
    wrong
}

/// Reasons why a mesh may permanently not be Ready: networks that no node can carry,
/// locations whose leader can't be a Peer, and Peer names that are taken.
pub(crate) fn lasting_trouble(bed: &Bed, mesh: &Value) -> BTreeSet<&'static str> {
    let mut reasons = BTreeSet::new();
    let entries = entries(mesh);
    for source in &entries {
        let Some(from) = cluster_of(bed, source) else {
            continue;
        };
        let nodes = bed.on(&from).list(NODES);
        for target in entries
            .iter()
            .filter(|entry| entry["name"] != source["name"])
        {
            let Some(on) = cluster_of(bed, target) else {
                continue;
            };
            let wanted = wanted_on(bed, mesh, &on);
            if may_carry(&nodes, source, &wanted).next().is_none() {
                reasons.insert("AnchorUnavailable");
            }
            let peered = |node: &Value| {
                wanted.values().any(|of| {
                    of.source == text(&source["name"]) && node["metadata"]["name"] == of.node
                })
            };
            let silent = speakers(&nodes, source).iter().any(|(node, _)| {
                annotation(node, "granularity") == Some("location") && !peered(node)
            });
            if silent {
                reasons.insert("LocationWithoutPeer");
            }
            // One of our Peers that lost its labels is recognized only by its key.
            let in_the_way = |peer: &Arc<Value>| {
                let wanted = wanted.get(text(&peer["metadata"]["name"]));
                label(peer, "mesh").is_none()
                    && wanted.is_some_and(|wanted| peer["spec"]["publicKey"] != wanted.key.as_str())
            };
            if bed.on(&on).list(PEERS).iter().any(in_the_way) {
                reasons.insert("PeerNameTaken");
            }
        }
    }
    reasons
}

/// Number of expected Peers whose names are taken by foreign Peers.
fn taken_names(
    bed: &Bed,
    cluster: &str,
    hub_uid: &str,
    wanted: &BTreeMap<String, Wanted>,
) -> usize {
    let peers = bed.on(cluster).list(PEERS);
    let foreign = peers
        .iter()
        .filter(|peer| label(peer, "hub") != Some(hub_uid));
    foreign
        .filter(|peer| wanted.contains_key(text(&peer["metadata"]["name"])))
        .count()
}

/// Nodes with a Peer and their own endpoint; if there are none and the cluster sets
/// a keepalive, all nodes with a Peer.
fn may_carry<'a>(
    nodes: &'a [Arc<Value>],
    source: &Value,
    wanted: &BTreeMap<String, Wanted>,
) -> impl Iterator<Item = &'a Value> {
    let name = text(&source["name"]);
    let peered: BTreeSet<&str> = wanted
        .values()
        .filter(|of| of.source == name)
        .map(|of| of.node.as_str())
        .collect();
    let peered: Vec<&Value> = nodes
        .iter()
        .map(|node| &**node)
        .filter(|node| peered.contains(text(&node["metadata"]["name"])))
        .collect();
    let fixed: Vec<&Value> = peered
        .iter()
        .copied()
        .filter(|node| endpoint(node).is_some())
        .collect();
    let roaming = source["persistentKeepalive"].as_u64().unwrap_or(0) > 0;
    match (fixed.is_empty(), roaming) {
        (false, _) => fixed.into_iter(),
        (true, true) => peered.into_iter(),
        (true, false) => Vec::new().into_iter(),
    }
}

/// Cluster-wide networks that a cluster declares.
fn extras(mesh: &Value, source: &str) -> BTreeSet<String> {
    let entries = entries(mesh);
    let Some(entry) = entries.into_iter().find(|entry| entry["name"] == source) else {
        return BTreeSet::new();
    };
    let optional = [&entry["serviceCIDR"]]
        .into_iter()
        .chain(array(&entry["additionalCIDRs"]));
    let flat = array(&entry["allowedNetworks"]).iter().skip(2);
    optional
        .chain(flat)
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

/// Network that is declared for the nodes' internal addresses.
fn declared_internal(entry: &Value) -> Option<String> {
    array(&entry["additionalCIDRs"])
        .first()
        .and_then(Value::as_str)
        .map(str::to_owned)
}

/// Nodes that run WireGuard, each with the nodes whose traffic it carries.
fn speakers<'a>(nodes: &'a [Arc<Value>], entry: &Value) -> Vec<(&'a Value, Vec<&'a Value>)> {
    let mut speakers = Vec::new();
    let mut places: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for node in nodes.iter().map(|node| &**node) {
        match annotation(node, "granularity") {
            Some("location") if is_alive(nodes, node) && in_range(node, entry) => {
                places
                    .entry(annotation(node, "location").unwrap_or_default())
                    .or_default()
                    .push(node);
            }
            Some("location") => {}
            _ => speakers.push((node, vec![node])),
        }
    }
    for nodes in places.into_values() {
        let marked = nodes
            .iter()
            .find(|node| !node["metadata"]["annotations"][format!("{KILO}leader")].is_null());
        speakers.push((*marked.unwrap_or(&nodes[0]), nodes));
    }
    speakers
}

fn is_alive(nodes: &[Arc<Value>], node: &Value) -> bool {
    let seen =
        |node: &Value| annotation(node, "last-seen").and_then(|text| text.parse::<u64>().ok());
    let mut all: Vec<u64> = nodes.iter().filter_map(|node| seen(node)).collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    let Some(yardstick) = (if all.len() > 2 {
        all.get(1)
    } else {
        all.first()
    }) else {
        return true;
    };
    seen(node).is_some_and(|seen| seen + 60 > *yardstick)
}

/// Reports whether a node's Peer exists in a cluster without a configured endpoint:
/// it stays there, whatever the keepalives.
fn roams(bed: &Bed, mesh: &Value, source: &Value, cluster: &str, node: &Value) -> bool {
    let name = format!(
        "{}--{}--{}",
        text(&mesh["metadata"]["name"]),
        text(&source["name"]),
        text(&node["metadata"]["name"])
    );
    let Some(peer) = bed.on(cluster).get(&format!("{PEERS}/{name}")) else {
        return false;
    };
    let ours = label(&peer, "mesh") == mesh["metadata"]["name"].as_str();
    let found = discovered(
        &bed.on(cluster).list(NODES),
        text(&peer["spec"]["publicKey"]),
    );
    ours && (peer["spec"]["endpoint"].is_null() || found.is_some())
}

fn takes_part(node: &Value, entry: &Value, roams: bool) -> bool {
    annotation(node, "key").is_some_and(is_key)
        && match annotation(node, "wireguard-ip") {
            Some(ip) => contains(&declared(entry, "wireguardCIDR", 1), ip),
            // A leader publishes its address later.
            None => annotation(node, "granularity") == Some("location"),
        }
        && in_range(node, entry)
        && (endpoint(node).is_some() || roams)
}

fn in_range(node: &Value, entry: &Value) -> bool {
    let cidrs = pod_cidrs(node);
    !cidrs.is_empty()
        && cidrs
            .iter()
            .all(|cidr| contains(&declared(entry, "podCIDRs", 0), cidr))
}

fn declared(entry: &Value, field: &str, at: usize) -> String {
    let found = array(&entry["allowedNetworks"])
        .get(at)
        .or_else(|| array(&entry[field]).first())
        .unwrap_or(&entry[field]);
    text(found).to_owned()
}

/// Reports whether the Peer of a node must never be deleted. A Peer that has no
/// endpoint needs none.
pub(crate) fn is_good(node: &Value, entry: &Value, peer: &Value) -> bool {
    annotation(node, "granularity") == Some("full")
        && takes_part(node, entry, peer["spec"]["endpoint"].is_null())
}

/// Endpoint that a node has of its own.
pub(crate) fn endpoint(node: &Value) -> Option<Value> {
    let external = array(&node["status"]["addresses"])
        .iter()
        .find(|address| address["type"] == "ExternalIP");
    let external = external.map(|address| format!("{}:51820", text(&address["address"])));
    let chosen = annotation(node, "clustermesh-endpoint")
        .or(annotation(node, "force-endpoint"))
        .map(str::to_owned)
        .or(external)?;
    let (host, port) = chosen.rsplit_once(':')?;
    let kind = if host.chars().all(|c| c.is_ascii_digit() || c == '.') {
        "ip"
    } else {
        "dns"
    };
    Some(json!({ "dnsOrIP": { kind: host }, "port": port.parse::<u16>().ok()? }))
}

/// Endpoint that the nodes of a target discovered for a key.
fn discovered(nodes: &[Arc<Value>], key: &str) -> Option<Value> {
    nodes
        .iter()
        .filter_map(|node| annotation(node, "discovered-endpoints"))
        .find_map(|text| {
            let seen = serde_json::from_str::<Value>(text).ok()?.get(key)?.clone();
            Some(json!({ "dnsOrIP": { "ip": seen["IP"] }, "port": seen["Port"] }))
        })
}

fn is_ready(node: &Value) -> bool {
    array(&node["status"]["conditions"])
        .iter()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

fn pod_cidrs(node: &Value) -> Vec<String> {
    array(&node["spec"]["podCIDRs"])
        .iter()
        .map(|cidr| text(cidr).to_owned())
        .collect()
}

pub(crate) fn entries(mesh: &Value) -> Vec<&Value> {
    array(&mesh["spec"]["clusters"]).iter().collect()
}

/// Cluster that an entry leads to. Secrets are named after their cluster.
pub(crate) fn cluster_of(bed: &Bed, entry: &Value) -> Option<String> {
    if entry["local"] == true {
        return Some(bed.hub.clone());
    }
    entry["kubeconfigSecretRef"]["name"]
        .as_str()?
        .strip_suffix("-kubeconfig")
        .map(str::to_owned)
}

pub(crate) fn annotation<'a>(node: &'a Value, name: &str) -> Option<&'a str> {
    node["metadata"]["annotations"][format!("{KILO}{name}")]
        .as_str()
        .filter(|value| !value.is_empty())
}

pub(crate) fn label<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object["metadata"]["labels"][format!("{LABELS}{name}")].as_str()
}

pub(crate) fn array(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn host_route(cidr: &str) -> String {
    format!("{}/32", cidr.split('/').next().unwrap_or_default())
}

/// Reports whether a network with a prefix of whole bytes contains an address.
fn contains(range: &str, address: &str) -> bool {
    let Some((network, bits)) = range.split_once('/') else {
        return false;
    };
    let bytes = bits.parse::<usize>().unwrap_or(32) / 8;
    let head = |text: &str| {
        text.split(['.', '/'])
            .take(bytes)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let parts = address.split('/').next().unwrap_or_default().split('.');
    parts.filter(|part| part.parse::<u8>().is_ok()).count() == 4 && head(network) == head(address)
}
