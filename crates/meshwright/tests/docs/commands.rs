//! Every command in a page exists, with its flags and files, and is run by a test named in
//! `registry.rs`.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::meshwright;
use crate::follow::is_followed;
use crate::page::{pages, root};
use crate::registry::{CILIUM, FOLLOWED, KUBECTL, REGISTRY};
use crate::shell;

const KUBECTL_VERBS: &[&str] = &[
    "annotate", "apply", "config", "create", "delete", "describe", "edit", "get", "label", "patch",
    "rollout", "scale", "wait",
];
const HELM_VERBS: &[&str] = &["install", "template", "uninstall", "upgrade"];
const OTHERS: &[&str] = &["base64", "date", "openssl"];
/// A third-party chart.
const CILIUM_CHART: &str = "cilium/cilium";
const CILIUM_LINE: &str = "helm upgrade cilium cilium/cilium -n kube-system --reuse-values";

/// Command lines of all pages, with the pages they are on.
fn lines() -> BTreeMap<String, BTreeSet<String>> {
    let mut lines: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for page in pages() {
        let blocks = page.blocks();
        let shown = blocks
            .iter()
            .filter(|block| block.language == "sh")
            .flat_map(|block| shell::lines(&block.text));
        let told = page
            .spans()
            .into_iter()
            .filter(|span| is_command(span))
            .map(str::to_owned);
        for line in shown.chain(told) {
            lines.entry(line).or_default().insert(page.path.clone());
        }
    }
    lines
}

/// Reports whether a code span is more than the name of a command.
fn is_command(span: &str) -> bool {
    let mut words = span.split(' ');
    matches!(words.next(), Some("kubectl" | "meshwright" | "helm")) && words.count() > 1
}

#[test]
fn every_command_exists_with_its_flags_and_files() {
    for (line, places) in lines() {
        for command in shell::commands(&line) {
            if let Err(wrong) = check(&command) {
                panic!("{places:?}: {line}\n{wrong}");
            }
        }
    }
}

#[test]
fn every_mention_of_a_command_is_of_one_that_exists() {
    for page in pages() {
        for span in page.spans() {
            if let Some(("meshwright", name)) =
                span.split_once(' ').filter(|(_, name)| !name.contains(' '))
            {
                assert_eq!(
                    check_meshwright(&[name.to_owned()]),
                    Ok(()),
                    "{}",
                    page.path
                );
            }
            if let Some(("make", target)) = span.split_once(' ') {
                assert_eq!(check_make(&[target.to_owned()]), Ok(()), "{}", page.path);
            }
        }
    }
}

#[test]
fn every_command_is_run_by_a_test() {
    let listed: Vec<&str> = REGISTRY
        .iter()
        .flat_map(|(_, lines)| lines.iter().copied())
        .collect();
    let lines = lines();
    let is_run =
        |line: &str| listed.contains(&line) || is_followed(line) || line.starts_with(CILIUM_LINE);
    let by_page =
        |places: &BTreeSet<String>| FOLLOWED.iter().any(|(page, _)| places.contains(*page));
    let missing: Vec<String> = lines
        .iter()
        .filter(|(line, places)| !is_run(line) && !by_page(places))
        .map(|at| format!("{at:?}"))
        .collect();
    assert!(
        missing.is_empty(),
        "registry.rs names no test that runs:\n{}",
        missing.join("\n")
    );
    let stale: Vec<&str> = listed
        .iter()
        .filter(|line| !lines.contains_key(**line))
        .copied()
        .collect();
    assert!(
        stale.is_empty(),
        "on no page any more:\n{}",
        stale.join("\n")
    );
    let once: BTreeSet<&str> = listed.iter().copied().collect();
    assert_eq!(once.len(), listed.len(), "a line is listed twice");
}

#[test]
fn every_test_that_is_said_to_run_a_command_is_there() {
    for test in REGISTRY
        .iter()
        .map(|(test, _)| *test)
        .chain(FOLLOWED.iter().map(|(_, test)| *test))
        .chain([CILIUM, KUBECTL])
    {
        let (file, name) = test.split_once("::").unwrap();
        let text = std::fs::read_to_string(root().join("crates").join(file))
            .unwrap_or_else(|wrong| panic!("{file}: {wrong}"));
        assert!(
            text.contains(&format!("fn {name}(")),
            "{file} has no {name}"
        );
    }
}

