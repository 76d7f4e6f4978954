//! Client of `tools/policycheck`.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A cluster with its policies, and flows to check.
#[derive(Serialize, Debug, Clone)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Question {
    /// Cilium name of the cluster.
    pub(crate) cluster: String,
    /// Value of the agent's option policy-default-local-cluster.
    pub(crate) default_local_cluster: bool,
    pub(crate) policies: Vec<Value>,
    pub(crate) flows: Vec<Flow>,
}

#[derive(Serialize, Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Flow {
    pub(crate) from: Pod,
    pub(crate) to: Pod,
    pub(crate) protocol: &'static str,
    pub(crate) port: u16,
}

/// A pod, or the outside world if there is no cluster.
#[derive(Serialize, Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Pod {
    pub(crate) cluster: String,
    pub(crate) namespace: String,
    pub(crate) labels: BTreeMap<String, String>,
}

#[derive(Deserialize, Debug)]
pub(crate) struct Answer {
    /// Errors of each policy.
    pub(crate) errors: Vec<Vec<String>>,
    /// Verdict of each flow. Empty unless all policies are accepted.
    pub(crate) flows: Vec<Verdict>,
}

#[derive(Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) egress: bool,
    pub(crate) ingress: bool,
}

/// Runs the check. `None` if this machine cannot build it.
pub(crate) fn ask(questions: &[Question]) -> Option<Vec<Answer>> {
    let program = mw_testbed::or_skip(mw_testbed::binaries::policycheck())?;
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The program reads all input before it writes.
    child
        .stdin
        .take()
        .unwrap()
        .write_all(&serde_json::to_vec(questions).unwrap())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let answers: Vec<Answer> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answers.len(), questions.len());
    Some(answers)
}
