//! ClusterMeshBindings from creation to deletion.

use std::time::Duration;

use mw_core::cilium::world::DialFailure;
use mw_sim::Reachability;
use serde_json::{Value, json};

use crate::bed::{BINDINGS, Bed, HUB, NAMESPACE, condition};
use crate::site::{Ca, SYSTEM, Site, WORKLOADS};

const SECRETS: [&str; 2] = ["cilium-clustermesh", "cilium-kvstoremesh"];

pub(crate) fn three() -> Vec<Site> {
    ["a", "b", "c"]
        .iter()
        .zip(1..)
        .map(|(name, id)| Site::new(name, id, Ca::Common))
        .collect()
}

/// Three connected clusters with a provider.
pub(crate) async fn joined() -> Bed {
    let mut bed = Bed::new(&three());
    bed.bind("mesh", &["a", "b", "c"], &json!({}));
    bed.start();
    bed.phase(BINDINGS, "mesh", "Connected").await;
    bed
}

fn remotes(bed: &Bed, site: &str) -> Vec<String> {
    let [agents, mesh] =
        SECRETS.map(|secret| bed.keys(site, secret).into_keys().collect::<Vec<_>>());
    assert_eq!(agents, mesh, "both Secrets of {site} name the same remotes");
    mesh
}

fn message(binding: &Value) -> String {
    condition(binding, "Ready")["message"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[tokio::test(start_paused = true)]
async fn three_clusters_are_joined_and_parted() {
    let bed = joined().await;
    let binding = bed.object(BINDINGS, "mesh").unwrap();
    assert_eq!(
        condition(&binding, "MeshConnected")["message"],
        "Mesh established between 3 clusters"
    );
    let rows = binding["status"]["meshStatus"].as_array().unwrap();
    assert_eq!(
        rows.iter()
            .map(|row| row["clusterName"].as_str().unwrap())
            .collect::<Vec<_>>(),
        ["a", "b", "c"]
    );
    assert!(
        rows.iter()
            .all(|row| row["connected"] == true && row["readyNodes"] == 3),
        "{rows:#?}"
    );
    for site in ["a", "b", "c"] {
        let others: Vec<&str> = ["a", "b", "c"]
            .into_iter()
            .filter(|other| *other != site)
            .collect();
        assert_eq!(remotes(&bed, site), others);
    }
    bed.remove(BINDINGS, "mesh").await;
    assert!(
        ["a", "b", "c"]
            .iter()
            .all(|site| remotes(&bed, site).is_empty())
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_once_all_is_as_wanted() {
    let bed = joined().await;
    let versions = bed.versions();
    tokio::time::sleep(Duration::from_secs(240)).await;
    assert_eq!(bed.versions(), versions);
}

#[tokio::test(start_paused = true)]
async fn different_authorities_are_bridged_by_files_of_each_remote() {
    let mut sites = three();
    sites[2] = Site::new("c", 3, Ca::Other);
    let mut bed = Bed::new(&sites);
    bed.bind("mesh", &["a", "b", "c"], &json!({}));
    bed.start();
    bed.phase(BINDINGS, "mesh", "Connected").await;
    let keys = bed.keys("a", "cilium-kvstoremesh");
    assert_eq!(
        keys["c.etcd-client.key"].trim(),
        bed.sites["c"].remote.key.trim()
    );
    assert_eq!(
        keys["c.etcd-client-ca.crt"].trim(),
        Ca::Other.authority().pem().trim()
    );
    assert!(
        !keys.keys().any(|key| key.starts_with("b.etcd-client")),
        "{:?}",
        keys.keys()
    );
}

#[tokio::test(start_paused = true)]
async fn a_cluster_without_identity_gets_one_and_is_told_to_restart() {
    let mut sites = three();
    sites[1].cilium_name = String::new();
    let mut bed = Bed::new(&sites);
    bed.bind("mesh", &["a", "b", "c"], &json!({}));
    bed.start();
    let config = format!("{SYSTEM}/configmaps/cilium-config");
    bed.until("b has an identity", || {
        let data = bed.on("b").get(&config).unwrap()["data"].clone();
        if data["cluster-name"] == "b" && data["cluster-id"] == "2" {
            Ok(())
        } else {
            Err(data.to_string())
        }
    })
    .await;
    let binding = bed
        .until_status(BINDINGS, "mesh", |status| {
            status.to_string().contains("RestartRequired")
        })
        .await;
    assert_ne!(binding["status"]["phase"], "Connected");
    // Cilium was restarted there: its etcd has the new name.
    bed.wire
        .change("192.0.2.2:2379", |etcd| etcd.cluster_name = "b".to_owned());
    bed.patch(
        "b",
        &format!("{SYSTEM}/pods/cilium-0/status"),
        &json!({ "status": { "startTime": "2027-01-15T09:00:00Z" } }),
    );
    bed.phase(BINDINGS, "mesh", "Connected").await;
}

/// Each cause in the troubleshooting table gives its phase and text, and removing
/// the cause heals the binding.
#[tokio::test(start_paused = true)]
async fn every_trouble_has_its_words_and_heals() {
    let service = format!("{SYSTEM}/services/clustermesh-apiserver");
    let agents = format!("{WORKLOADS}/daemonsets/cilium");
    let server = format!("{WORKLOADS}/deployments/clustermesh-apiserver");
    let access = format!("/api/v1/namespaces/{NAMESPACE}/secrets/b-kubeconfig");
    for (cluster, path, phase, text) in [
        ("b", &agents, "Error", "cluster b: cilium: Cilium not found"),
        (
            "b",
            &server,
            "Error",
            "cluster b: clustermesh-apiserver: clustermesh-apiserver not found",
        ),
        (
            HUB,
            &access,
            "Error",
            "cluster b: credentials: reading kubeconfig secret: ",
        ),
        ("b", &service, "Error", "cluster b: clustermesh-apiserver: "),
    ] {
        let mut bed = Bed::new(&three()[..2]);
        let before = bed.take(cluster, path);
        bed.bind("mesh", &["a", "b"], &json!({}));
        bed.start();
        let binding = bed.phase(BINDINGS, "mesh", phase).await;
        assert!(message(&binding).contains(text), "{}", message(&binding));
        bed.put_back(cluster, path, &before);
        bed.phase(BINDINGS, "mesh", "Connected").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pending_address_is_waited_for_and_a_new_one_is_written_everywhere() {
    let mut bed = Bed::new(&three());
    let status = format!("{SYSTEM}/services/clustermesh-apiserver/status");
    bed.patch(
        "b",
        &status,
        &json!({ "status": { "loadBalancer": { "ingress": null } } }),
    );
    bed.bind("mesh", &["a", "b", "c"], &json!({}));
    bed.start();
    let binding = bed
        .until_status(BINDINGS, "mesh", |status| {
            status
                .to_string()
                .contains("cluster b: clustermesh-apiserver: ")
        })
        .await;
    assert_ne!(binding["status"]["phase"], "Connected");
    for address in ["192.0.2.2", "192.0.2.22"] {
        if address != "192.0.2.2" {
            let mut etcd = bed.wire.unplug("192.0.2.2:2379");
            etcd.names.push(address.to_owned());
            bed.wire.plug(&format!("{address}:2379"), etcd);
            bed.renew_server_certificate("b", address);
        }
        bed.patch(
            "b",
            &status,
            &json!({ "status": { "loadBalancer": { "ingress": [{ "ip": address }] } } }),
        );
        bed.until("the address is written", || {
            let written = ["a", "c"].iter().all(|site| {
                bed.keys(site, "cilium-kvstoremesh")
                    .get("b")
                    .is_some_and(|key| key.contains(address))
            });
            if written {
                Ok(())
            } else {
                Err(format!(
                    "{:?}",
                    bed.keys("a", "cilium-kvstoremesh").get("b")
                ))
            }
        })
        .await;
        bed.phase(BINDINGS, "mesh", "Connected").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_leaves_is_parted_from_the_others_both_ways() {
    let bed = joined().await;
    bed.patch(
        HUB,
        &bed.path(BINDINGS, "mesh"),
        &json!({ "spec": { "clusterRefs": [{ "name": "a" }, { "name": "b" }] } }),
    );
    bed.until("c is alone", || {
        let all = ["a", "b", "c"].map(|site| remotes_now(&bed, site));
        if all == [vec!["b".to_owned()], vec!["a".to_owned()], vec![]] {
            Ok(())
        } else {
            Err(format!("{all:?}"))
        }
    })
    .await;
    bed.phase(BINDINGS, "mesh", "Connected").await;
}

fn remotes_now(bed: &Bed, site: &str) -> Vec<String> {
    bed.keys(site, "cilium-clustermesh").into_keys().collect()
}

#[tokio::test(start_paused = true)]
async fn of_two_bindings_that_share_a_pair_one_goes_and_the_pair_stays() {
    let bed = joined().await;
    bed.bind("pair", &["b", "c"], &json!({}));
    bed.phase(BINDINGS, "pair", "Connected").await;
    bed.remove(BINDINGS, "mesh").await;
    assert_eq!(
        ["a", "b", "c"].map(|site| remotes(&bed, site)),
        [vec![], vec!["c".to_owned()], vec!["b".to_owned()]]
    );
    bed.phase(BINDINGS, "pair", "Connected").await;
}

#[tokio::test(start_paused = true)]
async fn keys_of_others_are_never_touched() {
    let mut bed = Bed::new(&three());
    let foreign =
        json!({ "z": "endpoints: [somewhere]", "common-etcd-client.key": "a key of Helm's" });
    bed.patch(
        "a",
        &format!("{SYSTEM}/secrets/cilium-kvstoremesh"),
        &json!({ "stringData": foreign }),
    );
    bed.bind("mesh", &["a", "b", "c"], &json!({}));
    bed.start();
    bed.phase(BINDINGS, "mesh", "Connected").await;
    bed.remove(BINDINGS, "mesh").await;
    let left = bed.keys("a", "cilium-kvstoremesh");
    assert_eq!(serde_json::to_value(left).unwrap(), foreign);
}

/// Errors of a remote are reported, and its key is not written unless the clusters
/// may reach each other where this process can't.
#[tokio::test(start_paused = true)]
async fn every_failed_dial_has_its_words_and_is_never_connected() {
    for (kind, name) in [
        (DialFailure::Unreachable, "Unreachable"),
        (DialFailure::Dns, "DNS"),
        (DialFailure::Address, "Address"),
        (DialFailure::Tcp, "TCP"),
        (DialFailure::Tls, "TLS"),
        (DialFailure::Certificate, "Certificate"),
        (DialFailure::Permission, "Permission"),
        (DialFailure::Name, "Name"),
    ] {
        let mut bed = Bed::new(&three()[..2]);
        bed.wire
            .change("192.0.2.2:2379", |etcd| etcd.failure = Some(kind));
        bed.bind("mesh", &["a", "b"], &json!({}));
        bed.start();
        let passes = matches!(
            kind,
            DialFailure::Unreachable | DialFailure::Dns | DialFailure::Tcp
        );
        bed.until("it is decided", || {
            let written = !remotes_now(&bed, "a").is_empty();
            let told = bed.object(BINDINGS, "mesh").unwrap()["status"]
                .to_string()
                .contains(&format!("{name}: "));
            if written == passes && (told || passes) {
                Ok(())
            } else {
                Err(format!("{name}: {written} {told}"))
            }
        })
        .await;
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_ne!(
            bed.object(BINDINGS, "mesh").unwrap()["status"]["phase"],
            "Connected",
            "{name}"
        );
        assert_eq!(remotes_now(&bed, "a").is_empty(), !passes, "{name}");
        bed.wire
            .change("192.0.2.2:2379", |etcd| etcd.failure = None);
        bed.phase(BINDINGS, "mesh", "Connected").await;
    }
}

/// A dial result of a previous mesh does not count for the current one.
#[tokio::test(start_paused = true)]
async fn what_was_dialled_for_a_mesh_that_went_counts_for_no_other() {
    let bed = joined().await;
    bed.remove(BINDINGS, "mesh").await;
    bed.wire.change("192.0.2.2:2379", |etcd| {
        etcd.failure = Some(DialFailure::Certificate)
    });
    bed.bind("mesh", &["a", "b", "c"], &json!({}));
    bed.phase(BINDINGS, "mesh", "Degraded").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(remotes_now(&bed, "a"), ["c"]);
    assert_eq!(
        bed.object(BINDINGS, "mesh").unwrap()["status"]["phase"],
        "Degraded"
    );
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_does_not_answer_costs_its_links_and_nothing_else() {
    let bed = joined().await;
    let keys = ["a", "c"].map(|site| bed.keys(site, "cilium-kvstoremesh"));
    bed.on("b").set_link(Reachability::Refusing);
    let binding = bed
        .until_status(BINDINGS, "mesh", |status| {
            status
                .to_string()
                .contains("cluster b: credentials: unreachable")
        })
        .await;
    assert_eq!(binding["status"]["phase"], "Degraded");
    assert_eq!(
        ["a", "c"].map(|site| bed.keys(site, "cilium-kvstoremesh")),
        keys
    );
    bed.on("b").set_link(Reachability::Up);
    bed.phase(BINDINGS, "mesh", "Connected").await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_binding_waits_for_a_cluster_that_does_not_answer_but_not_for_ever() {
    let bed = joined().await;
    bed.on("c").set_link(Reachability::Refusing);
    bed.until_status(BINDINGS, "mesh", |status| status["phase"] == "Degraded")
        .await;
    bed.delete(HUB, &bed.path(BINDINGS, "mesh"));
    bed.until("a and b are parted", || {
        let left = ["a", "b"].map(|site| remotes_now(&bed, site));
        if left.iter().all(Vec::is_empty) {
            Ok(())
        } else {
            Err(format!("{left:?}"))
        }
    })
    .await;
    assert!(bed.object(BINDINGS, "mesh").is_some(), "c is not clean yet");
    tokio::time::sleep(Duration::from_secs(600)).await;
    bed.gone(BINDINGS, "mesh").await;
    assert!(
        bed.events()
            .iter()
            .any(|event| event["reason"] == "CleanupIncomplete"),
        "{:#?}",
        bed.events()
    );
}

#[tokio::test(start_paused = true)]
async fn a_restarted_provider_writes_nothing_anew() {
    let mut bed = joined().await;
    bed.stop();
    let versions = ["a", "b", "c"].map(|site| bed.on(site).version());
    bed.start();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(["a", "b", "c"].map(|site| bed.on(site).version()), versions);
    assert_eq!(
        bed.object(BINDINGS, "mesh").unwrap()["status"]["phase"],
        "Connected"
    );
}
