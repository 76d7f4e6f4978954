//! One etcd and the clusters that share it, each under its own prefix.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::binaries::Binaries;
use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::process::Server;
use crate::wait::eventually;

const ETCD: &str = "etcd";
const SOCKET: &str = "socket";
const ETCD_DEADLINE: Duration = Duration::from_secs(30);

/// Running clusters. Dropping it stops all servers and removes their files, as does the
/// end of this process, even if it is killed.
#[derive(Debug)]
pub struct Testbed {
    clusters: BTreeMap<String, Cluster>,
    etcd: Etcd,
    binaries: Binaries,
    folder: TempDir,
}

impl Testbed {
    /// Starts etcd and then all clusters in parallel.
    pub async fn start(names: &[&str]) -> Result<Self> {
        let binaries = tokio::task::spawn_blocking(Binaries::locate)
            .await
            .map_err(|error| Error::Start {
                program: "search for binaries".into(),
                reason: error.to_string(),
            })??;
        let folder = tempfile::Builder::new()
            .prefix("testbed-")
            .tempdir()
            .map_err(Error::file("creating a folder in", std::env::temp_dir()))?;
        let etcd = Etcd::start(&binaries, folder.path()).await?;
        let mut testbed = Self {
            clusters: BTreeMap::new(),
            etcd,
            binaries,
            folder,
        };
        testbed.add(names).await?;
        Ok(testbed)
    }

    /// Like `start`, but returns `None` after [`skip_or_fail`](crate::skip_or_fail) if
    /// this machine lacks the servers.
    ///
    /// # Panics
    /// If the servers are installed but do not start.
    pub async fn start_or_skip(names: &[&str]) -> Option<Self> {
        crate::or_skip(Self::start(names).await)
    }

    /// Starts additional clusters in parallel. A cluster with the name of a removed one
    /// has its objects, but new keys and users.
    pub async fn add(&mut self, names: &[&str]) -> Result<()> {
        let mut starting = JoinSet::new();
        for name in names {
            let (binaries, etcd, root) = (
                self.binaries.clone(),
                self.etcd.url.clone(),
                self.folder.path().to_owned(),
            );
            let name = (*name).to_owned();
            starting.spawn(async move { Cluster::launch(&binaries, &etcd, &root, &name).await });
        }
        while let Some(started) = starting.join_next().await {
            let cluster = started.map_err(|error| Error::Start {
                program: "cluster".into(),
                reason: error.to_string(),
            })??;
            self.clusters.insert(cluster.name().to_owned(), cluster);
        }
        Ok(())
    }

    pub fn cluster(&self, name: &str) -> Result<&Cluster> {
        self.clusters
            .get(name)
            .ok_or_else(|| Error::NoCluster(name.to_owned()))
    }

    /// Returns all clusters, sorted by name.
    pub fn clusters(&self) -> impl Iterator<Item = &Cluster> {
        self.clusters.values()
    }

    /// Removes a cluster. Its address then refuses connections.
    pub fn remove(&mut self, name: &str) -> Result<()> {
        self.clusters
            .remove(name)
            .map(drop)
            .ok_or_else(|| Error::NoCluster(name.to_owned()))
    }

    /// Returns the process IDs of all running servers, etcd first.
    pub fn pids(&self) -> Vec<i32> {
        std::iter::once(self.etcd.server.pid())
            .chain(self.clusters.values().map(Cluster::pid))
            .flatten()
            .collect()
    }

    /// Returns the path of the etcd binary, to start another one.
    pub(crate) fn etcd_program(&self) -> &Path {
        &self.binaries.etcd
    }

    /// Returns the socket of the shared etcd.
    pub(crate) fn etcd_socket(&self) -> PathBuf {
        self.folder.path().join(ETCD).join(SOCKET)
    }

    /// Returns the folder with all files of this testbed.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

#[derive(Debug)]
struct Etcd {
    server: Server,
    url: String,
}

impl Etcd {
    /// Starts etcd on a socket in its folder only, so that no other process can take its
    /// address, and no API server can connect to the etcd of another testbed.
    async fn start(binaries: &Binaries, root: &Path) -> Result<Self> {
        let folder = root.join(ETCD);
        std::fs::create_dir_all(&folder).map_err(Error::file("creating", &folder))?;
        let socket = folder.join(SOCKET);
        let url = format!("unix://{}", socket.display());
        let arguments = [
            format!("--data-dir={}", folder.join("data").display()),
            format!("--listen-client-urls={url}"),
            format!(
                "--listen-peer-urls=unix://{}",
                folder.join("peers").display()
            ),
            // Only used by etcd peers, but must be a URL with a port.
            "--advertise-client-urls=http://127.0.0.1:1".into(),
            // Data does not need to survive a power failure.
            "--unsafe-no-fsync".into(),
            "--log-level=warn".into(),
        ];
        let server = Server::start(&binaries.etcd, &arguments, &folder)?;
        eventually(ETCD_DEADLINE, || async {
            match (
                server.check_alive(),
                tokio::net::UnixStream::connect(&socket).await,
            ) {
                (Err(error), _) => Ok(Err(error)),
                (Ok(()), Ok(_)) => Ok(Ok(())),
                (Ok(()), Err(error)) => Err(format!("etcd: {error}")),
            }
        })
        .await??;
        Ok(Self { server, url })
    }
}
