//! Runs a back end as a process: elects a leader, installs the CRDs, works, and
//! shuts down within seconds whatever hangs.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use mw_core::names::ClusterId;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::cluster_names::ClusterNames;
use crate::fleet::{Connect, HUB, MemoryBudget, Network};
use crate::install::{apply_crds, hub_uid};
use crate::kubeconfig::Allowed;
use crate::lease::{
    Elector, LeaseAnnotations, LeaseError, REQUEST_TIMEOUT, campaign, give_up, keep,
};
use crate::metrics::Metrics;
use crate::permit::Permit;
use crate::secure::{self, CertificateError, Gate};
use crate::serve::{ListenError, Readiness, listen, serve_health, serve_metrics};
use crate::transport::{Rules, Timeouts, client};

/// Timeout for releasing the Lease at shutdown.
const FAREWELL: Duration = Duration::from_secs(2);

/// Annotation of a Lease with the namespaces that its holder acts on.
pub const SCOPE: &str = "kilo-clustermesh.io/namespaces";
/// Value of [`SCOPE`] for all namespaces.
pub const EVERYWHERE: &str = "*";

/// The work of the process: Kilo or Cilium.
pub trait BackEnd {
    /// Name of the Lease for leader election.
    const LEASE: &'static str;

    /// Returns the CRDs to install on the hub.
    fn crds(&self) -> Vec<CustomResourceDefinition>;

    /// Reports whether written objects are marked with the UID of the hub.
    fn needs_hub_uid(&self) -> bool {
        true
    }

    /// Returns the namespaces whose objects it acts on, separated by commas, or `*`.
    fn scope(&self) -> Option<String> {
        None
    }

    /// Returns the metrics that the process serves.
    fn metrics(&self) -> Metrics;

    /// Runs the back end. Never returns.
    fn work(&self, environment: Environment) -> impl Future<Output = ()> + Send;
}

/// Dependencies of a back end. A simulation replaces them.
#[derive(Clone)]
pub struct Environment {
    pub hub: Client,
    /// Creates a client of the hub with a separate connection.
    pub another_hub: Arc<dyn Fn() -> Client + Send + Sync>,
    /// UID of the hub's Namespace kube-system, if needed.
    pub hub_uid: String,
    pub connect: Arc<dyn Connect>,
    pub clock: Clock,
    pub random: fastrand::Rng,
    pub metrics: Metrics,
    /// Names of clusters as people know them.
    pub names: ClusterNames,
    /// For code that creates further clients.
    pub permit: Permit,
    pub timeouts: Timeouts,
    /// Memory limit of the process in bytes.
    pub memory_limit: usize,
    pub lease_annotations: LeaseAnnotations,
    pub readiness: Readiness,
}

impl Environment {
    /// Returns the rules for a client of this cluster.
    pub fn rules(&self, cluster: &str) -> Rules {
        Rules {
            timeouts: self.timeouts,
            permit: self.permit.clone(),
            metrics: self.metrics.of_cluster(&ClusterId::from(cluster)),
        }
    }

    /// Returns a budget for the objects of a cluster.
    pub(crate) fn memory(&self) -> MemoryBudget {
        MemoryBudget::new(self.memory_limit)
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
    /// Kubeconfig of the hub; by default KUBECONFIG or the pod's own cluster.
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the Lease.
    pub namespace: String,
    /// Settings that members' kubeconfigs may use.
    pub allowed: Allowed,
    pub request_timeout: Duration,
    /// Memory limit of the process in bytes.
    pub memory_limit: usize,
    pub apply_crds: bool,
    /// Our identity in the Lease; None without leader election.
    pub leader_elect: Option<String>,
    pub metrics: Option<SocketAddr>,
    /// Serves metrics over HTTPS to authorized clients only.
    pub metrics_secure: bool,
    pub health: Option<SocketAddr>,
}

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("cannot load the kubeconfig of the hub: {0}")]
    Config(String),
    #[error("cannot create a client for the hub: {0}")]
    Client(#[source] kube::Error),
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error("lost the Lease {0}; another process may be leader now")]
    LostLease(&'static str),
}

