//! API servers that return wrong data: missing, repeated or withdrawn objects never cause a delete.

use std::time::Duration;

use mw_testbed::proxy::{Effect, Fault, FaultId, Match, Verb, lies};
use serde_json::json;

use crate::bed::PEERS;
use crate::fleet::Fleet;
use crate::look::{condition, none, until};
use crate::trials::scenarios;
use mw_sim::kilo::{Mesh, NAMESPACE, Node, Site, World, key};

scenarios![
    one_empty_list_of_meshes_deletes_no_peer,
    meshes_that_every_list_lacks_lose_no_peer,
    nodes_that_vanish_step_by_step_are_held_as_one,
    a_secret_that_leads_to_another_cluster_changes_nothing_until_confirmed,
    a_list_that_cannot_be_whole_deletes_nothing,
    a_list_of_meshes_that_cannot_be_whole_deletes_nothing,
    an_older_state_deletes_nothing,
    a_watch_that_goes_back_deletes_nothing,
    nodes_that_one_list_lacks_keep_their_peers,
    deletions_that_a_watch_omits_are_held,
    deletions_that_a_watch_omits_are_counted_together,
    a_secret_of_another_name_is_not_used,
];

/// Long enough for a wrong delete to happen.
const WINDOW: Duration = Duration::from_secs(4);

fn lists(resource: &str) -> Match {
    Match::verb(Verb::List).resource(resource)
}

/// Forces a relist of a kind: its watch ends and can't be resumed.
fn relist(fleet: &Fleet, site: &str, resource: &str) {
    let proxy = fleet.proxy(site);
    proxy.add(
        Fault::new(
            Match::verb(Verb::Watch).resource(resource),
            Effect::answer(410),
        )
        .times(1),
    );
    proxy.cut_watches(Match::all().resource(resource));
}

/// Forces a relist of a kind, returns a wrong list, and waits until that was served.
async fn tell(fleet: &Fleet, site: &str, resource: &str, lie: Fault) -> FaultId {
    let proxy = fleet.proxy(site);
    proxy.forget_counts();
    let told = proxy.add(lie);
    relist(fleet, site, resource);
    until("the lie is told", || async {
        if proxy.count(&lists(resource)) > 0 {
            Ok(())
        } else {
            Err(format!("{resource} of {site} were not listed"))
        }
    })
    .await;
    told
}

/// Waits until east is reported as unknown with this reason.
async fn unknown(fleet: &Fleet, words: &'static str) {
    let says_why = move |message: &str| !message.is_empty() && message.contains(words);
    fleet
        .cluster_status("east", move |status| {
            status["message"].as_str().is_some_and(says_why)
        })
        .await;
    fleet.condition("Ready", "False", "").await;
}

async fn one_empty_list_of_meshes_deletes_no_peer() {
    let mut fleet = Fleet::three().proxied(&["hub"]).build().await;
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    let mark = fleet.mark();
    tell(
        &fleet,
        "hub",
        "clustermeshes",
        Fault::new(lists("clustermeshes"), lies::empty_list()).times(1),
    )
    .await;
    fleet.no_peer_writes(&mark, WINDOW).await;
    fleet
        .annotate("east", "n1", "force-endpoint", Some("198.51.100.91:51820"))
        .await;
    fleet.converged().await;
    fleet.finish().await;
}

/// Also at a start, when the operator knows the meshes only by their Peers.
async fn meshes_that_every_list_lacks_lose_no_peer() {
    let mut fleet = Fleet::three().proxied(&["hub"]).build().await;
    let operator = fleet.operator(&[]).await;
    fleet.converged().await;
    let mark = fleet.mark();
    tell(
        &fleet,
        "hub",
        "clustermeshes",
        Fault::new(lists("clustermeshes"), lies::empty_list()),
    )
    .await;
    fleet.no_peer_writes(&mark, WINDOW).await;
    operator.kill();
    let _operator = fleet.operator(&[]).await;
    fleet.no_peer_writes(&mark, WINDOW).await;
    fleet.proxy("hub").clear();
    relist(&fleet, "hub", "clustermeshes");
    fleet.converged().await;
    fleet.no_peer_writes(&mark, Duration::ZERO).await;
    fleet.finish().await;
}

