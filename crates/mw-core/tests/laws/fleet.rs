//! Random fleets, kept small so that nodes conflict often. Every choice is a
//! number whose zero is the harmless value, so that a failing fleet shrinks to
//! the minimum.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64ct::{Base64, Encoding};
use mw_core::kilo::node::{Node, NodeFacts};
use mw_core::kilo::peer::{EndpointFacts, Labels, PeerFacts, PeerSpecFacts};
use mw_core::kilo::planner::{ClusterSeen, Options, World};
use mw_core::kilo::spec::{Mesh, RawCluster, RawSpec, SecretRef};
use mw_core::kilo::{Absent, Departures, Orphans};
use mw_core::names::{ClusterId, MeshId, NodeName, PeerName};
use mw_core::seen::Seen;
use mw_core::time::Timestamp;
use proptest::prelude::*;
use sha2::Digest;

pub(crate) const HUB: &str = "hub-1";
pub(crate) const CLUSTERS: [&str; 5] = ["a", "b", "c", "a--b", "z"];
pub(crate) const NODES: [&str; 7] = ["n1", "n2", "n3", "Node-A", "node-a", "anchor", "b--n1"];
pub(crate) const START: i64 = 1_800_000_000;

#[derive(Debug, Clone)]
pub(crate) struct NodeDesign {
    pub(crate) cluster: u8,
    pub(crate) name: u8,
    pub(crate) key: u8,
    pub(crate) wireguard: u8,
    pub(crate) pods: u8,
    pub(crate) endpoint: u8,
    pub(crate) internal: u8,
    pub(crate) segment: u8,
    pub(crate) seen: u8,
    pub(crate) ready: u8,
    pub(crate) discovered: Vec<(u8, u8, u8)>,
}

#[derive(Debug, Clone)]
pub(crate) struct ClusterDesign {
    pub(crate) form: u8,
    pub(crate) extras: u8,
    pub(crate) keepalive: u8,
}

#[derive(Debug, Clone)]
pub(crate) struct ForeignDesign {
    pub(crate) target: u8,
    pub(crate) name: u8,
    pub(crate) key: u8,
    pub(crate) prefix: u8,
    pub(crate) endpoint: u8,
    pub(crate) labels: u8,
}

#[derive(Debug, Clone)]
pub(crate) struct FleetDesign {
    pub(crate) clusters: Vec<ClusterDesign>,
    pub(crate) nodes: Vec<NodeDesign>,
    pub(crate) second_mesh: u8,
    pub(crate) max_delete_percent: u8,
    pub(crate) all_meshes: bool,
}

pub(crate) fn node() -> impl Strategy<Value = NodeDesign> {
    let mostly_good = |choices: std::ops::Range<u8>| prop_oneof![2 => Just(0u8), 1 => choices];
    let name = prop_oneof![1 => 0..2u8, 1 => 0..7u8];
    let networks = (
        mostly_good(0..20),
        mostly_good(0..20),
        mostly_good(0..24),
        mostly_good(0..24),
    );
    let choices = (0..4u8, name, networks, 0..8u8, 0..10u8);
    let rest = (
        mostly_good(0..12),
        0..4u8,
        prop::collection::vec((0..4u8, 0..7u8, 0..8u8), 0..3),
    );
    (choices, rest).prop_map(
        |(
            (cluster, name, (key, wireguard, pods, endpoint), internal, segment),
            (seen, ready, discovered),
        )| {
            NodeDesign {
                cluster,
                name,
                key,
                wireguard,
                pods,
                endpoint,
                internal,
                segment,
                seen,
                ready,
                discovered,
            }
        },
    )
}

pub(crate) fn foreign() -> impl Strategy<Value = ForeignDesign> {
    (0..4u8, 0..10u8, 0..8u8, 0..8u8, 0..6u8, 0..9u8).prop_map(
        |(target, name, key, prefix, endpoint, labels)| ForeignDesign {
            target,
            name,
            key,
            prefix,
            endpoint,
            labels,
        },
    )
}

