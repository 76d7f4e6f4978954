//! Metrics over HTTPS, for clients with a bearer token that may get the URL
//! /metrics according to the API server. The certificate is self-signed and
//! created at startup.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use rustls_pki_types::PrivateKeyDer;
use sha2::{Digest, Sha256};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tracing::warn;

use crate::failure::Failure;
use crate::metrics::Metrics;
use crate::serve::metrics_text;

const PATH: &str = "/metrics";
/// Timeout of a handshake, of the head of a request, and of a review.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum duration of a connection, which serves one request.
const LONGEST: Duration = Duration::from_secs(30);
const MOST_CONNECTIONS: usize = 64;
const LARGEST_HEAD: usize = 16 * 1024;
/// Maximum number of concurrent reviews.
const MOST_REVIEWS: usize = 4;
/// Time for which an accepted token is cached.
const ACCEPTED: Duration = Duration::from_secs(60);
/// Time for which a refused token is cached; it may be granted access at any moment.
const REFUSED: Duration = Duration::from_secs(10);
const MOST_REMEMBERED: usize = 256;
/// Minimum time between log messages about failing reviews.
const TOLD: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
#[error("cannot create the certificate for metrics: {0}")]
pub struct CertificateError(String);

/// Asks the API server who may read metrics.
#[derive(Clone)]
pub struct Gate {
    client: Client,
    reviews: Arc<Semaphore>,
    memory: Arc<Mutex<Memory>>,
}

