//! Adoption of Peers of the Go operator, which have only two labels.

use std::time::Duration;

use mw_testbed::proxy::{Effect, Fault, Match, Verb};
use serde_json::{Value, json};

use crate::bed::PEERS;
use crate::earlier::{KEPT, identities, legacy, renew, write_all};
use crate::expected::expected_peers;
use crate::fleet::Fleet;
use crate::look::{none, until};
use crate::trials::scenarios;
use mw_sim::kilo::{World, key};

scenarios![
    the_earlier_operator_and_this_one_never_write_at_the_same_time,
    a_fleet_of_the_earlier_operator_is_adopted_as_it_is,
    a_fleet_with_flat_networks_is_adopted_as_it_is,
    a_separate_anchor_peer_is_folded_into_its_node,
    a_change_while_the_anchor_is_folded_in_does_not_move_it,
    peers_of_a_source_that_left_go_with_the_adoption,
    a_peer_without_an_endpoint_is_adopted_where_it_is_and_survives_a_restart,
];

const ALL: [&str; 3] = ["hub", "east", "west"];
async fn adopted(edit: impl FnOnce(&mut World) + 'static) {
    let mut fleet = Fleet::three().nodes(3).with(edit).build().await;
    write_all(&fleet).await;
    let before = identities(&fleet).await;
    let mark = fleet.mark();
    let _operator = fleet.operator(&[]).await;
    fleet.condition("Ready", "True", "Reconciled").await;
    assert_eq!(identities(&fleet).await, before);
    let writes = fleet.peer_writes(&mark);
    none(
        &writes
            .iter()
            .filter(|(_, call)| call.verb != "patch")
            .collect::<Vec<_>>(),
        "adoption takes patches only",
    );
    assert_eq!(
        writes.iter().filter(|(_, call)| call.code == 200).count(),
        18,
        "each Peer is adopted once"
    );
    for site in ALL {
        for (name, wanted) in expected_peers(&fleet.world, site) {
            let labels = fleet.peers(site).await.unwrap()[&name]["labels"].clone();
            assert_eq!(labels, wanted["labels"], "{site} {name}");
        }
    }
    // From now on they are managed, and restored when deleted.
    fleet
        .cluster("hub")
        .delete(&format!("{PEERS}/mesh--east--n1"))
        .await
        .unwrap();
    until("it is back", || async {
        fleet
            .peer("hub", "mesh--east--n1")
            .await
            .ok_or("still gone".to_owned())
    })
    .await;
    fleet.finish().await;
}

async fn a_fleet_of_the_earlier_operator_is_adopted_as_it_is() {
    adopted(|_| {}).await;
}

async fn a_fleet_with_flat_networks_is_adopted_as_it_is() {
    adopted(|world| {
        world.meshes[0]
            .entries
            .iter_mut()
            .for_each(|entry| entry.flat = true)
    })
    .await;
}

/// Follows the order of docs/migration.md: the new operator is started, waits, and takes over when
/// the old one stops.
async fn the_earlier_operator_and_this_one_never_write_at_the_same_time() {
    let mut fleet = Fleet::three().nodes(3).build().await;
    write_all(&fleet).await;
    let before = identities(&fleet).await;
    renew(fleet.cluster("hub"), "earlier").await;
    let mark = fleet.mark();
    let operator = fleet.operator(&["--leader-elect"]).await;
    // It polls the Lease until that is no longer renewed.
    until("it waits", || async {
        renew(fleet.cluster("hub"), "earlier").await;
        let asked = fleet
            .calls(&mark)
            .into_iter()
            .filter(|(_, call)| call.resource == "leases" && call.verb == "get")
            .count();
        if asked >= 5 {
            Ok(())
        } else {
            Err(format!("it asked {asked} times"))
        }
    })
    .await;
    assert_eq!(operator.metrics().await.sum("meshwright_leader", &[]), 0.0);
    none(
        &fleet.writes(&mark),
        "it wrote while the earlier operator led",
    );
    // Scaling to zero releases the Lease.
    renew(fleet.cluster("hub"), "").await;
    fleet.condition("Ready", "True", "Reconciled").await;
    assert_eq!(
        identities(&fleet).await,
        before,
        "no Peer was replaced, and none has another spec"
    );
    none(
        &fleet
            .peer_writes(&mark)
            .iter()
            .filter(|(_, call)| call.verb != "patch")
            .collect::<Vec<_>>(),
        "labels alone are added",
    );
    fleet.finish().await;
}

