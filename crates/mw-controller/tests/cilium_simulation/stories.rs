//! Fixed scenarios without a seed: a change, and one fault at each of the requests
//! around it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use mw_core::cilium::world::DialFailure;
use mw_sim::{Delivery, Fate, Reachability};

use crate::bed::{HUB, RESYNC};
use crate::case::{Action, Case, CiliumSite, PolicyEdit, Step};
use crate::draw::{binding, export, intent};
use crate::faults::{Crash, Fault};
use crate::lies::{Lasts, Telling, Untruth};
use crate::play::run;

/// Upper bound on requests to the hub in a story that restarts the provider.
const MOST_HUB_REQUESTS: u64 = 60;
/// Upper bound on requests to a cluster until it is connected.
const MOST_REQUESTS: u64 = 60;
/// Upper bound on watch events of a cluster in a story.
const MOST_EVENTS: u64 = 14;
/// Upper bound on writes to a cluster in a story.
const MOST_WRITES: u64 = 8;

pub(crate) fn trials() -> Vec<Trial> {
    let delete_all = (0..3)
        .map(|object| Action::Delete { object })
        .collect::<Vec<_>>();
    let moved = vec![Action::MoveAddress {
        site: "c2".into(),
        last: 100,
    }];
    let left = vec![Action::Edit {
        object: 0,
        spec: binding("", "", &["c1", "c2"]).spec,
    }];
    let ended = vec![Action::RemoveNamespace {
        site: "c2".into(),
        name: "shop",
    }];
    let lie = |kind: &'static str| {
        Action::Lie(Telling {
            cluster: HUB.into(),
            kind,
            how: Untruth::Empty,
            lasts: Lasts::Requests(1),
        })
    };
    let lies = vec![
        lie("globalservices"),
        lie("clustermeshbindings"),
        lie("connectivityintents"),
        Action::Restart,
    ];
    let rotated = vec![
        Action::RenewCredentials {
            site: "c2".into(),
            revoke: true,
        },
        Action::Delete { object: 1 },
    ];
    vec![
        Trial::test(
            "dying_at_every_write_of_set_up_and_teardown_with_late_lists",
            move || die_everywhere(&delete_all),
        ),
        Trial::test("dying_at_every_write_of_a_new_address", move || {
            die_everywhere(&moved)
        }),
        Trial::test("dying_at_every_write_of_a_cluster_that_leaves", move || {
            die_everywhere(&left)
        }),
        Trial::test("dying_at_every_write_of_a_rotation", move || {
            die_everywhere(&rotated)
        }),
        Trial::test(
            "a_namespace_that_is_being_deleted_counts_as_gone",
            move || holds(&story(&ended), ""),
        ),
        Trial::test(
            "an_object_that_one_list_does_without_is_not_gone",
            move || holds(&story(&lies), ""),
        ),
        Trial::test(
            "objects_that_a_hub_hides_for_minutes_lose_nothing",
            objects_that_a_hub_hides_for_minutes_lose_nothing,
        ),
        Trial::test(
            "objects_that_a_hub_hides_from_a_provider_that_starts_lose_nothing",
            objects_that_a_hub_hides_from_a_provider_that_starts_lose_nothing,
        ),
        Trial::test(
            "two_owners_of_a_cluster_leave_each_others_keys_and_annotations",
            || holds(&shared(&[]), ""),
        ),
        Trial::test(
            "a_provider_that_starts_waits_for_every_owner_of_a_cluster",
            || holds(&shared(&[Action::Restart]), ""),
        ),
        Trial::test(
            "the_key_of_a_cluster_without_a_known_name_stays",
            a_cluster_is_nameless,
        ),
        Trial::test(
            "the_key_of_another_owners_cluster_without_a_known_name_stays",
            another_owners_cluster_is_nameless,
        ),
        Trial::test(
            "the_keys_of_an_owner_who_lost_the_way_to_a_cluster_stay",
            secrets_are_hidden,
        ),
        Trial::test(
            "the_first_list_of_a_provider_removes_nothing",
            the_first_list_lies,
        ),
        Trial::test(
            "a_provider_that_starts_removes_nothing_before_all_is_listed",
            lists_are_late,
        ),
        Trial::test("the_finalizer_comes_before_the_first_write", notes_are_late),
        Trial::test("a_link_that_breaks_is_noticed", an_etcd_fails_for_minutes),
        Trial::test("a_lost_event_is_made_up_for", an_event_is_lost),
        Trial::test(
            "the_finalizer_waits_for_a_write_that_is_not_answered",
            writes_are_late,
        ),
        Trial::test(
            "credentials_of_another_cluster_are_not_mixed_with_those_before",
            a_secret_leads_elsewhere,
        ),
        Trial::test(
            "objects_that_take_too_much_memory_are_not_kept",
            objects_that_take_too_much_memory_are_not_kept,
        ),
        Trial::test(
            "an_address_that_moves_is_dialled_before_it_is_written",
            an_address_moves_while_it_is_dialled,
        ),
    ]
}

