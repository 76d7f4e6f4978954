//! Policy for addresses that the process connects to on behalf of others: API
//! servers named in members' kubeconfigs, and the etcds behind the Services of
//! remotes. Naming a host must not give access to the cloud's metadata service,
//! the node or the pod itself through this process. Hosts that are configured on
//! the command line (hub, kcp, management plane) are not checked.
//!
//! A name is resolved once for each connection, all its addresses are checked,
//! and only these are connected to: a second lookup can't return another one.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use hyper_util::client::legacy::connect::dns::Name;
use mw_core::cidr::Cidr;
use tokio::net::lookup_host;
use tower::Service;

/// Metadata services outside the link-local ranges: AWS, Google Cloud, Azure,
/// Alibaba Cloud, Oracle Cloud.
const METADATA: [&str; 5] = [
    "fd00:ec2::/32",
    "fd20:ce::/64",
    "168.63.129.16/32",
    "100.100.100.200/32",
    "192.0.0.192/32",
];

/// Decides which addresses may be connected to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AddressPolicy {
    /// The networks of `--allow-address`.
    pub allowed: Vec<Cidr>,
    /// Inside a cluster, loopback is the pod itself. On a laptop with kind it is
    /// how the clusters are reached.
    pub refuses_loopback: bool,
}

/// Reason why a host must not be connected to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Forbidden {
    #[error("{address}{} is {range}; if this is intended, allow it with --allow-address {}", StandsFor(*.stands_for), Cidr::host(*.address))]
    Address {
        address: IpAddr,
        /// IPv4 address embedded in `address`.
        stands_for: Option<Ipv4Addr>,
        range: &'static str,
    },
    #[error(
        "the host is neither an IP address nor a DNS name; write addresses like 203.0.113.1 or 2001:db8::1"
    )]
    Spelling,
}

struct StandsFor(Option<Ipv4Addr>);

impl fmt::Display for StandsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .map_or(Ok(()), |inner| write!(f, " embeds {inner}, which"))
    }
}

/// Failure to resolve a name to addresses that may be connected to.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    #[error("{0}")]
    Lookup(#[from] io::Error),
    #[error("no addresses found")]
    Empty,
    /// One forbidden address refuses the whole name: mixed answers are how DNS
    /// rebinding works.
    #[error("{name} resolves to a forbidden address: {forbidden}")]
    Forbidden { name: String, forbidden: Forbidden },
}

impl AddressPolicy {
    pub fn judge(&self, address: IpAddr) -> Result<(), Forbidden> {
        let is_allowed = |address: IpAddr| {
            self.allowed
                .iter()
                .any(|network| network.contains_address(address))
        };
        let address = address.to_canonical();
        if is_allowed(address) {
            return Ok(());
        }
        if let Some(range) = self.forbidden_range(address) {
            return Err(Forbidden::Address {
                address,
                stands_for: None,
                range,
            });
        }
        let IpAddr::V6(outer) = address else {
            return Ok(());
        };
        for inner in embedded(outer)
            .into_iter()
            .filter(|inner| !is_allowed(IpAddr::V4(*inner)))
        {
            if let Some(range) = self.forbidden_range(IpAddr::V4(inner)) {
                return Err(Forbidden::Address {
                    address,
                    stands_for: Some(inner),
                    range,
                });
            }
        }
        Ok(())
    }

    /// Parses and checks a host that is an address; returns None for a name that
    /// has to be resolved. Other spellings of addresses that some resolvers
    /// accept (0177.0.0.1, 0x7f.1) are always refused.
    pub fn literal(&self, host: &str) -> Result<Option<IpAddr>, Forbidden> {
        let bracketed = host
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        let plain = bracketed.unwrap_or(host);
        match plain.parse::<IpAddr>() {
            Ok(address) => self.judge(address).map(|()| Some(address)),
            Err(_) if bracketed.is_some() || looks_numeric(plain) => Err(Forbidden::Spelling),
            Err(_) => Ok(None),
        }
    }

