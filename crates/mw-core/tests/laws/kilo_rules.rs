//! Kilo's validation rules and Peer ownership, written a second time: by hand
//! from the facts and the spec, independent of the planner.

use std::net::IpAddr;

use mw_core::kilo::node::Node;
use mw_core::kilo::peer::{Labels, PeerFacts, WantedPeer};
use mw_core::kilo::planner::World;
use mw_core::kilo::{Absent, Nodes};

/// Kilo's own validation of a Peer, plus its undocumented requirements:
/// prefixes without host bits, and an endpoint unless there is a keepalive.
pub(crate) fn validate(peer: &WantedPeer) -> Result<(), String> {
    let spec = peer.spec();
    if spec.public_key.len() != 44 || !spec.public_key.ends_with('=') {
        return Err(format!("key {}", spec.public_key));
    }
    if !(0..=65535).contains(&spec.keepalive) {
        return Err(format!("keepalive {}", spec.keepalive));
    }
    if spec.allowed_ips.is_empty() {
        return Err("no allowed IP".to_owned());
    }
    for text in &spec.allowed_ips {
        masked(text).ok_or(format!("allowed IP {text}"))?;
    }
    match &spec.endpoint {
        None if spec.keepalive == 0 => Err("no endpoint and no keepalive".to_owned()),
        None => Ok(()),
        Some(endpoint) => {
            let port = (1..=65535).contains(&endpoint.port);
            let host = match (&endpoint.dns, &endpoint.ip) {
                (Some(name), None) => subdomain(name),
                (None, Some(ip)) => ip.parse::<IpAddr>().is_ok(),
                _ => false,
            };
            (port && host)
                .then_some(())
                .ok_or(format!("endpoint {endpoint:?}"))
        }
    }
}

fn subdomain(name: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

/// Address bits and length of a CIDR that has no host bits.
pub(crate) fn masked(text: &str) -> Option<(bool, u128, u32)> {
    let (address, length) = text.split_once('/')?;
    let length: u32 = length.parse().ok()?;
    let (v6, bits, width) = match address.parse().ok()? {
        IpAddr::V4(ip) => (false, u128::from(u32::from(ip)), 32),
        IpAddr::V6(ip) => (true, u128::from(ip), 128),
    };
    if length > width {
        return None;
    }
    let host = match width - length {
        128 => u128::MAX,
        bits => (1u128 << bits) - 1,
    };
    (bits & host == 0).then_some((v6, bits, width - length))
}

/// Reports whether two CIDRs have an address in common.
pub(crate) fn overlap(one: &str, other: &str) -> bool {
    let (Some((v6, a, i)), Some((other_v6, b, j))) = (masked(one), masked(other)) else {
        return false;
    };
    let shift = i.max(j);
    let top = |bits: u128| if shift >= 128 { 0 } else { bits >> shift };
    v6 == other_v6 && top(a) == top(b)
}

/// Reports whether the ownership rules let a plan of this hub change a Peer.
pub(crate) fn may_be_touched(world: &World, peer: &PeerFacts, wanted: Option<&WantedPeer>) -> bool {
    let Labels {
        mesh,
        source,
        namespace,
        hub,
    } = &peer.labels;
    let own = world.options.hub.as_deref();
    let of_hub = namespace.is_some() && mesh.is_some() && hub.as_deref() == own;
    let of_go = mesh.is_some() && source.is_some() && namespace.is_none() && hub.is_none();
    let known = |name: &str| world.meshes.keys().any(|id| id.name == name);
    let of_go =
        of_go && (world.orphans.absent == Absent::AllOthers || mesh.as_deref().is_some_and(known));
    let orphan_ok = world.orphans.absent == Absent::AllOthers
        || world.meshes.keys().any(|id| {
            Some(id.name.as_str()) == mesh.as_deref()
                && Some(id.namespace.as_str()) == namespace.as_deref()
        });
    let stripped = wanted.is_some_and(|wanted| {
        peer.spec.public_key == wanted.key().to_base64() && (hub.is_none() || hub.as_deref() == own)
    });
    (of_hub && orphan_ok) || of_go || stripped
}

/// Reports whether an agent checked in within a minute of the newest check-in,
/// or of the second newest of three or more.
pub(crate) fn is_alive(nodes: &Nodes, node: &Node) -> bool {
    let mut seen: Vec<i64> = nodes.values().filter_map(|node| node.last_seen).collect();
    seen.sort_unstable_by(|a, b| b.cmp(a));
    let yardstick = if seen.len() > 2 {
        seen.get(1)
    } else {
        seen.first()
    };
    yardstick.is_none_or(|newest| node.last_seen.is_some_and(|at| newest - at < 60))
}
