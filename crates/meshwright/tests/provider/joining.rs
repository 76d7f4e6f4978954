//! Connecting clusters with a single binding, from the first key to the last.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::ground::{BINDINGS, CONNECTIONS, Ground, INTENTS, POLICIES, SERVICES, SITES};
use crate::look::message;
use crate::process::Operator;
use crate::trials::scenarios;
use crate::wait::{condition, until};

scenarios![a_binding_joins_three_clusters_and_nothing_is_left_of_it];

async fn a_binding_joins_three_clusters_and_nothing_is_left_of_it() {
    let (mut ground, _) = Ground::alike().await;
    // The first write of each of these kinds to north meets a conflict.
    ground
        .outpace(
            "north",
            &[
                "secrets",
                "services",
                "ciliumnetworkpolicies",
                "ciliumclusterwidenetworkpolicies",
            ],
        )
        .await;
    let provider = ground.provider(&[]).await;
    ground.home().bind("mesh", &SITES, &json!({})).await;
    let binding = ground.home().connected("mesh").await;
    ground.mesh(&SITES).await;
    assert_rows(&binding);
    assert_measured(&provider).await;
    assert_keys(&ground).await;
    ground.assert_foreign().await;

    for site in SITES {
        ground
            .open_shop(site, "cart", json!({ "own": "yes" }))
            .await;
    }
    let selector = json!({ "namespace": "shop", "name": "cart" });
    ground
        .home()
        .declare(
            SERVICES,
            "cart",
            &json!({ "meshRef": { "name": "mesh" }, "selector": selector }),
        )
        .await;
    let exported = ground.home().phase(SERVICES, "cart", "Exported").await;
    assert_eq!(exported["status"]["exportedClusters"], json!(SITES));
    assert_eq!(
        exported["status"]["endpointSummary"][0],
        json!({ "clusterName": "east", "endpoints": 1, "ready": true })
    );
    for (from, to) in pairs() {
        ground.exported(from, "cart", to).await;
    }
    ground.home().remove(SERVICES, "cart").await;
    for site in SITES {
        let service = ground
            .cluster(site)
            .get("/api/v1/namespaces/shop/services/cart")
            .await
            .unwrap()
            .unwrap();
        assert_eq!(service["metadata"]["annotations"], json!({ "own": "yes" }));
    }

    what_is_owned_by_others_is_told(&ground).await;
    policies_come_and_go(&ground).await;
    a_deny_that_cilium_would_widen_is_not_written(&ground).await;
    ground.assert_foreign().await;
    ground.home().remove(BINDINGS, "mesh").await;
    for site in SITES {
        ground.reads(site, &[]).await;
    }
    until("nothing is told of what is gone", || async {
        let (_, metrics) = provider.fetch("metrics", "/metrics").await;
        let left: Vec<&str> = metrics
            .lines()
            .filter(|line| line.starts_with("meshwright_object_ready{"))
            .collect();
        if left.is_empty() {
            Ok(())
        } else {
            Err(left.join("; "))
        }
    })
    .await;
    ground.finish(provider).await;
}

async fn assert_measured(provider: &Operator) {
    let (_, served) = provider.fetch("metrics", "/metrics").await;
    assert!(
        served.contains("\nmeshwright_kcp_endpoints ")
            && !served.contains("meshwright_convergence"),
        "{served}"
    );
    let metrics = provider.metrics().await;
    let of = [
        ("kind", "ClusterMeshBinding"),
        ("namespace", "net"),
        ("name", "mesh"),
    ];
    assert!((metrics.sum("meshwright_object_ready", &of) - 1.0).abs() < f64::EPSILON);
    assert!(metrics.sum("meshwright_dials_total", &[("result", "read")]) >= 6.0);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs_f64();
    let ends = metrics.sum(
        "meshwright_certificate_expiry_timestamp_seconds",
        &[("certificate", "server")],
    );
    assert!(
        ends > 3.0 * now,
        "the certificates of three clusters end after {ends}"
    );
}

fn pairs() -> impl Iterator<Item = (&'static str, &'static str)> {
    SITES
        .into_iter()
        .flat_map(|from| SITES.into_iter().map(move |to| (from, to)))
        .filter(|(from, to)| from != to)
}

fn assert_rows(binding: &Value) {
    let rows = binding["status"]["meshStatus"].as_array().unwrap();
    let shown: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!([
                row["clusterName"],
                row["clusterId"],
                row["connected"],
                row["readyNodes"],
                row["totalNodes"]
            ])
        })
        .collect();
    assert_eq!(
        json!(shown),
        json!([
            ["east", 1, true, 1, 1],
            ["north", 2, true, 1, 1],
            ["west", 3, true, 1, 1]
        ])
    );
    assert_eq!(
        condition(binding, "MeshConnected")["message"],
        "Mesh established between 3 clusters"
    );
    assert_eq!(condition(binding, "Ready")["status"], "True");
}

