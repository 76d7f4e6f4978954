//! The provider with only the required rights, and its messages if an optional one
//! is missing.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mw_core::cilium::world::DialFailure;
use mw_sim::{Fate, Faults, Request};
use serde_json::json;

use crate::bed::{BINDINGS, Bed, HUB, NAMESPACE, condition};
use crate::site::SYSTEM;
use crate::stories::three;

const SITES: [&str; 3] = ["a", "b", "c"];

/// Every request of the provider.
#[derive(Default)]
struct Notes(Mutex<Vec<String>>);

impl Faults for Notes {
    fn fate(&self, request: &Request) -> Fate {
        self.0.lock().unwrap().push(request.to_string());
        Fate::Answer
    }
}

#[tokio::test(start_paused = true)]
async fn clusters_are_joined_and_parted_without_the_optional_roles() {
    let mut bed = Bed::new(&three());
    // Metrics of readers are not accessible: a heartbeat that changes verifies a link.
    bed.settings.check = Duration::from_secs(20);
    SITES
        .iter()
        .for_each(|site| bed.grant_no_more_than_needed(site));
    bed.bind("mesh", &SITES, &json!({}));
    bed.start();
    bed.phase(BINDINGS, "mesh", "Connected").await;
    bed.remove(BINDINGS, "mesh").await;
    assert!(
        SITES
            .iter()
            .all(|site| bed.keys(site, "cilium-kvstoremesh").is_empty())
    );
    let secrets = bed.on("a").list(&format!("{SYSTEM}/secrets"));
    assert_eq!(
        secrets
            .iter()
            .filter(|secret| secret["metadata"]["name"]
                .as_str()
                .unwrap()
                .starts_with("cilium-"))
            .count(),
        3
    );
}

#[tokio::test(start_paused = true)]
async fn a_link_that_nobody_may_verify_names_the_role_that_would() {
    let mut bed = Bed::new(&three());
    SITES
        .iter()
        .for_each(|site| bed.grant_no_more_than_needed(site));
    for address in ["192.0.2.1:2379", "192.0.2.2:2379", "192.0.2.3:2379"] {
        bed.wire
            .change(address, |etcd| etcd.failure = Some(DialFailure::Tcp));
    }
    bed.bind("mesh", &SITES, &json!({}));
    bed.start();
    let binding = bed.phase(BINDINGS, "mesh", "Degraded").await;
    assert_eq!(
        condition(&binding, "MeshConnected")["reason"],
        "NotVerifiable"
    );
    let message = condition(&binding, "Ready")["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        message.contains("config/rbac/cilium-target-metrics.yaml"),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_missing_connection_secret_names_the_manifest_that_has_it() {
    let mut bed = Bed::new(&three());
    // Metrics of readers are not accessible: a heartbeat that changes verifies a link.
    bed.settings.check = Duration::from_secs(20);
    SITES
        .iter()
        .for_each(|site| bed.grant_no_more_than_needed(site));
    bed.delete("b", &format!("{SYSTEM}/secrets/cilium-kvstoremesh"));
    bed.bind("mesh", &SITES, &json!({}));
    bed.start();
    let message = |status: &serde_json::Value| status["conditions"].to_string();
    bed.until_status(BINDINGS, "mesh", |status| {
        message(status).contains("config/cilium-connection-secrets.yaml")
    })
    .await;
    let empty = json!({ "metadata": { "name": "cilium-kvstoremesh", "namespace": "kube-system" } });
    bed.create("b", &format!("{SYSTEM}/secrets"), &empty);
    bed.phase(BINDINGS, "mesh", "Connected").await;
}

/// Unrelated Secrets are in the same namespace.
#[tokio::test(start_paused = true)]
async fn no_secret_of_the_hub_is_read_but_those_that_refs_may_mean() {
    let mut bed = Bed::new(&three());
    let label = json!({ "cluster.x-k8s.io/cluster-name": "d" });
    for (name, labels) in [("database", json!({})), ("labelled", label)] {
        let secret = json!({ "metadata": { "name": name, "namespace": NAMESPACE, "labels": labels }, "stringData": { "password": "x" } });
        bed.create(
            HUB,
            &format!("/api/v1/namespaces/{NAMESPACE}/secrets"),
            &secret,
        );
    }
    let notes = Arc::new(Notes::default());
    bed.on(HUB).set_faults(notes.clone());
    bed.bind("mesh", &SITES, &json!({}));
    bed.start();
    bed.phase(BINDINGS, "mesh", "Connected").await;
    let secrets: Vec<String> = notes
        .0
        .lock()
        .unwrap()
        .iter()
        .filter(|request| request.contains("/secrets?"))
        .cloned()
        .collect();
    assert!(!secrets.is_empty());
    assert!(secrets.iter().all(|request| request.contains("fieldSelector=") || request.contains("labelSelector=")), "{secrets:#?}");
}
