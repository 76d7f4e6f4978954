//! Effects of time alone: a certificate comes close to its expiry, and nothing else
//! happens.

use std::time::Duration;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use serde_json::{Value, json};

use crate::bed::{BINDINGS, Bed};
use crate::site::{Ca, SYSTEM, Site};

const DAY: Duration = Duration::from_secs(86_400);

fn condition(bed: &Bed, kind: &str) -> Option<Value> {
    let binding = bed.object(BINDINGS, "mesh").unwrap();
    binding["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .find(|of| of["type"] == kind)
        .cloned()
}

/// The process starts on 2027-01-15.
#[tokio::test(start_paused = true)]
async fn a_certificate_that_comes_to_end_soon_is_told_though_nothing_happens() {
    let mut bed = Bed::new(&[Site::new("a", 1, Ca::Common), Site::new("b", 2, Ca::Common)]);
    let (mut params, key) = (CertificateParams::default(), KeyPair::generate().unwrap());
    params.not_after = date_time_ymd(2027, 2, 15);
    let files = json!({ "tls.crt": params.self_signed(&key).unwrap().pem(), "tls.key": key.serialize_pem() });
    bed.patch(
        "a",
        &format!("{SYSTEM}/secrets/clustermesh-apiserver-local-cert"),
        &json!({ "stringData": files }),
    );
    bed.bind("mesh", &["a", "b"], &json!({}));
    bed.start();
    bed.phase(BINDINGS, "mesh", "Connected").await;
    assert_eq!(condition(&bed, "CertificatesExpiring"), None);

    tokio::time::sleep(DAY).await;
    let told = condition(&bed, "CertificatesExpiring").expect("nobody woke up");
    let (status, message) = (
        told["status"].as_str().unwrap(),
        told["message"].as_str().unwrap(),
    );
    assert_eq!(status, "True");
    assert!(
        told["lastTransitionTime"]
            .as_str()
            .unwrap()
            .starts_with("2027-01-16T00:00:0"),
        "{told:#}"
    );
    assert!(
        message.contains(
            "tls.crt of Secret clustermesh-apiserver-local-cert expires 2027-02-15T00:00:00Z"
        ),
        "{message}"
    );
    bed.phase(BINDINGS, "mesh", "Connected").await;
    tokio::time::sleep(DAY / 4).await;
    assert_eq!(
        condition(&bed, "CertificatesExpiring"),
        Some(told),
        "it moved though nothing changed"
    );
}

#[tokio::test(start_paused = true)]
async fn releases_that_are_too_far_apart_are_told_and_connected_all_the_same() {
    let sites = [
        Site::new("a", 1, Ca::Common),
        Site {
            version: "v1.17.3",
            ..Site::new("b", 2, Ca::Common)
        },
    ];
    let mut bed = Bed::new(&sites);
    bed.bind("mesh", &["a", "b"], &json!({}));
    bed.start();
    bed.phase(BINDINGS, "mesh", "Connected").await;
    let told = condition(&bed, "VersionSkew").unwrap();
    assert_eq!(
        (told["status"].as_str(), told["reason"].as_str()),
        (Some("True"), Some("MinorsApart")),
        "{told:#}"
    );
}
