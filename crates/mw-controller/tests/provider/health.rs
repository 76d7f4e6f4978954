//! Answers of /healthz and /readyz for both back ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Method, Request};
use k8s_openapi::api::coordination::v1::Lease;
use kube::client::Body;
use kube::{Api, Config};
use mw_controller::cilium::{Provider, Settings};
use mw_controller::clock::Clock;
use mw_controller::fleet::{InMemoryConnect, MEMORY_LIMIT};
use mw_controller::kilo;
use mw_controller::lease::Elector;
use mw_controller::metrics::Metrics;
use mw_controller::permit::Permit;
use mw_controller::run::{BackEnd, ProcessDeps, lead};
use mw_controller::serve::Readiness;
use mw_controller::transport::Timeouts;
use mw_sim::kilo::{PEER_CRD, host, url};
use mw_sim::{Account, Cluster, Moment, Reachability, Wall};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower::ServiceBuilder;

use crate::bed::{HUB, NAMESPACE};
use crate::wire::Wire;

fn hub() -> Cluster {
    let started = Instant::now();
    let wall = Wall::new(move || Moment {
        seconds: 1_800_000_000 + i64::try_from(started.elapsed().as_secs()).unwrap(),
        nanos: 0,
    });
    let hub = Cluster::new(mw_sim::Settings {
        name: HUB.to_owned(),
        seed: 0,
        wall,
        managed_fields: false,
    });
    hub.set_token("hub", Some(Account::admin("hub")));
    hub.install_crd(&serde_saphyr::from_str(PEER_CRD).unwrap())
        .unwrap();
    let namespace = json!({ "metadata": { "name": NAMESPACE } });
    assert!(
        hub.call(
            &Method::POST,
            "/api/v1/namespaces",
            "application/json",
            Some(&namespace)
        )
        .0
        .is_success()
    );
    hub
}

fn install_crds(hub: &Cluster) {
    for crd in mw_api::crd::cilium_crds()
        .iter()
        .chain(&mw_api::crd::crds())
    {
        hub.install_crd(&serde_json::to_value(crd).unwrap())
            .unwrap();
    }
}

struct Process {
    readiness: Readiness,
    /// Requests other than watches and those for the Lease.
    requests: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

fn start<B: BackEnd + Send + Sync + 'static>(
    back_end: B,
    hub: &Cluster,
    identity: Option<&'static str>,
    installs: bool,
) -> Process {
    let (readiness, requests) = (Readiness::default(), Arc::<AtomicUsize>::default());
    let counted = Arc::clone(&requests);
    let count = move |request: Request<Body>| {
        let uri = request.uri().to_string();
        if !uri.contains("watch=true") && !uri.contains("/leases") {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        request
    };
    let lines = BTreeMap::from([(
        host(HUB),
        ServiceBuilder::new()
            .map_request(count)
            .service(hub.server()),
    )]);
    let permit = if identity.is_some() {
        Permit::none()
    } else {
        Permit::always()
    };
    let (metrics, timeouts) = (Metrics::default(), Timeouts::of(Duration::from_secs(5)));
    let board = InMemoryConnect {
        lines,
        timeouts,
        permit: permit.clone(),
        metrics: metrics.clone(),
    };
    let mut config = Config::new(url(HUB).parse().unwrap());
    config.auth_info.token = Some("hub".to_owned().into());
    let client = board.client(&config, permit.clone()).unwrap();
    let leases = board.client(&config, Permit::always()).unwrap();
    let another = client.clone();
    let ground = ProcessDeps {
        hub: client,
        another_hub: Arc::new(move || another.clone()),
        connect: Arc::new(board),
        permit,
        timeouts,
        memory_limit: MEMORY_LIMIT,
        metrics,
        readiness: readiness.clone(),
        clock: Clock::system(),
        random: fastrand::Rng::with_seed(1),
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let leases: Api<Lease> = Api::namespaced(leases, NAMESPACE);
        let mut elector = identity.map(|identity| Elector::new(B::LEASE, identity));
        lead(
            &back_end,
            installs,
            elector.as_mut().map(|elector| (&leases, elector)),
            ground,
        )
        .await;
    });
    Process {
        readiness,
        requests,
        _tasks: tasks,
    }
}

