//! Compares our connection Secrets with those that the Helm chart of Cilium 1.20
//! renders for the same clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use base64ct::{Base64, Encoding};
use mw_core::cilium::facts::ConnectionSecret;
use mw_core::cilium::world::World;
use serde_json::{Value, json};

use crate::apply::settle;
use crate::fleet::{Fleet, id};

/// File contents by Secret and key.
type Files = BTreeMap<String, BTreeMap<String, Vec<u8>>>;

/// Returns a mesh of a reader `a` and two remotes `b` and `c`. The values override
/// those of a healthy cluster.
fn mesh(reader: Value, b: Value, c: Value, service_type: &str) -> World {
    let spec =
        json!({ "clusterRefs": ["a", "b", "c"], "meshConfig": { "serviceType": service_type } });
    let fleet = json!({ "clusters": { "a": reader, "b": b, "c": c }, "objects": { "mesh": { "kind": "ClusterMeshBinding", "spec": spec } } });
    let mut world = serde_json::from_value::<Fleet>(fleet).unwrap().world();
    settle(&mut world);
    world
}

/// Returns the reader's Secrets as written by us.
fn ours(world: &World) -> Files {
    let secrets = world.clusters[&id("a")].secrets.known().unwrap();
    let files = |secret: &ConnectionSecret| {
        let keys = secrets
            .get(secret)
            .map(|secret| &secret.keys)
            .into_iter()
            .flatten();
        keys.map(|(key, held)| (key.clone(), held.value.expose().to_vec()))
            .collect::<BTreeMap<_, _>>()
    };
    ConnectionSecret::ALL
        .iter()
        .map(|of| (of.as_str().to_owned(), files(of)))
        .filter(|(_, files)| !files.is_empty())
        .collect()
}

