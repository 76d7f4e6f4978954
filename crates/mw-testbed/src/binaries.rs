//! Finds kube-apiserver and etcd, or builds them once.
//!
//! In this order: the folder in `KUBEBUILDER_ASSETS`, `PATH`, the cache. What
//! the cache lacks is built there from the pinned Go module `tools/servers`,
//! under a lock, because test binaries run side by side.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

const NAMES: [&str; 2] = ["kube-apiserver", "etcd"];
const HINT: &str = "type `export KUBEBUILDER_ASSETS=FOLDER` with a folder that holds kube-apiserver and etcd, \
                    or `apt-get install golang` (1.21 or newer) to have them built";

/// Where the two servers are.
#[derive(Debug, Clone)]
pub struct Binaries {
    pub kube_apiserver: PathBuf,
    pub etcd: PathBuf,
}

impl Binaries {
    /// Finds or builds; blocks for minutes in the latter case.
    pub fn locate() -> Result<Self> {
        if let Some(found) = std::env::var_os("KUBEBUILDER_ASSETS").and_then(|folder| Self::in_folder(Path::new(&folder))) {
            return Ok(found);
        }
        if let (Some(kube_apiserver), Some(etcd)) = (on_path("kube-apiserver"), on_path("etcd")) {
            return Ok(Self { kube_apiserver, etcd });
        }
        let module = Module::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/servers"))?;
        let folder = cache_folder()?.join("servers").join(&module.key);
        if let Some(found) = Self::in_folder(&folder) {
            return Ok(found);
        }
        module.build_into(&folder)?;
        Self::in_folder(&folder)
            .ok_or_else(|| Error::Build { binary: "servers".into(), reason: format!("{} is still empty", folder.display()) })
    }

    fn in_folder(folder: &Path) -> Option<Self> {
        let [kube_apiserver, etcd] = NAMES.map(|name| folder.join(name));
        (kube_apiserver.is_file() && etcd.is_file()).then_some(Self { kube_apiserver, etcd })
    }
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

fn cache_folder() -> Result<PathBuf> {
    let from = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    from("MESHWRIGHT_CACHE")
        .or_else(|| from("XDG_CACHE_HOME").map(|folder| folder.join("meshwright")))
        .or_else(|| from("HOME").map(|folder| folder.join(".cache/meshwright")))
        .ok_or_else(|| Error::Missing {
            what: "no folder to cache the servers in".into(),
            hint: "type `export MESHWRIGHT_CACHE=FOLDER`".into(),
        })
}

/// The Go module that pins the servers.
struct Module {
    folder: PathBuf,
    kubernetes: String,
    key: String,
}

impl Module {
    fn read(folder: &Path) -> Result<Self> {
        let read = |name: &str| {
            let path = folder.join(name);
            std::fs::read_to_string(&path).map_err(Error::file("reading", path))
        };
        let go_mod = read("go.mod")?;
        let mut hash = Sha256::new();
        for name in ["go.sum", "cmd/kube-apiserver/main.go", "cmd/etcd/main.go"] {
            hash.update(read(name)?);
        }
        hash.update(&go_mod);
        let kubernetes = pinned(&go_mod, "k8s.io/kubernetes")?;
        let etcd = pinned(&go_mod, "go.etcd.io/etcd/server/v3")?;
        let digest = hex::encode(hash.finalize());
        let key = format!("kubernetes-{kubernetes}-etcd-{etcd}-{}", digest.get(..12).unwrap_or(&digest));
        Ok(Self { folder: folder.to_owned(), kubernetes, key })
    }

    /// Builds what is missing. A second process waits at the lock and then
    /// finds everything there.
    fn build_into(&self, folder: &Path) -> Result<()> {
        if on_path("go").is_none() {
            return Err(Error::Missing { what: "kube-apiserver, etcd and go are not installed".into(), hint: HINT.into() });
        }
        std::fs::create_dir_all(folder).map_err(Error::file("creating", folder))?;
        let lock_path = folder.join("lock");
        let lock = File::create(&lock_path).map_err(Error::file("creating", &lock_path))?;
        if lock.try_lock().is_err() {
            say("waiting for another process that builds the test servers");
            lock.lock().map_err(Error::file("locking", &lock_path))?;
        }
        for name in NAMES {
            if !folder.join(name).is_file() {
                self.build(name, folder)?;
            }
        }
        Ok(())
    }

    /// Renamed at the end only: an interrupted build leaves no half binary.
    fn build(&self, name: &str, folder: &Path) -> Result<()> {
        say(&format!("building {name} into {} (once; kube-apiserver takes 6 minutes on two cores)", folder.display()));
        let start = Instant::now();
        let (part, whole) = (folder.join(format!("{name}.part")), folder.join(name));
        let failed = |reason: String| Error::Build { binary: name.into(), reason };
        let output = Command::new("go")
            .current_dir(&self.folder)
            .args(["build", "-mod=readonly", "-trimpath", "-ldflags", &self.linker_flags(), "-o"])
            .arg(&part)
            .arg(format!("./cmd/{name}"))
            .output()
            .map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        std::fs::rename(&part, &whole).map_err(Error::file("renaming", &part))?;
        say(&format!("built {name} in {:.0} s", start.elapsed().as_secs_f64()));
        Ok(())
    }

    /// Kubernetes takes its version from the linker; without it `/version`
    /// says v0.0.0 and clients that compare versions misbehave.
    fn linker_flags(&self) -> String {
        let mut parts = self.kubernetes.trim_start_matches('v').split('.');
        let (major, minor) = (parts.next().unwrap_or("0"), parts.next().unwrap_or("0"));
        let version = "k8s.io/component-base/version";
        format!("-s -w -X {version}.gitVersion={} -X {version}.gitMajor={major} -X {version}.gitMinor={minor}", self.kubernetes)
    }
}

/// The version that `go.mod` requires of a module.
fn pinned(go_mod: &str, module: &str) -> Result<String> {
    go_mod
        .lines()
        .filter_map(|line| line.trim().trim_start_matches("require ").trim().strip_prefix(module))
        .find_map(|rest| rest.strip_prefix(' ').and_then(|rest| rest.split_whitespace().next()).filter(|word| word.starts_with('v')))
        .map(str::to_owned)
        .ok_or_else(|| Error::Build { binary: module.into(), reason: "go.mod pins no version".into() })
}

fn say(text: &str) {
    // Not `eprintln!`: the test harness would hold it back for minutes.
    let _ = writeln!(std::io::stderr(), "testbed: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_names_both_versions() {
        let module = Module::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/servers")).unwrap();
        assert!(module.key.starts_with("kubernetes-v1.34.4-etcd-v3.6."), "{}", module.key);
        assert!(module.linker_flags().contains("gitVersion=v1.34.4 "), "{}", module.linker_flags());
    }

    #[test]
    fn a_replaced_module_is_not_taken_for_its_pin() {
        let go_mod = "replace (\n\tk8s.io/a => k8s.io/a v1.0.0\n)\nrequire k8s.io/a v2.0.0\n";
        assert_eq!(pinned(go_mod, "k8s.io/a").unwrap(), "v2.0.0");
        assert!(pinned(go_mod, "k8s.io/b").is_err());
    }
}
