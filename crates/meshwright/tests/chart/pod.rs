//! What a Deployment's pod would run, outside of a cluster: its arguments, with
//! the token of its account.

use std::path::Path;

use mw_testbed::Cluster;
use serde_json::Value;

use crate::process::Operator;
use crate::rendering::texts;
use crate::wait::until;

/// Starts one pod of a Deployment, and waits until its probes are content.
pub(crate) async fn start(cluster: &Cluster, namespace: &str, name: &str, folder: &Path) -> Operator {
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/{name}");
    let deployment = cluster.get(&path).await.unwrap().unwrap_or_else(|| panic!("there is no Deployment {name}"));
    let pod = &deployment["spec"]["template"]["spec"];
    let account = pod["serviceAccountName"].as_str().unwrap();
    assert_eq!(pod["automountServiceAccountToken"], true);
    let token = cluster.request_token(namespace, account, 3600).await.unwrap();
    let number = std::fs::read_dir(folder).unwrap().count();
    let kubeconfig = folder.join(format!("kubeconfig-{number}"));
    std::fs::write(&kubeconfig, cluster.kubeconfig(cluster.url(), &token)).unwrap();

    let container = &pod["containers"][0];
    let mut arguments: Vec<String> = texts(&container["args"]).into_iter().map(|argument| outside(&argument)).collect();
    match arguments[0].as_str() {
        "operator" => arguments.extend([format!("--kubeconfig={}", kubeconfig.display()), format!("--namespace={namespace}")]),
        _ => arguments.push(format!("--mgmt-kubeconfig={}", kubeconfig.display())),
    }
    let process = Operator::start(&arguments, &folder.join(format!("log-{number}")));
    for probe in ["livenessProbe", "readinessProbe"] {
        passes(&process, &container[probe]).await;
    }
    process
}

/// Pods have addresses and names of their own.
fn outside(argument: &str) -> String {
    match argument.split_once('=') {
        Some((flag, _)) if flag.ends_with("-bind-address") => format!("{flag}=127.0.0.1:0"),
        _ => argument.replace("$(POD_NAME)", "pod"),
    }
}

async fn passes(process: &Operator, probe: &Value) {
    let path = probe["httpGet"]["path"].as_str().unwrap();
    until(format!("{path} is content"), || async {
        match process.fetch("health", path).await {
            (200, _) => Ok(()),
            (_, answer) => Err(answer),
        }
    })
    .await;
}
