//! Shared by the tests of the testbed: three clusters, started once.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use mw_testbed::{Testbed, eventually};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// Timeout for operations that take milliseconds on an idle machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// Time to wait for an answer that must not come.
pub(crate) const QUIET: Duration = Duration::from_millis(500);
pub(crate) const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Never dropped: the supervisors end the servers with the process.
static SHARED: OnceCell<Option<Testbed>> = OnceCell::const_new();

pub(crate) async fn shared() -> Option<&'static Testbed> {
    SHARED
        .get_or_init(|| Testbed::start_or_skip(&["east", "hub", "west"]))
        .await
        .as_ref()
}

/// Returns a kube client over HTTP/1.1, without kube's automatic retries.
pub(crate) async fn client(kubeconfig: &str) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

pub(crate) fn rule(group: &str, resource: &str, verbs: &[&str]) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![group.into()]),
        resources: Some(vec![resource.into()]),
        verbs: verbs.iter().map(|verb| (*verb).into()).collect(),
        ..PolicyRule::default()
    }
}

pub(crate) fn config_map(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "namespace": "default" } })
}

pub(crate) fn is_alive(pid: i32) -> bool {
    kill(Pid::from_raw(pid), None).is_ok()
}

pub(crate) async fn wait_until_gone(pids: &[i32], folder: &Path) {
    eventually(SOON, || async {
        let alive: Vec<_> = pids.iter().filter(|pid| is_alive(**pid)).collect();
        if alive.is_empty() && !folder.exists() {
            Ok(())
        } else {
            Err(format!("alive: {alive:?}, folder: {}", folder.exists()))
        }
    })
    .await
    .unwrap();
}

/// Starts a process that holds a testbed. Returns it with the testbed's folder and
/// process IDs.
pub(crate) fn held(arguments: &[&str]) -> (Child, String, Vec<i32>) {
    let holder = env!("CARGO_BIN_EXE_hold-testbed");
    let mut child = Command::new(holder)
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let held = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.split_once("held: ").map(|(_, held)| held.to_owned()))
        .unwrap_or_else(|| panic!("the child did not print its testbed"));
    let (folder, pids) = held.split_once(' ').unwrap();
    (
        child,
        folder.to_owned(),
        pids.split(',').map(|pid| pid.parse().unwrap()).collect(),
    )
}
