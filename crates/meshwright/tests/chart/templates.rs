//! Effect of values on the rendered objects.

use std::collections::{BTreeMap, BTreeSet};

use mw_controller::metrics::{
    CertificateLabels, ClusterLabels, EndpointLabels, FailureLabels, MeshLabels, Metrics,
    ObjectLabels,
};
use regex_lite::Regex;
use serde_json::{Value, json};

use crate::access::{HUB, OPERATOR};
use crate::render::{Helm, root};
use crate::rendering::{NAMESPACE, Rendering, texts};
use crate::rights::documents;
use crate::trials::scenarios;

scenarios![
    helm_finds_nothing_wrong_with_the_chart,
    the_chart_is_of_the_binarys_version,
    the_operator_alone_is_installed_unless_told_otherwise,
    secure_metrics_bring_the_right_to_review_tokens_and_a_monitor_that_sends_one,
    the_provider_on_a_hub_has_rights_there,
    the_provider_of_kcp_has_no_rights_here_and_reads_its_kubeconfigs_from_secrets,
    roles_are_those_of_config_rbac,
    rights_follow_the_values,
    pods_are_locked_down_whatever_is_set,
    values_reach_the_pod,
    probes_and_ports_follow_the_addresses,
    extras_are_there_when_asked_for,
    alerts_are_on_metrics_that_are_served,
    accounts_can_be_given,
    names_fit_and_differ_by_release,
    the_plain_manifests_are_up_to_date,
];

/// Values that enable everything.
fn everything() -> Value {
    json!({
        "provider": { "enabled": true }, "serviceMonitor": { "enabled": true }, "prometheusRule": { "enabled": true },
        "networkPolicy": { "enabled": true, "metricsFrom": [{ "namespaceSelector": {} }] }, "podDisruptionBudget": { "enabled": true },
    })
}

fn kcp() -> Value {
    let provider = json!({
        "enabled": true, "mode": "kcp", "kcpKubeconfig": { "secretName": "kcp" }, "mgmtKubeconfig": { "secretName": "mgmt", "key": "value" },
    });
    json!({ "operator": { "enabled": false }, "provider": provider })
}

fn hub() -> Value {
    json!({ "operator": { "enabled": false }, "provider": { "enabled": true } })
}

async fn helm_finds_nothing_wrong_with_the_chart() {
    let helm = Helm::locate().unwrap();
    for values in [json!({}), everything(), kcp(), hub()] {
        let report = helm
            .on_chart(&["lint", "--strict"], NAMESPACE, &values)
            .unwrap();
        assert!(
            report.contains("1 chart(s) linted, 0 chart(s) failed"),
            "{report}"
        );
    }
}

async fn the_chart_is_of_the_binarys_version() {
    let chart = std::fs::read_to_string(root().join("charts/meshwright/Chart.yaml")).unwrap();
    let chart: Value = serde_saphyr::from_str(&chart).unwrap();
    assert_eq!(
        (&chart["version"], &chart["appVersion"]),
        (
            &json!(env!("CARGO_PKG_VERSION")),
            &json!(env!("CARGO_PKG_VERSION"))
        )
    );
    assert_eq!(chart["annotations"]["artifacthub.io/license"], "Apache-2.0");
    assert!(
        std::fs::read_to_string(root().join("LICENSE"))
            .unwrap()
            .contains("Apache License")
    );
    let image = &Rendering::of(&json!({})).container("operator")["image"].clone();
    assert_eq!(*image, concat!("meshwright:", env!("CARGO_PKG_VERSION")));
}

async fn the_operator_alone_is_installed_unless_told_otherwise() {
    let default = Rendering::of(&json!({}));
    let kinds = [
        "ClusterRole",
        "ClusterRoleBinding",
        "Deployment",
        "Role",
        "RoleBinding",
        "Service",
        "ServiceAccount",
    ];
    let suffix = |kind: &str| if kind == "Service" { "-metrics" } else { "" };
    let wanted: Vec<String> = kinds
        .iter()
        .map(|kind| format!("{kind} meshwright-operator{}", suffix(kind)))
        .collect();
    assert_eq!(default.names(), wanted);
    assert_eq!(default.one("Deployment", "operator")["spec"]["replicas"], 2);
    assert!(
        default
            .args("operator")
            .contains(&"--leader-elect=true".to_owned())
    );
    assert_eq!(default.args("operator")[0], "operator");
}

