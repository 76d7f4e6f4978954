//! UDP datagrams in IPv4 packets.

use std::net::{Ipv4Addr, SocketAddrV4};

const SHORTEST_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
const UDP: u8 = 17;
const SOURCE: usize = 12;
const TARGET: usize = 16;

/// A complete UDP packet over IPv4, not fragmented.
#[derive(Debug)]
pub(in crate::net) struct Datagram {
    bytes: Vec<u8>,
    header: usize,
}

impl Datagram {
    pub(in crate::net) fn read(packet: &[u8]) -> Option<Self> {
        let first = *packet.first()?;
        let header = usize::from(first & 0x0f) * 4;
        let fragment = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]) & 0x3fff;
        let fits = header >= SHORTEST_HEADER && packet.len() >= header + UDP_HEADER;
        let plain = first >> 4 == 4 && *packet.get(9)? == UDP && fragment == 0;
        (fits && plain).then(|| Self {
            bytes: packet.to_vec(),
            header,
        })
    }

    pub(in crate::net) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(in crate::net) fn source(&self) -> SocketAddrV4 {
        self.address(SOURCE, self.header)
    }

    pub(in crate::net) fn target(&self) -> SocketAddrV4 {
        self.address(TARGET, self.header + 2)
    }

    pub(in crate::net) fn set_source(&mut self, to: SocketAddrV4) {
        self.set(SOURCE, self.header, to);
    }

    pub(in crate::net) fn set_target(&mut self, to: SocketAddrV4) {
        self.set(TARGET, self.header + 2, to);
    }

    fn address(&self, ip: usize, port: usize) -> SocketAddrV4 {
        let byte = |at: usize| self.bytes.get(at).copied().unwrap_or_default();
        let ip = Ipv4Addr::new(byte(ip), byte(ip + 1), byte(ip + 2), byte(ip + 3));
        SocketAddrV4::new(ip, u16::from_be_bytes([byte(port), byte(port + 1)]))
    }

    fn set(&mut self, ip: usize, port: usize, to: SocketAddrV4) {
        self.write(ip, &to.ip().octets());
        self.write(port, &to.port().to_be_bytes());
        // UDP over IPv4 allows packets without checksum.
        self.write(self.header + 6, &[0, 0]);
        self.write(10, &[0, 0]);
        let sum = checksum(self.bytes.get(..self.header).unwrap_or_default());
        self.write(10, &sum.to_be_bytes());
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.bytes.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }
}

/// Computes the internet checksum of a header.
pub(in crate::net) fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks(2).map(|pair| {
        u32::from(u16::from_be_bytes([
            pair.first().copied().unwrap_or(0),
            pair.get(1).copied().unwrap_or(0),
        ]))
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum ^ 0xffff).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A commonly used example of the checksum of RFC 1071.
    #[test]
    fn the_checksum_is_the_internets() {
        let header = [
            0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0,
            0xc7,
        ];
        assert_eq!(checksum(&header), 0xb861);
    }

    #[test]
    fn addresses_are_read_and_changed() {
        let mut packet = vec![
            0x45, 0, 0, 28, 0, 0, 0, 0, 64, UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        packet.extend([0x10, 0, 0x20, 0, 0, 8, 1, 2]);
        let mut datagram = Datagram::read(&packet).unwrap();
        assert_eq!(
            (datagram.source().to_string(), datagram.target().to_string()),
            ("10.0.0.1:4096".into(), "10.0.0.2:8192".into())
        );
        datagram.set_source("192.0.2.7:99".parse().unwrap());
        assert_eq!(datagram.source().to_string(), "192.0.2.7:99");
        assert_eq!(checksum(&datagram.bytes()[..20]), 0, "valid checksum");
        packet[9] = 6;
        assert!(Datagram::read(&packet).is_none(), "TCP is not supported");
    }
}
