//! Cost of planning and how it grows. Prints ratios within one run, because
//! machines are noisy: `cargo bench -p mw-core`.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::disallowed_types
)]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64ct::{Base64, Encoding};
use mw_core::cidr::Cidr;
use mw_core::kilo::Departures;
use mw_core::kilo::node::{EndpointFrom, Node, NodeFacts};
use mw_core::kilo::overlap::{Applicant, admit};
use mw_core::kilo::peer::{PeerFacts, WantedPeer};
use mw_core::kilo::planner::{ClusterSeen, Options, Planner, World};
use mw_core::kilo::spec::{ClusterSpec, Mesh, MeshSpec, Networks, RawCluster, RawSpec, SecretRef};
use mw_core::names::{ClusterId, ClusterName, MeshId};
use mw_core::seen::Seen;
use mw_core::time::Timestamp;
use sha2::Digest;

const NODES: usize = 100;

fn cluster_name(at: usize) -> String {
    format!("cluster-{at:04}")
}

/// IPv6 has room for a thousand disjoint clusters.
fn raw_cluster(at: usize) -> RawCluster {
    RawCluster {
        name: cluster_name(at),
        local: at == 0,
        kubeconfig_secret: Some(SecretRef {
            name: "kubeconfig".to_owned(),
            key: None,
        }),
        pod_cidrs: Some(vec![format!("fd00:{at:x}::/48")]),
        wireguard_cidr: Some(format!("fd01:{at:x}::/64")),
        service_cidr: Some(format!("fd02:{at:x}::/112")),
        ..RawCluster::default()
    }
}

fn node(cluster: usize, at: usize, endpoint: usize) -> Node {
    let key = sha2::Sha256::digest([cluster.to_le_bytes(), at.to_le_bytes()].concat());
    let kilo = [
        ("key", Base64::encode_string(&key)),
        ("wireguard-ip", format!("fd01:{cluster:x}::{:x}/64", at + 1)),
        (
            "force-endpoint",
            format!("[2001:db8:{cluster:x}:{endpoint:x}::{:x}]:51820", at + 1),
        ),
        (
            "endpoint",
            format!("[2001:db8:{cluster:x}::{:x}]:51820", at + 1),
        ),
        ("internal-ip", format!("fd03:{cluster:x}::{:x}/64", at + 1)),
        ("granularity", "full".to_owned()),
        ("last-seen", "1800000000".to_owned()),
    ];
    Node::read(NodeFacts {
        name: format!("node-{at:03}"),
        uid: format!("{cluster}-{at}"),
        kilo: kilo
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect(),
        pod_cidrs: vec![format!("fd00:{cluster:x}:0:{:x}::/64", at + 1)],
        internal_ips: vec![format!("fd03:{cluster:x}::{:x}", at + 1)],
        ready: true,
        ..NodeFacts::default()
    })
}

fn world(clusters: usize, targets: usize) -> World {
    let id = MeshId::new("net", "prod");
    let spec = RawSpec {
        clusters: (0..clusters).map(raw_cluster).collect(),
        ..RawSpec::default()
    };
    let mesh = Mesh {
        id: id.clone(),
        created: None,
        deleting: false,
        confirm_deletes: None,
        held: Default::default(),
        anchors: Default::default(),
        take_over_hub: None,
        spec,
        running: None,
        recalled: false,
    };
    let seen = |at: usize| ClusterSeen {
        nodes: Seen::Known(
            (0..NODES)
                .map(|n| node(at, n, 0))
                .map(|node| (node.name.clone(), Arc::new(node)))
                .collect(),
        ),
        peers: match at < targets {
            true => Seen::Known(BTreeMap::new()),
            false => Seen::Unknown("not part of this measurement".to_owned()),
        },
        departures: Departures::default(),
    };
    World {
        options: Options {
            hub: Some("hub".to_owned()),
            ..Options::default()
        },
        now: Timestamp(1_800_000_000),
        meshes: BTreeMap::from([(id, mesh)]),
        clusters: (0..clusters)
            .map(|at| (ClusterId::from(cluster_name(at).as_str()), seen(at)))
            .collect(),
        identities: BTreeMap::new(),
        ..World::default()
    }
}

