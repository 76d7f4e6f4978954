//! The stand-in for Kilo's agent on real hosts and a real API server, grouped by the
//! sections of the facts about Kilo. Its decisions are tested in `src/kilo/tests.rs`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test may fail loudly"
)]

use std::net::IpAddr;
use std::time::{Duration, Instant};

use k8s_openapi::api::rbac::v1::PolicyRule;
use mw_testbed::kilo::{Agent, AgentSpec, Clock, Granularity, Names};
use mw_testbed::net::lan::{DEVICE, UPLINK};
use mw_testbed::net::{
    Flow, Host, Impairment, Lan, LanSpec, Namespace, PeerConfig, Route, Wire, ping,
};
use mw_testbed::{Cluster, PEER_CRD, Testbed, eventually, or_skip};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

const SOON: Duration = Duration::from_secs(20);
const SPEED: u32 = 20;
const PEERS: &str = "/apis/kilo.squat.ai/v1alpha1/peers";

/// Never dropped: the supervisors end the servers with the process.
static SHARED: OnceCell<Option<Testbed>> = OnceCell::const_new();
/// Each cluster is used by one test at a time.
const CLUSTERS: [&str; 3] = ["one", "three", "two"];
static TURNS: [Mutex<()>; 3] = [const { Mutex::const_new(()) }; 3];

async fn shared(name: &str) -> Option<&'static Cluster> {
    or_skip(Namespace::new())?;
    let bed = SHARED
        .get_or_init(|| Testbed::start_or_skip(&CLUSTERS))
        .await
        .as_ref()?;
    let cluster = bed.cluster(name).unwrap();
    cluster.install_crd(PEER_CRD).await.unwrap();
    Some(cluster)
}

/// A cluster with agents, and a remote host without one.
struct Stage {
    cluster: &'static Cluster,
    spec: AgentSpec,
    hosts: Vec<Host>,
    agents: Vec<Option<Agent>>,
    far: Host,
    lans: [Lan; 2],
    wire: Wire,
    _turn: MutexGuard<'static, ()>,
}

async fn stage(
    name: &str,
    nodes: u8,
    granularity: Granularity,
    annotations: &[(&str, &str)],
) -> Option<Stage> {
    let turn = TURNS[CLUSTERS
        .iter()
        .position(|cluster| *cluster == name)
        .unwrap()]
    .lock()
    .await;
    let cluster = shared(name).await?;
    let rule = |group: &str, resource: &str, verbs: &[&str]| PolicyRule {
        api_groups: Some(vec![group.into()]),
        resources: Some(vec![resource.into()]),
        verbs: verbs.iter().map(|verb| (*verb).into()).collect(),
        ..PolicyRule::default()
    };
    let rules = [
        rule("", "nodes", &["list", "patch", "watch"]),
        rule("kilo.squat.ai", "peers", &["list", "watch"]),
    ];
    let token = cluster
        .service_account("kube-system", "kilo", &rules)
        .await
        .unwrap();
    let range = "100.64.1.0/24".parse().unwrap();
    let (clock, names, running_for) = (Clock::new(SPEED), Names::default(), Duration::ZERO);
    let spec = AgentSpec {
        token,
        granularity,
        range,
        clock,
        names,
        running_for,
    };
    let wire = Wire::default();
    let near = Lan::new(
        &wire,
        LanSpec {
            number: 1,
            hidden: None,
        },
    )
    .await
    .unwrap();
    let away = Lan::new(
        &wire,
        LanSpec {
            number: 2,
            hidden: None,
        },
    )
    .await
    .unwrap();
    let far = away.add_host(1).await.unwrap();
    let (mut hosts, mut agents) = (Vec::new(), Vec::new());
    for at in 1..=nodes {
        let host = near.add_host(at).await.unwrap();
        cluster.create(&node(&host, annotations)).await.unwrap();
        // The last one checks in first, the others follow at intervals of 10 s of
        // Kilo's time.
        let running_for = Duration::from_secs(10) * u32::from(at - 1);
        agents.push(Some(
            Agent::start(
                cluster,
                &host,
                &AgentSpec {
                    running_for,
                    ..spec.clone()
                },
            )
            .unwrap(),
        ));
        hosts.push(host);
    }
    Some(Stage {
        cluster,
        spec,
        hosts,
        agents,
        far,
        lans: [near, away],
        wire,
        _turn: turn,
    })
}

