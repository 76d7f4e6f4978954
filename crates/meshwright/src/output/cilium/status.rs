//! Status of the Cilium back end's objects as text: the provider, then objects that are not ready,
//! then all objects by kind.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use mw_api::cilium::binding::MeshStatus;
use mw_controller::cilium::{Kind, ObjectStatus, PublishedObject};
use mw_controller::published_status::{Published, PublishedStatus};
use mw_core::condition::cilium::kind;
use mw_core::kilo::view::PairState;
use mw_core::text::printable;
use mw_core::time::Timestamp;
use owo_colors::Style;

use crate::output::cilium::Overview;
use crate::output::kilo::matrix::Matrix;
use crate::output::layout::{Cell, mean, phase_style, rows, styled};
use crate::output::presence::{
    Presence, SPEC_CHANGED, STALE, Told, Verdict, age, at, presence, presence_words, trouble,
};

/// Age in seconds at which a status counts as stale: three times the provider's default
/// --mesh-check-interval of 5 min, at which it rewrites every status.
const KEPT_SECONDS: i64 = 900;

/// Readiness of an object. A status of an earlier spec, or one that no provider maintains, does not
/// count as ready.
pub(crate) fn verdict(
    published_status: &PublishedStatus<PublishedObject>,
    object: &PublishedObject,
) -> Verdict {
    let told = Told {
        conditions: object.status.conditions(),
        of: object.status.observed_generation(),
        generation: object.generation,
        deleting: object.deleting,
    };
    let verdict = told.verdict("no provider has written a status yet");
    match stale(published_status, object).filter(|_| verdict.ready) {
        Some(message) => Verdict {
            ready: false,
            reason: STALE.to_owned(),
            message,
            since: verdict.since,
        },
        None => verdict,
    }
}

/// Reason why a status may be out of date.
fn stale(
    published_status: &PublishedStatus<PublishedObject>,
    object: &PublishedObject,
) -> Option<String> {
    let last = object.status.last_sync().map(at);
    let written = last.map_or_else(
        || "written at an unknown time".to_owned(),
        |last| format!("written {} ago", age(published_status.now, last)),
    );
    let is_kept =
        last.is_some_and(|last| published_status.now.0.saturating_sub(last.0) <= KEPT_SECONDS);
    match (presence(published_status), &published_status.leases) {
        (Presence::Running, _) => None,
        (Presence::Silent, _) => Some(format!("{written} by a provider that may be dead")),
        (_, Ok(leases)) if !leases.is_empty() => {
            Some(format!("{written} by a provider that has stopped"))
        }
        _ if is_kept => None,
        _ => Some(format!("{written} and not refreshed since")),
    }
}

/// Reports whether a status is current.
fn is_sure(published_status: &PublishedStatus<PublishedObject>, verdict: &Verdict) -> bool {
    presence(published_status) == Presence::Running && verdict.reason != SPEC_CHANGED
}

pub(crate) fn text(published_status: &PublishedStatus<PublishedObject>) -> String {
    let mut text = headline(published_status);
    text.push_str(&trouble(published_status));
    text.push_str(&not_ready(published_status));
    for kind in Kind::ALL {
        let objects: Vec<&PublishedObject> = published_status
            .objects
            .iter()
            .filter(|object| object.kind == kind)
            .collect();
        if !objects.is_empty() {
            text.push_str(&format!(
                "\n{}\n{}",
                styled(kind.as_str(), mean::title()),
                table(published_status, kind, &objects)
            ));
        }
    }
    published_status
        .objects
        .iter()
        .for_each(|object| text.push_str(&binding(published_status, object)));
    text
}

