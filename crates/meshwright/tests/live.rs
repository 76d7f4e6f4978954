//! `plan NAME` and `status` on real API servers: same results as from files, also when servers hang
//! or deny access, and never a write.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use common::{Folder, Outcome, key, node, reasons};
use k8s_openapi::api::rbac::v1::PolicyRule;
use mw_testbed::proxy::{Effect, Fault, Match};
use mw_testbed::{Cluster, FaultProxy, PEER_CRD, Testbed, eventually};
use serde_json::{Value, json};

const MESHES: &str = "/apis/kilo.squat.ai/v1alpha1/namespaces/kilo/clustermeshes";
const PEERS: &str = "/apis/kilo.squat.ai/v1alpha1/peers";
const SOON: Duration = Duration::from_secs(60);
const PRESHARED: &str = "cHJlc2hhcmVkLXNlY3JldC1vZi1zb21lYm9keS0xMjM=";

fn rule(group: &str, resource: &str, verbs: &[&str]) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![group.into()]),
        resources: Some(vec![resource.into()]),
        verbs: verbs.iter().map(|verb| (*verb).into()).collect(),
        ..PolicyRule::default()
    }
}

fn member_rules() -> Vec<PolicyRule> {
    vec![
        rule("", "nodes", &["list"]),
        rule("kilo.squat.ai", "peers", &["list"]),
    ]
}

fn namespace_rules() -> Vec<PolicyRule> {
    vec![
        rule("kilo.squat.ai", "clustermeshes", &["list", "watch"]),
        rule("", "secrets", &["list"]),
        rule("coordination.k8s.io", "leases", &["list", "watch"]),
    ]
}

fn hub_rules() -> Vec<PolicyRule> {
    [
        member_rules(),
        namespace_rules(),
        vec![rule("", "namespaces", &["get"])],
    ]
    .concat()
}

fn mesh() -> Value {
    let entry = |name: &str, at: u8, more: Value| {
        let mut entry = json!({"name": name, "podCIDRs": [format!("10.{at}.0.0/16")], "wireguardCIDR": format!("10.{}.0.0/16", at + 3)});
        entry
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        entry
    };
    json!({
        "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "ClusterMesh", "metadata": {"name": "prod", "namespace": "kilo"},
        "spec": {"clusters": [
            entry("a", 1, json!({"local": true})),
            entry("b", 2, json!({"kubeconfigSecretRef": {"name": "to-b"}})),
            entry("c", 3, json!({"kubeconfigSecretRef": {"name": "to-c"}})),
        ]},
    })
}

fn secret(name: &str, kubeconfig: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "kilo"}, "stringData": {"value": kubeconfig}})
}

/// Hub `a` and two members with two nodes each, the mesh and its Secrets.
struct Fleet {
    bed: Testbed,
    folder: Folder,
    /// Values that must never be shown.
    secrets: Vec<String>,
    to_c: String,
}

impl Fleet {
    async fn start(test: &str) -> Option<Fleet> {
        let bed = Testbed::start_or_skip(&["a", "b", "c"]).await?;
        let crd = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../config/crd/kilo.squat.ai_clustermeshes.yaml");
        let hub = bed.cluster("a").unwrap();
        hub.install_crd(&std::fs::read_to_string(crd).unwrap())
            .await
            .unwrap();
        for (at, cluster) in (1..).zip(bed.clusters()) {
            cluster.install_crd(PEER_CRD).await.unwrap();
            for number in 1..=2 {
                let documents: Vec<Value> = serde_saphyr::from_multiple(&node(at, number)).unwrap();
                cluster.create(&documents[0]).await.unwrap();
            }
        }
        let mut secrets = vec![PRESHARED.to_owned()];
        let token = hub
            .service_account("kilo", "planner", &hub_rules())
            .await
            .unwrap();
        let folder = Folder::new(test).with("hub", &hub.kubeconfig(hub.url(), &token));
        secrets.push(token);
        let mut to_c = String::new();
        for name in ["b", "c"] {
            let member = bed.cluster(name).unwrap();
            let token = member
                .service_account("kilo", "planner", &member_rules())
                .await
                .unwrap();
            to_c = member.kubeconfig(member.url(), &token);
            hub.create(&secret(&format!("to-{name}"), &to_c))
                .await
                .unwrap();
            secrets.push(token);
        }
        hub.create(&mesh()).await.unwrap();
        Some(Fleet {
            bed,
            folder,
            secrets,
            to_c,
        })
    }

    fn hub(&self) -> &Cluster {
        self.bed.cluster("a").unwrap()
    }

    /// Runs the binary against the hub and checks that no secret is printed.
    fn run(&self, args: &str) -> Outcome {
        let outcome = self.folder.run(&format!("{args} --kubeconfig hub"));
        self.check(outcome)
    }

