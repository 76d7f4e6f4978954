//! The loop: waits for something to be seen, then takes one turn.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::core::DynamicObject;
use mw_core::kilo::node::Node;
use mw_core::kilo::peer::PeerFacts;
use mw_core::kilo::planner::{Links, Listing, Planner};
use mw_core::names::{ClusterId, MeshId};
use mw_core::problem::Problem;
use mw_core::time::Timestamp;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::backoff::Backoff;
use crate::failure::Failure;
use crate::fleet::follow::{Bell, Observed, RESYNC};
use crate::fleet::{Attempt, Feed};
use crate::kilo::absence::Absences;
use crate::kilo::apply::Outcome;
use crate::kilo::budget::Budgets;
use crate::kilo::history::History;
use crate::kilo::identity::Strays;
use crate::kilo::observe::Member;
use crate::kilo::record::Record;
use crate::kubeconfig::Allowed;
use crate::run::{BackEnd, Environment};

/// What the operator was told on its command line.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The operator's own, where its Lease is.
    pub namespace: String,
    /// Whose meshes are acted on, unless all are.
    pub namespaces: BTreeSet<String>,
    pub all_namespaces: bool,
    pub node_grace: Duration,
    pub resync: Duration,
    pub sweep_legacy: bool,
    pub allowed: Allowed,
}

impl Settings {
    /// When nothing else is said.
    pub fn of(namespace: &str) -> Settings {
        Settings {
            namespace: namespace.to_owned(),
            namespaces: BTreeSet::from([namespace.to_owned()]),
            all_namespaces: false,
            node_grace: Duration::from_secs(90),
            resync: RESYNC,
            sweep_legacy: true,
            allowed: Allowed::default(),
        }
    }
}

pub const LEASE_NAME: &str = mw_core::kilo::LEASE;

impl BackEnd for Settings {
    const LEASE: &'static str = LEASE_NAME;

    fn crds(&self) -> Vec<CustomResourceDefinition> {
        mw_api::crd::crds()
    }

    async fn work(&self, environment: Environment) {
        Engine::new(self.clone(), environment).run().await;
    }
}

/// What the engine is told.
#[derive(Debug)]
pub(super) enum Event {
    Meshes {
        wide: bool,
        seen: Observed<DynamicObject>,
    },
    Secret {
        cluster: ClusterId,
        seen: Observed<k8s_openapi::api::core::v1::Secret>,
    },
    Attempted {
        cluster: ClusterId,
        epoch: u64,
        attempt: Attempt,
    },
    Nodes {
        cluster: ClusterId,
        epoch: u64,
        seen: Observed<Node>,
    },
    Peers {
        cluster: ClusterId,
        epoch: u64,
        seen: Observed<PeerFacts>,
    },
    Written {
        cluster: ClusterId,
        epoch: u64,
        outcome: Outcome,
    },
    Patched {
        mesh: MeshId,
        result: Result<Box<DynamicObject>, Failure>,
    },
    /// The namespaces that have a ClusterMesh of this name.
    Searched {
        name: String,
        found: Result<BTreeSet<String>, Failure>,
    },
}

/// A person's word on the Lease is looked for this often while orphans are held.
const CONFIRMATION: Duration = Duration::from_secs(5);
/// A channel that is full makes the watches wait.
const EVENTS: usize = 4096;
/// So many events are taken in before a turn.
const BATCH: usize = 4096;

