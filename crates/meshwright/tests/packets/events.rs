//! What happens to a mesh in ordinary life, with packets on all ways.

use std::time::{Duration, Instant};

use mw_testbed::net::{Flow, Report};
use serde_json::{Value, json};

use crate::access::{REMOTE_ACCOUNT, REMOTE_NAMESPACE};
use crate::bed::PEERS;
use crate::cost;
use crate::ground::{Ground, Layout, Path};
use crate::look::until;
use crate::process::Operator;
use crate::scenarios;
use mw_sim::kilo::NAMESPACE;

scenarios![packets_pass_when_nodes_join_agents_roll_and_credentials_change, services_move_when_their_anchor_dies];

/// With nothing to wait for, so long.
const WHILE: Duration = Duration::from_secs(2);

async fn packets_pass_when_nodes_join_agents_roll_and_credentials_change() {
    let (mut ground, operator) = Ground::running(Layout::default()).await;
    let flows = ground.pod_flows();
    operator.kill();
    let joined_alone = joining(&mut ground, &flows, "east", 3).await;
    let rolled_alone = rolling(&mut ground, &flows).await;
    let rotated_alone = rotating(&mut ground, &flows).await;
    let idle = cost::of(&mut ground, &flows, async |_| tokio::time::sleep(WHILE).await).await;

    let operator = ground.operator().await;
    ground.fleet.condition("Ready", "True", "Reconciled").await;
    let joined = joining(&mut ground, &flows, "hub", 4).await;
    cost::note("a node joins", joined_alone, joined);
    let rolled = rolling(&mut ground, &flows).await;
    cost::note("the agents of a cluster are restarted in turn", rolled_alone, rolled);
    let rotated = rotating(&mut ground, &flows).await;
    cost::note("credentials are rotated", rotated_alone, rotated);
    let mut operator = Some(operator);
    let killed = cost::of(&mut ground, &flows, async |ground| restart(ground, &mut operator).await).await;
    cost::note("the operator is killed and started again", idle, killed);
    assert_eq!((rotated.lost, killed.lost), (0, 0));
    ground.fleet.finish().await;
}

/// One more node of east, until the first pod of `from` reaches its pod. Each
/// time another one: neighbours remember the hardware address of the last.
async fn joining(ground: &mut Ground, flows: &[Flow], from: &str, at: u8) -> Report {
    let name = format!("n{at}");
    let to_newcomer = |path: &Path| path.name == format!("pod {from}/n1 to pod east/{name}");
    let cost = cost::of(ground, flows, async |ground| {
        ground.join("east", at).await;
        let paths: Vec<Path> = ground.paths_between(from, "east").into_iter().filter(to_newcomer).collect();
        ground.arrive(&paths).await;
    })
    .await;
    ground.leave("east", &name).await;
    ground.arrive(&ground.paths()).await;
    cost
}

async fn rolling(ground: &mut Ground, flows: &[Flow]) -> Report {
    let cost = cost::of(ground, flows, async |ground| {
        for node in ["n1", "n2"] {
            ground.stop_agent("east", node).await;
            ground.start_agent("east", node);
            let paths: Vec<Path> = ground.paths().into_iter().filter(|path| path.name.contains(&format!("east/{node}"))).collect();
            ground.arrive(&paths).await;
        }
    })
    .await;
    ground.arrive(&ground.paths()).await;
    cost
}

/// Until the old token is refused.
async fn rotating(ground: &mut Ground, flows: &[Flow]) -> Report {
    cost::of(ground, flows, async |ground| {
        let old = token(&ground.fleet.member_kubeconfig("east"));
        let new = ground.fleet.cluster("east").rotate_token(REMOTE_NAMESPACE, REMOTE_ACCOUNT).await.unwrap();
        ground.fleet.set_member_token("east", new);
        ground.fleet.write_secret("hub", NAMESPACE, "east-kubeconfig", &ground.fleet.member_kubeconfig("east")).await;
        let east = ground.fleet.cluster("east");
        until("the old token is dead", || async {
            let code = east.request_as(&old, "GET", "/api/v1/nodes", None).await.map_err(|error| error.to_string())?.code;
            if code == 401 { Ok(()) } else { Err(format!("the old token gets {code}")) }
        })
        .await;
    })
    .await
}

fn token(kubeconfig: &str) -> String {
    kubeconfig.split("token: ").nth(1).unwrap().lines().next().unwrap().to_owned()
}

async fn restart(ground: &mut Ground, operator: &mut Option<Operator>) {
    operator.take().unwrap().kill();
    tokio::time::sleep(WHILE).await;
    *operator = Some(ground.operator().await);
    ground.fleet.condition("Ready", "True", "Reconciled").await;
    tokio::time::sleep(WHILE).await;
}

/// Services ride on one node's Peer. When it dies nothing but the operator can
/// bring them back; the measure is the same done by hand, with the Peers known
/// beforehand: one event and one write on each cluster.
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
    cost::note("an anchor dies; the Peers are moved by hand", alone, with);
    eprintln!("an anchor dies: from NotReady to the first answer {by_hand:?} by hand, {by_operator:?} by the operator");
    drop(operator);
    ground.fleet.finish().await;
}

/// What was lost, and how long it took from the Node's not being Ready.
async fn anchor_dies(ground: &mut Ground, flows: &[Flow], by_hand: bool) -> (Report, Duration) {
    let mut took = Duration::ZERO;
    let cost = cost::of(ground, flows, async |ground| {
        ground.break_down("east", "n1").await;
        ground.stop_arriving(&services(ground)).await;
        let start = Instant::now();
        ground.fleet.set_ready("east", "n1", false).await;
        if by_hand {
            move_services(ground, "n1", "n2").await;
        }
        until("services answer", || async {
            if flows.iter().all(|flow| flow.answered_after(start)) { Ok(()) } else { Err("not yet".to_owned()) }
        })
        .await;
        took = start.elapsed();
    })
    .await;
    (cost, took)
}

fn services(ground: &Ground) -> Vec<Path> {
    let of = |from: &str| {
        ground.paths_between(from, "east").into_iter().filter(|path| path.name.contains("/n1 to a service")).collect::<Vec<_>>()
    };
    [of("hub"), of("west")].concat()
}

async fn bring_back(ground: &mut Ground) {
    move_services(ground, "n2", "n1").await;
    ground.fleet.set_ready("east", "n1", true).await;
    ground.repair("east", "n1").await;
    ground.arrive(&ground.paths()).await;
}

/// Takes the cluster-wide networks from one Peer and gives them to another, as
/// the operator does: first the taking, then the giving.
async fn move_services(ground: &Ground, from: &str, to: &str) {
    for site in ["hub", "west"] {
        let cluster = ground.fleet.cluster(site);
        let extras = ["172.20.2.0/24", "192.168.2.0/24"];
        for (node, carries) in [(from, false), (to, true)] {
            let path = format!("{PEERS}/mesh--east--{node}");
            let peer = cluster.get(&path).await.unwrap().unwrap();
            let mut allowed: Vec<Value> = peer["spec"]["allowedIPs"].as_array().unwrap().clone();
            allowed.retain(|cidr| !extras.iter().any(|extra| cidr == extra));
            allowed.extend(extras.iter().filter(|_| carries).map(|extra| json!(extra)));
            cluster.merge_patch(&path, &json!({ "spec": { "allowedIPs": allowed } })).await.unwrap();
        }
    }
}
