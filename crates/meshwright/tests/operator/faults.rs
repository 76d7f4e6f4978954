//! Clusters that hang, refuse connections, return errors and close connections.

use std::time::{Duration, Instant};

use mw_testbed::PEER_CRD;
use mw_testbed::proxy::{Effect, Fault, Match, Verb};
use serde_json::{Value, json};

use crate::access::{self, REMOTE, REMOTE_ACCOUNT, REMOTE_NAMESPACE};
use crate::bed::PEERS;
use crate::fleet::{FIVE, Fleet};
use crate::look::until;
use crate::rights::{documents, may};
use crate::trials::scenarios;

scenarios![
    a_hung_and_a_refusing_cluster_delay_nobody,
    every_unreachable_cluster_is_named_and_since_when,
    a_stopped_api_server_is_noticed_and_comes_back,
    a_missing_peer_crd_heals_by_itself,
    a_missing_permission_heals_by_itself,
    every_kind_of_failed_write_is_repeated_until_it_works,
    broken_watches_lose_nothing,
    the_hub_may_err_as_well,
    it_ends_in_time_whatever_hangs,
];

/// Time that a change of a node takes to reach two clusters. Uses one cluster after the other,
/// since each may change only so often.
async fn change(fleet: &mut Fleet, at: usize) -> Duration {
    let [source, targets @ ..] = [
        ["hub", "east", "west"],
        ["east", "west", "hub"],
        ["west", "hub", "east"],
    ][at % 3];
    let port = 20_000 + at;
    let start = Instant::now();
    fleet
        .annotate(
            source,
            "n1",
            "force-endpoint",
            Some(&format!("198.51.100.71:{port}")),
        )
        .await;
    for site in targets {
        loop {
            let peer = fleet
                .peer(site, &format!("mesh--{source}--n1"))
                .await
                .unwrap();
            if peer["spec"]["endpoint"]["port"] == port {
                break;
            }
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "{site} never heard of the change"
            );
        }
    }
    start.elapsed()
}

async fn median_of_changes(fleet: &mut Fleet, first: usize) -> Duration {
    let mut times = Vec::new();
    for at in first..first + 9 {
        times.push(change(fleet, at).await);
    }
    times.sort();
    times[times.len() / 2]
}

async fn a_hung_and_a_refusing_cluster_delay_nobody() {
    let mut fleet = Fleet::of(&FIVE).proxied(&["north", "south"]).build().await;
    let operator = fleet.operator(&[]).await;
    fleet.converged().await;
    let before = median_of_changes(&mut fleet, 0).await;
    let hang = fleet
        .proxy("north")
        .add(Fault::new(Match::all(), Effect::Hang));
    fleet.proxy("north").cut_watches(Match::all());
    fleet.proxy("south").refuse(true).await.unwrap();
    let during = median_of_changes(&mut fleet, 100).await;
    for site in ["north", "south"] {
        fleet.unreachable(site, "").await;
    }
    let settled = median_of_changes(&mut fleet, 200).await;
    eprintln!("a change takes {before:?}, while two clusters fail {during:?} and then {settled:?}");
    for slow in [during, settled] {
        assert!(slow <= before.mul_f64(1.5), "{slow:?} against {before:?}");
    }

    // They do not delay a start either.
    operator.kill();
    let start = Instant::now();
    let _operator = fleet.operator(&[]).await;
    change(&mut fleet, 300).await;
    assert!(
        start.elapsed() < Duration::from_secs(4),
        "the start took {:?}",
        start.elapsed()
    );
    fleet.proxy("north").remove(hang);
    fleet.proxy("south").refuse(false).await.unwrap();
    fleet.converged().await;
    fleet.finish().await;
}

async fn every_unreachable_cluster_is_named_and_since_when() {
    let mut fleet = Fleet::three().proxied(&["east", "west"]).build().await;
    let _operator = fleet.operator(&["--request-timeout", "2s"]).await;
    fleet.converged().await;
    fleet
        .proxy("east")
        .add(Fault::new(Match::all(), Effect::Hang));
    fleet.proxy("east").cut_watches(Match::all());
    fleet.proxy("west").refuse(true).await.unwrap();
    for site in ["east", "west"] {
        let status = fleet.unreachable(site, "").await;
        assert!(
            status["lastContact"].is_string() && status["message"].is_string(),
            "{status}"
        );
    }
    until("Ready names both", || async {
        let ready = crate::look::condition(&fleet.mesh().await, "Ready");
        let message = ready["message"].as_str().unwrap_or_default();
        let right = ready["reason"] == "ClusterUnreachable"
            && message.contains("east")
            && message.contains("west");
        if right {
            Ok(())
        } else {
            Err(ready.to_string())
        }
    })
    .await;
    fleet.finish().await;
}

