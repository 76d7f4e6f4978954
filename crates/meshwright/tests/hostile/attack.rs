//! The hostile member: its Nodes and its attacks.

use std::time::Duration;

use mw_sim::kilo::{Mesh, World, key};
use mw_testbed::eventually;
use mw_testbed::proxy::{Effect, Fault, Match, ProxyOutcome, RequestInfo, Verb, lies};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::access;
use crate::bed::PEERS;
use crate::fleet::Fleet;
use crate::measure;
use crate::wait::until;

pub(crate) const HOSTILE: &str = "hostile";
const NAMES: [&str; 4] = ["hub", "east", "storage", HOSTILE];
const TEAM: &str = "team-b";
const HEALTHY_NODES: u8 = 12;
const NODES: usize = 10_000;
/// One in ten Nodes claims a healthy node's key, and one its pod CIDR.
pub(crate) const CLEAN_NODES: usize = NODES / 10 * 8;
/// Parallel requests while Nodes are created.
const LANES: usize = 8;
const BRING_UP: Duration = Duration::from_secs(180);
const KINDS: [&str; 2] = ["nodes", "peers"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Force {
    Quiet,
    /// A Node changes every second, and the list of Peers never ends.
    Changes,
    /// The list of Nodes never ends.
    Endless,
}

/// A healthy mesh, and a hostile one that shares the storage cluster with it under its own account.
pub(crate) async fn fleet() -> Fleet {
    let meshes = |world: &mut World| {
        world.sites.get_mut(HOSTILE).unwrap().nodes.clear();
        let healthy = Mesh::new(
            "healthy",
            &["hub", "east", "storage"].map(|name| &world.sites[name]),
        );
        let mut hostile = Mesh::new(
            "hostile",
            &[HOSTILE, "storage"].map(|name| &world.sites[name]),
        );
        (hostile.namespace, hostile.hub, hostile.active) =
            (TEAM.to_owned(), "hub".to_owned(), false);
        let entry = hostile.entry(HOSTILE).unwrap();
        (entry.pod_cidr, entry.wireguard_cidr) =
            ("10.64.0.0/10".to_owned(), "100.96.0.0/16".to_owned());
        world.meshes = vec![healthy, hostile];
    };
    let fleet = Fleet::of(&NAMES)
        .nodes(HEALTHY_NODES)
        .proxied(&[HOSTILE])
        .with(meshes)
        .build()
        .await;
    access::widen(fleet.cluster("hub"), TEAM).await;
    let storage = fleet.cluster("storage");
    let token = access::remote_account_as(storage, "clustermesh-reader-b").await;
    fleet
        .write_secret(
            "hub",
            TEAM,
            "storage-kubeconfig",
            &storage.kubeconfig(storage.url(), &token),
        )
        .await;
    let fill = |first| fill(&fleet, first);
    tokio::join!(
        fill(0),
        fill(1),
        fill(2),
        fill(3),
        fill(4),
        fill(5),
        fill(6),
        fill(7)
    );
    fleet
}

/// Creates every eighth Node.
async fn fill(fleet: &Fleet, first: usize) {
    for number in (first..NODES).step_by(LANES) {
        fleet.cluster(HOSTILE).create(&node(number)).await.unwrap();
    }
}

fn name(number: usize) -> String {
    format!("h{number:05}")
}

fn node(number: usize) -> Value {
    // A healthy node; cluster numbers start at one.
    let (site, at) = (
        1 + number / 10 % 3,
        1 + number / 10 % usize::from(HEALTHY_NODES),
    );
    let claims_key = number.is_multiple_of(10);
    let claims_network = number % 10 == 1;
    let key = if claims_key {
        key(&format!("{site}/{at}"))
    } else {
        key(&format!("hostile/{number}"))
    };
    let network = if claims_network {
        format!("10.{site}.{at}.0/24")
    } else {
        format!("10.{}.{}.0/24", 64 + number / 256, number % 256)
    };
    let endpoint = format!("203.0.{}.{}:51820", number / 256, number % 256);
    let kilo = [
        ("key", key),
        (
            "wireguard-ip",
            format!("100.96.{}.{}/16", number / 256, number % 256),
        ),
        ("endpoint", endpoint.clone()),
        ("force-endpoint", endpoint),
        ("internal-ip", format!("192.168.{site}.{at}/24")),
        ("granularity", "full".to_owned()),
        ("last-seen", mw_sim::kilo::LAST_SEEN.to_string()),
        ("location", "everywhere".to_owned()),
    ];
    let annotations: serde_json::Map<String, Value> = kilo
        .into_iter()
        .map(|(name, value)| (format!("kilo.squat.ai/{name}"), json!(value)))
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": name(number), "annotations": annotations },
        "spec": { "podCIDR": network, "podCIDRs": [network] },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    })
}

