//! Processes of a clustermesh-apiserver pod: etcd, the apiserver that fills it, and
//! kvstoremesh, which reads the remotes.
//!
//! Cilium's two processes run in their own mount namespaces, because the paths in the
//! Secrets are fixed. There /var/lib belongs to the pod, so neither the program cache
//! nor the folder for temporary files may be below /var/lib.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};

use super::certificates::SERVICE_NAME;
use super::etcd::Etcd;
use super::kubelet::{Kubelet, Mounted};
use super::objects::{
    admin_volume, agent_volume, etcd_volume, kvstoremesh_volume, users_arguments, users_volume,
};
use super::range::Reader;
use super::volume::{Contents, Layout, Volume};
use super::{AuthMode, CiliumSpec, kubelet, objects, status};
use crate::binaries::CiliumBinaries;
use crate::cluster::write;
use crate::error::{Error, Result};
use crate::http::Http;
use crate::process::{Server, Surroundings};
use crate::wait::eventually;

pub(super) const ETCD_PORT: u16 = 2379;
pub(super) const METRICS_PORT: u16 = 9962;
pub(super) const KVSTOREMESH_METRICS_PORT: u16 = 9964;
const API_PORT: u16 = 9889;
/// Path of the secrets below /var/lib, in the folder of each Cilium process.
const ETCD_SECRETS: &str = "var-lib/cilium/etcd-secrets";
const ETCD_USERS: &str = "var-lib/cilium/etcd-config";
const REMOTES: &str = "var-lib/cilium/clustermesh";
/// All ports of a pod at its address.
pub(super) const PORTS: [u16; 4] = [ETCD_PORT, METRICS_PORT, KVSTOREMESH_METRICS_PORT, API_PORT];
const DEADLINE: Duration = Duration::from_secs(60);
const PORT_ATTEMPTS: usize = 100;

/// State that is kept when a pod is replaced.
pub(super) struct Ground {
    pub(super) programs: CiliumBinaries,
    pub(super) etcd: PathBuf,
    /// Folder of the testbed.
    pub(super) root: PathBuf,
    /// Name of the cluster in the testbed.
    pub(super) cluster: String,
    /// Kubeconfig of clustermesh-apiserver's service account.
    pub(super) kubeconfig: String,
    pub(super) address: Ipv4Addr,
    /// Client of the user `testbed`.
    pub(super) http: Http,
}

impl fmt::Debug for Ground {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ground")
            .field("cluster", &self.cluster)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// Identity in cilium-config when the pod starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) name: String,
    pub(super) id: u32,
}

/// Running processes. The kubelet is dropped first: it writes into the folders of the
/// other processes, which are removed with them.
#[derive(Debug)]
pub(super) struct Pod {
    kubelet: Kubelet,
    /// `None` without a cluster-id, which it needs to start.
    kvstoremesh: Option<Server>,
    apiserver: Server,
    etcd: Etcd,
    hosts: Vec<PathBuf>,
    address: Ipv4Addr,
}

