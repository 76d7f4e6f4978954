//! Programs built from a pinned Go module under `tools/`, and folders of its
//! dependencies, cached by a hash of their sources.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// A program of a module.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// Folder of its `main.go`, relative to the module's root.
    pub(crate) package: &'static str,
    /// Approximate build time on two cores, for a message.
    pub(crate) takes: &'static str,
}

/// A module and its programs.
#[derive(Debug)]
pub(crate) struct GoModule {
    name: &'static str,
    folder: PathBuf,
    programs: &'static [Program],
    go_mod: String,
    digest: String,
}

impl GoModule {
    /// Reads the module `tools/NAME`.
    pub(crate) fn read(name: &'static str, programs: &'static [Program]) -> Result<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tools")
            .join(name);
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
        Ok(Self {
            name,
            programs,
            go_mod,
            digest: hex::encode(hash.finalize()),
            folder,
        })
    }

    /// Returns the version of a module that `go.mod` requires.
    pub(crate) fn pinned(&self, module: &str) -> Result<String> {
        pinned(&self.go_mod, module)
    }

    /// Returns the cache folder of the programs. `versions` makes it recognizable.
    pub(crate) fn folder_in(&self, cache: &Path, versions: &str) -> PathBuf {
        let digest = self.digest.get(..12).unwrap_or(&self.digest);
        cache.join(self.name).join(format!("{versions}-{digest}"))
    }

    pub(crate) fn is_built(&self, folder: &Path) -> bool {
        self.programs
            .iter()
            .all(|program| folder.join(program.name).is_file())
    }

    /// Builds missing programs.
    pub(crate) fn build(&self, go: &Path, folder: &Path, linker_flags: &str) -> Result<()> {
        let _lock = self.lock(folder)?;
        for program in self.programs {
            if !folder.join(program.name).is_file() {
                self.build_program(go, program, folder, linker_flags)?;
            }
        }
        Ok(())
    }

    /// Copies the folder `source` of a dependency to `folder/name`, unless it exists.
    pub(crate) fn copy(
        &self,
        go: &Path,
        module: &str,
        source: &str,
        folder: &Path,
        name: &str,
    ) -> Result<()> {
        let _lock = self.lock(folder)?;
        let (part, whole) = (folder.join(format!("{name}.part")), folder.join(name));
        if whole.is_dir() {
            return Ok(());
        }
        if part.is_dir() {
            std::fs::remove_dir_all(&part).map_err(Error::file("removing", &part))?;
        }
        copy_folder(&self.download(go, module)?.join(source), &part)?;
        std::fs::rename(&part, &whole).map_err(Error::file("renaming", &part))
    }

    /// Returns the folder of a module in Go's module cache, verified against our
    /// go.sum.
    fn download(&self, go: &Path, module: &str) -> Result<PathBuf> {
        let failed = |reason: String| Error::Build {
            binary: module.into(),
            reason,
        };
        let output = Command::new(go)
            .current_dir(&self.folder)
            .args([
                "mod",
                "download",
                "-json",
                &format!("{module}@{}", self.pinned(module)?),
            ])
            .output()
            .map_err(|error| failed(error.to_string()))?;
        let answer: Option<serde_json::Value> = serde_json::from_slice(&output.stdout).ok();
        let folder = answer
            .as_ref()
            .and_then(|answer| answer.get("Dir")?.as_str());
        folder.map(PathBuf::from).ok_or_else(|| {
            failed(format!(
                "{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            ))
        })
    }

    /// Serializes builds. A process that waited finds the programs already built.
    fn lock(&self, folder: &Path) -> Result<File> {
        std::fs::create_dir_all(folder).map_err(Error::file("creating", folder))?;
        let lock_path = folder.join("lock");
        let lock = File::create(&lock_path).map_err(Error::file("creating", &lock_path))?;
        if lock.try_lock().is_err() {
            say(&format!(
                "waiting for another test that builds {}",
                self.name
            ));
            lock.lock().map_err(Error::file("locking", &lock_path))?;
        }
        Ok(lock)
    }

    /// Builds one program. It is renamed at the end, so that an interrupted build
    /// leaves no incomplete binary.
    fn build_program(
        &self,
        go: &Path,
        program: &Program,
        folder: &Path,
        linker_flags: &str,
    ) -> Result<()> {
        let name = program.name;
        say(&format!(
            "building {name} into {} (once; takes {} on two cores)",
            folder.display(),
            program.takes
        ));
        let start = Instant::now();
        let (part, whole) = (folder.join(format!("{name}.part")), folder.join(name));
        let failed = |reason: String| Error::Build {
            binary: name.into(),
            reason,
        };
        let output = Command::new(go)
            .current_dir(&self.folder)
            .args([
                "build",
                "-mod=readonly",
                "-trimpath",
                "-ldflags",
                linker_flags,
                "-o",
            ])
            .arg(&part)
            .arg(format!("./{}", program.package))
            .output()
            .map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        std::fs::rename(&part, &whole).map_err(Error::file("renaming", &part))?;
        say(&format!(
            "built {name} in {:.0} s",
            start.elapsed().as_secs_f64()
        ));
        Ok(())
    }
}

fn pinned(go_mod: &str, module: &str) -> Result<String> {
    go_mod
        .lines()
        .filter_map(|line| {
            line.trim()
                .trim_start_matches("require ")
                .trim()
                .strip_prefix(module)
        })
        .find_map(|rest| {
            rest.strip_prefix(' ')
                .and_then(|rest| rest.split_whitespace().next())
                .filter(|word| word.starts_with('v'))
        })
        .map(str::to_owned)
        .ok_or_else(|| Error::Build {
            binary: module.into(),
            reason: "go.mod does not require this module".into(),
        })
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to).map_err(Error::file("creating", to))?;
    for entry in std::fs::read_dir(from).map_err(Error::file("reading", from))? {
        let source = entry.map_err(Error::file("reading", from))?.path();
        let Some(name) = source.file_name() else {
            continue;
        };
        if source.is_dir() {
            copy_folder(&source, &to.join(name))?;
        } else {
            std::fs::copy(&source, to.join(name)).map_err(Error::file("copying", &source))?;
        }
    }
    Ok(())
}

fn say(text: &str) {
    // Not `eprintln!`, which the test harness would capture.
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
