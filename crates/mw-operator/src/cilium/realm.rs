//! Where objects come from: the hub, or the endpoints of an export in kcp,
//! behind each of which there may be any number of tenants.

use std::collections::{BTreeMap, BTreeSet};

use http::Uri;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::client::ConfigExt;
use kube::core::DynamicObject;
use kube::{Api, Client, Config};
use mw_api::cilium::fleet::KubernetesCluster;
use mw_api::cilium::kcp::{ANNOTATION_CLUSTER, ANNOTATION_PATH, ApiBinding, EndpointSlice};
use mw_core::names::Workspace;
use mw_core::seen::Seen;
use mw_core::text::printable;
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::cilium::engine::{Engine, Event};
use crate::cilium::record::{Kind, Record};
use crate::fleet::Feed;
use crate::fleet::follow::{Manner, Observed, Outlet, Version, follow};
use crate::fleet::list::Scope;
use crate::mirror::{Item, Mirror, Noted};
use crate::transport::{Rules, client};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Realm {
    Hub,
    /// The URL of an endpoint, as its slice gives it.
    Endpoint(String),
}

/// The way into kcp.
#[derive(Clone)]
pub struct Portal {
    /// Leads to the workspace with the export.
    config: Config,
    /// Scheme, host and port that take the place of those that kcp tells.
    external: Option<Uri>,
}

impl std::fmt::Debug for Portal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Portal").field("url", &self.config.cluster_url).field("external", &self.external).finish_non_exhaustive()
    }
}

impl Portal {
    /// Fails where no client could be made of it.
    pub fn new(config: Config, external: Option<Uri>) -> Result<Portal, kube::Error> {
        config.rustls_client_config()?;
        config.auth_layer()?;
        Ok(Portal { config, external })
    }

    /// Of the workspace that the export is in.
    fn provider(&self, rules: Rules) -> Result<Client, String> {
        client(self.config.clone(), rules).map_err(|wrong| wrong.to_string())
    }

    /// Of one workspace behind an endpoint, or of all with `*`.
    fn workspace(&self, endpoint: &str, workspace: &str, rules: Rules) -> Result<Client, String> {
        let mut config = self.config.clone();
        config.cluster_url = self.reached(endpoint, workspace)?;
        client(config, rules).map_err(|wrong| wrong.to_string())
    }

    fn reached(&self, endpoint: &str, workspace: &str) -> Result<Uri, String> {
        let wrong = |what: &dyn std::fmt::Display| format!("{} is no URL: {what}", printable(endpoint, 300));
        let told: Uri = format!("{endpoint}/clusters/{workspace}").parse().map_err(|error| wrong(&error))?;
        let Some(external) = &self.external else { return Ok(told) };
        let mut parts = told.into_parts();
        (parts.scheme, parts.authority) = (external.scheme().cloned(), external.authority().cloned());
        Uri::from_parts(parts).map_err(|error| wrong(&error))
    }
}

/// An object of one workspace among many.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Spot {
    pub(super) workspace: Workspace,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// A workspace that is bound to the export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tenant {
    /// Like `root:tenant-a`, where it is told.
    pub(super) path: Option<String>,
    /// Whether its KubernetesClusters can be seen.
    pub(super) shows_clusters: bool,
}

/// One endpoint, and what is seen through it.
pub(super) struct Endpoint {
    pub(super) tenants: Mirror<Workspace, Tenant>,
    pub(super) clusters: Mirror<Spot, KubernetesCluster>,
    /// How often APIBindings had been listed when a KubernetesCluster was last
    /// seen to vanish: a claim that is withdrawn looks just like it.
    vanished_at: Option<u64>,
    /// For writes, by workspace.
    clients: BTreeMap<Workspace, Client>,
    /// Ends what is followed through it.
    _tasks: JoinSet<()>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").finish_non_exhaustive()
    }
}

impl Endpoint {
    fn observe_clusters(&mut self, seen: Observed<(Spot, Item<KubernetesCluster>)>) -> Noted {
        let vanishes = match &seen {
            Observed::Gone { .. } => true,
            Observed::Listed { items, .. } => {
                let listed: BTreeSet<&Spot> = items.iter().map(|(spot, _)| spot).collect();
                matches!(self.clusters.last_known(), Seen::Known(shown) if shown.keys().any(|spot| !listed.contains(spot)))
            }
            _ => false,
        };
        if vanishes {
            self.vanished_at = Some(self.tenants.lists());
        }
        self.clusters.observe(seen)
    }

    /// Whether no APIBinding was listed since a KubernetesCluster vanished.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.vanished_at.is_some_and(|lists| self.tenants.lists() <= lists)
    }
}

/// What was seen through an endpoint.
#[derive(Debug)]
pub(super) enum EndpointNews {
    Tenants(Observed<(Workspace, Item<Tenant>)>),
    Clusters(Box<Observed<(Spot, Item<KubernetesCluster>)>>),
}

