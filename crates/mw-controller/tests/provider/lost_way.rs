//! A cluster's credentials are lost: its Secret is deleted, replaced or unreadable.
//! A ref that can't be resolved is unknown, not absent, so a working mesh is left
//! unchanged.

use std::time::Duration;

use mw_sim::kilo::kubeconfig;
use serde_json::{Value, json};

use crate::bed::{BINDINGS, Bed, HUB, INTENTS, NAMESPACE, SERVICES};
use crate::exports::{allow, export, furnish};
use crate::site::SYSTEM;
use crate::stories::{joined, three};

const SITES: [&str; 3] = ["a", "b", "c"];

fn secret(name: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/secrets/{name}-kubeconfig")
}

/// Three connected clusters, with an export and a policy in each.
async fn furnished() -> Bed {
    let bed = joined().await;
    furnish(&bed);
    export(&bed);
    allow(&bed);
    bed.phase(SERVICES, "cart", "Exported").await;
    bed.phase(INTENTS, "cart", "Applied").await;
    bed
}

fn versions(bed: &Bed) -> [u64; 3] {
    SITES.map(|site| bed.on(site).version())
}

/// Longer than a cluster stays connected that no ref resolves to.
const LONG: Duration = Duration::from_secs(150);

#[tokio::test(start_paused = true)]
async fn losing_the_way_to_a_cluster_changes_nothing_in_any() {
    let bed = furnished().await;
    let before = versions(&bed);
    let kept = bed.take(HUB, &secret("b"));
    let lost = bed
        .until_status(BINDINGS, "mesh", |status| status["phase"] == "Degraded")
        .await;
    assert!(
        lost["status"]
            .to_string()
            .contains("reading kubeconfig secret"),
        "{:#}",
        lost["status"]
    );
    tokio::time::sleep(LONG).await;
    assert_eq!(versions(&bed), before, "the Secret is gone");
    bed.put_back(HUB, &secret("b"), &kept);
    bed.phase(BINDINGS, "mesh", "Connected").await;
    bed.phase(SERVICES, "cart", "Exported").await;
    bed.phase(INTENTS, "cart", "Applied").await;
    assert_eq!(versions(&bed), before, "the Secret is back");

    bed.patch(
        HUB,
        &secret("b"),
        &json!({ "stringData": { "kubeconfig": "not: [a, kubeconfig" } }),
    );
    bed.until_status(BINDINGS, "mesh", |status| status["phase"] == "Degraded")
        .await;
    tokio::time::sleep(LONG).await;
    assert_eq!(versions(&bed), before, "the Secret is broken");
}

/// Also if a provider starts while the credentials are missing.
#[tokio::test(start_paused = true)]
async fn a_provider_that_starts_without_the_way_to_a_cluster_changes_nothing() {
    let mut bed = furnished().await;
    let before = versions(&bed);
    bed.stop();
    let kept = bed.take(HUB, &secret("b"));
    bed.start();
    bed.until_status(BINDINGS, "mesh", |status| status["phase"] == "Degraded")
        .await;
    tokio::time::sleep(LONG).await;
    assert_eq!(versions(&bed), before);
    bed.put_back(HUB, &secret("b"), &kept);
    bed.phase(BINDINGS, "mesh", "Connected").await;
    assert_eq!(versions(&bed), before);
}

#[tokio::test(start_paused = true)]
async fn a_ref_that_is_taken_out_while_the_way_is_lost_is_disconnected() {
    let bed = joined().await;
    bed.delete(HUB, &secret("b"));
    bed.until_status(BINDINGS, "mesh", |status| status["phase"] == "Degraded")
        .await;
    bed.patch(
        HUB,
        &bed.path(BINDINGS, "mesh"),
        &json!({ "spec": { "clusterRefs": [{ "name": "a" }, { "name": "c" }] } }),
    );
    bed.until("a and c forget b", || {
        let names = ["a", "c"].map(|site| {
            bed.keys(site, "cilium-kvstoremesh")
                .into_keys()
                .collect::<Vec<_>>()
        });
        if names == [["c"], ["a"]] {
            Ok(())
        } else {
            Err(format!("{names:?}"))
        }
    })
    .await;
    bed.phase(BINDINGS, "mesh", "Connected").await;
}

