//! One tenant attacks another, on real API servers with real rights.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::ground::{BINDINGS, CONNECTIONS, Ground, NAMESPACES};
use crate::look::Home;
use crate::trials::scenarios;
use crate::wait::until;

scenarios![
    a_cluster_that_claims_to_be_anothers_gains_nothing,
    a_cluster_that_claims_to_be_anothers_gains_nothing_by_its_name,
    a_cluster_that_never_answers_delays_no_other_tenant,
];

async fn a_cluster_that_claims_to_be_anothers_gains_nothing() {
    claim(NAMESPACES).await;
}

/// The attacker's Secret sorts before the victim's.
async fn a_cluster_that_claims_to_be_anothers_gains_nothing_by_its_name() {
    claim([NAMESPACES[1], NAMESPACES[0]]).await;
}

/// East and north are the victim's; west is the attacker's and claims to be east.
async fn claim([victims, attackers]: [&'static str; 2]) {
    let (mut ground, _) = Ground::alike().await;
    ground.impersonate(attackers, "west", "east").await;
    let provider = ground.provider(&[]).await;
    let [victim, attacker] = [victims, attackers].map(|namespace| Home { namespace, ..ground.home() });
    attacker.bind("mesh", &["west", "nowhere"], &json!({})).await;
    attacker.says("mesh", "no Secret nowhere").await;
    victim.bind("mesh", &["east", "north"], &json!({})).await;
    victim.connected("mesh").await;
    ground.reads("east", &["north"]).await;
    ground.reads("north", &["east"]).await;
    // Wait until everything was verified again several times.
    let before = victim.connected("mesh").await["status"]["lastSyncTime"].clone();
    victim.status(BINDINGS, "mesh", move |binding| binding["status"]["lastSyncTime"] != before).await;
    victim.connected("mesh").await;
    for secret in CONNECTIONS {
        let keys = ground.keys("west", secret).await;
        assert!(keys.is_empty(), "the attacker has {:?}", keys.keys());
    }
    ground.reads("north", &["east"]).await;
    victim.remove(BINDINGS, "mesh").await;
    attacker.remove(BINDINGS, "mesh").await;
    ground.finish(provider).await;
}

async fn a_cluster_that_never_answers_delays_no_other_tenant() {
    const PATIENCE: Duration = Duration::from_secs(20);
    let (mut ground, _) = Ground::alike().await;
    ground.silence(NAMESPACES[1], "west").await;
    let mut provider = ground.provider(&["--request-timeout", "40s"]).await;
    let [victim, attacker] = NAMESPACES.map(|namespace| Home { namespace, ..ground.home() });
    victim.bind("mesh", &["east", "north"], &json!({})).await;
    victim.connected("mesh").await;
    attacker.bind("mesh", &["west", "nowhere"], &json!({})).await;
    until("the attacker keeps us waiting", || async { if ground.unanswered() > 0 { Ok(()) } else { Err("not yet".to_owned()) } }).await;
    let before = Instant::now();
    victim.remove(BINDINGS, "mesh").await;
    assert!(before.elapsed() < PATIENCE, "the deletion took {:?}", before.elapsed());
    ground.reads("east", &[]).await;
    // The stalled request keeps hanging, so a new process asks again.
    provider.terminate().await;
    ground.repent();
    let provider = ground.provider(&[]).await;
    let attacker = Home { namespace: NAMESPACES[1], ..ground.home() };
    attacker.remove(BINDINGS, "mesh").await;
    ground.finish(provider).await;
}
