//! The world of one run: API servers in memory, a fleet on them, and operators
//! that come and go. Time is tokio's, and stands still while anybody works.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use http::Method;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff;
use kube::{Api, Config};
use mw_operator::clock::Clock;
use mw_operator::fleet::Switchboard;
use mw_operator::kilo::LEASE_NAME;
use mw_operator::kilo::Settings;
use mw_operator::lease::Elector;
use mw_operator::metrics::Metrics;
use mw_operator::permit::Permit;
use mw_operator::run::{Ground, lead};
use mw_operator::serve::Readiness;
use mw_operator::transport::Patience;
use mw_sim::kilo::{Mesh, NAMESPACE, PEER_CRD, Site, host, kubeconfig, url};
use mw_sim::{Account, Cluster, Moment, Wall};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::faults::Script;
use crate::witness::{Post, Witness};

pub(crate) const PEERS: &str = "/apis/kilo.squat.ai/v1alpha1/peers";
pub(crate) const NODES: &str = "/api/v1/nodes";
pub(crate) const MESHES: &str = "/apis/kilo.squat.ai/v1alpha1/clustermeshes";
pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const RESYNC: Duration = Duration::from_secs(600);
/// What the fleet's clocks say when a run begins.
pub(crate) const EPOCH: i64 = 1_800_000_000;

/// What is the same in every run, read once.
struct Files {
    crds: Vec<Value>,
    hub: Account,
    remote: Account,
}

static FILES: LazyLock<Files> = LazyLock::new(|| {
    let documents = |text: &str| serde_saphyr::from_multiple::<Value>(text).unwrap();
    let mut crds = documents(include_str!("../../../../config/crd/kilo.squat.ai_clustermeshes.yaml"));
    crds.extend(documents(PEER_CRD));
    let account = |text: &str, user: &str| Account { user: user.to_owned(), ..Account::from_roles(&documents(text)) };
    Files {
        crds,
        hub: account(include_str!("../../../../config/rbac/hub.yaml"), OPERATOR),
        remote: account(include_str!("../../../../config/rbac/remote.yaml"), OPERATOR),
    }
});

/// The name under which all operators write.
pub(crate) const OPERATOR: &str = "operator";

pub(crate) struct Bed {
    pub(crate) clusters: BTreeMap<String, Cluster>,
    pub(crate) hub: String,
    pub(crate) witness: Arc<Witness>,
    pub(crate) script: Arc<Script>,
    pub(crate) started: Instant,
    /// What the operators' clocks are ahead of the fleet's, in seconds.
    pub(crate) skew: Arc<AtomicI64>,
    seed: u64,
    /// Numbers tokens and operators.
    issued: u64,
}

