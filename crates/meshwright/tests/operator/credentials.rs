//! Secrets that are created, changed, broken and deleted, and kubeconfigs that are rejected.

use std::time::Duration;

use mw_testbed::proxy::Match;
use serde_json::{Value, json};

use crate::access::{REMOTE_ACCOUNT, REMOTE_NAMESPACE};
use crate::fleet::Fleet;
use crate::look::{none, until};
use crate::trials::scenarios;
use mw_sim::kilo::NAMESPACE;

scenarios![
    a_rotated_secret_is_used_without_a_restart,
    a_deleted_or_broken_secret_costs_one_cluster_and_heals,
    credentials_that_do_not_work_leave_the_old_ones_in_use,
    every_key_of_a_secret_is_tried_and_a_named_one_is_taken,
    an_entry_that_names_another_secret_is_followed,
    a_secret_that_leads_to_another_member_costs_no_peer,
    an_exec_kubeconfig_is_refused,
    an_auth_provider_kubeconfig_is_refused,
    a_kubeconfig_with_a_ca_file_is_refused,
    a_kubeconfig_with_a_token_file_is_refused,
    a_kubeconfig_with_a_client_key_file_is_refused,
    a_kubeconfig_with_a_password_is_refused,
    a_kubeconfig_without_tls_is_refused,
    a_kubeconfig_of_a_link_local_server_is_refused,
    a_kubeconfig_of_a_link_local_server_behind_nat64_is_refused,
    a_kubeconfig_of_an_oddly_spelt_server_is_refused,
    inside_a_cluster_a_loopback_server_is_refused_unless_allowed,
    a_kubeconfig_that_checks_no_certificate_is_refused,
    a_kubeconfig_with_a_proxy_is_refused,
    a_kubeconfig_that_impersonates_is_refused,
    a_refused_kubeconfig_can_be_allowed,
];

fn secret_path(site: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/secrets/{site}-kubeconfig")
}

async fn rewrite(fleet: &Fleet, site: &str, kubeconfig: &str) {
    fleet
        .write_secret("hub", NAMESPACE, &format!("{site}-kubeconfig"), kubeconfig)
        .await;
}

async fn a_rotated_secret_is_used_without_a_restart() {
    let mut fleet = Fleet::three().build().await;
    let mut operator = fleet.operator(&[]).await;
    fleet.converged().await;
    let old = fleet.member_kubeconfig("east");
    let new = fleet
        .cluster("east")
        .rotate_token(REMOTE_NAMESPACE, REMOTE_ACCOUNT)
        .await
        .unwrap();
    fleet.set_member_token("east", new);
    rewrite(&fleet, "east", &fleet.member_kubeconfig("east")).await;
    let token = old.split("token: ").nth(1).unwrap().lines().next().unwrap();
    let east = fleet.cluster("east");
    until("the old token is dead", || async {
        let code = east
            .request_as(token, "GET", "/api/v1/nodes", None)
            .await
            .map_err(|error| error.to_string())?
            .code;
        if code == 401 {
            Ok(())
        } else {
            Err(format!("the old token gets {code}"))
        }
    })
    .await;
    fleet
        .annotate("east", "n1", "force-endpoint", Some("198.51.100.1:51820"))
        .await;
    fleet
        .annotate("hub", "n1", "force-endpoint", Some("198.51.100.2:51820"))
        .await;
    fleet.converged().await;
    assert_eq!(operator.exit_code(), None);
    fleet.finish().await;
}

async fn a_deleted_or_broken_secret_costs_one_cluster_and_heals() {
    let mut fleet = Fleet::three().build().await;
    fleet
        .cluster("hub")
        .delete(&secret_path("east"))
        .await
        .unwrap();
    let _operator = fleet.operator(&[]).await;
    fleet.unreachable("east", "secret").await;
    let found = fleet
        .condition("Ready", "False", "ClusterUnreachable")
        .await;
    assert!(
        found["message"].as_str().unwrap().contains("east"),
        "{found}"
    );
    rewrite(&fleet, "east", &fleet.member_kubeconfig("east")).await;
    fleet.converged().await;

    // From here on no known state of east may be lost.
    let mark = fleet.mark();
    fleet
        .cluster("hub")
        .delete(&secret_path("east"))
        .await
        .unwrap();
    fleet.unreachable("east", "secret").await;
    fleet
        .annotate("hub", "n2", "force-endpoint", Some("198.51.100.9:51820"))
        .await;
    fleet.holds(&["west"]).await;
    rewrite(&fleet, "east", "users: [pa55word, {").await;
    let status = fleet.unreachable("east", "parse").await;
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("east-kubeconfig") && !message.contains("pa55word"),
        "{message}"
    );
    rewrite(&fleet, "east", &fleet.member_kubeconfig("east")).await;
    fleet.converged().await;
    let deleted: Vec<_> = fleet
        .peer_writes(&mark)
        .into_iter()
        .filter(|(_, call)| call.verb == "delete")
        .collect();
    assert!(deleted.is_empty(), "{deleted:?}");
    fleet.finish().await;
}

