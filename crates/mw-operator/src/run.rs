//! A back end as a process: becomes leader, installs, works, and ends in
//! seconds whatever hangs.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::fleet::{Connect, HUB, Network};
use crate::install::{apply_crds, hub_uid};
use crate::kubeconfig::Allowed;
use crate::lease::{Elector, LeaseAnnotations, LeaseError, REQUEST_TIMEOUT, campaign, give_up, keep};
use crate::metrics::Metrics;
use crate::permit::Permit;
use crate::serve::{ListenError, Readiness, listen, serve_health, serve_metrics};
use crate::transport::{Patience, Rules, client};

/// Giving up the Lease must not keep the process from ending.
const FAREWELL: Duration = Duration::from_secs(2);

/// What the process is for.
pub trait BackEnd {
    /// The Lease by which a leader is elected.
    const LEASE: &'static str;

    /// What has to be installed on the hub.
    fn crds(&self) -> Vec<CustomResourceDefinition>;

    /// Whether objects on the hub are told apart by whose hub it is.
    fn needs_hub_uid(&self) -> bool {
        true
    }

    /// Never returns.
    fn work(&self, environment: Environment) -> impl Future<Output = ()> + Send;
}

/// Everything that a simulator puts in place of the real world.
#[derive(Clone)]
pub struct Environment {
    pub hub: Client,
    /// A client of the hub with a connection of its own.
    pub another_hub: Arc<dyn Fn() -> Client + Send + Sync>,
    /// UID of the hub's Namespace kube-system, where that is needed.
    pub hub_uid: String,
    pub connect: Arc<dyn Connect>,
    pub clock: Clock,
    pub random: fastrand::Rng,
    pub metrics: Metrics,
    /// For those who make clients of their own.
    pub permit: Permit,
    pub patience: Patience,
    pub lease_annotations: LeaseAnnotations,
    pub readiness: Readiness,
}

impl Environment {
    /// What a client of this cluster has to keep to.
    pub fn rules(&self, cluster: &str) -> Rules {
        Rules { patience: self.patience, permit: self.permit.clone(), metrics: self.metrics.of_cluster(cluster) }
    }
}

impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Environment").finish_non_exhaustive()
    }
}

#[derive(Debug, Clone)]
pub struct Options<B> {
    pub back_end: B,
    /// The hub; without it the pod's own cluster, or what KUBECONFIG names.
    pub kubeconfig: Option<PathBuf>,
    /// Where the Lease is.
    pub namespace: String,
    /// What a member's kubeconfig may do.
    pub allowed: Allowed,
    pub request_timeout: Duration,
    pub apply_crds: bool,
    /// Our name in the Lease, where a leader is elected.
    pub leader_elect: Option<String>,
    pub metrics: Option<SocketAddr>,
    pub health: Option<SocketAddr>,
}

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("the hub's configuration can't be read: {0}")]
    Config(String),
    #[error("no client for the hub: {0}")]
    Client(#[source] kube::Error),
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("the Lease {0} was lost: another process may lead now")]
    LostLease(&'static str),
}

/// The configuration of the hub's client, of a context other than the current
/// one where that is named.
pub async fn hub_config(kubeconfig: Option<&PathBuf>, context: Option<&str>) -> Result<Config, RunError> {
    let wrong = |error: &dyn std::fmt::Display| RunError::Config(error.to_string());
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    match (kubeconfig, context) {
        (Some(path), _) => {
            let file = Kubeconfig::read_from(path).map_err(|error| wrong(&error))?;
            Config::from_custom_kubeconfig(file, &options).await.map_err(|error| wrong(&error))
        }
        (None, Some(_)) => Config::from_kubeconfig(&options).await.map_err(|error| wrong(&error)),
        (None, None) => Config::infer().await.map_err(|error| wrong(&error)),
    }
}

/// A client of the hub that can't write, whatever is asked of it.
pub async fn reader(kubeconfig: Option<&PathBuf>, context: Option<&str>, patience: Patience) -> Result<Client, RunError> {
    let rules = Rules { patience, permit: Permit::none(), metrics: Metrics::default().of_cluster(HUB) };
    client(hub_config(kubeconfig, context).await?, rules).map_err(RunError::Client)
}

