//! Fuzzes every parser of untrusted text: no panic, accepts only valid input,
//! and rejects over-long input quickly.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_types,
    clippy::disallowed_methods
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mw_core::cidr::{Cidr, WrittenCidr};
use mw_core::endpoint::Endpoint;
use mw_core::key::PublicKey;
use mw_core::kilo::node::{ANNOTATIONS, Node, NodeFacts};
use mw_core::kilo::peer::{EndpointFacts, Labels, PeerFacts, PeerSpecFacts};
use mw_core::kilo::planner::{ClusterSeen, Options, World};
use mw_core::kilo::spec::{Mesh, RawCluster, RawSpec, SecretRef, duration_seconds, validate};
use mw_core::kilo::{Absent, Departures, Orphans, plan};
use mw_core::names::{ClusterId, ClusterName, MeshId, PeerName, label_value};
use mw_core::seen::Seen;
use mw_core::text::{printable, shell_quoted};
use mw_core::time::Timestamp;
use proptest::prelude::*;

/// Any bytes as text, or text that is almost valid.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..80)
            .prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        "[0-9a-f:./\\[\\]%+ -]{0,50}",
        "[0-9]{1,3}\\.[0-9]{1,3}\\.[0-9]{1,3}\\.[0-9]{1,3}(/[0-9]{1,3}|:[0-9]{1,6})?",
        "\\[?[0-9a-f:]{2,39}\\]?(/[0-9]{1,3}|:[0-9]{1,6})?",
        "[a-zA-Z0-9.-]{1,40}:[0-9]{1,6}",
        "[A-Za-z0-9+/]{40,44}={0,2}",
        "\\{\"[A-Za-z0-9+/=]{0,44}\":\\{\"IP\":\"[0-9.:]{0,20}\",\"Port\":-?[0-9]{1,6}[},]{0,3}",
    ]
}

fn facts() -> impl Strategy<Value = NodeFacts> {
    let annotations = prop::collection::btree_map(
        prop::sample::select(&ANNOTATIONS[..]).prop_map(str::to_owned),
        text(),
        0..13,
    );
    let lists = (
        prop::collection::vec(text(), 0..3),
        prop::collection::vec(text(), 0..3),
        prop::collection::vec(text(), 0..3),
    );
    (text(), annotations, lists, any::<bool>()).prop_map(
        |(name, kilo, (pod_cidrs, internal_ips, external_ips), ready)| NodeFacts {
            name,
            kilo,
            pod_cidrs,
            internal_ips,
            external_ips,
            ready,
            ..NodeFacts::default()
        },
    )
}

fn peer() -> impl Strategy<Value = PeerFacts> {
    let label = || {
        prop::option::of(prop_oneof![
            Just("prod".to_owned()),
            Just("net".to_owned()),
            Just("a".to_owned()),
            text()
        ])
    };
    let labels = (label(), label(), label(), label());
    let endpoint = prop::option::of((
        prop::option::of(text()),
        prop::option::of(text()),
        any::<i64>(),
    ));
    (
        text(),
        labels,
        text(),
        endpoint,
        any::<i64>(),
        prop::collection::vec(text(), 0..4),
    )
        .prop_map(
            |(
                name,
                (mesh, source, namespace, hub),
                public_key,
                endpoint,
                keepalive,
                allowed_ips,
            )| PeerFacts {
                name,
                labels: Labels {
                    mesh,
                    source,
                    namespace,
                    hub,
                },
                spec: PeerSpecFacts {
                    public_key,
                    endpoint: endpoint.map(|(dns, ip, port)| EndpointFacts { dns, ip, port }),
                    keepalive,
                    allowed_ips,
                },
                ..PeerFacts::default()
            },
        )
}

