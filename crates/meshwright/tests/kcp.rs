//! The binary in kcp workspaces, as provider and as tenant: `doctor`, `status`, and the page
//! docs/kcp.md, on the simulated kcp. No cluster here runs Cilium.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use base64ct::{Base64, Encoding};
use mw_testbed::binaries::kubectl;
use mw_testbed::kcp::binding;
use mw_testbed::{Cluster, Kcp, Testbed, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;

#[path = "common/binary.rs"]
mod binary;

use binary::binary;

const EXPORT: &str = "edge-portal-networking";
const FLEET: &str = "edge-portal-fleet";
const FLEET_FILE: &str = include_str!("provider/fleet.yaml");
const EXPORT_FILE: &str = include_str!("../../../config/kcp-cilium-mesh-apiexport.yaml");
const PAGE: &str = include_str!("../../../docs/kcp.md");
const SOON: Duration = Duration::from_secs(60);

/// A person with a context for each workspace and cluster.
struct Person {
    folder: TempDir,
    kubectl: PathBuf,
}

/// A background process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Person {
    fn new(kubectl: PathBuf, kcp: &Kcp, workspaces: &[&str], clusters: &[&Cluster]) -> Person {
        let folder = tempfile::tempdir().unwrap();
        let of_kcp = workspaces.iter().map(|name| {
            let server = format!("{}/clusters/root:{name}", kcp.url());
            (
                (*name).to_owned(),
                server,
                kcp.ca_pem().to_owned(),
                kcp.admin_token().to_owned(),
            )
        });
        let others = clusters.iter().map(|cluster| {
            (
                cluster.name().to_owned(),
                cluster.url().to_owned(),
                cluster.ca_pem().to_owned(),
                cluster.admin_token().to_owned(),
            )
        });
        let all: Vec<(String, String, String, String)> = of_kcp.chain(others).collect();
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": all[0].0,
            "clusters": all.iter().map(|(name, server, ca, _)| json!({ "name": name, "cluster": {
                "server": server, "certificate-authority-data": Base64::encode_string(ca.as_bytes()) } })).collect::<Vec<_>>(),
            "users": all.iter().map(|(name, _, _, token)| json!({ "name": name, "user": { "token": token } })).collect::<Vec<_>>(),
            "contexts": all.iter().map(|(name, ..)| json!({ "name": name, "context": { "cluster": name, "user": name } })).collect::<Vec<_>>(),
        });
        std::fs::write(folder.path().join("kubeconfig"), kubeconfig.to_string()).unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        std::os::unix::fs::symlink(root.join("config"), folder.path().join("config")).unwrap();
        Person { folder, kubectl }
    }

    fn keep(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    fn at_home<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let ours = binary();
        let path = std::env::join_paths([
            ours.parent().unwrap(),
            self.kubectl.parent().unwrap(),
            Path::new("/usr/bin"),
            Path::new("/bin"),
        ])
        .unwrap();
        command
            .current_dir(self.folder.path())
            .env_clear()
            .env("PATH", path)
            .env("HOME", self.folder.path());
        command.env("KUBECONFIG", self.folder.path().join("kubeconfig"))
    }

    fn output(&self, script: &str) -> Output {
        self.at_home(Command::new("/bin/sh").args(["-euc", script]))
            .output()
            .unwrap()
    }

    fn types(&self, script: &str) {
        let output = self.output(script);
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{script}\n{said}");
    }

    fn starts(&self, line: &str, log: &str) -> Running {
        let log = std::fs::File::create(self.folder.path().join(log)).unwrap();
        let mut command = Command::new("/bin/sh");
        command
            .args(["-euc", &format!("exec {line}")])
            .stdin(Stdio::null())
            .stderr(log.try_clone().unwrap())
            .stdout(log);
        Running(self.at_home(&mut command).spawn().unwrap())
    }

    /// Exit code and checks of `doctor`.
    fn doctor(&self, arguments: &str) -> (i32, Vec<Value>) {
        let output = self.output(&format!("meshwright doctor {arguments} -o json"));
        let code = output.status.code().unwrap();
        assert_ne!(code, 2, "{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        (code, report["checks"].as_array().unwrap().clone())
    }

    /// Waits until this check is the failure that doctor reports, and returns it.
    async fn finds(&self, arguments: &str, layer: &str, words: &str) -> Value {
        eventually(SOON, || async {
            let (_, checks) = self.doctor(arguments);
            let is_it = |check: &&Value| {
                check["state"] == "failed"
                    && check["layer"] == layer
                    && check["observed"].as_str().unwrap().contains(words)
            };
            checks
                .iter()
                .find(is_it)
                .cloned()
                .ok_or_else(|| format!("{checks:#?}"))
        })
        .await
        .unwrap()
    }

    async fn finds_nothing(&self, arguments: &str) {
        eventually(SOON, || async {
            match self.doctor(arguments) {
                (0, _) => Ok(()),
                (_, checks) => Err(format!("{checks:#?}")),
            }
        })
        .await
        .unwrap();
    }
}

