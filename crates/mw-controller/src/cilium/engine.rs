//! The state of the Cilium back end, and its steps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::core::{ApiResource, DynamicObject};
use mw_api::cilium::fleet::Cluster;
use mw_api::cilium::kcp::EndpointSlice;
use mw_core::cilium::facts::MANAGER;
use mw_core::cilium::plan::{Link, Plan};
use mw_core::cilium::world::{Options, VerifyDial, World};
use mw_core::names::{CiliumName, ClusterId};
use mw_core::time::Timestamp;
use tokio::time::Instant;
use tracing::warn;

use crate::backoff::Backoff;
use crate::cilium::apply::WriteOutcome;
use crate::cilium::cluster_cache::{ClusterCache, Take, Wants};
use crate::cilium::credentials::probe;
use crate::cilium::dial::{Answer, Dialler, Failed};
use crate::cilium::diff::Operation;
use crate::cilium::events::{FIRST_PAUSE, LONGEST_PAUSE};
use crate::cilium::identity::Leads;
use crate::cilium::kubeconfig_secrets::{CachedSecret, KubeconfigSecrets, Search};
use crate::cilium::management::ClusterResource;
use crate::cilium::member::MemberState;
use crate::cilium::metrics::ObjectMetrics;
use crate::cilium::object_source::{Endpoint, EndpointNews, ObjectSource, Portal};
use crate::cilium::record::{Kind, ObjectState, RecordId};
use crate::cilium::verify::{Dialling, Reading};
use crate::engine::{Changes, Offers, Steps};
use crate::failure::Failure;
use crate::fleet::follow::{Observed, RESYNC, RelistSignal, Version};
use crate::fleet::{Coarse, Feed};
use crate::kubeconfig::Allowed;
use crate::metrics::Metrics;
use crate::run::{BackEnd, Environment};
use crate::watch_cache::{Item, WatchCache};

/// Startup wait before anything is deleted, for the links of all owners to be
/// read: two of them may reach the same cluster.
const FIRST_LOOK: Duration = Duration::from_secs(20);
const CONTROLLER: &str = "networking.edge-portal.eu/meshwright";

pub(super) type Engine = crate::engine::Engine<Cilium>;
pub(super) type Event = crate::engine::Event<Cilium>;

/// Settings from the provider's command line.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Namespace of the provider and its Lease. On a hub, owners of other namespaces
    /// are tenants.
    pub namespace: Option<String>,
    pub cilium_namespace: String,
    pub verify_dial: VerifyDial,
    pub sync_ca: bool,
    pub cleanup_timeout: Duration,
    pub allow_system_namespaces: bool,
    pub annotation_prefixes: Vec<String>,
    /// Interval of full relists.
    pub resync: Duration,
    /// Interval of link verification while nothing changes.
    pub check: Duration,
    pub allowed: Allowed,
}

impl Default for Settings {
    fn default() -> Self {
        let options = Options::default();
        Settings {
            namespace: None,
            cilium_namespace: options.cilium_namespace,
            verify_dial: options.verify_dial,
            sync_ca: options.sync_ca,
            cleanup_timeout: Duration::from_secs(options.cleanup_timeout_seconds),
            allow_system_namespaces: options.allow_system_namespaces,
            annotation_prefixes: options.annotation_prefixes,
            resync: RESYNC,
            check: Duration::from_secs(300),
            allowed: Allowed::default(),
        }
    }
}

impl Settings {
    fn options(&self) -> Options {
        Options {
            verify_dial: self.verify_dial,
            sync_ca: self.sync_ca,
            cilium_namespace: self.cilium_namespace.clone(),
            cleanup_timeout_seconds: self.cleanup_timeout.as_secs(),
            allow_system_namespaces: self.allow_system_namespaces,
            annotation_prefixes: self.annotation_prefixes.clone(),
        }
    }
}