/// Objects for which the live view differs from the recorded status.
pub(crate) fn seen_from_here(
    Overview {
        published_status,
        views,
    }: Overview<'_>,
) -> String {
    let differs = |object: &&PublishedObject| {
        let view = views.get(&(object.kind, object.namespace.clone(), object.name.clone()))?;
        (!view.ready || object.status.phase() != Some(view.phase)).then_some(view)
    };
    let row = |object: &PublishedObject| {
        let view = differs(&object)?;
        let message = printable(&view.message, 1000);
        Some(vec![
            Cell::plain(format!("{} {}", object.kind.as_str(), name(object))),
            Cell::new(view.phase, phase_style(view.phase)),
            Cell::plain(message),
        ])
    };
    let table: Vec<Vec<Cell>> = published_status.objects.iter().filter_map(row).collect();
    if table.is_empty() {
        String::new()
    } else {
        format!(
            "\n{}\n{}",
            styled("seen from here", mean::title()),
            rows(&table, 2)
        )
    }
}

/// State of the provider, with a description. A kcp workspace does not show its Lease.
pub(crate) fn keeper(published_status: &PublishedStatus<PublishedObject>) -> (Presence, String) {
    let newest = published_status
        .objects
        .iter()
        .filter_map(|object| object.status.last_sync())
        .map(at)
        .max();
    let newest = newest.map(|newest| {
        format!(
            "the latest status was written {} ago",
            age(published_status.now, newest)
        )
    });
    let is_kept = published_status.objects.iter().any(|object| {
        object.status.last_sync().is_some() && stale(published_status, object).is_none()
    });
    let in_kcp = published_status.objects.iter().any(|object| object.in_kcp);
    match (presence(published_status), newest) {
        (seen @ (Presence::Running | Presence::Silent), _) => {
            (seen, presence_words(published_status))
        }
        (_, newest) if in_kcp => {
            let newest = newest.unwrap_or_else(|| "no status written yet".to_owned());
            (
                Presence::Unknown,
                format!(
                    "its Lease is on the management plane, not visible in this workspace; {newest}"
                ),
            )
        }
        (Presence::Absent, Some(newest)) if is_kept => (
            Presence::Unknown,
            format!("nobody holds Lease {}; {newest}", PublishedObject::LEASE),
        ),
        (seen, _) => (seen, presence_words(published_status)),
    }
}

fn headline(published_status: &PublishedStatus<PublishedObject>) -> String {
    let (presence, words) = keeper(published_status);
    let (word, style) = match presence {
        Presence::Running => ("provider", mean::good()),
        Presence::Unknown => ("provider", mean::changed()),
        Presence::Silent => ("PROVIDER SILENT", mean::bad()),
        Presence::Absent => ("NO PROVIDER", mean::bad()),
    };
    rows(&[vec![Cell::new(word, style), Cell::plain(words)]], 0)
}

fn name(object: &PublishedObject) -> String {
    printable(&format!("{}/{}", object.namespace, object.name), 320)
}

/// Objects that are not ready, with the full message.
fn not_ready(published_status: &PublishedStatus<PublishedObject>) -> String {
    let mut text = String::new();
    for object in &published_status.objects {
        let verdict = verdict(published_status, object);
        let remarks = remarks(object);
        if verdict.ready && remarks.is_empty() {
            continue;
        }
        let (state, style) = state(&verdict, object);
        let since = verdict
            .since
            .as_ref()
            .map(|since| format!(" for {}", age(published_status.now, at(since))))
            .unwrap_or_default();
        let title = styled(
            &format!("{} {}", object.kind.as_str(), name(object)),
            mean::title(),
        );
        text.push_str(&format!("\n{title}  {}{since}\n", styled(&state, style)));
        if !verdict.ready && !verdict.message.is_empty() {
            // Not wrapped: it may end in a command to copy.
            text.push_str(&format!("  {}\n", printable(&verdict.message, 5000)));
        }
        text.push_str(&remarks);
    }
    text
}

fn state(verdict: &Verdict, object: &PublishedObject) -> (String, Style) {
    let phase = printable(object.status.phase().unwrap_or("no phase"), 100);
    match (verdict.ready, object.deleting) {
        (true, _) => (format!("ready ({phase})"), mean::changed()),
        (false, true) => (format!("being deleted ({phase})"), mean::changed()),
        (false, false) => {
            let style = if verdict.reason == STALE || verdict.reason == SPEC_CHANGED {
                mean::bad()
            } else {
                phase_style(&phase)
            };
            (
                format!("not ready ({phase}, {})", printable(&verdict.reason, 100)),
                style,
            )
        }
    }
}

