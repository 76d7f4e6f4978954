//! Sources of objects: the hub, or the endpoints of a kcp APIExport, each of
//! which serves any number of tenants.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::Uri;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::client::ConfigExt;
use kube::core::DynamicObject;
use kube::{Api, Client, Config};
use mw_api::cilium::fleet::KubernetesCluster;
use mw_api::cilium::kcp::{ANNOTATION_CLUSTER, ANNOTATION_PATH, ApiBinding, EndpointSlice};
use mw_core::names::{ClusterId, Workspace};
use mw_core::seen::Seen;
use mw_core::text::{listed, printable};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::cilium::engine::{Engine, Event, Input};
use crate::cilium::record::{Astray, Kind, Record, RecordId};
use crate::failure::Failure;
use crate::fleet::Feed;
use crate::fleet::follow::{EventSink, Observed, Version, WatchConfig, follow};
use crate::fleet::list::{Scope, list};
use crate::metrics::Metrics;
use crate::permit::Permit;
use crate::transport::{Rules, Timeouts, client};
use crate::watch_cache::{Item, Noted, WatchCache};

/// Longest time that the objects of a moving workspace may be missing from a
/// shard that still shows its APIBinding.
const LONGEST_MOVE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ObjectSource {
    Hub,
    /// URL of an endpoint, as in its slice.
    Endpoint(String),
}

impl std::fmt::Display for ObjectSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ObjectSource::Hub => f.write_str("hub"),
            ObjectSource::Endpoint(url) => f.write_str(url),
        }
    }
}

/// Access to kcp.
#[derive(Clone)]
pub struct Portal {
    /// Points to the workspace with the export.
    config: Config,
    /// Scheme, host and port that replace those reported by kcp.
    external: Option<Uri>,
}

impl std::fmt::Debug for Portal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Portal")
            .field("url", &self.config.cluster_url)
            .field("external", &self.external)
            .finish_non_exhaustive()
    }
}

impl Portal {
    /// Fails if no client can be made from the config.
    pub fn new(config: Config, external: Option<Uri>) -> Result<Portal, kube::Error> {
        config.rustls_client_config()?;
        config.auth_layer()?;
        Ok(Portal { config, external })
    }

    /// Fails if the workspace answers and has no such export, so that a wrong name
    /// or context is reported at startup. A workspace that does not answer passes:
    /// it may be back later.
    pub async fn check(&self, export: &str, timeouts: Timeouts) -> Result<(), ExportError> {
        let url = self.config.cluster_url.to_string();
        let rules = Rules {
            timeouts,
            permit: Permit::none(),
            metrics: Metrics::default().of_cluster(&ClusterId::from("kcp")),
        };
        let Ok(client) = self.provider(rules) else {
            return Ok(());
        };
        let slices = match list(
            &Api::<EndpointSlice>::all(client),
            &Scope::default(),
            &|slice| slice,
        )
        .await
        {
            Ok(slices) => slices.items,
            Err(
                failure @ (Failure::Unauthorized | Failure::Forbidden(_) | Failure::NotFound(_)),
            ) => {
                return Err(ExportError::Refused { url, failure });
            }
            Err(_) => return Ok(()),
        };
        let exports: BTreeSet<String> = slices
            .into_iter()
            .map(|slice| printable(&slice.spec.export.name, 253))
            .collect();
        if exports.contains(export) {
            return Ok(());
        }
        Err(ExportError::Missing {
            export: export.to_owned(),
            url,
            others: listed(&exports.into_iter().collect::<Vec<_>>(), 5),
        })
    }

    /// Returns a client for the workspace of the export.
    fn provider(&self, rules: Rules) -> Result<Client, String> {
        client(self.config.clone(), rules).map_err(|wrong| wrong.to_string())
    }

    /// Returns a client for one workspace behind an endpoint, or for all with `*`.
    pub(super) fn workspace(
        &self,
        endpoint: &str,
        workspace: &str,
        rules: Rules,
    ) -> Result<Client, String> {
        let mut config = self.config.clone();
        config.cluster_url = self.reached(endpoint, workspace)?;
        client(config, rules).map_err(|wrong| wrong.to_string())
    }