/// The workspace that an object is in.
pub(super) fn workspace_of(meta: &ObjectMeta) -> Workspace {
    let id = meta.annotations.as_ref().and_then(|all| all.get(ANNOTATION_CLUSTER)).map(String::as_str);
    Workspace::from(id.unwrap_or_default())
}

fn item<T>(meta: &ObjectMeta, of: T) -> Item<T> {
    Item { uid: meta.uid.clone().unwrap_or_default(), version: Version::of(meta.resource_version.as_deref()), of }
}

fn read_tenant(binding: ApiBinding) -> (Workspace, Item<Tenant>) {
    let meta = &binding.metadata;
    let path = meta.annotations.as_ref().and_then(|all| all.get(ANNOTATION_PATH)).cloned();
    (workspace_of(meta), item(meta, Tenant { path, shows_clusters: binding.shows_clusters() }))
}

fn read_cluster(cluster: KubernetesCluster) -> (Spot, Item<KubernetesCluster>) {
    let meta = cluster.metadata.clone();
    let spot = Spot {
        workspace: workspace_of(&meta),
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: meta.name.clone().unwrap_or_default(),
    };
    (spot, item(&meta, cluster))
}

fn read_slice(slice: EndpointSlice) -> (String, Item<EndpointSlice>) {
    let meta = slice.metadata.clone();
    (meta.name.clone().unwrap_or_default(), item(&meta, slice))
}

impl Engine {
    /// Follows whatever objects come from.
    pub(super) fn follow_objects(&mut self) {
        let Some(kcp) = self.kcp.clone() else {
            return self.follow_kinds(&Realm::Hub, &self.environment.hub.clone(), None);
        };
        if kcp.trust_cluster_names {
            warn!(key = kcp.owner_key, "--trust-cluster-names: any tenant can use any Cluster that does not name its owner");
        }
        let client = match kcp.portal.provider(self.environment.rules("kcp")) {
            Ok(client) => client,
            Err(why) => return warn!(error = why, "kcp can't be asked"),
        };
        let api: Api<EndpointSlice> = Api::all(client);
        let manner = Manner { relist: self.discovery.listen(), ..self.hub_manner(Scope::default()) };
        let outlet = Outlet { events: self.sender.clone(), wrap: Event::Slices };
        self.tasks.spawn(follow(api, manner, read_slice, outlet));
        self.follow_management();
    }

    pub(super) fn hub_manner(&mut self, scope: Scope) -> Manner {
        Manner { scope, backoff: self.backoff(), relist: self.hub_relist.listen(), resync: self.settings.resync }
    }

