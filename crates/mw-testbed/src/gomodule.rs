//! Programs built once from a pinned Go module under `tools/`, and files of the
//! modules that it requires, kept in the cache, keyed by what they come from.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// One program of a module.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// The folder of its `main.go`, from the module's root.
    pub(crate) package: &'static str,
    /// How long its build takes on two cores, for those who wait.
    pub(crate) takes: &'static str,
}

/// Files of one folder of a module that ours requires.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Files {
    pub(crate) module: &'static str,
    pub(crate) folder: &'static str,
    pub(crate) names: &'static [&'static str],
}

impl Files {
    pub(crate) const NONE: Self = Self { module: "", folder: "", names: &[] };
}

/// A module and what is built and taken from it.
#[derive(Debug)]
pub(crate) struct GoModule {
    name: &'static str,
    folder: PathBuf,
    programs: &'static [Program],
    files: Files,
    go_mod: String,
    digest: String,
}

impl GoModule {
    /// Reads `tools/NAME`.
    pub(crate) fn read(name: &'static str, programs: &'static [Program], files: Files) -> Result<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools").join(name);
        let read = |name: &str| {
            let path = folder.join(name);
            std::fs::read_to_string(&path).map_err(Error::file("reading", path))
        };
        let mut hash = Sha256::new();
        hash.update(read("go.sum")?);
        for program in programs {
            hash.update(read(&format!("{}/main.go", program.package))?);
        }
        let go_mod = read("go.mod")?;
        hash.update(&go_mod);
        Ok(Self { name, programs, files, go_mod, digest: hex::encode(hash.finalize()), folder })
    }

    /// The version that `go.mod` requires of a module.
    pub(crate) fn pinned(&self, module: &str) -> Result<String> {
        pinned(&self.go_mod, module)
    }

    /// Where programs and files belong; `versions` is for people who look there.
    pub(crate) fn folder_in(&self, cache: &Path, versions: &str) -> PathBuf {
        let digest = self.digest.get(..12).unwrap_or(&self.digest);
        cache.join(self.name).join(format!("{versions}-{digest}"))
    }

    pub(crate) fn is_built(&self, folder: &Path) -> bool {
        let mut names = self.programs.iter().map(|program| program.name).chain(self.files.names.iter().copied());
        names.all(|name| folder.join(name).is_file())
    }

    /// Builds what is missing. A second process waits at the lock and then
    /// finds everything there.
    pub(crate) fn build(&self, go: &Path, folder: &Path, linker_flags: &str) -> Result<()> {
        std::fs::create_dir_all(folder).map_err(Error::file("creating", folder))?;
        let lock_path = folder.join("lock");
        let lock = File::create(&lock_path).map_err(Error::file("creating", &lock_path))?;
        if lock.try_lock().is_err() {
            say(&format!("waiting for another test that builds {}", self.name));
            lock.lock().map_err(Error::file("locking", &lock_path))?;
        }
        for program in self.programs {
            if !folder.join(program.name).is_file() {
                self.build_program(go, program, folder, linker_flags)?;
            }
        }
        if self.is_built(folder) { Ok(()) } else { self.take_files(go, folder) }
    }

    /// Renamed at the end only: an interrupted build leaves no half binary.
    fn build_program(&self, go: &Path, program: &Program, folder: &Path, linker_flags: &str) -> Result<()> {
        let name = program.name;
        say(&format!("building {name} into {} (once; takes {} on two cores)", folder.display(), program.takes));
        let start = Instant::now();
        let (part, whole) = (folder.join(format!("{name}.part")), folder.join(name));
        let failed = |reason: String| Error::Build { binary: name.into(), reason };
        let output = Command::new(go)
            .current_dir(&self.folder)
            .args(["build", "-mod=readonly", "-trimpath", "-ldflags", linker_flags, "-o"])
            .arg(&part)
            .arg(format!("./{}", program.package))
            .output()
            .map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        std::fs::rename(&part, &whole).map_err(Error::file("renaming", &part))?;
        say(&format!("built {name} in {:.0} s", start.elapsed().as_secs_f64()));
        Ok(())
    }

    fn take_files(&self, go: &Path, folder: &Path) -> Result<()> {
        let Files { module, folder: source, names } = self.files;
        let failed = |reason: String| Error::Build { binary: module.into(), reason };
        let output = Command::new(go)
            .current_dir(&self.folder)
            .args(["mod", "download", "-json", module])
            .output()
            .map_err(|error| failed(error.to_string()))?;
        let kept = downloaded(&output.stdout).ok_or_else(|| failed(String::from_utf8_lossy(&output.stderr).into_owned()))?;
        for name in names {
            let (from, part, whole) = (kept.join(source).join(name), folder.join(format!("{name}.part")), folder.join(name));
            let text = std::fs::read(&from).map_err(Error::file("reading", &from))?;
            std::fs::write(&part, text).map_err(Error::file("writing", &part))?;
            std::fs::rename(&part, &whole).map_err(Error::file("renaming", &part))?;
        }
        Ok(())
    }
}

/// Where Go keeps a module, by what `go mod download -json` prints.
fn downloaded(answer: &[u8]) -> Option<PathBuf> {
    let answer: serde_json::Value = serde_json::from_slice(answer).ok()?;
    answer.get("Dir").and_then(serde_json::Value::as_str).map(PathBuf::from)
}

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
    fn a_replaced_module_is_not_taken_for_its_pin() {
        let go_mod = "replace (\n\tk8s.io/a => k8s.io/a v1.0.0\n)\nrequire k8s.io/a v2.0.0\n";
        assert_eq!(pinned(go_mod, "k8s.io/a").unwrap(), "v2.0.0");
        assert!(pinned(go_mod, "k8s.io/b").is_err());
    }
}
