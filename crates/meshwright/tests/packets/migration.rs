//! Migration from the Go operator while packets flow.

use std::time::Duration;

use serde_json::{Value, json};

use crate::bed::PEERS;
use crate::cost;
use crate::ground::{Ground, Layout, Path, SITES};
use crate::trials::scenarios;

scenarios![
    a_fleet_of_the_earlier_operator_is_taken_over_without_a_lost_packet,
    a_separate_anchor_is_folded_in_and_its_node_is_reached_again,
];

const EXTRAS: [&str; 2] = ["172.20.2.0/24", "192.168.2.0/24"];
/// Labels of the Go operator.
const KEPT: [&str; 2] = [
    "kilo-clustermesh.io/mesh",
    "kilo-clustermesh.io/source-cluster",
];

/// Rewrites Peers as the Go operator left them: two labels, zeros, and allowedIPs in random order.
async fn make_earlier(ground: &Ground) {
    for site in SITES {
        let cluster = ground.fleet.cluster(site);
        for peer in cluster.list(PEERS).await.unwrap() {
            let mut allowed: Vec<Value> = peer["spec"]["allowedIPs"].as_array().unwrap().clone();
            allowed.reverse();
            let labels = json!({ "kilo-clustermesh.io/mesh-namespace": null, "kilo-clustermesh.io/hub": null });
            let patch =
                json!({ "metadata": { "labels": labels }, "spec": { "allowedIPs": allowed } });
            cluster
                .merge_patch(
                    &format!("{PEERS}/{}", peer["metadata"]["name"].as_str().unwrap()),
                    &patch,
                )
                .await
                .unwrap();
        }
    }
}

async fn a_fleet_of_the_earlier_operator_is_taken_over_without_a_lost_packet() {
    let (mut ground, operator) = Ground::running(Layout::default()).await;
    operator.kill();
    make_earlier(&ground).await;
    ground.arrive(&ground.paths()).await;
    let flows: Vec<_> = ground
        .pod_flows()
        .into_iter()
        .chain(ground.service_flows("east"))
        .collect();
    let alone = cost::of(&mut ground, &flows, async |_| {
        tokio::time::sleep(Duration::from_secs(3)).await
    })
    .await;
    let mut operator = None;
    let with = cost::of(&mut ground, &flows, async |ground| {
        operator = Some(ground.operator().await);
        ground.fleet.condition("Ready", "True", "Reconciled").await;
    })
    .await;
    cost::note("take-over from the earlier operator", alone, with);
    for site in SITES {
        for peer in ground.fleet.cluster(site).list(PEERS).await.unwrap() {
            assert!(
                peer["metadata"]["labels"]["kilo-clustermesh.io/hub"].is_string(),
                "{peer} was not taken over"
            );
        }
    }
    assert_eq!(with.lost, 0, "{with:?}");
    ground.fleet.finish().await;
}

/// Puts the cluster-wide networks on a separate Peer with the key of n1. Kilo uses one Peer per
/// key, so n1's pods are unreachable.
async fn separate_anchor(ground: &Ground, site: &str) {
    let cluster = ground.fleet.cluster(site);
    let peer = ground.fleet.peer(site, "mesh--east--n1").await.unwrap();
    let (extras, own): (Vec<Value>, Vec<Value>) = peer["spec"]["allowedIPs"]
        .as_array()
        .unwrap()
        .iter()
        .cloned()
        .partition(|cidr| EXTRAS.iter().any(|extra| cidr == extra));
    let path = format!("{PEERS}/mesh--east--n1");
    cluster
        .merge_patch(&path, &json!({ "spec": { "allowedIPs": own } }))
        .await
        .unwrap();
    let mut anchor =
        json!({ "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "Peer", "spec": peer["spec"] });
    anchor["metadata"] =
        json!({ "name": "mesh--east--anchor", "labels": peer["metadata"]["labels"] });
    anchor["metadata"]["labels"]
        .as_object_mut()
        .unwrap()
        .retain(|label, _| KEPT.contains(&label.as_str()));
    anchor["spec"]["allowedIPs"] = extras.into();
    cluster.create(&anchor).await.unwrap();
}

async fn a_separate_anchor_is_folded_in_and_its_node_is_reached_again() {
    let (mut ground, operator) = Ground::running(Layout::default()).await;
    operator.kill();
    make_earlier(&ground).await;
    for site in ["hub", "west"] {
        separate_anchor(&ground, site).await;
    }
    let cut_off: Vec<Path> = ground
        .paths()
        .into_iter()
        .filter(|path| path.name.starts_with("pod hub/n1 to pod east/n1"))
        .collect();
    ground.stop_arriving(&cut_off).await;
    let flows = ground.pod_flows();
    let alone = cost::of(&mut ground, &flows, async |_| {
        tokio::time::sleep(Duration::from_secs(3)).await
    })
    .await;
    let mut operator = None;
    let with = cost::of(&mut ground, &flows, async |ground| {
        operator = Some(ground.operator().await);
        ground.fleet.condition("Ready", "True", "Reconciled").await;
    })
    .await;
    cost::compare("take-over with a separate anchor Peer", alone, with);
    ground.arrive(&ground.paths()).await;
    ground.fleet.finish().await;
}
