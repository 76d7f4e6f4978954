//! All Peers are exact, in all clusters, after every kind of change.

use serde_json::json;

use crate::bed::PEERS;
use crate::fleet::Fleet;
use crate::look::until;
use crate::process::Operator;
use crate::trials::scenarios;
use mw_sim::kilo::{Entry, Node, World, key};

scenarios![
    three_empty_clusters_converge_and_the_operator_brings_its_crd,
    nodes_come_and_go,
    each_annotation_that_matters_reaches_every_cluster,
    a_keepalive_that_kilo_would_not_use_is_reported,
    a_roaming_node_needs_a_keepalive,
    a_skipped_node_is_named_with_its_reason,
    a_discovered_endpoint_counts_on_the_cluster_that_saw_it,
    keys_and_addresses_that_change_places_converge,
    an_edited_peer_is_put_back,
    a_deleted_peer_is_put_back,
    a_foreign_peer_keeps_its_name_and_its_key,
    the_anchor_moves_only_when_it_must,
    an_entry_is_added_renamed_and_removed,
    a_reconcile_trigger_lists_everything_again,
];

/// A converged fleet with its operator.
async fn running(fleet: crate::fleet::Builder) -> (Fleet, Operator) {
    let mut fleet = fleet.build().await;
    let operator = fleet.operator(&[]).await;
    fleet.converged().await;
    (fleet, operator)
}

async fn three_empty_clusters_converge_and_the_operator_brings_its_crd() {
    let mut fleet = Fleet::three()
        .nodes(5)
        .with(|world| world.meshes.clear())
        .build()
        .await;
    let crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/clustermeshes.kilo.squat.ai";
    let hub = fleet.cluster("hub");
    hub.delete(crd).await.unwrap();
    until("the CRD is gone", || async {
        hub.get(crd)
            .await
            .map_err(|error| error.to_string())?
            .map_or(Ok(()), |_| Err("still there".to_owned()))
    })
    .await;
    let operator = fleet.operator(&[]).await;
    let collection = "/apis/kilo.squat.ai/v1alpha1/clustermeshes";
    until("the CRD is served", || async {
        fleet
            .cluster("hub")
            .list(collection)
            .await
            .map_err(|error| error.to_string())
    })
    .await;
    let mesh = mw_sim::kilo::Mesh::new(
        "mesh",
        &["hub", "east", "west"].map(|name| &fleet.world.sites[name]),
    );
    fleet.add_mesh(mesh).await;
    fleet.converged().await;
    assert_eq!(fleet.peers("hub").await.unwrap().len(), 10);

    let mesh = fleet.mesh().await;
    assert_eq!(
        mesh["metadata"]["finalizers"],
        json!(["kilo-clustermesh.io/cleanup"])
    );
    assert_eq!(
        crate::look::condition(&mesh, "NetworksOverlap")["status"],
        "False"
    );
    assert_eq!(
        mesh["status"]["totals"],
        json!({ "clusters": 3, "peers": 30, "skipped": 0 })
    );
    for cluster in mesh["status"]["clusters"].as_array().unwrap() {
        let counts = ["registeredPeers", "skippedNodes", "nodes"]
            .map(|field| cluster[field].as_i64().unwrap());
        assert_eq!(
            (counts, &cluster["reachable"], &cluster["anchorNode"]),
            ([10, 0, 5], &json!(true), &json!("n1"))
        );
    }
    drop(operator);
    fleet.finish().await;
}

async fn nodes_come_and_go() {
    let (mut fleet, _operator) = running(Fleet::three().nodes(3)).await;
    fleet.add_node("east", Node::new(2, 7)).await;
    fleet.converged().await;
    let mut second = Node::new(3, 8);
    second.annotations.remove("force-endpoint");
    second.external_ip = Some("198.51.100.8".into());
    fleet.add_node("west", second).await;
    fleet.converged().await;
    // A node replaced under the same name gets another pod CIDR.
    fleet.delete_node("east", "n3").await;
    fleet.converged().await;
    let mut again = Node::new(2, 3);
    again.pod_cidrs = vec!["10.2.33.0/24".into()];
    fleet.add_node("east", again).await;
    fleet.converged().await;
    fleet.finish().await;
}

