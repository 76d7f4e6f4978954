//! A Node as the planner needs it: parsed once from untrusted text, with every
//! value either valid or marked unusable. Heartbeats and other unrelated
//! changes are left out.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use serde::Deserialize;

use crate::cidr::{Cidr, WrittenCidr, is_globally_routable, parse_address, unusable_as_endpoint};
use crate::endpoint::{Endpoint, Host, split_host_port};
use crate::key::PublicKey;
use crate::names::NodeName;
use crate::time::Timestamp;

/// The prefix of all annotations that Kilo reads and writes.
pub const ANNOTATION_PREFIX: &str = "kilo.squat.ai/";

/// The annotations that are read, without the prefix. Others may be large or
/// change often and would only cost memory and comparisons.
pub const ANNOTATIONS: [&str; 13] = [
    "clustermesh-endpoint",
    "discovered-endpoints",
    "endpoint",
    "force-endpoint",
    "force-internal-ip",
    "granularity",
    "internal-ip",
    "key",
    "last-seen",
    "leader",
    "location",
    "persistent-keepalive",
    "wireguard-ip",
];

/// A Node's raw values, as read from an API server or a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// The Node's name.
    pub name: String,
    /// The Node's UID: a new one means that the Node was recreated.
    pub uid: String,
    /// All labels; the topology label of a cluster is read from them.
    pub labels: BTreeMap<String, String>,
    /// Annotations under `kilo.squat.ai/`, without that prefix.
    pub kilo: BTreeMap<String, String>,
    /// spec.podCIDRs, or spec.podCIDR alone.
    pub pod_cidrs: Vec<String>,
    /// Addresses of type InternalIP in the Node's status.
    pub internal_ips: Vec<String>,
    /// Addresses of type ExternalIP in the Node's status.
    pub external_ips: Vec<String>,
    /// The Node's Ready condition.
    pub ready: bool,
    /// The time since which the agent's annotations have been missing, or were
    /// not complete again, if known.
    pub bare_since: Option<Timestamp>,
}

/// A value that is set but invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unusable(pub String);

/// A value that may be missing or unusable.
pub type Read<T> = Result<Option<T>, Unusable>;

/// A Kubernetes Node after parsing, built with [`Node::read`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The Node's name.
    pub name: NodeName,
    /// The Node's UID.
    pub uid: String,
    /// All labels, as given.
    pub labels: BTreeMap<String, String>,
    /// The Node's Ready condition.
    pub ready: bool,
    /// See [`NodeFacts::bare_since`].
    pub bare_since: Option<Timestamp>,
    /// The first pod CIDR decides whether a node qualifies for a Peer.
    pub first_pod_cidr: Read<Cidr>,
    /// All pod CIDRs that parse.
    pub pod_cidrs: Vec<Cidr>,
    /// The address that Kilo assigned on the WireGuard interface, without its
    /// mask; `Ok(None)` for nodes other than the leader of a location.
    pub wireguard_ip: Read<IpAddr>,
    /// The public key published by the agent; `Ok(None)` while it is stopped.
    pub key: Read<PublicKey>,
    /// The agent's last check-in by its own clock, in seconds since the Unix
    /// epoch.
    pub last_seen: Option<i64>,
    /// The endpoint from an annotation of the user: clustermesh-endpoint,
    /// otherwise force-endpoint.
    pub endpoint: Read<Endpoint>,
    /// Addresses from the Node's status.
    pub internal_ips: Vec<IpAddr>,
    /// Addresses of type ExternalIP in the Node's status.
    pub external_ips: Vec<IpAddr>,
    /// The address Kilo uses inside the cluster.
    pub kilo_internal: Option<IpAddr>,
    /// Source address of Kilo's routes into the mesh; without an agent, the
    /// address it will most likely use.
    pub route_source: Option<IpAddr>,
    /// True if the agent meshes locations instead of single nodes.
    pub location_granularity: bool,
    /// The annotation location, which overrides the topology label.
    pub location: Option<String>,
    /// True if the annotation leader is set, with any value.
    pub leads: bool,
    /// Set if the agent's own endpoint is valid: whether it is a public
    /// address.
    pub kilo_endpoint: Option<Publicness>,
    /// The endpoint published by the agent, if other clusters can use it.
    pub published_endpoint: Option<Endpoint>,
    /// True if Kilo on this node sends keepalives.
    pub keepalive_set: bool,
    /// Addresses from which this node's agent received handshakes, by the key
    /// of the remote Peer.
    pub discovered: Result<BTreeMap<PublicKey, SocketAddr>, Unusable>,
}

