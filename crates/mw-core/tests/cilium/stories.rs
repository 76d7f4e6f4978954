//! Golden stories: one file each, with the expectation written by hand from the
//! specification. No flag rewrites them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use mw_core::cilium::facts::{ConnectionSecret, PolicyKey};
use mw_core::cilium::plan::{Condition, ObjectOutcome, Plan, Row, TargetPlan};
use mw_core::cilium::world::World;
use serde::Deserialize;
use serde_json::Value;

use crate::apply::{answer, settle};
use crate::fleet::{Fleet, carry, id, merge};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Story {
    says: String,
    given: Value,
    /// First repeats all writes and answers every dial successfully, until
    /// nothing is left to do.
    #[serde(default)]
    settled: bool,
    /// Answers every dial of the first plan successfully; writes nothing.
    #[serde(default)]
    dialled: bool,
    /// The change after that, as a merge patch of the input.
    #[serde(default)]
    then: Option<Value>,
    expect: Expect,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Expect {
    /// By object.
    #[serde(default)]
    phases: BTreeMap<String, String>,
    /// By object/type: status/reason; "none" if there is no such condition.
    #[serde(default)]
    conditions: BTreeMap<String, String>,
    /// By object: all problems.
    #[serde(default)]
    problems: BTreeMap<String, BTreeSet<String>>,
    /// By object: texts in its conditions, problems or rows; with `!`, not in
    /// them.
    #[serde(default)]
    says: BTreeMap<String, Vec<String>>,
    /// All writes, one line each.
    writes: Option<BTreeSet<String>>,
    #[serde(default)]
    rows: BTreeMap<String, String>,
    /// By cluster/secret/key: texts in it; with `!`, not in it.
    #[serde(default)]
    holds: BTreeMap<String, Vec<String>>,
    dials: Option<BTreeSet<String>>,
    /// By cluster: the spec of the one policy that is written.
    #[serde(default)]
    policies: BTreeMap<String, Value>,
    #[serde(default)]
    exported: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    endpoints: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    applied: BTreeMap<String, Vec<String>>,
    /// By object: `done`, `waits a b`, `left a`.
    #[serde(default)]
    teardown: BTreeMap<String, String>,
    #[serde(default)]
    touches: BTreeMap<String, BTreeSet<String>>,
    probe: Option<String>,
    recheck_at: Option<i64>,
}

fn read(value: &Value) -> Fleet {
    serde_json::from_value(value.clone()).unwrap_or_else(|wrong| panic!("{wrong} in {value}"))
}

/// The world at the end of the story, and its input.
fn tell(story: &Story) -> (World, Fleet) {
    let fleet = read(&story.given);
    let mut world = fleet.world();
    fleet.tell_links(&mut world);
    if story.dialled {
        let plan = mw_core::cilium::plan(&world);
        answer(&plan, &mut world);
    }
    if story.settled {
        settle(&mut world);
    }
    let Some(patch) = &story.then else {
        return (world, fleet);
    };
    let mut given = story.given.clone();
    merge(&mut given, patch);
    let after = read(&given);
    let mut now = after.world();
    let changed = |letter: &str| patch.pointer(&format!("/clusters/{letter}")).is_some();
    for letter in after
        .clusters
        .keys()
        .filter(|letter| world.clusters.contains_key(&id(letter)))
    {
        carry(&world, &mut now, letter, changed(letter));
    }
    now.evidence = world.evidence.clone();
    for (id, of) in &mut now.bindings {
        let before = world
            .bindings
            .get(id)
            .map(|before| before.common.touched.clone());
        of.common.touched.extend(before.unwrap_or_default());
    }
    for (id, of) in &mut now.services {
        of.common.touched.extend(
            world
                .services
                .get(id)
                .map(|before| before.common.touched.clone())
                .unwrap_or_default(),
        );
    }
    for (id, of) in &mut now.intents {
        of.common.touched.extend(
            world
                .intents
                .get(id)
                .map(|before| before.common.touched.clone())
                .unwrap_or_default(),
        );
    }
    after.tell_links(&mut now);
    (now, after)
}

/// Every write of a target, one line each.
fn written(cluster: &str, target: &TargetPlan) -> Vec<String> {
    let TargetPlan {
        identity,
        ca,
        elb,
        users,
        secrets,
        services,
        policies,
    } = target;
    let mut lines = Vec::new();
    if let Some(write) = identity {
        lines.push(format!(
            "identity {} {}",
            write.name.as_ref().map_or("-", |name| name.as_str()),
            write.id.map_or("-".to_owned(), |id| id.to_string())
        ));
    }
    lines.extend(ca.iter().map(|create| format!("ca from {}", create.from)));
    lines.extend(elb.iter().map(|write| format!("elb {}", write.id)));
    if let Some(write) = users {
        lines.extend(write.on.is_none().then(|| "users created".to_owned()));
        lines.extend(write.added.iter().map(|user| format!("users +{user}")));
        lines.extend(write.removed.iter().map(|user| format!("users -{user}")));
    }
    for (name, apply) in secrets {
        for (sign, keys) in [
            ('+', &apply.added),
            ('~', &apply.changed),
            ('-', &apply.removed),
        ] {
            lines.extend(
                keys.iter()
                    .map(|key| format!("{} {sign}{key}", name.as_str())),
            );
        }
    }
    for (name, apply) in services {
        let service = format!("{}/{}", name.namespace, name.name);
        let short = |key: &str| {
            key.replace("service.cilium.io/", "new/")
                .replace("io.cilium/", "old/")
        };
        lines.extend(
            apply
                .annotations
                .iter()
                .map(|(key, value)| format!("{service} {}={value}", short(key))),
        );
        lines.extend(
            apply
                .removed
                .iter()
                .map(|key| format!("{service} -{}", short(key))),
        );
    }
    lines.extend(
        policies
            .create
            .keys()
            .map(|key| format!("policy +{}", shown(key))),
    );
    lines.extend(
        policies
            .update
            .keys()
            .map(|key| format!("policy ~{}", shown(key))),
    );
    lines.extend(
        policies
            .delete
            .keys()
            .map(|key| format!("policy -{}", shown(key))),
    );
    lines
        .into_iter()
        .map(|line| format!("{cluster}: {line}"))
        .collect()
}

/// Without the hash at its end.
fn shown(key: &PolicyKey) -> String {
    let name = key
        .name
        .rsplit_once('-')
        .map_or(key.name.as_str(), |(name, _)| name);
    format!("{}/{name}", key.namespace.as_deref().unwrap_or_default())
}

/// The compared parts of each object, whatever its kind.
struct Told {
    phase: &'static str,
    conditions: Vec<Condition>,
    problems: BTreeSet<String>,
    texts: Vec<String>,
    teardown: String,
    touches: BTreeSet<String>,
}

fn told<P: Copy>(
    outcome: &ObjectOutcome<P>,
    phase: impl Fn(P) -> &'static str,
    rows: &[Row],
) -> Told {
    let problems = outcome.problems.iter();
    let texts = outcome
        .conditions
        .iter()
        .map(|of| of.message.clone())
        .chain(
            problems
                .clone()
                .map(|of| format!("{} {}", of.message, of.hint)),
        );
    let teardown = outcome.teardown.as_ref().map(|of| {
        let list = |names: Vec<&String>| {
            names
                .into_iter()
                .map(|name| format!(" {name}"))
                .collect::<String>()
        };
        match (of.waits_for.is_empty(), of.left_behind.is_empty()) {
            (true, true) => "done".to_owned(),
            (true, false) => format!("left{}", list(of.left_behind.keys().collect())),
            (false, _) => format!("waits{}", list(of.waits_for.iter().collect())),
        }
    });
    Told {
        phase: phase(outcome.phase),
        conditions: outcome.conditions.clone(),
        problems: problems.map(|of| of.reason.to_string()).collect(),
        texts: texts
            .chain(rows.iter().filter_map(|row| row.message.clone()))
            .collect(),
        teardown: teardown.unwrap_or_default(),
        touches: outcome.touches.clone(),
    }
}

fn told_of(plan: &Plan, fleet: &Fleet, label: &str) -> Told {
    let object = fleet
        .objects
        .get(label)
        .unwrap_or_else(|| panic!("who is {label}?"));
    let id = object.id(label);
    match object.kind.as_str() {
        "ClusterMeshBinding" => told(
            &plan.bindings[&id].outcome,
            |phase| phase.as_str(),
            &plan.bindings[&id].rows,
        ),
        "GlobalService" => told(&plan.services[&id].outcome, |phase| phase.as_str(), &[]),
        _ => told(&plan.intents[&id].outcome, |phase| phase.as_str(), &[]),
    }
}

#[derive(Default)]
struct Differences(Vec<String>);

impl Differences {
    fn compare<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, is: &T, expected: &T) {
        if is != expected {
            self.0.push(format!(
                "{what}\n      expected {expected:?}\n      planned  {is:?}"
            ));
        }
    }

    fn texts(&mut self, what: &str, texts: &str, wanted: &[String]) {
        for text in wanted {
            match text.strip_prefix('!') {
                Some(text) if texts.contains(text) => {
                    self.0.push(format!("{what} says {text:?}: {texts}"))
                }
                None if !texts.contains(text.as_str()) => self
                    .0
                    .push(format!("{what} does not say {text:?}: {texts}")),
                _ => {}
            }
        }
    }
}

