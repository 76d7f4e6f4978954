//! The endpoint of a WireGuard peer: an address or a DNS name, and a port.

use std::fmt;
use std::net::IpAddr;

use crate::cidr::{canonical, unusable_as_endpoint};

/// The host of an [`Endpoint`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    /// An address that can be a tunnel endpoint.
    Ip(IpAddr),
    /// A DNS name, which Kilo resolves.
    Dns(Box<str>),
}

/// Host and port at which a WireGuard peer is dialled. The port is never 0, and
/// the address is never loopback, link-local, multicast or unspecified.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    host: Host,
    port: u16,
}

/// The reason why text or a host and port are not an [`Endpoint`]. Displays as
/// the end of a sentence: "… is not host:port".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEndpoint {
    /// More characters than a DNS name and a port can have.
    #[error("is longer than any host name and port")]
    TooLong,
    /// No port, or an IPv6 address without brackets.
    #[error("is not host:port (an IPv6 address needs brackets)")]
    NotHostPort,
    /// A port that is 0 or does not parse.
    #[error("has a port that is not a number from 1 to 65535")]
    Port,
    /// Neither an address nor a DNS name.
    #[error("has a host that is neither an IP address nor a DNS name")]
    Host,
    /// An address that no other cluster can dial; the text says which kind.
    #[error("has {0} as its host")]
    Unusable(&'static str),
}

/// A DNS name of 253 characters, brackets, a colon and five digits.
const LONGEST_TEXT: usize = 261;

impl Endpoint {
    /// Builds an endpoint. Fails for port 0 and for addresses that can't be
    /// dialled from another cluster.
    pub fn new(host: Host, port: u16) -> Result<Self, InvalidEndpoint> {
        if port == 0 {
            return Err(InvalidEndpoint::Port);
        }
        if let Host::Ip(ip) = host
            && let Some(why) = unusable_as_endpoint(ip)
        {
            return Err(InvalidEndpoint::Unusable(why));
        }
        Ok(Endpoint { host, port })
    }

    /// The host to dial.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The UDP port; never 0.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The host's address; `None` if it is a DNS name.
    pub fn ip(&self) -> Option<IpAddr> {
        match self.host {
            Host::Ip(ip) => Some(ip),
            Host::Dns(_) => None,
        }
    }
}

impl TryFrom<&str> for Endpoint {
    type Error = InvalidEndpoint;

    fn try_from(text: &str) -> Result<Self, InvalidEndpoint> {
        let (host, port) = split_host_port(text)?;
        Endpoint::new(host, port)
    }
}

/// Parses the syntax only, without checking the address.
pub(crate) fn split_host_port(text: &str) -> Result<(Host, u16), InvalidEndpoint> {
    if text.len() > LONGEST_TEXT {
        return Err(InvalidEndpoint::TooLong);
    }
    let (host, port) = text.rsplit_once(':').ok_or(InvalidEndpoint::NotHostPort)?;
    let port = parse_port(port).ok_or(InvalidEndpoint::Port)?;
    let bracketed = host
        .strip_prefix('[')
        .and_then(|inner| inner.strip_suffix(']'));
    let inner = bracketed.unwrap_or(host);
    let host = match inner.parse::<IpAddr>() {
        Ok(IpAddr::V6(_)) if bracketed.is_none() => return Err(InvalidEndpoint::NotHostPort),
        Ok(ip) => Host::Ip(canonical(ip)),
        Err(_) => Host::Dns(dns_name(inner).ok_or(InvalidEndpoint::Host)?),
    };
    Ok((host, port))
}

/// Parses decimal digits without a sign or a leading zero.
fn parse_port(text: &str) -> Option<u16> {
    if text.starts_with('0') || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// Parses an RFC 1123 subdomain in lower case. One of digits and dots only is a
/// mistyped address, not a name.
fn dns_name(text: &str) -> Option<Box<str>> {
    let name = text.to_ascii_lowercase();
    let inside = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let label = |l: &str| {
        !l.is_empty()
            && l.len() <= 63
            && l.bytes().all(inside)
            && !l.starts_with('-')
            && !l.ends_with('-')
    };
    let numeric = name.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    (name.len() <= 253 && !numeric && name.split('.').all(label)).then(|| name.into())
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]:{}", self.port),
            Host::Ip(IpAddr::V4(ip)) => write!(f, "{ip}:{}", self.port),
            Host::Dns(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_are_read() {
        for (text, shown) in [
            ("198.51.100.1:51820", "198.51.100.1:51820"),
            ("[2001:db8::1]:1", "[2001:db8::1]:1"),
            ("[::ffff:198.51.100.1]:1", "198.51.100.1:1"),
            ("VPN.Example.com:65535", "vpn.example.com:65535"),
            ("[198.51.100.1]:1", "198.51.100.1:1"),
            ("[vpn.example.com]:51820", "vpn.example.com:51820"),
        ] {
            assert_eq!(Endpoint::try_from(text).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn an_endpoint_that_kilo_could_not_dial_is_refused() {
        for bad in [
            "",
            ":",
            "198.51.100.1",
            "198.51.100.1:",
            "198.51.100.1:0",
            "198.51.100.1:65536",
            "198.51.100.1:+1",
            "198.51.100.1:051820",
            " 198.51.100.1:1",
            "198.51.100.1:1 ",
            "2001:db8::1:51820",
            "[fe80::1%eth0]:1",
            "0.0.0.0:1",
            "127.0.0.1:1",
            "169.254.1.1:1",
            "224.0.0.1:1",
            "[::1]:1",
            "[::]:1",
            "[fe80::1]:1",
            "[ff02::1]:1",
            "a_b:1",
            "-a.b:1",
            "a..b:1",
            "256.1.1.1:1",
            "[::ffff:127.0.0.1]:1",
            "a.b.:1",
        ] {
            assert!(Endpoint::try_from(bad).is_err(), "{bad}");
        }
        assert_eq!(
            Endpoint::try_from(&*"a".repeat(1 << 18)),
            Err(InvalidEndpoint::TooLong)
        );
    }
}
