//! A process of the operator on simulated servers, all of it but its back end
//! and its sockets. Time is tokio's, and stands still while anybody works.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use k8s_openapi::jiff;
use kube::{Client, Config};
use mw_operator::clock::Clock;
use mw_operator::fleet::Switchboard;
use mw_operator::metrics::Metrics;
use mw_operator::permit::Permit;
use mw_operator::run::Ground;
use mw_operator::serve::Readiness;
use mw_operator::transport::Patience;
use mw_sim::kilo::{host, url};
use mw_sim::{Cluster, Moment, Wall};
use tokio::time::Instant;

/// What the fleet's clocks say when a run begins.
pub(crate) const EPOCH: i64 = 1_800_000_000;

pub(crate) struct Process {
    pub(crate) ground: Ground,
    /// Reaches the hub without the Lease.
    pub(crate) leases: Client,
}

/// On these servers; the hub is reached with the token `hub`.
pub(crate) fn process(clusters: &BTreeMap<String, Cluster>, hub: &str, elects: bool, clock: Clock, random: fastrand::Rng) -> Process {
    let permit = if elects { Permit::none() } else { Permit::always() };
    let metrics = Metrics::default();
    let lines = clusters.iter().map(|(name, cluster)| (host(name), cluster.server())).collect();
    let patience = Patience::of(Duration::from_secs(5));
    let board = Switchboard { lines, patience, permit: permit.clone(), metrics: metrics.clone() };
    let mut config = Config::new(url(hub).parse().unwrap());
    config.auth_info.token = Some("hub".to_owned().into());
    let leases = board.client(&config, Permit::always()).unwrap();
    let hub = board.client(&config, permit.clone()).unwrap();
    let another = hub.clone();
    let ground = Ground {
        hub,
        another_hub: Arc::new(move || another.clone()),
        connect: Arc::new(board),
        permit,
        patience,
        metrics,
        readiness: Readiness::default(),
        clock,
        random,
    };
    Process { ground, leases }
}

/// The clock of the servers.
pub(crate) fn wall(started: Instant) -> Wall {
    Wall::new(move || Moment { seconds: EPOCH + seconds(started.elapsed()), nanos: 0 })
}

/// The clock of a process, which may be so many seconds ahead of the servers'.
pub(crate) fn clock(started: Instant, skew: Arc<AtomicI64>) -> Clock {
    Clock::new(move || {
        let passed = started.elapsed();
        let second = EPOCH + seconds(passed) + skew.load(Ordering::Relaxed);
        jiff::Timestamp::new(second, i32::try_from(passed.subsec_nanos()).unwrap_or_default()).unwrap()
    })
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}