/// Policy for endpoints that Kilo detected itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EndpointFrom {
    /// Only those with a globally routable address.
    #[default]
    Global,
    /// All of them.
    Kilo,
}

impl EndpointFrom {
    fn takes(self, endpoint: &Endpoint) -> bool {
        self == EndpointFrom::Kilo || endpoint.ip().is_some_and(is_globally_routable)
    }
}

/// A cluster's Nodes.
pub type Nodes = BTreeMap<NodeName, Arc<Node>>;

/// Kilo prefers leaders whose own endpoint is public.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Publicness {
    /// An address outside the private ranges, as Kilo defines them.
    Public,
    /// A private address, or a DNS name.
    Private,
}

/// The endpoint for an ExternalIP depends on the cluster's WireGuard port, so
/// it stays an address until a mesh is planned.
impl Node {
    /// Parses a Node. Never fails: values that don't parse become [`Unusable`].
    pub fn read(facts: NodeFacts) -> Node {
        let NodeFacts {
            name,
            uid,
            labels,
            kilo,
            pod_cidrs,
            internal_ips,
            external_ips,
            ready,
            bare_since,
        } = facts;
        let annotation = |key: &str| kilo.get(key).map(String::as_str);
        let filled = |key: &str| annotation(key).filter(|text| !text.is_empty());
        let internal_ips: Vec<IpAddr> = internal_ips
            .iter()
            .filter_map(|text| parse_address(text))
            .collect();
        let kilo_internal =
            kilo_internal(annotation("force-internal-ip"), annotation("internal-ip"));
        let is_told =
            annotation("force-internal-ip").is_some() || annotation("internal-ip").is_some();
        Node {
            name: NodeName::from(name.as_str()),
            uid,
            labels,
            ready,
            bare_since,
            first_pod_cidr: read(pod_cidrs.first().map(String::as_str), |text| {
                Cidr::try_from(text).ok()
            }),
            pod_cidrs: pod_cidrs
                .iter()
                .filter_map(|text| Cidr::try_from(text.as_str()).ok())
                .collect(),
            wireguard_ip: read(filled("wireguard-ip"), |text| {
                WrittenCidr::try_from(text).ok().map(|cidr| cidr.address)
            }),
            key: read(filled("key"), |text| PublicKey::try_from(text).ok()),
            last_seen: filled("last-seen").and_then(parse_seconds),
            endpoint: read(
                filled("clustermesh-endpoint").or(filled("force-endpoint")),
                |text| Endpoint::try_from(text).ok(),
            ),
            route_source: if is_told {
                kilo_internal
            } else {
                internal_ips.first().copied()
            },
            internal_ips,
            external_ips: external_ips
                .iter()
                .filter_map(|text| parse_address(text))
                .collect(),
            kilo_internal,
            location_granularity: annotation("granularity") == Some("location"),
            location: annotation("location").map(str::to_owned),
            leads: annotation("leader").is_some(),
            kilo_endpoint: filled("force-endpoint")
                .and_then(publicness)
                .or(filled("endpoint").and_then(publicness)),
            published_endpoint: filled("endpoint").and_then(|text| Endpoint::try_from(text).ok()),
            keepalive_set: filled("persistent-keepalive")
                .and_then(|text| text.parse::<u16>().ok())
                .is_some_and(|s| s > 0),
            discovered: discovered(annotation("discovered-endpoints").unwrap_or_default()),
        }
    }

