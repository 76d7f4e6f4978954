//! Peers: as they were seen in a cluster, and as they are wanted there.
//!
//! A wanted Peer is made once per source cluster and shared by all targets;
//! what one target needs differently is a small overlay on it. A Peer that was
//! seen to equal the wanted one is kept as a pointer to that, nothing more.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::cidr::Cidr;
use crate::endpoint::{Endpoint, Host};
use crate::key::PublicKey;
use crate::names::{NodeName, PeerName};
use crate::time::Timestamp;

pub const LABEL_MESH: &str = "kilo-clustermesh.io/mesh";
pub const LABEL_SOURCE: &str = "kilo-clustermesh.io/source-cluster";
pub const LABEL_NAMESPACE: &str = "kilo-clustermesh.io/mesh-namespace";
pub const LABEL_HUB: &str = "kilo-clustermesh.io/hub";

/// The four labels by which a Peer is ours.
#[derive(Debug, Clone, PartialEq, Eq, Default, PartialOrd, Ord)]
pub struct Labels {
    pub mesh: Option<String>,
    pub source: Option<String>,
    pub namespace: Option<String>,
    pub hub: Option<String>,
}

impl Labels {
    pub fn is_empty(&self) -> bool {
        *self == Labels::default()
    }

    /// The labels as key and value.
    pub fn entries(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let Labels { mesh, source, namespace, hub } = self;
        [(LABEL_MESH, mesh), (LABEL_SOURCE, source), (LABEL_NAMESPACE, namespace), (LABEL_HUB, hub)]
            .into_iter()
            .filter_map(|(key, value)| value.as_deref().map(|value| (key, value)))
    }
}

/// A Peer as seen, with what the rules need of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerFacts {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    pub deleting: bool,
    pub labels: Labels,
    pub spec: PeerSpecFacts,
    /// When we last wrote its endpoint, where that is remembered.
    pub endpoint_written: Option<Timestamp>,
}

/// A Peer's spec in the texts that were found there. The presharedKey is not
/// ours and is never read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerSpecFacts {
    pub public_key: String,
    pub endpoint: Option<EndpointFacts>,
    pub keepalive: i64,
    pub allowed_ips: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, PartialOrd, Ord)]
pub struct EndpointFacts {
    pub dns: Option<String>,
    pub ip: Option<String>,
    pub port: i64,
}

impl EndpointFacts {
    /// The address Kilo would dial, if it is one: a DNS name wins over an IP.
    pub fn address(&self) -> Option<IpAddr> {
        match self.dns.as_deref() {
            None | Some("") => self.ip.as_deref().and_then(crate::cidr::parse_address),
            Some(_) => None,
        }
    }
}

impl From<&Endpoint> for EndpointFacts {
    fn from(endpoint: &Endpoint) -> Self {
        let port = i64::from(endpoint.port());
        match endpoint.host() {
            Host::Ip(ip) => EndpointFacts { dns: None, ip: Some(ip.to_string()), port },
            Host::Dns(name) => EndpointFacts { dns: Some(name.to_string()), ip: None, port },
        }
    }
}

/// What distinguishes two Peers, apart from the keepalive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint([u8; 16]);

fn fingerprint<'a>(labels: &Labels, key: &str, endpoint: Option<&EndpointFacts>, allowed: impl Iterator<Item = &'a str>) -> Fingerprint {
    let mut hash = Sha256::new();
    let mut field = |text: &str| {
        hash.update(text.len().to_le_bytes());
        hash.update(text.as_bytes());
    };
    for (key, value) in labels.entries() {
        field(key);
        field(value);
    }
    field("spec");
    field(key);
    if let Some(EndpointFacts { dns, ip, port }) = endpoint {
        for part in [dns, ip].into_iter().flatten().filter(|part| !part.is_empty()) {
            field(part);
        }
        field(&port.to_string());
    }
    field("allowed");
    let mut set: Vec<&str> = allowed.collect();
    set.sort_unstable();
    set.dedup();
    set.into_iter().for_each(&mut field);
    let digest = hash.finalize();
    let mut short = [0; 16];
    short.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
    Fingerprint(short)
}

impl PeerFacts {
    /// `with_hub` is false where the hub's UID is unknown and its label is not compared.
    pub(super) fn fingerprint(&self, with_hub: bool) -> Fingerprint {
        let labels = Labels { hub: self.labels.hub.clone().filter(|_| with_hub), ..self.labels.clone() };
        let spec = &self.spec;
        fingerprint(&labels, &spec.public_key, spec.endpoint.as_ref(), spec.allowed_ips.iter().map(String::as_str))
    }
}

/// A Peer that a source wants on all its targets, made once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BasePeer {
    pub name: PeerName,
    pub node: NodeName,
    pub labels: Arc<Labels>,
    pub key: PublicKey,
    /// The configured endpoint.
    pub endpoint: Option<Endpoint>,
    /// What is written unless a target needs it otherwise.
    pub allowed_ips: Vec<Cidr>,
    /// With those prefixes that contain a configured endpoint of the same
    /// source, where there are such.
    pub(super) all_ips: Option<Vec<Cidr>>,
    pub(super) fingerprint: Fingerprint,
}

