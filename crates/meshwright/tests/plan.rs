//! Cases of `plan -f`, and their exit codes.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test may fail loudly"
)]

mod common;

use common::{
    Folder, key, kube_system, mesh, meshwright, names, node, owned, owned_by, peer, reasons,
};
use serde_json::{Value, json};

const BOTH: &str = "plan -f mesh.yaml --cluster a=a.yaml --cluster b=b.yaml";

/// Two connected clusters with one node each.
fn connected(test: &str) -> Folder {
    Folder::new(test)
        .with("mesh.yaml", &mesh("prod"))
        .with("a.yaml", &(node(1, 1) + &owned("prod", 2, 1)))
        .with("b.yaml", &(node(2, 1) + &owned("prod", 1, 1)))
}

#[test]
fn a_connected_mesh_needs_nothing() {
    let folder = connected("nothing");
    let outcome = folder.run(BOTH);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    assert!(
        outcome.stdout.contains(
            "mesh default/prod  ready (Reconciled)\n  nothing to do: 2 Peers unchanged\n"
        )
    );
    let (code, report) = folder.json(BOTH);
    assert_eq!(code, 0);
    let nothing = json!({ "create": [], "update": [], "delete": [], "held": [], "keep": 1 });
    assert_eq!(report["targets"], json!({ "a": nothing, "b": nothing }));
    assert_eq!(report["heldHash"], Value::Null);
}

#[test]
fn pending_changes_are_a_no() {
    let folder = connected("pending").with("b.yaml", &node(2, 1));
    let (code, report) = folder.json(BOTH);
    assert_eq!(code, 1);
    assert_eq!(names(&report["targets"]["b"]["create"]), ["prod--a--n1"]);
    assert_eq!(report["targets"]["a"]["keep"], 1);
}

#[test]
fn without_a_hub_uid_its_label_is_neither_written_nor_compared() {
    let folder =
        connected("no-uid").with("b.yaml", &(node(2, 1) + &owned_by("hub-1", "prod", 1, 1)));
    assert_eq!(folder.json(BOTH).0, 0);
    let folder = connected("no-uid-create").with("b.yaml", &node(2, 1));
    let labels = &folder.json(BOTH).1["targets"]["b"]["create"][0]["metadata"]["labels"];
    assert_eq!(labels.get("kilo-clustermesh.io/hub"), None);
}

#[test]
fn the_hub_uid_comes_from_the_flag_or_from_the_local_cluster() {
    let a = kube_system("hub-1") + &node(1, 1) + &owned_by("hub-1", "prod", 2, 1);
    let folder = connected("uid")
        .with("a.yaml", &a)
        .with("b.yaml", &(kube_system("not-the-hub") + &node(2, 1)));
    let hub_of = |args: &str| {
        let (_, report) = folder.json(&format!("{BOTH} {args}"));
        report["targets"]["b"]["create"][0]["metadata"]["labels"]["kilo-clustermesh.io/hub"]
            .as_str()
            .map(str::to_owned)
    };
    assert_eq!(hub_of("").as_deref(), Some("hub-1"));
    assert_eq!(hub_of("--hub-uid other").as_deref(), Some("other"));
}

#[test]
fn peers_with_two_hub_uids_are_a_problem_unless_the_hub_is_known() {
    let folder = connected("two-hubs")
        .with("a.yaml", &(node(1, 1) + &owned_by("hub-1", "prod", 2, 1)))
        .with("b.yaml", &(node(2, 1) + &owned_by("hub-2", "prod", 1, 1)));
    let (code, report) = folder.json(BOTH);
    assert_eq!((code, reasons(&report)), (1, vec!["HubConflict"]));
}

#[test]
fn a_cluster_without_a_file_is_unknown_and_keeps_its_peers() {
    let (code, report) = connected("unknown").json("plan -f mesh.yaml --cluster a=a.yaml");
    assert_eq!((code, reasons(&report)), (0, vec!["ClusterUnreachable"]));
    assert_eq!(
        report["targets"]
            .as_object()
            .unwrap()
            .keys()
            .collect::<Vec<_>>(),
        ["a"]
    );
    assert_eq!(report["targets"]["a"]["keep"], 1);
}