/// Writes Peers of the Go operator with n2 as anchor, whose cluster-wide networks are on a separate
/// Peer.
async fn write_separate_anchors(fleet: &mut Fleet) {
    for site in fleet.world.sites.values_mut() {
        site.anchor = Some("n2".into());
    }
    for site in ALL {
        for (name, wanted) in expected_peers(&fleet.world, site) {
            let mut peer = legacy(&name, &wanted);
            if name.ends_with("--n2") {
                let mut anchor = peer.clone();
                anchor["metadata"]["name"] = json!(name.replace("--n2", "--anchor"));
                let networks = peer["spec"]["allowedIPs"].as_array_mut().unwrap();
                anchor["spec"]["allowedIPs"] = json!([networks.pop()]);
                fleet.cluster(site).create(&anchor).await.unwrap();
            }
            fleet.cluster(site).create(&peer).await.unwrap();
        }
    }
}

/// Peers of unrelated nodes.
async fn bystanders(fleet: &Fleet) -> Vec<(String, String, Value)> {
    identities(fleet)
        .await
        .into_iter()
        .filter(|(_, name, _)| name.ends_with("--n1"))
        .collect()
}

async fn a_separate_anchor_peer_is_folded_into_its_node() {
    let mut fleet = Fleet::three().nodes(3).build().await;
    write_separate_anchors(&mut fleet).await;
    let before = bystanders(&fleet).await;
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    assert_eq!(bystanders(&fleet).await, before);
    fleet.finish().await;
}

async fn a_change_while_the_anchor_is_folded_in_does_not_move_it() {
    let mut fleet = Fleet::three().nodes(3).proxied(&ALL).build().await;
    write_separate_anchors(&mut fleet).await;
    let before = bystanders(&fleet).await;
    for proxy in fleet.proxies() {
        proxy.add(Fault::new(
            Match::verb(Verb::Patch).resource("peers"),
            Effect::Delay(Duration::from_millis(700)),
        ));
    }
    let _operator = fleet.operator(&[]).await;
    for site in ALL {
        until("the separate Peers are gone", || async {
            let found = fleet.peers(site).await?;
            if found.keys().any(|name| name.ends_with("--anchor")) {
                Err(format!("{:?}", found.keys()))
            } else {
                Ok(())
            }
        })
        .await;
    }
    // Nothing records the old anchor any more, so a new one is chosen.
    for site in ALL {
        fleet
            .annotate(site, "n3", "force-endpoint", Some("198.51.100.90:51820"))
            .await;
    }
    fleet.converged().await;
    assert_eq!(bystanders(&fleet).await, before);
    fleet.finish().await;
}

async fn peers_of_a_source_that_left_go_with_the_adoption() {
    let mut fleet = Fleet::three().build().await;
    write_all(&fleet).await;
    let labels = json!({ KEPT[0]: "mesh", KEPT[1]: "former" });
    let former = json!({ "labels": labels, "spec": { "allowedIPs": ["10.77.0.0/24"], "publicKey": key("former") } });
    fleet
        .cluster("hub")
        .create(&legacy("mesh--former--n1", &former))
        .await
        .unwrap();
    let _operator = fleet.operator(&[]).await;
    fleet.condition("Ready", "True", "Reconciled").await;
    assert!(fleet.peer("hub", "mesh--former--n1").await.is_none());
    assert_eq!(fleet.peers("hub").await.unwrap().len(), 4);
    fleet.finish().await;
}

