//! Cilium's control plane: real processes read each other through Secrets that the
//! tests write like Helm.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test may fail loudly"
)]

mod common;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddrV4;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use base64ct::{Base64, Encoding};
use common::{held, rule, wait_until_gone};
use mw_testbed::cilium::{Ca, Cilium, CiliumSpec, Exposure, Files, Remote};
use mw_testbed::{Cluster, Testbed, eventually};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

/// Timeout for operations that take a second or two on an idle machine.
const SOON: Duration = Duration::from_secs(60);
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/kube-system/deployments/clustermesh-apiserver";
const METRICS: &str =
    "/api/v1/namespaces/kube-system/pods/clustermesh-apiserver-0:9964/proxy/metrics";

/// Three clusters: two with the same CA, KVStoreMesh and load balancers; the third with
/// another CA and neither. A fourth is empty.
struct Mesh {
    bed: Testbed,
    east: Cilium,
    west: Cilium,
    north: Cilium,
    /// CA of east and west.
    ours: Ca,
}

/// Never dropped: the supervisors end the servers with the process.
static MESH: OnceCell<Option<Mutex<Mesh>>> = OnceCell::const_new();

async fn mesh() -> Option<MutexGuard<'static, Mesh>> {
    let mesh = MESH
        .get_or_init(|| async { start().await.map(Mutex::new) })
        .await;
    Some(mesh.as_ref()?.lock().await)
}

async fn start() -> Option<Mesh> {
    let bed = Testbed::start_or_skip(&["east", "north", "south", "west"]).await?;
    let begun = Instant::now();
    let (ours, theirs) = (Ca::new().unwrap(), Ca::new().unwrap());
    let apart = CiliumSpec {
        kvstoremesh: false,
        exposure: Exposure::NodePort,
        ..CiliumSpec::new("north", 3, &theirs)
    };
    let (east, west, north) = futures::join!(
        Cilium::install_or_skip(&bed, "east", CiliumSpec::new("east", 1, &ours)),
        Cilium::install_or_skip(&bed, "west", CiliumSpec::new("west", 2, &ours)),
        Cilium::install_or_skip(&bed, "north", apart),
    );
    let (east, west, north) = (east?, west?, north?);
    eprintln!(
        "three installations worked after {:.1} s",
        begun.elapsed().as_secs_f64()
    );
    Some(Mesh {
        bed,
        east,
        west,
        north,
        ours,
    })
}

type Keys = BTreeMap<String, String>;

impl Mesh {
    fn cluster(&self, name: &str) -> &Cluster {
        self.bed.cluster(name).unwrap()
    }

    /// Replaces all keys of west's Secret.
    async fn tell_west(&self, keys: &Keys) {
        tell(self.cluster("west"), "cilium-kvstoremesh", keys).await;
    }

    /// Connects west to east, regardless of the previous state.
    async fn connect_west(&self) {
        let keys = by_common_files("east", self.east.addresses()[0]);
        self.tell_west(&keys).await;
        until(&self.west, "east", |remote| {
            remote.ready && remote.id == Some(1)
        })
        .await;
    }
}

/// Returns the etcd client configuration of a remote. Each text is unique, so that the
/// reader reconnects.
fn config(address: impl Display, client: &str) -> String {
    static TURN: AtomicU64 = AtomicU64::new(0);
    let (turn, folder) = (
        TURN.fetch_add(1, Ordering::Relaxed),
        "/var/lib/cilium/clustermesh",
    );
    format!(
        "# {turn}\nendpoints:\n- https://{address}\ntrusted-ca-file: {folder}/{client}-ca.crt\n\
         key-file: {folder}/{client}.key\ncert-file: {folder}/{client}.crt\n"
    )
}

/// Returns a key for a remote that uses the reader's own client files.
fn by_common_files(name: &str, address: SocketAddrV4) -> Keys {
    Keys::from([(name.to_owned(), config(address, "common-etcd-client"))])
}

