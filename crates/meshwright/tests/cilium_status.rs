//! `status` of the Cilium back end on a real API server: shows the written status and whether a
//! provider runs, and never writes.
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
use std::time::Duration;

use common::{Folder, Outcome};
use k8s_openapi::api::rbac::v1::PolicyRule;
use k8s_openapi::jiff::Timestamp;
use mw_testbed::{Cluster, Testbed};
use serde_json::{Value, json};

const GROUP: &str = "networking.edge-portal.eu";
const KINDS: [(&str, &str); 3] = [
    ("clustermeshbindings", "ClusterMeshBinding"),
    ("globalservices", "GlobalService"),
    ("connectivityintents", "ConnectivityIntent"),
];
const SOON: Duration = Duration::from_secs(60);

fn config(file: &str) -> String {
    std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../config/crd")
            .join(file),
    )
    .unwrap()
}

fn rule(group: &str, resource: &str) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![group.into()]),
        resources: Some(vec![resource.into()]),
        verbs: ["list", "watch"].map(str::to_owned).to_vec(),
        ..PolicyRule::default()
    }
}

struct Hub {
    bed: Testbed,
    folder: Folder,
}

impl Hub {
    /// Starts a hub with the three kinds and an account that may read them.
    async fn start(test: &str) -> Option<Hub> {
        let bed = Testbed::start_or_skip(&["hub"]).await?;
        let hub = bed.cluster("hub").unwrap();
        for (plural, _) in KINDS {
            hub.install_crd(&config(&format!("{GROUP}_{plural}.yaml")))
                .await
                .unwrap();
        }
        let mut rules: Vec<PolicyRule> = KINDS
            .iter()
            .map(|(plural, _)| rule(GROUP, plural))
            .collect();
        rules.extend([
            rule("coordination.k8s.io", "leases"),
            rule("kilo.squat.ai", "clustermeshes"),
        ]);
        let token = hub.service_account("net", "viewer", &rules).await.unwrap();
        let folder = Folder::new(test).with("hub", &hub.kubeconfig(hub.url(), &token));
        Some(Hub { bed, folder })
    }

    fn cluster(&self) -> &Cluster {
        self.bed.cluster("hub").unwrap()
    }

    fn run(&self, args: &str) -> Outcome {
        self.folder.run(&format!("{args} --kubeconfig hub"))
    }

    async fn declare(&self) {
        let specs = [
            (
                "mesh",
                json!({"clusterRefs": [{"name": "ffm"}, {"name": "ber"}]}),
            ),
            (
                "web",
                json!({"meshRef": {"name": "mesh"}, "selector": {"namespace": "shop", "name": "web"}}),
            ),
            (
                "let",
                json!({"meshRef": {"name": "mesh"}, "action": "Allow"}),
            ),
        ];
        for ((_, kind), (name, spec)) in KINDS.into_iter().zip(specs) {
            let metadata = json!({"name": name, "namespace": "net"});
            let object = json!({"apiVersion": format!("{GROUP}/v1alpha1"), "kind": kind, "metadata": metadata, "spec": spec});
            self.cluster().create(&object).await.unwrap();
        }
    }

    async fn tell(&self, at: usize, name: &str, status: Value) {
        let path = format!(
            "/apis/{GROUP}/v1alpha1/namespaces/net/{}/{name}/status",
            KINDS[at].0
        );
        self.cluster()
            .merge_patch(&path, &json!({"status": status}))
            .await
            .unwrap();
    }

    /// Writes ready statuses like a provider, with the given age in seconds.
    async fn tell_all_is_well(&self, age: i64) {
        let row = |name: &str, id: u8| json!({"clusterName": name, "clusterId": id, "connected": true, "readyNodes": 2, "totalNodes": 2, "lastVerified": ago(age)});
        let rows = json!({"meshStatus": [row("ffm", 1), row("ber", 2)]});
        self.tell(
            0,
            "mesh",
            status("Connected", "True", "Connected", age, rows),
        )
        .await;
        let exported = json!({"exportedClusters": ["ffm", "ber"], "endpointSummary": [{"clusterName": "ffm", "endpoints": 3, "ready": true}]});
        self.tell(
            1,
            "web",
            status("Exported", "True", "Exported", age, exported),
        )
        .await;
        self.tell(
            2,
            "let",
            status(
                "Applied",
                "True",
                "Applied",
                age,
                json!({"appliedClusters": ["ffm", "ber"]}),
            ),
        )
        .await;
    }

