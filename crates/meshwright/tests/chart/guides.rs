//! Follows the quick start and the migration guide of the Kilo back end block by block, on two
//! clusters with a kubeconfig like that of the pages.

use std::time::Duration;

use mw_sim::kilo::{NAMESPACE, World};
use mw_testbed::Cluster;
use mw_testbed::binaries::kubectl;
use serde_json::json;

use crate::access::OPERATOR;
use crate::earlier::{identities, renew, write_all};
use crate::fleet::Fleet;
use crate::page::{Shell, blocks, typed};
use crate::process::Operator;
use crate::trials::scenarios;
use crate::wait::until;

scenarios![
    the_quick_start_leads_to_a_mesh_and_back,
    the_earlier_operator_is_replaced_as_documented
];

const QUICK_START: &str = include_str!("../../../../docs/quick-start.md");
const MIGRATION: &str = include_str!("../../../../docs/migration.md");
const SITES: [&str; 2] = ["eu", "us"];
/// The namespace already exists in the testbed.
const CREATE_NAMESPACE: &str = "kubectl --context eu create namespace kilo-system\n";

/// Uses the networks of the page's manifest.
fn as_on_the_page(world: &mut World) {
    world.meshes[0].name = "prod".to_owned();
    for (site, tunnels, services) in [("eu", "10.4", "10.96"), ("us", "10.5", "10.97")] {
        let entry = world.meshes[0].entry(site).unwrap();
        entry.wireguard_cidr = format!("{tunnels}.0.0/16");
        entry.service_cidr = Some(format!("{services}.0.0/16"));
        for (node, number) in world
            .sites
            .get_mut(site)
            .unwrap()
            .nodes
            .values_mut()
            .zip(1..)
        {
            node.annotations.insert(
                "wireguard-ip".to_owned(),
                format!("{tunnels}.0.{number}/16"),
            );
        }
    }
}

struct Reader {
    shell: Shell,
    operator: Option<Operator>,
}

impl Reader {
    fn of(fleet: &Fleet) -> Self {
        let contexts = SITES.map(|site| (site, fleet.cluster(site)));
        Self {
            shell: Shell::new(&contexts, &[("kubectl", kubectl().unwrap())]),
            operator: None,
        }
    }

    /// Runs a block. Long-running commands go to the background, and checks are repeated until they
    /// pass.
    async fn follow(&mut self, fleet: &Fleet, block: &str) {
        let mut script = String::new();
        for line in block.lines() {
            match line
                .split_whitespace()
                .nth(1)
                .filter(|_| line.starts_with("meshwright "))
            {
                Some("operator") => self.start(fleet.cluster("eu"), line).await,
                Some("status") => {
                    self.shell.run(&std::mem::take(&mut script)).await;
                    let once = line.replace(" --watch", "");
                    until(line, || self.shell.try_run(&once)).await;
                }
                // Exit code 1 means pending changes.
                Some("plan") => script += &format!("{line} || [ $? = 1 ]\n"),
                _ => script += &format!("{line}\n"),
            }
        }
        self.shell.run(&script).await;
    }

    /// Starts the operator with the rights granted in an earlier step.
    async fn start(&mut self, hub: &Cluster, line: &str) {
        OPERATOR.wait_for_rights(hub, OPERATOR.name).await;
        let token = hub
            .request_token(NAMESPACE, OPERATOR.name, 3600)
            .await
            .unwrap();
        self.shell
            .keep("operator", &hub.kubeconfig(hub.url(), &token));
        let kubeconfig = self.shell.path("operator").display().to_string();
        let more = [
            "--kubeconfig",
            &kubeconfig,
            "--metrics-bind-address",
            "127.0.0.1:0",
            "--health-probe-bind-address",
            "0",
        ];
        let arguments: Vec<String> = line
            .split_whitespace()
            .skip(1)
            .chain(more)
            .map(str::to_owned)
            .collect();
        self.operator = Some(Operator::start(&arguments, &self.shell.path("log")));
    }
}