    fn check(&self, outcome: Outcome) -> Outcome {
        for secret in &self.secrets {
            assert!(
                !outcome.stdout.contains(secret) && !outcome.stderr.contains(secret),
                "a secret is shown"
            );
        }
        outcome
    }

    fn plan(&self) -> (i32, Value) {
        let outcome = self.run("plan prod -n kilo -o json");
        (outcome.code, outcome.json())
    }

    async fn replace_secret(&self, name: &str, kubeconfig: &str) {
        let path = format!("/api/v1/namespaces/kilo/secrets/{name}");
        self.hub()
            .merge_patch(&path, &json!({"stringData": {"value": kubeconfig}}))
            .await
            .unwrap();
    }

    /// The live plan equals the plan from dumps of the same state, in every format.
    async fn assert_same_as_from_files(&self) {
        let mesh = self
            .hub()
            .get(&format!("{MESHES}/prod"))
            .await
            .unwrap()
            .unwrap();
        std::fs::write(self.folder.0.join("mesh.json"), mesh.to_string()).unwrap();
        for cluster in self.bed.clusters() {
            let mut items = vec![
                cluster
                    .get("/api/v1/namespaces/kube-system")
                    .await
                    .unwrap()
                    .unwrap(),
            ];
            items.extend(typed(
                cluster.list("/api/v1/nodes").await.unwrap(),
                "v1",
                "Node",
            ));
            items.extend(typed(
                cluster.list(PEERS).await.unwrap(),
                "kilo.squat.ai/v1alpha1",
                "Peer",
            ));
            let dump = json!({"apiVersion": "v1", "kind": "List", "items": items});
            std::fs::write(
                self.folder.0.join(format!("{}.json", cluster.name())),
                dump.to_string(),
            )
            .unwrap();
        }
        let files = "plan -f mesh.json --cluster a=a.json --cluster b=b.json --cluster c=c.json";
        for format in ["json", "yaml", "table"] {
            let offline = self.check(self.folder.run(&format!("{files} -o {format}")));
            let live = self.run(&format!("plan prod -n kilo -o {format}"));
            assert_eq!(
                (live.stdout, live.code),
                (offline.stdout, offline.code),
                "{format}"
            );
            assert_eq!(live.stderr, "");
        }
    }
}