/// Conditions that the phase does not reflect.
fn remarks(object: &PublishedObject) -> String {
    let misread = object.misread.as_ref().map(|why| {
        let error = styled("error", mean::bad());
        format!("  {error} cannot read its spec: {}\n", printable(why, 300))
    });
    let apart = |condition: &&Condition| match condition.type_.as_str() {
        kind::IDENTITY_APPLIED | kind::KVSTOREMESH_READY | kind::HUBBLE_READY => {
            condition.status != "True"
        }
        kind::VERSION_SKEW | kind::CERTIFICATES_EXPIRING => condition.status == "True",
        kind::REACHABLE => condition.status == "False",
        _ => false,
    };
    let conditions = object
        .status
        .conditions()
        .iter()
        .filter(apart)
        .map(|condition| {
            let name = printable(&format!("{}={}", condition.type_, condition.status), 100);
            let message = printable(
                &format!("({}) {}", condition.reason, condition.message),
                1000,
            );
            format!("  {} {message}\n", styled(&name, mean::changed()))
        });
    misread.into_iter().chain(conditions).collect()
}

fn table(
    published_status: &PublishedStatus<PublishedObject>,
    kind: Kind,
    objects: &[&PublishedObject],
) -> String {
    let (relation, extent) = match kind {
        Kind::Binding => ("clusters", "connected"),
        Kind::Service => ("mesh", "exported by"),
        Kind::Intent => ("mesh", "applied on"),
    };
    let head = [
        "name", "phase", relation, extent, "ready", "since", "written",
    ];
    let mut table = vec![head.map(|title| Cell::new(title, mean::faint())).to_vec()];
    table.extend(
        objects
            .iter()
            .map(|object| table_row(published_status, object)),
    );
    rows(&table, 2)
}

fn table_row(
    published_status: &PublishedStatus<PublishedObject>,
    object: &PublishedObject,
) -> Vec<Cell> {
    let verdict = verdict(published_status, object);
    let or_nothing = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let since = or_nothing(
        verdict
            .since
            .as_ref()
            .map(|time| age(published_status.now, at(time))),
    );
    let written = or_nothing(
        object
            .status
            .last_sync()
            .map(|time| format!("{} ago", age(published_status.now, at(time)))),
    );
    let phase = object.status.phase().unwrap_or("-");
    let style = if is_sure(published_status, &verdict) && verdict.ready {
        mean::good()
    } else {
        not_good(phase_style(phase))
    };
    let (relation, extent) = match &object.status {
        ObjectStatus::Binding(status) => {
            let connected = status
                .mesh_status
                .iter()
                .flatten()
                .filter(|row| row.connected)
                .count();
            (
                object.clusters.len().to_string(),
                format!("{connected} of {}", object.clusters.len()),
            )
        }
        ObjectStatus::Service(status) => {
            let exported = status.exported_clusters.iter().flatten().count();
            let endpoints: i64 = status
                .endpoint_summary
                .iter()
                .flatten()
                .map(|of| of.endpoints)
                .sum();
            (
                printable(object.mesh.as_deref().unwrap_or("-"), 253),
                format!("{exported} clusters, {endpoints} endpoints"),
            )
        }
        ObjectStatus::Intent(status) => {
            let applied = status.applied_clusters.iter().flatten().count();
            (
                printable(object.mesh.as_deref().unwrap_or("-"), 253),
                format!("{applied} clusters"),
            )
        }
    };
    vec![
        Cell::plain(name(object)),
        Cell::new(printable(phase, 100), style),
        Cell::plain(relation),
        Cell::plain(extent),
        Cell::new(if verdict.ready { "yes" } else { "no" }, style),
        Cell::plain(since),
        Cell::plain(written),
    ]
}

/// Replaces green, which is reserved for current status.
fn not_good(style: Style) -> Style {
    if style == mean::good() {
        mean::changed()
    } else {
        style
    }
}

