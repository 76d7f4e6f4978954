//! Every test that the threat model names exists, and every row of its tables names one.

use std::collections::BTreeSet;
use std::path::Path;

use crate::page::root;

#[test]
fn every_test_that_the_threat_model_names_is_there() {
    let page = std::fs::read_to_string(root().join("docs/security.md")).unwrap();
    let mut known = BTreeSet::new();
    collect(&root().join("crates"), &mut known);
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

/// Collects the functions of all sources, and the stories, which are folders or YAML files.
fn collect(folder: &Path, known: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            known.extend(
                path.file_name()
                    .map(|name| name.to_string_lossy().into_owned()),
            );
            collect(&path, known);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let names = text
                .split("fn ")
                .skip(1)
                .filter_map(|rest| rest.split(['(', '<']).next());
            known.extend(names.map(str::to_owned));
        } else if path
            .extension()
            .is_some_and(|extension| extension == "yaml")
        {
            known.extend(
                path.file_stem()
                    .map(|name| name.to_string_lossy().into_owned()),
            );
        }
    }
}
