//! Runs drawn from seeds: a fixed set, new ones for some time, or a replay of one
//! with its trace.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;

use crate::case::{Case, SEEDS};
use crate::play::{Report, run};

/// Number of groups of seeds that `make test` runs in parallel.
const GROUPS: u64 = 8;

pub(crate) fn trials() -> Vec<Trial> {
    let groups = (0..GROUPS).map(|group| {
        let seeds = group * SEEDS / GROUPS..(group + 1) * SEEDS / GROUPS;
        Trial::test(
            format!("seeds_{}_to_{}_converge", seeds.start, seeds.end - 1),
            move || {
                for seed in seeds {
                    if let Err(told) = verdict(&Case::draw(seed)) {
                        return Err(told.into());
                    }
                }
                Ok(())
            },
        )
    });
    let twice = Trial::test("the_same_seed_gives_the_same_requests", || {
        for seed in 0..40 {
            let case = Case::draw(seed);
            assert_eq!(run(&case).trace, run(&case).trace, "seed {seed}");
        }
        Ok(())
    });
    groups.chain([twice]).collect()
}

fn outcome(case: &Case) -> Report {
    let played = std::panic::catch_unwind(|| run(case));
    played.unwrap_or_else(|panic| {
        let said = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Report {
            violations: vec![format!("panic: {}", said.unwrap_or_default())],
            ..Report::default()
        }
    })
}

/// Runs a case; if it fails, reports how to replay the smallest failing part.
fn verdict(case: &Case) -> Result<Report, String> {
    let report = outcome(case);
    let Some(first) = report.violations.first() else {
        return Ok(report);
    };
    let (dropped, left) = shrink(case, invariant(first));
    let without = dropped
        .iter()
        .map(usize::to_string)
        .collect::<Vec<_>>()
        .join(",");
    let told = report
        .violations
        .iter()
        .take(5)
        .map(|violation| format!("  {violation}\n"))
        .collect::<String>();
    let kept: String = left
        .steps
        .iter()
        .map(|step| format!("  {step:?}\n"))
        .collect();
    Err(format!(
        "seed {} fails:\n{told}what is left of it without what does not matter:\n{kept}replay it with its trace:\n  \
         SIM_SEED={} SIM_WITHOUT={without} cargo test -p mw-controller --test {}\n",
        case.seed,
        case.seed,
        env!("CARGO_CRATE_NAME")
    ))
}

/// Name of the violated invariant.
fn invariant(violation: &str) -> &str {
    violation.split(':').next().unwrap_or_default()
}

/// Drops steps that the failure does not need, largest groups first.
fn shrink(case: &Case, invariant_name: &str) -> (Vec<usize>, Case) {
    let fails = |dropped: &[usize]| {
        outcome(&case.without(dropped))
            .violations
            .iter()
            .any(|violation| invariant(violation) == invariant_name)
    };
    let mut kept: Vec<usize> = (0..case.steps.len()).collect();
    let mut size = kept.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < kept.len() {
            let rest: Vec<usize> = kept
                .iter()
                .enumerate()
                .filter(|(place, _)| *place < at || *place >= at + size)
                .map(|(_, step)| *step)
                .collect();
            let dropped: Vec<usize> = (0..case.steps.len())
                .filter(|step| !rest.contains(step))
                .collect();
            if fails(&dropped) {
                kept = rest;
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    let dropped: Vec<usize> = (0..case.steps.len())
        .filter(|step| !kept.contains(step))
        .collect();
    let left = case.without(&dropped);
    (dropped, left)
}

pub(crate) fn replay(seed: u64) -> ExitCode {
    let without = std::env::var("SIM_WITHOUT").unwrap_or_default();
    let dropped: Vec<usize> = without
        .split(',')
        .filter_map(|text| text.parse().ok())
        .collect();
    let case = Case::draw(seed).without(&dropped);
    case.steps.iter().for_each(|step| println!("{step:?}"));
    let report = run(&case);
    println!("{}", report.trace);
    report
        .violations
        .iter()
        .for_each(|violation| println!("{violation}"));
    if report.violations.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs new seeds on all cores and reports the number per minute.
pub(crate) fn soak(seconds: u64) -> ExitCode {
    let first = std::env::var("SIM_FIRST")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    let (next, requests, failed) = (AtomicU64::new(first), AtomicU64::new(0), AtomicU64::new(0));
    let started = Instant::now();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while started.elapsed() < Duration::from_secs(seconds) {
                    match verdict(&Case::draw(next.fetch_add(1, Ordering::Relaxed))) {
                        Ok(report) => _ = requests.fetch_add(report.requests, Ordering::Relaxed),
                        Err(told) => {
                            println!("{told}");
                            failed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    let (runs, minutes) = (
        next.load(Ordering::Relaxed) - first,
        started.elapsed().as_secs_f64() / 60.0,
    );
    println!(
        "{runs} runs from seed {first}, {:.0} a minute, {} requests, {} failed",
        runs as f64 / minutes,
        requests.load(Ordering::Relaxed),
        failed.load(Ordering::Relaxed)
    );
    if failed.load(Ordering::Relaxed) == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
