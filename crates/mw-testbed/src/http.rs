//! A small HTTPS client for one API server.
//!
//! All connections use one dedicated runtime: each `#[tokio::test]` has its own
//! runtime, and pooled connections would die with the first of them.

use std::future::Future;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use crate::error::{Error, Result};

/// Timeout of a request, so that a paused server results in an error instead of a
/// hanging test.
const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) type HttpsClient<B> = Client<HttpsConnector<HttpConnector>, B>;

/// Response of a server; `body` is null if it was not JSON.
#[derive(Debug, Clone)]
pub struct Answer {
    pub code: u16,
    pub body: Value,
}

impl Answer {
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.code)
    }

    fn message(&self) -> String {
        self.body
            .get("message")
            .and_then(Value::as_str)
            .map_or_else(|| self.body.to_string(), str::to_owned)
    }
}

/// A client that authenticates with a bearer token.
#[derive(Debug, Clone)]
pub(crate) struct Http {
    client: HttpsClient<Full<Bytes>>,
    base: String,
    token: String,
}

impl Http {
    pub(crate) fn new(base: String, tls: rustls::ClientConfig, token: String) -> Self {
        Self {
            client: http2_client(tls),
            base,
            token,
        }
    }

    pub(crate) fn with_token(&self, token: &str) -> Self {
        Self {
            token: token.to_owned(),
            ..self.clone()
        }
    }

    /// Sends a request and reads the whole response. All status codes are accepted.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        content: &str,
        body: Option<&Value>,
    ) -> Result<Answer> {
        let (code, bytes) = self.exchange(method, path, content, body).await?;
        Ok(Answer {
            code,
            body: serde_json::from_slice(&bytes).unwrap_or_default(),
        })
    }

    /// Returns the status code and text of a GET request.
    pub(crate) async fn text(&self, path: &str) -> Result<(u16, String)> {
        let (code, bytes) = self.exchange(Method::GET, path, JSON, None).await?;
        Ok((code, String::from_utf8_lossy(&bytes).into_owned()))
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        content: &str,
        body: Option<&Value>,
    ) -> Result<(u16, Bytes)> {
        let request = self.build(&method, path, content, body)?;
        let client = self.client.clone();
        let exchange = async move {
            let response = client.request(request).await.map_err(causes)?;
            let code = response.status().as_u16();
            let bytes = response
                .into_body()
                .collect()
                .await
                .map_err(causes)?
                .to_bytes();
            Ok::<_, String>((code, bytes))
        };
        let failed = |reason: String| Error::Request {
            method: method.to_string(),
            path: path.to_owned(),
            reason,
        };
        in_time(exchange).await.map_err(failed)
    }

    /// Sends a request with the named method. PATCH is a merge patch.
    pub(crate) async fn request(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer> {
        let invalid = |_| Error::Request {
            method: method.to_owned(),
            path: path.to_owned(),
            reason: "unknown method".into(),
        };
        let method = Method::from_bytes(method.as_bytes()).map_err(invalid)?;
        let content = if method == Method::PATCH {
            MERGE_PATCH
        } else {
            JSON
        };
        self.send(method, path, content, body).await
    }

    /// Like `send`, but all status codes except 2xx are errors.
    pub(crate) async fn expect(
        &self,
        method: Method,
        path: &str,
        content: &str,
        body: Option<&Value>,
    ) -> Result<Value> {
        let answer = self.send(method.clone(), path, content, body).await?;
        if answer.is_success() {
            return Ok(answer.body);
        }
        Err(Error::Refused {
            method: method.to_string(),
            path: path.to_owned(),
            code: answer.code,
            message: answer.message(),
        })
    }

    /// Starts a watch. Must be called on the dedicated runtime.
    pub(crate) async fn watch(&self, path: &str) -> Result<Events> {
        let request = self.build(&Method::GET, path, JSON, None)?;
        let failed = |reason: String| Error::Request {
            method: "GET".into(),
            path: path.to_owned(),
            reason,
        };
        let response = self
            .client
            .request(request)
            .await
            .map_err(|error| failed(causes(error)))?;
        if !response.status().is_success() {
            return Err(failed(response.status().to_string()));
        }
        Ok(Events::new(response.into_body()))
    }

    /// Forwards a request with its headers and waits for the head of the response. Must
    /// be called on the dedicated runtime. Requests without a token get that of this
    /// client.
    pub(crate) async fn pass(
        &self,
        method: &Method,
        path: &str,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>> {
        let failed = |reason: String| Error::Request {
            method: method.to_string(),
            path: path.to_owned(),
            reason,
        };
        if !headers.contains_key(AUTHORIZATION) {
            let value = HeaderValue::try_from(format!("Bearer {}", self.token))
                .map_err(|error| failed(error.to_string()))?;
            headers.insert(AUTHORIZATION, value);
        }
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .body(Full::from(body));
        let mut request = request.map_err(|error| failed(error.to_string()))?;
        *request.headers_mut() = headers;
        match tokio::time::timeout(DEADLINE, self.client.request(request)).await {
            Ok(response) => response.map_err(|error| failed(causes(error))),
            Err(_) => Err(failed(format!("no answer within {}s", DEADLINE.as_secs()))),
        }
    }

    fn build(
        &self,
        method: &Method,
        path: &str,
        content: &str,
        body: Option<&Value>,
    ) -> Result<Request<Full<Bytes>>> {
        Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(AUTHORIZATION, format!("Bearer {}", self.token))
            .header(CONTENT_TYPE, content)
            .header("accept", JSON)
            .body(
                body.map(|body| Full::from(body.to_string()))
                    .unwrap_or_default(),
            )
            .map_err(|error| Error::Request {
                method: method.to_string(),
                path: path.to_owned(),
                reason: error.to_string(),
            })
    }
}

/// Events of a watch.
#[derive(Debug)]
pub(crate) struct Events {
    body: Incoming,
    pending: Vec<u8>,
}

impl Events {
    pub(crate) fn new(body: Incoming) -> Self {
        Self {
            body,
            pending: Vec::new(),
        }
    }

    /// Returns the next event; `None` if the watch has ended. Cancellation loses no event.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap_or_default());
            }
            let frame = self.body.frame().await?.ok()?;
            self.pending
                .extend_from_slice(&frame.into_data().unwrap_or_default());
        }
    }
}

