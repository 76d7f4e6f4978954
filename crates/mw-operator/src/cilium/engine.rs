//! The loop: waits for something to be seen, then takes one turn.

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

use crate::backoff::Backoff;
use crate::cilium::apply::Outcome;
use crate::cilium::dial::{Answer, Dialler, Failed};
use crate::cilium::identity::Leads;
use crate::cilium::management::ClusterResource;
use crate::cilium::measure::Measured;
use crate::cilium::observe::Member;
use crate::cilium::realm::{Endpoint, EndpointNews, Portal, Realm};
use crate::cilium::record::{Kind, Record, RecordId};
use crate::cilium::sights::{Take, Wants};
use crate::cilium::vault::{Search, SecretSight, Vault};
use crate::cilium::verify::{Dialling, Reading};
use crate::failure::Failure;
use crate::fleet::follow::{Bell, Observed, RESYNC};
use crate::fleet::{Attempt, Coarse, Feed};
use crate::kubeconfig::Allowed;
use crate::mirror::{Item, Mirror};
use crate::run::{BackEnd, Environment};

/// What the provider was told on its command line.
#[derive(Debug, Clone)]
pub struct Settings {
    pub cilium_namespace: String,
    pub verify_dial: VerifyDial,
    pub sync_ca: bool,
    pub cleanup_timeout: Duration,
    pub allow_system_namespaces: bool,
    pub annotation_prefixes: Vec<String>,
    /// How often everything is listed again.
    pub resync: Duration,
    /// How often links are verified although nothing changed.
    pub check: Duration,
    pub allowed: Allowed,
}

impl Default for Settings {
    /// When nothing else is said.
    fn default() -> Self {
        let options = Options::default();
        Settings {
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

/// Objects that come from kcp, and clusters from a management plane.
#[derive(Clone)]
pub struct Kcp {
    pub portal: Portal,
    /// The name of the export.
    pub export: String,
    /// How often its endpoints are looked for although nothing is told of them.
    pub rediscovery: Duration,
    /// Of Clusters and their Secrets on the management plane.
    pub namespace: String,
    pub cluster_resource: ClusterResource,
    /// The label or annotation of a Cluster that names its workspaces.
    pub owner_key: String,
    /// Any tenant may use a Cluster that names no workspaces.
    pub trust_cluster_names: bool,
}

impl std::fmt::Debug for Kcp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kcp").field("export", &self.export).finish_non_exhaustive()
    }
}

/// The back end, where its objects come from, and how it looks at remotes.
#[derive(Clone)]
pub struct Provider {
    pub settings: Settings,
    /// Without it they are on the hub.
    pub kcp: Option<Kcp>,
    pub dialler: Arc<dyn Dialler>,
}

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Provider").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl BackEnd for Provider {
    const LEASE: &'static str = mw_api::cilium::rbac::LEASE;

    fn crds(&self) -> Vec<CustomResourceDefinition> {
        if self.kcp.is_some() { Vec::new() } else { mw_api::crd::cilium_crds() }
    }

    fn needs_hub_uid(&self) -> bool {
        self.kcp.is_none()
    }

    async fn work(&self, environment: Environment) {
        Engine::new(self.clone(), environment).run().await;
    }
}