pub(crate) fn cluster() -> impl Strategy<Value = ClusterDesign> {
    (0..3u8, 0..4u8, 0..5u8).prop_map(|(form, extras, keepalive)| ClusterDesign {
        form,
        extras,
        keepalive,
    })
}

pub(crate) fn fleet() -> impl Strategy<Value = FleetDesign> {
    let clusters = prop::collection::vec(cluster(), 2..=4);
    let percent = prop_oneof![4 => Just(50u8), 1 => Just(0u8), 1 => Just(100u8), 1 => Just(25u8)];
    (
        clusters,
        prop::collection::vec(node(), 0..14),
        0..12u8,
        percent,
        any::<bool>(),
    )
        .prop_map(
            |(clusters, nodes, second_mesh, max_delete_percent, all_meshes)| FleetDesign {
                clusters,
                nodes,
                second_mesh,
                max_delete_percent,
                all_meshes,
            },
        )
}

pub(crate) fn key(cluster: u8, node: u8) -> String {
    Base64::encode_string(&sha2::Sha256::digest([cluster, node]))
}

fn endpoint_address(cluster: u8, node: u8) -> String {
    format!("198.51.{}.{}", 100 + cluster, 1 + node)
}

pub(crate) fn pod_cidr(cluster: u8, node: u8) -> String {
    format!("10.{}.{}.0/24", 1 + cluster, 1 + node)
}

impl NodeDesign {
    /// A first node without any defect.
    pub(crate) fn good(cluster: u8) -> NodeDesign {
        let (name, key, wireguard, pods, endpoint, internal, segment, seen, ready) =
            (0, 0, 0, 0, 0, 0, 0, 0, 3);
        NodeDesign {
            cluster,
            name,
            key,
            wireguard,
            pods,
            endpoint,
            internal,
            segment,
            seen,
            ready,
            discovered: vec![],
        }
    }

