//! Packets stop when the Peer that lets them pass is deleted, and only those.

use std::time::Instant;

use mw_testbed::net::{Flow, total_since};

use crate::bed::PEERS;
use crate::ground::{Ground, Layout, Path, SITES, lost};
use crate::trials::scenarios;

scenarios![packets_stop_with_the_peer_the_entry_and_the_mesh_and_only_those];

async fn packets_stop_with_the_peer_the_entry_and_the_mesh_and_only_those() {
    let (mut ground, operator) = Ground::running(Layout::default()).await;
    operator.kill();
    a_peer_goes(&ground).await;
    let _operator = ground.operator().await;
    ground.arrive(&ground.paths()).await;
    an_entry_goes(&mut ground).await;
    the_mesh_goes(&mut ground).await;
    ground.fleet.finish().await;
}

/// The operator is stopped, so nothing restores the Peer.
async fn a_peer_goes(ground: &Ground) {
    let all = ground.paths();
    // Both hosts of the hub lose east/n2: nothing between them passes.
    let of_peer = |path: &&Path| path.name.contains("hub") && path.name.contains("east/n2");
    let (gone, rest): (Vec<Path>, Vec<Path>) = all.into_iter().partition(|path| of_peer(&path));
    let flows = some_flows(&gone);
    let start = Instant::now();
    ground
        .fleet
        .cluster("hub")
        .delete(&format!("{PEERS}/mesh--east--n2"))
        .await
        .unwrap();
    ground.stop_arriving(&gone).await;
    tell_end("a Peer is deleted", &gone, &flows, start);
    assert_eq!(
        lost(&rest).await,
        [""; 0],
        "these have nothing to do with it"
    );
}

async fn an_entry_goes(ground: &mut Ground) {
    let flows: Vec<_> = ground
        .paths_between("hub", "east")
        .iter()
        .filter(|path| path.name.starts_with("pod hub/n1"))
        .map(Path::flow)
        .collect();
    let (gone, rest): (Vec<Path>, Vec<Path>) = ground
        .paths()
        .into_iter()
        .partition(|path| path.name.contains("west"));
    ground
        .fleet
        .mesh_model()
        .entries
        .retain(|entry| entry.name != "west");
    let ending = some_flows(&gone);
    let start = Instant::now();
    ground.fleet.update_mesh(0).await;
    ground.stop_arriving(&gone).await;
    tell_end("an entry goes", &gone, &ending, start);
    assert_eq!(
        lost(&rest).await,
        [""; 0],
        "these have nothing to do with it"
    );
    let report = total_since(&flows, start).await;
    eprintln!(
        "an entry goes: hub to east meanwhile lost {} of {}, gap {:?}",
        report.lost, report.sent, report.gap
    );
}

async fn the_mesh_goes(ground: &mut Ground) {
    let all = ground.paths();
    let inside: Vec<Path> = SITES
        .iter()
        .flat_map(|site| ground.paths_between(site, site))
        .collect();
    let flows = some_flows(&all);
    let start = Instant::now();
    ground.fleet.delete_mesh(0).await;
    ground.stop_arriving(&all).await;
    tell_end("the mesh goes", &all, &flows, start);
    assert_eq!(lost(&inside).await, [""; 0], "clusters stay whole");
}

/// Some of the paths; all would be too many packets.
fn some_flows(paths: &[Path]) -> Vec<Flow> {
    paths
        .iter()
        .filter(|path| path.name.starts_with("pod "))
        .take(8)
        .map(Path::flow)
        .collect()
}

fn tell_end(what: &str, gone: &[Path], flows: &[Flow], start: Instant) {
    let last = flows
        .iter()
        .filter_map(Flow::last_answered)
        .max()
        .unwrap_or(start);
    eprintln!(
        "{what}: {} ways end; the last ping that was answered left {:?} after it",
        gone.len(),
        last.duration_since(start)
    );
}
