//! The network of the testbed: links, routes, a router with faults, and userspace
//! WireGuard.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use mw_testbed::net::lan::{DEVICE, UPLINK};
use mw_testbed::net::{
    Flow, Host, Impairment, Lan, LanSpec, Links, Namespace, PeerConfig, Route, Wire, ping,
};
use mw_testbed::{eventually, or_skip};

const SOON: Duration = Duration::from_secs(10);

struct Net {
    wire: Wire,
    lans: Vec<Lan>,
    hosts: Vec<Host>,
}

/// Creates a cluster with one host for each entry, behind NAT if a duration is given.
async fn net(sites: &[Option<Duration>]) -> Option<Net> {
    or_skip(Namespace::new())?;
    let wire = Wire::default();
    let (mut lans, mut hosts) = (Vec::new(), Vec::new());
    for (number, hidden) in (1..).zip(sites) {
        let lan = Lan::new(
            &wire,
            LanSpec {
                number,
                hidden: *hidden,
            },
        )
        .await
        .unwrap();
        hosts.push(lan.add_host(1).await.unwrap());
        lans.push(lan);
    }
    Some(Net { wire, lans, hosts })
}

fn peer(of: &Host, keepalive: u16) -> PeerConfig {
    let endpoint = of
        .endpoint()
        .map(|endpoint| endpoint.parse::<SocketAddr>().unwrap());
    PeerConfig {
        key: of.device.key(),
        preshared: None,
        endpoint,
        keepalive,
        allowed: of.pod_cidrs.to_vec(),
    }
}

async fn route(on: &Host, to: IpNet) {
    on.links
        .replace_route(&Route {
            to,
            via: None,
            source: None,
            device: DEVICE.into(),
        })
        .await
        .unwrap();
}