async fn each_annotation_that_matters_reaches_every_cluster() {
    let internal = |world: &mut World| {
        world.meshes[0].entry("east").unwrap().additional_cidr = Some("192.168.2.0/24".into())
    };
    let (mut fleet, _operator) = running(Fleet::three().with(internal)).await;
    for (name, value) in [
        ("key", Some(key("another"))),
        ("wireguard-ip", Some("100.64.2.99/24".to_owned())),
        ("force-endpoint", Some("198.51.100.77:4500".to_owned())),
        (
            "clustermesh-endpoint",
            Some("edge.example.org:51821".to_owned()),
        ),
        ("clustermesh-endpoint", None),
        ("internal-ip", Some("192.168.2.200/24".to_owned())),
    ] {
        fleet.annotate("east", "n2", name, value.as_deref()).await;
        if name == "internal-ip" {
            let addresses = json!({ "status": { "addresses": [{ "type": "InternalIP", "address": "192.168.2.200" }] } });
            fleet
                .cluster("east")
                .merge_patch("/api/v1/nodes/n2/status", &addresses)
                .await
                .unwrap();
        }
        fleet.converged().await;
    }
    // From now on only the leader of the location has a Peer, for all its nodes.
    for node in ["n1", "n2"] {
        fleet
            .annotate("east", node, "granularity", Some("location"))
            .await;
    }
    fleet.converged().await;
    assert!(fleet.peer("hub", "mesh--east--n2").await.is_none());
    fleet.annotate("east", "n2", "leader", Some("")).await;
    fleet.world.sites.get_mut("east").unwrap().anchor = Some("n2".into());
    fleet.converged().await;
    fleet
        .annotate("east", "n1", "location", Some("elsewhere"))
        .await;
    fleet.converged().await;
    fleet.finish().await;
}

async fn a_keepalive_that_kilo_would_not_use_is_reported() {
    let (mut fleet, _operator) = running(Fleet::three()).await;
    for (entry, keepalive) in [("east", 25), ("west", 10)] {
        fleet.mesh_model().entry(entry).unwrap().keepalive = keepalive;
    }
    fleet.update_mesh(0).await;
    fleet.converged().await;
    let found = fleet.condition("KeepaliveEffective", "False", "").await;
    let message = found["message"].as_str().unwrap();
    assert!(
        message.contains("kubectl") && message.contains("persistent-keepalive"),
        "{message}"
    );
    for (site, seconds) in [("east", "25"), ("west", "10")] {
        for node in ["n1", "n2"] {
            fleet
                .annotate(site, node, "persistent-keepalive", Some(seconds))
                .await;
        }
    }
    fleet.condition("KeepaliveEffective", "True", "").await;
    fleet.converged().await;
    fleet.finish().await;
}

async fn a_roaming_node_needs_a_keepalive() {
    let (mut fleet, _operator) = running(Fleet::three()).await;
    fleet.annotate("east", "n2", "force-endpoint", None).await;
    fleet.converged().await;
    fleet
        .cluster_status("east", |status| {
            status["skipped"][0]["reason"] == "NodeNoEndpoint"
        })
        .await;
    fleet.mesh_model().entry("east").unwrap().keepalive = 25;
    fleet.update_mesh(0).await;
    fleet.converged().await;
    fleet
        .cluster_status("east", |status| status["skippedNodes"] == 0)
        .await;
    fleet.finish().await;
}

async fn a_skipped_node_is_named_with_its_reason() {
    // By default, deleting two of three would be held.
    let any = |world: &mut World| {
        world.meshes[0].settings = json!({ "maxDeletePercent": 100 })
            .as_object()
            .unwrap()
            .clone()
    };
    let (mut fleet, _operator) = running(Fleet::three().nodes(3).with(any)).await;
    for (node, annotation) in [("n2", "wireguard-ip"), ("n3", "key")] {
        // The agent keeps running: it does not remove all annotations as at its end.
        fleet.annotate("east", node, annotation, Some("")).await;
    }
    fleet.converged().await;
    let status = fleet
        .cluster_status("east", |status| status["skippedNodes"] == 2)
        .await;
    let reasons: Vec<_> = status["skipped"]
        .as_array()
        .unwrap()
        .iter()
        .map(|skip| [&skip["node"], &skip["reason"]])
        .collect();
    assert_eq!(
        json!(reasons),
        json!([["n2", "NodeNoWireguardIP"], ["n3", "NodeNoPublicKey"]])
    );
    for reason in ["NodeNoWireguardIP", "NodeNoPublicKey"] {
        let event = fleet.event(reason).await;
        assert_eq!(
            (&event["type"], &event["action"]),
            (&json!("Warning"), &json!("SkipNodePeering"))
        );
    }
    fleet
        .annotate("west", "n1", "force-endpoint", Some("198.51.100.3:51820"))
        .await;
    fleet.converged().await;
    let skips = fleet
        .events()
        .await
        .iter()
        .filter(|event| event["action"] == "SkipNodePeering")
        .count();
    assert_eq!(skips, 2, "once per change, not once per pass");
    fleet.finish().await;
}