async fn nodes_that_vanish_step_by_step_are_held_as_one() {
    let ten = |world: &mut World| {
        world.sites.get_mut("east").unwrap().nodes = Site::new("east", 2, 10).nodes
    };
    let mut fleet = Fleet::three().proxied(&["east"]).with(ten).build().await;
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    let left = async |site: &str| {
        fleet
            .peers(site)
            .await
            .unwrap()
            .keys()
            .filter(|name| name.starts_with("mesh--east--"))
            .count()
    };
    let mut told = tell(
        &fleet,
        "east",
        "nodes",
        Fault::new(lists("nodes"), lies::truncated_list(5, false)),
    )
    .await;
    // The spec allows deleting half of them.
    until("five Peers go", || async {
        let left = (left("hub").await, left("west").await);
        if left == (5, 5) {
            Ok(())
        } else {
            Err(format!("{left:?}"))
        }
    })
    .await;
    for nodes in [3, 2, 1] {
        fleet.proxy("east").remove(told);
        told = tell(
            &fleet,
            "east",
            "nodes",
            Fault::new(lists("nodes"), lies::truncated_list(nodes, false)),
        )
        .await;
        fleet.condition("Ready", "False", "DeletionHeld").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(
            (left("hub").await, left("west").await),
            (5, 5),
            "when {nodes} Nodes are left"
        );
    }
    fleet.proxy("east").clear();
    relist(&fleet, "east", "nodes");
    fleet.converged().await;
    fleet.finish().await;
}

/// West has nodes and networks like east, but other keys.
async fn a_secret_that_leads_to_another_cluster_changes_nothing_until_confirmed() {
    let double = |world: &mut World| {
        let mut nodes = world.sites["east"].nodes.clone();
        nodes.values_mut().for_each(|node| {
            _ = node
                .annotations
                .insert("key".into(), key(&format!("double {}", node.name)))
        });
        world.sites.get_mut("west").unwrap().nodes = nodes;
        world.meshes = vec![Mesh::new(
            "mesh",
            &["hub", "east"].map(|name| &world.sites[name]),
        )];
    };
    let mut fleet = Fleet::three().nodes(3).with(double).build().await;
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    let mark = fleet.mark();
    let before = fleet.peers("hub").await.unwrap();
    fleet
        .write_secret(
            "hub",
            NAMESPACE,
            "east-kubeconfig",
            &fleet.member_kubeconfig("west"),
        )
        .await;
    let held = fleet.condition("Ready", "False", "SourceReplaced").await;
    tokio::time::sleep(WINDOW).await;
    assert_eq!(fleet.peers("hub").await.unwrap(), before);
    let touched: Vec<_> = fleet
        .peer_writes(&mark)
        .into_iter()
        .filter(|(site, _)| site != "west")
        .collect();
    none(&touched, "Peers were written");

    let message = held["message"].as_str().unwrap();
    let hash: String = message
        .split_once("confirm-deletes=")
        .unwrap_or_else(|| panic!("no command in {message}"))
        .1
        .chars()
        .take(16)
        .collect();
    let confirm =
        json!({ "metadata": { "annotations": { "kilo-clustermesh.io/confirm-deletes": hash } } });
    fleet
        .cluster("hub")
        .merge_patch(&fleet.world.meshes[0].path(), &confirm)
        .await
        .unwrap();
    fleet.mesh_model().entry("east").unwrap().site = "west".to_owned();
    fleet.converged_but(&["east"]).await;
    fleet.finish().await;
}

