//! Changes to a connected mesh: addresses and certificates.

use mw_testbed::cilium::Ca;
use serde_json::{Value, json};

use crate::ground::{BINDINGS, CONNECTIONS, Ground, SITES};
use crate::trials::scenarios;
use crate::wait::until;

const API_SERVER: &str = "/apis/apps/v1/namespaces/kube-system/deployments/clustermesh-apiserver";

scenarios![addresses_and_certificates_change_and_the_mesh_follows];

async fn addresses_and_certificates_change_and_the_mesh_follows() {
    let (mut ground, _) = Ground::alike().await;
    let provider = ground.provider(&[]).await;
    ground.home().bind("mesh", &SITES, &json!({})).await;
    ground.home().connected("mesh").await;

    users_are_listed_where_a_server_waits_for_them(&ground).await;
    settled(&ground).await;

    ground.cilium_mut("east").move_balancer().await.unwrap();
    let address = format!("https://{}", ground.cilium("east").addresses()[0]);
    for reader in ["north", "west"] {
        until(format!("the new address in {reader}"), || async {
            let key = ground
                .keys(reader, CONNECTIONS[1])
                .await
                .remove("east")
                .unwrap_or_default();
            if key.contains(&address) {
                Ok(())
            } else {
                Err(key)
            }
        })
        .await;
    }
    ground
        .is_followed("east", "moved", &["north", "west"])
        .await;
    settled(&ground).await;

    // The keys point to each reader's files, so they stay.
    let before = keys(&ground).await;
    ground.note_secrets().await;
    ground.cilium_mut("north").renew(None).await.unwrap();
    ground
        .is_followed("north", "renewed", &["east", "west"])
        .await;
    settled(&ground).await;
    assert!(
        before == keys(&ground).await,
        "a renewed certificate changes no key"
    );

    // From here on east is read with its own files.
    let next = Ca::new().unwrap();
    ground.note_secrets().await;
    ground.cilium_mut("east").replace_ca(&next).await.unwrap();
    for reader in ["north", "west"] {
        until(format!("the files of east in {reader}"), || async {
            let keys = ground.keys(reader, CONNECTIONS[1]).await;
            let files = ground.cilium("east").remote_client().unwrap();
            let ends = [
                ("-ca.crt", &files.ca),
                (".crt", &files.certificate),
                (".key", &files.key),
            ];
            let right = ends.iter().all(|(end, file)| {
                keys.get(&format!("east.etcd-client{end}"))
                    .map(|of| of.trim())
                    == Some(file.trim())
            });
            if right {
                Ok(())
            } else {
                Err(format!("{:?}", keys.keys()))
            }
        })
        .await;
    }
    ground
        .is_followed("east", "reissued", &["north", "west"])
        .await;
    ground
        .is_followed("west", "reissued", &["east", "north"])
        .await;
    settled(&ground).await;

    ground.home().remove(BINDINGS, "mesh").await;
    ground.finish(provider).await;
}

/// Charts from 1.19 on make clustermesh-apiserver wait for a ConfigMap that nobody else writes.
async fn users_are_listed_where_a_server_waits_for_them(ground: &Ground) {
    let west = ground.cluster("west");
    let server = west.get(API_SERVER).await.unwrap().unwrap();
    let mut volumes = server
        .pointer("/spec/template/spec/volumes")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    volumes.push(
        json!({ "name": "etcd-users-config", "configMap": { "name": "clustermesh-remote-users" } }),
    );
    west.merge_patch(
        API_SERVER,
        &json!({ "spec": { "template": { "spec": { "volumes": volumes } } } }),
    )
    .await
    .unwrap();
    until("the ConfigMap of west", || async {
        let users = west
            .get("/api/v1/namespaces/kube-system/configmaps/clustermesh-remote-users")
            .await
            .unwrap()
            .unwrap_or_default();
        if users["data"]["users.yaml"] == "users: []\n" {
            Ok(())
        } else {
            Err(users.to_string())
        }
    })
    .await;
}

async fn settled(ground: &Ground) {
    ground.mesh(&SITES).await;
    ground.home().connected("mesh").await;
    ground.assert_foreign().await;
}

async fn keys(ground: &Ground) -> Vec<std::collections::BTreeMap<String, String>> {
    let mut all = Vec::new();
    for (site, secret) in SITES
        .iter()
        .flat_map(|site| CONNECTIONS.map(|secret| (*site, secret)))
    {
        all.push(ground.keys(site, secret).await);
    }
    all
}