/// Clusters of a binding, and the connection matrix if there are more than two.
fn binding(
    published_status: &PublishedStatus<PublishedObject>,
    object: &PublishedObject,
) -> String {
    let ObjectStatus::Binding(status) = &object.status else {
        return String::new();
    };
    let sure = is_sure(published_status, &verdict(published_status, object));
    let told: BTreeMap<&str, &MeshStatus> = status
        .mesh_status
        .iter()
        .flatten()
        .map(|row| (row.cluster_name.as_str(), row))
        .collect();
    let head = ["cluster", "id", "connected", "agents", "verified"]
        .map(|title| Cell::new(title, mean::faint()))
        .to_vec();
    let row = |cluster: &String| {
        let first = Cell::plain(printable(cluster, 253));
        match told.get(cluster.as_str()) {
            Some(row) => cluster_row(first, row, sure, published_status.now),
            None => vec![first, Cell::new("not in the status yet", mean::faint())],
        }
    };
    let table: Vec<Vec<Cell>> = std::iter::once(head)
        .chain(object.clusters.iter().map(row))
        .collect();
    let mut text = format!(
        "\n{}\n{}",
        styled(&name(object), mean::title()),
        rows(&table, 2)
    );
    // With two clusters the matrix adds nothing.
    if object.clusters.len() > 2 {
        text.push_str(&format!("\n{}", matrix(object, &told).text()));
    }
    text
}

fn cluster_row(first: Cell, row: &MeshStatus, sure: bool, now: Timestamp) -> Vec<Cell> {
    let connected = match (row.connected, sure) {
        (true, true) => Cell::new("yes", mean::good()),
        (true, false) => Cell::new("yes", mean::changed()),
        (false, _) => Cell::new("no", mean::bad()),
    };
    let mut cells = vec![
        first,
        Cell::plain(
            row.cluster_id
                .map_or_else(|| "-".to_owned(), |id| id.to_string()),
        ),
        connected,
        Cell::plain(format!("{}/{}", row.ready_nodes, row.total_nodes)),
        Cell::plain(row.last_verified.as_ref().map_or_else(
            || "-".to_owned(),
            |time| format!("{} ago", age(now, at(time))),
        )),
    ];
    cells.extend(
        row.message
            .as_ref()
            .map(|message| Cell::plain(printable(message, 1000))),
    );
    cells
}

