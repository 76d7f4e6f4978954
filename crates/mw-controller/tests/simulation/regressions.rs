//! Regression tests for bugs found by seeds: a change, and one fault at each of the
//! requests around it.

use std::path::Path;
use std::time::Duration;

use libtest_mimic::Trial;
use mw_sim::kilo::{Mesh, Site};
use mw_sim::{Fate, Lie, Reachability, Span};
use serde_json::json;
use tokio::time::sleep;

use crate::bed::{Bed, NODES, PEERS};
use crate::case::{Action, Case, Edit, Step};
use crate::crash::story;
use crate::faults::{Fault, Script};
use crate::lies::{Lasts, Telling, Untruth, neighbour};
use crate::oracle::text;
use crate::play::run;

/// More than a cluster of the story gets in the first seconds.
const MOST_WRITES: u64 = 16;

/// More than a cluster of the story gets in its first two minutes.
const MOST_REQUESTS: u64 = 24;

pub(crate) fn trials() -> Vec<Trial> {
    let rename = Action::RenameEntry {
        mesh: 0,
        site: "c2".into(),
    };
    let stop = Action::StopAgent {
        site: "c2".into(),
        node: "n1".into(),
    };
    let start = Action::StartAgent {
        site: "c2".into(),
        node: "n1".into(),
    };
    let refused = Fate::Refuse {
        code: 503,
        retry_after: None,
    };
    let late = Fate::AnswerLate(Duration::from_millis(6_700));
    let second = Duration::from_secs;
    vec![
        each_write(
            "a_lost_delete_holds_back_what_needs_its_key",
            Fate::LoseRequest,
            vec![(second(60), rename.clone())],
        ),
        each_write(
            "a_refused_update_holds_back_what_needs_its_prefix",
            refused,
            vec![(second(30), stop), (second(150), start)],
        ),
        each_write(
            "a_create_that_is_answered_late_does_not_clash_with_a_new_name",
            late,
            vec![(second(2), rename)],
        ),
        each_write(
            "the_finalizer_waits_for_a_create_that_is_not_answered",
            late,
            vec![(second(1), Action::DeleteMesh { mesh: 0 })],
        ),
        Trial::test("a_mesh_that_may_be_back_keeps_its_peers", || {
            [Reachability::Refusing, Reachability::Stalled]
                .into_iter()
                .try_for_each(a_mesh_comes_back_unseen)
        }),
        Trial::test(
            "the_grace_begins_anew_where_nobody_looked",
            an_agent_stops_twice,
        ),
        Trial::test(
            "what_was_planned_before_an_answer_is_planned_anew",
            an_anchor_goes_while_it_is_written,
        ),
        Trial::test(
            "a_secret_that_may_be_back_is_looked_for_once_more",
            a_secret_comes_back_unseen,
        ),
        Trial::test(
            "a_mesh_that_was_let_go_is_known_before_the_answer",
            a_deletion_is_seen_before_its_answer,
        ),
        Trial::test(
            "credentials_of_another_member_change_nothing_there",
            a_secret_leads_to_another_member,
        ),
        Trial::test(
            "a_cluster_that_shows_anothers_uids_hides_no_peers_there",
            a_cluster_shows_anothers_uids,
        ),
        Trial::test(
            "a_watch_of_another_members_nodes_changes_nothing",
            a_watch_of_another_members_nodes_changes_nothing,
        ),
        Trial::test(
            "a_deleted_node_with_another_key_takes_no_peer_along",
            another_clusters_node_is_deleted,
        ),
        Trial::test(
            "an_entry_that_leads_back_to_other_nodes_than_before_is_held",
            an_entry_leads_back_to_other_nodes,
        ),
        Trial::test(
            "objects_that_take_too_much_memory_are_not_kept",
            objects_that_take_too_much_memory_are_not_kept,
        ),
        Trial::test(
            "a_forged_status_releases_no_delete_after_a_restart",
            a_forged_status_releases_no_delete_after_a_restart,
        ),
        Trial::test("no_select_picks_at_random", || {
            no_random_select(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")));
            Ok(())
        }),
        Trial::test(
            "a_peer_without_labels_and_with_another_key_is_somebody_elses",
            labels_go_and_the_key_changes,
        ),
    ]
}

/// Checks for `tokio::select!` without `biased`, which picks at random; clippy can't.
fn no_random_select(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            no_random_select(&path);
            continue;
        }
        let source = std::fs::read_to_string(&path).unwrap();
        for after in source.split("select! {").skip(1) {
            assert!(
                after.trim_start().starts_with("biased;"),
                "a select! in {} is not biased",
                path.display()
            );
        }
    }
}

