//! Status of meshes as text: the operator, then for each mesh its readiness, clusters, connection
//! matrix and skipped nodes.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use mw_api::kilo::clustermesh::{ClusterStatus, MOST_SKIPPED, SkippedNode};
use mw_controller::kilo::PublishedMesh;
use mw_controller::published_status::PublishedStatus;
use mw_core::condition::kilo::kind;
use mw_core::kilo::view::{MeshView, PairState};
use mw_core::names::MeshId;
use mw_core::text::printable;
use mw_core::time::Timestamp;

use crate::output::kilo::matrix::Matrix;
use crate::output::layout::{Cell, mean, rows, styled};
use crate::output::presence::{
    Presence, Told, Verdict, age, at, presence, presence_words, trouble,
};

/// The recorded status, and the live views.
#[derive(Debug)]
pub(crate) struct Overview<'a> {
    pub(crate) published_status: &'a PublishedStatus<PublishedMesh>,
    /// Empty without --live.
    pub(crate) views: &'a BTreeMap<MeshId, MeshView>,
}

impl Verdict {
    pub(crate) fn of(mesh: &PublishedMesh) -> Verdict {
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
    let published_status = overview.published_status;
    let (word, style) = match presence(published_status) {
        Presence::Running => ("operator", mean::good()),
        Presence::Unknown => ("operator", mean::changed()),
        Presence::Silent => ("OPERATOR SILENT", mean::bad()),
        Presence::Absent => ("NO OPERATOR", mean::bad()),
    };
    let mut text = rows(
        &[vec![
            Cell::new(word, style),
            Cell::plain(presence_words(published_status)),
        ]],
        0,
    );
    text.push_str(&trouble(published_status));
    for mesh in &published_status.objects {
        text.push('\n');
        text.push_str(&mesh_text(
            mesh,
            overview.views.get(&mesh.id),
            published_status.now,
        ));
    }
    text
}

fn mesh_text(mesh: &PublishedMesh, view: Option<&MeshView>, now: Timestamp) -> String {
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
        text.push_str(&format!(
            "  {}\n",
            styled(&not_recorded(&mesh.id), mean::faint())
        ));
    }
    text.push_str(&view.map(seen_from_here).unwrap_or_default());
    text.push_str(&skipped(mesh));
    text
}

fn not_recorded(mesh: &MeshId) -> String {
    printable(
        &format!(
            "? = not recorded; run `meshwright status {} -n {} --live`",
            mesh.name, mesh.namespace
        ),
        700,
    )
}

fn headline(mesh: &PublishedMesh, verdict: &Verdict, now: Timestamp) -> String {
    let title = styled(
        &format!("mesh {}", printable(&mesh.id.to_string(), 320)),
        mean::title(),
    );
    let (state, style) = match (verdict.ready, verdict.reason.as_str()) {
        (true, _) => ("ready", mean::good()),
        (false, "Progressing") => ("not ready", mean::changed()),
        (false, _) => ("not ready", mean::bad()),
    };
    let since = verdict
        .since
        .as_ref()
        .map(|since| format!(" for {}", age(now, at(since))))
        .unwrap_or_default();
    let mut text = format!(
        "{title}  {}{since}\n",
        styled(
            &format!("{state} ({})", printable(&verdict.reason, 100)),
            style
        )
    );
    if !verdict.message.is_empty() {
        // Not wrapped: it may end in a command to copy.
        text.push_str(&format!("  {}\n", printable(&verdict.message, 1000)));
    }
    text
}

/// Spec errors, and conditions that indicate a problem.
fn remarks(mesh: &PublishedMesh) -> String {
    let mut text = String::new();
    if let Some(why) = &mesh.misread {
        text.push_str(&format!(
            "  {} cannot read its spec: {}\n",
            styled("error", mean::bad()),
            printable(why, 300)
        ));
    }
    let bad = |condition: &&Condition| match condition.type_.as_str() {
        kind::READY => false,
        kind::NETWORKS_OVERLAP | kind::SCOPE_LIMITED => condition.status == "True",
        _ => condition.status == "False",
    };
    for condition in conditions(mesh).filter(bad) {
        let name = printable(&format!("{}={}", condition.type_, condition.status), 100);
        let message = printable(
            &format!("({}) {}", condition.reason, condition.message),
            1000,
        );
        text.push_str(&format!("  {} {message}\n", styled(&name, mean::changed())));
    }
    text
}

