//! Fixed scenarios of clusters that give wrong answers about one kind.

use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use mw_core::cilium::world::DialFailure;

use crate::case::{Action, Step, Workload};
use crate::draw::add_hostile;
use crate::lies::{Attack, Hostile, Lasts, Telling, Untruth, WATCHED};
use crate::stories::{holds, story};

pub(crate) fn trials() -> Vec<Trial> {
    vec![Trial::test(
        "an_endless_list_of_another_tenant_hides_no_broken_link",
        an_endless_list_of_another_tenant_hides_no_broken_link,
    )]
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
