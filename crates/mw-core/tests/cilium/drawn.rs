//! Random fleets, and the steps applied to them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use mw_core::cilium::plan::Plan;
use mw_core::cilium::world::{Dialled, Evidence, World};
use mw_core::names::Workspace;
use mw_core::problem::{Problem, Reason};
use mw_core::seen::Seen;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use serde_json::{Value, json};

use crate::apply::{answer, apply, settle};
use crate::fleet::{Fleet, carry, id, merge};

pub(crate) type Verdict = Result<(), TestCaseError>;

/// The tenant whose names must not be visible to others.
pub(crate) const STRANGER: &str = "w2";
/// Prefixes of all names of that tenant. Its refs are not valid Cilium names,
/// so that none becomes a cluster's name, which all users of the cluster see.
pub(crate) const HIDDEN: [&str; 3] = ["Their.", "their-", "hidden-"];

#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    fleet: Value,
    steps: Vec<Step>,
}

#[derive(Debug, Clone)]
enum Step {
    /// Carries out the plan's writes.
    Apply,
    /// Answers every dial successfully.
    Answer,
    /// Repeats until nothing is left to do.
    Settle,
    /// The dials of one reader fail.
    Fail(usize, usize),
    Reader(usize, bool),
    Change(usize, usize),
    Delete(usize),
    Forget(usize),
}

const CLUSTERS: [&str; 4] = ["a", "b", "c", "d"];
const FAILURES: [&str; 6] = ["DNS", "TCP", "TLS", "Certificate", "Permission", "Name"];

/// Ways in which a cluster may differ from a healthy one.
fn quirks() -> Vec<Value> {
    vec![
        json!({ "kvstoremesh": true }),
        json!({ "version": "1.18" }),
        json!({ "version": "1.18", "agentAliases": ["a.mesh.cilium.io", "b.mesh.cilium.io"] }),
        json!({ "ca": "two" }),
        json!({ "trusts": ["two"] }),
        json!({ "id": "" }),
        json!({ "name": "default", "id": "0" }),
        json!({ "name": "" }),
        json!({ "id": "1" }),
        json!({ "id": "nonsense" }),
        json!({ "name": "same" }),
        json!({ "max": 511 }),
        json!({ "noCilium": true }),
        json!({ "noConfig": true }),
        json!({ "ready": 0 }),
        json!({ "noApiserver": true }),
        json!({ "available": 0 }),
        json!({ "noService": true }),
        json!({ "serviceType": "NodePort" }),
        json!({ "ips": [] }),
        json!({ "ips": ["198.51.100.7"] }),
        json!({ "ips": [], "hostnames": ["lb.example"] }),
        json!({ "certificateNames": ["*.mesh.cilium.io"] }),
        json!({ "certificateNames": ["198.51.100.7", "10.0.0.1", "10.0.0.2"] }),
        json!({ "nodes": { "n1": { "internal": ["10.0.0.1"] }, "n2": { "internal": ["10.0.0.2"] } } }),
        json!({ "nodes": { "n1": { "not_ready": true, "internal": ["10.0.0.1"] }, "n2": { "internal": ["10.0.0.2"] } } }),
        json!({ "root": false, "certificates": [] }),
        json!({ "certificates": ["local"] }),
        json!({ "broken": ["server"] }),
        json!({ "broken": ["local", "root"] }),
        json!({ "notAfter": 10 }),
        json!({ "agentFiles": [] }),
        json!({ "silent": "no route" }),
        json!({ "silent": "no route", "remembered": "a/1" }),
        json!({ "forbidden": "403" }),
        json!({ "unknown": ["all"] }),
        json!({ "unknown": ["config"] }),
        json!({ "unknown": ["secrets", "policies"] }),
        json!({ "unknown": ["services", "certificates"] }),
        json!({ "unknown": ["apiserver", "service", "namespaces"] }),
        json!({ "keys": { "cilium-clustermesh/b": { "value": "endpoints: helm's", "by": ["helm"] } } }),
        json!({ "keys": { "cilium-clustermesh/b": { "value": "endpoints: both", "by": ["helm", "meshwright"] } } }),
        json!({ "keys": { "cilium-clustermesh/b": { "value": foreign("192.0.2.2", "common"), "by": ["helm"] } } }),
        json!({ "keys": { "cilium-clustermesh/b": { "value": foreign("192.0.2.9", "common"), "by": ["helm", "meshwright"] } } }),
        json!({ "kvstoremesh": true, "keys": {
            "cilium-clustermesh/b": { "value": foreign("clustermesh-apiserver.kube-system.svc", "local"), "by": ["helm"] },
            "cilium-kvstoremesh/b": { "value": foreign("lb.example", "common"), "by": ["helm"] },
        } }),
        json!({ "kvstoremesh": true, "keys": { "cilium-kvstoremesh/b": { "value": foreign("192.0.2.2", "common"), "by": ["helm"] } } }),
        json!({ "keys": { "cilium-kvstoremesh/old": { "value": "endpoints: ours", "by": ["meshwright"] } } }),
        json!({ "elb": "other" }),
        json!({ "authMode": "cluster", "users": "users: []" }),
        json!({ "authMode": "migration", "users": "users:\n- name: remote-x\n  role: remote\n" }),
        json!({ "authMode": "cluster", "users": "users: [{name: remote-x, role: remote}]" }),
        json!({ "authMode": "cluster", "users": "users:\n", "usersOfHelm": true, "ca": "two" }),
        json!({ "uid": "shared" }),
        json!({ "uid": "shared", "privateCa": "k" }),
        json!({ "uid": "shared", "privateCa": "k", "owner": STRANGER }),
    ]
    .into_iter()
    .chain([harmless(), harmless()].concat())
    .collect()
}

