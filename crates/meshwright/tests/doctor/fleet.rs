//! A hub and two members with Kilo's nodes, the running operator with the shipped roles, and a
//! person whose kubeconfig has a context for each.

use std::path::Path;
use std::sync::{Arc, Mutex};

use mw_sim::kilo::{Mesh, NAMESPACE, Site};
use mw_testbed::{Cluster, PEER_CRD, Testbed};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::agents;
use crate::person::{Outcome, Person};
use crate::process::Operator;
use crate::rights::Account;

pub(crate) const CLUSTERS: [&str; 3] = ["hub", "east", "west"];
pub(crate) const HUB: Account = Account {
    place: "Hub",
    namespace: NAMESPACE,
    name: "meshwright-operator",
    roles: include_str!("../../../../config/rbac/hub.yaml"),
};
pub(crate) const REMOTE: Account = Account {
    place: "Remote",
    namespace: "kube-system",
    name: "clustermesh-reader",
    roles: include_str!("../../../../config/rbac/remote.yaml"),
};
pub(crate) const MESH_CRD: &str =
    include_str!("../../../../config/crd/kilo.squat.ai_clustermeshes.yaml");
/// Percentage of Peers above which deletes are held.
const MOST_DELETES: u8 = 10;

pub(crate) struct Fleet {
    /// Dropped before the servers.
    _agents: JoinSet<()>,
    operator: Mutex<Option<Operator>>,
    pub(crate) mesh: Mesh,
    /// Values that must never be shown.
    secrets: Vec<String>,
    folder: TempDir,
    pub(crate) person: Person,
    bed: Arc<Testbed>,
}

impl Fleet {
    pub(crate) async fn start_or_skip() -> Option<Fleet> {
        let kubectl = mw_testbed::or_skip(mw_testbed::binaries::kubectl())?;
        let bed = Arc::new(Testbed::start_or_skip(&CLUSTERS).await?);
        let sites: Vec<Site> = CLUSTERS
            .iter()
            .zip(1..)
            .map(|(name, number)| Site::new(name, number, 3))
            .collect();
        let mut mesh = Mesh::new("mesh", &sites.iter().collect::<Vec<_>>());
        mesh.settings
            .insert("maxDeletePercent".to_owned(), json!(MOST_DELETES));
        let (mut agents, mut secrets) = (JoinSet::new(), Vec::new());
        let hub = bed.cluster("hub").unwrap();
        hub.install_crd(MESH_CRD).await.unwrap();
        hub.apply(
            &json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } }),
        )
        .await
        .unwrap();
        HUB.make(hub).await;
        for site in sites {
            let cluster = bed.cluster(&site.name).unwrap();
            furnish(cluster, &site).await;
            if site.name != "hub" {
                REMOTE.make(cluster).await;
                let token = REMOTE.kept_token(cluster).await;
                write_secret(
                    hub,
                    &site.name,
                    "value",
                    &cluster.kubeconfig(cluster.url(), &token),
                )
                .await;
                secrets.push(token);
            }
            let bed = Arc::clone(&bed);
            agents.spawn(async move {
                agents::look_after(bed.cluster(&site.name).unwrap(), &site).await
            });
        }
        hub.create(&mesh.object()).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let token = hub
            .request_token(HUB.namespace, HUB.name, 7200)
            .await
            .unwrap();
        std::fs::write(
            folder.path().join("operator"),
            hub.kubeconfig(hub.url(), &token),
        )
        .unwrap();
        let person = Person::new(folder.path(), kubectl, bed.clusters());
        secrets.push(token);
        let operator = Mutex::new(Some(start_operator(folder.path())));
        Some(Fleet {
            _agents: agents,
            operator,
            mesh,
            secrets,
            folder,
            person,
            bed,
        })
    }

    pub(crate) fn cluster(&self, name: &str) -> &Cluster {
        self.bed.cluster(name).unwrap()
    }

    /// Runs a change while the operator is stopped.
    pub(crate) async fn unseen(&self, happens: impl Future<Output = ()>) {
        let operator = self.operator.lock().unwrap().take();
        operator.unwrap().terminate().await;
        happens.await;
        *self.operator.lock().unwrap() = Some(start_operator(self.folder.path()));
    }

    pub(crate) async fn patch_mesh(&self, patch: &Value) {
        self.cluster("hub")
            .merge_patch(&self.mesh.path(), patch)
            .await
            .unwrap();
    }

    pub(crate) async fn annotate(&self, cluster: &str, node: &str, annotations: Value) {
        let patch = json!({ "metadata": { "annotations": annotations } });
        self.cluster(cluster)
            .merge_patch(&format!("/api/v1/nodes/{node}"), &patch)
            .await
            .unwrap();
    }

    /// Runs doctor as a person, without colour.
    pub(crate) fn doctor(&self, args: &str) -> Outcome {
        self.checked(self.person.types(args))
    }

    pub(crate) fn doctor_as_operator(&self, args: &str) -> Outcome {
        self.checked(
            self.person
                .types_with(&self.folder.path().join("operator"), args),
        )
    }

    fn checked(&self, outcome: Outcome) -> Outcome {
        for secret in &self.secrets {
            assert!(
                !outcome.stdout.contains(secret) && !outcome.stderr.contains(secret),
                "a secret is shown"
            );
        }
        outcome
    }

    pub(crate) async fn healthy(&self, when: &str) -> Value {
        self.person
            .healthy(when, "doctor mesh -n kilo-system")
            .await
    }

    /// Checks output and audit logs: doctor shows no secret and writes nothing.
    pub(crate) fn nothing_is_shown_or_written(&self) {
        let mut asked = 0;
        for name in CLUSTERS {
            let records = self.cluster(name).audit().unwrap();
            for record in records
                .iter()
                .filter(|record| record.user == "admin" && record.agent.starts_with("meshwright/"))
            {
                asked += 1;
                let reads = ["get", "list"].contains(&record.verb.as_str());
                assert!(
                    reads || record.resource.ends_with("subjectaccessreviews"),
                    "{record:?}"
                );
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
    let arguments = [
        "operator",
        "--kubeconfig",
        &kubeconfig,
        "--namespace",
        NAMESPACE,
    ];
    let more = [
        "--metrics-bind-address",
        "127.0.0.1:0",
        "--health-probe-bind-address",
        "0",
        "--log-level",
        "info",
    ];
    let arguments: Vec<String> = arguments
        .iter()
        .chain(&more)
        .map(|argument| (*argument).to_owned())
        .collect();
    Operator::start(&arguments, &folder.join("log"))
}
