//! One tenant attacks another, on real API servers with real rights.

use std::time::{Duration, Instant};

use mw_testbed::cilium::{Ca, CiliumSpec};
use serde_json::{Value, json};

use crate::ground::{
    BINDINGS, CONNECTIONS, Ground, INTENTS, NAMESPACES, POLICIES, SERVICES, SITES, alike,
};
use crate::look::Home;
use crate::neighbours::intent;
use crate::trials::scenarios;
use crate::wait::until;

scenarios![
    a_cluster_that_claims_to_be_anothers_gains_nothing,
    a_cluster_that_claims_to_be_anothers_gains_nothing_by_its_name,
    a_cluster_that_never_answers_delays_no_other_tenant,
    an_endless_list_hides_nothing_from_another_tenant,
];

/// Limit of a deletion that waits for nobody.
const PROMPT: Duration = Duration::from_secs(20);
const AGENTS: &str = "/apis/apps/v1/namespaces/kube-system/daemonsets/cilium";

async fn a_cluster_that_claims_to_be_anothers_gains_nothing() {
    claim(NAMESPACES).await;
}

/// The attacker's Secret sorts before the victim's.
async fn a_cluster_that_claims_to_be_anothers_gains_nothing_by_its_name() {
    claim([NAMESPACES[1], NAMESPACES[0]]).await;
}

/// East and north are the victim's; west is the attacker's, claims to be east and has no CA.
async fn claim([victims, attackers]: [&'static str; 2]) {
    let mut specs = alike(&Ca::new().unwrap());
    specs[2] = CiliumSpec {
        ca: None,
        ca_secret: false,
        ..specs[2].clone()
    };
    let mut ground = Ground::new(specs).await;
    for site in SITES {
        ground.open_shop(site, "cart", Value::Null).await;
    }
    ground.impersonate(attackers, "west", "east").await;
    let provider = ground.provider(&[]).await;
    let [victim, attacker] = [victims, attackers].map(|namespace| Home {
        namespace,
        ..ground.home()
    });
    attacker
        .bind("mesh", &["west", "nowhere"], &json!({}))
        .await;
    let selector = json!({ "namespace": "shop", "name": "cart" });
    attacker
        .declare(
            SERVICES,
            "cart",
            &json!({ "meshRef": { "name": "mesh" }, "selector": selector }),
        )
        .await;
    attacker
        .declare(INTENTS, "cart", &intent("Namespaced"))
        .await;
    attacker.says("mesh", "no Secret nowhere").await;
    victim.bind("mesh", &["east", "north"], &json!({})).await;
    victim.connected("mesh").await;
    ground.reads("east", &["north"]).await;
    ground.reads("north", &["east"]).await;
    // Wait until everything was verified again several times.
    let before = victim.connected("mesh").await["status"]["lastSyncTime"].clone();
    victim
        .status(BINDINGS, "mesh", move |binding| {
            binding["status"]["lastSyncTime"] != before
        })
        .await;
    victim.connected("mesh").await;
    for secret in CONNECTIONS.into_iter().chain(["cilium-ca"]) {
        let keys = ground.keys("west", secret).await;
        assert!(
            keys.is_empty(),
            "the attacker has {:?} in {secret}",
            keys.keys()
        );
    }
    for site in ["east", "north"] {
        let policies = ground.cluster(site).list(POLICIES).await.unwrap();
        assert!(
            policies.is_empty(),
            "the attacker has policies on {site}: {policies:#?}"
        );
        let cart = ground
            .cluster(site)
            .get("/api/v1/namespaces/shop/services/cart")
            .await
            .unwrap()
            .unwrap();
        assert!(
            cart["metadata"]["annotations"].is_null(),
            "the attacker exports from {site}: {cart:#}"
        );
    }
    ground.reads("north", &["east"]).await;
    victim.remove(BINDINGS, "mesh").await;
    for kind in [SERVICES, INTENTS] {
        attacker.remove(kind, "cart").await;
    }
    attacker.remove(BINDINGS, "mesh").await;
    ground.finish(provider).await;
}

async fn a_cluster_that_never_answers_delays_no_other_tenant() {
    let (mut ground, _) = Ground::alike().await;
    ground.silence(NAMESPACES[1], "west").await;
    let mut provider = ground.provider(&["--request-timeout", "40s"]).await;
    let [victim, attacker] = NAMESPACES.map(|namespace| Home {
        namespace,
        ..ground.home()
    });
    victim.bind("mesh", &["east", "north"], &json!({})).await;
    victim.connected("mesh").await;
    attacker
        .bind("mesh", &["west", "nowhere"], &json!({}))
        .await;
    until("the attacker keeps us waiting", || async {
        if ground.unanswered() > 0 {
            Ok(())
        } else {
            Err("not yet".to_owned())
        }
    })
    .await;
    let before = Instant::now();
    victim.remove(BINDINGS, "mesh").await;
    assert!(
        before.elapsed() < PROMPT,
        "the deletion took {:?}",
        before.elapsed()
    );
    ground.reads("east", &[]).await;
    // The stalled request keeps hanging, so a new process asks again.
    provider.terminate().await;
    ground.repent();
    let provider = ground.provider(&[]).await;
    let attacker = Home {
        namespace: NAMESPACES[1],
        ..ground.home()
    };
    attacker.remove(BINDINGS, "mesh").await;
    ground.finish(provider).await;
}

async fn an_endless_list_hides_nothing_from_another_tenant() {
    let (mut ground, _) = Ground::alike().await;
    ground.never_end(NAMESPACES[1], "west").await;
    let provider = ground.provider(&[]).await;
    let [victim, attacker] = NAMESPACES.map(|namespace| Home {
        namespace,
        ..ground.home()
    });
    victim.bind("mesh", &["east", "north"], &json!({})).await;
    victim.connected("mesh").await;
    attacker
        .bind("mesh", &["west", "nowhere"], &json!({}))
        .await;
    until("the attacker's list is read", || async {
        if ground.pages() > 0 {
            Ok(())
        } else {
            Err("not yet".to_owned())
        }
    })
    .await;
    ground.cluster("north").delete(AGENTS).await.unwrap();
    let lost = victim.says("mesh", "Cilium not found").await;
    assert_ne!(lost["status"]["phase"], "Connected");
    let before = Instant::now();
    victim.remove(BINDINGS, "mesh").await;
    assert!(
        before.elapsed() < PROMPT,
        "the deletion took {:?}",
        before.elapsed()
    );
    for site in ["east", "north"] {
        for secret in CONNECTIONS {
            assert!(
                ground
                    .keys(site, secret)
                    .await
                    .keys()
                    .all(|key| !SITES.contains(&key.as_str())),
                "{secret} of {site}"
            );
        }
    }
    ground.repent();
    attacker.remove(BINDINGS, "mesh").await;
    ground.finish(provider).await;
}
