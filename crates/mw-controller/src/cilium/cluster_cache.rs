//! Watches on a target cluster, and the planner's view built from them.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client, Resource};
use mw_api::cilium::observe;
use mw_api::cilium::policy::{
    CLUSTERWIDE_CRD, CiliumClusterwideNetworkPolicy, CiliumNetworkPolicy, Definition,
    NAMESPACED_CRD, policy_features, policy_seen,
};
use mw_api::cilium::rbac::{CA_SECRET, READ_SECRETS, REMOTE_USERS};
use mw_api::cilium::target::{
    ConfigMap, DaemonSet, Deployment, EndpointSlice, Namespace, Pod, Secret, Service,
};
use mw_api::node::Node;
use mw_core::cilium::facts::{
    Agents, ApiServer, ClusterSeen, Config, ConnectionSecret, Hubble, Identity, MeshService,
    NamespaceSeen, NodeAddresses, PolicyCrds, PolicyFeatures, PolicyKey, PolicySeen, RemoteUsers,
    SecretSeen, ServiceName, ServiceSeen, Silence, SliceSeen,
};
use mw_core::names::{CiliumName, ClusterId, NodeName, UNNAMED};
use mw_core::seen::Seen;
use mw_core::time::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::task::JoinSet;

use crate::cilium::certificates::{certificates, connection_secret};
use crate::cilium::engine::{Event, Input};
use crate::failure::Failure;
use crate::fleet::follow::{EventSink, RelistSignal, Version, WatchConfig, follow_member};
use crate::fleet::list::Scope;
use crate::fleet::{Feeds, Footprint, MemoryBudget, footprint};
use crate::watch_cache::{Item, Noted, WatchCache};

pub(super) const API_SERVER: &str = "clustermesh-apiserver";
pub(super) const CONFIG: &str = "cilium-config";
const AGENTS: &str = "k8s-app=cilium";
const PODS: &str = "k8s-app in (cilium,clustermesh-apiserver)";
const MOST_NODES: usize = 10_000;

/// A Cilium pod.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CachedPod {
    pub(super) is_agent: bool,
    started: Option<Timestamp>,
}

/// A Service, and its settings if it is clustermesh-apiserver's.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CachedService {
    seen: ServiceSeen,
    mesh: Option<MeshService>,
}

footprint! {
    CachedPod { is_agent, started }
    CachedService { seen, mesh }
}

#[derive(Debug, Default)]
pub(super) struct ClusterCache {
    pub(super) namespaces: WatchCache<String, NamespaceSeen>,
    pub(super) agents: WatchCache<String, Agents>,
    /// Deployments of Cilium's namespace; `ApiServer` for clustermesh-apiserver.
    pub(super) deployments: WatchCache<String, Option<ApiServer>>,
    pub(super) pods: WatchCache<String, CachedPod>,
    pub(super) config: WatchCache<String, Config>,
    pub(super) users: WatchCache<String, RemoteUsers>,
    pub(super) secrets: BTreeMap<&'static str, WatchCache<String, Secret>>,
    pub(super) services: WatchCache<ServiceName, CachedService>,
    pub(super) nodes: WatchCache<NodeName, NodeAddresses>,
    /// Watched only if a GlobalService or ConnectivityIntent exists, like the fields below.
    pub(super) slices: WatchCache<(String, String), SliceSeen>,
    pub(super) policies: WatchCache<PolicyKey, PolicySeen>,
    pub(super) clusterwide: WatchCache<PolicyKey, PolicySeen>,
    pub(super) definitions: BTreeMap<&'static str, WatchCache<String, PolicyFeatures>>,
}

/// Kinds that must be watched for objects other than bindings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Wants {
    pub(super) services: bool,
    pub(super) policies: bool,
}

/// Applies one watch event.
pub(super) type Take = Box<dyn FnOnce(&mut ClusterCache) -> Noted + Send>;