async fn secure_metrics_bring_the_right_to_review_tokens_and_a_monitor_that_sends_one() {
    let reviews = |rendering: &Rendering, component: &str| {
        let rules = rendering.one("ClusterRole", component)["rules"]
            .as_array()
            .unwrap()
            .clone();
        rules
            .iter()
            .filter(|rule| {
                rule["resources"][0]
                    .as_str()
                    .is_some_and(|resource| resource.ends_with("reviews"))
            })
            .count()
    };
    let values = |secure: bool| json!({ "metricsSecure": secure, "serviceMonitor": { "enabled": true }, "provider": { "enabled": true } });
    let (plain, secure) = (Rendering::of(&values(false)), Rendering::of(&values(true)));
    for component in ["operator", "provider"] {
        assert_eq!(
            (reviews(&plain, component), reviews(&secure, component)),
            (0, 2)
        );
        assert!(
            secure
                .args(component)
                .contains(&"--metrics-secure=true".to_owned())
        );
        let endpoint = |rendering: &Rendering| {
            rendering.one("ServiceMonitor", component)["spec"]["endpoints"][0].clone()
        };
        assert!(
            endpoint(&plain)["scheme"].is_null() && endpoint(&plain)["bearerTokenFile"].is_null()
        );
        assert_eq!(endpoint(&secure)["scheme"], "https");
        assert!(endpoint(&secure)["bearerTokenFile"].is_string());
    }
}

async fn the_provider_on_a_hub_has_rights_there() {
    let hub = Rendering::of(&hub());
    assert!(
        hub.names()
            .iter()
            .all(|name| name.contains("meshwright-provider")),
        "{:?}",
        hub.names()
    );
    assert_eq!(hub.all("ClusterRole").count(), 1);
    assert_eq!(
        hub.args("provider")[..4],
        [
            "provider",
            "--hub",
            "--mgmt-namespace=here",
            "--node-id=$(POD_NAME)"
        ]
    );
    assert_eq!(hub.pod("provider")["automountServiceAccountToken"], true);

    // A hub in another cluster is accessed with a kubeconfig only.
    let provider = json!({ "enabled": true, "mgmtKubeconfig": { "secretName": "hub" } });
    let elsewhere =
        Rendering::of(&json!({ "operator": { "enabled": false }, "provider": provider }));
    assert_eq!(
        elsewhere.all("ClusterRole").count() + elsewhere.all("Role").count(),
        0
    );
    assert_eq!(
        elsewhere.pod("provider")["automountServiceAccountToken"],
        false
    );
    let arguments = [
        "provider",
        "--hub",
        "--mgmt-kubeconfig=/etc/meshwright/mgmt/kubeconfig",
        "--mgmt-namespace=default",
    ];
    assert_eq!(elsewhere.args("provider")[..4], arguments);
}

async fn the_provider_of_kcp_has_no_rights_here_and_reads_its_kubeconfigs_from_secrets() {
    let kcp = Rendering::of(&kcp());
    assert_eq!(
        kcp.names(),
        [
            "Deployment meshwright-provider",
            "Service meshwright-provider-metrics",
            "ServiceAccount meshwright-provider"
        ]
    );
    let pod = kcp.pod("provider");
    assert_eq!(pod["automountServiceAccountToken"], false);
    let arguments = kcp.args("provider");
    assert!(!arguments.contains(&"--hub".to_owned()), "{arguments:?}");
    let mounts = kcp.container("provider")["volumeMounts"]
        .as_array()
        .unwrap();
    for (at, (folder, key)) in [("kcp", "kubeconfig"), ("mgmt", "value")]
        .into_iter()
        .enumerate()
    {
        assert!(
            arguments.contains(&format!(
                "--{folder}-kubeconfig=/etc/meshwright/{folder}/kubeconfig"
            )),
            "{arguments:?}"
        );
        assert_eq!(
            (&mounts[at]["mountPath"], &mounts[at]["readOnly"]),
            (&json!(format!("/etc/meshwright/{folder}")), &json!(true))
        );
        let volume = &pod["volumes"][at];
        assert_eq!(volume["name"], mounts[at]["name"]);
        let items = json!([{ "key": key, "path": "kubeconfig" }]);
        assert_eq!(
            volume["secret"],
            json!({ "secretName": folder, "defaultMode": 0o440, "items": items })
        );
    }
}

