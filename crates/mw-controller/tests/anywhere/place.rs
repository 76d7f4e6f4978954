//! Environment of a story: clusters with the CRDs, and a way to run the operator on
//! the first of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::{Client, Config};
use mw_controller::clock::Clock;
use mw_controller::fleet::{Connect, InMemoryConnect, MEMORY_LIMIT, Network};
use mw_controller::kilo::Settings;
use mw_controller::kubeconfig::{Allowed, config, inspect};
use mw_controller::metrics::Metrics;
use mw_controller::permit::Permit;
use mw_controller::run::{ProcessDeps, lead};
use mw_controller::serve::Readiness;
use mw_controller::transport::{Rules, Timeouts, client};
use mw_core::names::ClusterId;
use mw_sim::kilo::{NAMESPACE, host, kubeconfig, url};
use mw_sim::{Account, Cluster, Moment, Wall};
use mw_testbed::{PEER_CRD, Testbed};
use tokio::task::JoinSet;

pub(crate) const CLUSTERS: [&str; 3] = ["c1", "c2", "c3"];

pub(crate) struct Place {
    /// Clients without restrictions.
    pub(crate) clusters: BTreeMap<String, Client>,
    pub(crate) kubeconfigs: BTreeMap<String, String>,
    connect: Arc<dyn Connect>,
}

impl Place {
    /// Starts an operator that stops when dropped.
    pub(crate) fn start_operator(&self) -> JoinSet<()> {
        let hub = self.clusters[CLUSTERS[0]].clone();
        let another = hub.clone();
        let ground = ProcessDeps {
            hub,
            another_hub: Arc::new(move || another.clone()),
            connect: Arc::clone(&self.connect),
            permit: Permit::always(),
            timeouts: timeouts(),
            memory_limit: MEMORY_LIMIT,
            metrics: Metrics::default(),
            readiness: Readiness::default(),
            clock: Clock::system(),
            random: fastrand::Rng::with_seed(1),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            lead(&Settings::of(NAMESPACE), true, None, ground).await;
        });
        tasks
    }
}

fn timeouts() -> Timeouts {
    Timeouts::of(Duration::from_secs(5))
}

pub(crate) fn simulated() -> Place {
    let started = tokio::time::Instant::now();
    let wall = Wall::new(move || Moment {
        seconds: 1_800_000_000 + i64::try_from(started.elapsed().as_secs()).unwrap(),
        nanos: 0,
    });
    let (mut lines, mut kubeconfigs) = (BTreeMap::new(), BTreeMap::new());
    for (at, name) in CLUSTERS.iter().enumerate() {
        let cluster = Cluster::new(mw_sim::Settings {
            name: (*name).to_owned(),
            seed: at as u64,
            wall: wall.clone(),
            managed_fields: false,
        });
        cluster
            .install_crd(&serde_saphyr::from_str(PEER_CRD).unwrap())
            .unwrap();
        cluster.set_token("admin", Some(Account::admin("admin")));
        lines.insert(host(name), cluster.server());
        kubeconfigs.insert((*name).to_owned(), kubeconfig(name, "admin"));
    }
    let board = InMemoryConnect {
        lines,
        timeouts: timeouts(),
        permit: Permit::always(),
        metrics: Metrics::default(),
    };
    let admin = |name: &str| {
        let mut config = Config::new(url(name).parse().unwrap());
        config.auth_info.token = Some("admin".to_owned().into());
        board.client(&config, Permit::always()).unwrap()
    };
    let clusters = CLUSTERS
        .iter()
        .map(|name| ((*name).to_owned(), admin(name)))
        .collect();
    Place {
        clusters,
        kubeconfigs,
        connect: Arc::new(board),
    }
}

pub(crate) async fn real() -> Option<(Place, Testbed)> {
    let bed = Testbed::start_or_skip(&CLUSTERS).await?;
    let metrics = Metrics::default();
    let (mut clusters, mut kubeconfigs) = (BTreeMap::new(), BTreeMap::new());
    for name in CLUSTERS {
        let cluster = bed.cluster(name).unwrap();
        cluster.install_crd(PEER_CRD).await.unwrap();
        let text = cluster.admin_kubeconfig();
        let config = config(
            &inspect(text.as_bytes(), &Allowed::default()).unwrap(),
            &Allowed::default(),
        )
        .await
        .unwrap();
        let rules = Rules {
            timeouts: timeouts(),
            permit: Permit::always(),
            metrics: metrics.of_cluster(&ClusterId::from(name)),
        };
        clusters.insert(name.to_owned(), client(config, rules).unwrap());
        kubeconfigs.insert(name.to_owned(), text);
    }
    let connect = Arc::new(Network {
        allowed: Allowed::default(),
        timeouts: timeouts(),
        permit: Permit::always(),
        metrics,
    });
    Some((
        Place {
            clusters,
            kubeconfigs,
            connect,
        },
        bed,
    ))
}
