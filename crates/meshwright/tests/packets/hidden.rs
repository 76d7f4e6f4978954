//! A cluster behind NAT, whose nodes have no endpoint.

use std::cell::Cell;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use mw_testbed::eventually;
use mw_testbed::net::{Impairment, total_since};
use serde_json::{Value, json};

use crate::bed::PEERS;
use crate::ground::{Ground, Layout, Path};
use crate::look::until;
use crate::trials::scenarios;

scenarios![
    a_hidden_cluster_is_reached_both_ways_and_its_address_stays_with_who_saw_it,
    a_hidden_cluster_gets_another_address_and_kilo_forgets_it_for_a_moment,
];

const IDLE: Duration = Duration::from_secs(3);
const STEP: Duration = Duration::from_millis(200);
/// A discovered endpoint is kept for 30 s; a change that waited for that is written by then.
const REST: SignedDuration = SignedDuration::from_secs(32);
const NEW: &str = "198.18.3.2";

/// Endpoints in the Peers of west on a cluster.
async fn endpoints(ground: &Ground, site: &str) -> Result<Vec<(String, u64)>, String> {
    let peers = ground
        .fleet
        .cluster(site)
        .list(PEERS)
        .await
        .map_err(|error| error.to_string())?;
    let of_west = |peer: &&Value| {
        peer["metadata"]["name"]
            .as_str()
            .unwrap()
            .contains("--west--")
    };
    let endpoint = |peer: &Value| {
        let endpoint = &peer["spec"]["endpoint"];
        Some((
            endpoint["dnsOrIP"]["ip"].as_str()?.to_owned(),
            endpoint["port"].as_u64()?,
        ))
    };
    let found: Option<Vec<_>> = peers.iter().filter(of_west).map(endpoint).collect();
    found
        .filter(|found| found.len() == 2)
        .ok_or_else(|| "not every Peer has an endpoint".to_owned())
}

async fn a_hidden_cluster_is_reached_both_ways_and_its_address_stays_with_who_saw_it() {
    let layout = Layout {
        hidden: Some(("west", IDLE)),
        ..Layout::default()
    };
    let (mut ground, _operator) = Ground::running(layout).await;
    // Endpoints discovered by a cluster's agents appear only in its own Peers: the NAT has a
    // mapping per pair, so another cluster's would be wrong.
    let mut seen = Vec::new();
    for site in ["hub", "east"] {
        let found = until(format!("endpoints on {site}"), || endpoints(&ground, site)).await;
        assert!(
            found.iter().all(|(address, _)| address == "198.18.3.1"),
            "{found:?}"
        );
        seen.push(found);
    }
    assert!(
        seen[0].iter().all(|endpoint| !seen[1].contains(endpoint)),
        "shared between clusters: {seen:?}"
    );
    ground.arrive(&ground.paths()).await;
    // No traffic except keepalives for longer than a mapping lasts.
    tokio::time::sleep(IDLE * 2).await;
    let lost = crate::ground::lost(&ground.paths()).await;
    assert!(lost.is_empty(), "{lost:#?}");
    ground.fleet.finish().await;
}

/// During each reconfiguration Kilo lists no discovered endpoints, and a new NAT address appears a
/// minute later. The Peers keep an address all the time, and packets need neither list.
async fn a_hidden_cluster_gets_another_address_and_kilo_forgets_it_for_a_moment() {
    let (mut ground, _operator) = Ground::running(Layout {
        hidden: Some(("west", IDLE)),
        ..Layout::default()
    })
    .await;
    for site in ["hub", "east"] {
        until(format!("endpoints on {site}"), || endpoints(&ground, site)).await;
    }
    let ways = |path: &&Path| {
        path.name.starts_with("pod ")
            && path.name.contains("west")
            && !path.name.contains("service")
    };
    let flows: Vec<_> = ground
        .paths()
        .iter()
        .filter(ways)
        .map(|path| path.flow_every(STEP))
        .collect();
    let start = kilo_forgets(&ground).await;
    let forgotten = total_since(&flows, start).await;
    eprintln!("Kilo forgets discovered endpoints: {forgotten:?}");
    // An agent that lost the endpoint uses what its neighbour saw, which this NAT does not let in;
    // the other side retries after WireGuard's 15 s.
    assert!(forgotten.gap <= Duration::from_secs(16), "{forgotten:?}");
    ground.arrive(&ground.paths()).await;

    tokio::join!(rested(&ground, "hub"), rested(&ground, "east"));
    let (mark, start) = (ground.fleet.mark(), Instant::now());
    ground
        .wire
        .readdress(ground.lans["west"].public(), NEW.parse().unwrap());
    let (hub, east) = tokio::join!(followed(&ground, "hub"), followed(&ground, "east"));
    eprintln!(
        "another public address: in all Peers after {:?}, after Kilo lists it {hub:?} and {east:?}",
        start.elapsed()
    );
    assert!(
        hub.max(east) <= Duration::from_secs(2),
        "the hub's Peers after {hub:?}, east's after {east:?}"
    );
    assert_eq!(
        ground.peer_writes(&mark),
        [["patch on east"; 2], ["patch on hub"; 2]].concat(),
        "from the old one to the new one"
    );
    let moved = total_since(&flows, start).await;
    // A hidden node sends at the latest after its keepalive of one second.
    assert!(moved.gap <= Duration::from_secs(1) + STEP, "{moved:?}");
    ground.arrive(&ground.paths()).await;
    ground.fleet.finish().await;
}