    pub(crate) fn facts(&self, now: i64) -> NodeFacts {
        let (c, n) = (self.cluster, self.name);
        let name = NODES[usize::from(n)].to_owned();
        let mut facts = NodeFacts {
            name: name.clone(),
            uid: format!("{c}-{name}"),
            ready: self.ready > 0,
            ..NodeFacts::default()
        };
        let mut kilo: BTreeMap<String, String> = BTreeMap::new();
        let mut set = |key: &str, value: String| _ = kilo.insert(key.to_owned(), value);
        match self.key {
            0..=14 => set("key", key(c, n)),
            15 => set("key", key(0, 0)),
            16 => set("key", key(c, 0)),
            17 => set("key", "nonsense".to_owned()),
            18 => set("key", key(1, 1)),
            _ => {}
        }
        match self.wireguard {
            0..=13 => set("wireguard-ip", format!("10.{}.0.{}/16", 101 + c, 1 + n)),
            14 | 15 => set("wireguard-ip", format!("10.{}.0.1/32", 101 + c)),
            16 => set("wireguard-ip", "10.250.0.1/16".to_owned()),
            17 => set("wireguard-ip", "somewhere".to_owned()),
            18 => set("wireguard-ip", String::new()),
            _ => {}
        }
        facts.pod_cidrs = match self.pods {
            0..=14 => vec![pod_cidr(c, n)],
            15 | 16 => vec![pod_cidr(c, n), format!("fd00:{}:{}::/64", 1 + c, 1 + n)],
            17 => vec![pod_cidr(c, 0)],
            18 => vec![pod_cidr(c, n), "10.77.0.0/24".to_owned()],
            19 => vec!["10.99.0.0/24".to_owned()],
            20 => vec!["junk".to_owned()],
            21 => vec![pod_cidr(c, n), pod_cidr((c + 1) % 4, 5)],
            22 => vec![format!("10.{}.0.0/16", 1 + c)],
            _ => vec![],
        };
        match self.endpoint {
            0..=9 => facts.external_ips = vec![endpoint_address(c, n)],
            10 | 11 => set(
                "clustermesh-endpoint",
                format!("{}:51820", endpoint_address(c, n)),
            ),
            12 => set("force-endpoint", format!("gw-{c}-{n}.example.org:51820")),
            13 => set("clustermesh-endpoint", "127.0.0.1:51820".to_owned()),
            // Inside the cluster's own networks, and inside another cluster's.
            14 | 15 => set(
                "clustermesh-endpoint",
                format!("192.168.{c}.{}:51820", 1 + n),
            ),
            16 => set(
                "clustermesh-endpoint",
                format!("10.{}.{}.9:51820", 1 + c, 1 + n),
            ),
            17 => set(
                "clustermesh-endpoint",
                format!("10.{}.{}.9:51820", 1 + (c + 1) % 2, 1 + n),
            ),
            _ => {}
        }
        match self.internal {
            0 | 1 => {}
            2 | 3 => facts.internal_ips = vec![format!("192.168.{c}.{}", 1 + n)],
            4 => facts.internal_ips = vec![format!("192.168.{c}.1")],
            5 => facts.internal_ips = vec![format!("192.168.{}.{}", (c + 1) % 4, 20 + n)],
            6 => facts.internal_ips = vec![format!("10.{}.{}.77", 1 + (c + 1) % 4, 1 + n)],
            _ => facts.internal_ips = vec!["172.30.0.9".to_owned()],
        }
        set("internal-ip", format!("192.168.{c}.{}/24", 1 + n));
        if self.internal == 0 {
            set("force-internal-ip", String::new());
        }
        set("endpoint", format!("{}:51820", endpoint_address(c, n)));
        match self.segment {
            0..=4 => set("granularity", "full".to_owned()),
            5 | 6 => {
                _ = (
                    set("granularity", "location".to_owned()),
                    set("location", "x".to_owned()),
                )
            }
            7 => {
                _ = (
                    set("granularity", "location".to_owned()),
                    set("location", "y".to_owned()),
                    set("leader", String::new()),
                )
            }
            8 => set("granularity", "location".to_owned()),
            _ => {}
        }
        match self.seen {
            0..=6 => set("last-seen", (now - 5).to_string()),
            7 | 8 => set("last-seen", (now - 100).to_string()),
            9 => set("last-seen", (now + 1000).to_string()),
            _ => {}
        }
        if self.ready > 1 {
            set("persistent-keepalive", "25".to_owned());
        }
        let seen: Vec<String> = self
            .discovered
            .iter()
            .map(|(c, n, at)| {
                let ip = match at {
                    0..=4 => format!("203.0.113.{}", 10 * c + at),
                    5 => "10.1.1.1".to_owned(),
                    6 => "::1".to_owned(),
                    _ => "junk".to_owned(),
                };
                format!(
                    r#""{}":{{"IP":"{ip}","Port":51820,"Zone":""}}"#,
                    key(*c, *n)
                )
            })
            .collect();
        if !seen.is_empty() {
            set("discovered-endpoints", format!("{{{}}}", seen.join(",")));
        }
        if self.discovered.len() == 2 && self.key == 13 {
            set("discovered-endpoints", "{broken".to_owned());
        }
        facts.kilo = kilo;
        facts
    }

    pub(crate) fn node(&self, now: i64) -> Arc<Node> {
        Arc::new(Node::read(self.facts(now)))
    }

    pub(crate) fn cluster_id(&self) -> ClusterId {
        ClusterId::from(CLUSTERS[usize::from(self.cluster)])
    }

    pub(crate) fn node_name(&self) -> NodeName {
        NodeName::from(NODES[usize::from(self.name)])
    }
}