struct Spread {
    low: Duration,
    median: Duration,
    high: Duration,
}

impl Spread {
    fn of(mut times: Vec<Duration>) -> Spread {
        times.sort();
        Spread {
            low: times[0],
            median: times[times.len() / 2],
            high: times[times.len() - 1],
        }
    }

    fn shown(&self) -> String {
        format!(
            "{:>10.3?}  ({:.3?} to {:.3?})",
            self.median, self.low, self.high
        )
    }
}

fn timed<T>(run: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let value = black_box(run());
    (start.elapsed(), value)
}

fn verdict(name: &str, ratio: f64, wanted: f64) {
    println!(
        "  {name}: {ratio:.2} (wanted at most {wanted}): {}",
        if ratio <= wanted { "met" } else { "MISSED" }
    );
}

/// Plans from observations to wanted state. Peers are built once per source; a
/// target's own list is derived from them when it is written.
fn full_plan() {
    println!("full plan, {NODES} nodes a cluster");
    let mut per_node = Vec::new();
    for (clusters, runs) in [(10, 60), (100, 12), (1000, 5)] {
        let times = (0..runs).map(|_| {
            let world = world(clusters, clusters);
            timed(|| Planner::new(world)).0
        });
        let spread = Spread::of(times.collect());
        let each = spread.median.as_secs_f64() / (clusters * NODES) as f64;
        println!(
            "  {clusters:>5} clusters {} {:>8.2} µs a node",
            spread.shown(),
            each * 1e6
        );
        per_node.push(each);
    }
    verdict(
        "time per node, 1,000 clusters to 10",
        per_node[2] / per_node[0],
        2.0,
    );
}

/// Brings targets to the state in which every Peer is up to date.
fn settle(planner: &mut Planner, ids: &[ClusterId]) -> usize {
    let mut count = 0;
    for id in ids {
        planner.evaluate(id);
        let created: Vec<WantedPeer> = planner
            .changes(id)
            .into_values()
            .flat_map(|changes| changes.create.into_values())
            .collect();
        for wanted in created {
            planner.set_peer(
                id,
                facts(&wanted, &format!("6f1d7f5e-0000-4000-8000-{count:012}"), 0),
            );
            count += 1;
        }
        planner.evaluate(id);
    }
    count
}

/// Carries out planned updates, so that the next change starts from an
/// up-to-date state.
fn apply_updates(planner: &mut Planner, ids: &[ClusterId], version: usize) -> usize {
    let mut count = 0;
    for id in ids {
        let updates: Vec<_> = planner
            .changes(id)
            .into_values()
            .flat_map(|changes| changes.update.into_values())
            .collect();
        count += updates.len();
        for update in updates {
            planner.set_peer(id, facts(&update.after, &update.on.uid, version));
        }
        planner.evaluate(id);
    }
    count
}

fn facts(wanted: &WantedPeer, uid: &str, version: usize) -> PeerFacts {
    PeerFacts {
        name: wanted.name().to_string(),
        uid: uid.to_owned(),
        resource_version: version.to_string(),
        labels: wanted.labels().clone(),
        spec: wanted.spec(),
        ..PeerFacts::default()
    }
}

fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split(' ').nth(1)?.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}

fn one_node(clusters: usize, targets: usize) {
    let ids: Vec<ClusterId> = (0..targets)
        .map(|at| ClusterId::from(cluster_name(at).as_str()))
        .collect();
    let source = ClusterId::from(cluster_name(clusters - 1).as_str());
    let mut planner = Planner::new(world(clusters, targets));
    let before = resident();
    let peers = settle(&mut planner, &ids);
    let memory = resident().saturating_sub(before) / peers.max(1);
    let mut planned = Vec::new();
    let mut both = Vec::new();
    for change in 1..=40 {
        let node = node(clusters - 1, change % NODES, change);
        let (plan_time, _) = timed(|| planner.set_node(&source, node));
        let (target_time, ()) = timed(|| ids.iter().for_each(|id| planner.evaluate(id)));
        planned.push(plan_time);
        both.push(plan_time + target_time);
        assert_eq!(
            apply_updates(&mut planner, &ids, change),
            ids.iter().filter(|id| **id != source).count()
        );
    }
    let (planned, both) = (Spread::of(planned), Spread::of(both));
    // A small fleet may fit into memory that earlier measurements freed.
    let each = if memory > 0 {
        format!(" ({memory} bytes each)")
    } else {
        String::new()
    };
    println!("  {clusters:>5} clusters, {targets} of them targets that hold {peers} Peers{each}");
    println!("        plan the source     {}", planned.shown());
    println!("        and every target    {}", both.shown());
    if clusters == 100 {
        verdict(
            "milliseconds, one node of 100 × 100",
            both.median.as_secs_f64() * 1e3,
            1.0,
        );
    }
}