/// Rules of roles and subjects of bindings, by kind.
fn rights(objects: &[Value]) -> BTreeMap<String, Value> {
    let of = |object: &Value| {
        let account = json!([object["subjects"][0]["kind"], object["subjects"][0]["name"]]);
        match object["kind"].as_str().unwrap() {
            kind @ ("Role" | "ClusterRole") => Some((kind.to_owned(), object["rules"].clone())),
            kind @ ("RoleBinding" | "ClusterRoleBinding") => {
                Some((kind.to_owned(), json!([object["roleRef"], account])))
            }
            _ => None,
        }
    };
    objects.iter().filter_map(of).collect()
}

async fn roles_are_those_of_config_rbac() {
    for (values, file) in [(json!({}), "hub"), (hub(), "cilium-hub")] {
        let shipped =
            std::fs::read_to_string(root().join(format!("config/rbac/{file}.yaml"))).unwrap();
        let (chart, shipped) = (
            rights(&Rendering::of(&values).0),
            rights(&documents(&shipped)),
        );
        assert_eq!(chart.len(), 4);
        assert_eq!(chart, shipped, "{file}");
    }
    for account in [OPERATOR, HUB] {
        let binding = documents(account.roles)
            .into_iter()
            .find(|object| object["kind"] == "RoleBinding")
            .unwrap();
        assert_eq!(binding["subjects"][0]["namespace"], account.namespace);
    }
}

async fn rights_follow_the_values() {
    let operator =
        json!({ "namespaces": ["team-a", NAMESPACE], "kubeconfigSecrets": ["east", "west"] });
    let narrow = Rendering::of(
        &json!({ "applyCrds": false, "operator": operator, "provider": { "enabled": true } }),
    );
    let roles: Vec<String> = narrow
        .names()
        .into_iter()
        .filter(|name| name.starts_with("Role "))
        .collect();
    assert_eq!(
        roles,
        [
            "Role meshwright-operator",
            "Role meshwright-provider",
            "Role team-a/meshwright-operator"
        ]
    );
    assert!(
        narrow
            .args("operator")
            .contains(&format!("--namespace=team-a,{NAMESPACE}"))
    );
    for role in narrow.all("ClusterRole") {
        assert!(
            !role.to_string().contains("customresourcedefinitions"),
            "{role:#}"
        );
        assert!(
            role.to_string().contains("\"kube-system\""),
            "only those for CRDs go: {role:#}"
        );
    }
    for role in narrow
        .all("Role")
        .filter(|role| role["metadata"]["name"] == "meshwright-operator")
    {
        let rules = role["rules"].as_array().unwrap();
        let secrets: Vec<&Value> = rules
            .iter()
            .filter(|rule| texts(&rule["resources"]).contains(&"secrets".to_owned()))
            .collect();
        assert_eq!(secrets.len(), 1);
        assert_eq!(secrets[0]["resourceNames"], json!(["east", "west"]));
        let has_lease = rules
            .iter()
            .any(|rule| texts(&rule["resources"]).contains(&"leases".to_owned()));
        assert_eq!(
            has_lease,
            role["metadata"]["namespace"] == NAMESPACE,
            "the Lease is in the release's namespace"
        );
    }
    assert!(
        !Rendering::of(&json!({}))
            .args("operator")
            .iter()
            .any(|argument| argument.contains("namespace"))
    );
    // With other namespaces set, the operator must not read the Secrets of the release's namespace.
    let elsewhere = Rendering::of(&json!({ "operator": { "namespaces": ["team-a", "team-b"] } }));
    assert!(
        elsewhere
            .args("operator")
            .contains(&"--namespace=team-a,team-b".to_owned())
    );
    for role in elsewhere.all("Role") {
        let rules = role["rules"].as_array().unwrap();
        let reads = rules
            .iter()
            .any(|rule| texts(&rule["resources"]).contains(&"secrets".to_owned()));
        assert_eq!(
            reads,
            role["metadata"]["namespace"] != NAMESPACE,
            "{role:#}"
        );
    }
}

