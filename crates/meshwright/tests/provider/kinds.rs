//! Clusters that differ: different CAs and none, without KVStoreMesh, behind NodePorts, without an
//! identity.

use mw_testbed::cilium::{Ca, CiliumSpec, Exposure};
use serde_json::json;

use crate::ground::{BINDINGS, CONNECTIONS, Ground, SITES, SYSTEM, alike};
use crate::look::message;
use crate::process::Operator;
use crate::trials::scenarios;
use crate::wait::until;

scenarios![clusters_that_are_not_alike_are_joined];

/// North has another CA, no KVStoreMesh, and NodePorts. West has neither CA nor name nor id.
async fn clusters_that_are_not_alike_are_joined() {
    let (ours, theirs) = (Ca::new().unwrap(), Ca::new().unwrap());
    let mut specs = alike(&ours);
    specs[1] = CiliumSpec {
        kvstoremesh: false,
        exposure: Exposure::NodePort,
        ..CiliumSpec::new("north", 2, &theirs)
    };
    specs[2] = CiliumSpec {
        name: None,
        id: None,
        ca: None,
        ..CiliumSpec::new("west", 3, &ours)
    };
    let mut ground = Ground::new(specs).await;
    ground.outpace("west", &["configmaps"]).await;
    let provider = ground.provider(&[]).await;

    ground.home().bind("mesh", &SITES, &json!({})).await;
    let refused = ground
        .home()
        .status(BINDINGS, "mesh", |binding| {
            message(binding).contains("serviceType")
        })
        .await;
    assert!(
        message(&refused).contains(
            r#"meshConfig.serviceType is LoadBalancer, but the Service is of type "NodePort""#
        ),
        "{refused:#}"
    );
    ground
        .home()
        .patch(
            BINDINGS,
            "mesh",
            &json!({ "spec": { "meshConfig": { "serviceType": "NodePort" } } }),
        )
        .await;

    // It gets the CA of the first cluster that has one.
    until("west has a CA", || async {
        let keys = ground.keys("west", "cilium-ca").await;
        let right = keys.get("ca.crt").map(|of| of.trim()) == Some(ours.pem().trim())
            && keys.get("ca.key").map(|of| of.trim()) == Some(ours.key().trim());
        if right {
            Ok(())
        } else {
            Err(format!("{:?}", keys.keys()))
        }
    })
    .await;
    until("west has a name and an id", || async {
        let config = ground
            .cluster("west")
            .get(&format!("{SYSTEM}/configmaps/cilium-config"))
            .await
            .unwrap()
            .unwrap();
        let data = &config["data"];
        if data["cluster-name"] == "west" && data["cluster-id"] == "3" {
            Ok(())
        } else {
            Err(data.to_string())
        }
    })
    .await;
    let told = ground
        .home()
        .status(BINDINGS, "mesh", |binding| {
            binding["status"].to_string().contains("RestartRequired")
        })
        .await;
    assert_ne!(told["status"]["phase"], "Connected");

    // Replace the CA as certgen or a person would after that message.
    ground.cilium_mut("west").replace_ca(&ours).await.unwrap();
    ground.home().connected("mesh").await;
    ground.mesh(&SITES).await;
    for (from, by) in [
        ("east", ["north", "west"]),
        ("north", ["east", "west"]),
        ("west", ["east", "north"]),
    ] {
        ground.is_followed(from, "cart", &by).await;
    }
    for reader in ["east", "west"] {
        let keys = ground.keys(reader, CONNECTIONS[1]).await;
        let address = ground.cilium("north").addresses()[0];
        assert!(
            keys["north"].contains(&format!("https://{address}")),
            "{}",
            keys["north"]
        );
        assert_eq!(
            keys["north.etcd-client.key"].trim(),
            ground.cilium("north").remote_client().unwrap().key.trim()
        );
    }
    copied_files_have_an_expiry(&provider, "east", &["north"]).await;
    copied_files_have_an_expiry(&provider, "north", &["east", "west"]).await;
    copied_files_have_an_expiry(&provider, "west", &["north"]).await;
    // Without KVStoreMesh the agents read the remotes themselves.
    assert!(ground.keys("north", CONNECTIONS[1]).await.is_empty());
    ground.assert_foreign().await;
    ground.home().remove(BINDINGS, "mesh").await;
    ground.finish(provider).await;
}

/// The metric with the first expiry of the client files that a reader has copies of; the alert on
/// certificates that expire reads it.
async fn copied_files_have_an_expiry(provider: &Operator, reader: &str, remotes: &[&str]) {
    until("the copied files are measured", || async {
        let metrics = provider.metrics().await;
        let end = |cluster: &str, certificate: &str| {
            metrics.sum(
                "meshwright_certificate_expiry_timestamp_seconds",
                &[("cluster", cluster), ("certificate", certificate)],
            )
        };
        let first = remotes
            .iter()
            .flat_map(|remote| [end(remote, "remote"), end(remote, "ca")])
            .fold(f64::INFINITY, f64::min);
        let copied = end(reader, "copied");
        if first > 0.0 && (copied - first).abs() < 1.0 {
            Ok(())
        } else {
            Err(format!("{copied} of {reader}, {first} of {remotes:?}"))
        }
    })
    .await;
}