impl Bed {
    /// Clusters with their nodes, credentials and the meshes given; nobody
    /// acts on them yet.
    pub(crate) fn new(seed: u64, sites: &[Site], meshes: &[Mesh], script: Script) -> Bed {
        let started = Instant::now();
        let wall = Wall::new(move || Moment { seconds: EPOCH + seconds(started.elapsed()), nanos: 0 });
        let script = Arc::new(script);
        let mut clusters = BTreeMap::new();
        for (at, site) in sites.iter().enumerate() {
            let settings =
                mw_sim::Settings { name: site.name.clone(), seed: seed.wrapping_add(at as u64), wall: wall.clone(), managed_fields: false };
            clusters.insert(site.name.clone(), Cluster::new(settings));
        }
        let hub = sites[0].name.clone();
        let witness = Arc::new(Witness::new(started, clusters.clone(), &hub));
        for (name, cluster) in &clusters {
            FILES.crds.iter().for_each(|crd| cluster.install_crd(crd).unwrap());
            cluster.set_observer(Arc::new(Post { cluster: name.clone(), witness: witness.clone() }));
            cluster.set_faults(script.clone());
        }
        let mut bed = Bed { clusters, hub, witness, script, started, skew: Arc::new(AtomicI64::new(0)), seed, issued: 0 };
        bed.create(
            &bed.hub.clone(),
            "/api/v1/namespaces",
            &json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } }),
        );
        bed.clusters[&bed.hub].set_token("hub", Some(FILES.hub.clone()));
        for site in sites {
            site.nodes.values().for_each(|node| bed.create(&site.name, NODES, &node.object()));
            if site.name != bed.hub {
                bed.renew_credentials(&site.name, false);
            }
        }
        for mesh in meshes {
            let collection = format!("/apis/kilo.squat.ai/v1alpha1/namespaces/{}/clustermeshes", mesh.namespace);
            bed.create(&mesh.hub, &collection, &mesh.object());
        }
        bed
    }

    pub(crate) fn on(&self, cluster: &str) -> &Cluster {
        &self.clusters[cluster]
    }

    /// By the tester's own hand, which nothing stops.
    pub(crate) fn create(&self, cluster: &str, collection: &str, object: &Value) {
        let (code, answer) = self.on(cluster).call(&Method::POST, collection, "application/json", Some(object));
        assert!(code.is_success(), "creating in {collection} of {cluster}: {code} {answer}");
    }

    /// Patches an object if it is there; false where the server refuses.
    pub(crate) fn patch(&self, cluster: &str, path: &str, patch: &Value) -> bool {
        self.on(cluster).call(&Method::PATCH, path, MERGE, Some(patch)).0.is_success()
    }

    pub(crate) fn delete(&self, cluster: &str, path: &str) {
        self.on(cluster).call(&Method::DELETE, path, "application/json", None);
    }

    pub(crate) fn hub_uid(&self) -> String {
        let namespace = self.on(&self.hub).get("/api/v1/namespaces/kube-system").unwrap();
        namespace["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Gives a member a new token and puts it into its Secret. The old one
    /// ends if asked to.
    pub(crate) fn renew_credentials(&mut self, cluster: &str, revoke: bool) {
        self.issued += 1;
        let token = format!("token-{}", self.issued);
        if revoke {
            (1..self.issued).for_each(|old| self.on(cluster).set_token(&format!("token-{old}"), None));
        }
        self.on(cluster).set_token(&token, Some(FILES.remote.clone()));
        self.put_secret(cluster, &kubeconfig(cluster, &token));
    }

    pub(crate) fn put_secret(&self, cluster: &str, kubeconfig: &str) {
        let name = format!("{cluster}-kubeconfig");
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "namespace": NAMESPACE },
            "stringData": { "kubeconfig": kubeconfig },
        });
        let path = secret_path(cluster);
        if !self.patch(&self.hub, &path, &json!({ "stringData": { "kubeconfig": kubeconfig } })) {
            self.create(&self.hub, &format!("/api/v1/namespaces/{NAMESPACE}/secrets"), &secret);
        }
    }

    /// A process of the operator, all of it but its sockets.
    pub(crate) fn start_operator(&mut self, elects: bool) -> JoinHandle<()> {
        self.issued += 1;
        self.witness.operator_started();
        self.script.forget_lists(None);
        let identity = format!("operator-{}", self.issued);
        let permit = if elects { Permit::none() } else { Permit::always() };
        let (started, skew) = (self.started, self.skew.clone());
        let clock = Clock::new(move || now(started, &skew));
        let metrics = Metrics::default();
        let lines = self.clusters.iter().map(|(name, cluster)| (host(name), cluster.server())).collect();
        let patience = Patience::of(Duration::from_secs(5));
        let board = Switchboard { lines, patience, permit: permit.clone(), metrics: metrics.clone() };
        let hub = board.client(&hub_config(&self.hub), permit.clone()).unwrap();
        let leases = board.client(&hub_config(&self.hub), Permit::always()).unwrap();
        let another = hub.clone();
        let ground = Ground {
            hub,
            another_hub: Arc::new(move || another.clone()),
            connect: Arc::new(board),
            permit,
            patience,
            metrics,
            readiness: Readiness::default(),
            clock,
            random: fastrand::Rng::with_seed(self.seed.wrapping_mul(31).wrapping_add(self.issued)),
        };
        tokio::spawn(async move {
            let leases: Api<Lease> = Api::namespaced(leases, NAMESPACE);
            let mut elector = Elector::new(LEASE_NAME, &identity);
            let election = elects.then_some((&leases, &mut elector));
            lead(&Settings { resync: RESYNC, ..Settings::of(NAMESPACE) }, false, election, ground).await;
        })
    }
}

pub(crate) fn secret_path(cluster: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/secrets/{cluster}-kubeconfig")
}

pub(crate) fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

fn now(started: Instant, skew: &AtomicI64) -> jiff::Timestamp {
    let passed = started.elapsed();
    let second = EPOCH + seconds(passed) + skew.load(Ordering::Relaxed);
    jiff::Timestamp::new(second, i32::try_from(passed.subsec_nanos()).unwrap_or_default()).unwrap()
}

fn hub_config(hub: &str) -> Config {
    let mut config = Config::new(url(hub).parse().unwrap());
    config.auth_info.token = Some("hub".to_owned().into());
    config
}
