//! Renders the chart with Helm, and generates the plain manifests.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

const HEADER: &str = "# Rendered from charts/meshwright by `make generate`. Do not edit.\n";

/// Root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// Helm, isolated from the user's configuration.
#[derive(Debug)]
pub(crate) struct Helm {
    program: PathBuf,
    home: TempDir,
}

impl Helm {
    /// Finds or builds Helm. Building blocks for minutes.
    pub(crate) fn locate() -> mw_testbed::Result<Self> {
        Ok(Self {
            program: mw_testbed::binaries::helm()?,
            home: tempfile::tempdir().unwrap(),
        })
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Returns the output, or the error message.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Result<String, String> {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .current_dir(root())
            .env("HOME", self.home.path());
        for name in [
            "KUBECONFIG",
            "HELM_NAMESPACE",
            "XDG_CONFIG_HOME",
            "XDG_CACHE_HOME",
            "XDG_DATA_HOME",
        ] {
            command.env_remove(name);
        }
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(text(&output.stderr))
        }
    }

    /// Runs a Helm command on the chart with values, e.g. `template NAME`.
    pub(crate) fn on_chart(
        &self,
        command: &[&str],
        namespace: &str,
        values: &Value,
    ) -> Result<String, String> {
        let file = self.home.path().join("values.json");
        std::fs::write(&file, values.to_string()).unwrap();
        let values = file.display().to_string();
        self.run(
            &[
                command,
                &[
                    "charts/meshwright",
                    "--namespace",
                    namespace,
                    "--values",
                    &values,
                ],
            ]
            .concat(),
        )
    }

    pub(crate) fn template(&self, namespace: &str, values: &Value) -> Result<String, String> {
        self.on_chart(&["template", "meshwright"], namespace, values)
    }

    /// The plain manifests by path, relative to the root of the repository.
    pub(crate) fn plain_manifests(&self) -> Vec<(&'static str, String)> {
        let provider = json!({ "operator": { "enabled": false }, "provider": { "enabled": true } });
        vec![
            (
                "config/install/operator.yaml",
                self.plain("kilo-system", &json!({})),
            ),
            (
                "config/install/provider.yaml",
                self.plain("meshwright", &provider),
            ),
        ]
    }

    /// Renders without Helm's source comments.
    fn plain(&self, namespace: &str, values: &Value) -> String {
        let rendered = self.template(namespace, values).unwrap();
        let lines = rendered
            .lines()
            .filter(|line| !line.starts_with("# Source:") && !line.trim().is_empty());
        // The first object needs no separator.
        let text: String = lines.skip(1).map(|line| format!("{line}\n")).collect();
        format!("{HEADER}{text}")
    }
}
