//! API server outages: packets do not need them.

use std::time::Duration;

use mw_testbed::net::Flow;

use crate::cost;
use crate::ground::{Ground, Layout};
use crate::look::until;
use crate::trials::scenarios;

scenarios![packets_pass_while_api_servers_are_down_or_hang];

/// At this speed agents detect a failed check-in within seconds.
const SPEED: u32 = 4;
const DOWN: Duration = Duration::from_secs(60);
const HANGING: Duration = Duration::from_secs(15);

async fn hub_down(ground: &mut Ground) {
    ground.fleet.cluster("hub").stop().unwrap();
    tokio::time::sleep(DOWN).await;
    ground.fleet.cluster("hub").start().await.unwrap();
}

async fn east_hangs(ground: &mut Ground) {
    ground.fleet.cluster("east").pause().unwrap();
    tokio::time::sleep(HANGING).await;
    ground.fleet.cluster("east").resume().unwrap();
}

async fn settled(ground: &Ground) {
    ground.arrive(&ground.paths()).await;
}

async fn packets_pass_while_api_servers_are_down_or_hang() {
    let (mut ground, operator) = Ground::running(Layout {
        speed: SPEED,
        ..Layout::default()
    })
    .await;
    let flows: Vec<Flow> = ground.pod_flows();
    operator.kill();
    let down_alone = cost::of(&mut ground, &flows, hub_down).await;
    settled(&ground).await;
    let hang_alone = cost::of(&mut ground, &flows, east_hangs).await;
    settled(&ground).await;

    let _operator = ground.operator().await;
    ground.fleet.condition("Ready", "True", "Reconciled").await;
    let before = ground.peers().await;
    let mark = ground.fleet.mark();
    let down = cost::of(&mut ground, &flows, hub_down).await;
    ground.fleet.condition("Ready", "True", "Reconciled").await;
    settled(&ground).await;
    let hang = cost::of(&mut ground, &flows, east_hangs).await;
    cost::compare(
        "the hub's API server is down for a minute",
        down_alone,
        down,
    );
    cost::compare("a cluster's API server hangs for 15 s", hang_alone, hang);
    ground.fleet.condition("Ready", "True", "Reconciled").await;
    settled(&ground).await;
    until("every Peer is what it was", || async {
        let after = ground.peers().await;
        if after == before {
            Ok(())
        } else {
            Err(format!("{after:#?}"))
        }
    })
    .await;
    // After an outage each agent knows at first only itself, so a cluster whose second node is back
    // first is renumbered twice. The Peers follow: updated, never replaced.
    let others = ground
        .peer_writes(&mark)
        .into_iter()
        .filter(|write| !write.starts_with("patch "))
        .collect::<Vec<_>>();
    assert_eq!(others, [""; 0]);
    ground.fleet.finish().await;
}
