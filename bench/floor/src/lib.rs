//! Client for one API server over a persistent HTTP/2 connection, and the instructions
//! of the program `floor`. Independent of the content of requests.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use hyper::{Method, Request};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde::{Deserialize, Serialize};

pub type Result<T, E = String> = std::result::Result<T, E>;

/// Address and credentials of a server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Address {
    pub url: String,
    pub ca: String,
    pub caller: Caller,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Caller {
    Token(String),
    Certificate { certificate: String, key: String },
}

impl std::fmt::Debug for Caller {
    /// Omits secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Caller")
    }
}

/// A prepared request. `server` is an index into the servers of [`Instruction::Start`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Prepared {
    pub server: usize,
    pub method: String,
    pub path: String,
    pub content: String,
    pub body: String,
    /// A dial that must succeed before the request is sent.
    pub dial: Option<Dial>,
}

/// gRPC calls over a connection that is opened for them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Dial {
    pub address: Address,
    pub path: String,
    pub messages: Vec<String>,
}

/// A line of the program's input.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Instruction {
    /// Connects to all servers and watches `path` on the server `watched`. Also reads
    /// the events of a watch path `idly` on all of them, if set, and discards them.
    Start {
        servers: Vec<Address>,
        watched: usize,
        path: String,
        idly: Option<String>,
    },
    /// Sends all requests concurrently when the next event of the watch has been read.
    React { requests: Vec<Prepared> },
    /// Sends all requests now, at most `each` at a time per server.
    Post {
        requests: Vec<Prepared>,
        each: usize,
    },
}

/// A line of the program's output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Report {
    /// The floor has started, or its reaction waits for the event.
    Ready,
    /// Time from the event, or the instruction, to the last answer.
    Done {
        micros: u64,
        answers: usize,
        refused: usize,
    },
    Failed {
        reason: String,
    },
}

/// Client of one server.
#[derive(Debug, Clone)]
pub struct Server {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    address: Address,
    agent: String,
}

impl Server {
    pub fn new(address: Address, agent: &str) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(address.ca.as_bytes()) {
            let certificate = certificate.map_err(|error| error.to_string())?;
            roots.add(certificate).map_err(|error| error.to_string())?;
        }
        let provider = rustls::crypto::ring::default_provider();
        let tls = ClientConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots);
        let tls = match &address.caller {
            Caller::Token(_) => tls.with_no_client_auth(),
            Caller::Certificate { certificate, key } => {
                let chain = CertificateDer::pem_slice_iter(certificate.as_bytes())
                    .collect::<Result<_, _>>();
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
                    .map_err(|error| error.to_string())?;
                tls.with_client_auth_cert(chain.map_err(|error| error.to_string())?, key)
                    .map_err(|error| error.to_string())?
            }
        };
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_only()
            .enable_http2()
            .wrap_connector(connector);
        let client = Client::builder(TokioExecutor::new())
            .http2_only(true)
            .pool_idle_timeout(None)
            .build(connector);
        Ok(Self {
            client,
            address,
            agent: agent.to_owned(),
        })
    }

    pub fn prepare(
        &self,
        method: &str,
        path: &str,
        content: &str,
        body: String,
    ) -> Result<Request<Full<Bytes>>> {
        let method = Method::from_bytes(method.as_bytes()).map_err(|error| error.to_string())?;
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.address.url));
        if let Caller::Token(token) = &self.address.caller {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        request
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, content)
            .header(USER_AGENT, &self.agent)
            .body(Full::from(body))
            .map_err(|error| error.to_string())
    }

    /// Returns the status code and the whole answer.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Result<(u16, Bytes)> {
        let answer = self.client.request(request).await.map_err(causes)?;
        let code = answer.status().as_u16();
        Ok((
            code,
            answer
                .into_body()
                .collect()
                .await
                .map_err(causes)?
                .to_bytes(),
        ))
    }

    /// Starts a watch, which is read line by line.
    pub async fn watch(&self, path: &str) -> Result<Lines> {
        let request = self.prepare("GET", path, "application/json", String::new())?;
        let answer = self.client.request(request).await.map_err(causes)?;
        if !answer.status().is_success() {
            return Err(format!("{path} answered {}", answer.status()));
        }
        Ok(Lines {
            body: answer.into_body(),
            pending: Vec::new(),
        })
    }
}

#[derive(Debug)]
pub struct Lines {
    body: Incoming,
    pending: Vec<u8>,
}

impl Lines {
    /// Returns the next complete line. Cancel safe.
    pub async fn next(&mut self) -> Result<Vec<u8>> {
        let mut searched = 0;
        loop {
            if let Some(end) = self
                .pending
                .iter()
                .skip(searched)
                .position(|byte| *byte == b'\n')
            {
                let rest = self.pending.split_off(searched + end + 1);
                return Ok(std::mem::replace(&mut self.pending, rest));
            }
            searched = self.pending.len();
            let frame = self
                .body
                .frame()
                .await
                .ok_or("the watch ended")?
                .map_err(causes)?;
            self.pending
                .extend(frame.data_ref().map(Bytes::as_ref).unwrap_or_default());
        }
    }
}

/// Formats an error with all its sources; hyper's own text omits them.
fn causes(error: impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
