//! `crd` and `rbac` print the files under config/, with the installation-specific values filled in.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

mod common;

use std::path::Path;

use common::{Outcome, meshwright};
use mw_api::cilium::kcp::{FLEET_IDENTITY, PROVIDER_WORKSPACE};

const HASH: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn run(args: &str) -> Outcome {
    let arguments: Vec<&str> = args.split_whitespace().collect();
    meshwright(Path::new(env!("CARGO_MANIFEST_DIR")), &arguments, "")
}

fn crd(args: &str) -> Outcome {
    run(&format!("crd {args}"))
}

/// A file under config/ without its first line, the generator's note.
fn config(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../config")
        .join(name);
    let text = std::fs::read_to_string(path).unwrap();
    text.split_once('\n').unwrap().1.to_owned()
}

fn assert_prints(args: &str, expected: &str) {
    let outcome = run(args);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""), "{args}");
    assert!(
        outcome.stdout == expected,
        "{args} prints:\n{}",
        outcome.stdout
    );
}

#[test]
fn the_crds_of_one_back_end_or_both() {
    let kilo = config("crd/kilo.squat.ai_clustermeshes.yaml");
    let kinds = [
        "clustermeshbindings",
        "globalservices",
        "connectivityintents",
    ];
    let cilium = kinds
        .map(|kind| config(&format!("crd/networking.edge-portal.eu_{kind}.yaml")))
        .join("---\n");
    assert_prints("crd", &kilo);
    assert_prints("crd --backend kilo", &kilo);
    assert_prints("crd --backend cilium", &cilium);
    assert_prints("crd --backend all", &format!("{kilo}---\n{cilium}"));
}

#[test]
fn the_rights_in_each_place() {
    for place in [
        "hub",
        "remote",
        "cilium-hub",
        "cilium-management",
        "cilium-target",
        "cilium-target-ca",
        "cilium-target-metrics",
    ] {
        assert_prints(
            &format!("rbac {place}"),
            &config(&format!("rbac/{place}.yaml")),
        );
    }
}

#[test]
fn what_kcp_needs_applies_as_it_is_and_claims_clusters_with_an_identity() {
    let [export, binding] = [
        "kcp-cilium-mesh-apiexport.yaml",
        "kcp-cilium-mesh-apibinding.yaml",
    ]
    .map(config);
    assert!(
        !export.contains("identityHash") && !binding.contains("identityHash"),
        "a placeholder is taken silently"
    );
    assert_prints("crd --kcp", &export);
    assert_prints("crd --kcp export", &export);
    assert_prints("crd --kcp binding", &binding);
    let elsewhere = binding.replace(PROVIDER_WORKSPACE, "root:providers:net");
    assert_prints(
        "crd --kcp binding --provider-workspace root:providers:net",
        &elsewhere,
    );
    assert_prints("crd --kcp rbac", &config("kcp-cilium-mesh-rbac.yaml"));
    let identity = format!("--fleet-identity {HASH}");
    let claim = config("kcp-cilium-mesh-fleet-claim.yaml").replace(FLEET_IDENTITY, HASH);
    assert!(claim.contains(HASH));
    assert_prints(&format!("crd --kcp fleet-claim {identity}"), &claim);
    for part in ["export", "binding"] {
        let outcome = crd(&format!("--kcp {part} {identity}"));
        assert!(
            outcome.code == 0 && outcome.stdout.contains(&format!("identityHash: {HASH}")),
            "{part}"
        );
    }
}

#[test]
fn a_missing_or_wrong_identity_says_where_to_find_it() {
    let find = "kubectl get apiexport edge-portal-fleet -o jsonpath='{.status.identityHash}'";
    let short = &HASH[1..];
    let other = HASH.replace('0', "g");
    for args in ["--kcp fleet-claim".to_owned()].into_iter().chain([
        format!("--kcp --fleet-identity {short}"),
        format!("--kcp --fleet-identity {HASH}0"),
        format!("--kcp binding --fleet-identity {other}"),
    ]) {
        let outcome = crd(&args);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (2, ""), "{args}");
        assert!(outcome.stderr.contains(find), "{args}: {}", outcome.stderr);
    }
    for args in [
        "--backend cilium --kcp rbac",
        "--kcp everything",
        "--provider-workspace x",
        &format!("--fleet-identity {HASH}"),
    ] {
        assert_eq!(crd(args).code, 2, "{args}");
    }
}