fn overlap() {
    let (meshes, clusters, each) = (10u32, 500u32, 20u32);
    let specs: Vec<MeshSpec> = (0..meshes)
        .map(|mesh| {
            let entry = |cluster: u32| {
                // Scattered, so that the input is sorted for neither side.
                let number = |n: u32| {
                    ((mesh * clusters + cluster) * each + n).wrapping_mul(48_271) % 131_072
                };
                let cidr = |n: u32| {
                    Cidr::try_from(
                        format!(
                            "{}.{}.{}.0/24",
                            10 + (number(n) >> 16),
                            (number(n) >> 8) & 255,
                            number(n) & 255
                        )
                        .as_str(),
                    )
                    .unwrap()
                };
                ClusterSpec {
                    index: cluster as usize,
                    local: false,
                    kubeconfig_secret: None,
                    networks: Networks::Flat((0..each).map(cidr).collect()),
                    wireguard_port: 51820,
                    keepalive: 0,
                    topology_label: String::new(),
                    endpoint_from: EndpointFrom::Global,
                }
            };
            let clusters = (0..clusters).map(|at| {
                (
                    ClusterName::try_from(cluster_name(at as usize).as_str()).unwrap(),
                    entry(at),
                )
            });
            MeshSpec {
                clusters: clusters.collect(),
                cleanup_timeout_seconds: 0,
                max_delete_percent: 50,
            }
        })
        .collect();
    let ids: Vec<MeshId> = (0..meshes)
        .map(|at| MeshId::new("net", &format!("mesh-{at}")))
        .collect();
    let mut times = (Vec::new(), Vec::new());
    for _ in 0..15 {
        let applicants: Vec<Applicant<'_>> = specs
            .iter()
            .zip(&ids)
            .map(|(spec, mesh)| Applicant {
                mesh,
                created: None,
                spec,
                running: None,
                recalled: false,
                members: members(mesh, spec),
            })
            .collect();
        let mut cidrs: Vec<Cidr> = specs
            .iter()
            .flat_map(|spec| spec.clusters.values())
            .flat_map(|c| c.networks.all().collect::<Vec<_>>())
            .collect();
        assert_eq!(cidrs.len(), 100_000);
        times.0.push(timed(|| cidrs.sort()).0);
        let (time, admitted) = timed(|| admit(&applicants));
        assert!(
            admitted
                .values()
                .all(|admission| admission.overlaps.is_empty())
        );
        times.1.push(time);
    }
    let (sort, sweep) = (Spread::of(times.0), Spread::of(times.1));
    println!("overlap of 100,000 networks in 10 meshes that share a member");
    println!("  sort them           {}", sort.shown());
    println!("  find all overlaps   {}", sweep.shown());
    verdict(
        "overlap to sorting",
        sweep.median.as_secs_f64() / sort.median.as_secs_f64(),
        3.0,
    );
}

/// The first cluster of every mesh is the same one.
fn members(mesh: &MeshId, spec: &MeshSpec) -> BTreeMap<ClusterName, ClusterId> {
    let id = |at: usize, name: &ClusterName| {
        if at == 0 {
            "hub".to_owned()
        } else {
            format!("{mesh}/{name}")
        }
    };
    spec.clusters
        .keys()
        .enumerate()
        .map(|(at, name)| (name.clone(), ClusterId::from(id(at, name).as_str())))
        .collect()
}

fn main() {
    full_plan();
    println!("one node changed");
    one_node(10, 10);
    one_node(100, 100);
    one_node(1000, 5);
    overlap();
}
