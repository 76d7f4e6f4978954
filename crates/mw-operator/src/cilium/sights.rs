//! What is followed in a target cluster, and what it amounts to.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client, Resource};
use mw_api::cilium::observe;
use mw_api::cilium::policy::{
    CLUSTERWIDE_CRD, CiliumClusterwideNetworkPolicy, CiliumNetworkPolicy, Definition, NAMESPACED_CRD, policy_features, policy_seen,
};
use mw_api::cilium::rbac::{CA_SECRET, READ_SECRETS, REMOTE_USERS};
use mw_api::cilium::target::{ConfigMap, DaemonSet, Deployment, EndpointSlice, Namespace, Pod, Secret, Service};
use mw_api::node::Node;
use mw_core::cilium::facts::{
    ClusterSeen, Config, ConnectionSecret, Hubble, Identity, MeshService, NamespaceSeen, NodeAddresses, PolicyCrds, PolicyFeatures,
    PolicyKey, PolicySeen, RemoteUsers, ServiceName, ServiceSeen, Silence, SliceSeen,
};
use mw_core::names::{CiliumName, ClusterId, NodeName, UNNAMED};
use mw_core::seen::Seen;
use mw_core::time::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::task::JoinSet;

use crate::cilium::certificates::certificates;
use crate::cilium::engine::Event;
use crate::failure::Failure;
use crate::fleet::Feeds;
use crate::fleet::follow::{Bell, Manner, Outlet, Version, follow};
use crate::fleet::list::Scope;
use crate::mirror::{Item, Mirror, Noted};

pub(super) const API_SERVER: &str = "clustermesh-apiserver";
pub(super) const CONFIG: &str = "cilium-config";
const AGENTS: &str = "k8s-app=cilium";
const PODS: &str = "k8s-app in (cilium,clustermesh-apiserver)";
const MOST_NODES: usize = 10_000;

/// A pod of Cilium's.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PodSight {
    pub(super) is_agent: bool,
    started: Option<Timestamp>,
}

/// A Service, and what it says as the clustermesh-apiserver's.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ServiceSight {
    seen: ServiceSeen,
    mesh: Option<MeshService>,
}

#[derive(Debug, Default)]
pub(super) struct Sights {
    pub(super) namespaces: Mirror<String, NamespaceSeen>,
    pub(super) agents: Mirror<String, DaemonSet>,
    pub(super) deployments: Mirror<String, Deployment>,
    pub(super) pods: Mirror<String, PodSight>,
    pub(super) config: Mirror<String, Config>,
    pub(super) users: Mirror<String, RemoteUsers>,
    pub(super) secrets: BTreeMap<&'static str, Mirror<String, Secret>>,
    pub(super) services: Mirror<ServiceName, ServiceSight>,
    pub(super) nodes: Mirror<NodeName, NodeAddresses>,
    /// Only where a GlobalService or an intent asks for them.
    pub(super) slices: Mirror<(String, String), SliceSeen>,
    pub(super) policies: Mirror<PolicyKey, PolicySeen>,
    pub(super) clusterwide: Mirror<PolicyKey, PolicySeen>,
    pub(super) definitions: BTreeMap<&'static str, Mirror<String, PolicyFeatures>>,
}

/// What some objects need to be followed beyond what bindings do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Wants {
    pub(super) services: bool,
    pub(super) policies: bool,
}

/// Takes what a watch said.
pub(super) type Take = Box<dyn FnOnce(&mut Sights) -> Noted + Send>;

/// Starts watches on one cluster.
pub(super) struct Lookout<'a, B> {
    pub(super) client: &'a Client,
    pub(super) cluster: &'a ClusterId,
    pub(super) epoch: u64,
    pub(super) namespace: &'a str,
    /// Whether the CA's Secret is read: only where it may be copied.
    pub(super) reads_ca: bool,
    pub(super) events: &'a tokio::sync::mpsc::Sender<Event>,
    pub(super) backoff: B,
    pub(super) resync: Duration,
    pub(super) relist: &'a mut Bell,
    pub(super) tasks: &'a mut JoinSet<()>,
}