/// The responses for the first Peers arrive after another anchor was planned and
/// before it is written.
fn an_anchor_goes_while_it_is_written() -> Result<(), libtest_mimic::Failed> {
    let site = "c2".to_owned();
    let mut case = story(&[], None);
    let moment = Duration::from_millis;
    case.steps.push(Step::Act(
        moment(10),
        Action::DeleteNode {
            site: site.clone(),
            node: "n1".into(),
        },
    ));
    case.steps
        .push(Step::Act(moment(10), Action::AddNode { site, at: 100 }));
    for cluster in ["c1", "c3"] {
        let late = |nth| {
            Step::Fault(Fault::Write {
                cluster: cluster.into(),
                nth,
                fate: Fate::AnswerLate(moment(20)),
            })
        };
        case.steps.extend((1..=MOST_WRITES).map(late));
    }
    let report = run(&case);
    assert_eq!(report.violations, Vec::<String>::new(), "{}", report.trace);
    Ok(())
}

/// Seed 4091: a cluster of another mesh shows UIDs of the cluster that leaves, beside
/// its own.
fn a_cluster_shows_anothers_uids() -> Result<(), libtest_mimic::Failed> {
    let sites = [3, 4, 3, 3]
        .into_iter()
        .zip(1..)
        .map(|(nodes, number)| Site::new(&format!("c{number}"), number, nodes));
    let sites: Vec<Site> = sites.collect();
    let mut meshes = vec![
        Mesh::new("one", &[&sites[0], &sites[1]]),
        Mesh::new("other", &[&sites[0], &sites[2], &sites[3]]),
    ];
    meshes[1].hub = "c1".to_owned();
    let leaves = [
        Action::DeleteMesh { mesh: 1 },
        Action::RemoveEntry {
            mesh: 1,
            site: "c3".into(),
        },
    ];
    for leaves in leaves {
        let (how, lasts) = (
            Untruth::Uids { of: "c3".into() },
            Lasts::For(Duration::from_secs(100)),
        );
        let lie = Action::Lie(Telling {
            cluster: "c2".into(),
            kind: "nodes",
            how,
            lasts,
        });
        let mut case = Case {
            sites: sites.clone(),
            meshes: meshes.clone(),
            ..story(&[], None)
        };
        case.steps = vec![
            Step::Act(Duration::from_secs(15), lie),
            Step::Act(Duration::from_secs(150), leaves.clone()),
        ];
        let report = run(&case);
        assert_eq!(
            report.violations,
            Vec::<String>::new(),
            "{leaves:?}\n{}",
            report.trace
        );
    }
    Ok(())
}

/// The watch on c2, opened again, delivers the Nodes that join and leave c3.
fn a_watch_of_another_members_nodes_changes_nothing() -> Result<(), libtest_mimic::Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        // c3 creates its last Node at a version that the watch on c2 has not seen.
        let sites = [(1, 4), (2, 4), (3, 5)]
            .map(|(number, nodes)| Site::new(&format!("c{number}"), number, nodes));
        let mesh = Mesh::new("mesh", &sites.iter().collect::<Vec<_>>());
        let mut bed = Bed::new(
            1,
            &sites,
            std::slice::from_ref(&mesh),
            Script::new(&[], &[]),
        );
        bed.start_operator(false);
        sleep(Duration::from_secs(60)).await;
        let server = bed.on("c3").clone();
        bed.script
            .lies
            .tell("c2", "nodes", Lie::Another { server }, Span::Requests(1));
        bed.on("c2").hang_up();
        sleep(Duration::from_secs(5)).await;
        bed.delete("c3", &format!("{NODES}/n5"));
        for seconds in [1, 120] {
            sleep(Duration::from_secs(seconds)).await;
            let seen = bed.on("c1").get(&mesh.path()).unwrap();
            let cluster = |at: usize| &seen["status"]["clusters"][at];
            assert_eq!(
                [cluster(1)["nodes"].as_u64(), cluster(2)["nodes"].as_u64()],
                [Some(4); 2],
                "{seen}"
            );
            assert_eq!(
                cluster(1)["skipped"].as_array().map_or(0, Vec::len),
                0,
                "{seen}"
            );
            assert_eq!(bed.on("c1").list(PEERS).len(), 8);
        }
        Ok(())
    })
}

