//! A Cilium installation: its objects and processes, changes to it, and its state.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::time::SystemTime;

use futures::future::{try_join, try_join_all};
use hyper::Method;
use serde_json::Value;

use super::certificates::{self, ADMIN, Ca, Files, LOCAL, REMOTE, SERVICE_NAME};
use super::door::{Door, Egress, free_address, shown};
use super::pod::{ETCD_PORT, Ground, Identity, PORTS, Pod};
use super::range::Reader;
use super::{AuthMode, CiliumSpec, Exposure, Remote, agents, kubelet, objects};
use crate::binaries::CiliumBinaries;
use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::http::{APPLY_PATCH, Http, JSON, MERGE_PATCH};
use crate::testbed::Testbed;

/// Default cluster name of Cilium.
const DEFAULT_NAME: &str = "default";

/// Cilium in one cluster. Dropping it stops its processes; its objects remain.
#[derive(Debug)]
pub struct Cilium {
    pod: Option<Pod>,
    doors: Vec<Door>,
    _egress: Egress,
    spec: CiliumSpec,
    ground: Ground,
    /// Client of the user `admin`.
    http: Http,
    /// Addresses of the load balancer.
    balanced: Vec<Ipv4Addr>,
    nodes: Vec<Ipv4Addr>,
    node_port: u16,
    /// Certificates by Secret.
    certificates: BTreeMap<&'static str, Files>,
}

impl Cilium {
    /// Creates all objects, starts all processes and waits until they are ready.
    pub async fn install(bed: &Testbed, cluster: &str, spec: CiliumSpec) -> Result<Self> {
        let programs = tokio::task::spawn_blocking(CiliumBinaries::locate)
            .await
            .map_err(|error| Error::Start {
                program: "search for binaries".into(),
                reason: error.to_string(),
            })??;
        let cluster = bed.cluster(cluster)?;
        let ((), token) = try_join(install_crds(cluster, &programs), make_account(cluster)).await?;
        let ground = Ground {
            programs,
            etcd: bed.etcd_program().to_owned(),
            root: bed.folder().to_owned(),
            cluster: cluster.name().to_owned(),
            kubeconfig: cluster.kubeconfig(cluster.url(), &token),
            address: free_address(&PORTS)?,
            http: cluster.own.clone(),
        };
        let mut cilium = Self {
            pod: None,
            doors: Vec::new(),
            _egress: Egress::open(&cluster.egress_socket())?,
            balanced: free_addresses(spec.exposure.addresses())?,
            nodes: free_addresses(spec.nodes)?,
            node_port: 0,
            certificates: BTreeMap::new(),
            http: cluster.http.clone(),
            spec,
            ground,
        };
        cilium.make_objects().await?;
        cilium.renew(None).await?;
        cilium.roll().await?;
        Ok(cilium)
    }

    /// Like `install`, but returns `None` after [`skip_or_fail`](crate::skip_or_fail)
    /// if this machine lacks Go or the user lacks permissions.
    ///
    /// # Panics
    /// If everything is installed but does not start.
    pub async fn install_or_skip(bed: &Testbed, cluster: &str, spec: CiliumSpec) -> Option<Self> {
        crate::or_skip(Self::install(bed, cluster, spec).await)
    }

    async fn make_objects(&mut self) -> Result<()> {
        for (number, address) in self.nodes.clone().into_iter().enumerate() {
            let node = objects::node(number);
            self.apply(&node).await?;
            self.set_status(&node, &objects::node_status(address))
                .await?;
        }
        self.apply(&objects::config_map(
            self.spec.name.as_deref(),
            self.spec.id,
        ))
        .await?;
        self.apply(&objects::service_account()).await?;
        let agents = objects::daemon_set(&self.spec, self.version());
        self.apply(&agents).await?;
        self.set_status(
            &agents,
            &objects::daemon_set_status(self.spec.nodes, self.spec.nodes),
        )
        .await?;
        self.apply(&objects::deployment(&self.spec, self.version()))
            .await?;
        self.render_users().await?;
        let service = self.apply(&objects::service(&self.spec.exposure)).await?;
        let node_port = service
            .pointer("/spec/ports/0/nodePort")
            .and_then(Value::as_u64);
        self.node_port = node_port
            .and_then(|port| u16::try_from(port).ok())
            .unwrap_or_default();
        self.open_doors()?;
        self.tell_addresses().await
    }