/// Three clusters and all three kinds; the third cluster has no identity yet.
pub(crate) fn story(actions: &[Action]) -> Case {
    let mut sites: Vec<CiliumSite> = (1..=3)
        .map(|id| CiliumSite::new(&format!("c{id}"), id))
        .collect();
    sites[2].named = false;
    let names = sites.iter().map(|site| site.name.clone()).collect();
    let at = |place: usize| Duration::from_secs(120 + 20 * place as u64);
    Case {
        seed: 7,
        sites,
        holdings: BTreeMap::from([("net".to_owned(), names)]),
        objects: vec![
            binding("net", "mesh", &["c1", "c2", "c3"]),
            export("net", "cart"),
            intent("net", "cart"),
        ],
        elects: false,
        hostile: None,
        dial_delays: vec![Duration::from_millis(20)],
        steps: [Step::Act(
            Duration::from_secs(30),
            Action::RestartCilium { site: "c3".into() },
        )]
        .into_iter()
        .chain(
            actions
                .iter()
                .enumerate()
                .map(|(place, action)| Step::Act(at(place), action.clone())),
        )
        .collect(),
    }
}

/// Services of a cluster get labels of 800 kB for a minute.
fn objects_that_take_too_much_memory_are_not_kept() -> Result<(), Failed> {
    let lie = |kind| {
        Action::Lie(Telling {
            cluster: "c2".into(),
            kind,
            how: Untruth::Fat { bytes: 800_000 },
            lasts: Lasts::For(Duration::from_secs(60)),
        })
    };
    let moved = |last| Action::MoveAddress {
        site: "c1".into(),
        last,
    };
    holds(&story(&[lie("services"), moved(100), moved(101)]), "")
}

pub(crate) fn holds(case: &Case, what: &str) -> Result<(), Failed> {
    let report = run(case);
    match report.violations.first() {
        Some(violation) => Err(format!("{what}: {violation}\n{}", report.trace).into()),
        None => Ok(()),
    }
}

/// Another tenant has its own credentials for the first cluster: it connects that
/// cluster to one of its own and exports the same Service with other settings.
fn shared(actions: &[Action]) -> Case {
    let mut case = story(actions);
    case.sites.push(CiliumSite::new("t1", 4));
    case.holdings.insert(
        "team".to_owned(),
        BTreeSet::from(["c1".to_owned(), "t1".to_owned()]),
    );
    let mut theirs = export("team", "cart");
    theirs.spec["affinity"] = "local".into();
    case.objects
        .extend([binding("team", "mesh", &["c1", "t1"]), theirs]);
    case
}

const OBJECTS: [&str; 3] = [
    "globalservices",
    "clustermeshbindings",
    "connectivityintents",
];

/// All lists and all searches by name lack the objects, for longer than the provider
/// keeps a cluster connected that nobody names.
fn hides(kind: &'static str, how: Untruth, from: Duration) -> [Step; 2] {
    let lasts = Duration::from_secs(240);
    let lie = Action::Lie(Telling {
        cluster: HUB.into(),
        kind,
        how,
        lasts: Lasts::For(lasts),
    });
    // A run goes on until its last action.
    [
        Step::Act(from, lie),
        Step::Act(
            from + lasts,
            Action::AddService {
                site: "c1".into(),
                name: "cart",
            },
        ),
    ]
}

/// At first the provider only remembers what it has seen; later it also trusts lists.
fn objects_that_a_hub_hides_for_minutes_lose_nothing() -> Result<(), Failed> {
    for from in [Duration::from_secs(120), RESYNC.mul_f64(1.2)] {
        for kind in OBJECTS {
            let mut case = shared(&[]);
            case.objects.push(binding("net", "a-pair", &["c1", "c2"]));
            case.steps.extend(hides(kind, Untruth::Empty, from));
            holds(&case, kind)?;
        }
        let mut case = story(&[]);
        case.objects.push(binding("net", "a-pair", &["c1", "c2"]));
        case.steps.extend(hides(
            "clustermeshbindings",
            Untruth::Truncated {
                percent: 50,
                counted: false,
            },
            from,
        ));
        holds(&case, "one of two bindings")?;
    }
    Ok(())
}

