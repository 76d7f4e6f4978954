//! Who reaches whom, for every way of running Kilo.

use mw_testbed::kilo::Granularity::{Full, Location};

use crate::ground::{Ground, Layout, Path};
use crate::trials::scenarios;

scenarios![
    every_node_is_a_segment_and_everybody_reaches_everybody,
    a_leader_speaks_for_its_place_and_everybody_reaches_everybody,
    granularities_mix_and_everybody_reaches_everybody,
    both_families_reach_everybody,
    a_second_family_costs_the_first_nothing,
];

async fn everybody_reaches_everybody(layout: Layout) {
    let (mut ground, _operator) = Ground::running(layout).await;
    ground.fleet.finish().await;
}

async fn every_node_is_a_segment_and_everybody_reaches_everybody() {
    everybody_reaches_everybody(Layout::default()).await;
}

async fn a_leader_speaks_for_its_place_and_everybody_reaches_everybody() {
    everybody_reaches_everybody(Layout { granularity: [Location; 3], ..Layout::default() }).await;
}

async fn granularities_mix_and_everybody_reaches_everybody() {
    everybody_reaches_everybody(Layout { nodes: 3, granularity: [Full, Location, Full], ..Layout::default() }).await;
}

/// Kilo gives each route over its tunnel the node's internal address as source,
/// and refuses an IPv6 route with an IPv4 source. So it takes nodes without
/// one (`force-internal-ip: "-"`) to route two families.
async fn both_families_reach_everybody() {
    everybody_reaches_everybody(Layout { two_families: true, internal_ips: false, ..Layout::default() }).await;
}

/// Where nodes have an internal address, the second family is left out: its
/// routes would keep Kilo from setting the others.
async fn a_second_family_costs_the_first_nothing() {
    let mut ground = Ground::new(Layout { two_families: true, ..Layout::default() }).await;
    let _operator = ground.operator().await;
    ground.fleet.condition("Ready", "True", "Reconciled").await;
    let first: Vec<Path> = ground.paths().into_iter().filter(Path::is_ipv4).collect();
    ground.arrive(&first).await;
    ground.fleet.finish().await;
}