/// A configuration as another manager writes it.
fn foreign(host: &str, files: &str) -> String {
    let file = |field: &str, end: &str| {
        format!("{field}: /var/lib/cilium/clustermesh/{files}-etcd-client{end}\n")
    };
    let files = [
        ("trusted-ca-file", "-ca.crt"),
        ("key-file", ".key"),
        ("cert-file", ".crt"),
    ]
    .map(|(field, end)| file(field, end));
    format!("endpoints:\n- https://{host}:2379\n{}", files.concat())
}

/// Differences that don't prevent a mesh from coming up, chosen more often:
/// exports and policies need a mesh that is up.
fn harmless() -> Vec<Value> {
    vec![
        json!({ "crds": ["none"] }),
        json!({ "crds": [] }),
        json!({ "namespaces": [] }),
        json!({ "services": { "prod/nginx": null } }),
        json!({ "services": { "prod/nginx": { "annotations": { "service.cilium.io/shared": "maybe" } } } }),
        json!({ "services": { "prod/nginx": { "ours": { "service.cilium.io/affinity": "local" } } } }),
        json!({ "globalNamespaces": { "prod": "false" } }),
    ]
}

/// Variants of the objects; one of each is chosen.
fn places() -> Vec<(&'static str, Vec<Value>)> {
    let binding = |created: i64, spec: Value| json!({ "kind": "ClusterMeshBinding", "created": created, "wasUp": created < 2, "spec": spec });
    let stranger = |created: i64, spec: Value| {
        let refs = json!({ "Their.b": { "cluster": "b" }, "Their.d": { "cluster": "d" } });
        json!({ "kind": "ClusterMeshBinding", "name": "their-mesh", "workspace": STRANGER, "created": created, "refs": refs, "spec": spec })
    };
    let node_port = json!({ "serviceType": "NodePort", "enableKvStoreMesh": true, "hubble": { "enabled": true } });
    let service =
        |spec: Value| json!({ "kind": "GlobalService", "created": 5, "spec": with_mesh(spec) });
    let intent = |spec: Value| json!({ "kind": "ConnectivityIntent", "spec": with_mesh(spec) });
    let named = json!({ "namespace": "prod", "name": "nginx" });
    let (front, prod) = (
        json!({ "namespace": "front" }),
        json!({ "namespace": "prod" }),
    );
    vec![
        (
            "mesh",
            vec![
                binding(1, json!({ "clusterRefs": ["a", "b"] })),
                binding(1, json!({ "clusterRefs": ["c", "a", "b"] })),
                binding(
                    3,
                    json!({ "clusterRefs": ["a", "b", "c"], "meshConfig": node_port }),
                ),
                binding(1, json!({ "clusterRefs": ["a", "b", "nowhere"] })),
                binding(1, json!({ "clusterRefs": ["a"] })),
                json!({ "kind": "ClusterMeshBinding", "refs": { "twin": { "cluster": "a" } }, "elbIds": { "a": "41fae315-2964-49c4-afde-bc6d358cd031", "b": "x" },
                "spec": { "clusterRefs": ["a", "twin", "b"] } }),
            ],
        ),
        (
            "theirs",
            vec![
                stranger(2, json!({ "clusterRefs": ["Their.b", "Their.d"] })),
                stranger(
                    0,
                    json!({ "clusterRefs": ["Their.d", "Their.b"], "meshConfig": { "serviceType": "NodePort" } }),
                ),
            ],
        ),
        (
            "pair",
            vec![binding(4, json!({ "clusterRefs": ["b", "c"] }))],
        ),
        (
            "svc",
            vec![
                service(json!({ "selector": named })),
                service(json!({ "selector": named, "shared": false, "affinity": "local" })),
                service(json!({ "selector": named, "targetClusters": ["a"] })),
                service(json!({ "selector": named, "targetClusters": ["zz"] })),
                service(json!({ "selector": { "namespace": "prod" } })),
            ],
        ),
        (
            "svc2",
            vec![service(json!({ "selector": named, "affinity": "remote" }))],
        ),
        (
            "cint",
            vec![
                intent(json!({ "action": "Allow", "source": front, "destination": prod })),
                intent(
                    json!({ "action": "Deny", "source": front, "destination": prod, "ports": [{ "port": 1, "endPort": 9 }] }),
                ),
                intent(json!({ "action": "Deny", "policyMode": "Clusterwide", "source": front })),
                intent(json!({ "action": "Deny" })),
            ],
        ),
    ]
}

