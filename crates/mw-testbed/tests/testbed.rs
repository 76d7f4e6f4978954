//! Clusters start, authenticate, authorize, pause and end.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test may fail loudly"
)]

mod common;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use common::{
    CONFIG_MAPS, QUIET, SOON, client, config_map, held, is_alive, rule, shared, wait_until_gone,
};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;
use mw_testbed::{Cluster, PEER_CRD, Testbed, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

const PEERS: &str = "/apis/kilo.squat.ai/v1alpha1/peers";

async fn code_as(
    cluster: &Cluster,
    token: &str,
    method: &str,
    path: &str,
    body: Option<&serde_json::Value>,
) -> u16 {
    cluster
        .request_as(token, method, path, body)
        .await
        .unwrap()
        .code
}

#[tokio::test]
async fn three_clusters_start_and_answer_and_share_nothing() {
    let start = Instant::now();
    let Some(bed) = Testbed::start_or_skip(&["one", "three", "two"]).await else {
        return;
    };
    eprintln!(
        "three clusters were ready after {:.1} s",
        start.elapsed().as_secs_f64()
    );
    for cluster in bed.clusters() {
        let version = client(&cluster.admin_kubeconfig())
            .await
            .apiserver_version()
            .await
            .unwrap();
        assert_eq!(
            (version.major.as_str(), version.minor.as_str()),
            ("1", "34")
        );
        for namespace in ["default", "kube-system"] {
            assert!(
                cluster
                    .get(&format!("/api/v1/namespaces/{namespace}"))
                    .await
                    .unwrap()
                    .is_some()
            );
        }
        cluster.create(&config_map(cluster.name())).await.unwrap();
        let maps = cluster.list(CONFIG_MAPS).await.unwrap();
        let own: Vec<_> = maps
            .iter()
            .filter(|map| map["metadata"]["name"] != "kube-root-ca.crt")
            .collect();
        assert_eq!(own.len(), 1, "{own:?}");
    }
    let [one, two] = ["one", "two"].map(|name| bed.cluster(name).unwrap());
    assert_eq!(
        code_as(one, two.admin_token(), "GET", "/api/v1/nodes", None).await,
        401
    );
    assert!(
        client(&two.admin_kubeconfig().replace(two.url(), one.url()))
            .await
            .apiserver_version()
            .await
            .is_err(),
        "a cluster trusts only its own CA"
    );
}

#[tokio::test]
async fn a_service_account_may_do_exactly_what_its_role_says() {
    let Some(bed) = shared().await else { return };
    let hub = bed.cluster("hub").unwrap();
    let rules = [rule("", "nodes", &["list"])];
    let kubeconfig = hub
        .service_account_kubeconfig("readers", "reader", &rules)
        .await
        .unwrap();
    let nodes: Api<Node> = Api::all(client(&kubeconfig).await);
    nodes
        .list(&ListParams::default())
        .await
        .expect("permissions are effective when the kubeconfig is returned");

    let requested = hub.request_token("readers", "reader", 600).await.unwrap();
    for token in [
        hub.service_account("readers", "reader", &rules)
            .await
            .unwrap(),
        requested,
    ] {
        assert_eq!(
            code_as(hub, &token, "GET", "/api/v1/nodes", None).await,
            200
        );
        assert_eq!(
            code_as(hub, &token, "GET", "/api/v1/nodes/a", None).await,
            403
        );
        assert_eq!(
            code_as(hub, &token, "GET", "/api/v1/secrets", None).await,
            403
        );
        assert_eq!(
            code_as(hub, &token, "POST", CONFIG_MAPS, Some(&config_map("no"))).await,
            403
        );
    }
    assert_eq!(
        code_as(hub, "nonsense", "GET", "/api/v1/nodes", None).await,
        401
    );
}

#[tokio::test]
async fn a_rotated_token_works_and_the_old_one_is_refused() {
    let Some(bed) = shared().await else { return };
    let hub = bed.cluster("hub").unwrap();
    let old = hub
        .service_account("rotation", "member", &[rule("", "nodes", &["list"])])
        .await
        .unwrap();
    assert_eq!(code_as(hub, &old, "GET", "/api/v1/nodes", None).await, 200);
    let new = hub.rotate_token("rotation", "member").await.unwrap();
    assert_ne!(old, new);
    assert_eq!(code_as(hub, &new, "GET", "/api/v1/nodes", None).await, 200);
    eventually(SOON, || async {
        let code = code_as(hub, &old, "GET", "/api/v1/nodes", None).await;
        if code == 401 {
            Ok(())
        } else {
            Err(format!("the old token still gets {code}"))
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_token_secret_of_no_account_is_deleted() {
    let Some(bed) = shared().await else { return };
    let hub = bed.cluster("hub").unwrap();
    let mut secret = json!({ "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token" });
    secret["metadata"] = json!({ "name": "orphan", "namespace": "default", "annotations": { "kubernetes.io/service-account.name": "nobody" } });
    hub.create(&secret).await.unwrap();
    eventually(SOON, || async {
        let found = hub
            .get("/api/v1/namespaces/default/secrets/orphan")
            .await
            .map_err(|error| error.to_string())?;
        if found.is_none() {
            Ok(())
        } else {
            Err("the Secret still exists".to_owned())
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn the_peer_crd_is_served_and_checks_shape_only() {
    let Some(bed) = shared().await else { return };
    let hub = bed.cluster("hub").unwrap();
    hub.install_crd(PEER_CRD).await.unwrap();
    let peer = |spec: serde_json::Value| json!({ "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "Peer", "metadata": { "name": "p" }, "spec": spec });
    let accepted = json!({ "allowedIPs": [], "publicKey": "notakey", "endpoint": { "dnsOrIP": {}, "port": 70000 } });
    hub.apply(&peer(accepted)).await.unwrap();
    assert_eq!(hub.list(PEERS).await.unwrap().len(), 1);
    hub.delete(&format!("{PEERS}/p")).await.unwrap();
    let refused = hub
        .create(&peer(json!({ "publicKey": "k" })))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Some(422), "{refused}");
    hub.delete(&format!("{PEERS}/p")).await.unwrap();
}

#[tokio::test]
async fn the_audit_log_says_who_did_what_and_with_which_result() {
    let Some(bed) = shared().await else { return };
    let east = bed.cluster("east").unwrap();
    let token = east.service_account("audited", "clerk", &[]).await.unwrap();
    assert_eq!(
        code_as(east, &token, "GET", "/api/v1/nodes", None).await,
        403
    );
    eventually(SOON, || async {
        let records = east.audit().map_err(|error| error.to_string())?;
        let denied = records.iter().any(|record| {
            record.user == "system:serviceaccount:audited:clerk"
                && (
                    record.verb.as_str(),
                    record.resource.as_str(),
                    record.code,
                    record.denied,
                ) == ("list", "nodes", 403, true)
        });
        let created = records.iter().any(|record| {
            record.user == "admin" && record.resource == "serviceaccounts" && record.code == 201
        });
        if denied && created {
            Ok(())
        } else {
            Err(format!(
                "denied: {denied}, created: {created}, of {}",
                records.len()
            ))
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_paused_server_hangs_and_comes_back() {
    let Some(bed) = Testbed::start_or_skip(&["only"]).await else {
        return;
    };
    let only = bed.cluster("only").unwrap();
    only.pause().unwrap();
    let hung = tokio::time::timeout(QUIET, only.get("/api/v1/nodes")).await;
    assert!(hung.is_err(), "a stopped server answered: {hung:?}");
    only.resume().unwrap();
    eventually(SOON, || only.list("/api/v1/nodes"))
        .await
        .unwrap();

    // A paused server must end, too.
    only.pause().unwrap();
    let (pids, folder) = (bed.pids(), bed.folder().to_owned());
    drop(bed);
    wait_until_gone(&pids, &folder).await;
}

#[tokio::test]
async fn a_stopped_server_refuses_and_comes_back_as_the_same() {
    let Some(bed) = Testbed::start_or_skip(&["only"]).await else {
        return;
    };
    let only = bed.cluster("only").unwrap();
    let token = only
        .service_account("before", "member", &[rule("", "nodes", &["list"])])
        .await
        .unwrap();
    only.create(&config_map("before")).await.unwrap();
    let kube = client(&only.kubeconfig(only.url(), &token)).await;
    let nodes: Api<Node> = Api::all(kube);
    nodes.list(&ListParams::default()).await.unwrap();
    let (folder, first_pid, requests) = (
        bed.folder().to_owned(),
        only.pid().unwrap(),
        only.audit().unwrap().len(),
    );

    only.stop().unwrap();
    assert!(!is_alive(first_pid) && only.pid().is_none() && bed.pids().len() == 1);
    let address = only.url().trim_start_matches("https://");
    let refused = std::net::TcpStream::connect(address).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    assert!(
        nodes.list(&ListParams::default()).await.is_err()
            && only.get("/api/v1/nodes").await.is_err()
    );
    assert!(only.pause().is_err(), "a stopped server can't be paused");
    only.stop()
        .expect("stopping a stopped server is not an error");

    only.start().await.unwrap();
    assert!(only.start().await.is_err(), "the server is already running");
    nodes
        .list(&ListParams::default())
        .await
        .expect("address, CA, token and permissions are unchanged");
    assert!(
        only.get(&format!("{CONFIG_MAPS}/before"))
            .await
            .unwrap()
            .is_some(),
        "objects are unchanged"
    );
    let rotated = only
        .rotate_token("before", "member")
        .await
        .expect("token Secrets are still filled");
    assert_eq!(
        code_as(only, &rotated, "GET", "/api/v1/nodes", None).await,
        200
    );
    assert!(
        only.audit().unwrap().len() > requests,
        "the audit log continues"
    );

    let pids = bed.pids();
    assert!(pids.len() == 2 && !pids.contains(&first_pid), "{pids:?}");
    drop(bed);
    wait_until_gone(&pids, &folder).await;
}

#[tokio::test]
async fn a_server_that_was_killed_or_paused_can_be_stopped_and_started() {
    let Some(bed) = Testbed::start_or_skip(&["only"]).await else {
        return;
    };
    let only = bed.cluster("only").unwrap();
    only.pause().unwrap();
    only.stop().unwrap();
    only.start().await.unwrap();

    kill(Pid::from_raw(only.pid().unwrap()), Signal::SIGKILL).unwrap();
    eventually(SOON, || async {
        if is_alive(only.pid().unwrap()) {
            Err("the server is still alive")
        } else {
            Ok(())
        }
    })
    .await
    .unwrap();
    only.stop().unwrap();
    only.start().await.unwrap();
    only.list("/api/v1/nodes").await.unwrap();

    // Files of a stopped server are removed as well.
    only.stop().unwrap();
    let (pids, folder) = (bed.pids(), bed.folder().to_owned());
    drop(bed);
    wait_until_gone(&pids, &folder).await;
}

#[tokio::test]
async fn a_killed_test_leaves_nothing_behind() {
    if shared().await.is_none() {
        return;
    }
    let (mut child, folder, pids) = held(&[]);
    assert!(
        pids.len() == 2 && pids.iter().all(|pid| is_alive(*pid)),
        "{pids:?}"
    );
    child.kill().unwrap(); // SIGKILL
    child.wait().unwrap();
    wait_until_gone(&pids, Path::new(&folder)).await;
}

#[test]
fn a_machine_without_servers_and_go_skips_and_says_what_to_type_but_fails_in_ci() {
    let empty = tempfile::tempdir().unwrap();
    let run = |ci: &str| {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_peer_crd_is_served_and_checks_shape_only"])
            .env_remove("KUBEBUILDER_ASSETS")
            .env("PATH", empty.path())
            .env("MESHWRIGHT_CACHE", empty.path())
            .env("CI", ci)
            .output()
            .unwrap();
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let (passed, said) = run("");
    assert!(
        passed && said.contains("skipped: ") && said.contains("export KUBEBUILDER_ASSETS="),
        "{said}"
    );
    assert!(!run("1").0);
}
