//! Locates the programs that tests run, or builds them once.
//!
//! kube-apiserver and etcd are searched in the folder `KUBEBUILDER_ASSETS`, then in
//! `PATH`, then in the cache; tools only in the cache. Missing programs are built into
//! the cache from the pinned Go modules under `tools/`, under a lock, because test
//! binaries run in parallel. Cilium's CRDs and chart come from the same modules.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::gomodule::{GoModule, Program};

const SERVERS: [Program; 2] = [
    Program {
        name: "kube-apiserver",
        package: "cmd/kube-apiserver",
        takes: "6 minutes",
    },
    Program {
        name: "etcd",
        package: "cmd/etcd",
        takes: "a minute",
    },
];
const CRDCHECK: Tool = Tool {
    program: &[Program {
        name: "crdcheck",
        package: ".",
        takes: "90 s",
    }],
    label: "apiextensions",
    of: "k8s.io/apiextensions-apiserver",
};
const POLICYCHECK: Tool = Tool {
    program: &[Program {
        name: "policycheck",
        package: ".",
        takes: "5 minutes",
    }],
    label: "cilium",
    of: CILIUM,
};
const RULECHECK: Tool = Tool {
    program: &[Program {
        name: "rulecheck",
        package: ".",
        takes: "a minute",
    }],
    label: "prometheus",
    of: "github.com/prometheus/prometheus",
};
const CLUSTERMESH: Tool = Tool {
    program: &[Program {
        name: "clustermesh-apiserver",
        package: "cmd/clustermesh-apiserver",
        takes: "4 minutes",
    }],
    label: "cilium",
    of: CILIUM,
};
/// CRDs that clustermesh-apiserver waits for, and those of policies.
const CLUSTERMESH_CRDS: [&str; 6] = [
    "ciliumclusterwidenetworkpolicies.yaml",
    "ciliumendpoints.yaml",
    "ciliumexternalworkloads.yaml",
    "ciliumidentities.yaml",
    "ciliumnetworkpolicies.yaml",
    "ciliumnodes.yaml",
];
const HELM: Tool = Tool {
    program: &[Program {
        name: "helm",
        package: ".",
        takes: "5 minutes",
    }],
    label: "helm",
    of: "helm.sh/helm/v4",
};
const KUBECTL: Tool = Tool {
    program: &[Program {
        name: "kubectl",
        package: ".",
        takes: "2 minutes",
    }],
    label: "kubectl",
    of: "k8s.io/kubectl",
};
const CILIUM: &str = "github.com/cilium/cilium";
const PROMETHEUS_OPERATOR: &str = "github.com/prometheus-operator/prometheus-operator";
const PROMETHEUS_CRDS: &str = "example/prometheus-operator-crd";
const CHART: &str = "install/kubernetes/cilium";
const CRDS: &str = "pkg/k8s/apis/cilium.io/client/crds/v2";
const SERVERS_HINT: &str = "type `export KUBEBUILDER_ASSETS=FOLDER` with a folder that holds kube-apiserver and etcd, \
                            or `apt-get install golang` (1.21 or newer) to have them built";
const TOOL_HINT: &str = "install Go 1.21 or newer, e.g. with `apt-get install golang`";
/// Linker flags that omit symbols: nobody debugs these programs.
const STRIP: &str = "-s -w";

/// Lookup of environment variables. Injected, so that a test can set its own.
type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Paths of the two servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    pub kube_apiserver: PathBuf,
    pub etcd: PathBuf,
}

impl Binaries {
    /// Locates or builds the servers; building blocks for minutes.
    pub fn locate() -> Result<Self> {
        Self::locate_in(&|name| std::env::var_os(name))
    }

    fn locate_in(environment: Environment<'_>) -> Result<Self> {
        let given = environment("KUBEBUILDER_ASSETS")
            .and_then(|folder| Self::in_folder(Path::new(&folder)));
        if let Some(found) = given.or_else(|| Self::on_path(environment)) {
            return Ok(found);
        }
        let module = GoModule::read("servers", &SERVERS)?;
        let kubernetes = module.pinned("k8s.io/kubernetes")?;
        let versions = format!(
            "kubernetes-{kubernetes}-etcd-{}",
            module.pinned("go.etcd.io/etcd/server/v3")?
        );
        let folder = module.folder_in(&cache_folder(environment)?, &versions);
        if !module.is_built(&folder) {
            let missing = || Error::Missing {
                what: "kube-apiserver, etcd and go are not installed".into(),
                hint: SERVERS_HINT.into(),
            };
            let go = on_path(environment, "go").ok_or_else(missing)?;
            module.build(
                &go,
                &folder,
                &format!("{STRIP} {}", version_flags(&kubernetes)),
            )?;
        }
        Ok(Self {
            kube_apiserver: folder.join("kube-apiserver"),
            etcd: folder.join("etcd"),
        })
    }

