//! Faults to inject, and the first failure that doctor must report for each. Independent of how
//! doctor finds it.

use std::future::Future;
use std::pin::Pin;

use mw_testbed::eventually;
use serde_json::{Value, json};

use crate::fleet::{Fleet, write_secret};
use crate::wait::{DEADLINE, until};

const SECRET: &str = "/api/v1/namespaces/kilo-system/secrets/east-kubeconfig";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

type Act = for<'a> fn(&'a Fleet) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

pub(crate) struct Breakage {
    pub(crate) name: &'static str,
    pub(crate) act: Act,
    pub(crate) layer: &'static str,
    pub(crate) subject: &'static str,
    /// Part of the reported text.
    pub(crate) told: &'static str,
}

macro_rules! breakages {
    ($($act:ident: $layer:literal of $subject:literal, told $told:literal;)*) => {
        pub(crate) const BREAKAGES: &[Breakage] = &[$(Breakage {
            name: stringify!($act),
            act: |fleet| Box::pin($act(fleet)),
            layer: $layer,
            subject: $subject,
            told: $told,
        },)*];
    };
}

breakages! {
    secret_is_gone: "credentials" of "east", told "not found";
    kubeconfig_runs_a_program: "credentials" of "east", told "exec credential plugins";
    secret_has_another_key: "credentials" of "east", told "has none of the keys";
    kubeconfig_is_cut_off: "credentials" of "west", told "parse error";
    token_is_revoked: "reachability" of "east", told "401";
    server_has_moved: "reachability" of "west", told "can't be reached";
    role_lacks_a_verb: "rights" of "east", told "patch peers.kilo.squat.ai";
    binding_is_gone: "rights" of "west", told "list nodes";
    operator_lost_its_role: "rights" of "hub", told "in kilo-system";
    peers_are_unknown: "crds" of "east", told "the Peer CRD (peers.kilo.squat.ai) is not installed";
    agent_never_started: "health" of "east", told "node n9";
    agents_are_silent: "health" of "west", told "checked in";
    endpoint_is_missing: "annotations" of "east", told "node n2";
    endpoint_is_nonsense: "annotations" of "west", told "node n1";
    pod_network_is_declared_twice: "overlap" of "kilo-system/mesh", told "10.1.0.0/16";
    keepalive_is_not_sent: "keepalive" of "east", told "n1";
    token_ends_soon: "certificates" of "west", told "within a day";
    deletes_are_held: "drift" of "kilo-system/mesh", told "held";
}

async fn secret_is_gone(fleet: &Fleet) {
    fleet.cluster("hub").delete(SECRET).await.unwrap();
}

/// Replaces the Secret's data by this one key.
async fn replace_secret(fleet: &Fleet, member: &str, key: &str, kubeconfig: &str) {
    fleet
        .cluster("hub")
        .delete(&SECRET.replace("east", member))
        .await
        .unwrap();
    write_secret(fleet.cluster("hub"), member, key, kubeconfig).await;
}

async fn kubeconfig_runs_a_program(fleet: &Fleet) {
    let cluster = fleet.cluster("east");
    let exec = "    exec: {apiVersion: client.authentication.k8s.io/v1, command: x}\n    token: ";
    replace_secret(
        fleet,
        "east",
        "value",
        &cluster
            .kubeconfig(cluster.url(), "t")
            .replace("    token: ", exec),
    )
    .await;
}

async fn secret_has_another_key(fleet: &Fleet) {
    let cluster = fleet.cluster("east");
    replace_secret(
        fleet,
        "east",
        "config",
        &cluster.kubeconfig(cluster.url(), "t"),
    )
    .await;
}

async fn kubeconfig_is_cut_off(fleet: &Fleet) {
    replace_secret(fleet, "west", "value", "clusters: [").await;
}

/// A token rotation that the hub was not told about.
async fn token_is_revoked(fleet: &Fleet) {
    fleet
        .cluster("east")
        .delete("/api/v1/namespaces/kube-system/secrets/clustermesh-reader-token")
        .await
        .unwrap();
}

async fn server_has_moved(fleet: &Fleet) {
    let cluster = fleet.cluster("west");
    replace_secret(
        fleet,
        "west",
        "value",
        &cluster.kubeconfig("https://127.0.0.1:1", "t"),
    )
    .await;
}