fn node(host: &Host, annotations: &[(&str, &str)]) -> Value {
    let mut all = json!({ "kilo.squat.ai/location": "here" });
    for (name, value) in annotations {
        all[format!("kilo.squat.ai/{name}")] = json!(value);
    }
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": host.name, "annotations": all }, "spec": { "podCIDR": host.pod_cidrs[0].to_string() } })
}

impl Stage {
    async fn annotation(&self, node: &str, name: &str) -> Option<String> {
        let node = self
            .cluster
            .get(&format!("/api/v1/nodes/{node}"))
            .await
            .unwrap()
            .unwrap();
        node["metadata"]["annotations"][format!("kilo.squat.ai/{name}")]
            .as_str()
            .map(str::to_owned)
    }

    async fn annotated(&self, node: &str, name: &str, wanted: Option<&str>) {
        eventually(SOON, || async {
            let found = self.annotation(node, name).await;
            if found.as_deref() == wanted {
                Ok(())
            } else {
                Err(format!("{name} of {node} is {found:?}, not {wanted:?}"))
            }
        })
        .await
        .unwrap();
    }

    /// Waits for the next check-in of a node.
    async fn checked_in(&self, node: &str) {
        let before = self.annotation(node, "last-seen").await;
        eventually(SOON, || async {
            if self.annotation(node, "last-seen").await == before {
                Err("no check-in yet")
            } else {
                Ok(())
            }
        })
        .await
        .unwrap();
    }

    /// Adds a Peer that never answers.
    async fn add_silent_peer(&self, name: &str, number: u8) {
        let mut peer = self.far_peer(&[&format!("10.9.{number}.0/24")]);
        peer["metadata"]["name"] = json!(name);
        peer["spec"]["publicKey"] = json!(format!("{}{number}=", "A".repeat(42)));
        self.cluster.create(&peer).await.unwrap();
    }

