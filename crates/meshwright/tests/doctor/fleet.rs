//! A hub and two members with Kilo's nodes, the operator at work with the
//! shipped roles, and a person with a kubeconfig that has a context for each.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use base64ct::{Base64, Encoding};
use mw_sim::kilo::{Mesh, NAMESPACE, Site};
use mw_testbed::{Cluster, PEER_CRD, Testbed};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::agents;
use crate::process::Operator;
use crate::rights::Account;
use crate::wait::until;

pub(crate) const CLUSTERS: [&str; 3] = ["hub", "east", "west"];
pub(crate) const HUB: Account =
    Account { place: "Hub", namespace: NAMESPACE, name: "meshwright-operator", roles: include_str!("../../../../config/rbac/hub.yaml") };
pub(crate) const REMOTE: Account = Account {
    place: "Remote",
    namespace: "kube-system",
    name: "clustermesh-reader",
    roles: include_str!("../../../../config/rbac/remote.yaml"),
};
pub(crate) const MESH_CRD: &str = include_str!("../../../../config/crd/kilo.squat.ai_clustermeshes.yaml");
/// Deletes of this share of the Peers wait for a person.
const MOST_DELETES: u8 = 10;

pub(crate) struct Fleet {
    /// Ends before the servers.
    _agents: JoinSet<()>,
    operator: Mutex<Option<Operator>>,
    pub(crate) mesh: Mesh,
    /// Nothing of these may ever be shown.
    secrets: Vec<String>,
    folder: TempDir,
    bed: Arc<Testbed>,
    kubectl: PathBuf,
}

pub(crate) struct Outcome {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|wrong| panic!("{wrong}\n{}\n{}", self.stdout, self.stderr))
    }
}

impl Fleet {
    pub(crate) async fn start_or_skip() -> Option<Fleet> {
        let kubectl = mw_testbed::or_skip(mw_testbed::binaries::kubectl())?;
        let bed = Arc::new(Testbed::start_or_skip(&CLUSTERS).await?);
        let sites: Vec<Site> = CLUSTERS.iter().zip(1..).map(|(name, number)| Site::new(name, number, 3)).collect();
        let mut mesh = Mesh::new("mesh", &sites.iter().collect::<Vec<_>>());
        mesh.settings.insert("maxDeletePercent".to_owned(), json!(MOST_DELETES));
        let (mut agents, mut secrets) = (JoinSet::new(), Vec::new());
        let hub = bed.cluster("hub").unwrap();
        hub.install_crd(MESH_CRD).await.unwrap();
        hub.apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } })).await.unwrap();
        HUB.make(hub).await;
        for site in sites {
            let cluster = bed.cluster(&site.name).unwrap();
            furnish(cluster, &site).await;
            if site.name != "hub" {
                REMOTE.make(cluster).await;
                let token = REMOTE.kept_token(cluster).await;
                write_secret(hub, &site.name, "value", &cluster.kubeconfig(cluster.url(), &token)).await;
                secrets.push(token);
            }
            let bed = Arc::clone(&bed);
            agents.spawn(async move { agents::look_after(bed.cluster(&site.name).unwrap(), &site).await });
        }
        hub.create(&mesh.object()).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let token = hub.request_token(HUB.namespace, HUB.name, 7200).await.unwrap();
        std::fs::write(folder.path().join("operator"), hub.kubeconfig(hub.url(), &token)).unwrap();
        std::fs::write(folder.path().join("person"), contexts(&bed).to_string()).unwrap();
        secrets.push(token);
        let operator = Mutex::new(Some(start_operator(folder.path())));
        Some(Fleet { _agents: agents, operator, mesh, secrets, folder, bed, kubectl })
    }

    pub(crate) fn cluster(&self, name: &str) -> &Cluster {
        self.bed.cluster(name).unwrap()
    }

    /// Nobody is at work while this happens.
    pub(crate) async fn unseen(&self, happens: impl Future<Output = ()>) {
        let operator = self.operator.lock().unwrap().take();
        operator.unwrap().terminate().await;
        happens.await;
        *self.operator.lock().unwrap() = Some(start_operator(self.folder.path()));
    }

    pub(crate) async fn patch_mesh(&self, patch: &Value) {
        self.cluster("hub").merge_patch(&self.mesh.path(), patch).await.unwrap();
    }

    pub(crate) async fn annotate(&self, cluster: &str, node: &str, annotations: Value) {
        let patch = json!({ "metadata": { "annotations": annotations } });
        self.cluster(cluster).merge_patch(&format!("/api/v1/nodes/{node}"), &patch).await.unwrap();
    }

    /// As a person, without colour.
    pub(crate) fn doctor(&self, args: &str) -> Outcome {
        self.run(args, "person")
    }

    pub(crate) fn doctor_as_operator(&self, args: &str) -> Outcome {
        self.run(args, "operator")
    }

    fn run(&self, args: &str, kubeconfig: &str) -> Outcome {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshwright"));
        command.args(args.split_whitespace()).env("KUBECONFIG", self.folder.path().join(kubeconfig));
        let output = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let outcome = Outcome { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) };
        for secret in &self.secrets {
            assert!(!outcome.stdout.contains(secret) && !outcome.stderr.contains(secret), "a secret is shown");
        }
        outcome
    }

    /// Waits until nothing is broken, and returns that report.
    pub(crate) async fn healthy(&self, when: &str) -> Value {
        until(format!("{when}: all is well"), || async {
            let outcome = self.doctor("doctor mesh -n kilo-system -o json");
            if outcome.code == 0 { Ok(outcome.json()) } else { Err(self.doctor("doctor mesh -n kilo-system").stdout + &outcome.stderr) }
        })
        .await
    }

    /// Waits until this is the first that is broken: the operator may still be
    /// at work on what came before.
    pub(crate) async fn first_broken(&self, what: &str, layer: &str, subject: &str) -> Value {
        until(format!("{what}: {layer} of {subject} is the first that is broken"), || async {
            let outcome = self.doctor("doctor -n kilo-system -o json --request-timeout 3s");
            assert_ne!(outcome.code, 2, "{what}: {}", outcome.stderr);
            let report = outcome.json();
            let first = report["checks"].as_array().unwrap().iter().find(|check| check["state"] == "failed").cloned().unwrap_or_default();
            if first["layer"] == layer && first["subject"] == subject { Ok(first) } else { Err(format!("{first:#}")) }
        })
        .await
    }

    /// What the person types.
    pub(crate) fn shell(&self, what: &str, command: &str) {
        let ours = Path::new(env!("CARGO_BIN_EXE_meshwright")).parent().unwrap();
        let path = std::env::join_paths([ours, self.kubectl.parent().unwrap(), Path::new("/usr/bin"), Path::new("/bin")]).unwrap();
        let output = Command::new("/bin/sh")
            .args(["-c", command])
            .env("KUBECONFIG", self.folder.path().join("person"))
            .env("HOME", self.folder.path())
            .env("PATH", path)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{what}: {command}\n{said}");
    }

    /// As the audit logs have it: whoever examines asks, and changes nothing.
    pub(crate) fn nothing_is_shown_or_written(&self) {
        let mut asked = 0;
        for name in CLUSTERS {
            let records = self.cluster(name).audit().unwrap();
            for record in records.iter().filter(|record| record.user == "admin" && record.agent.starts_with("meshwright/")) {
                asked += 1;
                let reads = ["get", "list"].contains(&record.verb.as_str());
                assert!(reads || record.resource.ends_with("subjectaccessreviews"), "{record:?}");
            }
        }
        assert!(asked > 0, "the logs are read");
    }
}

