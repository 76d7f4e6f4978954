//! Kilo's behaviour when nodes and agents come and go costs healthy nodes no packets.

use std::time::Duration;

use mw_testbed::kilo::Granularity::Location;
use mw_testbed::net::Flow;
use serde_json::Value;

use crate::cost;
use crate::ground::{Ground, Layout, Path};
use crate::look::until;
use crate::trials::scenarios;
use mw_sim::kilo::NAMESPACE;

scenarios![
    nodes_are_renumbered_and_packets_pass,
    a_leader_restarts_and_packets_pass
];

/// A ping every 200 ms loses one at most. Here pings are sent every 10 ms.
const ONE_PING: Duration = Duration::from_millis(200);
const KEEPALIVE: u16 = 5;

async fn address(ground: &Ground, node: &str) -> String {
    let node = ground
        .fleet
        .cluster("east")
        .get(&format!("/api/v1/nodes/{node}"))
        .await
        .unwrap()
        .unwrap();
    node["metadata"]["annotations"]["kilo.squat.ai/wireguard-ip"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// Kilo renumbers the remaining nodes; each publishes it at its own check-in.
async fn nodes_are_renumbered_and_packets_pass() {
    let (mut ground, _operator) = Ground::running(Layout {
        nodes: 3,
        keepalive: KEEPALIVE,
        ..Layout::default()
    })
    .await;
    let flows = flows(&ground, |path| {
        path.name.contains("pod hub/n1 to pod east/n") && !path.name.ends_with("/n1")
    });
    let mark = ground.fleet.mark();
    let left = cost::of(&mut ground, &flows, async |ground| {
        ground.leave("east", "n1").await;
        until("the others are renumbered", || async {
            match (
                address(ground, "n2").await.as_str(),
                address(ground, "n3").await.as_str(),
            ) {
                ("100.64.2.1/24", "100.64.2.2/24") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        carried(ground, "n2", "100.64.2.1/32").await;
        carried(ground, "n3", "100.64.2.2/32").await;
    })
    .await;
    eprintln!("nodes are renumbered: {left:?}");
    assert!(left.gap <= ONE_PING, "{left:?}");
    let deletes = ground
        .peer_writes(&mark)
        .into_iter()
        .filter(|write| write.starts_with("delete"))
        .collect::<Vec<_>>();
    assert_eq!(
        deletes,
        ["delete on hub", "delete on west"],
        "of the node that left"
    );
    ground.arrive(&ground.paths()).await;
    ground.fleet.finish().await;
}

async fn carried(ground: &Ground, node: &str, route: &str) {
    for site in ["hub", "west"] {
        until("the host route follows", || async {
            let peer = ground
                .fleet
                .peer(site, &format!("mesh--east--{node}"))
                .await
                .ok_or("there is no Peer")?;
            let carries = peer["spec"]["allowedIPs"]
                .as_array()
                .unwrap()
                .iter()
                .any(|cidr| cidr == route);
            if carries {
                Ok(())
            } else {
                Err(peer["spec"].to_string())
            }
        })
        .await;
    }
}

/// The next node becomes leader at once and publishes its address later; then the first one is
/// back and leads again.
async fn a_leader_restarts_and_packets_pass() {
    let layout = Layout {
        granularity: [Location; 3],
        keepalive: KEEPALIVE,
        ..Layout::default()
    };
    let (mut ground, _operator) = Ground::running(layout).await;
    let flows = flows(&ground, |path| path.name == "pod hub/n1 to pod east/n2");
    let before = version(&ground).await;
    let rolled = cost::of(&mut ground, &flows, async |ground| {
        ground.stop_agent("east", "n1").await;
        until("the next one has the Peer", || async {
            let peer = ground.fleet.peer("hub", "mesh--east--n2").await;
            if peer.is_some() {
                Ok(())
            } else {
                Err("not yet".to_owned())
            }
        })
        .await;
        // The first one is away for long enough that a status of that time is written.
        until("the next one has published its address", || async {
            match address(ground, "n2").await.as_str() {
                "" => Err("not yet".to_owned()),
                _ => Ok(()),
            }
        })
        .await;
        until("the status of that time is written", || async {
            if version(ground).await == before {
                Err("not yet".to_owned())
            } else {
                Ok(())
            }
        })
        .await;
        ground.start_agent("east", "n1");
        until("the first one has it again", || async {
            let peer = ground.fleet.peer("hub", "mesh--east--n1").await;
            if peer.is_some() {
                Ok(())
            } else {
                Err("not yet".to_owned())
            }
        })
        .await;
    })
    .await;
    eprintln!("a leader restarts: {rolled:?}");
    assert!(rolled.gap <= ONE_PING, "two leaders in turn: {rolled:?}");
    ground.fleet.condition("Ready", "True", "Reconciled").await;
    was_quiet_since(&ground, &before).await;
    ground.arrive(&ground.paths()).await;
    ground.fleet.finish().await;
}

fn meshes() -> String {
    format!("/apis/kilo.squat.ai/v1alpha1/namespaces/{NAMESPACE}/clustermeshes")
}

/// The resourceVersion of the mesh.
async fn version(ground: &Ground) -> String {
    let hub = ground.fleet.cluster("hub");
    let mesh = hub.get(&format!("{}/mesh", meshes())).await;
    let mesh = mesh.unwrap().unwrap();
    mesh["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Checks every status written since a resourceVersion: changes may be pending, but nothing may
/// need a person's action, not even for a moment.
async fn was_quiet_since(ground: &Ground, before: &str) {
    let now = version(ground).await;
    if now == before {
        return;
    }
    let hub = ground.fleet.cluster("hub");
    let watch = format!(
        "{}?watch=1&resourceVersion={before}&timeoutSeconds=2",
        meshes()
    );
    let (code, events) = hub.text_as(hub.admin_token(), &watch).await.unwrap();
    assert_eq!(code, 200, "{events}");
    let all: Vec<Value> = events
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let seen = |event: &Value| event["object"]["metadata"]["resourceVersion"] == now;
    assert!(
        all.iter().any(seen),
        "the watch did not reach the latest status: {events}"
    );
    let loud = ["DeletionHeld", "AnchorUnavailable", "LocationWithoutPeer"];
    for event in &all {
        let conditions = event["object"]["status"]["conditions"].as_array().unwrap();
        let alarm = conditions
            .iter()
            .find(|of| loud.iter().any(|reason| of["reason"] == *reason));
        assert_eq!(alarm, None, "{event:#}");
    }
}

fn flows(ground: &Ground, wanted: impl Fn(&Path) -> bool) -> Vec<Flow> {
    ground
        .paths()
        .iter()
        .filter(|path| wanted(path))
        .map(Path::flow)
        .collect()
}