/// Returns the Secrets that the chart renders for a cluster with these peers. `None` if
/// this machine can't build Helm.
fn charts(kvstoremesh: bool, peers: &Value) -> Option<Files> {
    let helm = mw_testbed::or_skip(mw_testbed::binaries::helm())?;
    let chart = mw_testbed::or_skip(mw_testbed::binaries::cilium_chart())?;
    let values = json!({
        "cluster": { "name": "a", "id": 1 },
        "clustermesh": {
            "useAPIServer": true,
            "apiserver": { "kvstoremesh": { "enabled": kvstoremesh } },
            "config": { "enabled": true, "clusters": peers },
        },
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("values.json");
    std::fs::write(&file, values.to_string()).unwrap();
    let mut command = Command::new(helm);
    command
        .env("HOME", folder.path())
        .args(["template", "cilium"])
        .arg(chart)
        .args(["--namespace", "kube-system"]);
    command
        .args(["--kube-version", "1.34.4", "--values"])
        .arg(file);
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let objects: Vec<Value> =
        serde_saphyr::from_multiple(&String::from_utf8(output.stdout).unwrap()).unwrap();
    let names = ConnectionSecret::ALL.map(ConnectionSecret::as_str);
    let secrets = objects.iter().filter(|of| {
        of["kind"] == "Secret" && names.iter().any(|name| of["metadata"]["name"] == *name)
    });
    Some(
        secrets
            .map(|of| {
                (
                    of["metadata"]["name"].as_str().unwrap().to_owned(),
                    data(of),
                )
            })
            .collect(),
    )
}

fn data(secret: &Value) -> BTreeMap<String, Vec<u8>> {
    let data = secret["data"].as_object().unwrap();
    data.iter()
        .map(|(key, value)| {
            (
                key.clone(),
                Base64::decode_vec(value.as_str().unwrap()).unwrap(),
            )
        })
        .collect()
}

/// Returns the client files of a remote as values of the chart.
fn tls(world: &World, remote: &str) -> Value {
    let certificates = world.clusters[&id(remote)].certificates.known().unwrap();
    let files = &certificates.remote.known().unwrap().as_ref().unwrap().files;
    let text = |bytes: &mw_core::cilium::secret::SecretBytes| Base64::encode_string(bytes.expose());
    json!({ "cert": text(&files.certificate), "key": text(&files.key), "caCert": text(&files.ca) })
}

/// Reports whether a file is an etcd configuration by Cilium's own criterion; all
/// others are certificates and keys.
fn is_config(bytes: &[u8]) -> bool {
    String::from_utf8_lossy(bytes).contains("endpoints:")
}

fn parsed(bytes: &[u8]) -> Value {
    serde_saphyr::from_str(&String::from_utf8_lossy(bytes)).unwrap()
}

/// Compares key by key: configurations after parsing, all other files byte for byte.
#[track_caller]
fn assert_equal(ours: &Files, charts: &Files) {
    let keys = |files: &Files| -> BTreeSet<(String, String)> {
        files
            .iter()
            .flat_map(|(secret, files)| files.keys().map(|key| (secret.clone(), key.clone())))
            .collect()
    };
    assert_eq!(keys(ours), keys(charts));
    assert!(keys(ours).len() > 1, "{:?}", keys(ours));
    for (secret, key) in keys(ours) {
        let (our, theirs) = (&ours[&secret][&key], &charts[&secret][&key]);
        if is_config(theirs) {
            assert_eq!(parsed(our), parsed(theirs), "{secret} {key}");
            assert_tells_its_ca(our);
        } else {
            assert_eq!(our, theirs, "{secret} {key}");
        }
    }
}

/// Checks the comment with the CA's hash, which a parser ignores. Cilium reconnects
/// when it changes.
#[track_caller]
fn assert_tells_its_ca(config: &[u8]) {
    let text = String::from_utf8_lossy(config);
    let comments: Vec<&str> = text
        .lines()
        .filter(|line| line.trim_start().starts_with('#'))
        .collect();
    assert!(
        matches!(comments[..], [line] if line.starts_with("# CA ") && line.len() == 21),
        "{text}"
    );
}

/// Limits the certificate to the mesh's names, like those of the chart.
fn plain(mut cluster: Value) -> Value {
    cluster["certificateNames"] = json!(["*.mesh.cilium.io", "127.0.0.1", "::1"]);
    cluster
}

/// Compares with the chart, with and without KVStoreMesh on the reader.
fn assert_same_as_chart(b: &Value, c: &Value, service_type: &str, peers: impl Fn(&World) -> Value) {
    for kvstoremesh in [false, true] {
        let world = mesh(
            json!({ "kvstoremesh": kvstoremesh }),
            b.clone(),
            c.clone(),
            service_type,
        );
        let Some(charts) = charts(kvstoremesh, &peers(&world)) else {
            return;
        };
        assert_eq!(charts.contains_key("cilium-kvstoremesh"), kvstoremesh);
        assert_equal(&ours(&world), &charts);
    }
}

#[test]
fn behind_load_balancers_the_secrets_are_the_charts() {
    let b = plain(json!({ "name": "east-1", "ips": ["198.51.100.7", "198.51.100.8"] }));
    let c = plain(
        json!({ "name": "1", "id": "200", "ips": ["2001:db8::7"], "ports": [["etcd", 12379, 0]] }),
    );
    let peers = json!({
        "east-1": { "ips": ["198.51.100.7", "198.51.100.8"], "port": 2379 },
        "1": { "ips": ["2001:db8::7"], "port": 12379 },
    });
    assert_same_as_chart(&b, &c, "LoadBalancer", |_| peers.clone());
}

#[test]
fn on_node_ports_the_secrets_are_the_charts() {
    let nodes = |ip: &str| json!({ "n1": { "internal": [ip] } });
    let b = plain(
        json!({ "serviceType": "NodePort", "nodes": nodes("10.0.0.1"), "ports": [["etcd", 2379, 32379]] }),
    );
    let c = plain(
        json!({ "serviceType": "LoadBalancer", "nodes": nodes("10.0.0.2"), "ports": [["etcd", 2379, 30001]] }),
    );
    let peers = json!({ "b": { "ips": ["10.0.0.1"], "port": 32379 }, "c": { "ips": ["10.0.0.2"], "port": 30001 } });
    assert_same_as_chart(&b, &c, "NodePort", |_| peers.clone());
}

#[test]
fn an_address_in_the_certificate_is_the_charts_address() {
    let b = json!({ "ips": ["198.51.100.7"], "certificateNames": ["*.mesh.cilium.io", "198.51.100.7"] });
    let c = json!({ "ips": [], "hostnames": ["lb.example.com"], "certificateNames": ["lb.example.com"] });
    let peers = json!({ "b": { "address": "198.51.100.7", "port": 2379 }, "c": { "address": "lb.example.com", "port": 2379 } });
    assert_same_as_chart(&b, &c, "LoadBalancer", |_| peers.clone());
}

#[test]
fn with_another_ca_the_remotes_client_files_are_the_charts_per_peer_files() {
    let b = plain(json!({ "ca": "two", "ips": ["198.51.100.7"] }));
    let c = json!({ "ca": "three", "ips": ["198.51.100.9"], "certificateNames": ["198.51.100.9"] });
    assert_same_as_chart(&b, &c, "LoadBalancer", |world| {
        json!({
            "b": { "ips": ["198.51.100.7"], "port": 2379, "tls": tls(world, "b") },
            "c": { "address": "198.51.100.9", "port": 2379, "tls": tls(world, "c") },
        })
    });
}

/// The chart takes one address per peer. If the certificate covers several, we write
/// all of them, so that the peer stays reachable while one of them is down.
#[test]
fn several_addresses_in_the_certificate_are_all_named_where_the_chart_takes_one() {
    let ips = json!(["198.51.100.7", "198.51.100.8"]);
    let world = mesh(
        json!({}),
        json!({ "ips": ips, "certificateNames": ips }),
        plain(json!({})),
        "LoadBalancer",
    );
    let peers = json!({ "b": { "address": "198.51.100.7", "port": 2379 }, "c": { "ips": ["192.0.2.3"], "port": 2379 } });
    let Some(charts) = charts(false, &peers) else {
        return;
    };
    let mut ours = ours(&world);
    let config = ours
        .get_mut("cilium-clustermesh")
        .unwrap()
        .get_mut("b")
        .unwrap();
    assert_eq!(
        parsed(config)["endpoints"],
        json!(["https://198.51.100.7:2379", "https://198.51.100.8:2379"])
    );
    *config = String::from_utf8_lossy(config)
        .replace("- https://198.51.100.8:2379\n", "")
        .into_bytes();
    assert_equal(&ours, &charts);
}

const LINE: &str = "helm upgrade cilium cilium/cilium -n kube-system --reuse-values";
/// Values for the placeholders in the documented commands.
const FILLED: [(&str, &str); 3] = [
    ("CLUSTER", "north"),
    ("ADDRESS", "192.0.2.1"),
    ("=ID", "=7"),
];

/// Collects the arguments of --set from the commands in the docs.
fn settings() -> BTreeSet<String> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(docs).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for rest in text.split(LINE).skip(1) {
            let line = rest.split(['`', '\n']).next().unwrap();
            found.extend(line.split(" --set ").skip(1).map(|set| {
                FILLED
                    .iter()
                    .fold(set.trim().to_owned(), |set, (a, b)| set.replace(a, b))
            }));
        }
    }
    assert!(found.len() > 5, "{found:?}");
    found
}

#[test]
fn the_lines_of_the_pages_are_understood() {
    let Some(helm) = mw_testbed::or_skip(mw_testbed::binaries::helm()) else {
        return;
    };
    let Some(chart) = mw_testbed::or_skip(mw_testbed::binaries::cilium_chart()) else {
        return;
    };
    let values: Value =
        serde_saphyr::from_str(&std::fs::read_to_string(chart.join("values.yaml")).unwrap())
            .unwrap();
    let home = tempfile::tempdir().unwrap();
    for setting in settings() {
        for (path, _) in setting.split(',').filter_map(|one| one.split_once('=')) {
            let known = path.split('.').try_fold(&values, |at, key| at.get(key));
            assert!(known.is_some(), "Cilium's chart has no value {path}");
        }
        let mut command = Command::new(&helm);
        command
            .env("HOME", home.path())
            .args(["template", "cilium"])
            .arg(&chart)
            .args(["--namespace", "kube-system"]);
        command.args([
            "--kube-version",
            "1.34.4",
            "--set",
            "cluster.name=a,cluster.id=1,clustermesh.useAPIServer=true",
            "--set",
            &setting,
        ]);
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{setting}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