/// Checks the restricted Pod Security Standard, and more.
async fn pods_are_locked_down_whatever_is_set() {
    for (values, components) in [
        (everything(), &["operator", "provider"][..]),
        (kcp(), &["provider"]),
        (json!({}), &["operator"]),
    ] {
        let rendering = Rendering::of(&values);
        for component in components {
            let (pod, container) = (rendering.pod(component), rendering.container(component));
            assert_eq!(pod["containers"].as_array().unwrap().len(), 1);
            let context = json!({
                "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532, "seccompProfile": { "type": "RuntimeDefault" },
            });
            assert_eq!(pod["securityContext"], context);
            let own = json!({ "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": { "drop": ["ALL"] } });
            assert_eq!(container["securityContext"], own);
            for field in ["hostNetwork", "hostPID", "hostIPC"] {
                assert!(pod[field].is_null(), "{field}");
            }
            let account = rendering.one("ServiceAccount", component);
            assert_eq!(
                account["automountServiceAccountToken"], false,
                "the pod alone says who gets the token"
            );
            assert_eq!(pod["serviceAccountName"], account["metadata"]["name"]);
        }
    }
}

async fn values_reach_the_pod() {
    let tolerations = json!([{ "key": "dedicated", "operator": "Exists" }]);
    let affinity = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [] } } });
    let resources = json!({ "limits": { "cpu": 1, "memory": "1Gi" }, "requests": { "cpu": "20m", "memory": "1Gi" } });
    let rendering = Rendering::of(&json!({
        "image": { "repository": "registry.example/net/meshwright", "tag": "sha-1", "pullPolicy": "Always" },
        "imagePullSecrets": [{ "name": "pull" }], "replicaCount": 1, "leaderElect": false, "resources": resources,
        "nodeSelector": { "kubernetes.io/os": "linux" }, "tolerations": tolerations, "affinity": affinity,
        "priorityClassName": "system-cluster-critical", "podAnnotations": { "a": "b" },
        "serviceAccount": { "annotations": { "c": "d" } }, "provider": { "enabled": true },
    }));
    for component in ["operator", "provider"] {
        let deployment = rendering.one("Deployment", component);
        let (pod, container) = (rendering.pod(component), rendering.container(component));
        assert_eq!(deployment["spec"]["replicas"], 1);
        assert_eq!(
            deployment["spec"]["template"]["metadata"]["annotations"],
            json!({ "a": "b" })
        );
        assert_eq!(
            (&container["image"], &container["imagePullPolicy"]),
            (
                &json!("registry.example/net/meshwright:sha-1"),
                &json!("Always")
            )
        );
        assert_eq!(container["resources"], resources);
        assert_eq!(pod["imagePullSecrets"], json!([{ "name": "pull" }]));
        assert_eq!(pod["nodeSelector"], json!({ "kubernetes.io/os": "linux" }));
        assert_eq!(
            (&pod["tolerations"], &pod["affinity"]),
            (&tolerations, &affinity)
        );
        assert_eq!(pod["priorityClassName"], "system-cluster-critical");
        assert!(
            rendering
                .args(component)
                .contains(&"--leader-elect=false".to_owned())
        );
        let (selector, labels) = (
            &deployment["spec"]["selector"]["matchLabels"],
            &deployment["spec"]["template"]["metadata"]["labels"],
        );
        assert!(
            selector
                .as_object()
                .unwrap()
                .iter()
                .all(|(key, value)| labels[key] == *value),
            "{selector} {labels}"
        );
        assert_eq!(selector["app.kubernetes.io/component"], component);
    }
    assert_eq!(
        rendering.one("ServiceAccount", "operator")["metadata"]["annotations"],
        json!({ "c": "d" })
    );
    assert!(rendering.one("ServiceAccount", "provider")["metadata"]["annotations"].is_null());
}

