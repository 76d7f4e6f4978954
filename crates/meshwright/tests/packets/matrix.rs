//! Reachability between all clusters, for every Kilo configuration.

use mw_testbed::kilo::Granularity::{Full, Location};
use serde_json::json;

use crate::ground::{Ground, Layout, Path};
use crate::look::until;
use crate::trials::scenarios;

scenarios![
    every_node_is_a_segment_and_everybody_reaches_everybody,
    a_leader_speaks_for_its_place_and_everybody_reaches_everybody,
    granularities_mix_and_everybody_reaches_everybody,
    both_families_reach_everybody,
    a_second_family_costs_the_first_nothing,
    a_single_node_of_another_family_holds_nobody_back,
];

async fn everybody_reaches_everybody(layout: Layout) {
    let (mut ground, _operator) = Ground::running(layout).await;
    ground.fleet.finish().await;
}

async fn every_node_is_a_segment_and_everybody_reaches_everybody() {
    everybody_reaches_everybody(Layout::default()).await;
}

async fn a_leader_speaks_for_its_place_and_everybody_reaches_everybody() {
    everybody_reaches_everybody(Layout {
        granularity: [Location; 3],
        ..Layout::default()
    })
    .await;
}

async fn granularities_mix_and_everybody_reaches_everybody() {
    everybody_reaches_everybody(Layout {
        nodes: 3,
        granularity: [Full, Location, Full],
        ..Layout::default()
    })
    .await;
}

/// Kilo uses the node's internal address as source of each tunnel route, and fails for an IPv6
/// route with an IPv4 source. So dual stack needs nodes without an internal address
/// (`force-internal-ip: "-"`).
async fn both_families_reach_everybody() {
    everybody_reaches_everybody(Layout {
        two_families: true,
        internal_ips: false,
        ..Layout::default()
    })
    .await;
}

/// If nodes have an internal address, the second family is left out: its routes would keep Kilo
/// from setting the others.
async fn a_second_family_costs_the_first_nothing() {
    let mut ground = Ground::new(Layout {
        two_families: true,
        ..Layout::default()
    })
    .await;
    let _operator = ground.operator().await;
    ground.fleet.condition("Ready", "True", "Reconciled").await;
    let first: Vec<Path> = ground.paths().into_iter().filter(Path::is_ipv4).collect();
    ground.arrive(&first).await;
    ground.fleet.finish().await;
}

/// A target routes the families that most of its agents support: neither a Node without Kilo nor a
/// single agent with an IPv6 address keeps Peers from it.
async fn a_single_node_of_another_family_holds_nobody_back() {
    let (mut ground, operator) = Ground::running(Layout {
        nodes: 3,
        ..Layout::default()
    })
    .await;
    let addresses = json!({ "addresses": [{ "type": "InternalIP", "address": "fd00:77::9" }] });
    let plain = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "a-plain-one" }, "status": addresses });
    ground.fleet.cluster("east").create(&plain).await.unwrap();
    drop(operator);
    let _operator = ground.operator().await;
    reached_by_newcomer(&mut ground, 4).await;
    // Kilo can no longer route IPv4 from it; the others go on.
    ground
        .fleet
        .annotate_unseen(
            "east",
            "n3",
            &[("force-internal-ip", Some("fd00:77::3/64"))],
        )
        .await;
    let others: Vec<Path> = ground
        .paths()
        .into_iter()
        .filter(|path| !path.name.contains("east/n3"))
        .collect();
    ground.arrive(&others).await;
    // A route to that node's address keeps Kilo from setting new ones on its neighbours; the Peer
    // exists nevertheless.
    ground.join("hub", 5).await;
    until("the Peer of another newcomer", || async {
        let peer = ground
            .fleet
            .peer("east", "mesh--hub--n5")
            .await
            .ok_or("there is none")?;
        let carries = peer["spec"]["allowedIPs"]
            .as_array()
            .unwrap()
            .iter()
            .any(|cidr| cidr == "10.1.5.0/24");
        if carries {
            Ok(())
        } else {
            Err(peer["spec"].to_string())
        }
    })
    .await;
    ground.fleet.finish().await;
}

/// A node joins the hub, and its pod reaches all of east.
async fn reached_by_newcomer(ground: &mut Ground, at: u8) {
    let mark = ground.fleet.mark();
    ground.join("hub", at).await;
    let wanted = |path: &Path| {
        path.name
            .starts_with(&format!("pod hub/n{at} to pod east/"))
    };
    let paths: Vec<Path> = ground
        .paths_between("hub", "east")
        .into_iter()
        .filter(wanted)
        .collect();
    ground.arrive(&paths).await;
    let deleted: Vec<String> = ground
        .peer_writes(&mark)
        .into_iter()
        .filter(|write| write.starts_with("delete"))
        .collect();
    assert_eq!(deleted, [""; 0]);
    ground.fleet.condition("Ready", "True", "Reconciled").await;
}
