//! What a cluster was found to hold, all at once: from a dump instead of by
//! watches.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use mw_api::cilium::policy::{CLUSTERWIDE_CRD, CiliumClusterwideNetworkPolicy, CiliumNetworkPolicy, Definition, NAMESPACED_CRD};
use mw_api::cilium::rbac::{CA_SECRET, READ_SECRETS, REMOTE_USERS};
use mw_api::cilium::target::{ConfigMap, DaemonSet, Deployment, EndpointSlice, Namespace, Pod, Secret, Service};
use mw_api::node::Node;
use mw_core::cilium::facts::ClusterSeen;

use crate::cilium::sights::{
    API_SERVER, CONFIG, Sights, app, certificate, config_map, daemon_set, definition, deployment, namespace, node, pod, policy,
    remote_users, service, slice,
};
use crate::fleet::follow::{Observed, Version};
use crate::mirror::{Item, Mirror};

/// Of a kind without a single object it is not known whether there is any:
/// every cluster has some.
#[derive(Debug, Default)]
pub struct Holdings {
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
    /// There may be no policy: they are known when these are.
    pub definitions: Vec<Definition>,
}

impl Holdings {
    /// The UID that it reports, and what the planner reads of it. `home` is the
    /// namespace that Cilium runs in.
    pub fn seen(self, home: &str) -> (Option<String>, ClusterSeen) {
        let sights = self.sights(home);
        (sights.uid(), sights.seen(home, None))
    }

    /// Limited to what the watches ask for.
    fn sights(self, home: &str) -> Sights {
        let mut sights = Sights::default();
        let at_home = |meta: &ObjectMeta| meta.namespace.as_deref() == Some(home);
        let named = |meta: &ObjectMeta, name: &str| meta.name.as_deref() == Some(name);
        fill(&mut sights.namespaces, self.namespaces, |_| true, namespace);
        fill(&mut sights.agents, self.daemon_sets, |meta| at_home(meta) && app(meta) == Some("cilium"), daemon_set);
        fill(&mut sights.deployments, self.deployments, at_home, deployment);
        fill(&mut sights.pods, self.pods, |meta| at_home(meta) && matches!(app(meta), Some("cilium" | API_SERVER)), pod);
        fill(&mut sights.users, self.config_maps.clone(), |meta| at_home(meta) && named(meta, REMOTE_USERS), remote_users);
        fill(&mut sights.config, self.config_maps, |meta| at_home(meta) && named(meta, CONFIG), config_map);
        for name in READ_SECRETS.into_iter().chain([CA_SECRET]) {
            let mirror = sights.secrets.entry(name).or_default();
            fill(mirror, self.secrets.clone(), |meta| at_home(meta) && named(meta, name), certificate);
        }
        fill(&mut sights.services, self.services, |_| true, service);
        fill(&mut sights.nodes, self.nodes, |_| true, node);
        fill(&mut sights.slices, self.slices, |_| true, slice);
        if !self.definitions.is_empty() {
            list(&mut sights.policies, Vec::new());
            list(&mut sights.clusterwide, Vec::new());
        }
        fill(&mut sights.policies, self.policies, |_| true, |of| policy(&of.metadata, &of.spec));
        fill(&mut sights.clusterwide, self.clusterwide_policies, |_| true, |of| policy(&of.metadata, &of.spec));
        for name in [NAMESPACED_CRD, CLUSTERWIDE_CRD] {
            let mirror = sights.definitions.entry(name).or_default();
            fill(mirror, self.definitions.clone(), |meta| named(meta, name), definition);
        }
        sights
    }
}

fn fill<T: Resource, K: Ord + Clone, Of: Clone + PartialEq>(
    mirror: &mut Mirror<K, Of>,
    found: Vec<T>,
    counts: impl Fn(&ObjectMeta) -> bool,
    project: impl Fn(T) -> (K, Item<Of>),
) {
    if !found.is_empty() {
        list(mirror, found.into_iter().filter(|of| counts(of.meta())).map(project).collect());
    }
}

fn list<K: Ord + Clone, Of: Clone + PartialEq>(mirror: &mut Mirror<K, Of>, items: Vec<(K, Item<Of>)>) {
    mirror.observe(Observed::Listed { items, version: Version::default() });
}
