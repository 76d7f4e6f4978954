//! Follows docs/install.md on real API servers. The processes run with the accounts and arguments
//! of the installation.

use std::collections::BTreeSet;

use mw_sim::kilo::{NAMESPACE, Node};
use mw_testbed::Testbed;
use serde_json::json;

use crate::fleet::Fleet;
use crate::install::{PAGE, administrator, under};
use crate::page::blocks;
use crate::remains::everything;
use crate::rights::may;
use crate::trials::scenarios;
use crate::wait::until;
use crate::{access, pod};

scenarios![
    the_operator_is_installed_upgraded_and_uninstalled_as_documented,
    the_operator_works_with_as_few_rights_as_the_chart_can_give,
    the_operator_works_as_installed_without_helm,
    the_provider_is_installed_and_uninstalled_as_documented,
    every_command_of_the_page_is_run,
];

const OPERATOR: &str = access::HUB_ACCOUNT;
const CREATE_NAMESPACE: &str = "kubectl create namespace kilo-system\n";
const SITES: [&str; 3] = ["hub", "east", "west"];

/// Waits until the authorizer has seen the new rights.
async fn is_granted(fleet: &Fleet, access: serde_json::Value) {
    may(fleet.cluster("hub"), NAMESPACE, OPERATOR, access, true).await;
}

async fn the_operator_is_installed_upgraded_and_uninstalled_as_documented() {
    let mut fleet = Fleet::three().build().await;
    let (shell, folder) = (
        administrator(fleet.cluster("hub")),
        tempfile::tempdir().unwrap(),
    );
    let before = everything(fleet.cluster("hub")).await;
    shell.run(under("Install the operator")).await;
    access::OPERATOR
        .wait_for_rights(fleet.cluster("hub"), OPERATOR)
        .await;
    let mut operator = pod::start(fleet.cluster("hub"), NAMESPACE, OPERATOR, folder.path()).await;
    fleet.converged().await;

    shell.run(under("Upgrade")).await;
    let budget = format!("/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets/{OPERATOR}");
    assert!(
        fleet.cluster("hub").get(&budget).await.unwrap().is_some(),
        "the upgrade brought nothing"
    );
    let path = format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{OPERATOR}");
    let deployment = fleet.cluster("hub").get(&path).await.unwrap().unwrap();
    let image = &deployment["spec"]["template"]["spec"]["containers"][0]["image"];
    assert!(
        image
            .as_str()
            .unwrap()
            .starts_with("registry.example/meshwright:"),
        "{image}: a value of the installation is lost"
    );
    // As in a rollout, the new pod waits until the old one ends.
    let mut successor = pod::start(fleet.cluster("hub"), NAMESPACE, OPERATOR, folder.path()).await;
    assert_eq!(operator.terminate().await.0, 0);
    fleet.add_node("east", Node::new(2, 9)).await;
    fleet.converged().await;

    fleet.mesh_model().active = false;
    let (meshes, rest) = under("Uninstall").split_once('\n').unwrap();
    shell.run(meshes).await;
    fleet.holds(&SITES).await;
    // In a cluster, the pod ends with its Deployment, before its rights are deleted.
    assert_eq!(successor.terminate().await.0, 0);
    shell.run(rest).await;
    let left: BTreeSet<String> = everything(fleet.cluster("hub"))
        .await
        .difference(&before)
        .cloned()
        .collect();
    assert_eq!(left, BTreeSet::new());
    fleet.finish().await;
}

async fn the_operator_works_with_as_few_rights_as_the_chart_can_give() {
    let mut fleet = Fleet::three()
        .with(|world| world.meshes[0].namespace = "team-a".into())
        .build()
        .await;
    let (shell, folder) = (
        administrator(fleet.cluster("hub")),
        tempfile::tempdir().unwrap(),
    );
    let entries = &fleet.world.meshes[0].entries;
    let secrets: Vec<String> = entries
        .iter()
        .filter(|entry| entry.site != "hub")
        .map(mw_sim::kilo::Entry::secret)
        .collect();
    let install = format!(
        "helm install meshwright charts/meshwright --namespace {NAMESPACE} --set applyCrds=false \
         --set 'operator.namespaces={{team-a}}' --set 'operator.kubeconfigSecrets={{{}}}'",
        secrets.join(",")
    );
    shell.run(&install).await;
    is_granted(&fleet, json!({ "verb": "watch", "resource": "secrets", "namespace": "team-a", "name": secrets[1] })).await;
    is_granted(&fleet, json!({ "verb": "list", "resource": "nodes" })).await;
    let all = json!({ "verb": "list", "resource": "secrets", "namespace": "team-a" });
    may(fleet.cluster("hub"), NAMESPACE, OPERATOR, all, false).await;
    let operator = pod::start(fleet.cluster("hub"), NAMESPACE, OPERATOR, folder.path()).await;
    fleet.converged().await;
    fleet.delete_mesh(0).await;
    fleet.holds(&SITES).await;
    fleet.gone(0).await;
    operator.kill();
    shell
        .run(&format!(
            "helm uninstall meshwright --namespace {NAMESPACE}"
        ))
        .await;
    fleet.finish().await;
}

