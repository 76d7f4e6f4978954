//! Packet loss of an event, with and without the operator in the same run.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mw_testbed::net::{Flow, Report, total_since};

use crate::ground::Ground;

/// Time to keep measuring after an event.
const AFTERMATH: Duration = Duration::from_secs(2);

struct Row {
    event: &'static str,
    alone: Report,
    with: Report,
}

static ROWS: Mutex<Vec<Row>> = Mutex::new(Vec::new());

/// Counts lost packets from the start of an event until some time after its end.
pub(crate) async fn of(
    ground: &mut Ground,
    flows: &[Flow],
    event: impl AsyncFnOnce(&mut Ground),
) -> Report {
    let start = Instant::now();
    event(ground).await;
    tokio::time::sleep(AFTERMATH).await;
    total_since(flows, start).await
}

/// A longer gap is not one handshake, which takes milliseconds, but a failed one, which takes
/// seconds.
const ONE_HANDSHAKE: Duration = Duration::from_millis(500);

/// Records both, and fails if the operator makes it worse.
pub(crate) fn compare(event: &'static str, alone: Report, with: Report) {
    note(event, alone, with);
    assert!(
        with.gap <= alone.gap + ONE_HANDSHAKE,
        "{event}: {alone:?} alone, {with:?} with the operator"
    );
}

pub(crate) fn note(event: &'static str, alone: Report, with: Report) {
    ROWS.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(Row { event, alone, with });
}

/// Pings at 10 ms, all flows together.
pub(crate) fn print() {
    let rows = ROWS.lock().unwrap_or_else(PoisonError::into_inner);
    if rows.is_empty() {
        return;
    }
    eprintln!(
        "\n{:<46} | agents alone: lost of sent, gap | with the operator",
        "event"
    );
    for Row { event, alone, with } in rows.iter() {
        eprintln!("{event:<46} | {:<31} | {}", text(*alone), text(*with));
    }
}

fn text(report: Report) -> String {
    format!(
        "{:>5} of {:>5}, {:>6} ms",
        report.lost,
        report.sent,
        report.gap.as_millis()
    )
}
