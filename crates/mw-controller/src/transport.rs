//! HTTP transport of a cluster: one HTTP/2 connection with keepalive pings, so
//! that a hanging server is noticed without a request. Every request has a
//! timeout, every response a size limit, and nothing is written after the Lease
//! is lost.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base64ct::{Base64, Encoding};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, Uri, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::FixedServerNameResolver;
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::{Client, Config};
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tower::{BoxError, Layer, Service, ServiceBuilder};

use crate::address::{AddressPolicy, Resolver};
use crate::metrics::RequestMetrics;
use crate::permit::Permit;
use crate::watch_body::{EventRate, Events};

/// Marks a request whose caller streams the response and limits its size itself.
#[derive(Debug, Clone, Copy)]
pub struct Streamed;

/// Timeouts of requests to a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Until the first byte of a response.
    pub request: Duration,
    /// Until the last byte of a response that is not a watch.
    pub answer: Duration,
}

impl Timeouts {
    pub fn of(request: Duration) -> Timeouts {
        Timeouts {
            request,
            answer: request * 6,
        }
    }

    /// Shortens the request timeout to end by `end`.
    fn until(self, end: Option<Instant>) -> Timeouts {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        Timeouts {
            request: left.map_or(self.request, |left| left.min(self.request)),
            ..self
        }
    }
}

/// Shown in audit logs.
const USER_AGENT: &str = concat!("meshwright/", env!("CARGO_PKG_VERSION"));
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_PATIENCE: Duration = Duration::from_secs(5);
/// Path prefix of access reviews.
const REVIEWS: &str = "/apis/authorization.k8s.io/";
/// Size limit of responses other than lists: objects, reviews, the metrics of a pod.
const LARGEST_ANSWER: usize = 4 << 20;

#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    #[error("no answer within {}s", .0.as_secs_f64())]
    Timeout(Duration),
    #[error("{0}")]
    TooLarge(&'static str),
    #[error("the Lease is lost")]
    NotLeader,
    #[error(transparent)]
    Transport(BoxError),
}

/// Limits and metrics for every request to one cluster.
#[derive(Debug, Clone)]
pub struct Rules {
    pub timeouts: Timeouts,
    pub permit: Permit,
    pub metrics: RequestMetrics,
}

/// Returns a client of a cluster that is configured on the command line.
pub fn client(config: Config, rules: Rules) -> Result<Client, kube::Error> {
    if config.proxy_url.is_some() {
        let config = adjusted(config, &rules);
        return Ok(ClientBuilder::try_from(config)?
            .with_layer(&GuardLayer::new(rules, None))
            .build());
    }
    client_through(connector(None), config, rules, None)
}

/// Returns a client of a cluster that a member's kubeconfig names. It connects
/// only to addresses that `addresses` allows; this includes the proxy.
pub fn member_client(
    config: Config,
    rules: Rules,
    addresses: AddressPolicy,
) -> Result<Client, kube::Error> {
    let connector = connector(Some(addresses));
    let rate = Some(EventRate::new(rules.metrics.clone()));
    match config.proxy_url.clone() {
        None => client_through(connector, config, rules, rate),
        Some(proxy) if proxy.scheme_str() == Some("http") => {
            client_through(tunnel(proxy, connector), config, rules, rate)
        }
        Some(_) => Err(kube::Error::Service(
            "proxy-url is not an http:// URL".into(),
        )),
    }
}

fn adjusted(mut config: Config, rules: &Rules) -> Config {
    // kube would retry requests by itself, for minutes.
    config.default_retry = false;
    config.connect_timeout = Some(rules.timeouts.request);
    config
}

fn connector(addresses: Option<AddressPolicy>) -> HttpConnector<Resolver> {
    let mut connector = HttpConnector::new_with_resolver(Resolver(addresses));
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector
}

fn tunnel<C>(proxy: Uri, connector: C) -> Tunnel<C> {
    let authority = proxy
        .authority()
        .map(|authority| authority.as_str().to_owned())
        .unwrap_or_default();
    let tunnel = Tunnel::new(proxy, connector);
    let Some((user, _)) = authority.rsplit_once('@') else {
        return tunnel;
    };
    let user: Vec<u8> = percent_encoding::percent_decode_str(user).collect();
    match HeaderValue::from_str(&format!("Basic {}", Base64::encode_string(&user))) {
        Ok(header) => tunnel.with_auth(header),
        Err(_) => tunnel,
    }
}

/// Uses HTTP/2 if the server supports it.
fn client_through<C>(
    connector: C,
    config: Config,
    rules: Rules,
    rate: Option<EventRate>,
) -> Result<Client, kube::Error>
where
    C: Service<Uri, Response = TokioIo<TcpStream>> + Clone + Send + Sync + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    let config = adjusted(config, &rules);
    let mut secured = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http();
    if let Some(name) = config.tls_server_name.clone() {
        let name =
            ServerName::try_from(name).map_err(|wrong| kube::Error::Service(wrong.into()))?;
        secured = secured.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let mut connector =
        TimeoutConnector::new(secured.enable_all_versions().wrap_connector(connector));
    // Includes the TLS handshake: a server may accept a connection and then hang.
    connector.set_connect_timeout(config.connect_timeout);
    let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_EVERY)
        .http2_keep_alive_timeout(PING_PATIENCE)
        .http2_keep_alive_while_idle(true)
        .build::<_, Body>(connector);
    client_over(client, &config, rules, rate)
}

