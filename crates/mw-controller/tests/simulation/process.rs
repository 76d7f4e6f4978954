//! An operator process on simulated servers, complete except for its back end and
//! its sockets. Time is tokio's paused clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use k8s_openapi::jiff;
use kube::{Client, Config};
use mw_controller::clock::Clock;
use mw_controller::fleet::InMemoryConnect;
use mw_controller::metrics::Metrics;
use mw_controller::permit::Permit;
use mw_controller::run::ProcessDeps;
use mw_controller::serve::Readiness;
use mw_controller::transport::Timeouts;
use mw_sim::kilo::{host, url};
use mw_sim::{Cluster, Moment, Wall};
use tokio::time::Instant;

/// Unix time of the fleet's clocks at the start of a run.
pub(crate) const EPOCH: i64 = 1_800_000_000;

/// Memory limit of a process. A quarter of it is more than a drawn cluster takes.
pub(crate) const MEMORY: usize = 4 << 20;

pub(crate) struct Process {
    pub(crate) ground: ProcessDeps,
    /// Client of the hub that may write without the Lease.
    pub(crate) leases: Client,
}

/// Creates a process on these servers, with the token `hub` for the hub.
pub(crate) fn process(
    clusters: &BTreeMap<String, Cluster>,
    hub: &str,
    elects: bool,
    clock: Clock,
    random: fastrand::Rng,
) -> Process {
    let permit = if elects {
        Permit::none()
    } else {
        Permit::always()
    };
    let metrics = Metrics::default();
    let lines = clusters
        .iter()
        .map(|(name, cluster)| (host(name), cluster.server()))
        .collect();
    let timeouts = Timeouts::of(Duration::from_secs(5));
    let board = InMemoryConnect {
        lines,
        timeouts,
        permit: permit.clone(),
        metrics: metrics.clone(),
    };
    let mut config = Config::new(url(hub).parse().unwrap());
    config.auth_info.token = Some("hub".to_owned().into());
    let leases = board.client(&config, Permit::always()).unwrap();
    let hub = board.client(&config, permit.clone()).unwrap();
    let another = hub.clone();
    let ground = ProcessDeps {
        hub,
        another_hub: Arc::new(move || another.clone()),
        connect: Arc::new(board),
        permit,
        timeouts,
        memory_limit: MEMORY,
        metrics,
        readiness: Readiness::default(),
        clock,
        random,
    };
    Process { ground, leases }
}

/// Returns the clusters whose objects take more memory than they may, with the bytes.
pub(crate) fn oversized(processes: &[Metrics]) -> Vec<String> {
    let texts = processes.iter().map(Metrics::text);
    let of_cluster = |line: &str| {
        line.strip_prefix("meshwright_cluster_memory_bytes")
            .map(str::to_owned)
    };
    let lines: Vec<String> = texts
        .flat_map(|text| text.lines().filter_map(of_cluster).collect::<Vec<_>>())
        .collect();
    let too_much =
        |line: &String| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap() > MEMORY / 4;
    lines.into_iter().filter(too_much).collect()
}

/// Clock of the servers.
pub(crate) fn wall(started: Instant) -> Wall {
    Wall::new(move || Moment {
        seconds: EPOCH + seconds(started.elapsed()),
        nanos: 0,
    })
}

/// Clock of a process, `skew` seconds ahead of the servers'.
pub(crate) fn clock(started: Instant, skew: Arc<AtomicI64>) -> Clock {
    Clock::new(move || {
        let passed = started.elapsed();
        let second = EPOCH + seconds(passed) + skew.load(Ordering::Relaxed);
        jiff::Timestamp::new(
            second,
            i32::try_from(passed.subsec_nanos()).unwrap_or_default(),
        )
        .unwrap()
    })
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}