fn differences(world: &World, fleet: &Fleet, plan: &Plan, expect: &Expect) -> Vec<String> {
    let mut found = Differences::default();
    compare_objects(&mut found, fleet, plan, expect);
    if let Some(writes) = &expect.writes {
        let planned: BTreeSet<String> = plan
            .targets
            .iter()
            .flat_map(|(id, target)| written(id.as_str(), target))
            .collect();
        found.compare("writes", &planned, writes);
    }
    if let Some(dials) = &expect.dials {
        let shown = plan.dials.iter().map(|(link, dial)| {
            let name = dial
                .server_name
                .as_ref()
                .map(|name| format!(" as {name}"))
                .unwrap_or_default();
            format!(
                "{}->{} {}:{}{name}",
                link.reader,
                link.remote,
                dial.hosts.join(","),
                dial.port
            )
        });
        found.compare("dials", &shown.collect(), dials);
    }
    for (path, wanted) in &expect.holds {
        found.texts(path, &content(world, plan, path), wanted);
    }
    for (cluster, spec) in &expect.policies {
        let policies = &plan.targets[&id(cluster)].policies;
        let written: Vec<&Value> = policies
            .create
            .values()
            .chain(policies.update.values().map(|of| &of.after))
            .map(|of| &of.spec)
            .collect();
        found.compare(&format!("policy on {cluster}"), &written, &vec![spec]);
    }
    if let Some(at) = expect.recheck_at {
        found.compare("recheckAt", &plan.recheck_at.map(|at| at.0), &Some(at));
    }
    found.0
}