fn stamp(meta: &ObjectMeta) -> (String, Version) {
    (meta.uid.clone().unwrap_or_default(), Version::of(meta.resource_version.as_deref()))
}

fn item<T>(meta: &ObjectMeta, of: T) -> Item<T> {
    let (uid, version) = stamp(meta);
    Item { uid, version, of }
}

fn name(meta: &ObjectMeta) -> String {
    meta.name.clone().unwrap_or_default()
}

/// What a pod or its owner is part of, as Cilium labels it.
pub(super) fn app(meta: &ObjectMeta) -> Option<&str> {
    meta.labels.as_ref()?.get("k8s-app").map(String::as_str)
}

impl<B: FnMut() -> crate::backoff::Backoff> Lookout<'_, B> {
    fn watch<T, Key, Of>(
        &mut self,
        what: &'static str,
        api: Api<T>,
        scope: Scope,
        project: impl Fn(T) -> (Key, Item<Of>) + Send + Sync + 'static,
        mirror: impl Fn(&mut Sights) -> &mut Mirror<Key, Of> + Clone + Send + Sync + 'static,
    ) where
        T: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        Key: Ord + Clone + Send + Sync + 'static,
        Of: Clone + PartialEq + Send + Sync + 'static,
    {
        let (cluster, epoch) = (self.cluster.clone(), self.epoch);
        let wrap = move |seen| {
            let mirror = mirror.clone();
            Event::Sight { cluster: cluster.clone(), epoch, what, take: Box::new(move |sights| mirror(sights).observe(seen)) }
        };
        let manner = Manner { scope, backoff: (self.backoff)(), relist: self.relist.listen(), resync: self.resync };
        let outlet = Outlet { events: self.events.clone(), wrap };
        self.tasks.spawn(follow(api, manner, project, outlet));
    }

    fn all<T: Resource<DynamicType = ()>>(&self) -> Api<T> {
        Api::all(self.client.clone())
    }

    fn inside<T: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>>(&self) -> Api<T> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    /// What a binding needs to know of a cluster.
    pub(super) fn watch_basics(&mut self) {
        self.watch("namespaces", self.all(), Scope::default(), namespace, |sights| &mut sights.namespaces);
        self.watch("daemonsets", self.inside(), Scope::labelled(AGENTS), daemon_set, |sights| &mut sights.agents);
        self.watch("deployments", self.inside(), Scope::default(), deployment, |sights| &mut sights.deployments);
        self.watch("pods", self.inside(), Scope::labelled(PODS), pod, |sights| &mut sights.pods);
        self.watch("configmaps", self.inside(), Scope::named(CONFIG), config_map, |sights| &mut sights.config);
        self.watch("configmaps", self.inside(), Scope::named(REMOTE_USERS), remote_users, |sights| &mut sights.users);
        let ca = Some(CA_SECRET).filter(|_| self.reads_ca);
        for secret in READ_SECRETS.into_iter().chain(ca) {
            self.watch("secrets", self.inside(), Scope::named(secret), certificate, move |sights| {
                sights.secrets.entry(secret).or_default()
            });
        }
        self.watch("services", self.all(), Scope::default(), service, |sights| &mut sights.services);
        self.watch("nodes", self.all(), Scope::at_most(MOST_NODES), node, |sights| &mut sights.nodes);
    }

    pub(super) fn watch_endpoints(&mut self) {
        self.watch("endpointslices", self.all(), Scope::default(), slice, |sights| &mut sights.slices);
    }

    pub(super) fn watch_policies(&mut self) {
        let namespaced = |of: CiliumNetworkPolicy| policy(&of.metadata, &of.spec);
        self.watch("ciliumnetworkpolicies", self.all(), Scope::default(), namespaced, |sights| &mut sights.policies);
        let clusterwide = |of: CiliumClusterwideNetworkPolicy| policy(&of.metadata, &of.spec);
        self.watch("ciliumclusterwidenetworkpolicies", self.all(), Scope::default(), clusterwide, |sights| &mut sights.clusterwide);
        for crd in [NAMESPACED_CRD, CLUSTERWIDE_CRD] {
            self.watch("customresourcedefinitions", self.all(), Scope::named(crd), definition, move |sights| {
                sights.definitions.entry(crd).or_default()
            });
        }
    }
}

