//! Volumes of Secrets or of a ConfigMap, as in a pod spec and as written by the kubelet: a
//! folder contains all files of a version, and a symbolic link to it is replaced atomically.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// Symbolic link to the current files.
const DATA: &str = "..data";

/// Contents of Secrets or ConfigMaps, by name.
pub(super) type Objects = BTreeMap<String, Contents>;
pub(super) type Contents = BTreeMap<String, Vec<u8>>;

/// Kind of the objects in a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Secrets,
    ConfigMaps,
}

/// A projected volume of Secrets, or a volume of one ConfigMap.
#[derive(Debug, Clone)]
pub(super) struct Volume {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) sources: Vec<Source>,
}

/// An object in a volume.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) object: &'static str,
    pub(super) optional: bool,
    /// Keys and their file names; `None` for all keys under their own names.
    pub(super) items: Option<Vec<(&'static str, String)>>,
}

impl Volume {
    /// Returns the volume as in a pod spec.
    pub(super) fn spec(&self) -> Value {
        match (self.kind, self.sources.first()) {
            (Kind::ConfigMaps, Some(source)) => {
                json!({ "name": self.name, "configMap": { "name": source.object, "defaultMode": 0o400 } })
            }
            _ => {
                let sources: Vec<Value> = self.sources.iter().map(Source::spec).collect();
                json!({ "name": self.name, "projected": { "defaultMode": 0o400, "sources": sources } })
            }
        }
    }

    /// Returns the files; `None` while a required object or key is missing.
    pub(super) fn files(&self, objects: &Objects) -> Option<Contents> {
        let mut files = Contents::new();
        for source in &self.sources {
            match (objects.get(source.object), source.optional) {
                (Some(object), _) => files.extend(source.files(object)?),
                (None, true) => {}
                (None, false) => return None,
            }
        }
        Some(files)
    }
}

impl Source {
    fn spec(&self) -> Value {
        let items = self
            .items
            .iter()
            .flatten()
            .map(|(key, path)| json!({ "key": key, "path": path }));
        let mut secret = json!({ "name": self.object, "optional": self.optional });
        if let (Some(secret), Some(_)) = (secret.as_object_mut(), &self.items) {
            secret.insert("items".into(), items.collect());
        }
        json!({ "secret": secret })
    }

    fn files(&self, object: &Contents) -> Option<Contents> {
        let Some(items) = &self.items else {
            return Some(object.clone());
        };
        let found = items
            .iter()
            .map(|(key, path)| object.get(*key).map(|bytes| (path.clone(), bytes.clone())));
        if self.optional {
            Some(found.flatten().collect())
        } else {
            found.collect()
        }
    }
}

/// A folder with the files of a volume.
pub(super) struct Layout {
    folder: PathBuf,
    files: Contents,
    moment: u64,
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layout")
            .field("folder", &self.folder)
            .field("files", &self.files.keys())
            .finish_non_exhaustive()
    }
}

impl Layout {
    pub(super) fn new(folder: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self {
            folder,
            files: Contents::new(),
            moment: 0,
        })
    }

    /// Writes the files, if they have changed.
    pub(super) fn lay_out(&mut self, files: &Contents) -> io::Result<()> {
        if self.moment > 0 && self.files == *files {
            return Ok(());
        }
        let old = self.place(self.moment);
        self.moment += 1;
        let new = self.place(self.moment);
        fs::create_dir(&new)?;
        for (name, bytes) in files {
            write_secretly(&new.join(name), bytes)?;
        }
        let next = self.folder.join("..data_tmp");
        symlink(new.file_name().unwrap_or_default(), &next)?;
        fs::rename(&next, self.folder.join(DATA))?;
        let (before, now): (BTreeSet<_>, BTreeSet<_>) =
            (self.files.keys().collect(), files.keys().collect());
        for name in now.difference(&before) {
            symlink(Path::new(DATA).join(name), self.folder.join(name))?;
        }
        for name in before.difference(&now) {
            fs::remove_file(self.folder.join(name))?;
        }
        if self.moment > 1 {
            fs::remove_dir_all(old)?;
        }
        self.files = files.clone();
        Ok(())
    }

    fn place(&self, moment: u64) -> PathBuf {
        self.folder.join(format!("..{moment}"))
    }
}

fn write_secretly(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::write(path, bytes)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o400))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(files: &[(&str, &str)]) -> Contents {
        files
            .iter()
            .map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec()))
            .collect()
    }

    fn read(folder: &Path) -> Contents {
        let names = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let visible = names.filter(|name| !name.starts_with(".."));
        visible
            .map(|name| (name.clone(), fs::read(folder.join(name)).unwrap()))
            .collect()
    }

    #[test]
    fn files_come_change_and_go_and_one_moment_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let mut layout = Layout::new(folder.path().join("v")).unwrap();
        for files in [
            contents(&[]),
            contents(&[("a", "1"), ("b", "2")]),
            contents(&[("b", "3"), ("c", "4")]),
        ] {
            layout.lay_out(&files).unwrap();
            assert_eq!(read(&layout.folder), files);
            let moments = fs::read_dir(&layout.folder)
                .unwrap()
                .filter(|entry| entry.as_ref().unwrap().file_type().unwrap().is_dir());
            assert_eq!(moments.count(), 1);
        }
        let before = fs::read_link(layout.folder.join(DATA)).unwrap();
        layout
            .lay_out(&contents(&[("b", "3"), ("c", "4")]))
            .unwrap();
        assert_eq!(fs::read_link(layout.folder.join(DATA)).unwrap(), before);
    }

    #[test]
    fn a_volume_waits_for_what_is_not_optional() {
        let source = |object, optional, items| Source {
            object,
            optional,
            items,
        };
        let volume = Volume {
            name: "v",
            kind: Kind::Secrets,
            sources: vec![
                source("all", true, None),
                source(
                    "some",
                    false,
                    Some(vec![("tls.crt", "client.crt".to_owned())]),
                ),
            ],
        };
        let mut secrets = Objects::from([("all".to_owned(), contents(&[("b", "x")]))]);
        assert_eq!(volume.files(&secrets), None);
        secrets.insert("some".to_owned(), contents(&[("tls.key", "k")]));
        assert_eq!(volume.files(&secrets), None, "a key is missing");
        secrets.insert(
            "some".to_owned(),
            contents(&[("tls.crt", "c"), ("tls.key", "k")]),
        );
        assert_eq!(
            volume.files(&secrets),
            Some(contents(&[("b", "x"), ("client.crt", "c")]))
        );
        secrets.remove("all");
        assert_eq!(
            volume.files(&secrets),
            Some(contents(&[("client.crt", "c")]))
        );
        assert_eq!(
            volume.spec()["projected"]["sources"][1]["secret"]["items"][0]["path"],
            "client.crt"
        );
    }
}
