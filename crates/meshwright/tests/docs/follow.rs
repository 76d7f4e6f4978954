//! Runs every kubectl line of the pages, unchanged, in a shell whose clusters are a real API
//! server.

use std::path::PathBuf;
use std::process::Command;

use mw_testbed::Testbed;
use mw_testbed::binaries::kubectl;
use tempfile::TempDir;

use crate::ground::{CONTEXTS, FIRST, GROUND, PREPARE};
use crate::page::{Block, Page, pages, root};
use crate::registry::FOLLOWED;
use crate::shell;

/// Values for the placeholders in capitals.
const FILLED: [(&str, &str); 13] = [
    ("NAME", "prod"),
    ("NAMESPACE", "kilo-system"),
    ("NODE", "node-1"),
    ("POD", "kilo-1"),
    ("PEER", "prod--us--node-1"),
    ("SECRET", "us-kubeconfig"),
    ("REF", "cluster-ffm-1"),
    ("FILE", "ffm.kubeconfig"),
    ("SERVICE", "nginx"),
    ("POLICY", "backend"),
    ("HOST", "192.0.2.1"),
    ("UID", "6f9619ff-8b86-4d01-b42d-00cf4fc964ff"),
    ("HASH", "0123456789abcdef"),
];

/// Shell of somebody who follows the pages.
#[derive(Debug)]
struct Terminal {
    folder: TempDir,
}

impl Terminal {
    fn new(program: PathBuf, kubeconfig: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        std::fs::create_dir(place("bin")).unwrap();
        std::os::unix::fs::symlink(program, place("bin/kubectl")).unwrap();
        for name in ["config", "examples", "crates"] {
            std::os::unix::fs::symlink(root().join(name), place(name)).unwrap();
        }
        for name in [
            "kubeconfig",
            "us.kubeconfig",
            "ffm.kubeconfig",
            "ber.kubeconfig",
        ] {
            std::fs::write(place(name), kubeconfig).unwrap();
        }
        std::fs::write(place("first.yaml"), FIRST).unwrap();
        std::fs::write(place("ground.yaml"), GROUND).unwrap();
        Self { folder }
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    /// Returns the error output if the script fails.
    fn run(&self, script: &str) -> Result<(), String> {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-euc", script])
            .current_dir(self.folder.path())
            .env_clear();
        command.env(
            "PATH",
            format!("{}:/usr/bin:/bin", self.folder.path().join("bin").display()),
        );
        command
            .env("HOME", self.folder.path())
            .env("KUBECONFIG", self.folder.path().join("kubeconfig"));
        // Editor for `kubectl edit` that changes nothing.
        command.env("KUBE_EDITOR", "/bin/true");
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        if output.status.success() {
            Ok(())
        } else {
            Err(format!("{script}\n{said}"))
        }
    }
}

fn filled(line: &str) -> String {
    let mut words: Vec<String> = vec![String::new()];
    for c in line.chars() {
        match c.is_ascii_alphanumeric() || c == '$' {
            true => words.last_mut().unwrap().push(c),
            false => words.extend([c.to_string(), String::new()]),
        }
    }
    let fill = |word: &String| {
        FILLED
            .iter()
            .find(|(blank, _)| blank == word)
            .map_or(word.clone(), |(_, text)| (*text).to_owned())
    };
    words.iter().map(fill).collect()
}

/// Reports whether a line is run here: other tests run these programs, also as a plugin.
pub(crate) fn is_followed(line: &str) -> bool {
    let others = ["meshwright", "make", "cargo", "helm"];
    shell::commands(line).iter().all(|command| {
        command
            .iter()
            .take(2)
            .all(|word| !others.contains(&word.as_str()))
    })
}

/// All blocks of a page as one script.
fn script(page: &Page) -> String {
    let blocks = page.blocks();
    let lines = blocks
        .iter()
        .filter(|block| block.language == "sh")
        .flat_map(|block| shell::lines(&block.text));
    lines
        .filter(|line| is_followed(line))
        .map(|line| tolerant(&filled(&line)) + "\n")
        .collect()
}

/// Tolerates objects that another page has already created.
fn tolerant(line: &str) -> String {
    if line.contains(" create ") {
        format!("{line} 2>refused || grep -qi 'already *exists' refused")
    } else {
        line.to_owned()
    }
}

/// Reports whether the error says that the object already exists.
fn is_there_already(wrong: &str) -> bool {
    [
        "AlreadyExists",
        "already exists",
        "already has a value",
        "already been triggered",
    ]
    .iter()
    .any(|said| wrong.contains(said))
}

#[tokio::test]
async fn every_line_of_kubectl_works() {
    let Some(program) = mw_testbed::or_skip(kubectl()) else {
        return;
    };
    let Some(bed) = Testbed::start_or_skip(&["eu"]).await else {
        return;
    };
    let terminal = Terminal::new(program, &bed.cluster("eu").unwrap().admin_kubeconfig());
    tokio::task::spawn_blocking(move || {
        terminal.run(CONTEXTS).unwrap();
        follow_pages(&terminal);
        terminal.run(PREPARE).unwrap();
        follow_spans(&terminal);
    })
    .await
    .unwrap();
}

/// Follows each page on the same cluster; later pages use objects of the quick start.
fn follow_pages(terminal: &Terminal) {
    let mut wrong = Vec::new();
    let pages = pages();
    let is_mesh =
        |block: &Block| block.language == "yaml" && block.text.contains("kind: ClusterMesh\n");
    terminal.write(
        "mesh.yaml",
        &pages
            .iter()
            .flat_map(Page::blocks)
            .find(is_mesh)
            .unwrap()
            .text,
    );
    let here = |page: &&Page| {
        !script(page).is_empty() && FOLLOWED.iter().all(|(other, _)| *other != page.path)
    };
    for page in pages.iter().filter(here) {
        terminal.run(PREPARE).unwrap();
        let script = script(page);
        wrong.extend(
            terminal
                .run(&script)
                .err()
                .map(|wrong| format!("{}: {wrong}", page.path)),
        );
        if script.contains("us.kubeconfig") {
            wrong.extend(
                terminal
                    .run("kubectl --kubeconfig us.kubeconfig get nodes")
                    .err(),
            );
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

fn follow_spans(terminal: &Terminal) {
    let pages = pages();
    let mut spans: Vec<&str> = pages
        .iter()
        .flat_map(Page::spans)
        .filter(|span| span.starts_with("kubectl "))
        .collect();
    spans.retain(|span| span.split(' ').count() > 2 && is_followed(span));
    spans.sort_unstable();
    spans.dedup();
    assert!(spans.len() > 50, "{spans:?}");
    let mut wrong = Vec::new();
    for span in spans {
        wrong.extend(
            terminal
                .run(&filled(span))
                .err()
                .filter(|wrong| !is_there_already(wrong)),
        );
        if span.contains(" delete ") {
            terminal.run(PREPARE).unwrap();
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