fn claim(hash: &str) -> Value {
    json!({ "group": "platform.edge-portal.eu", "resource": "kubernetesclusters", "identityHash": hash, "verbs": ["get", "list", "watch"] })
}

/// kcp silently accepts a wrong identity; only doctor reports it.
#[tokio::test(flavor = "multi_thread")]
async fn doctor_compares_the_identities_of_claims_and_its_commands_repair_them() {
    let Some(kubectl) = mw_testbed::or_skip(kubectl()) else {
        return;
    };
    let Some(kcp) = Kcp::start_or_skip(&["system", "tenant-a", "elsewhere"]).await else {
        return;
    };
    let person = Person::new(kubectl, &kcp, &["system", "tenant-a", "elsewhere"], &[]);
    let identity = kcp.export("system", FLEET_FILE).await.unwrap();
    person.types("kubectl apply -f config/kcp-cilium-mesh-apiexport.yaml");
    let nothing = person
        .finds("--context elsewhere", "crds", "neither APIExport")
        .await;
    assert!(nothing["hint"].is_string(), "{nothing:#}");

    // The export as it is shipped claims no clusters, then those of another fleet.
    let missing = person
        .finds(
            "--context system",
            "rights",
            "does not claim kubernetesclusters",
        )
        .await;
    let system = kcp.workspace("system").unwrap();
    let export = format!("/apis/apis.kcp.io/v1alpha2/apiexports/{EXPORT}");
    let wrong = "0".repeat(64);
    system
        .merge_patch(
            &export,
            &json!({ "spec": { "permissionClaims": [claim(&wrong)] } }),
        )
        .await
        .unwrap();
    let other = person
        .finds(
            "--context system",
            "rights",
            "claims kubernetesclusters of identity 000000000000",
        )
        .await;
    assert_eq!(missing["repair"], other["repair"]);
    person.types(other["repair"].as_str().unwrap());
    let repaired = system.get(&export).await.unwrap().unwrap();
    assert_eq!(
        repaired["spec"]["permissionClaims"][0]["identityHash"],
        identity
    );
    assert_eq!(
        repaired["spec"]["permissionClaims"][1]["resource"],
        "events"
    );
    person.finds_nothing("--context system").await;

    // The line of the installation, again: kubectl replaces the whole list of claims.
    person.types("kubectl apply -f config/kcp-cilium-mesh-apiexport.yaml");
    let dropped = person
        .finds(
            "--context system",
            "rights",
            "does not claim kubernetesclusters",
        )
        .await;
    person.types(dropped["repair"].as_str().unwrap());
    person.finds_nothing("--context system").await;
    let with_claim = system.get(&export).await.unwrap().unwrap();
    assert_eq!(
        with_claim["spec"]["permissionClaims"],
        repaired["spec"]["permissionClaims"]
    );
    // The line for an upgrade keeps it.
    person.types(&page_line("meshwright crd --kcp export").replace("$IDENTITY", &identity));
    let upgraded = system.get(&export).await.unwrap().unwrap();
    assert_eq!(
        upgraded["spec"]["permissionClaims"],
        repaired["spec"]["permissionClaims"]
    );

    // One tenant accepted the claim for another identity, another one rejects it.
    kcp.bind("tenant-a", &binding(FLEET, "system", FLEET, &[]))
        .await
        .unwrap();
    let mut answer = claim(&wrong);
    (answer["state"], answer["selector"]) = (json!("Accepted"), json!({ "matchAll": true }));
    kcp.bind(
        "tenant-a",
        &binding("own-name", "system", EXPORT, &[answer]),
    )
    .await
    .unwrap();
    person
        .finds(
            "--context system",
            "rights",
            "is answered for identity 000000000000",
        )
        .await;
    let told = person
        .finds(
            "--context tenant-a",
            "rights",
            "is answered for identity 000000000000",
        )
        .await;
    person
        .finds(
            "--context tenant-a",
            "rights",
            "the claim on events is not answered",
        )
        .await;
    person.types(told["repair"].as_str().unwrap());
    person.finds_nothing("--context tenant-a").await;
    person.finds_nothing("--context system").await;

    let tenant = kcp.workspace("tenant-a").unwrap();
    let mesh = json!({ "apiVersion": "networking.edge-portal.eu/v1alpha1", "kind": "ClusterMeshBinding",
        "metadata": { "name": "mesh", "namespace": "default" }, "spec": { "clusterRefs": [{ "name": "ffm" }, { "name": "ber" }] } });
    eventually(SOON, || async {
        tenant
            .create(&mesh)
            .await
            .map(drop)
            .map_err(|error| error.to_string())
    })
    .await
    .unwrap();
    person
        .finds(
            "-n default --context tenant-a",
            "health",
            "KubernetesCluster ffm not found in namespace default",
        )
        .await;
    person
        .finds(
            "mesh -n default --context tenant-a",
            "drift",
            "the provider has written no status yet",
        )
        .await;
    let (_, checks) = person.doctor("-n default --context tenant-a");
    assert!(
        checks
            .iter()
            .all(|check| !check.to_string().contains("kubeconfig")),
        "{checks:#?}"
    );

    // Table and JSON describe the provider with the same text.
    let table = person
        .output("meshwright status -n default --context tenant-a")
        .stdout;
    let table = String::from_utf8(table).unwrap();
    let report: Value = serde_json::from_slice(
        &person
            .output("meshwright status -n default --context tenant-a -o json")
            .stdout,
    )
    .unwrap();
    let message = report["provider"]["message"].as_str().unwrap();
    assert_eq!(report["provider"]["state"], "unknown");
    let start = "its Lease is on the management plane, not visible in this workspace";
    // The table is wrapped to the terminal's width.
    assert!(
        table.starts_with(&format!("provider  {start}")) && message.starts_with(start),
        "{table}{message}"
    );

    let plan = person.output("meshwright plan mesh -n default --context tenant-a");
    assert_eq!(plan.status.code(), Some(2));
    let told = String::from_utf8_lossy(&plan.stderr).into_owned();
    assert!(
        told.contains("what the provider found")
            && told.contains("--kcp-kubeconfig (KCP_KUBECONFIG)"),
        "{told}"
    );
}

