//! Measures latencies of changes, and memory of the operator.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::attack::Force;
use crate::fleet::Fleet;
use crate::process::Operator;
use crate::wait::until;

/// The healthy clusters; each is the source of a change, the others are its targets.
const SITES: [&str; 3] = ["hub", "east", "storage"];
const BETWEEN: Duration = Duration::from_millis(700);
const DEADLINE: Duration = Duration::from_secs(30);

/// Changes one node of each healthy cluster and returns the time until both others have the changed
/// Peer.
pub(crate) async fn changes(fleet: &Fleet, slice: usize) -> Vec<Duration> {
    let mut times = Vec::new();
    for source in SITES {
        sleep(BETWEEN).await;
        times.push(change(fleet, source, slice).await);
    }
    times
}

async fn change(fleet: &Fleet, source: &str, slice: usize) -> Duration {
    let (node, port) = (format!("n{}", 2 + slice % 10), 20_000 + slice);
    let start = Instant::now();
    fleet
        .annotate_unseen(
            source,
            &node,
            &[("force-endpoint", Some(&format!("198.51.100.71:{port}")))],
        )
        .await;
    for site in SITES.into_iter().filter(|site| *site != source) {
        loop {
            let peer = fleet
                .peer(site, &format!("healthy--{source}--{node}"))
                .await
                .unwrap();
            if peer["spec"]["endpoint"]["port"] == port {
                break;
            }
            assert!(
                start.elapsed() < DEADLINE,
                "{site} never heard of the change"
            );
        }
    }
    start.elapsed()
}

#[derive(Debug, Default)]
pub(crate) struct Figures(BTreeMap<Force, Vec<Duration>>);

impl Figures {
    pub(crate) fn add(&mut self, force: Force, times: Vec<Duration>) {
        self.0.entry(force).or_default().extend(times);
    }

    fn sorted(&self, force: Force) -> Vec<f64> {
        let mut times: Vec<f64> = self.0[&force]
            .iter()
            .map(|time| time.as_secs_f64() * 1e3)
            .collect();
        times.sort_by(f64::total_cmp);
        times
    }

    fn median(&self, force: Force) -> f64 {
        let times = self.sorted(force);
        times[times.len() / 2]
    }

    /// Ratio to the same objects at rest.
    pub(crate) fn ratio(&self, force: Force) -> f64 {
        self.median(force) / self.median(Force::Quiet)
    }

    pub(crate) fn report(&self) {
        for force in self.0.keys() {
            let (times, median, ratio) =
                (self.sorted(*force), self.median(*force), self.ratio(*force));
            let (low, high) = (times[0], times[times.len() - 1]);
            eprintln!(
                "{force:?}: {} changes, median {median:.1} ms ({low:.1} to {high:.1}), ratio {ratio:.2}",
                times.len()
            );
        }
    }
}

/// Peak resident memory, in KiB.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) quiet: f64,
    pub(crate) hostile: f64,
}

impl Memory {
    pub(crate) fn ratio(&self) -> f64 {
        self.hostile / self.quiet
    }

    pub(crate) fn report(&self) {
        let mib = |kib: f64| kib / 1024.0;
        eprintln!(
            "memory: at rest {:.1} MiB, under attack at most {:.1} MiB, ratio {:.2}",
            mib(self.quiet),
            mib(self.hostile),
            self.ratio()
        );
    }
}

/// Resets the peak resident memory of a process.
pub(crate) fn forget_peak(operator: &Operator) {
    std::fs::write(format!("/proc/{}/clear_refs", operator.pid()), "5").unwrap();
}

pub(crate) fn peak(operator: &Operator) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", operator.pid()))
        .expect("the operator runs");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Waits until the operator is idle.
pub(crate) async fn at_rest(operator: &Operator) {
    until("the operator rests", || async {
        let before = ticks(operator);
        sleep(Duration::from_millis(300)).await;
        let spent = ticks(operator) - before;
        if spent <= 1 {
            Ok(())
        } else {
            Err(format!(
                "{spent} hundredths of a second of CPU time in 300 ms"
            ))
        }
    })
    .await;
}

/// CPU time in user and kernel mode, in hundredths of a second.
fn ticks(operator: &Operator) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", operator.pid()))
        .expect("the operator runs");
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}