pub struct Engine {
    pub(super) settings: Settings,
    pub(super) environment: Environment,
    pub(super) sender: mpsc::Sender<Event>,
    events: mpsc::Receiver<Event>,
    pub(super) tasks: JoinSet<()>,
    pub(super) secret_clients: Vec<Client>,
    /// The watch on all ClusterMeshes.
    pub(super) wide: Feed,
    /// The watch on those of our namespace, where the wide one is not allowed.
    pub(super) narrow: Option<AbortHandle>,
    /// ClusterMeshes were listed at least once.
    pub(super) listed: bool,
    /// All ClusterMeshes were listed since their watch last failed.
    pub(super) all_listed: bool,
    /// Lists again what is followed on the hub.
    pub(super) hub_relist: Bell,
    pub(super) records: BTreeMap<MeshId, Record>,
    pub(super) records_changed: bool,
    pub(super) absences: Absences,
    /// What was last told of held orphans.
    pub(super) orphans_told: Option<Problem>,
    pub(super) history: History,
    pub(super) budgets: Budgets,
    pub(super) members: BTreeMap<ClusterId, Member>,
    pub(super) links_changed: bool,
    /// How often a cluster was found behind a link.
    pub(super) identified: u64,
    /// Which link stands for the cluster of a link.
    pub(super) representatives: BTreeMap<ClusterId, ClusterId>,
    /// Clusters that look like another one of the same mesh.
    pub(super) strays: Strays,
    /// What the planner knows of the links.
    pub(super) links: Links,
    pub(super) planner: Option<Planner>,
    /// Meshes outside the scope that the log named.
    pub(super) unserved: BTreeSet<MeshId>,
    pub(super) listings: Vec<(ClusterId, Listing)>,
    /// Clusters whose Nodes changed since the last turn.
    pub(super) nodes_changed: BTreeSet<ClusterId>,
    pub(super) now: Timestamp,
    /// Something was planned since the last turn.
    pub(super) planned: bool,
    pub(super) news: bool,
    pub(super) status_due: Option<Instant>,
    pub(super) touched_at: Option<Instant>,
    pub(super) reported_at: Option<Instant>,
    /// Meshes whose status is to be written, and since when.
    pub(super) unreported: BTreeMap<MeshId, Instant>,
    /// When a Node's change was seen that is not in all clusters yet.
    pub(super) changing_since: Option<Instant>,
    next_resync: Instant,
    /// One moment for all steps of a turn: what was too early for them then
    /// must not be taken for done when it is asked what comes next.
    pub(super) turned_at: Instant,
    /// Numbers what was seen, so that the log tells what led to which write.
    pub(super) changes: u64,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl Engine {
    pub fn new(settings: Settings, environment: Environment) -> Engine {
        let (sender, events) = mpsc::channel(EVENTS);
        let now = environment.clock.now();
        let mut engine = Engine {
            settings,
            environment,
            sender,
            events,
            tasks: JoinSet::new(),
            secret_clients: Vec::new(),
            wide: Feed::Starting,
            listed: false,
            all_listed: false,
            hub_relist: Bell::default(),
            narrow: None,
            records: BTreeMap::new(),
            records_changed: false,
            absences: Absences::default(),
            orphans_told: None,
            history: History::default(),
            budgets: Budgets::default(),
            members: BTreeMap::new(),
            links_changed: false,
            identified: 0,
            representatives: BTreeMap::new(),
            strays: Strays::new(),
            links: Links::new(),
            planner: None,
            unserved: BTreeSet::new(),
            listings: Vec::new(),
            nodes_changed: BTreeSet::new(),
            now,
            planned: false,
            news: false,
            status_due: None,
            touched_at: None,
            reported_at: None,
            unreported: BTreeMap::new(),
            changing_since: None,
            next_resync: Instant::now(),
            turned_at: Instant::now(),
            changes: 0,
        };
        engine.schedule_resync();
        engine
    }

    /// Never returns; whoever drops it ends everything it started.
    pub async fn run(mut self) {
        let readiness = self.environment.readiness.clone();
        readiness.waits_for("the first list of ClusterMeshes");
        self.follow_meshes();
        loop {
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
        if !self.is_complete() {
            return;
        }
        self.environment.readiness.acts();
        self.validate();
        let mut stale = self.plan();
        if self.pay(&stale) {
            stale.extend(self.plan());
        }
        self.diff(&stale);
        self.apply();
        self.clean_up();
        self.report();
    }

    fn tick(&mut self) {
        let now = self.environment.clock.now();
        if now != self.now {
            self.now = now;
            if let Some(planner) = &mut self.planner {
                planner.set_now(now);
            }
        }
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

    pub(super) fn backoff(&mut self) -> Backoff {
        Backoff::of_watch(self.environment.random.fork())
    }

    /// When to take a turn although nothing was seen.
    fn wake(&self) -> Instant {
        let recheck = self.planner.as_ref().and_then(Planner::recheck_at).map(|at| self.until(at));
        let cleanup = self.cleanup_due().map(|at| self.until(at));
        let confirmation =
            self.planner.as_ref().filter(|planner| !planner.held_orphans().is_empty()).map(|_| self.turned_at + CONFIRMATION);
        let searches = self.absences.due().filter(|at| *at > self.turned_at);
        let times = [
            Some(self.next_resync),
            self.status_due,
            recheck,
            cleanup,
            self.writers_due(),
            self.records_due(),
            searches,
            confirmation,
            self.budgets.due(),
        ];
        times.into_iter().flatten().min().unwrap_or(self.next_resync)
    }

    fn until(&self, at: Timestamp) -> Instant {
        let seconds = u64::try_from(at.0.saturating_sub(self.now.0)).unwrap_or_default();
        Instant::now() + Duration::from_secs(seconds.min(86_400))
    }
}