    /// The configured endpoint, with `port` for a bare ExternalIP. The endpoint
    /// published by the agent comes last, and only if `from` accepts it.
    pub fn configured_endpoint(&self, port: u16, from: EndpointFrom) -> Read<Endpoint> {
        if !matches!(self.endpoint, Ok(None)) {
            return self.endpoint.clone();
        }
        let first = |v4: bool| self.external_ips.iter().find(|ip| ip.is_ipv4() == v4);
        match first(true).or(first(false)) {
            None => Ok(self
                .published_endpoint
                .clone()
                .filter(|endpoint| from.takes(endpoint))),
            Some(ip) => Endpoint::new(Host::Ip(*ip), port)
                .map(Some)
                .map_err(|wrong| Unusable(format!("ExternalIP {ip} {wrong}"))),
        }
    }

    /// Reports whether the two differ only in their last check-in.
    pub(super) fn but_last_seen(&self, other: &Node) -> bool {
        Node {
            last_seen: other.last_seen,
            ..self.clone()
        } == *other
    }

    /// Reports whether the agent removed its annotations: it stops cleanly in
    /// every rollout.
    pub fn is_bare(&self) -> bool {
        self.key == Ok(None) && self.last_seen.is_none()
    }

    /// Reports whether the agent is stopped, or is back and has not published
    /// its address yet: that can take half a minute longer than the rest.
    pub(super) fn is_away(&self) -> bool {
        self.is_bare() || (self.bare_since.is_some() && self.wireguard_ip == Ok(None))
    }

    /// All addresses at which the node is reachable inside its cluster.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let wireguard = self.wireguard_ip.as_ref().ok().copied().flatten();
        self.internal_ips
            .iter()
            .chain(&self.external_ips)
            .copied()
            .chain(self.kilo_internal)
            .chain(wireguard)
    }

    /// Addresses that other clusters may get as host routes.
    pub(super) fn internal_addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.internal_ips.iter().copied().chain(self.kilo_internal)
    }
}

fn read<T>(text: Option<&str>, parse: impl Fn(&str) -> Option<T>) -> Read<T> {
    match text {
        None => Ok(None),
        Some(text) => parse(text)
            .map(Some)
            .ok_or_else(|| Unusable(crate::text::quoted(text))),
    }
}

fn parse_seconds(text: &str) -> Option<i64> {
    (text.len() <= 20).then(|| text.parse().ok()).flatten()
}

/// An invalid override is ignored; an empty one, or "-", means none.
fn kilo_internal(forced: Option<&str>, own: Option<&str>) -> Option<IpAddr> {
    let address = |text: &str| WrittenCidr::try_from(text).ok().map(|cidr| cidr.address);
    match forced {
        Some("" | "-") => None,
        Some(text) => address(text).or_else(|| own.and_then(address)),
        None => own.and_then(address),
    }
}