/// Returns a client that sends its requests through `service`.
pub(crate) fn client_over<S, B>(
    service: S,
    config: &Config,
    rules: Rules,
    rate: Option<EventRate>,
) -> Result<Client, kube::Error>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let service = ServiceBuilder::new()
        .layer(GuardLayer::new(rules, rate))
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(Into::<BoxError>::into)
        .service(service);
    Ok(Client::new(service, config.default_namespace.clone()))
}

#[derive(Debug, Clone)]
struct GuardLayer {
    rules: Arc<Rules>,
    rate: Option<Arc<EventRate>>,
}

impl GuardLayer {
    fn new(rules: Rules, rate: Option<EventRate>) -> GuardLayer {
        GuardLayer {
            rules: Arc::new(rules),
            rate: rate.map(Arc::new),
        }
    }
}

impl<S> Layer<S> for GuardLayer {
    type Service = Guard<S>;

    fn layer(&self, inner: S) -> Guard<S> {
        Guard {
            inner,
            limits: self.clone(),
        }
    }
}

#[derive(Debug)]
struct Guard<S> {
    inner: S,
    limits: GuardLayer,
}

impl<S, B> Service<Request<Body>> for Guard<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Answer>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Answer>, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        request
            .headers_mut()
            .insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        let verb = Verb::of(&request);
        let streamed = request.extensions().get::<Streamed>().is_some();
        let GuardLayer { rules, rate } = self.limits.clone();
        if verb.writes() && !rules.permit.holds() {
            rules.metrics.count(verb.name(), "not_leader");
            return Box::pin(async { Err(TransportError::NotLeader.into()) });
        }
        // A write must end before another process may become leader, whatever the request timeout.
        let timeouts = if verb.writes() {
            rules.timeouts.until(rules.permit.writes_end())
        } else {
            rules.timeouts
        };
        let answer = self.inner.call(request);
        Box::pin(async move {
            let result = guarded(answer, verb, streamed, timeouts).await;
            let result = result.map(|answer| match verb {
                Verb::Watch if answer.status().is_success() => {
                    answer.map(|body| Events::new(body, rate).boxed_unsync())
                }
                _ => answer,
            });
            match &result {
                Ok(answer) => rules.metrics.count(verb.name(), answer.status().as_str()),
                Err(TransportError::Timeout(_)) => rules.metrics.count(verb.name(), "timeout"),
                Err(_) => rules.metrics.count(verb.name(), "failed"),
            }
            result.map_err(Into::<BoxError>::into)
        })
    }
}

async fn guarded<B, E>(
    answer: impl Future<Output = Result<Response<B>, E>>,
    verb: Verb,
    streamed: bool,
    timeouts: Timeouts,
) -> Result<Response<Answer>, TransportError>
where
    E: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let late = |_| TransportError::Timeout(timeouts.request);
    let answer = timeout(timeouts.request, answer)
        .await
        .map_err(late)?
        .map_err(|wrong| TransportError::Transport(wrong.into()))?;
    let (parts, body) = answer.into_parts();
    if (streamed || verb == Verb::Watch) && parts.status.is_success() {
        return Ok(Response::from_parts(
            parts,
            body.map_err(Into::into).boxed_unsync(),
        ));
    }
    let whole = timeout(
        timeouts.answer,
        Limited::new(body, LARGEST_ANSWER).collect(),
    );
    let whole = whole
        .await
        .map_err(|_| TransportError::Timeout(timeouts.answer))?
        .map_err(too_large)?;
    let whole = Full::new(whole.to_bytes()).map_err(|never| match never {});
    Ok(Response::from_parts(parts, whole.boxed_unsync()))
}

fn too_large(wrong: BoxError) -> TransportError {
    match wrong.downcast_ref::<http_body_util::LengthLimitError>() {
        Some(_) => TransportError::TooLarge("response exceeds 4 MiB"),
        None => TransportError::Transport(wrong),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Get,
    Watch,
    /// An access review: a query sent as POST that stores nothing.
    Review,
    Create,
    Replace,
    Patch,
    Delete,
}

impl Verb {
    fn of(request: &Request<Body>) -> Verb {
        let watches = || {
            request
                .uri()
                .query()
                .is_some_and(|query| query.split('&').any(|part| part == "watch=true"))
        };
        match *request.method() {
            Method::POST if request.uri().path().starts_with(REVIEWS) => Verb::Review,
            Method::POST => Verb::Create,
            Method::PUT => Verb::Replace,
            Method::PATCH => Verb::Patch,
            Method::DELETE => Verb::Delete,
            _ if watches() => Verb::Watch,
            _ => Verb::Get,
        }
    }

    fn writes(self) -> bool {
        !matches!(self, Verb::Get | Verb::Watch | Verb::Review)
    }

    fn name(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::Watch => "watch",
            Verb::Review | Verb::Create => "create",
            Verb::Replace => "update",
            Verb::Patch => "patch",
            Verb::Delete => "delete",
        }
    }
}