async fn credentials_that_do_not_work_leave_the_old_ones_in_use() {
    let mut fleet = Fleet::three().build().await;
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    let east = fleet.cluster("east");
    rewrite(&fleet, "east", &east.kubeconfig(east.url(), "not-a-token")).await;
    let says_so = |status: &Value| {
        status["reachable"] == true
            && status["message"]
                .as_str()
                .is_some_and(|text| !text.is_empty())
    };
    fleet.cluster_status("east", says_so).await;
    fleet
        .annotate("hub", "n1", "force-endpoint", Some("198.51.100.5:51820"))
        .await;
    fleet.holds(&["hub", "east", "west"]).await;
    rewrite(&fleet, "east", &fleet.member_kubeconfig("east")).await;
    fleet
        .cluster_status("east", |status| {
            status["message"].as_str().unwrap_or_default().is_empty()
        })
        .await;
    fleet.converged().await;
    fleet.finish().await;
}

async fn every_key_of_a_secret_is_tried_and_a_named_one_is_taken() {
    let mut fleet = Fleet::three().build().await;
    for (site, key) in [("east", "value"), ("west", "mine")] {
        fleet
            .cluster("hub")
            .delete(&secret_path(site))
            .await
            .unwrap();
        let mut data = json!({ "admin.conf": "not this one" });
        data[key] = json!(fleet.member_kubeconfig(site));
        let metadata = json!({ "name": format!("{site}-kubeconfig"), "namespace": NAMESPACE });
        fleet
            .cluster("hub")
            .create(&json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data }))
            .await
            .unwrap();
    }
    let mut spec = fleet.world.meshes[0].spec();
    spec["clusters"][2]["kubeconfigSecretRef"]["key"] = json!("mine");
    fleet
        .cluster("hub")
        .merge_patch(&fleet.world.meshes[0].path(), &json!({ "spec": spec }))
        .await
        .unwrap();
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    fleet.finish().await;
}

async fn an_entry_that_names_another_secret_is_followed() {
    let mut fleet = Fleet::three().build().await;
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    fleet
        .write_secret(
            "hub",
            NAMESPACE,
            "renamed",
            &fleet.member_kubeconfig("east"),
        )
        .await;
    let mut spec = fleet.world.meshes[0].spec();
    spec["clusters"][1]["kubeconfigSecretRef"]["name"] = json!("renamed");
    let mark = fleet.mark();
    fleet
        .cluster("hub")
        .merge_patch(&fleet.world.meshes[0].path(), &json!({ "spec": spec }))
        .await
        .unwrap();
    fleet.converged().await;
    fleet
        .cluster("hub")
        .delete(&secret_path("east"))
        .await
        .unwrap();
    fleet
        .annotate("hub", "n1", "force-endpoint", Some("198.51.100.7:51820"))
        .await;
    fleet.converged().await;
    let writes = fleet.peer_writes(&mark);
    assert!(
        writes.len() == 2 && writes.iter().all(|(_, call)| call.verb == "patch"),
        "{writes:?}"
    );
    fleet.finish().await;
}

async fn a_secret_that_leads_to_another_member_costs_no_peer() {
    let mut fleet = Fleet::three().build().await;
    let _operator = fleet.operator(&[]).await;
    fleet.converged().await;
    let mark = fleet.mark();
    rewrite(&fleet, "east", &fleet.member_kubeconfig("west")).await;
    fleet.condition("Ready", "False", "").await;
    fleet
        .annotate("hub", "n1", "force-endpoint", Some("198.51.100.8:51820"))
        .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    rewrite(&fleet, "east", &fleet.member_kubeconfig("east")).await;
    fleet.converged().await;
    let more = fleet
        .peer_writes(&mark)
        .into_iter()
        .filter(|(_, call)| call.verb != "patch" || call.name != "mesh--hub--n1");
    none(&more.collect::<Vec<_>>(), "only one Peer changed");
    fleet.finish().await;
}