/// Loads the configuration of the hub's client, optionally of a context other
/// than the current one.
pub async fn hub_config(
    kubeconfig: Option<&PathBuf>,
    context: Option<&str>,
) -> Result<Config, RunError> {
    let wrong = |error: &dyn std::fmt::Display| RunError::Config(error.to_string());
    let options = KubeConfigOptions {
        context: context.map(str::to_owned),
        ..KubeConfigOptions::default()
    };
    match (kubeconfig, context) {
        (Some(path), _) => {
            let file = Kubeconfig::read_from(path).map_err(|error| wrong(&error))?;
            Config::from_custom_kubeconfig(file, &options)
                .await
                .map_err(|error| wrong(&error))
        }
        (None, Some(_)) => Config::from_kubeconfig(&options)
            .await
            .map_err(|error| wrong(&error)),
        (None, None) => Config::infer().await.map_err(|error| wrong(&error)),
    }
}

/// Returns a read-only client of the hub.
pub async fn reader(
    kubeconfig: Option<&PathBuf>,
    context: Option<&str>,
    timeouts: Timeouts,
) -> Result<Client, RunError> {
    let rules = Rules {
        timeouts,
        permit: Permit::none(),
        metrics: Metrics::default().of_cluster(&ClusterId::from(HUB)),
    };
    client(hub_config(kubeconfig, context).await?, rules).map_err(RunError::Client)
}

/// Runs until `stop`, or until the Lease is lost.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place where chance comes in"
)]
pub async fn run<B: BackEnd>(
    options: Options<B>,
    stop: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let (metrics, readiness, clock) = (
        options.back_end.metrics(),
        Readiness::default(),
        Clock::system(),
    );
    let mut tasks = JoinSet::new();
    let mut for_metrics = None;
    if let Some(address) = options.metrics {
        let listener = listen(address, "metrics").await?;
        info!(address = %bound(&listener, address), secure = options.metrics_secure, "serving metrics");
        match options.metrics_secure {
            true => for_metrics = Some((listener, secure::acceptor()?)),
            false => _ = tasks.spawn(serve_metrics(listener, metrics.clone())),
        }
    }
    if let Some(address) = options.health {
        let listener = listen(address, "health").await?;
        info!(address = %bound(&listener, address), "serving health probes");
        tasks.spawn(serve_health(listener, readiness.clone()));
    }
    let config = hub_config(options.kubeconfig.as_ref(), None).await?;
    let timeouts = Timeouts::of(options.request_timeout);
    let permit = if options.leader_elect.is_some() {
        Permit::none()
    } else {
        Permit::always()
    };
    let rules = |permit: Permit| Rules {
        timeouts,
        permit,
        metrics: metrics.of_cluster(&ClusterId::from(HUB)),
    };
    if let Some((listener, acceptor)) = for_metrics {
        // A standby serves metrics as well, so reviews must not need the Lease.
        let reviews = client(config.clone(), rules(Permit::always())).map_err(RunError::Client)?;
        tasks.spawn(secure::serve(
            listener,
            acceptor,
            Gate::new(reviews),
            metrics.clone(),
        ));
    }
    // Requests for the Lease have a short timeout of their own, whatever --request-timeout is.
    let for_leases = Rules {
        timeouts: Timeouts::of(REQUEST_TIMEOUT),
        ..rules(Permit::always())
    };
    let leases = client(config.clone(), for_leases).map_err(RunError::Client)?;
    let hub_of = config.clone();
    let hub = client(config, rules(permit.clone())).map_err(RunError::Client)?;
    let leases: Api<Lease> = Api::namespaced(leases, &options.namespace);
    let mut elector = options
        .leader_elect
        .as_deref()
        .map(|identity| Elector::new(B::LEASE, identity));
    if let Some(scope) = options.back_end.scope() {
        elector = elector.map(|elector| elector.marked(SCOPE, scope));
    }
    let another_hub = {
        let (config, rules, hub) = (hub_of, rules(permit.clone()), hub.clone());
        // Falls back to the shared connection.
        Arc::new(move || client(config.clone(), rules.clone()).unwrap_or_else(|_| hub.clone()))
    };
    let connect = Arc::new(Network {
        allowed: options.allowed,
        timeouts,
        permit: permit.clone(),
        metrics: metrics.clone(),
    });
    let (memory_limit, random) = (options.memory_limit, fastrand::Rng::new());
    let ground = ProcessDeps {
        hub,
        another_hub,
        connect,
        permit,
        timeouts,
        memory_limit,
        metrics,
        readiness,
        clock: clock.clone(),
        random,
    };
    let work = lead(
        &options.back_end,
        options.apply_crds,
        elector.as_mut().map(|elector| (&leases, elector)),
        ground,
    );
    let ended = tokio::select! {
        biased;
        () = stop => Ok(()),
        lost = work => Err(lost),
    };
    if let (Ok(()), Some(elector)) = (&ended, &elector) {
        info!("shutting down");
        if !matches!(
            timeout(FAREWELL, give_up(&leases, elector, &clock.micro_time())).await,
            Ok(Ok(()))
        ) {
            warn!("failed to release the Lease; it expires by itself");
        }
    }
    ended
}