/// Seed 2444: the operator starts while c2 shows the Nodes of c3. One of them is
/// deleted, and the watch on c2 that was opened meanwhile says so.
fn another_clusters_node_is_deleted() -> Result<(), libtest_mimic::Failed> {
    let (how, lasts) = (
        Untruth::Another { of: "c3".into() },
        Lasts::For(Duration::from_secs(72)),
    );
    let lie = Action::Lie(Telling {
        cluster: "c2".into(),
        kind: "nodes",
        how,
        lasts,
    });
    let deleted = Action::DeleteNode {
        site: "c3".into(),
        node: "n1".into(),
    };
    let alone = story(&[], None);
    let (hub, shared) = (alone.sites[0].clone(), alone.sites[2].clone());
    let entry = alone.meshes[0].clone().entry("c3").unwrap().clone();
    let (site, mesh) = neighbour(&hub, (&shared, &entry));
    let mut beside = alone.clone();
    beside.sites.push(site);
    beside.meshes.push(mesh);
    for mut case in [alone, beside] {
        let steps = [
            (60, lie.clone()),
            (80, Action::Restart),
            (140, deleted.clone()),
        ];
        case.steps = steps
            .map(|(at, action)| Step::Act(Duration::from_secs(at), action))
            .into();
        let report = run(&case);
        assert_eq!(report.violations, Vec::<String>::new(), "{}", report.trace);
    }
    Ok(())
}

/// Seed 2096: while an entry names a Secret that does not exist, the cluster of the
/// former Secret shows Nodes of another one; then the entry names the former Secret.
fn an_entry_leads_back_to_other_nodes() -> Result<(), libtest_mimic::Failed> {
    let lie = Action::Lie(Telling {
        cluster: "c2".into(),
        kind: "nodes",
        how: Untruth::Double,
        lasts: Lasts::Requests(3),
    });
    let renamed = Action::MutateMesh {
        mesh: 0,
        pointer: "/spec/clusters/1/kubeconfigSecretRef/name".into(),
        to: json!("nobody"),
    };
    let sites: Vec<Site> = (1..=3)
        .map(|number| Site::new(&format!("c{number}"), number, 4))
        .collect();
    let meshes = vec![Mesh::new("mesh", &sites.iter().collect::<Vec<_>>())];
    let mut case = Case {
        sites,
        meshes,
        ..story(&[], None)
    };
    case.steps = vec![
        Step::Act(Duration::from_secs(60), renamed),
        Step::Act(Duration::from_secs(180), lie),
    ];
    let report = run(&case);
    assert_eq!(report.violations, Vec::<String>::new(), "{}", report.trace);
    Ok(())
}

/// Nodes of a cluster get labels of 400 kB for two minutes.
fn objects_that_take_too_much_memory_are_not_kept() -> Result<(), libtest_mimic::Failed> {
    let (how, lasts) = (
        Untruth::Fat { bytes: 400_000 },
        Lasts::For(Duration::from_secs(120)),
    );
    let lie = Action::Lie(Telling {
        cluster: "c2".into(),
        kind: "nodes",
        how,
        lasts,
    });
    let moved = |port: u16| Action::ChangeEndpoint {
        site: "c1".into(),
        node: "n1".into(),
        to: Some(format!("198.51.100.1:{port}")),
    };
    let report = run(&story(&[lie, moved(1001), moved(1002), moved(1003)], None));
    assert_eq!(report.violations, Vec::<String>::new(), "{}", report.trace);
    Ok(())
}

/// Most nodes of a cluster vanish while no operator runs, and somebody writes to the
/// status, which the next operator reads.
fn a_forged_status_releases_no_delete_after_a_restart() -> Result<(), libtest_mimic::Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let sites = [1, 2].map(|number| Site::new(&format!("c{number}"), number, 4));
        let mesh = Mesh::new("mesh", &sites.iter().collect::<Vec<_>>());
        let mut bed = Bed::new(1, &sites, std::slice::from_ref(&mesh), Script::new(&[], &[]));
        let operator = bed.start_operator(false);
        sleep(Duration::from_secs(60)).await;
        operator.abort();
        let peers = |bed: &Bed| bed.on("c1").list(PEERS).len();
        assert_eq!(peers(&bed), 4);
        ["n2", "n3", "n4"].iter().for_each(|node| bed.delete("c2", &format!("{NODES}/{node}")));
        let all: Vec<String> = bed.on("c1").list(PEERS).iter().map(|peer| text(&peer["metadata"]["name"]).to_owned()).collect();
        let ready = json!([{ "type": "Ready", "status": "True", "reason": "Reconciled", "message": "", "observedGeneration": 1,
            "lastTransitionTime": "2027-01-15T08:00:00Z" }]);
        for (held, conditions) in [
            (json!(null), ready.clone()),
            (json!([]), json!(null)),
            (json!([{ "cluster": "c1", "count": 4, "peers": all }]), ready.clone()),
            (json!([{ "cluster": "c1", "count": 3, "peers": all[1..] }]), json!(null)),
            (json!([{ "cluster": "c2", "count": 9, "peers": [] }, { "cluster": "nowhere", "count": -1, "peers": ["x=y"] }]), ready),
        ] {
            let forged = json!({ "status": { "heldDeletes": held, "conditions": conditions } });
            assert!(bed.patch("c1", &format!("{}/status", mesh.path()), &forged), "{forged}");
            let operator = bed.start_operator(false);
            sleep(Duration::from_secs(120)).await;
            operator.abort();
            assert_eq!(peers(&bed), 4, "after {forged}");
        }
        Ok(())
    })
}