fn with_mesh(mut spec: Value) -> Value {
    spec["meshRef"] = json!({ "name": "mesh" });
    spec
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Apply),
        3 => Just(Step::Answer),
        1 => (0..CLUSTERS.len(), 0..FAILURES.len()).prop_map(|(at, kind)| Step::Fail(at, kind)),
        1 => (0..CLUSTERS.len(), any::<bool>()).prop_map(|(at, ready)| Step::Reader(at, ready)),
        3 => (0..CLUSTERS.len(), 0..quirks().len()).prop_map(|(at, quirk)| Step::Change(at, quirk)),
        1 => (0..places().len()).prop_map(Step::Delete),
        1 => (0..places().len()).prop_map(Step::Forget),
    ]
}

pub(crate) fn scenario() -> impl Strategy<Value = Scenario> {
    // Most clusters are healthy, otherwise no mesh would ever come up.
    let quirks =
        prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(0..quirks().len(), 1..3)];
    let clusters = prop::collection::vec(quirks, CLUSTERS.len());
    let objects: Vec<_> = places()
        .iter()
        .map(|(_, choices)| prop::option::weighted(0.7, 0..choices.len()))
        .collect();
    let options = (0..6_usize, prop::bool::weighted(0.1));
    let steps = (
        prop::bool::weighted(0.7),
        prop::collection::vec(step(), 0..8),
    );
    (clusters, objects, options, steps).prop_map(
        |(clusters, objects, options, (settled, steps))| {
            let first = settled.then_some(Step::Settle);
            Scenario {
                fleet: fleet(&clusters, &objects, options),
                steps: first.into_iter().chain(steps).collect(),
            }
        },
    )
}

