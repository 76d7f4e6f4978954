//! Connections to clusters: where their credentials come from, how they are
//! made, and what is followed through them.

pub mod follow;
mod link;
mod secret;
mod switchboard;
mod trial;

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use kube::Client;
use mw_core::names::ClusterId;

use crate::kubeconfig::{Access, Allowed, Refusal, config, unusable};
use crate::metrics::Metrics;
use crate::permit::Permit;
use crate::transport::{Patience, Rules, client};

pub use link::{Credentials, Feed, Feeds, Link, Live};
pub use secret::kubeconfig_in;
pub use switchboard::Switchboard;
pub use trial::{Attempt, ShownClient, Trial, Verdict};

/// Where a cluster's credentials come from. Two Secrets may lead to the same
/// cluster; that is found out later.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The cluster in which the operator runs.
    Hub,
    Secret {
        namespace: String,
        name: String,
        key: Option<String>,
    },
}

pub const HUB: &str = "local";

impl Source {
    pub fn id(&self) -> ClusterId {
        ClusterId::from(self.to_string().as_str())
    }

    /// The namespace whose credentials these are; none for the hub's own.
    pub fn namespace(&self) -> Option<&str> {
        match self {
            Source::Hub => None,
            Source::Secret { namespace, .. } => Some(namespace),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Hub => f.write_str(HUB),
            Source::Secret { namespace, name, key: None } => write!(f, "{namespace}/{name}"),
            Source::Secret { namespace, name, key: Some(key) } => write!(f, "{namespace}/{name}/{key}"),
        }
    }
}

/// Makes a client from a kubeconfig that passed. The one place where that
/// happens; a simulator puts its own here.
pub trait Connect: Send + Sync {
    fn connect(&self, cluster: &ClusterId, access: Arc<Access>) -> BoxFuture<'static, Result<Client, Refusal>>;
}

/// Connects over the network.
#[derive(Debug, Clone)]
pub struct Network {
    pub allowed: Allowed,
    pub patience: Patience,
    pub permit: Permit,
    pub metrics: Metrics,
}

impl Connect for Network {
    fn connect(&self, cluster: &ClusterId, access: Arc<Access>) -> BoxFuture<'static, Result<Client, Refusal>> {
        let rules = Rules { patience: self.patience, permit: self.permit.clone(), metrics: self.metrics.of_cluster(cluster.as_str()) };
        let allowed = self.allowed;
        Box::pin(async move {
            let config = config(&access, allowed).await?;
            client(config, rules).map_err(|wrong| unusable(&wrong.to_string()))
        })
    }
}
