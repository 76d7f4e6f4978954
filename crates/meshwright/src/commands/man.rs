//! `meshwright man`

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap_mangen::Man;

use crate::answer::Answer;
use crate::output::reference::reference;
use crate::output::write_stdout;

/// Print the manual page, write all pages into a folder, or print all commands as Markdown.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: meshwright man | man -l -")]
pub(crate) struct Args {
    /// Write one page per command into this folder, which is made if needed.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Print one page about all commands, as Markdown.
    #[arg(long, conflicts_with = "out")]
    markdown: bool,
}

pub(crate) fn run(args: &Args) -> Result<Answer> {
    match &args.out {
        _ if args.markdown => write_stdout(reference(crate::cli::command()).as_bytes())?,
        Some(folder) => write_all(folder)?,
        None => {
            let mut page = Vec::new();
            Man::new(crate::cli::command()).render(&mut page).context("the manual page could not be made")?;
            write_stdout(&page)?;
        }
    }
    Ok(Answer::Yes)
}

fn write_all(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("{} could not be made", folder.display()))?;
    clap_mangen::generate_to(crate::cli::command(), folder).with_context(|| format!("{} could not be written to", folder.display()))
}