    fn forbidden_range(&self, address: IpAddr) -> Option<&'static str> {
        let is_this_network = matches!(address, IpAddr::V4(ip) if ip.octets().starts_with(&[0]));
        let is_link_local = match address {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        match address {
            _ if address.is_unspecified() || is_this_network => Some("an unspecified address"),
            _ if address.is_multicast() => Some("a multicast address"),
            _ if is_link_local => Some("a link-local address"),
            _ if is_metadata(address) => Some("the address of a cloud's metadata service"),
            _ if self.refuses_loopback && address.is_loopback() => Some("a loopback address"),
            IpAddr::V4(ip) if ip.is_broadcast() => Some("the broadcast address"),
            _ => None,
        }
    }

    fn judge_all(&self, name: &str, found: &[SocketAddr]) -> Result<(), ResolveError> {
        let judged = found
            .iter()
            .try_for_each(|address| self.judge(address.ip()));
        judged.map_err(|forbidden| ResolveError::Forbidden {
            name: name.to_owned(),
            forbidden,
        })
    }
}

fn is_metadata(address: IpAddr) -> bool {
    METADATA
        .iter()
        .filter_map(|text| Cidr::try_from(*text).ok())
        .any(|network| network.contains_address(address))
}

/// Reports whether inet_aton may read a host as an address: its last label is a number.
fn looks_numeric(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let last = host
        .rsplit('.')
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase();
    let hex = last
        .strip_prefix("0x")
        .filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
    hex.is_some()
        || (!last.is_empty() && last.bytes().all(|b| b.is_ascii_digit()))
        || host.starts_with("0x")
}

/// IPv4 addresses that an IPv6 address may embed. Mapped addresses were
/// converted to IPv4 before.
fn embedded(address: Ipv6Addr) -> Vec<Ipv4Addr> {
    let bytes = address.octets();
    let [_, _, b2, b3, b4, b5, .., b12, b13, b14, b15] = bytes;
    let last = Ipv4Addr::new(b12, b13, b14, b15);
    match address.segments() {
        _ if address == Ipv6Addr::LOCALHOST => Vec::new(),
        // IPv4-compatible.
        [0, 0, 0, 0, 0, 0, ..] => vec![last],
        // IPv4-translated (RFC 2765).
        [0, 0, 0, 0, 0xffff, 0, ..] => vec![last],
        // NAT64 with the well-known prefix (RFC 6052), then with the local-use prefix (RFC 8215).
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => vec![last],
        [0x64, 0xff9b, 1, ..] => [last].into_iter().chain(shorter_prefixes(bytes)).collect(),
        // 6to4.
        [0x2002, ..] => vec![Ipv4Addr::new(b2, b3, b4, b5)],
        _ => Vec::new(),
    }
}

/// Addresses embedded as in RFC 6052 if the translator's prefix is 48, 56 or 64
/// bits long. Zeros there belong to a 96-bit prefix.
fn shorter_prefixes(bytes: [u8; 16]) -> impl Iterator<Item = Ipv4Addr> {
    let [_, _, _, _, _, _, b6, b7, _, b9, b10, b11, b12, ..] = bytes;
    let found = [[b6, b7, b9, b10], [b7, b9, b10, b11], [b9, b10, b11, b12]];
    found
        .into_iter()
        .filter(|[first, ..]| *first != 0)
        .map(Ipv4Addr::from)
}

/// Resolves a name. With a policy, checks all of its addresses.
pub async fn resolve(
    name: &str,
    port: u16,
    policy: Option<&AddressPolicy>,
) -> Result<Vec<SocketAddr>, ResolveError> {
    let found: Vec<SocketAddr> = lookup_host((name, port)).await?.collect();
    if found.is_empty() {
        return Err(ResolveError::Empty);
    }
    policy.map_or(Ok(()), |policy| policy.judge_all(name, &found))?;
    Ok(found)
}

