//! The status of meshes for people: is there an operator, is each mesh ready,
//! how is each cluster, who reaches whom, who takes no part.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use mw_api::clustermesh::{ClusterStatus, MOST_SKIPPED, SkippedNode};
use mw_core::kilo::view::{MeshView, PairState};
use mw_core::names::MeshId;
use mw_core::text::printable;
use mw_core::time::Timestamp;
use mw_operator::glance::Glance;
use mw_operator::kilo::MeshGlance;

use crate::output::layout::{Cell, mean, rows, styled};
use crate::output::matrix::Matrix;
use crate::output::presence::{Presence, Told, Verdict, age, at, presence, presence_words, trouble};

/// What is shown, and what a look of our own made of it.
#[derive(Debug)]
pub(crate) struct Overview<'a> {
    pub(crate) glance: &'a Glance<MeshGlance>,
    /// Empty unless we looked.
    pub(crate) views: &'a BTreeMap<MeshId, MeshView>,
}

impl Verdict {
    pub(crate) fn of(mesh: &MeshGlance) -> Verdict {
        let told = Told {
            conditions: mesh.status.conditions.as_deref().unwrap_or_default(),
            of: mesh.status.observed_generation,
            generation: mesh.generation,
            deleting: mesh.deleting,
        };
        told.verdict("no operator has written a status yet")
    }
}

pub(crate) fn text(overview: &Overview<'_>) -> String {
    let glance = overview.glance;
    let (word, style) = match presence(glance) {
        Presence::Running => ("operator", mean::good()),
        Presence::Unknown => ("operator", mean::changed()),
        Presence::Silent => ("OPERATOR SILENT", mean::bad()),
        Presence::Absent => ("NO OPERATOR", mean::bad()),
    };
    let mut text = rows(&[vec![Cell::new(word, style), Cell::plain(presence_words(glance))]], 0);
    text.push_str(&trouble(glance));
    for mesh in &glance.objects {
        text.push('\n');
        text.push_str(&mesh_text(mesh, overview.views.get(&mesh.id), glance.now));
    }
    text
}

fn mesh_text(mesh: &MeshGlance, view: Option<&MeshView>, now: Timestamp) -> String {
    let verdict = Verdict::of(mesh);
    let mut text = headline(mesh, &verdict, now);
    text.push_str(&remarks(mesh));
    text.push('\n');
    text.push_str(&clusters(mesh, now));
    let matrix = match view {
        Some(view) => Matrix::of_view(view),
        None => told_matrix(mesh),
    };
    if matrix.names.len() > 1 {
        text.push_str(&format!("\n{}", matrix.text()));
    }
    if matrix.pairs.values().any(Option::is_none) {
        text.push_str(&format!("  {}\n", styled("? is not told by the status: `status --live` looks", mean::faint())));
    }
    text.push_str(&view.map(seen_from_here).unwrap_or_default());
    text.push_str(&skipped(mesh));
    text
}

fn headline(mesh: &MeshGlance, verdict: &Verdict, now: Timestamp) -> String {
    let title = styled(&format!("mesh {}", printable(&mesh.id.to_string(), 320)), mean::title());
    let (state, style) = match (verdict.ready, verdict.reason.as_str()) {
        (true, _) => ("ready", mean::good()),
        (false, "Progressing") => ("not ready", mean::changed()),
        (false, _) => ("not ready", mean::bad()),
    };
    let since = verdict.since.as_ref().map(|since| format!(" for {}", age(now, at(since)))).unwrap_or_default();
    let mut text = format!("{title}  {}{since}\n", styled(&format!("{state} ({})", printable(&verdict.reason, 100)), style));
    if !verdict.message.is_empty() {
        // Not broken: it may end in a command to copy.
        text.push_str(&format!("  {}\n", printable(&verdict.message, 1000)));
    }
    text
}

/// What else is not as it should be.
fn remarks(mesh: &MeshGlance) -> String {
    let mut text = String::new();
    if let Some(why) = &mesh.misread {
        text.push_str(&format!("  {} its spec can't be read: {}\n", styled("error", mean::bad()), printable(why, 300)));
    }
    let bad = |condition: &&Condition| match condition.type_.as_str() {
        "Ready" => false,
        "NetworksOverlap" | "ScopeLimited" => condition.status == "True",
        _ => condition.status == "False",
    };
    for condition in conditions(mesh).filter(bad) {
        let name = printable(&format!("{}={}", condition.type_, condition.status), 100);
        let message = printable(&format!("({}) {}", condition.reason, condition.message), 1000);
        text.push_str(&format!("  {} {message}\n", styled(&name, mean::changed())));
    }
    text
}

