//! Builds the view of a cluster from a dump of its objects instead of from
//! watches.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use mw_api::cilium::policy::{
    CLUSTERWIDE_CRD, CiliumClusterwideNetworkPolicy, CiliumNetworkPolicy, Definition,
    NAMESPACED_CRD,
};
use mw_api::cilium::rbac::{CA_SECRET, READ_SECRETS, REMOTE_USERS};
use mw_api::cilium::target::{
    ConfigMap, DaemonSet, Deployment, EndpointSlice, Namespace, Pod, Secret, Service,
};
use mw_api::node::Node;
use mw_core::cilium::facts::ClusterSeen;

use crate::cilium::cluster_cache::{
    API_SERVER, CONFIG, ClusterCache, app, certificate, config_map, daemon_set, definition,
    deployment, namespace, node, pod, policy, remote_users, service, slice,
};
use crate::fleet::follow::{Observed, Version};
use crate::watch_cache::{Item, WatchCache};

/// Objects in a dump. A kind without any object is unknown, not empty: every
/// cluster has some.
#[derive(Debug, Default)]
pub struct ClusterDump {
    pub namespaces: Vec<Namespace>,
    pub daemon_sets: Vec<DaemonSet>,
    pub deployments: Vec<Deployment>,
    pub pods: Vec<Pod>,
    pub config_maps: Vec<ConfigMap>,
    pub secrets: Vec<Secret>,
    pub services: Vec<Service>,
    pub nodes: Vec<Node>,
    pub slices: Vec<EndpointSlice>,
    pub policies: Vec<CiliumNetworkPolicy>,
    pub clusterwide_policies: Vec<CiliumClusterwideNetworkPolicy>,
    /// A cluster may have no policies: they are known if their CRDs are in the dump.
    pub definitions: Vec<Definition>,
}

impl ClusterDump {
    /// Returns the cluster's UID and the planner's view of it. `home` is Cilium's
    /// namespace.
    pub fn seen(self, home: &str) -> (Option<String>, ClusterSeen) {
        let cluster_cache = self.cluster_cache(home);
        (cluster_cache.uid(), cluster_cache.seen(home, None))
    }

    /// Keeps only the objects that the watches would select.
    fn cluster_cache(self, home: &str) -> ClusterCache {
        let mut cluster_cache = ClusterCache::default();
        let at_home = |meta: &ObjectMeta| meta.namespace.as_deref() == Some(home);
        let named = |meta: &ObjectMeta, name: &str| meta.name.as_deref() == Some(name);
        fill(
            &mut cluster_cache.namespaces,
            self.namespaces,
            |_| true,
            namespace,
        );
        fill(
            &mut cluster_cache.agents,
            self.daemon_sets,
            |meta| at_home(meta) && app(meta) == Some("cilium"),
            daemon_set,
        );
        fill(
            &mut cluster_cache.deployments,
            self.deployments,
            at_home,
            deployment,
        );
        fill(
            &mut cluster_cache.pods,
            self.pods,
            |meta| at_home(meta) && matches!(app(meta), Some("cilium" | API_SERVER)),
            pod,
        );
        fill(
            &mut cluster_cache.users,
            self.config_maps.clone(),
            |meta| at_home(meta) && named(meta, REMOTE_USERS),
            remote_users,
        );
        fill(
            &mut cluster_cache.config,
            self.config_maps,
            |meta| at_home(meta) && named(meta, CONFIG),
            config_map,
        );
        for name in READ_SECRETS.into_iter().chain([CA_SECRET]) {
            let watch_cache = cluster_cache.secrets.entry(name).or_default();
            fill(
                watch_cache,
                self.secrets.clone(),
                |meta| at_home(meta) && named(meta, name),
                certificate,
            );
        }
        fill(
            &mut cluster_cache.services,
            self.services,
            |_| true,
            service,
        );
        fill(&mut cluster_cache.nodes, self.nodes, |_| true, node);
        fill(&mut cluster_cache.slices, self.slices, |_| true, slice);
        if !self.definitions.is_empty() {
            list(&mut cluster_cache.policies, Vec::new());
            list(&mut cluster_cache.clusterwide, Vec::new());
        }
        fill(
            &mut cluster_cache.policies,
            self.policies,
            |_| true,
            |of| policy(&of.metadata, &of.spec),
        );
        fill(
            &mut cluster_cache.clusterwide,
            self.clusterwide_policies,
            |_| true,
            |of| policy(&of.metadata, &of.spec),
        );
        for name in [NAMESPACED_CRD, CLUSTERWIDE_CRD] {
            let watch_cache = cluster_cache.definitions.entry(name).or_default();
            fill(
                watch_cache,
                self.definitions.clone(),
                |meta| named(meta, name),
                definition,
            );
        }
        cluster_cache
    }
}

fn fill<T: Resource, K: Ord + Clone, Of: Clone + PartialEq>(
    watch_cache: &mut WatchCache<K, Of>,
    found: Vec<T>,
    counts: impl Fn(&ObjectMeta) -> bool,
    project: impl Fn(T) -> (K, Item<Of>),
) {
    if !found.is_empty() {
        list(
            watch_cache,
            found
                .into_iter()
                .filter(|of| counts(of.meta()))
                .map(project)
                .collect(),
        );
    }
}

fn list<K: Ord + Clone, Of: Clone + PartialEq>(
    watch_cache: &mut WatchCache<K, Of>,
    items: Vec<(K, Item<Of>)>,
) {
    watch_cache.observe(Observed::Listed {
        items,
        version: Version::default(),
    });
}
