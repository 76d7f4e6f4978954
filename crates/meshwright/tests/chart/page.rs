//! The commands of docs/install.md, run as they stand there.

use std::os::unix::fs::symlink;
use std::process::Command;

use mw_testbed::Cluster;
use mw_testbed::binaries::kubectl;
use tempfile::TempDir;

use crate::render::{Helm, root};

const PAGE: &str = include_str!("../../../../docs/install.md");

/// A shell in which a cluster's administrator types.
#[derive(Debug)]
pub(crate) struct Shell {
    folder: TempDir,
}

impl Shell {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        std::fs::create_dir(place("bin")).unwrap();
        symlink(Helm::locate().unwrap().program(), place("bin/helm")).unwrap();
        symlink(kubectl().unwrap(), place("bin/kubectl")).unwrap();
        for name in ["charts", "config"] {
            symlink(root().join(name), place(name)).unwrap();
        }
        std::fs::write(place("kubeconfig"), cluster.admin_kubeconfig()).unwrap();
        Self { folder }
    }

    /// A file beside which is typed.
    pub(crate) fn keep(&self, name: &str, content: &str) {
        std::fs::write(self.folder.path().join(name), content).unwrap();
    }

    /// Runs what stands under a heading.
    pub(crate) async fn follow(&self, heading: &str) {
        self.run(under(heading)).await;
    }

    pub(crate) async fn run(&self, script: &str) {
        let mut command = Command::new("/bin/sh");
        command.args(["-euc", script]).current_dir(self.folder.path()).env_clear();
        command.env("PATH", format!("{}:/usr/bin:/bin", self.folder.path().join("bin").display()));
        command.env("HOME", self.folder.path()).env("KUBECONFIG", self.folder.path().join("kubeconfig"));
        let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{script}\n{}", String::from_utf8_lossy(&said));
    }
}

pub(crate) fn under(heading: &str) -> &'static str {
    let script = commands().into_iter().find(|(found, _)| *found == heading).map(|(_, script)| script);
    script.unwrap_or_else(|| panic!("nothing to type under {heading}"))
}

/// What is to be typed, by the heading it stands under.
pub(crate) fn commands() -> Vec<(&'static str, &'static str)> {
    let mut heading = "";
    let mut found = Vec::new();
    for (at, part) in PAGE.split("```").enumerate() {
        if at % 2 == 0 {
            heading = part.lines().rfind(|line| line.starts_with('#')).map_or(heading, |line| line.trim_start_matches(['#', ' ']));
        } else {
            found.push((heading, part.strip_prefix("sh\n").unwrap_or_else(|| panic!("under {heading} is no shell: {part}"))));
        }
    }
    found
}
