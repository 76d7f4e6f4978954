//! Keys of another manager: remotes are dialled with the endpoint and client files
//! in those keys, and the keys are not overwritten.

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::bed::{BINDINGS, Bed, EPOCH};
use crate::site::{Ca, SYSTEM, Site};

const SECRETS: [&str; 2] = ["cilium-clustermesh", "cilium-kvstoremesh"];
const PAIR: [(&str, &str); 2] = [("a", "b"), ("b", "a")];
const FOLDER: &str = "/var/lib/cilium/clustermesh";

/// A configuration as Cilium's chart renders it.
fn config(host: &str, stem: &str) -> String {
    format!(
        "endpoints:\n- https://{host}:2379\ntrusted-ca-file: {FOLDER}/{stem}-ca.crt\n\
         key-file: {FOLDER}/{stem}.key\ncert-file: {FOLDER}/{stem}.crt\n"
    )
}

/// Two clusters that were connected by hand, without access to KVStoreMesh metrics.
fn joined_by_hand(kvstoremesh: bool, ca: Ca) -> Bed {
    let sites = [Site::new("a", 1, Ca::Common), Site::new("b", 2, ca)].map(|site| Site {
        kvstoremesh,
        ..site
    });
    let bed = Bed::new(&sites);
    // Links are verified by dials alone, so heartbeats must be recent.
    let started = Instant::now();
    bed.wire
        .set_clock(move || EPOCH + i64::try_from(started.elapsed().as_secs()).unwrap());
    for (reader, remote) in PAIR {
        bed.grant_no_more_than_needed(reader);
        let of = &bed.sites[remote];
        let mut remotes = json!({ remote: config(&of.address, "common-etcd-client") });
        if ca != Ca::Common {
            let files = [
                ("-ca.crt", of.ca.authority().pem()),
                (".crt", &of.remote.certificate),
                (".key", &of.remote.key),
            ];
            files.iter().for_each(|(end, text)| {
                remotes[format!("{remote}.etcd-client{end}")] = json!(text)
            });
            remotes[remote] = config(&of.address, &format!("{remote}.etcd-client")).into();
        }
        let own =
            json!({ remote: config("clustermesh-apiserver.kube-system.svc", "local-etcd-client") });
        let [agents, mesh] = if kvstoremesh {
            [own, remotes]
        } else {
            [remotes, json!({})]
        };
        for (secret, data) in SECRETS.into_iter().zip([agents, mesh]) {
            bed.patch(
                reader,
                &format!("{SYSTEM}/secrets/{secret}"),
                &json!({ "stringData": data }),
            );
        }
    }
    bed
}

fn secrets(bed: &Bed) -> Vec<Value> {
    let all = PAIR
        .iter()
        .flat_map(|(site, _)| SECRETS.map(|secret| (site, secret)));
    all.map(|(site, secret)| {
        (*bed
            .on(site)
            .get(&format!("{SYSTEM}/secrets/{secret}"))
            .unwrap())
        .clone()
    })
    .collect()
}

#[tokio::test(start_paused = true)]
async fn links_that_others_made_count_and_stay_as_they_are() {
    for (kvstoremesh, ca) in [
        (false, Ca::Common),
        (true, Ca::Common),
        (false, Ca::Other),
        (true, Ca::Other),
    ] {
        let mut bed = joined_by_hand(kvstoremesh, ca);
        let before = secrets(&bed);
        bed.bind("mesh", &["a", "b"], &json!({}));
        bed.start();
        let binding = bed.phase(BINDINGS, "mesh", "Connected").await;
        let rows = binding["status"]["meshStatus"].to_string();
        assert!(rows.contains("managed by somebody"), "{rows}");
        assert_eq!(secrets(&bed), before, "a key was written");
        bed.remove(BINDINGS, "mesh").await;
        assert_eq!(secrets(&bed), before, "a key went with the binding");
    }
}

#[tokio::test(start_paused = true)]
async fn a_link_that_others_made_is_followed() {
    let mut bed = joined_by_hand(false, Ca::Common);
    bed.bind("mesh", &["a", "b"], &json!({}));
    bed.start();
    bed.phase(BINDINGS, "mesh", "Connected").await;
    // Its manager points it to a wrong endpoint.
    let path = format!("{SYSTEM}/secrets/cilium-clustermesh");
    bed.patch(
        "a",
        &path,
        &json!({ "stringData": { "b": config(&bed.sites["a"].address, "common-etcd-client") } }),
    );
    let wrong = bed.phase(BINDINGS, "mesh", "Degraded").await;
    assert!(
        wrong["status"]
            .to_string()
            .contains("is managed by somebody: the link does not work with it"),
        "{:#}",
        wrong["status"]
    );
    // Then the manager drops it: our key replaces it.
    bed.patch("a", &path, &json!({ "data": { "b": null } }));
    let right = bed.phase(BINDINGS, "mesh", "Connected").await;
    assert!(
        bed.keys("a", "cilium-clustermesh")["b"].starts_with("# CA "),
        "{:#}",
        right["status"]
    );
}
