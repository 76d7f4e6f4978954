//! Clusters with every authMode of the chart, with one CA, with a bundle of CAs and with
//! different CAs.

use mw_testbed::cilium::AuthMode::{Cluster, Legacy, Migration};
use mw_testbed::cilium::{AuthMode, Ca, CiliumSpec};
use serde_json::json;

use crate::ground::{BINDINGS, Ground, SITES, SYSTEM, alike};
use crate::trials::scenarios;
use crate::wait::until;

scenarios![
    every_auth_mode_connects_with_one_ca,
    every_auth_mode_connects_with_a_bundle_of_cas,
    every_auth_mode_connects_with_different_cas,
];

/// Modes of east, north and west. Each mode is paired with every other one and, except
/// legacy, with itself.
const ROUNDS: [[AuthMode; 3]; 3] = [
    [Legacy, Migration, Cluster],
    [Migration, Cluster, Cluster],
    [Migration, Migration, Cluster],
];

async fn every_auth_mode_connects_with_one_ca() {
    let ca = Ca::new().unwrap();
    connect(alike(&ca)).await;
}

async fn every_auth_mode_connects_with_a_bundle_of_cas() {
    let cas = SITES.map(|_| Ca::new().unwrap());
    let mut specs = of(&cas);
    for spec in &mut specs {
        spec.trusted = cas.to_vec();
    }
    connect(specs).await;
}

async fn every_auth_mode_connects_with_different_cas() {
    connect(of(&SITES.map(|_| Ca::new().unwrap()))).await;
}

fn of(cas: &[Ca; 3]) -> Vec<CiliumSpec> {
    SITES
        .iter()
        .zip(1..)
        .zip(cas)
        .map(|((name, id), ca)| CiliumSpec::new(name, id, ca))
        .collect()
}

/// Joins the clusters. North is installed like charts from 1.19 do: its pods wait for the
/// list of users, which only the provider creates.
async fn connect(mut specs: Vec<CiliumSpec>) {
    for (spec, mode) in specs.iter_mut().zip(ROUNDS[0]) {
        spec.auth_mode = mode;
    }
    (specs[1].renders_users, specs[1].kvstoremesh) = (false, false);
    let mut ground = Ground::new(specs).await;
    let provider = ground.provider(&[]).await;
    ground.home().bind("mesh", &SITES, &json!({})).await;
    until("north has a list of users", || async {
        let found = ground
            .cluster("north")
            .get(&users())
            .await
            .map_err(|error| error.to_string())?;
        found.map(drop).ok_or_else(|| "there is none".to_owned())
    })
    .await;
    ground.cilium_mut("north").roll().await.unwrap();
    ground.home().connected("mesh").await;
    ground.mesh(&SITES).await;
    for modes in &ROUNDS[1..] {
        for (site, mode) in SITES.into_iter().zip(modes) {
            ground.cilium_mut(site).set_auth_mode(*mode).await.unwrap();
        }
        ground.mesh(&SITES).await;
        ground.home().connected("mesh").await;
    }
    ground.home().remove(BINDINGS, "mesh").await;
    for site in SITES {
        let list = ground.cluster(site).get(&users()).await.unwrap().unwrap();
        let own = format!("users:\n- name: remote-{site}\n  role: remote\n");
        let left = if site == "north" { "users: []\n" } else { &own };
        assert_eq!(list["data"]["users.yaml"], left, "the users of {site}");
    }
    ground.finish(provider).await;
}

fn users() -> String {
    format!("{SYSTEM}/configmaps/clustermesh-remote-users")
}
