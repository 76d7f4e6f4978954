//! Documentation pages whose commands are run as written.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use mw_testbed::Cluster;
use tempfile::TempDir;

use crate::contexts::kubeconfig;
use crate::process::binary;

/// Shell of an administrator of some clusters.
#[derive(Debug)]
pub(crate) struct Shell {
    folder: TempDir,
}

impl Shell {
    /// Creates a shell with a context for each cluster, the first one current, and these programs
    /// besides meshwright.
    pub(crate) fn new(contexts: &[(&str, &Cluster)], programs: &[(&str, PathBuf)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        std::fs::create_dir(place("bin")).unwrap();
        symlink(binary(), place("bin/meshwright")).unwrap();
        for (name, program) in programs {
            symlink(program, place("bin").join(name)).unwrap();
        }
        for name in ["charts", "config"] {
            symlink(
                Path::new(env!("CARGO_MANIFEST_DIR"))
                    .join("../..")
                    .join(name),
                place(name),
            )
            .unwrap();
        }
        let shell = Self { folder };
        shell.keep(
            "kubeconfig",
            &kubeconfig(contexts, contexts[0].0).to_string(),
        );
        shell
    }

    /// Path of a file in the working directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn keep(&self, name: &str, content: &str) {
        std::fs::write(self.path(name), content).unwrap();
    }

    pub(crate) async fn run(&self, script: &str) {
        self.try_run(script).await.unwrap();
    }

    /// Returns the output if the script fails.
    pub(crate) async fn try_run(&self, script: &str) -> Result<(), String> {
        // A command that hangs, such as a delete that waits, would keep the whole suite from ending.
        let mut command = Command::new("timeout");
        command
            .args(["240", "/bin/sh", "-euc", script])
            .current_dir(self.folder.path())
            .env_clear();
        command.env(
            "PATH",
            format!("{}:/usr/bin:/bin", self.path("bin").display()),
        );
        command
            .env("HOME", self.folder.path())
            .env("KUBECONFIG", self.path("kubeconfig"));
        let output = tokio::task::spawn_blocking(move || command.output())
            .await
            .unwrap()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        if output.status.success() {
            Ok(())
        } else {
            Err(format!("{script}\n{}", String::from_utf8_lossy(&said)))
        }
    }
}

/// A code block of a page.
#[derive(Debug)]
pub(crate) struct Block {
    /// Heading above the block.
    pub(crate) heading: &'static str,
    pub(crate) language: &'static str,
    pub(crate) text: &'static str,
}

pub(crate) fn blocks(page: &'static str) -> Vec<Block> {
    let mut heading = "";
    let mut found = Vec::new();
    for (at, part) in page.split("```").enumerate() {
        if at % 2 == 0 {
            heading = part
                .lines()
                .rfind(|line| line.starts_with('#'))
                .map_or(heading, |line| line.trim_start_matches(['#', ' ']));
        } else {
            let (language, text) = part.split_once('\n').unwrap();
            found.push(Block {
                heading,
                language,
                text,
            });
        }
    }
    found
}

/// Commands under a heading, block by block.
pub(crate) fn typed(page: &'static str, heading: &str) -> Vec<&'static str> {
    let wanted = |block: &Block| block.heading == heading && block.language == "sh";
    let found: Vec<&str> = blocks(page)
        .into_iter()
        .filter(wanted)
        .map(|block| block.text)
        .collect();
    assert!(!found.is_empty(), "nothing to type under {heading}");
    found
}