fn clusters(mesh: &MeshGlance, now: Timestamp) -> String {
    let head = ["cluster", "state", "nodes", "carried", "peers", "skipped", "anchor"];
    let mut table = vec![head.map(|title| Cell::new(title, mean::faint())).to_vec()];
    let known: BTreeMap<&str, &ClusterStatus> = statuses(mesh).map(|cluster| (cluster.name.as_str(), cluster)).collect();
    for name in names(mesh) {
        let mut row = vec![Cell::plain(printable(&name, 63))];
        match known.get(name.as_str()) {
            Some(cluster) => row.extend(cluster_row(cluster, now)),
            None => row.push(Cell::new("not in the status yet", mean::faint())),
        }
        table.push(row);
    }
    rows(&table, 2)
}

fn cluster_row(cluster: &ClusterStatus, now: Timestamp) -> Vec<Cell> {
    let number = |number: Option<i64>| Cell::plain(number.map_or_else(|| "-".to_owned(), |number| number.to_string()));
    let skipped = match cluster.skipped_nodes {
        0 => Cell::plain("0"),
        some => Cell::new(some.to_string(), mean::changed()),
    };
    let mut row = vec![
        reachable(cluster, now),
        number(cluster.nodes),
        number(cluster.carried_nodes),
        number(Some(cluster.registered_peers)),
        skipped,
        Cell::plain(cluster.anchor_node.as_ref().map_or_else(|| "-".to_owned(), |anchor| printable(anchor, 253))),
    ];
    row.extend(cluster.message.as_ref().map(|message| Cell::plain(printable(message, 500))));
    row
}

fn reachable(cluster: &ClusterStatus, now: Timestamp) -> Cell {
    match (cluster.reachable, &cluster.last_contact) {
        (Some(true), _) => Cell::new("reachable", mean::good()),
        (Some(false), Some(last)) => Cell::new(format!("unreachable for {}", age(now, at(last))), mean::bad()),
        (Some(false), None) => Cell::new("unreachable", mean::bad()),
        (None, _) => Cell::new("not told", mean::faint()),
    }
}

/// What the status says of the pairs, and no more: of a mesh that is ready,
/// that all are applied; of any, which clusters can't be read and which deletes
/// are held.
pub(crate) fn told_matrix(mesh: &MeshGlance) -> Matrix {
    let verdict = Verdict::of(mesh);
    let reachable: BTreeSet<&str> =
        statuses(mesh).filter(|cluster| cluster.reachable == Some(true)).map(|cluster| cluster.name.as_str()).collect();
    let is_reachable = |name: &str| reachable.contains(name);
    let names = names(mesh);
    Matrix::of(names.clone(), |source, target| match (is_reachable(source) && is_reachable(target), held(mesh, &names, source, target)) {
        (false, _) => Some(PairState::Unknown),
        (true, held) if held > 0 => Some(PairState::Held(held)),
        (true, _) if verdict.ready => Some(PairState::Applied),
        (true, _) => None,
    })
}

/// How many deletes of the source's Peers are held on the target. The longest
/// name that fits is the source's: one may begin like another.
fn held(mesh: &MeshGlance, names: &[String], source: &str, target: &str) -> usize {
    let of_source = |peer: &&String| {
        let rest = peer.strip_prefix(&format!("{}--", mesh.id.name)).unwrap_or_default();
        let fits = |name: &&String| rest.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with("--"));
        names.iter().filter(fits).max_by_key(|name| name.len()).is_some_and(|name| name == source)
    };
    let on_target = mesh.status.held_deletes.iter().flatten().filter(|held| held.cluster == target);
    on_target.flat_map(|held| &held.peers).filter(of_source).count()
}

/// Where our own look found something else than the operator may have.
fn seen_from_here(view: &MeshView) -> String {
    let mut table: Vec<Vec<Cell>> = Vec::new();
    for cluster in &view.clusters {
        if let Some(why) = &cluster.unknown {
            let told = vec![Cell::plain(cluster.name.as_str()), Cell::new("unknown here", mean::faint()), Cell::plain(printable(why, 300))];
            table.push(told);
        }
    }
    let ready = view.ready.as_ref().filter(|ready| !ready.status && table.is_empty());
    let found = ready.map(|ready| format!("looked at from here: {} ({})", printable(&ready.message, 1000), ready.reason));
    let found = found.map(|found| format!("\n  {found}\n")).unwrap_or_default();
    if table.is_empty() { found } else { format!("\n{}", rows(&table, 2)) }
}

