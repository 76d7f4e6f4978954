//! A Peer as parsed by the agent.

use ipnet::IpNet;
use serde_json::Value;

use super::endpoint::{Endpoint, is_subdomain};
use crate::net::Key;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Peer {
    pub(super) name: String,
    pub(super) key: Key,
    pub(super) preshared: Option<Key>,
    pub(super) endpoint: Option<Endpoint>,
    /// Discovered endpoints are used if this is above 0. Not used as an interval.
    pub(super) keepalive: i64,
    /// Allowed IPs. Host bits are not masked.
    pub(super) allowed: Vec<IpNet>,
}

impl Peer {
    /// Parses a Peer; `None` if Kilo's validation rejects it. The preshared key is not
    /// validated: an invalid one is ignored.
    pub(super) fn read(object: &Value) -> Option<Self> {
        let spec = object.get("spec")?;
        let allowed: Option<Vec<IpNet>> = spec
            .get("allowedIPs")?
            .as_array()?
            .iter()
            .map(|cidr| cidr.as_str().and_then(|cidr| cidr.parse().ok()))
            .collect();
        let keepalive = spec
            .get("persistentKeepalive")
            .and_then(Value::as_i64)
            .unwrap_or(0);
        let endpoint = match spec.get("endpoint") {
            None | Some(Value::Null) => None,
            Some(endpoint) => Some(read_endpoint(endpoint)?),
        };
        if keepalive < 0 {
            return None;
        }
        Some(Self {
            name: object.pointer("/metadata/name")?.as_str()?.to_owned(),
            key: spec.get("publicKey")?.as_str()?.parse().ok()?,
            preshared: spec
                .get("presharedKey")
                .and_then(Value::as_str)
                .and_then(|key| key.parse().ok()),
            endpoint,
            keepalive,
            allowed: allowed?,
        })
    }

    /// Reports whether the Peer has a prefix. Others are known but not used.
    pub(super) fn is_ready(&self) -> bool {
        !self.allowed.is_empty()
    }
}

/// Reads the endpoint. A name takes precedence over an address.
fn read_endpoint(endpoint: &Value) -> Option<Endpoint> {
    let text = |field: &str| {
        endpoint
            .get("dnsOrIP")
            .and_then(|host| host.get(field))
            .and_then(Value::as_str)
            .filter(|text| !text.is_empty())
    };
    let port: u16 = endpoint
        .get("port")?
        .as_i64()?
        .try_into()
        .ok()
        .filter(|port| *port > 0)?;
    let (name, address) = (text("dns"), text("ip").map(str::parse));
    if name.is_some_and(|name| !is_subdomain(name)) || matches!(address, Some(Err(_))) {
        return None;
    }
    match (name, address) {
        (Some(name), _) => Some(Endpoint::of_name(name, port)),
        (None, Some(address)) => Some(Endpoint::of_address(address.ok()?, port)),
        (None, None) => None,
    }
}