fn clusters(mesh: &PublishedMesh, now: Timestamp) -> String {
    let head = [
        "cluster", "state", "nodes", "carried", "peers", "skipped", "anchor",
    ];
    let mut table = vec![head.map(|title| Cell::new(title, mean::faint())).to_vec()];
    let known: BTreeMap<&str, &ClusterStatus> = statuses(mesh)
        .map(|cluster| (cluster.name.as_str(), cluster))
        .collect();
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
    let number = |number: Option<i64>| {
        Cell::plain(number.map_or_else(|| "-".to_owned(), |number| number.to_string()))
    };
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
        Cell::plain(
            cluster
                .anchor_node
                .as_ref()
                .map_or_else(|| "-".to_owned(), |anchor| printable(anchor, 253)),
        ),
    ];
    row.extend(
        cluster
            .message
            .as_ref()
            .map(|message| Cell::plain(printable(message, 500))),
    );
    row
}

fn reachable(cluster: &ClusterStatus, now: Timestamp) -> Cell {
    match (cluster.reachable, &cluster.last_contact) {
        (Some(true), _) => Cell::new("reachable", mean::good()),
        (Some(false), Some(last)) => Cell::new(
            format!("unreachable for {}", age(now, at(last))),
            mean::bad(),
        ),
        (Some(false), None) => Cell::new("unreachable", mean::bad()),
        (None, _) => Cell::new("not recorded", mean::faint()),
    }
}

/// Pair states that the status records: all pairs of a ready mesh are applied; in any mesh,
/// unreachable clusters and held deletes are known.
pub(crate) fn told_matrix(mesh: &PublishedMesh) -> Matrix {
    let verdict = Verdict::of(mesh);
    let reachable: BTreeSet<&str> = statuses(mesh)
        .filter(|cluster| cluster.reachable == Some(true))
        .map(|cluster| cluster.name.as_str())
        .collect();
    let is_reachable = |name: &str| reachable.contains(name);
    let names = names(mesh);
    Matrix::of(names.clone(), |source, target| {
        match (
            is_reachable(source) && is_reachable(target),
            held(mesh, &names, source, target),
        ) {
            (false, _) => Some(PairState::Unknown),
            (true, held) if held > 0 => Some(PairState::Held(held)),
            (true, _) if verdict.ready => Some(PairState::Applied),
            (true, _) => None,
        }
    })
}

/// Number of held deletes of the source's Peers on the target. One cluster name may be a prefix of
/// another, so the longest match is the source.
fn held(mesh: &PublishedMesh, names: &[String], source: &str, target: &str) -> usize {
    let of_source = |peer: &&String| {
        let rest = peer
            .strip_prefix(&format!("{}--", mesh.id.name))
            .unwrap_or_default();
        let fits = |name: &&String| {
            rest.strip_prefix(name.as_str())
                .is_some_and(|rest| rest.starts_with("--"))
        };
        names
            .iter()
            .filter(fits)
            .max_by_key(|name| name.len())
            .is_some_and(|name| name == source)
    };
    let on_target = mesh
        .status
        .held_deletes
        .iter()
        .flatten()
        .filter(|held| held.cluster == target);
    on_target
        .flat_map(|held| &held.peers)
        .filter(of_source)
        .count()
}

/// Clusters that can't be read from here, or else the reason why the mesh is not ready.
fn seen_from_here(view: &MeshView) -> String {
    let mut table: Vec<Vec<Cell>> = Vec::new();
    for cluster in &view.clusters {
        if let Some(why) = &cluster.unknown {
            let told = vec![
                Cell::plain(cluster.name.as_str()),
                Cell::new("unknown here", mean::faint()),
                Cell::plain(printable(why, 300)),
            ];
            table.push(told);
        }
    }
    let ready = view
        .ready
        .as_ref()
        .filter(|ready| !ready.status && table.is_empty());
    let found = ready.map(|ready| {
        format!(
            "seen from here: {} ({})",
            printable(&ready.message, 1000),
            ready.reason
        )
    });
    let found = found
        .map(|found| format!("\n  {found}\n"))
        .unwrap_or_default();
    if table.is_empty() {
        found
    } else {
        format!("\n{}", rows(&table, 2))
    }
}

