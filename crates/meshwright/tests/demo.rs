//! `meshwright demo`, run by a person or a script.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test may fail loudly"
)]

mod common;

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Folder, Outcome};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use regex_lite::Regex;
use serde_json::Value;

fn demo(args: &str) -> Outcome {
    Folder::new(&format!("demo{}", args.replace([' ', '-'], "_"))).run(&format!("demo {args}"))
}

/// Replaces every duration by `T`, so that two runs can be compared.
fn timeless(text: &str) -> String {
    Regex::new(r"\d+(\.\d+)? (ms|s|min)\b")
        .unwrap()
        .replace_all(text, "T")
        .into_owned()
}

#[test]
fn once_comes_to_a_mesh_of_all_clusters() {
    let outcome = demo("--once");
    assert_eq!(
        (outcome.code, outcome.stderr.as_str()),
        (0, ""),
        "{}",
        outcome.stdout
    );
    assert!(
        outcome
            .stdout
            .starts_with("meshwright demo: 3 simulated clusters with 4 nodes each"),
        "{}",
        outcome.stdout
    );
    assert!(
        outcome
            .stdout
            .contains("mesh kilo-system/demo  ready (Reconciled)"),
        "{}",
        outcome.stdout
    );
    for cluster in ["berlin", "oslo", "porto"] {
        let row = Regex::new(&format!(
            r"(?m)^  {cluster} +reachable +4 +0 +8 +0 +{cluster}-1$"
        ))
        .unwrap();
        assert!(
            row.is_match(&outcome.stdout),
            "{cluster}: {}",
            outcome.stdout
        );
    }
}

#[test]
fn once_as_data_is_the_status_and_nothing_else() {
    let json = demo("--once --clusters 2 --nodes 1 -o json");
    assert_eq!(json.code, 0, "{}", json.stderr);
    let report = json.json();
    assert_eq!(report["meshes"][0]["ready"]["status"], true);
    assert_eq!(report["meshes"][0]["clusters"].as_array().unwrap().len(), 2);
    assert_eq!(report["operator"]["state"], "running");
    let yaml: Value =
        serde_saphyr::from_str(&demo("--once --clusters 2 --nodes 1 -o yaml").stdout).unwrap();
    assert_eq!(yaml["meshes"][0]["pairs"], report["meshes"][0]["pairs"]);
}

#[test]
fn into_a_pipe_every_step_is_told_with_its_time() {
    let outcome = demo("");
    assert_eq!(
        (outcome.code, outcome.stderr.as_str()),
        (0, ""),
        "{}",
        outcome.stdout
    );
    assert!(
        !outcome.stdout.contains('\x1b')
            && outcome
                .stdout
                .lines()
                .all(|line| line.chars().count() <= 80),
        "{}",
        outcome.stdout
    );
    let story: Vec<String> = outcome
        .stdout
        .lines()
        .skip(2)
        .take(9)
        .map(timeless)
        .collect();
    let told = [
        (
            "3 clusters become one mesh",
            "Ready after T, 24 Peers written",
        ),
        (
            "node berlin-5 is added",
            "in all clusters after T, 2 writes",
        ),
        ("oslo gets a new token", "in use after T, old token revoked"),
        (
            "berlin-1 gets a new address",
            "in all Peers after T, no request refused",
        ),
        (
            "Kilo renumbers two nodes",
            "in all Peers after T, none deleted",
        ),
        ("porto goes down", "detected after T, nothing deleted"),
        (
            "node berlin-6 is added",
            "in all other clusters after T, 1 write",
        ),
        ("porto comes back", "Ready after T, missed updates written"),
        ("idle", "for T: 0 reads, 0 writes except the Lease"),
    ];
    assert_eq!(
        story,
        told.map(|(cause, effect)| format!("  {cause:28}  {effect}")),
        "{}",
        outcome.stdout
    );
    assert!(
        outcome
            .stdout
            .contains("mesh kilo-system/demo  ready (Reconciled)"),
        "{}",
        outcome.stdout
    );
}

#[test]
fn the_readme_shows_the_demo() {
    let readme =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md"))
            .unwrap();
    let shown = timeless(&readme);
    let told = timeless(&demo("--clusters 3").stdout);
    assert!(
        shown.contains(&format!("```\n{told}```\n")),
        "README.md shows another demo than:\n{told}"
    );
}

