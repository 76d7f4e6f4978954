//! One tenant attacks another, with `--all-namespaces`, on real API servers with real rights. The
//! audit logs show which account wrote to which cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::{Duration, Instant};

use mw_testbed::Authority;
use mw_testbed::audit::AuditRecord;
use mw_testbed::etcd::MeshEtcd;
use mw_testbed::proxy::{Effect, Fault, Match, Verb, lies};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::access::{self, REMOTE_ACCOUNT};
use crate::bed::PEERS;
use crate::fleet::{FIVE, Fleet, Mark};
use crate::look::{none, until};
use crate::process::Operator;
use crate::trials::scenarios;
use mw_sim::kilo::{Mesh, Node, Site, World};

scenarios![
    copied_node_uids_lead_to_nobodys_cluster,
    copied_node_uids_lead_to_nobodys_cluster_whoever_comes_first,
    a_victims_address_without_credentials_leads_nowhere,
    tenants_that_share_a_cluster_write_with_their_own_credentials,
    no_mesh_writes_with_the_credentials_of_another,
    a_key_that_another_tenant_uses_in_a_shared_cluster_is_not_written_twice,
    a_member_that_never_answers_delays_no_other_mesh,
    a_member_that_lists_endlessly_delays_no_other_mesh,
    a_team_learns_nothing_of_the_network,
];

const TEAMS: [&str; 2] = ["team-a", "team-b"];
const VICTIM: usize = 0;
const ATTACKER: usize = 1;

/// Clusters of the victim and of the attacker; the hub is a member of both meshes.
const VICTIMS: &[&str] = &["hub", "east", "west"];
const ATTACKERS: &[&str] = &["hub", "north", "south"];

/// Replaces the mesh of all clusters by one of the victim and one of the attacker.
fn tenants(
    [victims, attackers]: [&'static str; 2],
    victim: &'static [&'static str],
    attacker: &'static [&'static str],
) -> impl FnOnce(&mut World) {
    move |world| {
        let mesh = |namespace: &str, name: &str, sites: &[&str]| {
            let sites: Vec<&Site> = sites.iter().map(|site| &world.sites[*site]).collect();
            Mesh {
                namespace: namespace.to_owned(),
                hub: "hub".to_owned(),
                ..Mesh::new(name, &sites)
            }
        };
        world.meshes = vec![
            mesh(victims, "victim", victim),
            mesh(attackers, "attacker", attacker),
        ];
    }
}

/// Starts an operator that acts on the meshes of both teams.
async fn operator_of_all(fleet: &mut Fleet) -> Operator {
    for namespace in TEAMS {
        access::widen(fleet.cluster("hub"), namespace).await;
    }
    fleet.operator(&["--all-namespaces"]).await
}

/// Fails unless the operator created this many Peers in a cluster and wrote no Peers of other
/// meshes.
fn wrote_only(fleet: &Fleet, since: &Mark, site: &str, mesh: &str, created: usize) {
    let writes: Vec<_> = fleet
        .peer_writes(since)
        .into_iter()
        .filter(|(of, _)| of == site)
        .map(|(_, call)| call)
        .collect();
    assert_eq!(
        writes.iter().filter(|call| call.verb == "create").count(),
        created,
        "creates in {site}: {writes:?}"
    );
    let strange: Vec<_> = writes
        .into_iter()
        .filter(|call| !call.name.starts_with(&format!("{mesh}--")))
        .collect();
    none(
        &strange,
        &format!("writes in {site} that are not of {mesh}"),
    );
}