fn both(hub: &Cluster, identity: Option<&'static str>) -> [Process; 2] {
    start_both(hub, identity, false)
}

fn start_both(hub: &Cluster, identity: Option<&'static str>, installs: bool) -> [Process; 2] {
    let provider = Provider {
        settings: Settings::default(),
        kcp: None,
        dialler: Arc::new(Wire::default()),
    };
    [
        start(provider, hub, identity, installs),
        start(kilo::Settings::of(NAMESPACE), hub, identity, installs),
    ]
}

async fn ready(process: &Process) {
    let waiting = async {
        while process.readiness.readyz() != Ok("ok".to_owned()) {
            sleep(Duration::from_millis(100)).await;
        }
    };
    let late = |_| panic!("not ready: {:?}", process.readiness.readyz());
    tokio::time::timeout(Duration::from_secs(120), waiting)
        .await
        .unwrap_or_else(late);
}

#[tokio::test(start_paused = true)]
async fn an_idle_engine_is_healthy_and_asks_for_nothing() {
    let hub = hub();
    install_crds(&hub);
    let processes = both(&hub, None);
    for process in &processes {
        ready(process).await;
    }
    sleep(Duration::from_secs(20)).await;
    let requests = || {
        processes
            .each_ref()
            .map(|process| process.requests.load(Ordering::Relaxed))
    };
    let before = requests();
    // A resync comes after nine minutes at the earliest.
    for _ in 0..48 {
        sleep(Duration::from_secs(10)).await;
        for process in &processes {
            assert_eq!(process.readiness.healthz(), Ok(()));
        }
    }
    assert_eq!(requests(), before);
}

#[tokio::test(start_paused = true)]
async fn a_process_is_ready_once_its_objects_were_listed_and_not_before() {
    let hub = hub();
    hub.set_link(Reachability::Refusing);
    let processes = both(&hub, None);
    sleep(Duration::from_secs(90)).await;
    for process in &processes {
        assert_eq!(
            process.readiness.readyz(),
            Err("waiting for Namespace kube-system of the hub to be read".to_owned())
        );
        assert_eq!(
            process.readiness.healthz(),
            Ok(()),
            "waiting for a hub is no reason to be restarted"
        );
    }
    hub.set_link(Reachability::Up);
    sleep(Duration::from_secs(90)).await;
    let kinds = [
        "ClusterMeshBindings, GlobalServices and ConnectivityIntents",
        "ClusterMeshes",
    ];
    for (process, kinds) in processes.iter().zip(kinds) {
        assert_eq!(
            process.readiness.readyz(),
            Err(format!("waiting for the first list of {kinds}")),
            "there are no CRDs"
        );
        assert_eq!(process.readiness.healthz(), Ok(()));
    }
    install_crds(&hub);
    for process in &processes {
        ready(process).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_installs_the_crds_is_not_ready_before() {
    let hub = hub();
    hub.set_link(Reachability::Refusing);
    let processes = start_both(&hub, None, true);
    sleep(Duration::from_secs(90)).await;
    for process in &processes {
        assert_eq!(
            process.readiness.readyz(),
            Err("waiting for the CRDs to be installed".to_owned())
        );
        assert_eq!(process.readiness.healthz(), Ok(()));
    }
    hub.set_link(Reachability::Up);
    for process in &processes {
        ready(process).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_standby_is_ready_and_says_who_holds_the_lease() {
    let hub = hub();
    install_crds(&hub);
    let leaders = both(&hub, Some("one"));
    for leader in &leaders {
        ready(leader).await;
    }
    let standbys = both(&hub, Some("two"));
    sleep(Duration::from_secs(5)).await;
    for _ in 0..30 {
        sleep(Duration::from_secs(10)).await;
        for standby in &standbys {
            assert_eq!(
                standby.readiness.readyz(),
                Ok("standby: one holds the Lease".to_owned())
            );
            assert_eq!(standby.readiness.healthz(), Ok(()));
        }
    }
    assert!(
        standbys
            .iter()
            .all(|standby| standby.requests.load(Ordering::Relaxed) == 0)
    );
    hub.set_link(Reachability::Refusing);
    sleep(Duration::from_secs(10)).await;
    for standby in &standbys {
        assert!(
            standby
                .readiness
                .readyz()
                .unwrap_err()
                .starts_with("waiting for the Lease: ")
        );
    }
}