pub(crate) const JSON: &str = "application/json";
pub(crate) const MERGE_PATCH: &str = "application/merge-patch+json";
pub(crate) const APPLY_PATCH: &str = "application/apply-patch+yaml";

/// Idle timeout of pooled connections. Shorter than the 90 s of an API server, so that
/// no request uses a connection that the server is closing.
const IDLE: Duration = Duration::from_secs(30);

/// Returns a client with one shared HTTP/2 connection.
fn http2_client(tls: rustls::ClientConfig) -> HttpsClient<Full<Bytes>> {
    pooled(
        HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_only()
            .enable_http2()
            .build(),
    )
}

/// Like `http2_client`, for a server whose certificate is valid for `name`, regardless
/// of its address.
pub(crate) fn http2_client_for(
    name: ServerName<'static>,
    tls: rustls::ClientConfig,
) -> HttpsClient<Full<Bytes>> {
    let named = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_only();
    pooled(
        named
            .with_server_name_resolver(FixedServerNameResolver::new(name))
            .enable_http2()
            .build(),
    )
}

/// Returns a client with a connection per concurrent request, so that an unread watch
/// can't block other requests.
pub(crate) fn http1_client(tls: rustls::ClientConfig) -> HttpsClient<Incoming> {
    pooled(
        HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_only()
            .enable_http1()
            .build(),
    )
}

fn pooled<B>(connector: HttpsConnector<HttpConnector>) -> HttpsClient<B>
where
    B: hyper::body::Body + Send,
    B::Data: Send,
{
    Client::builder(TokioExecutor::new())
        .pool_idle_timeout(IDLE)
        .pool_timer(TokioTimer::new())
        .build(connector)
}

/// Returns the dedicated runtime, which starts at first use and never stops.
pub(crate) fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<std::result::Result<Runtime, String>> = OnceLock::new();
    let start = || {
        Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("testbed")
            .enable_all()
            .build()
    };
    RUNTIME
        .get_or_init(|| start().map_err(|error| error.to_string()))
        .as_ref()
        .map_err(|reason| Error::Start {
            program: "runtime".into(),
            reason: reason.clone(),
        })
}

/// Runs an exchange on the dedicated runtime, with a timeout.
pub(crate) async fn in_time<T, F>(exchange: F) -> std::result::Result<T, String>
where
    T: Send + 'static,
    F: Future<Output = std::result::Result<T, String>> + Send + 'static,
{
    // The timeout runs there too, because the caller's clock may be paused.
    let done = on_runtime(async { tokio::time::timeout(DEADLINE, exchange).await }).await?;
    done.unwrap_or_else(|_| Err(format!("no answer within {}s", DEADLINE.as_secs())))
}

/// Runs a future on the dedicated runtime and waits for it from any other runtime. It
/// is aborted together with its caller, so that an abandoned request does not take
/// effect later.
pub(crate) async fn on_runtime<T, F>(future: F) -> std::result::Result<T, String>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn_on(
        future,
        runtime().map_err(|error| error.to_string())?.handle(),
    );
    match tasks.join_next().await {
        Some(done) => done.map_err(|error| error.to_string()),
        None => Err("the task was not started".into()),
    }
}

/// Formats an error with all its sources; hyper's own text omits them.
pub(crate) fn causes(error: impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