/// Its connections stay open, so only the missing answers reveal it.
async fn a_stopped_api_server_is_noticed_and_comes_back() {
    let mut fleet = Fleet::three().build().await;
    let _operator = fleet.operator(&["--request-timeout", "2s"]).await;
    fleet.converged().await;
    let before = fleet.peers("west").await.unwrap();
    fleet.cluster("west").pause().unwrap();
    fleet
        .annotate("east", "n1", "force-endpoint", Some("198.51.100.77:51820"))
        .await;
    fleet.holds(&["hub", "east"]).await;
    fleet.unreachable("west", "").await;
    fleet
        .condition("Ready", "False", "ClusterUnreachable")
        .await;
    fleet.delete_node("east", "n2").await;
    fleet.holds(&["hub", "east"]).await;
    fleet.cluster("west").resume().unwrap();
    fleet.converged().await;
    assert_ne!(fleet.peers("west").await.unwrap(), before);
    fleet.finish().await;
}

async fn remove_peer_crd(fleet: &Fleet, site: &str) {
    let crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/peers.kilo.squat.ai";
    fleet.cluster(site).delete(crd).await.unwrap();
    until("the CRD is gone", || async {
        let answer = fleet
            .cluster(site)
            .request("GET", PEERS, None)
            .await
            .map_err(|error| error.to_string())?;
        if answer.code == 404 {
            Ok(())
        } else {
            Err(answer.code.to_string())
        }
    })
    .await;
}

async fn a_missing_peer_crd_heals_by_itself() {
    let mut fleet = Fleet::three().build().await;
    fleet.forget_foreign("east");
    remove_peer_crd(&fleet, "east").await;
    let _operator = fleet.operator(&[]).await;
    let says_so = |status: &Value| {
        status["message"]
            .as_str()
            .is_some_and(|text| text.contains("CRD"))
    };
    fleet.cluster_status("east", says_so).await;
    fleet.condition("Ready", "False", "").await;
    // Its nodes can be read, so its Peers elsewhere exist.
    fleet.holds(&["hub", "west"]).await;
    fleet.cluster("east").install_crd(PEER_CRD).await.unwrap();
    fleet.converged().await;
    // The same at run time: Kilo is removed and reinstalled.
    remove_peer_crd(&fleet, "east").await;
    fleet.cluster_status("east", says_so).await;
    fleet.holds(&["hub", "west"]).await;
    fleet.cluster("east").install_crd(PEER_CRD).await.unwrap();
    fleet.converged().await;
    fleet.finish().await;
}