fn skipped(mesh: &PublishedMesh) -> String {
    let all = statuses(mesh).flat_map(|cluster| {
        cluster
            .skipped
            .iter()
            .flatten()
            .map(move |node| (cluster, node))
    });
    let row = |(cluster, node): (&ClusterStatus, &SkippedNode)| {
        let why = format!(
            "{}: {}",
            printable(&node.reason, 100),
            printable(node.message.as_deref().unwrap_or_default(), 300)
        );
        vec![
            Cell::plain(printable(&cluster.name, 63)),
            Cell::new("skipped", mean::bad()),
            Cell::plain(printable(&node.node, 253)),
            Cell::plain(why),
        ]
    };
    let table: Vec<Vec<Cell>> = all.take(MOST_SKIPPED).map(row).collect();
    let count: i64 = statuses(mesh).map(|cluster| cluster.skipped_nodes).sum();
    let rest = usize::try_from(count)
        .unwrap_or_default()
        .saturating_sub(table.len());
    let rest = if rest == 0 || table.is_empty() {
        String::new()
    } else {
        format!("  … and {rest} more\n")
    };
    if table.is_empty() {
        String::new()
    } else {
        format!("\n{}{rest}", rows(&table, 2))
    }
}

fn conditions(mesh: &PublishedMesh) -> impl Iterator<Item = &Condition> {
    mesh.status.conditions.iter().flatten()
}

fn statuses(mesh: &PublishedMesh) -> impl Iterator<Item = &ClusterStatus> {
    mesh.status.clusters.iter().flatten()
}