    async fn render_users(&self) -> Result<()> {
        if self.spec.auth_mode != AuthMode::Legacy && self.spec.renders_users {
            let name = self.identity().await?.name;
            self.apply(&objects::users(&self.spec, &name)).await?;
        }
        Ok(())
    }

    /// Opens missing forwarders and closes those that are no longer wanted. The others
    /// stay open, with their connections.
    fn open_doors(&mut self) -> Result<()> {
        let target = SocketAddrV4::new(self.ground.address, ETCD_PORT);
        let wanted = self.ways();
        self.doors.retain(|door| wanted.contains(&door.address));
        for address in wanted {
            if !self.doors.iter().any(|door| door.address == address) {
                self.doors.push(Door::open(address, target)?);
            }
        }
        Ok(())
    }

    /// Returns all addresses that are forwarded to etcd.
    fn ways(&self) -> Vec<SocketAddrV4> {
        self.balancer_ways().chain(self.node_ways()).collect()
    }

    fn balancer_ways(&self) -> impl Iterator<Item = SocketAddrV4> {
        self.balanced
            .iter()
            .map(|address| SocketAddrV4::new(*address, ETCD_PORT))
    }

    fn node_ways(&self) -> impl Iterator<Item = SocketAddrV4> {
        self.nodes
            .iter()
            .map(|address| SocketAddrV4::new(*address, self.node_port))
    }

    async fn tell_addresses(&self) -> Result<()> {
        let addresses: Vec<IpAddr> = self.balanced.iter().copied().map(IpAddr::from).collect();
        let service = objects::service(&self.spec.exposure);
        self.set_status(
            &service,
            &objects::service_status(&self.spec.exposure, &addresses),
        )
        .await
    }

    /// Returns the external addresses of the cluster, as in its Service.
    pub fn addresses(&self) -> Vec<SocketAddrV4> {
        if self.spec.exposure == Exposure::NodePort {
            self.node_ways().collect()
        } else {
            self.balancer_ways().collect()
        }
    }

    /// Returns the client certificate that the cluster issues for remote readers.
    pub fn remote_client(&self) -> Result<&Files> {
        self.files(REMOTE)
    }

    fn files(&self, secret: &str) -> Result<&Files> {
        self.certificates
            .get(secret)
            .ok_or_else(|| Error::Object(format!("{} has no {secret}", self.ground.cluster)))
    }

    /// Reissues all certificates from the CA like certgen, for the name in
    /// cilium-config and the current addresses. They expire at `end`, or after three
    /// years. Does nothing without a CA.
    pub async fn renew(&mut self, end: Option<SystemTime>) -> Result<()> {
        let Some(ca) = self.spec.ca.clone() else {
            return Ok(());
        };
        if self.spec.ca_secret {
            self.apply(&objects::ca_secret(&ca)).await?;
        }
        let cluster = self.identity().await?.name;
        let names = certificates::server_names(&self.covered(), &self.covered_names());
        self.certificates = certificates::issue(&ca, &self.spec, &cluster, &names, end)?;
        if !self.spec.local_client {
            self.certificates.remove(LOCAL);
        }
        for (name, files) in &self.certificates {
            self.apply(&objects::certificate_secret(name, files))
                .await?;
        }
        Ok(())
    }

    fn covered(&self) -> Vec<IpAddr> {
        let addresses = self
            .balanced
            .iter()
            .chain(&self.nodes)
            .copied()
            .map(IpAddr::from);
        if self.spec.covers_addresses {
            addresses.collect()
        } else {
            Vec::new()
        }
    }

    fn covered_names(&self) -> Vec<String> {
        match &self.spec.exposure {
            Exposure::LoadBalancerName(name) if self.spec.covers_addresses => vec![name.clone()],
            _ => Vec::new(),
        }
    }

    /// Sets the first or another CA, reissues all certificates and replaces the pods,
    /// since etcd reads its CA only at the start.
    pub async fn replace_ca(&mut self, ca: &Ca) -> Result<()> {
        self.spec.ca = Some(ca.clone());
        self.renew(None).await?;
        self.roll().await
    }

    /// Trusts these CAs in addition, like `tls.caBundle`, and replaces the pods.
    pub async fn trust(&mut self, cas: &[&Ca]) -> Result<()> {
        self.spec.trusted = cas.iter().copied().cloned().collect();
        self.renew(None).await?;
        self.roll().await
    }

    /// Sets another authMode like a Helm upgrade: with new certificates and new pods.
    pub async fn set_auth_mode(&mut self, mode: AuthMode) -> Result<()> {
        self.spec.auth_mode = mode;
        self.apply(&objects::deployment(&self.spec, self.version()))
            .await?;
        self.render_users().await?;
        self.renew(None).await?;
        self.roll().await
    }