impl ForeignDesign {
    pub(crate) fn target_id(&self) -> ClusterId {
        ClusterId::from(CLUSTERS[usize::from(self.target)])
    }

    pub(crate) fn peer(&self) -> PeerFacts {
        let other = (self.target + 1) % 4;
        let name = match self.name {
            0..=5 => format!("laptop-{}", self.name),
            6 => format!("prod--{}--n1", CLUSTERS[usize::from(other)]),
            7 => format!("prod--{}--n2", CLUSTERS[usize::from(other)]),
            8 => format!("prod--{}--anchor", CLUSTERS[usize::from(other)]),
            _ => format!("gone--{}--n1", CLUSTERS[usize::from(other)]),
        };
        let key = match self.key {
            0..=4 => key(200, self.name),
            5 => key(other, 0),
            6 => key(self.target, 0),
            _ => "junk".to_owned(),
        };
        let prefixes = match self.prefix {
            0..=2 => vec![format!("172.20.{}.0/24", self.name)],
            3 => vec![pod_cidr(other, 0)],
            4 => vec![format!("10.{}.0.0/16", 60 + other)],
            5 => vec!["not a prefix".to_owned()],
            // All prefixes of the first node.
            _ => vec![pod_cidr(other, 0), format!("10.{}.0.1/32", 101 + other)],
        };
        let address = match self.endpoint {
            0..=2 => Some("198.51.99.1".to_owned()),
            3 => Some(format!("10.{}.1.200", 1 + other)),
            4 => Some(format!("10.{}.0.9", 60 + other)),
            _ => None,
        };
        let text = |value: &str| Some(value.to_owned());
        let labels = match self.labels {
            0..=2 => Labels::default(),
            3 => Labels {
                mesh: text("prod"),
                source: text(CLUSTERS[usize::from(other)]),
                namespace: text("net"),
                hub: text("hub-2"),
            },
            4 => Labels {
                mesh: text("prod"),
                source: text(CLUSTERS[usize::from(other)]),
                ..Labels::default()
            },
            5 => Labels {
                mesh: text("gone"),
                source: text("a"),
                ..Labels::default()
            },
            6 => Labels {
                mesh: text("gone"),
                source: text("a"),
                namespace: text("net"),
                hub: text(HUB),
            },
            7 => Labels {
                mesh: text("prod"),
                source: text(CLUSTERS[usize::from(self.target)]),
                namespace: text("net"),
                hub: text(HUB),
            },
            _ => Labels {
                mesh: text("prod"),
                source: text("left"),
                namespace: text("net"),
                hub: text(HUB),
            },
        };
        let endpoint = address.map(|ip| EndpointFacts {
            dns: None,
            ip: Some(ip),
            port: 51820,
        });
        let spec = PeerSpecFacts {
            public_key: key,
            endpoint,
            keepalive: 0,
            allowed_ips: prefixes,
        };
        PeerFacts {
            name: name.clone(),
            uid: format!("foreign-{name}"),
            resource_version: "1".to_owned(),
            labels,
            spec,
            ..PeerFacts::default()
        }
    }
}

impl ClusterDesign {
    pub(crate) fn raw(&self, at: u8) -> RawCluster {
        let pods = vec![
            format!("10.{}.0.0/16", 1 + at),
            format!("fd00:{}::/32", 1 + at),
        ];
        let wireguard = format!("10.{}.0.0/16", 101 + at);
        let service = (self.extras % 2 == 1).then(|| format!("10.{}.0.0/16", 60 + at));
        let additional = (self.extras > 1).then(|| vec![format!("192.168.{at}.0/24")]);
        let mut raw = RawCluster {
            name: CLUSTERS[usize::from(at)].to_owned(),
            local: at == 0,
            kubeconfig_secret: Some(SecretRef {
                name: "kubeconfig".to_owned(),
                key: None,
            }),
            persistent_keepalive: Some(match self.keepalive {
                0..=2 => 0,
                3 => 25,
                _ => 10,
            }),
            ..RawCluster::default()
        };
        if self.form == 2 {
            raw.allowed_networks = Some(
                pods.into_iter()
                    .chain([wireguard])
                    .chain(service)
                    .chain(additional.into_iter().flatten())
                    .collect(),
            );
        } else {
            (
                raw.pod_cidrs,
                raw.wireguard_cidr,
                raw.service_cidr,
                raw.additional_cidrs,
            ) = (Some(pods), Some(wireguard), service, additional);
        }
        raw
    }
}