    async fn set_lease(&self, age: i64, holder: &str) {
        let renewed = format!(
            "{}.000000Z",
            ago(age).as_str().unwrap().trim_end_matches('Z')
        );
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": mw_api::cilium::rbac::LEASE, "namespace": "net"},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 3600, "renewTime": renewed}});
        self.cluster().apply(&lease).await.unwrap();
    }

    /// Checks in the audit log that all requests were reads and none was denied.
    fn assert_only_read(&self) {
        let ours = self
            .cluster()
            .audit()
            .unwrap()
            .into_iter()
            .filter(|record| record.user.starts_with("system:serviceaccount:net:"));
        let mut all = 0;
        for record in ours {
            all += 1;
            assert!(
                ["get", "list", "watch"].contains(&record.verb.as_str()) && !record.denied,
                "{record:?}"
            );
        }
        assert!(all > 0, "the log is read");
    }
}

fn ago(seconds: i64) -> Value {
    let now = Timestamp::now().as_second();
    Timestamp::from_second(now - seconds)
        .unwrap()
        .to_string()
        .into()
}

fn status(phase: &str, ready: &str, reason: &str, age: i64, more: Value) -> Value {
    let condition = json!({"type": "Ready", "status": ready, "reason": reason, "message": "said by hand", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let mut status = json!({"phase": phase, "observedGeneration": 1, "lastSyncTime": ago(age), "conditions": [condition]});
    status
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    status
}

#[tokio::test(flavor = "multi_thread")]
async fn status_tells_what_a_provider_wrote_and_whether_it_keeps_it() {
    let Some(hub) = Hub::start("cilium-status").await else {
        return;
    };
    let none = hub.run("status -n net");
    assert_eq!(
        (none.code, none.stderr.as_str()),
        (
            0,
            "note: no ClusterMeshBinding, GlobalService or ConnectivityIntent in namespace net\n"
        )
    );
    hub.declare().await;
    let before = hub.run("status -n net");
    assert!(
        before.code == 1
            && before.stdout.starts_with("NO PROVIDER")
            && before.stdout.contains("NoStatus"),
        "{}",
        before.stdout
    );

    hub.tell_all_is_well(3600).await;
    let old = hub.run("status -n net");
    assert!(
        old.code == 1
            && old.stdout.starts_with("NO PROVIDER")
            && old.stdout.contains("not ready (Connected, Stale)"),
        "{}",
        old.stdout
    );
    hub.tell_all_is_well(0).await;
    let kept = hub.run("status -n net");
    assert!(
        kept.code == 0 && kept.stdout.starts_with("provider  nobody holds Lease"),
        "{}",
        kept.stdout
    );
    hub.set_lease(7200, "node-1_ab").await;
    let silent = hub.run("status -n net");
    assert!(
        silent.code == 1 && silent.stdout.starts_with("PROVIDER SILENT  node-1_ab"),
        "{}",
        silent.stdout
    );
    hub.set_lease(0, "").await;
    assert!(
        hub.run("status -n net").code == 1,
        "a Lease that was given up"
    );
    hub.set_lease(0, "node-1_ab").await;
    let ready = hub.run("status -A");
    assert!(
        ready.code == 0
            && ready
                .stdout
                .starts_with("provider  node-1_ab in namespace net (Lease renewed "),
        "{}",
        ready.stdout
    );
    assert!(
        ready
            .stdout
            .contains("  net/web  Exported  mesh  2 clusters, 3 endpoints  yes"),
        "{}",
        ready.stdout
    );
    assert!(
        ready.stdout.contains("  ffm      1   yes        2/2     "),
        "{}",
        ready.stdout
    );
    assert!(
        ready.stdout.lines().all(|line| line.chars().count() <= 100),
        "{}",
        ready.stdout
    );

    let report = hub.run("status -n net -o json").json();
    assert_eq!(
        (&report["provider"]["state"], report.get("meshes")),
        (&"running".into(), None)
    );
    assert_eq!(
        (
            &report["bindings"][0]["phase"],
            &report["bindings"][0]["ready"]["status"]
        ),
        (&"Connected".into(), &true.into())
    );
    assert_eq!(
        (
            &report["services"][0]["endpoints"][0]["endpoints"],
            &report["intents"][0]["mesh"]
        ),
        (&3.into(), &"mesh".into())
    );
    assert_eq!(report["bindings"][0]["clusters"][1]["clusterId"], 2);
    let one = hub.run("status web -n net -o json").json();
    assert_eq!(
        (
            one["bindings"].as_array().unwrap().len(),
            one["services"].as_array().unwrap().len()
        ),
        (0, 1)
    );
    let missing = hub.run("status nothing -n net");
    let said = "error: no ClusterMeshBinding, GlobalService or ConnectivityIntent nothing in namespace net\n";
    assert_eq!((missing.code, missing.stderr.as_str()), (2, said));

    // Change a spec that no provider has seen.
    let path = format!("/apis/{GROUP}/v1alpha1/namespaces/net/globalservices/web");
    hub.cluster()
        .merge_patch(&path, &json!({"spec": {"affinity": "local"}}))
        .await
        .unwrap();
    let behind = hub.run("status -n net");
    assert!(
        behind.code == 1
            && behind
                .stdout
                .contains("spec is at generation 2, status still at generation 1"),
        "{}",
        behind.stdout
    );
    hub.assert_only_read();
}

#[tokio::test(flavor = "multi_thread")]
async fn both_back_ends_are_shown_and_followed() {
    let Some(hub) = Hub::start("cilium-status-both").await else {
        return;
    };
    hub.declare().await;
    hub.tell_all_is_well(0).await;
    hub.set_lease(0, "node-1_ab").await;
    hub.cluster()
        .install_crd(&config("kilo.squat.ai_clustermeshes.yaml"))
        .await
        .unwrap();
    let unused = hub.run("status -n net");
    assert!(
        unused.code == 0 && !unused.stdout.contains("OPERATOR"),
        "{}",
        unused.stdout
    );
    let entry = |name: &str, at: u8| {
        json!({"name": name, "local": at == 1, "podCIDRs": [format!("10.{at}.0.0/16")], "wireguardCIDR": format!("10.{}.0.0/16", at + 3),
        "kubeconfigSecretRef": if at == 1 { Value::Null } else { json!({"name": "to-b"}) }})
    };
    let mesh = json!({"apiVersion": "kilo.squat.ai/v1alpha1", "kind": "ClusterMesh", "metadata": {"name": "prod", "namespace": "net"},
        "spec": {"clusters": [entry("a", 1), entry("b", 2)]}});
    hub.cluster().create(&mesh).await.unwrap();
    let both = hub.run("status -n net");
    assert!(
        both.code == 1
            && both.stdout.starts_with("NO OPERATOR")
            && both.stdout.contains("\n\nprovider  node-1_ab"),
        "{}",
        both.stdout
    );
    let report = hub.run("status -n net -o yaml");
    let report: Value = serde_saphyr::from_str(&report.stdout).unwrap();
    assert_eq!(
        (&report["meshes"][0]["mesh"], &report["bindings"][0]["name"]),
        (&"net/prod".into(), &"mesh".into())
    );

    let mut child = Command::new(env!("CARGO_BIN_EXE_meshwright"));
    child
        .args(["status", "-n", "net", "--watch", "--kubeconfig", "hub"])
        .current_dir(&hub.folder.0);
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
    until("net/mesh  Connected");
    let why = "cluster ber: clustermesh-apiserver: no replica is available";
    hub.tell(
        0,
        "mesh",
        json!({"phase": "Degraded", "conditions": [{"type": "Ready", "status": "False", "reason": "ClusterMeshAPIServer", "message": why,
        "lastTransitionTime": ago(0)}]}),
    )
    .await;
    until("not ready (Degraded, ClusterMeshAPIServer)");
    until(why);
    let path = "/apis/kilo.squat.ai/v1alpha1/namespaces/net/clustermeshes/prod";
    hub.cluster().delete(path).await.unwrap();
    until("provider  node-1_ab");
    child.kill().unwrap();
    child.wait().unwrap();
    hub.assert_only_read();
}
