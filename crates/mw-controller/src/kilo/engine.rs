//! The state of the Kilo back end, and its steps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::core::{ApiResource, DynamicObject};
use mw_api::kilo::clustermesh::ClusterMesh;
use mw_core::kilo::node::Node;
use mw_core::kilo::peer::PeerFacts;
use mw_core::kilo::planner::{Links, Listing, Planner};
use mw_core::names::{ClusterId, MeshId};
use mw_core::problem::Problem;
use mw_core::time::Timestamp;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tracing::warn;

use crate::backoff::Backoff;
use crate::engine::{Changes, Offers, RecordId, Steps};
use crate::failure::Failure;
use crate::fleet::follow::{Observed, RESYNC, Version};
use crate::fleet::{Coarse, Feed};
use crate::kilo::absence::{APART, Absences};
use crate::kilo::apply::PeerOutcome;
use crate::kilo::budget::Budgets;
use crate::kilo::credentials::probe;
use crate::kilo::diff::Operation;
use crate::kilo::feeds::PeerFeeds;
use crate::kilo::history::History;
use crate::kilo::identity::Strays;
use crate::kilo::member::{MemberState, Swap};
use crate::kilo::plan::Plan;
use crate::kilo::record::MeshState;
use crate::kubeconfig::Allowed;
use crate::metrics::Metrics;
use crate::run::{BackEnd, EVERYWHERE, Environment};

/// Interval for checking the Lease for a confirmation while orphans are held.
const CONFIRMATION: Duration = Duration::from_secs(5);
const CONTROLLER: &str = "kilo-clustermesh.io/operator";

pub(super) type Engine = crate::engine::Engine<Kilo>;
pub(super) type Event = crate::engine::Event<Kilo>;

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

    async fn work(&self, mut environment: Environment) {
        environment.connect = Arc::new(Coarse::new(
            environment.connect,
            environment.names.clone(),
            "operator",
            Some(self.namespace.clone()),
        ));
        let state = Kilo::default();
        Engine::with(state, self.clone(), self.resync, environment)
            .run()
            .await;
    }
}

/// Results of watches.
#[derive(Debug)]
pub(super) enum Input {
    Meshes {
        wide: bool,
        seen: Observed<DynamicObject>,
    },
    Secret {
        cluster: ClusterId,
        seen: Observed<k8s_openapi::api::core::v1::Secret>,
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
}

/// The watches on the hub.
pub(super) struct HubWatches {
    /// State of the watch on ClusterMeshes in all namespaces.
    pub(super) wide: Feed,
    /// Watch on ClusterMeshes in our own namespace, if the wide one is forbidden.
    pub(super) narrow: Option<AbortHandle>,
    /// ClusterMeshes were listed at least once.
    pub(super) listed: bool,
    /// All ClusterMeshes were listed since their watch last failed.
    pub(super) all_listed: bool,
    /// Clients of the watches on Secrets.
    pub(super) secret_clients: Vec<Client>,
}

impl Default for HubWatches {
    fn default() -> Self {
        HubWatches {
            wide: Feed::Starting,
            narrow: None,
            listed: false,
            all_listed: false,
            secret_clients: Vec::new(),
        }
    }
}

/// The clusters behind the links.
#[derive(Default)]
pub(super) struct Identities {
    /// Counts how often a link led to a new cluster.
    pub(super) found: u64,
    /// Link that represents the cluster of a link, by link.
    pub(super) representatives: BTreeMap<ClusterId, ClusterId>,
    /// Entries that lead to the same cluster as another entry of the mesh.
    pub(super) strays: Strays,
    /// Link facts as last passed to the planner.
    pub(super) links: Links,
}

/// Limits of what may change without a person.
#[derive(Default)]
pub(super) struct Guard {
    pub(super) history: History,
    pub(super) budgets: Budgets,
}

/// The current change.
#[derive(Default)]
pub(super) struct Change {
    /// Links log messages to writes.
    pub(super) number: u64,
    /// Time of the first Node change that is not written to all clusters yet.
    pub(super) since: Option<Instant>,
}

/// Problems that were logged because no status shows them.
#[derive(Default)]
pub(super) struct Told {
    /// Problem with held orphans.
    pub(super) orphans: Option<Problem>,
    /// Meshes outside the scope.
    pub(super) unserved: BTreeSet<MeshId>,
}

/// State of the Kilo back end.
#[derive(Default)]
pub(super) struct Kilo {
    pub(super) hub: HubWatches,
    pub(super) absences: Absences,
    pub(super) identities: Identities,
    pub(super) guard: Guard,
    /// Set once ClusterMeshes were listed.
    pub(super) planner: Option<Planner>,
    /// Lists that the planner does not have yet.
    pub(super) listings: Vec<(ClusterId, Listing)>,
    pub(super) change: Change,
    pub(super) told: Told,
    /// Meshes whose status is due, and since when.
    pub(super) unreported: BTreeMap<MeshId, Instant>,
}

impl RecordId for MeshId {
    fn resource(&self) -> ApiResource {
        ApiResource::erase::<ClusterMesh>(&())
    }