    /// Replaces all pods like `kubectl rollout restart`: they read the current identity
    /// from cilium-config, and etcd starts empty.
    pub async fn roll(&mut self) -> Result<()> {
        let identity = self.identity().await?;
        drop(self.pod.take());
        self.pod = self.ground.start(&self.spec, &identity).await?;
        if let Some(pod) = &self.pod {
            pod.wait_ready(&self.reader()?, &identity).await?;
        }
        self.replace_pods().await
    }

    async fn replace_pods(&self) -> Result<()> {
        let available = self
            .pod
            .as_ref()
            .is_some_and(|pod| pod.is_whole() || !self.spec.kvstoremesh);
        let server = objects::server(&self.spec, self.version());
        self.replace_pod(&server, Some(shown(self.ground.address)), available)
            .await?;
        for node in 0..self.spec.nodes {
            self.replace_pod(
                &objects::agent(&self.spec, self.version(), node),
                None,
                true,
            )
            .await?;
        }
        let deployment = objects::deployment(&self.spec, self.version());
        self.set_status(&deployment, &objects::deployment_status(available))
            .await
    }

    async fn replace_pod(&self, pod: &Value, address: Option<Ipv4Addr>, ready: bool) -> Result<()> {
        // No kubelet confirms that the pod has terminated.
        let path = format!("{}?gracePeriodSeconds=0", objects::path(pod));
        match self.http.expect(Method::DELETE, &path, JSON, None).await {
            Err(error) if error.code() != Some(404) => return Err(error),
            _ => {}
        }
        let made = self.apply(pod).await?;
        let start = made
            .pointer("/metadata/creationTimestamp")
            .and_then(Value::as_str)
            .unwrap_or_default();
        self.set_status(pod, &objects::pod_status(start, address, ready))
            .await
    }

    /// Sets the number of ready agents.
    pub async fn set_ready_agents(&self, ready: usize) -> Result<()> {
        let agents = objects::daemon_set(&self.spec, self.version());
        self.set_status(&agents, &objects::daemon_set_status(self.spec.nodes, ready))
            .await
    }

    /// Gives the load balancer new addresses, and reissues the certificate if it covers
    /// addresses. The old addresses refuse connections from now on.
    pub async fn move_balancer(&mut self) -> Result<()> {
        self.balanced = free_addresses(self.spec.exposure.addresses())?;
        if self.spec.covers_addresses {
            self.renew(None).await?;
        }
        self.open_doors()?;
        self.tell_addresses().await
    }

    /// Adds a host alias to the pods that read remotes, which replaces them.
    pub async fn alias(&mut self, name: &str, address: Ipv4Addr) -> Result<()> {
        self.spec.host_aliases.insert(name.to_owned(), address);
        self.apply(&objects::daemon_set(&self.spec, self.version()))
            .await?;
        self.apply(&objects::deployment(&self.spec, self.version()))
            .await?;
        self.roll().await
    }

    /// Adds a name to the DNS of the pods.
    pub fn resolve(&mut self, name: &str, address: Ipv4Addr) -> Result<()> {
        self.spec.dns.insert(name.to_owned(), address);
        self.pod
            .as_ref()
            .map_or(Ok(()), |pod| pod.write_hosts(&self.spec))
    }

    /// Makes etcd serve this certificate, regardless of its Secret, until a Secret of
    /// kube-system changes.
    pub fn serve(&self, files: &Files) -> Result<()> {
        let files = files
            .by_key()
            .into_iter()
            .map(|(key, text)| (key.to_owned(), text.as_bytes().to_vec()))
            .collect();
        self.running()?.serve(&files)
    }

    /// Pauses etcd: connections are accepted, but nothing is answered.
    pub fn pause_etcd(&self) -> Result<()> {
        self.running()?.etcd().pause()
    }

    pub fn resume_etcd(&self) -> Result<()> {
        self.running()?.etcd().resume()
    }

    /// Kills etcd. Its address refuses connections.
    pub fn stop_etcd(&self) -> Result<()> {
        self.running()?.etcd().stop()
    }

    /// Restarts a stopped etcd with its data, like a container.
    pub async fn start_etcd(&self) -> Result<()> {
        self.running()?.etcd().start_again().await
    }

    /// Returns the status of each remote, as reported by the cluster's kvstoremesh,
    /// sorted by name.
    pub async fn remotes(&self) -> Result<Vec<Remote>> {
        self.running()?.remotes().await
    }

