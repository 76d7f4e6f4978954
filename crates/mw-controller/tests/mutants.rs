//! The tools that test the tests: patches of `make mutants`, and `make fresh`.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may fail loudly"
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn patches() -> Vec<PathBuf> {
    let folder = root().join("crates/mw-controller/tests/mutants");
    let mut patches: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    patches.sort();
    patches
}

#[test]
fn every_mutant_applies() {
    for patch in patches() {
        let tried = Command::new("git")
            .args(["apply", "--check"])
            .arg(&patch)
            .current_dir(root())
            .output()
            .unwrap();
        assert!(
            tried.status.success(),
            "{}: {}",
            patch.display(),
            String::from_utf8_lossy(&tried.stderr)
        );
    }
}

#[test]
fn every_mutant_has_a_row_in_the_page_and_every_row_a_mutant() {
    let page = std::fs::read_to_string(root().join("docs/simulation.md")).unwrap();
    let (_, table) = page.split_once("| mutant | bug | caught by |").unwrap();
    let rows = table
        .trim_start()
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with('|'));
    let named: BTreeSet<String> = rows
        .map(|row| row.split('|').nth(1).unwrap().trim().to_owned())
        .collect();
    let found: BTreeSet<String> = patches()
        .iter()
        .map(|patch| patch.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(named, found);
}

#[test]
fn seconds_of_the_environment_and_of_the_command_line_limit_make_fresh() {
    let planned = |arguments: &[&str], seconds: Option<&str>| {
        let mut make = Command::new("make");
        // Flags of a make that runs this test do not count.
        make.args(["--dry-run", "--no-print-directory", "fresh"])
            .args(arguments)
            .current_dir(root());
        ["SECONDS", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES"]
            .iter()
            .for_each(|name| _ = make.env_remove(name));
        seconds.map(|seconds| make.env("SECONDS", seconds));
        String::from_utf8(make.output().unwrap().stdout)
            .unwrap()
            .trim()
            .to_owned()
    };
    assert_eq!(planned(&[], None), "tools/fresh 300");
    assert_eq!(planned(&[], Some("60")), "tools/fresh 60");
    assert_eq!(planned(&["SECONDS=90"], Some("60")), "tools/fresh 90");
}