#[test]
fn from_a_cluster_that_left_the_peers_of_this_mesh_go() {
    let c = owned("prod", 1, 1) + &peer("other", 2, 1, common::NAMESPACE);
    let (code, report) = connected("left")
        .with("c.yaml", &c)
        .json(&format!("{BOTH} --cluster c=c.yaml"));
    assert_eq!(code, 1);
    assert_eq!(names(&report["targets"]["c"]["delete"]), ["prod--a--n1"]);
}

#[test]
fn peers_of_other_meshes_are_orphans_only_when_all_meshes_are_given() {
    let b = node(2, 1) + &owned_by("hub-1", "prod", 1, 1) + &owned_by("hub-1", "gone", 1, 2);
    let folder = connected("orphans").with("b.yaml", &b);
    assert_eq!(
        folder.json(&format!("{BOTH} --hub-uid hub-1")).1["targets"]["b"]["delete"],
        json!([])
    );
    let (code, report) = folder.json(&format!("{BOTH} --hub-uid hub-1 --all-meshes"));
    assert_eq!(
        (code, names(&report["targets"]["b"]["delete"])),
        (1, vec!["gone--a--n2"])
    );
    let text = folder
        .run(&format!("{BOTH} --hub-uid hub-1 --all-meshes"))
        .stdout;
    assert!(
        text.contains("Peers of meshes that do not exist\n\n  on b\n    - peer gone--a--n2  (its ClusterMesh does not exist)\n"),
        "{text}"
    );
}

#[test]
fn a_node_missing_from_a_dump_was_deleted() {
    let b = node(2, 1) + &owned("prod", 1, 1) + &owned("prod", 1, 2);
    let (code, report) = connected("node-gone").with("b.yaml", &b).json(BOTH);
    assert_eq!(
        (code, names(&report["targets"]["b"]["delete"])),
        (1, vec!["prod--a--n2"])
    );
}

#[test]
fn a_file_without_any_node_deletes_nothing() {
    let folder = connected("no-nodes").with("a.yaml", &owned("prod", 2, 1));
    let (code, report) = folder.json(BOTH);
    assert_eq!((code, reasons(&report)), (1, vec!["DeletionHeld"]));
    assert_eq!(
        (
            names(&report["targets"]["b"]["held"]),
            &report["targets"]["b"]["delete"]
        ),
        (vec!["prod--a--n1"], &json!([]))
    );
    assert_eq!(report["heldHash"].as_str().unwrap().len(), 16);
    let text = folder.run(BOTH);
    assert!(
        text.stdout.contains("! peer prod--a--n1  (delete held: "),
        "{}",
        text.stdout
    );
    assert!(
        text.stdout.contains("kilo-clustermesh.io/confirm-deletes="),
        "{}",
        text.stdout
    );
    assert!(
        text.stderr.contains("note: a: its file holds no Node"),
        "{}",
        text.stderr
    );
}

#[test]
fn held_deletes_of_several_meshes_have_a_hash_each() {
    let second = mesh("test")
        .replace("name: b", "name: c")
        .replace("10.2.0.0", "10.3.0.0")
        .replace("10.5.0.0", "10.6.0.0");
    let folder = connected("hashes")
        .with("mesh.yaml", &(mesh("prod") + "---\n" + &second))
        .with("a.yaml", "")
        .with("c.yaml", &peer("test", 1, 1, common::NAMESPACE));
    let (_, report) = folder.json(&format!("{BOTH} --cluster c=c.yaml"));
    assert_eq!(report["heldHash"], Value::Null);
    assert_eq!(
        report["heldHashes"]
            .as_object()
            .unwrap()
            .keys()
            .collect::<Vec<_>>(),
        ["default/prod", "default/test"]
    );
}

#[test]
fn a_node_in_grace_stays_unless_there_is_no_grace() {
    let bare = node(1, 2)
        .replace("kilo.squat.ai/key", "note")
        .replace("kilo.squat.ai/last-seen", "seen");
    let b = node(2, 1) + &owned("prod", 1, 1) + &owned("prod", 1, 2);
    let folder = connected("grace")
        .with("a.yaml", &(node(1, 1) + &bare + &owned("prod", 2, 1)))
        .with("b.yaml", &b);
    let (code, report) = folder.json(BOTH);
    assert_eq!(
        (code, &report["targets"]["b"]["delete"], reasons(&report)),
        (0, &json!([]), vec!["NodeInGrace"])
    );
    assert!(
        folder
            .run(BOTH)
            .stdout
            .contains("held  n2  its Peer is kept for now")
    );
    let (code, report) = folder.json(&format!("{BOTH} --node-grace 0"));
    assert_eq!(
        (code, names(&report["targets"]["b"]["delete"])),
        (1, vec!["prod--a--n2"])
    );
}

