//! `meshwright completions`

use anyhow::Result;
use clap_complete::Shell;

use crate::exit_code::Answer;
use crate::output::write_stdout;

/// Print a shell completion script.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: meshwright completions bash > /etc/bash_completion.d/meshwright")]
pub(crate) struct Args {
    /// Generate the script for this shell.
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> Result<Answer> {
    // Buffered because clap_complete panics when a write fails.
    let mut script = Vec::new();
    clap_complete::generate(
        args.shell,
        &mut crate::cli::command(),
        "meshwright",
        &mut script,
    );
    write_stdout(&script)?;
    Ok(Answer::Yes)
}