/// kcp mode: objects come from kcp, clusters from a management plane.
#[derive(Clone)]
pub struct Kcp {
    pub portal: Portal,
    /// Name of the APIExport.
    pub export: String,
    /// Interval of endpoint discovery while no event arrives.
    pub rediscovery: Duration,
    /// Namespace of Clusters and their Secrets on the management plane.
    pub namespace: String,
    pub cluster_resource: ClusterResource,
    /// Label or annotation of a Cluster that names its workspaces.
    pub owner_key: String,
    /// Lets any tenant use a Cluster that names no workspace.
    pub trust_cluster_names: bool,
}

impl std::fmt::Debug for Kcp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kcp")
            .field("export", &self.export)
            .finish_non_exhaustive()
    }
}

/// The Cilium back end with its settings, object source and dialler.
#[derive(Clone)]
pub struct Provider {
    pub settings: Settings,
    /// None if objects are on the hub.
    pub kcp: Option<Kcp>,
    pub dialler: Arc<dyn Dialler>,
}

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Provider")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl BackEnd for Provider {
    const LEASE: &'static str = mw_api::cilium::rbac::LEASE;

    fn crds(&self) -> Vec<CustomResourceDefinition> {
        if self.kcp.is_some() {
            Vec::new()
        } else {
            mw_api::crd::cilium_crds()
        }
    }

    fn needs_hub_uid(&self) -> bool {
        self.kcp.is_none()
    }

    fn metrics(&self) -> Metrics {
        Metrics::cilium()
    }

    async fn work(&self, environment: Environment) {
        engine(self.clone(), environment).run().await;
    }
}

/// Results of watches and checks.
pub(super) enum Input {
    Objects {
        object_source: ObjectSource,
        kind: Kind,
        seen: Box<Observed<DynamicObject>>,
    },
    Slices(Observed<(String, Item<EndpointSlice>)>),
    Endpoint {
        url: String,
        news: EndpointNews,
    },
    Clusters(Observed<(String, Item<Cluster>)>),
    Secrets {
        search: Search,
        seen: Observed<(String, Item<CachedSecret>)>,
    },
    Cached {
        cluster: ClusterId,
        epoch: u64,
        what: &'static str,
        take: Take,
    },
    Dialled {
        link: Link,
        fingerprint: String,
        result: Result<Answer, Failed>,
    },
    Read {
        reader: ClusterId,
        epoch: u64,
        result: Result<BTreeMap<CiliumName, bool>, String>,
    },
}

/// Where objects and clusters are listed: the hub alone, or kcp and a management plane.
pub(super) struct Sources {
    pub(super) kcp: Option<Kcp>,
    /// Triggers a relist of the export's endpoints.
    pub(super) discovery: RelistSignal,
    pub(super) next_discovery: Option<Instant>,
    pub(super) slices: WatchCache<String, EndpointSlice>,
    pub(super) endpoints: BTreeMap<String, Endpoint>,
    /// Clusters on the management plane.
    pub(super) clusters: WatchCache<String, Cluster>,
}

/// Completeness of the lists of the three kinds.
pub(super) struct Lists {
    /// Watches on the three kinds.
    pub(super) feeds: BTreeMap<(ObjectSource, Kind), Feed>,
    /// Kinds listed since their watch last failed.
    pub(super) listed: BTreeSet<(ObjectSource, Kind)>,
    /// Kinds listed at least once; the time of the first list until a list a resync
    /// later has confirmed it.
    pub(super) first_listed: BTreeMap<(ObjectSource, Kind), Option<Instant>>,
    /// Until then, links that have not been read yet block deletions.
    pub(super) first_look_ends: Option<Instant>,
}

/// The clusters behind the links.
#[derive(Default)]
pub(super) struct Identities {
    pub(super) leads: Leads,
    /// Link in use for each cluster.
    pub(super) representatives: BTreeMap<ClusterId, ClusterId>,
}