/// Adds apiVersion and kind, like kubectl.
fn typed(items: Vec<Value>, version: &str, kind: &str) -> Vec<Value> {
    let with_type = |mut item: Value| {
        item["apiVersion"] = version.into();
        item["kind"] = kind.into();
        item["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("managedFields");
        item
    };
    items.into_iter().map(with_type).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_plan_says_what_the_plan_of_dumps_says() {
    let Some(fleet) = Fleet::start("live-plan").await else {
        return;
    };
    fleet.assert_same_as_from_files().await;
    let (code, plan) = fleet.plan();
    assert_eq!(code, 1);
    assert_eq!(
        plan["targets"]
            .as_object()
            .unwrap()
            .keys()
            .collect::<Vec<_>>(),
        ["a", "b", "c"]
    );
    for cluster in fleet.bed.clusters() {
        for peer in plan["targets"][cluster.name()]["create"]
            .as_array()
            .unwrap()
        {
            cluster.create(peer).await.unwrap();
        }
    }
    let done = fleet.run("plan prod -n kilo");
    assert_eq!(
        (done.code, done.stdout.contains("12 Peers unchanged")),
        (0, true),
        "{}",
        done.stdout
    );
    let status = fleet.run("status prod -n kilo --live -o json");
    let mesh = &status.json()["meshes"][0];
    assert_eq!(
        (
            status.code,
            &mesh["ready"]["reason"],
            &mesh["live"]["ready"]["status"]
        ),
        (1, &"NoStatus".into(), &true.into())
    );
    assert!(
        mesh["pairs"]
            .as_array()
            .unwrap()
            .iter()
            .all(|pair| pair["state"] == "applied"),
        "{mesh}"
    );

    let b = fleet.bed.cluster("b").unwrap();
    let drifted = json!({"spec": {"presharedKey": PRESHARED, "endpoint": {"port": 1}}});
    b.merge_patch(&format!("{PEERS}/prod--a--n1"), &drifted)
        .await
        .unwrap();
    let foreign = json!({"apiVersion": "kilo.squat.ai/v1alpha1", "kind": "Peer", "metadata": {"name": "mine"},
        "spec": {"publicKey": key(60), "allowedIPs": ["10.77.0.0/24"]}});
    b.create(&foreign).await.unwrap();
    fleet.assert_same_as_from_files().await;
    assert_eq!(
        fleet.plan().1["targets"]["b"]["update"][0]["before"]["spec"]["presharedKey"],
        "<redacted>"
    );
    assert_nothing_was_written(&fleet);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_reached_is_named_and_delays_nobody() {
    let Some(fleet) = Fleet::start("live-faults").await else {
        return;
    };
    let proxy = FaultProxy::start(fleet.bed.cluster("c").unwrap()).unwrap();
    fleet
        .replace_secret("to-c", &proxy.front(&fleet.to_c))
        .await;
    proxy.add(Fault::new(Match::all(), Effect::Hang));
    let started = Instant::now();
    let outcome = fleet.run("plan prod -n kilo -o json --request-timeout 2s");
    assert!(
        started.elapsed() < Duration::from_secs(12),
        "{:?}",
        started.elapsed()
    );
    let plan = outcome.json();
    assert_eq!(outcome.code, 1);
    assert_eq!(
        plan["targets"]
            .as_object()
            .unwrap()
            .keys()
            .collect::<Vec<_>>(),
        ["a", "b"]
    );
    let problem = plan["problems"]
        .as_array()
        .unwrap()
        .iter()
        .find(|problem| problem["subject"] == "c")
        .unwrap();
    assert_eq!(
        (&problem["reason"], &problem["message"]),
        (&"ClusterUnreachable".into(), &"no answer within 2s".into())
    );
    let status = fleet.run("status -n kilo --live --request-timeout 2s");
    assert!(
        status
            .stdout
            .contains("c  unknown here  no answer within 2s"),
        "{}",
        status.stdout
    );

    let exec = fleet.to_c.replace(
        "    token: ",
        "    exec: {apiVersion: client.authentication.k8s.io/v1, command: x}\n    token: ",
    );
    let cases = [
        (exec.as_str(), "exec credential plugins"),
        ("clusters: [", "parse error"),
        (fleet.secrets[1].as_str(), "kubeconfig"),
    ];
    for (kubeconfig, why) in cases {
        fleet.replace_secret("to-c", kubeconfig).await;
        let (code, plan) = fleet.plan();
        let message = plan["problems"][0]["message"].as_str().unwrap();
        assert!(
            code == 1 && message.contains("Secret kilo/to-c (key value)") && message.contains(why),
            "{message}"
        );
    }
    fleet
        .hub()
        .delete("/api/v1/namespaces/kilo/secrets/to-c")
        .await
        .unwrap();
    assert_eq!(
        fleet.plan().1["problems"][0]["message"],
        "Secret kilo/to-c not found"
    );
    assert_nothing_was_written(&fleet);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_allowed_or_not_there_is_said() {
    let Some(fleet) = Fleet::start("live-rights").await else {
        return;
    };
    let missing = fleet.run("plan nothing -n kilo");
    assert_eq!(
        (missing.code, missing.stderr.as_str()),
        (
            2,
            "error: ClusterMesh nothing not found in namespace kilo\n"
        )
    );
    assert_eq!(fleet.run("status nothing -n kilo").code, 2);
    assert_eq!(
        fleet.run("status").stderr,
        "note: no ClusterMesh in namespace default\n"
    );
    assert_eq!(fleet.run("plan prod -n kilo --context other").code, 2);
    assert_eq!(fleet.run("plan -A -o json").json(), fleet.plan().1);
    for usage in [
        "plan prod -f mesh.yaml",
        "plan",
        "plan prod -A",
        "status --live --watch",
        "plan prod --cluster a=a.yaml",
    ] {
        assert_eq!(fleet.folder.run(usage).code, 2, "{usage}");
    }

    // Rights on everything in the mesh's namespace, and only there.
    let hub = fleet.hub();
    let rules = [member_rules(), vec![rule("", "namespaces", &["get"])]].concat();
    let token = hub.service_account("kilo", "narrow", &rules).await.unwrap();
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "narrow", "namespace": "kilo"}, "rules": namespace_rules()});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "narrow", "namespace": "kilo"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "narrow"},
        "subjects": [{"kind": "ServiceAccount", "name": "narrow", "namespace": "kilo"}]});
    hub.create(&role).await.unwrap();
    hub.create(&binding).await.unwrap();
    std::fs::write(
        fleet.folder.0.join("narrow"),
        hub.kubeconfig(hub.url(), &token),
    )
    .unwrap();
    let narrow = |args: &str| fleet.check(fleet.folder.run(&format!("{args} --kubeconfig narrow")));
    let outcome = eventually(SOON, || async {
        let outcome = narrow("plan prod -n kilo -o json");
        if outcome.code == 1 {
            Ok(outcome)
        } else {
            Err(outcome.stderr)
        }
    });
    let outcome = outcome.await.unwrap();
    assert!(
        outcome
            .stderr
            .starts_with("note: cannot list ClusterMeshes in other namespaces"),
        "{}",
        outcome.stderr
    );
    assert_eq!(
        (outcome.json(), reasons(&outcome.json())),
        (fleet.plan().1, Vec::new())
    );
    assert!(
        narrow("plan -A")
            .stderr
            .contains("cannot list ClusterMeshes in all namespaces: not allowed (403)")
    );
    assert!(narrow("status -n kilo").stdout.starts_with("NO OPERATOR"));
    assert_nothing_was_written(&fleet);
}

