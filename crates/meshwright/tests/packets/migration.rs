//! From the Go operator to ours while packets pass.

use std::time::Duration;

use serde_json::{Value, json};

use crate::bed::PEERS;
use crate::cost;
use crate::ground::{Ground, Layout, SITES};
use crate::scenarios;

scenarios![a_fleet_of_the_earlier_operator_is_taken_over_without_a_lost_packet];

/// As the earlier operator left it: two labels, zeros, and the order of
/// allowedIPs left to chance.
async fn make_earlier(ground: &Ground) {
    for site in SITES {
        let cluster = ground.fleet.cluster(site);
        for peer in cluster.list(PEERS).await.unwrap() {
            let mut allowed: Vec<Value> = peer["spec"]["allowedIPs"].as_array().unwrap().clone();
            allowed.reverse();
            let labels = json!({ "kilo-clustermesh.io/mesh-namespace": null, "kilo-clustermesh.io/hub": null });
            let patch = json!({ "metadata": { "labels": labels }, "spec": { "allowedIPs": allowed } });
            cluster.merge_patch(&format!("{PEERS}/{}", peer["metadata"]["name"].as_str().unwrap()), &patch).await.unwrap();
        }
    }
}

async fn a_fleet_of_the_earlier_operator_is_taken_over_without_a_lost_packet() {
    let (mut ground, operator) = Ground::running(Layout::default()).await;
    operator.kill();
    make_earlier(&ground).await;
    ground.arrive(&ground.paths()).await;
    let flows: Vec<_> = ground.pod_flows().into_iter().chain(ground.service_flows("east")).collect();
    let alone = cost::of(&mut ground, &flows, async |_| tokio::time::sleep(Duration::from_secs(3)).await).await;
    let mut operator = None;
    let with = cost::of(&mut ground, &flows, async |ground| {
        operator = Some(ground.operator().await);
        ground.fleet.condition("Ready", "True", "Reconciled").await;
    })
    .await;
    cost::note("take-over from the earlier operator", alone, with);
    for site in SITES {
        for peer in ground.fleet.cluster(site).list(PEERS).await.unwrap() {
            assert!(peer["metadata"]["labels"]["kilo-clustermesh.io/hub"].is_string(), "{peer} was not taken over");
        }
    }
    assert_eq!(with.lost, 0, "{with:?}");
    ground.fleet.finish().await;
}
