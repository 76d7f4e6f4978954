//! Stories about the behaviour of real Kilo agents: addresses that change late,
//! leaders that restart, discovered endpoints that vanish.

use std::time::Duration;

use libtest_mimic::Trial;
use mw_sim::kilo::Node;

use crate::case::{Action, Case, Step};
use crate::crash::story;
use crate::faults::Crash;
use crate::play::run;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        Trial::test("renumbering_costs_no_node_its_peer", renumbering),
        Trial::test("a_leader_that_restarts_is_nobodys_business", || {
            [1, 3].into_iter().try_for_each(leader_restarts)
        }),
        Trial::test("a_discovered_endpoint_outlives_a_reload", reload),
        Trial::test(
            "a_discovered_endpoint_outlives_a_reload_and_a_restart_with_a_keepalive",
            reload_and_restart,
        ),
        Trial::test("a_peer_without_an_endpoint_is_adopted_and_stays", roaming),
        Trial::test(
            "a_peer_without_an_endpoint_stays_whenever_the_operator_dies",
            roaming_crashes,
        ),
        Trial::test(
            "another_discovered_endpoint_is_followed_from_one_to_the_other",
            moved,
        ),
        Trial::test(
            "one_node_of_another_family_holds_nobody_back",
            another_family,
        ),
    ]
}

fn play(case: &Case) -> Result<(), libtest_mimic::Failed> {
    let report = run(case);
    assert_eq!(report.violations, Vec::<String>::new(), "{}", report.trace);
    Ok(())
}

fn publish(node: &str) -> Action {
    Action::Publish {
        site: "c2".into(),
        node: node.into(),
    }
}

/// Any of the other nodes may be the first to publish its new address.
fn renumbering() -> Result<(), libtest_mimic::Failed> {
    let site = || "c2".to_owned();
    let changes = [
        Action::DeleteNode {
            site: site(),
            node: "n1".into(),
        },
        Action::AddNode {
            site: site(),
            at: 100,
        },
    ];
    for (change, first, second) in changes
        .iter()
        .flat_map(|change| [(change, "n2", "n3"), (change, "n3", "n2")])
    {
        let steps = [
            (60, change.clone()),
            (60, publish("n100")),
            (75, publish(first)),
            (105, publish(second)),
        ];
        tell(steps)?;
    }
    Ok(())
}

/// One location with this many nodes; the first is the leader.
fn leader_restarts(nodes: u8) -> Result<(), libtest_mimic::Failed> {
    let mut case = story(&[], None);
    let site = &mut case.sites[1];
    site.nodes = (1..=nodes)
        .map(|at| Node::new(2, at))
        .map(|node| (node.name.clone(), node))
        .collect();
    for node in site.nodes.values_mut() {
        node.annotations
            .insert("granularity".into(), "location".into());
    }
    let addresses: Vec<String> = site
        .nodes
        .keys()
        .map(|node| site.wireguard_ip(node, |_| true))
        .collect();
    for (node, address) in site.nodes.values_mut().zip(addresses) {
        node.annotations.insert("wireguard-ip".into(), address);
    }
    let leader = || ("c2".to_owned(), "n1".to_owned());
    let stop = Action::StopAgent {
        site: leader().0,
        node: leader().1,
    };
    let back = Action::ReturnAgent {
        site: leader().0,
        node: leader().1,
    };
    let steps = [
        (60, stop),
        (65, publish("n2")),
        (80, back),
        (100, publish("n1")),
        (105, publish("n2")),
    ];
    case.steps = steps
        .map(|(at, action)| Step::Act(Duration::from_secs(at), action))
        .into();
    case.quiet = true;
    play(&case)
}

fn discover(port: u16) -> Action {
    Action::Discover {
        site: "c3".into(),
        of: ("c2".into(), "n1".into()),
        port,
    }
}

fn reload() -> Result<(), libtest_mimic::Failed> {
    let site = || "c3".to_owned();
    tell([
        (60, discover(40_000)),
        (120, Action::Reload { site: site() }),
        (380, Action::Reloaded { site: site() }),
    ])
}

