//! A Peer as the agent understands it.

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
    /// Not the interval, but whether discovered endpoints are believed.
    pub(super) keepalive: i64,
    /// Host bits stay.
    pub(super) allowed: Vec<IpNet>,
}

impl Peer {
    /// Nothing for a Peer that Kilo's own validation refuses. The preshared
    /// key is not validated: a bad one is as good as none.
    pub(super) fn read(object: &Value) -> Option<Self> {
        let spec = object.get("spec")?;
        let allowed: Option<Vec<IpNet>> =
            spec.get("allowedIPs")?.as_array()?.iter().map(|cidr| cidr.as_str().and_then(|cidr| cidr.parse().ok())).collect();
        let keepalive = spec.get("persistentKeepalive").and_then(Value::as_i64).unwrap_or(0);
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
            preshared: spec.get("presharedKey").and_then(Value::as_str).and_then(|key| key.parse().ok()),
            endpoint,
            keepalive,
            allowed: allowed?,
        })
    }

    /// One without a prefix is known but not used.
    pub(super) fn is_ready(&self) -> bool {
        !self.allowed.is_empty()
    }
}

/// A name wins over an address.
fn read_endpoint(endpoint: &Value) -> Option<Endpoint> {
    let text =
        |field: &str| endpoint.get("dnsOrIP").and_then(|host| host.get(field)).and_then(Value::as_str).filter(|text| !text.is_empty());
    let port: u16 = endpoint.get("port")?.as_i64()?.try_into().ok().filter(|port| *port > 0)?;
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
