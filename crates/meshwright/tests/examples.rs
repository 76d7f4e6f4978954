//! Plans every folder under examples/ with the command of its README.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test may fail loudly"
)]

mod common;

use std::path::{Path, PathBuf};

use common::{meshwright, names};
use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Arguments of the README's command.
fn arguments(example: &str) -> Vec<String> {
    let readme =
        std::fs::read_to_string(root().join("examples").join(example).join("README.md")).unwrap();
    let command = readme
        .split("```sh\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap()
        .replace("\\\n", " ");
    let arguments = command
        .trim()
        .strip_prefix("cargo run -q -p meshwright -- ")
        .unwrap();
    arguments.split_whitespace().map(str::to_owned).collect()
}

fn planned(example: &str) -> (i32, Value) {
    let mut arguments = arguments(example);
    let as_text = meshwright(
        &root(),
        &arguments.iter().map(String::as_str).collect::<Vec<_>>(),
        "",
    );
    assert_eq!(as_text.stderr, "", "{example}");
    assert!(
        as_text
            .stdout
            .lines()
            .all(|line| line.chars().count() <= 100),
        "{example}: {}",
        as_text.stdout
    );
    arguments.extend(["-o".to_owned(), "json".to_owned()]);
    let outcome = meshwright(
        &root(),
        &arguments.iter().map(String::as_str).collect::<Vec<_>>(),
        "",
    );
    assert_eq!(outcome.code, as_text.code);
    (outcome.code, outcome.json())
}

#[test]
fn every_example_is_tested() {
    let mut folders: Vec<String> = std::fs::read_dir(root().join("examples"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    folders.sort();
    // The Cilium example is planned in cilium_plan.rs.
    folders.retain(|folder| folder != "cilium");
    assert_eq!(
        folders,
        ["hub-and-spoke", "location", "migration", "three-clusters"]
    );
}

#[test]
fn three_clusters() {
    let (code, report) = planned("three-clusters");
    assert_eq!((code, &report["problems"]), (1, &json!([])));
    let targets = &report["targets"];
    assert_eq!(names(&targets["berlin"]["create"]), ["prod--lab--lab-1"]);
    assert_eq!(names(&targets["berlin"]["update"]), ["prod--oslo--oslo-1"]);
    assert_eq!(names(&targets["berlin"]["delete"]), ["prod--oslo--oslo-0"]);
    assert_eq!(names(&targets["oslo"]["create"]), ["prod--lab--lab-1"]);
    assert_eq!(targets["oslo"]["keep"], 2);
    assert_eq!(targets["lab"]["create"].as_array().unwrap().len(), 4);
    let roaming = &targets["berlin"]["create"][0]["spec"];
    assert_eq!(
        (roaming.get("endpoint"), &roaming["persistentKeepalive"]),
        (None, &json!(25))
    );
    let skipped = &report["skipped"];
    assert_eq!(
        (skipped.as_array().unwrap().len(), &skipped[0]["node"]),
        (1, &json!("oslo-3"))
    );
    assert_eq!(skipped[0]["reason"], "NodePodCIDROutOfRange");
}

#[test]
fn hub_and_spoke() {
    let (code, report) = planned("hub-and-spoke");
    assert_eq!((code, &report["problems"]), (1, &json!([])));
    let targets = &report["targets"];
    assert_eq!(
        (names(&targets["hub"]["create"]), &targets["hub"]["keep"]),
        (vec!["bank--bank--bank-1"], &json!(1))
    );
    assert_eq!(names(&targets["bank"]["create"]), ["bank--hub--hub-1"]);
    assert_eq!(
        (&targets["shop"]["create"], &targets["shop"]["keep"]),
        (&json!([]), &json!(1))
    );
}

#[test]
fn location() {
    let (code, report) = planned("location");
    assert_eq!((code, &report["problems"]), (1, &json!([])));
    let peers = &report["targets"]["cloud"]["create"];
    assert_eq!(
        names(peers),
        ["campus--campus--north-1", "campus--campus--south-1"]
    );
    let ips: Vec<&str> = peers[1]["spec"]["allowedIPs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|ip| ip.as_str().unwrap())
        .collect();
    assert!(
        [
            "10.10.3.0/24",
            "10.10.4.0/24",
            "10.10.5.0/24",
            "10.210.2.13/32"
        ]
        .iter()
        .all(|ip| ips.contains(ip)),
        "{ips:?}"
    );
}

#[test]
fn migration() {
    let (code, report) = planned("migration");
    assert_eq!((code, &report["problems"]), (1, &json!([])));
    let west = &report["targets"]["west"];
    assert_eq!(names(&west["delete"]), ["prod--east--anchor"]);
    assert_eq!(
        names(&west["update"]),
        ["prod--east--east-1", "prod--east--east-2"]
    );
    assert_eq!(
        west["update"][0]["before"]["spec"],
        west["update"][0]["after"]["spec"]
    );
    assert_eq!(
        west["update"][1]["after"]["spec"]["allowedIPs"],
        json!(["10.10.2.0/24", "10.4.0.2/32", "10.96.0.0/16"])
    );
    assert_eq!(west["create"], json!([]));
}

#[test]
fn the_readme_shows_the_plan_of_an_example() {
    let arguments = arguments("three-clusters");
    let plan = meshwright(
        &root(),
        &arguments.iter().map(String::as_str).collect::<Vec<_>>(),
        "",
    );
    let readme = std::fs::read_to_string(root().join("docs/plan.md")).unwrap();
    assert!(
        readme.contains(&format!("```\n{}```\n", plan.stdout)),
        "docs/plan.md shows another plan than:\n{}",
        plan.stdout
    );
}
