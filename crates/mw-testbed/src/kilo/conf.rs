//! Decides whether WireGuard must be reconfigured. Kilo's comparison has several bugs,
//! all of which are reproduced here.

use ipnet::IpNet;

use crate::net::{PeerConfig, PeerState};

/// Returns the difference, if any. As a side effect, sorts the wanted peers, which is
/// also the order of the configuration.
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
            // A bug of Kilo: all peers after this one are not compared.
            (None, None) => return None,
            (None, _) | (_, None) => return Some("peer endpoints: nil value"),
            (Some(one), Some(other)) if one != other => return Some("peer endpoints"),
            _ => {}
        }
        if (wanted.keepalive, wanted.preshared, wanted.key)
            != (found.keepalive, found.preshared, found.key)
        {
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