#[derive(Default)]
struct Memory {
    /// Verdict and its expiry, by the hash of the token.
    verdicts: BTreeMap<[u8; 32], (Verdict, Instant)>,
    told: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Accepted,
    /// The token is not valid.
    Unknown,
    /// The user of the token may not get /metrics.
    Denied,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

impl Gate {
    /// The client must be able to create reviews without the Lease.
    pub fn new(client: Client) -> Gate {
        Gate {
            client,
            reviews: Arc::new(Semaphore::new(MOST_REVIEWS)),
            memory: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn judge(&self, token: &str) -> Result<Verdict, Failure> {
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(verdict) = self.lock().recall(&hash) {
            return Ok(verdict);
        }
        let unanswered = || Failure::Timeout(PATIENCE);
        let review = async {
            // The semaphore is never closed.
            let _seat = self.reviews.acquire().await;
            self.review(token).await
        };
        let verdict = timeout(PATIENCE, review)
            .await
            .map_err(|_| unanswered())??;
        self.lock().remember(hash, verdict);
        Ok(verdict)
    }

    async fn review(&self, token: &str) -> Result<Verdict, Failure> {
        let spec = TokenReviewSpec {
            token: Some(token.to_owned()),
            ..TokenReviewSpec::default()
        };
        let review = TokenReview {
            spec,
            ..TokenReview::default()
        };
        let found = Api::<TokenReview>::all(self.client.clone())
            .create(&PostParams::default(), &review)
            .await;
        let status = found
            .map_err(|error| Failure::of(&error))?
            .status
            .unwrap_or_default();
        let Some(user) = status.user.filter(|_| status.authenticated == Some(true)) else {
            return Ok(Verdict::Unknown);
        };
        let UserInfo {
            username,
            uid,
            groups,
            extra,
        } = user;
        let attributes = NonResourceAttributes {
            path: Some(PATH.to_owned()),
            verb: Some("get".to_owned()),
        };
        let spec = SubjectAccessReviewSpec {
            user: username,
            uid,
            groups,
            extra,
            non_resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview {
            spec,
            ..SubjectAccessReview::default()
        };
        let found = Api::<SubjectAccessReview>::all(self.client.clone())
            .create(&PostParams::default(), &review)
            .await;
        let allowed = found
            .map_err(|error| Failure::of(&error))?
            .status
            .is_some_and(|status| status.allowed);
        Ok(if allowed {
            Verdict::Accepted
        } else {
            Verdict::Denied
        })
    }

    fn tell(&self, failure: &Failure) {
        let mut memory = self.lock();
        if memory.told.is_none_or(|at| at.elapsed() >= TOLD) {
            memory.told = Some(Instant::now());
            warn!(error = %failure, "failed to review the token of a metrics request; the service account needs the role in config/rbac/secure-metrics.yaml");
        }
    }
}

impl Memory {
    fn recall(&self, hash: &[u8; 32]) -> Option<Verdict> {
        self.verdicts
            .get(hash)
            .filter(|(_, until)| *until > Instant::now())
            .map(|(verdict, _)| *verdict)
    }

    fn remember(&mut self, hash: [u8; 32], verdict: Verdict) {
        let now = Instant::now();
        self.verdicts.retain(|_, (_, until)| *until > now);
        while self.verdicts.len() >= MOST_REMEMBERED {
            let first = self
                .verdicts
                .iter()
                .min_by_key(|(_, (_, until))| *until)
                .map(|(hash, _)| *hash);
            first.map(|hash| self.verdicts.remove(&hash));
        }
        let lasts = if verdict == Verdict::Accepted {
            ACCEPTED
        } else {
            REFUSED
        };
        self.verdicts.insert(hash, (verdict, now + lasts));
    }
}

/// Returns a TLS acceptor for HTTP/1.1 with a self-signed certificate.
pub fn acceptor() -> Result<TlsAcceptor, CertificateError> {
    let wrong = |error: &dyn std::fmt::Display| CertificateError(error.to_string());
    let own = rcgen::generate_simple_self_signed(["meshwright".to_owned()])
        .map_err(|error| wrong(&error))?;
    let key =
        PrivateKeyDer::try_from(own.signing_key.serialize_der()).map_err(|error| wrong(&error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| wrong(&error))?.with_no_client_auth();
    let mut config = config
        .with_single_cert(vec![own.cert.der().clone()], key)
        .map_err(|error| wrong(&error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Serves metrics. Never returns; dropping the future closes all connections.
pub async fn serve(listener: TcpListener, acceptor: TlsAcceptor, gate: Gate, metrics: Metrics) {
    let router = Router::new()
        .route(PATH, get(guarded))
        .with_state((gate, metrics));
    let seats = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let seat = Arc::clone(&seats).acquire_owned().await;
        match listener.accept().await {
            Ok((stream, _)) => {
                let (acceptor, router) = (acceptor.clone(), router.clone());
                connections.spawn(async move {
                    let _seat = seat;
                    _ = timeout(LONGEST, connection(stream, acceptor, router)).await;
                });
            }
            // Most likely out of file descriptors: wait until one is free.
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn connection(stream: TcpStream, acceptor: TlsAcceptor, router: Router) {
    let Ok(Ok(stream)) = timeout(PATIENCE, acceptor.accept(stream)).await else {
        return;
    };
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(LARGEST_HEAD)
        .keep_alive(false);
    _ = builder
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await;
}

async fn guarded(State((gate, metrics)): State<(Gate, Metrics)>, headers: HeaderMap) -> Response {
    let value = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let token = value
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let Some(token) = token
        .map(|(_, token)| token.trim())
        .filter(|token| !token.is_empty())
    else {
        return unauthorized();
    };
    match gate.judge(token).await {
        Ok(Verdict::Accepted) => metrics_text(State(metrics)).await,
        Ok(Verdict::Unknown) => unauthorized(),
        Ok(Verdict::Denied) => (
            StatusCode::FORBIDDEN,
            "the user of this token may not get the URL /metrics",
        )
            .into_response(),
        Err(failure) => {
            gate.tell(&failure);
            (
                StatusCode::SERVICE_UNAVAILABLE,
                "failed to review the token",
            )
                .into_response()
        }
    }
}

fn unauthorized() -> Response {
    (
        StatusCode::UNAUTHORIZED,
        [(header::WWW_AUTHENTICATE, "Bearer")],
        "a bearer token accepted by the API server is required",
    )
        .into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use http_body_util::BodyExt;
    use kube::client::Body;
    use serde_json::{Value, json};
    use tokio::io::AsyncReadExt;
    use tower::service_fn;

    /// An API server with two valid tokens; one of the users may read metrics.
    fn api(asked: Arc<AtomicUsize>) -> Client {
        let answer = move |request: Request<Body>| {
            let asked = Arc::clone(&asked);
            async move {
                asked.fetch_add(1, Ordering::Relaxed);
                let is_token = request.uri().path().ends_with("/tokenreviews");
                let bytes = request.into_body().collect().await.unwrap().to_bytes();
                let mut review: Value = serde_json::from_slice(&bytes).unwrap();
                review["status"] = match is_token {
                    true => match review["spec"]["token"].as_str().unwrap() {
                        name @ ("prometheus" | "guest") => {
                            json!({ "authenticated": true, "user": { "username": name, "groups": ["all"] } })
                        }
                        _ => json!({ "authenticated": false }),
                    },
                    false => {
                        assert_eq!(
                            review["spec"]["nonResourceAttributes"],
                            json!({ "path": "/metrics", "verb": "get" })
                        );
                        assert_eq!(review["spec"]["groups"], json!(["all"]));
                        json!({ "allowed": review["spec"]["user"] == "prometheus" })
                    }
                };
                Ok::<_, std::convert::Infallible>(
                    Response::builder()
                        .status(201)
                        .body(Body::from(review.to_string().into_bytes()))
                        .unwrap(),
                )
            }
        };
        Client::new(service_fn(answer), "default")
    }

    async fn code(gate: &Gate, authorization: Option<&str>) -> u16 {
        let headers = authorization.map(|value| (header::AUTHORIZATION, value.parse().unwrap()));
        guarded(
            State((gate.clone(), Metrics::default())),
            headers.into_iter().collect(),
        )
        .await
        .status()
        .as_u16()
    }

    #[tokio::test(start_paused = true)]
    async fn metrics_are_for_those_who_may_get_the_url() {
        let asked = Arc::new(AtomicUsize::new(0));
        let gate = Gate::new(api(Arc::clone(&asked)));
        for (authorization, expected) in [
            (None, 401),
            (Some("Basic cHJvbWV0aGV1cw=="), 401),
            (Some("Bearer "), 401),
            (Some("Bearer nobody"), 401),
            (Some("Bearer guest"), 403),
            (Some("Bearer prometheus"), 200),
            (Some("bearer prometheus"), 200),
        ] {
            assert_eq!(
                code(&gate, authorization).await,
                expected,
                "{authorization:?}"
            );
        }
        assert_eq!(
            asked.load(Ordering::Relaxed),
            5,
            "what was decided is remembered, and only tokens are asked about"
        );
        tokio::time::advance(ACCEPTED - Duration::from_millis(1)).await;
        assert_eq!(code(&gate, Some("Bearer prometheus")).await, 200);
        assert_eq!(asked.load(Ordering::Relaxed), 5);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(code(&gate, Some("Bearer prometheus")).await, 200);
        assert_eq!(
            asked.load(Ordering::Relaxed),
            7,
            "a minute later it is asked again"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_remembered_of_tokens_is_bounded() {
        let gate = Gate::new(api(Arc::default()));
        for number in 0..MOST_REMEMBERED + 10 {
            assert_eq!(
                gate.judge(&format!("guess {number}")).await,
                Ok(Verdict::Unknown)
            );
        }
        assert_eq!(gate.lock().verdicts.len(), MOST_REMEMBERED);
    }

    #[tokio::test]
    async fn an_api_server_that_fails_lets_nobody_in() {
        let refuse = |_: Request<Body>| async {
            let body = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "no" });
            Ok::<_, std::convert::Infallible>(
                Response::builder()
                    .status(403)
                    .body(Body::from(body.to_string().into_bytes()))
                    .unwrap(),
            )
        };
        let gate = Gate::new(Client::new(service_fn(refuse), "default"));
        assert_eq!(code(&gate, Some("Bearer prometheus")).await, 503);
        assert!(gate.lock().verdicts.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn who_never_says_anything_is_cut_off() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(serve(
            listener,
            acceptor().unwrap(),
            Gate::new(api(Arc::default())),
            Metrics::default(),
        ));
        let mut silent = TcpStream::connect(address).await.unwrap();
        let start = Instant::now();
        assert_eq!(silent.read(&mut [0; 1]).await.unwrap(), 0, "it is closed");
        assert!(start.elapsed() < LONGEST, "{:?}", start.elapsed());
        serving.abort();
    }
}