async fn the_operator_works_as_installed_without_helm() {
    let mut fleet = Fleet::three().build().await;
    let (shell, folder) = (
        administrator(fleet.cluster("hub")),
        tempfile::tempdir().unwrap(),
    );
    let before = everything(fleet.cluster("hub")).await;
    // The testbed already has the namespace.
    shell
        .run(
            under("Install without Helm")
                .strip_prefix(CREATE_NAMESPACE)
                .unwrap(),
        )
        .await;
    access::OPERATOR
        .wait_for_rights(fleet.cluster("hub"), OPERATOR)
        .await;
    let mut operator = pod::start(fleet.cluster("hub"), NAMESPACE, OPERATOR, folder.path()).await;
    fleet.converged().await;
    fleet.delete_mesh(0).await;
    fleet.holds(&SITES).await;
    // Without an operator its finalizer would keep the CRD from being deleted.
    fleet.gone(0).await;
    assert_eq!(operator.terminate().await.0, 0);
    shell.run(under("Uninstall without Helm")).await;
    let left: BTreeSet<String> = everything(fleet.cluster("hub"))
        .await
        .difference(&before)
        .cloned()
        .collect();
    assert_eq!(left, BTreeSet::new());
    fleet.finish().await;
}

async fn the_provider_is_installed_and_uninstalled_as_documented() {
    let bed = Testbed::start(&["hub"]).await.unwrap();
    let hub = bed.cluster("hub").unwrap();
    let (shell, folder) = (administrator(hub), tempfile::tempdir().unwrap());
    shell.run(CREATE_NAMESPACE).await;
    let before = everything(hub).await;
    // The testbed runs no namespace controller, so the namespace stays.
    let namespace = BTreeSet::from(["namespaces /meshwright".to_owned()]);
    let left = |now: BTreeSet<String>| {
        now.difference(&before)
            .cloned()
            .collect::<BTreeSet<String>>()
    };
    // Any kubeconfig will do to create the Secrets from.
    for name in ["kcp.kubeconfig", "management.kubeconfig"] {
        shell.keep(name, &hub.admin_kubeconfig());
    }
    shell.run(under("Install the provider of kcp")).await;
    let deployment = hub
        .get("/apis/apps/v1/namespaces/meshwright/deployments/meshwright-provider")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        deployment["spec"]["template"]["spec"]["automountServiceAccountToken"],
        false
    );
    shell.run(under("Uninstall the provider of kcp")).await;
    assert_eq!(left(everything(hub).await), namespace);

    shell.run(under("Install the provider on a hub")).await;
    access::HUB.wait_for_rights(hub, access::HUB.name).await;
    let mut provider =
        pod::start(hub, access::HUB.namespace, access::HUB.name, folder.path()).await;
    let bindings = "/apis/networking.edge-portal.eu/v1alpha1/clustermeshbindings";
    until("the provider installed its CRDs", || async {
        hub.list(bindings).await.map_err(|error| error.to_string())
    })
    .await;
    let spec = json!({ "clusterRefs": [{ "name": "a" }, { "name": "b" }] });
    let metadata = json!({ "name": "mesh", "namespace": "default" });
    let binding = json!({ "apiVersion": "networking.edge-portal.eu/v1alpha1", "kind": "ClusterMeshBinding", "metadata": metadata, "spec": spec });
    hub.create(&binding).await.unwrap();
    until("the provider looks at the binding", || async {
        let found = hub
            .list(bindings)
            .await
            .map_err(|error| error.to_string())?;
        if found[0]["status"]["phase"].is_string() {
            Ok(())
        } else {
            Err(found[0].to_string())
        }
    })
    .await;
    let (objects, rest) = under("Uninstall the provider").split_once('\n').unwrap();
    shell.run(objects).await;
    assert_eq!(provider.terminate().await.0, 0);
    shell.run(rest).await;
    assert_eq!(left(everything(hub).await), namespace);
}

async fn every_command_of_the_page_is_run() {
    let headings: Vec<&str> = blocks(PAGE)
        .into_iter()
        .map(|block| block.heading)
        .collect();
    let followed = [
        "Install the operator",
        "Upgrade",
        "Uninstall",
        "Install the provider on a hub",
        "Uninstall the provider",
        "Install the provider of kcp",
        "Uninstall the provider of kcp",
        "Install without Helm",
        "Uninstall without Helm",
    ];
    assert_eq!(headings, followed);
}
