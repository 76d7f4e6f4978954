//! `meshwright explain`

use anyhow::{Result, bail};
use mw_core::text::quoted;

use crate::answer::Answer;
use crate::input::schema::distance;
use crate::output::write_stdout;

/// The page whose entries are printed.
const PAGE: &str = include_str!("../../../../docs/troubleshooting.md");
const MOST_SUGGESTED: usize = 3;

/// Print what a reason or a condition means, what stays safe meanwhile, and what to type.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: meshwright explain NodeNoEndpoint")]
pub(crate) struct Args {
    /// A reason, or the type of a condition; without it all are listed.
    #[arg(value_name = "REASON")]
    reason: Option<String>,
}

/// What the page says under one word.
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
    let Some(entry) = entries.iter().find(|entry| entry.word.eq_ignore_ascii_case(word)) else {
        let near = nearest(word, &entries).join(", ");
        bail!("there is no entry for {}; nearest: {near}; `meshwright explain` lists all", quoted(word));
    };
    write_stdout(format!("{}\n\n{}\n", entry.word, without_links(entry.text)).as_bytes())?;
    Ok(Answer::Yes)
}

/// Every `### word` with what follows up to the next heading.
pub(crate) fn entries() -> Vec<Entry> {
    let sections = PAGE.split("\n#").filter_map(|section| section.strip_prefix("## "));
    let entry = |section: &'static str| section.split_once('\n').map(|(word, text)| Entry { word: word.trim(), text: text.trim() });
    sections.filter_map(entry).collect()
}

fn listing(entries: &[Entry]) -> String {
    let mut entries = entries.to_vec();
    entries.sort_by_key(|entry| entry.word);
    let width = entries.iter().map(|entry| entry.word.len()).max().unwrap_or_default();
    entries.iter().map(|entry| format!("{:width$}  {}\n", entry.word, entry.first_sentence())).collect()
}

impl Entry {
    pub(crate) fn first_sentence(&self) -> String {
        let paragraph = self.text.split("\n\n").next().unwrap_or_default().replace('\n', " ");
        let sentence = paragraph.split_once(". ").map_or(paragraph.as_str(), |(first, _)| first);
        without_links(sentence.trim_end_matches('.'))
    }
}

fn nearest<'a>(word: &str, entries: &'a [Entry]) -> Vec<&'a str> {
    let given = word.to_lowercase();
    let far = |entry: &Entry| {
        let known = entry.word.to_lowercase();
        (!known.contains(&given), distance(&given, &known), entry.word)
    };
    let mut near: Vec<_> = entries.iter().map(|entry| (far(entry), entry.word)).collect();
    near.sort();
    near.into_iter().take(MOST_SUGGESTED).map(|(_, word)| word).collect()
}

/// `[text](#place)` as `text`: on a terminal there is nothing to follow.
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
