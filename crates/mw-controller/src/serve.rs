//! Metrics and health over HTTP.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use mw_core::text::printable;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

use crate::metrics::Metrics;

/// After this time without a turn, the event loop counts as stalled.
const LONGEST_SILENCE: Duration = Duration::from_secs(60);
const BEAT: Duration = Duration::from_secs(15);
/// Limits the holder's name, which other processes write.
const LONGEST_HOLDER: usize = 253;

/// State of the process as reported by /healthz and /readyz.
#[derive(Debug, Clone)]
pub struct Readiness(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    stage: Stage,
    /// Description of what does not work although the process is active.
    degraded: Option<String>,
    /// Time of the event loop's last turn.
    beat: Instant,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    WaitingFor(String),
    /// Another process holds the Lease.
    StandingBy(String),
    Ready,
}

impl Default for Readiness {
    fn default() -> Self {
        Readiness(Arc::new(Mutex::new(State {
            stage: Stage::WaitingFor("the hub".to_owned()),
            degraded: None,
            beat: Instant::now(),
        })))
    }
}

impl Readiness {
    /// Records what the process waits for before it can act.
    pub fn waits_for(&self, what: impl Into<String>) {
        self.lock().stage = Stage::WaitingFor(what.into());
    }

    pub fn stands_by(&self, holder: &str) {
        self.lock().stage = Stage::StandingBy(printable(holder, LONGEST_HOLDER));
    }

    /// Records that objects were listed and the process is active.
    pub fn acts(&self) {
        self.lock().stage = Stage::Ready;
    }

    /// Records what does not work; None if everything does.
    pub fn degrades(&self, what: Option<String>) {
        self.lock().degraded = what;
    }

    pub fn is_acting(&self) -> bool {
        self.lock().stage == Stage::Ready
    }

    /// Records a turn of the event loop.
    pub fn beat(&self) {
        self.lock().beat = Instant::now();
    }

    /// Awaits a future and stays healthy meanwhile.
    pub async fn beating<T>(&self, waiting: impl Future<Output = T>) -> T {
        let mut waiting = pin!(waiting);
        loop {
            self.beat();
            tokio::select! {
                biased;
                done = &mut waiting => return done,
                () = sleep(BEAT) => {}
            }
        }
    }

    /// Fails if the event loop has been stalled for a minute.
    pub fn healthz(&self) -> Result<(), String> {
        let silence = self.lock().beat.elapsed();
        match silence > LONGEST_SILENCE {
            true => Err(format!("event loop stalled for {}s", silence.as_secs())),
            false => Ok(()),
        }
    }

    /// Fails if the process can't act yet.
    pub fn readyz(&self) -> Result<String, String> {
        let state = self.lock();
        match &state.stage {
            Stage::WaitingFor(what) => Err(format!("waiting for {what}")),
            Stage::StandingBy(holder) => Ok(format!("standby: {holder} holds the Lease")),
            Stage::Ready => Ok(state
                .degraded
                .as_ref()
                .map_or_else(|| "ok".to_owned(), |what| format!("degraded: {what}"))),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for {purpose}: {source}")]
pub struct ListenError {
    pub address: SocketAddr,
    pub purpose: &'static str,
    pub source: std::io::Error,
}

/// Opens a port; an address in use is an error at startup.
pub async fn listen(
    address: SocketAddr,
    purpose: &'static str,
) -> Result<TcpListener, ListenError> {
    let bound = match TcpListener::bind(address).await {
        // The wildcard address on a machine without IPv6.
        Err(wrong)
            if address.ip() == Ipv6Addr::UNSPECIFIED && wrong.kind() != ErrorKind::AddrInUse =>
        {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        other => other,
    };
    bound.map_err(|source| ListenError {
        address,
        purpose,
        source,
    })
}

pub async fn serve_metrics(listener: TcpListener, metrics: Metrics) {
    let router = Router::new()
        .route("/metrics", get(metrics_text))
        .with_state(metrics);
    _ = axum::serve(listener, router).await;
}

pub(crate) async fn metrics_text(extract::State(metrics): extract::State<Metrics>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], metrics.text()).into_response()
}

pub async fn serve_health(listener: TcpListener, readiness: Readiness) {
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(readiness);
    _ = axum::serve(listener, router).await;
}

async fn healthz(extract::State(readiness): extract::State<Readiness>) -> Response {
    answer(readiness.healthz().map(|()| "ok".to_owned()))
}

async fn readyz(extract::State(readiness): extract::State<Readiness>) -> Response {
    answer(readiness.readyz())
}

fn answer(result: Result<String, String>) -> Response {
    match result {
        Ok(text) => text.into_response(),
        Err(text) => (StatusCode::SERVICE_UNAVAILABLE, text).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_does_not_turn_for_a_minute_is_not_healthy() {
        let readiness = Readiness::default();
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(readiness.healthz(), Ok(()));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(
            readiness.healthz(),
            Err("event loop stalled for 61s".to_owned())
        );
        let code = healthz(extract::State(readiness.clone())).await.status();
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
        readiness.beat();
        assert_eq!(
            healthz(extract::State(readiness)).await.status(),
            StatusCode::OK
        );
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_is_healthy_for_as_long_as_it_takes() {
        let readiness = Readiness::default();
        let waiting = readiness.beating(sleep(Duration::from_secs(3600)));
        let watching = async {
            for _ in 0..360 {
                sleep(Duration::from_secs(10)).await;
                assert_eq!(readiness.healthz(), Ok(()));
            }
        };
        tokio::join!(waiting, watching);
    }

    #[tokio::test]
    async fn readyz_says_what_it_waits_for_and_who_leads() {
        let readiness = Readiness::default();
        assert_eq!(readiness.readyz(), Err("waiting for the hub".to_owned()));
        assert_eq!(
            readyz(extract::State(readiness.clone())).await.status(),
            StatusCode::SERVICE_UNAVAILABLE
        );
        readiness.stands_by("pod-b_1f\u{1b}[0m");
        assert_eq!(
            readiness.readyz(),
            Ok("standby: pod-b_1f[0m holds the Lease".to_owned())
        );
        readiness.acts();
        assert_eq!(readiness.readyz(), Ok("ok".to_owned()));
        readiness.degrades(Some("https://kcp: no answer".to_owned()));
        assert_eq!(
            readiness.readyz(),
            Ok("degraded: https://kcp: no answer".to_owned())
        );
        readiness.degrades(None);
        assert_eq!(readiness.readyz(), Ok("ok".to_owned()));
    }
}
