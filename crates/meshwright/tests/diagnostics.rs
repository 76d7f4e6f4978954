//! Errors in the input: all of them are shown, each with its place.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test may fail loudly"
)]

mod common;

use common::{Folder, mesh, node};

/// Exit code and stderr of `plan -f mesh.yaml`.
fn said(test: &str, name: &str, content: &str) -> (i32, String) {
    let outcome = Folder::new(&format!("diagnostics-{test}"))
        .with(name, content)
        .run(&format!("plan -f {name}"));
    (outcome.code, outcome.stderr)
}

fn assert_said(test: &str, name: &str, content: &str, code: i32, expected: &str) {
    let (is, stderr) = said(test, name, content);
    assert_eq!(stderr.trim_end(), expected.trim_end(), "\n{stderr}");
    assert_eq!(is, code);
}

const NOTHING: &str = "\nnothing was planned: 1 error in the input\n";

#[test]
fn a_typo_in_a_field_is_guessed() {
    let expected = "  x spec.clusters[0].podCidrs: unknown field
   ,-[mesh.yaml:9:7]
 9 |       podCidrs: [10.1.0.0/16]
   :       ^^^^^^^^
   `----
  help: did you mean podCIDRs?
";
    assert_said(
        "typo",
        "mesh.yaml",
        &mesh("prod").replacen("podCIDRs", "podCidrs", 1),
        2,
        expected,
    );
}

#[test]
fn a_field_nobody_knows_gets_the_list_of_those_that_are() {
    let (code, stderr) = said("unknown", "mesh.yaml", &(mesh("prod") + "  bananas: 3\n"));
    assert_eq!(code, 2);
    assert!(stderr.contains("spec.bananas: unknown field"), "{stderr}");
    assert!(
        stderr.contains("help: known fields: cleanupTimeout, clusters, maxDeletePercent"),
        "{stderr}"
    );
}

#[test]
fn a_string_in_place_of_a_list_after_text_that_is_not_ascii() {
    let content = mesh("prod").replace(
        "    - name: a",
        "    # größer\n    - {name: \"ä\", podCIDRs: 10.9.0.0/16}\n    - name: a",
    );
    let expected = "  x spec.clusters[0].podCIDRs: must be a list, not a string
   ,-[mesh.yaml:8:29]
 8 |     - {name: \"ä\", podCIDRs: 10.9.0.0/16}
   :                             ^^^^^^^^^^^
   `----
  help: write it as a list: [10.9.0.0/16]
";
    let (code, stderr) = said("non-ascii", "mesh.yaml", &content);
    assert!(stderr.contains(expected), "{stderr}");
    assert_eq!(code, 2);
}

#[test]
fn a_missing_field_points_at_what_it_is_missing_from() {
    let expected = "  x spec.clusters[1].name: is missing
    ,-[mesh.yaml:11:7]
 11 |     - kubeconfigSecretRef: {name: b}
    :       ^^^^^^^^^^^^^^^^^^^
    `----
  help: Name of the cluster in this mesh: lower-case letters, digits and dashes, at most 63
        characters, unique
";
    let content = mesh("prod").replace("    - name: b\n      kubeconfig", "    - kubeconfig");
    assert_said("missing", "mesh.yaml", &content, 2, expected);
}

#[test]
fn a_rule_of_the_planner_is_shown_in_the_file() {
    let expected = "  x spec.clusters[1].wireguardCIDR: is missing
    ,-[mesh.yaml:11:7]
 11 |     - name: b
    :       ^^^^^^^
    `----
  help: set it to the value of Kilo's --subnet flag in that cluster
";
    assert_said(
        "rule",
        "mesh.yaml",
        &mesh("prod").replace("      wireguardCIDR: 10.5.0.0/16\n", ""),
        2,
        expected,
    );
}

#[test]
fn two_local_clusters_point_at_the_list() {
    let (code, stderr) = said(
        "locals",
        "mesh.yaml",
        &mesh("prod").replace("kubeconfigSecretRef: {name: b}", "local: true"),
    );
    assert_eq!(code, 2);
    assert!(
        stderr.contains("[mesh.yaml:6:3]\n 6 |   clusters:\n   :   ^^^^^^^^\n"),
        "{stderr}"
    );
}

#[test]
fn an_overlap_and_host_bits_are_underlined() {
    let expected =
        "  x spec.clusters[0].podCIDRs[0]: 10.1.0.0/16 of cluster a in mesh default/prod overlaps
  | 10.1.3.0/24 of cluster b in mesh default/prod
   ,-[mesh.yaml:9:18]
 9 |       podCIDRs: [10.1.0.0/16]
   :                  ^^^^^^^^^^^
   `----
  help: networks must not overlap: change one of the two

  ! spec.clusters[1].podCIDRs[0]: \"10.1.3.7/24\" has host bits set; it is read as 10.1.3.0/24
    ,-[mesh.yaml:13:18]
 13 |       podCIDRs: [10.1.3.7/24]
    :                  ^^^^^^^^^^^
    `----
  help: write 10.1.3.0/24
";
    assert_said(
        "overlap",
        "mesh.yaml",
        &mesh("prod").replace("10.2.0.0/16", "10.1.3.7/24"),
        1,
        expected,
    );
}

