//! Golden stories: one folder each, with the expectation written by hand from
//! the specification. No flag rewrites them.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::disallowed_types
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mw_core::kilo::guard::History;
use mw_core::kilo::node::Node;
use mw_core::kilo::peer::WantedPeer;
use mw_core::kilo::plan::{Changes, MeshPlan, Plan};
use mw_core::kilo::planner::{ClusterSeen, Options, World};
use mw_core::kilo::{Absent, Departures, LastDiscovery, Orphans, Vanished, plan};
use mw_core::names::{ClusterId, ClusterName, MeshId, NodeName, PeerName, label_value};
use mw_core::seen::Seen;
use mw_core::time::Timestamp;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Story {
    says: String,
    #[serde(default)]
    given: Given,
    #[serde(default)]
    expect: Expect,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Given {
    now: Option<String>,
    #[serde(deserialize_with = "given_or_null")]
    hub_uid: Option<Option<String>>,
    node_grace: Option<u64>,
    all_meshes: bool,
    sweep_legacy: Option<bool>,
    deleted_nodes: BTreeMap<String, Vec<String>>,
    missing_means_deleted: bool,
    bare_since: BTreeMap<String, String>,
    endpoint_written: BTreeMap<String, String>,
    confirm_orphans: Option<String>,
    history: GivenHistory,
    /// By cluster, then key.
    vanished: BTreeMap<String, BTreeMap<String, GivenSighting>>,
}

/// A discovered endpoint that no node lists any more.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GivenSighting {
    endpoint: String,
    until: String,
}

/// State of the guard.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct GivenHistory {
    /// Names of Peers by `target/namespace/mesh/source`.
    removed: BTreeMap<String, BTreeSet<String>>,
    replaced: BTreeSet<String>,
    recreated: BTreeMap<String, BTreeSet<String>>,
    /// `namespace/mesh/source`.
    redirected: BTreeSet<String>,
}

impl GivenHistory {
    fn history(&self) -> History {
        let source = |name: &str| ClusterName::try_from(name).unwrap();
        let removed = self.removed.iter().map(|(at, names)| {
            let [target, namespace, mesh, from] =
                at.split('/').collect::<Vec<_>>().try_into().unwrap();
            let names = names
                .iter()
                .map(|name| PeerName::from(name.as_str()))
                .collect();
            (
                (
                    ClusterId::from(target),
                    MeshId::new(namespace, mesh),
                    source(from),
                ),
                names,
            )
        });
        let recreated = self.recreated.iter().map(|(cluster, nodes)| {
            (
                ClusterId::from(cluster.as_str()),
                nodes
                    .iter()
                    .map(|node| NodeName::from(node.as_str()))
                    .collect(),
            )
        });
        let redirected = self.redirected.iter().map(|at| {
            let [namespace, mesh, from] = at.split('/').collect::<Vec<_>>().try_into().unwrap();
            (MeshId::new(namespace, mesh), source(from))
        });
        History {
            removed: removed.collect(),
            replaced: self
                .replaced
                .iter()
                .map(|cluster| ClusterId::from(cluster.as_str()))
                .collect(),
            recreated: recreated.collect(),
            redirected: redirected.collect(),
            resting: BTreeMap::new(),
        }
    }
}

