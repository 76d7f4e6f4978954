//! Clusters whose etcds have one user per reader, listed in ConfigMap
//! clustermesh-remote-users.

use serde_json::{Value, json};

use crate::bed::{BINDINGS, Bed, HUB};
use crate::site::{Ca, SYSTEM, Site, WORKLOADS};

const MODES: [&str; 3] = ["legacy", "migration", "cluster"];

fn users_path() -> String {
    format!("{SYSTEM}/configmaps/clustermesh-remote-users")
}

fn users(bed: &Bed, site: &str) -> Option<String> {
    bed.on(site).get(&users_path()).map(|map| {
        map["data"]["users.yaml"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    })
}

fn put_users(bed: &Bed, site: &str, text: &str) {
    let map = json!({ "metadata": { "name": "clustermesh-remote-users", "namespace": "kube-system" }, "data": { "users.yaml": text } });
    bed.create(site, &format!("{SYSTEM}/configmaps"), &map);
}

fn pair(one: &'static str, other: &'static str, ca: Ca) -> [Site; 2] {
    [
        Site::new("a", 1, Ca::Common).with_auth_mode(one),
        Site::new("b", 2, ca).with_auth_mode(other),
    ]
}

#[tokio::test(start_paused = true)]
async fn every_mode_is_connected_with_every_other_and_leaves_nothing() {
    for (one, other) in MODES
        .into_iter()
        .flat_map(|one| MODES.map(|other| (one, other)))
    {
        for ca in [Ca::Common, Ca::Other] {
            let mut bed = Bed::new(&pair(one, other, ca));
            bed.bind("mesh", &["a", "b"], &json!({}));
            bed.start();
            bed.phase(BINDINGS, "mesh", "Connected").await;
            for (site, mode) in [("a", one), ("b", other)] {
                assert_eq!(
                    users(&bed, site).is_some(),
                    mode != "legacy",
                    "{one} and {other}: ConfigMap of {site}"
                );
                let text = users(&bed, site).unwrap_or_default();
                assert!(
                    !text.contains("name: remote\n") && !text.contains("name: remote "),
                    "{text}"
                );
            }
            bed.remove(BINDINGS, "mesh").await;
            for site in ["a", "b"] {
                assert!(
                    users(&bed, site).is_none_or(|text| text == "users: []\n"),
                    "{one} and {other}: {:?}",
                    users(&bed, site)
                );
            }
        }
    }
}

/// From chart 1.19 on, pods wait for a ConfigMap that the chart does not create.
#[tokio::test(start_paused = true)]
async fn a_clustermesh_apiserver_that_waits_for_its_users_gets_them() {
    let mut bed = Bed::new(&pair("migration", "legacy", Ca::Common));
    let status = format!("{WORKLOADS}/deployments/clustermesh-apiserver/status");
    bed.patch(
        "a",
        &status,
        &json!({ "status": { "availableReplicas": 0 } }),
    );
    bed.bind("mesh", &["a", "b"], &json!({}));
    bed.start();
    bed.until("the ConfigMap is there", || {
        users(&bed, "a").ok_or_else(|| "no ConfigMap".to_owned())
    })
    .await;
    bed.patch(
        "a",
        &status,
        &json!({ "status": { "availableReplicas": 1 } }),
    );
    bed.phase(BINDINGS, "mesh", "Connected").await;
}

#[tokio::test(start_paused = true)]
async fn entries_of_others_stay_and_what_is_lost_of_ours_comes_back() {
    let mut bed = Bed::new(&pair("cluster", "cluster", Ca::Common));
    let theirs = "# by hand\nusers:\n  - name: remote-x\n    role: remote\n";
    put_users(&bed, "b", theirs);
    bed.bind("mesh", &["a", "b"], &json!({}));
    bed.start();
    bed.phase(BINDINGS, "mesh", "Connected").await;
    let listed = format!("{theirs}  - name: remote-a # meshwright\n    role: remote\n");
    assert_eq!(users(&bed, "b").unwrap(), listed);
    // The list is overwritten, as by a Helm upgrade.
    bed.patch(
        "b",
        &users_path(),
        &json!({ "data": { "users.yaml": theirs } }),
    );
    bed.until("the entry is back", || {
        if users(&bed, "b").unwrap() == listed {
            Ok(())
        } else {
            Err(users(&bed, "b").unwrap())
        }
    })
    .await;
    bed.remove(BINDINGS, "mesh").await;
    assert_eq!(users(&bed, "b").unwrap(), theirs);
}

#[tokio::test(start_paused = true)]
async fn a_list_in_another_form_is_left_alone_and_the_entry_is_named() {
    let mut bed = Bed::new(&pair("cluster", "migration", Ca::Common));
    let theirs = "users: [{name: remote-x, role: remote}]";
    put_users(&bed, "b", theirs);
    bed.bind("mesh", &["a", "b"], &json!({}));
    bed.start();
    let told = |status: &Value| {
        status["conditions"]
            .to_string()
            .contains("etcd user remote-a is not listed")
    };
    bed.until_status(BINDINGS, "mesh", told).await;
    assert_eq!(users(&bed, "b").unwrap(), theirs);
    let entry = "users:\n- {name: remote-x, role: remote}\n- {name: remote-a, role: remote}\n";
    bed.patch(
        "b",
        &users_path(),
        &json!({ "data": { "users.yaml": entry } }),
    );
    bed.phase(BINDINGS, "mesh", "Connected").await;
    assert!(bed.object(BINDINGS, "mesh").is_some() && bed.on(HUB).version() > 0);
}
