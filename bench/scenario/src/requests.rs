//! Requests of the operator, counted from the audit logs of the API servers.

use std::collections::BTreeMap;
use std::time::Duration;

use mw_testbed::audit::AuditRecord;
use serde_json::json;
use tokio::time::sleep;

use crate::fleet::{Account, Fleet, NAMES};
use crate::kilo::{HUB, REMOTE, node_name};
use crate::options::Options;
use crate::progress;
use crate::table::Table;

/// Long enough for all consequences of a change, and for the audit log.
const AFTERMATH: Duration = Duration::from_secs(3);
const CHANGES: usize = 10;

/// Number of requests by kind.
type Counts = BTreeMap<String, usize>;

struct Ledger<'a> {
    fleet: &'a Fleet,
    starts: Vec<usize>,
}

impl<'a> Ledger<'a> {
    fn open(fleet: &'a Fleet) -> Self {
        Self {
            fleet,
            starts: (0..NAMES.len())
                .map(|at| fleet.cluster(at).audit().unwrap().len())
                .collect(),
        }
    }

    /// Returns the operator's requests since the ledger was opened, and separately
    /// watches and requests for Leases, which are renewed in any case.
    fn close(self) -> (Counts, Counts) {
        let (mut asked, mut renewed) = (Counts::new(), Counts::new());
        for (at, start) in self.starts.iter().enumerate() {
            let records = self.fleet.cluster(at).audit().unwrap();
            for record in records.iter().skip(*start).filter(|record| is_ours(record)) {
                let counts = if record.verb == "watch" || record.resource == "leases" {
                    &mut renewed
                } else {
                    &mut asked
                };
                *counts
                    .entry(format!("{} {}", record.verb, record.resource))
                    .or_default() += 1;
            }
        }
        (asked, renewed)
    }
}

fn is_ours(record: &AuditRecord) -> bool {
    let is_of = |account: &Account| {
        record.user
            == format!(
                "system:serviceaccount:{}:{}",
                account.namespace, account.name
            )
    };
    record.agent != "floor" && (is_of(&HUB) || is_of(&REMOTE))
}

fn shown(counts: &Counts) -> String {
    let shown: Vec<String> = counts
        .iter()
        .map(|(what, count)| format!("{count} {what}"))
        .collect();
    if shown.is_empty() {
        "none".to_owned()
    } else {
        shown.join(", ")
    }
}

/// Measures the requests that a single change causes: the worst of [`CHANGES`].
pub(crate) async fn of_one_change(fleet: &Fleet, options: &Options, table: &mut Table) {
    sleep(AFTERMATH).await;
    let (mut worst, mut met) = (Counts::new(), true);
    for change in 0..CHANGES {
        let ledger = Ledger::open(fleet);
        let node = node_name(1 + change % (options.nodes - 1));
        let annotations =
            json!({ "kilo.squat.ai/force-endpoint": format!("198.19.99.{}:51820", 100 + change) });
        fleet
            .request(
                change % NAMES.len(),
                "PATCH",
                &format!("/api/v1/nodes/{node}"),
                &json!({ "metadata": { "annotations": annotations } }),
            )
            .await;
        sleep(AFTERMATH).await;
        let (asked, _) = ledger.close();
        let count = |what: &str| asked.get(what).copied().unwrap_or(0);
        let status = count("patch clustermeshes/status") + count("update clustermeshes/status");
        let peers = count("patch peers") + count("update peers");
        met &= peers == NAMES.len() - 1
            && status <= 1
            && asked.values().sum::<usize>() == peers + status;
        if worst.values().sum::<usize>() <= asked.values().sum() {
            worst = asked;
        }
    }
    let wanted = format!("{} Peers, ≤ 1 status", NAMES.len() - 1);
    table.judge(
        "requests for one node change",
        &wanted,
        &shown(&worst),
        &format!("most of {CHANGES}"),
        met,
    );
}

pub(crate) async fn when_idle(fleet: &Fleet, options: &Options, table: &mut Table) {
    progress(&format!("idle for {} s", options.idle_seconds));
    sleep(AFTERMATH).await;
    let ledger = Ledger::open(fleet);
    sleep(Duration::from_secs(options.idle_seconds)).await;
    let (asked, renewed) = ledger.close();
    let what = format!("requests in {} s without a change", options.idle_seconds);
    table.judge(&what, "none", &shown(&asked), "", asked.is_empty());
    table.note("  renewals apart", &shown(&renewed), "");
}
