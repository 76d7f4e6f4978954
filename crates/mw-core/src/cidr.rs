//! Networks in canonical form.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

/// A network without host bits. IPv4 networks written in their IPv4-mapped
/// IPv6 form are IPv4 networks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr(IpNet);

/// A CIDR as written: the network, and the address before masking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrittenCidr {
    /// The network, with the host bits masked.
    pub network: Cidr,
    /// The address as written, host bits included.
    pub address: IpAddr,
}

/// Text that is not a network, or longer than any network. Displays as the end
/// of a sentence: "… is not a CIDR such as …".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("is not a CIDR such as 10.1.0.0/16 or fd00:1::/48")]
pub struct InvalidCidr;

/// Maximum length of a CIDR in any notation.
const LONGEST_TEXT: usize = 64;

impl WrittenCidr {
    /// Reports whether the text named more than the network.
    pub(crate) fn has_host_bits(&self) -> bool {
        self.address != self.network.first()
    }
}

impl TryFrom<&str> for WrittenCidr {
    type Error = InvalidCidr;

    fn try_from(text: &str) -> Result<Self, InvalidCidr> {
        if text.len() > LONGEST_TEXT {
            return Err(InvalidCidr);
        }
        // ipnet's own parser reads 010.0.0.0/8 as 10.0.0.0/8.
        let (address, length) = text.split_once('/').ok_or(InvalidCidr)?;
        let address: IpAddr = address.parse().map_err(|_| InvalidCidr)?;
        let length = parse_length(length).ok_or(InvalidCidr)?;
        let (address, length) = match (address.to_canonical(), length.checked_sub(96)) {
            (v4 @ IpAddr::V4(_), Some(mapped)) if address.is_ipv6() => (v4, mapped),
            _ => (address, length),
        };
        let net = IpNet::new(address, length).map_err(|_| InvalidCidr)?;
        Ok(WrittenCidr {
            network: Cidr(net.trunc()),
            address: net.addr(),
        })
    }
}

/// Parses decimal digits without a sign or a leading zero.
fn parse_length(text: &str) -> Option<u8> {
    let plain = text == "0" || (!text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit()));
    plain.then(|| text.parse().ok()).flatten()
}

/// IPv4 or IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4, including IPv6 addresses that map one.
    V4,
    /// IPv6, except for addresses that map an IPv4 one.
    V6,
}

impl Family {
    /// The family of an address; IPv4 if it maps one.
    pub fn of(address: IpAddr) -> Family {
        match canonical(address) {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }
}

impl Cidr {
    /// The route to one address.
    pub fn host(address: IpAddr) -> Cidr {
        Cidr(IpNet::from(canonical(address)))
    }

    /// The address, if the network is a single one.
    pub(crate) fn as_host(self) -> Option<IpAddr> {
        (Cidr::host(self.first()) == self).then(|| self.first())
    }

    /// The lowest address: the network itself.
    pub fn first(self) -> IpAddr {
        self.0.network()
    }

    /// The highest address.
    pub fn last(self) -> IpAddr {
        self.0.broadcast()
    }

    /// Reports whether an address is inside; never if it is of the other
    /// family.
    pub fn contains_address(self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }

    /// Reports whether another network is inside, or equal.
    pub fn contains(self, other: Cidr) -> bool {
        self.0.contains(&other.0)
    }

    /// Two networks overlap if and only if one contains the other.
    pub fn overlaps(self, other: Cidr) -> bool {
        self.contains(other) || other.contains(self)
    }

    /// The reason why a network must never be routed through a tunnel.
    pub(crate) fn unroutable(self) -> Option<&'static str> {
        let reserved = [
            ("127.0.0.0/8", "is in the loopback range"),
            ("::1/128", "is in the loopback range"),
            ("169.254.0.0/16", "is in the link-local range"),
            ("fe80::/10", "is in the link-local range"),
            ("224.0.0.0/4", "is in the multicast range"),
            ("ff00::/8", "is in the multicast range"),
        ];
        if self.0.prefix_len() == 0 {
            return Some("covers every address");
        }
        let hit = |text: &str| {
            text.parse::<IpNet>()
                .is_ok_and(|net| Cidr(net).overlaps(self))
        };
        reserved
            .iter()
            .find(|(net, _)| hit(net))
            .map(|(_, why)| *why)
    }
}

impl TryFrom<&str> for Cidr {
    type Error = InvalidCidr;

