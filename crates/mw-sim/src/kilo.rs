//! Model of a fleet that runs Kilo: sites, their nodes as annotated by Kilo's agents,
//! and the meshes between them, with the Kubernetes object of each.

use std::collections::BTreeMap;

use base64ct::{Base64, Encoding};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

pub const NAMESPACE: &str = "kilo-system";
/// Kilo's Peer CRD: cluster-scoped, v1alpha1, without status.
pub const PEER_CRD: &str = include_str!("../crds/peers.kilo.squat.ai.yaml");
/// Last-seen time of all agents in a new fleet.
pub const LAST_SEEN: u64 = 1_700_000_000;

/// Complete state of the fleet.
#[derive(Debug, Clone)]
pub struct World {
    pub sites: BTreeMap<String, Site>,
    pub meshes: Vec<Mesh>,
}

/// One cluster. Its number determines its networks, so that they are disjoint.
#[derive(Debug, Clone)]
pub struct Site {
    pub name: String,
    pub number: u8,
    pub nodes: BTreeMap<String, Node>,
    /// Node that carries the cluster-wide networks, if it is not the first.
    pub anchor: Option<String>,
    /// UID of the Namespace kube-system.
    pub uid: String,
}

#[derive(Debug, Clone)]
pub struct Node {
    pub name: String,
    /// Kilo's annotations, without the prefix `kilo.squat.ai/`.
    pub annotations: BTreeMap<String, String>,
    pub pod_cidrs: Vec<String>,
    pub external_ip: Option<String>,
    pub ready: bool,
}

#[derive(Debug, Clone)]
pub struct Mesh {
    pub name: String,
    pub namespace: String,
    /// Site that holds the ClusterMesh.
    pub hub: String,
    pub entries: Vec<Entry>,
    /// Fields of the spec in addition to `clusters`.
    pub settings: Map<String, Value>,
    /// True if Peers are expected; false while the mesh is held back.
    pub active: bool,
}

#[derive(Debug, Clone)]
pub struct Entry {
    pub name: String,
    pub site: String,
    pub pod_cidr: String,
    pub wireguard_cidr: String,
    pub service_cidr: Option<String>,
    pub additional_cidr: Option<String>,
    pub keepalive: u16,
    /// True if the spec lists the networks as `allowedNetworks`.
    pub flat: bool,
}

impl Site {
    pub fn new(name: &str, number: u8, nodes: u8) -> Self {
        let nodes = (1..=nodes)
            .map(|at| Node::new(number, at))
            .map(|node| (node.name.clone(), node))
            .collect();
        Self {
            name: name.to_owned(),
            number,
            nodes,
            anchor: None,
            uid: String::new(),
        }
    }

    /// Returns the WireGuard address that Kilo assigns to a node: the leader of the
    /// n-th segment of ready nodes gets the n-th address of the subnet, all other nodes
    /// none. The address changes when a preceding segment is added or removed.
    pub fn wireguard_ip(&self, node: &str, is_ready: impl Fn(&str) -> bool) -> String {
        let mut segments: BTreeMap<String, Vec<&Node>> = BTreeMap::new();
        for node in self.nodes.values().filter(|node| is_ready(&node.name)) {
            let segment = match node.annotation("granularity") {
                Some("location") => format!(
                    "location:{}",
                    node.annotation("location").unwrap_or_default()
                ),
                _ => format!("node:{}", node.name),
            };
            segments.entry(segment).or_default().push(node);
        }
        let leads = |nodes: &Vec<&Node>| {
            let marked = nodes
                .iter()
                .find(|node| node.annotations.contains_key("leader"));
            marked
                .or(nodes.first())
                .is_some_and(|leader| leader.name == node)
        };
        let at = segments.values().position(leads);
        at.map(|at| format!("100.64.{}.{}/24", self.number, at + 1))
            .unwrap_or_default()
    }
}

impl Node {
    /// Returns the node `n<at>` of a site, as annotated by Kilo with granularity
    /// `full`.
    pub fn new(site: u8, at: u8) -> Self {
        let endpoint = format!("198.18.{site}.{at}:51820");
        let annotations = [
            ("key", key(&format!("{site}/{at}"))),
            ("wireguard-ip", format!("100.64.{site}.{at}/24")),
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
            annotations: annotations
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
            pod_cidrs: vec![format!("10.{site}.{at}.0/24")],
            external_ip: None,
            ready: true,
        }
    }

    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    pub fn object(&self) -> Value {
        let annotations: BTreeMap<_, _> = self
            .annotations
            .iter()
            .map(|(name, value)| (format!("kilo.squat.ai/{name}"), value.clone()))
            .collect();
        let internal = self
            .annotation("internal-ip")
            .map(|ip| ip.split('/').next().unwrap_or_default());
        let addresses: Vec<Value> = [
            ("InternalIP", internal),
            ("ExternalIP", self.external_ip.as_deref()),
        ]
        .into_iter()
        .filter_map(|(kind, address)| {
            address.map(|address| json!({ "type": kind, "address": address }))
        })
        .collect();
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": self.name, "annotations": annotations },
            "spec": { "podCIDR": self.pod_cidrs.first(), "podCIDRs": self.pod_cidrs },
            "status": { "addresses": addresses, "conditions": [{ "type": "Ready", "status": if self.ready { "True" } else { "False" } }] },
        })
    }
}

