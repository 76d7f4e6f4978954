//! Plans and status on standard output: as data, or as text for people.

mod checks;
pub(crate) mod cilium;
mod diff;
pub(crate) mod layout;
mod matrix;
pub(crate) mod presence;
pub(crate) mod reference;
mod report;
pub(crate) mod status;
mod status_report;
pub(crate) mod text;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};

use anyhow::{Context, Result};
use clap::ValueEnum;
use mw_core::kilo::plan::Plan;
use mw_core::names::MeshId;
use mw_operator::cilium::ObjectGlance;
use mw_operator::doctor::Check;
use mw_operator::glance::Glance;
use serde::Serialize;

use crate::input::fleet::Fleet;
use crate::input::meshes::Declared;
use report::Report;
use status::Overview;
use status_report::StatusReport;

/// A plan and what it was made from.
#[derive(Debug)]
pub(crate) struct Planned<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) fleet: &'a Fleet,
    pub(crate) declared: &'a BTreeMap<MeshId, Declared>,
}

/// How a result is printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    #[default]
    #[value(alias = "text")]
    Table,
    Json,
    Yaml,
}

pub(crate) fn write_plan(planned: &Planned<'_>, format: Format) -> Result<()> {
    match format {
        Format::Table => text::write(planned),
        Format::Json => write_json(&Report::of(planned)).map(drop),
        Format::Yaml => write_yaml(&Report::of(planned)).map(drop),
    }
}

pub(crate) fn write_cilium_plan(planned: &cilium::Planned<'_>, format: Format) -> Result<()> {
    match format {
        Format::Table => write_styled(&cilium::text::text(planned)).map(drop),
        Format::Json => write_json(&cilium::report::Report::of(planned)).map(drop),
        Format::Yaml => write_yaml(&cilium::report::Report::of(planned)).map(drop),
    }
}

/// False when nobody reads any more.
pub(crate) fn write_status(state: &State<'_>, format: Format) -> Result<bool> {
    let report = || StateReport {
        kilo: state.kilo.as_ref().map(StatusReport::of),
        cilium: state.cilium.map(cilium::status_report::StatusReport::of),
    };
    match format {
        Format::Table => {
            let (kilo, cilium) = (&state.kilo, state.cilium);
            // Kinds that the hub has, but nobody uses, say nothing beside those in use.
            let cilium = cilium.filter(|glance| kilo.is_none() || !glance.objects.is_empty());
            let kilo = kilo.as_ref().filter(|overview| cilium.is_none() || !overview.glance.objects.is_empty());
            let texts = [kilo.map(status::text), cilium.map(cilium::status::text)];
            write_styled(&texts.into_iter().flatten().collect::<Vec<_>>().join("\n"))
        }
        Format::Json => write_json(&report()),
        Format::Yaml => write_yaml(&report()),
    }
}

/// Both back ends, as far as the hub has their kinds.
#[derive(Debug, Default)]
pub(crate) struct State<'a> {
    pub(crate) kilo: Option<Overview<'a>>,
    pub(crate) cilium: Option<&'a Glance<ObjectGlance>>,
}

#[derive(Debug, Serialize)]
struct StateReport {
    #[serde(flatten)]
    kilo: Option<StatusReport>,
    #[serde(flatten)]
    cilium: Option<cilium::status_report::StatusReport>,
}

pub(crate) fn write_checks(checks: &[Check], format: Format) -> Result<()> {
    let written = match format {
        Format::Table => write_styled(&checks::text(checks)),
        Format::Json => write_json(&checks::Report::of(checks)),
        Format::Yaml => write_yaml(&checks::Report::of(checks)),
    };
    written.map(drop)
}

fn write_json(value: &impl Serialize) -> Result<bool> {
    let text = serde_json::to_string_pretty(value).context("it has no JSON form")?;
    written(std::io::stdout().lock(), &format!("{}\n", escape_controls(&text)))
}

fn write_yaml(value: &impl Serialize) -> Result<bool> {
    let text = mw_api::crd::to_yaml(value).context("it has no YAML form")?;
    written(std::io::stdout().lock(), &text)
}

/// Colour is for terminals.
pub(crate) fn write_styled(text: &str) -> Result<bool> {
    written(anstream::stdout().lock(), text)
}

/// JSON need not escape all characters that a terminal acts on; here they are.
/// Outside strings there is none but the newline.
fn escape_controls(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match c.is_control() && c != '\n' {
            true => text.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => text.push(c),
        }
    }
    text
}

pub(crate) fn write_stdout(bytes: &[u8]) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    still_read(stdout.write_all(bytes).and_then(|()| stdout.flush())).map(drop)
}

fn written(mut to: impl Write, text: &str) -> Result<bool> {
    still_read(to.write_all(text.as_bytes()).and_then(|()| to.flush()))
}

/// Whoever closes the pipe has read enough: that is no error.
fn still_read(written: std::io::Result<()>) -> Result<bool> {
    match written {
        Err(wrong) if wrong.kind() == ErrorKind::BrokenPipe => Ok(false),
        other => other.map(|()| true).context("standard output could not be written to"),
    }
}
