//! One etcd and the clusters that share it, each under its own prefix.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::binaries::Binaries;
use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::process::Server;
use crate::wait::eventually;

const ETCD_DEADLINE: Duration = Duration::from_secs(30);

/// Running clusters. Dropping it ends all servers and removes their files; so
/// does the death of this process, however it comes.
#[derive(Debug)]
pub struct Testbed {
    clusters: BTreeMap<String, Cluster>,
    etcd: Etcd,
    binaries: Binaries,
    folder: TempDir,
}

impl Testbed {
    /// Starts etcd and then all clusters at once.
    pub async fn start(names: &[&str]) -> Result<Self> {
        let binaries = tokio::task::spawn_blocking(Binaries::locate)
            .await
            .map_err(|error| Error::Start { program: "search for binaries".into(), reason: error.to_string() })??;
        let folder =
            tempfile::Builder::new().prefix("testbed-").tempdir().map_err(Error::file("creating a folder in", std::env::temp_dir()))?;
        let etcd = Etcd::start(&binaries, folder.path()).await?;
        let mut testbed = Self { clusters: BTreeMap::new(), etcd, binaries, folder };
        testbed.add(names).await?;
        Ok(testbed)
    }

    /// As `start`, but `None` after [`skip_or_fail`](crate::skip_or_fail)
    /// when this machine lacks the servers.
    ///
    /// # Panics
    /// When the servers are there and do not start.
    pub async fn start_or_skip(names: &[&str]) -> Option<Self> {
        crate::or_skip(Self::start(names).await)
    }

    /// Starts further clusters, all at once. One with the name of a removed
    /// cluster has its objects, but new keys and users.
    pub async fn add(&mut self, names: &[&str]) -> Result<()> {
        let mut starting = JoinSet::new();
        for name in names {
            let (binaries, etcd, root) = (self.binaries.clone(), self.etcd.url.clone(), self.folder.path().to_owned());
            let name = (*name).to_owned();
            starting.spawn(async move { Cluster::launch(&binaries, &etcd, &root, &name).await });
        }
        while let Some(started) = starting.join_next().await {
            let cluster = started.map_err(|error| Error::Start { program: "cluster".into(), reason: error.to_string() })??;
            self.clusters.insert(cluster.name().to_owned(), cluster);
        }
        Ok(())
    }

    pub fn cluster(&self, name: &str) -> Result<&Cluster> {
        self.clusters.get(name).ok_or_else(|| Error::NoCluster(name.to_owned()))
    }

    /// All clusters, by name.
    pub fn clusters(&self) -> impl Iterator<Item = &Cluster> {
        self.clusters.values()
    }

    /// Ends one cluster for good; its address then refuses connections.
    pub fn remove(&mut self, name: &str) -> Result<()> {
        self.clusters.remove(name).map(drop).ok_or_else(|| Error::NoCluster(name.to_owned()))
    }

    /// The process numbers of all servers that run, etcd first.
    pub fn pids(&self) -> Vec<i32> {
        std::iter::once(self.etcd.server.pid()).chain(self.clusters.values().map(Cluster::pid)).flatten().collect()
    }

    /// The etcd that the clusters share, for those who need one more.
    pub(crate) fn etcd_program(&self) -> &Path {
        &self.binaries.etcd
    }

    /// The folder that holds all files of this testbed.
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
    /// Listens on a socket in its folder only: nobody else can take it, and no
    /// API server can end up at another testbed's etcd.
    async fn start(binaries: &Binaries, root: &Path) -> Result<Self> {
        let folder = root.join("etcd");
        std::fs::create_dir_all(&folder).map_err(Error::file("creating", &folder))?;
        let socket = folder.join("socket");
        let url = format!("unix://{}", socket.display());
        let arguments = [
            format!("--data-dir={}", folder.join("data").display()),
            format!("--listen-client-urls={url}"),
            format!("--listen-peer-urls=unix://{}", folder.join("peers").display()),
            // Only peers would read it, but it has to look like a port.
            "--advertise-client-urls=http://127.0.0.1:1".into(),
            // Nothing here has to survive a power cut.
            "--unsafe-no-fsync".into(),
            "--log-level=warn".into(),
        ];
        let server = Server::start(&binaries.etcd, &arguments, &folder)?;
        eventually(ETCD_DEADLINE, || async {
            match (server.check_alive(), tokio::net::UnixStream::connect(&socket).await) {
                (Err(error), _) => Ok(Err(error)),
                (Ok(()), Ok(_)) => Ok(Ok(())),
                (Ok(()), Err(error)) => Err(format!("etcd: {error}")),
            }
        })
        .await??;
        Ok(Self { server, url })
    }
}
