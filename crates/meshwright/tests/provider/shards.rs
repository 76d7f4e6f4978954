//! kcp on several shards: an endpoint URL that never answers, a workspace that moves, and an
//! exhausted quota.

use std::time::Duration;

use serde_json::json;

use crate::ground::{BINDINGS, Ground, SITES};
use crate::process::Operator;
use crate::tenants::{self, EXPORT};
use crate::trials::scenarios;
use crate::wait::until;
use crate::workspaces::refs;

scenarios![
    what_moves_to_another_shard_is_not_gone,
    a_provider_that_starts_during_a_move_removes_nothing,
    a_shard_that_never_answers_holds_up_its_own_tenants_alone
];

/// Longer than the provider needs to list everything twice.
const AWAY: Duration = Duration::from_secs(8);

/// Two tenants on the first shard and one on the second, all connected. The first two share a
/// cluster.
async fn settled() -> (Ground, Operator) {
    let mut kcp = tenants::start(&["tenant-a", "tenant-b"]).await;
    kcp.add_shard(&["tenant-d"]).await.unwrap();
    let mut ground = Ground::beside(kcp).await;
    ground.manage_all().await;
    for (tenant, sites) in [
        ("tenant-a", ["east", "north"]),
        ("tenant-b", ["east", "west"]),
        ("tenant-d", ["north", "west"]),
    ] {
        ground.bind_tenant(tenant, "Accepted").await;
        ground.give_clusters(tenant, &SITES, &json!({})).await;
        ground.tenant(tenant).bind("mesh", &sites, &json!({})).await;
    }
    let provider = ground.provider(&[]).await;
    for tenant in ["tenant-a", "tenant-b", "tenant-d"] {
        ground.tenant(tenant).connected("mesh").await;
    }
    (ground, provider)
}

pub(crate) async fn metric_is(
    provider: &Operator,
    name: &str,
    labels: &[(&str, &str)],
    wanted: f64,
) {
    until(format!("{name} {labels:?} is {wanted}"), || async {
        let value = provider.metrics().await.sum(name, labels);
        if (value - wanted).abs() < 0.5 {
            Ok(())
        } else {
            Err(value.to_string())
        }
    })
    .await;
}

/// Waits until /readyz succeeds and its text starts with these words.
async fn is_ready(provider: &Operator, words: &str) {
    until(format!("/readyz says {words}"), || async {
        let (code, answer) = provider.fetch("health", "/readyz").await;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        if code == 200 && body.starts_with(words) {
            Ok(())
        } else {
            Err(answer)
        }
    })
    .await;
}

async fn take_down(ground: &Ground, tenants: &[&str]) {
    for tenant in tenants {
        ground.tenant(tenant).remove(BINDINGS, "mesh").await;
    }
}

async fn what_moves_to_another_shard_is_not_gone() {
    let (mut ground, provider) = settled().await;
    let before = ground.written(&["east", "north"]).await;
    let moving = async {
        ground
            .kcp
            .as_mut()
            .unwrap()
            .move_workspace("tenant-a", 1, AWAY)
            .await
            .unwrap();
    };
    let strays = metric_is(&provider, "meshwright_kcp_objects_astray", &[], 1.0);
    tokio::join!(moving, strays);
    metric_is(&provider, "meshwright_kcp_objects_astray", &[], 0.0).await;
    let home = ground.tenant("tenant-a");
    home.connected("mesh").await;
    assert_eq!(
        ground.written(&["east", "north"]).await,
        before,
        "a move is no reason to write"
    );
    // Changes are applied at its new place.
    home.patch(BINDINGS, "mesh", &refs(&SITES)).await;
    home.connected("mesh").await;
    ground.mesh(&SITES).await;

    // A tenant that unbinds is cleaned up, also on its new shard.
    ground.kcp().unbind("tenant-a", EXPORT).await.unwrap();
    ground.reads("east", &["west"]).await;
    a_quota_is_told_and_events_are_tried_again(&ground, &provider).await;
    take_down(&ground, &["tenant-b", "tenant-d"]).await;
    ground.finish(provider).await;
}