pub(super) fn namespace(of: Namespace) -> (String, Item<NamespaceSeen>) {
    (name(&of.metadata), item(&of.metadata, observe::namespace(&of)))
}

pub(super) fn daemon_set(of: DaemonSet) -> (String, Item<DaemonSet>) {
    (name(&of.metadata), item(&of.metadata.clone(), of))
}

pub(super) fn deployment(of: Deployment) -> (String, Item<Deployment>) {
    (name(&of.metadata), item(&of.metadata.clone(), of))
}

pub(super) fn node(of: Node) -> (NodeName, Item<NodeAddresses>) {
    (NodeName::from(name(&of.metadata).as_str()), item(&of.metadata, observe::node_addresses(&of)))
}

pub(super) fn slice(of: EndpointSlice) -> ((String, String), Item<SliceSeen>) {
    let key = (of.metadata.namespace.clone().unwrap_or_default(), name(&of.metadata));
    (key, item(&of.metadata, observe::slice(&of)))
}

pub(super) fn definition(of: Definition) -> (String, Item<PolicyFeatures>) {
    (name(&of.metadata), item(&of.metadata, policy_features(&json!({ "spec": of.spec }))))
}

pub(super) fn pod(of: Pod) -> (String, Item<PodSight>) {
    let is_agent = app(&of.metadata) == Some("cilium");
    let started = of.status.start_time.as_ref().map(mw_api::convert::timestamp);
    (name(&of.metadata), item(&of.metadata, PodSight { is_agent, started }))
}

pub(super) fn config_map(of: ConfigMap) -> (String, Item<Config>) {
    (name(&of.metadata), item(&of.metadata, observe::config(&of)))
}

pub(super) fn remote_users(of: ConfigMap) -> (String, Item<RemoteUsers>) {
    (name(&of.metadata), item(&of.metadata, observe::remote_users(&of)))
}

pub(super) fn certificate(of: Secret) -> (String, Item<Secret>) {
    (name(&of.metadata), item(&of.metadata.clone(), of))
}

pub(super) fn service(of: Service) -> (ServiceName, Item<ServiceSight>) {
    let (key, seen) = observe::service(&of);
    let mesh = (key.name == API_SERVER).then(|| observe::mesh_service(&of));
    (key, item(&of.metadata, ServiceSight { seen, mesh }))
}

pub(super) fn policy(meta: &ObjectMeta, spec: &serde_json::Value) -> (PolicyKey, Item<PolicySeen>) {
    let (key, seen) = policy_seen(meta, spec);
    (key, item(meta, seen))
}

/// The watches without which nothing can be said of a cluster.
struct Vital<'a> {
    what: &'static str,
    is_starting: bool,
    failure: Option<&'a Failure>,
}

fn vital<'a, K: Ord + Clone, T: Clone + PartialEq>(what: &'static str, mirror: &'a Mirror<K, T>) -> Vital<'a> {
    Vital { what, is_starting: mirror.is_starting(), failure: mirror.failure() }
}

impl Feeds for Sights {
    fn is_starting(&self) -> bool {
        self.vitals().iter().any(|vital| vital.is_starting)
    }

    fn trouble(&self) -> Option<String> {
        self.vitals().iter().find_map(|vital| vital.failure.map(|failure| why_not(vital.what, failure)))
    }
}

fn why_not(what: &str, failure: &Failure) -> String {
    match failure {
        Failure::Forbidden(message) => {
            format!("reading its {what} is not allowed (403): apply config/rbac/cilium-target.yaml there ({message})")
        }
        other => other.to_string(),
    }
}

