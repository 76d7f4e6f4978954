//! Raw content of a workspace in its shard's etcd, through etcd's JSON gateway.

use std::collections::BTreeSet;
use std::path::Path;

use base64ct::{Base64, Encoding};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::UnixStream;

use super::model::{array, string};
use crate::error::{Error, Result};
use crate::http::causes;

/// Key and value, both in base64.
pub(super) type Entry = (String, String);

/// Returns all entries with this prefix.
pub(super) async fn read(etcd: &Path, prefix: &str) -> Result<Vec<Entry>> {
    let answered = call(etcd, "range", &range(prefix)).await?;
    let entry = |one: &Value| {
        (
            string(one, "/key").to_owned(),
            string(one, "/value").to_owned(),
        )
    };
    Ok(array(&answered, "/kvs").iter().map(entry).collect())
}

pub(super) async fn write(etcd: &Path, entries: &[Entry]) -> Result<()> {
    for (key, value) in entries {
        call(etcd, "put", &json!({ "key": key, "value": value })).await?;
    }
    Ok(())
}

/// Returns the prefixes of stored resources: one per group, or per kind of the core
/// group.
pub(super) fn families(entries: &[Entry], prefix: &str) -> BTreeSet<String> {
    let family = |(key, _): &Entry| {
        let key = String::from_utf8(Base64::decode_vec(key).ok()?).ok()?;
        let (family, _) = key.strip_prefix(prefix)?.split_once('/')?;
        Some(format!("{prefix}{family}/"))
    };
    entries.iter().filter_map(family).collect()
}

/// Returns the paths of the custom resources among stored objects, which are stored as JSON.
pub(super) fn custom_resources(entries: &[Entry], prefix: &str) -> BTreeSet<String> {
    let path = |(key, value): &Entry| {
        let key = String::from_utf8(Base64::decode_vec(key).ok()?).ok()?;
        let object: Value = serde_json::from_slice(&Base64::decode_vec(value).ok()?).ok()?;
        let mut parts = key.strip_prefix(prefix)?.split('/');
        let (version, group, plural) =
            (string(&object, "/apiVersion"), parts.next()?, parts.next()?);
        // The server keeps some objects of Kubernetes itself.
        let is_custom = version.starts_with(&format!("{group}/")) && !group.ends_with(".k8s.io");
        is_custom.then(|| format!("/apis/{version}/{plural}"))
    };
    entries.iter().filter_map(path).collect()
}

pub(super) async fn delete(etcd: &Path, prefix: &str) -> Result<()> {
    call(etcd, "deleterange", &range(prefix)).await.map(drop)
}

fn range(prefix: &str) -> Value {
    let mut end = prefix.as_bytes().to_vec();
    // The first key after all keys with this prefix.
    end.last_mut().into_iter().for_each(|last| *last += 1);
    json!({ "key": Base64::encode_string(prefix.as_bytes()), "range_end": Base64::encode_string(&end) })
}

async fn call(etcd: &Path, method: &str, message: &Value) -> Result<Value> {
    let path = format!("/v3/kv/{method}");
    let failed = |reason: String| Error::Request {
        method: "POST".into(),
        path: path.clone(),
        reason,
    };
    let stream = UnixStream::connect(etcd)
        .await
        .map_err(|error| failed(error.to_string()))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| failed(causes(error)))?;
    let connection = tokio::spawn(connection);
    let request = Request::post(&path)
        .header("host", "etcd")
        .body(Full::new(Bytes::from(message.to_string())));
    let response = sender
        .send_request(request.map_err(|error| failed(error.to_string()))?)
        .await
        .map_err(|error| failed(causes(error)))?;
    let status = response.status();
    let bytes = response
        .into_body()
        .collect()
        .await
        .map_err(|error| failed(causes(error)))?
        .to_bytes();
    connection.abort();
    match status.is_success() {
        true => serde_json::from_slice(&bytes).map_err(|error| failed(error.to_string())),
        false => Err(failed(format!(
            "{status}: {}",
            String::from_utf8_lossy(&bytes)
        ))),
    }
}
