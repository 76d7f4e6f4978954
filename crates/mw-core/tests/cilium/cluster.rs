//! A concise description of a cluster: healthy, unless a story says otherwise.

use std::collections::{BTreeMap, BTreeSet};

use mw_core::cilium::facts::{
    Agents, ApiServer, CaId, Certificate, Certificates, ClientFiles, ClusterSeen, Config,
    ConnectionSecret, Held, Hubble, Identity, MANAGER, Maker, MeshPort, MeshService, NamespaceSeen,
    NodeAddresses, PolicyCrds, PolicyFeatures, PolicyKey, PolicySeen, RemoteUsers, RootCa,
    SecretSeen, ServiceName, ServiceSeen, Silence, SliceSeen,
};
use mw_core::cilium::secret::SecretBytes;
use mw_core::cilium::version::Version;
use mw_core::cilium::world::Origin;
use mw_core::names::{CiliumName, NodeName, Owner};
use mw_core::seen::Seen;
use mw_core::time::Timestamp;
use serde::Deserialize;
use serde_json::Value;

/// A cluster in a story. `a` has id 1 and address 192.0.2.1, `b` has 2, and so
/// on.
#[derive(Deserialize, Debug, Clone)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Sketch {
    pub(crate) name: Option<String>,
    pub(crate) id: Option<String>,
    max: u32,
    small_ids: bool,
    set_by_us: Option<i64>,
    namespaces_global: bool,
    remembered: Option<String>,
    no_config: bool,
    no_cilium: bool,
    ready: u32,
    version: String,
    agent_files: Vec<String>,
    agent_aliases: Vec<String>,
    started: Option<i64>,
    no_apiserver: bool,
    available: u32,
    pub(crate) kvstoremesh: bool,
    server_files: Vec<String>,
    server_aliases: Vec<String>,
    no_service: bool,
    service_type: String,
    ips: Option<Vec<String>>,
    hostnames: Vec<String>,
    ports: Vec<(String, u16, u16)>,
    elb: Option<String>,
    nodes: BTreeMap<String, SketchedNode>,
    ca: String,
    trusts: Vec<String>,
    root: bool,
    root_key: bool,
    root_withheld: bool,
    certificates: Vec<String>,
    /// Certificates whose Secrets exist and can't be parsed.
    broken: Vec<String>,
    certificate_names: Option<Vec<String>>,
    issued_to: Option<String>,
    /// legacy, migration or cluster.
    auth_mode: String,
    /// users.yaml of the ConfigMap clustermesh-remote-users.
    users: Option<String>,
    users_of_helm: bool,
    not_after: i64,
    ca_not_after: i64,
    /// helm, job, or the name of cert-manager's Certificate.
    made_by: String,
    hubble: Vec<String>,
    namespaces: Vec<String>,
    global_namespaces: BTreeMap<String, String>,
    services: BTreeMap<String, SketchedService>,
    slices: Vec<SketchedSlice>,
    crds: Vec<String>,
    policies: BTreeMap<String, SketchedPolicy>,
    keys: BTreeMap<String, SketchedKey>,
    unknown: Vec<String>,
    silent: Option<String>,
    forbidden: Option<String>,
    /// Owner of the credentials.
    owner: String,
    /// The UID that it reports, if not its own.
    uid: Option<String>,
    private_ca: Option<String>,
    /// Another cluster that these credentials lead to.
    same_as: Option<String>,
}