fn skipped(mesh: &MeshGlance) -> String {
    let all = statuses(mesh).flat_map(|cluster| cluster.skipped.iter().flatten().map(move |node| (cluster, node)));
    let row = |(cluster, node): (&ClusterStatus, &SkippedNode)| {
        let why = format!("{}: {}", printable(&node.reason, 100), printable(node.message.as_deref().unwrap_or_default(), 300));
        vec![
            Cell::plain(printable(&cluster.name, 63)),
            Cell::new("skipped", mean::bad()),
            Cell::plain(printable(&node.node, 253)),
            Cell::plain(why),
        ]
    };
    let table: Vec<Vec<Cell>> = all.take(MOST_SKIPPED).map(row).collect();
    let count: i64 = statuses(mesh).map(|cluster| cluster.skipped_nodes).sum();
    let rest = usize::try_from(count).unwrap_or_default().saturating_sub(table.len());
    let rest = if rest == 0 || table.is_empty() { String::new() } else { format!("  … and {rest} more\n") };
    if table.is_empty() { String::new() } else { format!("\n{}{rest}", rows(&table, 2)) }
}

fn conditions(mesh: &MeshGlance) -> impl Iterator<Item = &Condition> {
    mesh.status.conditions.iter().flatten()
}

fn statuses(mesh: &MeshGlance) -> impl Iterator<Item = &ClusterStatus> {
    mesh.status.clusters.iter().flatten()
}