/// What the engine is told.
pub(super) enum Event {
    Objects { realm: Realm, kind: Kind, seen: Box<Observed<DynamicObject>> },
    Slices(Observed<(String, Item<EndpointSlice>)>),
    Endpoint { url: String, news: EndpointNews },
    Clusters(Observed<(String, Item<Cluster>)>),
    Secrets { search: Search, seen: Observed<(String, Item<SecretSight>)> },
    Attempted { cluster: ClusterId, epoch: u64, fingerprint: [u8; 32], attempt: Attempt },
    Sight { cluster: ClusterId, epoch: u64, what: &'static str, take: Take },
    Written { cluster: ClusterId, epoch: u64, outcome: Outcome },
    Patched { id: RecordId, result: Result<Box<DynamicObject>, Failure> },
    Dialled { link: Link, fingerprint: String, result: Result<Answer, Failed> },
    Read { reader: ClusterId, epoch: u64, result: Result<BTreeMap<CiliumName, bool>, String> },
}

/// A channel that is full makes the watches wait.
const EVENTS: usize = 4096;
/// So many events are taken in before a turn.
const BATCH: usize = 4096;
/// For so long a process that starts waits for the links of all owners before it
/// removes anything: two of them may lead to the same cluster.
const FIRST_LOOK: Duration = Duration::from_secs(20);

pub(super) struct Engine {
    pub(super) settings: Settings,
    pub(super) dialler: Arc<dyn Dialler>,
    pub(super) environment: Environment,
    pub(super) sender: mpsc::Sender<Event>,
    events: mpsc::Receiver<Event>,
    pub(super) tasks: JoinSet<()>,
    pub(super) kcp: Option<Kcp>,
    /// Lists the endpoints of the export again.
    pub(super) discovery: Bell,
    next_discovery: Option<Instant>,
    pub(super) slices: Mirror<String, EndpointSlice>,
    pub(super) endpoints: BTreeMap<String, Endpoint>,
    /// Clusters of the management plane.
    pub(super) clusters: Mirror<String, Cluster>,
    /// Lists again what is followed on the hub, and objects wherever they are.
    pub(super) hub_relist: Bell,
    /// The watches on the three kinds.
    pub(super) feeds: BTreeMap<(Realm, Kind), Feed>,
    /// The kinds that were listed since their watch last failed.
    pub(super) listed: BTreeSet<(Realm, Kind)>,
    /// The kinds that were listed at all: nothing is removed on the word of the
    /// first list.
    pub(super) once_listed: BTreeSet<(Realm, Kind)>,
    /// Objects with our finalizer that the last list did without.
    pub(super) absent: BTreeSet<RecordId>,
    pub(super) records: BTreeMap<RecordId, Record>,
    pub(super) records_changed: bool,
    /// The Secrets that refs may lead to.
    pub(super) vaults: BTreeMap<Search, Vault>,
    pub(super) members: BTreeMap<ClusterId, Member>,
    pub(super) leads: Leads,
    /// By cluster: the link that stands for it.
    pub(super) representatives: BTreeMap<ClusterId, ClusterId>,
    pub(super) wants: Wants,
    pub(super) world: World,
    pub(super) world_changed: bool,
    pub(super) plan: Plan,
    pub(super) diallings: BTreeMap<Link, Dialling>,
    pub(super) readings: BTreeMap<ClusterId, Reading>,
    pub(super) status_touched: Option<Instant>,
    pub(super) reported_at: Option<Instant>,
    pub(super) measured: Measured,
    pub(super) status_due: Option<Instant>,
    next_resync: Instant,
    /// Until then, links that were not read yet hold back what is removed.
    pub(super) first_look_ends: Option<Instant>,
    /// One moment for all steps of a turn.
    pub(super) turned_at: Instant,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl Engine {
    fn new(provider: Provider, mut environment: Environment) -> Engine {
        let Provider { settings, kcp, dialler } = provider;
        if kcp.is_some() {
            environment.connect = Arc::new(Coarse(environment.connect));
        }
        let (sender, events) = mpsc::channel(EVENTS);
        let now = environment.clock.now();
        let world = World { options: settings.options(), now, ..World::default() };
        let mut engine = Engine {
            settings,
            dialler,
            environment,
            sender,
            events,
            tasks: JoinSet::new(),
            next_discovery: kcp.as_ref().map(|kcp| Instant::now() + kcp.rediscovery),
            kcp,
            discovery: Bell::default(),
            slices: Mirror::default(),
            endpoints: BTreeMap::new(),
            clusters: Mirror::default(),
            hub_relist: Bell::default(),
            feeds: BTreeMap::new(),
            listed: BTreeSet::new(),
            once_listed: BTreeSet::new(),
            absent: BTreeSet::new(),
            records: BTreeMap::new(),
            records_changed: false,
            vaults: BTreeMap::new(),
            members: BTreeMap::new(),
            leads: Leads::new(),
            representatives: BTreeMap::new(),
            wants: Wants::default(),
            world,
            world_changed: false,
            plan: Plan::default(),
            diallings: BTreeMap::new(),
            readings: BTreeMap::new(),
            status_touched: None,
            reported_at: None,
            measured: Measured::default(),
            status_due: None,
            next_resync: Instant::now(),
            first_look_ends: Some(Instant::now() + FIRST_LOOK),
            turned_at: Instant::now(),
        };
        engine.schedule_resync();
        engine
    }

    /// Never returns; whoever drops it ends everything it started.
    async fn run(mut self) {
        let readiness = self.environment.readiness.clone();
        self.follow_objects();
        loop {
            self.tell_readiness();
            let wake = self.wake();
            let waiting = async {
                tokio::select! {
                    biased;
                    event = self.events.recv() => event,
                    () = sleep_until(wake) => None,
                }
            };
            let first = readiness.beating(waiting).await;
            self.tick();
            if let Some(first) = first {
                self.observe(first);
                for _ in 0..BATCH {
                    let Ok(event) = self.events.try_recv() else { break };
                    self.observe(event);
                }
            }
            self.turn();
        }
    }

    /// The steps, each in the file of its name.
    fn turn(&mut self) {
        self.turned_at = Instant::now();
        while self.tasks.try_join_next().is_some() {}
        if self.turned_at >= self.next_resync {
            self.resync();
        }
        self.world_changed |= self.first_look_ends.take_if(|end| *end <= self.turned_at).is_some();
        self.rediscover();
        self.validate();
        self.plan();
        self.clean_up();
        self.diff();
        self.apply();
        self.verify();
        self.report();
    }

    fn tick(&mut self) {
        let now = self.environment.clock.now();
        self.world_changed |= self.plan.recheck_at.is_some_and(|at| self.world.now < at && at <= now);
        self.world.now = now;
    }

    /// Lists everything again, in case an event was lost.
    fn resync(&mut self) {
        self.hub_relist.ring();
        self.members.values().for_each(|member| member.link.relist());
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

    /// The status is to be looked at.
    pub(super) fn touch_status(&mut self) {
        self.status_touched.get_or_insert_with(Instant::now);
    }

    /// When to take a turn although nothing was seen.
    fn wake(&self) -> Instant {
        let recheck = self.plan.recheck_at.filter(|at| *at > self.world.now).map(|at| self.until(at));
        let times = [
            Some(self.next_resync),
            self.status_due,
            recheck,
            self.writers_due(),
            self.records_due(),
            self.verify_due(),
            self.next_discovery,
            self.first_look_ends,
        ];
        times.into_iter().flatten().min().unwrap_or(self.next_resync)
    }

    fn until(&self, at: Timestamp) -> Instant {
        let seconds = u64::try_from(at.0.saturating_sub(self.world.now.0)).unwrap_or_default();
        Instant::now() + Duration::from_secs(seconds.min(86_400))
    }
}