async fn probes_and_ports_follow_the_addresses() {
    let rendering = Rendering::of(
        &json!({ "metricsBindAddress": "[::]:9090", "healthProbeBindAddress": "0.0.0.0:9091" }),
    );
    let container = rendering.container("operator");
    let ports = json!([{ "name": "metrics", "containerPort": 9090 }, { "name": "health", "containerPort": 9091 }]);
    assert_eq!(container["ports"], ports);
    assert_eq!(
        container["livenessProbe"]["httpGet"],
        json!({ "path": "/healthz", "port": "health" })
    );
    assert_eq!(
        container["readinessProbe"]["httpGet"],
        json!({ "path": "/readyz", "port": "health" })
    );
    assert_eq!(
        rendering.all("Service").next().unwrap()["spec"]["ports"][0]["port"],
        9090
    );

    let nowhere =
        Rendering::of(&json!({ "metricsBindAddress": "0", "healthProbeBindAddress": "0" }));
    let container = nowhere.container("operator");
    assert!(
        container["ports"].is_null()
            && container["livenessProbe"].is_null()
            && container["readinessProbe"].is_null(),
        "{container:#}"
    );
    assert_eq!(nowhere.all("Service").count(), 0);
}

async fn extras_are_there_when_asked_for() {
    let rendering = Rendering::of(&everything());
    for component in ["operator", "provider"] {
        let labels = &rendering.one("Deployment", component)["spec"]["selector"]["matchLabels"];
        let monitor = &rendering.one("ServiceMonitor", component)["spec"];
        assert_eq!(monitor["selector"]["matchLabels"], *labels);
        assert_eq!(
            (
                &monitor["endpoints"][0]["port"],
                &monitor["endpoints"][0]["interval"]
            ),
            (&json!("metrics"), &json!("30s"))
        );
        let policy = &rendering.one("NetworkPolicy", component)["spec"];
        assert_eq!(policy["podSelector"]["matchLabels"], *labels);
        let ingress = json!([{ "ports": [{ "port": 8081 }] }, { "ports": [{ "port": 8080 }], "from": [{ "namespaceSelector": {} }] }]);
        assert_eq!(
            (&policy["policyTypes"], &policy["ingress"]),
            (&json!(["Ingress"]), &ingress)
        );
        let budget = &rendering.one("PodDisruptionBudget", component)["spec"];
        assert_eq!(
            (
                &budget["maxUnavailable"],
                &budget["selector"]["matchLabels"]
            ),
            (&json!(1), labels)
        );
        let service = rendering
            .all("Service")
            .find(|service| service["spec"]["selector"] == *labels)
            .unwrap();
        assert!(
            labels
                .as_object()
                .unwrap()
                .iter()
                .all(|(key, value)| service["metadata"]["labels"][key] == *value)
        );
    }
    let closed = Rendering::of(&json!({ "networkPolicy": { "enabled": true } }));
    assert_eq!(
        closed.one("NetworkPolicy", "operator")["spec"]["ingress"],
        json!([{ "ports": [{ "port": 8081 }] }])
    );
    let labelled = json!({ "serviceMonitor": { "enabled": true, "labels": { "release": "prometheus" } },
        "prometheusRule": { "enabled": true, "labels": { "release": "prometheus" } } });
    let labelled = Rendering::of(&labelled);
    for kind in ["ServiceMonitor", "PrometheusRule"] {
        assert_eq!(
            labelled.one(kind, "operator")["metadata"]["labels"]["release"],
            "prometheus"
        );
    }
}