/// A key after the plan is carried out.
fn content(world: &World, plan: &Plan, path: &str) -> String {
    let parts: Vec<&str> = path.split('/').collect();
    let secret = ConnectionSecret::ALL
        .into_iter()
        .find(|of| of.as_str() == parts[1])
        .unwrap();
    let planned = plan
        .targets
        .get(&id(parts[0]))
        .and_then(|target| target.secrets.get(&secret))
        .and_then(|apply| apply.data.get(parts[2]));
    let seen = world.clusters[&id(parts[0])]
        .secrets
        .known()
        .and_then(|all| all.get(&secret))
        .and_then(|all| all.keys.get(parts[2]));
    let bytes = planned
        .or(seen.map(|held| &held.value))
        .unwrap_or_else(|| panic!("{path} is not there"));
    String::from_utf8(bytes.expose().to_vec()).unwrap()
}

fn compare_objects(found: &mut Differences, fleet: &Fleet, plan: &Plan, expect: &Expect) {
    for (label, phase) in &expect.phases {
        let told = told_of(plan, fleet, label);
        found.compare(
            &format!("phase of {label} ({:?})", told.texts),
            &told.phase,
            &phase.as_str(),
        );
    }
    for (path, state) in &expect.conditions {
        let (label, kind) = path.split_once('/').unwrap();
        let told = told_of(plan, fleet, label);
        let condition = told.conditions.iter().find(|of| of.kind == kind);
        let is = condition.map_or("none".to_owned(), |of| {
            format!("{}/{}", of.status.as_str(), of.reason)
        });
        found.compare(path, &is, state);
    }
    for (label, problems) in &expect.problems {
        found.compare(
            &format!("problems of {label}"),
            &told_of(plan, fleet, label).problems,
            problems,
        );
    }
    for (label, wanted) in &expect.says {
        found.texts(
            label,
            &told_of(plan, fleet, label).texts.join(" | "),
            wanted,
        );
    }
    for (label, state) in &expect.teardown {
        found.compare(
            &format!("teardown of {label}"),
            &told_of(plan, fleet, label).teardown,
            state,
        );
    }
    for (label, refs) in &expect.touches {
        found.compare(
            &format!("touches of {label}"),
            &told_of(plan, fleet, label).touches,
            refs,
        );
    }
    let object = |label: &str| fleet.objects[label].id(label);
    for (path, row) in &expect.rows {
        let (label, name) = path.split_once('/').unwrap();
        let is = plan.bindings[&object(label)]
            .rows
            .iter()
            .find(|row| row.cluster == name)
            .map(shown_row);
        found.compare(path, &is.unwrap_or_default(), row);
    }
    for (label, clusters) in &expect.exported {
        found.compare(
            &format!("exported by {label}"),
            &plan.services[&object(label)].exported,
            clusters,
        );
    }
    for (label, endpoints) in &expect.endpoints {
        let is = plan.services[&object(label)]
            .endpoints
            .iter()
            .map(|of| format!("{}={}", of.cluster, of.ready))
            .collect();
        found.compare(&format!("endpoints of {label}"), &is, endpoints);
    }
    for (label, clusters) in &expect.applied {
        found.compare(
            &format!("applied by {label}"),
            &plan.intents[&object(label)].applied,
            clusters,
        );
    }
    if let Some(probe) = &expect.probe {
        let is = plan
            .intents
            .values()
            .find_map(|of| of.probe)
            .unwrap_or("none");
        found.texts("probe", is, std::slice::from_ref(probe));
    }
}

/// `connected 1 3/3`
fn shown_row(row: &Row) -> String {
    let id = row.id.map_or("-".to_owned(), |id| id.to_string());
    format!(
        "{} {id} {}/{}",
        if row.connected { "connected" } else { "apart" },
        row.ready_nodes,
        row.total_nodes
    )
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

#[test]
fn every_story_is_planned_as_told() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cilium/stories");
    let only = std::env::var("STORY").ok();
    let (mut told, mut failed) = (0, 0);
    for file in files(&folder) {
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        if only.as_ref().is_some_and(|only| *only != name) {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let story: Story =
            serde_saphyr::from_str(&text).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
        let found = std::panic::catch_unwind(|| {
            let (world, fleet) = tell(&story);
            differences(
                &world,
                &fleet,
                &mw_core::cilium::plan(&world),
                &story.expect,
            )
        });
        let found = found.unwrap_or_else(|_| vec!["it can't be told".to_owned()]);
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