/// Credentials are often replaced this way: the new ones are used, and nothing else
/// changes.
#[tokio::test(start_paused = true)]
async fn a_secret_that_is_deleted_and_created_anew_costs_nothing() {
    let bed = furnished().await;
    let before = versions(&bed);
    bed.on("b").set_token("another", Some(bed.target()));
    for (token, pause) in [
        ("target", 0),
        ("another", 0),
        ("target", 5),
        ("another", 90),
    ] {
        bed.delete(HUB, &secret("b"));
        tokio::time::sleep(Duration::from_secs(pause)).await;
        let metadata = json!({ "name": "b-kubeconfig", "namespace": NAMESPACE });
        let fresh =
            json!({ "metadata": metadata, "stringData": { "kubeconfig": kubeconfig("b", token) } });
        bed.create(
            HUB,
            &format!("/api/v1/namespaces/{NAMESPACE}/secrets"),
            &fresh,
        );
        tokio::time::sleep(Duration::from_secs(10)).await;
        for (kind, name, phase) in [
            (BINDINGS, "mesh", "Connected"),
            (SERVICES, "cart", "Exported"),
            (INTENTS, "cart", "Applied"),
        ] {
            bed.phase(kind, name, phase).await;
        }
        assert_eq!(versions(&bed), before, "{token} after {pause} s");
    }
}

fn names(bed: &Bed, site: &str) -> Vec<String> {
    bed.keys(site, "cilium-kvstoremesh").into_keys().collect()
}

/// Two bindings of one namespace point to the same cluster through different
/// Secrets. If one Secret is lost, the cluster is still reachable, and what the
/// other binding has there stays.
#[tokio::test(start_paused = true)]
async fn a_cluster_that_another_ref_still_leads_to_keeps_what_the_lost_ref_wants() {
    for twin in ["0-b", "z-b"] {
        let mut bed = Bed::new(&three());
        let metadata = json!({ "name": format!("{twin}-kubeconfig"), "namespace": NAMESPACE });
        let own: Value = json!({ "metadata": metadata, "stringData": { "kubeconfig": kubeconfig("b", "target") } });
        bed.create(
            HUB,
            &format!("/api/v1/namespaces/{NAMESPACE}/secrets"),
            &own,
        );
        bed.bind("mesh", &["a", "b"], &json!({}));
        bed.bind("pair", &[twin, "c"], &json!({}));
        bed.start();
        bed.phase(BINDINGS, "mesh", "Connected").await;
        bed.phase(BINDINGS, "pair", "Connected").await;
        let before = versions(&bed);
        bed.delete(HUB, &secret(twin));
        bed.phase(BINDINGS, "pair", "Error").await;
        tokio::time::sleep(LONG).await;
        assert_eq!(
            (names(&bed, "b"), names(&bed, "c")),
            (vec!["a".to_owned(), "c".to_owned()], vec!["b".to_owned()])
        );
        assert_eq!(versions(&bed), before);
        // The pair keeps what it needs after the other binding is deleted.
        bed.remove(BINDINGS, "mesh").await;
        assert_eq!(names(&bed, "c"), ["b"]);
        bed.remove(BINDINGS, "pair").await;
        assert_eq!(names(&bed, "c"), Vec::<String>::new());
        assert!(
            bed.on("b")
                .get(&format!("{SYSTEM}/secrets/cilium-kvstoremesh"))
                .is_some()
        );
    }
}

/// The same while no process remembers the cluster of the lost ref: what was written
/// through it is recognized by the remotes of its binding.
#[tokio::test(start_paused = true)]
async fn a_provider_that_never_saw_where_a_lost_ref_led_keeps_what_it_wants() {
    let mut bed = Bed::new(&three());
    let metadata = json!({ "name": "twin-kubeconfig", "namespace": NAMESPACE });
    let own: Value =
        json!({ "metadata": metadata, "stringData": { "kubeconfig": kubeconfig("b", "target") } });
    bed.create(
        HUB,
        &format!("/api/v1/namespaces/{NAMESPACE}/secrets"),
        &own,
    );
    bed.bind("mesh", &["a", "b"], &json!({}));
    bed.bind("pair", &["twin", "c"], &json!({}));
    bed.start();
    bed.phase(BINDINGS, "mesh", "Connected").await;
    bed.phase(BINDINGS, "pair", "Connected").await;
    let before = versions(&bed);
    bed.stop();
    let kept = bed.take(HUB, &secret("twin"));
    bed.start();
    bed.phase(BINDINGS, "pair", "Error").await;
    tokio::time::sleep(LONG).await;
    assert_eq!(
        (names(&bed, "b"), names(&bed, "c")),
        (vec!["a".to_owned(), "c".to_owned()], vec!["b".to_owned()])
    );
    assert_eq!(versions(&bed), before);
    bed.put_back(HUB, &secret("twin"), &kept);
    bed.phase(BINDINGS, "pair", "Connected").await;
    assert_eq!(versions(&bed), before);
}