async fn role_lacks_a_verb(fleet: &Fleet) {
    let path = format!("{RBAC}/clusterroles/kilo-clustermesh-remote");
    let mut role = fleet.cluster("east").get(&path).await.unwrap().unwrap();
    for rule in role["rules"].as_array_mut().unwrap() {
        rule["verbs"]
            .as_array_mut()
            .unwrap()
            .retain(|verb| verb != "patch");
    }
    fleet
        .cluster("east")
        .merge_patch(&path, &json!({ "rules": role["rules"] }))
        .await
        .unwrap();
}

async fn binding_is_gone(fleet: &Fleet) {
    fleet
        .cluster("west")
        .delete(&format!("{RBAC}/clusterrolebindings/clustermesh-reader"))
        .await
        .unwrap();
}

async fn operator_lost_its_role(fleet: &Fleet) {
    fleet
        .cluster("hub")
        .delete(&format!(
            "{RBAC}/namespaces/kilo-system/rolebindings/meshwright-operator"
        ))
        .await
        .unwrap();
}

async fn peers_are_unknown(fleet: &Fleet) {
    let path = format!("{CRDS}/peers.kilo.squat.ai");
    fleet.cluster("east").delete(&path).await.unwrap();
    eventually(DEADLINE, || async {
        let left = fleet
            .cluster("east")
            .get(&path)
            .await
            .map_err(|error| error.to_string())?;
        left.map_or(Ok(()), |crd| Err(crd["status"].to_string()))
    })
    .await
    .unwrap();
}

/// A node joins, and its kilo pod hangs.
async fn agent_never_started(fleet: &Fleet) {
    crate::agents::join(fleet.cluster("east"), 2, 9).await;
}

async fn agents_are_silent(fleet: &Fleet) {
    let long_ago = (crate::agents::now() - 7200).to_string();
    for node in ["n1", "n2", "n3"] {
        fleet
            .annotate("west", node, json!({ "kilo.squat.ai/last-seen": long_ago }))
            .await;
    }
}

async fn endpoint_is_missing(fleet: &Fleet) {
    fleet
        .annotate(
            "east",
            "n2",
            json!({ "kilo.squat.ai/force-endpoint": null }),
        )
        .await;
}

async fn endpoint_is_nonsense(fleet: &Fleet) {
    fleet
        .annotate(
            "west",
            "n1",
            json!({ "kilo.squat.ai/clustermesh-endpoint": "over there" }),
        )
        .await;
}

async fn entries(fleet: &Fleet) -> Value {
    fleet
        .cluster("hub")
        .get(&fleet.mesh.path())
        .await
        .unwrap()
        .unwrap()["spec"]["clusters"]
        .clone()
}

async fn pod_network_is_declared_twice(fleet: &Fleet) {
    let mut entries = entries(fleet).await;
    entries[1]["podCIDRs"] = json!(["10.1.0.0/16"]);
    fleet
        .patch_mesh(&json!({ "spec": { "clusters": entries } }))
        .await;
}

async fn keepalive_is_not_sent(fleet: &Fleet) {
    let mut entries = entries(fleet).await;
    entries[1]["persistentKeepalive"] = json!(25);
    fleet
        .patch_mesh(&json!({ "spec": { "clusters": entries } }))
        .await;
    for node in ["n2", "n3", "n9"] {
        fleet
            .annotate(
                "east",
                node,
                json!({ "kilo.squat.ai/persistent-keepalive": "25" }),
            )
            .await;
    }
}

async fn token_ends_soon(fleet: &Fleet) {
    let cluster = fleet.cluster("west");
    let token = cluster
        .request_token("kube-system", "clustermesh-reader", 3600)
        .await
        .unwrap();
    replace_secret(
        fleet,
        "west",
        "value",
        &cluster.kubeconfig(cluster.url(), &token),
    )
    .await;
}

async fn deletes_are_held(fleet: &Fleet) {
    fleet
        .unseen(async {
            fleet
                .cluster("west")
                .delete("/api/v1/nodes/n3")
                .await
                .unwrap()
        })
        .await;
    until("the operator holds the deletes", || async {
        let mesh = fleet
            .cluster("hub")
            .get(&fleet.mesh.path())
            .await
            .map_err(|error| error.to_string())?
            .unwrap_or_default();
        let held = mesh["status"]["heldDeletes"]
            .as_array()
            .is_some_and(|held| !held.is_empty());
        if held {
            Ok(())
        } else {
            Err(mesh["status"].to_string())
        }
    })
    .await;
}
