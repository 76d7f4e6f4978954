//! Observed Peers and wanted Peers.
//!
//! A wanted Peer is built once per source cluster and shared by all targets;
//! differences on one target are a small overlay. An observed Peer that equals
//! the wanted one is stored as a pointer to it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::cidr::Cidr;
use crate::endpoint::{Endpoint, Host};
use crate::key::PublicKey;
use crate::names::{NodeName, PeerName};
use crate::time::Timestamp;

/// Label with the name of the ClusterMesh, shortened by
/// [`label_value`](crate::names::label_value).
pub const LABEL_MESH: &str = "kilo-clustermesh.io/mesh";
/// Label with the cluster of the Peer's node, by its name in the mesh.
pub const LABEL_SOURCE: &str = "kilo-clustermesh.io/source-cluster";
/// Label with the namespace of the ClusterMesh. The Go operator does not set
/// it.
pub const LABEL_NAMESPACE: &str = "kilo-clustermesh.io/mesh-namespace";
/// Label with the UID of the hub's kube-system namespace. The Go operator does
/// not set it.
pub const LABEL_HUB: &str = "kilo-clustermesh.io/hub";

/// The four labels that mark a Peer as ours.
#[derive(Debug, Clone, PartialEq, Eq, Default, PartialOrd, Ord)]
pub struct Labels {
    /// The value of [`LABEL_MESH`].
    pub mesh: Option<String>,
    /// The value of [`LABEL_SOURCE`].
    pub source: Option<String>,
    /// The value of [`LABEL_NAMESPACE`].
    pub namespace: Option<String>,
    /// The value of [`LABEL_HUB`].
    pub hub: Option<String>,
}

impl Labels {
    /// Reports whether none of the four labels is set.
    pub fn is_empty(&self) -> bool {
        *self == Labels::default()
    }

    /// The labels as key and value.
    pub fn entries(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let Labels {
            mesh,
            source,
            namespace,
            hub,
        } = self;
        [
            (LABEL_MESH, mesh),
            (LABEL_SOURCE, source),
            (LABEL_NAMESPACE, namespace),
            (LABEL_HUB, hub),
        ]
        .into_iter()
        .filter_map(|(key, value)| value.as_deref().map(|value| (key, value)))
    }
}

/// An observed Peer, reduced to what the rules need.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerFacts {
    /// The Peer's name; Peers are cluster-scoped.
    pub name: String,
    /// The UID, a precondition of later writes.
    pub uid: String,
    /// The resourceVersion, a precondition of later writes.
    pub resource_version: String,
    /// True if it has a deletion timestamp and waits for a finalizer.
    pub deleting: bool,
    /// Our labels, as far as they are set. Others are left out.
    pub labels: Labels,
    /// The spec as found, unparsed.
    pub spec: PeerSpecFacts,
    /// The time at which we last wrote its endpoint, if known.
    pub endpoint_written: Option<Timestamp>,
}

/// A Peer's spec as found. The presharedKey is not ours and is never read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerSpecFacts {
    /// spec.publicKey, which may be invalid.
    pub public_key: String,
    /// spec.endpoint; `None` if the Peer dials in.
    pub endpoint: Option<EndpointFacts>,
    /// spec.persistentKeepalive in seconds; 0 if not set.
    pub keepalive: i64,
    /// spec.allowedIPs, in the order found; may be invalid.
    pub allowed_ips: Vec<String>,
}

/// A Peer's endpoint as found, or as written.
#[derive(Debug, Clone, PartialEq, Eq, Default, PartialOrd, Ord)]
pub struct EndpointFacts {
    /// The DNS name; takes precedence over `ip` unless empty.
    pub dns: Option<String>,
    /// The address as text.
    pub ip: Option<String>,
    /// The port, not validated if found.
    pub port: i64,
}

impl EndpointFacts {
    /// The address that Kilo dials, if it is one: a DNS name takes precedence
    /// over an IP.
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
            Host::Ip(ip) => EndpointFacts {
                dns: None,
                ip: Some(ip.to_string()),
                port,
            },
            Host::Dns(name) => EndpointFacts {
                dns: Some(name.to_string()),
                ip: None,
                port,
            },
        }
    }
}

/// Fingerprint to compare two Peers, without the keepalive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint([u8; 16]);

fn fingerprint<'a>(
    labels: &Labels,
    key: &str,
    endpoint: Option<&EndpointFacts>,
    allowed: impl Iterator<Item = &'a str>,
) -> Fingerprint {
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
        for part in [dns, ip]
            .into_iter()
            .flatten()
            .filter(|part| !part.is_empty())
        {
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
    short
        .iter_mut()
        .zip(digest)
        .for_each(|(to, from)| *to = from);
    Fingerprint(short)
}

impl PeerFacts {
    /// `with_hub` is false if the hub's UID is not known and its label is not
    /// compared.
    pub(super) fn fingerprint(&self, with_hub: bool) -> Fingerprint {
        let labels = Labels {
            hub: self.labels.hub.clone().filter(|_| with_hub),
            ..self.labels.clone()
        };
        let spec = &self.spec;
        fingerprint(
            &labels,
            &spec.public_key,
            spec.endpoint.as_ref(),
            spec.allowed_ips.iter().map(String::as_str),
        )
    }
}

/// A Peer that a source wants on all its targets, built once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BasePeer {
    /// The Peer's name.
    pub name: PeerName,
    /// The node of the source that the Peer leads to.
    pub node: NodeName,
    /// Our labels, shared by all Peers of the source.
    pub labels: Arc<Labels>,
    /// The node's public key.
    pub key: PublicKey,
    /// The configured endpoint.
    pub endpoint: Option<Endpoint>,
    /// Prefixes written unless a target overrides them.
    pub allowed_ips: Vec<Cidr>,
    /// All prefixes, including those that contain a configured endpoint of the
    /// same source; `None` if there are no such prefixes.
    pub(super) all_ips: Option<Vec<Cidr>>,
    pub(super) fingerprint: Fingerprint,
}

