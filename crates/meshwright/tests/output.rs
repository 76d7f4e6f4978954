//! Output on a terminal and in a pipe.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test may fail loudly"
)]

mod common;

use std::io::Read;
use std::process::{Command, Stdio};

use common::{Folder, kube_system, mesh, node, owned_by};
use serde_json::Value;

const BOTH: &str = "plan -f mesh.yaml --cluster a=a.yaml --cluster b=b.yaml";

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    keys.sort_unstable();
    keys
}

fn fleet(test: &str) -> Folder {
    let skipped = node(1, 3).replace("10.1.3.0", "172.16.3.0");
    Folder::new(test)
        .with("mesh.yaml", &mesh("prod"))
        .with(
            "a.yaml",
            &(kube_system("hub-1")
                + &node(1, 1)
                + &node(1, 2)
                + &skipped
                + &owned_by("hub-1", "prod", 2, 9)),
        )
        .with(
            "b.yaml",
            &(node(2, 1) + &owned_by("hub-1", "prod", 1, 1).replace("port: 51820", "port: 1")),
        )
}

#[test]
fn json_has_the_promised_shape() {
    let (_, report) = fleet("shape").json(BOTH);
    assert_eq!(
        keys(&report),
        ["conditions", "heldHash", "problems", "skipped", "targets"]
    );
    for target in report["targets"].as_object().unwrap().values() {
        assert_eq!(keys(target), ["create", "delete", "held", "keep", "update"]);
    }
    let b = &report["targets"]["b"];
    assert_eq!(
        keys(&b["create"][0]),
        ["apiVersion", "kind", "metadata", "spec"]
    );
    assert_eq!(keys(&b["update"][0]), ["after", "before"]);
    assert_eq!(
        b["update"][0]["before"]["metadata"],
        b["update"][0]["after"]["metadata"]
    );
    assert_eq!(
        (
            &b["update"][0]["before"]["spec"]["endpoint"]["port"],
            &b["update"][0]["after"]["spec"]["endpoint"]["port"]
        ),
        (&1.into(), &51820.into())
    );
    assert_eq!(
        report["targets"]["a"]["delete"][0]["metadata"]["uid"],
        "uid-29"
    );
    assert_eq!(
        keys(&report["skipped"][0]),
        ["cluster", "mesh", "message", "node", "reason"]
    );
    assert_eq!(
        keys(&report["conditions"][0]),
        ["mesh", "message", "reason", "status", "type"]
    );
    let (_, report) = fleet("shape-problems").json("plan -f mesh.yaml --cluster a=a.yaml");
    assert_eq!(
        keys(&report["problems"][0]),
        ["hint", "mesh", "message", "reason", "severity", "subject"]
    );
    assert_eq!(report["problems"][0]["severity"], "warning");
}

#[test]
fn yaml_says_the_same_as_json() {
    let folder = fleet("yaml");
    let from_yaml: Value =
        serde_saphyr::from_str(&folder.run(&format!("{BOTH} -o yaml")).stdout).unwrap();
    assert_eq!(from_yaml, folder.json(BOTH).1);
}

#[test]
fn the_same_input_gives_the_same_bytes_in_any_order() {
    let folder = fleet("order");
    for format in ["table", "json", "yaml"] {
        let one = folder.run(&format!("{BOTH} -o {format}"));
        let again = folder.run(&format!("{BOTH} -o {format}"));
        let turned = folder.run(&format!(
            "plan --cluster b=b.yaml --cluster a=a.yaml -f mesh.yaml -o {format}"
        ));
        assert_eq!(one.stdout, again.stdout);
        assert_eq!(one.stdout, turned.stdout);
    }
}

#[test]
fn no_escape_code_reaches_a_pipe() {
    let folder = fleet("plain").with("bad.yaml", &mesh("bad").replace("podCIDRs", "podCidrs"));
    for args in [
        BOTH,
        "plan -f bad.yaml",
        "plan -f missing.yaml",
        "plan --bogus",
        "--help",
    ] {
        let outcome = folder.run(args);
        assert!(
            !(outcome.stdout + &outcome.stderr).contains('\x1b'),
            "{args}"
        );
    }
}