fn fleet(
    clusters: &[Vec<usize>],
    objects: &[Option<usize>],
    (dial, some_unknown): (usize, bool),
) -> Value {
    let mut fleet =
        json!({ "clusters": {}, "objects": {}, "options": { "someObjectsUnknown": some_unknown } });
    fleet["options"]["verifyDial"] =
        json!(["warn", "warn", "warn", "warn", "require", "off"][dial]);
    for (letter, chosen) in CLUSTERS.iter().zip(clusters) {
        let mut cluster = json!({ "services": { "prod/nginx": {} } });
        if *letter == "d" {
            merge(&mut cluster, &json!({ "name": "hidden-d" }));
        }
        chosen
            .iter()
            .for_each(|at| merge(&mut cluster, &quirks()[*at]));
        fleet["clusters"][letter] = cluster;
    }
    for ((place, choices), chosen) in places().iter().zip(objects) {
        if let Some(chosen) = chosen {
            fleet["objects"][place] = choices[*chosen].clone();
        }
    }
    fleet
}

impl Scenario {
    /// The world at the end of the story.
    pub(crate) fn world(&self) -> World {
        let mut told = self.fleet.clone();
        let mut world = read(&told).world();
        for step in &self.steps {
            step.play(&mut told, &mut world);
        }
        world
    }
}

fn read(value: &Value) -> Fleet {
    serde_json::from_value(value.clone()).unwrap()
}

impl Step {
    fn play(&self, told: &mut Value, world: &mut World) {
        match self {
            Step::Apply => apply(&mw_core::cilium::plan(world), world),
            Step::Answer => answer(&mw_core::cilium::plan(world), world),
            Step::Settle => settle(world),
            Step::Fail(at, kind) => evidence(world, CLUSTERS[*at], Some(FAILURES[*kind]), None),
            Step::Reader(at, ready) => evidence(world, CLUSTERS[*at], None, Some(*ready)),
            Step::Change(at, quirk) => {
                let letter = CLUSTERS[*at];
                merge(&mut told["clusters"][letter], &quirks()[*quirk]);
                rebuild(told, world, letter);
            }
            Step::Delete(at) => {
                let place = places()[*at].0;
                if told["objects"].get(place).is_some() {
                    told["objects"][place]["deleting"] = json!(900);
                    rebuild(told, world, "");
                }
            }
            Step::Forget(at) => {
                told["objects"]
                    .as_object_mut()
                    .unwrap()
                    .remove(places()[*at].0);
                rebuild(told, world, "");
            }
        }
    }
}

/// Rebuilds the world, keeping everything written before.
fn rebuild(told: &Value, world: &mut World, changed: &str) {
    let mut now = read(told).world();
    for letter in CLUSTERS {
        carry(world, &mut now, letter, letter == changed);
    }
    now.evidence = world.evidence.clone();
    for (id, of) in &mut now.bindings {
        of.common.touched = world
            .bindings
            .get(id)
            .map(|before| before.common.touched.clone())
            .unwrap_or_default();
    }
    for (id, of) in &mut now.services {
        of.common.touched = world
            .services
            .get(id)
            .map(|before| before.common.touched.clone())
            .unwrap_or_default();
    }
    for (id, of) in &mut now.intents {
        of.common.touched = world
            .intents
            .get(id)
            .map(|before| before.common.touched.clone())
            .unwrap_or_default();
    }
    *world = now;
}

fn evidence(world: &mut World, reader: &str, fails: Option<&str>, ready: Option<bool>) {
    let dials = mw_core::cilium::plan(world).dials;
    for (link, dial) in dials
        .into_iter()
        .filter(|(link, _)| link.reader == id(reader))
    {
        let sketch = json!({ "fails": fails, "readerReady": ready });
        let sketch: crate::fleet::SketchedLink = serde_json::from_value(sketch).unwrap();
        let dialled: Dialled = sketch.dialled(world, &dial.fingerprint, dial.cluster_id);
        let reader = match ready {
            Some(ready) => Seen::Known(mw_core::cilium::world::ReaderView {
                ready,
                at: world.now,
            }),
            None => Seen::Unknown("no metrics".to_owned()),
        };
        world.evidence.insert(
            link,
            Evidence {
                dial: Some(dialled),
                reader,
            },
        );
    }
}

