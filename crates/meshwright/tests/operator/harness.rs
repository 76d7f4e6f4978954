//! Tests of the harness: its setup, its model and its checks.

use std::collections::BTreeSet;

use serde_json::json;

use crate::bed::PEERS;
use crate::expected::{essence, expected_peers};
use crate::fleet::Fleet;
use crate::ledger::{Call, judge};
use crate::look::differences;
use crate::metrics::Metrics;
use crate::rights::documents;
use crate::trials::scenarios;
use mw_sim::kilo::{Mesh, Node, Site, World, key};

scenarios![
    a_fleet_is_set_up_as_its_model_says,
    expected_peers_are_those_made_by_hand,
    expected_peers_of_a_location_are_those_of_its_leader,
    a_denied_call_and_an_unused_right_are_findings,
    metrics_are_summed_by_name_and_label,
];

async fn a_fleet_is_set_up_as_its_model_says() {
    let mut fleet = Fleet::three().nodes(2).proxied(&["west"]).build().await;
    for site in ["hub", "east", "west"] {
        assert_eq!(
            fleet
                .cluster(site)
                .list("/api/v1/nodes")
                .await
                .unwrap()
                .len(),
            2
        );
        assert!(fleet.peers(site).await.unwrap().is_empty());
    }
    let node = fleet
        .cluster("east")
        .get("/api/v1/nodes/n2")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(node["status"]["conditions"][0]["status"], "True");
    assert_eq!(node["spec"]["podCIDRs"], json!(["10.2.2.0/24"]));
    let secrets = fleet
        .cluster("hub")
        .list("/api/v1/namespaces/kilo-system/secrets")
        .await
        .unwrap();
    assert_eq!(secrets.len(), 2);
    assert!(
        fleet
            .member_kubeconfig("west")
            .contains(fleet.proxy("west").url())
    );
    assert_eq!(
        fleet.mesh().await["spec"]["clusters"]
            .as_array()
            .unwrap()
            .len(),
        3
    );

    let token = fleet
        .member_kubeconfig("west")
        .split("token: ")
        .nth(1)
        .unwrap()
        .lines()
        .next()
        .unwrap()
        .to_owned();
    let west = fleet.cluster("west");
    let mark = fleet.mark();
    assert_eq!(
        west.request_as(&token, "GET", PEERS, None)
            .await
            .unwrap()
            .code,
        200
    );
    assert_eq!(
        west.request_as(&token, "GET", "/api/v1/secrets", None)
            .await
            .unwrap()
            .code,
        403
    );
    let calls: Vec<_> = fleet
        .calls(&mark)
        .into_iter()
        .map(|(_, call)| (call.resource, call.denied))
        .collect();
    assert_eq!(
        calls,
        [("peers".to_owned(), false), ("secrets".to_owned(), true)]
    );
    fleet.expect_denials();
    fleet.finish().await;
}

fn world(sites: Vec<Site>) -> World {
    let mesh = Mesh::new("m", &sites.iter().collect::<Vec<_>>());
    World {
        sites: sites
            .into_iter()
            .map(|site| (site.name.clone(), site))
            .collect(),
        meshes: vec![mesh],
    }
}