fn bound(listener: &tokio::net::TcpListener, asked: SocketAddr) -> SocketAddr {
    listener.local_addr().unwrap_or(asked)
}

/// Dependencies of the process. A simulation replaces them.
pub struct ProcessDeps {
    pub hub: Client,
    /// Creates a client of the hub with a separate connection.
    pub another_hub: Arc<dyn Fn() -> Client + Send + Sync>,
    pub connect: Arc<dyn Connect>,
    pub permit: Permit,
    pub timeouts: Timeouts,
    /// Memory limit of the process in bytes.
    pub memory_limit: usize,
    pub metrics: Metrics,
    pub readiness: Readiness,
    pub clock: Clock,
    pub random: fastrand::Rng,
}

impl std::fmt::Debug for ProcessDeps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProcessDeps").finish_non_exhaustive()
    }
}

/// Reports the state of a standby: ready if it can read the Lease.
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

/// Acquires the Lease if leader election is on, and runs the back end until the Lease is lost.
pub async fn lead<B: BackEnd>(
    back_end: &B,
    installs: bool,
    election: Option<(&Api<Lease>, &mut Elector)>,
    ground: ProcessDeps,
) -> RunError {
    let ProcessDeps {
        hub,
        another_hub,
        connect,
        permit,
        timeouts,
        memory_limit,
        metrics,
        readiness,
        clock,
        mut random,
    } = ground;
    let for_work = permit.clone();
    let annotations = LeaseAnnotations::default();
    let for_engine = annotations.clone();
    let wall = clock.clone();
    let standby = readiness.clone();
    let work = async move {
        let mut backoff = Backoff::of_watch(random.fork());
        if installs {
            readiness.waits_for("the CRDs to be installed");
            readiness
                .beating(apply_crds(&hub, &back_end.crds(), &mut backoff))
                .await;
        }
        let mut uid = String::new();
        if back_end.needs_hub_uid() {
            readiness.waits_for("Namespace kube-system of the hub to be read");
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
            names: metrics.names(),
            metrics,
            permit: for_work,
            timeouts,
            memory_limit,
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
    campaign(
        leases,
        elector,
        || wall.micro_time(),
        |told| stand_by(&standby, told),
    )
    .await;
    standby.waits_for("the first reconcile as leader");
    info!("became leader");
    permit.extend(elector.leads_until());
    tokio::select! {
        biased;
        () = keep(leases, elector, &annotations, || wall.micro_time(), |until| permit.extend(until)) => {}
        () = work => {}
    }
    RunError::LostLease(B::LEASE)
}
