//! Who reaches whom, for every way of running Kilo.

use mw_testbed::kilo::Granularity::{Full, Location};

use crate::ground::{Ground, Layout};
use crate::scenarios;

scenarios![
    every_node_is_a_segment_and_everybody_reaches_everybody,
    a_leader_speaks_for_its_place_and_everybody_reaches_everybody,
    granularities_mix_and_everybody_reaches_everybody,
    both_families_reach_everybody,
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

async fn both_families_reach_everybody() {
    everybody_reaches_everybody(Layout { two_families: true, ..Layout::default() }).await;
}
