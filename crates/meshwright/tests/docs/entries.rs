//! Troubleshooting has one entry for every reason and condition.

use std::collections::BTreeSet;

use mw_core::condition::{cilium, event, kilo};
use mw_core::kilo::SkipReason;
use mw_core::problem::Reason;

use crate::common::meshwright;
use crate::page::root;

/// All reasons and condition types that a condition, an event or a plan may contain.
fn words() -> BTreeSet<&'static str> {
    let lists = [
        kilo::kind::ALL,
        kilo::reason::ALL,
        cilium::kind::ALL,
        cilium::reason::ALL,
        event::ALL,
    ];
    let problems = Reason::ALL.iter().map(|reason| reason.as_str());
    let skips = SkipReason::ALL.iter().map(|reason| reason.as_str());
    lists
        .into_iter()
        .flatten()
        .copied()
        .chain(problems)
        .chain(skips)
        .collect()
}

/// Output of `meshwright explain`: each word with its first sentence.
fn listed() -> Vec<(String, String)> {
    let list = meshwright(&root(), &["explain"], "");
    assert_eq!((list.code, list.stderr.as_str()), (0, ""));
    list.stdout
        .lines()
        .map(|line| line.split_once("  ").unwrap())
        .map(|(word, text)| (word.to_owned(), text.trim().to_owned()))
        .collect()
}

#[test]
fn every_word_has_one_entry_and_every_entry_a_word() {
    let listed = listed();
    let explained: BTreeSet<&str> = listed.iter().map(|(word, _)| word.as_str()).collect();
    assert_eq!(explained.len(), listed.len(), "an entry is there twice");
    let missing: Vec<_> = words().difference(&explained).copied().collect();
    let surplus: Vec<_> = explained.difference(&words()).copied().collect();
    assert!(
        missing.is_empty() && surplus.is_empty(),
        "without an entry: {missing:?}; nobody says: {surplus:?}"
    );
}

#[test]
fn every_entry_says_what_it_means_what_is_safe_how_to_see_it_and_what_to_do() {
    for (word, sentence) in listed() {
        let entry = meshwright(&root(), &["explain", &word], "");
        assert_eq!((entry.code, entry.stderr.as_str()), (0, ""));
        assert!(
            entry.stdout.starts_with(&format!("{word}\n\n"))
                && !sentence.is_empty()
                && !sentence.starts_with('-'),
            "{word}: {sentence}"
        );
        for part in ["- Still works: ", "- Check: ", "- Fix: "] {
            assert_eq!(
                entry.stdout.matches(part).count(),
                1,
                "{word} has not one line {part:?}"
            );
        }
        assert!(
            !entry.stdout.contains("](") && !entry.stdout.contains("\n#"),
            "{word} has marks that a terminal does not show"
        );
    }
}

#[test]
fn a_word_is_found_in_any_case_and_an_unknown_one_has_neighbours() {
    let entry = meshwright(&root(), &["explain", "nodenoendpoint"], "");
    assert!(
        entry.code == 0 && entry.stdout.starts_with("NodeNoEndpoint\n"),
        "{}",
        entry.stdout
    );
    let unknown = meshwright(&root(), &["explain", "NoEndpoint"], "");
    assert_eq!((unknown.code, unknown.stdout.as_str()), (2, ""));
    assert!(
        unknown.stderr.contains("NodeNoEndpoint") && unknown.stderr.contains("meshwright explain"),
        "{}",
        unknown.stderr
    );
}

/// Users of the earlier provider search for these words.
#[test]
fn the_symptoms_that_people_know_are_found() {
    let page = include_str!("../../../../docs/troubleshooting.md");
    let parts: Vec<&str> = page.split("\n\n").collect();
    let after = |title: &str| {
        parts
            .iter()
            .skip_while(|part| **part != title)
            .nth(1)
            .copied()
            .unwrap()
    };
    let known: [(&str, &[&str]); 3] = [
        (
            "ClusterMeshBinding:",
            &[
                "Phase stuck at Pending",
                "Phase Error: \"Cilium not found\"",
                "Phase Error: \"clustermesh-apiserver not found\"",
                "Phase Error: \"reading kubeconfig secret\"",
                "Phase Degraded",
                "Phase Connecting (stuck)",
            ],
        ),
        (
            "GlobalService:",
            &[
                "Phase Pending",
                "Phase Error: \"ClusterMeshBinding not found\"",
                "Phase Error: \"Service not found\"",
                "Phase Degraded",
            ],
        ),
        (
            "ConnectivityIntent:",
            &[
                "Phase Pending",
                "Phase Error: \"validation failed\"",
                "Phase Degraded",
                "Phase Applied but traffic blocked",
            ],
        ),
    ];
    for (kind, symptoms) in known {
        for symptom in symptoms {
            assert!(
                after(kind).contains(&format!("| {symptom} |")),
                "{kind} {symptom}"
            );
        }
    }
}

/// People without Helm, or without a new certificate, map the name in the certificate instead:
/// each command must be complete, for the agents and for KVStoreMesh.
#[test]
fn a_name_that_does_not_match_can_be_mapped_by_a_host_alias() {
    let entry = meshwright(&root(), &["explain", "ServerNameMismatch"], "");
    assert_eq!((entry.code, entry.stderr.as_str()), (0, ""));
    let fix = entry.stdout.split_once("- Fix: ").unwrap().1;
    for reader in ["daemonset cilium", "deployment clustermesh-apiserver"] {
        let command = format!("`kubectl -n kube-system patch {reader} -p '");
        let (_, rest) = fix
            .split_once(&command)
            .unwrap_or_else(|| panic!("no {command} in {fix}"));
        let (patch, _) = rest.split_once("'`").unwrap();
        let patch: serde_json::Value = serde_json::from_str(patch).unwrap();
        assert_eq!(
            patch["spec"]["template"]["spec"]["hostAliases"],
            serde_json::json!([{ "ip": "HOST", "hostnames": ["NAME.mesh.cilium.io"] }])
        );
    }
    assert!(
        fix.contains("where NAME is the Cilium name of the remote"),
        "{fix}"
    );
}
