//! The arguments, parsed once, and the way from them to a command.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Command, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::answer::Answer;
use crate::commands::{completions, crd, demo, doctor, explain, man, operator, plan, provider, rbac, status};

/// Makes many Kubernetes clusters one network and keeps them so.
#[derive(Debug, Parser)]
#[command(name = "meshwright", version, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 fine; 1 the answer is no (changes pending, something is wrong); 2 could not be done.")]
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

/// The command line as it is, for what is generated from it.
pub(crate) fn command() -> Command {
    Cli::command()
}

pub(crate) fn run() -> ExitCode {
    let matches = match invoked_as(std::env::args_os().next().as_deref().map(Path::new)).try_get_matches() {
        Ok(matches) => matches,
        // Covers --help and --version too: clap knows which stream and code.
        Err(usage) => usage.exit(),
    };
    let chosen = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli.command,
        Err(usage) => usage.exit(),
    };
    match dispatch(chosen) {
        Ok(answer) => answer.into(),
        Err(wrong) => {
            // Nobody is left to tell when stderr is gone as well.
            _ = writeln!(anstream::stderr(), "error: {}", mw_core::text::printable(&format!("{wrong:#}"), 2000));
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

/// kubectl runs a plugin under the name of its file; people type it in two words.
fn invoked_as(program: Option<&Path>) -> Command {
    let plugin = program.and_then(Path::file_stem).and_then(|name| name.to_str()).and_then(|name| name.strip_prefix("kubectl-"));
    match plugin {
        Some(name) => command().bin_name(format!("kubectl {name}")).display_name(format!("kubectl {name}")),
        None => command(),
    }
}
