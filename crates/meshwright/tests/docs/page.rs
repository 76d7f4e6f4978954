//! Parser for the Markdown pages of the repository.

use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(crate) struct Page {
    /// Path relative to the root of the repository.
    pub(crate) path: String,
    pub(crate) text: String,
}

#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) language: String,
    pub(crate) text: String,
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All pages of the repository.
pub(crate) fn pages() -> Vec<Page> {
    let mut found = Vec::new();
    walk(&root(), "", &mut found);
    found.sort_by(|one, other| one.path.cmp(&other.path));
    assert!(
        found.iter().any(|page| page.path == "README.md") && found.len() > 10,
        "{found:?}"
    );
    found
}

fn walk(folder: &Path, path: &str, found: &mut Vec<Page>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let below = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}/{name}")
        };
        if name.starts_with('.') || name == "target" {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            walk(&entry.path(), &below, found);
        } else if name.ends_with(".md") {
            found.push(Page {
                path: below,
                text: std::fs::read_to_string(entry.path()).unwrap(),
            });
        }
    }
}

impl Page {
    pub(crate) fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut open: Option<Block> = None;
        for line in self.text.lines() {
            match (line.trim_start().strip_prefix("```"), open.as_mut()) {
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (Some(language), None) => {
                    open = Some(Block {
                        language: language.trim().to_owned(),
                        text: String::new(),
                    })
                }
                (None, Some(block)) => block.text.extend([line, "\n"]),
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{}: a code block does not end", self.path);
        blocks
    }

    /// Lines outside of code blocks.
    pub(crate) fn prose(&self) -> Vec<&str> {
        let mut within = false;
        let is_prose = |line: &&str| {
            let fence = line.trim_start().starts_with("```");
            within ^= fence;
            !within && !fence
        };
        self.text.lines().filter(is_prose).collect()
    }

    /// Inline code spans.
    pub(crate) fn spans(&self) -> Vec<&str> {
        let spans = |line: &'_ str| {
            assert!(
                line.matches('`').count().is_multiple_of(2),
                "{}: code goes on in the next line: {line}",
                self.path
            )
        };
        self.prose()
            .into_iter()
            .inspect(|line| spans(line))
            .flat_map(|line| line.split('`').skip(1).step_by(2))
            .collect()
    }

    pub(crate) fn anchors(&self) -> Vec<String> {
        let headings = self
            .prose()
            .into_iter()
            .filter(|line| line.starts_with('#'));
        headings
            .map(|line| anchor(line.trim_start_matches('#')))
            .collect()
    }
}

/// Anchor that GitHub generates for a heading.
fn anchor(heading: &str) -> String {
    let kept = heading
        .trim()
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase)
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}