/// Returns keys for a remote that uses client files provided by the remote.
fn by_own_files(name: &str, address: SocketAddrV4, files: &Files) -> Keys {
    let client = format!("{name}.etcd-client");
    Keys::from([
        (name.to_owned(), config(address, &client)),
        (format!("{client}-ca.crt"), files.ca.clone()),
        (format!("{client}.crt"), files.certificate.clone()),
        (format!("{client}.key"), files.key.clone()),
    ])
}

async fn tell(cluster: &Cluster, secret: &str, keys: &Keys) {
    let data: BTreeMap<&String, String> = keys
        .iter()
        .map(|(key, text)| (key, Base64::encode_string(text.as_bytes())))
        .collect();
    let metadata = json!({ "name": secret, "namespace": "kube-system" });
    cluster
        .apply(&json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data }))
        .await
        .unwrap();
}

async fn until(reader: &Cilium, remote: &str, content: impl Fn(&Remote) -> bool) {
    let asked = eventually(SOON, || async {
        match reader
            .remote(remote)
            .await
            .map_err(|error| error.to_string())?
        {
            Some(seen) if content(&seen) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    asked
        .await
        .unwrap_or_else(|error| panic!("{remote}: {error}\n{}", reader.logs()));
}

async fn until_key(cilium: &Cilium, key: &str, content: impl Fn(&str) -> bool) {
    let asked = eventually(SOON, || async {
        match cilium.key(key).await.map_err(|error| error.to_string())? {
            Some(value) if content(&value) => Ok(()),
            other => Err(format!("{key} is {other:?}")),
        }
    });
    asked.await.unwrap();
}

#[tokio::test]
async fn clusters_of_one_ca_read_each_other() {
    let Some(mesh) = mesh().await else { return };
    mesh.connect_west().await;
    let keys = by_common_files("west", mesh.west.addresses()[0]);
    tell(mesh.cluster("east"), "cilium-kvstoremesh", &keys).await;
    until(&mesh.east, "west", |remote| {
        remote.ready && remote.id == Some(2)
    })
    .await;
    until_key(&mesh.west, "cilium/cluster-config/east", |config| {
        config.contains("\"cached\":true")
    })
    .await;
    until_key(&mesh.east, "cilium/cluster-config/west", |config| {
        config.contains("\"id\":2")
    })
    .await;
}

#[tokio::test]
async fn a_global_service_is_in_the_readers_etcd_and_others_are_not() {
    let Some(mesh) = mesh().await else { return };
    mesh.connect_west().await;
    for (name, annotations) in [
        ("web", json!({ "service.cilium.io/global": "true" })),
        ("private", json!({})),
    ] {
        let service = json!({ "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": name, "namespace": "default", "annotations": annotations },
            "spec": { "ports": [{ "name": "http", "port": 80 }] } });
        let slice = json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": name, "namespace": "default", "labels": { "kubernetes.io/service-name": name } },
            "endpoints": [{ "addresses": ["10.1.0.5"], "conditions": { "ready": true } }], "ports": [{ "name": "http", "port": 8080 }] });
        mesh.cluster("east").apply(&service).await.unwrap();
        mesh.cluster("east").apply(&slice).await.unwrap();
    }
    until_key(
        &mesh.west,
        "cilium/cache/services/v1/east/default/web",
        |service| service.contains("10.1.0.5"),
    )
    .await;
    assert_eq!(
        mesh.west
            .keys("cilium/cache/services/v1/east/")
            .await
            .unwrap()
            .len(),
        1
    );
    mesh.cluster("east")
        .delete("/api/v1/namespaces/default/services/web")
        .await
        .unwrap();
    let key = "cilium/cache/services/v1/east/default/web";
    let gone = || async {
        if mesh.west.key(key).await?.is_none() {
            Ok(())
        } else {
            Err(mw_testbed::Error::Object("it is there".into()))
        }
    };
    eventually(SOON, gone).await.unwrap();
}

