//! The event loop: waits for events or a deadline, then runs one turn.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::DynamicObject;
use mw_api::cilium::fleet::Cluster;
use mw_api::cilium::kcp::EndpointSlice;
use mw_core::cilium::plan::{Link, Plan};
use mw_core::cilium::world::{Options, VerifyDial, World};
use mw_core::names::{CiliumName, ClusterId};
use mw_core::time::Timestamp;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::absence::Searches;
use crate::backoff::Backoff;
use crate::cilium::apply::WriteOutcome;
use crate::cilium::cluster_cache::{Take, Wants};
use crate::cilium::dial::{Answer, Dialler, Failed};
use crate::cilium::identity::Leads;
use crate::cilium::kubeconfig_secrets::{CachedSecret, KubeconfigSecrets, Search};
use crate::cilium::management::ClusterResource;
use crate::cilium::metrics::ObjectMetrics;
use crate::cilium::object_source::{Endpoint, EndpointNews, ObjectSource, Portal};
use crate::cilium::observe::Member;
use crate::cilium::record::{Kind, Record, RecordId};
use crate::cilium::verify::{Dialling, Reading};
use crate::failure::Failure;
use crate::fleet::follow::{Observed, RESYNC, RelistSignal};
use crate::fleet::{Attempt, Coarse, Feed};
use crate::kubeconfig::Allowed;
use crate::metrics::Metrics;
use crate::run::{BackEnd, Environment};
use crate::watch_cache::{Item, WatchCache};

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
        Engine::new(self.clone(), environment).run().await;
    }
}