/// Names of all metrics that a process of this component can serve.
fn served(component: &str) -> BTreeSet<String> {
    let metrics = if component == "operator" {
        Metrics::kilo()
    } else {
        Metrics::cilium()
    };
    let (cluster, mesh) = (
        ClusterLabels {
            cluster: "a".into(),
            secret: "n/a".into(),
        },
        MeshLabels {
            namespace: "n".into(),
            mesh: "m".into(),
        },
    );
    metrics.reachable.get_or_create(&cluster).set(1);
    metrics.ready.get_or_create(&mesh).set(1);
    metrics.skipped.get_or_create(&mesh).set(1);
    let object = ObjectLabels {
        kind: "GlobalService",
        workspace: String::new(),
        namespace: "n".into(),
        name: "o".into(),
    };
    metrics.object_ready.get_or_create(&object).set(1);
    metrics.version_skew.get_or_create(&object).set(1);
    metrics
        .certificates
        .get_or_create(&CertificateLabels {
            cluster: cluster.clone(),
            certificate: "server",
        })
        .set(1);
    metrics
        .endpoint_up
        .get_or_create(&EndpointLabels {
            url: "https://kcp.example".into(),
        })
        .set(1);
    metrics
        .failures
        .get_or_create(&FailureLabels {
            cluster,
            category: "unreachable",
        })
        .inc();
    metrics
        .text()
        .lines()
        .filter_map(|line| line.split(['{', ' ']).next().map(str::to_owned))
        .collect()
}

async fn alerts_are_on_metrics_that_are_served() {
    let rendering = Rendering::of(&everything());
    let name = Regex::new(r"meshwright_[a-z_]+").unwrap();
    for component in ["operator", "provider"] {
        let served = served(component);
        let service = format!("job=\"meshwright-{component}-metrics\"");
        let rules = rendering.one("PrometheusRule", component)["spec"]["groups"][0]["rules"]
            .as_array()
            .unwrap();
        assert!(rules.len() >= 5);
        for rule in rules {
            let expression = rule["expr"].as_str().unwrap();
            let metrics: Vec<&str> = name
                .find_iter(expression)
                .map(|found| found.as_str())
                .collect();
            assert!(
                !metrics.is_empty() && metrics.iter().all(|metric| served.contains(*metric)),
                "{expression}"
            );
            assert!(
                expression.contains(&format!("{{{service}}}")),
                "{expression}"
            );
            assert!(
                rule["annotations"]["summary"]
                    .as_str()
                    .is_some_and(|summary| !summary.is_empty()),
                "{rule}"
            );
        }
    }
}

async fn accounts_can_be_given() {
    let given = json!({ "create": false, "name": "mine" });
    let rendering = Rendering::of(
        &json!({ "serviceAccount": given, "provider": { "enabled": true, "serviceAccount": given } }),
    );
    assert_eq!(rendering.all("ServiceAccount").count(), 0);
    let bindings: Vec<&Value> = rendering
        .0
        .iter()
        .filter(|object| object["subjects"].is_array())
        .collect();
    assert_eq!(bindings.len(), 4);
    assert!(
        bindings
            .iter()
            .all(|binding| binding["subjects"][0]["name"] == "mine"),
        "{bindings:#?}"
    );
    assert_eq!(rendering.pod("operator")["serviceAccountName"], "mine");
    let named = Rendering::of(&json!({ "serviceAccount": { "name": "other" } }));
    assert_eq!(
        named.all("ServiceAccount").next().unwrap()["metadata"]["name"],
        "other"
    );
}

async fn names_fit_and_differ_by_release() {
    let helm = Helm::locate().unwrap();
    let long = "a".repeat(53);
    for (release, name) in [("net", "net-meshwright-operator"), (&long, "a")] {
        let objects = documents(
            &helm
                .on_chart(&["template", release], NAMESPACE, &everything())
                .unwrap(),
        );
        for object in &objects {
            let found = object["metadata"]["name"].as_str().unwrap();
            assert!(
                found.len() <= 63 && found.starts_with(&name[..1]),
                "{found}"
            );
        }
        assert!(objects.iter().any(|object| {
            object["metadata"]["name"]
                .as_str()
                .unwrap()
                .starts_with(name)
        }));
    }
}

async fn the_plain_manifests_are_up_to_date() {
    for (path, content) in Helm::locate().unwrap().plain_manifests() {
        let stored = std::fs::read_to_string(root().join(path)).unwrap_or_default();
        assert!(
            stored == content,
            "{path} is not what the chart renders: run `make generate` and commit the result"
        );
    }
}
