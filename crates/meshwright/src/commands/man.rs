//! `meshwright man`

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap_mangen::Man;

use crate::exit_code::Answer;
use crate::output::reference::reference;
use crate::output::write_stdout;

/// Print the man page, write all man pages to a directory, or print the Markdown reference.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: meshwright man | man -l -")]
pub(crate) struct Args {
    /// Write one page per command to this directory; it is created if missing.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Print one Markdown page for all commands.
    #[arg(long, conflicts_with = "out")]
    markdown: bool,
}

pub(crate) fn run(args: &Args) -> Result<Answer> {
    match &args.out {
        _ if args.markdown => write_stdout(reference(crate::cli::command()).as_bytes())?,
        Some(folder) => write_all(folder)?,
        None => {
            let mut page = Vec::new();
            Man::new(crate::cli::command())
                .render(&mut page)
                .context("cannot render the man page")?;
            write_stdout(&page)?;
        }
    }
    Ok(Answer::Yes)
}

fn write_all(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;
    clap_mangen::generate_to(crate::cli::command(), folder)
        .with_context(|| format!("cannot write to {}", folder.display()))
}
