//! An HTTPS server on a port of loopback that can be closed and reopened.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::error::{Error, Result};
use crate::http::runtime;

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Served = Response<UnsyncBoxBody<Bytes, BoxError>>;

const BIND_PAUSE: Duration = Duration::from_millis(10);

pub(crate) trait Handler: Send + Sync + 'static {
    /// Returns the response, or `None` to close the connection.
    fn handle(&self, request: Request<Incoming>) -> impl Future<Output = Option<Served>> + Send;
}

/// A served port. Dropping it closes it and all its connections.
#[derive(Debug)]
pub(crate) struct Port {
    url: String,
    refuse: watch::Sender<bool>,
    refusing: watch::Receiver<bool>,
    acceptor: AbortHandle,
}

impl Port {
    /// Reserves a free port, for callers that need its address before it is served.
    pub(crate) fn reserve() -> Result<(std::net::TcpListener, String)> {
        let failed = |error: std::io::Error| Error::Proxy {
            operation: "listening",
            reason: error.to_string(),
        };
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok((listener, format!("https://{address}")))
    }

    pub(crate) fn serve<H: Handler>(
        listener: std::net::TcpListener,
        url: String,
        tls: ServerConfig,
        handler: Arc<H>,
    ) -> Result<Self> {
        let (refuse, wanted) = watch::channel(false);
        let (told, refusing) = watch::channel(false);
        let server = Server {
            handler,
            tls: Arc::new(tls),
        };
        let acceptor = runtime()?
            .spawn(accept(server, listener, wanted, told))
            .abort_handle();
        Ok(Self {
            url,
            refuse,
            refusing,
            acceptor,
        })
    }

    /// Returns `https://127.0.0.1:PORT`.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Closes the port and all connections, or reopens the same port. Takes effect
    /// before it returns.
    pub(crate) async fn refuse(&self, refuse: bool) -> Result<()> {
        let _ = self.refuse.send(refuse);
        let mut refusing = self.refusing.clone();
        let done = refusing.wait_for(|refusing| *refusing == refuse).await;
        done.map(drop).map_err(|error| Error::Proxy {
            operation: "closing or opening the port",
            reason: error.to_string(),
        })
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

struct Server<H> {
    handler: Arc<H>,
    tls: Arc<ServerConfig>,
}

/// Accepts connections until it is aborted. While refusing, there is no listener, so
/// that the kernel refuses connections, and all existing ones are closed.
async fn accept<H: Handler>(
    server: Server<H>,
    first: std::net::TcpListener,
    mut refuse: watch::Receiver<bool>,
    refusing: watch::Sender<bool>,
) {
    let Ok(address) = first.local_addr() else {
        return;
    };
    let mut listener = first
        .set_nonblocking(true)
        .and_then(|()| TcpListener::from_std(first))
        .ok();
    loop {
        if listener.is_none() {
            listener = TcpListener::bind(address).await.ok();
        }
        let Some(open) = listener.take() else {
            tokio::time::sleep(BIND_PAUSE).await;
            continue;
        };
        let _ = refusing.send(false);
        accept_while_open(&server, open, &mut refuse).await;
        let _ = refusing.send(true);
        if refuse.wait_for(|refuse| !*refuse).await.is_err() {
            return;
        }
    }
}

async fn accept_while_open<H: Handler>(
    server: &Server<H>,
    listener: TcpListener,
    refuse: &mut watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            _ = refuse.wait_for(|refuse| *refuse) => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                connections.spawn(connection(server.handler.clone(), server.tls.clone(), stream));
            },
        }
    }
    drop(listener);
    connections.shutdown().await;
}

async fn connection<H: Handler>(handler: Arc<H>, tls: Arc<ServerConfig>, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let Ok(stream) = TlsAcceptor::from(tls).accept(stream).await else {
        return;
    };
    let close = Arc::new(Notify::new());
    let service = service_fn(|request: Request<Incoming>| {
        let (handler, close) = (handler.clone(), close.clone());
        async move {
            match handler.handle(request).await {
                Some(answer) => Ok::<_, Infallible>(answer),
                None => {
                    close.notify_one();
                    pending().await
                }
            }
        }
    });
    let server = auto::Builder::new(TokioExecutor::new());
    tokio::select! {
        biased;
        () = close.notified() => {}
        _ = server.serve_connection(TokioIo::new(stream), service) => {}
    }
}