impl Ground {
    /// Creates a new folder. An existing one is left from a failed start and replaced.
    fn folder(&self, part: &str) -> Result<PathBuf> {
        let folder = self.root.join(format!("cilium-{}-{part}", self.cluster));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).map_err(Error::file("creating", &folder))?;
        Ok(folder)
    }

    fn at(&self, port: u16) -> SocketAddrV4 {
        SocketAddrV4::new(self.address, port)
    }

    /// Creates the folder for /var/lib/cilium, and the environment of a Cilium process.
    fn prepare(&self, part: &str, hosts: &str) -> Result<(PathBuf, Surroundings)> {
        let folder = self.folder(part)?;
        let library = folder.join("var-lib/cilium");
        std::fs::create_dir_all(&library).map_err(Error::file("creating", &library))?;
        let config = format!(
            "endpoints:\n- https://{SERVICE_NAME}:{ETCD_PORT}\ntrusted-ca-file: /var/lib/cilium/etcd-secrets/ca.crt\n\
             key-file: /var/lib/cilium/etcd-secrets/tls.key\ncert-file: /var/lib/cilium/etcd-secrets/tls.crt\n"
        );
        write(&library, "etcd-config.yaml", &config)?;
        write(&library, "kubeconfig", &self.kubeconfig)?;
        write(&folder, "hosts", hosts)?;
        let mounts = vec![
            (folder.join("var-lib"), "/var/lib"),
            (folder.join("hosts"), "/etc/hosts"),
        ];
        // Otherwise the processes would write files to the user's home folder.
        let environment = vec![("GOPS_CONFIG_DIR", folder.join("gops").display().to_string())];
        Ok((
            folder,
            Surroundings {
                environment,
                mounts,
            },
        ))
    }

    /// Starts all processes. Returns `None` if an object that the pod would wait for is
    /// missing.
    pub(super) async fn start(
        &self,
        spec: &CiliumSpec,
        identity: &Identity,
    ) -> Result<Option<Pod>> {
        let users = (spec.auth_mode != AuthMode::Legacy).then(users_volume);
        for volume in [etcd_volume(), admin_volume()]
            .into_iter()
            .chain(users.clone())
        {
            if kubelet::files(&self.http, &volume).await?.is_none() {
                return Ok(None);
            }
        }
        let names = hosts(self.address, spec);
        let etcd_folder = self.folder("etcd")?;
        let (apiserver_folder, apiserver_sees) = self.prepare("apiserver", &names)?;
        let (server_files, admin_files) = (
            etcd_folder.join("secrets"),
            apiserver_folder.join(ETCD_SECRETS),
        );
        let mut volumes = vec![
            mounted(etcd_volume(), server_files.clone())?,
            mounted(admin_volume(), admin_files.clone())?,
        ];
        if let Some(users) = users {
            volumes.push(mounted(users, apiserver_folder.join(ETCD_USERS))?);
        }
        let mut hosts = vec![apiserver_folder.join("hosts")];
        let reader = if identity.id == 0 {
            None
        } else {
            Some(self.prepare("kvstoremesh", &names)?)
        };
        if let Some((folder, _)) = &reader {
            // Without KVStoreMesh the agents read the remotes. kvstoremesh contains the
            // same code and replaces them.
            let remotes = if spec.kvstoremesh {
                kvstoremesh_volume()
            } else {
                agent_volume(spec)
            };
            volumes.push(mounted(admin_volume(), folder.join(ETCD_SECRETS))?);
            volumes.push(mounted(remotes, folder.join(REMOTES))?);
            hosts.push(folder.join("hosts"));
        }
        let kubelet = Kubelet::start(&self.http, volumes).await?;
        let etcd = Etcd::start(&self.etcd, &etcd_folder, &server_files, self.at(ETCD_PORT)).await?;
        etcd.make_users(
            &self.programs.clustermesh_apiserver,
            &identity.name,
            SERVICE_NAME,
            &admin_files,
        )
        .await?;
        let apiserver = self.start_apiserver(&apiserver_folder, &apiserver_sees, spec, identity)?;
        let kvstoremesh = reader
            .map(|(folder, sees)| self.start_kvstoremesh(&folder, &sees, identity))
            .transpose()?;
        Ok(Some(Pod {
            kubelet,
            kvstoremesh,
            apiserver,
            etcd,
            hosts,
            address: self.address,
        }))
    }

    fn start_apiserver(
        &self,
        folder: &Path,
        sees: &Surroundings,
        spec: &CiliumSpec,
        identity: &Identity,
    ) -> Result<Server> {
        let mut arguments = vec![
            "clustermesh".into(),
            format!("--cluster-name={}", identity.name),
            format!("--cluster-id={}", identity.id),
            "--kvstore-opt=etcd.config=/var/lib/cilium/etcd-config.yaml".into(),
            "--k8s-kubeconfig-path=/var/lib/cilium/kubeconfig".into(),
            "--enable-external-workloads=false".into(),
            format!("--prometheus-serve-addr={}", self.at(METRICS_PORT)),
            format!("--clustermesh-health-port={}", free_port()?),
            "--gops-port=0".into(),
        ];
        arguments.extend(users_arguments(spec.auth_mode));
        Server::start_in(
            sees,
            &self.programs.clustermesh_apiserver,
            &arguments,
            folder,
        )
    }

    fn start_kvstoremesh(
        &self,
        folder: &Path,
        sees: &Surroundings,
        identity: &Identity,
    ) -> Result<Server> {
        let arguments = [
            "kvstoremesh".into(),
            format!("--cluster-name={}", identity.name),
            format!("--cluster-id={}", identity.id),
            "--kvstore-opt=etcd.config=/var/lib/cilium/etcd-config.yaml".into(),
            "--kvstore-opt=etcd.qps=100".into(),
            "--kvstore-opt=etcd.maxInflight=10".into(),
            "--clustermesh-config=/var/lib/cilium/clustermesh".into(),
            format!(
                "--prometheus-serve-addr={}",
                self.at(KVSTOREMESH_METRICS_PORT)
            ),
            format!("--api-serve-addr={}", self.at(API_PORT)),
            "--gops-port=0".into(),
        ];
        Server::start_in(
            sees,
            &self.programs.clustermesh_apiserver,
            &arguments,
            folder,
        )
    }
}

