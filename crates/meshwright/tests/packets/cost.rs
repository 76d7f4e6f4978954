//! What an event costs in packets: with the operator, and without it in the
//! same run.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mw_testbed::net::{Flow, Report, total_since};

use crate::ground::Ground;

/// How long one looks on after an event, for what comes of it later.
const AFTERMATH: Duration = Duration::from_secs(2);

struct Row {
    event: &'static str,
    alone: Report,
    with: Report,
}

static ROWS: Mutex<Vec<Row>> = Mutex::new(Vec::new());

/// Counts what is lost from the beginning of an event until some time after
/// its end.
pub(crate) async fn of(ground: &mut Ground, flows: &[Flow], event: impl AsyncFnOnce(&mut Ground)) -> Report {
    let start = Instant::now();
    event(ground).await;
    tokio::time::sleep(AFTERMATH).await;
    total_since(flows, start).await
}

/// More than this is not a handshake, which takes milliseconds, but one that
/// did not come about, which takes seconds.
const ONE_HANDSHAKE: Duration = Duration::from_millis(500);

/// Notes both, and fails when the operator makes it worse.
pub(crate) fn compare(event: &'static str, alone: Report, with: Report) {
    note(event, alone, with);
    assert!(with.gap <= alone.gap + ONE_HANDSHAKE, "{event}: {alone:?} alone, {with:?} with the operator");
}

pub(crate) fn note(event: &'static str, alone: Report, with: Report) {
    ROWS.lock().unwrap_or_else(PoisonError::into_inner).push(Row { event, alone, with });
}

/// Pings at 10 ms, all flows together.
pub(crate) fn print() {
    let rows = ROWS.lock().unwrap_or_else(PoisonError::into_inner);
    if rows.is_empty() {
        return;
    }
    eprintln!("\n{:<46} | agents alone: lost of sent, gap | with the operator", "event");
    for Row { event, alone, with } in rows.iter() {
        eprintln!("{event:<46} | {:<31} | {}", text(*alone), text(*with));
    }
}

fn text(report: Report) -> String {
    format!("{:>5} of {:>5}, {:>6} ms", report.lost, report.sent, report.gap.as_millis())
}
