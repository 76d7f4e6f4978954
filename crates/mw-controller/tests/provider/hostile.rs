//! Tenants that attack each other: clusters that pose as another tenant's, Secrets
//! that point to foreign clusters, and endless lists.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use mw_sim::kilo::kubeconfig;
use mw_sim::{Fate, Faults, Lie, Lies, Request, Span};
use serde_json::{Value, json};

use crate::bed::{BINDINGS, Bed, HUB, INTENTS, NAMESPACE, SERVICES, condition};
use crate::exports::{annotations, furnish_site};
use crate::site::{Ca, SYSTEM, Site};

/// Namespaces of attackers that sort before and after the victim's.
const ORDERS: [&str; 2] = ["attackers", "zealots"];

#[derive(Default)]
struct Liar {
    lies: Lies,
    /// Delay of each answer: time advances only while a task waits.
    delay: Duration,
}

impl Faults for Liar {
    fn fate(&self, _: &Request) -> Fate {
        if self.delay.is_zero() {
            Fate::Answer
        } else {
            Fate::Delay(self.delay)
        }
    }

    fn lies(&self, request: &Request) -> Vec<Lie> {
        self.lies.about(request)
    }
}

/// `a` and `b` belong to the victim, `evil` and `friend` to the attacker.
fn sites() -> Vec<Site> {
    let victims = [("a", 1), ("b", 2)].map(|(name, id)| Site::new(name, id, Ca::Common));
    let attackers = [("evil", 8), ("friend", 9)].map(|(name, id)| Site::new(name, id, Ca::Other));
    victims.into_iter().chain(attackers).collect()
}

/// Makes a site give wrong answers about one kind.
fn lies(bed: &Bed, site: &str, kind: &str, lie: Lie, delay: Duration) {
    let liar = Liar {
        lies: Lies::default(),
        delay,
    };
    liar.lies.tell(site, kind, lie, Span::ForEver);
    bed.on(site).set_faults(Arc::new(liar));
    bed.on(site).hang_up();
}

fn claims_to_be(bed: &Bed, site: &str, victim: &str) {
    lies(
        bed,
        site,
        "namespaces",
        Lie::Uids {
            of: bed.on(victim).clone(),
        },
        Duration::ZERO,
    );
}

/// A namespace with Secrets for some sites.
fn move_in(bed: &Bed, namespace: &str, sites: &[&str]) {
    bed.create(
        HUB,
        "/api/v1/namespaces",
        &json!({ "metadata": { "name": namespace } }),
    );
    for site in sites {
        give_secret(bed, namespace, site, &kubeconfig(site, "target"));
    }
}

fn give_secret(bed: &Bed, namespace: &str, site: &str, kubeconfig: &str) {
    let metadata = json!({ "name": format!("{site}-kubeconfig"), "namespace": namespace });
    let secret = json!({ "metadata": metadata, "stringData": { "kubeconfig": kubeconfig } });
    bed.create(
        HUB,
        &format!("/api/v1/namespaces/{namespace}/secrets"),
        &secret,
    );
}

/// Returns a kubeconfig with the server's CA.
fn verified(site: &str, token: &str, ca: Ca) -> String {
    let mut config: Value = serde_json::from_str(&kubeconfig(site, token)).unwrap();
    let pem = ByteString(ca.authority().pem().as_bytes().to_vec());
    config["clusters"][0]["cluster"]["certificate-authority-data"] =
        serde_json::to_value(pem).unwrap();
    config.to_string()
}

fn collection(namespace: &str, kind: (&str, &str)) -> String {
    format!(
        "/apis/networking.edge-portal.eu/v1alpha1/namespaces/{namespace}/{}",
        kind.0
    )
}

fn bind(bed: &Bed, namespace: &str, refs: &[&str]) {
    let refs: Vec<Value> = refs.iter().map(|name| json!({ "name": name })).collect();
    let metadata = json!({ "name": "mesh", "namespace": namespace });
    let kind = "ClusterMeshBinding";
    let api = "networking.edge-portal.eu/v1alpha1";
    bed.create(
        HUB,
        &collection(namespace, BINDINGS),
        &json!({ "apiVersion": api, "kind": kind, "metadata": metadata, "spec": { "clusterRefs": refs } }),
    );
}

fn status(bed: &Bed, namespace: &str) -> Value {
    bed.on(HUB)
        .get(&format!("{}/mesh", collection(namespace, BINDINGS)))
        .map(|of| of["status"].clone())
        .unwrap_or_default()
}

