//! The plan as text: for each mesh its readiness, nodes, problems and changes.

use std::collections::BTreeMap;

use anyhow::Result;
use mw_core::kilo::plan::{Changes, MeshPlan};
use mw_core::kilo::view::{ClusterView, MeshView, NodeView, Role};
use mw_core::names::{ClusterId, MeshId};
use mw_core::problem::{Problem, Reason};
use mw_core::text::printable;

use crate::input::kilo::meshes::Declared;
use crate::output::kilo::diff::diff;
use crate::output::kilo::matrix::Matrix;
use crate::output::layout::{Cell, WIDTH, mean, rows, styled, wrapped};
use crate::output::{Planned, write_styled};

/// Clusters with more nodes show only a count per role.
const MOST_NODES: usize = 12;

const MOST_PROBLEMS: usize = 50;

pub(crate) fn write(planned: &Planned<'_>) -> Result<()> {
    let mut text = String::new();
    for (id, mesh) in &planned.plan.meshes {
        text.push_str(&mesh_text(planned, id, mesh));
        text.push('\n');
    }
    text.push_str(&without_mesh(planned));
    text.push_str(&summary(planned));
    write_styled(&text).map(drop)
}

fn mesh_text(planned: &Planned<'_>, id: &MeshId, mesh: &MeshPlan) -> String {
    let view = MeshView::of(id, mesh);
    let mut text = headline(&view);
    let held = mesh
        .targets
        .values()
        .any(|changes| !changes.held.is_empty());
    let idle = !mesh.has_changes() && !held;
    let keep: usize = mesh.targets.values().map(|changes| changes.keep).sum();
    let skips = mesh
        .clusters
        .values()
        .any(|cluster| !cluster.skipped.is_empty() || !cluster.held.is_empty());
    if idle && !skips && mesh.problems.is_empty() {
        return text + &format!("  nothing to do: {}\n", unchanged(keep));
    }
    let refused = mesh
        .problems
        .iter()
        .any(|problem| matches!(problem.reason, Reason::InvalidSpec | Reason::CIDROverlap));
    if !view.clusters.is_empty() {
        text.push('\n');
        text.push_str(&Matrix::of_view(&view).text());
        text.push('\n');
        text.push_str(&nodes(&view.clusters));
    }
    let declared = planned.declared.get(id);
    text.push_str(&problems(&view.problems, |problem| {
        declared
            .filter(|_| Declared::is_about_the_file(problem))
            .map(|mesh| mesh.written.place(problem))
    }));
    match idle {
        true if refused => text.push_str(&format!(
            "\n  nothing is changed until this is fixed: {}\n",
            unchanged(keep)
        )),
        true => text.push_str(&format!("\n  nothing to do: {}\n", unchanged(keep))),
        false => text.push_str(&changes(planned, &mesh.targets)),
    }
    text
}

fn unchanged(keep: usize) -> String {
    match keep {
        0 => "this mesh has no Peers".to_owned(),
        1 => "1 Peer unchanged".to_owned(),
        _ => format!("{keep} Peers unchanged"),
    }
}

fn headline(view: &MeshView) -> String {
    let title = styled(
        &format!("mesh {}", printable(&view.mesh.to_string(), 320)),
        mean::title(),
    );
    let Some(ready) = &view.ready else {
        return format!("{title}\n");
    };
    let (state, style) = match (ready.status, ready.reason) {
        (true, _) => ("ready", mean::good()),
        (false, "Progressing") => ("not ready", mean::changed()),
        (false, _) => ("not ready", mean::bad()),
    };
    format!(
        "{title}  {}\n",
        styled(&format!("{state} ({})", ready.reason), style)
    )
}

fn nodes(clusters: &[ClusterView]) -> String {
    let mut table = Vec::new();
    for cluster in clusters {
        let mut lines = match &cluster.unknown {
            Some(why) => vec![vec![
                Cell::new("unknown", mean::faint()),
                Cell::plain(printable(why, 200)),
            ]],
            None if cluster.nodes.is_empty() => vec![vec![Cell::new("no nodes", mean::faint())]],
            None if cluster.nodes.len() > MOST_NODES => collapsed(&cluster.nodes),
            None => cluster.nodes.iter().map(node).collect(),
        };
        let mut name = cluster.name.to_string();
        for line in &mut lines {
            line.insert(0, Cell::plain(std::mem::take(&mut name)));
        }
        table.extend(lines);
    }
    rows(&table, 2)
}

fn node(node: &NodeView) -> Vec<Cell> {
    let name = printable(node.name.as_str(), 253);
    match &node.role {
        Role::Skipped(skip) => {
            let why = format!("{}: {}", skip.reason, printable(&skip.message, 300));
            vec![role(&node.role), Cell::plain(name), Cell::plain(why)]
        }
        Role::Carried(Some(by)) => {
            vec![
                role(&node.role),
                Cell::plain(name),
                Cell::new(format!("by {}", printable(by.as_str(), 253)), mean::faint()),
            ]
        }
        Role::Carried(None) => vec![
            role(&node.role),
            Cell::plain(name),
            Cell::new("by no node: its leader has no Peer", mean::bad()),
        ],
        Role::Held => vec![
            role(&node.role),
            Cell::plain(name),
            Cell::new("its Peer is kept for now", mean::faint()),
        ],
        Role::Anchor | Role::Peer => vec![role(&node.role), Cell::plain(name)],
    }
}

