//! Computes the Peers that a cluster must hold from the model, in the simplest way. It must not use
//! our own crates: it would share their bugs.
//!
//! Covers only the scenarios: IPv4, valid values, one anchor.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use mw_sim::kilo::{Entry, Mesh, Node, Site, World};

/// Peers by name, with meshwright's labels and the spec.
pub(crate) type Peers = BTreeMap<String, Value>;

const LABELS: &str = "kilo-clustermesh.io/";

pub(crate) fn expected_peers(world: &World, site: &str) -> Peers {
    let mut peers = Peers::new();
    for mesh in world.meshes.iter().filter(|mesh| mesh.active) {
        let Some(target) = mesh.entries.iter().find(|entry| entry.site == site) else {
            continue;
        };
        for source in mesh.entries.iter().filter(|entry| entry.site != site) {
            peers.extend(peers_of(world, mesh, source, target));
        }
    }
    peers
}

/// The part of a real Peer that `expected_peers` computes.
pub(crate) fn essence(peer: &Value) -> Value {
    let labels: BTreeMap<&String, &Value> = peer["metadata"]["labels"]
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, _)| name.starts_with(LABELS))
        .collect();
    let mut spec = peer["spec"].clone();
    if spec["persistentKeepalive"] == 0 {
        spec.as_object_mut().unwrap().remove("persistentKeepalive");
    }
    json!({ "labels": labels, "spec": spec })
}

fn peers_of(world: &World, mesh: &Mesh, source: &Entry, target: &Entry) -> Peers {
    let (from, to) = (&world.sites[&source.site], &world.sites[&target.site]);
    let keepalive = [source.keepalive, target.keepalive]
        .into_iter()
        .filter(|seconds| *seconds > 0)
        .min();
    let speakers: Vec<_> = speakers(from)
        .into_iter()
        .filter(|(node, _)| takes_part(node, keepalive))
        .collect();
    let anchor = anchor(from, &speakers);
    let mut peers = Peers::new();
    for (node, carried) in &speakers {
        let mut allowed: Vec<String> = carried
            .iter()
            .flat_map(|node| node.pod_cidrs.clone())
            .collect();
        allowed.push(host_route(node.annotation("wireguard-ip").unwrap()));
        if let Some(declared) = &source.additional_cidr {
            let internal = carried
                .iter()
                .filter_map(|node| node.annotation("internal-ip"));
            allowed.extend(internal.filter(|ip| contains(declared, ip)).map(host_route));
        }
        if anchor.as_deref() == Some(&node.name) {
            allowed.extend(
                [&source.service_cidr, &source.additional_cidr]
                    .into_iter()
                    .flatten()
                    .cloned(),
            );
        }
        let key = node.annotation("key").unwrap();
        let mut spec = json!({ "allowedIPs": allowed, "publicKey": key });
        if let Some(endpoint) = discovered(to, key).or_else(|| endpoint(node)) {
            spec["endpoint"] = endpoint;
        }
        if let Some(seconds) = keepalive {
            spec["persistentKeepalive"] = json!(seconds);
        }
        let name = format!("{}--{}--{}", mesh.name, source.name, node.name);
        peers.insert(
            name,
            json!({ "labels": labels(world, mesh, source), "spec": spec }),
        );
    }
    peers
}

fn labels(world: &World, mesh: &Mesh, source: &Entry) -> Value {
    json!({
        format!("{LABELS}mesh"): mesh.name,
        format!("{LABELS}mesh-namespace"): mesh.namespace,
        format!("{LABELS}source-cluster"): source.name,
        format!("{LABELS}hub"): world.sites[&mesh.hub].uid,
    })
}

/// Nodes that run WireGuard, each with the nodes whose traffic it carries.
fn speakers(site: &Site) -> Vec<(&Node, Vec<&Node>)> {
    let mut speakers = Vec::new();
    let mut places: BTreeMap<&str, Vec<&Node>> = BTreeMap::new();
    for node in site.nodes.values() {
        if node.annotation("granularity") == Some("location") {
            if is_alive(site, node) {
                places
                    .entry(node.annotation("location").unwrap_or_default())
                    .or_default()
                    .push(node);
            }
        } else {
            speakers.push((node, vec![node]));
        }
    }
    for nodes in places.into_values() {
        let marked = nodes
            .iter()
            .find(|node| node.annotations.contains_key("leader"));
        speakers.push((*marked.unwrap_or(&nodes[0]), nodes));
    }
    speakers.sort_by_key(|(node, _)| &node.name);
    speakers
}

fn is_alive(site: &Site, node: &Node) -> bool {
    let seen = |node: &Node| {
        node.annotation("last-seen")
            .map(|text| text.parse::<u64>().unwrap())
    };
    let mut all: Vec<u64> = site.nodes.values().filter_map(seen).collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    let yardstick = if all.len() > 2 { all[1] } else { all[0] };
    seen(node).is_some_and(|seen| seen + 60 > yardstick)
}

fn takes_part(node: &Node, keepalive: Option<u16>) -> bool {
    node.annotation("key").is_some()
        && node.annotation("wireguard-ip").is_some()
        && !node.pod_cidrs.is_empty()
        && (endpoint(node).is_some() || keepalive.is_some())
}

fn anchor(site: &Site, speakers: &[(&Node, Vec<&Node>)]) -> Option<String> {
    let able: Vec<&Node> = speakers
        .iter()
        .map(|(node, _)| *node)
        .filter(|node| endpoint(node).is_some())
        .collect();
    let first = || {
        able.iter()
            .find(|node| node.ready)
            .or(able.first())
            .map(|node| node.name.clone())
    };
    site.anchor.clone().or_else(first)
}

fn endpoint(node: &Node) -> Option<Value> {
    let external = node.external_ip.as_ref().map(|ip| format!("{ip}:51820"));
    let chosen = node
        .annotation("clustermesh-endpoint")
        .or(node.annotation("force-endpoint"))
        .map(str::to_owned)
        .or(external)?;
    let (host, port) = chosen.rsplit_once(':').unwrap();
    let kind = if host.chars().all(|c| c.is_ascii_digit() || c == '.') {
        "ip"
    } else {
        "dns"
    };
    Some(json!({ "dnsOrIP": { kind: host }, "port": port.parse::<u16>().unwrap() }))
}

/// Endpoint at which the nodes of a target saw a key.
fn discovered(target: &Site, key: &str) -> Option<Value> {
    target
        .nodes
        .values()
        .filter_map(|node| node.annotation("discovered-endpoints"))
        .find_map(|text| {
            let seen = serde_json::from_str::<Value>(text)
                .unwrap()
                .get(key)?
                .clone();
            Some(json!({ "dnsOrIP": { "ip": seen["IP"] }, "port": seen["Port"] }))
        })
}

fn host_route(cidr: &str) -> String {
    format!("{}/32", cidr.split('/').next().unwrap())
}

/// Reports whether a range of whole bytes contains an address.
fn contains(range: &str, address: &str) -> bool {
    let (network, bits) = range.split_once('/').unwrap();
    let bytes = bits.parse::<usize>().unwrap() / 8;
    let head = |text: &str| {
        text.split(['.', '/'])
            .take(bytes)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    head(network) == head(address)
}
