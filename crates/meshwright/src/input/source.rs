//! Reads files as text and as YAML trees, within size limits.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::rc::Rc;

use mw_core::text::printable;
use serde::de::IgnoredAny;
use serde_saphyr::Error as YamlError;

use crate::input::finding::Finding;
use crate::input::tree::{Span, Tree};

/// Same limit as for a list that the operator reads from a member; a dump is not larger.
const LARGEST_FILE: u64 = 64 * 1024 * 1024;

/// Maximum number of documents in one file. `kubectl get` writes one.
const MOST_DOCUMENTS: usize = 100_000;

#[derive(Debug)]
pub(crate) struct SourceFile {
    /// Name as given by the user.
    pub(crate) name: String,
    pub(crate) text: String,
    /// Position on the command line; findings are sorted by it.
    pub(crate) order: usize,
    pub(crate) contents: Contents,
}

/// Confidentiality of a file's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contents {
    Plain,
    /// Contains Secrets: names may be shown, values must not.
    Secret,
}

/// Reads files one after the other. Standard input can be read only once.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    files: usize,
    stdin_used: bool,
}

impl Reader {
    pub(crate) fn read(
        &mut self,
        path: &Path,
        contents: Contents,
    ) -> Result<(Rc<SourceFile>, Vec<Tree>), Finding> {
        let stdin = path == Path::new("-");
        let name = if stdin {
            "<stdin>".to_owned()
        } else {
            printable(&path.to_string_lossy(), 500)
        };
        if stdin && std::mem::replace(&mut self.stdin_used, true) {
            return Err(Finding::error("standard input was already read")
                .help("use \"-\" once, and files for the rest"));
        }
        let bytes = if stdin {
            bounded(std::io::stdin())
        } else {
            File::open(path).and_then(bounded)
        };
        let bytes =
            bytes.map_err(|wrong| Finding::error(format!("cannot read {name}: {wrong}")))?;
        if u64::try_from(bytes.len()).is_ok_and(|len| len > LARGEST_FILE) {
            return Err(Finding::error(format!("{name} is larger than 64 MiB"))
                .help("dump only what is needed: kubectl get nodes,peers -o yaml"));
        }
        let text = String::from_utf8(bytes).map_err(|wrong| {
            let at = wrong.utf8_error().valid_up_to();
            Finding::error(format!("{name} is not UTF-8 text (byte {at})"))
                .help("dump it again with kubectl get nodes,peers -o yaml")
        })?;
        let file = Rc::new(SourceFile {
            name,
            text,
            order: self.files,
            contents,
        });
        self.files += 1;
        let trees = parse(&file)?;
        Ok((file, trees))
    }
}

fn bounded(from: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(LARGEST_FILE + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn parse(file: &Rc<SourceFile>) -> Result<Vec<Tree>, Finding> {
    serde_saphyr::from_multiple_with_options(&file.text, options())
        .map_err(|wrong| syntax_error(file, wrong.without_snippet()))
}

/// Parser limits. The file size bounds everything except aliases, which no dump has and which let a
/// small file expand into a huge one.
fn options() -> serde_saphyr::Options {
    let most = usize::try_from(LARGEST_FILE).unwrap_or(usize::MAX);
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 4 * most,
            max_nodes: 2 * most,
            max_total_scalar_bytes: most,
            max_documents: MOST_DOCUMENTS,
            max_aliases: 1_000,
            max_anchors: 1_000,
            max_recorded_anchor_events: 100_000,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 100_000,
        },
    }
}

fn syntax_error(file: &Rc<SourceFile>, wrong: &YamlError) -> Finding {
    if let Some(finding) = json_error(file) {
        return finding;
    }
    let text = wrong.to_string();
    let (message, help) = match wrong {
        YamlError::DuplicateMappingKey { key: Some(key), .. } => (
            format!("duplicate key {}", mw_core::text::quoted(key)),
            "remove one of the two",
        ),
        // If an alias causes it, the error is nested inside another one.
        _ if text.contains("budget breached") || text.contains("alias replay") => (
            "it expands beyond the limit".to_owned(),
            "replace its aliases by their values, and nest it less deeply",
        ),
        _ => (
            without_place(&text).to_owned(),
            "look for an unclosed bracket or quote, or wrong indentation, here or just above",
        ),
    };
    let finding =
        Finding::error(format!("not valid YAML: {}", printable(&message, 200))).help(help);
    match wrong.location() {
        Some(location) => {
            let span = location.span();
            let start = usize::try_from(span.offset())
                .ok()
                .and_then(|at| file.text.char_indices().nth(at));
            let (start, len) = start.map_or((file.text.len(), 0), |(at, c)| (at, c.len_utf8()));
            let len = span
                .byte_len()
                .and_then(|len| usize::try_from(len).ok())
                .unwrap_or(len);
            finding.at(file, Span::new(start, len))
        }
        None => finding.in_file(file),
    }
}

/// Removes the position, which is shown separately.
fn without_place(message: &str) -> &str {
    message
        .rsplit_once(" at line ")
        .map_or(message, |(message, _)| message)
}

/// Parses as JSON, whose parser explains broken JSON better than the YAML parser.
fn json_error(file: &Rc<SourceFile>) -> Option<Finding> {
    if !file.text.trim_start().starts_with('{') {
        return None;
    }
    let wrong = serde_json::from_str::<IgnoredAny>(&file.text).err()?;
    let line_start = match wrong.line().checked_sub(2) {
        Some(above) => file
            .text
            .match_indices('\n')
            .nth(above)
            .map(|(at, _)| at + 1)?,
        None => 0,
    };
    let start = line_start + wrong.column().saturating_sub(1);
    let len = file
        .text
        .get(start..)
        .and_then(|rest| rest.chars().next())
        .map_or(0, char::len_utf8);
    Some(
        Finding::error(format!(
            "not valid JSON: {}",
            printable(without_place(&wrong.to_string()), 200)
        ))
        .at(file, Span::new(start, len)),
    )
}