/// A member's Secret is recreated and its mesh deleted; the events for both arrive
/// together, in any order.
fn a_secret_comes_back_unseen() -> Result<(), libtest_mimic::Failed> {
    for link in [Reachability::Refusing, Reachability::Stalled] {
        let (hub, site) = ("c1".to_owned(), "c3".to_owned());
        let mut case = story(&[], None);
        let actions = [
            (32, Action::DeleteSecret { site: site.clone() }),
            (
                42,
                Action::SetLink {
                    site: hub.clone(),
                    link,
                },
            ),
            (65, Action::DeleteMesh { mesh: 0 }),
            (67, Action::RestoreSecret { site }),
            (
                148,
                Action::SetLink {
                    site: hub,
                    link: Reachability::Up,
                },
            ),
        ];
        case.steps = actions
            .into_iter()
            .map(|(at, action)| Step::Act(Duration::from_secs(at), action))
            .collect();
        let report = run(&case);
        assert_eq!(report.violations, Vec::<String>::new(), "{}", report.trace);
    }
    Ok(())
}

/// The hub's watch reports the deletion before the write that allowed it is
/// answered; the Peers left behind on a hung cluster are deleted all the same.
fn a_deletion_is_seen_before_its_answer() -> Result<(), libtest_mimic::Failed> {
    let sites: Vec<Site> = (1..=3)
        .map(|number| Site::new(&format!("c{number}"), number, 5 - number))
        .collect();
    let mut meshes = vec![
        Mesh::new("mesh", &[&sites[0], &sites[2]]),
        Mesh::new("other", &[&sites[1], &sites[2]]),
    ];
    meshes[0]
        .settings
        .insert("cleanupTimeout".to_owned(), "30s".into());
    meshes[1].hub = "c1".to_owned();
    let site = "c3".to_owned();
    let actions = [
        (
            20,
            Action::SetLink {
                site: site.clone(),
                link: Reachability::Stalled,
            },
        ),
        (25, Action::DeleteMesh { mesh: 0 }),
        (
            120,
            Action::SetLink {
                site,
                link: Reachability::Up,
            },
        ),
    ];
    for nth in 1..=MOST_WRITES {
        let mut case = Case {
            sites: sites.clone(),
            meshes: meshes.clone(),
            ..story(&[], None)
        };
        case.steps = actions
            .iter()
            .map(|(at, action)| Step::Act(Duration::from_secs(*at), action.clone()))
            .collect();
        let fate = Fate::AnswerLate(Duration::from_secs(1));
        case.steps.push(Step::Fault(Fault::Write {
            cluster: "c1".into(),
            nth,
            fate,
        }));
        let report = run(&case);
        assert_eq!(
            report.violations,
            Vec::<String>::new(),
            "write {nth} is answered late\n{}",
            report.trace
        );
    }
    Ok(())
}

/// Nodes and Peers must be swapped together: with the Nodes of one cluster and the
/// Peers of the other, Peers would look like those of the target itself.
fn a_secret_leads_to_another_member() -> Result<(), libtest_mimic::Failed> {
    let (site, to) = ("c2".to_owned(), "c3".to_owned());
    let actions = [
        (
            60,
            Action::SwitchSecret {
                site: site.clone(),
                to,
            },
        ),
        (180, Action::RestoreSecret { site }),
    ];
    for nth in 1..=MOST_REQUESTS {
        let mut case = story(&[], None);
        case.steps = actions
            .iter()
            .map(|(at, action)| Step::Act(Duration::from_secs(*at), action.clone()))
            .collect();
        case.steps.push(Step::Fault(Fault::Request {
            cluster: "c3".into(),
            nth,
            fate: Fate::AnswerLate(Duration::from_secs(3)),
        }));
        let report = run(&case);
        assert_eq!(
            report.violations,
            Vec::<String>::new(),
            "request {nth} late\n{}",
            report.trace
        );
    }
    Ok(())
}

