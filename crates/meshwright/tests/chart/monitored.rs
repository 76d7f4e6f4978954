//! Checks the chart's monitoring objects with Prometheus and its operator.

use std::io::Write;
use std::process::{Command, Stdio};

use mw_testbed::Testbed;
use mw_testbed::binaries::{prometheus_crds, rulecheck};
use serde_json::{Value, json};

use crate::install::administrator;
use crate::rendering::Rendering;
use crate::trials::scenarios;

scenarios![monitors_and_alerts_are_accepted_whole];

const KINDS: [(&str, &str); 2] = [
    ("ServiceMonitor", "servicemonitors"),
    ("PrometheusRule", "prometheusrules"),
];

async fn monitors_and_alerts_are_accepted_whole() {
    let bed = Testbed::start(&["hub"]).await.unwrap();
    let hub = bed.cluster("hub").unwrap();
    for (_, plural) in KINDS {
        let file = prometheus_crds()
            .unwrap()
            .join(format!("monitoring.coreos.com_{plural}.yaml"));
        hub.install_crd(&std::fs::read_to_string(file).unwrap())
            .await
            .unwrap();
    }
    let shell = administrator(hub);
    let options = "--set provider.enabled=true --set serviceMonitor.enabled=true --set prometheusRule.enabled=true";
    shell.run(&format!("helm install meshwright charts/meshwright --namespace here --create-namespace {options}")).await;
    let enabled = json!({ "enabled": true });
    let rendering = Rendering::of(
        &json!({ "provider": enabled, "serviceMonitor": enabled, "prometheusRule": enabled }),
    );
    for (kind, plural) in KINDS {
        for component in ["operator", "provider"] {
            let path = format!(
                "/apis/monitoring.coreos.com/v1/namespaces/here/{plural}/meshwright-{component}"
            );
            let kept = hub
                .get(&path)
                .await
                .unwrap()
                .unwrap_or_else(|| panic!("there is no {path}"));
            // Unknown fields would be silently dropped.
            assert_eq!(
                kept["spec"],
                rendering.one(kind, component)["spec"],
                "{path}"
            );
            if kind == "PrometheusRule" {
                assert_eq!(refused(&kept["spec"]), "");
            }
        }
    }
    let nonsense = json!({ "groups": [{ "name": "x", "rules": [{ "alert": "X", "expr": "rate(meshwright_leader)" }] }] });
    assert!(refused(&nonsense).contains("expected type range vector"));
}

/// Output of promtool for some rules.
fn refused(rules: &Value) -> String {
    let mut check = Command::new(rulecheck().unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    check
        .stdin
        .take()
        .unwrap()
        .write_all(rules.to_string().as_bytes())
        .unwrap();
    String::from_utf8(check.wait_with_output().unwrap().stdout).unwrap()
}