    fn follow_kinds(&mut self, realm: &Realm, client: &Client, mut tasks: Option<&mut JoinSet<()>>) {
        for kind in Kind::ALL {
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind.resource());
            let manner = self.hub_manner(Scope::default());
            let of = realm.clone();
            let wrap = move |seen| Event::Objects { realm: of.clone(), kind, seen: Box::new(seen) };
            let outlet = Outlet { events: self.sender.clone(), wrap };
            self.feeds.insert((realm.clone(), kind), Feed::Starting);
            let following = follow(api, manner, |object| object, outlet);
            match &mut tasks {
                Some(tasks) => tasks.spawn(following),
                None => self.tasks.spawn(following),
            };
        }
    }

    pub(super) fn observe_slices(&mut self, seen: Observed<(String, Item<EndpointSlice>)>) {
        match self.slices.observe(seen) {
            Noted::Nothing => return,
            Noted::Relist => return self.discovery.ring(),
            Noted::Changed => {}
            Noted::Failed { failure, lost } => {
                if lost {
                    warn!(error = %failure, "APIExportEndpointSlices can't be followed");
                    self.world_changed = true;
                }
                return self.count_failure("kcp", &failure);
            }
        }
        let Some(kcp) = self.kcp.clone() else { return };
        let known = self.slices.known();
        let slices = known.known().into_iter().flat_map(|slices| slices.values());
        let urls: BTreeSet<String> =
            slices.filter(|slice| slice.of.spec.export.name == kcp.export).flat_map(|slice| slice.of.urls()).collect();
        // What is behind an endpoint that vanished is not known any more. It is not gone.
        let vanished: Vec<String> = self.endpoints.keys().filter(|url| !urls.contains(*url)).cloned().collect();
        for url in vanished {
            warn!(url, "an endpoint vanished: what is behind it is not known any more");
            self.endpoints.remove(&url);
            let realm = Realm::Endpoint(url);
            self.feeds.retain(|(of, _), _| *of != realm);
            self.listed.retain(|(of, _)| *of != realm);
            self.once_listed.retain(|(of, _)| *of != realm);
        }
        for url in urls {
            if !self.endpoints.contains_key(&url) {
                self.engage_endpoint(&url, &kcp.portal.workspace(&url, "*", self.environment.rules("kcp")));
            }
        }
        self.records_changed = true;
    }

    fn engage_endpoint(&mut self, url: &str, client: &Result<Client, String>) {
        let client = match client {
            Ok(client) => client,
            Err(why) => return warn!(url, error = why, "an endpoint can't be used"),
        };
        info!(url, "endpoint joins");
        let mut tasks = JoinSet::new();
        self.follow_kinds(&Realm::Endpoint(url.to_owned()), client, Some(&mut tasks));
        let of = url.to_owned();
        let wrap = move |seen| Event::Endpoint { url: of.clone(), news: EndpointNews::Tenants(seen) };
        let manner = self.hub_manner(Scope::default());
        let outlet = Outlet { events: self.sender.clone(), wrap };
        tasks.spawn(follow(Api::<ApiBinding>::all(client.clone()), manner, read_tenant, outlet));
        let of = url.to_owned();
        let wrap = move |seen| Event::Endpoint { url: of.clone(), news: EndpointNews::Clusters(Box::new(seen)) };
        let manner = self.hub_manner(Scope::default());
        let outlet = Outlet { events: self.sender.clone(), wrap };
        tasks.spawn(follow(Api::<KubernetesCluster>::all(client.clone()), manner, read_cluster, outlet));
        let (tenants, clusters) = (Mirror::default(), Mirror::default());
        let endpoint = Endpoint { tenants, clusters, vanished_at: None, clients: BTreeMap::new(), _tasks: tasks };
        self.endpoints.insert(url.to_owned(), endpoint);
    }

    pub(super) fn observe_endpoint(&mut self, url: &str, news: EndpointNews) {
        let Some(endpoint) = self.endpoints.get_mut(url) else { return };
        let left = match &news {
            EndpointNews::Tenants(Observed::Gone { item: (workspace, _), .. }) => Some(workspace.clone()),
            _ => None,
        };
        let noted = match news {
            EndpointNews::Tenants(seen) => endpoint.tenants.observe(seen),
            EndpointNews::Clusters(seen) => endpoint.observe_clusters(*seen),
        };
        if matches!((&noted, endpoint.is_in_doubt()), (Noted::Changed, true)) {
            self.hub_relist.ring();
        }
        match noted {
            Noted::Nothing => self.world_changed |= self.awaits_a_list(),
            Noted::Relist => self.hub_relist.ring(),
            Noted::Changed => self.records_changed = true,
            Noted::Failed { failure, lost } => {
                self.records_changed |= lost;
                self.count_failure("kcp", &failure);
            }
        }
        if let Some(workspace) = left {
            self.purge(url, &workspace);
        }
    }

    /// A tenant left: whatever was its, nothing of it is remembered.
    fn purge(&mut self, url: &str, workspace: &Workspace) {
        info!(url, %workspace, "tenant leaves");
        let realm = Realm::Endpoint(url.to_owned());
        let of_it = |record: &Record| record.realm == realm && record.id().workspace == *workspace;
        self.records.retain(|_, record| !of_it(record));
        self.absent.retain(|id| self.records.contains_key(id));
        if let Some(endpoint) = self.endpoints.get_mut(url) {
            endpoint.clients.remove(workspace);
        }
        self.records_changed = true;
    }

    /// A client that writes to an object, and to what belongs to it.
    pub(super) fn client_of(&mut self, realm: &Realm, workspace: &Workspace) -> Result<Client, String> {
        let Realm::Endpoint(url) = realm else { return Ok(self.environment.hub.clone()) };
        let (Some(endpoint), Some(kcp)) = (self.endpoints.get_mut(url), &self.kcp) else {
            return Err("its endpoint vanished".to_owned());
        };
        if let Some(client) = endpoint.clients.get(workspace) {
            return Ok(client.clone());
        }
        let client = kcp.portal.workspace(url, workspace.as_str(), self.environment.rules("kcp"))?;
        endpoint.clients.insert(workspace.clone(), client.clone());
        Ok(client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_reached_where_kcp_says_or_where_we_are_told() {
        let config = Config::new("https://kcp.example:6443/clusters/root:provider".parse().unwrap());
        let told = "https://10.0.0.1:6443/services/apiexport/1abc/edge-portal-networking";
        let reached = |external: Option<&str>| {
            let portal = Portal::new(config.clone(), external.map(|url| url.parse().unwrap())).unwrap();
            portal.reached(told, "*").unwrap().to_string()
        };
        assert_eq!(reached(None), format!("{told}/clusters/*"));
        let rest = "/services/apiexport/1abc/edge-portal-networking/clusters/*";
        assert_eq!(reached(Some("https://kcp.example:443")), format!("https://kcp.example:443{rest}"));
    }
}