/// Kilo's own definition of a public endpoint: never a DNS name; the private
/// ranges are the three IPv4 ones and fd00::/16.
fn publicness(text: &str) -> Option<Publicness> {
    let (host, _) = split_host_port(text).ok()?;
    let public = match host {
        Host::Dns(_) => false,
        Host::Ip(IpAddr::V4(ip)) => !ip.is_private(),
        Host::Ip(IpAddr::V6(ip)) => ip.segments().first() != Some(&0xfd00),
    };
    Some(if public {
        Publicness::Public
    } else {
        Publicness::Private
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DiscoveredEntry {
    #[serde(rename = "IP")]
    ip: String,
    port: u32,
}

/// The API server's limit for all annotations of an object together.
const LONGEST_DISCOVERED: usize = 256 * 1024;

/// Public key to the address a handshake came from. Entries that can't be an
/// endpoint are left out; invalid text is an error.
fn discovered(text: &str) -> Result<BTreeMap<PublicKey, SocketAddr>, Unusable> {
    if text.is_empty() {
        return Ok(BTreeMap::new());
    }
    if text.len() >= LONGEST_DISCOVERED {
        return Err(Unusable(format!("{} bytes", text.len())));
    }
    let entries: BTreeMap<String, DiscoveredEntry> = serde_json::from_str(text)
        .map_err(|wrong| Unusable(crate::text::printable(&wrong.to_string(), 120)))?;
    Ok(entries
        .iter()
        .filter_map(|(key, entry)| usable_discovery(key, entry))
        .collect())
}

fn usable_discovery(key: &str, entry: &DiscoveredEntry) -> Option<(PublicKey, SocketAddr)> {
    let ip = parse_address(&entry.ip).filter(|ip| unusable_as_endpoint(*ip).is_none())?;
    let port = u16::try_from(entry.port).ok().filter(|port| *port > 0)?;
    Some((PublicKey::try_from(key).ok()?, SocketAddr::new(ip, port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(annotations: &[(&str, &str)]) -> Node {
        let kilo = annotations
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        Node::read(NodeFacts {
            name: "n".to_owned(),
            kilo,
            ..NodeFacts::default()
        })
    }

    #[test]
    fn an_endpoint_annotation_wins_over_an_external_ip_even_when_malformed() {
        let mut facts = NodeFacts {
            external_ips: vec!["2001:db8::1".to_owned(), "198.51.100.1".to_owned()],
            ..NodeFacts::default()
        };
        let shown = |facts: &NodeFacts| {
            Node::read(facts.clone())
                .configured_endpoint(51820, EndpointFrom::Global)
                .map(|e| e.map(|e| e.to_string()))
        };
        assert_eq!(shown(&facts), Ok(Some("198.51.100.1:51820".to_owned())));
        facts
            .kilo
            .insert("force-endpoint".to_owned(), "nowhere".to_owned());
        assert!(shown(&facts).is_err());
        facts
            .kilo
            .insert("clustermesh-endpoint".to_owned(), "192.0.2.1:1".to_owned());
        assert_eq!(shown(&facts), Ok(Some("192.0.2.1:1".to_owned())));
    }

    #[test]
    fn a_huge_annotation_is_refused_without_being_read() {
        let huge = "x".repeat(LONGEST_DISCOVERED);
        let node = node(&[
            ("discovered-endpoints", &huge),
            ("key", &huge),
            ("wireguard-ip", &huge),
            ("force-endpoint", &huge),
        ]);
        assert!(
            node.discovered.is_err()
                && node.key.is_err()
                && node.wireguard_ip.is_err()
                && node.endpoint.is_err()
        );
    }

    #[test]
    fn unusable_discoveries_are_left_out() {
        let key = |c: char| format!("{}A=", c.to_string().repeat(42));
        let entry = |k: String, ip: &str, port: u32| {
            format!(r#""{k}":{{"IP":"{ip}","Port":{port},"Zone":""}}"#)
        };
        let text = format!(
            "{{{},{},{},{},\"junk\":{{\"IP\":\"198.51.100.9\",\"Port\":1}}}}",
            entry(key('B'), "198.51.100.1", 51820),
            entry(key('C'), "127.0.0.1", 51820),
            entry(key('D'), "198.51.100.1", 0),
            entry(key('E'), "198.51.100.1", 70000),
        );
        assert_eq!(
            node(&[("discovered-endpoints", &text)])
                .discovered
                .unwrap()
                .len(),
            1
        );
    }

    #[test]
    fn an_empty_forced_internal_ip_means_none() {
        assert_eq!(
            node(&[("internal-ip", "10.0.0.1/24")]).kilo_internal,
            parse_address("10.0.0.1")
        );
        assert_eq!(
            node(&[("internal-ip", "10.0.0.1/24"), ("force-internal-ip", "-")]).kilo_internal,
            None
        );
        assert_eq!(
            node(&[
                ("internal-ip", "10.0.0.1/24"),
                ("force-internal-ip", "junk")
            ])
            .kilo_internal,
            parse_address("10.0.0.1")
        );
    }
}