    fn namespace(&self) -> &str {
        &self.namespace
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn full_name(&self) -> String {
        self.to_string()
    }
}

impl Steps for Kilo {
    type Settings = Settings;
    type Input = Input;
    type RecordId = MeshId;
    type Object = MeshState;
    /// Name of a mesh.
    type SearchKey = String;
    type MemberState = MemberState;
    type Feeds = PeerFeeds;
    type Swap = Swap;
    type Operation = Operation;
    type Outcome = PeerOutcome;
    type Plan = Plan;

    /// Long enough to delete the Peers of a removed cluster.
    const LINGER: Duration = super::member::LINGER;
    const SEARCHES_APART: Duration = APART;
    const CONTROLLER: &'static str = CONTROLLER;
    const MANAGER: Option<&'static str> = None;

    fn follow(engine: &mut Engine) {
        engine.follow_meshes();
    }

    fn tell_readiness(engine: &Engine) {
        let readiness = &engine.environment.readiness;
        if Kilo::is_complete(engine) {
            readiness.acts();
        } else {
            readiness.waits_for("the first list of ClusterMeshes");
        }
    }

    fn tick(engine: &mut Engine, now: Timestamp) {
        if let Some(planner) = &mut engine.state.planner
            && now != engine.now
        {
            planner.set_now(now);
        }
    }

    fn observe(engine: &mut Engine, input: Input) {
        engine.observe(input);
    }

    /// Without all ClusterMeshes, overlaps and orphans are unknown.
    fn is_complete(engine: &Engine) -> bool {
        engine.state.hub.listed
    }

    fn validate(engine: &mut Engine) {
        engine.validate();
    }

    fn plan(engine: &mut Engine, changes: Changes) -> Plan {
        engine.plan(&changes)
    }

    fn diff(engine: &mut Engine, plan: &Plan) -> Offers<Operation> {
        engine.diff(plan)
    }

    fn write(
        engine: &mut Engine,
        cluster: &ClusterId,
        client: Client,
        operation: Operation,
    ) -> impl Future<Output = PeerOutcome> + Send + 'static {
        engine.write(cluster, client, operation)
    }

    fn observe_write(engine: &mut Engine, cluster: &ClusterId, epoch: u64, outcome: PeerOutcome) {
        engine.observe_write(cluster, epoch, outcome);
    }

    fn drop_writes(member: &mut MemberState) {
        member.early.clear();
    }

    fn clean_up(engine: &mut Engine, _: &Plan) {
        engine.clean_up();
    }

    fn report(engine: &mut Engine, _: &Plan) {
        engine.report();
    }

    fn dues(engine: &Engine) -> Vec<Option<Instant>> {
        let planner = engine.state.planner.as_ref();
        let recheck = planner.and_then(Planner::recheck_at);
        let confirmation = planner
            .filter(|planner| !planner.held_orphans().is_empty())
            .map(|_| engine.turned_at + CONFIRMATION);
        vec![
            recheck.map(|at| engine.until(at)),
            engine.cleanup_due().map(|at| engine.until(at)),
            confirmation,
            engine.state.guard.budgets.due(),
        ]
    }

    fn take_object(engine: &mut Engine, _: &MeshId, object: &DynamicObject, version: Version) {
        engine.take_record(object, version);
    }

    fn drop_object(engine: &mut Engine, _: &MeshId, object: &DynamicObject) {
        engine.drop_record(object);
    }

    fn miss_object(engine: &mut Engine, id: &MeshId) -> bool {
        engine.miss_record(id);
        true
    }

    fn warn_of_patch(mesh: &MeshId, failure: &Failure) {
        warn!(%mesh, error = %failure, "failed to write the ClusterMesh");
    }

    fn client_of(engine: &mut Engine, _: &MeshId) -> Result<Client, String> {
        Ok(engine.environment.hub.clone())
    }

    fn event_backoff(_: &mut Engine) -> Option<Backoff> {
        None
    }

    fn searched(name: &String) -> (ApiResource, String) {
        (ApiResource::erase::<ClusterMesh>(&()), name.clone())
    }

    fn observe_search(engine: &mut Engine, name: &String, namespaces: &BTreeSet<String>) {
        engine.take_searched(name, namespaces);
    }

    fn probe(client: Client) -> BoxFuture<'static, Result<(), Failure>> {
        Box::pin(probe(client))
    }

    fn disconnected(engine: &mut Engine, cluster: &ClusterId) {
        engine.become_unknown(cluster);
    }

    fn credentials_are_stale(engine: &mut Engine, _: &ClusterId) {
        engine.touch_status();
    }

    fn connected(engine: &mut Engine, cluster: &ClusterId) {
        engine.follow_member(cluster);
    }

    fn may_release(engine: &Engine, cluster: &ClusterId, lingered: bool) -> bool {
        engine.may_release(cluster, lingered)
    }
}