fn raw_cluster() -> impl Strategy<Value = RawCluster> {
    let list = || prop::option::of(prop::collection::vec(text(), 0..3));
    let numbers = (
        prop::option::of(any::<i64>()),
        prop::option::of(any::<i64>()),
    );
    let one = || prop::option::of(text());
    (
        text(),
        any::<bool>(),
        one(),
        list(),
        (one(), one(), one(), one()),
        list(),
        list(),
        numbers,
    )
        .prop_map(
            |(
                name,
                local,
                secret,
                pod_cidrs,
                (wireguard_cidr, service_cidr, topology_label, endpoint_from),
                additional_cidrs,
                allowed_networks,
                (port, keepalive),
            )| {
                RawCluster {
                    name,
                    local,
                    kubeconfig_secret: secret.map(|name| SecretRef { name, key: None }),
                    pod_cidrs,
                    wireguard_cidr,
                    service_cidr,
                    additional_cidrs,
                    allowed_networks,
                    wireguard_port: port,
                    persistent_keepalive: keepalive,
                    topology_label,
                    endpoint_from,
                }
            },
        )
}

fn good_cluster(name: &str, number: u8) -> RawCluster {
    RawCluster {
        name: name.to_owned(),
        local: number == 1,
        kubeconfig_secret: Some(SecretRef {
            name: "kubeconfig".to_owned(),
            key: None,
        }),
        allowed_networks: Some(vec![
            format!("10.{number}.0.0/16"),
            format!("fd00:{number}::/32"),
        ]),
        persistent_keepalive: Some(25),
        ..RawCluster::default()
    }
}