#[test]
fn several_mistakes_are_all_told_in_the_order_of_the_file() {
    let content = mesh("prod")
        .replace("local: true", "local: \"true\"")
        .replace("10.2.0.0/16", "7")
        .replace("10.5.0.0/16", "10.5.0.0/33");
    let (code, stderr) = said(
        "several",
        "mesh.yaml",
        &(content + "  maxDeletePercent: 101\n"),
    );
    let places: Vec<&str> = stderr
        .lines()
        .filter_map(|line| line.split_once("[mesh.yaml:"))
        .map(|(_, place)| place)
        .collect();
    // Errors that only follow from another error are not shown.
    assert_eq!(places, ["8:14]", "13:18]", "14:22]", "15:21]"], "{stderr}");
    assert_eq!(code, 2);
}

#[test]
fn broken_yaml_is_shown_where_it_breaks() {
    let expected = "  x not valid YAML: mapping values are not allowed in this context
   ,-[mesh.yaml:2:6]
 2 |  kind: ClusterMesh
   :      ^
   `----
  help: look for an unclosed bracket or quote, or wrong indentation, here or just above
";
    assert_said(
        "yaml",
        "mesh.yaml",
        "apiVersion: ü\n kind: ClusterMesh\n",
        2,
        &format!("{expected}{NOTHING}"),
    );
}

#[test]
fn a_key_that_is_there_twice_is_refused() {
    let expected = "  x not valid YAML: duplicate key \"name\"
   ,-[mesh.yaml:5:3]
 5 |   name: other
   :   ^^^^
   `----
  help: remove one of the two
";
    let content = mesh("prod").replace("  name: prod\n", "  name: prod\n  name: other\n");
    assert_said(
        "twice",
        "mesh.yaml",
        &content,
        2,
        &format!("{expected}{NOTHING}"),
    );
}

#[test]
fn broken_json_is_explained_as_json() {
    let expected = "  x not valid JSON: expected value
   ,-[mesh.json:2:19]
 2 |   \"kind\": [\"ü\", 1,, 2]
   :                   ^
   `----
";
    assert_said(
        "json",
        "mesh.json",
        "{\n  \"kind\": [\"ü\", 1,, 2]\n}\n",
        2,
        &format!("{expected}{NOTHING}"),
    );
}

#[test]
fn a_mistake_in_json_on_one_long_line_is_cut_out() {
    let entry = |name: &str, rest: &str| {
        format!(
            "{{\"name\": \"{name}\", \"wireguardCIDR\": \"10.{}.0.0/16\", {rest}}}",
            name.len()
        )
    };
    let clusters = entry("a", "\"local\": true, \"podCIDRs\": [\"10.11.0.0/16\"]")
        + ", "
        + &entry(
            "bb",
            "\"kubeconfigSecretRef\": {\"name\": \"b\"}, \"podCIDRs\": [\"10.12.0.0/61\"]",
        );
    let content = format!(
        "{{\"apiVersion\": \"kilo.squat.ai/v1alpha1\", \"kind\": \"ClusterMesh\", \"metadata\": {{\"name\": \"x\"}}, \"spec\": {{\"clusters\": [{clusters}]}}}}"
    );
    let (code, stderr) = said("one-line", "mesh.json", &content);
    assert_eq!(code, 2);
    let expected = "
 1 | ...SecretRef\": {\"name\": \"b\"}, \"podCIDRs\": [\"10.12.0.0/61\"]}]}}
   :                                            ^^^^^^^^^^^^^^
";
    assert!(stderr.contains(expected), "{stderr}");
    let column = content.find("\"10.12.0.0/61\"").unwrap() + 1;
    assert!(
        stderr.contains(&format!("[mesh.json:1:{column}]")),
        "{stderr}"
    );
}

#[test]
fn a_kind_that_does_not_belong_there_is_told_where_it_does() {
    let expected = "  x expected a ClusterMesh of kilo.squat.ai/v1alpha1, found kind \"Node\"
   ,-[mesh.yaml:2:7]
 2 | kind: Node
   :       ^^^^
   `----
  help: pass the objects of a cluster with --cluster NAME=FILE
";
    assert_said(
        "kind",
        "mesh.yaml",
        &node(1, 1),
        2,
        &format!("{expected}{NOTHING}"),
    );
}