async fn a_missing_permission_heals_by_itself() {
    let mut fleet = Fleet::three().build().await;
    fleet.expect_denials();
    let binding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/clustermesh-reader";
    let access = |verb: &str, group: &str, resource: &str| json!({ "verb": verb, "group": group, "resource": resource });
    fleet.cluster("east").delete(binding).await.unwrap();
    may(
        fleet.cluster("east"),
        REMOTE_NAMESPACE,
        REMOTE_ACCOUNT,
        access("list", "", "nodes"),
        false,
    )
    .await;
    let mark = fleet.mark();
    let operator = fleet.operator(&[]).await;
    let says = |text: &str| {
        text.to_lowercase().contains("forbidden")
            || text.contains("403")
            || text.contains("may not")
    };
    fleet
        .cluster_status("east", |status| {
            status["message"].as_str().is_some_and(says)
        })
        .await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let denied = fleet
        .calls(&mark)
        .iter()
        .filter(|(_, call)| call.denied)
        .count();
    assert!(denied < 40, "not an error loop, but {denied} attempts");
    access::remote_account(fleet.cluster("east")).await;
    fleet.converged().await;

    // Only the right to write is revoked, at run time.
    let role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/kilo-clustermesh-remote";
    let mut shipped = documents(REMOTE.roles)
        .into_iter()
        .find(|object| object["kind"] == "ClusterRole")
        .unwrap();
    shipped["rules"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .for_each(|rule| rule["verbs"] = json!(["list", "watch"]));
    fleet
        .cluster("east")
        .merge_patch(role, &json!({ "rules": shipped["rules"] }))
        .await
        .unwrap();
    may(
        fleet.cluster("east"),
        REMOTE_NAMESPACE,
        REMOTE_ACCOUNT,
        access("patch", "kilo.squat.ai", "peers"),
        false,
    )
    .await;
    fleet
        .annotate("hub", "n1", "force-endpoint", Some("198.51.100.72:51820"))
        .await;
    fleet.condition("Ready", "False", "").await;
    fleet.holds(&["west"]).await;
    access::remote_account(fleet.cluster("east")).await;
    fleet.converged().await;
    drop(operator);
    fleet.finish().await;
}

async fn every_kind_of_failed_write_is_repeated_until_it_works() {
    let mut fleet = Fleet::three().proxied(&["east", "west"]).build().await;
    let faults = [
        Effect::answer(409),
        Effect::answer(422),
        Effect::answer(429),
        Effect::answer(500),
        Effect::answer(503),
        Effect::DropBefore,
        Effect::DropAfter,
    ];
    let strike = |fleet: &Fleet, effect: &Effect| {
        for proxy in fleet.proxies() {
            proxy.clear();
            proxy.add(Fault::new(Match::writes().resource("peers"), effect.clone()).times(2));
        }
    };
    strike(&fleet, &Effect::DropAfter);
    let mut operator = fleet.operator(&[]).await;
    fleet.converged().await;
    for (at, effect) in faults.iter().enumerate() {
        strike(&fleet, effect);
        fleet
            .annotate(
                "hub",
                "n1",
                "force-endpoint",
                Some(&format!("198.51.100.73:{}", 3000 + at)),
            )
            .await;
        fleet.converged().await;
        strike(&fleet, effect);
        fleet.delete_node("hub", "n2").await;
        fleet.converged().await;
        strike(&fleet, effect);
        fleet.add_node("hub", mw_sim::kilo::Node::new(1, 2)).await;
        fleet.converged().await;
    }
    assert_eq!(operator.exit_code(), None);
    fleet.finish().await;
}

async fn broken_watches_lose_nothing() {
    let mut fleet = Fleet::three().proxied(&FIVE[..3]).build().await;
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    for (at, code) in [410, 500, 429, 410].into_iter().enumerate() {
        for proxy in fleet.proxies() {
            proxy.clear();
            proxy.add(Fault::new(Match::verb(Verb::Watch), Effect::answer(code)).times(2));
            proxy.cut_watches(Match::all());
        }
        fleet
            .annotate(
                "east",
                "n1",
                "force-endpoint",
                Some(&format!("198.51.100.74:{}", 4000 + at)),
            )
            .await;
        fleet
            .cluster("west")
            .delete(&format!("{PEERS}/mesh--east--n2"))
            .await
            .unwrap();
        fleet.converged().await;
    }
    // A Node deleted while the watch is down: its deletion is seen later, or the deletes are held.
    fleet.proxy("east").cut_watches(Match::all());
    fleet.delete_node("east", "n2").await;
    fleet.converged().await;
    fleet.finish().await;
}

async fn the_hub_may_err_as_well() {
    let mut fleet = Fleet::three().proxied(&["hub"]).build().await;
    let resources = [
        "clustermeshes",
        "clustermeshes/status",
        "events",
        "customresourcedefinitions",
        "namespaces",
        "secrets",
    ];
    for resource in resources {
        for effect in [Effect::answer(503), Effect::DropBefore] {
            fleet
                .proxy("hub")
                .add(Fault::new(Match::all().resource(resource), effect).times(1));
        }
    }
    let mut operator = fleet.operator(&[]).await;
    fleet.converged().await;
    for effect in [Effect::answer(409), Effect::answer(500), Effect::DropAfter] {
        fleet
            .proxy("hub")
            .add(Fault::new(Match::writes().resource("clustermeshes/status"), effect).times(1));
        // After a conflict the object is read again, on the hub like anywhere else.
        fleet
            .proxy("hub")
            .add(Fault::new(Match::writes().resource("peers"), Effect::answer(409)).times(1));
        fleet.mesh_model().entry("east").unwrap().keepalive += 10;
        fleet.update_mesh(0).await;
        fleet.converged().await;
    }
    assert_eq!(operator.exit_code(), None);
    fleet.finish().await;
}

async fn it_ends_in_time_whatever_hangs() {
    let mut fleet = Fleet::three().proxied(&["hub", "east"]).build().await;
    for (site, on) in [
        ("east", Match::all()),
        ("east", Match::writes()),
        ("hub", Match::all()),
        ("hub", Match::all().resource("leases")),
    ] {
        let mut operator = fleet.operator(&["--leader-elect"]).await;
        fleet.converged().await;
        fleet.proxy(site).add(Fault::new(on.clone(), Effect::Hang));
        fleet
            .annotate("west", "n1", "force-endpoint", Some("198.51.100.75:51820"))
            .await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (code, took) = operator.terminate().await;
        assert!(
            took < Duration::from_secs(5),
            "with {on:?} of {site} hanging it took {took:?}"
        );
        assert_eq!(code, 0, "with {on:?} of {site} hanging");
        fleet.proxy(site).clear();
        fleet
            .annotate("west", "n1", "force-endpoint", Some("198.51.100.76:51820"))
            .await;
    }
    fleet.finish().await;
}