/// Checks that such a kubeconfig is rejected with a reason, that nothing is sent to its server, and
/// that the other clusters are not affected.
async fn refused(edit: impl Fn(&str) -> String, words: &str) {
    let mut fleet = Fleet::three().nodes(1).proxied(&["east"]).build().await;
    let kubeconfig = edit(&fleet.member_kubeconfig("east"));
    rewrite(&fleet, "east", &kubeconfig).await;
    let _operator = fleet.operator(&[]).await;
    let status = fleet.unreachable("east", words).await;
    let token = kubeconfig
        .split("token: ")
        .nth(1)
        .and_then(|rest| rest.lines().next())
        .unwrap_or("no token");
    assert!(!status.to_string().contains(token), "{status}");
    assert_eq!(
        fleet
            .condition("Ready", "False", "ClusterUnreachable")
            .await["status"],
        "False"
    );
    until("hub and west are connected", || async {
        let found = fleet.peers("west").await?;
        if found.contains_key("mesh--hub--n1") {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;
    assert_eq!(fleet.proxy("east").count(&Match::all()), 0);
    fleet.finish().await;
}

/// Replaces the user's token by other lines.
fn user(lines: &str) -> impl Fn(&str) -> String {
    move |kubeconfig| {
        let token = kubeconfig
            .lines()
            .find(|line| line.trim().starts_with("token:"))
            .unwrap();
        kubeconfig.replace(token, &format!("    {lines}"))
    }
}

/// Adds a line to the cluster entry.
fn server(line: &'static str) -> impl Fn(&str) -> String {
    move |kubeconfig| kubeconfig.replace("  cluster:\n", &format!("  cluster:\n    {line}\n"))
}

async fn an_exec_kubeconfig_is_refused() {
    refused(user("exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/true, interactiveMode: Never}"), "exec").await;
}

async fn an_auth_provider_kubeconfig_is_refused() {
    refused(user("auth-provider: {name: gcp}"), "auth-provider").await;
}

async fn a_kubeconfig_with_a_ca_file_is_refused() {
    let edit = |kubeconfig: &str| {
        let line = kubeconfig
            .lines()
            .find(|line| line.contains("certificate-authority-data"))
            .unwrap();
        kubeconfig.replace(line, "    certificate-authority: /etc/hostname")
    };
    refused(edit, "file").await;
}

async fn a_kubeconfig_with_a_token_file_is_refused() {
    refused(user("tokenFile: /etc/hostname"), "file").await;
}

async fn a_kubeconfig_with_a_client_key_file_is_refused() {
    refused(
        user("client-certificate: /etc/hostname\n    client-key: /etc/hostname"),
        "file",
    )
    .await;
}

async fn a_kubeconfig_with_a_password_is_refused() {
    refused(user("username: admin\n    password: hunter2"), "password").await;
}

async fn a_kubeconfig_without_tls_is_refused() {
    refused(
        |kubeconfig| kubeconfig.replace("https://", "http://"),
        "https",
    )
    .await;
}

async fn a_kubeconfig_of_a_link_local_server_is_refused() {
    refused(
        |kubeconfig| kubeconfig.replace("https://127.0.0.1", "https://169.254.169.254"),
        "link-local",
    )
    .await;
}

async fn a_kubeconfig_of_a_link_local_server_behind_nat64_is_refused() {
    refused(
        |kubeconfig| kubeconfig.replace("https://127.0.0.1", "https://[64:ff9b::a9fe:a9fe]"),
        "link-local",
    )
    .await;
}

async fn a_kubeconfig_of_an_oddly_spelt_server_is_refused() {
    for spelt in ["169.254.0xa9fe", "0177.0.0.1", "2130706433"] {
        let edit =
            |kubeconfig: &str| kubeconfig.replace("https://127.0.0.1", &format!("https://{spelt}"));
        refused(edit, "neither an IP address nor a DNS name").await;
    }
}

/// All test servers are on loopback, also the hub's, which is allowed since the operator's own
/// configuration names it.
async fn inside_a_cluster_a_loopback_server_is_refused_unless_allowed() {
    let mut fleet = Fleet::three().build().await;
    let mut operator = fleet.operator_inside(&[]).await;
    fleet.unreachable("east", "127.0.0.1 is a loopback address; if this is intended, allow it with --allow-address 127.0.0.1/32").await;
    operator.terminate().await;
    let _operator = fleet
        .operator_inside(&["--allow-address", "127.0.0.0/8"])
        .await;
    fleet.converged().await;
    fleet.finish().await;
}

async fn a_kubeconfig_that_checks_no_certificate_is_refused() {
    refused(
        server("insecure-skip-tls-verify: true"),
        "insecure-skip-tls-verify",
    )
    .await;
}

async fn a_kubeconfig_with_a_proxy_is_refused() {
    refused(server("proxy-url: http://127.0.0.1:1"), "proxy-url").await;
}

async fn a_kubeconfig_that_impersonates_is_refused() {
    let edit =
        |kubeconfig: &str| kubeconfig.replace("  user:\n", "  user:\n    as: system:admin\n");
    refused(edit, "impersonat").await;
}

async fn a_refused_kubeconfig_can_be_allowed() {
    let mut fleet = Fleet::three().build().await;
    let kubeconfig = fleet.member_kubeconfig("east");
    let ca = kubeconfig
        .lines()
        .find(|line| line.contains("certificate-authority-data"))
        .unwrap();
    rewrite(
        &fleet,
        "east",
        &kubeconfig.replace(ca, "    insecure-skip-tls-verify: true"),
    )
    .await;
    let _operator = fleet
        .operator(&["--kubeconfig-allow", "insecure-skip-tls-verify"])
        .await;
    fleet.converged().await;
    fleet.finish().await;
}
