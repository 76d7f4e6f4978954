//! Runs the pod of a Deployment outside of a cluster: with its arguments, and the token of its
//! account.

use std::path::{Path, PathBuf};

use base64ct::{Base64, Encoding};
use mw_testbed::Cluster;
use serde_json::Value;

use crate::process::Operator;
use crate::rendering::texts;
use crate::wait::until;

/// Starts one pod of a Deployment and waits until its probes succeed.
pub(crate) async fn start(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    folder: &Path,
) -> Operator {
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/{name}");
    let deployment = cluster
        .get(&path)
        .await
        .unwrap()
        .unwrap_or_else(|| panic!("there is no Deployment {name}"));
    let pod = &deployment["spec"]["template"]["spec"];
    let number = std::fs::read_dir(folder).unwrap().count();
    let container = &pod["containers"][0];
    let mut arguments: Vec<String> = texts(&container["args"])
        .into_iter()
        .map(|argument| outside(&argument))
        .collect();
    for (path, files) in mounted(cluster, namespace, pod, folder).await {
        arguments.iter_mut().for_each(|argument| {
            *argument = argument.replace(&format!("={path}/"), &format!("={}/", files.display()))
        });
    }
    if pod["automountServiceAccountToken"] == true {
        let token = cluster
            .request_token(namespace, pod["serviceAccountName"].as_str().unwrap(), 3600)
            .await
            .unwrap();
        let kubeconfig = folder.join(format!("kubeconfig-{number}"));
        std::fs::write(&kubeconfig, cluster.kubeconfig(cluster.url(), &token)).unwrap();
        match arguments[0].as_str() {
            "operator" => arguments.push(format!("--kubeconfig={}", kubeconfig.display())),
            _ => arguments.push(format!("--mgmt-kubeconfig={}", kubeconfig.display())),
        }
    }
    let process = Operator::start_in(namespace, &arguments, &folder.join(format!("log-{number}")));
    for probe in ["livenessProbe", "readinessProbe"] {
        passes(&process, &container[probe]).await;
    }
    process
}

/// Lays out the pod's Secrets like the kubelet. Returns the path in the pod and the local path of
/// each.
async fn mounted(
    cluster: &Cluster,
    namespace: &str,
    pod: &Value,
    folder: &Path,
) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    for mount in pod["containers"][0]["volumeMounts"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let volume = pod["volumes"]
            .as_array()
            .unwrap()
            .iter()
            .find(|volume| volume["name"] == mount["name"])
            .unwrap();
        let name = volume["secret"]["secretName"].as_str().unwrap();
        let secret = cluster
            .get(&format!("/api/v1/namespaces/{namespace}/secrets/{name}"))
            .await
            .unwrap()
            .unwrap();
        let place = folder.join(name);
        std::fs::create_dir_all(&place).unwrap();
        for item in volume["secret"]["items"].as_array().unwrap() {
            let content = secret["data"][item["key"].as_str().unwrap()]
                .as_str()
                .unwrap();
            std::fs::write(
                place.join(item["path"].as_str().unwrap()),
                Base64::decode_vec(content).unwrap(),
            )
            .unwrap();
        }
        found.push((mount["mountPath"].as_str().unwrap().to_owned(), place));
    }
    found
}

/// Replaces addresses and paths that only exist in a pod.
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