/// The new process does not know what the moving workspace wants in the clusters that it shares.
async fn a_provider_that_starts_during_a_move_removes_nothing() {
    let (mut ground, mut provider) = settled().await;
    provider.terminate().await;
    ground
        .kcp
        .as_mut()
        .unwrap()
        .take_away("tenant-a", 1)
        .await
        .unwrap();
    let before = ground.written(&["east"]).await;
    let provider = ground.provider(&[]).await;
    // It deletes what is known to be unwanted.
    take_down(&ground, &["tenant-d"]).await;
    ground.reads("west", &["east"]).await;
    ground.reads("north", &["east"]).await;
    assert_eq!(ground.written(&["east"]).await, before);
    ground
        .kcp
        .as_mut()
        .unwrap()
        .arrive("tenant-a", 1)
        .await
        .unwrap();
    ground.tenant("tenant-a").connected("mesh").await;
    assert_eq!(
        ground.written(&["east"]).await,
        before,
        "a move is no reason to write"
    );
    take_down(&ground, &["tenant-a", "tenant-b"]).await;
    ground.finish(provider).await;
}

async fn a_quota_is_told_and_events_are_tried_again(ground: &Ground, provider: &Operator) {
    let home = ground.tenant("tenant-b");
    ground.kcp().use_up_quota("tenant-b", &["events"]);
    home.patch(BINDINGS, "mesh", &refs(&["east", "nowhere"]))
        .await;
    home.says("mesh", "KubernetesCluster nowhere not found")
        .await;
    until("the refusal is counted", || async {
        let refused = provider
            .metrics()
            .await
            .sum("meshwright_failures_total", &[("category", "quota")]);
        if refused > 0.0 {
            Ok(())
        } else {
            Err(refused.to_string())
        }
    })
    .await;
    assert!(
        provider.log().contains("exceeded quota"),
        "the log says nothing"
    );
    ground.kcp().use_up_quota("tenant-b", &[]);
    until("the event is written after all", || async {
        let path = format!(
            "/apis/events.k8s.io/v1/namespaces/{}/events",
            home.namespace
        );
        let events = home.cluster.list(&path).await.unwrap();
        let notes: Vec<&str> = events
            .iter()
            .filter_map(|event| event["note"].as_str())
            .collect();
        match notes.iter().find(|note| note.contains("nowhere")) {
            Some(note) => {
                assert_eq!(
                    note.matches("cluster nowhere").count(),
                    1,
                    "its subject is told once: {note}"
                );
                Ok(())
            }
            None => Err(format!("{notes:?}")),
        }
    })
    .await;
    home.patch(BINDINGS, "mesh", &refs(&["east", "west"])).await;
    home.connected("mesh").await;
}

async fn a_shard_that_never_answers_holds_up_its_own_tenants_alone() {
    let (ground, provider) = settled().await;
    let silent = ground.kcp().endpoints(tenants::PROVIDER, EXPORT)[1].clone();
    let up = [("url", silent.as_str())];
    metric_is(&provider, "meshwright_kcp_endpoint_up", &up, 1.0).await;
    ground.kcp().hang_endpoint(1, true).await.unwrap();
    metric_is(&provider, "meshwright_kcp_endpoint_up", &up, 0.0).await;
    is_ready(&provider, &format!("degraded: {silent}: ")).await;
    let other = ground.tenant("tenant-d");
    other
        .patch(BINDINGS, "mesh", &refs(&["east", "west"]))
        .await;
    let home = ground.tenant("tenant-a");
    home.patch(BINDINGS, "mesh", &refs(&SITES)).await;
    home.connected("mesh").await;
    ground.reads("north", &["east", "west"]).await;
    ground.kcp().hang_endpoint(1, false).await.unwrap();
    metric_is(&provider, "meshwright_kcp_endpoint_up", &up, 1.0).await;
    is_ready(&provider, "ok").await;
    other.connected("mesh").await;
    take_down(&ground, &["tenant-a", "tenant-b", "tenant-d"]).await;
    ground.finish(provider).await;
}