/// Newer versions of the Go operator leave such Peers for nodes without an endpoint: here in one
/// cluster, without a keepalive.
async fn a_peer_without_an_endpoint_is_adopted_where_it_is_and_survives_a_restart() {
    let hide = |world: &mut World| {
        let nodes = &mut world.sites.get_mut("east").unwrap().nodes;
        nodes
            .get_mut("n2")
            .unwrap()
            .annotations
            .remove("force-endpoint");
    };
    let mut fleet = Fleet::three().nodes(2).with(hide).build().await;
    write_all(&fleet).await;
    let node = fleet.world.sites["east"].nodes["n2"].clone();
    let public = node.annotation("key").unwrap().to_owned();
    let host = node
        .annotation("wireguard-ip")
        .unwrap()
        .replace("/24", "/32");
    let labels = json!({ KEPT[0]: "mesh", KEPT[1]: "east" });
    let left = json!({ "labels": labels, "spec": { "allowedIPs": [node.pod_cidrs[0], host], "publicKey": public } });
    fleet
        .cluster("hub")
        .create(&legacy("mesh--east--n2", &left))
        .await
        .unwrap();
    let before = identities(&fleet).await;
    let mark = fleet.mark();
    let operator = fleet.operator(&[]).await;
    fleet.condition("Ready", "True", "Reconciled").await;
    assert_eq!(
        identities(&fleet).await,
        before,
        "no Peer was replaced, and none has another spec"
    );
    none(
        &fleet
            .peer_writes(&mark)
            .iter()
            .filter(|(_, call)| call.verb != "patch")
            .collect::<Vec<_>>(),
        "labels alone are added",
    );
    assert!(
        fleet.peer("west", "mesh--east--n2").await.is_none(),
        "none is made where there was none"
    );
    fleet
        .cluster_status("east", |status| {
            status["skippedNodes"].as_u64().unwrap_or(0) == 0
        })
        .await;
    // The first handshake reveals its endpoint.
    let seen = json!({ public: { "IP": "198.51.100.7", "Port": 40_000, "Zone": "" } }).to_string();
    fleet
        .annotate("hub", "n1", "discovered-endpoints", Some(&seen))
        .await;
    let port = async |wanted: Value| {
        until(format!("its port is {wanted}"), || async {
            let peer = fleet
                .peer("hub", "mesh--east--n2")
                .await
                .ok_or("it is gone".to_owned())?;
            if peer["spec"]["endpoint"]["port"] == wanted {
                Ok(())
            } else {
                Err(peer["spec"].to_string())
            }
        })
        .await;
    };
    port(json!(40_000)).await;
    // Kilo loses the endpoint while no operator runs.
    operator.kill();
    fleet
        .annotate_unseen("hub", "n1", &[("discovered-endpoints", Some("{}"))])
        .await;
    let mark = fleet.mark();
    let _operator = fleet.restarted(&[]).await;
    until("the new one has looked", || async {
        let listed = fleet
            .calls(&mark)
            .into_iter()
            .filter(|(_, call)| call.resource == "peers" && call.verb == "watch")
            .count();
        if listed >= 3 {
            Ok(())
        } else {
            Err(format!("{listed} watches"))
        }
    })
    .await;
    fleet
        .annotate("west", "n1", "force-endpoint", Some("198.51.100.90:51820"))
        .await;
    until("it wrote what changed", || async {
        let peer = fleet
            .peer("hub", "mesh--west--n1")
            .await
            .ok_or("it is gone".to_owned())?;
        if peer["spec"]["endpoint"]["dnsOrIP"]["ip"] == "198.51.100.90" {
            Ok(())
        } else {
            Err(peer["spec"].to_string())
        }
    })
    .await;
    assert_eq!(
        fleet.peer("hub", "mesh--east--n2").await.unwrap()["spec"]["endpoint"]["port"],
        40_000
    );
    fleet.finish().await;
}