/// The owner of such a Peer is unknown: it stays, and the mesh reports it.
fn labels_go_and_the_key_changes() -> Result<(), libtest_mimic::Failed> {
    let site = "c3".to_owned();
    for pick in 0..6 {
        let actions = [
            Action::SetLink {
                site: site.clone(),
                link: Reachability::Refusing,
            },
            Action::ChangeKey {
                site: site.clone(),
                node: "n2".into(),
                to: "another".into(),
            },
            Action::EditPeer {
                site: "c2".into(),
                pick,
                how: Edit::StripLabels,
            },
            Action::SetLink {
                site: site.clone(),
                link: Reachability::Up,
            },
        ];
        let report = run(&story(&actions, None));
        assert_eq!(report.violations, Vec::<String>::new(), "{}", report.trace);
    }
    Ok(())
}

/// The cluster is unreadable while the agent is back in between.
fn an_agent_stops_twice() -> Result<(), libtest_mimic::Failed> {
    let (site, node) = ("c2".to_owned(), "n3".to_owned());
    let stop = Action::StopAgent {
        site: site.clone(),
        node: node.clone(),
    };
    let lost = [
        (
            Action::DeleteSecret { site: site.clone() },
            Action::RestoreSecret { site: site.clone() },
        ),
        (
            Action::SetLink {
                site: site.clone(),
                link: Reachability::Refusing,
            },
            Action::SetLink {
                site: site.clone(),
                link: Reachability::Up,
            },
        ),
    ];
    for (lost, found) in lost {
        let actions = [
            stop.clone(),
            lost,
            Action::StartAgent {
                site: site.clone(),
                node: node.clone(),
            },
        ];
        let mut case = story(&actions, None);
        case.steps
            .push(Step::Act(Duration::from_secs(140), stop.clone()));
        case.steps.push(Step::Act(Duration::from_secs(150), found));
        let report = run(&case);
        assert_eq!(report.violations, Vec::<String>::new(), "{}", report.trace);
    }
    Ok(())
}

/// A member's Secret and its mesh are deleted, so its Peers stay; both are recreated
/// while the hub is unreadable, and either may be observed first.
fn a_mesh_comes_back_unseen(link: Reachability) -> Result<(), libtest_mimic::Failed> {
    let (hub, site) = ("c1".to_owned(), "c2".to_owned());
    let actions = [
        (41, Action::DeleteSecret { site: site.clone() }),
        (63, Action::DeleteMesh { mesh: 0 }),
        (
            111,
            Action::SetLink {
                site: hub.clone(),
                link,
            },
        ),
        (112, Action::RestoreMesh { mesh: 0 }),
        (147, Action::RestoreSecret { site }),
        (
            157,
            Action::SetLink {
                site: hub,
                link: Reachability::Up,
            },
        ),
    ];
    let steps: Vec<Step> = actions
        .map(|(at, action)| Step::Act(Duration::from_secs(at), action))
        .into();
    for seed in 1..=40 {
        let report = run(&Case {
            seed,
            steps: steps.clone(),
            ..story(&[], None)
        });
        assert_eq!(
            report.violations,
            Vec::<String>::new(),
            "{link:?}, seed {seed}\n{}",
            report.trace
        );
    }
    Ok(())
}

fn each_write(name: &'static str, fate: Fate, actions: Vec<(Duration, Action)>) -> Trial {
    Trial::test(name, move || {
        for nth in 1..=MOST_WRITES {
            let mut case: Case = story(&[], None);
            case.steps.extend(
                actions
                    .iter()
                    .map(|(at, action)| Step::Act(*at, action.clone())),
            );
            case.steps.push(Step::Fault(Fault::Write {
                cluster: "c3".into(),
                nth,
                fate,
            }));
            // Only the response shows the result of the write.
            case.steps.extend((4..=8).map(|nth| {
                Step::Fault(Fault::Request {
                    cluster: "c3".into(),
                    nth,
                    fate: watch_fault(fate),
                })
            }));
            let report = run(&case);
            assert_eq!(
                report.violations,
                Vec::<String>::new(),
                "at write {nth}\n{}",
                report.trace
            );
        }
        Ok(())
    })
}

fn watch_fault(fate: Fate) -> Fate {
    match fate {
        Fate::AnswerLate(_) => Fate::Refuse {
            code: 503,
            retry_after: None,
        },
        _ => Fate::Answer,
    }
}