#[tokio::test]
async fn a_wrong_key_is_not_ready_and_harms_no_other() {
    let Some(mesh) = mesh().await else { return };
    let address = mesh.east.addresses()[0];
    let mut keys = by_common_files("east", address);
    keys.extend(by_common_files("named-wrong", address));
    keys.extend(by_common_files(
        "port-wrong",
        SocketAddrV4::new(*address.ip(), 1),
    ));
    keys.extend(by_common_files("other-ca", mesh.north.addresses()[0]));
    mesh.tell_west(&keys).await;
    until(&mesh.west, "east", |remote| remote.ready).await;
    until(&mesh.west, "named-wrong", |remote| {
        remote.connected && !remote.ready && remote.id.is_none()
    })
    .await;
    for name in ["other-ca", "port-wrong"] {
        until(&mesh.west, name, |remote| {
            !remote.connected && !remote.ready
        })
        .await;
    }
}

#[tokio::test]
async fn agents_find_the_remotes_that_kvstoremesh_reads_in_their_own_etcd() {
    let Some(mesh) = mesh().await else { return };
    mesh.connect_west().await;
    let own = "clustermesh-apiserver.kube-system.svc:2379";
    let mut keys = Keys::from([("east".to_owned(), config(own, "common-etcd-client"))]);
    keys.insert("absent".to_owned(), config(own, "common-etcd-client"));
    keys.insert("without-files".to_owned(), config(own, "local-etcd-client"));
    tell(mesh.cluster("west"), "cilium-clustermesh", &keys).await;
    // A remote is ready a moment before it appears in the own etcd.
    until_key(&mesh.west, "cilium/cluster-config/east", |config| {
        config.contains("\"cached\":true")
    })
    .await;
    let views = mesh.west.agent_views().await.unwrap();
    assert_eq!(
        views.keys().collect::<Vec<_>>(),
        ["absent", "east", "without-files"]
    );
    assert!(
        views["east"].as_ref().unwrap().contains("\"cached\":true"),
        "{views:?}"
    );
    assert!(
        views["absent"].is_err() && views["without-files"].is_err(),
        "{views:?}"
    );
}