fn objects_that_a_hub_hides_from_a_provider_that_starts_lose_nothing() -> Result<(), Failed> {
    let from = Duration::from_secs(120);
    let restart = Step::Act(from + Duration::from_secs(1), Action::Restart);
    for kind in OBJECTS {
        let mut case = shared(&[]);
        case.steps.extend(hides(kind, Untruth::Empty, from));
        case.steps.push(restart.clone());
        holds(&case, kind)?;
    }
    let mut case = story(&[]);
    case.objects.push(binding("net", "a-pair", &["c1", "c2"]));
    case.steps.extend(hides(
        "clustermeshbindings",
        Untruth::Truncated {
            percent: 50,
            counted: false,
        },
        from,
    ));
    case.steps.push(restart);
    holds(&case, "one of two bindings")
}

/// A provider starts while one of the clusters is unreachable.
fn a_cluster_is_nameless() -> Result<(), Failed> {
    holds(&restarted_without("c2", story), "")
}

/// The same with a cluster that is a neighbour only of the other owner.
fn another_owners_cluster_is_nameless() -> Result<(), Failed> {
    holds(&restarted_without("t1", shared), "")
}

/// Some lists of Secrets are empty, so that one of two owners can't resolve the
/// cluster that both share. A provider that starts does not know the old resolution.
fn secrets_are_hidden() -> Result<(), Failed> {
    for lists in 1..=4 {
        let telling = Telling {
            cluster: HUB.into(),
            kind: "secrets",
            how: Untruth::Empty,
            lasts: Lasts::Requests(lists),
        };
        let lie = Step::Act(Duration::from_secs(120), Action::Lie(telling));
        let mut case = shared(&[]);
        case.steps.push(lie);
        holds(&case, &format!("{lists} lists lie"))?;
        case.steps
            .push(Step::Act(Duration::from_secs(120), Action::Restart));
        holds(&case, &format!("the first {lists} lists lie"))?;
    }
    Ok(())
}

fn restarted_without(site: &str, of: fn(&[Action]) -> Case) -> Case {
    let set = |link| Action::SetLink {
        site: site.into(),
        link,
    };
    let mut case = of(&[set(Reachability::Refusing), Action::Restart]);
    case.steps
        .push(Step::Act(Duration::from_secs(400), set(Reachability::Up)));
    case
}

/// The provider that takes over gets some of its lists late.
fn die_everywhere(actions: &[Action]) -> Result<(), Failed> {
    let calm = run(&story(actions));
    assert_eq!(
        calm.violations,
        Vec::<String>::new(),
        "without a crash\n{}",
        calm.trace
    );
    for at_write in 1..=calm.written {
        for after in [false, true] {
            let mut case = story(actions);
            case.steps.push(Step::Crash(Crash { at_write, after }));
            let late = Fate::AnswerLate(Duration::from_millis(4_000));
            case.steps.extend((5..60).step_by(7).map(|nth| {
                Step::Fault(Fault::Request {
                    cluster: HUB.into(),
                    nth,
                    fate: late,
                })
            }));
            holds(
                &case,
                &format!(
                    "dying {} write {at_write} of {}",
                    if after { "after" } else { "before" },
                    calm.written
                ),
            )?;
        }
    }
    println!("{} crash points", 2 * calm.written);
    Ok(())
}

/// The first lists of a provider that starts are empty.
fn the_first_list_lies() -> Result<(), Failed> {
    for kind in OBJECTS {
        let telling = Telling {
            cluster: HUB.into(),
            kind,
            how: Untruth::Empty,
            lasts: Lasts::Requests(1),
        };
        let mut case = story(&[]);
        case.objects.push(binding("net", "pair", &["c1", "c2"]));
        // The process ends before it observes any of it.
        let at = Duration::from_secs(120);
        case.steps.extend([
            Step::Act(at, Action::Lie(telling)),
            Step::Act(at, Action::Restart),
        ]);
        holds(&case, kind)?;
    }
    // A binding is being deleted, and another one that wants the same keys is hidden.
    let mut case = story(&[
        Action::SetLink {
            site: "c3".into(),
            link: Reachability::Refusing,
        },
        Action::Delete { object: 0 },
    ]);
    case.objects.push(binding("net", "pair", &["c1", "c2"]));
    let how = Untruth::Truncated {
        percent: 50,
        counted: false,
    };
    let lie = Action::Lie(Telling {
        cluster: HUB.into(),
        kind: "clustermeshbindings",
        how,
        lasts: Lasts::Requests(1),
    });
    let at = Duration::from_secs(220);
    case.steps
        .extend([Step::Act(at, lie), Step::Act(at, Action::Restart)]);
    case.steps.push(Step::Act(
        Duration::from_secs(400),
        Action::SetLink {
            site: "c3".into(),
            link: Reachability::Up,
        },
    ));
    holds(&case, "one of two bindings")
}

