//! Fixed scenarios of clusters that give wrong answers about one kind.

use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use mw_core::cilium::world::DialFailure;

use crate::case::{Action, Step, Workload};
use crate::draw::add_hostile;
use crate::lies::{Attack, Hostile, Lasts, Telling, Untruth, WATCHED};
use crate::stories::{holds, story};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        Trial::test(
            "an_endless_list_of_another_tenant_hides_no_broken_link",
            an_endless_list_of_another_tenant_hides_no_broken_link,
        ),
        Trial::test(
            "what_a_cluster_does_not_list_loses_nothing",
            what_a_cluster_does_not_list_loses_nothing,
        ),
        Trial::test(
            "what_a_cluster_does_not_list_for_a_provider_that_starts_loses_nothing",
            what_a_cluster_does_not_list_for_a_provider_that_starts_loses_nothing,
        ),
    ]
}

/// Time of the first wrong answer.
const LIES: Duration = Duration::from_secs(120);
const SOON: Duration = Duration::from_secs(1);

fn what_a_cluster_does_not_list_loses_nothing() -> Result<(), Failed> {
    lists_lack_objects(&[])
}

fn what_a_cluster_does_not_list_for_a_provider_that_starts_loses_nothing() -> Result<(), Failed> {
    lists_lack_objects(&[Step::Act(LIES + SOON, Action::Restart)])
}

/// The lists of one kind on one cluster lack all objects, or some, once or for minutes.
fn lists_lack_objects(then: &[Step]) -> Result<(), Failed> {
    let some = Untruth::Truncated {
        percent: 50,
        counted: false,
    };
    for kind in WATCHED {
        for how in [Untruth::Empty, some.clone()] {
            for lasts in [Lasts::Requests(1), Lasts::For(Duration::from_secs(240))] {
                let telling = Telling {
                    cluster: "c2".into(),
                    kind,
                    how: how.clone(),
                    lasts,
                };
                let what = format!("{telling:?}");
                // A change of another cluster makes the provider write during the lie.
                let moves = Action::MoveAddress {
                    site: "c1".into(),
                    last: 100,
                };
                let ends = Action::AddService {
                    site: "c1".into(),
                    name: "cart",
                };
                let mut case = story(&[]);
                case.steps.push(Step::Act(LIES, Action::Lie(telling)));
                case.steps.extend(then.iter().cloned());
                case.steps.push(Step::Act(LIES + 60 * SOON, moves));
                case.steps.push(Step::Act(LIES + 240 * SOON, ends));
                holds(&case, &what)?;
            }
        }
    }
    Ok(())
}

/// Links break while a cluster of another tenant never ends its lists of one kind.
fn an_endless_list_of_another_tenant_hides_no_broken_link() -> Result<(), Failed> {
    let site = || "c2".to_owned();
    let fails = |failure| Action::EtcdFails {
        site: site(),
        failure,
    };
    let which = Workload::Agents;
    let (removed, added) = (
        Action::RemoveWorkload {
            site: site(),
            which,
        },
        Action::AddWorkload {
            site: site(),
            which,
        },
    );
    for kind in WATCHED {
        for (breaks, mends) in [
            (fails(Some(DialFailure::Permission)), fails(None)),
            (removed.clone(), added.clone()),
        ] {
            let what = format!("{kind}: {breaks:?}");
            let mut case = story(&[breaks]);
            case.steps.push(Step::Act(Duration::from_secs(400), mends));
            let endless = Telling {
                cluster: "e2".into(),
                kind,
                how: Untruth::Endless { page: 1 },
                lasts: Lasts::ForEver,
            };
            let hostile = Hostile {
                namespace: "a-hostile",
                attack: Attack::CopiedUid,
                victim: "c1".into(),
                lies: vec![endless],
            };
            add_hostile(&mut case, hostile);
            holds(&case, &what)?;
        }
    }
    Ok(())
}
