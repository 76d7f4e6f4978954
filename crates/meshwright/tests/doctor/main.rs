//! `meshwright doctor` on broken fleets of real API servers: the first reported failure is the
//! injected fault, and the printed command, run in a shell with kubectl, fixes it. The faults are
//! in `breakages.rs`, which is independent of the checks.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test may fail loudly, and uses a part of what the operator's suite is made of"
)]

#[path = "../operator/contexts.rs"]
mod contexts;
#[path = "../operator/metrics.rs"]
mod metrics;
#[path = "../operator/process.rs"]
mod process;
#[path = "../operator/rights.rs"]
mod rights;
#[path = "../operator/wait.rs"]
mod wait;

mod agents;
mod breakages;
mod fleet;
mod person;

use breakages::{BREAKAGES, Breakage};
use fleet::Fleet;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_broken_is_named_and_its_command_repairs_it() {
    let Some(mut fleet) = Fleet::start_or_skip().await else {
        return;
    };
    let healthy = fleet.healthy("at the start").await;
    assert!(
        layers(&healthy).is_superset(&all_layers()),
        "every layer is checked: {healthy:#}"
    );
    for breakage in BREAKAGES {
        eprintln!("broken: {}", breakage.name);
        (breakage.act)(&fleet).await;
        repaired(&mut fleet, breakage).await;
    }
    fleet.nothing_is_shown_or_written();
}

async fn repaired(fleet: &mut Fleet, breakage: &Breakage) {
    let broken = fleet
        .person
        .first_broken(
            "doctor -n kilo-system",
            breakage.name,
            breakage.layer,
            breakage.subject,
        )
        .await;
    let observed = broken["observed"].as_str().unwrap();
    assert!(
        observed.contains(breakage.told),
        "{}: {observed}",
        breakage.name
    );
    fleet.person.repairs(breakage.name, &broken);
    fleet.healthy(breakage.name).await;
}

fn layers(report: &Value) -> std::collections::BTreeSet<String> {
    report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|check| check["layer"].as_str().unwrap().to_owned())
        .collect()
}

fn all_layers() -> std::collections::BTreeSet<String> {
    let all = [
        "credentials",
        "reachability",
        "rights",
        "crds",
        "spec",
        "health",
        "annotations",
        "overlap",
        "keepalive",
        "certificates",
        "drift",
    ];
    all.map(str::to_owned).into()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_asked_is_not_called_broken() {
    let Some(fleet) = Fleet::start_or_skip().await else {
        return;
    };
    fleet.healthy("at the start").await;
    let missing = fleet.doctor("doctor nothing -n kilo-system");
    assert_eq!(
        (missing.code, missing.stderr.as_str()),
        (
            2,
            "error: ClusterMesh nothing not found in namespace kilo-system\n"
        )
    );

    // A whole cluster is down: checks that need it are not reported as failed.
    fleet.cluster("west").stop().unwrap();
    let outcome = fleet.doctor("doctor mesh -n kilo-system -o json --request-timeout 2s");
    assert_eq!(outcome.code, 1);
    let of_west = |layer: &str| {
        let report = outcome.json();
        let found = report["checks"]
            .as_array()
            .unwrap()
            .iter()
            .find(|check| check["layer"] == layer && check["subject"] == "west")
            .cloned();
        found.unwrap_or_else(|| panic!("no {layer} of west: {report:#}"))["state"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(["credentials", "certificates"].map(of_west), ["fine"; 2]);
    assert_eq!(of_west("reachability"), "failed");
    assert_eq!(
        [
            "rights",
            "crds",
            "health",
            "annotations",
            "keepalive",
            "drift"
        ]
        .map(of_west),
        ["notChecked"; 6]
    );
    let text = fleet
        .doctor("doctor mesh -n kilo-system --request-timeout 2s")
        .stdout;
    assert!(
        text.contains("reachability of west: can't be reached")
            && text.contains("\n  fix: meshwright rbac remote |"),
        "{text}"
    );
    fleet.cluster("west").start().await.unwrap();
    fleet.healthy("west is back").await;

    // The operator's own account can check only part, and doctor reports that.
    let own = fleet.doctor_as_operator("doctor mesh -n kilo-system -o json");
    let rights = own.json()["checks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|check| check["layer"] == "rights")
        .cloned()
        .unwrap();
    assert_eq!(
        (own.code, &rights["subject"], &rights["state"]),
        (0, &"hub".into(), &"fine".into()),
        "{}",
        own.stdout
    );
    fleet.nothing_is_shown_or_written();
}

/// The Go operator acted on all namespaces, this one acts only on its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_mesh_that_nobody_acts_on_is_named() {
    let Some(fleet) = Fleet::start_or_skip().await else {
        return;
    };
    fleet.healthy("at the start").await;
    let hub = fleet.cluster("hub");
    hub.create(
        &json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "tenant" } }),
    )
    .await
    .unwrap();
    let entries = json!([
        { "name": "hub", "local": true, "podCIDRs": ["10.201.0.0/16"], "wireguardCIDR": "100.65.1.0/24" },
        { "name": "far", "kubeconfigSecretRef": { "name": "far" }, "podCIDRs": ["10.202.0.0/16"], "wireguardCIDR": "100.65.2.0/24" },
    ]);
    let mut mesh = fleet.mesh.object();
    mesh["metadata"] = json!({ "name": "theirs", "namespace": "tenant" });
    mesh["spec"] = json!({ "clusters": entries });
    hub.create(&mesh).await.unwrap();
    fleet
        .healthy("a mesh of somebody who never had an operator")
        .await;
    let spec = json!({ "publicKey": mw_sim::kilo::key("theirs"), "allowedIPs": ["10.202.1.0/24"] });
    let labels = json!({ "kilo-clustermesh.io/mesh": "theirs", "kilo-clustermesh.io/source-cluster": "far" });
    let metadata = json!({ "name": "theirs--far--n1", "labels": labels });
    hub.create(&json!({ "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "Peer", "metadata": metadata, "spec": spec })).await.unwrap();
    let outcome = fleet.doctor("doctor mesh -n kilo-system -o json");
    let report = outcome.json();
    let broken: Vec<&Value> = report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|check| check["state"] != "fine")
        .collect();
    assert!(outcome.code == 1 && broken.len() == 1, "{broken:#?}");
    assert_eq!(
        (&broken[0]["layer"], &broken[0]["subject"]),
        (&"health".into(), &"tenant/theirs".into())
    );
    assert!(
        broken[0]["observed"].as_str().unwrap().contains("1 Peers"),
        "{}",
        broken[0]
    );
    assert!(
        broken[0]["hint"].as_str().unwrap().contains("--namespace"),
        "{}",
        broken[0]
    );
    fleet.nothing_is_shown_or_written();
}