async fn phase(bed: &Bed, namespace: &str, phase: &str) -> Value {
    bed.until(&format!("the binding of {namespace} is {phase}"), || {
        let status = status(bed, namespace);
        if status["phase"] == phase {
            Ok(status)
        } else {
            Err(serde_json::to_string_pretty(&status).unwrap())
        }
    })
    .await
}

/// Returns the contents of a site's connection Secrets as one text.
fn held(bed: &Bed, site: &str) -> String {
    ["cilium-clustermesh", "cilium-kvstoremesh"]
        .map(|secret| format!("{:?}", bed.keys(site, secret)))
        .concat()
}

fn names(bed: &Bed, site: &str) -> Vec<String> {
    bed.keys(site, "cilium-kvstoremesh").into_keys().collect()
}

/// Checks that the victim's state is the same as without an attacker.
fn is_unharmed(bed: &Bed) {
    assert_eq!(
        (names(bed, "a"), names(bed, "b")),
        (vec!["b".to_owned()], vec!["a".to_owned()])
    );
    assert!(
        held(bed, "b").contains("192.0.2.1:2379"),
        "{}",
        held(bed, "b")
    );
    for site in ["a", "b"] {
        for word in ["evil", "friend", "192.0.2.8", "192.0.2.9"] {
            assert!(
                !held(bed, site).contains(word),
                "{word} in {site}: {}",
                held(bed, site)
            );
        }
    }
}