#[test]
fn a_malformed_node_is_shown_with_the_mistakes_of_the_mesh() {
    let folder = Folder::new("diagnostics-node")
        .with(
            "mesh.yaml",
            &mesh("prod").replace("10.5.0.0/16", "10.5.0.0/99"),
        )
        .with(
            "a.yaml",
            &node(1, 1).replace("podCIDRs: [10.1.1.0/24]", "podCIDRs: 10.1.1.0/24"),
        )
        .with(
            "b.yaml",
            &node(2, 1).replace("\"1767225600\"", "1767225600"),
        );
    let outcome = folder.run("plan -f mesh.yaml --cluster a=a.yaml --cluster b=b.yaml");
    assert_eq!((outcome.code, outcome.stdout.as_str()), (2, ""));
    let expected = "
  x cannot read Node \"n1\": expected a sequence, found a string
    ,-[a.yaml:10:13]
 10 |   podCIDRs: 10.1.1.0/24
    :             ^^^^^^^^^^^
    `----

  x cannot read Node \"n1\": expected a string, found a number
   ,-[b.yaml:8:30]
 8 |     kilo.squat.ai/last-seen: 1767225600
   :                              ^^^^^^^^^^
   `----

nothing was planned: 3 errors in the input
";
    assert!(outcome.stderr.ends_with(expected), "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("[mesh.yaml:14:22]"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn a_mesh_that_is_there_twice_is_refused() {
    let (code, stderr) = said(
        "mesh-twice",
        "mesh.yaml",
        &(mesh("prod") + "---\n" + &mesh("prod")),
    );
    assert_eq!(code, 2);
    assert!(
        stderr.contains("duplicate ClusterMesh default/prod; first defined in mesh.yaml:4:9"),
        "{stderr}"
    );
    assert!(stderr.contains("[mesh.yaml:19:9]"), "{stderr}");
}

#[test]
fn a_small_file_cannot_stand_for_a_huge_one() {
    let mut content = "a: &a [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for (this, next) in ('a'..='i').zip('b'..='j') {
        content += &format!(
            "{next}: &{next} [{}]\n",
            vec![format!("*{this}"); 10].join(",")
        );
    }
    let (code, stderr) = said("bomb", "mesh.yaml", &content);
    assert!(
        code == 2 && stderr.contains("it expands beyond the limit"),
        "{stderr}"
    );
    let (code, stderr) = said("deep", "mesh.yaml", &"[".repeat(100_000));
    assert!(code == 2 && stderr.contains("not valid YAML"), "{stderr}");
}

#[test]
fn what_is_no_text_or_no_file_is_said_to_be_so() {
    let folder = Folder::new("diagnostics-binary");
    std::fs::write(folder.0.join("mesh.yaml"), [0x61, 0xff]).unwrap();
    assert!(
        folder
            .run("plan -f mesh.yaml")
            .stderr
            .contains("mesh.yaml is not UTF-8 text (byte 1)")
    );
    assert!(
        folder
            .run("plan -f none.yaml")
            .stderr
            .contains("cannot read none.yaml: No such file")
    );
    assert!(
        said("empty", "mesh.yaml", "")
            .1
            .contains("mesh.yaml contains no ClusterMesh")
    );
    let large = std::fs::File::create(folder.0.join("large.yaml")).unwrap();
    large.set_len(64 * 1024 * 1024 + 1).unwrap();
    assert!(
        folder
            .run("plan -f large.yaml")
            .stderr
            .contains("large.yaml is larger than 64 MiB")
    );
}

#[test]
fn an_operator_that_does_not_know_its_namespace_says_what_to_set() {
    let operator = |more: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_meshwright"));
        let off = [
            "--metrics-bind-address=0",
            "--health-probe-bind-address=0",
            "--kubeconfig=/nowhere/kubeconfig",
        ];
        let output = command
            .arg("operator")
            .args(off)
            .args(more)
            .env_remove("POD_NAMESPACE")
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    for more in [
        &[][..],
        &["--leader-elect"],
        &["--leader-elect=true"],
        &["--all-namespaces"],
    ] {
        let (code, said) = operator(more);
        assert_eq!(code, Some(2), "{said}");
        assert!(
            ["POD_NAMESPACE", "--namespace", "--leader-elect=false"]
                .iter()
                .all(|word| said.contains(word)),
            "{more:?}: {said}"
        );
    }
    for more in [
        &["--leader-elect=false"][..],
        &["--namespace", "kilo-system"],
    ] {
        let (code, said) = operator(more);
        assert!(
            code == Some(2)
                && said.contains("/nowhere/kubeconfig")
                && !said.contains("POD_NAMESPACE"),
            "{more:?}: {said}"
        );
    }
}
