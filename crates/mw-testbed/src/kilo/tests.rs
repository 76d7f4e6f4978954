//! Decisions of the agent, grouped by the sections of the facts about Kilo that
//! describe them. Effects on a host are tested in `tests/agent.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use serde_json::{Value, json};

use super::Granularity::{self, Full, Location};
use super::endpoint::Names;
use super::informer::Event;
use super::mesh::{Identity, Mesh, Plan};
use super::node::Node;
use super::peer::Peer;
use crate::net::{Key, PeerConfig, PeerState, Route};

const NOW: u64 = 1_000_000;

/// Returns a key for each letter; their base64 sorts like the letters.
fn key(letter: char) -> Key {
    format!("{}A=", letter.to_string().repeat(42))
        .parse()
        .unwrap()
}

fn node(name: &str, at: u8, annotations: &[(&str, &str)]) -> Value {
    let mut all = json!({
        "kilo.squat.ai/endpoint": format!("198.18.1.{at}:51820"), "kilo.squat.ai/internal-ip": format!("192.168.1.{at}/24"),
        "kilo.squat.ai/key": key(char::from(b'a' + at)).to_string(), "kilo.squat.ai/last-seen": NOW.to_string(),
        "kilo.squat.ai/location": "here",
    });
    for (name, value) in annotations {
        all[format!("kilo.squat.ai/{name}")] = json!(value);
    }
    json!({ "metadata": { "name": name, "annotations": all }, "spec": { "podCIDR": format!("10.1.{at}.0/24") } })
}

fn peer(name: &str, letter: char, allowed: &[&str]) -> Value {
    let endpoint = json!({ "dnsOrIP": { "ip": "203.0.113.9" }, "port": 51820 });
    json!({ "metadata": { "name": name }, "spec": { "publicKey": key(letter).to_string(), "allowedIPs": allowed, "endpoint": endpoint } })
}

fn with(mut peer: Value, change: Value) -> Value {
    for (field, value) in change.as_object().unwrap() {
        peer["spec"][field] = value.clone();
    }
    peer
}

/// An agent on a node, with its state.
struct Seat {
    mesh: Mesh,
    names: Names,
    device: Vec<PeerState>,
}

fn seat(granularity: Granularity, me: &str, nodes: &[Value]) -> Seat {
    let own = Node::read(
        nodes
            .iter()
            .find(|node| node["metadata"]["name"] == me)
            .unwrap(),
    );
    let identity = Identity {
        hostname: me.to_owned(),
        key: own.key.unwrap(),
        port: 51820,
        external: "198.18.1.1".parse().unwrap(),
        internal: own.internal_ip.unwrap_or("192.168.1.1/24".parse().unwrap()),
        granularity,
        range: "100.64.1.0/24".parse().unwrap(),
    };
    let mut seat = Seat {
        mesh: Mesh::new(identity),
        names: Names::default(),
        device: vec![],
    };
    for node in nodes {
        seat.node(Event::Added(node.clone()), NOW);
    }
    seat
}

impl Seat {
    fn node(&mut self, event: Event, now: u64) -> bool {
        match self.mesh.own_in(&event) {
            Some(own) => {
                let own = self.mesh.describe(&own, now);
                self.mesh.adopt(own, now)
            }
            None => self.mesh.node_event(&event, now),
        }
    }

    fn add(&mut self, peer: &Value) -> bool {
        self.mesh.peer_event(&Event::Added(peer.clone()))
    }

    fn plan(&mut self) -> Plan {
        self.plan_at(NOW)
            .expect("names resolve")
            .expect("the own node is ready")
    }

    fn plan_at(&mut self, now: u64) -> Result<Option<Plan>, String> {
        self.mesh.plan(&self.device, &self.names, now)
    }

    /// Plans and applies the plan. Returns the reason to configure WireGuard.
    fn apply(&mut self) -> Option<&'static str> {
        let plan = self.plan();
        if plan.differs.is_some() {
            self.device = configured(&plan.peers);
        }
        plan.differs
    }
}