#[tokio::test]
async fn a_removed_key_disconnects_and_comes_back() {
    let Some(mesh) = mesh().await else { return };
    mesh.connect_west().await;
    mesh.tell_west(&Keys::new()).await;
    let gone = || async {
        match mesh.west.remotes().await {
            Ok(remotes) if remotes.is_empty() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    eventually(SOON, gone).await.unwrap();
    mesh.connect_west().await;
}

#[tokio::test]
async fn certificates_end_and_are_renewed() {
    let Some(mut mesh) = mesh().await else { return };
    mesh.connect_west().await;
    mesh.east
        .renew(Some(SystemTime::now() - Duration::from_secs(60)))
        .await
        .unwrap();
    eventually(SOON, || async {
        let served = mesh.east.key("cilium/.none").await;
        if served.is_err() {
            Ok(())
        } else {
            Err("the old certificate is served")
        }
    })
    .await
    .unwrap();
    let keys = by_common_files("east", mesh.east.addresses()[0]);
    mesh.tell_west(&keys).await;
    until(&mesh.west, "east", |remote| !remote.connected).await;
    // Both sides get new certificates; the key in the Secret is unchanged.
    mesh.east.renew(None).await.unwrap();
    mesh.west.renew(None).await.unwrap();
    until(&mesh.west, "east", |remote| remote.ready).await;
}

#[tokio::test]
async fn clusters_of_different_cas_read_each_other_by_files_that_they_gave() {
    let Some(mesh) = mesh().await else { return };
    let (east, north) = (mesh.east.addresses()[0], mesh.north.addresses()[0]);
    assert!(
        (30_000..32_768).contains(&north.port()),
        "a node port: {north}"
    );
    let (of_east, of_north) = (
        mesh.east.remote_client().unwrap().clone(),
        mesh.north.remote_client().unwrap().clone(),
    );
    let keys = by_own_files("north", north, &of_north);
    tell(mesh.cluster("east"), "cilium-kvstoremesh", &keys).await;
    let keys = by_own_files("east", east, &of_east);
    tell(mesh.cluster("north"), "cilium-clustermesh", &keys).await;
    until(&mesh.east, "north", |remote| {
        remote.ready && remote.id == Some(3)
    })
    .await;
    until(&mesh.north, "east", |remote| {
        remote.ready && remote.id == Some(1)
    })
    .await;
    tell(mesh.cluster("east"), "cilium-kvstoremesh", &Keys::new()).await;
}

#[tokio::test]
async fn another_ca_is_read_once_its_files_are_there() {
    let Some(mut mesh) = mesh().await else { return };
    let next = Ca::new().unwrap();
    mesh.north.replace_ca(&next).await.unwrap();
    assert_eq!(mesh.north.remote_client().unwrap().ca, next.pem());
    let (address, files) = (
        mesh.north.addresses()[0],
        mesh.north.remote_client().unwrap().clone(),
    );
    let keys = by_own_files("north", address, &files);
    mesh.tell_west(&keys).await;
    until(&mesh.west, "north", |remote| remote.ready).await;
}

#[tokio::test]
async fn a_hung_etcd_and_a_strangers_certificate_are_not_connected() {
    let Some(mut mesh) = mesh().await else { return };
    mesh.connect_west().await;
    let address = mesh.east.addresses()[0];
    mesh.east.pause_etcd().unwrap();
    let keys = by_common_files("east", address);
    mesh.tell_west(&keys).await;
    until(&mesh.west, "east", |remote| !remote.connected).await;
    mesh.east.resume_etcd().unwrap();
    until(&mesh.west, "east", |remote| remote.ready).await;

    let stranger = Ca::new()
        .unwrap()
        .issue("stranger", &[address.ip().to_string()])
        .unwrap();
    mesh.east.serve(&stranger).unwrap();
    let keys = by_common_files("east", address);
    mesh.tell_west(&keys).await;
    until(&mesh.west, "east", |remote| !remote.connected).await;
    mesh.east.renew(None).await.unwrap();
    until(&mesh.west, "east", |remote| remote.ready).await;

    mesh.east.stop_etcd().unwrap();
    assert!(mesh.east.key("cilium/.heartbeat").await.is_err());
    mesh.east.start_etcd().await.unwrap();
    until_key(&mesh.east, "cilium/cluster-config/east", |config| {
        config.contains("\"id\":1")
    })
    .await;
    mesh.connect_west().await;
}

#[tokio::test]
async fn a_load_balancer_moves_and_its_old_address_refuses() {
    let Some(mut mesh) = mesh().await else { return };
    mesh.connect_west().await;
    let old = mesh.east.addresses()[0];
    mesh.east.move_balancer().await.unwrap();
    assert_ne!(mesh.east.addresses()[0], old);
    let service = mesh
        .cluster("east")
        .get("/api/v1/namespaces/kube-system/services/clustermesh-apiserver")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        service["status"]["loadBalancer"]["ingress"][0]["ip"],
        mesh.east.addresses()[0].ip().to_string()
    );
    eventually(SOON, || async {
        match std::net::TcpStream::connect(old) {
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    mesh.connect_west().await;
}

#[tokio::test]
async fn the_readers_view_is_a_metric_that_the_api_server_passes_on() {
    let Some(mesh) = mesh().await else { return };
    mesh.connect_west().await;
    let cluster = mesh.cluster("west");
    let rules = [rule("", "pods/proxy", &["get"])];
    let token = cluster
        .service_account("kube-system", "scraper", &rules)
        .await
        .unwrap();
    let ready = |line: &str| {
        let of_east = line.starts_with("cilium_kvstoremesh_remote_cluster_readiness_status{")
            && line.contains("target_cluster=\"east\"");
        of_east && line.ends_with(" 1")
    };
    eventually(SOON, || async {
        let (code, text) = cluster
            .text_as(&token, METRICS)
            .await
            .map_err(|error| error.to_string())?;
        if code == 200 && text.lines().any(ready) {
            Ok(())
        } else {
            Err(format!("{code}: {text}"))
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn an_alias_makes_a_name_of_the_mesh_known() {
    let Some(mut mesh) = mesh().await else { return };
    let address = mesh.east.addresses()[0];
    mesh.west
        .alias("east.mesh.cilium.io", *address.ip())
        .await
        .unwrap();
    let deployment = mesh.cluster("west").get(DEPLOYMENT).await.unwrap().unwrap();
    assert_eq!(
        deployment["spec"]["template"]["spec"]["hostAliases"][0]["hostnames"][0],
        "east.mesh.cilium.io"
    );
    let keys = by_common_files("east", address);
    let named = keys["east"].replace(&address.ip().to_string(), "east.mesh.cilium.io");
    mesh.tell_west(&Keys::from([("east".to_owned(), named)]))
        .await;
    until(&mesh.west, "east", |remote| remote.ready).await;
}

#[tokio::test]
async fn without_ca_and_id_the_pods_wait_and_roll_when_both_are_there() {
    let Some(mut mesh) = mesh().await else { return };
    let south = mesh.bed.cluster("south").unwrap();
    let available = || async {
        let deployment = south.get(DEPLOYMENT).await.unwrap().unwrap();
        deployment["status"]["availableReplicas"]
            .as_u64()
            .unwrap_or_default()
    };
    let ca = Ca::new().unwrap();
    let named = Exposure::LoadBalancerName("south.example".to_owned());
    let bare = CiliumSpec {
        name: None,
        id: None,
        ca: None,
        exposure: named,
        ..CiliumSpec::new("south", 4, &ca)
    };
    let mut cilium = Cilium::install(&mesh.bed, "south", bare).await.unwrap();
    assert!(available().await == 0 && cilium.pids().is_empty() && cilium.remotes().await.is_err());
    assert!(
        south
            .get("/api/v1/namespaces/kube-system/secrets/cilium-ca")
            .await
            .unwrap()
            .is_none()
    );

    cilium.replace_ca(&ca).await.unwrap();
    assert_eq!(
        (available().await, cilium.pids().len()),
        (0, 2),
        "kvstoremesh needs an id"
    );
    assert!(
        cilium
            .key("cilium/cluster-config/default")
            .await
            .unwrap()
            .is_some()
    );

    let path = "/api/v1/namespaces/kube-system/configmaps/cilium-config";
    south
        .merge_patch(
            path,
            &json!({ "data": { "cluster-name": "south", "cluster-id": "4" } }),
        )
        .await
        .unwrap();
    cilium.renew(None).await.unwrap();
    cilium.roll().await.unwrap();
    assert_eq!((available().await, cilium.pids().len()), (1, 3));
    assert!(
        cilium
            .key("cilium/cluster-config/south")
            .await
            .unwrap()
            .unwrap()
            .contains("\"id\":4")
    );

    // Its load balancer publishes only its host name. Both clusters trust both CAs, so
    // the reader's own files are valid.
    let address = cilium.addresses()[0];
    let Mesh {
        bed, west, ours, ..
    } = &mut *mesh;
    west.resolve("south.example", *address.ip()).unwrap();
    west.trust(&[&ca]).await.unwrap();
    cilium.trust(&[ours]).await.unwrap();
    let keys = Keys::from([(
        "south".to_owned(),
        config("south.example:2379", "common-etcd-client"),
    )]);
    tell(bed.cluster("west").unwrap(), "cilium-kvstoremesh", &keys).await;
    until(west, "south", |remote| remote.ready && remote.id == Some(4)).await;
}

#[tokio::test]
async fn the_objects_are_those_of_the_chart() {
    let Some(mesh) = mesh().await else { return };
    let north = mesh.cluster("north");
    let set = north
        .get("/apis/apps/v1/namespaces/kube-system/daemonsets/cilium")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(set["status"]["numberReady"], 1);
    let paths: Vec<&Value> = set["spec"]["template"]["spec"]["volumes"][0]["projected"]["sources"]
        [1]["secret"]["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["path"])
        .collect();
    assert_eq!(
        paths,
        [
            "common-etcd-client.key",
            "common-etcd-client.crt",
            "common-etcd-client-ca.crt"
        ]
    );
}

#[tokio::test]
async fn a_killed_test_leaves_no_process_and_no_mount_behind() {
    if mesh().await.is_none() {
        return;
    }
    let (mut child, folder, pids) = held(&["cilium"]);
    assert_eq!(
        pids.len(),
        5,
        "two of the cluster, three of Cilium: {pids:?}"
    );
    child.kill().unwrap(); // SIGKILL
    child.wait().unwrap();
    wait_until_gone(&pids, Path::new(&folder)).await;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&folder), "{mounts}");
}