/// Waits, and fails as soon as a cluster of the victim holds a Peer of the attacker's mesh.
async fn unharmed<T>(fleet: &Fleet, wait: impl Future<Output = T>) -> T {
    let intruder = async {
        loop {
            for site in ["east", "west"] {
                let peers = fleet.peers(site).await.unwrap_or_default();
                if let Some(name) = peers
                    .into_keys()
                    .find(|name| name.starts_with("attacker--"))
                {
                    return format!("{name} was written to {site}, which is the victim's");
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        intruder = intruder => panic!("{intruder}"),
        done = wait => done,
    }
}

/// Fails if the attacker's object reveals anything about the victim.
async fn says_nothing_of_the_victim(fleet: &Fleet) {
    let attacker = &fleet.world.meshes[ATTACKER];
    let object = fleet
        .cluster("hub")
        .get(&attacker.path())
        .await
        .unwrap()
        .unwrap();
    let events = fleet
        .cluster("hub")
        .list(&format!(
            "/apis/events.k8s.io/v1/namespaces/{}/events",
            attacker.namespace
        ))
        .await
        .unwrap();
    let notes: Vec<&Value> = events.iter().map(|event| &event["note"]).collect();
    let told = format!("{} {notes:?}", object["status"]);
    let victim = &fleet.world.meshes[VICTIM];
    let sites = victim
        .entries
        .iter()
        .filter(|entry| attacker.entries.iter().all(|own| own.name != entry.name));
    for word in sites
        .map(|entry| entry.name.as_str())
        .chain([victim.name.as_str(), victim.namespace.as_str()])
    {
        assert!(
            !told.contains(word),
            "the attacker is told of {word}: {told}"
        );
    }
}

async fn copied_node_uids_lead_to_nobodys_cluster() {
    copy_uids(TEAMS).await;
}

async fn copied_node_uids_lead_to_nobodys_cluster_whoever_comes_first() {
    copy_uids([TEAMS[1], TEAMS[0]]).await;
}

/// North copies the Node UIDs of east.
async fn copy_uids(teams: [&'static str; 2]) {
    let mut fleet = Fleet::of(&FIVE)
        .proxied(&["north"])
        .with(tenants(teams, VICTIMS, ATTACKERS))
        .build()
        .await;
    let nodes = fleet.cluster("east").list("/api/v1/nodes").await.unwrap();
    let text = |node: &Value, field: &str| node["metadata"][field].as_str().unwrap().to_owned();
    let uids: BTreeMap<String, String> = nodes
        .iter()
        .map(|node| (text(node, "name"), text(node, "uid")))
        .collect();
    fleet.proxy("north").add(Fault::new(
        Match::all().resource("nodes"),
        lies::other_uids(uids),
    ));
    let mark = fleet.mark();
    let _operator = operator_of_all(&mut fleet).await;
    unharmed(&fleet, fleet.converged()).await;
    fleet
        .annotate("south", "n1", "force-endpoint", Some("198.51.100.81:51820"))
        .await;
    fleet
        .annotate("north", "n1", "force-endpoint", Some("198.51.100.82:51820"))
        .await;
    fleet
        .annotate("east", "n1", "force-endpoint", Some("198.51.100.83:51820"))
        .await;
    unharmed(&fleet, fleet.converged()).await;
    for (site, mesh) in [
        ("east", "victim"),
        ("west", "victim"),
        ("north", "attacker"),
        ("south", "attacker"),
    ] {
        wrote_only(&fleet, &mark, site, mesh, 4);
    }
    says_nothing_of_the_victim(&fleet).await;
    fleet.finish().await;
}

async fn a_victims_address_without_credentials_leads_nowhere() {
    let mut fleet = Fleet::of(&FIVE)
        .with(tenants(TEAMS, VICTIMS, ATTACKERS))
        .build()
        .await;
    // It does not become ready: its hub and south exchange Peers, and north gets none.
    fleet.world.meshes[ATTACKER].active = false;
    let own = ["hub", "south"];
    let east = fleet.cluster("east");
    let garbage = east.kubeconfig(east.url(), "garbage");
    let ca = garbage
        .lines()
        .find(|line| line.contains("certificate-authority-data"))
        .unwrap();
    let stolen = [
        garbage.clone(),
        garbage.replace(&format!("{ca}\n"), ""),
        fleet
            .member_kubeconfig("north")
            .replace(fleet.cluster("north").url(), east.url()),
    ];
    fleet
        .write_secret("hub", TEAMS[ATTACKER], "north-kubeconfig", &stolen[0])
        .await;
    let mark = fleet.mark();
    let _operator = operator_of_all(&mut fleet).await;
    for (at, kubeconfig) in stolen.iter().enumerate() {
        fleet
            .write_secret("hub", TEAMS[ATTACKER], "north-kubeconfig", kubeconfig)
            .await;
        unharmed(
            &fleet,
            fleet.condition_of(ATTACKER, "Ready", "False", "ClusterUnreachable"),
        )
        .await;
        unharmed(&fleet, fleet.converged_but(&own)).await;
        fleet
            .annotate(
                "south",
                "n1",
                "force-endpoint",
                Some(&format!("198.51.100.84:{}", 5000 + at)),
            )
            .await;
        fleet
            .annotate(
                "east",
                "n1",
                "force-endpoint",
                Some(&format!("198.51.100.85:{}", 5000 + at)),
            )
            .await;
        unharmed(&fleet, fleet.converged_but(&own)).await;
    }
    for (site, mesh, created) in [
        ("east", "victim", 4),
        ("west", "victim", 4),
        ("north", "attacker", 0),
        ("south", "attacker", 2),
    ] {
        wrote_only(&fleet, &mark, site, mesh, created);
    }
    says_nothing_of_the_victim(&fleet).await;
    fleet.finish().await;
}

const OTHER_ACCOUNT: &str = "clustermesh-reader-b";

/// Both teams use west as storage cluster; the second one has its own account there.
async fn sharing(
    victim: &'static [&'static str],
    attacker: &'static [&'static str],
) -> (Fleet, Mark) {
    let fleet = Fleet::of(&FIVE)
        .with(tenants(TEAMS, victim, attacker))
        .build()
        .await;
    let west = fleet.cluster("west");
    let token = access::remote_account_as(west, OTHER_ACCOUNT).await;
    fleet
        .write_secret(
            "hub",
            TEAMS[ATTACKER],
            "west-kubeconfig",
            &west.kubeconfig(west.url(), &token),
        )
        .await;
    let mark = fleet.mark();
    (fleet, mark)
}

/// Fails unless each team wrote this many of its own Peers to west with its own account.
fn own_accounts(fleet: &Fleet, since: &Mark, created: [usize; 2]) {
    let writes: Vec<_> = fleet
        .peer_writes(since)
        .into_iter()
        .filter(|(site, _)| site == "west")
        .map(|(_, call)| call)
        .collect();
    for (account, mesh, created) in [
        (REMOTE_ACCOUNT, "victim", created[VICTIM]),
        (OTHER_ACCOUNT, "attacker", created[ATTACKER]),
    ] {
        let by: Vec<_> = writes
            .iter()
            .filter(|call| call.user.ends_with(&format!(":{account}")))
            .collect();
        let strange: Vec<_> = by
            .iter()
            .filter(|call| !call.name.starts_with(&format!("{mesh}--")))
            .collect();
        none(
            &strange,
            &format!("writes of {account} that are not of {mesh}"),
        );
        assert_eq!(
            by.iter().filter(|call| call.verb == "create").count(),
            created,
            "{account}: {writes:?}"
        );
    }
}

/// Fails if two Peers of a cluster share a key or prefix.
async fn nothing_twice(fleet: &Fleet, site: &str) {
    let (mut seen, mut twice) = (BTreeSet::new(), Vec::new());
    for peer in fleet.cluster(site).list(PEERS).await.unwrap() {
        let prefixes = peer["spec"]["allowedIPs"].as_array().unwrap().iter();
        twice.extend(
            prefixes
                .chain([&peer["spec"]["publicKey"]])
                .map(Value::to_string)
                .filter(|held| !seen.insert(held.clone())),
        );
    }
    none(&twice, &format!("in two Peers of {site}"));
}

async fn tenants_that_share_a_cluster_write_with_their_own_credentials() {
    let (mut fleet, mark) = sharing(&["east", "west"], &["north", "west"]).await;
    let _operator = operator_of_all(&mut fleet).await;
    fleet.converged().await;
    fleet
        .annotate("west", "n1", "force-endpoint", Some("198.51.100.86:51820"))
        .await;
    fleet
        .annotate("east", "n1", "force-endpoint", Some("198.51.100.87:51820"))
        .await;
    fleet
        .annotate("north", "n1", "force-endpoint", Some("198.51.100.88:51820"))
        .await;
    fleet.converged().await;
    nothing_twice(&fleet, "west").await;
    own_accounts(&fleet, &mark, [2, 2]);
    says_nothing_of_the_victim(&fleet).await;

    // One team leaves; the other is not affected.
    let mark = fleet.mark();
    fleet.delete_mesh(ATTACKER).await;
    fleet.gone(ATTACKER).await;
    fleet.converged().await;
    let touched: Vec<_> = fleet
        .peer_writes(&mark)
        .into_iter()
        .filter(|(_, call)| !call.name.starts_with("attacker--"))
        .collect();
    none(&touched, "writes that are not of the mesh that was deleted");
    fleet.finish().await;
}

/// Both meshes contain the pair hub and west; the older mesh keeps it.
async fn no_mesh_writes_with_the_credentials_of_another() {
    let (mut fleet, mark) = sharing(VICTIMS, &["hub", "north", "west"]).await;
    fleet.world.meshes[ATTACKER].active = false;
    let _operator = operator_of_all(&mut fleet).await;
    for (site, peer) in [
        ("west", "attacker--north--n2"),
        ("west", "victim--east--n2"),
        ("north", "attacker--west--n2"),
    ] {
        until(format!("{peer} in {site}"), || async {
            fleet.peer(site, peer).await.ok_or("not yet".to_owned())
        })
        .await;
    }
    fleet
        .condition_of(ATTACKER, "Ready", "False", "DuplicatePeering")
        .await;
    own_accounts(&fleet, &mark, [4, 2]);
    nothing_twice(&fleet, "west").await;
    fleet.finish().await;
}

/// A node of north claims the key of a node of east.
async fn a_key_that_another_tenant_uses_in_a_shared_cluster_is_not_written_twice() {
    let (mut fleet, mark) = sharing(&["east", "west"], &["north", "west"]).await;
    let _operator = operator_of_all(&mut fleet).await;
    fleet.converged().await;
    let key = fleet.world.sites["east"].nodes["n1"]
        .annotation("key")
        .unwrap()
        .to_owned();
    let mut thief = Node::new(fleet.world.sites["north"].number, 3);
    thief.annotations.insert("key".into(), key);
    fleet
        .cluster("north")
        .create(&thief.object())
        .await
        .unwrap();
    fleet
        .annotate_unseen(
            "north",
            "n2",
            &[(
                "key",
                fleet.world.sites["east"].nodes["n2"].annotation("key"),
            )],
        )
        .await;
    fleet
        .condition_of(ATTACKER, "Ready", "False", "KeyTaken")
        .await;
    fleet
        .annotate("east", "n1", "force-endpoint", Some("198.51.100.89:51820"))
        .await;
    until("the victim's change", || async {
        let peer = fleet
            .peer("west", "victim--east--n1")
            .await
            .unwrap_or_default();
        if peer["spec"]["endpoint"]["dnsOrIP"]["ip"] == "198.51.100.89" {
            Ok(())
        } else {
            Err(peer.to_string())
        }
    })
    .await;
    nothing_twice(&fleet, "west").await;
    fleet
        .condition_of(VICTIM, "Ready", "True", "Reconciled")
        .await;
    let deletes = |(site, call): &(String, AuditRecord)| {
        site == "west" && call.verb == "delete" && call.name.starts_with("victim--")
    };
    none(
        &fleet
            .peer_writes(&mark)
            .into_iter()
            .filter(deletes)
            .collect::<Vec<_>>(),
        "the victim's Peers were deleted",
    );
    fleet.finish().await;
}

async fn a_member_that_never_answers_delays_no_other_mesh() {
    stall(|| Effect::Hang, Match::all()).await;
}

async fn a_member_that_lists_endlessly_delays_no_other_mesh() {
    stall(
        || lies::endless_list(50, &Node::new(9, 9).object()),
        Match::verb(Verb::List),
    )
    .await;
}

/// North stalls from the start, and again when the victim's mesh is deleted.
async fn stall(stalling: impl Fn() -> Effect, on: Match) {
    // Shorter than the request timeout of 5 s.
    const PATIENCE: Duration = Duration::from_secs(4);
    let mut fleet = Fleet::of(&FIVE)
        .proxied(&["north"])
        .with(tenants(TEAMS, VICTIMS, ATTACKERS))
        .build()
        .await;
    fleet.world.meshes[ATTACKER].active = false;
    for namespace in TEAMS {
        access::widen(fleet.cluster("hub"), namespace).await;
    }
    // Start once and wait for rights and tokens to take effect.
    fleet.operator(&["--all-namespaces"]).await.kill();
    let fault = fleet.proxy("north").add(Fault::new(on.clone(), stalling()));
    let start = Instant::now();
    let _operator = fleet.operator(&["--all-namespaces"]).await;
    fleet
        .condition_of(VICTIM, "Ready", "True", "Reconciled")
        .await;
    assert!(
        start.elapsed() < PATIENCE,
        "the start took {:?}",
        start.elapsed()
    );
    assert!(fleet.proxy("north").count(&on) > 0, "north was never asked");
    fleet
        .annotate("east", "n1", "force-endpoint", Some("198.51.100.90:51820"))
        .await;
    fleet.converged_but(ATTACKERS).await;

    fleet.proxy("north").remove(fault);
    fleet
        .condition_of(ATTACKER, "Ready", "True", "Reconciled")
        .await;
    fleet.proxy("north").forget_counts();
    fleet.proxy("north").add(Fault::new(on.clone(), stalling()));
    fleet
        .proxy("north")
        .add(Fault::new(Match::verb(Verb::Watch), Effect::answer(410)));
    fleet.proxy("north").cut_watches(Match::all());
    until("north is asked", || async {
        if fleet.proxy("north").count(&on) > 0 {
            Ok(())
        } else {
            Err("not yet".to_owned())
        }
    })
    .await;
    let start = Instant::now();
    fleet.delete_mesh(VICTIM).await;
    fleet.gone(VICTIM).await;
    assert!(
        start.elapsed() < PATIENCE,
        "the deletion took {:?}",
        start.elapsed()
    );
    fleet.holds(&["east", "west"]).await;
    fleet.finish().await;
}

/// A closed port, a silent port and a TLS port look the same to a team; the log distinguishes them.
/// The pages of a server that is no Kubernetes API are not shown.
async fn a_team_learns_nothing_of_the_network() {
    let mut fleet = Fleet::of(&FIVE)
        .proxied(&["north"])
        .with(tenants(TEAMS, VICTIMS, ATTACKERS))
        .build()
        .await;
    fleet.world.meshes[ATTACKER].active = false;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let authority = Authority::new("elsewhere").unwrap();
    let identity = authority
        .issue("elsewhere", &["127.0.0.1", "*.mesh.cilium.io"])
        .unwrap();
    let etcd = MeshEtcd::start(&authority, &identity).await.unwrap();
    let ports = [
        (closed.local_addr().unwrap().port(), "Connection refused"),
        (silent.local_addr().unwrap().port(), "deadline has elapsed"),
        (etcd.port(), "invalid peer certificate"),
    ];
    drop(closed);
    withdraw_north(&fleet).await;
    let operator = operator_of_all(&mut fleet).await;
    let mut texts = BTreeSet::new();
    for (port, cause) in ports {
        told_of_north(&fleet, "not found").await;
        let url = format!("https://127.0.0.1:{port}");
        let kubeconfig = fleet.cluster("north").kubeconfig(&url, "a-token");
        fleet
            .write_secret("hub", TEAMS[ATTACKER], "north-kubeconfig", &kubeconfig)
            .await;
        until(format!("the log says {cause}"), || async {
            if operator.log().contains(cause) {
                Ok(())
            } else {
                Err("not yet".to_owned())
            }
        })
        .await;
        texts.insert(told_of_north(&fleet, "can't be reached").await);
        // Otherwise the next kubeconfig would have to work before it is used.
        withdraw_north(&fleet).await;
    }
    assert_eq!(texts.len(), 1, "{texts:?}");
    let page = json!({ "kind": "Wiki", "text": "page of wiki.internal" });
    fleet.proxy("north").add(Fault::new(
        Match::all(),
        Effect::reply(move |_| page.clone()),
    ));
    let through_proxy = fleet.member_kubeconfig("north");
    fleet
        .write_secret("hub", TEAMS[ATTACKER], "north-kubeconfig", &through_proxy)
        .await;
    let shown = told_of_north(&fleet, "cannot parse the response").await;
    assert!(!shown.contains("wiki"), "{shown}");
    unharmed(&fleet, fleet.converged_but(ATTACKERS)).await;
    fleet.finish().await;
}

/// Deletes the attacker's Secret of north.
async fn withdraw_north(fleet: &Fleet) {
    let namespace = TEAMS[ATTACKER];
    let path = format!("/api/v1/namespaces/{namespace}/secrets/north-kubeconfig");
    fleet.cluster("hub").delete(&path).await.unwrap();
}

/// Waits until the attacker's mesh says this of north, and returns the whole text.
async fn told_of_north(fleet: &Fleet, part: &str) -> String {
    let path = fleet.world.meshes[ATTACKER].path();
    until(format!("north: {part}"), || async {
        let mesh = fleet.cluster("hub").get(&path).await;
        let mesh = mesh.map_err(|error| error.to_string())?.unwrap_or_default();
        let rows = mesh["status"]["clusters"].as_array().cloned();
        let row = rows
            .unwrap_or_default()
            .into_iter()
            .find(|row| row["name"] == "north")
            .unwrap_or_default();
        match row["message"].as_str() {
            Some(text) if text.contains(part) => Ok(text.to_owned()),
            _ => Err(row.to_string()),
        }
    })
    .await
}