/// Returns peers as WireGuard stores them: masked, each prefix at its last owner, by
/// key.
fn configured(peers: &[PeerConfig]) -> Vec<PeerState> {
    let mut all: BTreeMap<Key, PeerState> = BTreeMap::new();
    for peer in peers {
        let allowed: BTreeSet<_> = peer.allowed.iter().map(|net| net.trunc()).collect();
        all.values_mut()
            .for_each(|other| other.allowed.retain(|net| !allowed.contains(net)));
        let (key, preshared, endpoint, keepalive) =
            (peer.key, peer.preshared, peer.endpoint, peer.keepalive);
        all.insert(
            key,
            PeerState {
                key,
                preshared,
                endpoint,
                keepalive,
                allowed,
                has_session: false,
            },
        );
    }
    all.into_values().collect()
}

fn allowed(plan: &Plan, key: Key) -> Vec<String> {
    let found = plan.peers.iter().find(|peer| peer.key == key);
    found
        .map(|peer| peer.allowed.iter().map(ToString::to_string).collect())
        .unwrap_or_default()
}

fn keys(plan: &Plan) -> Vec<Key> {
    plan.peers.iter().map(|peer| peer.key).collect()
}

#[test]
fn s2_segments_are_places_or_nodes_and_a_node_without_internal_ip_is_alone() {
    let nodes = [
        node("a", 1, &[]),
        node("b", 2, &[]),
        node("c", 3, &[("force-internal-ip", "-")]),
    ];
    let plan = seat(Location, "a", &nodes).plan();
    assert_eq!(keys(&plan), [key('d')], "b is in the own location");
    assert_eq!(keys(&seat(Full, "a", &nodes).plan()), [key('c'), key('d')]);
}

#[test]
fn s2_the_location_annotation_counts_even_when_empty_and_the_label_otherwise() {
    let mut labelled = node("b", 2, &[]);
    labelled["metadata"]["annotations"]
        .as_object_mut()
        .unwrap()
        .remove("kilo.squat.ai/location");
    labelled["metadata"]["labels"] = json!({ "topology.kubernetes.io/region": "there" });
    assert_eq!(Node::read(&labelled).location, "there");
    labelled["metadata"]["annotations"]["kilo.squat.ai/location"] = json!("");
    assert_eq!(Node::read(&labelled).location, "");
}

#[test]
fn s2_only_ready_nodes_count_and_ready_is_seen_less_than_60_seconds_ago() {
    let mut seat = seat(
        Full,
        "a",
        &[
            node("a", 1, &[]),
            node("b", 2, &[("last-seen", &(NOW - 30).to_string())]),
        ],
    );
    assert_eq!(keys(&seat.plan_at(NOW + 29).unwrap().unwrap()), [key('c')]);
    assert_eq!(keys(&seat.plan_at(NOW + 30).unwrap().unwrap()), []);
    assert!(
        seat.plan_at(NOW + 60).unwrap().is_none(),
        "the own node is not ready either"
    );
    for incomplete in [
        node("b", 2, &[("key", "")]),
        node("b", 2, &[("endpoint", "nonsense")]),
    ] {
        assert!(!Node::read(&incomplete).is_ready(NOW));
    }
}

#[test]
fn s2_the_leader_asks_to_lead_then_is_public_then_is_the_first_by_name() {
    let private = ("endpoint", "192.168.1.9:51820");
    let leads = |nodes: &[Value], name: &str| seat(Location, name, nodes).plan().is_leader;
    let nodes = [node("a", 1, &[private]), node("b", 2, &[private])];
    assert!(leads(&nodes, "a") && !leads(&nodes, "b"));
    let nodes = [node("a", 1, &[private]), node("b", 2, &[])];
    assert!(leads(&nodes, "b"), "b is public");
    let nodes = [
        node("a", 1, &[("leader", "false"), private]),
        node("b", 2, &[]),
    ];
    assert!(leads(&nodes, "a"), "regardless of the annotation");
    let nodes = [
        node("a", 1, &[("leader", ""), private]),
        node("b", 2, &[("leader", "")]),
    ];
    assert!(
        leads(&nodes, "b"),
        "both are annotated as leader, one is public"
    );
}