/// Distinguishes an explicit null from a missing field.
fn given_or_null<'de, D: serde::Deserializer<'de>>(
    from: D,
) -> Result<Option<Option<String>>, D::Error> {
    Option::<String>::deserialize(from).map(Some)
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Expect {
    targets: BTreeMap<String, ExpectTarget>,
    skipped: Vec<ExpectSkip>,
    carried: BTreeMap<String, Option<String>>,
    anchors: BTreeMap<String, Option<String>>,
    problems: Vec<ExpectProblem>,
    conditions: BTreeMap<String, Value>,
    held_hash: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct ExpectTarget {
    create: Vec<ExpectPeer>,
    update: Vec<ExpectPeer>,
    relabel: Vec<String>,
    delete: Vec<String>,
    held: Vec<String>,
    keep: Option<usize>,
}

#[derive(Deserialize, Debug, PartialEq, Eq, Clone)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ExpectPeer {
    name: String,
    key: String,
    endpoint: Option<String>,
    #[serde(default)]
    keepalive: u16,
    #[serde(rename = "allowedIPs")]
    allowed_ips: Vec<String>,
}

#[derive(Deserialize, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(deny_unknown_fields)]
struct ExpectSkip {
    cluster: String,
    node: String,
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectProblem {
    reason: String,
    #[serde(default)]
    names: Vec<String>,
}

/// A valid key that depends only on the name.
fn key(name: &str) -> String {
    use base64ct::{Base64, Encoding};
    use sha2::Digest;
    Base64::encode_string(&sha2::Sha256::digest(name.as_bytes()))
}

fn read(path: &Path) -> String {
    let mut text = fs::read_to_string(path).unwrap();
    while let Some(start) = text.find("KEY(") {
        let end = start + text[start..].find(')').unwrap();
        text = format!(
            "{}{}{}",
            &text[..start],
            key(&text[start + 4..end]),
            &text[end + 1..]
        );
    }
    text
}

fn documents(path: &Path) -> Vec<Value> {
    let text = read(path);
    let docs: Vec<Value> = serde_saphyr::from_multiple(&text)
        .unwrap_or_else(|wrong| panic!("{}: {wrong}", path.display()));
    docs.into_iter().filter(|doc| !doc.is_null()).collect()
}

fn time(text: &str) -> Timestamp {
    let stamp: k8s_openapi::apimachinery::pkg::apis::meta::v1::Time =
        serde_json::from_value(Value::from(text)).unwrap();
    Timestamp(stamp.0.as_second())
}

fn times(of: &BTreeMap<String, String>, cluster: &str, name: &str) -> Option<Timestamp> {
    of.get(&format!("{cluster}/{name}")).map(|text| time(text))
}

fn vanished(keys: &BTreeMap<String, GivenSighting>) -> Vanished {
    let sighting = |given: &GivenSighting| LastDiscovery {
        endpoint: given.endpoint.as_str().try_into().unwrap(),
        until: time(&given.until),
    };
    keys.iter()
        .map(|(key, given)| (key.as_str().try_into().unwrap(), sighting(given)))
        .collect()
}

fn world(folder: &Path, given: &Given) -> World {
    let hub = given.hub_uid.clone().unwrap_or(Some("hub-1".to_owned()));
    let options = Options {
        hub,
        node_grace_seconds: given.node_grace.unwrap_or(90),
        sweep_legacy: given.sweep_legacy.unwrap_or(true),
        lease_namespace: Some("kilo".to_owned()),
    };
    let absent = if given.all_meshes {
        Absent::AllOthers
    } else {
        Absent::Unknown
    };
    let now = time(given.now.as_deref().unwrap_or("2026-01-01T00:00:00Z"));
    let orphans = Orphans {
        absent,
        confirm: given.confirm_orphans.clone(),
        ..Orphans::default()
    };
    let vanished = given
        .vanished
        .iter()
        .map(|(cluster, keys)| (ClusterId::from(cluster.as_str()), vanished(keys)))
        .collect();
    let mut world = World {
        options,
        now,
        orphans,
        history: given.history.history(),
        vanished,
        ..World::default()
    };
    for document in documents(&folder.join("mesh.yaml")) {
        let mesh = mw_api::kilo::convert::mesh(&serde_json::from_value(document).unwrap());
        world.meshes.insert(mesh.id.clone(), mesh);
    }
    for file in files(folder) {
        let cluster = file.file_stem().unwrap().to_str().unwrap();
        if !["mesh", "story"].contains(&cluster) {
            world
                .clusters
                .insert(ClusterId::from(cluster), seen(&file, cluster, given));
        }
    }
    world
}

fn seen(file: &Path, cluster: &str, given: &Given) -> ClusterSeen {
    let (mut nodes, mut peers) = (BTreeMap::new(), BTreeMap::new());
    for document in documents(file) {
        match document["kind"].as_str().unwrap() {
            "Node" => {
                let mut facts =
                    mw_api::kilo::convert::node_facts(&serde_json::from_value(document).unwrap());
                facts.bare_since = times(&given.bare_since, cluster, &facts.name);
                nodes.insert(
                    NodeName::from(facts.name.as_str()),
                    Arc::new(Node::read(facts)),
                );
            }
            "Peer" => {
                let mut facts =
                    mw_api::kilo::convert::peer_facts(&serde_json::from_value(document).unwrap());
                facts.endpoint_written = times(&given.endpoint_written, cluster, &facts.name);
                peers.insert(PeerName::from(facts.name.as_str()), facts);
            }
            other => panic!("{}: what is a {other} here?", file.display()),
        }
    }
    let deleted = given.deleted_nodes.get(cluster).map(|names| {
        names
            .iter()
            .map(|name| (NodeName::from(name.as_str()), None))
            .collect()
    });
    let departures = match given.missing_means_deleted {
        true => Departures::AnyMissing,
        false => Departures::Seen(deleted.unwrap_or_default()),
    };
    ClusterSeen {
        nodes: Seen::Known(nodes),
        peers: Seen::Known(peers),
        departures,
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

fn shown(peer: &WantedPeer) -> ExpectPeer {
    ExpectPeer {
        name: peer.name().to_string(),
        key: peer.key().to_base64(),
        endpoint: peer.endpoint().map(ToString::to_string),
        keepalive: peer.keepalive(),
        allowed_ips: peer.allowed_ips().iter().map(ToString::to_string).collect(),
    }
}

/// All differences between a plan and the expectation.
fn differences(plan: &Plan, story: &Story, hub: Option<&str>) -> Vec<String> {
    let mut found = Vec::new();
    let expect = &story.expect;
    let clusters: BTreeSet<String> = plan
        .meshes
        .values()
        .flat_map(|mesh| mesh.targets.keys())
        .chain(plan.orphans.keys())
        .map(ToString::to_string)
        .chain(expect.targets.keys().cloned())
        .collect();
    let nothing = ExpectTarget::default();
    for cluster in clusters {
        let id = ClusterId::from(cluster.as_str());
        let changes: Vec<&Changes> = plan
            .meshes
            .values()
            .filter_map(|mesh| mesh.targets.get(&id))
            .chain(plan.orphans.get(&id))
            .collect();
        target_differences(
            &mut found,
            &cluster,
            &changes,
            expect.targets.get(&cluster).unwrap_or(&nothing),
        );
    }
    for (mesh, of_mesh) in &plan.meshes {
        for peer in of_mesh.targets.values().flat_map(|c| {
            c.create
                .values()
                .chain(c.update.values().map(|update| &update.after))
        }) {
            let labels = peer.labels();
            let right = labels.mesh.as_deref() == Some(&label_value(&mesh.name))
                && labels.namespace.as_deref() == Some(&label_value(&mesh.namespace))
                && labels
                    .source
                    .as_ref()
                    .is_some_and(|source| peer.name().as_str().contains(source.as_str()))
                && labels.hub.as_deref() == hub;
            compare(
                &mut found,
                &format!("labels of {}", peer.name()),
                &right,
                &true,
            );
        }
    }
    node_differences(&mut found, plan, expect);
    problem_differences(&mut found, plan, expect);
    condition_differences(&mut found, plan, expect);
    found
}

fn compare<T: PartialEq + std::fmt::Debug>(
    found: &mut Vec<String>,
    what: &str,
    is: &T,
    expected: &T,
) {
    if is != expected {
        found.push(format!(
            "{what}\n      expected {expected:?}\n      planned  {is:?}"
        ));
    }
}

fn sorted<T: Ord>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut items: Vec<T> = items.into_iter().collect();
    items.sort();
    items
}

fn target_differences(
    found: &mut Vec<String>,
    cluster: &str,
    changes: &[&Changes],
    expect: &ExpectTarget,
) {
    let by_name = |peers: Vec<ExpectPeer>| -> BTreeMap<String, ExpectPeer> {
        peers
            .into_iter()
            .map(|peer| (peer.name.clone(), peer))
            .collect()
    };
    let created = by_name(
        changes
            .iter()
            .flat_map(|c| c.create.values())
            .map(shown)
            .collect(),
    );
    compare(
        found,
        &format!("{cluster}: create"),
        &created,
        &by_name(expect.create.clone()),
    );
    let updates = || changes.iter().flat_map(|c| c.update.values());
    let updated = by_name(
        updates()
            .filter(|u| !u.adopts)
            .map(|u| shown(&u.after))
            .collect(),
    );
    compare(
        found,
        &format!("{cluster}: update"),
        &updated,
        &by_name(expect.update.clone()),
    );
    let relabelled = sorted(
        updates()
            .filter(|u| u.adopts)
            .map(|u| u.after.name().to_string()),
    );
    compare(
        found,
        &format!("{cluster}: relabel"),
        &relabelled,
        &sorted(expect.relabel.clone()),
    );
    let deleted = sorted(
        changes
            .iter()
            .flat_map(|c| c.delete.keys())
            .map(ToString::to_string),
    );
    compare(
        found,
        &format!("{cluster}: delete"),
        &deleted,
        &sorted(expect.delete.clone()),
    );
    let held = sorted(
        changes
            .iter()
            .flat_map(|c| c.held.keys())
            .map(ToString::to_string),
    );
    compare(
        found,
        &format!("{cluster}: held"),
        &held,
        &sorted(expect.held.clone()),
    );
    if let Some(keep) = expect.keep {
        compare(
            found,
            &format!("{cluster}: keep"),
            &changes.iter().map(|c| c.keep).sum(),
            &keep,
        );
    }
}

fn node_differences(found: &mut Vec<String>, plan: &Plan, expect: &Expect) {
    let clusters = || plan.meshes.values().flat_map(|mesh| &mesh.clusters);
    let skipped: BTreeSet<ExpectSkip> = clusters()
        .flat_map(|(cluster, of)| {
            of.skipped.iter().map(|(node, skip)| ExpectSkip {
                cluster: cluster.to_string(),
                node: node.to_string(),
                reason: skip.reason.to_string(),
            })
        })
        .collect();
    let shown: BTreeSet<String> = skipped.iter().map(|skip| format!("{skip:?}")).collect();
    compare(
        found,
        "skipped",
        &shown,
        &expect
            .skipped
            .iter()
            .map(|skip| format!("{skip:?}"))
            .collect(),
    );
    let carried: BTreeMap<String, Option<String>> = clusters()
        .flat_map(|(cluster, of)| {
            of.carried.iter().map(move |(node, by)| {
                (
                    format!("{cluster}/{node}"),
                    by.as_ref().map(ToString::to_string),
                )
            })
        })
        .collect();
    compare(found, "carried", &carried, &expect.carried);
    for (cluster, anchor) in &expect.anchors {
        let chosen: BTreeSet<Option<String>> = clusters()
            .filter(|(name, _)| name.as_str() == cluster)
            .map(|(_, of)| of.anchor.as_ref().map(ToString::to_string))
            .collect();
        compare(
            found,
            &format!("anchor of {cluster}"),
            &chosen,
            &BTreeSet::from([anchor.clone()]),
        );
    }
}

fn problem_differences(found: &mut Vec<String>, plan: &Plan, expect: &Expect) {
    let problems: Vec<_> = plan.problems().map(|(_, problem)| problem).collect();
    let reasons: BTreeSet<String> = problems
        .iter()
        .map(|problem| problem.reason.to_string())
        .collect();
    let expected: BTreeSet<String> = expect
        .problems
        .iter()
        .map(|problem| problem.reason.clone())
        .collect();
    compare(found, "problems", &reasons, &expected);
    for wanted in &expect.problems {
        let says_all = |text: String| wanted.names.iter().all(|name| text.contains(name.as_str()));
        let of_reason: Vec<String> = problems
            .iter()
            .filter(|p| p.reason.as_str() == wanted.reason)
            .map(|p| format!("{} {}", p.subject, p.message))
            .collect();
        if !of_reason.is_empty() && !of_reason.iter().any(|text| says_all(text.clone())) {
            found.push(format!(
                "no {} names {:?}: {of_reason:?}",
                wanted.reason, wanted.names
            ));
        }
    }
}

fn condition_differences(found: &mut Vec<String>, plan: &Plan, expect: &Expect) {
    for (name, value) in &expect.conditions {
        match value {
            Value::String(state) => {
                condition_difference(found, plan.meshes.values().next().unwrap(), name, state)
            }
            Value::Object(of_mesh) => {
                let (_, mesh) = plan
                    .meshes
                    .iter()
                    .find(|(id, _)| id.name == *name || id.to_string() == *name)
                    .unwrap();
                for (kind, state) in of_mesh {
                    condition_difference(found, mesh, kind, state.as_str().unwrap());
                }
            }
            other => panic!("{other} is no condition"),
        }
    }
    if let Some(hash) = &expect.held_hash {
        let hashes: Vec<String> = plan
            .meshes
            .values()
            .filter_map(|mesh| mesh.held_hash.clone())
            .collect();
        compare(found, "heldHash", &hashes, &vec![hash.clone()]);
    }
}

fn condition_difference(found: &mut Vec<String>, mesh: &MeshPlan, kind: &str, state: &str) {
    let condition = mesh
        .conditions
        .iter()
        .find(|condition| condition.kind == kind)
        .unwrap();
    let is = format!(
        "{}/{}",
        if condition.status { "True" } else { "False" },
        condition.reason
    );
    compare(
        found,
        &format!("condition {kind} ({})", condition.message),
        &is.as_str(),
        &state,
    );
}

#[test]
fn every_story_is_planned_as_told() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stories");
    let only = std::env::var("STORY").ok();
    let mut failed = 0;
    let mut told = 0;
    for story_folder in files(&folder) {
        let name = story_folder
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        if only.as_ref().is_some_and(|only| *only != name) {
            continue;
        }
        let text = read(&story_folder.join("story.yaml"));
        let story: Story =
            serde_saphyr::from_str(&text).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
        let world = world(&story_folder, &story.given);
        let hub = world.options.hub.clone();
        let found = differences(&plan(world), &story, hub.as_deref());
        told += 1;
        if !found.is_empty() {
            failed += 1;
            println!("\n{name}: {}\n  - {}", story.says, found.join("\n  - "));
        }
    }
    assert!(told > 0, "no story was told");
    assert_eq!(
        failed, 0,
        "{failed} of {told} stories are planned otherwise"
    );
}
