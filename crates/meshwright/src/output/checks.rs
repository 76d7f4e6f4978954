//! Text and data of `doctor`: all checks by layer, then the failures with the commands that fix
//! them.

use mw_controller::doctor::{Check, State};
use serde::Serialize;

use crate::output::layout::{Cell, WIDTH, mean, rows, styled, wrapped};

pub(crate) fn text(checks: &[Check]) -> String {
    let mut table = Vec::new();
    let mut before = None;
    for check in checks {
        let layer = if before == Some(check.layer) {
            ""
        } else {
            check.layer.as_str()
        };
        before = Some(check.layer);
        let (word, style) = match check.state {
            State::Fine => ("ok", mean::good()),
            State::Failed => ("FAILED", mean::bad()),
            State::NotChecked => ("not checked", mean::faint()),
        };
        let observed = match check.state {
            State::NotChecked => Cell::new(check.observed.as_str(), mean::faint()),
            _ => Cell::plain(check.observed.as_str()),
        };
        table.push(vec![
            Cell::new(layer, mean::title()),
            Cell::plain(check.subject.as_str()),
            Cell::new(word, style),
            observed,
        ]);
    }
    rows(&table, 0) + &repairs(checks) + &not_checked(checks) + &summary(checks)
}

/// Failures, in the order in which they should be fixed.
fn repairs(checks: &[Check]) -> String {
    let mut text = String::new();
    for check in checks.iter().filter(|check| check.state == State::Failed) {
        let what = wrapped(
            &format!("{} of {}: {}", check.layer, check.subject, check.observed),
            2,
            WIDTH,
        );
        text.push_str(&format!("\n{}\n", styled(&what, mean::bad())));
        // Not wrapped, so that it can be copied.
        text.extend(
            check
                .repair
                .iter()
                .map(|command| format!("  fix: {command}\n")),
        );
        text.extend(check.hint.iter().map(|hint| format!("  hint: {hint}\n")));
    }
    text
}

/// Checks that could not run but have a next step.
fn not_checked(checks: &[Check]) -> String {
    let mut text = String::new();
    for check in checks
        .iter()
        .filter(|check| check.state == State::NotChecked)
    {
        let Some(hint) = &check.hint else { continue };
        let what = format!(
            "{} of {} not checked: {}",
            check.layer, check.subject, check.observed
        );
        // The hint may contain a command, so it is not wrapped.
        text.push_str(&format!("\n{}\n  hint: {hint}\n", wrapped(&what, 2, WIDTH)));
    }
    text
}

fn summary(checks: &[Check]) -> String {
    let Count {
        fine,
        failed,
        not_checked,
    } = Count::of(checks);
    format!(
        "\n{}\n",
        styled(
            &format!("{fine} ok, {failed} failed, {not_checked} not checked"),
            mean::title()
        )
    )
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Count {
    fine: usize,
    failed: usize,
    not_checked: usize,
}

impl Count {
    fn of(checks: &[Check]) -> Count {
        let count = |state: State| checks.iter().filter(|check| check.state == state).count();
        Count {
            fine: count(State::Fine),
            failed: count(State::Failed),
            not_checked: count(State::NotChecked),
        }
    }
}

/// Data for JSON and YAML.
#[derive(Debug, Serialize)]
pub(crate) struct Report<'a> {
    checks: Vec<Row<'a>>,
    summary: Count,
}

#[derive(Debug, Serialize)]
struct Row<'a> {
    layer: &'a str,
    subject: &'a str,
    state: &'a str,
    observed: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    repair: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
}

impl<'a> Report<'a> {
    pub(crate) fn of(checks: &'a [Check]) -> Report<'a> {
        let row = |check: &'a Check| Row {
            layer: check.layer.as_str(),
            subject: &check.subject,
            state: match check.state {
                State::Fine => "fine",
                State::Failed => "failed",
                State::NotChecked => "notChecked",
            },
            observed: &check.observed,
            repair: check.repair.as_deref(),
            hint: check.hint.as_deref(),
        };
        Report {
            checks: checks.iter().map(row).collect(),
            summary: Count::of(checks),
        }
    }
}
