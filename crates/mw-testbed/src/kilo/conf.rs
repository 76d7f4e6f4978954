//! Whether WireGuard has to be configured anew. Kilo's way to find out is not
//! without faults, and they are all here.

use ipnet::IpNet;

use crate::net::{PeerConfig, PeerState};

/// What differs, if anything. Sorts what is wanted on the way, which then also
/// is the order in which WireGuard is told.
pub(super) fn difference(wanted: &mut [PeerConfig], device: &[PeerState]) -> Option<&'static str> {
    if wanted.len() != device.len() {
        return Some("number of peers");
    }
    wanted.sort_by_key(|peer| peer.key.to_string());
    let mut device: Vec<&PeerState> = device.iter().collect();
    device.sort_by_key(|peer| peer.key.to_string());
    for (wanted, found) in wanted.iter().zip(device) {
        if wanted.allowed.len() != found.allowed.len() {
            return Some("allowed IP length");
        }
        if texts(wanted.allowed.iter()) != texts(found.allowed.iter()) {
            return Some("allowed IPs");
        }
        match (wanted.endpoint, found.endpoint) {
            // The rest is not looked at any more.
            (None, None) => return None,
            (None, _) | (_, None) => return Some("peer endpoints: nil value"),
            (Some(one), Some(other)) if one != other => return Some("peer endpoints"),
            _ => {}
        }
        if (wanted.keepalive, wanted.preshared, wanted.key) != (found.keepalive, found.preshared, found.key) {
            return Some("keepalive or keys");
        }
    }
    None
}

fn texts<'a>(nets: impl Iterator<Item = &'a IpNet>) -> Vec<String> {
    let mut texts: Vec<String> = nets.map(IpNet::to_string).collect();
    texts.sort();
    texts
}
