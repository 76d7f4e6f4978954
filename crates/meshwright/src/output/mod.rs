//! A plan on standard output: as data, or as text for people.

mod diff;
mod layout;
mod report;
pub(crate) mod text;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};

use anyhow::{Context, Result};
use mw_core::kilo::plan::Plan;
use mw_core::names::MeshId;

use crate::input::fleet::Fleet;
use crate::input::meshes::Declared;
use report::Report;

/// A plan and what it was made from.
#[derive(Debug)]
pub(crate) struct Planned<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) fleet: &'a Fleet,
    pub(crate) declared: &'a BTreeMap<MeshId, Declared>,
}

pub(crate) fn write_json(planned: &Planned<'_>) -> Result<()> {
    let text = serde_json::to_string_pretty(&Report::of(planned)).context("the plan has no JSON form")?;
    write_stdout(escape_controls(&text).as_bytes())?;
    write_stdout(b"\n")
}

pub(crate) fn write_yaml(planned: &Planned<'_>) -> Result<()> {
    let text = mw_api::crd::to_yaml(&Report::of(planned)).context("the plan has no YAML form")?;
    write_stdout(text.as_bytes())
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

/// Whoever closes the pipe has read enough: that is no error.
pub(crate) fn write_stdout(bytes: &[u8]) -> Result<()> {
    quiet_if_closed(std::io::stdout().lock().write_all(bytes).and_then(|()| std::io::stdout().flush()))
}

fn quiet_if_closed(written: std::io::Result<()>) -> Result<()> {
    match written {
        Err(wrong) if wrong.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other.context("standard output could not be written to"),
    }
}