    fn reached(&self, endpoint: &str, workspace: &str) -> Result<Uri, String> {
        let wrong = |what: &dyn std::fmt::Display| {
            format!("{} is not a valid URL: {what}", printable(endpoint, 300))
        };
        let told: Uri = format!("{endpoint}/clusters/{workspace}")
            .parse()
            .map_err(|error| wrong(&error))?;
        let Some(external) = &self.external else {
            return Ok(told);
        };
        let mut parts = told.into_parts();
        (parts.scheme, parts.authority) =
            (external.scheme().cloned(), external.authority().cloned());
        Uri::from_parts(parts).map_err(|error| wrong(&error))
    }
}

/// Reasons why a workspace is not the provider's.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error(
        "cannot list APIExportEndpointSlices at {url}: {failure}; check that this is the provider's workspace and that \
         config/kcp-cilium-mesh-rbac.yaml is applied there"
    )]
    Refused { url: String, failure: Failure },
    #[error(
        "APIExport {export} not found at {url}, only: {others}; set --api-export-name, and set the kubeconfig's current context to \
         the workspace of the APIExport"
    )]
    Missing {
        export: String,
        url: String,
        others: String,
    },
}

/// Key of an object in one workspace of many.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Spot {
    pub(super) workspace: Workspace,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// A workspace bound to the export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tenant {
    /// Such as `root:tenant-a`, if known.
    pub(super) path: Option<String>,
    /// True if its KubernetesClusters are visible.
    pub(super) shows_clusters: bool,
}

/// One endpoint and the state observed through it.
pub(super) struct Endpoint {
    pub(super) tenants: WatchCache<Workspace, Tenant>,
    pub(super) clusters: WatchCache<Spot, KubernetesCluster>,
    /// List count of APIBindings when a KubernetesCluster last disappeared: a
    /// withdrawn claim looks the same as a deletion.
    vanished_at: Option<u64>,
    /// Clients for writes, by workspace.
    clients: BTreeMap<Workspace, Client>,
    /// Watches; dropping them ends them.
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

    /// Failure to answer, if any; refusals count as answers.
    pub(super) fn silence(&self) -> Option<&Failure> {
        [self.tenants.failure(), self.clusters.failure()]
            .into_iter()
            .flatten()
            .find(|failure| !failure.is_an_answer())
    }

    /// Reports whether APIBindings have not been listed since a KubernetesCluster disappeared.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.vanished_at
            .is_some_and(|lists| self.tenants.lists() <= lists)
    }
}

/// Events of an endpoint's watches.
#[derive(Debug)]
pub(super) enum EndpointNews {
    Tenants(Observed<(Workspace, Item<Tenant>)>),
    Clusters(Box<Observed<(Spot, Item<KubernetesCluster>)>>),
}

/// Returns the workspace of an object.
pub(super) fn workspace_of(meta: &ObjectMeta) -> Workspace {
    let id = meta
        .annotations
        .as_ref()
        .and_then(|all| all.get(ANNOTATION_CLUSTER))
        .map(String::as_str);
    Workspace::from(id.unwrap_or_default())
}

fn item<T>(meta: &ObjectMeta, of: T) -> Item<T> {
    Item {
        uid: meta.uid.clone().unwrap_or_default(),
        version: Version::of(meta.resource_version.as_deref()),
        of,
    }
}

