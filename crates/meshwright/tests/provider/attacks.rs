//! One tenant attacks another, on real API servers with real rights.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use base64ct::{Base64, Encoding};
use mw_testbed::cilium::{Ca, CiliumSpec};
use mw_testbed::proxy::{Effect, Fault, Match, Verb, lies};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::access::TARGET;
use crate::ground::{
    BINDINGS, CONNECTIONS, Ground, INTENTS, NAMESPACES, POLICIES, SERVICES, SITES, alike,
};
use crate::look::Home;
use crate::neighbours::{clear, declare_all, intent, is_complete};
use crate::process::Operator;
use crate::trials::scenarios;
use crate::wait::until;
use crate::wrong_answers::{WINDOW, written};

scenarios![
    a_cluster_that_claims_to_be_anothers_gains_nothing,
    a_cluster_that_claims_to_be_anothers_gains_nothing_by_its_name,
    a_cluster_that_never_answers_delays_no_other_tenant,
    an_endless_list_hides_nothing_from_another_tenant,
    attacks_on_a_mesh_that_is_complete_change_nothing,
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

/// One owner connects east and north; the others attack.
async fn attacks_on_a_mesh_that_is_complete_change_nothing() {
    let (mut ground, _) = Ground::alike().await;
    ground.front(NAMESPACES[0], "north").await;
    for site in SITES {
        ground.open_shop(site, "cart", Value::Null).await;
    }
    let provider = ground.provider(&[]).await;
    declare_all(ground.home(), &["east", "north"]).await;
    is_complete(ground.home(), &["east", "north"]).await;
    let attacker = Home {
        namespace: NAMESPACES[1],
        ..ground.home()
    };
    let refs = [&["west"][..], &SCANNED, &STOLEN].concat();
    attacker.bind("scan", &refs, &json!({})).await;
    owners_of_other_namespaces_learn_nothing_of_the_network(attacker, &provider).await;
    a_victims_address_without_credentials_leads_nowhere(attacker).await;
    // The cleanup does not wait for clusters without a Secret.
    for name in SCANNED.into_iter().chain(STOLEN) {
        ground.withdraw(attacker.namespace, name).await;
    }
    attacker.remove(BINDINGS, "scan").await;
    wrong_answers_of_a_member_remove_nothing(&ground).await;
    tenants_that_share_a_cluster_leave_each_others_keys(attacker).await;
    clear(ground.home()).await;
    ground.finish(provider).await;
}

/// Names of the attacker for addresses that it explores.
const SCANNED: [&str; 2] = ["scan-1", "scan-2"];
/// Names of the attacker for the victim's cluster.
const STOLEN: [&str; 3] = ["stolen-1", "stolen-2", "stolen-3"];

/// A closed port and a TLS port of another authority look the same.
async fn owners_of_other_namespaces_learn_nothing_of_the_network(
    attacker: Home<'_>,
    provider: &Operator,
) {
    let ground = attacker.ground;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = format!("https://{}", listener.local_addr().unwrap());
    drop(listener);
    let urls = [
        (closed.as_str(), "Connection refused"),
        (ground.cluster("north").url(), "invalid peer certificate"),
    ];
    let mut texts = Vec::new();
    for (name, (url, cause)) in SCANNED.into_iter().zip(urls) {
        let kubeconfig = ground.cluster("west").kubeconfig(url, "a-token");
        ground.store(attacker.namespace, name, &kubeconfig).await;
        until(format!("the log says {cause}"), || async {
            match provider.log().contains(cause) {
                true => Ok(()),
                false => Err("not yet".to_owned()),
            }
        })
        .await;
        let text = told_of(attacker, name, "can't be reached").await;
        texts.push(text.replace(name, "NAME"));
    }
    assert_eq!(texts[0], texts[1]);
}

/// Waits until the attacker's binding says this of a cluster, and returns the whole text.
async fn told_of(attacker: Home<'_>, cluster: &'static str, part: &'static str) -> String {
    let text = move |binding: &Value| {
        let rows = binding["status"]["meshStatus"].as_array().cloned();
        let of = |row: &Value| row["clusterName"] == cluster;
        let row = rows.into_iter().flatten().find(of).unwrap_or_default();
        row["message"].as_str().unwrap_or_default().to_owned()
    };
    let said = attacker
        .status(BINDINGS, "scan", move |binding| {
            text(binding).contains(part)
        })
        .await;
    text(&said)
}

/// A wrong token, no CA, and the attacker's own credentials.
async fn a_victims_address_without_credentials_leads_nowhere(attacker: Home<'_>) {
    let ground = attacker.ground;
    let before = written(ground).await;
    let (east, west) = (ground.cluster("east"), ground.cluster("west"));
    let garbage = east.kubeconfig(east.url(), "garbage");
    let ca = garbage
        .lines()
        .find(|line| line.contains("certificate-authority-data"))
        .unwrap();
    let kubeconfigs = [
        (garbage.clone(), "401"),
        (garbage.replace(&format!("{ca}\n"), ""), "can't be reached"),
        (
            west.kubeconfig(east.url(), &TARGET.kept_token(west).await),
            "can't be reached",
        ),
    ];
    for (name, (kubeconfig, _)) in STOLEN.into_iter().zip(&kubeconfigs) {
        ground.store(attacker.namespace, name, kubeconfig).await;
    }
    for (name, (_, answer)) in STOLEN.into_iter().zip(&kubeconfigs) {
        told_of(attacker, name, answer).await;
    }
    let told = attacker.object(BINDINGS, "scan").await.unwrap()["status"].to_string();
    for word in ["east", "north"] {
        assert!(
            !told.contains(word),
            "the attacker is told of {word}: {told}"
        );
    }
    assert_eq!(written(ground).await, before);
}

/// North's server lies to the provider about everything that it reads there.
async fn wrong_answers_of_a_member_remove_nothing(ground: &Ground) {
    const KINDS: [&str; 4] = ["secrets", "configmaps", "services", "ciliumnetworkpolicies"];
    let proxy = ground.proxy();
    let before = written(ground).await;
    for (name, lie) in [
        ("empty", lies::empty_list()),
        ("truncated", lies::truncated_list(0, true)),
        ("older", lies::older_list(0, "1")),
    ] {
        proxy.forget_counts();
        for kind in KINDS {
            proxy.add(Fault::new(
                Match::verb(Verb::List).resource(kind),
                lie.clone(),
            ));
            proxy.add(Fault::new(
                Match::verb(Verb::Watch).resource(kind),
                Effect::answer(410),
            ));
            proxy.cut_watches(Match::all().resource(kind));
        }
        listed_twice(ground, &KINDS).await;
        tokio::time::sleep(WINDOW).await;
        assert_eq!(written(ground).await, before, "lists are {name}");
        proxy.clear();
        is_complete(ground.home(), &["east", "north"]).await;
        assert_eq!(written(ground).await, before, "lists were {name}");
    }
    deletes_that_a_watch_omits_remove_nothing(ground).await;
}

async fn listed_twice(ground: &Ground, kinds: &[&str]) {
    until("two false lists of each kind", || async {
        let count = |kind: &&&str| {
            let lists = Match::verb(Verb::List).resource(kind);
            ground.proxy().count(&lists) < 2
        };
        match kinds.iter().find(count) {
            None => Ok(()),
            Some(kind) => Err(format!("not yet of {kind}")),
        }
    })
    .await;
}

/// A policy is deleted on north, and the watch hides it: nothing else goes, and the policy comes back
/// with the next true list.
async fn deletes_that_a_watch_omits_remove_nothing(ground: &Ground) {
    let proxy = ground.proxy();
    let policies = Match::all().resource("ciliumnetworkpolicies");
    proxy.add(Fault::new(
        Match::verb(Verb::Watch).resource("ciliumnetworkpolicies"),
        lies::without_deletes(),
    ));
    proxy.cut_watches(policies.clone());
    let policy = ground.cluster("north").list(POLICIES).await.unwrap();
    let name = policy[0]["metadata"]["name"].as_str().unwrap();
    let mut rest = written(ground).await;
    rest.retain(|of, _| !(of.contains(name) && of.ends_with("north")));
    ground
        .cluster("north")
        .delete(&format!("{POLICIES}/{name}"))
        .await
        .unwrap();
    tokio::time::sleep(WINDOW).await;
    let without = written(ground).await;
    assert_eq!(without, rest, "a deletion is hidden");
    proxy.clear();
    proxy.add(
        Fault::new(
            Match::verb(Verb::Watch).resource("ciliumnetworkpolicies"),
            Effect::answer(410),
        )
        .times(1),
    );
    proxy.cut_watches(policies);
    until("the policy is back", || async {
        let found = ground.cluster("north").list(POLICIES).await.unwrap();
        match found.len() {
            1 => Ok(()),
            count => Err(format!("{count} policies")),
        }
    })
    .await;
    is_complete(ground.home(), &["east", "north"]).await;
}

/// The attacker has its own Secret for east; nothing proves that it is the victim's cluster, because
/// its CA is not the only one that it accepts.
async fn tenants_that_share_a_cluster_leave_each_others_keys(attacker: Home<'_>) {
    let ground = attacker.ground;
    let before = written(ground).await;
    let east = ground.cluster("east");
    let kubeconfig = east.kubeconfig(east.url(), &TARGET.kept_token(east).await);
    let [one, two] =
        [1, 2].map(|count| Base64::encode_string(east.ca_pem().repeat(count).as_bytes()));
    let kubeconfig = kubeconfig.replace(&one, &two);
    ground.store(attacker.namespace, "east", &kubeconfig).await;
    declare_all(attacker, &["east", "west"]).await;
    is_complete(attacker, &["east", "west"]).await;
    ground.reads("east", &["north", "west"]).await;
    ground.reads("north", &["east"]).await;
    ground.reads("west", &["east"]).await;
    let now = written(ground).await;
    let of_north = |all: &BTreeMap<String, Value>| {
        let mut of_north = all.clone();
        of_north.retain(|of, _| of.ends_with("north"));
        of_north
    };
    assert_eq!(of_north(&now), of_north(&before));
    clear(attacker).await;
    ground.reads("east", &["north"]).await;
    ground.reads("west", &[]).await;
    assert_eq!(written(ground).await, before);
    is_complete(ground.home(), &["east", "north"]).await;
}
