//! Paths in backticks on the pages for contributors exist, with the functions that they name.

use crate::page::{pages, root};

const PAGES: [&str; 3] = ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/testing.md"];
const EXTENSIONS: [&str; 5] = [".md", ".rs", ".sh", ".toml", ".yaml"];

#[test]
fn every_path_for_contributors_exists() {
    let mut missing = Vec::new();
    for page in pages()
        .iter()
        .filter(|page| PAGES.contains(&page.path.as_str()))
    {
        let spans = page.spans();
        let paths: Vec<&str> = spans.into_iter().filter(|span| is_path(span)).collect();
        assert!(!paths.is_empty(), "{} names no file", page.path);
        missing.extend(
            paths
                .into_iter()
                .filter(|path| !exists(path))
                .map(|path| format!("{}: {path}", page.path)),
        );
    }
    assert!(
        missing.is_empty(),
        "no such file, or no such function in it:\n{}",
        missing.join("\n")
    );
}

/// Reports whether a code span is a path of the repository, from its root.
fn is_path(span: &str) -> bool {
    let path = span.split("::").next().unwrap_or_default();
    let is_word = !path.contains([' ', '=']) && !path.starts_with('~');
    is_word && (path.contains('/') || EXTENSIONS.iter().any(|extension| path.ends_with(extension)))
}

/// Looks for the file, or for a function in it: `file::function`.
fn exists(path: &str) -> bool {
    let (file, function) = path
        .split_once("::")
        .map_or((path, None), |(file, function)| (file, Some(function)));
    let Some(function) = function else {
        return root().join(file).exists();
    };
    let text = std::fs::read_to_string(root().join(file)).unwrap_or_default();
    ["(", "<"]
        .iter()
        .any(|next| text.contains(&format!("fn {function}{next}")))
}
