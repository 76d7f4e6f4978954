//! Agents that stop briefly, and Nodes that vanish in large numbers.

use std::collections::BTreeSet;
use std::time::Duration;

use mw_testbed::proxy::{Effect, Fault, Match, Verb};
use serde_json::json;

use crate::fleet::Fleet;
use crate::look::until;
use crate::trials::scenarios;

scenarios![
    annotations_that_return_within_the_grace_cost_nothing,
    an_agent_that_says_its_address_last_keeps_the_peer,
    annotations_that_do_not_return_cost_the_peer,
    most_nodes_gone_while_nobody_looked_are_held_until_confirmed,
    an_empty_node_list_is_held_until_the_nodes_are_back,
    annotations_that_went_while_nobody_looked_have_their_grace_too,
    nodes_seen_going_are_not_held,
    nodes_that_went_behind_a_broken_watch_are_held,
    the_spec_says_how_many_may_go_at_once,
];

/// Annotations that Kilo's agent removes from its node when it ends.
const REMOVED: [&str; 7] = [
    "endpoint",
    "internal-ip",
    "key",
    "last-seen",
    "wireguard-ip",
    "discovered-endpoints",
    "granularity",
];

async fn stop_agent(fleet: &Fleet, site: &str, node: &str) {
    fleet
        .annotate_unseen(site, node, &REMOVED.map(|name| (name, None)))
        .await;
}

async fn start_agent(fleet: &Fleet, site: &str, node: &str) {
    let annotations = fleet.world.sites[site].nodes[node].annotations.clone();
    let changes: Vec<_> = annotations
        .iter()
        .map(|(name, value)| (name.as_str(), Some(value.as_str())))
        .collect();
    fleet.annotate_unseen(site, node, &changes).await;
}

async fn annotations_that_return_within_the_grace_cost_nothing() {
    let mut fleet = Fleet::three().build().await;
    let _operator = fleet.operator(&["--node-grace", "60s"]).await;
    fleet.converged().await;
    let mark = fleet.mark();
    // Like a DaemonSet rollout: one after the other, the anchor first; then all.
    for node in ["n1", "n2"] {
        stop_agent(&fleet, "east", node).await;
        fleet
            .no_peer_writes(&mark, Duration::from_millis(1500))
            .await;
        start_agent(&fleet, "east", node).await;
    }
    for node in ["n1", "n2"] {
        stop_agent(&fleet, "east", node).await;
    }
    fleet
        .no_peer_writes(&mark, Duration::from_millis(1500))
        .await;
    for node in ["n1", "n2"] {
        start_agent(&fleet, "east", node).await;
    }
    fleet.no_peer_writes(&mark, Duration::from_secs(1)).await;
    fleet.converged().await;
    fleet.finish().await;
}

/// A starting agent writes everything except its WireGuard address, which follows up to half a
/// minute later.
async fn an_agent_that_says_its_address_last_keeps_the_peer() {
    let mut fleet = Fleet::three().build().await;
    let _operator = fleet.operator(&["--node-grace", "6s"]).await;
    fleet.converged().await;
    let mark = fleet.mark();
    let address = fleet.world.sites["east"].nodes["n1"].annotations["wireguard-ip"].clone();
    stop_agent(&fleet, "east", "n1").await;
    let annotations = fleet.world.sites["east"].nodes["n1"].annotations.clone();
    let returned = |name: &str, value: &str| {
        if name == "wireguard-ip" {
            String::new()
        } else {
            value.to_owned()
        }
    };
    let changes: Vec<_> = annotations
        .iter()
        .map(|(name, value)| (name.as_str(), returned(name, value)))
        .collect();
    let changes: Vec<_> = changes
        .iter()
        .map(|(name, value)| (*name, Some(value.as_str())))
        .collect();
    fleet.annotate_unseen("east", "n1", &changes).await;
    fleet
        .no_peer_writes(&mark, Duration::from_millis(1500))
        .await;
    fleet
        .annotate_unseen("east", "n1", &[("wireguard-ip", Some(&address))])
        .await;
    fleet.no_peer_writes(&mark, Duration::from_secs(1)).await;
    // An agent that never publishes it loses its Peer after the grace period.
    stop_agent(&fleet, "east", "n1").await;
    fleet.annotate_unseen("east", "n1", &changes).await;
    fleet.annotate("east", "n1", "wireguard-ip", Some("")).await;
    fleet.world.sites.get_mut("east").unwrap().anchor = Some("n2".into());
    fleet.no_peer_writes(&mark, Duration::from_secs(2)).await;
    fleet.converged().await;
    fleet.finish().await;
}

async fn annotations_that_do_not_return_cost_the_peer() {
    let mut fleet = Fleet::three().nodes(3).build().await;
    let _operator = fleet.operator(&["--node-grace", "3s"]).await;
    fleet.converged().await;
    let mark = fleet.mark();
    for name in REMOVED {
        fleet
            .world
            .sites
            .get_mut("east")
            .unwrap()
            .nodes
            .get_mut("n3")
            .unwrap()
            .annotations
            .remove(name);
    }
    stop_agent(&fleet, "east", "n3").await;
    fleet
        .no_peer_writes(&mark, Duration::from_millis(1500))
        .await;
    fleet.converged().await;
    fleet.finish().await;
}