/// Uses `script` as terminal. Skipped if it is missing.
#[test]
fn colour_is_for_terminals_and_no_color_is_honoured() {
    let folder = fleet("colour").with("bad.yaml", &mesh("bad").replace("podCIDRs", "podCidrs"));
    let on_terminal = |args: &str, no_color: bool| {
        let mut command = Command::new("script");
        command.args([
            "-qec",
            &format!("{} {args}", env!("CARGO_BIN_EXE_meshwright")),
            "/dev/null",
        ]);
        command
            .current_dir(&folder.0)
            .env_remove("NO_COLOR")
            .env("TERM", "xterm-256color")
            .stdin(Stdio::null());
        if no_color {
            command.env("NO_COLOR", "1");
        }
        command
            .output()
            .ok()
            .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let Some(coloured) = on_terminal(BOTH, false) else {
        assert!(
            std::env::var_os("CI").is_none(),
            "script(1) is needed: apt-get install bsdutils"
        );
        eprintln!("skipped: there is no script(1) here: apt-get install bsdutils");
        return;
    };
    assert!(coloured.contains("\x1b["), "{coloured}");
    assert!(
        on_terminal("plan -f bad.yaml", false)
            .unwrap()
            .contains("\x1b[")
    );
    for args in [BOTH, "plan -f bad.yaml"] {
        assert!(!on_terminal(args, true).unwrap().contains("\x1b["));
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    let folder = fleet("pipe");
    for format in ["table", "json", "yaml"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshwright"));
        command
            .args(BOTH.split(' '))
            .args(["-o", format])
            .current_dir(&folder.0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let mut said = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert_eq!(
            (child.wait().unwrap().code(), said.as_str()),
            (Some(1), ""),
            "{format}"
        );
    }
}

#[test]
fn hostile_text_never_reaches_the_terminal() {
    let hostile = "n\\e[31m\\x9b2J\\x7f\\nx";
    let evil = node(1, 3)
        .replace("name: n3", &format!("name: \"{hostile}\""))
        .replace("10.1.3.0/24", "172.16.0.0/24");
    let peer = owned_by("hub-1", "prod", 1, 7).replace(
        "  uid:",
        &format!("  annotations: {{note: \"{hostile}\"}}\n  uid:"),
    );
    let passing = node(1, 4).replace("name: n4", &format!("name: \"ok{hostile}\""));
    let key = node(1, 5).replace(
        "kilo.squat.ai/wireguard-ip: 10",
        &format!("x: \"{hostile}\"\n    kilo.squat.ai/wireguard-ip: \"{hostile}\"\n    y: 10"),
    );
    let folder = fleet("hostile")
        .with(
            "a.yaml",
            &(kube_system("hub-1") + &node(1, 1) + &evil + &passing + &key),
        )
        .with(
            "b.yaml",
            &(node(2, 1) + &peer + &format!("apiVersion: v1\nkind: \"Pod{hostile}\"\n")),
        );
    for format in ["table", "json", "yaml"] {
        let outcome = folder.run(&format!("{BOTH} -o {format}"));
        assert_eq!(outcome.code, 1);
        assert!(
            outcome.stdout.contains("31m"),
            "the text is there, made harmless: {format} {}",
            outcome.stdout
        );
        let raw = |text: &str| text.chars().any(|c| c.is_control() && c != '\n');
        assert!(
            !raw(&outcome.stdout) && !raw(&outcome.stderr),
            "{format}: {:?}",
            outcome.stdout
        );
    }
    let outcome = folder
        .with(
            "mesh.yaml",
            &mesh("prod").replace(
                "local: true",
                &format!("\"{hostile}\": 1\n      \x7fx: \u{9b}"),
            ),
        )
        .run(BOTH);
    assert!(
        !outcome.stderr.chars().any(|c| c.is_control() && c != '\n'),
        "{:?}",
        outcome.stderr
    );
    assert_eq!(outcome.code, 2);
}

#[test]
fn generated_artefacts_are_printed() {
    let folder = Folder::new("generated");
    let crd = folder.run("crd");
    assert_eq!(crd.code, 0);
    let value: Value = serde_saphyr::from_str(&crd.stdout).unwrap();
    assert_eq!(
        (&value["kind"], &value["metadata"]["name"]),
        (
            &"CustomResourceDefinition".into(),
            &"clustermeshes.kilo.squat.ai".into()
        )
    );
    for shell in ["bash", "zsh", "fish"] {
        let script = folder.run(&format!("completions {shell}"));
        assert!(
            script.code == 0 && script.stdout.contains("node-grace"),
            "{shell}"
        );
    }
    assert!(folder.run("man").stdout.contains(".TH meshwright 1"));
    assert_eq!(folder.run("man --out pages").code, 0);
    for page in [
        "meshwright.1",
        "meshwright-plan.1",
        "meshwright-status.1",
        "meshwright-demo.1",
        "meshwright-crd.1",
    ] {
        assert!(folder.0.join("pages").join(page).exists(), "{page}");
    }
}

#[test]
fn help_is_short_and_names_the_exit_codes() {
    let folder = Folder::new("help");
    for command in ["demo", "plan", "status"] {
        let help = folder.run(&format!("{command} --help"));
        assert!(
            help.code == 0
                && help.stdout.contains("Exit codes:")
                && help.stdout.lines().all(|line| line.chars().count() <= 100)
        );
    }
    assert!(folder.run("--version").stdout.starts_with("meshwright "));
}

#[cfg(unix)]
#[test]
fn as_a_plugin_it_calls_itself_what_people_type() {
    let folder = Folder::new("plugin");
    let plugin = folder.0.join("kubectl-meshwright");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_meshwright"), &plugin).unwrap();
    let output = Command::new(&plugin)
        .args(["plan", "--help"])
        .output()
        .unwrap();
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("Usage: kubectl meshwright plan"),
        "{output:?}"
    );
}
