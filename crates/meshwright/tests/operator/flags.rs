//! Effects of the flags.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use mw_sim::kilo::NAMESPACE;
use mw_testbed::Cluster;
use mw_testbed::binaries::kubectl;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::fleet::Fleet;
use crate::look::{none, until};
use crate::trials::scenarios;

scenarios![
    it_says_that_it_is_ready_and_what_it_does_as_json,
    secure_metrics_are_served_over_https_to_those_who_may_get_them,
    it_leaves_the_crds_alone_when_told,
    an_older_crd_of_somebody_else_is_brought_up_to_date,
    a_resync_period_lists_everything_again,
];

#[derive(Deserialize)]
struct LogLine {
    #[serde(rename = "fields")]
    _fields: UniqueKeys,
}

/// A JSON object; fails to parse if it has a key twice.
struct UniqueKeys;

impl<'de> Deserialize<'de> for UniqueKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueKeys)
    }
}

impl<'de> Visitor<'de> for UniqueKeys {
    type Value = Self;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        let mut keys = BTreeSet::new();
        while let Some((key, _)) = map.next_entry::<String, Value>()? {
            if let Some(twice) = keys.replace(key) {
                return Err(serde::de::Error::custom(format!("duplicate key {twice}")));
            }
        }
        Ok(self)
    }
}

async fn it_says_that_it_is_ready_and_what_it_does_as_json() {
    let mut fleet = Fleet::three().nodes(1).build().await;
    let operator = fleet
        .operator(&[
            "--health-probe-bind-address",
            "127.0.0.1:0",
            "--log-format",
            "json",
        ])
        .await;
    fleet.converged().await;
    for path in ["/healthz", "/readyz"] {
        let (code, answer) = operator.fetch("health", path).await;
        assert_eq!(code, 200, "{path}: {answer}");
    }
    let log = operator.log();
    for line in log.lines() {
        serde_json::from_str::<LogLine>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    }
    assert!(!log.contains("eyJ"), "a token is in the log");
    for (cluster, secret) in [
        ("hub", Value::Null),
        ("east", json!("kilo-system/east-kubeconfig")),
    ] {
        let added = json!({ "message": "cluster added", "cluster": cluster, "secret": secret });
        assert!(
            log.lines().any(|line| {
                let line: Value = serde_json::from_str(line).unwrap();
                ["message", "cluster", "secret"]
                    .iter()
                    .all(|field| line["fields"][field] == added[field])
            }),
            "{added}: {log}"
        );
    }
    assert!(!log.contains("\"cluster\":\"kilo-system/"), "{log}");
    let metrics = operator.metrics().await;
    assert_eq!(
        metrics.sum(
            "meshwright_writes_total",
            &[("kind", "Peer"), ("verb", "create"), ("result", "done")]
        ),
        6.0
    );
    assert_eq!(metrics.sum("meshwright_cluster_reachable", &[]), 3.0);
    assert_eq!(
        metrics.sum(
            "meshwright_cluster_reachable",
            &[
                ("cluster", "east"),
                ("secret", "kilo-system/east-kubeconfig")
            ]
        ),
        1.0
    );
    assert!(metrics.sum("meshwright_api_requests_total", &[]) > 6.0);
    let (_, served) = operator.fetch("metrics", "/metrics").await;
    assert!(
        served.contains("\nmeshwright_convergence_seconds_count")
            && !served.contains("meshwright_kcp_"),
        "{served}"
    );
    fleet.finish().await;
}

/// Status code of /metrics, or None if the port does not speak HTTP.
fn code_of_metrics(kubectl: &Path, url: &str, token: Option<&str>) -> (Option<u16>, String) {
    let mut command = Command::new(kubectl);
    command
        .args(["get", "--raw", "/metrics", "--server", url, "-v=6"])
        .env("KUBECONFIG", "/dev/null");
    command.args(
        url.starts_with("https")
            .then_some("--insecure-skip-tls-verify"),
    );
    match token {
        Some(token) => command.arg(format!("--token={token}")),
        // Without any credentials kubectl would prompt for them.
        None => command.args(["--username=somebody", "--password=something"]),
    };
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let status = said
        .lines()
        .find_map(|line| line.split_once(" status=\""))
        .unwrap_or_else(|| panic!("no request: {said}"))
        .1;
    (
        status
            .split([' ', '"'])
            .next()
            .and_then(|code| code.parse().ok()),
        String::from_utf8(output.stdout).unwrap(),
    )
}

async fn account(hub: &Cluster, name: &str) -> String {
    let metadata = json!({ "name": name, "namespace": NAMESPACE });
    hub.apply(&json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata }))
        .await
        .unwrap();
    hub.request_token(NAMESPACE, name, 3600).await.unwrap()
}