async fn furnish(cluster: &Cluster, site: &Site) {
    cluster.install_crd(PEER_CRD).await.unwrap();
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "kilo", "namespace": "kube-system" } });
    cluster.apply(&account).await.unwrap();
    for node in site.nodes.values() {
        cluster.create(&node.object()).await.unwrap();
    }
    agents::start(cluster, site).await;
}

pub(crate) async fn write_secret(hub: &Cluster, member: &str, key: &str, kubeconfig: &str) {
    let metadata = json!({ "name": format!("{member}-kubeconfig"), "namespace": NAMESPACE });
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": { key: kubeconfig } });
    hub.apply(&secret).await.unwrap();
}

fn start_operator(folder: &Path) -> Operator {
    let kubeconfig = folder.join("operator").display().to_string();
    let arguments = ["operator", "--kubeconfig", &kubeconfig, "--namespace", NAMESPACE, "--leader-elect"];
    let more = ["--metrics-bind-address", "127.0.0.1:0", "--health-probe-bind-address", "0", "--log-level", "info"];
    let arguments: Vec<String> = arguments.iter().chain(&more).map(|argument| (*argument).to_owned()).collect();
    Operator::start(&arguments, &folder.join("log"))
}

/// Admin everywhere; the hub is where one is.
fn contexts(bed: &Testbed) -> Value {
    let entry = |name: &str, kind: &str, value: Value| json!({ "name": name, kind: value });
    let of = |make: &dyn Fn(&Cluster) -> Value| bed.clusters().map(make).collect::<Vec<_>>();
    let authority = |cluster: &Cluster| Base64::encode_string(cluster.ca_pem().as_bytes());
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "hub",
        "clusters": of(&|cluster| entry(cluster.name(), "cluster",
            json!({ "server": cluster.url(), "certificate-authority-data": authority(cluster) }))),
        "users": of(&|cluster| entry(cluster.name(), "user", json!({ "token": cluster.admin_token() }))),
        "contexts": of(&|cluster| entry(cluster.name(), "context", json!({ "cluster": cluster.name(), "user": cluster.name() }))),
    })
}
