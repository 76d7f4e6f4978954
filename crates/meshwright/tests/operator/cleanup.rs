//! Deletion of meshes, and orphans.

use std::time::{Duration, Instant};

use mw_testbed::proxy::{Effect, Fault, Match};
use serde_json::json;
use sha2::Digest;

use crate::bed::{PEERS, remove_by_force};
use crate::fleet::Fleet;
use crate::look::until;
use crate::trials::scenarios;
use mw_sim::kilo::{Mesh, World, key};

scenarios![
    a_deleted_mesh_takes_its_peers_along,
    a_deleted_mesh_waits_for_a_hung_cluster_until_its_time_is_up,
    a_deleted_mesh_skips_a_cluster_whose_secret_is_gone,
    peers_of_a_mesh_that_went_without_cleanup_are_swept_when_a_person_confirms,
    a_ghost_of_the_earlier_operator_is_swept_unless_told_otherwise,
    a_broken_spec_does_not_block_the_cleanup,
    a_deleted_mesh_waits_for_working_credentials_until_its_time_is_up,
    a_mesh_that_is_made_again_keeps_its_peers,
    a_cluster_that_leaves_the_spec_loses_its_peers,
];

async fn a_deleted_mesh_takes_its_peers_along() {
    let mut fleet = Fleet::three().build().await;
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    fleet.delete_mesh(0).await;
    fleet.gone(0).await;
    fleet.holds(&["hub", "east", "west"]).await;
    // The name can be reused.
    let again = Mesh::new(
        "mesh",
        &["hub", "east"].map(|name| &fleet.world.sites[name]),
    );
    fleet.world.meshes.clear();
    fleet.add_mesh(again).await;
    fleet.converged().await;
    fleet.finish().await;
}

async fn a_deleted_mesh_waits_for_a_hung_cluster_until_its_time_is_up() {
    let short = |world: &mut World| {
        world.meshes[0].settings = json!({ "cleanupTimeout": "4s" })
            .as_object()
            .unwrap()
            .clone()
    };
    let mut fleet = Fleet::three().proxied(&["west"]).with(short).build().await;
    let operator = fleet.operator(&["--request-timeout", "1s"]).await;
    fleet.converged().await;
    let hang = fleet
        .proxy("west")
        .add(Fault::new(Match::all(), Effect::Hang));
    fleet.proxy("west").cut_watches(Match::all());
    let start = Instant::now();
    fleet.delete_mesh(0).await;
    fleet.holds(&["hub", "east"]).await;
    fleet.gone(0).await;
    assert!(
        start.elapsed() >= Duration::from_secs(3),
        "it did not wait: {:?}",
        start.elapsed()
    );
    let event = fleet.event("CleanupIncomplete").await;
    assert!(event["note"].as_str().unwrap().contains("west"), "{event}");
    assert_eq!(fleet.peers("west").await.unwrap().len(), 4);

    // The cluster comes back in another mesh, and its orphans are deleted.
    let mesh = Mesh::new(
        "other",
        &["hub", "west"].map(|name| &fleet.world.sites[name]),
    );
    fleet.world.meshes.clear();
    fleet.add_mesh(mesh).await;
    fleet.proxy("west").remove(hang);
    fleet.converged().await;
    drop(operator);
    fleet.finish().await;
}

async fn a_deleted_mesh_skips_a_cluster_whose_secret_is_gone() {
    let mut fleet = Fleet::three().build().await;
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    fleet
        .cluster("hub")
        .delete("/api/v1/namespaces/kilo-system/secrets/west-kubeconfig")
        .await
        .unwrap();
    fleet
        .cluster_status("west", |status| status["reachable"] == false)
        .await;
    fleet.delete_mesh(0).await;
    fleet.gone(0).await;
    fleet.holds(&["hub", "east"]).await;
    let event = fleet.event("CleanupSkipped").await;
    assert!(event["note"].as_str().unwrap().contains("west"), "{event}");
    fleet.finish().await;
}

async fn peers_of_a_mesh_that_went_without_cleanup_are_swept_when_a_person_confirms() {
    let mut fleet = Fleet::three().build().await;
    let operator = fleet.operator(&[]).await;
    fleet.converged().await;
    operator.kill();
    let mesh = fleet.mesh().await;
    remove_by_force(fleet.cluster("hub"), &mesh).await;
    // Now only the hub and east are reachable, the latter through another mesh.
    let other = Mesh::new(
        "other",
        &["hub", "east"].map(|name| &fleet.world.sites[name]),
    );
    fleet.world.meshes.clear();
    fleet.add_mesh(other).await;
    let _operator = fleet.operator(&["--leader-elect"]).await;
    // They are most of this hub's Peers, and a list without a mesh may be wrong.
    fleet.condition("Ready", "False", "KeyTaken").await;
    let mut lines = Vec::new();
    for (site, link) in [("hub", "local"), ("east", "kilo-system/east-kubeconfig")] {
        let held = fleet.peers(site).await.unwrap();
        lines.extend(
            held.keys()
                .filter(|name| name.starts_with("mesh--"))
                .map(|name| format!("{link}/{name}\n")),
        );
    }
    assert_eq!(lines.len(), 8, "{lines:?}");
    lines.sort();
    let hash: String = sha2::Sha256::digest(lines.concat())
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let confirm =
        json!({ "metadata": { "annotations": { "kilo-clustermesh.io/confirm-orphans": hash } } });
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kilo-system/leases/f27237f1.squat.ai";
    fleet
        .cluster("hub")
        .merge_patch(lease, &confirm)
        .await
        .unwrap();
    fleet.converged_but(&["west"]).await;
    assert_eq!(fleet.peers("west").await.unwrap().len(), 4);
    fleet.finish().await;
}

