//! Kilo's `Peer`. Its CRD is installed by Kilo, and a cluster may hold Peers that are
//! not managed by meshwright. Deserialization is tolerant, so that a missing or null
//! field in one Peer does not make the whole list unreadable.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::ClusterResourceScope;
use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

use crate::lean::{self, null_is_default};

/// API version of Kilo's resources.
pub const API_VERSION: &str = "kilo.squat.ai/v1alpha1";
/// Kind of a Peer.
pub const KIND: &str = "Peer";

/// A WireGuard peer of all nodes of a cluster.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct Peer {
    /// Object metadata without managedFields.
    #[serde(default, deserialize_with = "lean::meta")]
    pub metadata: ObjectMeta,
    /// WireGuard configuration of the peer.
    #[serde(default, deserialize_with = "null_is_default")]
    pub spec: PeerSpec,
}

/// WireGuard configuration of a Peer.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct PeerSpec {
    /// Networks that are routed to the peer.
    #[serde(rename = "allowedIPs", default, deserialize_with = "null_is_default")]
    pub allowed_ips: Vec<String>,
    /// Address at which the peer is reached; none for a peer that connects by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<PeerEndpoint>,
    /// Keepalive in seconds. Kilo takes the interval from its own node's annotation; above
    /// 0, it uses discovered endpoints of the peer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_keepalive: Option<i64>,
    /// Preshared key, never set or changed by meshwright.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preshared_key: Option<PresharedKey>,
    /// Base64 encoded public key of the peer.
    #[serde(default, deserialize_with = "null_is_default")]
    pub public_key: String,
}

/// Endpoint of a Peer.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct PeerEndpoint {
    /// Host of the endpoint.
    #[serde(rename = "dnsOrIP", default, deserialize_with = "null_is_default")]
    pub dns_or_ip: DnsOrIp,
    /// UDP port of the endpoint.
    #[serde(default, deserialize_with = "null_is_default")]
    pub port: i64,
}

/// Host of an endpoint. If both are set, Kilo uses `dns`.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
pub struct DnsOrIp {
    /// Host name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns: Option<String>,
    /// IP address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<String>,
}

/// Preshared key of a Peer that is not ours. It can be copied and written back, but is
/// redacted in debug output.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq)]
#[serde(transparent)]
pub struct PresharedKey(String);

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresharedKey(redacted)")
    }
}

/// Adds `apiVersion` and `kind`, which the struct does not store.
impl Serialize for Peer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Peer { metadata, spec } = self;
        let mut object = serializer.serialize_struct(KIND, 4)?;
        object.serialize_field("apiVersion", API_VERSION)?;
        object.serialize_field("kind", KIND)?;
        object.serialize_field("metadata", metadata)?;
        object.serialize_field("spec", spec)?;
        object.end()
    }
}

lean::served!(
    Peer,
    ClusterResourceScope,
    "kilo.squat.ai",
    "v1alpha1",
    KIND,
    "peers"
);