/// Starts watches on one cluster.
pub(super) struct CacheWatcher<'a, B> {
    pub(super) client: &'a Client,
    pub(super) cluster: &'a ClusterId,
    pub(super) epoch: u64,
    pub(super) namespace: &'a str,
    /// True to read the CA's Secret, which is needed only to copy it.
    pub(super) reads_ca: bool,
    pub(super) events: &'a tokio::sync::mpsc::Sender<Event>,
    pub(super) backoff: B,
    pub(super) resync: Duration,
    pub(super) relist: &'a mut RelistSignal,
    pub(super) tasks: &'a mut JoinSet<()>,
    pub(super) memory: &'a MemoryBudget,
}

fn stamp(meta: &ObjectMeta) -> (String, Version) {
    (
        meta.uid.clone().unwrap_or_default(),
        Version::of(meta.resource_version.as_deref()),
    )
}

fn item<T>(meta: &ObjectMeta, of: T) -> Item<T> {
    let (uid, version) = stamp(meta);
    Item { uid, version, of }
}

fn name(meta: &ObjectMeta) -> String {
    meta.name.clone().unwrap_or_default()
}

/// Returns the `k8s-app` label, by which Cilium marks its pods and workloads.
pub(super) fn app(meta: &ObjectMeta) -> Option<&str> {
    meta.labels.as_ref()?.get("k8s-app").map(String::as_str)
}

impl<B: FnMut() -> crate::backoff::Backoff> CacheWatcher<'_, B> {
    fn watch<T, Key, Of>(
        &mut self,
        what: &'static str,
        api: Api<T>,
        scope: Scope,
        project: impl Fn(T) -> (Key, Item<Of>) + Send + Sync + 'static,
        watch_cache: impl Fn(&mut ClusterCache) -> &mut WatchCache<Key, Of>
        + Clone
        + Send
        + Sync
        + 'static,
    ) where
        T: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        Key: Ord + Clone + Footprint + Send + Sync + 'static,
        Of: Clone + PartialEq + Footprint + Send + Sync + 'static,
    {
        let (cluster, epoch) = (self.cluster.clone(), self.epoch);
        let wrap = move |seen| {
            let watch_cache = watch_cache.clone();
            Event::Input(Input::Cached {
                cluster: cluster.clone(),
                epoch,
                what,
                take: Box::new(move |cluster_cache| watch_cache(cluster_cache).observe(seen)),
            })
        };
        let watch_config = WatchConfig {
            scope,
            backoff: (self.backoff)(),
            relist: self.relist.listen(),
            resync: self.resync,
        };
        let sink = EventSink {
            events: self.events.clone(),
            wrap,
        };
        self.tasks.spawn(follow_member(
            api,
            watch_config,
            project,
            self.memory.clone(),
            sink,
        ));
    }

    fn all<T: Resource<DynamicType = ()>>(&self) -> Api<T> {
        Api::all(self.client.clone())
    }

    fn inside<T: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>>(
        &self,
    ) -> Api<T> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    /// Watches everything that bindings need.
    pub(super) fn watch_basics(&mut self) {
        self.watch(
            "namespaces",
            self.all(),
            Scope::default(),
            namespace,
            |cluster_cache| &mut cluster_cache.namespaces,
        );
        self.watch(
            "daemonsets",
            self.inside(),
            Scope::labelled(AGENTS),
            daemon_set,
            |cluster_cache| &mut cluster_cache.agents,
        );
        self.watch(
            "deployments",
            self.inside(),
            Scope::default(),
            deployment,
            |cluster_cache| &mut cluster_cache.deployments,
        );
        self.watch(
            "pods",
            self.inside(),
            Scope::labelled(PODS),
            pod,
            |cluster_cache| &mut cluster_cache.pods,
        );
        self.watch(
            "configmaps",
            self.inside(),
            Scope::named(CONFIG),
            config_map,
            |cluster_cache| &mut cluster_cache.config,
        );
        self.watch(
            "configmaps",
            self.inside(),
            Scope::named(REMOTE_USERS),
            remote_users,
            |cluster_cache| &mut cluster_cache.users,
        );
        let ca = Some(CA_SECRET).filter(|_| self.reads_ca);
        for secret in READ_SECRETS.into_iter().chain(ca) {
            self.watch(
                "secrets",
                self.inside(),
                Scope::named(secret),
                certificate,
                move |cluster_cache| cluster_cache.secrets.entry(secret).or_default(),
            );
        }
        self.watch(
            "services",
            self.all(),
            Scope::default(),
            service,
            |cluster_cache| &mut cluster_cache.services,
        );
        self.watch(
            "nodes",
            self.all(),
            Scope::at_most(MOST_NODES),
            node,
            |cluster_cache| &mut cluster_cache.nodes,
        );
    }

    pub(super) fn watch_endpoints(&mut self) {
        self.watch(
            "endpointslices",
            self.all(),
            Scope::default(),
            slice,
            |cluster_cache| &mut cluster_cache.slices,
        );
    }

    pub(super) fn watch_policies(&mut self) {
        let namespaced = |of: CiliumNetworkPolicy| policy(&of.metadata, &of.spec);
        self.watch(
            "ciliumnetworkpolicies",
            self.all(),
            Scope::default(),
            namespaced,
            |cluster_cache| &mut cluster_cache.policies,
        );
        let clusterwide = |of: CiliumClusterwideNetworkPolicy| policy(&of.metadata, &of.spec);
        self.watch(
            "ciliumclusterwidenetworkpolicies",
            self.all(),
            Scope::default(),
            clusterwide,
            |cluster_cache| &mut cluster_cache.clusterwide,
        );
        for crd in [NAMESPACED_CRD, CLUSTERWIDE_CRD] {
            self.watch(
                "customresourcedefinitions",
                self.all(),
                Scope::named(crd),
                definition,
                move |cluster_cache| cluster_cache.definitions.entry(crd).or_default(),
            );
        }
    }
}