async fn a_ghost_of_the_earlier_operator_is_swept_unless_told_otherwise() {
    let mut fleet = Fleet::three().build().await;
    let labels =
        json!({ "kilo-clustermesh.io/mesh": "gone", "kilo-clustermesh.io/source-cluster": "x" });
    let ghost = json!({
        "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "Peer", "metadata": { "name": "gone--x--n1", "labels": labels },
        "spec": { "allowedIPs": ["172.29.0.1/32"], "publicKey": key("ghost") },
    });
    fleet.cluster("east").create(&ghost).await.unwrap();
    let operator = fleet.operator(&["--sweep-legacy", "never"]).await;
    fleet.condition("Ready", "True", "Reconciled").await;
    fleet.holds(&["hub", "west"]).await;
    assert!(fleet.peer("east", "gone--x--n1").await.is_some());
    operator.kill();
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    fleet.finish().await;
}

async fn a_broken_spec_does_not_block_the_cleanup() {
    let mut fleet = Fleet::three().build().await;
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    let mut spec = fleet.world.meshes[0].spec();
    spec["clusters"][0]["local"] = json!(false);
    spec["clusters"][1]["podCIDRs"] = json!(["127.0.0.0/8"]);
    fleet
        .cluster("hub")
        .merge_patch(&fleet.world.meshes[0].path(), &json!({ "spec": spec }))
        .await
        .unwrap();
    fleet.condition("Ready", "False", "InvalidSpec").await;
    // Existing Peers stay until somebody decides.
    fleet.holds(&["hub", "east", "west"]).await;
    fleet.delete_mesh(0).await;
    fleet.gone(0).await;
    fleet.holds(&["hub", "east", "west"]).await;
    fleet.finish().await;
}

async fn a_deleted_mesh_waits_for_working_credentials_until_its_time_is_up() {
    let short = |world: &mut World| {
        world.meshes[0].settings = json!({ "cleanupTimeout": "3s" })
            .as_object()
            .unwrap()
            .clone()
    };
    let mut fleet = Fleet::three().with(short).build().await;
    let operator = fleet.operator(&[]).await;
    fleet.converged().await;
    operator.kill();
    fleet
        .write_secret("hub", "kilo-system", "west-kubeconfig", "not a kubeconfig")
        .await;
    fleet.delete_mesh(0).await;
    let _operator = fleet.operator(&[]).await;
    fleet.gone(0).await;
    fleet.holds(&["hub", "east"]).await;
    let event = fleet.event("CleanupIncomplete").await;
    assert!(event["note"].as_str().unwrap().contains("west"), "{event}");
    fleet.finish().await;
}

async fn a_mesh_that_is_made_again_keeps_its_peers() {
    let mut fleet = Fleet::three().build().await;
    let operator = fleet.operator(&[]).await;
    fleet.converged().await;
    operator.kill();
    let mesh = fleet.mesh().await;
    remove_by_force(fleet.cluster("hub"), &mesh).await;
    fleet
        .cluster("hub")
        .create(&fleet.world.meshes[0].object())
        .await
        .unwrap();
    let mark = fleet.mark();
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    fleet
        .no_peer_writes(&mark, Duration::from_millis(500))
        .await;
    fleet.finish().await;
}

async fn a_cluster_that_leaves_the_spec_loses_its_peers() {
    let mut fleet = Fleet::three().build().await;
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    fleet
        .mesh_model()
        .entries
        .retain(|entry| entry.name != "west");
    fleet.update_mesh(0).await;
    fleet.converged().await;
    let left = fleet.cluster("west").list(PEERS).await.unwrap();
    assert_eq!(left.len(), 1, "only the foreign one: {left:?}");
    // The operator stops contacting that cluster.
    until("the connection ends", || async {
        let mark = fleet.mark();
        fleet
            .annotate_unseen("west", "n1", &[("force-endpoint", Some("198.51.100.4:1"))])
            .await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let calls = fleet
            .calls(&mark)
            .into_iter()
            .filter(|(site, _)| site == "west")
            .count();
        if calls == 0 {
            Ok(())
        } else {
            Err(format!("{calls} calls"))
        }
    })
    .await;
    fleet.finish().await;
}