/// Inputs of the engine.
pub(super) enum Event {
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
    Attempted {
        cluster: ClusterId,
        epoch: u64,
        fingerprint: [u8; 32],
        attempt: Attempt,
    },
    Cached {
        cluster: ClusterId,
        epoch: u64,
        what: &'static str,
        take: Take,
    },
    Written {
        cluster: ClusterId,
        epoch: u64,
        outcome: WriteOutcome,
    },
    Searched {
        kind: Kind,
        name: String,
        found: Result<BTreeSet<String>, Failure>,
    },
    Patched {
        id: RecordId,
        result: Result<Box<DynamicObject>, Failure>,
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

/// Channel capacity; watches wait while the channel is full.
const EVENTS: usize = 4096;
/// Maximum number of events handled before a turn.
const BATCH: usize = 4096;
/// Startup wait before anything is deleted, for the links of all owners to be
/// read: two of them may reach the same cluster.
const FIRST_LOOK: Duration = Duration::from_secs(20);

pub(super) struct Engine {
    pub(super) settings: Settings,
    pub(super) dialler: Arc<dyn Dialler>,
    pub(super) environment: Environment,
    pub(super) sender: mpsc::Sender<Event>,
    events: mpsc::Receiver<Event>,
    pub(super) tasks: JoinSet<()>,
    pub(super) kcp: Option<Kcp>,
    /// Triggers a relist of the export's endpoints.
    pub(super) discovery: RelistSignal,
    next_discovery: Option<Instant>,
    pub(super) slices: WatchCache<String, EndpointSlice>,
    pub(super) endpoints: BTreeMap<String, Endpoint>,
    /// Clusters on the management plane.
    pub(super) clusters: WatchCache<String, Cluster>,
    /// Triggers a relist of everything watched on the hub, and of objects in kcp.
    pub(super) hub_relist: RelistSignal,
    /// Watches on the three kinds.
    pub(super) feeds: BTreeMap<(ObjectSource, Kind), Feed>,
    /// Kinds listed since their watch last failed.
    pub(super) listed: BTreeSet<(ObjectSource, Kind)>,
    /// Kinds listed at least once; the time of the first list until a list a resync
    /// later has confirmed it.
    pub(super) first_listed: BTreeMap<(ObjectSource, Kind), Option<Instant>>,
    /// Searches for objects that disappeared from the hub, by kind and name.
    pub(super) searches: Searches<(Kind, String)>,
    pub(super) records: BTreeMap<RecordId, Record>,
    pub(super) records_changed: bool,
    /// Secrets that refs may point to.
    pub(super) kubeconfig_secrets: BTreeMap<Search, KubeconfigSecrets>,
    pub(super) members: BTreeMap<ClusterId, Member>,
    pub(super) leads: Leads,
    /// Link in use for each cluster.
    pub(super) representatives: BTreeMap<ClusterId, ClusterId>,
    pub(super) wants: Wants,
    pub(super) world: World,
    pub(super) world_changed: bool,
    pub(super) plan: Plan,
    /// Clusters where nothing is removed until a later list confirms that nobody wants it.
    pub(super) held: BTreeSet<ClusterId>,
    pub(super) diallings: BTreeMap<Link, Dialling>,
    pub(super) readings: BTreeMap<ClusterId, Reading>,
    pub(super) status_touched: Option<Instant>,
    pub(super) reported_at: Option<Instant>,
    pub(super) object_metrics: ObjectMetrics,
    pub(super) status_due: Option<Instant>,
    next_resync: Instant,
    /// Until then, links that have not been read yet block deletions.
    pub(super) first_look_ends: Option<Instant>,
    /// Time of the current turn, the same for all its steps.
    pub(super) turned_at: Instant,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl Engine {
    pub(super) fn new(provider: Provider, mut environment: Environment) -> Engine {
        let Provider {
            settings,
            kcp,
            dialler,
        } = provider;
        environment.connect = Arc::new(Coarse {
            connect: environment.connect,
            names: environment.names.clone(),
            process: "provider",
            // With kcp, all Secrets are on the management plane, and all owners are tenants.
            administrators: settings.namespace.clone().filter(|_| kcp.is_none()),
        });
        let (sender, events) = mpsc::channel(EVENTS);
        let now = environment.clock.now();
        let world = World {
            options: settings.options(),
            now,
            ..World::default()
        };
        let mut engine = Engine {
            settings,
            dialler,
            environment,
            sender,
            events,
            tasks: JoinSet::new(),
            next_discovery: kcp.as_ref().map(|kcp| Instant::now() + kcp.rediscovery),
            kcp,
            discovery: RelistSignal::default(),
            slices: WatchCache::default(),
            endpoints: BTreeMap::new(),
            clusters: WatchCache::default(),
            hub_relist: RelistSignal::default(),
            feeds: BTreeMap::new(),
            listed: BTreeSet::new(),
            first_listed: BTreeMap::new(),
            searches: Searches::new(Duration::ZERO),
            records: BTreeMap::new(),
            records_changed: false,
            kubeconfig_secrets: BTreeMap::new(),
            members: BTreeMap::new(),
            leads: Leads::new(),
            representatives: BTreeMap::new(),
            wants: Wants::default(),
            world,
            world_changed: false,
            plan: Plan::default(),
            held: BTreeSet::new(),
            diallings: BTreeMap::new(),
            readings: BTreeMap::new(),
            status_touched: None,
            reported_at: None,
            object_metrics: ObjectMetrics::default(),
            status_due: None,
            next_resync: Instant::now(),
            first_look_ends: Some(Instant::now() + FIRST_LOOK),
            turned_at: Instant::now(),
        };
        engine.schedule_resync();
        engine
    }

    /// Never returns; dropping it aborts its tasks.
    async fn run(mut self) {
        let readiness = self.environment.readiness.clone();
        self.follow_objects();
        loop {
            self.tell_readiness();
            let wake = self.wake();
            let first = readiness.beating(self.next_event(wake)).await;
            self.take_in(first);
            self.turn();
        }
    }

    async fn next_event(&mut self, wake: Instant) -> Option<Event> {
        tokio::select! {
            biased;
            event = self.events.recv() => event,
            () = sleep_until(wake) => None,
        }
    }

    fn take_in(&mut self, first: Option<Event>) {
        self.tick();
        let Some(first) = first else { return };
        self.observe(first);
        for _ in 0..BATCH {
            let Ok(event) = self.events.try_recv() else {
                break;
            };
            self.observe(event);
        }
    }

    /// Runs all steps; each is in the file of its name.
    fn turn(&mut self) {
        self.turn_without_writes();
        self.clean_up();
        self.diff();
        self.apply();
        self.verify();
        self.report();
    }

    fn turn_without_writes(&mut self) {
        self.turned_at = Instant::now();
        while self.tasks.try_join_next().is_some() {}
        if self.turned_at >= self.next_resync {
            self.resync();
        }
        self.world_changed |= self
            .first_look_ends
            .take_if(|end| *end <= self.turned_at)
            .is_some();
        self.rediscover();
        self.seek_strays();
        self.look_for_missing_objects();
        self.validate();
        self.plan();
    }

    /// Reads and verifies everything without writing, at most until `end`.
    pub(super) async fn read_all(&mut self, end: Instant) {
        self.follow_objects();
        while Instant::now() < end && !self.has_read_all() {
            let wake = self.wake().min(end);
            let first = self.next_event(wake).await;
            self.take_in(first);
            self.turn_without_writes();
            self.verify();
        }
    }

    fn has_read_all(&self) -> bool {
        let lacks = |member: &Member| {
            let feeds = &member.link.feeds;
            member.link.live.is_some()
                && feeds.silence().is_none()
                && (feeds.lacks_something() || feeds.lacks(self.wants))
        };
        self.first_look_ends.is_none() && !self.members.values().any(lacks) && !self.is_verifying()
    }

    fn tick(&mut self) {
        let now = self.environment.clock.now();
        self.world_changed |= self
            .plan
            .recheck_at
            .is_some_and(|at| self.world.now < at && at <= now);
        self.world.now = now;
    }

    /// Relists everything, in case an event was lost.
    fn resync(&mut self) {
        self.hub_relist.ring();
        self.members
            .values()
            .for_each(|member| member.link.relist());
        self.schedule_resync();
    }

    fn schedule_resync(&mut self) {
        let share = 0.9 + 0.2 * self.environment.random.f64();
        self.next_resync = Instant::now() + self.settings.resync.mul_f64(share);
    }

    fn rediscover(&mut self) {
        if let (Some(kcp), Some(at)) = (&self.kcp, self.next_discovery)
            && self.turned_at >= at
        {
            self.next_discovery = Some(self.turned_at + kcp.rediscovery);
            self.discovery.ring();
        }
    }

    pub(super) fn backoff(&mut self) -> Backoff {
        Backoff::of_watch(self.environment.random.fork())
    }

    /// Schedules a status update.
    pub(super) fn touch_status(&mut self) {
        self.status_touched.get_or_insert_with(Instant::now);
    }

    /// Time of the next turn if no event arrives.
    fn wake(&self) -> Instant {
        let recheck = self
            .plan
            .recheck_at
            .filter(|at| *at > self.world.now)
            .map(|at| self.until(at));
        let times = [
            Some(self.next_resync),
            self.status_due,
            recheck,
            self.writers_due(),
            self.records_due(),
            self.verify_due(),
            self.next_discovery,
            self.strays_due(),
            self.searches.due().filter(|at| *at > self.turned_at),
            self.absences_due(),
            self.first_look_ends,
        ];
        times
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(self.next_resync)
    }

    fn until(&self, at: Timestamp) -> Instant {
        let seconds = u64::try_from(at.0.saturating_sub(self.world.now.0)).unwrap_or_default();
        Instant::now() + Duration::from_secs(seconds.min(86_400))
    }
}
