//! The event loop: waits for events, then runs one turn.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
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
use crate::fleet::follow::{Observed, RESYNC, RelistSignal};
use crate::fleet::{Attempt, Coarse, Feed};
use crate::kilo::absence::Absences;
use crate::kilo::apply::PeerOutcome;
use crate::kilo::budget::Budgets;
use crate::kilo::history::History;
use crate::kilo::identity::Strays;
use crate::kilo::observe::Member;
use crate::kilo::record::Record;
use crate::kubeconfig::Allowed;
use crate::metrics::Metrics;
use crate::run::{BackEnd, EVERYWHERE, Environment};

/// Settings from the command line.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Namespace of the operator and its Lease. Owners of other namespaces are tenants.
    pub namespace: String,
    /// Namespaces whose meshes are acted on, unless all are.
    pub namespaces: BTreeSet<String>,
    pub all_namespaces: bool,
    pub node_grace: Duration,
    pub resync: Duration,
    pub sweep_legacy: bool,
    pub allowed: Allowed,
}

impl Settings {
    /// Returns the default settings.
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

    fn scope(&self) -> Option<String> {
        let named = || {
            self.namespaces
                .iter()
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(",")
        };
        Some(if self.all_namespaces {
            EVERYWHERE.to_owned()
        } else {
            named()
        })
    }

    fn metrics(&self) -> Metrics {
        Metrics::kilo()
    }

    async fn work(&self, environment: Environment) {
        Engine::new(self.clone(), environment).run().await;
    }
}

/// Event for the engine.
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
        outcome: PeerOutcome,
    },
    Patched {
        mesh: MeshId,
        result: Result<Box<DynamicObject>, Failure>,
    },
    /// Namespaces that have a ClusterMesh of this name.
    Searched {
        name: String,
        found: Result<BTreeSet<String>, Failure>,
    },
}

/// Interval for checking the Lease for a confirmation while orphans are held.
const CONFIRMATION: Duration = Duration::from_secs(5);
/// Capacity of the channel; a full channel blocks the watches.
const EVENTS: usize = 4096;
/// Maximum number of events per turn.
const BATCH: usize = 4096;

pub struct Engine {
    pub(super) settings: Settings,
    pub(super) environment: Environment,
    pub(super) sender: mpsc::Sender<Event>,
    events: mpsc::Receiver<Event>,
    pub(super) tasks: JoinSet<()>,
    pub(super) secret_clients: Vec<Client>,
    /// State of the watch on ClusterMeshes in all namespaces.
    pub(super) wide: Feed,
    /// Watch on ClusterMeshes in our own namespace, if the wide one is forbidden.
    pub(super) narrow: Option<AbortHandle>,
    /// ClusterMeshes were listed at least once.
    pub(super) listed: bool,
    /// All ClusterMeshes were listed since their watch last failed.
    pub(super) all_listed: bool,
    /// Relists all watches on the hub.
    pub(super) hub_relist: RelistSignal,
    pub(super) records: BTreeMap<MeshId, Record>,
    pub(super) records_changed: bool,
    pub(super) absences: Absences,
    /// Problem with held orphans that was logged last.
    pub(super) orphans_told: Option<Problem>,
    pub(super) history: History,
    pub(super) budgets: Budgets,
    pub(super) members: BTreeMap<ClusterId, Member>,
    pub(super) links_changed: bool,
    /// Counts how often a link led to a new cluster.
    pub(super) identified: u64,
    /// Link that represents the cluster of a link, by link.
    pub(super) representatives: BTreeMap<ClusterId, ClusterId>,
    /// Entries that lead to the same cluster as another entry of the mesh.
    pub(super) strays: Strays,
    /// Link facts as last passed to the planner.
    pub(super) links: Links,
    pub(super) planner: Option<Planner>,
    /// Meshes outside the scope that were logged.
    pub(super) unserved: BTreeSet<MeshId>,
    pub(super) listings: Vec<(ClusterId, Listing)>,
    /// Clusters whose Nodes changed since the last turn.
    pub(super) nodes_changed: BTreeSet<ClusterId>,
    /// Clusters were listed since the last turn.
    pub(super) listed_anew: bool,
    pub(super) now: Timestamp,
    /// Something was planned since the last turn.
    pub(super) planned: bool,
    pub(super) news: bool,
    pub(super) status_due: Option<Instant>,
    pub(super) touched_at: Option<Instant>,
    pub(super) reported_at: Option<Instant>,
    /// Meshes whose status is due, and since when.
    pub(super) unreported: BTreeMap<MeshId, Instant>,
    /// Time of the first Node change that is not written to all clusters yet.
    pub(super) changing_since: Option<Instant>,
    next_resync: Instant,
    /// Start of the turn, used by all its steps: what is too early for one step
    /// must not be overdue for the next.
    pub(super) turned_at: Instant,
    /// Number of the current change, which links log messages to writes.
    pub(super) changes: u64,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl Engine {
    pub fn new(settings: Settings, mut environment: Environment) -> Engine {
        environment.connect = Arc::new(Coarse {
            connect: environment.connect,
            names: environment.names.clone(),
            process: "operator",
            administrators: Some(settings.namespace.clone()),
        });
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
            hub_relist: RelistSignal::default(),
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
            listed_anew: false,
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

    /// Runs the event loop. Never returns; dropping the future aborts its tasks.
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
                    let Ok(event) = self.events.try_recv() else {
                        break;
                    };
                    self.observe(event);
                }
            }
            self.turn();
        }
    }

    /// Runs the steps, each in the file of its name.
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

    pub(super) fn backoff(&mut self) -> Backoff {
        Backoff::of_watch(self.environment.random.fork())
    }

    /// Returns when to run a turn without an event.
    fn wake(&self) -> Instant {
        let recheck = self
            .planner
            .as_ref()
            .and_then(Planner::recheck_at)
            .map(|at| self.until(at));
        let cleanup = self.cleanup_due().map(|at| self.until(at));
        let confirmation = self
            .planner
            .as_ref()
            .filter(|planner| !planner.held_orphans().is_empty())
            .map(|_| self.turned_at + CONFIRMATION);
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
        times
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(self.next_resync)
    }

    fn until(&self, at: Timestamp) -> Instant {
        let seconds = u64::try_from(at.0.saturating_sub(self.now.0)).unwrap_or_default();
        Instant::now() + Duration::from_secs(seconds.min(86_400))
    }
}
