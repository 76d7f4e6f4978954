//! Several meshes, several hubs, several namespaces.

use std::time::Duration;

use serde_json::{Value, json};

use crate::access::{self, HUB, HUB_ACCOUNT};
use crate::bed::PEERS;
use crate::fleet::Fleet;
use crate::look::until;
use crate::rights::{documents, may};
use crate::trials::scenarios;
use mw_sim::kilo::{Mesh, NAMESPACE, World};

scenarios![
    two_hubs_share_a_member_and_leave_each_other_alone,
    a_rebuilt_hub_takes_its_old_peers_over_when_told,
    the_spokes_of_a_hub_are_two_meshes,
    equal_mesh_names_in_two_namespaces_stand_side_by_side,
    a_mesh_of_another_namespace_is_left_alone,
    meshes_of_the_listed_namespaces_are_served_and_the_log_names_the_others,
    a_newcomer_that_overlaps_is_held_back,
    the_younger_of_two_meshes_with_one_pair_is_held_back,
    without_sight_of_all_namespaces_the_scope_is_said_to_be_limited,
];

/// Replaces the mesh of all clusters by meshes of a hub and one other cluster each.
fn pairs(
    pairs: &'static [(&'static str, &'static str, &'static str, &'static str)],
) -> impl FnOnce(&mut World) {
    move |world| {
        let mesh = |(namespace, name, hub, member): &(&str, &str, &str, &str)| {
            let mut mesh = Mesh::new(name, &[&world.sites[*hub], &world.sites[*member]]);
            mesh.namespace = (*namespace).to_owned();
            mesh
        };
        world.meshes = pairs.iter().map(mesh).collect();
    }
}

async fn two_hubs_share_a_member_and_leave_each_other_alone() {
    let meshes = pairs(&[
        (NAMESPACE, "mesh", "hub", "east"),
        (NAMESPACE, "mesh", "west", "east"),
    ]);
    let mut fleet = Fleet::three().with(meshes).build().await;
    let _first = fleet.operator_as("hub", HUB_ACCOUNT, &[]).await;
    let second = fleet.operator_as("west", HUB_ACCOUNT, &[]).await;
    fleet.converged().await;
    assert_eq!(fleet.peers("east").await.unwrap().len(), 4);
    fleet
        .annotate("hub", "n1", "force-endpoint", Some("198.51.100.61:51820"))
        .await;
    fleet
        .annotate("west", "n1", "force-endpoint", Some("198.51.100.62:51820"))
        .await;
    fleet.converged().await;
    second.kill();
    let _second = fleet.operator_as("west", HUB_ACCOUNT, &[]).await;
    fleet.delete_mesh(1).await;
    fleet.gone(1).await;
    fleet.converged().await;
    fleet.finish().await;
}

async fn a_rebuilt_hub_takes_its_old_peers_over_when_told() {
    let mut fleet = Fleet::three().build().await;
    let operator = fleet.operator(&[]).await;
    fleet.converged().await;
    operator.kill();
    // As if the hub had had another UID when they were written.
    let (old, label) = (
        "00000000-aaaa-bbbb-cccc-000000000000",
        "kilo-clustermesh.io/hub",
    );
    for site in ["hub", "east", "west"] {
        for name in fleet.peers(site).await.unwrap().keys() {
            let patch = json!({ "metadata": { "labels": { label: old } } });
            fleet
                .cluster(site)
                .merge_patch(&format!("{PEERS}/{name}"), &patch)
                .await
                .unwrap();
        }
    }
    let mark = fleet.mark();
    let _operator = fleet.operator(&[]).await;
    fleet.condition("Ready", "False", "").await;
    fleet.no_peer_writes(&mark, Duration::from_secs(1)).await;
    let patch =
        json!({ "metadata": { "annotations": { "kilo-clustermesh.io/take-over-hub": old } } });
    fleet
        .cluster("hub")
        .merge_patch(&fleet.world.meshes[0].path(), &patch)
        .await
        .unwrap();
    fleet.converged().await;
    assert!(
        fleet
            .peer_writes(&mark)
            .iter()
            .all(|(_, call)| call.verb == "patch")
    );
    fleet.finish().await;
}

