//! Crashes the operator before and after every single write of small stories;
//! another one takes over.

use std::time::Duration;

use libtest_mimic::Trial;
use mw_sim::kilo::{Mesh, Site};

use crate::case::{Action, Case, Step};
use crate::faults::Crash;
use crate::play::run;

pub(crate) fn trials() -> Vec<Trial> {
    let stories: [(&str, Vec<Action>); 8] = [
        ("bring_up", vec![]),
        (
            "an_anchor_move",
            vec![Action::SetReady {
                site: "c2".into(),
                node: "n1".into(),
                ready: false,
            }],
        ),
        (
            "the_death_of_an_anchor",
            vec![Action::DeleteNode {
                site: "c2".into(),
                node: "n1".into(),
            }],
        ),
        (
            "a_new_key",
            vec![Action::ChangeKey {
                site: "c2".into(),
                node: "n2".into(),
                to: "another".into(),
            }],
        ),
        (
            "a_removed_entry",
            vec![
                Action::RemoveEntry {
                    mesh: 0,
                    site: "c3".into(),
                },
                Action::RestoreEntries { mesh: 0 },
            ],
        ),
        (
            "a_renamed_entry",
            vec![Action::RenameEntry {
                mesh: 0,
                site: "c3".into(),
            }],
        ),
        ("a_deletion", vec![Action::DeleteMesh { mesh: 0 }]),
        (
            "a_rotation",
            vec![
                Action::RenewCredentials {
                    site: "c2".into(),
                    revoke: true,
                },
                Action::AddNode {
                    site: "c2".into(),
                    at: 9,
                },
            ],
        ),
    ];
    stories
        .into_iter()
        .map(|(name, actions)| {
            Trial::test(format!("dying_at_every_write_of_{name}"), move || {
                die_everywhere(&actions)
            })
        })
        .collect()
}

pub(crate) fn story(actions: &[Action], crash: Option<Crash>) -> Case {
    let sites: Vec<Site> = (1..=3)
        .map(|number| Site::new(&format!("c{number}"), number, 3))
        .collect();
    let meshes = vec![Mesh::new("mesh", &sites.iter().collect::<Vec<_>>())];
    let at = |place: usize| Duration::from_secs(20 * (place as u64 + 1));
    let mut steps: Vec<Step> = actions
        .iter()
        .enumerate()
        .map(|(place, action)| Step::Act(at(place), action.clone()))
        .collect();
    steps.extend(crash.map(Step::Crash));
    Case {
        seed: 7,
        sites,
        meshes,
        elects: false,
        trusts: false,
        quiet: false,
        roaming: false,
        hostile: None,
        steps,
    }
}

fn die_everywhere(actions: &[Action]) -> Result<(), libtest_mimic::Failed> {
    let calm = run(&story(actions, None));
    assert_eq!(calm.violations, Vec::<String>::new(), "without a crash");
    for at_write in 1..=calm.written {
        for after in [false, true] {
            let report = run(&story(actions, Some(Crash { at_write, after })));
            if let Some(violation) = report.violations.first() {
                let when = if after { "after" } else { "before" };
                return Err(format!(
                    "dying {when} write {at_write} of {}: {violation}\n{}",
                    calm.written, report.trace
                )
                .into());
            }
        }
    }
    println!("{} crash points", 2 * calm.written);
    Ok(())
}
