//! What a fleet consists of, as the tests mean it: sites (clusters), their
//! nodes, and meshes. Changed by scenarios together with the real objects, and
//! what `expected` computes from.

use std::collections::BTreeMap;

use base64ct::{Base64, Encoding};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub(crate) const NAMESPACE: &str = "kilo-system";
/// The time at which all agents of a fresh fleet were last seen.
pub(crate) const LAST_SEEN: u64 = 1_700_000_000;

#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) sites: BTreeMap<String, Site>,
    pub(crate) meshes: Vec<Mesh>,
}

/// One cluster. Its number makes its networks different from all others.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    pub(crate) name: String,
    pub(crate) number: u8,
    pub(crate) nodes: BTreeMap<String, Node>,
    /// Who carries the cluster-wide networks, where it is not the first.
    pub(crate) anchor: Option<String>,
    /// UID of its Namespace kube-system.
    pub(crate) uid: String,
}

#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) name: String,
    /// Without the prefix `kilo.squat.ai/`.
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) pod_cidrs: Vec<String>,
    pub(crate) external_ip: Option<String>,
    pub(crate) ready: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Mesh {
    pub(crate) name: String,
    pub(crate) namespace: String,
    /// The site that the object lives on.
    pub(crate) hub: String,
    pub(crate) entries: Vec<Entry>,
    /// Fields of the spec besides `clusters`.
    pub(crate) settings: Value,
    /// Whether its Peers are expected: not where it is held back.
    pub(crate) active: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) site: String,
    pub(crate) pod_cidr: String,
    pub(crate) wireguard_cidr: String,
    pub(crate) service_cidr: Option<String>,
    pub(crate) additional_cidr: Option<String>,
    pub(crate) keepalive: u16,
    /// Whether the spec lists its networks as `allowedNetworks`.
    pub(crate) flat: bool,
}

impl Site {
    pub(crate) fn new(name: &str, number: u8, nodes: u8) -> Self {
        let nodes = (1..=nodes).map(|at| Node::new(number, at)).map(|node| (node.name.clone(), node)).collect();
        Self { name: name.to_owned(), number, nodes, anchor: None, uid: String::new() }
    }
}

impl Node {
    /// The node `n<at>` of a site, as Kilo describes it in granularity `full`.
    pub(crate) fn new(site: u8, at: u8) -> Self {
        let endpoint = format!("203.0.113.{}:51820", u16::from(site) * 20 + u16::from(at));
        let annotations = [
            ("key", key(&format!("{site}/{at}"))),
            ("wireguard-ip", format!("10.{}.0.{at}/16", 100 + site)),
            ("endpoint", endpoint.clone()),
            ("force-endpoint", endpoint),
            ("internal-ip", format!("192.168.{site}.{at}/24")),
            ("granularity", "full".to_owned()),
            ("last-seen", LAST_SEEN.to_string()),
            ("location", format!("place-{site}")),
            ("discovered-endpoints", String::new()),
        ];
        Self {
            name: format!("n{at}"),
            annotations: annotations.map(|(name, value)| (name.to_owned(), value)).into(),
            pod_cidrs: vec![format!("10.{}.{at}.0/24", 10 + site)],
            external_ip: None,
            ready: true,
        }
    }

    pub(crate) fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    pub(crate) fn object(&self) -> Value {
        let annotations: BTreeMap<_, _> =
            self.annotations.iter().map(|(name, value)| (format!("kilo.squat.ai/{name}"), value.clone())).collect();
        let internal = self.annotation("internal-ip").map(|ip| ip.split('/').next().unwrap_or_default());
        let addresses: Vec<Value> = [("InternalIP", internal), ("ExternalIP", self.external_ip.as_deref())]
            .into_iter()
            .filter_map(|(kind, address)| address.map(|address| json!({ "type": kind, "address": address })))
            .collect();
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": self.name, "annotations": annotations },
            "spec": { "podCIDR": self.pod_cidrs.first(), "podCIDRs": self.pod_cidrs },
            "status": { "addresses": addresses, "conditions": [{ "type": "Ready", "status": if self.ready { "True" } else { "False" } }] },
        })
    }
}

impl Mesh {
    /// Joins the sites given; the first is the hub.
    pub(crate) fn new(name: &str, sites: &[&Site]) -> Self {
        let entries: Vec<Entry> = sites.iter().map(|site| Entry::new(site)).collect();
        let hub = entries[0].site.clone();
        Self { name: name.to_owned(), namespace: NAMESPACE.to_owned(), hub, entries, settings: json!({}), active: true }
    }

    pub(crate) fn entry(&mut self, name: &str) -> &mut Entry {
        self.entries.iter_mut().find(|entry| entry.name == name).expect("an entry of that name")
    }

    pub(crate) fn path(&self) -> String {
        format!("/apis/kilo.squat.ai/v1alpha1/namespaces/{}/clustermeshes/{}", self.namespace, self.name)
    }

    pub(crate) fn spec(&self) -> Value {
        let mut spec = self.settings.clone();
        spec["clusters"] = self.entries.iter().map(|entry| entry.object(entry.site == self.hub)).collect();
        spec
    }

    pub(crate) fn object(&self) -> Value {
        json!({
            "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "ClusterMesh",
            "metadata": { "name": self.name, "namespace": self.namespace }, "spec": self.spec(),
        })
    }
}

impl Entry {
    pub(crate) fn new(site: &Site) -> Self {
        let number = site.number;
        Self {
            name: site.name.clone(),
            site: site.name.clone(),
            pod_cidr: format!("10.{}.0.0/16", 10 + number),
            wireguard_cidr: format!("10.{}.0.0/16", 100 + number),
            service_cidr: Some(format!("10.{}.0.0/16", 200 + u16::from(number))),
            additional_cidr: None,
            keepalive: 0,
            flat: false,
        }
    }

    /// The Secret that holds its kubeconfig.
    pub(crate) fn secret(&self) -> String {
        format!("{}-kubeconfig", self.site)
    }

    fn object(&self, local: bool) -> Value {
        let mut entry = json!({ "name": self.name });
        if local {
            entry["local"] = json!(true);
        } else {
            entry["kubeconfigSecretRef"] = json!({ "name": self.secret() });
        }
        if self.keepalive > 0 {
            entry["persistentKeepalive"] = json!(self.keepalive);
        }
        self.add_networks(&mut entry);
        entry
    }

    fn add_networks(&self, entry: &mut Value) {
        let optional = [&self.service_cidr, &self.additional_cidr].into_iter().flatten();
        if self.flat {
            entry["allowedNetworks"] = [&self.pod_cidr, &self.wireguard_cidr].into_iter().chain(optional).cloned().collect();
            return;
        }
        entry["podCIDRs"] = json!([self.pod_cidr]);
        entry["wireguardCIDR"] = json!(self.wireguard_cidr);
        if let Some(cidr) = &self.service_cidr {
            entry["serviceCIDR"] = json!(cidr);
        }
        if let Some(cidr) = &self.additional_cidr {
            entry["additionalCIDRs"] = json!([cidr]);
        }
    }
}

/// A valid public key that depends on the text only.
pub(crate) fn key(text: &str) -> String {
    Base64::encode_string(&Sha256::digest(text.as_bytes()))
}