/// Waits until the storage cluster holds the Peers of this many hostile Nodes.
pub(crate) async fn all_written(fleet: &Fleet, peers: usize) {
    // Peers of the healthy mesh, and the foreign one.
    let wanted = peers + 2 * usize::from(HEALTHY_NODES) + 1;
    eventually(BRING_UP, || async {
        let path = format!("{PEERS}?limit=1");
        let list = fleet
            .cluster("storage")
            .request("GET", &path, None)
            .await
            .map_err(|error| error.to_string())?
            .body;
        let more = list["metadata"]["remainingItemCount"].as_u64().unwrap_or(0);
        let found = 1 + usize::try_from(more).unwrap();
        if found >= wanted {
            Ok(())
        } else {
            Err(format!("{found} of {wanted} Peers"))
        }
    })
    .await
    .unwrap();
}

fn lists(resource: &str) -> Match {
    Match::verb(Verb::List).resource(resource)
}

/// Ends the watches of a kind and forces a relist.
fn relist(fleet: &Fleet, resource: &str) {
    let proxy = fleet.proxy(HOSTILE);
    proxy.add(
        Fault::new(
            Match::verb(Verb::Watch).resource(resource),
            Effect::answer(410),
        )
        .times(1),
    );
    proxy.cut_watches(Match::all().resource(resource));
}

/// Stops the attack.
pub(crate) fn stop(fleet: &Fleet) {
    fleet.proxy(HOSTILE).clear();
}

/// Stops the attack and waits until the operator has listed and watches the member again.
pub(crate) async fn quiet(fleet: &Fleet) {
    let proxy = fleet.proxy(HOSTILE);
    proxy.clear();
    proxy.forget_counts();
    KINDS
        .into_iter()
        .for_each(|resource| relist(fleet, resource));
    until("the hostile member is watched again", || async {
        let seen = proxy.requests();
        let is_watched = |resource: &&str| {
            let opened = |(request, outcome): &(RequestInfo, ProxyOutcome)| {
                request.verb == Verb::Watch
                    && request.resource == **resource
                    && *outcome == ProxyOutcome::Code(200)
            };
            seen.iter().any(opened)
        };
        if KINDS.iter().all(is_watched) {
            Ok(())
        } else {
            Err(format!("{:?}", proxy.counts()))
        }
    })
    .await;
    known(fleet).await;
}

/// Waits until the hostile mesh reports its hostile member as reachable.
pub(crate) async fn known(fleet: &Fleet) {
    row(fleet, "is known", |hostile| hostile["reachable"] == true).await;
}

/// Waits until it is reported as unreachable, with this reason.
pub(crate) async fn unknown(fleet: &Fleet, reason: &str) {
    row(fleet, "is unknown", |hostile| {
        let text = hostile["message"].as_str().unwrap_or_default();
        hostile["reachable"] == false && text.contains(reason)
    })
    .await;
}