async fn secure_metrics_are_served_over_https_to_those_who_may_get_them() {
    let kubectl = match kubectl() {
        Ok(kubectl) => kubectl,
        Err(error) => return mw_testbed::skip_or_fail(&error.to_string()),
    };
    let mut fleet = Fleet::three().nodes(1).build().await;
    let hub = fleet.cluster("hub");
    hub.apply_yaml(include_str!("../../../../config/rbac/secure-metrics.yaml"))
        .await
        .unwrap();
    let (prometheus, guest) = (
        account(hub, "prometheus").await,
        account(hub, "guest").await,
    );
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "prometheus" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "meshwright-metrics-reader" },
        "subjects": [{ "kind": "ServiceAccount", "name": "prometheus", "namespace": NAMESPACE }],
    });
    hub.apply(&binding).await.unwrap();
    let operator = fleet.operator(&["--metrics-secure"]).await;
    let address = operator.served("metrics").await;
    let ask = |token: Option<&str>| code_of_metrics(&kubectl, &format!("https://{address}"), token);
    // The authorizer learns of roles and bindings one object at a time.
    until("metrics for who has the role", || async {
        match ask(Some(&prometheus)) {
            (Some(200), text) => Ok(text),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    fleet.converged().await;
    let (code, text) = ask(Some(&prometheus));
    assert!(
        code == Some(200) && text.contains("meshwright_leader 1"),
        "{code:?} {text}"
    );
    let nothing = |answer: (Option<u16>, String)| {
        assert!(
            !answer.1.contains("meshwright_"),
            "metrics were told: {answer:?}"
        );
        answer.0
    };
    assert_eq!(
        nothing(ask(Some(&guest))),
        Some(403),
        "a token without the role"
    );
    assert_eq!(nothing(ask(Some("guess"))), Some(401), "a token of nobody");
    assert_eq!(nothing(ask(None)), Some(401), "no token");
    assert_eq!(
        nothing(code_of_metrics(
            &kubectl,
            &format!("http://{address}"),
            Some(&prometheus)
        )),
        None,
        "without TLS"
    );
    let log = operator.log();
    assert!(
        [&prometheus, &guest]
            .iter()
            .all(|token| !log.contains(token.as_str())),
        "a token is in the log"
    );
    fleet.finish().await;
}

async fn it_leaves_the_crds_alone_when_told() {
    let mut fleet = Fleet::three().nodes(1).build().await;
    let mark = fleet.mark();
    let _operator = fleet.operator(&["--apply-crds", "false"]).await;
    fleet.converged().await;
    none(
        &fleet
            .calls(&mark)
            .into_iter()
            .filter(|(_, call)| call.resource == "customresourcedefinitions")
            .collect::<Vec<_>>(),
        "CRDs",
    );
    fleet.finish().await;
}

/// As applied by a chart or kubectl: another field manager owns every field.
async fn an_older_crd_of_somebody_else_is_brought_up_to_date() {
    let mut fleet = Fleet::three().nodes(1).build().await;
    let path =
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/clustermeshes.kilo.squat.ai";
    let field = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let hub = fleet.cluster("hub");
    let mut crd = hub.get(path).await.unwrap().unwrap();
    let new = crd.pointer_mut(field).unwrap().as_object_mut().unwrap();
    assert!(new.remove("maxDeletePercent").is_some());
    new["clusters"]["maxItems"] = 9.into();
    crd["spec"]["versions"][0]["additionalPrinterColumns"] = Value::Null;
    for name in ["managedFields", "creationTimestamp", "uid", "generation"] {
        crd["metadata"].as_object_mut().unwrap().remove(name);
    }
    let answer = hub
        .request("PUT", &format!("{path}?fieldManager=helm"), Some(&crd))
        .await
        .unwrap();
    assert!(answer.is_success(), "{answer:?}");
    let _operator = fleet.operator(&[]).await;
    until("the CRD is ours", || async {
        let crd = fleet
            .cluster("hub")
            .get(path)
            .await
            .map_err(|error| error.to_string())?
            .unwrap();
        let fields = crd.pointer(field).unwrap();
        let right = fields.get("maxDeletePercent").is_some() && fields["clusters"]["maxItems"] != 9;
        if right {
            Ok(())
        } else {
            Err(fields["clusters"]["maxItems"].to_string())
        }
    })
    .await;
    fleet.converged().await;
    fleet.finish().await;
}

async fn a_resync_period_lists_everything_again() {
    let mut fleet = Fleet::three().nodes(1).build().await;
    let _operator = fleet.operator(&["--resync-period", "2s"]).await;
    fleet.converged().await;
    let mark = fleet.mark();
    until("two resyncs", || async {
        let calls = fleet.calls(&mark);
        let lists = |site: &str| {
            calls
                .iter()
                .filter(|(at, call)| at == site && call.verb == "list" && call.resource == "nodes")
                .count()
        };
        if ["hub", "east", "west"].iter().all(|site| lists(site) >= 2) {
            Ok(())
        } else {
            Err("not yet".to_owned())
        }
    })
    .await;
    none(
        &fleet.writes(&mark),
        "a resync of a converged fleet writes nothing",
    );
    fleet.finish().await;
}