/// Cluster names of the spec, sorted.
fn names(mesh: &PublishedMesh) -> Vec<String> {
    let mut names = mesh.clusters.clone();
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use mw_controller::failure::Failure;
    use mw_controller::published_status::PublishedLease;
    use serde_json::{Value, json};
    use std::time::Duration;

    const NOW: Timestamp = Timestamp(1_767_225_600);

    fn ready(status: &str, reason: &str, message: &str) -> Value {
        json!({"type": "Ready", "status": status, "reason": reason, "message": message, "lastTransitionTime": "2025-12-31T21:00:00Z"})
    }

    fn mesh(status: Value) -> PublishedMesh {
        PublishedMesh {
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
        cluster
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        cluster
    }

    fn clusters() -> Value {
        json!([
            cluster("berlin", json!({"anchorNode": "berlin-1"})),
            cluster(
                "lab",
                json!({"reachable": false, "lastContact": "2025-12-31T23:55:00Z", "message": "no answer within 5s"})
            ),
            cluster(
                "oslo",
                json!({"skippedNodes": 2, "skipped": [{"node": "oslo-3", "reason": "NodeNoPodCIDR", "message": "it has no pod CIDR"}]})
            ),
        ])
    }

    fn lease(renewed: i64) -> PublishedLease {
        let (namespace, holder) = ("kilo-system".to_owned(), "pod-1".to_owned());
        PublishedLease {
            namespace,
            holder,
            renewed: Some(Timestamp(renewed)),
            lasts: Duration::from_secs(15),
            scope: None,
        }
    }

    fn shown(meshes: Vec<PublishedMesh>, leases: Result<Vec<PublishedLease>, Failure>) -> String {
        let published_status = PublishedStatus {
            objects: meshes,
            leases,
            trouble: None,
            now: NOW,
        };
        let text = text(&Overview {
            published_status: &published_status,
            views: &BTreeMap::new(),
        });
        anstream::adapter::strip_str(&text).to_string()
    }

    #[test]
    fn a_mesh_is_shown_at_a_glance() {
        let why = ready("False", "ClusterUnreachable", "lab: no answer within 5s");
        let anchor = json!({"type": "AnchorAvailable", "status": "False", "reason": "AnchorUnavailable", "message": "oslo: none", "lastTransitionTime": "2025-12-31T21:00:00Z"});
        let held = json!([{"cluster": "berlin", "count": 1, "peers": ["prod--oslo--n9"]}]);
        let status = json!({"observedGeneration": 3, "conditions": [why, anchor], "clusters": clusters(), "heldDeletes": held});
        let text = shown(vec![mesh(status)], Ok(vec![lease(NOW.0 - 4)]));
        assert_eq!(
            text,
            "\
operator  pod-1 in namespace kilo-system (Lease renewed 4 s ago)

mesh kilo/prod  not ready (ClusterUnreachable) for 3 h
  lab: no answer within 5s
  AnchorAvailable=False (AnchorUnavailable) oslo: none

  cluster  state                  nodes  carried  peers  skipped  anchor
  berlin   reachable              2      1        3      0        berlin-1
  lab      unreachable for 5 min  2      1        3      0        -  no answer within 5s
  oslo     reachable              2      1        3      2        -

  from \\ to  berlin   lab      oslo
  berlin     ·        unknown  ?
  lab        unknown  ·        unknown
  oslo       held 1   unknown  ·
  ? = not recorded; run `meshwright status prod -n kilo --live`

  oslo  skipped  oslo-3  NodeNoPodCIDR: it has no pod CIDR
  … and 1 more
"
        );
    }

    #[test]
    fn a_ready_mesh_has_every_pair_applied() {
        let ready = ready(
            "True",
            "Reconciled",
            "all Peers are written in all clusters",
        );
        let clusters = ["berlin", "lab", "oslo"].map(|name| cluster(name, json!({})));
        let status = json!({"observedGeneration": 3, "conditions": [ready], "clusters": clusters});
        let text = shown(vec![mesh(status.clone())], Ok(vec![lease(NOW.0)]));
        assert!(text.contains("mesh kilo/prod  ready (Reconciled) for 3 h\n  all Peers are written in all clusters\n"), "{text}");
        assert!(
            text.contains("  berlin     ·       ok   ok\n") && !text.contains('?'),
            "{text}"
        );
        let changed = PublishedMesh {
            generation: 4,
            ..mesh(status)
        };
        assert_eq!(
            (
                Verdict::of(&changed).ready,
                Verdict::of(&changed).reason.as_str()
            ),
            (false, "SpecChanged")
        );
        assert!(
            told_matrix(&changed).pairs.values().all(Option::is_none),
            "a status of an earlier spec says nothing about this one"
        );
    }

    #[test]
    fn without_a_status_nothing_is_claimed() {
        let text = shown(vec![mesh(json!({}))], Ok(Vec::new()));
        assert!(
            text.contains("not ready (NoStatus)\n  no operator has written a status yet\n"),
            "{text}"
        );
        assert!(text.contains("berlin   not in the status yet"), "{text}");
        assert!(
            told_matrix(&mesh(json!({})))
                .pairs
                .values()
                .all(|state| *state == Some(PairState::Unknown))
        );
    }

    #[test]
    fn a_missing_operator_is_said_loudly() {
        let of = |leases| shown(Vec::new(), leases);
        assert!(of(Ok(vec![lease(NOW.0 - 300)])).starts_with(
            "OPERATOR SILENT  pod-1 in namespace kilo-system (Lease renewed 5 min ago)"
        ));
        assert!(
            of(Ok(Vec::new())).starts_with("NO OPERATOR  nobody holds Lease f27237f1.squat.ai")
        );
        assert!(
            of(Ok(vec![PublishedLease {
                holder: String::new(),
                ..lease(NOW.0)
            }]))
            .starts_with("NO OPERATOR")
        );
        assert!(
            of(Err(Failure::Forbidden("no".to_owned())))
                .contains("unknown, and the status below may be stale")
        );
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
        let of = cluster(
            "berlin",
            json!({"anchorNode": evil, "message": evil, "skippedNodes": 1, "skipped": skipped}),
        );
        let status = json!({"observedGeneration": 3, "conditions": [ready("False", evil, evil)], "clusters": [of]});
        let text = shown(
            vec![mesh(status)],
            Ok(vec![PublishedLease {
                holder: evil.to_owned(),
                ..lease(NOW.0)
            }]),
        );
        assert!(
            text.contains("x[31m2Jy") && !text.chars().any(|c| c.is_control() && c != '\n'),
            "{text:?}"
        );
    }
}
