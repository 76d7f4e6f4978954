//! A Node as parsed by the agent, and the annotations it writes.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::Granularity;
use super::endpoint::Endpoint;
use crate::net::Key;

pub(super) const PREFIX: &str = "kilo.squat.ai/";
/// Annotations that a clean stop removes.
pub(super) const WRITTEN: [&str; 7] = [
    "endpoint",
    "internal-ip",
    "key",
    "last-seen",
    "wireguard-ip",
    "discovered-endpoints",
    "granularity",
];
const TOPOLOGY_LABEL: &str = "topology.kubernetes.io/region";
/// Twice the check-in interval.
const SILENT_AFTER_SECONDS: u64 = 60;

pub(super) type Discovered = BTreeMap<String, SocketAddr>;

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) endpoint: Option<Endpoint>,
    pub(super) key: Option<Key>,
    /// True if the internal IP is disabled by annotation.
    pub(super) no_internal_ip: bool,
    pub(super) internal_ip: Option<IpNet>,
    pub(super) last_seen: u64,
    /// True if the node is annotated as leader.
    pub(super) leader: bool,
    pub(super) location: String,
    pub(super) keepalive: u16,
    pub(super) pod_cidr: Option<IpNet>,
    pub(super) wireguard_ip: Option<IpNet>,
    pub(super) discovered: Option<Discovered>,
    pub(super) granularity: Option<Granularity>,
    pub(super) has_annotations: bool,
}

impl Node {
    pub(super) fn read(object: &Value) -> Self {
        let annotations = object
            .pointer("/metadata/annotations")
            .and_then(Value::as_object);
        let get = |name: &str| {
            annotations
                .and_then(|all| all.get(&format!("{PREFIX}{name}")))
                .and_then(Value::as_str)
        };
        let endpoint = |name: &str| get(name).and_then(Endpoint::parse);
        let no_internal_ip =
            get("force-internal-ip").is_some_and(|value| matches!(value, "" | "-"));
        let internal_ip = cidr(get("force-internal-ip"))
            .or_else(|| cidr(get("internal-ip")))
            .filter(|_| !no_internal_ip);
        let label = object
            .pointer("/metadata/labels")
            .and_then(|labels| labels.get(TOPOLOGY_LABEL))
            .and_then(Value::as_str);
        Self {
            name: object
                .pointer("/metadata/name")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned(),
            endpoint: endpoint("force-endpoint").or_else(|| endpoint("endpoint")),
            key: get("key").and_then(|key| key.parse().ok()),
            no_internal_ip,
            internal_ip,
            last_seen: get("last-seen")
                .and_then(|seconds| seconds.parse().ok())
                .unwrap_or(0),
            leader: get("leader").is_some(),
            location: get("location").or(label).unwrap_or_default().to_owned(),
            keepalive: get("persistent-keepalive")
                .and_then(|seconds| seconds.parse().ok())
                .unwrap_or(0),
            // The second address family is ignored.
            pod_cidr: cidr(object.pointer("/spec/podCIDR").and_then(Value::as_str))
                .map(|cidr| cidr.trunc()),
            wireguard_ip: cidr(get("wireguard-ip")),
            discovered: get("discovered-endpoints").and_then(read_discovered),
            granularity: match get("granularity") {
                Some("location") => Some(Granularity::Location),
                Some("full") => Some(Granularity::Full),
                _ => None,
            },
            has_annotations: annotations.is_some(),
        }
    }

    pub(super) fn is_ready(&self, now: u64) -> bool {
        let complete = self.endpoint.is_some() && self.key.is_some() && self.pod_cidr.is_some();
        complete && now.saturating_sub(self.last_seen) < SILENT_AFTER_SECONDS
    }

    /// Compares nodes. The last-seen time counts only as expired or not.
    pub(super) fn equals(&self, other: &Self, now: u64) -> bool {
        let found = |node: &Self| node.discovered.clone().unwrap_or_default();
        self.endpoint == other.endpoint
            && self.key == other.key
            && self.wireguard_ip == other.wireguard_ip
            && self.internal_ip == other.internal_ip
            && self.leader == other.leader
            && self.location == other.location
            && self.name == other.name
            && self.pod_cidr == other.pod_cidr
            && self.is_ready(now) == other.is_ready(now)
            && self.keepalive == other.keepalive
            && found(self) == found(other)
            && self.granularity == other.granularity
    }

    pub(super) fn internal_address(&self) -> Option<IpAddr> {
        self.internal_ip.map(|net| net.addr())
    }

    /// Returns the patch with the annotations.
    pub(super) fn annotations(&self) -> Value {
        let text = |value: Option<String>| value.unwrap_or_default();
        let values = [
            text(self.endpoint.as_ref().map(Endpoint::to_string)),
            text(self.internal_ip.map(|net| net.to_string())),
            text(self.key.map(|key| key.to_string())),
            self.last_seen.to_string(),
            text(self.wireguard_ip.map(|net| net.to_string())),
            text(self.discovered.as_ref().map(write_discovered)),
            text(
                self.granularity
                    .map(|granularity| granularity.as_str().to_owned()),
            ),
        ];
        patch(WRITTEN.into_iter().zip(values.map(Value::from)))
    }

    /// Returns the patch that removes all written annotations.
    pub(super) fn nothing() -> Value {
        patch(WRITTEN.into_iter().map(|name| (name, Value::Null)))
    }
}

fn patch(values: impl Iterator<Item = (&'static str, Value)>) -> Value {
    let annotations: Map<String, Value> = values
        .map(|(name, value)| (format!("{PREFIX}{name}"), value))
        .collect();
    json!({ "metadata": { "annotations": annotations } })
}

/// Parses a CIDR, keeping the host bits.
fn cidr(text: Option<&str>) -> Option<IpNet> {
    text.and_then(|text| text.parse().ok())
}

fn read_discovered(text: &str) -> Option<Discovered> {
    let all: Map<String, Value> = serde_json::from_str(text).ok()?;
    let address = |value: &Value| {
        Some(SocketAddr::new(
            value.get("IP")?.as_str()?.parse().ok()?,
            value.get("Port")?.as_u64()?.try_into().ok()?,
        ))
    };
    Some(
        all.iter()
            .filter_map(|(key, value)| Some((key.clone(), address(value)?)))
            .collect(),
    )
}

fn write_discovered(all: &Discovered) -> String {
    let value = |address: &SocketAddr| json!({ "IP": address.ip().to_string(), "Port": address.port(), "Zone": "" });
    let all: Map<String, Value> = all
        .iter()
        .map(|(key, address)| (key.clone(), value(address)))
        .collect();
    Value::from(all).to_string()
}
