//! The two sides: a simulated cluster per behaviour, and one real API server for all.

use std::sync::OnceLock;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use mw_sim::{Account, Cluster, Definition, Settings, Wall};
use mw_testbed::{PEER_CRD, Testbed};
use serde_json::Value;

use crate::LONGEST_BEHAVIOUR;
use crate::subject::{Side, Subject};

const MESH_CRD: &str = include_str!("../../../../config/crd/kilo.squat.ai_clustermeshes.yaml");
const OWN_CRDS: &str = include_str!("crds.yaml");

type Run = fn(Subject) -> futures::future::BoxFuture<'static, Value>;

/// A real API server shared by all behaviours. Never dropped: its supervisor ends it
/// together with the process.
pub(crate) struct Real {
    pub(crate) bed: Testbed,
}

static REAL: OnceLock<Option<Real>> = OnceLock::new();

impl Real {
    pub(crate) fn start() -> Option<&'static Real> {
        let start = || {
            runtime(false).block_on(async {
                let bed = Testbed::start_or_skip(&["real"]).await?;
                let cluster = bed.cluster("real").unwrap();
                for crd in [PEER_CRD, MESH_CRD, OWN_CRDS] {
                    cluster.install_crd(crd).await.unwrap();
                }
                Some(Real { bed })
            })
        };
        REAL.get_or_init(start).as_ref()
    }
}

fn runtime(paused: bool) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(paused)
        .build()
        .unwrap()
}

fn ended<T>(ended: Result<T, tokio::time::error::Elapsed>) -> T {
    ended.unwrap_or_else(|_| panic!("the behaviour did not end within {LONGEST_BEHAVIOUR:?}"))
}

pub(crate) fn on_simulator(index: usize, run: Run) -> Value {
    runtime(true).block_on(async {
        let cluster = simulated();
        cluster.set_token("admin", Some(Account::admin("admin")));
        let client = Client::new(cluster.server_as("admin"), "default");
        let subject = Subject::new(index, client, Side::Simulated(cluster)).await;
        ended(tokio::time::timeout(LONGEST_BEHAVIOUR, run(subject)).await)
    })
}

pub(crate) fn on_real(real: &'static Real, index: usize, run: Run) -> Value {
    runtime(false).block_on(async {
        let cluster = real.bed.cluster("real").unwrap();
        let client = client(&cluster.admin_kubeconfig()).await;
        let subject = Subject::new(index, client, Side::Real(cluster)).await;
        ended(tokio::time::timeout(LONGEST_BEHAVIOUR, run(subject)).await)
    })
}

pub(crate) async fn client(kubeconfig: &str) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

/// Returns a cluster with all definitions that behaviours use.
fn simulated() -> Cluster {
    static DEFINITIONS: OnceLock<Vec<Definition>> = OnceLock::new();
    let definitions = DEFINITIONS.get_or_init(|| {
        let documents = [PEER_CRD, MESH_CRD, OWN_CRDS]
            .map(|text| serde_saphyr::from_multiple::<Value>(text).unwrap());
        documents
            .iter()
            .flatten()
            .map(|crd| Definition::parse(crd).unwrap())
            .collect()
    });
    let cluster = Cluster::new(Settings {
        name: "simulated".into(),
        seed: 7,
        wall: Wall::fixed(1_767_225_600),
        managed_fields: true,
    });
    definitions
        .iter()
        .for_each(|definition| cluster.install(definition));
    cluster
}