    fn in_folder(folder: &Path) -> Option<Self> {
        let (kube_apiserver, etcd) = (folder.join("kube-apiserver"), folder.join("etcd"));
        (is_program(&kube_apiserver) && is_program(&etcd)).then_some(Self {
            kube_apiserver,
            etcd,
        })
    }

    fn on_path(environment: Environment<'_>) -> Option<Self> {
        Some(Self {
            kube_apiserver: on_path(environment, "kube-apiserver")?,
            etcd: on_path(environment, "etcd")?,
        })
    }
}

/// The only program of a Go module, which has its name.
#[derive(Debug)]
struct Tool {
    program: &'static [Program; 1],
    /// Prefix of the cache folder's name, which continues with the version of `of`.
    label: &'static str,
    of: &'static str,
}

impl Tool {
    fn locate(&self) -> Result<PathBuf> {
        self.locate_in(&|name| std::env::var_os(name))
    }

    fn locate_in(&self, environment: Environment<'_>) -> Result<PathBuf> {
        let [Program { name, .. }] = *self.program;
        let module = GoModule::read(name, self.program)?;
        let folder = module.folder_in(
            &cache_folder(environment)?,
            &format!("{}-{}", self.label, module.pinned(self.of)?),
        );
        if !module.is_built(&folder) {
            module.build(&go(environment, name)?, &folder, STRIP)?;
        }
        Ok(folder.join(name))
    }
}

/// Returns the program that validates CRDs like the oldest supported API server does
/// when they are created; building it blocks for a minute or two.
pub fn crdcheck() -> Result<PathBuf> {
    CRDCHECK.locate()
}

/// Returns the program that validates policies and decides flows with Cilium's code;
/// building it blocks for minutes.
pub fn policycheck() -> Result<PathBuf> {
    POLICYCHECK.locate()
}

/// Program and CRDs of Cilium's mesh control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CiliumBinaries {
    pub clustermesh_apiserver: PathBuf,
    /// Files of the CRDs.
    pub crds: Vec<PathBuf>,
    /// Version as in image tags.
    pub version: String,
}

impl CiliumBinaries {
    /// Locates or builds the program; building blocks for minutes.
    pub fn locate() -> Result<Self> {
        let crds = old_cilium_crds()?;
        let version =
            GoModule::read("clustermesh-apiserver", CLUSTERMESH.program)?.pinned(CILIUM)?;
        let crds = CLUSTERMESH_CRDS
            .iter()
            .map(|name| crds.join(name))
            .collect();
        Ok(Self {
            clustermesh_apiserver: CLUSTERMESH.locate()?,
            crds,
            version,
        })
    }
}

/// Returns Helm; building it blocks for minutes.
pub fn helm() -> Result<PathBuf> {
    HELM.locate()
}

/// Returns kubectl, to run documented commands; building it blocks for minutes.
pub fn kubectl() -> Result<PathBuf> {
    KUBECTL.locate()
}

/// Returns the program that parses alerts with Prometheus' code; building it blocks for
/// a minute.
pub fn rulecheck() -> Result<PathBuf> {
    RULECHECK.locate()
}

/// Returns the folder with the CRDs of the Prometheus operator, one per file.
pub fn prometheus_crds() -> Result<PathBuf> {
    files(
        "rulecheck",
        PROMETHEUS_OPERATOR,
        PROMETHEUS_CRDS,
        ("prometheus-operator", "crds"),
        &|name| std::env::var_os(name),
    )
}

/// Returns the Helm chart of the Cilium version that policycheck uses.
pub fn cilium_chart() -> Result<PathBuf> {
    cilium_folder("policycheck", CHART, "chart", &|name| {
        std::env::var_os(name)
    })
}

/// Returns the folder with the CRDs of that Cilium version, one per file.
pub fn cilium_crds() -> Result<PathBuf> {
    cilium_folder("policycheck", CRDS, "crds", &|name| std::env::var_os(name))
}

