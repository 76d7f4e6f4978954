//! Kilo's `Peer`, which is not ours: its CRD is Kilo's to install, and other
//! people's Peers stand next to ours. It is read tolerantly, so that no field
//! somebody left out or set to null can hide a whole list from us.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::ClusterResourceScope;
use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

use crate::lean::{self, null_is_default};

pub const API_VERSION: &str = "kilo.squat.ai/v1alpha1";
pub const KIND: &str = "Peer";

/// A WireGuard peer of all nodes of a cluster.
#[derive(Deserialize, Debug, Clone, PartialEq, Default)]
pub struct Peer {
    #[serde(default, deserialize_with = "lean::meta")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    pub spec: PeerSpec,
}

#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct PeerSpec {
    #[serde(rename = "allowedIPs", default, deserialize_with = "null_is_default")]
    pub allowed_ips: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<PeerEndpoint>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_keepalive: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preshared_key: Option<PresharedKey>,
    #[serde(default, deserialize_with = "null_is_default")]
    pub public_key: String,
}

#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct PeerEndpoint {
    #[serde(rename = "dnsOrIP", default, deserialize_with = "null_is_default")]
    pub dns_or_ip: DnsOrIp,
    #[serde(default, deserialize_with = "null_is_default")]
    pub port: i64,
}

#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
pub struct DnsOrIp {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<String>,
}

/// A secret that is not ours. It can be carried and written back, not shown.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq)]
#[serde(transparent)]
pub struct PresharedKey(String);

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresharedKey(redacted)")
    }
}

/// The type is written with every object and not kept in any.
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

lean::served!(Peer, ClusterResourceScope, "kilo.squat.ai", "v1alpha1", KIND, "peers");
