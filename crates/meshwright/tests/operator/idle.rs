//! Requests of the operator when little or nothing happens.

use std::time::Duration;

use crate::fleet::Fleet;
use crate::look::none;
use crate::trials::scenarios;

scenarios![
    an_idle_minute_has_no_list_and_no_write,
    one_changed_node_costs_one_write_per_other_cluster
];

async fn an_idle_minute_has_no_list_and_no_write() {
    let mut fleet = Fleet::three().nodes(3).build().await;
    let operator = fleet.operator(&["--leader-elect"]).await;
    fleet.converged().await;
    // The status follows the last Peer, and the operator sees its own writes.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (mark, plans) = (
        fleet.mark(),
        operator.metrics().await.sum("meshwright_plans_total", &[]),
    );
    tokio::time::sleep(Duration::from_secs(60)).await;
    let calls: Vec<_> = fleet
        .calls(&mark)
        .into_iter()
        .filter(|(_, call)| call.verb != "watch" && call.resource != "leases")
        .collect();
    none(&calls, "not idle");
    let leases = fleet
        .calls(&mark)
        .into_iter()
        .filter(|(_, call)| call.resource == "leases")
        .count();
    assert!(
        (4..=70).contains(&leases),
        "{leases} calls for the Lease in a minute"
    );
    assert_eq!(
        operator.metrics().await.sum("meshwright_plans_total", &[]),
        plans
    );
    fleet.finish().await;
}

async fn one_changed_node_costs_one_write_per_other_cluster() {
    let mut fleet = Fleet::of(&["hub", "east", "west", "north", "south"])
        .build()
        .await;
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    for port in [5000, 5001, 5002] {
        let mark = fleet.mark();
        fleet
            .annotate(
                "east",
                "n1",
                "force-endpoint",
                Some(&format!("198.51.100.80:{port}")),
            )
            .await;
        fleet.converged().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let sites: Vec<String> = fleet
            .peer_writes(&mark)
            .into_iter()
            .map(|(site, _)| site)
            .collect();
        assert_eq!(sites, ["hub", "north", "south", "west"]);
        let others: Vec<_> = fleet
            .writes(&mark)
            .into_iter()
            .filter(|(_, call)| call.resource != "peers")
            .collect();
        assert!(
            others.len() <= 1
                && others
                    .iter()
                    .all(|(_, call)| call.resource == "clustermeshes/status"),
            "{others:?}"
        );
        let reads: Vec<_> = fleet
            .calls(&mark)
            .into_iter()
            .filter(|(_, call)| ["get", "list"].contains(&call.verb.as_str()))
            .collect();
        none(&reads, "a change needs no reading");
    }
    fleet.finish().await;
}