#[test]
fn two_clusters_of_one_node_have_a_story_too() {
    let outcome = demo("--clusters 2 --nodes 1");
    assert_eq!(
        (outcome.code, outcome.stderr.as_str()),
        (0, ""),
        "{}",
        outcome.stdout
    );
    assert!(
        timeless(&outcome.stdout).contains("  oslo comes back               Ready after T\n"),
        "{}",
        outcome.stdout
    );
}

#[test]
fn twenty_clusters_of_ten_nodes_become_one_mesh() {
    let outcome = demo("--once --clusters 20 --nodes 10");
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    assert!(
        outcome.stdout.contains("3800 Peers written"),
        "{}",
        outcome.stdout
    );
    assert!(
        outcome
            .stdout
            .contains("20 clusters, 380 pairs: 380 ok, 0 unknown"),
        "{}",
        outcome.stdout
    );
}

#[test]
fn wrong_arguments_are_refused_with_what_is_right() {
    let wrong = [
        ("--clusters 1", "1 is not in 2..=199"),
        ("--clusters 200", "200 is not in 2..=199"),
        ("--nodes 0", "0 is not in 1..=200"),
        ("--nodes many", "invalid digit"),
        ("-o json", "--once"),
        ("--bogus", "unexpected argument"),
    ];
    for (args, hint) in wrong {
        let outcome = demo(args);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (2, ""), "{args}");
        assert!(
            outcome.stderr.contains(hint) && outcome.stderr.contains("--help"),
            "{args}: {}",
            outcome.stderr
        );
    }
}

fn interrupted(child: &Child) -> Instant {
    kill(
        Pid::from_raw(i32::try_from(child.id()).unwrap()),
        Signal::SIGINT,
    )
    .unwrap();
    Instant::now()
}

#[test]
fn an_interrupt_ends_it_at_once() {
    // Tests that run in the background inherit an ignored SIGINT.
    let mut command = Command::new("env");
    command.args([
        "--default-signal=INT",
        env!("CARGO_BIN_EXE_meshwright"),
        "demo",
    ]);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 10];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut first)
        .unwrap();
    let asked = interrupted(&child);
    let status = child.wait().unwrap();
    assert!(
        asked.elapsed() < Duration::from_secs(1),
        "{:?}",
        asked.elapsed()
    );
    assert!(!status.success(), "it ran to its end: {status}");
}

/// Uses `script` as terminal and types the interrupt. Skipped if `script` is missing.
#[test]
fn on_a_terminal_it_stays_until_it_is_interrupted_and_leaves_the_terminal_clean() {
    for no_color in [false, true] {
        let mut command = Command::new("script");
        command.args([
            "-qec",
            &format!("exec {} demo", env!("CARGO_BIN_EXE_meshwright")),
            "/dev/null",
        ]);
        command
            .env_remove("NO_COLOR")
            .env("TERM", "xterm-256color")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if no_color {
            command.env("NO_COLOR", "1");
        }
        let Ok(mut child) = command.spawn() else {
            assert!(
                std::env::var_os("CI").is_none(),
                "script(1) is needed: apt-get install bsdutils"
            );
            eprintln!("skipped: there is no script(1) here: apt-get install bsdutils");
            return;
        };
        let mut stdout = child.stdout.take().unwrap();
        let (mut shown, mut buffer) = (Vec::new(), [0; 4096]);
        while !String::from_utf8_lossy(&shown).contains("ready (Reconciled)") {
            let count = stdout.read(&mut buffer).unwrap();
            assert!(count > 0, "it ended: {}", String::from_utf8_lossy(&shown));
            shown.extend_from_slice(&buffer[..count]);
        }
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"\x03").unwrap();
        let asked = Instant::now();
        stdout.read_to_end(&mut shown).unwrap();
        let status = child.wait().unwrap();
        let shown = String::from_utf8_lossy(&shown).into_owned();
        assert!(
            asked.elapsed() < Duration::from_secs(1),
            "{:?}",
            asked.elapsed()
        );
        assert_eq!(status.code(), Some(0), "{shown}");
        assert!(
            shown.contains("\x1b[?25l") && shown.trim_end().ends_with("\x1b[?25h"),
            "the cursor is back: {shown:?}"
        );
        let is_coloured = Regex::new("\x1b\\[[0-9;]*m").unwrap().is_match(&shown);
        assert_eq!(is_coloured, !no_color, "{shown:?}");
    }
}