/// A list that contradicts the request makes its cluster unknown, with a reason.
async fn a_list_that_cannot_be_whole_deletes_nothing() {
    let mut fleet = Fleet::three().nodes(4).proxied(&["east"]).build().await;
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    let peer = json!({ "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "Peer", "metadata": {}, "spec": { "allowedIPs": [], "publicKey": "" } });
    for (resource, lie) in [
        ("nodes", lies::truncated_list(1, true)),
        ("peers", lies::truncated_list(1, true)),
        ("nodes", lies::endless_list(50, &Node::new(2, 1).object())),
        ("peers", lies::endless_list(200, &peer)),
    ] {
        let mark = fleet.mark();
        let told = tell(&fleet, "east", resource, Fault::new(lists(resource), lie)).await;
        unknown(&fleet, "").await;
        fleet.no_peer_writes(&mark, Duration::from_secs(1)).await;
        fleet.proxy("east").remove(told);
        fleet.converged().await;
        fleet.no_peer_writes(&mark, Duration::ZERO).await;
    }
    fleet.finish().await;
}

async fn a_list_of_meshes_that_cannot_be_whole_deletes_nothing() {
    let mut fleet = Fleet::three().proxied(&["hub"]).build().await;
    let mut operator = fleet.operator(&[]).await;
    fleet.converged().await;
    let mut mesh = fleet.world.meshes[0].object();
    mesh["metadata"]["resourceVersion"] = json!("1");
    for lie in [
        lies::truncated_list(0, true),
        lies::older_list(0, "1"),
        lies::endless_list(50, &mesh),
    ] {
        let mark = fleet.mark();
        let told = tell(
            &fleet,
            "hub",
            "clustermeshes",
            Fault::new(lists("clustermeshes"), lie),
        )
        .await;
        fleet.no_peer_writes(&mark, WINDOW).await;
        fleet.proxy("hub").remove(told);
        relist(&fleet, "hub", "clustermeshes");
        fleet
            .annotate(
                "east",
                "n1",
                "force-endpoint",
                Some(&format!("198.51.100.92:{}", mark["hub"] % 10_000 + 1)),
            )
            .await;
        fleet.converged().await;
    }
    assert_eq!(operator.exit_code(), None);
    fleet.finish().await;
}

async fn an_older_state_deletes_nothing() {
    let mut fleet = Fleet::three().nodes(4).proxied(&["east"]).build().await;
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    for (resource, most) in [("nodes", 2), ("peers", 3)] {
        let mark = fleet.mark();
        let told = tell(
            &fleet,
            "east",
            resource,
            Fault::new(lists(resource), lies::older_list(most, "1")),
        )
        .await;
        unknown(&fleet, "older").await;
        fleet.no_peer_writes(&mark, WINDOW).await;
        fleet.proxy("east").remove(told);
        fleet.converged().await;
        fleet.no_peer_writes(&mark, Duration::ZERO).await;
    }
    fleet.finish().await;
}

/// A change of a Node is shown as its deletion at an earlier version. One of four is below the
/// guard's limit.
async fn a_watch_that_goes_back_deletes_nothing() {
    let mut fleet = Fleet::three().nodes(4).proxied(&["east"]).build().await;
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    let mark = fleet.mark();
    let back = Effect::edit(|mut event| {
        event["type"] = json!("DELETED");
        event["object"]["metadata"]["resourceVersion"] = json!("1");
        Some(event)
    });
    let east = fleet.proxy("east");
    east.add(Fault::new(Match::verb(Verb::Watch).resource("nodes"), back).times(1));
    east.cut_watches(Match::all().resource("nodes"));
    east.forget_counts();
    fleet
        .annotate_unseen("east", "n4", &[("changed", Some("yes"))])
        .await;
    fleet.no_peer_writes(&mark, WINDOW).await;
    assert!(
        east.count(&lists("nodes")) > 0,
        "the lie was not told, or believed"
    );
    fleet.converged().await;
    fleet.no_peer_writes(&mark, Duration::ZERO).await;
    fleet.finish().await;
}

/// One of four is below the guard's limit.
async fn nodes_that_one_list_lacks_keep_their_peers() {
    let mut fleet = Fleet::three().nodes(4).proxied(&["east"]).build().await;
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    let mark = fleet.mark();
    tell(
        &fleet,
        "east",
        "nodes",
        Fault::new(lists("nodes"), lies::truncated_list(3, false)).times(1),
    )
    .await;
    fleet.no_peer_writes(&mark, WINDOW).await;
    fleet.converged().await;
    fleet.no_peer_writes(&mark, Duration::ZERO).await;
    fleet.finish().await;
}

/// The watch did not show them, and they are the majority.
async fn deletions_that_a_watch_omits_are_held() {
    let mut fleet = Fleet::three()
        .nodes(4)
        .proxied(&["east", "west"])
        .build()
        .await;
    for site in ["east", "west"] {
        fleet.proxy(site).add(Fault::new(
            Match::verb(Verb::Watch),
            lies::without_deletes(),
        ));
    }
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    let mark = fleet.mark();
    for node in ["n2", "n3", "n4"] {
        fleet
            .cluster("east")
            .delete(&format!("/api/v1/nodes/{node}"))
            .await
            .unwrap();
    }
    fleet
        .cluster("west")
        .delete(&format!("{PEERS}/mesh--hub--n1"))
        .await
        .unwrap();
    resync(&fleet, "now").await;
    until("the mesh is not ready", || async {
        let ready = condition(&fleet.mesh().await, "Ready");
        if ready["status"] == "False" {
            Ok(())
        } else {
            Err(ready.to_string())
        }
    })
    .await;
    fleet.holds(&["hub", "east", "west"]).await;
    let deletes: Vec<_> = fleet
        .peer_writes(&mark)
        .into_iter()
        .filter(|(_, call)| call.verb != "create")
        .collect();
    none(&deletes, "only the Peer that was deleted is put back");
    fleet.finish().await;
}

/// Forces a relist of everything.
async fn resync(fleet: &Fleet, trigger: &str) {
    let trigger = json!({ "metadata": { "annotations": { "reconcile-trigger": trigger } } });
    fleet
        .cluster("hub")
        .merge_patch(&fleet.world.meshes[0].path(), &trigger)
        .await
        .unwrap();
}

/// Half of them may be deleted; half of the rest may not.
async fn deletions_that_a_watch_omits_are_counted_together() {
    let mut fleet = Fleet::three().nodes(4).proxied(&["east"]).build().await;
    fleet.proxy("east").add(Fault::new(
        Match::verb(Verb::Watch),
        lies::without_deletes(),
    ));
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    for node in ["n4", "n3"] {
        fleet.delete_node("east", node).await;
    }
    resync(&fleet, "first").await;
    fleet.converged().await;
    let mark = fleet.mark();
    fleet
        .cluster("east")
        .delete("/api/v1/nodes/n2")
        .await
        .unwrap();
    fleet.proxy("east").forget_counts();
    resync(&fleet, "second").await;
    until("the Nodes are listed", || async {
        if fleet.proxy("east").count(&lists("nodes")) > 0 {
            Ok(())
        } else {
            Err("not yet".into())
        }
    })
    .await;
    fleet.no_peer_writes(&mark, WINDOW).await;
    fleet.condition("Ready", "False", "DeletionHeld").await;
    fleet.finish().await;
}

/// The hub returns the Secret of west when asked for that of east.
async fn a_secret_of_another_name_is_not_used() {
    let two = |world: &mut World| {
        world.meshes = vec![Mesh::new(
            "mesh",
            &["hub", "east"].map(|name| &world.sites[name]),
        )]
    };
    let mut fleet = Fleet::three().proxied(&["hub"]).with(two).build().await;
    fleet
        .write_secret(
            "hub",
            NAMESPACE,
            "west-kubeconfig",
            &fleet.member_kubeconfig("west"),
        )
        .await;
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    let mark = fleet.mark();
    let west = fleet
        .cluster("hub")
        .get(&format!(
            "/api/v1/namespaces/{NAMESPACE}/secrets/west-kubeconfig"
        ))
        .await
        .unwrap()
        .unwrap();
    let other = Effect::edit(move |mut list| {
        list["items"] = json!([west]);
        Some(list)
    });
    let told = tell(
        &fleet,
        "hub",
        "secrets",
        Fault::new(lists("secrets"), other),
    )
    .await;
    fleet.no_peer_writes(&mark, WINDOW).await;
    fleet.proxy("hub").remove(told);
    relist(&fleet, "hub", "secrets");
    fleet
        .annotate("east", "n1", "force-endpoint", Some("198.51.100.93:51820"))
        .await;
    fleet.converged().await;
    let writes = fleet.peer_writes(&mark);
    assert_eq!(writes.len(), 1, "one Peer changed: {writes:?}");
    fleet.finish().await;
}
