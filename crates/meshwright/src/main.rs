//! Command-line entry point: arguments, files, output and exit codes. Planning is in `mw_core`.

mod cli;
mod commands;
mod demo;
mod exit_code;
mod input;
mod output;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
