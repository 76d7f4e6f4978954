//! Writes plans and status to standard output, as text, JSON or YAML.

mod checks;
pub(crate) mod cilium;
pub(crate) mod kilo;
pub(crate) mod layout;
pub(crate) mod presence;
pub(crate) mod reference;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};

use anyhow::{Context, Result};
use clap::ValueEnum;
use mw_controller::cilium::Endpoints;
use mw_controller::doctor::Check;
use mw_core::kilo::plan::Plan;
use mw_core::names::MeshId;
use serde::Serialize;

use crate::input::kilo::dumps::Fleet;
use crate::input::kilo::meshes::Declared;
use kilo::report::Report;
use kilo::status::Overview;
use kilo::status_report::StatusReport;

/// A plan and its input.
#[derive(Debug)]
pub(crate) struct Planned<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) fleet: &'a Fleet,
    pub(crate) declared: &'a BTreeMap<MeshId, Declared>,
}

/// Output format.
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
        Format::Table => kilo::text::write(planned),
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

/// Returns false if the output was closed.
pub(crate) fn write_status(state: &State<'_>, format: Format) -> Result<bool> {
    let report = || StateReport {
        endpoints: state.endpoints.map(cilium::endpoints::report),
        kilo: state.kilo.as_ref().map(StatusReport::of),
        cilium: state.cilium.map(cilium::status_report::StatusReport::of),
    };
    match format {
        Format::Table => {
            let (kilo, cilium) = (&state.kilo, state.cilium);
            // A back end without objects is hidden if the other one is in use.
            let cilium =
                cilium.filter(|of| kilo.is_none() || !of.published_status.objects.is_empty());
            let kilo = kilo.as_ref().filter(|overview| {
                cilium.is_none() || !overview.published_status.objects.is_empty()
            });
            let endpoints = state.endpoints.map(cilium::endpoints::text);
            let texts = [
                endpoints,
                kilo.map(kilo::status::text),
                cilium.map(|of| {
                    cilium::status::text(of.published_status) + &cilium::status::seen_from_here(of)
                }),
            ];
            write_styled(&texts.into_iter().flatten().collect::<Vec<_>>().join("\n"))
        }
        Format::Json => write_json(&report()),
        Format::Yaml => write_yaml(&report()),
    }
}

/// Status of the back ends whose CRDs are installed on the hub.
#[derive(Debug, Default)]
pub(crate) struct State<'a> {
    pub(crate) kilo: Option<Overview<'a>>,
    pub(crate) cilium: Option<cilium::Overview<'a>>,
    pub(crate) endpoints: Option<&'a Endpoints>,
}

#[derive(Debug, Serialize)]
struct StateReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoints: Option<Vec<cilium::endpoints::Endpoint>>,
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
    let text =
        serde_json::to_string_pretty(value).context("cannot serialize the result to JSON")?;
    written(
        std::io::stdout().lock(),
        &format!("{}\n", escape_controls(&text)),
    )
}

fn write_yaml(value: &impl Serialize) -> Result<bool> {
    let text = mw_api::crd::to_yaml(value).context("cannot serialize the result to YAML")?;
    written(std::io::stdout().lock(), &text)
}

/// Writes text, with colours on terminals only. Returns false if the output was closed.
pub(crate) fn write_styled(text: &str) -> Result<bool> {
    written(anstream::stdout().lock(), text)
}

/// Escapes control characters that JSON allows in strings, but that a terminal would act on.
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

/// Treats a closed pipe as the end of the output, not as an error.
fn still_read(written: std::io::Result<()>) -> Result<bool> {
    match written {
        Err(wrong) if wrong.kind() == ErrorKind::BrokenPipe => Ok(false),
        other => other
            .map(|()| true)
            .context("cannot write to standard output"),
    }
}