async fn a_discovered_endpoint_counts_on_the_cluster_that_saw_it() {
    let (mut fleet, _operator) = running(Fleet::three()).await;
    let seen = |port: u16| {
        json!({ key("2/1"): { "IP": "198.51.100.200", "Port": port, "Zone": "" } }).to_string()
    };
    fleet
        .annotate("west", "n1", "discovered-endpoints", Some(&seen(6000)))
        .await;
    fleet.converged().await;
    // The next change is allowed 30 s after the last one.
    let mark = fleet.mark();
    fleet
        .annotate("west", "n1", "discovered-endpoints", Some(&seen(6001)))
        .await;
    fleet
        .no_peer_writes(&mark, std::time::Duration::from_secs(3))
        .await;
    fleet.converged().await;
    assert_eq!(fleet.peer_writes(&mark).len(), 1);
    fleet.finish().await;
}

async fn keys_and_addresses_that_change_places_converge() {
    let (mut fleet, operator) = running(Fleet::three()).await;
    let swap = async |fleet: &mut Fleet, name: &str| {
        let value = |node: &str| fleet.world.sites["east"].nodes[node].annotations[name].clone();
        let [first, second] = ["n1", "n2"].map(value);
        fleet.annotate("east", "n1", name, Some(&second)).await;
        fleet.annotate("east", "n2", name, Some(&first)).await;
    };
    swap(&mut fleet, "wireguard-ip").await;
    fleet.converged().await;
    // Observed one by one, a key would be taken twice for a moment and the anchor would move. The
    // operator is stopped so that it sees only the final state.
    operator.kill();
    for name in ["key", "wireguard-ip", "force-endpoint"] {
        swap(&mut fleet, name).await;
    }
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    fleet.finish().await;
}

async fn an_edited_peer_is_put_back() {
    let (mut fleet, _operator) = running(Fleet::three()).await;
    let path = format!("{PEERS}/mesh--east--n1");
    for patch in [
        json!({ "spec": { "allowedIPs": ["10.99.0.0/16"] } }),
        json!({ "spec": { "publicKey": key("stranger") } }),
        json!({ "spec": { "endpoint": null } }),
        json!({ "spec": { "endpoint": { "dnsOrIP": { "dns": "other.example.org", "ip": null }, "port": 1 } } }),
        json!({ "spec": { "persistentKeepalive": 7 } }),
        json!({ "metadata": { "labels": { "kilo-clustermesh.io/source-cluster": "west" } } }),
        json!({ "metadata": { "labels": { "kilo-clustermesh.io/mesh": null, "kilo-clustermesh.io/hub": null, "kilo-clustermesh.io/source-cluster": null } } }),
    ] {
        fleet
            .cluster("west")
            .merge_patch(&path, &patch)
            .await
            .unwrap();
        fleet.converged().await;
    }
    // Fields that we do not manage stay.
    let mark = fleet.mark();
    let theirs = json!({ "metadata": { "labels": { "team": "a" }, "annotations": { "note": "b" } }, "spec": { "presharedKey": key("secret") } });
    let theirs = fleet
        .cluster("west")
        .merge_patch(&path, &theirs)
        .await
        .unwrap();
    fleet
        .no_peer_writes(&mark, std::time::Duration::from_secs(1))
        .await;
    let annotations = json!({ "spec": { "presharedKey": null } });
    assert_eq!(fleet.peer("west", "mesh--east--n1").await, Some(theirs));
    fleet
        .cluster("west")
        .merge_patch(&path, &annotations)
        .await
        .unwrap();
    fleet.converged().await;
    fleet.finish().await;
}

async fn a_deleted_peer_is_put_back() {
    let (mut fleet, _operator) = running(Fleet::three()).await;
    for site in ["hub", "west"] {
        fleet
            .cluster(site)
            .delete(&format!("{PEERS}/mesh--east--n2"))
            .await
            .unwrap();
        fleet.converged().await;
    }
    for site in ["hub", "east", "west"] {
        let path = format!("{PEERS}?labelSelector=kilo-clustermesh.io%2Fmesh");
        assert!(
            fleet
                .cluster(site)
                .request("DELETE", &path, None)
                .await
                .unwrap()
                .is_success()
        );
    }
    fleet.converged().await;
    fleet.finish().await;
}

