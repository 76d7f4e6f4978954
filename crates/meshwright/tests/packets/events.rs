//! Ordinary events in a mesh, with packets on all paths.

use std::time::{Duration, Instant};

use mw_testbed::net::{Flow, Report};
use serde_json::{Value, json};

use crate::access::{REMOTE_ACCOUNT, REMOTE_NAMESPACE};
use crate::bed::PEERS;
use crate::cost;
use crate::ground::{Ground, Layout, Path};
use crate::look::until;
use crate::process::Operator;
use crate::trials::scenarios;
use mw_sim::kilo::NAMESPACE;

scenarios![
    packets_pass_when_nodes_join_agents_roll_and_credentials_change,
    services_move_when_their_anchor_dies
];

/// Duration of an event that has nothing to wait for.
const WHILE: Duration = Duration::from_secs(2);

async fn packets_pass_when_nodes_join_agents_roll_and_credentials_change() {
    let (mut ground, operator) = Ground::running(Layout::default()).await;
    let flows = ground.pod_flows();
    operator.kill();
    let joined_alone = joining(&mut ground, &flows, 3, true).await;
    let rolled_alone = rolling(&mut ground, &flows).await;
    let rotated_alone = rotating(&mut ground, &flows).await;
    let idle = cost::of(&mut ground, &flows, async |_| {
        tokio::time::sleep(WHILE).await
    })
    .await;

    let operator = ground.operator().await;
    ground.fleet.condition("Ready", "True", "Reconciled").await;
    let joined = joining(&mut ground, &flows, 4, false).await;
    cost::compare(
        "a node joins; its Peers are written by hand",
        joined_alone,
        joined,
    );
    let rolled = rolling(&mut ground, &flows).await;
    cost::compare(
        "the agents of a cluster are restarted in turn",
        rolled_alone,
        rolled,
    );
    let mark = ground.fleet.mark();
    let rotated = rotating(&mut ground, &flows).await;
    cost::compare("credentials are rotated", rotated_alone, rotated);
    let mut operator = Some(operator);
    let killed = cost::of(&mut ground, &flows, async |ground| {
        restart(ground, &mut operator).await
    })
    .await;
    cost::compare("the operator is killed and started again", idle, killed);
    assert_eq!((rotated.lost, killed.lost), (0, 0));
    assert_eq!(ground.peer_writes(&mark), [""; 0]);
    ground.fleet.finish().await;
}

/// Adds a node to east and waits until a pod of the hub reaches its pod. Without the operator, the
/// test writes the Peers. Uses another node each time, because neighbours cache the MAC address.
async fn joining(ground: &mut Ground, flows: &[Flow], at: u8, by_hand: bool) -> Report {
    let name = format!("n{at}");
    let mark = ground.fleet.mark();
    let to_newcomer = |path: &Path| path.name == format!("pod hub/n1 to pod east/{name}");
    let cost = cost::of(ground, flows, async |ground| {
        ground.join("east", at).await;
        if by_hand {
            let peer = peer_of(ground, &name).await;
            for site in ["hub", "west"] {
                ground.fleet.cluster(site).create(&peer).await.unwrap();
            }
        }
        let paths: Vec<Path> = ground
            .paths_between("hub", "east")
            .into_iter()
            .filter(to_newcomer)
            .collect();
        ground.arrive(&paths).await;
    })
    .await;
    // Each write makes Kilo end all sessions of that cluster, so there may be only one per cluster,
    // as by hand.
    let one_each: &[&str] = if by_hand {
        &[]
    } else {
        &["create on hub", "create on west"]
    };
    assert_eq!(ground.peer_writes(&mark), one_each);
    ground.leave("east", &name).await;
    if by_hand {
        for site in ["hub", "west"] {
            ground
                .fleet
                .cluster(site)
                .delete(&format!("{PEERS}/by-hand"))
                .await
                .unwrap();
        }
    }
    ground.arrive(&ground.paths()).await;
    cost
}