    /// Returns a Peer for the remote host.
    fn far_peer(&self, allowed: &[&str]) -> Value {
        let endpoint = json!({ "dnsOrIP": { "ip": self.far.external.unwrap().to_string() }, "port": self.far.device.port() });
        let spec = json!({ "publicKey": self.far.device.key().to_string(), "allowedIPs": allowed, "endpoint": endpoint });
        json!({ "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "Peer", "metadata": { "name": "far" }, "spec": spec })
    }

    /// Configures the first host, and everything behind it, on the remote host.
    async fn far_knows(&self, allowed: &[&str]) {
        let allowed: Vec<_> = allowed.iter().map(|cidr| cidr.parse().unwrap()).collect();
        let first = &self.hosts[0];
        let endpoint = Some(first.endpoint().unwrap().parse().unwrap());
        self.far.links.up(DEVICE).await.unwrap();
        self.far.device.set_up(true);
        self.far.device.configure(&[PeerConfig {
            key: first.device.key(),
            preshared: None,
            endpoint,
            keepalive: 0,
            allowed: allowed.clone(),
        }]);
        for to in allowed {
            self.far
                .links
                .replace_route(&Route {
                    to,
                    via: None,
                    source: None,
                    device: DEVICE.into(),
                })
                .await
                .unwrap();
        }
    }

    /// Cleans up for the next test on this cluster.
    async fn end(mut self) {
        for agent in self.agents.drain(..).flatten() {
            agent.stop().await;
        }
        for collection in [PEERS, "/api/v1/nodes"] {
            self.cluster
                .request("DELETE", collection, None)
                .await
                .unwrap();
        }
    }
}

async fn reaches(from: &Namespace, to: IpAddr) {
    eventually(SOON, || async {
        let answered = ping(from, None, to)
            .await
            .map_err(|error| error.to_string())?;
        if answered {
            Ok(())
        } else {
            Err(format!("{to} does not answer"))
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn s3_annotations_are_written_removed_on_a_clean_stop_and_left_on_a_kill() {
    let Some(mut stage) = stage("one", 2, Granularity::Full, &[]).await else {
        return;
    };
    stage
        .annotated("n1", "endpoint", Some("198.18.1.1:51820"))
        .await;
    stage
        .annotated("n1", "internal-ip", Some("192.168.1.1/24"))
        .await;
    stage
        .annotated("n1", "key", Some(&stage.hosts[0].device.key().to_string()))
        .await;
    stage.annotated("n1", "granularity", Some("full")).await;
    // Section 2: addresses by position among the ready nodes, once all are ready.
    stage
        .annotated("n1", "wireguard-ip", Some("100.64.1.1/24"))
        .await;
    stage
        .annotated("n2", "wireguard-ip", Some("100.64.1.2/24"))
        .await;
    let seen: u64 = stage
        .annotation("n1", "last-seen")
        .await
        .unwrap()
        .parse()
        .unwrap();
    assert!(stage.spec.clock.unix_seconds().abs_diff(seen) < 90);
    reaches(&stage.hosts[0].pod, stage.hosts[1].pod_addresses[0]).await;

    stage.agents[0].take().unwrap().stop().await;
    for name in [
        "endpoint",
        "internal-ip",
        "key",
        "last-seen",
        "wireguard-ip",
        "discovered-endpoints",
        "granularity",
    ] {
        assert_eq!(stage.annotation("n1", name).await, None, "{name}");
    }
    assert_eq!(
        stage.annotation("n1", "location").await.as_deref(),
        Some("here"),
        "not written by the agent"
    );
    assert_eq!(
        stage.hosts[0].device.peers().len(),
        1,
        "the device is unchanged"
    );
    stage
        .annotated("n2", "wireguard-ip", Some("100.64.1.1/24"))
        .await;

    stage.agents[1].take().unwrap().kill();
    assert!(
        stage
            .annotation("n2", "key")
            .await
            .is_some_and(|key| !key.is_empty())
    );
    stage.end().await;
}

#[tokio::test]
async fn s2_the_next_leads_when_the_leader_is_silent_and_steps_back_when_it_returns() {
    let Some(mut stage) = stage("one", 2, Granularity::Location, &[]).await else {
        return;
    };
    stage
        .annotated("n1", "wireguard-ip", Some("100.64.1.1/24"))
        .await;
    stage.annotated("n2", "wireguard-ip", Some("")).await;
    stage.agents[0].take().unwrap().kill();
    let start = Instant::now();
    stage
        .annotated("n2", "wireguard-ip", Some("100.64.1.1/24"))
        .await;
    let kilos = start.elapsed() * SPEED;
    eprintln!(
        "s6: the next node leads {} s of Kilo's time after the leader's agent died",
        kilos.as_secs()
    );
    assert!(
        kilos < Duration::from_secs(150),
        "60 s until expiry, 30 s until the next check, 30 s until the next write, and our own delay"
    );
    assert_eq!(
        stage.annotation("n1", "wireguard-ip").await.as_deref(),
        Some("100.64.1.1/24"),
        "the annotation of the dead agent remains"
    );
    stage.agents[0] = Some(Agent::start(stage.cluster, &stage.hosts[0], &stage.spec).unwrap());
    stage.annotated("n2", "wireguard-ip", Some("")).await;
    stage.end().await;
}

#[tokio::test]
async fn s6_a_peer_that_comes_and_goes_is_followed_at_once_through_a_non_leader_too() {
    let Some(stage) = stage("two", 2, Granularity::Location, &[]).await else {
        return;
    };
    stage
        .annotated("n1", "wireguard-ip", Some("100.64.1.1/24"))
        .await;
    stage.far_knows(&["10.1.1.0/24", "10.1.2.0/24"]).await;
    let flow = Flow::start(
        "near to far",
        &stage.hosts[1].pod,
        stage.far.pod_addresses[0],
        Duration::from_millis(10),
    )
    .unwrap();
    stage
        .cluster
        .create(&stage.far_peer(&["10.2.1.0/24"]))
        .await
        .unwrap();
    let start = Instant::now();
    eventually(SOON, || async {
        flow.last_answered().ok_or("nothing arrives")
    })
    .await
    .unwrap();
    let created = start.elapsed();
    stage.cluster.delete(&format!("{PEERS}/far")).await.unwrap();
    let start = Instant::now();
    eventually(SOON, || async {
        if stage.hosts[0].device.peers().is_empty() {
            Ok(())
        } else {
            Err("still there")
        }
    })
    .await
    .unwrap();
    eprintln!(
        "s6: first ping {created:?} after a Peer was created; gone {:?} after it was deleted",
        start.elapsed()
    );
    stage.end().await;
}

#[tokio::test]
async fn s5_a_peer_over_the_local_pods_cuts_them_off_and_its_end_does_not_bring_them_back() {
    let Some(stage) = stage("two", 1, Granularity::Full, &[]).await else {
        return;
    };
    stage
        .annotated("n1", "wireguard-ip", Some("100.64.1.1/24"))
        .await;
    let host = &stage.hosts[0];
    reaches(&host.namespace, host.pod_addresses[0]).await;
    stage
        .cluster
        .create(&stage.far_peer(&["10.1.1.0/24"]))
        .await
        .unwrap();
    let answers = || async {
        ping(&host.namespace, None, host.pod_addresses[0])
            .await
            .unwrap()
    };
    eventually(SOON, || async {
        if answers().await {
            Err("still there")
        } else {
            Ok(())
        }
    })
    .await
    .unwrap();
    stage.cluster.delete(&format!("{PEERS}/far")).await.unwrap();
    eventually(SOON, || async {
        if host.device.peers().is_empty() {
            Ok(())
        } else {
            Err("still there")
        }
    })
    .await
    .unwrap();
    assert!(!answers().await);
    stage.end().await;
}

#[tokio::test]
async fn s5_a_refused_route_keeps_the_routes_after_it_from_being_set() {
    let Some(stage) = stage("two", 1, Granularity::Full, &[]).await else {
        return;
    };
    stage
        .annotated("n1", "wireguard-ip", Some("100.64.1.1/24"))
        .await;
    let set = || async {
        stage.hosts[0]
            .links
            .routes()
            .await
            .unwrap()
            .iter()
            .map(|route| route.to.to_string())
            .collect::<Vec<_>>()
    };
    stage
        .cluster
        .create(&stage.far_peer(&["10.2.1.0/24", "10.3.3.7/24", "10.4.0.0/16"]))
        .await
        .unwrap();
    eventually(SOON, || async {
        if set().await.contains(&"10.4.0.0/16".into()) {
            Ok(())
        } else {
            Err("not yet")
        }
    })
    .await
    .unwrap();
    assert!(
        !set().await.contains(&"10.2.1.0/24".into()),
        "host bits are refused"
    );
    // IPv6 is rejected too, because the source would be IPv4.
    let both = json!({ "spec": { "allowedIPs": ["10.2.1.0/24", "fd00:2::/64"] } });
    stage
        .cluster
        .merge_patch(&format!("{PEERS}/far"), &both)
        .await
        .unwrap();
    eventually(SOON, || async {
        if stage.hosts[0].device.peers()[0].allowed.len() == 2 {
            Ok(())
        } else {
            Err("not yet")
        }
    })
    .await
    .unwrap();
    eventually(SOON, || async {
        if set().await.contains(&"10.4.0.0/16".into()) {
            Err("not yet")
        } else {
            Ok(())
        }
    })
    .await
    .unwrap();
    assert!(!set().await.contains(&"10.2.1.0/24".into()));
    stage
        .cluster
        .merge_patch(
            &format!("{PEERS}/far"),
            &json!({ "spec": { "allowedIPs": ["10.2.1.0/24"] } }),
        )
        .await
        .unwrap();
    eventually(SOON, || async {
        if set().await.contains(&"10.2.1.0/24".into()) {
            Ok(())
        } else {
            Err("not yet")
        }
    })
    .await
    .unwrap();
    stage.end().await;
}

/// Measures how long pings from the remote side are lost after an unrelated change on
/// this side.
async fn stall(name: &str, annotations: &[(&str, &str)]) -> Option<(usize, Duration)> {
    let stage = stage(name, 1, Granularity::Full, annotations).await?;
    stage
        .annotated("n1", "wireguard-ip", Some("100.64.1.1/24"))
        .await;
    stage.far_knows(&["10.1.1.0/24"]).await;
    stage
        .cluster
        .create(&stage.far_peer(&["10.2.1.0/24"]))
        .await
        .unwrap();
    reaches(&stage.far.pod, stage.hosts[0].pod_addresses[0]).await;
    let flow = Flow::start(
        "far to near",
        &stage.far.pod,
        stage.hosts[0].pod_addresses[0],
        Duration::from_millis(100),
    )
    .unwrap();
    let (start, configured) = (Instant::now(), stage.hosts[0].device.configured());
    stage.add_silent_peer("other", 0).await;
    eventually(SOON, || async {
        if stage.hosts[0].device.configured() > configured {
            Ok(())
        } else {
            Err("not yet")
        }
    })
    .await
    .unwrap();
    let changed = Instant::now();
    eventually(SOON, || async {
        if flow.answered_after(changed) {
            Ok(())
        } else {
            Err("nothing arrives")
        }
    })
    .await
    .unwrap();
    let report = flow.since(start).await;
    stage.end().await;
    Some((report.lost, report.gap))
}

#[tokio::test]
async fn s5_every_change_ends_all_sessions_and_the_other_side_stalls_unless_there_is_a_keepalive() {
    let Some((lost, gap)) = stall("three", &[]).await else {
        return;
    };
    let (lost_with, gap_with) = stall("three", &[("persistent-keepalive", "1")])
        .await
        .unwrap();
    eprintln!(
        "s5: an unrelated Peer costs the other side {lost} pings and {gap:?}; with a keepalive {lost_with} and {gap_with:?}"
    );
    assert!(
        (Duration::from_secs(10)..Duration::from_secs(17)).contains(&gap),
        "WireGuard's own 15 s: {gap:?}"
    );
    assert!(lost_with <= 1, "{gap_with:?}");
}

#[tokio::test]
async fn s3_a_node_without_annotations_ends_the_agent() {
    let Some(stage) = stage("two", 1, Granularity::Full, &[]).await else {
        return;
    };
    stage
        .annotated("n1", "wireguard-ip", Some("100.64.1.1/24"))
        .await;
    let host = stage.lans[0].add_host(7).await.unwrap();
    let bare = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": host.name }, "spec": { "podCIDR": host.pod_cidrs[0].to_string() } });
    stage.cluster.create(&bare).await.unwrap();
    let agent = Agent::start(stage.cluster, &host, &stage.spec).unwrap();
    eventually(SOON, || async {
        if agent.has_ended() {
            Ok(())
        } else {
            Err("it still runs")
        }
    })
    .await
    .unwrap();
    assert_eq!(stage.annotation("n7", "key").await, None);
    assert!(
        host.links
            .routes()
            .await
            .unwrap()
            .iter()
            .all(|route| route.device == UPLINK || route.device == "pod0")
    );
    stage.end().await;
}

#[tokio::test]
async fn s5_a_delete_that_the_watch_missed_leaves_the_wireguard_peer() {
    let Some(stage) = stage("three", 1, Granularity::Full, &[]).await else {
        return;
    };
    stage
        .annotated("n1", "wireguard-ip", Some("100.64.1.1/24"))
        .await;
    stage
        .cluster
        .create(&stage.far_peer(&["10.2.1.0/24"]))
        .await
        .unwrap();
    let peers = || stage.hosts[0].device.peers().len();
    eventually(SOON, || async {
        if peers() == 1 { Ok(()) } else { Err("not yet") }
    })
    .await
    .unwrap();
    // The agent is cut off while the Peer is deleted, and then lists again, as if the
    // server had compacted the event.
    let agent = stage.agents[0].as_ref().unwrap();
    agent.cut_off(true);
    stage.cluster.delete(&format!("{PEERS}/far")).await.unwrap();
    agent.cut_off(false);
    stage.checked_in("n1").await;
    assert_eq!(peers(), 1, "deleted, but still configured");
    stage.end().await;
}

#[tokio::test]
async fn later_renumbered_nodes_share_an_address_until_each_has_checked_in() {
    let Some(mut stage) = stage("one", 3, Granularity::Full, &[]).await else {
        return;
    };
    stage
        .annotated("n2", "wireguard-ip", Some("100.64.1.2/24"))
        .await;
    stage
        .annotated("n3", "wireguard-ip", Some("100.64.1.3/24"))
        .await;
    // From here on, n3 checks in before n2.
    stage.checked_in("n2").await;
    stage.agents[0].take().unwrap().kill();
    stage.cluster.delete("/api/v1/nodes/n1").await.unwrap();
    stage
        .annotated("n3", "wireguard-ip", Some("100.64.1.2/24"))
        .await;
    assert_eq!(
        stage.annotation("n2", "wireguard-ip").await.as_deref(),
        Some("100.64.1.2/24"),
        "both have it"
    );
    reaches(&stage.hosts[1].pod, stage.hosts[2].pod_addresses[0]).await;
    stage
        .annotated("n2", "wireguard-ip", Some("100.64.1.1/24"))
        .await;
    stage.end().await;
}

#[tokio::test]
async fn later_the_next_leads_at_once_and_says_its_address_at_its_check_in() {
    let Some(mut stage) = stage("three", 2, Granularity::Location, &[]).await else {
        return;
    };
    stage
        .annotated("n1", "wireguard-ip", Some("100.64.1.1/24"))
        .await;
    stage.annotated("n2", "wireguard-ip", Some("")).await;
    stage
        .cluster
        .create(&stage.far_peer(&["10.2.1.0/24"]))
        .await
        .unwrap();
    eventually(SOON, || async {
        if stage.hosts[0].device.peers().len() == 1 {
            Ok(())
        } else {
            Err("not yet")
        }
    })
    .await
    .unwrap();
    stage.checked_in("n2").await;
    stage.agents[0].take().unwrap().stop().await;
    eventually(SOON, || async {
        if stage.hosts[1].device.peers().len() == 1 {
            Ok(())
        } else {
            Err("not yet")
        }
    })
    .await
    .unwrap();
    assert_eq!(
        stage.annotation("n2", "wireguard-ip").await.as_deref(),
        Some(""),
        "n2 leads, but its annotation is empty"
    );
    assert_eq!(
        stage.annotation("n2", "key").await,
        Some(stage.hosts[1].device.key().to_string())
    );
    stage
        .annotated("n2", "wireguard-ip", Some("100.64.1.1/24"))
        .await;
    stage.end().await;
}

#[tokio::test]
async fn d1_entries_vanish_around_a_reconfiguration_and_come_back_with_a_check_in() {
    let Some(stage) = stage(
        "two",
        1,
        Granularity::Full,
        &[("persistent-keepalive", "1")],
    )
    .await
    else {
        return;
    };
    stage
        .annotated("n1", "wireguard-ip", Some("100.64.1.1/24"))
        .await;
    stage.far_knows(&["10.1.1.0/24"]).await;
    stage
        .cluster
        .create(&stage.far_peer(&["10.2.1.0/24"]))
        .await
        .unwrap();
    reaches(&stage.hosts[0].pod, stage.far.pod_addresses[0]).await;
    let (far, first) = (stage.far.device.key().to_string(), &stage.hosts[0].device);
    let entry = json!({ &far: { "IP": "198.18.2.1", "Port": 51_820, "Zone": "" } }).to_string();
    stage
        .annotated("n1", "discovered-endpoints", Some(&entry))
        .await;
    // The handshake takes longer than the next check of the agent.
    stage.wire.impair(
        stage.lans[1].public(),
        Impairment {
            loss_percent: 0,
            delay: Duration::from_millis(300),
        },
    );
    stage.checked_in("n1").await;
    let configured = first.configured();
    stage.add_silent_peer("one", 0).await;
    stage.add_silent_peer("other", 4).await;
    eventually(SOON, || async {
        if first.configured() >= configured + 2 {
            Ok(())
        } else {
            Err("not yet")
        }
    })
    .await
    .unwrap();
    assert_eq!(
        stage
            .annotation("n1", "discovered-endpoints")
            .await
            .as_deref(),
        Some(entry.as_str()),
        "not before a check-in"
    );
    stage
        .annotated("n1", "discovered-endpoints", Some("{}"))
        .await;
    stage
        .annotated("n1", "discovered-endpoints", Some(&entry))
        .await;
    stage.end().await;
}

#[tokio::test]
async fn later_an_agent_that_was_killed_leaves_routes_that_the_next_one_does_not_remove() {
    let Some(mut stage) = stage("three", 1, Granularity::Full, &[]).await else {
        return;
    };
    stage
        .annotated("n1", "wireguard-ip", Some("100.64.1.1/24"))
        .await;
    stage
        .cluster
        .create(&stage.far_peer(&["10.2.1.0/24"]))
        .await
        .unwrap();
    let routed = async |stage: &Stage| {
        stage.hosts[0]
            .links
            .routes()
            .await
            .unwrap()
            .iter()
            .any(|route| route.to.to_string() == "10.2.1.0/24")
    };
    eventually(SOON, || async {
        if routed(&stage).await {
            Ok(())
        } else {
            Err("not yet")
        }
    })
    .await
    .unwrap();
    stage.agents[0].take().unwrap().kill();
    stage.agents[0] = Some(Agent::start(stage.cluster, &stage.hosts[0], &stage.spec).unwrap());
    stage.checked_in("n1").await;
    stage.cluster.delete(&format!("{PEERS}/far")).await.unwrap();
    eventually(SOON, || async {
        if stage.hosts[0].device.peers().is_empty() {
            Ok(())
        } else {
            Err("still there")
        }
    })
    .await
    .unwrap();
    stage.checked_in("n1").await;
    assert!(routed(&stage).await, "the route into the tunnel remains");
    stage.end().await;
}
