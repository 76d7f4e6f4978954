//! A person whose kubeconfig has a context for each cluster, and who runs the commands that
//! `meshwright doctor` prints.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use mw_testbed::Cluster;
use serde_json::Value;

use crate::contexts;
use crate::wait::until;

pub(crate) struct Person {
    home: PathBuf,
    kubeconfig: PathBuf,
    kubectl: PathBuf,
}

pub(crate) struct Outcome {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|wrong| panic!("{wrong}\n{}\n{}", self.stdout, self.stderr))
    }
}

impl Person {
    /// Creates an admin of all clusters; the current context is `hub`.
    pub(crate) fn new<'a>(
        home: &Path,
        kubectl: PathBuf,
        clusters: impl Iterator<Item = &'a Cluster>,
    ) -> Self {
        let kubeconfig = home.join("person");
        let contexts: Vec<(&str, &Cluster)> =
            clusters.map(|cluster| (cluster.name(), cluster)).collect();
        std::fs::write(
            &kubeconfig,
            contexts::kubeconfig(&contexts, "hub").to_string(),
        )
        .unwrap();
        Self {
            home: home.to_owned(),
            kubeconfig,
            kubectl,
        }
    }

    /// Runs meshwright without colour.
    pub(crate) fn types(&self, args: &str) -> Outcome {
        self.types_with(&self.kubeconfig, args)
    }

    pub(crate) fn types_with(&self, kubeconfig: &Path, args: &str) -> Outcome {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshwright"));
        let output = command
            .args(args.split_whitespace())
            .env("KUBECONFIG", kubeconfig)
            .env_remove("KUBERNETES_SERVICE_HOST")
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Outcome {
            code: output.status.code().unwrap(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    /// Waits until all checks pass and returns that report.
    pub(crate) async fn healthy(&self, when: &str, doctor: &str) -> Value {
        until(format!("{when}: all is well"), || async {
            let outcome = self.types(&format!("{doctor} -o json"));
            if outcome.code == 0 {
                Ok(outcome.json())
            } else {
                Err(self.types(doctor).stdout + &outcome.stderr)
            }
        })
        .await
    }

    /// Waits until this check is the first failure; an earlier fault may still be under repair.
    pub(crate) async fn first_broken(
        &self,
        doctor: &str,
        what: &str,
        layer: &str,
        subject: &str,
    ) -> Value {
        until(
            format!("{what}: {layer} of {subject} is the first that is broken"),
            || async {
                let outcome = self.types(&format!("{doctor} -o json --request-timeout 3s"));
                assert_ne!(outcome.code, 2, "{what}: {}", outcome.stderr);
                let report = outcome.json();
                let first = report["checks"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .find(|check| check["state"] == "failed")
                    .cloned()
                    .unwrap_or_default();
                for failed in report["checks"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter(|check| check["state"] == "failed")
                {
                    assert!(
                        failed["repair"].is_string() || failed["hint"].is_string(),
                        "nothing says what to do: {failed:#}"
                    );
                }
                if first["layer"] == layer && first["subject"] == subject {
                    Ok(first)
                } else {
                    Err(format!("{first:#}"))
                }
            },
        )
        .await
    }

    /// Adds a program to the PATH that a printed command may run.
    pub(crate) fn has_program(&self, name: &str, script: &str) {
        let file = self.home.join("bin").join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, script).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Runs the command that a check prints.
    pub(crate) fn repairs(&self, what: &str, check: &Value) {
        let command = check["repair"]
            .as_str()
            .unwrap_or_else(|| panic!("{what}: no command: {check:#}"));
        self.runs(what, command);
    }

    /// Runs a printed command and returns its output.
    pub(crate) fn runs(&self, what: &str, command: &str) -> String {
        let ours = Path::new(env!("CARGO_BIN_EXE_meshwright"))
            .parent()
            .unwrap();
        let own = self.home.join("bin");
        let path = std::env::join_paths([
            &own,
            ours,
            self.kubectl.parent().unwrap(),
            Path::new("/usr/bin"),
            Path::new("/bin"),
        ])
        .unwrap();
        let mut shell = Command::new("/bin/sh");
        let shell = shell
            .args(["-c", command])
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", &self.home)
            .env("PATH", path);
        let output = shell.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{what}: {command}\n{said}");
        String::from_utf8(output.stdout).unwrap()
    }
}
