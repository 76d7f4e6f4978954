//! What the binary and its tests are made of: under which licences, from where,
//! and what must never be among it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may fail loudly")]

use std::process::Command;

use serde_json::Value;

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";
/// What Apache-2.0 can be shipped with, without a duty beyond naming it.
const LICENCES: [&str; 8] =
    ["Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "CDLA-Permissive-2.0", "ISC", "MIT", "Unicode-3.0"];
const BANNED: [(&str, &[&str]); 3] = [
    ("TLS is rustls with ring", &["openssl", "openssl-sys", "native-tls", "aws-lc-rs", "aws-lc-sys", "boring"]),
    ("a client of its own makes a build script download", &["reqwest", "ureq", "curl", "curl-sys", "attohttpc", "isahc", "minreq"]),
    ("they are not maintained", &["serde_yaml", "serde_yml", "failure"]),
];

fn metadata() -> Value {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(["metadata", "--locked", "--format-version", "1"]);
    let output = command.args(["--filter-platform", "x86_64-unknown-linux-gnu"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// All packages that are built for Linux, by name and version.
fn packages(metadata: &Value) -> Vec<(String, &Value)> {
    let used: Vec<&Value> = metadata["resolve"]["nodes"].as_array().unwrap().iter().map(|node| &node["id"]).collect();
    let packages = metadata["packages"].as_array().unwrap().iter().filter(|package| used.contains(&&package["id"]));
    let name = |package: &Value| format!("{} {}", package["name"].as_str().unwrap(), package["version"].as_str().unwrap());
    packages.map(|package| (name(package), package)).collect()
}

/// Whether an SPDX expression can be met; `/` is how `OR` was written once.
fn is_met(expression: &str) -> bool {
    let text = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = text.split_whitespace().collect();
    let (met, rest) = either(&words);
    assert!(rest.is_empty(), "{expression} is no licence expression");
    met
}

fn either<'a>(words: &'a [&'a str]) -> (bool, &'a [&'a str]) {
    let (mut met, mut rest) = both(words);
    while let ["OR", tail @ ..] = rest {
        let (other, tail) = both(tail);
        (met, rest) = (met || other, tail);
    }
    (met, rest)
}

fn both<'a>(words: &'a [&'a str]) -> (bool, &'a [&'a str]) {
    let (mut met, mut rest) = single(words);
    while let ["AND", tail @ ..] = rest {
        let (other, tail) = single(tail);
        (met, rest) = (met && other, tail);
    }
    (met, rest)
}

fn single<'a>(words: &'a [&'a str]) -> (bool, &'a [&'a str]) {
    match words {
        ["(", tail @ ..] => match either(tail) {
            (met, [")", rest @ ..]) => (met, rest),
            _ => panic!("{words:?} has no end"),
        },
        [name, "WITH", exception, rest @ ..] => (LICENCES.contains(&format!("{name} WITH {exception}").as_str()), rest),
        [name, rest @ ..] => (LICENCES.contains(name), rest),
        [] => panic!("a licence is missing"),
    }
}

#[test]
fn licence_expressions_are_read_as_spdx_has_them() {
    for met in
        ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "(GPL-3.0 OR MIT) AND ISC", "Apache-2.0 WITH LLVM-exception", "MIT AND ISC OR GPL-3.0"]
    {
        assert!(is_met(met), "{met}");
    }
    for unmet in
        ["GPL-3.0", "MIT AND GPL-3.0", "GPL-3.0 WITH Classpath-exception-2.0", "(MIT OR ISC) AND GPL-3.0", "GPL-3.0 OR MIT AND LGPL-2.1"]
    {
        assert!(!is_met(unmet), "{unmet}");
    }
}

#[test]
fn every_licence_is_one_that_we_can_ship_with() {
    let metadata = metadata();
    let packages = packages(&metadata);
    assert!(packages.len() > 200, "{}", packages.len());
    for (name, package) in packages {
        let licence = package["license"].as_str().unwrap_or_else(|| panic!("{name} names no licence"));
        assert!(is_met(licence), "{name} is under {licence}");
    }
}

#[test]
fn everything_comes_from_the_registry_or_is_ours() {
    let metadata = metadata();
    let ours = metadata["workspace_members"].as_array().unwrap();
    for (name, package) in packages(&metadata) {
        match package["source"].as_str() {
            Some(source) => assert_eq!(source, REGISTRY, "{name}"),
            None => assert!(ours.contains(&package["id"]), "{name} is a folder that is not ours"),
        }
        if ours.contains(&package["id"]) {
            let of_others = package["dependencies"].as_array().unwrap().iter().filter(|dependency| dependency["path"].is_null());
            for dependency in of_others {
                assert_ne!(dependency["req"], "*", "{name} takes any version of {}", dependency["name"]);
            }
        }
    }
}

#[test]
fn nothing_is_among_it_that_is_banned() {
    // Of all platforms, whether it is built or not.
    let lock = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock")).unwrap();
    for (why, names) in BANNED {
        for name in names {
            assert!(!lock.contains(&format!("\nname = \"{name}\"\n")), "{name}: {why}");
        }
    }
}