/// Checks of links.
pub(super) struct Checks {
    pub(super) dialler: Arc<dyn Dialler>,
    pub(super) diallings: BTreeMap<Link, Dialling>,
    pub(super) readings: BTreeMap<ClusterId, Reading>,
}

/// State of the Cilium back end.
pub(super) struct Cilium {
    pub(super) sources: Sources,
    pub(super) lists: Lists,
    /// Secrets that refs may point to.
    pub(super) kubeconfig_secrets: BTreeMap<Search, KubeconfigSecrets>,
    pub(super) identities: Identities,
    pub(super) wants: Wants,
    /// Input of the planner.
    pub(super) world: World,
    /// Last plan, which stays valid until an input changes.
    pub(super) plan: Arc<Plan>,
    /// Clusters where nothing is removed until a later list confirms that nobody wants it.
    pub(super) held: BTreeSet<ClusterId>,
    pub(super) checks: Checks,
    pub(super) object_metrics: ObjectMetrics,
}

/// Returns the engine of the provider.
pub(super) fn engine(provider: Provider, mut environment: Environment) -> Engine {
    let Provider {
        settings,
        kcp,
        dialler,
    } = provider;
    environment.connect = Arc::new(Coarse::new(
        environment.connect,
        environment.names.clone(),
        "provider",
        // With kcp, all Secrets are on the management plane, and all owners are tenants.
        settings.namespace.clone().filter(|_| kcp.is_none()),
    ));
    let now = Instant::now();
    let state = Cilium {
        sources: Sources {
            next_discovery: kcp.as_ref().map(|kcp| now + kcp.rediscovery),
            kcp,
            discovery: RelistSignal::default(),
            slices: WatchCache::default(),
            endpoints: BTreeMap::new(),
            clusters: WatchCache::default(),
        },
        lists: Lists {
            feeds: BTreeMap::new(),
            listed: BTreeSet::new(),
            first_listed: BTreeMap::new(),
            first_look_ends: Some(now + FIRST_LOOK),
        },
        kubeconfig_secrets: BTreeMap::new(),
        identities: Identities::default(),
        wants: Wants::default(),
        world: World {
            options: settings.options(),
            now: environment.clock.now(),
            ..World::default()
        },
        plan: Arc::default(),
        held: BTreeSet::new(),
        checks: Checks {
            dialler,
            diallings: BTreeMap::new(),
            readings: BTreeMap::new(),
        },
        object_metrics: ObjectMetrics::default(),
    };
    let resync = settings.resync;
    Engine::with(state, settings, resync, environment)
}

impl Steps for Cilium {
    type Settings = Settings;
    type Input = Input;
    type RecordId = RecordId;
    type Object = ObjectState;
    /// Kind and name of an object on the hub.
    type SearchKey = (Kind, String);
    type MemberState = MemberState;
    type Feeds = ClusterCache;
    /// Replaces the feeds of the link once it is complete.
    type Swap = Box<ClusterCache>;
    type Operation = Operation;
    type Outcome = WriteOutcome;
    type Plan = Arc<Plan>;

    const LINGER: Duration = Duration::from_secs(60);
    const SEARCHES_APART: Duration = Duration::ZERO;
    const CONTROLLER: &'static str = CONTROLLER;
    const MANAGER: Option<&'static str> = Some(MANAGER);

    fn follow(engine: &mut Engine) {
        engine.follow_objects();
    }

    fn tell_readiness(engine: &Engine) {
        engine.tell_readiness();
    }

    fn tick(engine: &mut Engine, now: Timestamp) {
        let Cilium { world, plan, .. } = &mut engine.state;
        engine.changes.inputs |= plan
            .recheck_at
            .is_some_and(|at| world.now < at && at <= now);
        world.now = now;
    }

    fn observe(engine: &mut Engine, input: Input) {
        engine.observe(input);
    }

    /// Tenants are judged one by one, so the planner decides what it may conclude from
    /// incomplete lists.
    fn is_complete(_: &Engine) -> bool {
        true
    }

    fn validate(engine: &mut Engine) {
        engine.validate();
    }