    fn try_from(text: &str) -> Result<Self, InvalidCidr> {
        Ok(WrittenCidr::try_from(text)?.network)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Converts an IPv4-mapped address to IPv4.
pub(crate) fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// Parses a plain address of bounded length.
pub fn parse_address(text: &str) -> Option<IpAddr> {
    if text.len() > LONGEST_TEXT {
        return None;
    }
    text.parse().ok().map(canonical)
}

/// The reason why an address can't be a tunnel endpoint.
pub(crate) fn unusable_as_endpoint(address: IpAddr) -> Option<&'static str> {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if address.is_unspecified() {
        Some("an unspecified address")
    } else if address.is_loopback() {
        Some("a loopback address")
    } else if link_local {
        Some("a link-local address")
    } else if address.is_multicast() || address == IpAddr::V4(Ipv4Addr::BROADCAST) {
        Some("a multicast address")
    } else {
        None
    }
}

/// Reports whether an address is globally reachable according to IANA's
/// registries of special-purpose addresses.
pub(crate) fn is_globally_routable(address: IpAddr) -> bool {
    match canonical(address) {
        IpAddr::V4(v4) => !matches!(
            v4.octets(),
            [0 | 10 | 127 | 224..=255, ..]
                | [100, 64..=127, ..]
                | [169, 254, ..]
                | [172, 16..=31, ..]
                | [192, 168, ..]
                | [192, 0, 0 | 2, _]
                | [192, 88, 99, _]
                | [198, 18 | 19, ..]
                | [198, 51, 100, _]
                | [203, 0, 113, _]
        ),
        IpAddr::V6(v6) => match v6.segments() {
            [0x2001, 0..=0x1ff | 0xdb8, ..] | [0x2002, ..] | [0x3fff, 0..=0xfff, ..] => false,
            [first, ..] => first & 0xe000 == 0x2000,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_purpose_addresses_are_not_globally_routable() {
        let global = |text: &str| is_globally_routable(parse_address(text).unwrap());
        for text in [
            "1.2.3.4",
            "100.128.0.1",
            "172.32.0.1",
            "198.20.0.1",
            "2a00:1450::1",
            "2001:4860::1",
        ] {
            assert!(global(text), "{text}");
        }
        for text in [
            "10.0.0.1",
            "100.64.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.51.100.1",
            "169.254.1.1",
            "240.0.0.1",
        ] {
            assert!(!global(text), "{text}");
        }
        for text in [
            "fd00::1",
            "fe80::1",
            "::1",
            "2001:db8::1",
            "2002::1",
            "3fff::1",
            "ff02::1",
            "::ffff:10.0.0.1",
        ] {
            assert!(!global(text), "{text}");
        }
    }

    fn cidr(text: &str) -> Cidr {
        Cidr::try_from(text).unwrap()
    }

    #[test]
    fn host_bits_are_masked_and_remembered() {
        let written = WrittenCidr::try_from("10.4.0.1/16").unwrap();
        assert_eq!(written.network.to_string(), "10.4.0.0/16");
        assert!(written.has_host_bits());
        assert!(
            !WrittenCidr::try_from("10.4.0.0/16")
                .unwrap()
                .has_host_bits()
        );
    }

    #[test]
    fn an_ipv4_mapped_network_is_an_ipv4_network() {
        assert_eq!(cidr("::ffff:10.0.0.0/104").to_string(), "10.0.0.0/8");
        assert_eq!(
            Cidr::host("::ffff:10.0.0.1".parse().unwrap()).to_string(),
            "10.0.0.1/32"
        );
    }

    #[test]
    fn text_that_is_no_network_is_refused() {
        for bad in [
            "",
            "10.0.0.0",
            "10.0.0.0/33",
            "10.0.0.0/-1",
            " 10.0.0.0/8",
            "010.0.0.0/8",
            "a/8",
            "::/129",
        ] {
            assert!(Cidr::try_from(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn reserved_ranges_are_unroutable() {
        for bad in [
            "0.0.0.0/0",
            "::/0",
            "127.1.0.0/16",
            "169.254.0.0/20",
            "fe80::/64",
            "230.0.0.0/8",
            "ff02::/16",
            "126.0.0.0/7",
        ] {
            assert!(cidr(bad).unroutable().is_some(), "{bad}");
        }
        assert_eq!(cidr("10.0.0.0/8").unroutable(), None);
        assert_eq!(cidr("fd00::/8").unroutable(), None);
    }
}