/// The clusters of the spec, by name.
fn names(mesh: &MeshGlance) -> Vec<String> {
    let mut names = mesh.clusters.clone();
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use mw_operator::failure::Failure;
    use mw_operator::glance::LeaseGlance;
    use serde_json::{Value, json};
    use std::time::Duration;

    const NOW: Timestamp = Timestamp(1_767_225_600);

    fn ready(status: &str, reason: &str, message: &str) -> Value {
        json!({"type": "Ready", "status": status, "reason": reason, "message": message, "lastTransitionTime": "2025-12-31T21:00:00Z"})
    }

    fn mesh(status: Value) -> MeshGlance {
        MeshGlance {
            id: MeshId::new("kilo", "prod"),
            generation: 3,
            deleting: false,
            clusters: ["oslo", "berlin", "lab"].map(str::to_owned).to_vec(),
            misread: None,
            status: serde_json::from_value(status).unwrap(),
        }
    }

    fn cluster(name: &str, more: Value) -> Value {
        let mut cluster = json!({"name": name, "registeredPeers": 3, "reachable": true, "nodes": 2, "carriedNodes": 1});
        cluster.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        cluster
    }

    fn clusters() -> Value {
        json!([
            cluster("berlin", json!({"anchorNode": "berlin-1"})),
            cluster("lab", json!({"reachable": false, "lastContact": "2025-12-31T23:55:00Z", "message": "does not answer within 5 s"})),
            cluster(
                "oslo",
                json!({"skippedNodes": 2, "skipped": [{"node": "oslo-3", "reason": "NodeNoPodCIDR", "message": "it has no pod CIDR"}]})
            ),
        ])
    }

    fn lease(renewed: i64) -> LeaseGlance {
        let (namespace, holder) = ("kilo-system".to_owned(), "pod-1".to_owned());
        LeaseGlance { namespace, holder, renewed: Some(Timestamp(renewed)), lasts: Duration::from_secs(15) }
    }

    fn shown(meshes: Vec<MeshGlance>, leases: Result<Vec<LeaseGlance>, Failure>) -> String {
        let glance = Glance { objects: meshes, leases, trouble: None, now: NOW };
        let text = text(&Overview { glance: &glance, views: &BTreeMap::new() });
        anstream::adapter::strip_str(&text).to_string()
    }

    #[test]
    fn a_mesh_is_shown_at_a_glance() {
        let why = ready("False", "ClusterUnreachable", "lab: does not answer within 5 s");
        let anchor = json!({"type": "AnchorAvailable", "status": "False", "reason": "AnchorUnavailable", "message": "oslo: none", "lastTransitionTime": "2025-12-31T21:00:00Z"});
        let held = json!([{"cluster": "berlin", "count": 1, "peers": ["prod--oslo--n9"]}]);
        let status = json!({"observedGeneration": 3, "conditions": [why, anchor], "clusters": clusters(), "heldDeletes": held});
        let text = shown(vec![mesh(status)], Ok(vec![lease(NOW.0 - 4)]));
        assert_eq!(
            text,
            "\
operator  pod-1 in namespace kilo-system (Lease renewed 4 s ago)

mesh kilo/prod  not ready (ClusterUnreachable) for 3 h
  lab: does not answer within 5 s
  AnchorAvailable=False (AnchorUnavailable) oslo: none

  cluster  state                  nodes  carried  peers  skipped  anchor
  berlin   reachable              2      1        3      0        berlin-1
  lab      unreachable for 5 min  2      1        3      0        -  does not answer within 5 s
  oslo     reachable              2      1        3      2        -

  from \\ to  berlin   lab      oslo
  berlin     ·        unknown  ?
  lab        unknown  ·        unknown
  oslo       held 1   unknown  ·
  ? is not told by the status: `status --live` looks

  oslo  skipped  oslo-3  NodeNoPodCIDR: it has no pod CIDR
  … and 1 more
"
        );
    }

    #[test]
    fn a_ready_mesh_has_every_pair_applied() {
        let ready = ready("True", "Reconciled", "every pair of clusters is applied");
        let clusters = ["berlin", "lab", "oslo"].map(|name| cluster(name, json!({})));
        let status = json!({"observedGeneration": 3, "conditions": [ready], "clusters": clusters});
        let text = shown(vec![mesh(status.clone())], Ok(vec![lease(NOW.0)]));
        assert!(text.contains("mesh kilo/prod  ready (Reconciled) for 3 h\n  every pair of clusters is applied\n"), "{text}");
        assert!(text.contains("  berlin     ·       ok   ok\n") && !text.contains('?'), "{text}");
        let changed = MeshGlance { generation: 4, ..mesh(status) };
        assert_eq!((Verdict::of(&changed).ready, Verdict::of(&changed).reason.as_str()), (false, "SpecChanged"));
        assert!(told_matrix(&changed).pairs.values().all(Option::is_none), "what an earlier spec came to says nothing of this one");
    }

    #[test]
    fn without_a_status_nothing_is_claimed() {
        let text = shown(vec![mesh(json!({}))], Ok(Vec::new()));
        assert!(text.contains("not ready (NoStatus)\n  no operator has written a status yet\n"), "{text}");
        assert!(text.contains("berlin   not in the status yet"), "{text}");
        assert!(told_matrix(&mesh(json!({}))).pairs.values().all(|state| *state == Some(PairState::Unknown)));
    }

    #[test]
    fn a_missing_operator_is_said_loudly() {
        let of = |leases| shown(Vec::new(), leases);
        assert!(of(Ok(vec![lease(NOW.0 - 300)])).starts_with("OPERATOR SILENT  pod-1 in namespace kilo-system (Lease renewed 5 min ago)"));
        assert!(of(Ok(Vec::new())).starts_with("NO OPERATOR  nobody holds the Lease f27237f1.squat.ai"));
        assert!(of(Ok(vec![LeaseGlance { holder: String::new(), ..lease(NOW.0) }])).starts_with("NO OPERATOR"));
        assert!(of(Err(Failure::Forbidden("no".to_owned()))).contains("not known, and what follows may be old"));
    }

    #[test]
    fn a_peer_belongs_to_the_longest_name_that_fits() {
        let held = json!([{"cluster": "berlin", "count": 2, "peers": ["prod--oslo--n1", "prod--oslo--two--n1"]}]);
        let mut mesh = mesh(json!({"heldDeletes": held}));
        mesh.clusters = ["berlin", "oslo", "oslo--two"].map(str::to_owned).to_vec();
        let held = |source: &str| super::held(&mesh, &mesh.clusters, source, "berlin");
        assert_eq!((held("oslo"), held("oslo--two"), held("berlin")), (1, 1, 0));
    }

    #[test]
    fn hostile_text_of_a_status_is_harmless() {
        let evil = "x\u{1b}[31m\u{9b}2J\u{7f}\ny";
        let skipped = json!([{"node": evil, "reason": evil, "message": evil}]);
        let of = cluster("berlin", json!({"anchorNode": evil, "message": evil, "skippedNodes": 1, "skipped": skipped}));
        let status = json!({"observedGeneration": 3, "conditions": [ready("False", evil, evil)], "clusters": [of]});
        let text = shown(vec![mesh(status)], Ok(vec![LeaseGlance { holder: evil.to_owned(), ..lease(NOW.0) }]));
        assert!(text.contains("x[31m2Jy") && !text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
    }
}
