//! A proxy in front of an API server that injects faults and counts.
//!
//! It ends TLS with a certificate of the cluster's authority, so that a
//! kubeconfig needs no change but the address, and passes bearer tokens on.
//! Client certificates do not pass; neither do upgrades (exec, port-forward).

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

pub use faults::{Edit, Effect, Fault, FaultId, Moment, Outcome, Reply, Trigger};
pub use request::{Match, RequestInfo, Verb};

use faults::Faults;
use serve::Shared;

/// More cuts at once than this cut everything.
const CUTS_IN_FLIGHT: usize = 16;

/// A running proxy; dropping it closes its port and all connections.
#[derive(Debug)]
pub struct FaultProxy {
    port: Port,
    upstream: String,
    http: Http,
    faults: Arc<Faults>,
    cuts: broadcast::Sender<Match>,
}

impl FaultProxy {
    /// Starts one without faults on a free port of loopback.
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
        let http = Http::new(url.clone(), cluster.authority.client_config()?, cluster.admin_token().to_owned());
        let port = Port::serve(listener, url, cluster.authority.server_config()?, shared)?;
        Ok(Self { port, upstream: cluster.url().to_owned(), http, faults, cuts })
    }

    /// `https://127.0.0.1:PORT`.
    pub fn url(&self) -> &str {
        self.port.url()
    }

    /// A kubeconfig of the cluster, led through this proxy.
    pub fn front(&self, kubeconfig: &str) -> String {
        kubeconfig.replace(&self.upstream, self.url())
    }

    /// Sends as `admin` through this proxy, by HTTP/2.
    pub async fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Answer> {
        self.http.request(method, path, body).await
    }

    pub fn add(&self, fault: Fault) -> FaultId {
        self.faults.add(fault)
    }

    /// Takes a fault away. Requests that hang already go on hanging.
    pub fn remove(&self, fault: FaultId) {
        self.faults.remove(fault);
    }

    /// Takes all faults and triggers away.
    pub fn clear(&self) {
        self.faults.clear();
    }

    /// Switches all faults and triggers on or off without losing them.
    pub fn switch(&self, on: bool) {
        self.faults.switch(on);
    }

    pub fn add_trigger(&self, trigger: Trigger) {
        self.faults.add_trigger(trigger);
    }

    /// Breaks off the matching watches that are open now.
    pub fn cut_watches(&self, on: Match) {
        // An error means that none is open.
        let _ = self.cuts.send(on);
    }

    /// Closes the port and all connections, or opens the same port again; done
    /// when this returns.
    pub async fn refuse(&self, refuse: bool) -> Result<()> {
        self.port.refuse(refuse).await
    }

    /// Every request so far and what its client saw. Watches are here once
    /// they are open.
    pub fn requests(&self) -> Vec<(RequestInfo, Outcome)> {
        self.faults.seen()
    }

    /// How many requests by verb, resource and outcome.
    pub fn counts(&self) -> BTreeMap<(Verb, String, Outcome), u64> {
        self.faults.counts()
    }

    /// How many requests match.
    pub fn count(&self, on: &Match) -> u64 {
        self.faults.count(on)
    }

    /// Starts counting from zero.
    pub fn forget_counts(&self) {
        self.faults.forget();
    }
}