impl Mesh {
    /// Creates a mesh of these sites. The first one is the hub.
    pub fn new(name: &str, sites: &[&Site]) -> Self {
        let entries: Vec<Entry> = sites.iter().map(|site| Entry::new(site)).collect();
        let hub = entries
            .first()
            .map(|entry| entry.site.clone())
            .unwrap_or_default();
        Self {
            name: name.to_owned(),
            namespace: NAMESPACE.to_owned(),
            hub,
            entries,
            settings: Map::new(),
            active: true,
        }
    }

    pub fn entry(&mut self, name: &str) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.name == name)
    }

    pub fn path(&self) -> String {
        format!(
            "/apis/kilo.squat.ai/v1alpha1/namespaces/{}/clustermeshes/{}",
            self.namespace, self.name
        )
    }

    pub fn spec(&self) -> Value {
        let mut spec = self.settings.clone();
        let clusters = self
            .entries
            .iter()
            .map(|entry| entry.object(entry.site == self.hub))
            .collect();
        spec.insert("clusters".to_owned(), clusters);
        spec.into()
    }

    pub fn object(&self) -> Value {
        json!({
            "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "ClusterMesh",
            "metadata": { "name": self.name, "namespace": self.namespace }, "spec": self.spec(),
        })
    }
}

impl Entry {
    pub fn new(site: &Site) -> Self {
        let number = site.number;
        Self {
            name: site.name.clone(),
            site: site.name.clone(),
            pod_cidr: format!("10.{number}.0.0/16"),
            wireguard_cidr: format!("100.64.{number}.0/24"),
            service_cidr: Some(format!("172.20.{number}.0/24")),
            additional_cidr: None,
            keepalive: 0,
            flat: false,
        }
    }

    /// Returns the name of the Secret with the kubeconfig.
    pub fn secret(&self) -> String {
        format!("{}-kubeconfig", self.site)
    }

    fn object(&self, local: bool) -> Value {
        let mut entry = Map::new();
        let mut set = |field: &str, value: Value| _ = entry.insert(field.to_owned(), value);
        set("name", json!(self.name));
        match local {
            true => set("local", json!(true)),
            false => set("kubeconfigSecretRef", json!({ "name": self.secret() })),
        }
        if self.keepalive > 0 {
            set("persistentKeepalive", json!(self.keepalive));
        }
        if self.flat {
            let optional = [&self.service_cidr, &self.additional_cidr]
                .into_iter()
                .flatten();
            set(
                "allowedNetworks",
                [&self.pod_cidr, &self.wireguard_cidr]
                    .into_iter()
                    .chain(optional)
                    .cloned()
                    .collect(),
            );
            return entry.into();
        }
        set("podCIDRs", json!([self.pod_cidr]));
        set("wireguardCIDR", json!(self.wireguard_cidr));
        self.service_cidr
            .iter()
            .for_each(|cidr| set("serviceCIDR", json!(cidr)));
        self.additional_cidr
            .iter()
            .for_each(|cidr| set("additionalCIDRs", json!([cidr])));
        entry.into()
    }
}

/// Returns a valid public key derived from the text.
pub fn key(text: &str) -> String {
    Base64::encode_string(&Sha256::digest(text.as_bytes()))
}

/// Reports whether a text is a valid WireGuard public key.
pub fn is_key(text: &str) -> bool {
    Base64::decode_vec(text).is_ok_and(|bytes| bytes.len() == 32)
}

/// Returns the host name of a site's API server.
pub fn host(site: &str) -> String {
    format!("{site}.sim")
}

pub fn url(site: &str) -> String {
    format!("https://{}:6443", host(site))
}

/// Returns a kubeconfig as JSON, which is valid YAML.
pub fn kubeconfig(site: &str, token: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "contexts": [{ "name": "it", "context": { "cluster": "it", "user": "it" } }],
        "clusters": [{ "name": "it", "cluster": { "server": url(site) } }],
        "users": [{ "name": "it", "user": { "token": token } }],
    })
    .to_string()
}
