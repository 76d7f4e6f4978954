//! Two operators and one Lease.

use std::time::{Duration, Instant};

use mw_testbed::audit::AuditRecord;
use nix::sys::signal::Signal;

use crate::access::HUB_ACCOUNT;
use crate::fleet::{Fleet, Mark};
use crate::look::{none, until};
use crate::process::Operator;
use crate::trials::scenarios;
use mw_sim::kilo::NAMESPACE;

scenarios![
    a_killed_leader_is_followed_by_the_other,
    a_stopped_leader_writes_nothing_when_it_goes_on,
    a_leader_that_ends_frees_its_lease
];

const SECOND: &str = "meshwright-operator-b";
const LEASE_DURATION: Duration = Duration::from_secs(15);

/// Starts two operators and returns the leader first.
async fn two(fleet: &mut Fleet) -> (Operator, Operator) {
    let first = fleet
        .operator_as("hub", HUB_ACCOUNT, &["--leader-elect"])
        .await;
    fleet.converged().await;
    let second = fleet.operator_as("hub", SECOND, &["--leader-elect"]).await;
    until("the second stands by", || async {
        let asked = by(fleet, &Mark::from([("hub".into(), 0)]), SECOND)
            .iter()
            .any(|call| call.resource == "leases");
        if asked {
            Ok(())
        } else {
            Err("it did not look at the Lease".to_owned())
        }
    })
    .await;
    assert_eq!(first.metrics().await.sum("meshwright_leader", &[]), 1.0);
    assert_eq!(second.metrics().await.sum("meshwright_leader", &[]), 0.0);
    (first, second)
}

/// Calls of one of the two on the hub.
fn by(fleet: &Fleet, since: &Mark, account: &str) -> Vec<AuditRecord> {
    let user = format!("system:serviceaccount:{NAMESPACE}:{account}");
    fleet
        .calls(since)
        .into_iter()
        .map(|(_, call)| call)
        .filter(|call| call.user == user)
        .collect()
}

async fn a_killed_leader_is_followed_by_the_other() {
    let mut fleet = Fleet::three().build().await;
    let (first, second) = two(&mut fleet).await;
    let (mark, start) = (fleet.mark(), Instant::now());
    first.kill();
    fleet
        .annotate("east", "n1", "force-endpoint", Some("198.51.100.51:51820"))
        .await;
    fleet.converged().await;
    assert!(
        start.elapsed() < LEASE_DURATION * 2,
        "it took {:?}",
        start.elapsed()
    );
    assert!(
        by(&fleet, &mark, SECOND)
            .iter()
            .any(|call| call.resource == "peers" && call.verb == "patch")
    );
    assert_eq!(second.metrics().await.sum("meshwright_leader", &[]), 1.0);
    fleet.finish().await;
}

async fn a_stopped_leader_writes_nothing_when_it_goes_on() {
    let mut fleet = Fleet::three().build().await;
    let (mut first, _second) = two(&mut fleet).await;
    let start = Instant::now();
    first.signal(Signal::SIGSTOP);
    fleet
        .annotate("east", "n1", "force-endpoint", Some("198.51.100.52:51820"))
        .await;
    fleet.converged().await;
    tokio::time::sleep(
        (LEASE_DURATION * 2 + Duration::from_secs(1)).saturating_sub(start.elapsed()),
    )
    .await;
    // It missed two changes, which the other one has handled.
    fleet.delete_node("east", "n2").await;
    fleet.converged().await;
    let mark = fleet.mark();
    first.signal(Signal::SIGCONT);
    assert_eq!(
        first.ended(Duration::from_secs(10)).await,
        1,
        "it ends at once with 1"
    );
    // The other may still write the status with its own account.
    let other = format!("system:serviceaccount:{NAMESPACE}:{SECOND}");
    none(
        &fleet
            .writes(&mark)
            .into_iter()
            .filter(|(_, call)| call.user != other)
            .collect::<Vec<_>>(),
        "the former leader wrote",
    );
    fleet
        .annotate("east", "n1", "force-endpoint", Some("198.51.100.53:51820"))
        .await;
    fleet.converged().await;
    fleet.finish().await;
}

async fn a_leader_that_ends_frees_its_lease() {
    let mut fleet = Fleet::three().build().await;
    let (mut first, second) = two(&mut fleet).await;
    let start = Instant::now();
    let (code, took) = first.terminate().await;
    assert!(
        code == 0 && took < Duration::from_secs(5),
        "ended with {code} after {took:?}"
    );
    until("the other leads", || async {
        if second.metrics().await.sum("meshwright_leader", &[]) > 0.0 {
            Ok(())
        } else {
            Err("not yet".to_owned())
        }
    })
    .await;
    assert!(
        start.elapsed() < Duration::from_secs(8),
        "it took {:?}",
        start.elapsed()
    );
    fleet
        .annotate("east", "n1", "force-endpoint", Some("198.51.100.54:51820"))
        .await;
    fleet.converged().await;
    fleet.finish().await;
}
