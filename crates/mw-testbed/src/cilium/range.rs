//! Reads keys of a mesh's etcd.

use std::net::SocketAddrV4;

use bytes::Bytes;
use http_body_util::Full;
use rustls::pki_types::ServerName;

use super::certificates::Files;
use crate::error::{Error, Result};
use crate::grpc::{call, field, fields};
use crate::http::{HttpsClient, http2_client_for};
use crate::pki::client_config;

pub(super) type Pair = (String, Vec<u8>);

/// A client with a certificate.
#[derive(Debug)]
pub(super) struct Reader {
    client: HttpsClient<Full<Bytes>>,
    address: SocketAddrV4,
}

impl Reader {
    /// Creates a client. The server's certificate must be valid for the name,
    /// regardless of the address.
    pub(super) fn new(address: SocketAddrV4, server_name: &str, files: &Files) -> Result<Self> {
        let name = ServerName::try_from(server_name.to_owned())
            .map_err(|error| Error::Certificate(error.to_string()))?;
        let client = http2_client_for(
            name,
            client_config(&files.ca, &files.certificate, &files.key)?,
        );
        Ok(Self { client, address })
    }

    pub(super) async fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        Ok(self
            .range(field(1, key.as_bytes()))
            .await?
            .into_iter()
            .next()
            .map(|(_, value)| value))
    }

    /// Returns all keys with this prefix.
    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<Pair>> {
        let mut end = prefix.as_bytes().to_vec();
        // The first key after all keys with this prefix.
        end.last_mut().into_iter().for_each(|last| *last += 1);
        self.range([field(1, prefix.as_bytes()), field(2, &end)].concat())
            .await
    }

    async fn range(&self, message: Vec<u8>) -> Result<Vec<Pair>> {
        let answer = call(
            &self.client,
            &self.address.to_string(),
            "KV/Range",
            &message,
        )
        .await?;
        pairs(&answer).ok_or_else(|| Error::Object("cannot decode the response of etcd".into()))
    }
}

fn pairs(answer: &[u8]) -> Option<Vec<Pair>> {
    fields(answer)?
        .into_iter()
        .filter(|(number, _)| *number == 2)
        .map(|(_, pair)| read_pair(pair))
        .collect()
}

fn read_pair(message: &[u8]) -> Option<Pair> {
    let fields = fields(message)?;
    let of = |wanted: u64| {
        fields
            .iter()
            .find(|(number, _)| *number == wanted)
            .map(|(_, bytes)| bytes.to_vec())
            .unwrap_or_default()
    };
    Some((String::from_utf8(of(1)).ok()?, of(5)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_gives_its_pairs() {
        let pair = [field(1, b"name"), vec![2 << 3, 7], field(5, b"value")].concat();
        let answer = [field(1, &[1 << 3, 7]), field(2, &pair), vec![4 << 3, 1]].concat();
        assert_eq!(
            pairs(&answer),
            Some(vec![("name".to_owned(), b"value".to_vec())])
        );
        assert_eq!(pairs(&[]), Some(vec![]));
    }
}