async fn expected_peers_are_those_made_by_hand() {
    let mut far = Site::new("b", 2, 2);
    far.nodes
        .get_mut("n2")
        .unwrap()
        .annotations
        .insert("clustermesh-endpoint".into(), "b.example.org:4500".into());
    let mut near = Site::new("a", 1, 1);
    near.uid = "hub-uid".into();
    let mut world = world(vec![near, far]);
    world.meshes[0].entry("b").unwrap().additional_cidr = Some("192.168.2.0/24".into());
    world.meshes[0].entry("a").unwrap().keepalive = 25;
    let labels = json!({
        "kilo-clustermesh.io/mesh": "m", "kilo-clustermesh.io/mesh-namespace": "kilo-system",
        "kilo-clustermesh.io/source-cluster": "b", "kilo-clustermesh.io/hub": "hub-uid",
    });
    let first = json!({
        "allowedIPs": ["10.2.1.0/24", "100.64.2.1/32", "192.168.2.1/32", "172.20.2.0/24", "192.168.2.0/24"],
        "publicKey": key("2/1"), "persistentKeepalive": 25, "endpoint": { "dnsOrIP": { "ip": "198.18.2.1" }, "port": 51820 },
    });
    let second = json!({
        "allowedIPs": ["10.2.2.0/24", "100.64.2.2/32", "192.168.2.2/32"], "publicKey": key("2/2"), "persistentKeepalive": 25,
        "endpoint": { "dnsOrIP": { "dns": "b.example.org" }, "port": 4500 },
    });
    let by_hand = [("m--b--n1", first), ("m--b--n2", second)];
    let by_hand = by_hand
        .map(|(name, spec)| (name.to_owned(), json!({ "labels": labels, "spec": spec })))
        .into();
    assert_eq!(differences(&by_hand, &expected_peers(&world, "a")), [""; 0]);
    assert_eq!(
        expected_peers(&world, "b").into_keys().collect::<Vec<_>>(),
        ["m--a--n1"]
    );

    let peer = json!({ "metadata": { "name": "x", "labels": { "theirs": "1" } }, "spec": { "publicKey": "k", "persistentKeepalive": 0 } });
    assert_eq!(
        essence(&peer),
        json!({ "labels": {}, "spec": { "publicKey": "k" } })
    );
}

async fn expected_peers_of_a_location_are_those_of_its_leader() {
    let mut far = Site::new("b", 2, 3);
    for node in far.nodes.values_mut() {
        node.annotations
            .insert("granularity".into(), "location".into());
    }
    far.nodes
        .get_mut("n1")
        .unwrap()
        .annotations
        .insert("last-seen".into(), "1".into());
    far.nodes.insert("n9".into(), Node::new(2, 9));
    let peers = expected_peers(&world(vec![Site::new("a", 1, 1), far]), "a");
    assert_eq!(peers.keys().collect::<Vec<_>>(), ["m--b--n2", "m--b--n9"]);
    let allowed = &peers["m--b--n2"]["spec"]["allowedIPs"];
    assert_eq!(
        *allowed,
        json!([
            "10.2.2.0/24",
            "10.2.3.0/24",
            "100.64.2.2/32",
            "172.20.2.0/24"
        ])
    );
}

async fn a_denied_call_and_an_unused_right_are_findings() {
    let role = "{kind: Role, metadata: {namespace: ns}, rules: [{apiGroups: [g], resources: [things], verbs: [get, list], resourceNames: [a]}]}";
    let call = |verb: &str, namespace: &str, name: &str| Call {
        place: "Hub",
        verb: verb.into(),
        group: "g".into(),
        resource: "things".into(),
        namespace: namespace.into(),
        name: name.into(),
        denied_in: None,
    };
    let found = |calls: Vec<Call>| judge(&BTreeSet::from_iter(calls), &[("Hub", documents(role))]);
    let all = vec![call("get", "ns", "a"), call("list", "ns", "a")];
    assert_eq!(found(all.clone()), [""; 0]);
    assert_eq!(
        found(vec![call("get", "ns", "a"), call("list", "elsewhere", "a")]).len(),
        1
    );
    assert_eq!(found(vec![call("get", "ns", "b")]).len(), 2);
    let denied = Call {
        denied_in: Some("a scenario".into()),
        ..call("delete", "ns", "a")
    };
    assert_eq!(
        found([all, vec![denied]].concat()),
        ["denied in a scenario: Hub delete g/things ns/a"]
    );
}

async fn metrics_are_summed_by_name_and_label() {
    let metrics = Metrics::of(
        "# HELP a b\nwrites{cluster=\"x\",verb=\"patch\"} 2\nwrites{cluster=\"y\",verb=\"patch\"} 3\nwrites_total 7\n",
    );
    assert_eq!(metrics.sum("writes", &[]), 5.0);
    assert_eq!(metrics.sum("writes", &[("cluster", "y")]), 3.0);
    assert_eq!(metrics.sum("writes_total", &[]), 7.0);
}
