//! Justification of the planner's rules: for each rule, packets are lost without it and pass with
//! it.
//!
//! The binary can't disable rules. For each rule the operator first runs in a situation in which
//! the rule applies. Then it is stopped, and the test writes what the operator would have written
//! without the rule: packets are lost. Then it is restarted and repairs that, and packets pass.

use std::net::IpAddr;

use mw_testbed::net::lan::{DEVICE, UPLINK};
use mw_testbed::net::{Host, Lan, LanSpec, PeerConfig, Route};
use serde_json::{Value, json};

use crate::bed::PEERS;
use crate::ground::{Ground, Layout, Path, lost, path};
use crate::look::until;
use crate::process::Operator;
use crate::trials::scenarios;

scenarios![
    prefixes_that_are_never_written_would_cost_packets,
    keys_and_endpoints_that_are_never_written_would_cost_packets
];

/// A host outside of all clusters that has its own Peer on the hub.
struct Laptop {
    host: Host,
    _lan: Lan,
}

const LAPTOP: &str = "zz-laptop";
const LAPTOP_PODS: &str = "10.9.1.0/24";
/// The Peer that the tests in this file attack.
const VICTIM: &str = "mesh--east--n1";

impl Laptop {
    async fn join(ground: &Ground) -> Self {
        let lan = Lan::new(
            &ground.wire,
            LanSpec {
                number: 9,
                hidden: None,
            },
        )
        .await
        .unwrap();
        let host = lan.add_host(1).await.unwrap();
        let hub = ground.host("hub", "n1");
        host.links.up(DEVICE).await.unwrap();
        host.device.set_up(true);
        let endpoint = Some(hub.endpoint().unwrap().parse().unwrap());
        host.device.configure(&[PeerConfig {
            key: hub.device.key(),
            preshared: None,
            endpoint,
            keepalive: 1,
            allowed: vec![hub.pod_cidrs[0]],
        }]);
        let back = Route {
            to: hub.pod_cidrs[0],
            via: None,
            source: None,
            device: DEVICE.into(),
        };
        host.links.replace_route(&back).await.unwrap();
        let laptop = Self { host, _lan: lan };
        laptop.be_known(ground).await;
        laptop
    }

