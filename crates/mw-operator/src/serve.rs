//! Metrics and health over HTTP.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use crate::metrics::Metrics;

/// Whether this process can do its work, as far as it is its turn.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Relaxed);
    }
}

#[derive(Debug, thiserror::Error)]
#[error("can't listen on {address} for {purpose}: {source}")]
pub struct ListenError {
    pub address: SocketAddr,
    pub purpose: &'static str,
    pub source: std::io::Error,
}

/// A port that is open, so that a taken one is an error at once.
pub async fn listen(address: SocketAddr, purpose: &'static str) -> Result<TcpListener, ListenError> {
    let bound = match TcpListener::bind(address).await {
        // Every address, on a machine without IPv6.
        Err(wrong) if address.ip() == Ipv6Addr::UNSPECIFIED && wrong.kind() != ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        other => other,
    };
    bound.map_err(|source| ListenError { address, purpose, source })
}

pub async fn serve_metrics(listener: TcpListener, metrics: Metrics) {
    let router = Router::new().route("/metrics", get(metrics_text)).with_state(metrics);
    _ = axum::serve(listener, router).await;
}

async fn metrics_text(State(metrics): State<Metrics>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], metrics.text()).into_response()
}

pub async fn serve_health(listener: TcpListener, readiness: Readiness) {
    let router = Router::new().route("/healthz", get(|| async { "ok" })).route("/readyz", get(ready)).with_state(readiness);
    _ = axum::serve(listener, router).await;
}

async fn ready(State(readiness): State<Readiness>) -> Response {
    match readiness.0.load(Ordering::Relaxed) {
        true => "ok".into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, "the hub was not reached yet").into_response(),
    }
}
