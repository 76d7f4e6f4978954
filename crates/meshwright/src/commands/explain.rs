//! `meshwright explain`

use anyhow::{Result, bail};
use mw_core::text::quoted;

use crate::exit_code::Answer;
use crate::input::schema::distance;
use crate::output::write_stdout;

/// Page that holds the entries.
const PAGE: &str = include_str!("../../../../docs/troubleshooting.md");
const MOST_SUGGESTED: usize = 3;

/// Explain a reason or condition: what it means, what still works, and how to fix it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: meshwright explain NodeNoEndpoint")]
pub(crate) struct Args {
    /// Explain this reason or condition type [default: list all].
    #[arg(value_name = "REASON")]
    reason: Option<String>,
}

/// Section of the page about one reason or condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) word: &'static str,
    pub(crate) text: &'static str,
}

pub(crate) fn run(args: &Args) -> Result<Answer> {
    let entries = entries();
    let Some(word) = &args.reason else {
        write_stdout(listing(&entries).as_bytes())?;
        return Ok(Answer::Yes);
    };
    let Some(entry) = entries
        .iter()
        .find(|entry| entry.word.eq_ignore_ascii_case(word))
    else {
        let near = nearest(word, &entries).join(", ");
        bail!(
            "no entry for {}; closest: {near}; run `meshwright explain` to list all",
            quoted(word)
        );
    };
    write_stdout(format!("{}\n\n{}\n", entry.word, without_links(entry.text)).as_bytes())?;
    Ok(Answer::Yes)
}

/// Every `### word` section of the page.
pub(crate) fn entries() -> Vec<Entry> {
    let sections = PAGE
        .split("\n#")
        .filter_map(|section| section.strip_prefix("## "));
    let entry = |section: &'static str| {
        section.split_once('\n').map(|(word, text)| Entry {
            word: word.trim(),
            text: text.trim(),
        })
    };
    sections.filter_map(entry).collect()
}

fn listing(entries: &[Entry]) -> String {
    let mut entries = entries.to_vec();
    entries.sort_by_key(|entry| entry.word);
    let width = entries
        .iter()
        .map(|entry| entry.word.len())
        .max()
        .unwrap_or_default();
    entries
        .iter()
        .map(|entry| format!("{:width$}  {}\n", entry.word, entry.first_sentence()))
        .collect()
}

impl Entry {
    pub(crate) fn first_sentence(&self) -> String {
        let paragraph = self
            .text
            .split("\n\n")
            .next()
            .unwrap_or_default()
            .replace('\n', " ");
        let sentence = paragraph
            .split_once(". ")
            .map_or(paragraph.as_str(), |(first, _)| first);
        without_links(sentence.trim_end_matches('.'))
    }
}

fn nearest<'a>(word: &str, entries: &'a [Entry]) -> Vec<&'a str> {
    let given = word.to_lowercase();
    let far = |entry: &Entry| {
        let known = entry.word.to_lowercase();
        (
            !known.contains(&given),
            distance(&given, &known),
            entry.word,
        )
    };
    let mut near: Vec<_> = entries
        .iter()
        .map(|entry| (far(entry), entry.word))
        .collect();
    near.sort();
    near.into_iter()
        .take(MOST_SUGGESTED)
        .map(|(_, word)| word)
        .collect()
}

/// Replaces `[text](#anchor)` by `text`: a terminal cannot follow anchors.
fn without_links(text: &str) -> String {
    let mut parts = text.split("](#");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        if let Some(open) = plain.rfind('[') {
            plain.remove(open);
        }
        plain.push_str(part.split_once(')').map_or(part, |(_, rest)| rest));
    }
    plain
}
