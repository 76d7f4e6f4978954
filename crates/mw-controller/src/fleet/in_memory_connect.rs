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
use crate::watch_body::EventRate;

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
    /// Returns a client of the hub.
    pub fn client(&self, config: &Config, permit: Permit) -> Result<Client, Refusal> {
        let rules = self.rules(config, permit);
        self.client_within(config, rules, None)
    }

    fn rules(&self, config: &Config, permit: Permit) -> Rules {
        let host = config.cluster_url.host().unwrap_or_default();
        Rules {
            timeouts: self.timeouts,
            permit,
            metrics: self.metrics.of_cluster(&ClusterId::from(host)),
        }
    }

    fn client_within(
        &self,
        config: &Config,
        rules: Rules,
        rate: Option<EventRate>,
    ) -> Result<Client, Refusal> {
        let host = config.cluster_url.host().unwrap_or_default();
        let line = self
            .lines
            .get(host)
            .ok_or_else(|| unusable(&format!("no such host: {host}")))?;
        client_over(line.clone(), config, rules, rate).map_err(|wrong| unusable(&wrong.to_string()))
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
            let rules = board.rules(&config, board.permit.clone());
            let rate = EventRate::new(rules.metrics.clone());
            board.client_within(&config, rules, Some(rate))
        })
    }
}