async fn the_spokes_of_a_hub_are_two_meshes() {
    let meshes = pairs(&[
        (NAMESPACE, "one", "hub", "east"),
        (NAMESPACE, "two", "hub", "west"),
    ]);
    let mut fleet = Fleet::three().with(meshes).build().await;
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    fleet
        .annotate("hub", "n2", "force-endpoint", Some("198.51.100.63:51820"))
        .await;
    fleet.delete_node("east", "n2").await;
    fleet.converged().await;
    fleet.delete_mesh(0).await;
    fleet.gone(0).await;
    fleet.converged().await;
    fleet.finish().await;
}

async fn equal_mesh_names_in_two_namespaces_stand_side_by_side() {
    let meshes = pairs(&[
        ("team-a", "mesh", "hub", "east"),
        ("team-b", "mesh", "hub", "west"),
    ]);
    let mut fleet = Fleet::three().with(meshes).build().await;
    for namespace in ["team-a", "team-b"] {
        access::widen(fleet.cluster("hub"), namespace).await;
    }
    let _operator = fleet.operator(&["--all-namespaces"]).await;
    fleet.converged().await;
    fleet.delete_mesh(0).await;
    fleet.gone(0).await;
    fleet.converged().await;
    fleet.finish().await;
}

async fn a_mesh_of_another_namespace_is_left_alone() {
    let meshes = pairs(&[
        (NAMESPACE, "mesh", "hub", "east"),
        ("team-a", "theirs", "hub", "west"),
    ]);
    let mut fleet = Fleet::three()
        .with(meshes)
        .with(|world| world.meshes[1].active = false)
        .build()
        .await;
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    let theirs = fleet
        .cluster("hub")
        .get(&fleet.world.meshes[1].path())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (&theirs["status"], &theirs["metadata"]["finalizers"]),
        (&json!(null), &json!(null))
    );
    fleet.finish().await;
}

/// The unserved mesh has the finalizer that it got from an operator that served all namespaces.
async fn meshes_of_the_listed_namespaces_are_served_and_the_log_names_the_others() {
    let unserved = |world: &mut World| {
        let mut mesh = Mesh::new("theirs", &["east", "west"].map(|name| &world.sites[name]));
        (mesh.namespace, mesh.hub, mesh.active) = ("team-b".to_owned(), "hub".to_owned(), false);
        world.meshes.push(mesh);
    };
    let meshes = pairs(&[
        (NAMESPACE, "one", "hub", "east"),
        ("team-a", "two", "hub", "west"),
    ]);
    let mut fleet = Fleet::three().with(meshes).with(unserved).build().await;
    access::widen(fleet.cluster("hub"), "team-a").await;
    let path = fleet.world.meshes[2].path();
    let finalizers = json!(["kilo-clustermesh.io/cleanup"]);
    fleet
        .cluster("hub")
        .merge_patch(&path, &json!({ "metadata": { "finalizers": finalizers } }))
        .await
        .unwrap();
    let before = fleet.cluster("hub").get(&path).await.unwrap();
    let operator = fleet
        .operator(&["--namespace", &format!("{NAMESPACE},team-a")])
        .await;
    fleet.converged().await;
    let ignored = until("the log names the ignored mesh", || async {
        let log = operator.log();
        let lines: Vec<String> = log
            .lines()
            .filter(|line| line.contains("ClusterMesh ignored"))
            .map(str::to_owned)
            .collect();
        if lines.is_empty() {
            Err(log)
        } else {
            Ok(lines)
        }
    })
    .await;
    assert!(
        ignored.len() == 1 && ignored[0].contains("team-b/theirs"),
        "{ignored:#?}"
    );
    // The served meshes follow a node that is also in the ignored one.
    for site in ["east", "west"] {
        fleet
            .annotate(site, "n1", "force-endpoint", Some("198.51.100.66:51820"))
            .await;
    }
    fleet.converged().await;
    assert_eq!(
        fleet.cluster("hub").get(&path).await.unwrap(),
        before,
        "the ignored mesh was touched"
    );
    fleet.finish().await;
}

