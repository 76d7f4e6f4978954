//! Kills the operator at every one of its writes, and restarts it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use mw_testbed::proxy::{Match, Moment, Trigger};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::bed::{PEERS, remove_by_force};
use crate::fleet::Fleet;
use crate::process::Operator;
use crate::trials::scenarios;
use crate::wait::DEADLINE;

scenarios![
    killed_at_any_write_of_the_bring_up_it_converges,
    killed_at_any_write_of_an_anchor_move_it_converges,
    killed_at_any_write_of_a_deletion_it_cleans_up,
    restarted_while_a_source_is_down_it_keeps_its_peers,
];

/// Upper bound for the number of writes in these tests.
const TOO_MANY: u64 = 60;
const ALL: [&str; 3] = ["hub", "east", "west"];

/// Starts an operator that is killed at its N-th write; for even N that write still takes effect.
async fn mortal(fleet: &mut Fleet, nth: u64) -> (Operator, Trigger) {
    let pid = Arc::new(AtomicI32::new(0));
    let victim = pid.clone();
    let moment = if nth.is_multiple_of(2) {
        Moment::After
    } else {
        Moment::Before
    };
    let trigger = Trigger::new(Match::writes().except("leases"), nth, moment, move || {
        while victim.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = kill(
            Pid::from_raw(victim.load(Ordering::SeqCst)),
            Signal::SIGKILL,
        );
    });
    for proxy in fleet.proxies() {
        proxy.clear();
        proxy.add_trigger(trigger.clone());
    }
    let operator = fleet.operator(&[]).await;
    pid.store(operator.pid(), Ordering::SeqCst);
    (operator, trigger)
}

/// Waits until the operator is dead, or until it is done before its N-th write.
async fn dies_before<F: Future<Output = bool>>(
    mut operator: Operator,
    trigger: &Trigger,
    done: impl Fn() -> F,
) -> bool {
    let start = Instant::now();
    while operator.exit_code().is_none() && (trigger.has_fired() || !done().await) {
        assert!(start.elapsed() < DEADLINE, "neither killed nor done");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let died = trigger.has_fired();
    operator.kill();
    died
}

async fn killed_at_any_write_of_the_bring_up_it_converges() {
    let mut fleet = Fleet::three().proxied(&ALL).build().await;
    for nth in 1..TOO_MANY {
        let (operator, trigger) = mortal(&mut fleet, nth).await;
        if !dies_before(operator, &trigger, || fleet.has_converged()).await {
            assert!(nth > 12, "12 Peers take more than {nth} writes");
            return fleet.finish().await;
        }
        let operator = fleet.operator(&[]).await;
        fleet.converged().await;
        operator.kill();
        let mesh = fleet.mesh().await;
        remove_by_force(fleet.cluster("hub"), &mesh).await;
        for site in ALL {
            let ours = format!("{PEERS}?labelSelector=kilo-clustermesh.io%2Fmesh");
            assert!(
                fleet
                    .cluster(site)
                    .request("DELETE", &ours, None)
                    .await
                    .unwrap()
                    .is_success()
            );
        }
        fleet
            .cluster("hub")
            .create(&fleet.world.meshes[0].object())
            .await
            .unwrap();
    }
    panic!("the bring-up never ended");
}

async fn killed_at_any_write_of_an_anchor_move_it_converges() {
    let mut fleet = Fleet::three().proxied(&ALL).build().await;
    let operator = fleet.operator(&[]).await;
    fleet.converged().await;
    operator.kill();
    for nth in 1..TOO_MANY {
        let (old, new) = if nth.is_multiple_of(2) {
            ("n2", "n1")
        } else {
            ("n1", "n2")
        };
        fleet.set_ready("east", new, true).await;
        fleet.set_ready("east", old, false).await;
        fleet.world.sites.get_mut("east").unwrap().anchor = Some(new.to_owned());
        let (operator, trigger) = mortal(&mut fleet, nth).await;
        if !dies_before(operator, &trigger, || fleet.has_converged()).await {
            assert!(nth > 4, "4 Peers change in more than {nth} writes");
            return fleet.finish().await;
        }
        let operator = fleet.operator(&[]).await;
        fleet.converged().await;
        operator.kill();
    }
    panic!("the anchor never moved");
}

async fn killed_at_any_write_of_a_deletion_it_cleans_up() {
    let mut fleet = Fleet::three().proxied(&ALL).build().await;
    for nth in 1..TOO_MANY {
        let operator = fleet.operator(&[]).await;
        fleet.converged().await;
        operator.kill();
        fleet.delete_mesh(0).await;
        let (operator, trigger) = mortal(&mut fleet, nth).await;
        let path = fleet.world.meshes[0].path();
        let died = dies_before(operator, &trigger, || async {
            fleet.cluster("hub").get(&path).await.unwrap().is_none()
        })
        .await;
        let operator = fleet.operator(&[]).await;
        fleet.gone(0).await;
        fleet.holds(&ALL).await;
        operator.kill();
        if !died {
            assert!(nth > 12, "12 Peers go in more than {nth} writes");
            return fleet.finish().await;
        }
        fleet.mesh_model().active = true;
        fleet
            .cluster("hub")
            .create(&fleet.world.meshes[0].object())
            .await
            .unwrap();
    }
    panic!("the mesh never went");
}

async fn restarted_while_a_source_is_down_it_keeps_its_peers() {
    let mut fleet = Fleet::three().proxied(&["east"]).build().await;
    let operator = fleet.operator(&[]).await;
    fleet.converged().await;
    operator.kill();
    fleet.proxy("east").refuse(true).await.unwrap();
    let mark = fleet.mark();
    let _operator = fleet.operator(&[]).await;
    fleet
        .annotate("hub", "n1", "force-endpoint", Some("198.51.100.31:51820"))
        .await;
    fleet.holds(&["hub", "west"]).await;
    fleet.unreachable("east", "").await;
    fleet
        .condition("Ready", "False", "ClusterUnreachable")
        .await;
    fleet.holds(&["hub", "west"]).await;
    fleet.proxy("east").refuse(false).await.unwrap();
    fleet.converged().await;
    let touched: BTreeSet<_> = fleet
        .peer_writes(&mark)
        .into_iter()
        .map(|(site, call)| (site, call.name))
        .collect();
    assert_eq!(
        touched.len(),
        2,
        "one Peer on east and one on west: {touched:?}"
    );
    fleet.finish().await;
}