/// The parts of a `BasePeer` that decide whether it is still the same.
#[derive(Debug)]
pub(super) struct BaseParts {
    pub(super) name: PeerName,
    pub(super) node: NodeName,
    pub(super) labels: Arc<Labels>,
    pub(super) key: PublicKey,
    pub(super) endpoint: Option<Endpoint>,
    pub(super) allowed_ips: Vec<Cidr>,
    pub(super) all_ips: Option<Vec<Cidr>>,
}

impl BasePeer {
    /// The earlier Peer where nothing changed, so that all targets go on sharing it.
    pub(super) fn share(earlier: Option<&Arc<BasePeer>>, parts: BaseParts) -> Arc<BasePeer> {
        let BaseParts { name, node, labels, key, endpoint, allowed_ips, all_ips } = parts;
        if let Some(same) = earlier.filter(|old| {
            old.node == node
                && old.key == key
                && old.endpoint == endpoint
                && old.allowed_ips == allowed_ips
                && old.all_ips == all_ips
                && old.labels == labels
        }) {
            return Arc::clone(same);
        }
        let fingerprint = wanted_fingerprint(&labels, key, endpoint.as_ref(), &allowed_ips);
        Arc::new(BasePeer { name, node, labels, key, endpoint, allowed_ips, all_ips, fingerprint })
    }
}

fn wanted_fingerprint(labels: &Labels, key: PublicKey, endpoint: Option<&Endpoint>, allowed: &[Cidr]) -> Fingerprint {
    let endpoint = endpoint.map(EndpointFacts::from);
    let texts: Vec<String> = allowed.iter().map(Cidr::to_string).collect();
    fingerprint(labels, &key.to_base64(), endpoint.as_ref(), texts.iter().map(String::as_str))
}

/// A Peer as one target must hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedPeer {
    pub(super) base: Arc<BasePeer>,
    pub(super) keepalive: u16,
    pub(super) overlay: Option<Arc<Overlay>>,
}

/// What one target needs differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Overlay {
    endpoint: Option<Endpoint>,
    allowed_ips: Vec<Cidr>,
    fingerprint: Fingerprint,
}

impl WantedPeer {
    pub(super) fn plain(base: &Arc<BasePeer>, keepalive: u16) -> WantedPeer {
        WantedPeer { base: Arc::clone(base), keepalive, overlay: None }
    }

    /// Falls back to the shared form when there is no difference.
    pub(super) fn overlaid(base: &Arc<BasePeer>, keepalive: u16, endpoint: Option<Endpoint>, allowed_ips: Vec<Cidr>) -> WantedPeer {
        if endpoint == base.endpoint && allowed_ips == base.allowed_ips {
            return WantedPeer::plain(base, keepalive);
        }
        let fingerprint = wanted_fingerprint(&base.labels, base.key, endpoint.as_ref(), &allowed_ips);
        WantedPeer { base: Arc::clone(base), keepalive, overlay: Some(Arc::new(Overlay { endpoint, allowed_ips, fingerprint })) }
    }

    /// The same less some prefixes.
    pub(super) fn without(&self, prefixes: &BTreeSet<Cidr>) -> WantedPeer {
        let allowed = self.allowed_ips().iter().copied().filter(|cidr| !prefixes.contains(cidr)).collect();
        WantedPeer::overlaid(&self.base, self.keepalive, self.endpoint().cloned(), allowed)
    }

    pub fn name(&self) -> &PeerName {
        &self.base.name
    }

    pub fn node(&self) -> &NodeName {
        &self.base.node
    }

    pub fn labels(&self) -> &Labels {
        &self.base.labels
    }

    pub fn key(&self) -> PublicKey {
        self.base.key
    }

    pub fn keepalive(&self) -> u16 {
        self.keepalive
    }

    pub fn endpoint(&self) -> Option<&Endpoint> {
        self.overlay.as_ref().map_or(self.base.endpoint.as_ref(), |overlay| overlay.endpoint.as_ref())
    }

    pub fn allowed_ips(&self) -> &[Cidr] {
        self.overlay.as_ref().map_or(&self.base.allowed_ips, |overlay| &overlay.allowed_ips)
    }

    pub(super) fn fingerprint(&self) -> Fingerprint {
        self.overlay.as_ref().map_or(self.base.fingerprint, |overlay| overlay.fingerprint)
    }

    /// The spec in the texts that are written.
    pub fn spec(&self) -> PeerSpecFacts {
        PeerSpecFacts {
            public_key: self.key().to_base64(),
            endpoint: self.endpoint().map(EndpointFacts::from),
            keepalive: i64::from(self.keepalive),
            allowed_ips: self.allowed_ips().iter().map(Cidr::to_string).collect(),
        }
    }
}