async fn the_quick_start_leads_to_a_mesh_and_back() {
    let mut fleet = Fleet::of(&SITES).with(as_on_the_page).build().await;
    // The reader has not created the mesh yet.
    let mesh = fleet.world.meshes[0].path();
    fleet.cluster("eu").delete(&mesh).await.unwrap();
    fleet
        .cluster("eu")
        .delete(&format!(
            "/api/v1/namespaces/{NAMESPACE}/secrets/us-kubeconfig"
        ))
        .await
        .unwrap();
    let mut reader = Reader::of(&fleet);
    let manifest = blocks(QUICK_START)
        .into_iter()
        .find(|block| block.language == "yaml")
        .unwrap();
    reader.shell.keep("mesh.yaml", manifest.text);
    let steps = typed(QUICK_START, "Connect two Kilo clusters");
    let (undo, steps) = steps.split_last().unwrap();
    for step in steps {
        reader
            .follow(&fleet, &step.replace(CREATE_NAMESPACE, ""))
            .await;
    }
    fleet.converged().await;
    reader.follow(&fleet, undo).await;
    fleet.mesh_model().active = false;
    fleet.holds(&SITES).await;
    fleet.finish().await;
}

/// Renews its Lease while its Deployment has a pod, and releases it at the end.
async fn the_earlier_operator(hub: &Cluster) {
    let path =
        format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments/kilo-clustermesh-operator");
    while hub.get(&path).await.unwrap().unwrap()["spec"]["replicas"] != 0 {
        renew(hub, "earlier").await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    renew(hub, "").await;
}

async fn the_earlier_operator_is_replaced_as_documented() {
    let mut fleet = Fleet::of(&SITES)
        .nodes(3)
        .with(as_on_the_page)
        .build()
        .await;
    write_all(&fleet).await;
    let before = identities(&fleet).await;
    let labels = json!({ "app": "kilo-clustermesh-operator" });
    let pod = json!({ "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "manager", "image": "earlier" }] } });
    let spec = json!({ "replicas": 1, "selector": { "matchLabels": labels }, "template": pod });
    let metadata = json!({ "name": "kilo-clustermesh-operator", "namespace": NAMESPACE });
    let deployment = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec });
    fleet.cluster("eu").apply(&deployment).await.unwrap();
    renew(fleet.cluster("eu"), "earlier").await;

    let mark = fleet.mark();
    let mut reader = Reader::of(&fleet);
    let follow = async {
        for step in typed(
            MIGRATION,
            "Replace the Go operator, kilo-clustermesh-operator",
        ) {
            if step.contains(" scale deployment ") {
                until("it looks at the Lease", || async {
                    let asked = fleet
                        .calls(&mark)
                        .into_iter()
                        .filter(|(_, call)| call.resource == "leases" && call.verb == "get")
                        .count();
                    if asked >= 3 {
                        Ok(())
                    } else {
                        Err(format!("it asked {asked} times"))
                    }
                })
                .await;
                let writes = fleet.peer_writes(&mark);
                assert!(
                    writes.is_empty(),
                    "it wrote while the earlier operator led: {writes:?}"
                );
            }
            reader.follow(&fleet, step).await;
        }
    };
    tokio::join!(follow, the_earlier_operator(fleet.cluster("eu")));
    assert_eq!(
        identities(&fleet).await,
        before,
        "no Peer was replaced, and none has another spec"
    );
    let writes = fleet.peer_writes(&mark);
    assert!(
        !writes.is_empty() && writes.iter().all(|(_, call)| call.verb == "patch"),
        "labels alone are added: {writes:?}"
    );
    // Fails if there is anything left to do.
    reader
        .shell
        .run("meshwright plan prod -n kilo-system")
        .await;
    for site in SITES {
        reader
            .shell
            .run(&format!("grep uid: peers-before-{site}.yaml > before; grep uid: peers-after-{site}.yaml > after; cmp before after"))
            .await;
    }
    fleet.finish().await;
}
