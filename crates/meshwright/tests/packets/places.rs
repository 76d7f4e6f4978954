//! A leader carries its location; if it dies, another node takes over.

use std::time::{Duration, Instant};

use mw_testbed::kilo::Granularity::Location;
use mw_testbed::net::Flow;

use crate::cost;
use crate::ground::{Ground, Layout, Path, lost};
use crate::look::until;
use crate::trials::scenarios;

scenarios![a_leader_dies_and_packets_go_through_the_next];

const EVENT: &str = "a leader dies (60 s of silence are 6 s here)";

/// Waits until n2 reports that it is, or is not, a leader.
async fn n2_leads(ground: &Ground, leads: bool) {
    until("n2 leads", || async {
        let node = ground
            .fleet
            .cluster("east")
            .get("/api/v1/nodes/n2")
            .await
            .unwrap()
            .unwrap();
        let address = node["metadata"]["annotations"]["kilo.squat.ai/wireguard-ip"]
            .as_str()
            .unwrap_or_default();
        if address.is_empty() != leads {
            Ok(())
        } else {
            Err(format!("its address is {address:?}"))
        }
    })
    .await;
}

async fn a_leader_dies_and_packets_go_through_the_next() {
    let layout = Layout {
        granularity: [Location; 3],
        ..Layout::default()
    };
    let (mut ground, operator) = Ground::running(layout).await;
    let flows = ground.pod_flows();
    operator.kill();
    let alone = cost::of(&mut ground, &flows, async |ground| {
        ground.break_down("east", "n1").await;
        n2_leads(ground, true).await;
    })
    .await;
    assert_eq!(
        lost(&ways(&ground)).await.len(),
        ways(&ground).len(),
        "without the operator nothing leads there"
    );
    ground.repair("east", "n1").await;
    n2_leads(&ground, false).await;
    ground.arrive(&ground.paths()).await;

    let _operator = ground.operator().await;
    ground.fleet.condition("Ready", "True", "Reconciled").await;
    let mut after = Duration::ZERO;
    let with = cost::of(&mut ground, &flows, async |ground| {
        ground.break_down("east", "n1").await;
        n2_leads(ground, true).await;
        let lead = Instant::now();
        let to_n2 = |flow: &&Flow| flow.name.contains("to pod east/n2");
        until("packets arrive", || async {
            if flows
                .iter()
                .filter(to_n2)
                .all(|flow| flow.answered_after(lead))
            {
                Ok(())
            } else {
                Err("not yet".to_owned())
            }
        })
        .await;
        after = lead.elapsed();
    })
    .await;
    cost::note(EVENT, alone, with);
    eprintln!(
        "a leader dies: packets to its place arrive {after:?} after the next one said that it leads"
    );
    ground.arrive(&ways(&ground)).await;
    assert!(
        after < Duration::from_secs(2),
        "one event and one write took {after:?}"
    );
    ground.fleet.finish().await;
}

/// Paths to and from the remaining nodes of the location.
fn ways(ground: &Ground) -> Vec<Path> {
    ground
        .paths()
        .into_iter()
        .filter(|path| path.name.contains("east/n2") && !path.name.contains("east/n1"))
        .collect()
}