pub(super) fn read_tenant(binding: ApiBinding) -> (Workspace, Item<Tenant>) {
    let meta = &binding.metadata;
    let path = meta
        .annotations
        .as_ref()
        .and_then(|all| all.get(ANNOTATION_PATH))
        .cloned();
    (
        workspace_of(meta),
        item(
            meta,
            Tenant {
                path,
                shows_clusters: binding.shows_clusters(),
            },
        ),
    )
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
    /// Starts the watches on all sources of objects.
    pub(super) fn follow_objects(&mut self) {
        let Some(kcp) = self.state.sources.kcp.clone() else {
            return self.follow_kinds(&ObjectSource::Hub, &self.environment.hub.clone(), None);
        };
        if kcp.trust_cluster_names {
            warn!(
                key = kcp.owner_key,
                "--trust-cluster-names is set: any tenant can use any Cluster that does not name its owner"
            );
        }
        let client = match kcp.portal.provider(self.environment.rules("kcp")) {
            Ok(client) => client,
            Err(why) => return warn!(error = why, "cannot create a client for kcp"),
        };
        let api: Api<EndpointSlice> = Api::all(client);
        let watch_config = WatchConfig {
            relist: self.state.sources.discovery.listen(),
            ..self.hub_watch_config(Scope::default())
        };
        let sink = EventSink {
            events: self.inbox.sender.clone(),
            wrap: |seen| Event::Input(Input::Slices(seen)),
        };
        self.tasks
            .spawn(follow(api, watch_config, read_slice, sink));
        self.follow_management();
    }

    pub(super) fn rediscover(&mut self) {
        let sources = &mut self.state.sources;
        if let (Some(kcp), Some(at)) = (&sources.kcp, sources.next_discovery)
            && self.turned_at >= at
        {
            sources.next_discovery = Some(self.turned_at + kcp.rediscovery);
            sources.discovery.ring();
        }
    }

    fn follow_kinds(
        &mut self,
        object_source: &ObjectSource,
        client: &Client,
        mut tasks: Option<&mut JoinSet<()>>,
    ) {
        for kind in Kind::ALL {
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind.resource());
            let watch_config = self.hub_watch_config(Scope::default());
            let of = object_source.clone();
            let wrap = move |seen| {
                Event::Input(Input::Objects {
                    object_source: of.clone(),
                    kind,
                    seen: Box::new(seen),
                })
            };
            let sink = EventSink {
                events: self.inbox.sender.clone(),
                wrap,
            };
            self.state
                .lists
                .feeds
                .insert((object_source.clone(), kind), Feed::Starting);
            let following = follow(api, watch_config, |object| object, sink);
            match &mut tasks {
                Some(tasks) => tasks.spawn(following),
                None => self.tasks.spawn(following),
            };
        }
    }

    pub(super) fn observe_slices(&mut self, seen: Observed<(String, Item<EndpointSlice>)>) {
        match self.state.sources.slices.observe(seen) {
            Noted::Nothing => return,
            Noted::Relist => return self.state.sources.discovery.ring(),
            Noted::Changed => {}
            Noted::Failed { failure, lost } => {
                if lost {
                    warn!(error = %failure, "APIExportEndpointSlice watch failed");
                    self.changes.inputs = true;
                }
                return self.count_failure("kcp", &failure);
            }
        }
        let Some(kcp) = self.state.sources.kcp.clone() else {
            return;
        };
        let known = self.state.sources.slices.known();
        let slices = known.known().into_iter().flat_map(|slices| slices.values());
        let urls: BTreeSet<String> = slices
            .filter(|slice| slice.of.spec.export.name == kcp.export)
            .flat_map(|slice| slice.of.urls())
            .collect();
        // Objects behind a removed endpoint are unknown, not deleted.
        let vanished: Vec<String> = self
            .state
            .sources
            .endpoints
            .keys()
            .filter(|url| !urls.contains(*url))
            .cloned()
            .collect();
        for url in vanished {
            warn!(
                url,
                "endpoint removed: its objects are unknown from now on, and nothing they wrote is deleted"
            );
            self.state.sources.endpoints.remove(&url);
            let object_source = ObjectSource::Endpoint(url);
            self.state
                .lists
                .feeds
                .retain(|(of, _), _| *of != object_source);
            self.state
                .lists
                .listed
                .retain(|(of, _)| *of != object_source);
            self.state
                .lists
                .first_listed
                .retain(|(of, _), _| *of != object_source);
        }
        for url in urls {
            if !self.state.sources.endpoints.contains_key(&url) {
                self.engage_endpoint(
                    &url,
                    &kcp.portal
                        .workspace(&url, "*", self.environment.rules("kcp")),
                );
            }
        }
        self.changes.records = true;
    }

    fn engage_endpoint(&mut self, url: &str, client: &Result<Client, String>) {
        let client = match client {
            Ok(client) => client,
            Err(why) => return warn!(url, error = why, "cannot create a client for the endpoint"),
        };
        info!(url, "endpoint added");
        let mut tasks = JoinSet::new();
        self.follow_kinds(
            &ObjectSource::Endpoint(url.to_owned()),
            client,
            Some(&mut tasks),
        );
        let of = url.to_owned();
        let wrap = move |seen| {
            Event::Input(Input::Endpoint {
                url: of.clone(),
                news: EndpointNews::Tenants(seen),
            })
        };
        let watch_config = self.hub_watch_config(Scope::default());
        let sink = EventSink {
            events: self.inbox.sender.clone(),
            wrap,
        };
        tasks.spawn(follow(
            Api::<ApiBinding>::all(client.clone()),
            watch_config,
            read_tenant,
            sink,
        ));
        let of = url.to_owned();
        let wrap = move |seen| {
            Event::Input(Input::Endpoint {
                url: of.clone(),
                news: EndpointNews::Clusters(Box::new(seen)),
            })
        };
        let watch_config = self.hub_watch_config(Scope::default());
        let sink = EventSink {
            events: self.inbox.sender.clone(),
            wrap,
        };
        tasks.spawn(follow(
            Api::<KubernetesCluster>::all(client.clone()),
            watch_config,
            read_cluster,
            sink,
        ));
        let (tenants, clusters) = (WatchCache::default(), WatchCache::default());
        let endpoint = Endpoint {
            tenants,
            clusters,
            vanished_at: None,
            clients: BTreeMap::new(),
            _tasks: tasks,
        };
        self.state
            .sources
            .endpoints
            .insert(url.to_owned(), endpoint);
    }

    pub(super) fn observe_endpoint(&mut self, url: &str, news: EndpointNews) {
        let Some(endpoint) = self.state.sources.endpoints.get_mut(url) else {
            return;
        };
        let left = match &news {
            EndpointNews::Tenants(Observed::Gone {
                item: (workspace, _),
                ..
            }) => Some(workspace.clone()),
            _ => None,
        };
        let listed = matches!(&news, EndpointNews::Tenants(Observed::Listed { .. }));
        let noted = match news {
            EndpointNews::Tenants(seen) => endpoint.tenants.observe(seen),
            EndpointNews::Clusters(seen) => endpoint.observe_clusters(*seen),
        };
        if matches!((&noted, endpoint.is_in_doubt()), (Noted::Changed, true)) {
            self.hub_relist.ring();
        }
        match noted {
            Noted::Nothing => self.changes.inputs |= self.awaits_a_list(),
            Noted::Relist => self.hub_relist.ring(),
            Noted::Changed => self.changes.records = true,
            Noted::Failed { failure, lost } => {
                self.changes.records |= lost;
                if lost {
                    self.touch_status();
                }
                self.count_failure("kcp", &failure);
            }
        }
        if listed {
            self.look_for_strays(url);
        }
        if let Some(workspace) = left {
            self.purge(url, &workspace);
        }
    }

    /// Forgets a tenant that left. Objects that still have our finalizer are kept as
    /// missing: a workspace that moves to another shard leaves in the same way.
    fn purge(&mut self, url: &str, workspace: &Workspace) {
        info!(url, %workspace, "tenant removed");
        let object_source = ObjectSource::Endpoint(url.to_owned());
        let of_it = |record: &Record| {
            record.state.object_source == object_source && record.id().workspace == *workspace
        };
        self.records
            .retain(|_, record| !of_it(record) || record.must_be_somewhere());
        let left: Vec<RecordId> = self
            .records
            .iter()
            .filter(|(_, record)| of_it(record))
            .map(|(id, _)| id.clone())
            .collect();
        for id in left {
            let Some(mut record) = self.records.remove(&id) else {
                continue;
            };
            self.mark_unknown(&mut record);
            self.records.insert(id, record);
        }
        if let Some(endpoint) = self.state.sources.endpoints.get_mut(url) {
            endpoint.clients.remove(workspace);
        }
        self.changes.records = true;
    }

    /// Marks an object as missing: it disappeared while our finalizer was set. A hub is
    /// searched for its name; in kcp its workspace may be moving to another shard, so
    /// everything is relisted.
    pub(super) fn mark_unknown(&mut self, record: &mut Record) {
        if record.state.astray.is_none() {
            let place = &record.state.object_source;
            warn!(%place, kind = record.state.kind.as_str(), object = %record.id(), "object disappeared while its finalizer was set: what it wrote stays");
            record.state.astray = Some(Astray {
                since: self.turned_at,
                lists: None,
                searched: None,
            });
            match place {
                ObjectSource::Hub => self
                    .searches
                    .forget(&(record.state.kind, record.id().name.clone())),
                ObjectSource::Endpoint(_) => self.hub_relist.ring(),
            }
            self.touch_status();
        }
    }

    /// Reports whether a missing object no longer exists: its workspace was still
    /// listed long after the object disappeared.
    pub(super) fn is_gone_from(&self, record: &Record) -> bool {
        let (
            ObjectSource::Endpoint(url),
            Some(Astray {
                lists: Some(lists), ..
            }),
        ) = (&record.state.object_source, record.state.astray)
        else {
            return false;
        };
        let endpoint = self
            .state
            .sources
            .endpoints
            .get(url)
            .filter(|endpoint| endpoint.tenants.lists() > lists);
        let tenants = endpoint.map(|endpoint| endpoint.tenants.known());
        tenants.is_some_and(|tenants| {
            tenants
                .known()
                .is_some_and(|tenants| tenants.contains_key(&record.id().workspace))
        })
    }

    /// Relists everything for objects that have been missing for long.
    pub(super) fn seek_strays(&mut self) {
        let (now, endpoints) = (self.turned_at, &self.state.sources.endpoints);
        let mut sought = false;
        for record in self.records.values_mut() {
            let ObjectSource::Endpoint(url) = &record.state.object_source else {
                continue;
            };
            if let Some(astray) = record
                .state
                .astray
                .as_mut()
                .filter(|astray| astray.lists.is_none() && now >= astray.since + LONGEST_MOVE)
            {
                astray.lists = Some(
                    endpoints
                        .get(url)
                        .map_or(0, |endpoint| endpoint.tenants.lists()),
                );
                sought = true;
            }
        }
        if sought {
            self.hub_relist.ring();
        }
    }

    pub(super) fn strays_due(&self) -> Option<Instant> {
        let in_kcp = self
            .records
            .values()
            .filter(|record| record.state.object_source != ObjectSource::Hub);
        let astray = in_kcp
            .filter_map(|record| record.state.astray)
            .filter(|astray| astray.lists.is_none());
        astray.map(|astray| astray.since + LONGEST_MOVE).min()
    }

    /// Relists objects that are missing although their workspace stayed.
    fn look_for_strays(&mut self, url: &str) {
        let here = |record: &Record| matches!(&record.state.object_source, ObjectSource::Endpoint(of) if of == url);
        if self
            .records
            .values()
            .any(|record| here(record) && self.is_gone_from(record))
        {
            self.hub_relist.ring();
        }
    }

    /// Endpoints that do not answer, with the failure.
    pub(super) fn silent_endpoints(&self) -> BTreeMap<&str, String> {
        let silence = |url: &String, endpoint: &Endpoint| {
            let object_source = ObjectSource::Endpoint(url.clone());
            let feeds = self
                .state
                .lists
                .feeds
                .iter()
                .filter(|((of, _), _)| *of == object_source)
                .filter_map(|(_, feed)| feed.failure());
            let mut all = endpoint
                .silence()
                .into_iter()
                .chain(feeds)
                .filter(|failure| !failure.is_an_answer());
            all.next().map(ToString::to_string)
        };
        self.state
            .sources
            .endpoints
            .iter()
            .filter_map(|(url, endpoint)| Some((url.as_str(), silence(url, endpoint)?)))
            .collect()
    }

    /// Returns a client for writing an object, its status and its Events.
    pub(super) fn client_at(
        &mut self,
        object_source: &ObjectSource,
        workspace: &Workspace,
    ) -> Result<Client, String> {
        let ObjectSource::Endpoint(url) = object_source else {
            return Ok(self.environment.hub.clone());
        };
        let (Some(endpoint), Some(kcp)) = (
            self.state.sources.endpoints.get_mut(url),
            &self.state.sources.kcp,
        ) else {
            return Err("its endpoint was removed".to_owned());
        };
        if let Some(client) = endpoint.clients.get(workspace) {
            return Ok(client.clone());
        }
        let client =
            kcp.portal
                .workspace(url, workspace.as_str(), self.environment.rules("kcp"))?;
        endpoint.clients.insert(workspace.clone(), client.clone());
        Ok(client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_reached_where_kcp_says_or_where_we_are_told() {
        let config = Config::new(
            "https://kcp.example:6443/clusters/root:provider"
                .parse()
                .unwrap(),
        );
        let told = "https://10.0.0.1:6443/services/apiexport/1abc/edge-portal-networking";
        let reached = |external: Option<&str>| {
            let portal =
                Portal::new(config.clone(), external.map(|url| url.parse().unwrap())).unwrap();
            portal.reached(told, "*").unwrap().to_string()
        };
        assert_eq!(reached(None), format!("{told}/clusters/*"));
        let rest = "/services/apiexport/1abc/edge-portal-networking/clusters/*";
        assert_eq!(
            reached(Some("https://kcp.example:443")),
            format!("https://kcp.example:443{rest}")
        );
    }
}
