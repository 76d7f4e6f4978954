//! Every fault of a cluster has its own message, and a mesh with it is never Connected.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, SystemTime};

use mw_testbed::cilium::Ca;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use crate::ground::{BINDINGS, CONNECTIONS, Ground, SYSTEM};
use crate::look::message;
use crate::trials::scenarios;

scenarios![every_trouble_has_its_words_and_heals];

const PAIR: [&str; 2] = ["east", "west"];
/// Time after which the provider has verified all links again.
const CHECK: Duration = Duration::from_secs(3);

async fn every_trouble_has_its_words_and_heals() {
    let (mut ground, _) = Ground::alike().await;
    let provider = ground.provider(&[]).await;
    hung_etcd(&ground).await;
    wrong_port(&ground).await;
    not_an_etcd(&ground).await;
    wrong_ca(&mut ground).await;
    expired_certificates(&mut ground).await;
    wrong_name(&ground).await;
    address_that_is_not_in_the_certificate(&ground).await;
    duplicate_id(&ground).await;
    ground.finish(provider).await;
}

/// Creates a binding that meets the fault at once. Once reported, nothing of the remote is read, and
/// keys exist only if `written`, which is for wrong addresses.
async fn told(ground: &Ground, words: &[&str], written: bool) {
    ground.home().bind("mesh", &PAIR, &json!({})).await;
    let words_of = words
        .iter()
        .map(|word| (*word).to_owned())
        .collect::<Vec<_>>();
    ground
        .home()
        .status(BINDINGS, "mesh", move |binding| {
            assert_ne!(
                binding["status"]["phase"], "Connected",
                "{:#}",
                binding["status"]
            );
            let message = message(binding);
            words_of.iter().all(|word| message.contains(word))
        })
        .await;
    // It is still so after another check.
    tokio::time::sleep(CHECK).await;
    let binding = ground.home().object(BINDINGS, "mesh").await.unwrap();
    assert_ne!(
        binding["status"]["phase"], "Connected",
        "{:#}",
        binding["status"]
    );
    let keys = ground.keys("west", CONNECTIONS[1]).await;
    assert_eq!(
        keys.contains_key("east"),
        written,
        "{words:?}: {:?}",
        keys.keys()
    );
}

async fn healed(ground: &Ground) {
    ground.home().connected("mesh").await;
    ground.mesh(&PAIR).await;
    ground.assert_foreign().await;
    ground.home().remove(BINDINGS, "mesh").await;
}

/// Clusters may reach each other where the provider can't, so the keys are written, but the mesh is
/// not Connected.
async fn wrong_port(ground: &Ground) {
    set_port(ground, 2380).await;
    told(ground, &["cluster west: to east: ", ":2380"], true).await;
    set_port(ground, 2379).await;
    healed(ground).await;
}

async fn set_port(ground: &Ground, port: u16) {
    let service = ground
        .cluster("east")
        .get(&format!("{SYSTEM}/services/clustermesh-apiserver"))
        .await
        .unwrap()
        .unwrap();
    let node_port = &service["spec"]["ports"][0]["nodePort"];
    let ports = json!([{ "port": port, "nodePort": node_port, "protocol": "TCP" }]);
    patch(
        ground,
        "east",
        "services/clustermesh-apiserver",
        &json!({ "spec": { "ports": ports } }),
    )
    .await;
}

async fn not_an_etcd(ground: &Ground) {
    let address = *ground.cilium("east").addresses()[0].ip();
    let listener = TcpListener::bind(SocketAddrV4::new(address, 2381))
        .await
        .unwrap();
    let stranger = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    set_port(ground, 2381).await;
    told(
        ground,
        &["cluster west: to east: keys: dial failed: TLS: "],
        false,
    )
    .await;
    stranger.abort();
    set_port(ground, 2379).await;
    healed(ground).await;
}

async fn wrong_ca(ground: &mut Ground) {
    let address = ground.cilium("east").addresses()[0].ip().to_string();
    let stranger = Ca::new().unwrap().issue("stranger", &[address]).unwrap();
    let data = json!({ "tls.crt": stranger.certificate, "tls.key": stranger.key });
    patch(
        ground,
        "east",
        "secrets/clustermesh-apiserver-server-cert",
        &json!({ "stringData": data }),
    )
    .await;
    told(
        ground,
        &["cluster west: to east: keys: dial failed: Certificate: "],
        false,
    )
    .await;
    ground.note_secrets().await;
    ground.cilium_mut("east").renew(None).await.unwrap();
    healed(ground).await;
}

async fn expired_certificates(ground: &mut Ground) {
    ground
        .cilium_mut("east")
        .renew(Some(SystemTime::now() - Duration::from_secs(60)))
        .await
        .unwrap();
    told(ground, &["cluster east: ", "-cert has expired"], false).await;
    ground.note_secrets().await;
    ground.cilium_mut("east").renew(None).await.unwrap();
    healed(ground).await;
}

/// Its etcd still has the old name.
async fn wrong_name(ground: &Ground) {
    patch(
        ground,
        "east",
        "configmaps/cilium-config",
        &json!({ "data": { "cluster-name": "orient" } }),
    )
    .await;
    told(
        ground,
        &["cluster west: to east (Cilium name orient): keys: dial failed: Name: "],
        false,
    )
    .await;
    patch(
        ground,
        "east",
        "configmaps/cilium-config",
        &json!({ "data": { "cluster-name": "east" } }),
    )
    .await;
    healed(ground).await;
}

async fn address_that_is_not_in_the_certificate(ground: &Ground) {
    set_address(ground, Ipv4Addr::new(127, 9, 9, 9)).await;
    told(
        ground,
        &["cluster west: to east: ", "127.9.9.9", "*.mesh.cilium.io"],
        false,
    )
    .await;
    set_address(ground, *ground.cilium("east").addresses()[0].ip()).await;
    healed(ground).await;
}

async fn set_address(ground: &Ground, address: Ipv4Addr) {
    let status = json!({ "status": { "loadBalancer": { "ingress": [{ "ip": address }] } } });
    patch(
        ground,
        "east",
        "services/clustermesh-apiserver/status",
        &status,
    )
    .await;
}

async fn duplicate_id(ground: &Ground) {
    patch(
        ground,
        "west",
        "configmaps/cilium-config",
        &json!({ "data": { "cluster-id": "1" } }),
    )
    .await;
    told(
        ground,
        &[
            "cluster east: identity: cluster-id 1 is also used by west",
            "cluster west: identity: cluster-id 1 is also used by east",
        ],
        false,
    )
    .await;
    patch(
        ground,
        "west",
        "configmaps/cilium-config",
        &json!({ "data": { "cluster-id": "3" } }),
    )
    .await;
    healed(ground).await;
}

async fn hung_etcd(ground: &Ground) {
    ground.cilium("east").pause_etcd().unwrap();
    told(
        ground,
        &[
            "cluster west: to east: keys: dial failed: TLS: ",
            "sends nothing within 5s",
        ],
        false,
    )
    .await;
    ground.cilium("east").resume_etcd().unwrap();
    healed(ground).await;
}

async fn patch(ground: &Ground, site: &str, object: &str, patch: &Value) {
    ground
        .cluster(site)
        .merge_patch(&format!("{SYSTEM}/{object}"), patch)
        .await
        .unwrap();
}