pub(super) fn namespace(of: Namespace) -> (String, Item<NamespaceSeen>) {
    (
        name(&of.metadata),
        item(&of.metadata, observe::namespace(&of)),
    )
}

pub(super) fn daemon_set(of: DaemonSet) -> (String, Item<Agents>) {
    (name(&of.metadata), item(&of.metadata, observe::agents(&of)))
}

pub(super) fn deployment(of: Deployment) -> (String, Item<Option<ApiServer>>) {
    let name = name(&of.metadata);
    let api_server = (name == API_SERVER).then(|| observe::api_server(&of));
    (name, item(&of.metadata, api_server))
}

pub(super) fn node(of: Node) -> (NodeName, Item<NodeAddresses>) {
    (
        NodeName::from(name(&of.metadata).as_str()),
        item(&of.metadata, observe::node_addresses(&of)),
    )
}

pub(super) fn slice(of: EndpointSlice) -> ((String, String), Item<SliceSeen>) {
    let key = (
        of.metadata.namespace.clone().unwrap_or_default(),
        name(&of.metadata),
    );
    (key, item(&of.metadata, observe::slice(&of)))
}

pub(super) fn definition(of: Definition) -> (String, Item<PolicyFeatures>) {
    (
        name(&of.metadata),
        item(&of.metadata, policy_features(&json!({ "spec": of.spec }))),
    )
}

pub(super) fn pod(of: Pod) -> (String, Item<CachedPod>) {
    let is_agent = app(&of.metadata) == Some("cilium");
    let started = of.status.start_time.as_ref().map(mw_api::time::timestamp);
    (
        name(&of.metadata),
        item(&of.metadata, CachedPod { is_agent, started }),
    )
}

pub(super) fn config_map(of: ConfigMap) -> (String, Item<Config>) {
    (name(&of.metadata), item(&of.metadata, observe::config(&of)))
}

pub(super) fn remote_users(of: ConfigMap) -> (String, Item<RemoteUsers>) {
    (
        name(&of.metadata),
        item(&of.metadata, observe::remote_users(&of)),
    )
}

pub(super) fn certificate(of: Secret) -> (String, Item<Secret>) {
    (
        name(&of.metadata),
        item(&of.metadata.clone(), observe::trimmed(of)),
    )
}

pub(super) fn service(of: Service) -> (ServiceName, Item<CachedService>) {
    let (key, seen) = observe::service(&of);
    let mesh = (key.name == API_SERVER).then(|| observe::mesh_service(&of));
    (key, item(&of.metadata, CachedService { seen, mesh }))
}

pub(super) fn policy(meta: &ObjectMeta, spec: &serde_json::Value) -> (PolicyKey, Item<PolicySeen>) {
    let (key, seen) = policy_seen(meta, spec);
    (key, item(meta, seen))
}