/// Checks in the audit logs that nothing was written and no request was denied.
fn assert_nothing_was_written(fleet: &Fleet) {
    let mut all = 0;
    for cluster in fleet.bed.clusters() {
        let ours = cluster
            .audit()
            .unwrap()
            .into_iter()
            .filter(|record| record.user.starts_with("system:serviceaccount:kilo:"));
        for record in ours {
            all += 1;
            assert!(
                ["get", "list", "watch"].contains(&record.verb.as_str()),
                "{record:?}"
            );
            assert!(
                !record.denied || record.user.ends_with(":narrow"),
                "{record:?}"
            );
        }
    }
    assert!(all > 0, "the logs are read");
}

async fn set_status(hub: &Cluster, ready: &str, reason: &str) {
    let cluster = |name: &str| json!({"name": name, "registeredPeers": 4, "skippedNodes": 0, "reachable": true, "nodes": 2, "carriedNodes": 0, "anchorNode": "n1"});
    let condition = json!({"type": "Ready", "status": ready, "reason": reason, "message": "said by hand", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let clusters = ["a", "b", "c"].map(cluster);
    let status = json!({"observedGeneration": 1, "conditions": [condition], "clusters": clusters});
    hub.merge_patch(&format!("{MESHES}/prod/status"), &json!({"status": status}))
        .await
        .unwrap();
}

async fn set_lease(hub: &Cluster, age: i64) {
    let renewed = k8s_openapi::jiff::Timestamp::from_second(
        k8s_openapi::jiff::Timestamp::now().as_second() - age,
    )
    .unwrap();
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "f27237f1.squat.ai", "namespace": "kilo"},
        "spec": {"holderIdentity": "pod-1", "leaseDurationSeconds": 3600, "renewTime": format!("{}.000000Z", renewed.to_string().trim_end_matches('Z'))}});
    hub.apply(&lease).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn status_tells_what_the_operator_wrote_and_whether_there_is_one() {
    let Some(fleet) = Fleet::start("live-status").await else {
        return;
    };
    let hub = fleet.hub();
    let before = fleet.run("status prod -n kilo");
    assert_eq!(before.code, 1);
    assert!(
        before.stdout.starts_with("NO OPERATOR") && before.stdout.contains("not ready (NoStatus)"),
        "{}",
        before.stdout
    );

    set_status(hub, "True", "Reconciled").await;
    let old = fleet.run("status -n kilo");
    assert!(
        old.code == 0
            && old.stdout.starts_with("NO OPERATOR")
            && old.stdout.contains("ready (Reconciled)"),
        "{}",
        old.stdout
    );
    set_lease(hub, 0).await;
    let ready = fleet.run("status -n kilo");
    assert!(
        ready.code == 0
            && ready
                .stdout
                .starts_with("operator  pod-1 in namespace kilo (Lease renewed "),
        "{}",
        ready.stdout
    );
    assert!(
        ready.stdout.contains("  a          ·   ok  ok\n"),
        "{}",
        ready.stdout
    );
    let report = fleet.run("status -A -o json").json();
    assert_eq!(
        (&report["operator"]["state"], &report["meshes"][0]["mesh"]),
        (&"running".into(), &"kilo/prod".into())
    );
    set_lease(hub, 7200).await;
    assert!(
        fleet
            .run("status -n kilo")
            .stdout
            .starts_with("OPERATOR SILENT  pod-1")
    );

    // Tests that run in the background inherit an ignored SIGINT.
    let mut child = Command::new("env");
    child.args([
        "--default-signal=INT",
        env!("CARGO_BIN_EXE_meshwright"),
        "status",
        "-n",
        "kilo",
        "--watch",
        "--kubeconfig",
        "hub",
    ]);
    child.current_dir(&fleet.folder.0);
    let mut child = child
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (sender, seen) = mpsc::channel();
    std::thread::spawn(move || {
        lines
            .map_while(Result::ok)
            .for_each(|line| _ = sender.send(line))
    });
    let until = |what: &str| {
        while !seen
            .recv_timeout(SOON)
            .unwrap_or_else(|_| panic!("{what} was not shown"))
            .contains(what)
        {}
    };
    until("ready (Reconciled)");
    set_status(hub, "False", "Progressing").await;
    until("not ready (Progressing)");
    set_lease(hub, 0).await;
    until("operator  pod-1");
    let started = Instant::now();
    assert!(
        Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
    child.wait().unwrap();
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "an interrupt ends it at once"
    );
    assert_eq!(fleet.run("status -n kilo").code, 1);
    assert_nothing_was_written(&fleet);
}