impl Sights {
    fn vitals(&self) -> Vec<Vital<'_>> {
        let mut all = vec![
            vital("namespaces", &self.namespaces),
            vital("daemonsets", &self.agents),
            vital("deployments", &self.deployments),
            vital("configmaps", &self.config),
            vital("services", &self.services),
        ];
        all.extend(READ_SECRETS.iter().map(|name| match self.secrets.get(name) {
            Some(mirror) => vital("secrets", mirror),
            None => Vital { what: "secrets", is_starting: true, failure: None },
        }));
        all
    }

    /// Whether something was neither listed yet nor found to be out of reach.
    pub(super) fn lacks_something(&self) -> bool {
        let ca = self.secrets.get(CA_SECRET).is_some_and(Mirror::is_starting);
        self.is_starting() || self.pods.is_starting() || self.nodes.is_starting() || self.users.is_starting() || ca
    }

    /// Why it can't be read, if it can't.
    pub(super) fn silence(&self) -> Option<Silence> {
        let vitals = self.vitals();
        let failed = vitals.iter().find_map(|vital| Some((vital.what, vital.failure?)));
        failed.map(|(what, failure)| match failure {
            Failure::Unauthorized | Failure::Forbidden(_) => Silence::Forbidden(why_not(what, failure)),
            other => Silence::Unreachable(other.to_string()),
        })
    }

    /// How often each kind was listed that we write.
    pub(super) fn lists(&self, wants: Wants) -> Vec<u64> {
        // What is not there, and what is not looked at, is as good as listed.
        let of = |mirror: &Mirror<PolicyKey, PolicySeen>| if wants.policies && !is_absent(mirror) { mirror.lists() } else { u64::MAX };
        let secrets = READ_SECRETS.iter().map(|name| self.secrets.get(name).map_or(0, Mirror::lists)).chain([self.ca_lists()]);
        let others = [self.config.lists(), granted_lists(&self.users), self.services.lists(), of(&self.policies), of(&self.clusterwide)];
        secrets.chain(others).collect()
    }

    /// The UID of its Namespace kube-system, as the cluster reports it.
    pub(super) fn uid(&self) -> Option<String> {
        let namespaces = self.namespaces.known();
        namespaces.known()?.get("kube-system").map(|of| of.uid.clone())
    }

    pub(super) fn secret(&mut self, name: &str) -> Option<&mut Mirror<String, Secret>> {
        let name = READ_SECRETS.into_iter().chain([CA_SECRET]).find(|known| *known == name)?;
        Some(self.secrets.entry(name).or_default())
    }

    pub(super) fn config(&mut self) -> &mut Mirror<String, Config> {
        &mut self.config
    }

    pub(super) fn users(&mut self) -> &mut Mirror<String, RemoteUsers> {
        &mut self.users
    }

    pub(super) fn services(&mut self) -> &mut Mirror<ServiceName, ServiceSight> {
        &mut self.services
    }

    pub(super) fn policies(&mut self, key: &PolicyKey) -> &mut Mirror<PolicyKey, PolicySeen> {
        if key.namespace.is_some() { &mut self.policies } else { &mut self.clusterwide }
    }

    /// The identity that stands in cilium-config, as far as it is one.
    pub(super) fn identity(&self) -> Option<Identity> {
        let config = self.config.known();
        let config = &config.known()?.values().next()?.of;
        let name = Some(config.cluster_name.as_str()).filter(|name| *name != UNNAMED);
        let id = config.cluster_id.parse().ok().filter(|id| *id != 0);
        Some(Identity { name: name.and_then(|name| CiliumName::try_from(name).ok()), id })
    }

    /// The pods that may tell how far KVStoreMesh is.
    pub(super) fn mesh_pods(&self) -> Vec<String> {
        let pods = self.pods.known();
        let pods = pods.known().into_iter().flat_map(|pods| pods.iter());
        pods.filter(|(_, pod)| !pod.of.is_agent).map(|(name, _)| name.clone()).collect()
    }

    /// Everything for the planner.
    pub(super) fn seen(&self, namespace: &str, remembered: Option<Identity>) -> ClusterSeen {
        if let Some(silence) = self.silence() {
            return silent(silence, remembered);
        }
        let service = |name: &str| ServiceName { namespace: namespace.to_owned(), name: name.to_owned() };
        ClusterSeen {
            silent: None,
            agents: self.agents(),
            config: map(self.config.known(), |items| items.values().next().map(|item| item.of.clone())),
            remembered,
            certificates: self.certificates(),
            apiserver: map(self.deployments.known(), |items| items.get(API_SERVER).map(|item| observe::api_server(&item.of))),
            service: map(self.services.known(), |items| items.get(&service(API_SERVER)).and_then(|item| item.of.mesh.clone())),
            nodes: map(self.nodes.known(), |items| items.iter().map(|(name, item)| (name.clone(), item.of.clone())).collect()),
            secrets: self.connection_secrets(),
            users: map(self.users.known(), |items| items.values().next().map(|item| item.of.clone())),
            hubble: map(self.deployments.known(), |items| Hubble {
                relay: items.contains_key("hubble-relay"),
                ui: items.contains_key("hubble-ui"),
            }),
            namespaces: map(self.namespaces.known(), |items| items.iter().map(|(name, item)| (name.clone(), item.of.clone())).collect()),
            services: map(self.services.known(), |items| items.iter().map(|(name, item)| (name.clone(), item.of.seen.clone())).collect()),
            slices: map(self.slices.known(), |items| items.values().map(|item| item.of.clone()).collect()),
            policies: self.all_policies(),
            policy_crds: self.policy_crds(),
        }
    }

    fn agents(&self) -> Seen<Option<mw_core::cilium::facts::Agents>> {
        let pods = self.pods.known();
        let starts = pods.known().into_iter().flat_map(|pods| pods.values()).filter(|pod| pod.of.is_agent);
        let oldest = starts.filter_map(|pod| pod.of.started).min();
        map(self.agents.known(), |items| {
            let sets: Vec<DaemonSet> = items.values().map(|item| item.of.clone()).collect();
            observe::choose_agents(&sets).map(|set| observe::agents(set, oldest))
        })
    }

    fn certificates(&self) -> Seen<mw_core::cilium::facts::Certificates> {
        let mut found: Vec<&Secret> = Vec::new();
        for name in READ_SECRETS {
            let mirror = self.secrets.get(name);
            let items = mirror.map_or(Seen::Unknown("it was not listed yet".to_owned()), Mirror::known);
            match items {
                Seen::Unknown(why) => return Seen::Unknown(format!("Secret {name}: {why}")),
                Seen::Known(items) => found.extend(items.values().map(|item| &item.of)),
            }
        }
        let root = self.secrets.get(CA_SECRET);
        let withheld = root.is_none_or(|mirror| matches!(mirror.failure(), Some(Failure::Forbidden(_))));
        let items = root.map_or(Seen::Unknown("it is not read".to_owned()), Mirror::known);
        let unknown = match items {
            Seen::Unknown(why) => Some(format!("Secret {CA_SECRET}: {why}")),
            Seen::Known(items) => {
                found.extend(items.values().map(|item| &item.of));
                None
            }
        };
        let mut seen = certificates(found);
        seen.root_withheld = withheld;
        if let Some(why) = unknown {
            seen.root = Seen::Unknown(why);
        }
        Seen::Known(seen)
    }

    /// How often the CA's Secret was listed. If it can't be, nothing is waited for.
    fn ca_lists(&self) -> u64 {
        self.secrets.get(CA_SECRET).map_or(u64::MAX, granted_lists)
    }

    fn connection_secrets(&self) -> Seen<BTreeMap<ConnectionSecret, mw_core::cilium::facts::SecretSeen>> {
        let mut found = BTreeMap::new();
        for secret in ConnectionSecret::ALL {
            match self.secrets.get(secret.as_str()).map_or(Seen::Unknown("it was not listed yet".to_owned()), Mirror::known) {
                Seen::Unknown(why) => return Seen::Unknown(format!("Secret {}: {why}", secret.as_str())),
                Seen::Known(items) => found.extend(items.values().next().map(|item| (secret, observe::connection_secret(&item.of)))),
            }
        }
        Seen::Known(found)
    }

    fn all_policies(&self) -> Seen<BTreeMap<PolicyKey, PolicySeen>> {
        let mut all = BTreeMap::new();
        for mirror in [&self.policies, &self.clusterwide] {
            match served(mirror) {
                Seen::Unknown(why) => return Seen::Unknown(why),
                Seen::Known(items) => all.extend(items.into_iter().flatten().map(|(key, item)| (key.clone(), item.of.clone()))),
            }
        }
        Seen::Known(all)
    }

    fn policy_crds(&self) -> Seen<PolicyCrds> {
        let of = |crd: &str| match self.definitions.get(crd).map(Mirror::known) {
            None => Seen::Unknown("the CRDs of policies were not looked at yet".to_owned()),
            Some(known) => map(known, |items| items.values().next().map(|item| item.of)),
        };
        match (of(NAMESPACED_CRD), of(CLUSTERWIDE_CRD)) {
            (Seen::Known(namespaced), Seen::Known(clusterwide)) => Seen::Known(PolicyCrds { namespaced, clusterwide }),
            (Seen::Unknown(why), _) | (_, Seen::Unknown(why)) => Seen::Unknown(why),
        }
    }
}