/// Waits until the operator replaces the endpoints of west immediately when Kilo lists others.
async fn rested(ground: &Ground, site: &str) {
    let rested = || async {
        let peers = ground.fleet.cluster(site).list(PEERS).await.unwrap();
        let writes = peers
            .iter()
            .flat_map(|peer| peer["metadata"]["managedFields"].as_array().unwrap());
        let last: Timestamp = writes
            .map(|write| write["time"].as_str().unwrap().parse().unwrap())
            .max()
            .unwrap();
        if last.duration_until(Timestamp::now()) > REST {
            Ok(())
        } else {
            Err(format!("a Peer on {site} was written at {last}"))
        }
    };
    eventually(Duration::from_secs(100), rested).await.unwrap();
}

/// Returns the time in which the Peers of west on a cluster follow a new address, from when all
/// nodes that list west list it.
async fn followed(ground: &Ground, site: &str) -> Duration {
    let listed = Cell::new(None);
    until(format!("the new address on {site}"), || async {
        let nodes = ground
            .fleet
            .cluster(site)
            .list("/api/v1/nodes")
            .await
            .unwrap();
        if listed.get().is_none() && lists_new(ground, &nodes) {
            listed.set(Some(Instant::now()));
        }
        let found = endpoints(ground, site)
            .await
            .expect("no Peer goes without an address");
        let new = found.iter().all(|(address, _)| address == NEW);
        if new {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;
    listed
        .get()
        .map_or(Duration::ZERO, |listed: Instant| listed.elapsed())
}

/// Reports whether every node of west is listed, and only with the new address.
fn lists_new(ground: &Ground, nodes: &[Value]) -> bool {
    let annotations = nodes.iter().filter_map(|node| {
        node["metadata"]["annotations"]["kilo.squat.ai/discovered-endpoints"].as_str()
    });
    let lists: Vec<Value> = annotations
        .filter_map(|text| serde_json::from_str(text).ok())
        .collect();
    ["n1", "n2"].iter().all(|node| {
        let key = ground.host("west", node).device.key().to_string();
        let mut listed = lists
            .iter()
            .filter_map(|list| list[&key]["IP"].as_str())
            .peekable();
        listed.peek().is_some() && listed.all(|address| address == NEW)
    })
}

/// A foreign Peer makes Kilo set up its tunnels again while nobody in west can do a handshake.
/// Returns the time when west could again.
async fn kilo_forgets(ground: &Ground) -> Instant {
    let west: Vec<String> = ["n1", "n2"]
        .map(|node| ground.host("west", node).device.key().to_string())
        .into();
    let (before, mark) = (endpoints(ground, "hub").await.unwrap(), ground.fleet.mark());
    let lists_west = async |listed: bool| {
        until(
            format!("the hub's first node lists west: {listed}"),
            || async {
                let node = ground
                    .fleet
                    .cluster("hub")
                    .get("/api/v1/nodes/n1")
                    .await
                    .unwrap()
                    .unwrap();
                let text = node["metadata"]["annotations"]["kilo.squat.ai/discovered-endpoints"]
                    .as_str()
                    .unwrap_or_default();
                if west.iter().all(|key| text.contains(key) == listed) {
                    Ok(())
                } else {
                    Err(text.to_owned())
                }
            },
        )
        .await;
        assert_eq!(endpoints(ground, "hub").await.unwrap(), before);
    };
    ground.wire.impair(
        ground.lans["west"].public(),
        Impairment {
            loss_percent: 100,
            delay: Duration::ZERO,
        },
    );
    let endpoint = json!({ "dnsOrIP": { "ip": "198.18.9.9" }, "port": 51_820 });
    let spec = json!({ "publicKey": format!("{}0=", "A".repeat(42)), "allowedIPs": ["10.250.0.0/24"], "endpoint": endpoint });
    let peer = json!({ "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "Peer", "metadata": { "name": "one" }, "spec": spec });
    ground.fleet.cluster("hub").create(&peer).await.unwrap();
    lists_west(false).await;
    ground
        .wire
        .impair(ground.lans["west"].public(), Impairment::default());
    let start = Instant::now();
    lists_west(true).await;
    assert_eq!(ground.peer_writes(&mark), [""; 0]);
    start
}