/// A node of c2 is behind NAT and sets a keepalive. The operator restarts before,
/// while or after c3 lists no endpoints.
fn reload_and_restart() -> Result<(), libtest_mimic::Failed> {
    let site = || "c3".to_owned();
    for restart in [90, 120, 121, 200, 370] {
        let mut case = unconfigured();
        case.meshes[0].entry("c2").unwrap().keepalive = 25;
        let steps = [
            (60, discover(40_000)),
            (120, Action::Reload { site: site() }),
            (restart, Action::Restart),
            (380, Action::Reloaded { site: site() }),
        ];
        case.steps = steps
            .map(|(at, action)| Step::Act(Duration::from_secs(at), action))
            .into();
        play(&case)?;
    }
    Ok(())
}

/// A NAT mapping changes; Kilo lists the new address at once, or after listing
/// nothing for a while.
fn moved() -> Result<(), libtest_mimic::Failed> {
    tell([(60, discover(40_000)), (120, discover(40_001))])?;
    tell([
        (60, discover(40_000)),
        (120, Action::Reload { site: "c3".into() }),
        (150, discover(40_001)),
    ])
}

/// A Node without an agent joins a cluster with one odd agent of three. Nodes that
/// join elsewhere still get their Peers there.
fn another_family() -> Result<(), libtest_mimic::Failed> {
    let mut case = story(&[], None);
    let odd = case.sites[2].nodes.get_mut("n3").unwrap();
    odd.annotations
        .insert("internal-ip".into(), "fd00:77::3/64".into());
    let joins = |at| Action::AddNode {
        site: "c2".into(),
        at,
    };
    let steps = [
        (60, joins(100)),
        (90, Action::AddPlainNode { site: "c3".into() }),
        (120, Action::Restart),
        (150, joins(101)),
    ];
    case.steps = steps
        .map(|(at, action)| Step::Act(Duration::from_secs(at), action))
        .into();
    case.quiet = true;
    play(&case)
}

fn tell<const N: usize>(steps: [(u64, Action); N]) -> Result<(), libtest_mimic::Failed> {
    let steps = steps
        .map(|(at, action)| Step::Act(Duration::from_secs(at), action))
        .into();
    play(&Case {
        steps,
        quiet: true,
        ..story(&[], None)
    })
}

/// The first node of c2 has no endpoint.
fn unconfigured() -> Case {
    let mut case = story(&[], None);
    for node in case.sites[1].nodes.values_mut().take(1) {
        node.annotations
            .insert("force-endpoint".into(), String::new());
    }
    Case {
        quiet: true,
        ..case
    }
}

/// A node of c2 has no endpoint, no cluster sets a keepalive, and the Go operator
/// created its Peers.
fn roaming_case(steps: Vec<(u64, Action)>) -> Case {
    let mut case = unconfigured();
    case.steps = steps
        .into_iter()
        .map(|(at, action)| Step::Act(Duration::from_secs(at), action))
        .collect();
    Case {
        roaming: true,
        ..case
    }
}

/// Steps that set the endpoint of such a Peer and clear it again.
fn discoveries(restart: Option<u64>) -> Vec<(u64, Action)> {
    let mut steps = vec![
        (60, discover(40_000)),
        (120, Action::Reload { site: "c3".into() }),
    ];
    steps.extend(restart.map(|at| (at, Action::Restart)));
    steps.push((600, Action::Trigger { mesh: 0 }));
    steps
}

/// After a restart while Kilo reloads, no process knows that the endpoint was
/// discovered.
fn roaming() -> Result<(), libtest_mimic::Failed> {
    let stories = [
        vec![],
        discoveries(None),
        discoveries(Some(90)),
        discoveries(Some(130)),
        discoveries(Some(460)),
    ];
    stories
        .into_iter()
        .try_for_each(|steps| play(&roaming_case(steps)))
}

fn roaming_crashes() -> Result<(), libtest_mimic::Failed> {
    let calm = run(&roaming_case(discoveries(None)));
    for (at_write, after) in (1..=calm.written).flat_map(|at| [(at, false), (at, true)]) {
        let mut case = roaming_case(discoveries(None));
        case.steps.push(Step::Crash(Crash { at_write, after }));
        play(&case)?;
    }
    Ok(())
}
