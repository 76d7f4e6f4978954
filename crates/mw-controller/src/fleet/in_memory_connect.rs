//! Connects to in-memory clusters of the demo and of simulations. Apart from the
//! network, connections are the same as in production.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use kube::client::Body;
use kube::{Client, Config};
use mw_core::names::ClusterId;
use tower::{BoxError, Service};

use crate::fleet::Connect;
use crate::kubeconfig::{Access, Allowed, Refusal, config, unusable};
use crate::metrics::Metrics;
use crate::permit::Permit;
use crate::transport::{Rules, Timeouts, client_over};

#[derive(Debug, Clone)]
pub struct InMemoryConnect<S> {
    /// Servers by the host in their URL.
    pub lines: BTreeMap<String, S>,
    pub timeouts: Timeouts,
    pub permit: Permit,
    pub metrics: Metrics,
}

impl<S, B> InMemoryConnect<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    pub fn client(&self, config: &Config, permit: Permit) -> Result<Client, Refusal> {
        let host = config.cluster_url.host().unwrap_or_default();
        let line = self
            .lines
            .get(host)
            .ok_or_else(|| unusable(&format!("no such host: {host}")))?;
        let rules = Rules {
            timeouts: self.timeouts,
            permit,
            metrics: self.metrics.of_cluster(&ClusterId::from(host)),
        };
        client_over(line.clone(), config, rules).map_err(|wrong| unusable(&wrong.to_string()))
    }
}

impl<S, B> Connect for InMemoryConnect<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    fn connect(
        &self,
        _: &ClusterId,
        access: Arc<Access>,
    ) -> BoxFuture<'static, Result<Client, Refusal>> {
        let board = self.clone();
        Box::pin(async move {
            let config = config(&access, &Allowed::default()).await?;
            board.client(&config, board.permit.clone())
        })
    }
}