#[test]
fn s2_a_segment_allows_pod_cidrs_and_internal_ips_of_all_its_nodes_and_one_wireguard_ip() {
    let nodes = [
        node("a", 1, &[("location", "else")]),
        node("b", 2, &[]),
        node("c", 3, &[]),
    ];
    let plan = seat(Location, "a", &nodes).plan();
    let wanted = [
        "10.1.2.0/24",
        "192.168.1.2/32",
        "10.1.3.0/24",
        "192.168.1.3/32",
        "100.64.1.2/32",
    ];
    assert_eq!(allowed(&plan, key('c')), wanted);
}

#[test]
fn s2_the_wireguard_ip_is_the_place_among_ready_segments_and_moves() {
    let nodes = [
        node("a", 1, &[("last-seen", &(NOW - 30).to_string())]),
        node("b", 2, &[]),
    ];
    let mut seat = seat(Full, "b", &nodes);
    assert_eq!(seat.plan().address.to_string(), "100.64.1.2/24");
    let own = Node::read(&nodes[1]);
    assert_eq!(
        seat.mesh
            .describe(&own, NOW)
            .wireguard_ip
            .unwrap()
            .to_string(),
        "100.64.1.2/24"
    );
    let later = seat.plan_at(NOW + 30).unwrap().unwrap();
    assert_eq!(later.address.to_string(), "100.64.1.1/24");
}

#[test]
fn s2_routes_over_the_tunnel_have_the_internal_ip_as_source() {
    let mut seat = seat(Full, "a", &[node("a", 1, &[]), node("b", 2, &[])]);
    seat.add(&peer("p", 'z', &["10.2.0.0/24"]));
    let route = |to: &str, via: Option<&str>| Route {
        to: to.parse().unwrap(),
        via: via.map(|via| via.parse().unwrap()),
        source: Some("192.168.1.1".parse().unwrap()),
        device: "kilo0".into(),
    };
    let second = Some("100.64.1.2");
    let wanted = [
        route("10.1.2.0/24", second),
        route("192.168.1.2/32", second),
        route("10.2.0.0/24", None),
    ];
    assert_eq!(seat.plan().routes, BTreeSet::from(wanted));
}

#[test]
fn s2_a_non_leader_routes_everything_through_its_leader_and_has_no_source() {
    let mut seat = seat(
        Location,
        "b",
        &[
            node("a", 1, &[]),
            node("b", 2, &[]),
            node("c", 3, &[("location", "else")]),
        ],
    );
    seat.add(&peer("p", 'z', &["10.2.0.0/24"]));
    let plan = seat.plan();
    assert!(!plan.is_leader);
    let wanted = [
        "10.1.1.0/24",
        "10.1.3.0/24",
        "10.2.0.0/24",
        "100.64.1.1/32",
        "100.64.1.2/32",
        "192.168.1.3/32",
    ];
    assert_eq!(
        plan.routes
            .iter()
            .map(|route| route.to.to_string())
            .collect::<BTreeSet<_>>(),
        wanted.map(String::from).into()
    );
    let leader = Some("192.168.1.1".parse().unwrap());
    assert!(
        plan.routes
            .iter()
            .all(|route| route.via == leader && route.source.is_none() && route.device == "eth0")
    );
}

#[test]
fn s2_an_internal_ip_that_is_the_endpoint_is_not_routed_for_segments_but_is_for_peers() {
    let flat = node("b", 2, &[("endpoint", "192.168.1.2:51820")]);
    let mut seat = seat(Full, "a", &[node("a", 1, &[]), flat]);
    seat.add(&peer("p", 'z', &["203.0.113.9/32"]));
    let to: Vec<String> = seat
        .plan()
        .routes
        .iter()
        .map(|route| route.to.to_string())
        .collect();
    assert!(
        !to.contains(&"192.168.1.2/32".into()) && to.contains(&"203.0.113.9/32".into()),
        "{to:?}"
    );
}