/// Brings up the device of a host with these peers, and adds routes to their pods.
async fn join(host: &Host, others: &[&Host], keepalive: u16) {
    host.links.up(DEVICE).await.unwrap();
    host.device.set_up(true);
    host.device.configure(
        &others
            .iter()
            .map(|other| peer(other, keepalive))
            .collect::<Vec<_>>(),
    );
    for cidr in others.iter().flat_map(|other| other.pod_cidrs) {
        route(host, cidr).await;
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

async fn silent(from: &Namespace, to: IpAddr) {
    assert!(!ping(from, None, to).await.unwrap(), "{to} answers");
}

#[tokio::test]
async fn hosts_of_one_cluster_reach_each_other_and_their_own_pods_only() {
    let Some(net) = net(&[None, None]).await else {
        return;
    };
    let second = net.lans[0].add_host(2).await.unwrap();
    let [first, far] = [&net.hosts[0], &net.hosts[1]];
    reaches(&first.namespace, second.internal.addr().into()).await;
    reaches(&first.namespace, first.pod_addresses[0]).await;
    reaches(&first.namespace, first.pod_addresses[1]).await;
    reaches(&first.namespace, first.service).await;
    silent(&first.namespace, second.pod_addresses[0]).await;
    silent(&first.namespace, far.pod_addresses[0]).await;
    second.cut().await.unwrap();
    silent(&first.namespace, second.internal.addr().into()).await;
    second.mend().await.unwrap();
    reaches(&first.namespace, second.internal.addr().into()).await;
}

#[tokio::test]
async fn hosts_come_and_go_without_a_loss_to_others() {
    let Some(net) = net(&[None]).await else {
        return;
    };
    let edge = "192.168.1.254".parse().unwrap();
    reaches(&net.hosts[0].namespace, edge).await;
    let flow = Flow::start(
        "host to edge",
        &net.hosts[0].namespace,
        edge,
        Duration::from_millis(10),
    )
    .unwrap();
    let start = Instant::now();
    for at in 2..10 {
        let host = net.lans[0].add_host(at).await.unwrap();
        reaches(&host.namespace, edge).await;
    }
    assert_eq!(flow.since(start).await.lost, 0);
}

#[tokio::test]
async fn pods_of_two_clusters_talk_through_wireguard_in_both_families() {
    let Some(net) = net(&[None, None]).await else {
        return;
    };
    let [a, b] = [&net.hosts[0], &net.hosts[1]];
    join(a, &[b], 0).await;
    silent(&a.pod, b.pod_addresses[0]).await;
    join(b, &[a], 0).await;
    for family in [0, 1] {
        reaches(&a.pod, b.pod_addresses[family]).await;
        reaches(&b.pod, a.pod_addresses[family]).await;
    }
    assert!(a.device.peers()[0].has_session);
    a.device.configure(&[]);
    silent(&a.pod, b.pod_addresses[0]).await;
}

#[tokio::test]
async fn a_packet_from_an_address_that_is_not_the_peers_is_dropped() {
    let Some(net) = net(&[None, None]).await else {
        return;
    };
    let [a, b] = [&net.hosts[0], &net.hosts[1]];
    join(a, &[b], 0).await;
    join(b, &[a], 0).await;
    reaches(&a.pod, b.pod_addresses[0]).await;
    let narrow = PeerConfig {
        allowed: vec!["10.1.1.77/32".parse().unwrap()],
        ..peer(a, 0)
    };
    b.device.configure(&[narrow]);
    silent(&a.pod, b.pod_addresses[0]).await;
}

#[tokio::test]
async fn a_device_refuses_its_own_key_and_gives_a_prefix_to_the_last() {
    let Some(net) = net(&[None, None]).await else {
        return;
    };
    let [a, b] = [&net.hosts[0], &net.hosts[1]];
    a.device.configure(&[peer(a, 0), peer(b, 0)]);
    assert_eq!(
        a.device
            .peers()
            .into_iter()
            .map(|peer| peer.key)
            .collect::<Vec<_>>(),
        [b.device.key()]
    );
    let stranger = PeerConfig {
        key: "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAE="
            .parse()
            .unwrap(),
        ..peer(b, 0)
    };
    a.device.configure(&[peer(b, 0), stranger.clone()]);
    let found = a.device.peers();
    let of = |key| {
        found
            .iter()
            .find(|peer| peer.key == key)
            .unwrap()
            .allowed
            .clone()
    };
    assert!(of(b.device.key()).is_empty());
    assert_eq!(of(stranger.key).len(), 2);
}

#[tokio::test]
async fn a_hidden_cluster_is_reached_after_it_called_and_while_it_keeps_calling() {
    let idle = Duration::from_secs(2);
    let Some(net) = net(&[None, Some(idle)]).await else {
        return;
    };
    let [open, hidden] = [&net.hosts[0], &net.hosts[1]];
    join(open, &[hidden], 0).await;
    join(hidden, &[open], 0).await;
    silent(&open.pod, hidden.pod_addresses[0]).await;
    reaches(&hidden.pod, open.pod_addresses[0]).await;
    reaches(&open.pod, hidden.pod_addresses[0]).await;
    let seen = open.device.peers()[0].endpoint.unwrap();
    assert_eq!(seen.ip(), net.lans[1].public().hosts().next().unwrap());
    tokio::time::sleep(idle + Duration::from_millis(500)).await;
    silent(&open.pod, hidden.pod_addresses[0]).await;

    join(hidden, &[open], 1).await;
    reaches(&open.pod, hidden.pod_addresses[0]).await;
    tokio::time::sleep(idle + Duration::from_millis(500)).await;
    reaches(&open.pod, hidden.pod_addresses[0]).await;
}

#[tokio::test]
async fn the_wire_delays_and_loses_as_told() {
    let Some(net) = net(&[None, None]).await else {
        return;
    };
    let [a, b] = [&net.hosts[0], &net.hosts[1]];
    join(a, &[b], 0).await;
    join(b, &[a], 0).await;
    reaches(&a.pod, b.pod_addresses[0]).await;
    let network = net.lans[0].public();
    let delay = Duration::from_millis(60);
    net.wire.impair(
        network,
        Impairment {
            loss_percent: 0,
            delay,
        },
    );
    let start = Instant::now();
    assert!(ping(&a.pod, None, b.pod_addresses[0]).await.unwrap());
    assert!(
        start.elapsed() >= 2 * delay,
        "the round trip took {:?}",
        start.elapsed()
    );

    net.wire.impair(
        network,
        Impairment {
            loss_percent: 20,
            delay: Duration::ZERO,
        },
    );
    let flow = Flow::start(
        "a to b",
        &a.pod,
        b.pod_addresses[0],
        Duration::from_millis(10),
    )
    .unwrap();
    let start = Instant::now();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let report = flow.since(start).await;
    let share = report.lost * 100 / report.sent;
    assert!(
        (25..50).contains(&share),
        "20% loss in each direction: {report:?}"
    );

    net.wire.impair(
        network,
        Impairment {
            loss_percent: 100,
            delay: Duration::ZERO,
        },
    );
    silent(&a.pod, b.pod_addresses[0]).await;
}

#[tokio::test]
async fn a_flow_counts_what_was_lost_and_the_longest_gap() {
    let Some(net) = net(&[None]).await else {
        return;
    };
    let second = net.lans[0].add_host(2).await.unwrap();
    let first = &net.hosts[0];
    reaches(&first.namespace, second.internal.addr().into()).await;
    let flow = Flow::start(
        "first to second",
        &first.namespace,
        second.internal.addr().into(),
        Duration::from_millis(10),
    )
    .unwrap();
    let start = Instant::now();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(flow.since(start).await.lost, 0);
    let start = Instant::now();
    second.cut().await.unwrap();
    tokio::time::sleep(Duration::from_millis(400)).await;
    second.mend().await.unwrap();
    eventually(SOON, || async {
        if flow.answered_after(start) {
            Ok(())
        } else {
            Err("still cut off")
        }
    })
    .await
    .unwrap();
    let report = flow.since(start).await;
    assert!(
        report.lost >= 20 && report.gap >= Duration::from_millis(300),
        "{report:?}"
    );
}

#[tokio::test]
async fn a_route_replaces_the_kernels_own_and_its_end_does_not_restore_it() {
    let Some(net) = net(&[None]).await else {
        return;
    };
    let host = &net.hosts[0];
    reaches(&host.namespace, host.pod_addresses[0]).await;
    let theft = Route {
        to: host.pod_cidrs[0],
        via: None,
        source: None,
        device: UPLINK.into(),
    };
    host.links.replace_route(&theft).await.unwrap();
    assert!(host.links.routes().await.unwrap().contains(&theft));
    silent(&host.namespace, host.pod_addresses[0]).await;
    host.links.delete_route(&theft).await.unwrap();
    assert!(!host.links.routes().await.unwrap().contains(&theft));
    silent(&host.namespace, host.pod_addresses[0]).await;
}

#[tokio::test]
async fn a_device_has_the_one_address_it_was_given() {
    let Some(net) = net(&[None]).await else {
        return;
    };
    let host = &net.hosts[0];
    host.links.up(DEVICE).await.unwrap();
    for address in ["100.64.1.1/24", "100.64.1.2/24", "100.64.1.2/24"] {
        host.links
            .set_address(DEVICE, Some(address.parse().unwrap()))
            .await
            .unwrap();
        assert!(
            ping(
                &host.namespace,
                None,
                address.split('/').next().unwrap().parse().unwrap()
            )
            .await
            .unwrap()
        );
    }
    silent(&host.namespace, "100.64.1.1".parse().unwrap()).await;
    let wrong = Route {
        to: "10.99.9.7/24".parse().unwrap(),
        via: None,
        source: None,
        device: DEVICE.into(),
    };
    assert!(
        host.links.replace_route(&wrong).await.is_err(),
        "the kernel rejects prefixes with host bits"
    );
    assert!(Links::open(&host.namespace).is_ok());
}
