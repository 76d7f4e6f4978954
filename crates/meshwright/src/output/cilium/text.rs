//! The plan as text: the state and problems of every object, then the changes in each cluster.

use mw_controller::cilium::Kind;
use mw_core::cilium::plan::{BindingPlan, Row};
use mw_core::condition::READY;
use mw_core::problem::Reason;
use mw_core::text::printable;
use owo_colors::Style;
use serde_json::{Value as Json, json};

use crate::output::cilium::change::{Change, Field, Mark, changes};
use crate::output::cilium::{Planned, Result, results};
use crate::output::kilo::text::problems;
use crate::output::layout::{Cell, WIDTH, mean, phase_style, rows, styled, wrapped};

/// Longer lists of changes are truncated.
const MOST_CHANGES: usize = 50;
const SHOWN_OF_MANY: usize = 20;

pub(crate) fn text(planned: &Planned<'_>) -> String {
    let mut text = String::new();
    for result in results(planned.plan) {
        text.push_str(&object(planned, &result));
        text.push('\n');
    }
    let changes = changes(planned);
    for (target, changes) in changes.iter().filter(|(_, changes)| !changes.is_empty()) {
        text.push_str(&format!(
            "{}\n{}\n",
            styled(&format!("on {target}"), mean::title()),
            listed(changes)
        ));
    }
    let count = |mark: Mark| {
        changes
            .values()
            .flatten()
            .filter(|change| change.mark == mark)
            .count()
    };
    let (create, update, delete) = (
        count(Mark::Create),
        count(Mark::Update),
        count(Mark::Delete),
    );
    let sum = format!("Plan: {create} to create, {update} to update, {delete} to delete.");
    text.push_str(&format!("{}\n", styled(&sum, mean::title())));
    for note in planned.notes {
        text.push_str(&format!("note: {}\n", wrapped(note, 6, WIDTH)));
    }
    text
}

fn object(planned: &Planned<'_>, result: &Result<'_>) -> String {
    let Result {
        kind,
        id,
        phase,
        conditions,
        problems: wrong,
    } = result;
    let name = format!(
        "{} {}",
        kind.as_str(),
        printable(&format!("{}/{}", id.namespace, id.name), 320)
    );
    let ready = conditions.iter().find(|condition| condition.kind == READY);
    let reason = ready
        .filter(|ready| ready.reason != *phase)
        .map(|ready| format!(" ({})", ready.reason))
        .unwrap_or_default();
    let mut text = format!(
        "{}  {}\n",
        styled(&name, mean::title()),
        styled(&format!("{phase}{reason}"), phase_style(phase))
    );
    let binding = planned
        .plan
        .bindings
        .get(id)
        .filter(|_| *kind == Kind::Binding);
    text.push_str(&binding.map(clusters).unwrap_or_default());
    let declared = planned.objects.get(&(*kind, (*id).clone()));
    text.push_str(&problems(wrong, |problem| {
        declared
            .filter(|_| problem.reason == Reason::InvalidSpec)
            .map(|declared| declared.written.place(problem))
    }));
    text
}

fn clusters(binding: &BindingPlan) -> String {
    let head = ["cluster", "id", "agents", "links"]
        .map(|title| Cell::new(title, mean::faint()))
        .to_vec();
    let row = |row: &Row| {
        let links = match row.connected {
            true => Cell::new("verified", mean::good()),
            false => Cell::new("not verified", mean::changed()),
        };
        let id = row.id.map_or_else(|| "-".to_owned(), |id| id.to_string());
        let agents = format!("{}/{} ready", row.ready_nodes, row.total_nodes);
        vec![
            Cell::plain(printable(&row.cluster, 253)),
            Cell::plain(id),
            Cell::plain(agents),
            links,
        ]
    };
    let table: Vec<Vec<Cell>> = std::iter::once(head)
        .chain(binding.rows.iter().map(row))
        .collect();
    if binding.rows.is_empty() {
        String::new()
    } else {
        rows(&table, 2)
    }
}

