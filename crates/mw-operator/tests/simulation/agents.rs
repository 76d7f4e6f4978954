//! What real Kilo does when its agents come and go, told by itself: addresses
//! that move late, leaders that restart, discovered endpoints that vanish.

use std::time::Duration;

use libtest_mimic::Trial;
use mw_sim::kilo::Node;

use crate::case::{Action, Case, Step};
use crate::crash::story;
use crate::play::run;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        Trial::test("renumbering_costs_no_node_its_peer", renumbering),
        Trial::test("a_leader_that_restarts_is_nobodys_business", || [1, 3].into_iter().try_for_each(leader_restarts)),
        Trial::test("a_discovered_endpoint_outlives_a_reload", reload),
    ]
}

fn play(case: &Case) -> Result<(), libtest_mimic::Failed> {
    let report = run(case);
    assert_eq!(report.violations, Vec::<String>::new(), "{}", report.trace);
    Ok(())
}

fn publish(node: &str) -> Action {
    Action::Publish { site: "c2".into(), node: node.into() }
}

/// Each of the others may be the first to say its new address.
fn renumbering() -> Result<(), libtest_mimic::Failed> {
    let site = || "c2".to_owned();
    let changes = [Action::DeleteNode { site: site(), node: "n1".into() }, Action::AddNode { site: site(), at: 100 }];
    for (change, first, second) in changes.iter().flat_map(|change| [(change, "n2", "n3"), (change, "n3", "n2")]) {
        let steps = [(60, change.clone()), (60, publish("n100")), (75, publish(first)), (105, publish(second))];
        let steps = steps.map(|(at, action)| Step::Act(Duration::from_secs(at), action)).into();
        play(&Case { steps, quiet: true, ..story(&[], None) })?;
    }
    Ok(())
}

/// One location of so many nodes; the first leads it.
fn leader_restarts(nodes: u8) -> Result<(), libtest_mimic::Failed> {
    let mut case = story(&[], None);
    let site = &mut case.sites[1];
    site.nodes = (1..=nodes).map(|at| Node::new(2, at)).map(|node| (node.name.clone(), node)).collect();
    for node in site.nodes.values_mut() {
        node.annotations.insert("granularity".into(), "location".into());
    }
    let addresses: Vec<String> = site.nodes.keys().map(|node| site.wireguard_ip(node, |_| true)).collect();
    for (node, address) in site.nodes.values_mut().zip(addresses) {
        node.annotations.insert("wireguard-ip".into(), address);
    }
    let leader = || ("c2".to_owned(), "n1".to_owned());
    let stop = Action::StopAgent { site: leader().0, node: leader().1 };
    let back = Action::ReturnAgent { site: leader().0, node: leader().1 };
    let steps = [(60, stop), (65, publish("n2")), (80, back), (100, publish("n1")), (105, publish("n2"))];
    case.steps = steps.map(|(at, action)| Step::Act(Duration::from_secs(at), action)).into();
    case.quiet = true;
    play(&case)
}

fn reload() -> Result<(), libtest_mimic::Failed> {
    let site = || "c3".to_owned();
    let discover = Action::Discover { site: site(), of: ("c2".into(), "n1".into()) };
    let steps = [(60, discover), (120, Action::Reload { site: site() }), (380, Action::Reloaded { site: site() })];
    let steps = steps.map(|(at, action)| Step::Act(Duration::from_secs(at), action)).into();
    play(&Case { steps, quiet: true, ..story(&[], None) })
}