    /// Returns the status of one remote; `None` if it is not configured.
    pub async fn remote(&self, name: &str) -> Result<Option<Remote>> {
        Ok(self
            .remotes()
            .await?
            .into_iter()
            .find(|remote| remote.name == name))
    }

    /// Returns the cluster-config of each remote that the agents would read with the
    /// Secret cilium-clustermesh (with KVStoreMesh from the cluster's own etcd), or the
    /// reason why they can't.
    pub async fn agent_views(
        &self,
    ) -> Result<BTreeMap<String, std::result::Result<String, String>>> {
        let files = kubelet::files(&self.ground.http, &objects::agent_volume(&self.spec))
            .await?
            .unwrap_or_default();
        let known = |name: &str| {
            let own = (name == SERVICE_NAME).then_some(self.ground.address);
            own.or_else(|| self.spec.host_aliases.get(name).copied())
                .or_else(|| self.spec.dns.get(name).copied())
        };
        Ok(agents::views(&files, &known).await)
    }

    /// Returns the value of a key in the cluster's etcd, read as its admin.
    pub async fn key(&self, key: &str) -> Result<Option<String>> {
        Ok(self
            .reader()?
            .get(key)
            .await?
            .map(|value| String::from_utf8_lossy(&value).into_owned()))
    }

    /// Returns the keys with this prefix, and their values.
    pub async fn keys(&self, prefix: &str) -> Result<BTreeMap<String, String>> {
        let found = self.reader()?.list(prefix).await?;
        Ok(found
            .into_iter()
            .map(|(key, value)| (key, String::from_utf8_lossy(&value).into_owned()))
            .collect())
    }

    fn reader(&self) -> Result<Reader> {
        Reader::new(
            SocketAddrV4::new(self.ground.address, ETCD_PORT),
            SERVICE_NAME,
            self.files(ADMIN)?,
        )
    }

    fn running(&self) -> Result<&Pod> {
        self.pod
            .as_ref()
            .ok_or_else(|| Error::Stopped("clustermesh-apiserver".into()))
    }

    /// Returns the process IDs of all running processes.
    pub fn pids(&self) -> Vec<i32> {
        self.pod.as_ref().map(Pod::pids).unwrap_or_default()
    }

    /// Returns the ends of the logs of all processes.
    pub fn logs(&self) -> String {
        self.pod.as_ref().map(Pod::logs).unwrap_or_default()
    }

    fn version(&self) -> &str {
        &self.ground.programs.version
    }

    async fn identity(&self) -> Result<Identity> {
        let path = objects::path(&objects::config_map(None, None));
        let config = self.http.expect(Method::GET, &path, JSON, None).await?;
        let value = |key: &str| {
            config
                .pointer("/data")
                .and_then(|data| data.get(key))
                .and_then(Value::as_str)
        };
        let name = value("cluster-name")
            .filter(|name| !name.is_empty())
            .unwrap_or(DEFAULT_NAME)
            .to_owned();
        Ok(Identity {
            name,
            id: value("cluster-id")
                .and_then(|id| id.parse().ok())
                .unwrap_or_default(),
        })
    }

    /// Creates or changes an object as field manager `helm`.
    async fn apply(&self, object: &Value) -> Result<Value> {
        let path = format!(
            "{}?fieldManager=helm&force=true&fieldValidation=Strict",
            objects::path(object)
        );
        self.http
            .expect(Method::PATCH, &path, APPLY_PATCH, Some(object))
            .await
    }

    /// Writes a status like a controller.
    async fn set_status(&self, object: &Value, status: &Value) -> Result<()> {
        let path = format!("{}/status", objects::path(object));
        self.http
            .expect(Method::PATCH, &path, MERGE_PATCH, Some(status))
            .await
            .map(drop)
    }
}

async fn install_crds(cluster: &Cluster, programs: &CiliumBinaries) -> Result<()> {
    let install = |file: &std::path::PathBuf| {
        let text = std::fs::read_to_string(file).map_err(Error::file("reading", file));
        async move { cluster.install_crd(&text?).await }
    };
    try_join_all(programs.crds.iter().map(install))
        .await
        .map(drop)
}

async fn make_account(cluster: &Cluster) -> Result<String> {
    cluster
        .service_account("kube-system", "clustermesh-apiserver", &objects::rules())
        .await
}

fn free_addresses(count: usize) -> Result<Vec<Ipv4Addr>> {
    (0..count).map(|_| free_address(&[ETCD_PORT])).collect()
}
