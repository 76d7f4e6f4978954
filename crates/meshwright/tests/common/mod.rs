//! Runs the built binary on files created by the test.
#![allow(
    dead_code,
    unreachable_pub,
    missing_debug_implementations,
    reason = "each test file uses its part of this"
)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

pub struct Outcome {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|wrong| panic!("{wrong}\n{}\n{}", self.stdout, self.stderr))
    }
}

pub fn meshwright(folder: &Path, args: &[&str], stdin: &str) -> Outcome {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meshwright"));
    command
        .args(args)
        .current_dir(folder)
        .env_remove("NO_COLOR")
        .env_remove("COLUMNS")
        .env_remove("KUBERNETES_SERVICE_HOST");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A run that exits before reading its input closes the pipe, which is fine.
    _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    let output = child.wait_with_output().unwrap();
    Outcome {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Temporary folder of one test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(test: &str) -> Folder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn with(self, name: &str, content: &str) -> Folder {
        std::fs::write(self.0.join(name), content).unwrap();
        self
    }

    /// Splits `args` at spaces.
    pub fn run(&self, args: &str) -> Outcome {
        meshwright(&self.0, &args.split_whitespace().collect::<Vec<_>>(), "")
    }

    pub fn json(&self, args: &str) -> (i32, Value) {
        let outcome = self.run(&format!("{args} -o json"));
        (outcome.code, outcome.json())
    }
}

/// A mesh of cluster a, which is local, and cluster b.
pub fn mesh(name: &str) -> String {
    format!(
        "apiVersion: kilo.squat.ai/v1alpha1
kind: ClusterMesh
metadata:
  name: {name}
spec:
  clusters:
    - name: a
      local: true
      podCIDRs: [10.1.0.0/16]
      wireguardCIDR: 10.4.0.0/16
    - name: b
      kubeconfigSecretRef: {{name: b}}
      podCIDRs: [10.2.0.0/16]
      wireguardCIDR: 10.5.0.0/16
"
    )
}

/// A valid key derived from the number.
pub fn key(number: u8) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    format!(
        "{}A=",
        char::from(DIGITS[usize::from(number % 63) + 1])
            .to_string()
            .repeat(42)
    )
}

/// Node `n<number>` of cluster 1 (a) or 2 (b).
pub fn node(cluster: u8, number: u8) -> String {
    let key = key(cluster * 16 + number);
    let wireguard = cluster + 3;
    format!(
        "apiVersion: v1
kind: Node
metadata:
  name: n{number}
  annotations:
    kilo.squat.ai/key: {key}
    kilo.squat.ai/wireguard-ip: 10.{wireguard}.0.{number}/16
    kilo.squat.ai/last-seen: \"1767225600\"
spec:
  podCIDRs: [10.{cluster}.{number}.0/24]
status:
  addresses:
    - {{type: ExternalIP, address: 198.51.100.{cluster}{number}}}
  conditions:
    - {{type: Ready, status: \"True\"}}
---
"
    )
}

/// The correct Peer of that node, with the given labels.
pub fn peer(mesh: &str, cluster: u8, number: u8, labels: &str) -> String {
    let name = if cluster == 1 { "a" } else { "b" };
    let key = key(cluster * 16 + number);
    let wireguard = cluster + 3;
    format!(
        "apiVersion: kilo.squat.ai/v1alpha1
kind: Peer
metadata:
  name: {mesh}--{name}--n{number}
  uid: uid-{cluster}{number}
  resourceVersion: \"7\"
  labels:
    kilo-clustermesh.io/mesh: {mesh}
    kilo-clustermesh.io/source-cluster: {name}
{labels}
spec:
  publicKey: {key}
  endpoint:
    dnsOrIP: {{ip: 198.51.100.{cluster}{number}}}
    port: 51820
  allowedIPs: [10.{cluster}.{number}.0/24, 10.{wireguard}.0.{number}/32]
---
"
    )
}

pub const NAMESPACE: &str = "    kilo-clustermesh.io/mesh-namespace: default";

pub fn owned(mesh: &str, cluster: u8, number: u8) -> String {
    peer(mesh, cluster, number, NAMESPACE)
}

pub fn owned_by(hub: &str, mesh: &str, cluster: u8, number: u8) -> String {
    peer(
        mesh,
        cluster,
        number,
        &format!("{NAMESPACE}\n    kilo-clustermesh.io/hub: {hub}"),
    )
}

pub fn kube_system(uid: &str) -> String {
    format!("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: kube-system\n  uid: {uid}\n---\n")
}

/// Names of the objects in a list of the report.
pub fn names(list: &Value) -> Vec<&str> {
    list.as_array()
        .unwrap()
        .iter()
        .map(|item| {
            item["metadata"]["name"]
                .as_str()
                .or(item["after"]["metadata"]["name"].as_str())
                .unwrap()
        })
        .collect()
}

pub fn reasons(report: &Value) -> Vec<&str> {
    report["problems"]
        .as_array()
        .unwrap()
        .iter()
        .map(|problem| problem["reason"].as_str().unwrap())
        .collect()
}
