//! A cluster behind an address translation, whose nodes have no endpoint.

use std::time::Duration;

use serde_json::Value;

use crate::bed::PEERS;
use crate::ground::{Ground, Layout};
use crate::look::until;
use crate::trials::scenarios;

scenarios![a_hidden_cluster_is_reached_both_ways_and_its_address_stays_with_who_saw_it];

const IDLE: Duration = Duration::from_secs(3);

/// Endpoints of the Peers of west, as they are on a cluster.
async fn endpoints(ground: &Ground, site: &str) -> Result<Vec<(String, u64)>, String> {
    let peers = ground.fleet.cluster(site).list(PEERS).await.map_err(|error| error.to_string())?;
    let of_west = |peer: &&Value| peer["metadata"]["name"].as_str().unwrap().contains("--west--");
    let endpoint = |peer: &Value| {
        let endpoint = &peer["spec"]["endpoint"];
        Some((endpoint["dnsOrIP"]["ip"].as_str()?.to_owned(), endpoint["port"].as_u64()?))
    };
    let found: Option<Vec<_>> = peers.iter().filter(of_west).map(endpoint).collect();
    found.filter(|found| found.len() == 2).ok_or_else(|| "not every Peer has an endpoint".to_owned())
}

async fn a_hidden_cluster_is_reached_both_ways_and_its_address_stays_with_who_saw_it() {
    let layout = Layout { hidden: Some(("west", IDLE)), ..Layout::default() };
    let (mut ground, _operator) = Ground::running(layout).await;
    // What each cluster's agents found out is in its own Peers only: the
    // translation has a mapping for each pair, so another's would be wrong.
    let mut seen = Vec::new();
    for site in ["hub", "east"] {
        let found = until(format!("endpoints on {site}"), || endpoints(&ground, site)).await;
        assert!(found.iter().all(|(address, _)| address == "198.18.3.1"), "{found:?}");
        seen.push(found);
    }
    assert!(seen[0].iter().all(|endpoint| !seen[1].contains(endpoint)), "shared between clusters: {seen:?}");
    ground.arrive(&ground.paths()).await;
    // Nobody speaks for longer than a mapping lasts, but for the keepalive.
    tokio::time::sleep(IDLE * 2).await;
    let lost = crate::ground::lost(&ground.paths()).await;
    assert!(lost.is_empty(), "{lost:#?}");
    ground.fleet.finish().await;
}
