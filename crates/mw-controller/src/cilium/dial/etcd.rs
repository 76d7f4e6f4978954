//! A minimal etcd client that reads keys: gRPC over an existing connection. It
//! spawns no tasks, so dropping the future cancels the read.

use bytes::Bytes;
use futures::future::join_all;
use h2::client::SendRequest;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use mw_core::cilium::world::DialFailure;
use mw_core::text::printable;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{Failed, LONGEST, Target, config_key, tls};

/// The server ignores the host: TLS has already authenticated it.
const RANGE: &str = "https://etcd/etcdserverpb.KV/Range";
const GRPC: &str = "application/grpc";
/// Limit on an answer: a key's value with its framing.
const LARGEST_ANSWER: usize = 256 << 10;
const LARGEST_HEADERS: u32 = 16 << 10;
const INVALID_ARGUMENT: u32 = 3;
const PERMISSION_DENIED: u32 = 7;
const UNAUTHENTICATED: u32 = 16;

/// Requests a single key.
#[derive(Clone, PartialEq, Message)]
struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct RangeResponse {
    #[prost(message, repeated, tag = "2")]
    kvs: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(bytes = "vec", tag = "5")]
    value: Vec<u8>,
}

#[derive(Debug)]
pub(super) enum Wrong {
    /// The connection was closed.
    Broken(String),
    /// gRPC status code and message.
    Refused(u32, String),
    /// The server is not etcd.
    Foreign(String),
}

impl From<h2::Error> for Wrong {
    fn from(wrong: h2::Error) -> Self {
        match wrong.get_io() {
            Some(broken) => Wrong::Broken(broken.to_string()),
            None => Wrong::Foreign(wrong.to_string()),
        }
    }
}

impl Wrong {
    pub(super) fn failed(self, target: &Target, cluster: &str) -> Failed {
        match self {
            Wrong::Broken(why) => tls::mistrusted(
                target,
                &format!("closes the connection ({})", printable(&why, LONGEST)),
            ),
            Wrong::Foreign(why) => {
                let why = printable(&why, LONGEST);
                Failed::new(
                    DialFailure::Name,
                    format!("{target} is not an etcd server: {why}; check what listens there"),
                )
            }
            // etcd answers INVALID_ARGUMENT if it has no user of that name.
            Wrong::Refused(INVALID_ARGUMENT | PERMISSION_DENIED | UNAUTHENTICATED, why) => {
                let text = format!(
                    "etcd at {target} denies the client access to {}: {}; check that the cluster there is named {cluster} and that it \
                     accepts the client certificate's common name (with authMode cluster: ConfigMap clustermesh-remote-users)",
                    config_key(cluster),
                    printable(&why, LONGEST)
                );
                Failed::new(DialFailure::Permission, text)
            }
            Wrong::Refused(code, why) => {
                let why = printable(&why, LONGEST);
                let text = format!(
                    "etcd at {target} returns gRPC status {code}: {why}; check the logs of clustermesh-apiserver there"
                );
                Failed::new(DialFailure::Name, text)
            }
        }
    }
}

/// Reads the values of some keys; None for a key that does not exist.
pub(super) async fn read<S, const N: usize>(
    stream: S,
    keys: [&str; N],
) -> Result<[Option<Vec<u8>>; N], Wrong>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut builder = h2::client::Builder::new();
    let (sender, connection) = builder
        .enable_push(false)
        .max_header_list_size(LARGEST_HEADERS)
        .handshake::<_, Bytes>(stream)
        .await?;
    // Concurrently: each read costs a round trip.
    let reading = async {
        let mut values = [const { None }; N];
        let answers = join_all(keys.map(|key| get(sender.clone(), key))).await;
        for (value, answer) in values.iter_mut().zip(answers) {
            *value = answer?;
        }
        Ok(values)
    };
    // The connection makes progress only while it is polled.
    tokio::select! {
        biased;
        read = reading => read,
        ended = connection => Err(ended.err().map_or_else(|| Wrong::Broken("closed".to_owned()), Wrong::from)),
    }
}

async fn get(sender: SendRequest<Bytes>, key: &str) -> Result<Option<Vec<u8>>, Wrong> {
    let request = Request::builder()
        .method(Method::POST)
        .uri(RANGE)
        .header(header::CONTENT_TYPE, GRPC)
        .header(header::TE, "trailers");
    let request = request
        .body(())
        .map_err(|wrong| Wrong::Foreign(wrong.to_string()))?;
    let (answer, mut body) = sender.ready().await?.send_request(request, false)?;
    body.send_data(
        framed(&RangeRequest {
            key: key.as_bytes().to_vec(),
        }),
        true,
    )?;
    let message = message(answer.await?).await?;
    let response = RangeResponse::decode(message.as_slice())
        .map_err(|wrong| Wrong::Foreign(wrong.to_string()))?;
    Ok(response.kvs.into_iter().next().map(|found| found.value))
}

/// Frames a message for gRPC: uncompressed, with its length.
fn framed(message: &RangeRequest) -> Bytes {
    let encoded = message.encode_to_vec();
    let length = u32::try_from(encoded.len()).unwrap_or(u32::MAX);
    [[0].as_slice(), &length.to_be_bytes(), &encoded]
        .concat()
        .into()
}

async fn message(answer: Response<h2::RecvStream>) -> Result<Vec<u8>, Wrong> {
    let (parts, mut body) = answer.into_parts();
    let kind = parts
        .headers
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .unwrap_or_default();
    if parts.status != StatusCode::OK || !kind.starts_with(GRPC) {
        return Err(Wrong::Foreign(format!(
            "HTTP status {}, content type {kind:?}",
            parts.status
        )));
    }
    let mut whole = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        body.flow_control().release_capacity(chunk.len())?;
        whole.extend_from_slice(&chunk);
        if whole.len() > LARGEST_ANSWER {
            return Err(Wrong::Foreign(format!(
                "answer larger than {LARGEST_ANSWER} bytes"
            )));
        }
    }
    // An error without a body carries its status in the headers.
    accepted(&body.trailers().await?.unwrap_or(parts.headers))?;
    match whole.split_at_checked(5) {
        Some(([0, length @ ..], message))
            if length
                .iter()
                .fold(0, |sum, byte| sum << 8 | usize::from(*byte))
                == message.len() =>
        {
            Ok(message.to_vec())
        }
        _ => Err(Wrong::Foreign("invalid gRPC message".to_owned())),
    }
}

fn accepted(trailers: &HeaderMap) -> Result<(), Wrong> {
    let text = |name: &str| trailers.get(name).and_then(|value| value.to_str().ok());
    match text("grpc-status").and_then(|code| code.parse().ok()) {
        Some(0) => Ok(()),
        Some(code) => Err(Wrong::Refused(
            code,
            text("grpc-message").unwrap_or("no reason given").to_owned(),
        )),
        None => Err(Wrong::Foreign("no grpc-status in the answer".to_owned())),
    }
}
