//! Cost of startup and of one node change with many clusters, without faults.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use mw_sim::kilo::{Mesh, Site, key};
use mw_sim::{Observer, Request, RequestOutcome, Verb};
use serde_json::json;

use crate::bed::{Bed, MESHES, NODES};
use crate::faults::Script;
use crate::oracle::{array, text};

pub(crate) fn trials() -> Vec<Trial> {
    vec![Trial::test(
        "one_changed_node_costs_one_write_on_every_other_cluster",
        || {
            for clusters in [5, 20] {
                let measured = measure(clusters, 10);
                let wanted = BTreeMap::from([("patch peers".to_owned(), u64::from(clusters) - 1)]);
                assert_eq!(measured.change, wanted, "{clusters} clusters");
            }
            Ok(())
        },
    )]
}

/// Counts requests and nothing else: a witness would take longer than the operator.
#[derive(Default)]
struct Counter {
    requests: Mutex<BTreeMap<String, u64>>,
    all: AtomicU64,
}

impl Observer for Counter {
    fn ended(&self, request: &Request, _: &RequestOutcome) {
        let plural = request
            .target
            .as_ref()
            .map(|target| target.plural.as_str())
            .unwrap_or_default();
        if request.verb != Verb::Watch {
            self.all.fetch_add(1, Ordering::Relaxed);
            *self
                .requests
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .entry(format!("{} {plural}", request.verb))
                .or_default() += 1;
        }
    }
}

struct Measured {
    bring_up: BTreeMap<String, u64>,
    bring_up_took: Duration,
    change: BTreeMap<String, u64>,
    change_took: Duration,
}

fn measure(clusters: u8, nodes: u8) -> Measured {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let sites: Vec<Site> = (1..=clusters)
            .map(|number| Site::new(&format!("c{number}"), number, nodes))
            .collect();
        let mesh = Mesh::new("mesh", &sites.iter().collect::<Vec<_>>());
        let mut bed = Bed::new(1, &sites, &[mesh], Script::new(&[], &[]));
        bed.memory_limit = usize::MAX;
        let counter = Arc::new(Counter::default());
        bed.clusters
            .values()
            .for_each(|cluster| cluster.set_observer(counter.clone()));
        let started = Instant::now();
        let _operator = bed.start_operator(false);
        settled(&bed, &counter).await;
        let (bring_up, bring_up_took) = (taken(&counter), started.elapsed());
        let annotations =
            json!({ "metadata": { "annotations": { "kilo.squat.ai/key": key("another") } } });
        let started = Instant::now();
        assert!(bed.patch("c2", &format!("{NODES}/n2"), &annotations));
        settled(&bed, &counter).await;
        Measured {
            bring_up,
            bring_up_took,
            change: taken(&counter),
            change_took: started.elapsed(),
        }
    })
}

fn taken(counter: &Counter) -> BTreeMap<String, u64> {
    std::mem::take(
        &mut *counter
            .requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner),
    )
}

/// Waits until the mesh is Ready and no requests were sent for a while.
async fn settled(bed: &Bed, counter: &Counter) {
    loop {
        let before = counter.all.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let meshes = bed.on(&bed.hub).list(MESHES);
        let ready = |condition: &&serde_json::Value| {
            condition["type"] == "Ready" && text(&condition["status"]) == "True"
        };
        let all_ready = meshes.iter().all(|mesh| {
            array(&mesh["status"]["conditions"])
                .iter()
                .any(|condition| ready(&condition))
        });
        if all_ready && counter.all.load(Ordering::Relaxed) == before {
            return;
        }
    }
}

/// `SIM_SCALE=100x50`
pub(crate) fn report(size: &str) -> ExitCode {
    let Some((clusters, nodes)) = size
        .split_once('x')
        .and_then(|(clusters, nodes)| Some((clusters.parse().ok()?, nodes.parse().ok()?)))
    else {
        eprintln!("SIM_SCALE is CLUSTERSxNODES, for example 100x50");
        return ExitCode::from(2);
    };
    let Measured {
        bring_up,
        bring_up_took,
        change,
        change_took,
    } = measure(clusters, nodes);
    println!("{clusters} clusters × {nodes} nodes, API servers included");
    println!(
        "bring-up   {:>8.2} s   {bring_up:?}",
        bring_up_took.as_secs_f64()
    );
    println!(
        "one change {:>8.4} s   {change:?}",
        change_took.as_secs_f64()
    );
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .filter(|line| line.starts_with("VmHWM"))
        .for_each(|line| println!("memory     {}", line.trim_start_matches("VmHWM:").trim()));
    ExitCode::SUCCESS
}