async fn a_foreign_peer_keeps_its_name_and_its_key() {
    let mut fleet = Fleet::three().build().await;
    let foreign = |name: &str, key: String| {
        json!({ "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "Peer", "metadata": { "name": name },
                "spec": { "allowedIPs": ["172.31.0.1/32"], "publicKey": key } })
    };
    let taken = fleet
        .cluster("west")
        .create(&foreign("mesh--east--n1", key("stranger")))
        .await
        .unwrap();
    let same_key = fleet
        .cluster("hub")
        .create(&foreign("not-ours", key("2/2")))
        .await
        .unwrap();
    let _operator = fleet.operator(&[]).await;
    fleet.holds(&["east"]).await;
    for reason in ["PeerNameTaken", "KeyTaken"] {
        fleet.event(reason).await;
    }
    let wanted = crate::expected::expected_peers(&fleet.world, "west");
    until("the rest is there", || async {
        let found = fleet.peers("west").await?;
        if found.len() == wanted.len() {
            Ok(())
        } else {
            Err(format!("{:?}", found.keys()))
        }
    })
    .await;
    assert_eq!(fleet.peer("west", "mesh--east--n1").await, Some(taken));
    assert_eq!(fleet.peer("hub", "not-ours").await, Some(same_key));
    assert!(fleet.peer("hub", "mesh--east--n2").await.is_none());
    for (site, name) in [("west", "mesh--east--n1"), ("hub", "not-ours")] {
        fleet
            .cluster(site)
            .delete(&format!("{PEERS}/{name}"))
            .await
            .unwrap();
    }
    fleet.converged().await;
    fleet.finish().await;
}

async fn the_anchor_moves_only_when_it_must() {
    let (mut fleet, _operator) = running(Fleet::three().nodes(3)).await;
    fleet.set_ready("east", "n1", false).await;
    fleet.world.sites.get_mut("east").unwrap().anchor = Some("n2".into());
    fleet.converged().await;
    fleet
        .cluster_status("east", |status| status["anchorNode"] == "n2")
        .await;
    // The first node by name is back, and the anchor does not move.
    let mark = fleet.mark();
    fleet.set_ready("east", "n1", true).await;
    fleet
        .no_peer_writes(&mark, std::time::Duration::from_secs(1))
        .await;
    fleet.delete_node("east", "n2").await;
    fleet.world.sites.get_mut("east").unwrap().anchor = Some("n1".into());
    fleet.converged().await;
    for node in ["n1", "n3"] {
        fleet.annotate("east", node, "force-endpoint", None).await;
    }
    fleet.condition("AnchorAvailable", "False", "").await;
    fleet.finish().await;
}

async fn an_entry_is_added_renamed_and_removed() {
    let without = |world: &mut World| world.meshes[0].entries.retain(|entry| entry.name != "west");
    let (mut fleet, _operator) = running(Fleet::three().with(without)).await;
    let west = Entry::new(&fleet.world.sites["west"]);
    fleet
        .write_secret(
            "hub",
            "kilo-system",
            &west.secret(),
            &fleet.member_kubeconfig("west"),
        )
        .await;
    fleet.mesh_model().entries.push(west);
    fleet.update_mesh(0).await;
    fleet.converged().await;
    fleet.mesh_model().entry("west").unwrap().name = "occident".into();
    fleet.update_mesh(0).await;
    fleet.converged().await;
    fleet
        .mesh_model()
        .entries
        .retain(|entry| entry.name != "east");
    fleet.update_mesh(0).await;
    fleet.converged().await;
    assert!(fleet.peers("east").await.unwrap().is_empty());
    fleet.finish().await;
}

async fn a_reconcile_trigger_lists_everything_again() {
    let (mut fleet, _operator) = running(Fleet::three()).await;
    let mark = fleet.mark();
    let path = fleet.world.meshes[0].path();
    let trigger = json!({ "metadata": { "annotations": { "reconcile-trigger": "now" } } });
    fleet
        .cluster("hub")
        .merge_patch(&path, &trigger)
        .await
        .unwrap();
    until("all is listed", || async {
        let calls = fleet.calls(&mark);
        let listed = |site: &str, resource: &str| {
            calls
                .iter()
                .any(|(at, call)| at == site && call.verb == "list" && call.resource == resource)
        };
        let missing: Vec<_> = ["hub", "east", "west"]
            .into_iter()
            .filter(|site| !listed(site, "nodes") || !listed(site, "peers"))
            .collect();
        if missing.is_empty() {
            Ok(())
        } else {
            Err(format!("not listed: {missing:?}"))
        }
    })
    .await;
    fleet.converged().await;
    assert!(fleet.peer_writes(&mark).is_empty());
    fleet.finish().await;
}
