//! Endpoints of nodes and Peers, and name resolution.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

/// A resolver with names set by a test.
#[derive(Debug, Clone, Default)]
pub struct Names {
    known: Arc<Mutex<BTreeMap<String, IpAddr>>>,
}

impl Names {
    pub fn set(&self, name: &str, address: IpAddr) {
        self.known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name.to_owned(), address);
    }

    fn resolve(&self, name: &str) -> Option<IpAddr> {
        self.known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .copied()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Address(IpAddr),
    Name(String),
}

/// Endpoints with the same name are equal, regardless of the resolved address.
#[derive(Debug, Clone)]
pub(super) struct Endpoint {
    place: Place,
    port: u16,
    resolved: Option<IpAddr>,
}

impl PartialEq for Endpoint {
    fn eq(&self, other: &Self) -> bool {
        (&self.place, self.port) == (&other.place, other.port)
    }
}

impl Endpoint {
    pub(super) fn of_address(address: IpAddr, port: u16) -> Self {
        Self {
            place: Place::Address(address),
            port,
            resolved: Some(address),
        }
    }

    pub(super) fn of_name(name: &str, port: u16) -> Self {
        Self {
            place: Place::Name(name.to_owned()),
            port,
            resolved: None,
        }
    }

    /// Parses `host:port`; `None` if it is invalid.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port > 0)?;
        if let Some(inner) = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
        {
            return inner
                .parse::<Ipv6Addr>()
                .ok()
                .map(|address| Self::of_address(address.into(), port));
        }
        match host.parse::<std::net::Ipv4Addr>() {
            Ok(address) => Some(Self::of_address(address.into(), port)),
            Err(_) => is_subdomain(host).then(|| Self::of_name(host, port)),
        }
    }

    /// Resolves the name once, for the lifetime of this value.
    pub(super) fn resolve(&mut self, names: &Names) -> Result<(), String> {
        if let (Place::Name(name), None) = (&self.place, self.resolved) {
            self.resolved = Some(
                names
                    .resolve(name)
                    .ok_or_else(|| format!("no such host {name}"))?,
            );
        }
        Ok(())
    }

    pub(super) fn ip(&self) -> Option<IpAddr> {
        self.resolved
    }

    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.resolved.map(|ip| SocketAddr::new(ip, self.port))
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.place {
            Place::Address(address) => SocketAddr::new(*address, self.port).fmt(f),
            Place::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

/// Validates a subdomain (RFC 1123) like Kubernetes.
pub(super) fn is_subdomain(name: &str) -> bool {
    let label = |label: &str| {
        let inner = label
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        inner && !label.is_empty() && !label.starts_with('-') && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

/// Reports whether an address is in none of the private networks.
pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_private(),
        IpAddr::V6(address) => !address.octets().starts_with(&[0xfd, 0]),
    }
}