impl Pod {
    /// Waits until the apiserver has written its cluster-config and kvstoremesh
    /// answers.
    pub(super) async fn wait_ready(&self, reader: &Reader, identity: &Identity) -> Result<()> {
        let config = format!("cilium/cluster-config/{}", identity.name);
        eventually(DEADLINE, || async {
            if let Err(error) = self.apiserver.check_alive() {
                return Ok(Err(error));
            }
            match reader.get(&config).await {
                Ok(Some(_)) => Ok(Ok(())),
                Ok(None) => Err(format!(
                    "{config} is not in etcd; log of the apiserver: {}",
                    self.apiserver.log_tail()
                )),
                Err(error) => Err(error.to_string()),
            }
        })
        .await??;
        let Some(kvstoremesh) = &self.kvstoremesh else {
            return Ok(());
        };
        eventually(DEADLINE, || async {
            match (kvstoremesh.check_alive(), self.remotes().await) {
                (Err(error), _) => Ok(Err(error)),
                (Ok(()), answer) => answer.map(|_| Ok(())),
            }
        })
        .await?
    }

    pub(super) async fn remotes(&self) -> Result<Vec<status::Remote>> {
        status::remotes(SocketAddrV4::new(self.address, API_PORT)).await
    }

    pub(super) fn is_whole(&self) -> bool {
        self.kvstoremesh.is_some()
    }

    pub(super) fn etcd(&self) -> &Etcd {
        &self.etcd
    }

    /// Makes etcd serve these files, regardless of its Secret.
    pub(super) fn serve(&self, files: &Contents) -> Result<()> {
        self.kubelet.replace(objects::ETCD_SECRETS, files)
    }

    /// Updates the host names that the pod resolves.
    pub(super) fn write_hosts(&self, spec: &CiliumSpec) -> Result<()> {
        let names = hosts(self.address, spec);
        // Written in place, because the bind mount refers to this inode.
        self.hosts
            .iter()
            .try_for_each(|file| std::fs::write(file, &names).map_err(Error::file("writing", file)))
    }

    pub(super) fn pids(&self) -> Vec<i32> {
        let servers = [Some(&self.apiserver), self.kvstoremesh.as_ref()];
        self.etcd
            .pid()
            .into_iter()
            .chain(servers.into_iter().flatten().filter_map(Server::pid))
            .collect()
    }

    /// Returns the ends of all logs.
    pub(super) fn logs(&self) -> String {
        let kvstoremesh = self
            .kvstoremesh
            .as_ref()
            .map(Server::log_tail)
            .unwrap_or_default();
        format!(
            "etcd: {}\napiserver: {}\nkvstoremesh: {kvstoremesh}",
            self.etcd.log_tail(),
            self.apiserver.log_tail()
        )
    }
}

fn mounted(volume: Volume, folder: PathBuf) -> Result<Mounted> {
    let layout = Layout::new(folder.clone()).map_err(Error::file("laying out", folder))?;
    Ok(Mounted { volume, layout })
}

/// Returns the hosts file with the Service and the names in the spec.
fn hosts(address: Ipv4Addr, spec: &CiliumSpec) -> String {
    let others = spec
        .host_aliases
        .iter()
        .chain(&spec.dns)
        .map(|(name, address)| format!("{address} {name}\n"));
    format!(
        "127.0.0.1 localhost\n{address} {SERVICE_NAME}\n{}",
        others.collect::<String>()
    )
}

/// Returns a free port for the health check, whose address can't be configured. It is
/// below the ephemeral ports, so that no connection takes it before it is bound.
fn free_port() -> Result<u16> {
    let failed = |reason: String| Error::network("finding a free port", reason);
    for _ in 0..PORT_ATTEMPTS {
        let mut random = [0_u8; 2];
        SystemRandom::new()
            .fill(&mut random)
            .map_err(|error| failed(error.to_string()))?;
        let port = 10_000 + u16::from_ne_bytes(random) % 20_000;
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return Ok(port);
        }
    }
    Err(failed(format!("none of {PORT_ATTEMPTS} was free")))
}
