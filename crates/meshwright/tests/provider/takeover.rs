//! Clusters connected by hand before the provider existed; the earlier provider only reported.

use mw_testbed::binaries::kubectl;
use serde_json::{Value, json};

use crate::access::HUB;
use crate::ground::{BINDINGS, CONNECTIONS, GROUP, Ground, SYSTEM};
use crate::look::message;
use crate::page::{Shell, typed};
use crate::process::Operator;
use crate::tenants;
use crate::trials::scenarios;

scenarios![links_that_were_made_by_hand_stay_up];

const MIGRATION: &str = include_str!("../../../../docs/migration.md");
const TENANT: &str = "tenant-a";
const PAIR: [&str; 2] = ["east", "west"];
const METRICS_ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/rolebindings/meshwright-target-metrics";

/// Follows the steps of docs/migration.md.
async fn links_that_were_made_by_hand_stay_up() {
    let mut ground = Ground::beside(tenants::start(&[TENANT]).await).await;
    ground.manage_all().await;
    ground.bind_tenant(TENANT, "Accepted").await;
    ground.give_clusters(TENANT, &PAIR, &json!({})).await;
    let mut provider = ground.provider(&[]).await;
    join_by_hand(&ground).await;
    provider.terminate().await;
    ground.mesh(&PAIR).await;
    let before = versions(&ground).await;
    // Nobody may query KVStoreMesh, so links are verified only by dialling.
    ground.expect_denials();
    for site in PAIR {
        ground.cluster(site).delete(METRICS_ROLE).await.unwrap();
    }

    // The object as the earlier provider leaves it.
    let metadata = json!({ "name": "mesh", "namespace": "net", "finalizers": ["networking.edge-portal.eu/finalizer"] });
    let refs = PAIR.map(|name| json!({ "name": name }));
    let binding = json!({ "apiVersion": GROUP, "kind": "ClusterMeshBinding", "metadata": metadata, "spec": { "clusterRefs": refs } });
    ground
        .tenant(TENANT)
        .cluster
        .create(&binding)
        .await
        .unwrap();
    let rows = PAIR.map(
        |name| json!({ "clusterName": name, "connected": true, "readyNodes": 1, "totalNodes": 1 }),
    );
    let status =
        json!({ "status": { "phase": "Connected", "observedGeneration": 1, "meshStatus": rows } });
    ground
        .tenant(TENANT)
        .patch_status(BINDINGS, "mesh", &status)
        .await;

    let contexts = [
        ("hub", ground.hub()),
        ("ffm", ground.cluster("east")),
        (TENANT, ground.tenant(TENANT).cluster),
    ];
    let shell = Shell::new(&contexts, &[("kubectl", kubectl().unwrap())]);
    shell.keep("kcp.yaml", &ground.kcp_kubeconfig().await);
    shell.keep("mgmt.yaml", &ground.hub_kubeconfig().await);
    let [keep, stop, start, verify] = typed(
        MIGRATION,
        "Replace the Go provider, kcp-cilium-mesh-provider",
    )[..] else {
        panic!("there are other steps now")
    };
    shell.run(keep).await;
    ground.hub().apply(&the_earlier_provider()).await.unwrap();
    shell.run(&stop.replace("NAMESPACE", HUB.namespace)).await;
    let provider = start_as_told(&mut ground, &shell, start);
    let taken = ground
        .tenant(TENANT)
        .status(BINDINGS, "mesh", |binding| {
            binding["status"]["phase"] == "Connected" && !binding["status"]["conditions"].is_null()
        })
        .await;
    assert!(
        taken["status"]["meshStatus"]
            .to_string()
            .contains("managed by"),
        "{}",
        message(&taken)
    );
    ground.mesh(&PAIR).await;
    assert_eq!(versions(&ground).await, before, "a key was written");
    ground.is_followed("east", "cart", &["west"]).await;
    shell
        .run(&format!("kubectl config use-context {TENANT}"))
        .await;
    shell.run(verify).await;
    shell
        .run("cmp keys-before-ffm.yaml keys-after-ffm.yaml")
        .await;

    // Keys made by others stay when the binding is deleted.
    ground.tenant(TENANT).remove(BINDINGS, "mesh").await;
    assert_eq!(versions(&ground).await, before, "a key was written");
    ground.mesh(&PAIR).await;
    part_by_hand(&ground).await;
    ground.finish(provider).await;
}

