//! Checks the chart's values against the flags of the binary.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use regex_lite::Regex;
use serde_json::{Value, json};

use crate::rendering::Rendering;
use crate::trials::scenarios;

scenarios![
    every_flag_can_be_set_by_a_value,
    defaults_are_the_binarys,
    the_binary_takes_what_the_chart_gives_it
];

/// Flags that the chart does not set: the pod uses its service account, and the chart names
/// namespaces.
const NOT_SET: [&str; 2] = ["--kubeconfig", "--all-namespaces"];

fn meshwright(arguments: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meshwright"));
    for name in [
        "KUBECONFIG",
        "KCP_KUBECONFIG",
        "MGMT_KUBECONFIG",
        "MGMT_NAMESPACE",
        "NODE_ID",
        "KCP_EXTERNAL_URL",
        "POD_NAMESPACE",
    ] {
        command.env_remove(name);
    }
    let output = command
        .args(arguments)
        .env("COLUMNS", "1000")
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.code().unwrap(),
        String::from_utf8(text).unwrap(),
    )
}

/// Flags of a command with their defaults.
fn flags(command: &str) -> BTreeMap<String, Option<String>> {
    let (code, help) = meshwright(&[command, "--help"]);
    assert_eq!(code, 0, "{help}");
    let (flag, default) = (
        Regex::new(r"^\s+(?:-\w, )?(--[a-z-]+)").unwrap(),
        Regex::new(r"\[default: ([^\]]*)\]").unwrap(),
    );
    let mut flags: BTreeMap<String, Option<String>> = BTreeMap::new();
    let mut last = None;
    for line in help.lines() {
        if let Some(found) = flag.captures(line) {
            flags.insert(found[1].to_owned(), None);
            last = Some(found[1].to_owned());
        }
        if let (Some(flag), Some(found)) = (&last, default.captures(line)) {
            flags.insert(flag.clone(), Some(found[1].to_owned()));
        }
    }
    for own in ["--help", "--version"] {
        flags.remove(own);
    }
    assert!(flags.len() > 10, "{help}");
    flags
}

fn kcp() -> Value {
    json!({
        "enabled": true, "mode": "kcp", "kcpKubeconfig": { "secretName": "kcp" }, "mgmtKubeconfig": { "secretName": "mgmt" },
        "kcpExternalUrl": "https://kcp.example:6443", "trustClusterNames": true, "allowSystemNamespaces": true,
        "allowAnnotationPrefix": ["a.example/", "b.example/"],
    })
}

/// Renders the chart with all values set that add flags.
fn full(provider: &Value) -> Rendering {
    Rendering::of(&json!({
        "kubeconfigAllow": ["proxy-url", "impersonation"], "allowAddress": ["127.0.0.0/8", "fe80::/64"], "operator": { "namespaces": ["team-a"] }, "provider": provider,
    }))
}

fn names(arguments: &[String]) -> BTreeSet<String> {
    arguments[1..]
        .iter()
        .map(|argument| argument.split('=').next().unwrap().to_owned())
        .collect()
}

async fn every_flag_can_be_set_by_a_value() {
    let (kcp, hub) = (full(&kcp()), full(&json!({ "enabled": true })));
    let operator = names(&kcp.args("operator"));
    let provider: BTreeSet<String> = names(&kcp.args("provider"))
        .union(&names(&hub.args("provider")))
        .cloned()
        .collect();
    for (command, set) in [("operator", operator), ("provider", provider)] {
        let known: BTreeSet<String> = flags(command)
            .into_keys()
            .filter(|flag| !NOT_SET.contains(&flag.as_str()))
            .collect();
        assert_eq!(set, known, "{command}");
    }
}

async fn defaults_are_the_binarys() {
    let mut provider = kcp();
    provider["kcpExternalUrl"] = json!("");
    let rendering = Rendering::of(&json!({ "provider": provider }));
    for command in ["operator", "provider"] {
        let flags = flags(command);
        for argument in &rendering.args(command)[1..] {
            let Some((flag, value)) = argument.split_once('=') else {
                continue;
            };
            if [
                "--kcp-kubeconfig",
                "--mgmt-kubeconfig",
                "--node-id",
                "--allow-annotation-prefix",
            ]
            .contains(&flag)
            {
                continue;
            }
            assert_eq!(flags[flag].as_deref(), Some(value), "{command} {flag}");
        }
    }
}

/// The binary accepts all flags and then fails to find a cluster.
async fn the_binary_takes_what_the_chart_gives_it() {
    for rendering in [full(&kcp()), full(&json!({ "enabled": true }))] {
        for command in ["operator", "provider"] {
            let mut arguments = rendering.args(command);
            arguments.retain(|argument| !argument.contains("-bind-address="));
            arguments.extend(
                ["--metrics-bind-address=0", "--health-probe-bind-address=0"].map(str::to_owned),
            );
            if !arguments
                .iter()
                .any(|argument| argument.contains("kubeconfig="))
            {
                let flag = if command == "operator" {
                    "--kubeconfig"
                } else {
                    "--mgmt-kubeconfig"
                };
                arguments.push(format!("{flag}=/nowhere/kubeconfig"));
            }
            let (code, said) =
                meshwright(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(code, 2, "{said}");
            assert!(
                said.contains("kubeconfig") && !said.contains("Usage"),
                "{arguments:?}: {said}"
            );
        }
    }
}