/// Returns the folder with the CRDs of the older Cilium version of
/// clustermesh-apiserver, whose policies have fewer features.
pub fn old_cilium_crds() -> Result<PathBuf> {
    cilium_folder("clustermesh-apiserver", CRDS, "crds", &|name| {
        std::env::var_os(name)
    })
}

/// Returns a folder of the Cilium version that a module under `tools/` pins.
fn cilium_folder(
    tool: &'static str,
    source: &str,
    name: &str,
    environment: Environment<'_>,
) -> Result<PathBuf> {
    files(tool, CILIUM, source, ("cilium", name), environment)
}

/// Copies a folder of a dependency that a module under `tools/` pins into the cache,
/// and returns the copy.
fn files(
    tool: &'static str,
    of: &str,
    source: &str,
    (product, name): (&str, &str),
    environment: Environment<'_>,
) -> Result<PathBuf> {
    let module = GoModule::read(tool, &[])?;
    let folder = module.folder_in(
        &cache_folder(environment)?,
        &format!("{product}-files-{}", module.pinned(of)?),
    );
    if !folder.join(name).is_dir() {
        module.copy(
            &go(environment, &format!("{name} of {product}"))?,
            of,
            source,
            &folder,
            name,
        )?;
    }
    Ok(folder.join(name))
}

fn go(environment: Environment<'_>, wanted: &str) -> Result<PathBuf> {
    let missing = || Error::Missing {
        what: format!("{wanted} is not in the cache and go is not installed"),
        hint: TOOL_HINT.into(),
    };
    on_path(environment, "go").ok_or_else(missing)
}