/// Starts the provider with the command of the page, in the folder of its files.
fn start_as_told(ground: &mut Ground, shell: &Shell, line: &str) -> Operator {
    let [kcp, management] =
        ["kcp.yaml", "mgmt.yaml"].map(|name| shell.path(name).display().to_string());
    let line = line
        .replace("kcp.yaml", &kcp)
        .replace("mgmt.yaml", &management);
    let ports = [
        "--metrics-bind-address",
        "127.0.0.1:0",
        "--health-probe-bind-address",
        "0",
    ];
    ground.start(line.split_whitespace().skip(1).chain(ports))
}

fn the_earlier_provider() -> Value {
    let labels = json!({ "app": "kcp-cilium-mesh-provider" });
    let pod = json!({ "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "provider", "image": "earlier" }] } });
    let spec = json!({ "replicas": 1, "selector": { "matchLabels": labels }, "template": pod });
    let metadata = json!({ "name": "kcp-cilium-mesh-provider", "namespace": HUB.namespace });
    json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec })
}

/// Writes the same files as the provider, except for one line.
async fn join_by_hand(ground: &Ground) {
    ground.tenant(TENANT).bind("mesh", &PAIR, &json!({})).await;
    ground.tenant(TENANT).connected("mesh").await;
    let mut made = Vec::new();
    for (site, secret) in secrets() {
        made.push((site, secret, ground.keys(site, secret).await));
    }
    ground.tenant(TENANT).remove(BINDINGS, "mesh").await;
    for (site, secret, keys) in made {
        let by_hand = keys
            .into_iter()
            .filter(|(key, _)| PAIR.contains(&key.as_str()))
            .map(|(key, text)| (key, text + "# by hand\n"));
        let metadata = json!({ "name": secret, "namespace": "kube-system" });
        let data: serde_json::Map<String, Value> =
            by_hand.map(|(key, text)| (key, text.into())).collect();
        assert_eq!(data.len(), 1, "{site} {secret}");
        let object = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data });
        let path = format!("{SYSTEM}/secrets/{secret}");
        let there = ground.cluster(site).get(&path).await.unwrap().is_some();
        match there {
            true => ground
                .cluster(site)
                .merge_patch(&path, &json!({ "stringData": data }))
                .await
                .map(drop)
                .unwrap(),
            false => ground
                .cluster(site)
                .create(&object)
                .await
                .map(drop)
                .unwrap(),
        }
    }
}

async fn part_by_hand(ground: &Ground) {
    for (site, secret) in secrets() {
        let gone = PAIR.map(|name| (name.to_owned(), Value::Null));
        let path = format!("{SYSTEM}/secrets/{secret}");
        let patch = json!({ "data": gone.into_iter().collect::<serde_json::Map<_, _>>() });
        ground
            .cluster(site)
            .merge_patch(&path, &patch)
            .await
            .unwrap();
    }
    for site in PAIR {
        ground.reads(site, &[]).await;
    }
}

fn secrets() -> impl Iterator<Item = (&'static str, &'static str)> {
    PAIR.into_iter()
        .flat_map(|site| CONNECTIONS.map(|secret| (site, secret)))
}

/// Resource versions of all Secrets with keys, which change with every write.
async fn versions(ground: &Ground) -> Vec<String> {
    let mut versions = Vec::new();
    for (site, secret) in secrets() {
        let found = ground
            .cluster(site)
            .get(&format!("{SYSTEM}/secrets/{secret}"))
            .await
            .unwrap()
            .unwrap();
        versions.push(found["metadata"]["resourceVersion"].to_string());
    }
    versions
}