/// Spec of the node's Peer, once its agent has published everything.
async fn peer_of(ground: &Ground, node: &str) -> Value {
    let path = format!("/api/v1/nodes/{node}");
    until("the agent describes its node", || async {
        let node = ground.fleet.cluster("east").get(&path).await.map_err(|error| error.to_string())?.unwrap();
        let text = |name: &str| node["metadata"]["annotations"][format!("kilo.squat.ai/{name}")].as_str().filter(|text| !text.is_empty());
        let (Some(key), Some(address), Some(endpoint)) = (text("key"), text("wireguard-ip"), text("endpoint")) else {
            return Err("not yet".to_owned());
        };
        let (host, port) = endpoint.split_once(':').unwrap();
        let address = format!("{}/32", address.split_once('/').unwrap().0);
        let endpoint = json!({ "dnsOrIP": { "ip": host }, "port": port.parse::<u16>().unwrap() });
        let spec =
            json!({ "publicKey": key, "allowedIPs": [node["spec"]["podCIDR"], address], "endpoint": endpoint, "persistentKeepalive": 1 });
        Ok(json!({ "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "Peer", "metadata": { "name": "by-hand" }, "spec": spec }))
    })
    .await
}

async fn rolling(ground: &mut Ground, flows: &[Flow]) -> Report {
    let mark = ground.fleet.mark();
    let cost = cost::of(ground, flows, async |ground| {
        for node in ["n1", "n2"] {
            ground.stop_agent("east", node).await;
            ground.start_agent("east", node);
            let paths: Vec<Path> = ground
                .paths()
                .into_iter()
                .filter(|path| path.name.contains(&format!("east/{node}")))
                .collect();
            ground.arrive(&paths).await;
        }
    })
    .await;
    assert_eq!(
        ground.peer_writes(&mark),
        [""; 0],
        "the nodes are what they were"
    );
    ground.arrive(&ground.paths()).await;
    cost
}

/// Waits until the old token is rejected.
async fn rotating(ground: &mut Ground, flows: &[Flow]) -> Report {
    cost::of(ground, flows, async |ground| {
        let old = token(&ground.fleet.member_kubeconfig("east"));
        let new = ground
            .fleet
            .cluster("east")
            .rotate_token(REMOTE_NAMESPACE, REMOTE_ACCOUNT)
            .await
            .unwrap();
        ground.fleet.set_member_token("east", new);
        ground
            .fleet
            .write_secret(
                "hub",
                NAMESPACE,
                "east-kubeconfig",
                &ground.fleet.member_kubeconfig("east"),
            )
            .await;
        let east = ground.fleet.cluster("east");
        until("the old token is dead", || async {
            let code = east
                .request_as(&old, "GET", "/api/v1/nodes", None)
                .await
                .map_err(|error| error.to_string())?
                .code;
            if code == 401 {
                Ok(())
            } else {
                Err(format!("the old token gets {code}"))
            }
        })
        .await;
    })
    .await
}

fn token(kubeconfig: &str) -> String {
    kubeconfig
        .split("token: ")
        .nth(1)
        .unwrap()
        .lines()
        .next()
        .unwrap()
        .to_owned()
}

async fn restart(ground: &mut Ground, operator: &mut Option<Operator>) {
    operator.take().unwrap().kill();
    tokio::time::sleep(WHILE).await;
    *operator = Some(ground.operator().await);
    ground.fleet.condition("Ready", "True", "Reconciled").await;
    tokio::time::sleep(WHILE).await;
}

/// Services are routed through one node's Peer. If it dies, only the operator can restore them. The
/// baseline is the same done by hand with known Peers: one event and one write per cluster.
async fn services_move_when_their_anchor_dies() {
    let (mut ground, operator) = Ground::running(Layout::default()).await;
    let flows = ground.service_flows("east");
    operator.kill();
    let (alone, by_hand) = anchor_dies(&mut ground, &flows, true).await;
    bring_back(&mut ground).await;
    let operator = ground.operator().await;
    ground.fleet.condition("Ready", "True", "Reconciled").await;
    ground.arrive(&ground.paths()).await;
    let (with, by_operator) = anchor_dies(&mut ground, &flows, false).await;
    cost::compare("an anchor dies; the Peers are moved by hand", alone, with);
    eprintln!(
        "an anchor dies: from NotReady to the first answer {by_hand:?} by hand, {by_operator:?} by the operator"
    );
    drop(operator);
    ground.fleet.finish().await;
}

/// Packet loss, and the time since the Node became NotReady.
async fn anchor_dies(ground: &mut Ground, flows: &[Flow], by_hand: bool) -> (Report, Duration) {
    let [on_hub, on_west] = [
        moved(ground, "hub", "n1", "n2").await,
        moved(ground, "west", "n1", "n2").await,
    ];
    let mut took = Duration::ZERO;
    let cost = cost::of(ground, flows, async |ground| {
        ground.break_down("east", "n1").await;
        ground.stop_arriving(&services(ground)).await;
        let start = Instant::now();
        ground.fleet.set_ready("east", "n1", false).await;
        if by_hand {
            tokio::join!(
                write(ground, "hub", &on_hub),
                write(ground, "west", &on_west)
            );
        }
        until("services answer", || async {
            if flows.iter().all(|flow| flow.answered_after(start)) {
                Ok(())
            } else {
                Err("not yet".to_owned())
            }
        })
        .await;
        took = start.elapsed();
    })
    .await;
    (cost, took)
}

fn services(ground: &Ground) -> Vec<Path> {
    let all = ground
        .paths_between("hub", "east")
        .into_iter()
        .chain(ground.paths_between("west", "east"));
    all.filter(|path| path.name.contains("/n1 to a service"))
        .collect()
}

async fn bring_back(ground: &mut Ground) {
    for site in ["hub", "west"] {
        write(ground, site, &moved(ground, site, "n2", "n1").await).await;
    }
    ground.fleet.set_ready("east", "n1", true).await;
    ground.repair("east", "n1").await;
    ground.arrive(&ground.paths()).await;
}

/// Peers and their new contents when services move, in the operator's order: first those that lose
/// them, then those that get them.
type Moved = Vec<(String, Value)>;

async fn moved(ground: &Ground, site: &str, from: &str, to: &str) -> Moved {
    const EXTRAS: [&str; 2] = ["172.20.2.0/24", "192.168.2.0/24"];
    let mut moved = Moved::new();
    for node in [from, to] {
        let peer = ground
            .fleet
            .peer(site, &format!("mesh--east--{node}"))
            .await
            .unwrap();
        let mut allowed = peer["spec"]["allowedIPs"].as_array().unwrap().clone();
        allowed.retain(|cidr| !EXTRAS.iter().any(|extra| cidr == extra));
        if node == to {
            allowed.extend(EXTRAS.map(Value::from));
        }
        moved.push((
            format!("{PEERS}/mesh--east--{node}"),
            json!({ "spec": { "allowedIPs": allowed } }),
        ));
    }
    moved
}

async fn write(ground: &Ground, site: &str, moved: &Moved) {
    for (path, patch) in moved {
        ground
            .fleet
            .cluster(site)
            .merge_patch(path, patch)
            .await
            .unwrap();
    }
}
