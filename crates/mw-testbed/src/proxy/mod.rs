//! Proxy in front of an API server that injects faults and counts requests.
//!
//! It terminates TLS with a certificate of the cluster's CA, so that only the address
//! in a kubeconfig changes, and forwards bearer tokens. Client certificates and
//! upgrades (exec, port-forward) are not supported.

mod faults;
pub mod lies;
mod request;
mod serve;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::broadcast;

use crate::cluster::Cluster;
use crate::error::Result;
use crate::http::{Answer, Http, http1_client};
use crate::serve::Port;

pub use faults::{Edit, Effect, Fault, FaultId, Moment, ProxyOutcome, Reply, Trigger};
pub use request::{Match, RequestInfo, Verb};

use faults::Faults;
use serve::Shared;

/// Capacity of the channel for cuts. On overflow, all watches are cut.
const CUTS_IN_FLIGHT: usize = 16;

/// A running proxy. Dropping it closes its port and all connections.
#[derive(Debug)]
pub struct FaultProxy {
    port: Port,
    upstream: String,
    http: Http,
    faults: Arc<Faults>,
    cuts: broadcast::Sender<Match>,
}

impl FaultProxy {
    /// Starts a proxy without faults on a free port of loopback.
    pub fn start(cluster: &Cluster) -> Result<Self> {
        let (listener, url) = Port::reserve()?;
        let faults = Arc::new(Faults::default());
        let (cuts, _) = broadcast::channel(CUTS_IN_FLIGHT);
        let shared = Arc::new(Shared {
            upstream: cluster.url().to_owned(),
            client: http1_client(cluster.authority.client_config()?),
            faults: faults.clone(),
            cuts: cuts.clone(),
        });
        let http = Http::new(
            url.clone(),
            cluster.authority.client_config()?,
            cluster.admin_token().to_owned(),
        );
        let port = Port::serve(listener, url, cluster.authority.server_config()?, shared)?;
        Ok(Self {
            port,
            upstream: cluster.url().to_owned(),
            http,
            faults,
            cuts,
        })
    }

    /// Returns `https://127.0.0.1:PORT`.
    pub fn url(&self) -> &str {
        self.port.url()
    }

    /// Returns a kubeconfig of the cluster with the address of this proxy.
    pub fn front(&self, kubeconfig: &str) -> String {
        kubeconfig.replace(&self.upstream, self.url())
    }

    /// Sends a request as `admin` through this proxy, over HTTP/2.
    pub async fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Answer> {
        self.http.request(method, path, body).await
    }

    pub fn add(&self, fault: Fault) -> FaultId {
        self.faults.add(fault)
    }

    /// Removes a fault. Requests that already hang keep hanging.
    pub fn remove(&self, fault: FaultId) {
        self.faults.remove(fault);
    }

    /// Removes all faults and triggers.
    pub fn clear(&self) {
        self.faults.clear();
    }

    /// Enables or disables all faults and triggers without removing them.
    pub fn switch(&self, on: bool) {
        self.faults.switch(on);
    }

    pub fn add_trigger(&self, trigger: Trigger) {
        self.faults.add_trigger(trigger);
    }

    /// Cuts the matching watches that are open now.
    pub fn cut_watches(&self, on: Match) {
        // An error means that there are no open watches.
        let _ = self.cuts.send(on);
    }

    /// Closes the port and all connections, or reopens the same port. Takes effect
    /// before it returns.
    pub async fn refuse(&self, refuse: bool) -> Result<()> {
        self.port.refuse(refuse).await
    }

    /// Returns every request so far and its result. Watches are included as soon as
    /// they are open.
    pub fn requests(&self) -> Vec<(RequestInfo, ProxyOutcome)> {
        self.faults.seen()
    }

    /// Returns the number of requests by verb, resource and result.
    pub fn counts(&self) -> BTreeMap<(Verb, String, ProxyOutcome), u64> {
        self.faults.counts()
    }

    /// Returns the number of matching requests.
    pub fn count(&self, on: &Match) -> u64 {
        self.faults.count(on)
    }

    /// Resets the counts.
    pub fn forget_counts(&self) {
        self.faults.forget();
    }
}