/// All links of a connected cluster are verified. The status does not record the link between two
/// clusters that are both not connected.
fn matrix(object: &PublishedObject, told: &BTreeMap<&str, &MeshStatus>) -> Matrix {
    let connected: BTreeSet<&str> = told
        .values()
        .filter(|row| row.connected)
        .map(|row| row.cluster_name.as_str())
        .collect();
    Matrix::of(object.clusters.clone(), |source, target| {
        (connected.contains(source) || connected.contains(target)).then_some(PairState::Applied)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::DynamicObject;
    use mw_controller::failure::Failure;
    use mw_controller::published_status::PublishedLease;
    use serde_json::{Value, json};
    use std::time::Duration;

    const NOW: Timestamp = Timestamp(1_767_225_600);
    const HOURS_AGO: &str = "2025-12-31T21:00:00Z";
    const JUST_NOW: &str = "2025-12-31T23:59:40Z";

    fn object(kind: Kind, name: &str, spec: Value, status: Value) -> PublishedObject {
        let resource = kind.resource();
        let metadata = json!({"name": name, "namespace": "net", "generation": 3});
        let value = json!({"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec, "status": status});
        PublishedObject::read(
            kind,
            serde_json::from_value::<DynamicObject>(value).unwrap(),
        )
    }

    fn ready(status: &str, reason: &str, message: &str) -> Value {
        json!({"type": "Ready", "status": status, "reason": reason, "message": message, "lastTransitionTime": HOURS_AGO})
    }

    fn status(phase: &str, written: &str, ready: Value, more: Value) -> Value {
        let mut status = json!({"phase": phase, "observedGeneration": 3, "lastSyncTime": written, "conditions": [ready]});
        status
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        status
    }

    fn row(cluster: &str, connected: bool, message: Value) -> Value {
        json!({"clusterName": cluster, "clusterId": 1, "connected": connected, "readyNodes": 2, "totalNodes": 3, "message": message,
            "lastVerified": if connected { json!(JUST_NOW) } else { Value::Null }})
    }

    fn refs(names: &[&str]) -> Value {
        json!({"clusterRefs": names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>()})
    }

    fn mesh(written: &str) -> PublishedObject {
        let rows =
            json!({"meshStatus": [row("ffm", true, Value::Null), row("ber", true, Value::Null)]});
        let status = status(
            "Connected",
            written,
            ready("True", "Connected", "all links are verified"),
            rows,
        );
        object(Kind::Binding, "eu", refs(&["ffm", "ber"]), status)
    }

    fn lease(renewed: i64, holder: &str) -> PublishedLease {
        let (namespace, holder) = ("default".to_owned(), holder.to_owned());
        PublishedLease {
            namespace,
            holder,
            renewed: Some(Timestamp(renewed)),
            lasts: Duration::from_secs(15),
            scope: None,
        }
    }

    fn published_status(
        objects: Vec<PublishedObject>,
        leases: Result<Vec<PublishedLease>, Failure>,
    ) -> PublishedStatus<PublishedObject> {
        PublishedStatus {
            objects,
            leases,
            trouble: None,
            now: NOW,
        }
    }

    fn styled_text(
        objects: Vec<PublishedObject>,
        leases: Result<Vec<PublishedLease>, Failure>,
    ) -> String {
        text(&published_status(objects, leases))
    }

    fn shown(
        objects: Vec<PublishedObject>,
        leases: Result<Vec<PublishedLease>, Failure>,
    ) -> String {
        anstream::adapter::strip_str(&styled_text(objects, leases)).to_string()
    }

    #[test]
    fn every_kind_is_shown_and_what_is_wrong_comes_first() {
        let why = "cluster ber: to lab: keys: no certificate of 192.0.2.1";
        let rows = [
            row("ffm", true, Value::Null),
            row("ber", false, json!(why)),
            row("lab", false, Value::Null),
        ];
        let degraded = status(
            "Degraded",
            JUST_NOW,
            ready("False", "Keys", why),
            json!({"meshStatus": rows}),
        );
        let binding = object(Kind::Binding, "eu", refs(&["ffm", "ber", "lab"]), degraded);
        let endpoints = json!([{"clusterName": "ffm", "endpoints": 3, "ready": true}, {"clusterName": "ber", "endpoints": 2, "ready": true}]);
        let exported = json!({"exportedClusters": ["ffm", "ber"], "endpointSummary": endpoints});
        let exported = status(
            "Exported",
            JUST_NOW,
            ready("True", "Exported", ""),
            exported,
        );
        let service = object(
            Kind::Service,
            "web",
            json!({"meshRef": {"name": "eu"}}),
            exported,
        );
        let text = shown(
            vec![binding, service],
            Ok(vec![lease(NOW.0 - 4, "node-1_ab")]),
        );
        assert_eq!(
            text,
            "\
provider  node-1_ab in namespace default (Lease renewed 4 s ago)

ClusterMeshBinding net/eu  not ready (Degraded, Keys) for 3 h
  cluster ber: to lab: keys: no certificate of 192.0.2.1

ClusterMeshBinding
  name    phase     clusters  connected  ready  since  written
  net/eu  Degraded  3         1 of 3     no     3 h    20 s ago

GlobalService
  name     phase     mesh  exported by              ready  since  written
  net/web  Exported  eu    2 clusters, 5 endpoints  yes    3 h    20 s ago

net/eu
  cluster  id  connected  agents  verified
  ffm      1   yes        2/3     20 s ago
  ber      1   no         2/3     -  cluster ber: to lab: keys: no certificate of 192.0.2.1
  lab      1   no         2/3     -

  from \\ to  ffm  ber  lab
  ffm        ·    ok   ok
  ber        ok   ·    ?
  lab        ok   ?    ·
"
        );
    }

    #[test]
    fn what_nobody_keeps_is_neither_ready_nor_green() {
        let is_ready = |written: &str, leases: Result<Vec<PublishedLease>, Failure>| {
            let published_status = published_status(vec![mesh(written)], leases);
            verdict(&published_status, &published_status.objects[0]).ready
        };
        let green = "\u{1b}[32m";
        assert!(styled_text(vec![mesh(HOURS_AGO)], Ok(vec![lease(NOW.0, "a")])).contains(green));
        assert!(
            is_ready(HOURS_AGO, Ok(vec![lease(NOW.0, "a")])),
            "a running provider maintains it"
        );
        for (fine, written, leases) in [
            (false, JUST_NOW, Ok(vec![lease(NOW.0 - 60, "a")])),
            (false, JUST_NOW, Ok(vec![lease(NOW.0 - 60, "")])),
            (true, JUST_NOW, Ok(Vec::new())),
            (false, HOURS_AGO, Ok(Vec::new())),
            (true, JUST_NOW, Err(Failure::Forbidden("no".to_owned()))),
            (false, HOURS_AGO, Err(Failure::Forbidden("no".to_owned()))),
        ] {
            assert_eq!(
                is_ready(written, leases.clone()),
                fine,
                "{written} {leases:?}"
            );
            let text = styled_text(vec![mesh(written)], leases);
            assert!(!text.contains(green), "{text}");
        }
        let old = shown(vec![mesh(HOURS_AGO)], Ok(Vec::new()));
        assert!(
            old.starts_with("NO PROVIDER") && old.contains("not ready (Connected, Stale)"),
            "{old}"
        );
        assert!(
            old.contains("written 3 h ago and not refreshed since"),
            "{old}"
        );
        let silent = shown(vec![mesh(JUST_NOW)], Ok(vec![lease(NOW.0 - 60, "a")]));
        assert!(
            silent.starts_with(
                "PROVIDER SILENT  a in namespace default (Lease renewed 60 s ago) may be dead"
            ),
            "{silent}"
        );
    }

    #[test]
    fn a_status_of_an_earlier_spec_is_not_green() {
        let behind = PublishedObject {
            generation: 4,
            ..mesh(JUST_NOW)
        };
        let text = styled_text(vec![behind], Ok(vec![lease(NOW.0, "a")]));
        let plain = anstream::adapter::strip_str(&text).to_string();
        assert!(
            plain.contains("spec is at generation 4, status still at generation 3"),
            "{plain}"
        );
        assert_eq!(
            text.matches("\u{1b}[32m").count(),
            1,
            "only the provider is: {text:?}"
        );
    }

    #[test]
    fn what_was_never_written_was_not_written_some_time_ago() {
        let text = shown(
            vec![object(Kind::Binding, "eu", refs(&["ffm"]), json!({}))],
            Ok(vec![lease(NOW.0, "a")]),
        );
        assert!(
            text.contains("no provider has written a status yet"),
            "{text}"
        );
        assert!(!text.contains("- ago"), "{text}");
    }

    #[test]
    fn in_a_workspace_of_kcp_the_lease_is_not_missed() {
        let there = PublishedObject {
            in_kcp: true,
            ..mesh(JUST_NOW)
        };
        let text = shown(vec![there], Err(Failure::NotFound("leases".to_owned())));
        assert!(
            text.starts_with("provider  its Lease is on the management plane"),
            "{text}"
        );
        assert!(text.contains("written 20 s ago"), "{text}");
    }

    #[test]
    fn hostile_text_of_a_status_is_harmless() {
        let evil = "x\u{1b}[31m\u{9b}2J\u{7f}\ny";
        let rows = json!({"meshStatus": [row("ffm", false, json!(evil))]});
        let status = status(evil, JUST_NOW, ready("False", evil, evil), rows);
        let text = shown(
            vec![object(Kind::Binding, "eu", refs(&["ffm", evil]), status)],
            Ok(vec![lease(NOW.0, evil)]),
        );
        assert!(
            text.contains("x[31m2Jy") && !text.chars().any(|c| c.is_control() && c != '\n'),
            "{text:?}"
        );
    }
}
