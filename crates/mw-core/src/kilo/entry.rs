//! The observed Peers of one cluster, stored compactly: a Peer that equals the
//! wanted one is a pointer to it, any other is stored with what the rules need.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use crate::cidr::Cidr;
use crate::endpoint::{Endpoint, Host};
use crate::key::PublicKey;
use crate::kilo::ownership::{Owner, Register};
use crate::kilo::peer::{Fingerprint, Labels, PeerFacts, WantedPeer};
use crate::time::Timestamp;

/// One Peer on a target.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) uid: Box<str>,
    pub(super) resource_version: Box<str>,
    pub(super) deleting: bool,
    pub(super) endpoint_written: Option<Timestamp>,
    pub(super) owner: Arc<Owner>,
    pub(super) content: Content,
}

#[derive(Debug, Clone)]
pub(super) enum Content {
    /// Equal to the wanted Peer.
    Same(WantedPeer),
    Other(Box<Found>),
}

/// A Peer that differs from the wanted one, or is not wanted.
#[derive(Debug, Clone)]
pub(super) struct Found {
    facts: PeerFacts,
    fingerprint: Fingerprint,
}

impl Entry {
    pub(super) fn new(facts: PeerFacts, register: &Register) -> Entry {
        Entry {
            uid: facts.uid.as_str().into(),
            resource_version: facts.resource_version.as_str().into(),
            deleting: facts.deleting,
            endpoint_written: facts.endpoint_written,
            owner: register.owner(&facts.labels),
            content: Content::Other(Box::new(Found {
                fingerprint: facts.fingerprint(register.hub().is_some()),
                facts,
            })),
        }
    }

    pub(super) fn labels(&self) -> &Labels {
        match &self.content {
            Content::Same(wanted) => wanted.labels(),
            Content::Other(found) => &found.facts.labels,
        }
    }

    pub(super) fn key(&self) -> Option<PublicKey> {
        match &self.content {
            Content::Same(wanted) => Some(wanted.key()),
            Content::Other(found) => PublicKey::try_from(found.facts.spec.public_key.as_str()).ok(),
        }
    }

    pub(super) fn prefixes(&self) -> Vec<Cidr> {
        match &self.content {
            Content::Same(wanted) => wanted.allowed_ips().to_vec(),
            Content::Other(found) => found
                .facts
                .spec
                .allowed_ips
                .iter()
                .filter_map(|text| Cidr::try_from(text.as_str()).ok())
                .collect(),
        }
    }

    pub(super) fn carries_one_of(&self, networks: &BTreeSet<Cidr>) -> bool {
        match &self.content {
            Content::Same(wanted) => wanted
                .allowed_ips()
                .iter()
                .any(|cidr| networks.contains(cidr)),
            Content::Other(_) => self.prefixes().iter().any(|cidr| networks.contains(cidr)),
        }
    }

    pub(super) fn has_endpoint(&self) -> bool {
        match &self.content {
            Content::Same(wanted) => wanted.endpoint().is_some(),
            Content::Other(found) => found.facts.spec.endpoint.is_some(),
        }
    }

    /// The endpoint, if it is one that we could have written.
    pub(super) fn endpoint(&self) -> Option<Endpoint> {
        match &self.content {
            Content::Same(wanted) => wanted.endpoint().cloned(),
            Content::Other(found) => {
                let endpoint = found.facts.spec.endpoint.as_ref()?;
                match endpoint.dns.as_deref() {
                    Some(name) if !name.is_empty() => {
                        Endpoint::try_from(format!("{name}:{}", endpoint.port).as_str()).ok()
                    }
                    _ => Endpoint::new(
                        Host::Ip(endpoint.address()?),
                        u16::try_from(endpoint.port).ok()?,
                    )
                    .ok(),
                }
            }
        }
    }

    pub(super) fn endpoint_address(&self) -> Option<IpAddr> {
        match &self.content {
            Content::Same(wanted) => wanted.endpoint().and_then(Endpoint::ip),
            Content::Other(found) => found.facts.spec.endpoint.as_ref()?.address(),
        }
    }

    pub(super) fn equals(&self, wanted: &WantedPeer) -> bool {
        match &self.content {
            Content::Same(same) => {
                same.keepalive() == wanted.keepalive() && same.fingerprint() == wanted.fingerprint()
            }
            Content::Other(found) => {
                found.facts.spec.keepalive == i64::from(wanted.keepalive())
                    && found.fingerprint == wanted.fingerprint()
            }
        }
    }

    /// Reports whether only our labels differ.
    pub(super) fn same_spec(&self, wanted: &WantedPeer) -> bool {
        let mut texts = wanted.spec();
        let mut found = match &self.content {
            Content::Same(same) => same.spec(),
            Content::Other(found) => found.facts.spec.clone(),
        };
        for spec in [&mut texts, &mut found] {
            spec.allowed_ips.sort();
            spec.allowed_ips.dedup();
        }
        texts == found
    }
}