/// Finds an executable file in `PATH`, like a shell.
fn on_path(environment: Environment<'_>, name: &str) -> Option<PathBuf> {
    let path = environment("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| is_program(file))
}

fn is_program(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

fn cache_folder(environment: Environment<'_>) -> Result<PathBuf> {
    let from = |name: &str| {
        environment(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    from("MESHWRIGHT_CACHE")
        .or_else(|| from("XDG_CACHE_HOME").map(|folder| folder.join("meshwright")))
        .or_else(|| from("HOME").map(|folder| folder.join(".cache/meshwright")))
        .ok_or_else(|| Error::Missing {
            what: "no folder for cached programs".into(),
            hint: "type `export MESHWRIGHT_CACHE=FOLDER`".into(),
        })
}

/// Returns linker flags with the version. Without them `/version` reports v0.0.0, and
/// clients that compare versions misbehave.
fn version_flags(kubernetes: &str) -> String {
    let mut parts = kubernetes.trim_start_matches('v').split('.');
    let (major, minor) = (parts.next().unwrap_or("0"), parts.next().unwrap_or("0"));
    let version = "k8s.io/component-base/version";
    format!(
        "-X {version}.gitVersion={kubernetes} -X {version}.gitMajor={major} -X {version}.gitMinor={minor}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::collections::BTreeMap;

    use tempfile::TempDir;

    /// Returns a folder with executable files.
    fn folder_with(names: &[&str]) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            let path = folder.path().join(name);
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        folder
    }

    fn both(folder: &TempDir) -> Binaries {
        Binaries {
            kube_apiserver: folder.path().join("kube-apiserver"),
            etcd: folder.path().join("etcd"),
        }
    }

    fn locate(variables: &[(&str, OsString)]) -> Result<Binaries> {
        let variables: BTreeMap<&str, OsString> = variables.iter().cloned().collect();
        Binaries::locate_in(&|name| variables.get(name).cloned())
    }

    fn joined(folders: &[&TempDir]) -> OsString {
        std::env::join_paths(folders.iter().map(|folder| folder.path())).unwrap()
    }

    #[test]
    fn the_assets_folder_comes_before_the_path() {
        let (assets, path) = (
            folder_with(&["etcd", "kube-apiserver"]),
            folder_with(&["etcd", "kube-apiserver"]),
        );
        let found = locate(&[
            ("KUBEBUILDER_ASSETS", assets.path().into()),
            ("PATH", joined(&[&path])),
        ]);
        assert_eq!(found.unwrap(), both(&assets));
    }

    #[test]
    fn an_assets_folder_that_lacks_a_server_is_passed_over_as_a_whole() {
        let (assets, path) = (
            folder_with(&["etcd"]),
            folder_with(&["etcd", "kube-apiserver"]),
        );
        let found = locate(&[
            ("KUBEBUILDER_ASSETS", assets.path().into()),
            ("PATH", joined(&[&path])),
        ]);
        assert_eq!(found.unwrap(), both(&path));
    }

    #[test]
    fn the_servers_may_be_in_two_folders_of_the_path_and_the_first_of_each_counts() {
        let (first, second) = (
            folder_with(&["etcd"]),
            folder_with(&["etcd", "kube-apiserver"]),
        );
        let found = locate(&[("PATH", joined(&[&first, &second]))]).unwrap();
        assert_eq!(
            found,
            Binaries {
                etcd: first.path().join("etcd"),
                ..both(&second)
            }
        );
    }

    #[test]
    fn a_file_that_may_not_be_executed_is_no_server() {
        let (text, path) = (
            folder_with(&["etcd", "kube-apiserver"]),
            folder_with(&["etcd", "kube-apiserver"]),
        );
        std::fs::set_permissions(
            text.path().join("etcd"),
            std::fs::Permissions::from_mode(0o644),
        )
        .unwrap();
        let found = locate(&[
            ("KUBEBUILDER_ASSETS", text.path().into()),
            ("PATH", joined(&[&text, &path])),
        ])
        .unwrap();
        assert_eq!(
            found,
            Binaries {
                etcd: path.path().join("etcd"),
                ..both(&text)
            }
        );
    }

    #[test]
    fn the_cache_comes_last_and_is_keyed_by_both_versions() {
        let (cache, half) = (tempfile::tempdir().unwrap(), folder_with(&["etcd"]));
        let folder = GoModule::read("servers", &SERVERS)
            .unwrap()
            .folder_in(cache.path(), "kubernetes-v1.34.4-etcd-v3.6.16");
        std::fs::create_dir_all(&folder).unwrap();
        for name in ["kube-apiserver", "etcd"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        let found = locate(&[
            ("MESHWRIGHT_CACHE", cache.path().into()),
            ("PATH", joined(&[&half])),
        ])
        .unwrap();
        assert_eq!(
            found,
            Binaries {
                kube_apiserver: folder.join("kube-apiserver"),
                etcd: folder.join("etcd")
            }
        );
    }

    #[test]
    fn without_programs_and_go_something_is_missing_and_nothing_is_written() {
        let empty = tempfile::tempdir().unwrap();
        let variables = |name: &str| {
            matches!(name, "MESHWRIGHT_CACHE" | "PATH").then(|| OsString::from(empty.path()))
        };
        assert!(matches!(
            Binaries::locate_in(&variables),
            Err(Error::Missing { .. })
        ));
        for tool in [CRDCHECK, POLICYCHECK, CLUSTERMESH, HELM, KUBECTL] {
            assert!(
                matches!(tool.locate_in(&variables), Err(Error::Missing { .. })),
                "{tool:?}"
            );
        }
        assert!(matches!(
            cilium_folder("clustermesh-apiserver", CRDS, "crds", &variables),
            Err(Error::Missing { .. })
        ));
        assert_eq!(std::fs::read_dir(empty.path()).unwrap().count(), 0);
        assert!(
            matches!(Binaries::locate_in(&|_| None), Err(Error::Missing { .. })),
            "without a cache folder"
        );
    }

    #[test]
    fn the_cache_is_found_by_the_most_specific_variable() {
        let folder = |set: &[&str]| {
            cache_folder(&|name| {
                set.contains(&name)
                    .then(|| OsString::from(format!("/{name}")))
            })
            .unwrap()
        };
        assert_eq!(
            folder(&["HOME", "MESHWRIGHT_CACHE", "XDG_CACHE_HOME"]),
            Path::new("/MESHWRIGHT_CACHE")
        );
        assert_eq!(
            folder(&["HOME", "XDG_CACHE_HOME"]),
            Path::new("/XDG_CACHE_HOME/meshwright")
        );
        assert_eq!(folder(&["HOME"]), Path::new("/HOME/.cache/meshwright"));
    }

    #[test]
    fn the_linker_is_told_the_version_of_kubernetes() {
        let flags = version_flags("v1.34.4");
        assert!(
            flags.contains("gitVersion=v1.34.4 ")
                && flags.contains("gitMajor=1 ")
                && flags.ends_with("gitMinor=34"),
            "{flags}"
        );
    }
}
