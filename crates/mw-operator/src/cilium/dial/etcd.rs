//! As much of etcd's protocol as it takes to read a key: one call of gRPC over
//! a connection that is there already, without tasks of its own, so that it
//! ends with whoever waits for it.

use bytes::Bytes;
use futures::future::join_all;
use h2::client::SendRequest;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use mw_core::cilium::world::DialFailure;
use mw_core::text::printable;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{Failed, LONGEST, Target, config_key, tls};

/// The host in it means nothing to a server: TLS has named it.
const RANGE: &str = "https://etcd/etcdserverpb.KV/Range";
const GRPC: &str = "application/grpc";
/// Of a key's value and what is around it.
const LARGEST_ANSWER: usize = 256 << 10;
const LARGEST_HEADERS: u32 = 16 << 10;
const INVALID_ARGUMENT: u32 = 3;
const PERMISSION_DENIED: u32 = 7;
const UNAUTHENTICATED: u32 = 16;

/// For the one key that it names.
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
    /// The connection ended.
    Broken(String),
    /// gRPC's code and what is said with it.
    Refused(u32, String),
    /// What answers is no etcd.
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
            Wrong::Broken(why) => tls::mistrusted(target, &format!("ends the connection ({})", printable(&why, LONGEST))),
            Wrong::Foreign(why) => {
                let why = printable(&why, LONGEST);
                Failed::new(DialFailure::Name, format!("what answers at {target} is no etcd: {why}; check what listens there"))
            }
            // Without a user of that name etcd knows no rights to refuse.
            Wrong::Refused(INVALID_ARGUMENT | PERMISSION_DENIED | UNAUTHENTICATED, why) => {
                let text = format!(
                    "the etcd at {target} does not let the client read {}: {}; check that the cluster there is named {cluster} and that \
                     it knows the client certificate's common name (ConfigMap clustermesh-remote-users where authMode is cluster)",
                    config_key(cluster),
                    printable(&why, LONGEST)
                );
                Failed::new(DialFailure::Permission, text)
            }
            Wrong::Refused(code, why) => {
                let why = printable(&why, LONGEST);
                let text = format!("the etcd at {target} answers {code}: {why}; see the log of its clustermesh-apiserver");
                Failed::new(DialFailure::Name, text)
            }
        }
    }
}

/// The values of some keys; nothing for one that is not there.
pub(super) async fn read<S, const N: usize>(stream: S, keys: [&str; N]) -> Result<[Option<Vec<u8>>; N], Wrong>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut builder = h2::client::Builder::new();
    let (sender, connection) = builder.enable_push(false).max_header_list_size(LARGEST_HEADERS).handshake::<_, Bytes>(stream).await?;
    // At once: each costs a way there and back.
    let reading = async {
        let mut values = [const { None }; N];
        let answers = join_all(keys.map(|key| get(sender.clone(), key))).await;
        for (value, answer) in values.iter_mut().zip(answers) {
            *value = answer?;
        }
        Ok(values)
    };
    // The connection lives as long as it is driven.
    tokio::select! {
        biased;
        read = reading => read,
        ended = connection => Err(ended.err().map_or_else(|| Wrong::Broken("closed".to_owned()), Wrong::from)),
    }
}

async fn get(sender: SendRequest<Bytes>, key: &str) -> Result<Option<Vec<u8>>, Wrong> {
    let request = Request::builder().method(Method::POST).uri(RANGE).header(header::CONTENT_TYPE, GRPC).header(header::TE, "trailers");
    let request = request.body(()).map_err(|wrong| Wrong::Foreign(wrong.to_string()))?;
    let (answer, mut body) = sender.ready().await?.send_request(request, false)?;
    body.send_data(framed(&RangeRequest { key: key.as_bytes().to_vec() }), true)?;
    let message = message(answer.await?).await?;
    let response = RangeResponse::decode(message.as_slice()).map_err(|wrong| Wrong::Foreign(wrong.to_string()))?;
    Ok(response.kvs.into_iter().next().map(|found| found.value))
}

/// Not compressed, and so long.
fn framed(message: &RangeRequest) -> Bytes {
    let encoded = message.encode_to_vec();
    let length = u32::try_from(encoded.len()).unwrap_or(u32::MAX);
    [[0].as_slice(), &length.to_be_bytes(), &encoded].concat().into()
}

async fn message(answer: Response<h2::RecvStream>) -> Result<Vec<u8>, Wrong> {
    let (parts, mut body) = answer.into_parts();
    let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if parts.status != StatusCode::OK || !kind.starts_with(GRPC) {
        return Err(Wrong::Foreign(format!("it answers {} {kind}", parts.status)));
    }
    let mut whole = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        body.flow_control().release_capacity(chunk.len())?;
        whole.extend_from_slice(&chunk);
        if whole.len() > LARGEST_ANSWER {
            return Err(Wrong::Foreign(format!("it answers more than {LARGEST_ANSWER} bytes")));
        }
    }
    // A refusal comes with the headers, where nothing else comes.
    accepted(&body.trailers().await?.unwrap_or(parts.headers))?;
    match whole.split_at_checked(5) {
        Some(([0, length @ ..], message)) if length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)) == message.len() => {
            Ok(message.to_vec())
        }
        _ => Err(Wrong::Foreign("it answers no message of gRPC".to_owned())),
    }
}

fn accepted(trailers: &HeaderMap) -> Result<(), Wrong> {
    let text = |name: &str| trailers.get(name).and_then(|value| value.to_str().ok());
    match text("grpc-status").and_then(|code| code.parse().ok()) {
        Some(0) => Ok(()),
        Some(code) => Err(Wrong::Refused(code, text("grpc-message").unwrap_or("no reason given").to_owned())),
        None => Err(Wrong::Foreign("it answers without a status of gRPC".to_owned())),
    }
}