/// A watch without which the cluster counts as unreadable.
struct Vital<'a> {
    what: &'static str,
    is_starting: bool,
    failure: Option<&'a Failure>,
}

fn vital<'a, K: Ord + Clone, T: Clone + PartialEq>(
    what: &'static str,
    watch_cache: &'a WatchCache<K, T>,
) -> Vital<'a> {
    Vital {
        what,
        is_starting: watch_cache.is_starting(),
        failure: watch_cache.failure(),
    }
}

impl Feeds for ClusterCache {
    fn is_starting(&self) -> bool {
        self.vitals().iter().any(|vital| vital.is_starting)
    }

    fn trouble(&self) -> Option<String> {
        self.vitals()
            .iter()
            .find_map(|vital| vital.failure.map(|failure| why_not(vital.what, failure)))
    }
}

fn why_not(what: &str, failure: &Failure) -> String {
    match failure {
        Failure::Forbidden(message) => {
            format!(
                "not allowed to read {what} (403): apply config/rbac/cilium-target.yaml in this cluster ({message})"
            )
        }
        other => other.to_string(),
    }
}

impl ClusterCache {
    fn vitals(&self) -> Vec<Vital<'_>> {
        let mut all = vec![
            vital("namespaces", &self.namespaces),
            vital("daemonsets", &self.agents),
            vital("deployments", &self.deployments),
            vital("configmaps", &self.config),
            vital("services", &self.services),
        ];
        all.extend(
            READ_SECRETS
                .iter()
                .map(|name| match self.secrets.get(name) {
                    Some(watch_cache) => vital("secrets", watch_cache),
                    None => Vital {
                        what: "secrets",
                        is_starting: true,
                        failure: None,
                    },
                }),
        );
        all
    }

    /// Reports whether a basic kind has neither been listed nor failed.
    pub(super) fn lacks_something(&self) -> bool {
        let ca = self
            .secrets
            .get(CA_SECRET)
            .is_some_and(WatchCache::is_starting);
        self.is_starting()
            || self.pods.is_starting()
            || self.nodes.is_starting()
            || self.users.is_starting()
            || ca
    }

    /// Reports whether one of the wanted optional kinds has neither been listed nor failed.
    pub(super) fn lacks(&self, wants: Wants) -> bool {
        let definitions = self.definitions.values().any(WatchCache::is_starting);
        (wants.services && self.slices.is_starting())
            || (wants.policies
                && (self.policies.is_starting() || self.clusterwide.is_starting() || definitions))
    }

    /// Reason why the cluster can't be read, if any.
    pub(super) fn silence(&self) -> Option<Silence> {
        let vitals = self.vitals();
        let failed = vitals
            .iter()
            .find_map(|vital| Some((vital.what, vital.failure?)));
        failed.map(|(what, failure)| match failure {
            Failure::Unauthorized | Failure::Forbidden(_) => {
                Silence::Forbidden(why_not(what, failure))
            }
            other => Silence::Unreachable(other.to_string()),
        })
    }

    /// List counts of the kinds that we write.
    pub(super) fn lists(&self, wants: Wants) -> Vec<u64> {
        // A kind that is not served or not watched counts as listed.
        let of = |watch_cache: &WatchCache<PolicyKey, PolicySeen>| {
            if wants.policies && !is_absent(watch_cache) {
                watch_cache.lists()
            } else {
                u64::MAX
            }
        };
        let secrets = READ_SECRETS
            .iter()
            .map(|name| self.secrets.get(name).map_or(0, WatchCache::lists))
            .chain([self.ca_lists()]);
        let others = [
            self.config.lists(),
            granted_lists(&self.users),
            self.services.lists(),
            of(&self.policies),
            of(&self.clusterwide),
        ];
        secrets.chain(others).collect()
    }

    /// UID of Namespace kube-system, as the cluster reports it.
    pub(super) fn uid(&self) -> Option<String> {
        let namespaces = self.namespaces.known();
        namespaces
            .known()?
            .get("kube-system")
            .map(|of| of.uid.clone())
    }

    pub(super) fn secret(&mut self, name: &str) -> Option<&mut WatchCache<String, Secret>> {
        let name = READ_SECRETS
            .into_iter()
            .chain([CA_SECRET])
            .find(|known| *known == name)?;
        Some(self.secrets.entry(name).or_default())
    }

    pub(super) fn config(&mut self) -> &mut WatchCache<String, Config> {
        &mut self.config
    }

    pub(super) fn users(&mut self) -> &mut WatchCache<String, RemoteUsers> {
        &mut self.users
    }

    pub(super) fn services(&mut self) -> &mut WatchCache<ServiceName, CachedService> {
        &mut self.services
    }

    pub(super) fn policies(&mut self, key: &PolicyKey) -> &mut WatchCache<PolicyKey, PolicySeen> {
        if key.namespace.is_some() {
            &mut self.policies
        } else {
            &mut self.clusterwide
        }
    }

    /// Cluster name and ID in cilium-config, as far as they are valid.
    pub(super) fn identity(&self) -> Option<Identity> {
        let config = self.config.known();
        let config = &config.known()?.values().next()?.of;
        let name = Some(config.cluster_name.as_str()).filter(|name| *name != UNNAMED);
        let id = config.cluster_id.parse().ok().filter(|id| *id != 0);
        Some(Identity {
            name: name.and_then(|name| CiliumName::try_from(name).ok()),
            id,
        })
    }

    /// Pods that may serve KVStoreMesh's metrics.
    pub(super) fn mesh_pods(&self) -> Vec<String> {
        let pods = self.pods.known();
        let pods = pods.known().into_iter().flat_map(|pods| pods.iter());
        pods.filter(|(_, pod)| !pod.of.is_agent)
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Builds the planner's view of the cluster.
    pub(super) fn seen(&self, namespace: &str, remembered: Option<Identity>) -> ClusterSeen {
        if let Some(silence) = self.silence() {
            return silent(silence, remembered);
        }
        let service = |name: &str| ServiceName {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        ClusterSeen {
            silent: None,
            agents: self.agents(),
            config: map(self.config.known(), |items| {
                items.values().next().map(|item| item.of.clone())
            }),
            remembered,
            certificates: self.certificates(),
            apiserver: map(self.deployments.known(), |items| {
                items.get(API_SERVER).and_then(|item| item.of.clone())
            }),
            service: map(self.services.known(), |items| {
                items
                    .get(&service(API_SERVER))
                    .and_then(|item| item.of.mesh.clone())
            }),
            nodes: map(self.nodes.known(), |items| {
                items
                    .iter()
                    .map(|(name, item)| (name.clone(), item.of.clone()))
                    .collect()
            }),
            secrets: self.connection_secrets(),
            users: map(self.users.known(), |items| {
                items.values().next().map(|item| item.of.clone())
            }),
            hubble: map(self.deployments.known(), |items| Hubble {
                relay: items.contains_key("hubble-relay"),
                ui: items.contains_key("hubble-ui"),
            }),
            namespaces: map(self.namespaces.known(), |items| {
                items
                    .iter()
                    .map(|(name, item)| (name.clone(), item.of.clone()))
                    .collect()
            }),
            services: map(self.services.known(), |items| {
                items
                    .iter()
                    .map(|(name, item)| (name.clone(), item.of.seen.clone()))
                    .collect()
            }),
            slices: map(self.slices.known(), |items| {
                items.values().map(|item| item.of.clone()).collect()
            }),
            policies: self.all_policies(),
            policy_crds: self.policy_crds(),
        }
    }

    /// The agents' DaemonSet among all with Cilium's label, and the start of its oldest
    /// pod.
    fn agents(&self) -> Seen<Option<Agents>> {
        let pods = self.pods.known();
        let starts = pods
            .known()
            .into_iter()
            .flat_map(|pods| pods.values())
            .filter(|pod| pod.of.is_agent);
        let oldest_start = starts.filter_map(|pod| pod.of.started).min();
        map(self.agents.known(), |items| {
            let chosen = items.get("cilium").or_else(|| items.values().next());
            chosen.map(|item| Agents {
                oldest_start,
                ..item.of.clone()
            })
        })
    }

    fn certificates(&self) -> Seen<mw_core::cilium::facts::Certificates> {
        let mut found: Vec<&Secret> = Vec::new();
        for name in READ_SECRETS {
            let watch_cache = self.secrets.get(name);
            let items = watch_cache.map_or(
                Seen::Unknown("not observed yet".to_owned()),
                WatchCache::known,
            );
            match items {
                Seen::Unknown(why) => return Seen::Unknown(format!("Secret {name}: {why}")),
                Seen::Known(items) => found.extend(items.values().map(|item| &item.of)),
            }
        }
        let root = self.secrets.get(CA_SECRET);
        let withheld = root
            .is_none_or(|watch_cache| matches!(watch_cache.failure(), Some(Failure::Forbidden(_))));
        let items = root.map_or(Seen::Unknown("not read".to_owned()), WatchCache::known);
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

    /// List count of the CA's Secret. Without access to it, nothing is waited for.
    fn ca_lists(&self) -> u64 {
        self.secrets.get(CA_SECRET).map_or(u64::MAX, granted_lists)
    }

    fn connection_secrets(&self) -> Seen<BTreeMap<ConnectionSecret, SecretSeen>> {
        let mut found = BTreeMap::new();
        for secret in ConnectionSecret::ALL {
            match self.secrets.get(secret.as_str()).map_or(
                Seen::Unknown("not observed yet".to_owned()),
                WatchCache::known,
            ) {
                Seen::Unknown(why) => {
                    return Seen::Unknown(format!("Secret {}: {why}", secret.as_str()));
                }
                Seen::Known(items) => found.extend(
                    items
                        .values()
                        .next()
                        .map(|item| (secret, connection_secret(&item.of))),
                ),
            }
        }
        Seen::Known(found)
    }

    fn all_policies(&self) -> Seen<BTreeMap<PolicyKey, PolicySeen>> {
        let mut all = BTreeMap::new();
        for watch_cache in [&self.policies, &self.clusterwide] {
            match served(watch_cache) {
                Seen::Unknown(why) => return Seen::Unknown(why),
                Seen::Known(items) => all.extend(
                    items
                        .into_iter()
                        .flatten()
                        .map(|(key, item)| (key.clone(), item.of.clone())),
                ),
            }
        }
        Seen::Known(all)
    }

    fn policy_crds(&self) -> Seen<PolicyCrds> {
        let of = |crd: &str| match self.definitions.get(crd).map(WatchCache::known) {
            None => Seen::Unknown("policy CRDs not observed yet".to_owned()),
            Some(known) => map(known, |items| items.values().next().map(|item| item.of)),
        };
        match (of(NAMESPACED_CRD), of(CLUSTERWIDE_CRD)) {
            (Seen::Known(namespaced), Seen::Known(clusterwide)) => Seen::Known(PolicyCrds {
                namespaced,
                clusterwide,
            }),
            (Seen::Unknown(why), _) | (_, Seen::Unknown(why)) => Seen::Unknown(why),
        }
    }
}

/// Builds the view of an unreadable cluster. Watches notice an outage at different
/// times, so what some of them still show does not count.
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

/// List count of a kind that the credentials may not be allowed to read.
fn granted_lists<K: Ord + Clone, T: Clone + PartialEq>(watch_cache: &WatchCache<K, T>) -> u64 {
    if matches!(watch_cache.failure(), Some(Failure::Forbidden(_))) {
        u64::MAX
    } else {
        watch_cache.lists()
    }
}

fn is_absent<K: Ord + Clone, T: Clone + PartialEq>(watch_cache: &WatchCache<K, T>) -> bool {
    matches!(watch_cache.failure(), Some(Failure::NotFound(_)))
}

/// Returns the objects of a kind; none if the cluster does not serve the kind.
fn served<K: Ord + Clone, T: Clone + PartialEq>(
    watch_cache: &WatchCache<K, T>,
) -> Seen<Option<&BTreeMap<K, Item<T>>>> {
    if is_absent(watch_cache) {
        Seen::Known(None)
    } else {
        map(watch_cache.known(), Some)
    }
}

fn map<T, U>(seen: Seen<T>, with: impl FnOnce(T) -> U) -> Seen<U> {
    match seen {
        Seen::Known(value) => Seen::Known(with(value)),
        Seen::Unknown(why) => Seen::Unknown(why),
    }
}
