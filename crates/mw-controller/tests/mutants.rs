//! The patches of `make mutants` must apply to the current code.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test may fail loudly")]

use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn every_mutant_applies() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut patches: Vec<PathBuf> = std::fs::read_dir(here.join("tests/mutants")).unwrap().map(|entry| entry.unwrap().path()).collect();
    patches.sort();
    assert!(patches.len() >= 12, "{patches:?}");
    for patch in patches {
        let tried = Command::new("git").args(["apply", "--check"]).arg(&patch).current_dir(here.join("../..")).output().unwrap();
        assert!(tried.status.success(), "{}: {}", patch.display(), String::from_utf8_lossy(&tried.stderr));
    }
}
