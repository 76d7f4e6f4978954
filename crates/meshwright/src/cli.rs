//! Argument parsing and command dispatch.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Command, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands::cilium::provider;
use crate::commands::kilo::operator;
use crate::commands::{completions, crd, demo, doctor, explain, man, plan, rbac, status};
use crate::exit_code::Answer;

/// Connects Kubernetes clusters into one network and keeps them connected as nodes come and go.
#[derive(Debug, Parser)]
#[command(
    name = "meshwright",
    version,
    max_term_width = 100,
    arg_required_else_help = true
)]
#[command(after_help = "Exit codes: 0 success; 1 changes pending or problems found; 2 error.")]
struct Cli {
    #[command(subcommand)]
    command: Chosen,
}

#[derive(Debug, Subcommand)]
enum Chosen {
    Operator(operator::Args),
    Provider(Box<provider::Args>),
    Plan(plan::Args),
    Status(status::Args),
    Doctor(doctor::Args),
    Demo(demo::Args),
    Explain(explain::Args),
    Crd(crd::Args),
    Rbac(rbac::Args),
    Completions(completions::Args),
    Man(man::Args),
}

/// The clap command, also used to generate completions, man pages and docs.
pub(crate) fn command() -> Command {
    Cli::command()
}

pub(crate) fn run() -> ExitCode {
    let matches =
        match invoked_as(std::env::args_os().next().as_deref().map(Path::new)).try_get_matches() {
            Ok(matches) => matches,
            // Also handles --help and --version: clap picks the stream and exit code.
            Err(usage) => usage.exit(),
        };
    let chosen = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli.command,
        Err(usage) => usage.exit(),
    };
    match dispatch(chosen) {
        Ok(answer) => answer.into(),
        Err(wrong) => {
            // If stderr is closed too, the error cannot be reported.
            _ = writeln!(
                anstream::stderr(),
                "error: {}",
                mw_core::text::printable(&format!("{wrong:#}"), 2000)
            );
            Answer::Impossible.into()
        }
    }
}

fn dispatch(chosen: Chosen) -> Result<Answer> {
    match chosen {
        Chosen::Operator(args) => operator::run(args),
        Chosen::Provider(args) => provider::run(*args),
        Chosen::Plan(args) => plan::run(&args),
        Chosen::Status(args) => status::run(&args),
        Chosen::Doctor(args) => doctor::run(&args),
        Chosen::Demo(args) => demo::run(&args),
        Chosen::Explain(args) => explain::run(&args),
        Chosen::Crd(args) => crd::run(&args),
        Chosen::Rbac(args) => rbac::run(&args),
        Chosen::Completions(args) => completions::run(&args),
        Chosen::Man(args) => man::run(&args),
    }
}

/// Adjusts usage texts when run as a kubectl plugin: `kubectl-x` is typed as `kubectl x`.
fn invoked_as(program: Option<&Path>) -> Command {
    let plugin = program
        .and_then(Path::file_stem)
        .and_then(|name| name.to_str())
        .and_then(|name| name.strip_prefix("kubectl-"));
    match plugin {
        Some(name) => command()
            .bin_name(format!("kubectl {name}"))
            .display_name(format!("kubectl {name}")),
        None => command(),
    }
}