#[derive(Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
struct SketchedNode {
    #[serde(default)]
    not_ready: bool,
    #[serde(default)]
    internal: Vec<String>,
    #[serde(default)]
    external: Vec<String>,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct SketchedService {
    external_name: bool,
    deleting: bool,
    labels: BTreeMap<String, String>,
    /// Values set by another manager.
    annotations: BTreeMap<String, String>,
    ours: BTreeMap<String, String>,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct SketchedSlice {
    service: String,
    managed_by: String,
    ready: BTreeSet<String>,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(deny_unknown_fields, default)]
struct SketchedPolicy {
    labels: BTreeMap<String, String>,
    spec: Value,
}

#[derive(Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
struct SketchedKey {
    value: String,
    by: Vec<String>,
    /// Expiry of the certificate under it.
    #[serde(default)]
    ends: Option<i64>,
}

impl Default for Sketch {
    fn default() -> Self {
        let text = |text: &str| text.to_owned();
        Sketch {
            name: None,
            id: None,
            max: 255,
            small_ids: false,
            set_by_us: None,
            namespaces_global: true,
            remembered: None,
            no_config: false,
            no_cilium: false,
            ready: 3,
            version: text("1.20"),
            agent_files: vec![text("common"), text("local")],
            agent_aliases: Vec::new(),
            started: None,
            no_apiserver: false,
            available: 1,
            kvstoremesh: false,
            server_files: vec![text("common")],
            server_aliases: Vec::new(),
            no_service: false,
            service_type: text("LoadBalancer"),
            ips: None,
            hostnames: Vec::new(),
            ports: vec![(text("etcd"), 2379, 32379)],
            elb: None,
            nodes: BTreeMap::new(),
            ca: text("one"),
            trusts: Vec::new(),
            root: true,
            root_key: true,
            root_withheld: false,
            certificates: vec![text("server"), text("remote"), text("local")],
            broken: Vec::new(),
            certificate_names: None,
            issued_to: None,
            auth_mode: text("legacy"),
            users: None,
            users_of_helm: false,
            not_after: 100_000_000,
            ca_not_after: 100_000_000,
            made_by: text("helm"),
            hubble: Vec::new(),
            namespaces: vec![text("prod"), text("kube-system")],
            global_namespaces: BTreeMap::new(),
            services: BTreeMap::new(),
            slices: Vec::new(),
            crds: vec![text("default-deny"), text("end-port")],
            policies: BTreeMap::new(),
            keys: BTreeMap::new(),
            unknown: Vec::new(),
            silent: None,
            forbidden: None,
            owner: text("w1"),
            uid: None,
            private_ca: None,
            same_as: None,
        }
    }
}

/// The number of a cluster's letter.
fn number(letter: &str) -> u32 {
    letter.bytes().next().map_or(0, |first| {
        u32::from(first.to_ascii_lowercase().saturating_sub(b'a')) + 1
    })
}

impl Sketch {
    pub(crate) fn seen(&self, letter: &str) -> ClusterSeen {
        let silent = self
            .silent
            .clone()
            .map(Silence::Unreachable)
            .or(self.forbidden.clone().map(Silence::Forbidden));
        ClusterSeen {
            agents: self.known("agents", (!self.no_cilium).then(|| self.agents())),
            config: self.known("config", (!self.no_config).then(|| self.config(letter))),
            remembered: self.remembered.as_deref().map(remembered),
            certificates: self.known("certificates", self.certificates_of(letter)),
            apiserver: self.known("apiserver", (!self.no_apiserver).then(|| self.apiserver())),
            service: self.known(
                "service",
                (!self.no_service).then(|| self.mesh_service(letter)),
            ),
            nodes: self.known(
                "nodes",
                self.nodes
                    .iter()
                    .map(|(name, node)| (NodeName::from(name.as_str()), node.seen()))
                    .collect(),
            ),
            secrets: self.known("secrets", self.secrets(letter)),
            users: self.known(
                "users",
                self.users
                    .as_ref()
                    .map(|text| self.remote_users(letter, text)),
            ),
            hubble: self.known(
                "hubble",
                Hubble {
                    relay: self.has_hubble("relay"),
                    ui: self.has_hubble("ui"),
                },
            ),
            namespaces: self.known("namespaces", self.namespaces_seen()),
            services: self.known(
                "services",
                self.services
                    .iter()
                    .map(|(name, of)| (service_name(name), of.seen(&self.uid_of(letter, name))))
                    .collect(),
            ),
            slices: self.known(
                "slices",
                self.slices.iter().map(SketchedSlice::seen).collect(),
            ),
            policies: self.known(
                "policies",
                self.policies
                    .iter()
                    .map(|(name, of)| (policy_key(name), of.seen(name)))
                    .collect(),
            ),
            policy_crds: self.known("crds", self.policy_crds()),
            silent,
        }
    }

    pub(crate) fn origin(&self, letter: &str) -> Origin {
        let works = self.silent.is_none() && self.forbidden.is_none();
        Origin {
            owner: Owner::from(self.owner.as_str()),
            uid: self.uid.clone().unwrap_or(letter.to_owned()),
            private_ca: self.private_ca.clone().filter(|_| works).map(CaId),
        }
    }

    fn known<T>(&self, what: &str, value: T) -> Seen<T> {
        let unknown = self.silent.is_some()
            || self.forbidden.is_some()
            || self.unknown.iter().any(|of| of == what || of == "all");
        if unknown {
            Seen::Unknown("not listed yet".to_owned())
        } else {
            Seen::Known(value)
        }
    }

    fn has_hubble(&self, part: &str) -> bool {
        self.hubble.iter().any(|of| of == part)
    }

    fn config(&self, letter: &str) -> Config {
        Config {
            resource_version: "1".to_owned(),
            cluster_name: self.name.clone().unwrap_or(letter.to_owned()),
            cluster_id: self.id.clone().unwrap_or(number(letter).to_string()),
            max_clusters: self.max,
            small_ids: self.small_ids,
            set_by_us: self.set_by_us.map(Timestamp),
            namespaces_global: self.namespaces_global,
        }
    }

    fn version(&self) -> Option<Version> {
        Version::of_image(&format!("cilium:v{}.0", self.version))
    }

    fn agents(&self) -> Agents {
        Agents {
            ready: self.ready,
            desired: 3,
            version: self.version(),
            client_files: files(&self.agent_files),
            host_aliases: self.agent_aliases.iter().cloned().collect(),
            oldest_start: self.started.map(Timestamp),
        }
    }

    fn apiserver(&self) -> ApiServer {
        ApiServer {
            available: self.available,
            kvstoremesh: self.kvstoremesh,
            version: self.version(),
            client_files: files(&self.server_files),
            host_aliases: self.server_aliases.iter().cloned().collect(),
            cluster_users: self.auth_mode != "legacy",
            mounts_users: self.auth_mode != "legacy",
        }
    }

    fn remote_users(&self, letter: &str, text: &str) -> RemoteUsers {
        RemoteUsers {
            uid: self.uid_of(letter, "users"),
            resource_version: "1".to_owned(),
            text: text.to_owned(),
            of_helm: self.users_of_helm,
        }
    }

    fn mesh_service(&self, letter: &str) -> MeshService {
        let ports = self.ports.iter();
        MeshService {
            resource_version: "1".to_owned(),
            kind: self.service_type.clone(),
            ports: ports
                .map(|(name, port, node)| MeshPort {
                    name: name.clone(),
                    port: *port,
                    node_port: Some(*node).filter(|n| *n > 0),
                })
                .collect(),
            ingress_ips: self
                .ips
                .clone()
                .unwrap_or(vec![format!("192.0.2.{}", number(letter))]),
            ingress_hostnames: self.hostnames.clone(),
            elb_id: self.elb.clone(),
        }
    }

    fn certificates_of(&self, letter: &str) -> Certificates {
        let is_broken = |kind: &str| self.broken.iter().any(|of| of == kind);
        let issued = |kind: &str| match is_broken(kind) {
            true => Seen::Unknown(format!(
                "Secret clustermesh-apiserver-{kind}-cert: tls.crt is not a certificate"
            )),
            false => Seen::Known(
                self.certificates
                    .iter()
                    .any(|of| of == kind)
                    .then(|| self.certificate(letter, kind)),
            ),
        };
        let root = RootCa {
            ca: CaId(self.ca.clone()),
            certificate: SecretBytes::new(format!("{} root", self.ca).as_bytes()),
            key: self
                .root_key
                .then(|| SecretBytes::new(format!("SECRET {} root key", self.ca).as_bytes())),
            helm_labels: BTreeMap::from([(
                "app.kubernetes.io/managed-by".to_owned(),
                "Helm".to_owned(),
            )]),
            helm_annotations: BTreeMap::new(),
            not_after: Timestamp(self.ca_not_after),
            maker: self.maker(),
        };
        let root = match is_broken("root") || self.root_withheld {
            true => Seen::Unknown("Secret cilium-ca: missing ca.crt (or tls.crt)".to_owned()),
            false => Seen::Known(self.root.then_some(root)),
        };
        Certificates {
            root,
            root_withheld: self.root_withheld,
            server: issued("server"),
            remote: issued("remote"),
            local: issued("local"),
        }
    }

    fn certificate(&self, letter: &str, kind: &str) -> Certificate {
        let names = self.certificate_names.clone().unwrap_or(vec![
            "*.mesh.cilium.io".to_owned(),
            format!("192.0.2.{}", number(letter)),
        ]);
        let trusts: BTreeSet<CaId> = [&self.ca]
            .into_iter()
            .chain(&self.trusts)
            .map(|ca| CaId(ca.clone()))
            .collect();
        let file = |what: &str| {
            SecretBytes::new(format!("SECRET {letter} {kind} {what} of {}", self.ca).as_bytes())
        };
        Certificate {
            issuer: CaId(self.ca.clone()),
            files: ClientFiles {
                ca: SecretBytes::new(format!("{trusts:?}").as_bytes()),
                certificate: file("certificate"),
                key: file("key"),
            },
            trusts,
            common_name: match (&self.issued_to, kind, self.auth_mode.as_str()) {
                (Some(name), _, _) => format!("{kind}-{name}"),
                (None, "remote", "cluster") => {
                    format!("remote-{}", self.name.as_deref().unwrap_or(letter))
                }
                _ => kind.to_owned(),
            },
            names,
            not_after: Timestamp(self.not_after),
            ca_not_after: Timestamp(self.ca_not_after),
            maker: self.maker(),
        }
    }

    fn maker(&self) -> Maker {
        match self.made_by.as_str() {
            "helm" => Maker::Helm,
            "job" => Maker::Job,
            certificate => Maker::CertManager(certificate.to_owned()),
        }
    }

    /// An object's UID, unique to its cluster.
    fn uid_of(&self, letter: &str, name: &str) -> String {
        format!("{}/{name}", self.same_as.as_deref().unwrap_or(letter))
    }

    fn secrets(&self, letter: &str) -> BTreeMap<ConnectionSecret, SecretSeen> {
        let mut secrets: BTreeMap<ConnectionSecret, SecretSeen> = BTreeMap::new();
        for (path, key) in &self.keys {
            let (secret, name) = path.split_once('/').unwrap();
            let secret = ConnectionSecret::ALL
                .into_iter()
                .find(|of| of.as_str() == secret)
                .unwrap();
            let held = Held {
                value: SecretBytes::new(key.value.as_bytes()),
                managers: key.by.iter().cloned().collect(),
            };
            let seen = secrets.entry(secret).or_insert_with(|| SecretSeen {
                uid: self.uid_of(letter, secret.as_str()),
                ..SecretSeen::default()
            });
            seen.keys.insert(name.to_owned(), held);
            seen.ends
                .extend(key.ends.map(|end| (name.to_owned(), Timestamp(end))));
        }
        secrets
    }

    fn namespaces_seen(&self) -> BTreeMap<String, NamespaceSeen> {
        let global = |name: &String| NamespaceSeen {
            global: self.global_namespaces.get(name).cloned(),
            deleting: false,
        };
        self.namespaces
            .iter()
            .map(|name| (name.clone(), global(name)))
            .collect()
    }

    fn policy_crds(&self) -> PolicyCrds {
        let has = |feature: &str| self.crds.iter().any(|of| of == feature);
        let features = PolicyFeatures {
            default_deny: has("default-deny"),
            end_port: has("end-port"),
        };
        let features = (!has("none")).then_some(features);
        PolicyCrds {
            namespaced: features,
            clusterwide: features,
        }
    }
}

fn files(stems: &[String]) -> BTreeSet<String> {
    stems
        .iter()
        .flat_map(|stem| ["-ca.crt", ".crt", ".key"].map(|end| format!("{stem}-etcd-client{end}")))
        .collect()
}

/// `name/id`
fn remembered(text: &str) -> Identity {
    let (name, id) = text.split_once('/').unwrap();
    Identity {
        name: CiliumName::try_from(name).ok(),
        id: id.parse().ok(),
    }
}

impl SketchedNode {
    fn seen(&self) -> NodeAddresses {
        NodeAddresses {
            ready: !self.not_ready,
            internal: self.internal.clone(),
            external: self.external.clone(),
        }
    }
}

impl SketchedService {
    fn seen(&self, uid: &str) -> ServiceSeen {
        let held = |all: &BTreeMap<String, String>, by: &str| -> Vec<(String, Held<String>)> {
            let managers = BTreeSet::from([by.to_owned()]);
            all.iter()
                .map(|(key, value)| {
                    (
                        key.clone(),
                        Held {
                            value: value.clone(),
                            managers: managers.clone(),
                        },
                    )
                })
                .collect()
        };
        ServiceSeen {
            uid: uid.to_owned(),
            resource_version: "1".to_owned(),
            external_name: self.external_name,
            deleting: self.deleting,
            labels: self.labels.clone(),
            annotations: held(&self.annotations, "kubectl")
                .into_iter()
                .chain(held(&self.ours, MANAGER))
                .collect(),
        }
    }
}

impl SketchedSlice {
    fn seen(&self) -> SliceSeen {
        SliceSeen {
            service: service_name(&self.service),
            managed_by: self.managed_by.clone(),
            ready: self.ready.clone(),
        }
    }
}

impl SketchedPolicy {
    fn seen(&self, name: &str) -> PolicySeen {
        let (uid, resource_version) = (name.to_owned(), "1".to_owned());
        PolicySeen {
            uid,
            resource_version,
            deleting: false,
            labels: self.labels.clone(),
            spec: self.spec.clone(),
        }
    }
}

/// `namespace/name`
pub(crate) fn service_name(text: &str) -> ServiceName {
    let (namespace, name) = text.split_once('/').unwrap();
    ServiceName {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

/// `namespace/name`, or `/name` for one that is cluster-wide.
fn policy_key(text: &str) -> PolicyKey {
    let (namespace, name) = text.split_once('/').unwrap();
    PolicyKey {
        namespace: Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty()),
        name: name.to_owned(),
    }
}
