//! Status of remote clusters as reported by kvstoremesh.

use std::net::SocketAddrV4;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::error::{Error, Result};
use crate::http::{causes, in_time};

const PATH: &str = "/v1/cluster";

/// Status of a remote cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    pub name: String,
    /// True if connected and its configuration was read.
    pub ready: bool,
    /// True if connected, even to a cluster with a different identity.
    pub connected: bool,
    /// The cluster-id, once it was read.
    pub id: Option<u64>,
    /// Status message of kvstoremesh.
    pub status: String,
}

/// Returns all remotes, sorted by name.
pub(super) async fn remotes(address: SocketAddrV4) -> Result<Vec<Remote>> {
    let failed = |reason: String| Error::Request {
        method: "GET".into(),
        path: PATH.into(),
        reason,
    };
    let body = in_time(get(address)).await.map_err(failed)?;
    let answer: Value = serde_json::from_slice(&body).map_err(|error| failed(error.to_string()))?;
    let mut remotes: Vec<Remote> = answer.as_array().into_iter().flatten().map(read).collect();
    remotes.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(remotes)
}

async fn get(address: SocketAddrV4) -> std::result::Result<Bytes, String> {
    let stream = TcpStream::connect(address).await.map_err(causes)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(causes)?;
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(connection);
    let request = Request::get(PATH)
        .header(HOST, address.to_string())
        .body(Empty::<Bytes>::new())
        .map_err(causes)?;
    let response = sender.send_request(request).await.map_err(causes)?;
    if !response.status().is_success() {
        return Err(response.status().to_string());
    }
    Ok(response
        .into_body()
        .collect()
        .await
        .map_err(causes)?
        .to_bytes())
}

/// Parses a remote. kvstoremesh omits fields that are false or zero.
fn read(remote: &Value) -> Remote {
    let text = |pointer: &str| {
        remote
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let flag = |pointer: &str| {
        remote
            .pointer(pointer)
            .and_then(Value::as_bool)
            .unwrap_or_default()
    };
    Remote {
        name: text("/name"),
        ready: flag("/ready"),
        connected: flag("/connected"),
        id: remote.pointer("/config/cluster-id").and_then(Value::as_u64),
        status: text("/status"),
    }
}