/// Waits until the hostile mesh's status says this of its hostile member.
async fn row(fleet: &Fleet, what: &str, wanted: impl Fn(&Value) -> bool) {
    let (path, wanted) = (fleet.world.meshes[1].path(), &wanted);
    until(format!("the hostile member {what}"), || async {
        let mesh = fleet
            .cluster("hub")
            .get(&path)
            .await
            .map_err(|error| error.to_string())?
            .unwrap_or_default();
        let clusters = mesh["status"]["clusters"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let hostile = clusters
            .into_iter()
            .find(|cluster| cluster["name"] == HOSTILE)
            .unwrap_or_default();
        if wanted(&hostile) {
            Ok(())
        } else {
            Err(hostile.to_string())
        }
    })
    .await;
}

/// All lists of Nodes have 2 GB.
pub(crate) fn large_lists(fleet: &Fleet) {
    fleet
        .proxy(HOSTILE)
        .add(Fault::new(lists("nodes"), lies::fat(200_000)));
    relist(fleet, "nodes");
}

/// The watch on Nodes tells of 100 changes of 1 MiB each. All lists after it are large too, so that
/// the member stays unknown.
pub(crate) async fn large_events(fleet: &Fleet) {
    let proxy = fleet.proxy(HOSTILE);
    let watch = Match::verb(Verb::Watch).resource("nodes");
    proxy.add(Fault::new(watch.clone(), lies::fat(1 << 20)));
    proxy.add(Fault::new(lists("nodes"), lies::fat(1 << 20)));
    proxy.forget_counts();
    proxy.cut_watches(watch.clone());
    until("the Nodes are watched again", || async {
        match proxy.count(&watch) {
            0 => Err("not yet".to_owned()),
            _ => Ok(()),
        }
    })
    .await;
    assert_eq!(proxy.count(&lists("nodes")), 0, "the watch goes on");
    for number in 0..100 {
        let patch = json!({ "metadata": { "annotations": { "changed": number.to_string() } } });
        fleet
            .cluster(HOSTILE)
            .merge_patch(&format!("/api/v1/nodes/{}", name(number)), &patch)
            .await
            .unwrap();
    }
}

/// Measures changes of the healthy mesh under attack.
pub(crate) async fn attack(fleet: &Fleet, force: Force, slice: usize) -> Vec<Duration> {
    // Pages have the requested size: the operator rejects smaller ones at once.
    let node = node(0);
    let spec = json!({ "allowedIPs": ["10.64.0.0/24"], "publicKey": key("endless") });
    let peer = json!({ "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "Peer", "metadata": {}, "spec": spec });
    let (resource, object, page) = if force == Force::Endless {
        ("nodes", &node, 200)
    } else {
        ("peers", &peer, 4_000)
    };
    let proxy = fleet.proxy(HOSTILE);
    proxy.forget_counts();
    proxy.add(Fault::new(
        lists(resource),
        lies::endless_list(page, object),
    ));
    relist(fleet, resource);
    until("the list that never ends is read", || async {
        if proxy.count(&lists(resource)) > 0 {
            Ok(())
        } else {
            Err("not yet".to_owned())
        }
    })
    .await;
    if force == Force::Endless {
        return measure::changes(fleet, slice).await;
    }
    tokio::select! {
        biased;
        times = measure::changes(fleet, slice) => times,
        () = change_nodes(fleet, slice) => unreachable!("it never ends"),
    }
}

/// Changes the key of a hostile Node every second.
async fn change_nodes(fleet: &Fleet, slice: usize) {
    for second in 0.. {
        let number = 2 + (slice * 100 + second) * 10 % NODES;
        let annotations =
            json!({ "kilo.squat.ai/key": key(&format!("hostile/{number}/{slice}/{second}")) });
        let patch = json!({ "metadata": { "annotations": annotations } });
        fleet
            .cluster(HOSTILE)
            .merge_patch(&format!("/api/v1/nodes/{}", name(number)), &patch)
            .await
            .unwrap();
        sleep(Duration::from_secs(1)).await;
    }
}