pub(crate) fn mesh(
    name: &str,
    created: i64,
    clusters: Vec<RawCluster>,
    max_delete_percent: u8,
) -> Mesh {
    Mesh {
        id: MeshId::new("net", name),
        created: Some(Timestamp(created)),
        deleting: false,
        confirm_deletes: None,
        held: Default::default(),
        anchors: Default::default(),
        take_over_hub: None,
        spec: RawSpec {
            clusters,
            cleanup_timeout: None,
            max_delete_percent: Some(i64::from(max_delete_percent)),
        },
        running: None,
        recalled: false,
    }
}

impl FleetDesign {
    pub(crate) fn world(&self) -> World {
        let options = Options {
            hub: Some(HUB.to_owned()),
            ..Options::default()
        };
        let absent = if self.all_meshes {
            Absent::AllOthers
        } else {
            Absent::Unknown
        };
        let orphans = Orphans {
            absent,
            ..Orphans::default()
        };
        let mut world = World {
            options,
            now: Timestamp(START),
            orphans,
            ..World::default()
        };
        let raw: Vec<RawCluster> = self
            .clusters
            .iter()
            .enumerate()
            .map(|(at, c)| c.raw(at as u8))
            .collect();
        let prod = mesh("prod", 1, raw.clone(), self.max_delete_percent);
        world.meshes.insert(prod.id.clone(), prod);
        let z = ClusterDesign {
            form: 0,
            extras: 1,
            keepalive: 0,
        }
        .raw(4);
        // A spoke of its own, or a pair that the first mesh connects already.
        let second = match self.second_mesh {
            10 => Some(vec![raw[0].clone(), z.clone()]),
            11 => Some(vec![raw[0].clone(), raw[1].clone(), z.clone()]),
            _ => None,
        };
        let count = self.clusters.len() as u8;
        for at in (0..count).chain(second.is_some().then_some(4)) {
            let (nodes, peers) = (Seen::Known(BTreeMap::new()), Seen::Known(BTreeMap::new()));
            world.clusters.insert(
                ClusterId::from(CLUSTERS[usize::from(at)]),
                ClusterSeen {
                    nodes,
                    peers,
                    departures: Departures::default(),
                },
            );
        }
        if let Some(clusters) = second {
            let spoke = mesh("spoke", 2, clusters, 50);
            world.meshes.insert(spoke.id.clone(), spoke);
            let node = NodeDesign::good(4);
            put_node(&mut world, &node.cluster_id(), node.node(START));
        }
        for design in &self.nodes {
            put_node(&mut world, &design.cluster_id(), design.node(START));
        }
        world
    }
}

pub(crate) fn put_node(world: &mut World, cluster: &ClusterId, node: Arc<Node>) {
    if let Some(seen) = world.clusters.get_mut(cluster) {
        if let Departures::Seen(left) = &mut seen.departures {
            left.remove(&node.name);
        }
        if let Seen::Known(nodes) = &mut seen.nodes {
            nodes.insert(node.name.clone(), node);
        }
    }
}

pub(crate) fn put_peer(world: &mut World, cluster: &ClusterId, facts: PeerFacts) {
    if let Some(Seen::Known(peers)) = world.clusters.get_mut(cluster).map(|seen| &mut seen.peers) {
        peers.insert(PeerName::from(facts.name.as_str()), facts);
    }
}
