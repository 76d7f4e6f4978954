//! Agents that publish last-seen: these frequent updates cost nothing, and an agent that stops is
//! detected by the others' clocks.

use std::time::Duration;

use crate::fleet::Fleet;
use crate::trials::scenarios;
use mw_sim::kilo::{LAST_SEEN, World};

scenarios![
    a_thousand_heartbeats_cost_nothing,
    a_leader_that_stops_is_replaced_once_the_others_moved_on
];

fn by_location(world: &mut World) {
    for node in world
        .sites
        .values_mut()
        .flat_map(|site| site.nodes.values_mut())
    {
        node.annotations
            .insert("granularity".into(), "location".into());
    }
}

async fn a_thousand_heartbeats_cost_nothing() {
    let mut fleet = Fleet::three().nodes(5).with(by_location).build().await;
    let operator = fleet.operator(&[]).await;
    fleet.converged().await;
    let (mark, plans) = (
        fleet.mark(),
        operator.metrics().await.sum("meshwright_plans_total", &[]),
    );
    assert!(plans > 0.0);
    // Every node in turn, one second later each round.
    for at in 0..1000_u64 {
        let site = ["hub", "east", "west"][usize::try_from(at % 3).unwrap()];
        let (node, seen) = (
            format!("n{}", at / 3 % 5 + 1),
            (LAST_SEEN + at / 15).to_string(),
        );
        fleet
            .annotate_unseen(site, &node, &[("last-seen", Some(&seen))])
            .await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(fleet.writes(&mark).is_empty(), "{:?}", fleet.writes(&mark));
    assert_eq!(
        operator.metrics().await.sum("meshwright_plans_total", &[]),
        plans
    );
    fleet.finish().await;
}

async fn a_leader_that_stops_is_replaced_once_the_others_moved_on() {
    let mut fleet = Fleet::three().nodes(3).with(by_location).build().await;
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    let mark = fleet.mark();
    for second in [10, 30, 59] {
        for node in ["n2", "n3"] {
            fleet
                .annotate(
                    "east",
                    node,
                    "last-seen",
                    Some(&(LAST_SEEN + second).to_string()),
                )
                .await;
        }
    }
    fleet.no_peer_writes(&mark, Duration::from_secs(1)).await;
    // A single clock that runs ahead is ignored.
    fleet
        .annotate(
            "east",
            "n3",
            "last-seen",
            Some(&(LAST_SEEN + 5000).to_string()),
        )
        .await;
    fleet.no_peer_writes(&mark, Duration::from_secs(1)).await;
    fleet
        .annotate(
            "east",
            "n2",
            "last-seen",
            Some(&(LAST_SEEN + 4990).to_string()),
        )
        .await;
    fleet.world.sites.get_mut("east").unwrap().anchor = Some("n2".into());
    fleet.converged().await;
    assert!(fleet.peer("hub", "mesh--east--n1").await.is_none());
    fleet.finish().await;
}