async fn a_newcomer_that_overlaps_is_held_back() {
    let meshes = pairs(&[(NAMESPACE, "first", "hub", "east")]);
    let mut fleet = Fleet::three().with(meshes).build().await;
    let operator = fleet.operator(&[]).await;
    fleet.converged().await;
    let mark = fleet.mark();
    let mut second = Mesh::new(
        "second",
        &["hub", "west"].map(|name| &fleet.world.sites[name]),
    );
    second.entry("west").unwrap().service_cidr = Some("10.2.0.0/17".into());
    second.active = false;
    fleet.add_mesh(second).await;
    let overlap = fleet
        .condition_of(1, "NetworksOverlap", "True", "CIDROverlap")
        .await;
    let message = overlap["message"].as_str().unwrap();
    for word in [
        "east",
        "west",
        "10.2.0.0/16",
        "10.2.0.0/17",
        "first",
        "second",
    ] {
        assert!(message.contains(word), "{word} is not in {message}");
    }
    fleet
        .condition_of(1, "Ready", "False", "NetworksOverlap")
        .await;
    assert!(fleet.peer_writes(&mark).is_empty());
    // The running mesh goes on, also after a restart.
    fleet
        .annotate("east", "n1", "force-endpoint", Some("198.51.100.64:51820"))
        .await;
    fleet.converged().await;
    operator.kill();
    let _operator = fleet.operator(&[]).await;
    fleet
        .annotate("east", "n2", "force-endpoint", Some("198.51.100.65:51820"))
        .await;
    fleet.converged().await;

    fleet.world.meshes[1].entry("west").unwrap().service_cidr = None;
    fleet.world.meshes[1].active = true;
    fleet.update_mesh(1).await;
    fleet.converged().await;
    // A change that makes a running mesh overlap leaves its Peers as they are.
    let mark = fleet.mark();
    let mut spec = fleet.world.meshes[1].spec();
    spec["clusters"][1]["serviceCIDR"] = json!("10.2.0.0/17");
    fleet
        .cluster("hub")
        .merge_patch(&fleet.world.meshes[1].path(), &json!({ "spec": spec }))
        .await
        .unwrap();
    fleet
        .condition_of(1, "Ready", "False", "NetworksOverlap")
        .await;
    fleet.condition_of(0, "Ready", "True", "Reconciled").await;
    fleet.no_peer_writes(&mark, Duration::from_secs(1)).await;
    fleet.finish().await;
}

async fn the_younger_of_two_meshes_with_one_pair_is_held_back() {
    let meshes = pairs(&[(NAMESPACE, "older", "hub", "east")]);
    let mut fleet = Fleet::three().with(meshes).build().await;
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    let mut younger = Mesh::new(
        "younger",
        &["hub", "east"].map(|name| &fleet.world.sites[name]),
    );
    younger.active = false;
    fleet.add_mesh(younger).await;
    fleet
        .condition_of(1, "Ready", "False", "DuplicatePeering")
        .await;
    fleet.converged().await;
    fleet.delete_mesh(0).await;
    fleet.world.meshes[1].active = true;
    fleet.gone(0).await;
    fleet.converged().await;
    fleet.finish().await;
}

async fn without_sight_of_all_namespaces_the_scope_is_said_to_be_limited() {
    let mut fleet = Fleet::three().build().await;
    fleet.expect_denials();
    // Starting an operator creates the roles that are changed below.
    fleet.operator(&[]).await.kill();
    for mut role in documents(HUB.roles) {
        let is_mesh_rule = |rule: &Value| rule["resources"] == json!(["clustermeshes"]);
        let wide = role["kind"] == "ClusterRole";
        let Some(rules) = role["rules"].as_array_mut() else {
            continue;
        };
        if wide {
            rules.retain(|rule| !is_mesh_rule(rule));
        } else {
            rules
                .iter_mut()
                .filter(|rule| is_mesh_rule(rule))
                .for_each(|rule| rule["verbs"] = json!(["list", "watch", "patch"]));
        }
        fleet.cluster("hub").apply(&role).await.unwrap();
    }
    let list = |namespace| json!({ "verb": "list", "group": "kilo.squat.ai", "resource": "clustermeshes", "namespace": namespace });
    may(
        fleet.cluster("hub"),
        NAMESPACE,
        HUB_ACCOUNT,
        list(""),
        false,
    )
    .await;
    may(
        fleet.cluster("hub"),
        NAMESPACE,
        HUB_ACCOUNT,
        list(NAMESPACE),
        true,
    )
    .await;
    let _operator = fleet.restarted(&[]).await;
    fleet.condition("ScopeLimited", "True", "").await;
    fleet.converged().await;
    access::hub_account(fleet.cluster("hub"), HUB_ACCOUNT).await;
    until("the condition goes", || async {
        let scope = crate::look::condition(&fleet.mesh().await, "ScopeLimited");
        if scope["status"] == "True" {
            Err(scope.to_string())
        } else {
            Ok(())
        }
    })
    .await;
    fleet.finish().await;
}