/// Every problem of a plan, with the workspace it belongs to.
pub(crate) fn problems(plan: &Plan) -> Vec<(&Workspace, &Problem)> {
    let bindings = plan.bindings.iter().flat_map(|(id, of)| {
        of.outcome
            .problems
            .iter()
            .map(move |problem| (&id.workspace, problem))
    });
    let services = plan.services.iter().flat_map(|(id, of)| {
        of.outcome
            .problems
            .iter()
            .map(move |problem| (&id.workspace, problem))
    });
    let intents = plan.intents.iter().flat_map(|(id, of)| {
        of.outcome
            .problems
            .iter()
            .map(move |problem| (&id.workspace, problem))
    });
    bindings.chain(services).chain(intents).collect()
}

const CASES: u32 = 1500;

/// Number of fleets per law; set LAW_CASES for more, and LAW_SEED for different
/// ones.
fn runner() -> TestRunner {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    let cases = number("LAW_CASES")
        .and_then(|cases| u32::try_from(cases).ok())
        .unwrap_or(CASES);
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    };
    let mut seed = [7; 32];
    seed[..8].copy_from_slice(&number("LAW_SEED").unwrap_or(0).to_le_bytes());
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
}

/// The reasons that the fleets of every law must reach.
const REACHED: [Reason; 44] = [
    Reason::AccessDenied,
    Reason::AddressPending,
    Reason::AnnotationOwnedByOther,
    Reason::APIServerNotFound,
    Reason::APIServerNotReady,
    Reason::BindingNotFound,
    Reason::CertificateExpired,
    Reason::CertificateMissing,
    Reason::CertificateUnreadable,
    Reason::CiliumConfigMissing,
    Reason::CiliumNotFound,
    Reason::CiliumNotReady,
    Reason::CiliumTooOld,
    Reason::ClientFilesMissing,
    Reason::ClusterIDInvalid,
    Reason::ClusterNotReady,
    Reason::ClusterShared,
    Reason::ClusterUnreachable,
    Reason::Conflict,
    Reason::DenyIncomplete,
    Reason::DialCertificate,
    Reason::DialName,
    Reason::DialPermission,
    Reason::DialTLS,
    Reason::DuplicateClusterID,
    Reason::DuplicateClusterName,
    Reason::ELBIDRefused,
    Reason::IdentityIncomplete,
    Reason::InvalidSpec,
    Reason::KeyManagedByOther,
    Reason::KeyOwnedByOther,
    Reason::MaxConnectedClustersDiffer,
    Reason::MeshNotReady,
    Reason::NamespaceNotGlobal,
    Reason::NotVerifiable,
    Reason::NotVerified,
    Reason::PolicyCRDMissing,
    Reason::RemoteUserMissing,
    Reason::RemoteUsersOfHelm,
    Reason::SameClusterTwice,
    Reason::ServerNameMismatch,
    Reason::ServiceNotFound,
    Reason::ServiceTypeMismatch,
    Reason::UnknownTargetCluster,
];

/// Checks a law on scenarios; the law gets the final world and its plan.
pub(crate) fn law(check: impl Fn(&World, &Plan) -> Verdict) {
    let reached: RefCell<BTreeMap<Reason, usize>> = RefCell::default();
    let result = runner().run(&scenario(), |scenario| {
        let world = scenario.world();
        let plan = mw_core::cilium::plan(&world);
        for (_, problem) in problems(&plan) {
            *reached.borrow_mut().entry(problem.reason).or_default() += 1;
        }
        check(&world, &plan)
    });
    if let Err(wrong) = result {
        panic!("{wrong}");
    }
    let missing: BTreeSet<Reason> = REACHED
        .into_iter()
        .filter(|reason| !reached.borrow().contains_key(reason))
        .collect();
    assert!(
        missing.is_empty(),
        "the law was never tried on: {missing:?}\nreached: {:#?}",
        reached.borrow()
    );
}