#[test]
fn an_overlap_changes_nothing_and_is_a_no() {
    let overlap = mesh("prod").replace("10.2.0.0/16", "10.1.128.0/17");
    let (code, report) = connected("overlap")
        .with("mesh.yaml", &overlap)
        .with("b.yaml", &node(2, 1))
        .json(BOTH);
    assert_eq!((code, reasons(&report)), (1, vec!["CIDROverlap"]));
    assert!(
        report["targets"]
            .as_object()
            .unwrap()
            .values()
            .all(|target| target["create"] == json!([]))
    );
    let ready = report["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .find(|condition| condition["type"] == "Ready")
        .unwrap();
    assert_eq!(
        (&ready["status"], &ready["reason"], &ready["mesh"]),
        (
            &json!("False"),
            &json!("NetworksOverlap"),
            &json!("default/prod")
        )
    );
}

#[test]
fn an_invalid_mesh_could_not_be_planned_but_others_are() {
    let other = mesh("test")
        .replace("name: b", "name: c")
        .replace("10.2.0.0", "10.3.0.0")
        .replace("10.5.0.0", "10.6.0.0");
    for broken in [
        mesh("prod").replace("10.2.0.0/16", "10.2.0.0/99"),
        mesh("prod").replace("podCIDRs", "podCidrs"),
    ] {
        let folder = connected("invalid")
            .with("mesh.yaml", &(broken + "---\n" + &other))
            .with("c.yaml", &node(2, 3));
        let (code, report) = folder.json(&format!("{BOTH} --cluster c=c.yaml"));
        assert_eq!(code, 2);
        assert!(reasons(&report).contains(&"InvalidSpec"));
        assert_eq!(names(&report["targets"]["c"]["create"]), ["test--a--n1"]);
        assert_eq!(
            report["targets"]["b"]["delete"],
            json!([]),
            "Peers of an invalid mesh stay"
        );
    }
}

#[test]
fn a_misshapen_mesh_makes_no_orphans() {
    let folder = connected("misshapen-orphans").with(
        "mesh.yaml",
        &mesh("prod").replace("podCIDRs: [10.2", "podCidrs: [10.2"),
    );
    let (code, report) = folder.json(&format!("{BOTH} --all-meshes"));
    assert_eq!((code, reasons(&report)), (2, vec!["InvalidSpec"]));
    assert!(
        report["targets"]
            .as_object()
            .unwrap()
            .values()
            .all(|target| target["delete"] == json!([])),
        "{report}"
    );
}

#[test]
fn a_mesh_that_is_being_deleted_needs_no_valid_spec() {
    let deleting = "  name: prod\n  deletionTimestamp: \"2026-01-01T00:00:00Z\"\n";
    let broken = mesh("prod")
        .replace("  name: prod\n", deleting)
        .replace("podCIDRs", "podCidrs");
    let (code, report) = connected("deleting").with("mesh.yaml", &broken).json(BOTH);
    assert_eq!((code, &report["problems"]), (1, &json!([])));
    assert_eq!(
        (
            names(&report["targets"]["a"]["delete"]),
            names(&report["targets"]["b"]["delete"])
        ),
        (vec!["prod--b--n1"], vec!["prod--a--n1"])
    );
}

#[test]
fn a_missing_namespace_is_default() {
    let (_, report) = connected("namespace").json(BOTH);
    assert_eq!(report["conditions"][0]["mesh"], "default/prod");
}

#[test]
fn a_mesh_may_come_from_standard_input() {
    let folder = connected("stdin");
    let args = [
        "plan",
        "-f",
        "-",
        "--cluster",
        "a=a.yaml",
        "--cluster",
        "b=b.yaml",
    ];
    assert_eq!(meshwright(&folder.0, &args, &mesh("prod")).code, 0);
    let twice = ["plan", "-f", "-", "-f", "-"];
    let outcome = meshwright(&folder.0, &twice, &mesh("prod"));
    assert!(
        outcome.code == 2 && outcome.stderr.contains("standard input was already read"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn dumps_may_be_lists_typed_or_not_and_come_in_pieces() {
    let listed = |kind: &str, api: &str, objects: &str| {
        let items: String = objects
            .split("---\n")
            .filter(|part| !part.is_empty())
            .map(|part| {
                let lines: Vec<&str> = part
                    .lines()
                    .filter(|line| {
                        kind == "List"
                            || !line.starts_with("kind") && !line.starts_with("apiVersion")
                    })
                    .collect();
                format!("- {}\n", lines.join("\n  "))
            })
            .collect();
        format!("apiVersion: {api}\nkind: {kind}\nitems:\n{items}")
    };
    let a = node(1, 1) + &owned("prod", 2, 1);
    let folder = connected("lists")
        .with("a.yaml", &listed("List", "v1", &a))
        .with("b-nodes.yaml", &listed("NodeList", "v1", &node(2, 1)))
        .with(
            "b-peers.yaml",
            &listed("PeerList", "kilo.squat.ai/v1alpha1", &owned("prod", 1, 1)),
        );
    let (code, report) = folder.json(
        "plan -f mesh.yaml --cluster a=a.yaml --cluster b=b-nodes.yaml --cluster b=b-peers.yaml",
    );
    assert_eq!((code, &report["problems"]), (0, &json!([])));
    let outcome = folder.run("plan -f mesh.yaml --cluster b=b-nodes.yaml --cluster b=b-nodes.yaml");
    assert_eq!(outcome.code, 2);
    assert!(
        outcome
            .stderr
            .contains("duplicate Node \"n1\"; first defined in b-nodes.yaml:5:11"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn other_kinds_in_a_dump_are_counted_and_ignored() {
    let pods = "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n---\n".repeat(2);
    let other = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n";
    let folder = connected("kinds").with("c.yaml", &(pods + other));
    let outcome = folder.run(&format!("{BOTH} --cluster c=c.yaml"));
    assert!(
        outcome
            .stderr
            .contains("note: c: ignored 1 Deployment.apps, 2 Pod\n"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn local_entries_of_all_meshes_are_one_cluster() {
    let second = mesh("test")
        .replace("name: a", "name: home")
        .replace("name: b", "name: c")
        .replace("10.2.0.0", "10.3.0.0")
        .replace("10.5.0.0", "10.6.0.0");
    let folder = connected("locals")
        .with("mesh.yaml", &(mesh("prod") + "---\n" + &second))
        .with("c.yaml", &node(2, 3));
    let (_, report) = folder.json(&format!("{BOTH} --cluster c=c.yaml"));
    assert_eq!(names(&report["targets"]["c"]["create"]), ["test--home--n1"]);
    assert_eq!(report["targets"].get("home"), None);
    let outcome = folder
        .with("home.yaml", &node(1, 1))
        .run(&format!("{BOTH} --cluster home=home.yaml"));
    assert_eq!(outcome.code, 2);
    assert!(
        outcome
            .stderr
            .contains("local entries a, home are the same cluster"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn an_adoption_is_an_update_whose_specs_are_equal() {
    let (code, report) = connected("adoption")
        .with("b.yaml", &(node(2, 1) + &peer("prod", 1, 1, "")))
        .json(BOTH);
    let update = &report["targets"]["b"]["update"][0];
    assert_eq!(
        (code, &update["before"]["spec"]),
        (1, &update["after"]["spec"])
    );
    assert_eq!(
        update["before"]["metadata"]["labels"]
            .as_object()
            .unwrap()
            .len(),
        2
    );
    assert_eq!(
        update["after"]["metadata"]["labels"]["kilo-clustermesh.io/mesh-namespace"],
        "default"
    );
}

#[test]
fn an_update_shows_only_what_differs() {
    let drifted = owned("prod", 1, 1)
        .replace("198.51.100.11", "192.0.2.1")
        .replace("10.1.1.0/24,", "10.1.9.0/24,");
    let folder = connected("drift").with("b.yaml", &(node(2, 1) + &drifted));
    let expected = "    ~ peer prod--a--n1
        - endpoint    192.0.2.1:51820
        + endpoint    198.51.100.11:51820
        - allowedIPs  10.1.9.0/24
        + allowedIPs  10.1.1.0/24
";
    let text = folder.run(BOTH).stdout;
    assert!(text.contains(expected), "{text}");
    assert!(
        text.ends_with("Plan: 0 to create, 1 to update, 0 to delete, 0 held, 1 unchanged.\n"),
        "{text}"
    );
}

#[test]
fn a_preshared_key_is_never_shown() {
    let secret = owned("prod", 1, 2).replace("spec:", "spec:\n  presharedKey: c2VjcmV0");
    let note = "  annotations: {last-applied: '{\"presharedKey\":\"c2VjcmV0\"}'}\n  labels:";
    let folder = connected("secret").with(
        "b.yaml",
        &(node(2, 1) + &owned("prod", 1, 1) + &secret.replace("  labels:", note)),
    );
    for format in ["json", "yaml", "table"] {
        let outcome = folder.run(&format!("{BOTH} -o {format}"));
        assert!(
            !(outcome.stdout + &outcome.stderr).contains("c2VjcmV0"),
            "{format}"
        );
    }
    assert_eq!(
        folder.json(BOTH).1["targets"]["b"]["delete"][0]["spec"]["presharedKey"],
        "<redacted>"
    );
    let broken = secret
        .replace(
            "publicKey:",
            "publicKey: {}\n  x: presharedKey c2VjcmV0\n  y:",
        )
        .replace("c2VjcmV0", "[c2VjcmV0]");
    let outcome = connected("secret-broken").with("b.yaml", &broken).run(BOTH);
    assert!(
        outcome.code == 2 && !outcome.stderr.contains("c2VjcmV0"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn many_changes_are_cut_short_in_text() {
    let nodes: String = (1..=60)
        .map(|number| node(1, number).replace(&key(16 + number), &format!("{}A=", unique(number))))
        .collect();
    let folder = connected("many")
        .with("a.yaml", &nodes)
        .with("b.yaml", &node(2, 1));
    let text = folder.run(BOTH).stdout;
    assert!(text.contains("    … and 40 more (use -o json)\n"), "{text}");
    assert!(text.contains("  a  peer  60 nodes\n"), "{text}");
    assert_eq!(
        folder.json(BOTH).1["targets"]["b"]["create"]
            .as_array()
            .unwrap()
            .len(),
        60
    );
}

fn unique(number: u8) -> String {
    format!(
        "{}{}{}",
        "A".repeat(40),
        char::from(b'a' + number / 10),
        char::from(b'a' + number % 10)
    )
}

#[test]
fn bad_arguments_could_not_be_done() {
    let folder = connected("arguments");
    for args in [
        "plan",
        "plan -f mesh.yaml --cluster a",
        "plan -f mesh.yaml --cluster A=a.yaml",
        "plan -f mesh.yaml --node-grace soon",
    ] {
        assert_eq!(folder.run(args).code, 2, "{args}");
    }
    assert_eq!(folder.run(&format!("{BOTH} --now tomorrow")).code, 2);
    assert_eq!(
        folder
            .run(&format!("{BOTH} --now 2026-01-01T00:00:00Z -o text"))
            .code,
        0
    );
    assert_eq!(folder.run("plan -f missing.yaml").code, 2);
}

#[test]
fn a_large_dump_is_read() {
    let names = vec!["x"; 130].join(",");
    let images = format!(
        "  images: [{}]\n",
        vec![format!("{{names: [{names}]}}"); 40].join(",")
    );
    let large =
        |cluster: u8, number: u8| node(cluster, number).replace("---\n", &format!("{images}---\n"));
    let a: String = (1..=50)
        .map(|number| large(1, number).replace(&key(16 + number), &format!("{}A=", unique(number))))
        .collect();
    let folder = connected("large").with("a.yaml", &a);
    let (code, report) = folder.json(BOTH);
    assert_eq!(
        (
            code,
            report["targets"]["b"]["create"].as_array().unwrap().len()
        ),
        (1, 49)
    );
}

#[test]
fn a_matrix_that_is_too_wide_becomes_a_list() {
    let entry = |number: u8| {
        format!(
            "    - {{name: cluster-{number}, kubeconfigSecretRef: {{name: x}}, podCIDRs: [10.{number}.0.0/16], wireguardCIDR: 100.{number}.0.0/16}}\n"
        )
    };
    let wide = mesh("prod") + &(70..90).map(entry).collect::<String>();
    let text = connected("wide")
        .with("mesh.yaml", &wide)
        .with("b.yaml", &node(2, 1))
        .run(BOTH)
        .stdout;
    assert!(
        text.contains("  22 clusters, 462 pairs: 1 ok, 460 unknown\n  a to b  +1\n"),
        "{text}"
    );
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
}