fn role(role: &Role) -> Cell {
    match role {
        Role::Anchor => Cell::new("anchor", mean::good()),
        Role::Peer => Cell::new("peer", mean::good()),
        Role::Carried(_) => Cell::new("carried", mean::good()),
        Role::Held => Cell::new("held", mean::changed()),
        Role::Skipped(_) => Cell::new("skipped", mean::bad()),
    }
}

/// Number of nodes per role. Skipped nodes are still listed with their reasons.
fn collapsed(all: &[NodeView]) -> Vec<Vec<Cell>> {
    let count = |of: fn(&Role) -> bool| all.iter().filter(|node| of(&node.role)).count();
    let counts = [
        (Role::Peer, count(|role| matches!(role, Role::Peer))),
        (
            Role::Carried(None),
            count(|role| matches!(role, Role::Carried(_))),
        ),
        (Role::Held, count(|role| matches!(role, Role::Held))),
    ];
    let anchors = all
        .iter()
        .filter(|node| matches!(node.role, Role::Anchor))
        .map(self::node);
    let sums = counts
        .iter()
        .filter(|(_, n)| *n > 0)
        .map(|(of, n)| vec![role(of), Cell::plain(format!("{n} nodes"))]);
    let skipped = all
        .iter()
        .filter(|node| matches!(node.role, Role::Skipped(_)))
        .map(self::node);
    anchors.chain(sums).chain(skipped).collect()
}

/// Errors first, each with its hint. Problems in a file get their place instead, since the hint was
/// already printed with the file.
pub(crate) fn problems(all: &[Problem], place: impl Fn(&Problem) -> Option<String>) -> String {
    let mut sorted: Vec<&Problem> = all.iter().collect();
    sorted.sort_by_key(|problem| !problem.is_error());
    let mut text = String::new();
    for problem in sorted.iter().take(MOST_PROBLEMS) {
        let (word, style) = if problem.is_error() {
            ("error", mean::bad())
        } else {
            ("warning", mean::changed())
        };
        let about = printable(problem.subject.trim_end_matches('.'), 300);
        let message = printable(&problem.message, 600);
        let about = if message.starts_with(&format!("{about}:")) {
            String::new()
        } else {
            format!("{about}: ")
        };
        let said = format!("{word}: {}  {about}{message}", problem.reason);
        let said = wrapped(&said, 4, WIDTH);
        text.push_str(&format!(
            "\n  {}{}\n",
            styled(word, style),
            said.strip_prefix(word).unwrap_or(&said)
        ));
        match place(problem) {
            Some(place) => text.push_str(&format!("    in {place}\n")),
            // Not wrapped: it may be a command to copy.
            None if !problem.hint.is_empty() => {
                text.push_str(&format!("    hint: {}\n", printable(&problem.hint, 600)))
            }
            None => {}
        }
    }
    if all.len() > MOST_PROBLEMS {
        text.push_str(&format!(
            "\n  … and {} more (use -o json)\n",
            all.len() - MOST_PROBLEMS
        ));
    }
    text
}

fn changes(planned: &Planned<'_>, targets: &BTreeMap<ClusterId, Changes>) -> String {
    let mut text = String::new();
    for (target, changes) in targets
        .iter()
        .filter(|(_, changes)| !changes.is_empty() || !changes.held.is_empty())
    {
        text.push_str(&format!(
            "\n  {}\n",
            styled(&format!("on {target}"), mean::title())
        ));
        text.push_str(&diff(changes, planned.fleet.get(target.as_str())));
    }
    text
}

/// Changes of orphans, and problems that belong to no mesh.
fn without_mesh(planned: &Planned<'_>) -> String {
    let plan = planned.plan;
    if plan.orphans.is_empty() && plan.problems.is_empty() {
        return String::new();
    }
    let title = styled("Peers of meshes that do not exist", mean::title());
    format!(
        "{title}\n{}{}\n",
        problems(&plan.problems, |_| None),
        changes(planned, &plan.orphans)
    )
}

fn summary(planned: &Planned<'_>) -> String {
    let plan = planned.plan;
    let all: Vec<&Changes> = plan
        .meshes
        .values()
        .flat_map(|mesh| mesh.targets.values())
        .chain(plan.orphans.values())
        .collect();
    let sum = |of: fn(&Changes) -> usize| all.iter().map(|changes| of(changes)).sum::<usize>();
    let text = format!(
        "Plan: {} to create, {} to update, {} to delete, {} held, {} unchanged.",
        sum(|changes| changes.create.len()),
        sum(|changes| changes.update.len()),
        sum(|changes| changes.delete.len()),
        sum(|changes| changes.held.len()),
        sum(|changes| changes.keep),
    );
    format!("{}\n", styled(&text, mean::title()))
}
