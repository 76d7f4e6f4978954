//! Markdown reference of all commands and flags: docs/cli.md.

use clap::{Arg, ArgAction, Command};

const HEAD: &str = "\
<!-- Generated from the command line by `make generate`. Do not edit. -->

# The command line

Results go to standard output, everything else to standard error. Colour is used on terminals only; NO_COLOR disables it.
Installed as `kubectl-meshwright`, the program is a kubectl plugin: `kubectl meshwright status`.

";

pub(crate) fn reference(mut command: Command) -> String {
    command.build();
    let mut page = HEAD.to_owned();
    page.push_str(&paragraph(
        command.get_after_help().map(ToString::to_string),
    ));
    for of in command
        .get_subcommands()
        .filter(|of| !of.is_hide_set() && of.get_name() != "help")
    {
        page.push_str(&section(&mut of.clone()));
    }
    format!("{}\n", page.trim_end())
}

fn section(of: &mut Command) -> String {
    let usage = of.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let mut text = format!("## {}\n\n", of.get_bin_name().unwrap_or_default());
    text.push_str(&paragraph(of.get_about().map(|about| format!("{about}."))));
    text.push_str(&format!("```text\n{usage}\n```\n\n"));
    let mut shown: Vec<&Arg> = of
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && arg.get_id() != "help")
        .collect();
    shown.sort_by_key(|arg| (!arg.is_positional(), arg.get_long()));
    if !shown.is_empty() {
        text.push_str("| | default | |\n|---|---|---|\n");
        shown.iter().for_each(|arg| text.push_str(&row(arg)));
        text.push('\n');
    }
    if let Some(after) = of.get_after_help() {
        text.push_str(&format!("```text\n{}\n```\n\n", after.to_string().trim()));
    }
    text
}

fn row(arg: &Arg) -> String {
    let takes = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    let value = arg
        .get_value_names()
        .into_iter()
        .flatten()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(" ");
    let flag = match (arg.get_short(), arg.get_long()) {
        (_, None) => value.clone(),
        (None, Some(long)) => format!("--{long}"),
        (Some(short), Some(long)) => format!("-{short}, --{long}"),
    };
    let flag = if takes && !arg.is_positional() {
        format!("{flag} {value}")
    } else {
        flag
    };
    let values = arg
        .get_default_values()
        .iter()
        .filter(|_| takes)
        .map(|value| format!("`{}`", value.to_string_lossy()));
    let default = values.collect::<Vec<_>>().join(" ");
    let mut help = arg
        .get_help()
        .map(|help| help.to_string().replace('\n', " "))
        .unwrap_or_default();
    let choices = arg
        .get_possible_values()
        .into_iter()
        .filter(|choice| takes && !choice.is_hide_set());
    let choices: Vec<String> = choices
        .map(|choice| format!("`{}`", choice.get_name()))
        .collect();
    if !choices.is_empty() {
        help = format!("{help}. One of {}", choices.join(", "));
    }
    if let Some(variable) = arg.get_env() {
        help = format!("{help}. Environment: `{}`", variable.to_string_lossy());
    }
    format!(
        "| `{}` | {default} | {} |\n",
        flag.trim(),
        help.replace('|', "\\|")
    )
}

fn paragraph(text: Option<String>) -> String {
    text.map(|text| format!("{}\n\n", text.trim()))
        .unwrap_or_default()
}
