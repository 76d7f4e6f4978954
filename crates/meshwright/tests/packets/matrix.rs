//! Who reaches whom, for every way of running Kilo.

use libtest_mimic::Trial;
use mw_testbed::kilo::Granularity::{Full, Location};

use crate::ground::{Ground, Layout, Path};
use crate::{scenarios, trial};

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

/// Kilo gives each route over its tunnel the node's internal address as source,
/// and refuses an IPv6 route with an IPv4 source. So it takes nodes without
/// one (`force-internal-ip: "-"`) to route two families.
async fn both_families_reach_everybody() {
    everybody_reaches_everybody(Layout { two_families: true, internal_ips: false, ..Layout::default() }).await;
}

/// Where nodes have an internal address, the second family is lost; the first
/// must not be.
async fn a_second_family_costs_the_first_nothing() {
    let mut ground = Ground::new(Layout { two_families: true, ..Layout::default() }).await;
    let _operator = ground.operator().await;
    ground.fleet.condition("Ready", "True", "Reconciled").await;
    let first: Vec<Path> = ground.paths().into_iter().filter(Path::is_ipv4).collect();
    ground.arrive(&first).await;
    ground.fleet.finish().await;
}

/// Written before its repair: the operator advertises both families whatever
/// the target can route.
pub(crate) fn unrepaired() -> Vec<Trial> {
    vec![trial("a_second_family_costs_the_first_nothing", a_second_family_costs_the_first_nothing).with_ignored_flag(true)]
}
