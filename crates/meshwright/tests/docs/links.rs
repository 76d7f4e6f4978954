//! Every link points to an existing file and heading.

use std::path::Path;

use crate::page::{Page, pages, root};

#[test]
fn no_link_is_dead() {
    let pages = pages();
    let mut dead = Vec::new();
    for page in &pages {
        for target in targets(page) {
            if !leads_somewhere(&pages, page, &target) {
                dead.push(format!("{}: {target}", page.path));
            }
        }
    }
    assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
}

/// Link targets, outside of code.
fn targets(page: &Page) -> Vec<String> {
    let mut found = Vec::new();
    for line in page.prose() {
        let plain: String = line.split('`').step_by(2).collect();
        found.extend(
            plain
                .split("](")
                .skip(1)
                .filter_map(|rest| rest.split_once(')'))
                .map(|(target, _)| target.to_owned()),
        );
    }
    found.retain(|target| !target.starts_with("https://"));
    found
}

fn leads_somewhere(pages: &[Page], from: &Page, target: &str) -> bool {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let folder = Path::new(&from.path).parent().unwrap();
    let to = if file.is_empty() {
        from.path.clone()
    } else {
        normal(&folder.join(file))
    };
    let page = pages.iter().find(|page| page.path == to);
    match (anchor, page) {
        ("", _) => root().join(&to).exists(),
        (anchor, Some(page)) => page.anchors().iter().any(|known| known == anchor),
        (_, None) => false,
    }
}

/// Resolves `..`; the repository has no symbolic links.
fn normal(path: &Path) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.iter().map(|part| part.to_str().unwrap()) {
        match part {
            ".." => _ = parts.pop(),
            "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}