/// While a kind is not listed, nothing that its objects may need is deleted.
fn lists_are_late() -> Result<(), Failed> {
    for nth in 1..=MOST_HUB_REQUESTS {
        let mut case = story(&[Action::Restart, Action::Restart]);
        let late = Fate::AnswerLate(Duration::from_secs(4));
        case.steps.push(Step::Fault(Fault::Request {
            cluster: HUB.into(),
            nth,
            fate: late,
        }));
        holds(&case, &format!("request {nth} late"))?;
    }
    Ok(())
}

/// All objects are deleted while a write is in flight that only its answer reveals.
fn writes_are_late() -> Result<(), Failed> {
    let late = Fate::AnswerLate(Duration::from_millis(6_700));
    let unheard = Delivery::After(Duration::from_secs(9));
    for nth in 1..=MOST_WRITES {
        for millis in [200, 500, 1_000] {
            let mut case = story(&[]);
            case.steps.extend(
                (0..3).map(|object| {
                    Step::Act(Duration::from_millis(millis), Action::Delete { object })
                }),
            );
            case.steps.push(Step::Fault(Fault::Write {
                cluster: "c2".into(),
                nth,
                fate: late,
            }));
            case.steps.extend((1..12).map(|nth| {
                Step::Fault(Fault::Event {
                    cluster: "c2".into(),
                    nth,
                    delivery: unheard,
                })
            }));
            holds(
                &case,
                &format!("write {nth} late, deleted after {millis} ms"),
            )?;
        }
    }
    Ok(())
}

/// Writes to objects on the hub are lost or arrive late.
fn notes_are_late() -> Result<(), Failed> {
    for nth in 1..=MOST_WRITES {
        for fate in [Fate::LoseRequest, Fate::Delay(Duration::from_secs(3))] {
            let mut case = story(&[]);
            case.steps.push(Step::Fault(Fault::Write {
                cluster: HUB.into(),
                nth,
                fate,
            }));
            holds(&case, &format!("write {nth} to the hub: {fate:?}"))?;
        }
    }
    Ok(())
}

/// The key stays, but connections with it fail.
fn an_etcd_fails_for_minutes() -> Result<(), Failed> {
    let fails = |failure| Action::EtcdFails {
        site: "c2".into(),
        failure,
    };
    let mut case = story(&[fails(Some(DialFailure::Certificate))]);
    case.steps
        .push(Step::Act(Duration::from_secs(400), fails(None)));
    holds(&case, "")
}

/// A policy is deleted, and one of the watch events at that time is lost.
fn an_event_is_lost() -> Result<(), Failed> {
    for nth in 1..=MOST_EVENTS {
        let mut case = story(&[Action::EditPolicy {
            site: "c1".into(),
            how: PolicyEdit::Delete,
        }]);
        case.steps.push(Step::Fault(Fault::Event {
            cluster: "c1".into(),
            nth,
            delivery: Delivery::Skip,
        }));
        holds(&case, &format!("event {nth} lost"))?;
    }
    Ok(())
}

/// Nothing is written to the new cluster before all of it is listed.
fn a_secret_leads_elsewhere() -> Result<(), Failed> {
    let (site, to) = ("c2".to_owned(), "c3".to_owned());
    for nth in 20..=MOST_REQUESTS {
        let mut case = story(&[
            Action::SwitchSecret {
                site: site.clone(),
                to: to.clone(),
            },
            Action::RestoreSecret { site: site.clone() },
        ]);
        let late = Fate::AnswerLate(Duration::from_secs(3));
        case.steps.push(Step::Fault(Fault::Request {
            cluster: to.clone(),
            nth,
            fate: late,
        }));
        holds(&case, &format!("request {nth} late"))?;
    }
    Ok(())
}

/// The answer to a dial of the old address arrives after the new address is known.
fn an_address_moves_while_it_is_dialled() -> Result<(), Failed> {
    for seconds in 0..8 {
        let mut case = story(&[]);
        case.dial_delays = vec![Duration::from_secs(seconds)];
        for (at, last) in [(1_000, 100), (3_000, 101), (60_000, 102), (61_000, 103)] {
            case.steps.push(Step::Act(
                Duration::from_millis(at),
                Action::MoveAddress {
                    site: "c2".into(),
                    last,
                },
            ));
        }
        holds(&case, &format!("dials take {seconds} s"))?;
    }
    Ok(())
}