#[test]
fn s3_annotations_have_kilos_format() {
    let mut seat = seat(
        Full,
        "a",
        &[node(
            "a",
            1,
            &[
                ("force-endpoint", "edge.example.org:4500"),
                ("persistent-keepalive", "5"),
            ],
        )],
    );
    seat.names
        .set("edge.example.org", "203.0.113.1".parse().unwrap());
    seat.plan();
    let found = Node::read(&node(
        "a",
        1,
        &[("force-endpoint", "edge.example.org:4500")],
    ));
    let written = seat.mesh.describe(&found, NOW + 7).annotations();
    let text = |name: &str| {
        written["metadata"]["annotations"][format!("kilo.squat.ai/{name}")]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(text("endpoint"), "edge.example.org:4500");
    assert_eq!(text("internal-ip"), "192.168.1.1/24");
    assert_eq!(text("key"), key('b').to_string());
    assert_eq!(text("last-seen"), (NOW + 7).to_string());
    assert_eq!(text("wireguard-ip"), "100.64.1.1/24");
    assert_eq!(text("granularity"), "full");
    assert_eq!(text("discovered-endpoints"), "");
    assert_eq!(
        Node::nothing()["metadata"]["annotations"]
            .as_object()
            .unwrap()
            .len(),
        7
    );
}

#[test]
fn s3_people_force_endpoint_and_internal_ip_and_nonsense_is_ignored() {
    let read = |name: &str, value: &str| Node::read(&node("a", 1, &[(name, value)]));
    assert_eq!(
        read("force-endpoint", "203.0.113.7:99")
            .endpoint
            .unwrap()
            .to_string(),
        "203.0.113.7:99"
    );
    assert_eq!(
        read("force-endpoint", "nonsense")
            .endpoint
            .unwrap()
            .to_string(),
        "198.18.1.1:51820"
    );
    assert_eq!(
        read("force-internal-ip", "172.16.0.1/16")
            .internal_ip
            .unwrap()
            .to_string(),
        "172.16.0.1/16"
    );
    for none in ["", "-"] {
        assert_eq!(read("force-internal-ip", none).internal_ip, None);
    }
    assert_eq!(read("persistent-keepalive", "soon").keepalive, 0);
}

#[test]
fn s3_only_the_first_pod_cidr_counts() {
    let mut dual = node("b", 2, &[]);
    dual["spec"]["podCIDRs"] = json!(["10.1.2.0/24", "fd00:1:2::/64"]);
    let plan = seat(Full, "a", &[node("a", 1, &[]), dual]).plan();
    assert!(plan.routes.iter().all(|route| route.to.addr().is_ipv4()));
}

#[test]
fn s5_peers_that_kilo_does_not_validate_are_dropped() {
    let good = peer("p", 'z', &["10.2.0.0/24"]);
    assert!(Peer::read(&good).is_some());
    let endpoint =
        |host: Value, port: i64| json!({ "endpoint": { "dnsOrIP": host, "port": port } });
    for bad in [
        json!({ "allowedIPs": ["10.2.0.0"] }),
        json!({ "publicKey": "notakey" }),
        json!({ "persistentKeepalive": -1 }),
        endpoint(json!({ "ip": "203.0.113.9" }), 70000),
        endpoint(json!({ "ip": "203.0.113.9" }), 0),
        endpoint(json!({ "ip": "nonsense" }), 1),
        endpoint(json!({ "dns": "Not.A.Name" }), 1),
        endpoint(json!({}), 1),
    ] {
        assert!(
            Peer::read(&with(good.clone(), bad.clone())).is_none(),
            "{bad}"
        );
    }
    assert!(
        Peer::read(&with(good, json!({ "presharedKey": "nonsense" })))
            .unwrap()
            .preshared
            .is_none()
    );
}

#[test]
fn s5_a_fix_of_an_invalid_peer_waits_for_the_next_event() {
    let mut seat = seat(Full, "a", &[node("a", 1, &[])]);
    let good = peer("p", 'z', &["10.2.0.0/24"]);
    let bad = with(good.clone(), json!({ "allowedIPs": ["nonsense"] }));
    assert!(!seat.add(&bad));
    assert!(
        !seat
            .mesh
            .peer_event(&Event::Updated(bad.clone(), good.clone()))
    );
    assert!(
        seat.mesh
            .peer_event(&Event::Updated(good.clone(), good.clone())),
        "like a resync of the informer"
    );
    // In the opposite order, the old Peer remains, even after a delete.
    assert!(!seat.mesh.peer_event(&Event::Updated(good, bad.clone())));
    assert!(!seat.mesh.peer_event(&Event::Deleted(bad)));
    assert_eq!(keys(&seat.plan()), [key('z')]);
}

#[test]
fn s5_last_event_wins_per_key_and_a_delete_takes_the_other_with_it() {
    let mut seat = seat(Full, "a", &[node("a", 1, &[])]);
    let (one, other) = (
        peer("one", 'z', &["10.2.0.0/24"]),
        peer("other", 'z', &["10.3.0.0/24"]),
    );
    seat.add(&other);
    seat.add(&one);
    assert_eq!(allowed(&seat.plan(), key('z')), ["10.2.0.0/24"]);
    seat.mesh.peer_event(&Event::Deleted(other));
    assert_eq!(keys(&seat.plan()), [], "although one still exists");
    assert!(seat.mesh.peer_event(&Event::Updated(one.clone(), one)));
    assert_eq!(keys(&seat.plan()), [key('z')]);
}

#[test]
fn s5_a_key_that_changes_in_place_is_handled() {
    let mut seat = seat(Full, "a", &[node("a", 1, &[])]);
    let old = peer("p", 'y', &["10.2.0.0/24"]);
    seat.add(&old);
    seat.mesh
        .peer_event(&Event::Updated(old, peer("p", 'z', &["10.2.0.0/24"])));
    assert_eq!(keys(&seat.plan()), [key('z')]);
}

#[test]
fn s5_the_own_key_is_refused_and_everything_is_configured_every_time() {
    let mut seat = seat(Full, "a", &[node("a", 1, &[])]);
    seat.add(&peer("myself", 'b', &["10.2.0.0/24"]));
    let own = seat.plan().peers;
    seat.device = configured(
        &own.into_iter()
            .filter(|peer| peer.key != key('b'))
            .collect::<Vec<_>>(),
    );
    assert_eq!(seat.plan().differs, Some("number of peers"));
}

#[test]
fn s5_first_name_wins_per_prefix_and_nested_ones_are_left_alone() {
    let mut seat = seat(Full, "a", &[node("a", 1, &[])]);
    seat.add(&peer("b-right", 'y', &["10.2.1.0/24", "10.2.0.0/16"]));
    seat.add(&peer("a-steals", 'z', &["10.2.1.0/24"]));
    let plan = seat.plan();
    assert_eq!(allowed(&plan, key('z')), ["10.2.1.0/24"]);
    assert_eq!(allowed(&plan, key('y')), ["10.2.0.0/16"]);
}

#[test]
fn s5_a_prefix_of_the_own_segments_never_compares_equal() {
    let mut seat = seat(Full, "a", &[node("a", 1, &[]), node("b", 2, &[])]);
    seat.add(&peer("p", 'z', &["10.1.2.0/24"]));
    for _ in 0..3 {
        assert!(seat.apply().is_some());
    }
}

#[test]
fn s5_host_bits_stay_in_routes_and_never_compare_equal() {
    let mut seat = seat(Full, "a", &[node("a", 1, &[])]);
    seat.add(&peer("p", 'z', &["10.99.9.7/24"]));
    assert!(seat.apply().is_some());
    assert_eq!(seat.apply(), Some("allowed IPs"));
    assert!(
        seat.plan()
            .routes
            .iter()
            .any(|route| route.to.to_string() == "10.99.9.7/24")
    );
}

#[test]
fn s5_a_name_wins_over_an_address_and_is_resolved_once() {
    let mut seat = seat(Full, "a", &[node("a", 1, &[])]);
    seat.names
        .set("b.example.org", "203.0.113.1".parse().unwrap());
    let both = json!({ "endpoint": { "dnsOrIP": { "dns": "b.example.org", "ip": "203.0.113.9" }, "port": 99 } });
    let named = with(peer("p", 'z', &["10.2.0.0/24"]), both);
    seat.add(&named);
    let endpoint = |seat: &mut Seat| seat.plan().peers[0].endpoint.unwrap().to_string();
    assert_eq!(endpoint(&mut seat), "203.0.113.1:99");
    seat.names
        .set("b.example.org", "203.0.113.2".parse().unwrap());
    assert!(
        !seat
            .mesh
            .peer_event(&Event::Updated(named.clone(), named.clone())),
        "the same spec is not a change"
    );
    assert_eq!(endpoint(&mut seat), "203.0.113.1:99");
    seat.mesh.peer_event(&Event::Updated(
        named.clone(),
        with(named, json!({ "allowedIPs": ["10.3.0.0/24"] })),
    ));
    assert_eq!(endpoint(&mut seat), "203.0.113.2:99");
}

#[test]
fn s5_one_name_that_does_not_resolve_holds_everything_up() {
    let mut seat = seat(Full, "a", &[node("a", 1, &[])]);
    seat.add(&with(
        peer("p", 'z', &["10.2.0.0/24"]),
        json!({ "endpoint": { "dnsOrIP": { "dns": "nowhere" }, "port": 1 } }),
    ));
    seat.add(&peer("q", 'y', &["10.3.0.0/24"]));
    assert!(seat.plan_at(NOW).is_err());
}

#[test]
fn s5_the_keepalive_is_the_nodes_and_not_the_peers() {
    for (annotation, wanted) in [("0", 0), ("7", 7)] {
        let mut seat = seat(
            Full,
            "a",
            &[node("a", 1, &[("persistent-keepalive", annotation)])],
        );
        seat.add(&with(
            peer("p", 'z', &["10.2.0.0/24"]),
            json!({ "persistentKeepalive": 25 }),
        ));
        assert_eq!(seat.plan().peers[0].keepalive, wanted);
    }
}

#[test]
fn s5_discovered_endpoints_are_kept_for_all_peers_and_believed_with_a_keepalive() {
    let elsewhere: SocketAddr = "203.0.113.77:7777".parse().unwrap();
    for (keepalive, believed) in [(0, "203.0.113.9:51820"), (25, "203.0.113.77:7777")] {
        let mut seat = seat(Full, "a", &[node("a", 1, &[])]);
        seat.add(&with(
            peer("p", 'z', &["10.2.0.0/24"]),
            json!({ "persistentKeepalive": keepalive }),
        ));
        seat.apply();
        seat.device[0].endpoint = Some(elsewhere);
        assert_eq!(
            seat.plan().peers[0].endpoint.unwrap().to_string(),
            "203.0.113.9:51820",
            "without a session"
        );
        seat.device[0].has_session = true;
        assert_eq!(seat.plan().peers[0].endpoint.unwrap().to_string(), believed);
        let written = seat.mesh.checked_in(NOW).unwrap().annotations().to_string();
        assert!(
            written.contains(r#"{\"IP\":\"203.0.113.77\",\"Port\":7777,\"Zone\":\"\"}"#),
            "{written}"
        );
    }
}

#[test]
fn s5_what_another_node_discovered_is_used_unless_the_own_view_differs() {
    let seen = |port: u16| {
        json!({ key('z').to_string(): { "IP": "203.0.113.77", "Port": port, "Zone": "" } })
            .to_string()
    };
    let mut seat = seat(
        Full,
        "a",
        &[
            node("a", 1, &[]),
            node("b", 2, &[("discovered-endpoints", &seen(1))]),
        ],
    );
    seat.add(&with(
        peer("p", 'z', &["10.2.0.0/24"]),
        json!({ "endpoint": null, "persistentKeepalive": 25 }),
    ));
    let of_z = |plan: Plan| {
        plan.peers
            .iter()
            .find(|peer| peer.key == key('z'))
            .unwrap()
            .endpoint
            .unwrap()
            .port()
    };
    assert_eq!(of_z(seat.plan()), 1);
    seat.apply();
    let at = seat
        .device
        .iter()
        .position(|peer| peer.key == key('z'))
        .unwrap();
    seat.device[at].endpoint = Some("203.0.113.77:2".parse().unwrap());
    seat.device[at].has_session = true;
    assert_eq!(of_z(seat.plan()), 2);
}

#[test]
fn s5_a_peer_without_endpoint_and_keepalive_is_configured_anew_after_each_handshake() {
    for (keepalive, differs) in [(0, Some("peer endpoints: nil value")), (25, None)] {
        let mut seat = seat(Full, "a", &[node("a", 1, &[])]);
        seat.add(&with(
            peer("p", 'z', &["10.2.0.0/24"]),
            json!({ "endpoint": null, "persistentKeepalive": keepalive }),
        ));
        seat.apply();
        seat.device[0].endpoint = Some("203.0.113.77:7777".parse().unwrap());
        seat.device[0].has_session = true;
        assert_eq!(seat.plan().differs, differs);
    }
}

#[test]
fn s5_a_silent_peer_without_endpoint_hides_changes_of_those_that_sort_after_it() {
    let mut seat = seat(Full, "a", &[node("a", 1, &[])]);
    seat.add(&with(
        peer("silent", 'c', &["10.3.0.0/24"]),
        json!({ "endpoint": null }),
    ));
    let before = peer("later", 'z', &["10.2.0.0/24"]);
    seat.add(&before);
    seat.apply();
    let changed = with(before.clone(), json!({ "allowedIPs": ["10.4.0.0/24"] }));
    assert!(seat.mesh.peer_event(&Event::Updated(before, changed)));
    let plan = seat.plan();
    assert_eq!(plan.differs, None, "WireGuard is not configured");
    assert!(
        plan.routes
            .iter()
            .any(|route| route.to.to_string() == "10.4.0.0/24"),
        "but the route is set"
    );
    seat.add(&peer("one more", 'y', &["10.5.0.0/24"]));
    assert_eq!(seat.plan().differs, Some("number of peers"));
}

#[test]
fn s5_the_order_of_allowed_ips_costs_a_look_but_no_configuration() {
    let mut seat = seat(Full, "a", &[node("a", 1, &[])]);
    let before = peer("p", 'z', &["10.2.0.0/24", "10.3.0.0/24"]);
    seat.add(&before);
    seat.apply();
    assert!(seat.mesh.peer_event(&Event::Updated(
        before,
        peer("p", 'z', &["10.3.0.0/24", "10.2.0.0/24"])
    )));
    assert_eq!(seat.plan().differs, None);
}

#[test]
fn s5_a_heartbeat_of_another_node_is_no_news_but_its_silence_is() {
    let mut seat = seat(Full, "a", &[node("a", 1, &[]), node("b", 2, &[])]);
    let seen = |seconds: u64| node("b", 2, &[("last-seen", &seconds.to_string())]);
    assert!(!seat.node(Event::Updated(seen(NOW), seen(NOW + 30)), NOW + 30));
    assert!(seat.node(Event::Updated(seen(NOW + 30), seen(NOW - 100)), NOW + 30));
    assert!(seat.node(Event::Deleted(seen(NOW)), NOW + 30));
}

/// Returns an annotation of a patch.
fn annotation(patch: &Value, name: &str) -> String {
    patch["metadata"]["annotations"][format!("kilo.squat.ai/{name}")]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Returns a node object after a patch.
fn patched(mut node: Value, patch: &Value) -> Value {
    for (name, value) in patch["metadata"]["annotations"].as_object().unwrap() {
        node["metadata"]["annotations"][name] = value.clone();
    }
    node
}

#[test]
fn later_a_node_that_is_renumbered_says_so_only_after_its_check_in() {
    let nodes = ["a", "b", "c"].map(|name| node(name, name.as_bytes()[0] - b'a' + 1, &[]));
    let said = |at: usize, address: &str| {
        patched(
            nodes[at].clone(),
            &json!({ "metadata": { "annotations": { "kilo.squat.ai/wireguard-ip": address } } }),
        )
    };
    let [b, c] = [said(1, "100.64.1.2/24"), said(2, "100.64.1.3/24")];
    let mut seat = seat(Full, "c", &[nodes[0].clone(), b.clone(), c.clone()]);
    assert_eq!(seat.plan().address.to_string(), "100.64.1.3/24");
    seat.node(Event::Updated(c.clone(), c.clone()), NOW);
    assert!(seat.node(Event::Deleted(nodes[0].clone()), NOW));
    assert_eq!(
        seat.plan().address.to_string(),
        "100.64.1.2/24",
        "the device has it immediately"
    );
    let check_in = seat.mesh.checked_in(NOW + 30).unwrap().annotations();
    assert_eq!(
        annotation(&check_in, "wireguard-ip"),
        "100.64.1.3/24",
        "the check-in repeats the old one"
    );
    let own = Node::read(&patched(c, &check_in));
    let corrected = seat.mesh.describe(&own, NOW + 30);
    assert!(
        !own.equals(&corrected, NOW + 30),
        "the agent then corrects it"
    );
    assert_eq!(
        annotation(&corrected.annotations(), "wireguard-ip"),
        annotation(&json!({ "metadata": b["metadata"] }), "wireguard-ip"),
        "b has not written its own yet"
    );
}

#[test]
fn later_the_next_leader_says_its_key_long_before_its_address() {
    let nodes = [node("a", 1, &[]), node("b", 2, &[])];
    let mut seat = seat(Location, "b", &nodes);
    assert!(!seat.plan().is_leader);
    let stopped = patched(nodes[0].clone(), &Node::nothing());
    assert!(seat.node(Event::Updated(nodes[0].clone(), stopped), NOW));
    assert!(seat.plan().is_leader, "leads immediately");
    let check_in = seat.mesh.checked_in(NOW + 30).unwrap().annotations();
    assert_eq!(
        (
            annotation(&check_in, "key"),
            annotation(&check_in, "wireguard-ip")
        ),
        (key('c').to_string(), String::new())
    );
    let own = seat
        .mesh
        .describe(&Node::read(&patched(nodes[1].clone(), &check_in)), NOW + 30);
    assert_eq!(
        annotation(&own.annotations(), "wireguard-ip"),
        "100.64.1.1/24"
    );
}

#[test]
fn d1_discovered_endpoints_vanish_with_every_reconfiguration_until_hands_are_shaken_again() {
    let mut seat = seat(Full, "a", &[node("a", 1, &[])]);
    let written = |seat: &Seat| {
        annotation(
            &seat.mesh.checked_in(NOW).unwrap().annotations(),
            "discovered-endpoints",
        )
    };
    assert_eq!(written(&seat), "", "nothing is computed yet");
    seat.add(&peer("p", 'z', &["10.2.0.0/24"]));
    seat.apply();
    assert_eq!(written(&seat), "{}", "no handshake yet");
    seat.device[0].has_session = true;
    seat.apply();
    assert!(written(&seat).contains(&key('z').to_string()));
    // Adding a Peer replaces all peers, so there is no handshake afterwards.
    seat.add(&peer("q", 'y', &["10.3.0.0/24"]));
    assert_eq!(seat.apply(), Some("number of peers"));
    assert!(
        written(&seat).contains(&key('z').to_string()),
        "computed before the device was configured"
    );
    seat.apply();
    assert_eq!(written(&seat), "{}");
    seat.device
        .iter_mut()
        .for_each(|peer| peer.has_session = true);
    seat.apply();
    assert!(
        written(&seat).contains(&key('z').to_string())
            && written(&seat).contains(&key('y').to_string())
    );
}

#[test]
fn d1_entries_are_of_all_peers_and_of_nodes_with_a_keepalive() {
    let mut seat = seat(
        Full,
        "a",
        &[
            node("a", 1, &[("persistent-keepalive", "5")]),
            node("b", 2, &[("persistent-keepalive", "0")]),
        ],
    );
    seat.add(&peer("p", 'z', &["10.2.0.0/24"]));
    seat.apply();
    seat.device
        .iter_mut()
        .for_each(|peer| peer.has_session = true);
    seat.apply();
    let written = annotation(
        &seat.mesh.checked_in(NOW).unwrap().annotations(),
        "discovered-endpoints",
    );
    assert!(
        written.contains(&key('z').to_string()),
        "of a Peer, regardless of its keepalive"
    );
    assert!(
        !written.contains(&key('c').to_string()),
        "of a node only with keepalive"
    );
}
