//! Every test that the threat model names exists, and every row of its tables names one.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::page::root;

#[test]
fn every_test_that_the_threat_model_names_is_there() {
    let page = std::fs::read_to_string(root().join("docs/security.md")).unwrap();
    let known = tests();
    let words: Vec<&str> = page
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| is_test_name(word))
        .collect();
    assert!(words.len() > 50, "only {} tests are named", words.len());
    let missing: Vec<&&str> = words
        .iter()
        .filter(|word| !known.contains(**word))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/security.md names tests that do not exist: {missing:?}"
    );
}

#[test]
fn every_row_of_the_threat_model_names_a_test() {
    let page = std::fs::read_to_string(root().join("docs/security.md")).unwrap();
    let tables = page.split("\n\n").filter(|block| {
        block
            .lines()
            .next()
            .is_some_and(|line| line.ends_with("| shown by |"))
    });
    let rows: Vec<&str> = tables.flat_map(|table| table.lines().skip(2)).collect();
    assert!(rows.len() > 30, "only {} rows", rows.len());
    let shows = |row: &&&str| {
        row.rsplit('|')
            .nth(1)
            .is_some_and(|cell| cell.split('`').skip(1).step_by(2).any(is_test_name))
    };
    let bare: Vec<&&str> = rows.iter().filter(|row| !shows(row)).collect();
    assert!(bare.is_empty(), "no test shows {bare:#?}");
}

/// Reports whether a word is a test name: these have many words, unlike flags, files and fields.
fn is_test_name(word: &str) -> bool {
    let plain = word.bytes().all(|byte| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-'
    });
    plain
        && word.starts_with(|first: char| first.is_ascii_lowercase())
        && word.split(['_', '-']).count() > 2
}

#[test]
fn functions_of_the_product_are_no_tests() {
    let known = tests();
    for test in [
        "functions_of_the_product_are_no_tests",
        "forbidden_addresses_are_refused_in_all_their_forms",
        "a_bomb_of_aliases_is_refused",
    ] {
        assert!(known.contains(test), "{test}");
    }
    for function in ["forbidden_range", "list_twice_if_needed", "mark_source"] {
        assert!(!known.contains(function), "{function}");
    }
}

/// Returns the names of all tests and stories.
fn tests() -> BTreeSet<String> {
    let mut known = BTreeSet::new();
    for package in std::fs::read_dir(root().join("crates")).unwrap() {
        let package = package.unwrap().path();
        collect(&package.join("tests"), true, &mut known);
        collect(&package.join("src"), false, &mut known);
    }
    known
}

/// Collects the functions in test modules of all sources. Of the folder `tests`, also all other
/// functions, and the stories, which are folders or YAML files.
fn collect(folder: &Path, of_tests: bool, known: &mut BTreeSet<String>) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    let name = |of: Option<&OsStr>| of.map(|name| name.to_string_lossy().into_owned());
    for entry in entries {
        let path = entry.unwrap().path();
        let extension = path.extension().and_then(OsStr::to_str);
        if path.is_dir() {
            known.extend(name(path.file_name()).filter(|_| of_tests));
            collect(&path, of_tests, known);
        } else if extension == Some("rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            known.extend(functions(if of_tests { &text } else { test_module(&text) }));
            for file in test_files(&path, &text) {
                known.extend(functions(&std::fs::read_to_string(file).unwrap()));
            }
        } else if extension == Some("yaml") && of_tests {
            known.extend(name(path.file_stem()));
        }
    }
}

fn functions(text: &str) -> impl Iterator<Item = String> {
    let names = text
        .split("fn ")
        .skip(1)
        .filter_map(|rest| rest.split(['(', '<']).next());
    names.map(str::to_owned)
}

/// Returns the names of the test modules of a file, each with the text that follows.
fn test_modules(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split("#[cfg(test)]\nmod ")
        .skip(1)
        .filter_map(|rest| rest.find([';', ' ']).map(|end| rest.split_at(end)))
}

/// Returns the test module at the end of a file.
fn test_module(text: &str) -> &str {
    test_modules(text)
        .find(|(_, rest)| rest.starts_with(" {"))
        .map_or("", |(_, rest)| rest)
}

/// Returns the files of test modules that a file declares.
fn test_files(path: &Path, text: &str) -> Vec<PathBuf> {
    let stem = path.file_stem().unwrap();
    let folder = match stem.to_str() {
        Some("mod" | "lib" | "main") => path.parent().unwrap().to_owned(),
        _ => path.with_file_name(stem),
    };
    test_modules(text)
        .filter(|(_, rest)| rest.starts_with(';'))
        .map(|(name, _)| folder.join(format!("{name}.rs")))
        .collect()
}