/// The status of a mesh whose cluster has no kubeconfig Secret on the management plane, as the
/// provider writes it; Ready has the step or the exact reason.
fn without_credentials(generation: &Value, reason: &str) -> Value {
    let message = "cluster ffm: credentials: reading kubeconfig secret: Secret ffm-kubeconfig not found in namespace default";
    let ready = json!({ "type": "Ready", "status": "False", "reason": reason, "message": message,
        "lastTransitionTime": "2027-01-15T08:00:00Z", "observedGeneration": generation });
    json!({ "status": { "phase": "Error", "observedGeneration": generation, "conditions": [ready] } })
}

/// The command of a hint that explains a reason.
fn explains(hint: &str) -> &str {
    let command = hint.split('`').nth(1).unwrap_or_else(|| panic!("{hint}"));
    assert!(command.starts_with("meshwright explain "), "{hint}");
    command
}

/// A tenant can't change the credentials of clusters and has no business with them.
#[tokio::test(flavor = "multi_thread")]
async fn no_hint_leads_a_tenant_to_put_a_kubeconfig_into_its_workspace() {
    let Some(kubectl) = mw_testbed::or_skip(kubectl()) else {
        return;
    };
    let Some(kcp) = Kcp::start_or_skip(&["system", "tenant-a"]).await else {
        return;
    };
    let person = Person::new(kubectl, &kcp, &["tenant-a"], &[]);
    kcp.export("system", FLEET_FILE).await.unwrap();
    kcp.export("system", EXPORT_FILE).await.unwrap();
    kcp.bind("tenant-a", &binding("own-name", "system", EXPORT, &[]))
        .await
        .unwrap();
    let tenant = kcp.workspace("tenant-a").unwrap();
    let mesh = json!({ "apiVersion": "networking.edge-portal.eu/v1alpha1", "kind": "ClusterMeshBinding",
        "metadata": { "name": "mesh", "namespace": "default" }, "spec": { "clusterRefs": [{ "name": "ffm" }, { "name": "ber" }] } });
    let created = eventually(SOON, || async {
        tenant
            .create(&mesh)
            .await
            .map_err(|error| error.to_string())
    })
    .await
    .unwrap();
    let path = "/apis/networking.edge-portal.eu/v1alpha1/namespaces/default/clustermeshbindings/mesh/status";
    for reason in [
        "Credentials",
        "KubeconfigInvalid",
        "AccessDenied",
        "ClusterUnreachable",
    ] {
        let status = without_credentials(&created["metadata"]["generation"], reason);
        tenant.merge_patch(path, &status).await.unwrap();
        let told = person
            .finds(
                "mesh -n default --context tenant-a",
                "drift",
                "reading kubeconfig secret",
            )
            .await;
        let hint = told["hint"].as_str().unwrap();
        assert!(hint.contains("the platform's administrator"), "{hint}");
        let explained = person.output(explains(hint));
        let explained = String::from_utf8(explained.stdout).unwrap();
        let fix = explained
            .split_once("Fix:")
            .unwrap_or_else(|| panic!("{explained}"))
            .1;
        let words: Vec<&str> = fix.split_whitespace().collect();
        let fix = words.join(" ");
        let (hub, kcp) = fix
            .split_once("In kcp, ")
            .unwrap_or_else(|| panic!("{reason} does not speak of kcp: {fix}"));
        assert!(
            !hub.contains("kubectl") || hub.starts_with("on a hub, "),
            "{reason}: {fix}"
        );
        assert!(
            kcp.contains("the platform's administrator") && kcp.contains("management plane"),
            "{reason}: {fix}"
        );
        assert!(!kcp.contains("kubectl"), "{reason}: {fix}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn status_in_the_providers_workspace_tells_of_an_endpoint_that_never_answers() {
    let Some(kubectl) = mw_testbed::or_skip(kubectl()) else {
        return;
    };
    let Some(mut kcp) = Kcp::start_or_skip(&["system", "tenant-a"]).await else {
        return;
    };
    kcp.add_shard(&["tenant-d"]).await.unwrap();
    let person = Person::new(kubectl, &kcp, &["system", "tenant-a"], &[]);
    let status = |arguments: &str| {
        let output = person.output(&format!(
            "meshwright status --request-timeout 2s --context {arguments}"
        ));
        (
            output.status.code().unwrap(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let endpoints = |arguments: &str| {
        let (code, stdout, stderr) = status(&format!("{arguments} -o json"));
        let report: Value = serde_json::from_str(&stdout)
            .unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"));
        (code, report["endpoints"].clone())
    };
    let (code, _, stderr) = status("system");
    assert!(
        code == 2 && stderr.contains("no meshwright CRD is installed"),
        "nothing is installed: {code} {stderr}"
    );

    kcp.export("system", FLEET_FILE).await.unwrap();
    kcp.export("system", EXPORT_FILE).await.unwrap();
    assert_eq!(endpoints("system"), (0, json!([])), "no tenant is bound");
    for tenant in ["tenant-a", "tenant-d"] {
        kcp.bind(tenant, &binding("own-name", "system", EXPORT, &[]))
            .await
            .unwrap();
    }
    let urls = || kcp.endpoints("system", EXPORT);
    eventually(SOON, || async {
        if urls().len() == 2 {
            Ok(())
        } else {
            Err(format!("{:?}", urls()))
        }
    })
    .await
    .unwrap();
    let answers = |url: &String| json!({ "url": url, "state": "answers", "tenants": 1 });
    let mut all = urls();
    let silent = all[1].clone();
    all.sort();
    assert_eq!(endpoints("system"), (0, all.iter().map(answers).collect()));
    // A tenant can't see the endpoints.
    assert_eq!(endpoints("tenant-a -A"), (0, Value::Null));
    let (_, elsewhere, stderr) = status("system --api-export-name another");
    assert!(
        elsewhere.is_empty() && stderr.contains("no meshwright CRD is installed"),
        "{elsewhere}{stderr}"
    );

    kcp.hang_endpoint(1, true).await.unwrap();
    let (code, told) = endpoints("system");
    let degraded: Vec<&Value> = told
        .as_array()
        .unwrap()
        .iter()
        .filter(|one| one["state"] == "Degraded")
        .collect();
    assert_eq!(
        (code, degraded.len(), &degraded[0]["url"]),
        (1, 1, &json!(silent)),
        "{told:#}"
    );
    assert!(
        degraded[0]["message"]
            .as_str()
            .unwrap()
            .contains("its tenants get no updates until it answers"),
        "{told:#}"
    );
    let (code, table, _) = status("system");
    let row = table
        .lines()
        .find(|line| line.contains(&silent))
        .unwrap_or_else(|| panic!("{table}"));
    assert!(code == 1 && row.contains("Degraded"), "{table}");
    let silent_urls = || {
        let (code, checks) = person.doctor("--request-timeout 2s --context system");
        let of = |check: &Value| check["layer"] == "reachability" && check["state"] == "failed";
        let failed: Vec<Value> = checks.into_iter().filter(of).collect();
        (code, failed)
    };
    let (code, told) = silent_urls();
    let [check] = told.as_slice() else {
        panic!("not one URL is silent: {told:#?}");
    };
    assert_eq!((code, &check["subject"]), (1, &json!(silent)), "{check:#}");
    assert!(
        check["observed"].as_str().unwrap().contains("no answer")
            && check["hint"]
                .as_str()
                .unwrap()
                .contains("check the shard behind it"),
        "{check:#}"
    );

    kcp.hang_endpoint(1, false).await.unwrap();
    assert_eq!(endpoints("system").0, 0);
    assert_eq!(silent_urls().1, Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_export_or_workspace_is_told_within_five_seconds() {
    let Some(kcp) = Kcp::start_or_skip(&["system", "tenant-a"]).await else {
        return;
    };
    kcp.export("system", FLEET_FILE).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| {
        std::fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name).display().to_string()
    };
    let system = write("system", kcp.kubeconfig("system", kcp.admin_token()));
    let stranger = write(
        "stranger",
        kcp.kubeconfig("tenant-a", &kcp.user("nobody").unwrap()),
    );
    for (kubeconfig, words) in [
        (&system, "APIExport edge-portal-networking not found"),
        (&stranger, "not allowed (403)"),
    ] {
        let start = Instant::now();
        let mut command = Command::new(binary());
        let arguments = [
            "provider",
            "--kcp-kubeconfig",
            kubeconfig,
            "--mgmt-kubeconfig",
            &system,
            "--node-id",
            "x",
        ];
        let output = command
            .args(arguments)
            .env_remove("KUBERNETES_SERVICE_HOST")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(words), "{said}");
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "{:?}",
            start.elapsed()
        );
    }
}

struct Block {
    language: &'static str,
    text: &'static str,
    /// Paragraph before the block.
    before: &'static str,
}

fn blocks() -> Vec<Block> {
    let parts: Vec<&str> = PAGE.split("```").collect();
    let block = |at: usize| {
        let (language, text) = parts[at].split_once('\n').unwrap();
        Block {
            language,
            text,
            before: parts[at - 1].trim().rsplit("\n\n").next().unwrap(),
        }
    };
    (1..parts.len()).step_by(2).map(block).collect()
}

/// The line of the page that starts like this.
fn page_line(start: &str) -> String {
    let lines: Vec<String> = blocks()
        .iter()
        .flat_map(|block| {
            let text = block.text.replace("\\\n", " ");
            text.lines().map(str::to_owned).collect::<Vec<_>>()
        })
        .filter(|line| line.starts_with(start))
        .collect();
    let [line] = lines.as_slice() else {
        panic!("not one line starts with {start}: {lines:?}");
    };
    line.clone()
}

/// Name of the variable that a line sets.
fn variable(line: &str) -> Option<&str> {
    let (name, _) = line.split_once('=')?;
    name.bytes()
        .all(|byte| byte.is_ascii_uppercase())
        .then_some(name)
}

/// Objects of a platform's management plane, for clusters without Cilium.
async fn manage(management: &Cluster, clusters: &[&Cluster]) {
    let schema = json!({ "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } });
    let names = json!({ "kind": "Cluster", "listKind": "ClusterList", "plural": "clusters", "singular": "cluster" });
    let versions =
        json!([{ "name": "v1alpha1", "served": true, "storage": true, "schema": schema }]);
    let spec = json!({ "group": "platform.edge-portal.eu", "names": names, "scope": "Namespaced", "versions": versions });
    let crd = json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "clusters.platform.edge-portal.eu" }, "spec": spec });
    management.apply(&crd).await.unwrap();
    for cluster in clusters {
        let kubeconfig = cluster.admin_kubeconfig();
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "stringData": { "kubeconfig": kubeconfig },
            "metadata": { "name": format!("{}-kubeconfig", cluster.name()), "namespace": "default" } });
        management.apply(&secret).await.unwrap();
        let status = json!({ "conditions": [{ "type": "Ready", "status": "True" }],
            "kubeconfigSecretRef": { "name": format!("{}-kubeconfig", cluster.name()) } });
        let object = json!({ "apiVersion": "platform.edge-portal.eu/v1alpha1", "kind": "Cluster", "status": status,
            "metadata": { "name": cluster.name(), "namespace": "default" } });
        eventually(SOON, || async {
            management
                .apply(&object)
                .await
                .map_err(|error| error.to_string())
        })
        .await
        .unwrap();
    }
}

async fn give_clusters(tenant: &Cluster, names: &[&str]) {
    for name in names {
        let object = json!({ "apiVersion": "platform.edge-portal.eu/v1alpha1", "kind": "KubernetesCluster",
            "metadata": { "name": name, "namespace": "default" }, "spec": { "provider": "KIND" }, "status": { "phase": "Ready" } });
        eventually(SOON, || async {
            tenant
                .apply(&object)
                .await
                .map_err(|error| error.to_string())
        })
        .await
        .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_on_kcp_leads_from_an_empty_kcp_to_a_served_tenant_and_back() {
    let Some(kubectl) = mw_testbed::or_skip(kubectl()) else {
        return;
    };
    let Some(kcp) = Kcp::start_or_skip(&["system", "tenant-a"]).await else {
        return;
    };
    let Some(bed) = Testbed::start_or_skip(&["management", "ffm", "ber"]).await else {
        return;
    };
    let [management, ffm, ber] =
        ["management", "ffm", "ber"].map(|name| bed.cluster(name).unwrap());
    // Objects that the platform provides.
    kcp.export("system", FLEET_FILE).await.unwrap();
    manage(management, &[ffm, ber]).await;
    let person = Person::new(kubectl, &kcp, &["system", "tenant-a"], &[management]);
    let mut provider = None;
    // Later blocks use variables of earlier ones.
    let mut kept = String::new();
    for block in blocks() {
        if block.language == "yaml" {
            let name = block
                .before
                .rsplit('`')
                .nth(1)
                .unwrap_or_else(|| panic!("no file is named: {}", block.before));
            person.keep(name, block.text);
            continue;
        }
        let text = block.text.replace("\\\n", " ");
        for line in text.lines() {
            if line.starts_with("meshwright provider") {
                let more = "--metrics-bind-address 127.0.0.1:0 --health-probe-bind-address 0";
                provider = Some(person.starts(&format!("{line} {more}"), "log"));
            } else if ["status", "doctor mesh", "plan"]
                .iter()
                .any(|command| line.starts_with(&format!("meshwright {command}")))
            {
                // The clusters run no Cilium, and the provider reports that.
                eventually(SOON, || async {
                    let output = person.output(line);
                    let said = String::from_utf8_lossy(&output.stdout).into_owned();
                    let done = output.status.code() == Some(1) && said.contains("Cilium not found");
                    if done {
                        Ok(())
                    } else {
                        Err(format!("{said}{}", String::from_utf8_lossy(&output.stderr)))
                    }
                })
                .await
                .unwrap();
            } else if line.contains("annotate") {
                give_clusters(kcp.workspace("tenant-a").unwrap(), &["ffm", "ber"]).await;
                person.types(&format!("{kept}{line}"));
            } else if let Some(name) = variable(line) {
                // Evaluate the variable now.
                let output = person.output(&format!("{kept}{line}\nprintf %s \"${name}\""));
                assert!(
                    output.status.success(),
                    "{line}: {}",
                    String::from_utf8_lossy(&output.stderr)
                );
                kept = format!(
                    "{kept}{name}='{}'\n",
                    String::from_utf8(output.stdout).unwrap()
                );
            } else {
                person.types(&format!("{kept}{line}"));
            }
        }
    }
    let left = kcp
        .workspace("tenant-a")
        .unwrap()
        .list("/apis/apis.kcp.io/v1alpha2/apibindings")
        .await
        .unwrap();
    assert!(
        left.iter()
            .all(|binding| binding["metadata"]["name"] == FLEET),
        "{left:#?}"
    );
    drop(provider);
}