fn listed(changes: &[Change]) -> String {
    let shown = if changes.len() > MOST_CHANGES {
        SHOWN_OF_MANY
    } else {
        changes.len()
    };
    let mut text: String = changes.iter().take(shown).map(change).collect();
    if changes.len() > shown {
        text.push_str(&format!(
            "  … and {} more (use -o json)\n",
            changes.len() - shown
        ));
    }
    text
}

fn change(change: &Change) -> String {
    let (mark, style) = match change.mark {
        Mark::Create => ("+", mean::good()),
        Mark::Update => ("~", mean::changed()),
        Mark::Delete => ("-", mean::bad()),
    };
    let name = match &change.namespace {
        Some(namespace) => format!("{namespace}/{}", change.name),
        None => change.name.clone(),
    };
    let from = change
        .from
        .as_ref()
        .map(|from| format!("  (copied from {from})"))
        .unwrap_or_default();
    let title = printable(&format!("{mark} {} {name}{from}", change.kind), 700);
    let mut text = format!("  {}\n", styled(&title, style));
    let is_policy = change.before.is_some() || change.after.is_some();
    if change.mark == Mark::Update && change.fields.is_empty() && !is_policy {
        text.push_str("      values stay the same; only field ownership changes\n");
    }
    let width = change
        .fields
        .iter()
        .map(|field| field.name.chars().count())
        .max()
        .unwrap_or_default();
    change
        .fields
        .iter()
        .for_each(|of| text.push_str(&field(of, width)));
    let lines = |policy: &Option<Json>| -> Vec<String> {
        let spec = policy.as_ref().map(|policy| json!({ "labels": policy.pointer("/metadata/labels"), "spec": policy.get("spec") }));
        let yaml = spec
            .and_then(|spec| mw_api::crd::to_yaml(&spec).ok())
            .unwrap_or_default();
        yaml.lines().map(str::to_owned).collect()
    };
    text + &differing(&lines(&change.before), &lines(&change.after))
}

fn line(mark: &str, text: &str, style: Style) -> String {
    format!(
        "      {}\n",
        styled(printable(&format!("{mark} {text}"), 2000).trim_end(), style)
    )
}

fn field(field: &Field, width: usize) -> String {
    let name = &field.name;
    match (&field.before, &field.after) {
        (Some(_), Some(_)) if field.is_secret() => line("~", name, mean::changed()),
        (_, Some(_)) if field.is_secret() => line("+", name, mean::good()),
        (Some(_), _) if field.is_secret() => line("-", name, mean::bad()),
        (before, after) => {
            let of = |mark: &str, value: &Option<String>, style: Style| {
                value
                    .as_ref()
                    .map(|value| line(mark, &format!("{name:<width$}  {value}"), style))
                    .unwrap_or_default()
            };
            of("-", before, mean::bad()) + &of("+", after, mean::good())
        }
    }
}

/// Lines that differ, between the common head and tail.
fn differing(before: &[String], after: &[String]) -> String {
    if before.is_empty() {
        return after
            .iter()
            .map(|text| line(" ", text, Style::new()))
            .collect();
    }
    let head = before
        .iter()
        .zip(after)
        .take_while(|(one, other)| one == other)
        .count();
    let most = before.len().min(after.len()) - head;
    let tail = before
        .iter()
        .rev()
        .zip(after.iter().rev())
        .take(most)
        .take_while(|(one, other)| one == other)
        .count();
    let middle = |lines: &[String]| {
        lines
            .iter()
            .skip(head)
            .take(lines.len() - head - tail)
            .cloned()
            .collect::<Vec<_>>()
    };
    let gone = middle(before)
        .into_iter()
        .map(|text| line("-", &text, mean::bad()));
    gone.chain(
        middle(after)
            .into_iter()
            .map(|text| line("+", &text, mean::good())),
    )
    .collect()
}