/// Watches do not all notice at once: what some of them still show does not count.
pub(super) fn silent(silence: Silence, remembered: Option<Identity>) -> ClusterSeen {
    let (Silence::Unreachable(why) | Silence::Forbidden(why)) = &silence;
    let why = why.clone();
    ClusterSeen {
        agents: Seen::Unknown(why.clone()),
        config: Seen::Unknown(why.clone()),
        remembered,
        certificates: Seen::Unknown(why.clone()),
        apiserver: Seen::Unknown(why.clone()),
        service: Seen::Unknown(why.clone()),
        nodes: Seen::Unknown(why.clone()),
        secrets: Seen::Unknown(why.clone()),
        users: Seen::Unknown(why.clone()),
        hubble: Seen::Unknown(why.clone()),
        namespaces: Seen::Unknown(why.clone()),
        services: Seen::Unknown(why.clone()),
        slices: Seen::Unknown(why.clone()),
        policies: Seen::Unknown(why.clone()),
        policy_crds: Seen::Unknown(why),
        silent: Some(silence),
    }
}

/// How often something was listed that credentials may lack the right to.
fn granted_lists<K: Ord + Clone, T: Clone + PartialEq>(mirror: &Mirror<K, T>) -> u64 {
    if matches!(mirror.failure(), Some(Failure::Forbidden(_))) { u64::MAX } else { mirror.lists() }
}

fn is_absent<K: Ord + Clone, T: Clone + PartialEq>(mirror: &Mirror<K, T>) -> bool {
    matches!(mirror.failure(), Some(Failure::NotFound(_)))
}

/// Of a kind that the cluster does not serve there is nothing.
fn served<K: Ord + Clone, T: Clone + PartialEq>(mirror: &Mirror<K, T>) -> Seen<Option<&BTreeMap<K, Item<T>>>> {
    if is_absent(mirror) { Seen::Known(None) } else { map(mirror.known(), Some) }
}

fn map<T, U>(seen: Seen<T>, with: impl FnOnce(T) -> U) -> Seen<U> {
    match seen {
        Seen::Known(value) => Seen::Known(with(value)),
        Seen::Unknown(why) => Seen::Unknown(why),
    }
}