fn mesh(clusters: Vec<RawCluster>) -> Mesh {
    Mesh {
        id: MeshId::new("net", "prod"),
        created: None,
        deleting: false,
        confirm_deletes: None,
        held: Default::default(),
        anchors: Default::default(),
        take_over_hub: None,
        spec: RawSpec {
            clusters,
            ..RawSpec::default()
        },
        running: None,
        recalled: false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_network_is_read_as_it_is_shown(text in text()) {
        if let Ok(written) = WrittenCidr::try_from(text.as_str()) {
            let shown = written.network.to_string();
            prop_assert_eq!(Cidr::try_from(shown.as_str()), Ok(written.network));
            prop_assert!(written.network.contains_address(written.address));
        }
    }

    #[test]
    fn an_endpoint_is_read_as_it_is_shown(text in text()) {
        if let Ok(endpoint) = Endpoint::try_from(text.as_str()) {
            prop_assert_eq!(Endpoint::try_from(endpoint.to_string().as_str()), Ok(endpoint.clone()));
            prop_assert!(endpoint.port() > 0);
        }
    }

    #[test]
    fn a_key_has_one_spelling(text in text()) {
        if let Ok(key) = PublicKey::try_from(text.as_str()) {
            prop_assert_eq!(key.to_base64(), text);
        }
    }

    #[test]
    fn names_are_always_fit(mesh in text(), node in text()) {
        let cluster = ClusterName::try_from("a").unwrap();
        let name = PeerName::of(&mesh, &cluster, &node);
        prop_assert!(name.as_str().len() <= 253);
        prop_assert!(name.as_str().bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.'));
        prop_assert!(label_value(&mesh).chars().count() <= 63);
    }

    #[test]
    fn shown_text_has_no_control_characters(text in text()) {
        prop_assert!(!printable(&text, 50).chars().any(char::is_control));
        prop_assert!(!shell_quoted(&text).chars().any(char::is_control));
        _ = duration_seconds(&text);
    }

    #[test]
    fn any_spec_is_judged(clusters in prop::collection::vec(raw_cluster(), 0..4), timeout in text(), percent in any::<i64>()) {
        let raw = RawSpec { clusters, cleanup_timeout: Some(timeout), max_delete_percent: Some(percent) };
        if let Err(problems) = validate(&raw) {
            prop_assert!(problems.iter().any(|problem| problem.is_error()));
            prop_assert!(problems.iter().all(|problem| problem.subject.starts_with("spec.")));
        }
    }

    #[test]
    fn any_nodes_and_peers_are_planned(
        nodes in prop::collection::vec((0..2u8, facts()), 0..6),
        peers in prop::collection::vec((0..2u8, peer()), 0..6),
        hostile in prop::option::of(raw_cluster()),
    ) {
        let names = ["a", "b"];
        let mut clusters: BTreeMap<ClusterId, ClusterSeen> = BTreeMap::new();
        for (at, name) in names.iter().enumerate() {
            let own = |of: u8| usize::from(of) == at;
            let nodes = nodes.iter().filter(|(of, _)| own(*of)).map(|(_, facts)| Node::read(facts.clone()));
            let peers = peers.iter().filter(|(of, _)| own(*of)).map(|(_, facts)| (PeerName::from(facts.name.as_str()), facts.clone()));
            clusters.insert(ClusterId::from(*name), ClusterSeen {
                nodes: Seen::Known(nodes.map(|node| (node.name.clone(), Arc::new(node))).collect()),
                peers: Seen::Known(peers.collect()),
                departures: Departures::AnyMissing,
            });
        }
        let entries = [good_cluster("a", 1), good_cluster("b", 2)].into_iter().chain(hostile).collect();
        let declared = mesh(entries);
        let world = World {
            options: Options { hub: Some("hub".to_owned()), ..Options::default() },
            orphans: Orphans { absent: Absent::AllOthers, ..Orphans::default() },
            now: Timestamp(0),
            meshes: BTreeMap::from([(declared.id.clone(), declared)]),
            clusters,
            identities: BTreeMap::new(),
            ..World::default()
        };
        let plan = plan(world);
        let skips = plan.meshes.values().flat_map(|mesh| mesh.clusters.values()).flat_map(|cluster| cluster.skipped.values());
        let said = plan.problems().map(|(_, problem)| format!("{}{}{}", problem.subject, problem.message, problem.hint));
        let text: String = said.chain(skips.map(|skip| skip.message.clone())).collect();
        prop_assert!(!text.chars().any(char::is_control));
    }
}

/// The fastest of several runs, since the machine may be busy.
fn fastest(run: impl Fn()) -> Duration {
    let once = || {
        let start = Instant::now();
        run();
        start.elapsed()
    };
    (0..20).map(|_| once()).min().unwrap()
}

#[test]
fn text_that_is_too_long_is_refused_at_once() {
    let huge = "1".repeat(256 * 1024);
    let json = format!("{{{}", "\"a\":".repeat(64 * 1024));
    let parsers: [(&str, &dyn Fn()); 6] = [
        ("network", &|| {
            assert!(Cidr::try_from(huge.as_str()).is_err())
        }),
        ("endpoint", &|| {
            assert!(Endpoint::try_from(huge.as_str()).is_err())
        }),
        ("key", &|| {
            assert!(PublicKey::try_from(huge.as_str()).is_err())
        }),
        ("address", &|| {
            assert!(mw_core::cidr::parse_address(&huge).is_none())
        }),
        ("duration", &|| assert!(duration_seconds(&huge).is_none())),
        ("cluster name", &|| {
            assert!(ClusterName::try_from(huge.as_str()).is_err())
        }),
    ];
    for (name, run) in parsers {
        let time = fastest(run);
        assert!(time < Duration::from_micros(100), "{name}: {time:?}");
    }
    let read = |text: &str| {
        let kilo = ANNOTATIONS
            .iter()
            .map(|key| ((*key).to_owned(), text.to_owned()))
            .collect();
        NodeFacts {
            kilo,
            ..NodeFacts::default()
        }
    };
    for text in [&huge, &json] {
        let facts = read(text);
        let node = Node::read(facts.clone());
        assert!(
            node.discovered.is_err()
                && node.key.is_err()
                && node.wireguard_ip.is_err()
                && node.endpoint.is_err()
        );
        let copying = fastest(|| drop(facts.clone()));
        let reading = fastest(|| drop(Node::read(facts.clone())));
        assert!(
            reading < copying * 3 + Duration::from_micros(500),
            "reading {reading:?}, copying alone {copying:?}"
        );
    }
}
