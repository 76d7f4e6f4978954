//! Valid but unusual intents, generated from a seed.

use std::collections::BTreeMap;

use fastrand::Rng;

use crate::asked::{Asked, Peer, Pods, Ports};

/// Few namespaces, so that the intents of a mesh select the same pods.
pub(crate) const NAMESPACES: [&str; 4] = ["prod", "front", "shop-2", "kube-system"];
pub(crate) const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];

/// Keys with Cilium's separators, label sources and reserved words, all of which are
/// valid.
const KEYS: [&str; 9] = [
    "app",
    "tier",
    "app.kubernetes.io/name",
    "example.com/Some_key.1",
    "k8s/app",
    "any.thing",
    "reserved.host",
    "cidr.10",
    "0",
];
const VALUES: [&str; 10] = [
    "web", "db", "", "true", "null", "0x10", "1e3", "a.b_c-D", "k8s.web", "65535",
];

pub(crate) fn one_of<'a>(rng: &mut Rng, all: &[&'a str]) -> &'a str {
    all[rng.usize(..all.len())]
}

/// Generates the intents of one mesh.
pub(crate) fn some(rng: &mut Rng) -> Vec<Asked> {
    (0..rng.usize(1..=4)).map(|_| asked(rng)).collect()
}

fn asked(rng: &mut Rng) -> Asked {
    let clusterwide = rng.u8(..3) == 0;
    Asked {
        deny: rng.u8(..3) == 0,
        clusterwide,
        isolate: [None, Some(true), Some(false), Some(false)][rng.usize(..4)],
        source: peer(rng, clusterwide),
        destination: peer(rng, clusterwide),
        ports: ports(rng),
    }
}

fn peer(rng: &mut Rng, clusterwide: bool) -> Peer {
    let anywhere = clusterwide && rng.bool();
    let pods = match rng.u8(..5) {
        0 => Pods::All,
        1 | 2 => Pods::Named(one_of(rng, &["web", "db", "", "0x10"]).to_owned()),
        _ => Pods::Labelled(labels(rng)),
    };
    Peer {
        namespace: (!anywhere).then(|| one_of(rng, &NAMESPACES).to_owned()),
        pods,
    }
}

fn labels(rng: &mut Rng) -> BTreeMap<String, String> {
    (0..rng.usize(0..=3))
        .map(|_| (key(rng), value(rng)))
        .collect()
}

fn key(rng: &mut Rng) -> String {
    match rng.u8(..12) {
        0 => "n".repeat(63),
        // Maximum length of a key.
        1 => format!(
            "{}/{}",
            [
                "p".repeat(63),
                "q".repeat(63),
                "r".repeat(63),
                "s".repeat(61)
            ]
            .join("."),
            "n".repeat(63)
        ),
        _ => one_of(rng, &KEYS).to_owned(),
    }
}

pub(crate) fn value(rng: &mut Rng) -> String {
    if rng.u8(..12) == 0 {
        "Z".repeat(63)
    } else {
        one_of(rng, &VALUES).to_owned()
    }
}

fn ports(rng: &mut Rng) -> Vec<Ports> {
    let count = match rng.u8(..8) {
        0 | 1 => 0,
        2 | 3 => 1,
        4..=6 => rng.usize(2..=5),
        // More than the 40 ports that Cilium accepts in one list.
        _ => rng.usize(41..=90),
    };
    (0..count).map(|_| one_port(rng)).collect()
}

fn one_port(rng: &mut Rng) -> Ports {
    let protocol = [
        None,
        Some("ANY"),
        Some("TCP"),
        Some("UDP"),
        Some("SCTP"),
        Some("TCP"),
    ][rng.usize(..6)];
    let first = match rng.u8(..6) {
        0 => [1, 53, 80, 65534, 65535][rng.usize(..5)],
        _ => rng.u16(1..=9999),
    };
    let last = match rng.u8(..8) {
        0 => Some(first),
        1 | 2 => Some(first.saturating_add(rng.u16(1..=300))),
        3 => Some([u16::MAX, first][usize::from(rng.u8(..4) > 0)]),
        _ => None,
    };
    Ports {
        protocol,
        first,
        last,
    }
}
