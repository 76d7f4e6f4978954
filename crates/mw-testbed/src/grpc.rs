//! gRPC calls to etcd, encoded by hand: the messages consist of length-delimited fields
//! only.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Request};

use crate::error::{Error, Result};
use crate::http::{HttpsClient, causes, in_time};

/// Size of the prefix of each message: compression flag and length.
const FRAME: usize = 5;

/// Sends a request and returns the response message. `address` is host and port,
/// `method` e.g. `KV/Range`.
pub(crate) async fn call(
    client: &HttpsClient<Full<Bytes>>,
    address: &str,
    method: &str,
    message: &[u8],
) -> Result<Bytes> {
    let path = format!("/etcdserverpb.{method}");
    let failed = |reason: String| Error::Request {
        method: "POST".into(),
        path: path.clone(),
        reason,
    };
    let length = u32::try_from(message.len()).map_err(|error| failed(error.to_string()))?;
    let framed = [[0].as_slice(), &length.to_be_bytes(), message].concat();
    let request = Request::post(format!("https://{address}{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::from(framed))
        .map_err(|error| failed(error.to_string()))?;
    let client = client.clone();
    let exchange = async move {
        let (parts, body) = client.request(request).await.map_err(causes)?.into_parts();
        let body = body.collect().await.map_err(causes)?;
        accepted(body.trailers().unwrap_or(&parts.headers))?;
        let mut answer = body.to_bytes();
        if answer.len() < FRAME {
            Err("the response is truncated".to_owned())
        } else {
            Ok(answer.split_off(FRAME))
        }
    };
    in_time(exchange).await.map_err(failed)
}

fn accepted(trailers: &HeaderMap) -> std::result::Result<(), String> {
    let text = |name: &str| {
        trailers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    };
    if text("grpc-status") == "0" {
        Ok(())
    } else {
        Err(format!(
            "code {:?}: {}",
            text("grpc-status"),
            text("grpc-message")
        ))
    }
}

/// Encodes a field that is a string, bytes or a nested message.
pub(crate) fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length > 0x7f {
        field.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    field.push(length as u8);
    field.extend_from_slice(bytes);
    field
}

/// Decodes the length-delimited fields of a message with their numbers, and skips
/// varints. `None` if the message is invalid.
pub(crate) fn fields(mut message: &[u8]) -> Option<Vec<(u64, &[u8])>> {
    let mut fields = Vec::new();
    while !message.is_empty() {
        let tag = number(&mut message)?;
        let value = number(&mut message)?;
        if tag & 7 == 2 {
            let (bytes, rest) = message.split_at_checked(usize::try_from(value).ok()?)?;
            fields.push((tag >> 3, bytes));
            message = rest;
        }
    }
    Some(fields)
}

fn number(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = message.split_first()?;
        *message = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_they_were_written_and_numbers_passed_over() {
        let long = [b'k'; 300];
        let message = [
            field(1, b"name").as_slice(),
            &[2 << 3, 0x80, 0x01],
            &field(5, &long),
        ]
        .concat();
        assert_eq!(
            fields(&message),
            Some(vec![(1, &b"name"[..]), (5, &long[..])])
        );
        assert_eq!(fields(&message[..message.len() - 1]), None);
        assert_eq!(fields(&[]), Some(vec![]));
    }
}