/// The parts of a `BasePeer` that decide whether it changed.
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
    /// Returns the earlier Peer if nothing changed, so that all targets keep
    /// sharing it.
    pub(super) fn share(earlier: Option<&Arc<BasePeer>>, parts: BaseParts) -> Arc<BasePeer> {
        let BaseParts {
            name,
            node,
            labels,
            key,
            endpoint,
            allowed_ips,
            all_ips,
        } = parts;
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
        Arc::new(BasePeer {
            name,
            node,
            labels,
            key,
            endpoint,
            allowed_ips,
            all_ips,
            fingerprint,
        })
    }
}

fn wanted_fingerprint(
    labels: &Labels,
    key: PublicKey,
    endpoint: Option<&Endpoint>,
    allowed: &[Cidr],
) -> Fingerprint {
    let endpoint = endpoint.map(EndpointFacts::from);
    let texts: Vec<String> = allowed.iter().map(Cidr::to_string).collect();
    fingerprint(
        labels,
        &key.to_base64(),
        endpoint.as_ref(),
        texts.iter().map(String::as_str),
    )
}

/// A Peer as wanted on one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedPeer {
    pub(super) base: Arc<BasePeer>,
    pub(super) keepalive: u16,
    pub(super) overlay: Option<Arc<Overlay>>,
}

/// Differences on one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Overlay {
    endpoint: Option<Endpoint>,
    allowed_ips: Vec<Cidr>,
    fingerprint: Fingerprint,
}

impl WantedPeer {
    pub(super) fn plain(base: &Arc<BasePeer>, keepalive: u16) -> WantedPeer {
        WantedPeer {
            base: Arc::clone(base),
            keepalive,
            overlay: None,
        }
    }

    /// Returns the shared form if there is no difference.
    pub(super) fn overlaid(
        base: &Arc<BasePeer>,
        keepalive: u16,
        endpoint: Option<Endpoint>,
        allowed_ips: Vec<Cidr>,
    ) -> WantedPeer {
        if endpoint == base.endpoint && allowed_ips == base.allowed_ips {
            return WantedPeer::plain(base, keepalive);
        }
        let fingerprint =
            wanted_fingerprint(&base.labels, base.key, endpoint.as_ref(), &allowed_ips);
        WantedPeer {
            base: Arc::clone(base),
            keepalive,
            overlay: Some(Arc::new(Overlay {
                endpoint,
                allowed_ips,
                fingerprint,
            })),
        }
    }

    /// A copy without some prefixes.
    pub(super) fn without(&self, prefixes: &BTreeSet<Cidr>) -> WantedPeer {
        let allowed = self
            .allowed_ips()
            .iter()
            .copied()
            .filter(|cidr| !prefixes.contains(cidr))
            .collect();
        WantedPeer::overlaid(
            &self.base,
            self.keepalive,
            self.endpoint().cloned(),
            allowed,
        )
    }

    /// The Peer's name.
    pub fn name(&self) -> &PeerName {
        &self.base.name
    }

    /// The node of the source that the Peer leads to.
    pub fn node(&self) -> &NodeName {
        &self.base.node
    }

    /// Our labels on it.
    pub fn labels(&self) -> &Labels {
        &self.base.labels
    }

    /// The node's public key.
    pub fn key(&self) -> PublicKey {
        self.base.key
    }

    /// The interval in seconds; 0 for no keepalives.
    pub fn keepalive(&self) -> u16 {
        self.keepalive
    }

    /// The endpoint on this target: discovered there or configured; `None` if
    /// only the node can open the tunnel.
    pub fn endpoint(&self) -> Option<&Endpoint> {
        self.overlay
            .as_ref()
            .map_or(self.base.endpoint.as_ref(), |overlay| {
                overlay.endpoint.as_ref()
            })
    }

    /// The prefixes that this target routes to the Peer.
    pub fn allowed_ips(&self) -> &[Cidr] {
        self.overlay
            .as_ref()
            .map_or(&self.base.allowed_ips, |overlay| &overlay.allowed_ips)
    }

    pub(super) fn fingerprint(&self) -> Fingerprint {
        self.overlay
            .as_ref()
            .map_or(self.base.fingerprint, |overlay| overlay.fingerprint)
    }

    /// The spec as it is written.
    pub fn spec(&self) -> PeerSpecFacts {
        PeerSpecFacts {
            public_key: self.key().to_base64(),
            endpoint: self.endpoint().map(EndpointFacts::from),
            keepalive: i64::from(self.keepalive),
            allowed_ips: self.allowed_ips().iter().map(Cidr::to_string).collect(),
        }
    }
}