fn check(command: &[String]) -> Result<(), String> {
    let (program, arguments) = command.split_first().unwrap();
    match program.as_str() {
        "meshwright" => check_meshwright(arguments),
        "cargo" => check_cargo(arguments),
        "make" => check_make(arguments),
        "kubectl" if arguments[0] == "meshwright" => check_meshwright(&arguments[1..]),
        "kubectl" => check_verb(
            arguments,
            KUBECTL_VERBS,
            &["--context", "--kubeconfig", "-n"],
        )
        .and_then(|()| check_files(arguments)),
        "helm" => check_verb(arguments, HELM_VERBS, &[]).and_then(|()| check_files(arguments)),
        other if OTHERS.contains(&other) => Ok(()),
        other => Err(format!(
            "{other} is not a program that a reader is known to have"
        )),
    }
}

/// Parses the arguments with the binary. The last argument makes it exit before it acts.
fn check_meshwright(arguments: &[String]) -> Result<(), String> {
    // Value of a variable that the page sets earlier.
    let identity = "0".repeat(64);
    let filled = |word: &String| {
        if word == "$IDENTITY" {
            identity.clone()
        } else {
            word.clone()
        }
    };
    let filled: Vec<String> = arguments.iter().map(filled).collect();
    let asked: Vec<&str> = filled
        .iter()
        .map(String::as_str)
        .chain(["--help"])
        .collect();
    let outcome = meshwright(&root(), &asked, "");
    if outcome.code == 0 {
        Ok(())
    } else {
        Err(outcome.stderr)
    }
}

fn check_cargo(arguments: &[String]) -> Result<(), String> {
    let own = arguments
        .iter()
        .position(|word| word == "--")
        .map(|at| &arguments[at + 1..]);
    match (arguments[0].as_str(), own) {
        ("run", Some(own)) if arguments.contains(&"meshwright".to_owned()) => {
            check_meshwright(own).and_then(|()| check_files(own))
        }
        ("build", None) => Ok(()),
        _ => Err("a reader runs and builds meshwright with cargo, and nothing else".to_owned()),
    }
}

fn check_make(arguments: &[String]) -> Result<(), String> {
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let targets: Vec<&str> = arguments
        .iter()
        .flat_map(|word| word.split(' '))
        .filter(|word| !word.contains('='))
        .collect();
    let is_there = |target: &&&str| {
        makefile
            .lines()
            .any(|line| line.starts_with(&format!("{target}:")))
    };
    match targets.iter().find(|target| !is_there(target)) {
        Some(target) => Err(format!("the Makefile has no {target}")),
        None => Ok(()),
    }
}

/// Checks the first word that is neither a flag nor a flag's value.
fn check_verb(arguments: &[String], known: &[&str], before: &[&str]) -> Result<(), String> {
    let mut words = arguments.iter();
    let verb = loop {
        match words.next() {
            Some(flag) if before.contains(&flag.as_str()) => _ = words.next(),
            Some(word) => break word,
            None => return Err("there is no verb".to_owned()),
        }
    };
    known
        .contains(&verb.as_str())
        .then_some(())
        .ok_or_else(|| format!("{verb} is not among {known:?}"))
}

/// Checks that arguments that look like repository paths exist.
fn check_files(arguments: &[String]) -> Result<(), String> {
    let paths = arguments
        .iter()
        .map(|word| word.rsplit('=').next().unwrap());
    let mut paths = paths.filter(|word| {
        ["config/", "examples/", "charts/"]
            .iter()
            .any(|folder| word.starts_with(folder))
    });
    match paths.find(|path| !root().join(path).exists()) {
        Some(path) => Err(format!("{path} is not there")),
        None => arguments
            .iter()
            .filter(|word| word.contains("/cilium"))
            .try_for_each(|word| {
                let known = word == CILIUM_CHART
                    || word.contains('=')
                    || root().join(word).exists()
                    || is_object(word);
                known
                    .then_some(())
                    .ok_or_else(|| format!("{word} is not there"))
            }),
    }
}

/// Reports whether a word names an object, e.g. `daemonset/cilium`.
fn is_object(word: &str) -> bool {
    ["daemonset/", "deployment/"]
        .iter()
        .any(|kind| word.starts_with(kind))
}