    fn plan(engine: &mut Engine, changes: Changes) -> Arc<Plan> {
        engine.plan(&changes)
    }

    fn diff(engine: &mut Engine, plan: &Arc<Plan>) -> Offers<Operation> {
        engine.diff(plan)
    }

    fn write(
        engine: &mut Engine,
        cluster: &ClusterId,
        client: Client,
        operation: Operation,
    ) -> impl Future<Output = WriteOutcome> + Send + 'static {
        engine.write(cluster, client, operation)
    }

    fn observe_write(engine: &mut Engine, cluster: &ClusterId, epoch: u64, outcome: WriteOutcome) {
        engine.observe_write(cluster, epoch, outcome);
    }

    fn drop_writes(member: &mut MemberState) {
        member.offered.clear();
    }

    fn clean_up(engine: &mut Engine, plan: &Arc<Plan>) {
        engine.clean_up(plan);
    }

    fn verify(engine: &mut Engine, plan: &Arc<Plan>) {
        engine.verify(plan);
    }

    fn report(engine: &mut Engine, plan: &Arc<Plan>) {
        engine.report(plan);
    }

    fn dues(engine: &Engine) -> Vec<Option<Instant>> {
        let Cilium { world, plan, .. } = &engine.state;
        let recheck = plan.recheck_at.filter(|at| *at > world.now);
        vec![
            recheck.map(|at| engine.until(at)),
            engine.verify_due(),
            engine.state.sources.next_discovery,
            engine.strays_due(),
            engine.absences_due(),
            engine.state.lists.first_look_ends,
        ]
    }

    fn take_object(engine: &mut Engine, id: &RecordId, object: &DynamicObject, version: Version) {
        if let Some(object_source) = engine.source_of(id) {
            engine.take_record(&object_source, id.0, object, version);
        }
    }

    fn drop_object(engine: &mut Engine, id: &RecordId, object: &DynamicObject) {
        if let Some(object_source) = engine.source_of(id) {
            engine.drop_record(&object_source, id.0, object);
        }
    }

    fn miss_object(engine: &mut Engine, id: &RecordId) -> bool {
        engine.miss_record(id)
    }

    fn warn_of_patch(id: &RecordId, failure: &Failure) {
        warn!(kind = id.0.as_str(), object = %id.1, error = %failure, "failed to write the object");
    }

    fn client_of(engine: &mut Engine, id: &RecordId) -> Result<Client, String> {
        match engine.source_of(id) {
            Some(object_source) => engine.client_at(&object_source, &id.1.workspace),
            None => Err("the object is unknown".to_owned()),
        }
    }

    fn event_backoff(engine: &mut Engine) -> Option<Backoff> {
        let random = engine.environment.random.fork();
        Some(Backoff::new(random, FIRST_PAUSE, LONGEST_PAUSE))
    }

    fn searched((kind, name): &(Kind, String)) -> (ApiResource, String) {
        (kind.resource(), name.clone())
    }

    fn observe_search(
        engine: &mut Engine,
        (kind, name): &(Kind, String),
        namespaces: &BTreeSet<String>,
    ) {
        engine.take_searched(*kind, name, namespaces);
    }

    fn probe(client: Client) -> BoxFuture<'static, Result<(), Failure>> {
        Box::pin(probe(client))
    }

    fn disconnected(engine: &mut Engine, cluster: &ClusterId) {
        if let Some(member) = engine.members.get_mut(cluster) {
            member.swap = None;
        }
        engine.changes.clusters.insert(cluster.clone());
    }

    fn credentials_are_stale(engine: &mut Engine, cluster: &ClusterId) {
        engine.changes.clusters.insert(cluster.clone());
    }

    fn connected(engine: &mut Engine, cluster: &ClusterId) {
        engine.follow_member(cluster);
    }

    fn may_release(_: &Engine, _: &ClusterId, lingered: bool) -> bool {
        lingered
    }
}
