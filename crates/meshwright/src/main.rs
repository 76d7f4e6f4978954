//! The command line: arguments, files, printing, exit codes. What is planned
//! and why is the core's business.

mod answer;
mod cli;
mod commands;
mod demo;
mod input;
mod output;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