    async fn be_known(&self, ground: &Ground) {
        let address = json!({ "ip": self.host.external.unwrap().to_string() });
        let spec = json!({
            "publicKey": self.host.device.key().to_string(), "allowedIPs": [LAPTOP_PODS], "persistentKeepalive": 1,
            "endpoint": { "dnsOrIP": address, "port": self.host.device.port() },
        });
        let peer = json!({ "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "Peer", "metadata": { "name": LAPTOP }, "spec": spec });
        ground.fleet.cluster("hub").create(&peer).await.unwrap();
    }

    fn way(&self, ground: &Ground) -> Vec<Path> {
        vec![path(
            "pod hub/n1 to the laptop".into(),
            &ground.host("hub", "n1").pod,
            self.host.pod_addresses[0],
        )]
    }
}

/// Declares an additional network of east.
async fn declare(ground: &mut Ground, cidr: Option<&str>) {
    let mut spec = ground.fleet.mesh_model().spec();
    let own = "192.168.2.0/24";
    spec["clusters"][1]["additionalCIDRs"] = [own].into_iter().chain(cidr).collect();
    // The hub's own network is not declared, so that it can be overlapped.
    spec["clusters"][0]
        .as_object_mut()
        .unwrap()
        .remove("additionalCIDRs");
    ground.patch_mesh(&json!({ "spec": spec })).await;
}

/// Waits until the operator reports that it omits this on the hub.
async fn refused(ground: &Ground, reason: &str) {
    until(format!("{reason} is reported"), || async {
        let found = ground
            .fleet
            .events()
            .await
            .into_iter()
            .any(|event| event["reason"] == reason);
        if found {
            Ok(())
        } else {
            Err("no such event".to_owned())
        }
    })
    .await;
}

async fn victim(ground: &Ground) -> Vec<Value> {
    let peer = ground.fleet.peer("hub", VICTIM).await.unwrap();
    peer["spec"]["allowedIPs"].as_array().unwrap().clone()
}

/// Adds a prefix on the hub, as without the rule.
async fn write_prefix(ground: &Ground, cidr: &str) {
    let mut allowed = victim(ground).await;
    allowed.push(json!(cidr));
    let patch = json!({ "spec": { "allowedIPs": allowed } });
    ground
        .fleet
        .cluster("hub")
        .merge_patch(&format!("{PEERS}/{VICTIM}"), &patch)
        .await
        .unwrap();
}

async fn prefixes_that_are_never_written_would_cost_packets() {
    let (mut ground, operator) = Ground::running(Layout::default()).await;
    let laptop = Laptop::join(&ground).await;
    let to_laptop = laptop.way(&ground);
    let to_east: Vec<Path> = ground
        .paths_between("hub", "east")
        .into_iter()
        .filter(|path| path.name.contains("pod hub/n1 to pod east/n1"))
        .collect();
    // Nodes reach each other through the tunnel; this host is not a node.
    let neighbour: IpAddr = "192.168.1.254".parse().unwrap();
    let to_neighbour = vec![path(
        "host hub/n1 to its own network".into(),
        &ground.host("hub", "n1").namespace,
        neighbour,
    )];
    ground.arrive(&to_laptop).await;

    let mut operator = Some(operator);
    for (reason, cidr, victims) in [
        ("PrefixTaken", LAPTOP_PODS, &to_laptop),
        ("PrefixContainsEndpoint", "198.18.9.0/24", &to_laptop),
        ("PrefixContainsEndpoint", "198.18.2.0/24", &to_east),
        ("PrefixOverlapsTarget", "192.168.1.0/24", &to_neighbour),
    ] {
        declare(&mut ground, Some(cidr)).await;
        refused(&ground, reason).await;
        assert!(!victim(&ground).await.contains(&json!(cidr)));
        assert_eq!(
            lost(victims).await,
            [""; 0],
            "{reason}: {cidr} with the rule"
        );
        drop(operator.take());
        write_prefix(&ground, cidr).await;
        ground.stop_arriving(victims).await;
        eprintln!(
            "{reason}: with {cidr} written, nothing arrives on: {}",
            victims
                .iter()
                .map(|path| path.name.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        );
        operator = Some(ground.operator().await);
        until("the Peer is put right", || async {
            if victim(&ground).await.contains(&json!(cidr)) {
                Err("not yet".to_owned())
            } else {
                Ok(())
            }
        })
        .await;
        restore_lan(&ground).await;
        ground.arrive(victims).await;
        declare(&mut ground, None).await;
    }
    host_bits(&mut ground, operator).await;
    ground.fleet.finish().await;
}

/// Restores a replaced route, which does not come back by itself.
async fn restore_lan(ground: &Ground) {
    for node in ["n1", "n2"] {
        let host = ground.host("hub", node);
        let internal = host.internal.addr().into();
        let lan = Route {
            to: host.internal.trunc().into(),
            via: None,
            source: Some(internal),
            device: UPLINK.into(),
        };
        host.links.replace_route(&lan).await.unwrap();
    }
}

/// A prefix with host bits keeps Kilo from setting all other routes.
async fn host_bits(ground: &mut Ground, operator: Option<Operator>) {
    let to_west: Vec<Path> = ground
        .paths_between("hub", "west")
        .into_iter()
        .filter(|path| path.name.starts_with("pod hub/n1 to pod"))
        .collect();
    ground.arrive(&to_west).await;
    drop(operator);
    write_prefix(ground, "100.64.2.1/24").await;
    // It takes effect when routes are set again.
    ground.stop_agent("hub", "n1").await;
    ground.start_agent("hub", "n1");
    let services: Vec<Path> = ground
        .paths_between("hub", "west")
        .into_iter()
        .filter(|path| path.name.starts_with("pod hub/n1 to a service"))
        .collect();
    ground.arrive(&services).await;
    assert_eq!(lost(&to_west).await.len(), to_west.len());
    eprintln!(
        "host bits: with 100.64.2.1/24 written in a Peer of east, nothing arrives at pods of west"
    );
    let _operator = ground.operator().await;
    ground.arrive(&to_west).await;
}

/// Creates a Node without an agent, with the key of another node.
async fn clone_node(ground: &Ground, key: &str) {
    let seen = ground
        .fleet
        .cluster("east")
        .get("/api/v1/nodes/n1")
        .await
        .unwrap()
        .unwrap();
    let annotations = json!({
        "kilo.squat.ai/key": key, "kilo.squat.ai/wireguard-ip": "100.64.2.99/24", "kilo.squat.ai/force-endpoint": "198.18.2.99:51820",
        "kilo.squat.ai/granularity": "full", "kilo.squat.ai/last-seen": seen["metadata"]["annotations"]["kilo.squat.ai/last-seen"],
    });
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": "clone", "annotations": annotations },
        "spec": { "podCIDR": "10.2.99.0/24", "podCIDRs": ["10.2.99.0/24"] },
    });
    ground.fleet.cluster("east").create(&node).await.unwrap();
}

/// The Peer of that node on the hub, as without the rule.
async fn write_clone(ground: &Ground, key: &str) {
    let labels = ground.fleet.peer("hub", VICTIM).await.unwrap()["metadata"]["labels"].clone();
    let endpoint = json!({ "dnsOrIP": { "ip": "198.18.2.99" }, "port": 51820 });
    let spec = json!({ "publicKey": key, "allowedIPs": ["10.2.99.0/24", "100.64.2.99/32"], "endpoint": endpoint });
    let metadata = json!({ "name": "mesh--east--clone", "labels": labels });
    let peer = json!({ "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "Peer", "metadata": metadata, "spec": spec });
    ground.fleet.cluster("hub").create(&peer).await.unwrap();
}

async fn keys_and_endpoints_that_are_never_written_would_cost_packets() {
    // Without keepalive nothing hides the loss of all sessions.
    let (mut ground, operator) = Ground::running(Layout {
        keepalive: 0,
        ..Layout::default()
    })
    .await;
    let laptop = Laptop::join(&ground).await;
    let to_laptop = laptop.way(&ground);
    ground.arrive(&to_laptop).await;
    let to_hub: Vec<Path> = ground
        .paths_between("west", "hub")
        .into_iter()
        .filter(|path| path.name.contains("pod west/n1 to pod hub/n1"))
        .collect();
    let (of_laptop, of_hub) = (
        laptop.host.device.key().to_string(),
        ground.host("hub", "n1").device.key().to_string(),
    );
    let mut operator = Some(operator);
    for (reason, key, victims) in [
        ("KeyTaken", &of_laptop, &to_laptop),
        ("KeyOfTarget", &of_hub, &to_hub),
    ] {
        clone_node(&ground, key).await;
        refused(&ground, reason).await;
        assert!(
            ground
                .fleet
                .peer("hub", "mesh--east--clone")
                .await
                .is_none()
        );
        assert_eq!(lost(victims).await, [""; 0], "{reason} with the rule");
        drop(operator.take());
        write_clone(&ground, key).await;
        ground.stop_arriving(victims).await;
        eprintln!(
            "{reason}: with that key written, nothing arrives on: {}",
            victims[0].name
        );
        ground
            .fleet
            .cluster("east")
            .delete("/api/v1/nodes/clone")
            .await
            .unwrap();
        operator = Some(ground.operator().await);
        until("the Peer is gone", || async {
            ground
                .fleet
                .peer("hub", "mesh--east--clone")
                .await
                .map_or(Ok(()), |_| Err("not yet".to_owned()))
        })
        .await;
        if reason == "KeyTaken" {
            // Kilo lost the key with that Peer and needs an update.
            touch(&ground).await;
        }
        ground.arrive(victims).await;
    }
    endpoint_inside_mesh(&mut ground, operator).await;
    ground.fleet.finish().await;
}

/// The anchor of east publishes an endpoint inside west's network: its services must take another
/// path.
async fn endpoint_inside_mesh(ground: &mut Ground, operator: Option<Operator>) {
    const OTHER: &str = "mesh--east--n2";
    let services: Vec<Path> = ground
        .paths_between("hub", "east")
        .into_iter()
        .filter(|path| path.name.starts_with("pod hub/n1 to a service"))
        .collect();
    let [mut anchor, other] = [
        ground.fleet.peer("hub", VICTIM).await.unwrap(),
        ground.fleet.peer("hub", OTHER).await.unwrap(),
    ];
    let right = ground.host("east", "n1").endpoint().unwrap();
    // Together with the earlier deletes, this one would be held.
    let any = json!({ "spec": { "maxDeletePercent": 100 } });
    ground
        .fleet
        .cluster("hub")
        .merge_patch(&ground.fleet.world.meshes[0].path(), &any)
        .await
        .unwrap();
    ground
        .fleet
        .annotate_unseen(
            "east",
            "n1",
            &[("force-endpoint", Some("192.168.3.9:51820"))],
        )
        .await;
    refused(ground, "EndpointInsideMesh").await;
    ground.arrive(&services).await;

    drop(operator);
    let without = json!({ "spec": { "allowedIPs": other["spec"]["allowedIPs"] } });
    ground
        .fleet
        .cluster("hub")
        .merge_patch(&format!("{PEERS}/{OTHER}"), &without)
        .await
        .unwrap();
    anchor["metadata"] = json!({ "name": VICTIM, "labels": anchor["metadata"]["labels"] });
    anchor["spec"]["endpoint"]["dnsOrIP"] = json!({ "ip": "192.168.3.9" });
    ground.fleet.cluster("hub").create(&anchor).await.unwrap();
    ground.stop_arriving(&services).await;
    eprintln!(
        "EndpointInsideMesh: with 192.168.3.9 written, nothing arrives on: {}",
        services[0].name
    );

    let _operator = ground.operator().await;
    ground.arrive(&services).await;
    ground
        .fleet
        .annotate_unseen("east", "n1", &[("force-endpoint", Some(&right))])
        .await;
    ground.arrive(&ground.paths()).await;
}

async fn touch(ground: &Ground) {
    let patch = json!({ "metadata": { "annotations": { "touched": "yes" } } });
    ground
        .fleet
        .cluster("hub")
        .merge_patch(&format!("{PEERS}/{LAPTOP}"), &patch)
        .await
        .unwrap();
}