async fn most_nodes_gone_while_nobody_looked_are_held_until_confirmed() {
    let mut fleet = Fleet::three().nodes(4).build().await;
    let operator = fleet.operator(&[]).await;
    fleet.converged().await;
    operator.kill();
    for node in ["n2", "n3", "n4"] {
        fleet
            .cluster("east")
            .delete(&format!("/api/v1/nodes/{node}"))
            .await
            .unwrap();
    }
    let mark = fleet.mark();
    let _operator = fleet.operator(&[]).await;
    let held = fleet.condition("Ready", "False", "DeletionHeld").await;
    let event = fleet.event("DeletionHeld").await;
    fleet.no_peer_writes(&mark, Duration::from_secs(1)).await;
    // Other changes go on.
    fleet
        .annotate("hub", "n1", "force-endpoint", Some("198.51.100.41:51820"))
        .await;
    fleet.holds(&["hub", "east", "west"]).await;

    let message = held["message"].as_str().unwrap();
    let hash = |text: &str| {
        text.split_once("confirm-deletes=")
            .map(|(_, rest)| rest.chars().take(16).collect::<String>())
    };
    let confirm = hash(message).unwrap_or_else(|| panic!("no command in {message}"));
    assert_eq!(
        hash(event["note"].as_str().unwrap()),
        Some(confirm.clone()),
        "{event}"
    );
    let annotate = async |value: &str| {
        let patch = json!({ "metadata": { "annotations": { "kilo-clustermesh.io/confirm-deletes": value } } });
        fleet
            .cluster("hub")
            .merge_patch(&fleet.world.meshes[0].path(), &patch)
            .await
            .unwrap();
    };
    let mark = fleet.mark();
    annotate("0123456789abcdef").await;
    fleet.no_peer_writes(&mark, Duration::from_secs(1)).await;
    annotate(&confirm).await;
    for node in ["n2", "n3", "n4"] {
        fleet
            .world
            .sites
            .get_mut("east")
            .unwrap()
            .nodes
            .remove(node);
    }
    fleet.converged().await;
    fleet.finish().await;
}

async fn an_empty_node_list_is_held_until_the_nodes_are_back() {
    let mut fleet = Fleet::three().build().await;
    let operator = fleet.operator(&[]).await;
    fleet.converged().await;
    operator.kill();
    for node in ["n1", "n2"] {
        fleet
            .cluster("east")
            .delete(&format!("/api/v1/nodes/{node}"))
            .await
            .unwrap();
    }
    let mark = fleet.mark();
    let _operator = fleet.operator(&[]).await;
    fleet.condition("Ready", "False", "DeletionHeld").await;
    for node in fleet.world.sites["east"].nodes.clone().values() {
        fleet.cluster("east").create(&node.object()).await.unwrap();
    }
    fleet.converged().await;
    fleet
        .no_peer_writes(&mark, Duration::from_millis(500))
        .await;
    fleet.finish().await;
}

async fn annotations_that_went_while_nobody_looked_have_their_grace_too() {
    let mut fleet = Fleet::three().build().await;
    let operator = fleet.operator(&[]).await;
    fleet.converged().await;
    operator.kill();
    stop_agent(&fleet, "east", "n1").await;
    let mark = fleet.mark();
    let _operator = fleet.operator(&["--node-grace", "60s"]).await;
    fleet
        .annotate("hub", "n1", "force-endpoint", Some("198.51.100.42:51820"))
        .await;
    fleet.holds(&["hub", "east", "west"]).await;
    start_agent(&fleet, "east", "n1").await;
    fleet.converged().await;
    let touched: BTreeSet<_> = fleet
        .peer_writes(&mark)
        .into_iter()
        .map(|(site, call)| (site, call.name))
        .collect();
    assert_eq!(
        touched.len(),
        2,
        "mesh--hub--n1 on two clusters: {touched:?}"
    );
    fleet.finish().await;
}

async fn nodes_that_went_behind_a_broken_watch_are_held() {
    let mut fleet = Fleet::three().nodes(4).proxied(&["east"]).build().await;
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    let mark = fleet.mark();
    fleet.proxy("east").refuse(true).await.unwrap();
    for node in ["n2", "n3", "n4"] {
        fleet
            .cluster("east")
            .delete(&format!("/api/v1/nodes/{node}"))
            .await
            .unwrap();
    }
    // The watch can't resume after this, so the Nodes must be relisted.
    fleet.proxy("east").add(
        Fault::new(
            Match::verb(Verb::Watch).resource("nodes"),
            Effect::answer(410),
        )
        .times(1),
    );
    fleet.proxy("east").refuse(false).await.unwrap();
    fleet.condition("Ready", "False", "DeletionHeld").await;
    fleet
        .no_peer_writes(&mark, Duration::from_millis(500))
        .await;
    fleet.finish().await;
}

async fn nodes_seen_going_are_not_held() {
    let mut fleet = Fleet::three().nodes(4).build().await;
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    for node in ["n2", "n3", "n4"] {
        fleet.delete_node("east", node).await;
    }
    fleet.converged().await;
    until("no event", || async {
        let held = fleet
            .events()
            .await
            .into_iter()
            .any(|event| event["reason"] == "DeletionHeld");
        if held { Err("held".to_owned()) } else { Ok(()) }
    })
    .await;
    fleet.finish().await;
}

async fn the_spec_says_how_many_may_go_at_once() {
    let mut fleet = Fleet::three()
        .nodes(4)
        .with(|world| {
            world.meshes[0].settings = json!({ "maxDeletePercent": 80 })
                .as_object()
                .unwrap()
                .clone()
        })
        .build()
        .await;
    let operator = fleet.operator(&[]).await;
    fleet.converged().await;
    operator.kill();
    for node in ["n2", "n3", "n4"] {
        fleet.delete_node("east", node).await;
    }
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    fleet.finish().await;
}