/// Runs until `stop`, or until the Lease is lost.
#[expect(clippy::disallowed_methods, reason = "the one place where chance comes in")]
pub async fn run<B: BackEnd>(options: Options<B>, stop: impl Future<Output = ()>) -> Result<(), RunError> {
    let (metrics, readiness, clock) = (Metrics::default(), Readiness::default(), Clock::system());
    let mut tasks = JoinSet::new();
    if let Some(address) = options.metrics {
        let listener = listen(address, "metrics").await?;
        info!(address = %bound(&listener, address), "metrics are served");
        tasks.spawn(serve_metrics(listener, metrics.clone()));
    }
    if let Some(address) = options.health {
        let listener = listen(address, "health").await?;
        info!(address = %bound(&listener, address), "health is served");
        tasks.spawn(serve_health(listener, readiness.clone()));
    }
    let config = hub_config(options.kubeconfig.as_ref(), None).await?;
    let patience = Patience::of(options.request_timeout);
    let permit = if options.leader_elect.is_some() { Permit::none() } else { Permit::always() };
    let rules = |permit: Permit| Rules { patience, permit, metrics: metrics.of_cluster(HUB) };
    // However long a slow member may take, the Lease can't wait.
    let for_leases = Rules { patience: Patience::of(REQUEST_TIMEOUT), ..rules(Permit::always()) };
    let leases = client(config.clone(), for_leases).map_err(RunError::Client)?;
    let hub_of = config.clone();
    let hub = client(config, rules(permit.clone())).map_err(RunError::Client)?;
    let leases: Api<Lease> = Api::namespaced(leases, &options.namespace);
    let mut elector = options.leader_elect.as_deref().map(|identity| Elector::new(B::LEASE, identity));
    let another_hub = {
        let (config, rules, hub) = (hub_of, rules(permit.clone()), hub.clone());
        // What worked once works again; should it not, one connection has to do.
        Arc::new(move || client(config.clone(), rules.clone()).unwrap_or_else(|_| hub.clone()))
    };
    let connect = Arc::new(Network { allowed: options.allowed, patience, permit: permit.clone(), metrics: metrics.clone() });
    let random = fastrand::Rng::new();
    let ground = Ground { hub, another_hub, connect, permit, patience, metrics, readiness, clock: clock.clone(), random };
    let work = lead(&options.back_end, options.apply_crds, elector.as_mut().map(|elector| (&leases, elector)), ground);
    let ended = tokio::select! {
        biased;
        () = stop => Ok(()),
        lost = work => Err(lost),
    };
    if let (Ok(()), Some(elector)) = (&ended, &elector) {
        info!("ending");
        if !matches!(timeout(FAREWELL, give_up(&leases, elector, &clock.micro_time())).await, Ok(Ok(()))) {
            warn!("the Lease could not be given up: it expires by itself");
        }
    }
    ended
}

fn bound(listener: &tokio::net::TcpListener, asked: SocketAddr) -> SocketAddr {
    listener.local_addr().unwrap_or(asked)
}

/// What the process stands on; a simulator puts its own there.
pub struct Ground {
    pub hub: Client,
    /// A client of the hub with a connection of its own.
    pub another_hub: Arc<dyn Fn() -> Client + Send + Sync>,
    pub connect: Arc<dyn Connect>,
    pub permit: Permit,
    pub patience: Patience,
    pub metrics: Metrics,
    pub readiness: Readiness,
    pub clock: Clock,
    pub random: fastrand::Rng,
}

impl std::fmt::Debug for Ground {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ground").finish_non_exhaustive()
    }
}

/// A process that waits for its turn is ready for it, if it can read whose turn it is.
fn stand_by(readiness: &Readiness, told: Result<&str, &LeaseError>) {
    readiness.beat();
    match told {
        Ok(holder) => readiness.stands_by(holder),
        Err(wrong) => {
            warn!(error = %wrong, "failed to acquire the Lease");
            if !matches!(wrong, LeaseError::Conflict) {
                readiness.waits_for(format!("the Lease: {wrong}"));
            }
        }
    }
}

/// Waits for its turn where a leader is elected, and works until that is over.
pub async fn lead<B: BackEnd>(back_end: &B, installs: bool, election: Option<(&Api<Lease>, &mut Elector)>, ground: Ground) -> RunError {
    let Ground { hub, another_hub, connect, permit, patience, metrics, readiness, clock, mut random } = ground;
    let for_work = permit.clone();
    let annotations = LeaseAnnotations::default();
    let for_engine = annotations.clone();
    let wall = clock.clone();
    let standby = readiness.clone();
    let work = async move {
        let mut backoff = Backoff::of_watch(random.fork());
        if installs {
            readiness.waits_for("the CRDs to be applied");
            readiness.beating(apply_crds(&hub, &back_end.crds(), &mut backoff)).await;
        }
        let mut uid = String::new();
        if back_end.needs_hub_uid() {
            readiness.waits_for("the Namespace kube-system of the hub to be read");
            uid = readiness.beating(hub_uid(&hub, &mut backoff)).await;
        }
        metrics.leader.set(1);
        let environment = Environment {
            hub,
            another_hub,
            hub_uid: uid,
            connect,
            clock,
            random,
            metrics,
            permit: for_work,
            patience,
            lease_annotations: for_engine,
            readiness,
        };
        back_end.work(environment).await;
    };
    let Some((leases, elector)) = election else {
        work.await;
        return RunError::LostLease(B::LEASE);
    };
    standby.waits_for("the Lease to be read");
    campaign(leases, elector, || wall.micro_time(), |told| stand_by(&standby, told)).await;
    standby.waits_for("its first turn as leader");
    info!("leading");
    permit.extend(elector.leads_until());
    tokio::select! {
        biased;
        () = keep(leases, elector, &annotations, || wall.micro_time(), |until| permit.extend(until)) => {}
        () = work => {}
    }
    RunError::LostLease(B::LEASE)
}