/// Checks that nothing of the victim is in the attacker's clusters.
fn has_gained_nothing(bed: &Bed) {
    for site in ["evil", "friend"] {
        for name in names(bed, site) {
            assert!(
                name.starts_with("evil") || name.starts_with("friend"),
                "{site} has the key {name}"
            );
        }
        for private in [
            &bed.sites["a"].remote.key,
            &bed.sites["b"].remote.key,
            &bed.sites["b"].local.key,
        ] {
            assert!(
                !held(bed, site).contains(private.trim()),
                "{site} has a private key of the victim"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_claims_to_be_anothers_gets_and_gives_nothing() {
    for attackers in ORDERS {
        for victim in ["a", "b"] {
            let mut bed = Bed::new(&sites());
            move_in(&bed, attackers, &["evil", "friend"]);
            claims_to_be(&bed, "evil", victim);
            bed.bind("mesh", &["a", "b"], &json!({}));
            bind(&bed, attackers, &["evil", "friend"]);
            bed.start();
            phase(&bed, NAMESPACE, "Connected").await;
            phase(&bed, attackers, "Connected").await;
            tokio::time::sleep(Duration::from_secs(60)).await;
            is_unharmed(&bed);
            has_gained_nothing(&bed);
            assert_eq!(status(&bed, NAMESPACE)["phase"], "Connected");
        }
    }
}

/// Also if it is in one mesh with the attacker's own clusters and reports the UID
/// only after the victim's mesh is up.
#[tokio::test(start_paused = true)]
async fn a_cluster_that_changes_its_uid_gains_nothing() {
    for attackers in ORDERS {
        let mut bed = Bed::new(&sites());
        move_in(&bed, attackers, &["evil", "friend"]);
        bed.bind("mesh", &["a", "b"], &json!({}));
        bind(&bed, attackers, &["evil", "friend"]);
        bed.start();
        phase(&bed, NAMESPACE, "Connected").await;
        phase(&bed, attackers, "Connected").await;
        claims_to_be(&bed, "evil", "a");
        tokio::time::sleep(Duration::from_secs(700)).await;
        is_unharmed(&bed);
        has_gained_nothing(&bed);
        phase(&bed, NAMESPACE, "Connected").await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_key_of_a_ca_does_not_reach_a_cluster_that_claims_to_be_a_members() {
    for attackers in ORDERS {
        let mut bed = Bed::new(&sites());
        move_in(&bed, attackers, &["evil", "friend"]);
        for certificate in [
            "cilium-ca",
            "clustermesh-apiserver-server-cert",
            "clustermesh-apiserver-remote-cert",
        ] {
            bed.delete("evil", &format!("{SYSTEM}/secrets/{certificate}"));
        }
        bed.delete(
            "evil",
            &format!("{SYSTEM}/secrets/clustermesh-apiserver-local-cert"),
        );
        bed.delete("friend", &format!("{SYSTEM}/secrets/cilium-ca"));
        claims_to_be(&bed, "evil", "b");
        bed.bind("mesh", &["a", "b"], &json!({}));
        bind(&bed, attackers, &["evil", "friend"]);
        bed.start();
        phase(&bed, NAMESPACE, "Connected").await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(
            bed.on("evil")
                .get(&format!("{SYSTEM}/secrets/cilium-ca"))
                .is_none(),
            "the attacker has the CA's key"
        );
        is_unharmed(&bed);
    }
}

#[tokio::test(start_paused = true)]
async fn policies_and_exports_of_an_attacker_stay_in_its_own_clusters() {
    for attackers in ORDERS {
        let mut bed = Bed::new(&sites());
        ["a", "b", "evil", "friend"]
            .iter()
            .for_each(|site| furnish_site(&bed, site));
        move_in(&bed, attackers, &["evil", "friend"]);
        claims_to_be(&bed, "evil", "a");
        bed.bind("mesh", &["a", "b"], &json!({}));
        bind(&bed, attackers, &["evil", "friend"]);
        let selector = json!({ "namespace": "shop", "name": "cart" });
        let mesh = json!({ "name": "mesh" });
        let export = json!({ "meshRef": mesh, "selector": selector });
        let allow = json!({ "meshRef": mesh, "action": "Allow", "source": { "namespace": "web" }, "destination": selector });
        for (kind, spec) in [(SERVICES, export), (INTENTS, allow)] {
            let metadata = json!({ "name": "attack", "namespace": attackers });
            let object = json!({ "apiVersion": "networking.edge-portal.eu/v1alpha1", "kind": kind.1, "metadata": metadata, "spec": spec });
            bed.create(HUB, &collection(attackers, kind), &object);
        }
        bed.start();
        phase(&bed, NAMESPACE, "Connected").await;
        phase(&bed, attackers, "Connected").await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        for site in ["a", "b"] {
            let policies = bed
                .on(site)
                .list("/apis/cilium.io/v2/namespaces/shop/ciliumnetworkpolicies");
            assert!(policies.is_empty(), "{policies:?}");
            assert_eq!(annotations(&bed, site), json!({ "own": "yes" }));
        }
    }
}

/// The token was valid once, so its cluster is known. The attacker must not benefit
/// from the victim's credentials.
#[tokio::test(start_paused = true)]
async fn credentials_that_were_revoked_lead_nowhere() {
    for attackers in ORDERS {
        let mut bed = Bed::new(&sites());
        move_in(&bed, attackers, &["friend", "evil"]);
        let account = bed.target();
        bed.on("a").set_token("lent", Some(account));
        give_secret(&bed, attackers, "a", &kubeconfig("a", "lent"));
        bed.bind("mesh", &["a", "b"], &json!({}));
        bind(&bed, attackers, &["a", "friend"]);
        bed.start();
        phase(&bed, NAMESPACE, "Connected").await;
        phase(&bed, attackers, "Connected").await;
        bed.on("a").set_token("lent", None);
        bed.on("a").hang_up();
        tokio::time::sleep(Duration::from_secs(60)).await;
        let refs: Vec<Value> = ["a", "friend", "evil"]
            .iter()
            .map(|name| json!({ "name": name }))
            .collect();
        bed.patch(
            HUB,
            &format!("{}/mesh", collection(attackers, BINDINGS)),
            &json!({ "spec": { "clusterRefs": refs } }),
        );
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(
            !names(&bed, "a").contains(&"evil".to_owned()),
            "{:?}",
            names(&bed, "a")
        );
        assert!(
            names(&bed, "a").contains(&"b".to_owned()),
            "{:?}",
            names(&bed, "a")
        );
        let rows = status(&bed, attackers)["meshStatus"].clone();
        assert!(
            rows[0]["message"]
                .as_str()
                .is_some_and(|text| text.contains("credentials")),
            "{rows:#}"
        );
    }
}

/// The victim's URL, no CA and an invalid token.
#[tokio::test(start_paused = true)]
async fn a_secret_with_the_victims_url_and_no_credentials_leads_nowhere() {
    for attackers in ORDERS {
        let mut bed = Bed::new(&sites());
        move_in(&bed, attackers, &["friend"]);
        give_secret(&bed, attackers, "a", &kubeconfig("a", "garbage"));
        bind(&bed, attackers, &["a", "friend"]);
        bed.bind("mesh", &["a", "b"], &json!({}));
        bed.start();
        phase(&bed, NAMESPACE, "Connected").await;
        phase(&bed, attackers, "Error").await;
        is_unharmed(&bed);
        has_gained_nothing(&bed);
    }
}

#[tokio::test(start_paused = true)]
async fn an_older_hostile_object_refuses_nobody_without_proof() {
    let mut bed = Bed::new(&sites());
    move_in(&bed, ORDERS[0], &[]);
    give_secret(
        &bed,
        ORDERS[0],
        "evil",
        &verified("evil", "target", Ca::Other),
    );
    give_secret(&bed, ORDERS[0], "friend", &kubeconfig("friend", "target"));
    claims_to_be(&bed, "evil", "a");
    bind(&bed, ORDERS[0], &["evil", "friend"]);
    bed.start();
    phase(&bed, ORDERS[0], "Connected").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    bed.bind("mesh", &["a", "b"], &json!({}));
    phase(&bed, NAMESPACE, "Connected").await;
    is_unharmed(&bed);
}

/// Both have credentials of the cluster and verify it against its private CA.
#[tokio::test(start_paused = true)]
async fn of_two_owners_that_are_proven_to_use_one_cluster_the_younger_is_refused() {
    let mut bed = Bed::new(&sites());
    bed.delete(
        HUB,
        &format!("/api/v1/namespaces/{NAMESPACE}/secrets/a-kubeconfig"),
    );
    give_secret(&bed, NAMESPACE, "a", &verified("a", "target", Ca::Common));
    move_in(&bed, ORDERS[0], &["evil", "friend"]);
    give_secret(&bed, ORDERS[0], "a", &verified("a", "target", Ca::Common));
    bed.bind("mesh", &["a", "b"], &json!({}));
    bed.start();
    phase(&bed, NAMESPACE, "Connected").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    bind(&bed, ORDERS[0], &["a", "evil", "friend"]);
    let refused = phase(&bed, ORDERS[0], "Degraded").await;
    let message = condition(&json!({ "status": refused }), "Ready")["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        message.contains("cluster a: credentials: the cluster is already used by another owner"),
        "{message}"
    );
    assert!(!refused.to_string().contains(NAMESPACE), "{refused:#}");
    is_unharmed(&bed);
    // The older one is deleted, and the younger replaces it.
    bed.remove(BINDINGS, "mesh").await;
    phase(&bed, ORDERS[0], "Connected").await;
    assert_eq!(
        names(&bed, "a")
            .into_iter()
            .filter(|name| !name.contains('.'))
            .collect::<Vec<_>>(),
        ["evil", "friend"]
    );
}

/// Its Secret is replaced by that of another cluster.
#[tokio::test(start_paused = true)]
async fn nothing_learnt_of_a_cluster_is_believed_of_the_one_that_takes_its_place() {
    let mut sites = sites();
    sites.push(Site::new("c", 3, Ca::Common));
    let mut bed = Bed::new(&sites);
    bed.bind("mesh", &["a", "b"], &json!({}));
    bed.start();
    phase(&bed, NAMESPACE, "Connected").await;
    let data = json!({ "stringData": { "kubeconfig": kubeconfig("c", "target") } });
    bed.patch(
        HUB,
        &format!("/api/v1/namespaces/{NAMESPACE}/secrets/a-kubeconfig"),
        &data,
    );
    bed.until("b reads c instead of a", || {
        if names(&bed, "b") == ["c"] {
            Ok(())
        } else {
            Err(held(&bed, "b"))
        }
    })
    .await;
    bed.until_status(BINDINGS, "mesh", |status| {
        status["phase"] == "Connected" && status["meshStatus"][0]["clusterId"] == 3
    })
    .await;
    assert_eq!(names(&bed, "c"), ["b"]);
}

/// The list of its namespaces never ends, so the cluster is never identified.
#[tokio::test(start_paused = true)]
async fn an_endless_list_of_one_tenant_delays_no_other() {
    for attackers in ORDERS {
        let mut bed = Bed::new(&sites());
        move_in(&bed, attackers, &["evil", "friend"]);
        lies(
            &bed,
            "evil",
            "namespaces",
            Lie::Endless { page: 10 },
            Duration::from_millis(500),
        );
        bind(&bed, attackers, &["evil", "friend"]);
        bed.bind("mesh", &["a", "b"], &json!({}));
        bed.start();
        phase(&bed, NAMESPACE, "Connected").await;
        bed.delete(
            "a",
            "/apis/apps/v1/namespaces/kube-system/daemonsets/cilium",
        );
        let before = tokio::time::Instant::now();
        bed.until_status(BINDINGS, "mesh", |status| status["phase"] != "Connected")
            .await;
        assert!(
            before.elapsed() < Duration::from_secs(30),
            "told after {:?}",
            before.elapsed()
        );
        let before = tokio::time::Instant::now();
        bed.remove(BINDINGS, "mesh").await;
        assert!(
            before.elapsed() < Duration::from_secs(30),
            "deleted after {:?}",
            before.elapsed()
        );
        assert!(names(&bed, "a").is_empty() && names(&bed, "b").is_empty());
    }
}