type Answer = UnsyncBoxBody<Bytes, BoxError>;

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    use http_body::Frame;
    use k8s_openapi::api::core::v1::Node;
    use kube::Api;
    use kube::api::{ListParams, PostParams, WatchParams};

    use mw_core::names::ClusterId;

    use crate::failure::Failure;
    use crate::lease::{LEASE_DURATION, RENEW_DEADLINE};
    use crate::metrics::Metrics;
    use crate::watch_body::LARGEST_EVENT;

    fn api<B>(
        permit: Permit,
        answer: impl Fn() -> Option<Response<B>> + Clone + Send + 'static,
    ) -> Api<Node>
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError>,
    {
        patient(Timeouts::of(Duration::from_secs(5)), permit, answer)
    }

    fn patient<B>(
        timeouts: Timeouts,
        permit: Permit,
        answer: impl Fn() -> Option<Response<B>> + Clone + Send + 'static,
    ) -> Api<Node>
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError>,
    {
        let rules = Rules {
            timeouts,
            permit,
            metrics: Metrics::default().of_cluster(&ClusterId::from("c")),
        };
        let service = tower::service_fn(move |_: Request<Body>| {
            let answer = answer.clone();
            async move {
                match answer() {
                    Some(answer) => Ok::<_, Infallible>(answer),
                    None => std::future::pending().await,
                }
            }
        });
        Api::all(Client::new(
            GuardLayer::new(rules, None).layer(service),
            "default",
        ))
    }

    fn whole(bytes: Vec<u8>) -> Response<Full<Bytes>> {
        Response::new(Full::new(bytes.into()))
    }

    async fn listed<B>(answer: impl Fn() -> Option<Response<B>> + Clone + Send + 'static) -> Failure
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError>,
    {
        Failure::of(
            &api(Permit::always(), answer)
                .list(&ListParams::default())
                .await
                .map(drop)
                .unwrap_err(),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_says_nothing_is_given_up() {
        let start = tokio::time::Instant::now();
        assert_eq!(
            listed(|| None::<Response<Full<Bytes>>>).await,
            Failure::Timeout(Duration::from_secs(5))
        );
        assert_eq!(start.elapsed(), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_never_ends_is_given_up() {
        let endless = || {
            Some(Response::new(http_body_util::StreamBody::new(
                futures::stream::pending::<Result<Frame<Bytes>, Infallible>>(),
            )))
        };
        assert_eq!(
            listed(endless).await,
            Failure::Timeout(Duration::from_secs(30))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn too_large_an_answer_is_not_read() {
        let failure = listed(|| Some(whole(vec![b' '; LARGEST_ANSWER + 1]))).await;
        assert!(
            matches!(&failure, Failure::TooLarge(why) if why.contains("4 MiB")),
            "{failure}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn too_large_an_event_is_not_read() {
        use futures::StreamExt;
        let events = api(Permit::always(), || {
            Some(whole(vec![b'x'; LARGEST_EVENT + 1]))
        });
        let mut events = events
            .watch(&WatchParams::default(), "0")
            .await
            .unwrap()
            .boxed();
        let failure = Failure::of(&events.next().await.unwrap().unwrap_err());
        assert!(matches!(&failure, Failure::TooLarge(_)), "{failure}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_is_given_up_before_another_process_may_lead() {
        let permit = Permit::none();
        let asked = Instant::now();
        permit.extend(Some(asked + RENEW_DEADLINE));
        tokio::time::advance(Duration::from_secs(9)).await;
        let timeouts = Timeouts::of(Duration::from_secs(300));
        let api = patient(timeouts, permit, || None::<Response<Full<Bytes>>>);
        let written = api
            .create(&PostParams::default(), &Node::default())
            .await
            .map(drop)
            .unwrap_err();
        assert!(
            matches!(Failure::of(&written), Failure::Timeout(_)),
            "{written}"
        );
        assert!(asked.elapsed() <= LEASE_DURATION, "{:?}", asked.elapsed());
        // Reads keep the full timeout.
        let start = Instant::now();
        let read = api
            .list(&ListParams::default())
            .await
            .map(drop)
            .unwrap_err();
        assert_eq!(
            (Failure::of(&read), start.elapsed()),
            (Failure::Timeout(timeouts.request), timeouts.request)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn without_the_lease_nothing_is_written_and_everything_read() {
        let api = api(Permit::none(), || {
            Some(whole(br#"{"metadata":{},"items":[]}"#.to_vec()))
        });
        let written = api
            .create(&PostParams::default(), &Node::default())
            .await
            .map(drop)
            .unwrap_err();
        assert_eq!(Failure::of(&written), Failure::NotLeader);
        assert!(api.list(&ListParams::default()).await.is_ok());
    }
}