/// With one CA, only the two files of each remote are needed.
async fn assert_keys(ground: &Ground) {
    for (reader, remote) in pairs() {
        let address = ground.cilium(remote).addresses()[0];
        let [local, far] = [
            ground.keys(reader, CONNECTIONS[0]).await,
            ground.keys(reader, CONNECTIONS[1]).await,
        ];
        assert!(
            far[remote].contains(&format!("https://{address}")),
            "{}",
            far[remote]
        );
        assert!(
            local[remote].contains("https://clustermesh-apiserver.kube-system.svc:2379"),
            "{}",
            local[remote]
        );
        assert!(
            !far.keys().any(|key| key.starts_with(&format!("{remote}."))),
            "{:?}",
            far.keys()
        );
    }
}

/// Applying an empty map owns it and everything below it.
async fn what_is_owned_by_others_is_told(ground: &Ground) {
    ground.open_shop("east", "bare", json!({})).await;
    let selector = json!({ "namespace": "shop", "name": "bare" });
    ground
        .home()
        .declare(
            SERVICES,
            "bare",
            &json!({ "meshRef": { "name": "mesh" }, "selector": selector }),
        )
        .await;
    let owned = "cluster east: writing failed: managed by another field manager (409): .metadata.annotations";
    ground
        .home()
        .status(SERVICES, "bare", |service| message(service).contains(owned))
        .await;
    ground.home().remove(SERVICES, "bare").await;
}

/// Both kinds of policies are written, repaired and deleted.
async fn policies_come_and_go(ground: &Ground) {
    let clusterwide = "/apis/cilium.io/v2/ciliumclusterwidenetworkpolicies";
    for (mode, policies) in [("Namespaced", POLICIES), ("Clusterwide", clusterwide)] {
        let spec = json!({
            "meshRef": { "name": "mesh" }, "action": "Allow", "policyMode": mode,
            "source": { "namespace": "web", "name": "front" }, "destination": { "namespace": "shop", "name": "cart" },
            "ports": [{ "protocol": "TCP", "port": 80 }],
        });
        ground.home().declare(INTENTS, "cart", &spec).await;
        let applied = ground.home().phase(INTENTS, "cart", "Applied").await;
        assert_eq!(applied["status"]["appliedClusters"], json!(SITES));
        let policy = ground
            .cluster("north")
            .list(policies)
            .await
            .unwrap()
            .remove(0);
        assert_eq!(
            policy["spec"]["ingress"][0]["fromEndpoints"]
                .as_array()
                .unwrap()
                .len(),
            3,
            "{policy:#}"
        );
        let path = format!(
            "{policies}/{}",
            policy["metadata"]["name"].as_str().unwrap()
        );
        ground
            .cluster("north")
            .merge_patch(&path, &json!({ "spec": { "ingress": null } }))
            .await
            .unwrap();
        until("the drift is repaired", || async {
            let found = ground
                .cluster("north")
                .get(&path)
                .await
                .unwrap()
                .unwrap_or_default();
            if found["spec"] == policy["spec"] {
                Ok(())
            } else {
                Err(found.to_string())
            }
        })
        .await;
        ground.home().remove(INTENTS, "cart").await;
        for site in SITES {
            assert!(
                ground
                    .cluster(site)
                    .list(policies)
                    .await
                    .unwrap()
                    .is_empty(),
                "a policy is left on {site}"
            );
        }
    }
}

/// Before 1.16, a policy that only denies also blocks everything else.
async fn a_deny_that_cilium_would_widen_is_not_written(ground: &Ground) {
    let spec = json!({
        "meshRef": { "name": "mesh" }, "action": "Deny",
        "source": { "namespace": "web" }, "destination": { "namespace": "shop", "name": "cart" },
    });
    ground.home().declare(INTENTS, "cut", &spec).await;
    let refused = ground
        .home()
        .status(INTENTS, "cut", |intent| {
            condition(intent, "Ready")["reason"] == "CiliumTooOld"
        })
        .await;
    assert_eq!(
        refused["status"]["appliedClusters"],
        json!([]),
        "{:#}",
        refused["status"]
    );
    for site in SITES {
        assert!(
            ground
                .cluster(site)
                .list(POLICIES)
                .await
                .unwrap()
                .is_empty(),
            "a policy on {site}"
        );
    }
    ground.home().remove(INTENTS, "cut").await;
}