/// Resolver of HTTP connections. Not called for an address in a URL: that is
/// checked with the kubeconfig.
#[derive(Debug, Clone)]
pub struct Resolver(pub Option<AddressPolicy>);

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = ResolveError;
    type Future = BoxFuture<'static, Result<Self::Response, ResolveError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ResolveError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let policy = self.0.clone();
        // The connector sets the port.
        Box::pin(async move {
            resolve(name.as_str(), 0, policy.as_ref())
                .await
                .map(Vec::into_iter)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn inside() -> AddressPolicy {
        AddressPolicy {
            allowed: Vec::new(),
            refuses_loopback: true,
        }
    }

    fn allowing(networks: &[&str]) -> AddressPolicy {
        AddressPolicy {
            allowed: networks
                .iter()
                .map(|text| Cidr::try_from(*text).unwrap())
                .collect(),
            refuses_loopback: true,
        }
    }

    const FORBIDDEN: [&str; 36] = [
        "169.254.169.254",
        "169.254.0.1",
        "127.0.0.1",
        "127.255.255.254",
        "0.0.0.0",
        "0.1.2.3",
        "224.0.0.1",
        "239.255.255.255",
        "255.255.255.255",
        "168.63.129.16",
        "100.100.100.200",
        "192.0.0.192",
        "::",
        "::1",
        "fe80::1",
        "febf::1",
        "ff02::1",
        "fd00:ec2::254",
        "fd20:ce::254",
        "::ffff:169.254.169.254",
        "::ffff:127.0.0.1",
        "::169.254.169.254",
        "::7f00:1",
        "::ffff:0:169.254.169.254",
        "::ffff:0:7f00:1",
        "::ffff:0:0.0.0.0",
        "2002:a9fe:a9fe::1",
        "2002:7f00:1::",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b::127.0.0.1",
        "64:ff9b::",
        "64:ff9b:1::a9fe:a9fe",
        "64:ff9b:1:abcd::127.0.0.1",
        "64:ff9b:1:a9fe:a9:fe00::",
        "64:ff9b:1:a9:fe:a9fe::",
        "64:ff9b:1::a9:fea9:fe00:0",
    ];

    #[test]
    fn forbidden_addresses_are_refused_in_all_their_forms() {
        for address in FORBIDDEN {
            assert!(
                inside().judge(address.parse().unwrap()).is_err(),
                "{address}"
            );
        }
    }

    #[test]
    fn private_and_public_addresses_are_fine() {
        for address in [
            "10.0.0.5",
            "172.16.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "203.0.113.1",
            "fd00:1::1",
            "2001:db8::1",
            "::ffff:10.0.0.5",
            "::ffff:0:10.0.0.5",
            "64:ff9b::10.0.0.5",
            "64:ff9b:1::10.0.0.5",
            "64:ff9b:1:abcd::203.0.113.1",
            "2002:cb00:7101::1",
        ] {
            assert_eq!(
                inside().judge(address.parse().unwrap()),
                Ok(()),
                "{address}"
            );
        }
    }

    #[test]
    fn loopback_is_refused_inside_a_cluster_only() {
        for address in [
            "127.0.0.1",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:0:127.0.0.1",
            "64:ff9b::127.0.0.1",
        ] {
            assert!(
                inside().judge(address.parse().unwrap()).is_err(),
                "{address}"
            );
            assert_eq!(
                AddressPolicy::default().judge(address.parse().unwrap()),
                Ok(()),
                "{address}"
            );
        }
        assert!(
            AddressPolicy::default()
                .judge("169.254.169.254".parse().unwrap())
                .is_err()
        );
    }

    #[test]
    fn an_allowed_network_is_allowed_in_all_its_forms_and_nothing_else_is() {
        let policy = allowing(&["169.254.8.0/24", "fe80::/64"]);
        for address in [
            "169.254.8.1",
            "::ffff:169.254.8.1",
            "64:ff9b::169.254.8.1",
            "fe80::1",
        ] {
            assert_eq!(policy.judge(address.parse().unwrap()), Ok(()), "{address}");
        }
        for address in [
            "169.254.9.1",
            "127.0.0.1",
            "fe80:1::1",
            "64:ff9b::169.254.9.1",
        ] {
            assert!(policy.judge(address.parse().unwrap()).is_err(), "{address}");
        }
        assert_eq!(
            allowing(&["64:ff9b::/96"]).judge("64:ff9b::a9fe:a9fe".parse().unwrap()),
            Ok(())
        );
    }

    #[test]
    fn a_refusal_names_the_address_the_range_and_the_flag() {
        let said = |address: &str| {
            inside()
                .judge(address.parse().unwrap())
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            said("::ffff:169.254.169.254"),
            "169.254.169.254 is a link-local address; if this is intended, allow it with --allow-address 169.254.169.254/32"
        );
        assert_eq!(
            said("64:ff9b::a9fe:a9fe"),
            "64:ff9b::a9fe:a9fe embeds 169.254.169.254, which is a link-local address; \
             if this is intended, allow it with --allow-address 64:ff9b::a9fe:a9fe/128"
        );
    }

    #[test]
    fn odd_spellings_of_addresses_are_refused_and_names_are_not() {
        for host in [
            "2852039166",
            "0xa9fea9fe",
            "0XA9FEA9FE",
            "169.254.43518",
            "169.254.0xa9fe",
            "0177.0.0.1",
            "0x7f.1",
            "127.1",
            "127.0.0.1.",
            "203.0.113.1.",
            "example.1",
            "[localhost]",
            "[fe80::1%eth0]",
            "[127.0.0.1",
        ] {
            // An opening bracket alone is a name that nothing resolves.
            let refused = inside().literal(host) == Err(Forbidden::Spelling);
            assert!(refused || host == "[127.0.0.1", "{host}");
        }
        for host in [
            "localhost",
            "localhost.",
            "api.example.org",
            "api.example.org.",
            "a.0b",
            "10-0-0-1.example",
            "xn--0x",
        ] {
            assert_eq!(inside().literal(host), Ok(None), "{host}");
        }
        for host in ["[64:ff9b::a9fe:a9fe]", "[::1]", "::1", "127.0.0.1"] {
            assert!(
                matches!(inside().literal(host), Err(Forbidden::Address { .. })),
                "{host}"
            );
        }
        assert_eq!(
            inside().literal("[2001:db8::1]"),
            Ok(Some("2001:db8::1".parse().unwrap()))
        );
    }

    #[test]
    fn one_forbidden_address_refuses_the_name() {
        let found = |texts: &[&str]| -> Vec<SocketAddr> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        assert!(
            inside()
                .judge_all("a", &found(&["203.0.113.1:1", "10.0.0.1:1"]))
                .is_ok()
        );
        for mixed in [
            ["203.0.113.1:1", "169.254.169.254:1"],
            ["[::1]:1", "203.0.113.1:1"],
        ] {
            assert!(matches!(
                inside().judge_all("a", &found(&mixed)),
                Err(ResolveError::Forbidden { .. })
            ));
        }
    }

    #[tokio::test]
    async fn a_name_that_resolves_to_loopback_is_refused_inside_a_cluster() {
        for name in ["localhost", "0177.0.0.1", "169.254.0xa9fe", "2852039166"] {
            let found = resolve(name, 443, Some(&inside())).await;
            assert!(
                matches!(found, Err(ResolveError::Forbidden { .. })),
                "{name}: {found:?}"
            );
        }
        assert!(
            resolve("localhost", 443, Some(&AddressPolicy::default()))
                .await
                .is_ok()
        );
        assert!(resolve("localhost", 443, None).await.is_ok());
    }

    proptest! {
        /// A forbidden IPv4 address is forbidden in every IPv6 form too.
        #[test]
        fn an_address_is_as_forbidden_as_what_it_carries(bits in any::<u32>()) {
            let inner = Ipv4Addr::from(bits);
            let [a, b, c, d] = inner.octets().map(u16::from);
            let (high, low) = (a << 8 | b, c << 8 | d);
            let verdict = inside().judge(IpAddr::V4(inner)).is_err();
            for outer in [
                inner.to_ipv6_mapped(),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
            ] {
                prop_assert_eq!(inside().judge(IpAddr::V6(outer)).is_err(), verdict, "{}", outer);
            }
            prop_assert!(!verdict || inside().judge(IpAddr::V6(Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, high, low))).is_err());
        }

        #[test]
        fn any_host_gets_an_answer(host in "\\PC{0,40}") {
            _ = inside().literal(&host);
        }
    }
}
