//! `meshwright completions`

use anyhow::Result;
use clap_complete::Shell;

use crate::answer::Answer;
use crate::output::write_stdout;

/// Print a completion script for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: meshwright completions bash > /etc/bash_completion.d/meshwright")]
pub(crate) struct Args {
    /// The shell the script is for.
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> Result<Answer> {
    // Through a buffer: clap_complete panics when a write fails.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::cli::command(), "meshwright", &mut script);
    write_stdout(&script)?;
    Ok(Answer::Yes)
}
