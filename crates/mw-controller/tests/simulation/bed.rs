//! Environment of one run: in-memory API servers, a fleet on them, and operators
//! that start and stop. Time is tokio's paused clock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use http::Method;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use mw_controller::kilo::LEASE_NAME;
use mw_controller::kilo::Settings;
use mw_controller::lease::Elector;
use mw_controller::metrics::Metrics;
use mw_controller::run::{ProcessDeps, lead};
use mw_sim::kilo::{Mesh, NAMESPACE, PEER_CRD, Site, kubeconfig};
use mw_sim::{Account, Cluster, Rule};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::faults::{OPERATOR, Script};
use crate::process::{MEMORY, Process, clock, process, wall};
use crate::witness::{Post, Witness};

pub(crate) const PEERS: &str = "/apis/kilo.squat.ai/v1alpha1/peers";
pub(crate) const NODES: &str = "/api/v1/nodes";
pub(crate) const MESHES: &str = "/apis/kilo.squat.ai/v1alpha1/clustermeshes";
pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const RESYNC: Duration = Duration::from_secs(600);

/// Inputs that are the same in every run, read once.
struct Files {
    crds: Vec<Value>,
    hub: Account,
    remote: Account,
}

static FILES: LazyLock<Files> = LazyLock::new(|| {
    let documents = |text: &str| serde_saphyr::from_multiple::<Value>(text).unwrap();
    let mut crds = documents(include_str!(
        "../../../../config/crd/kilo.squat.ai_clustermeshes.yaml"
    ));
    crds.extend(documents(PEER_CRD));
    let account = |text: &str, user: &str| Account {
        user: user.to_owned(),
        ..Account::from_roles(&documents(text))
    };
    Files {
        crds,
        hub: account(include_str!("../../../../config/rbac/hub.yaml"), OPERATOR),
        remote: account(
            include_str!("../../../../config/rbac/remote.yaml"),
            OPERATOR,
        ),
    }
});

/// The CRDs of all clusters.
pub(crate) fn crds() -> &'static [Value] {
    &FILES.crds
}

/// Account of the credentials in a namespace.
pub(crate) fn account_of(namespace: &str) -> String {
    format!("{OPERATOR}@{namespace}")
}

/// Permissions on the hub: those in the operator's own namespace apply to every namespace with meshes.
fn hub_account(namespaces: &BTreeSet<String>) -> Account {
    let mut account = FILES.hub.clone();
    let local: Vec<Rule> = account
        .rules
        .iter()
        .filter(|rule| rule.namespace.is_some())
        .cloned()
        .collect();
    for namespace in namespaces
        .iter()
        .filter(|namespace| *namespace != NAMESPACE)
    {
        account.rules.extend(local.iter().map(|rule| Rule {
            namespace: Some(namespace.clone()),
            ..rule.clone()
        }));
    }
    account
}

pub(crate) struct Bed {
    pub(crate) clusters: BTreeMap<String, Cluster>,
    pub(crate) hub: String,
    pub(crate) witness: Arc<Witness>,
    pub(crate) script: Arc<Script>,
    pub(crate) started: Instant,
    /// Seconds by which the operators' clocks are ahead of the fleet's.
    pub(crate) skew: Arc<AtomicI64>,
    seed: u64,
    /// Namespaces with meshes, including the operator's own, and the clusters that
    /// each has credentials for.
    pub(crate) namespaces: BTreeMap<String, BTreeSet<String>>,
    /// Metrics of all operators so far.
    pub(crate) metrics: Vec<Metrics>,
    pub(crate) memory_limit: usize,
    /// Numbers tokens and operators.
    issued: u64,
}

impl Bed {
    /// Creates clusters with nodes, credentials and meshes, without an operator.
    pub(crate) fn new(seed: u64, sites: &[Site], meshes: &[Mesh], script: Script) -> Bed {
        let started = Instant::now();
        let wall = wall(started);
        let script = Arc::new(script);
        let mut clusters = BTreeMap::new();
        for (at, site) in sites.iter().enumerate() {
            let settings = mw_sim::Settings {
                name: site.name.clone(),
                seed: seed.wrapping_add(at as u64),
                wall: wall.clone(),
                managed_fields: false,
            };
            clusters.insert(site.name.clone(), Cluster::new(settings));
        }
        let hub = sites[0].name.clone();
        let witness = Arc::new(Witness::new(
            started,
            clusters.clone(),
            &hub,
            script.clone(),
        ));
        for (name, cluster) in &clusters {
            FILES
                .crds
                .iter()
                .for_each(|crd| cluster.install_crd(crd).unwrap());
            cluster.set_observer(Arc::new(Post {
                cluster: name.clone(),
                witness: Arc::downgrade(&witness),
            }));
            cluster.set_faults(script.clone());
        }
        let namespaces = namespaces(sites, meshes);
        let skew = Arc::new(AtomicI64::new(0));
        let (metrics, memory_limit) = (Vec::new(), MEMORY);
        let mut bed = Bed {
            clusters,
            hub,
            witness,
            script,
            started,
            skew,
            seed,
            namespaces,
            metrics,
            memory_limit,
            issued: 0,
        };
        for name in bed.namespaces.keys() {
            let namespace =
                json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
            bed.create(&bed.hub, "/api/v1/namespaces", &namespace);
        }
        let all = bed.namespaces.keys().cloned().collect();
        bed.clusters[&bed.hub].set_token("hub", Some(hub_account(&all)));
        for site in sites {
            site.nodes
                .values()
                .for_each(|node| bed.create(&site.name, NODES, &node.object()));
            if site.name != bed.hub {
                bed.renew_credentials(&site.name, false);
            }
        }
        for mesh in meshes {
            let collection = format!(
                "/apis/kilo.squat.ai/v1alpha1/namespaces/{}/clustermeshes",
                mesh.namespace
            );
            bed.create(&mesh.hub, &collection, &mesh.object());
        }
        bed
    }

    pub(crate) fn on(&self, cluster: &str) -> &Cluster {
        &self.clusters[cluster]
    }

    /// Creates an object as the test itself, without faults.
    pub(crate) fn create(&self, cluster: &str, collection: &str, object: &Value) {
        let (code, answer) =
            self.on(cluster)
                .call(&Method::POST, collection, "application/json", Some(object));
        assert!(
            code.is_success(),
            "creating in {collection} of {cluster}: {code} {answer}"
        );
    }

    /// Patches an object; returns false if the server refuses.
    pub(crate) fn patch(&self, cluster: &str, path: &str, patch: &Value) -> bool {
        self.on(cluster)
            .call(&Method::PATCH, path, MERGE, Some(patch))
            .0
            .is_success()
    }

    pub(crate) fn delete(&self, cluster: &str, path: &str) {
        self.on(cluster)
            .call(&Method::DELETE, path, "application/json", None);
    }

    pub(crate) fn hub_uid(&self) -> String {
        let namespace = self
            .on(&self.hub)
            .get("/api/v1/namespaces/kube-system")
            .unwrap();
        namespace["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Issues a new token of a member for each namespace with its credentials and
    /// writes it to the Secret there. Revokes the old ones if asked to.
    pub(crate) fn renew_credentials(&mut self, cluster: &str, revoke: bool) {
        let holders = self.holders(cluster);
        if revoke {
            (1..=self.issued)
                .for_each(|old| self.on(cluster).set_token(&format!("token-{old}"), None));
        }
        for namespace in holders {
            self.issued += 1;
            let token = format!("token-{}", self.issued);
            self.on(cluster).set_token(
                &token,
                Some(Account {
                    user: account_of(&namespace),
                    ..FILES.remote.clone()
                }),
            );
            self.put_secret(&namespace, cluster, &kubeconfig(cluster, &token));
        }
    }

    /// Replaces the Secrets of a cluster with credentials of another one.
    pub(crate) fn switch_secret(&mut self, cluster: &str, to: &str) {
        for namespace in self.holders(cluster) {
            self.issued += 1;
            let token = format!("token-{}", self.issued);
            self.on(to).set_token(
                &token,
                Some(Account {
                    user: account_of(&namespace),
                    ..FILES.remote.clone()
                }),
            );
            self.put_secret(&namespace, cluster, &kubeconfig(to, &token));
        }
    }

    /// Namespaces that have credentials of a cluster.
    pub(crate) fn holders(&self, cluster: &str) -> Vec<String> {
        self.namespaces
            .iter()
            .filter(|(_, clusters)| clusters.contains(cluster))
            .map(|(namespace, _)| namespace.clone())
            .collect()
    }

    pub(crate) fn put_secret(&self, namespace: &str, cluster: &str, kubeconfig: &str) {
        let name = format!("{cluster}-kubeconfig");
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "namespace": namespace },
            "stringData": { "kubeconfig": kubeconfig },
        });
        let path = secret_path(namespace, cluster);
        if !self.patch(
            &self.hub,
            &path,
            &json!({ "stringData": { "kubeconfig": kubeconfig } }),
        ) {
            self.create(
                &self.hub,
                &format!("/api/v1/namespaces/{namespace}/secrets"),
                &secret,
            );
        }
    }

    /// Starts a complete operator process, except for its sockets.
    pub(crate) fn start_operator(&mut self, elects: bool) -> JoinHandle<()> {
        self.issued += 1;
        self.witness.operator_started();
        self.script.forget_lists(None);
        let identity = format!("operator-{}", self.issued);
        let random = fastrand::Rng::with_seed(self.seed.wrapping_mul(31).wrapping_add(self.issued));
        let Process { ground, leases } = process(
            &self.clusters,
            &self.hub,
            elects,
            clock(self.started, self.skew.clone()),
            random,
        );
        let ground = ProcessDeps {
            memory_limit: self.memory_limit,
            ..ground
        };
        self.metrics.push(ground.metrics.clone());
        let all_namespaces = self.namespaces.len() > 1;
        tokio::spawn(async move {
            let leases: Api<Lease> = Api::namespaced(leases, NAMESPACE);
            let mut elector = Elector::new(LEASE_NAME, &identity);
            let election = elects.then_some((&leases, &mut elector));
            lead(
                &Settings {
                    resync: RESYNC,
                    all_namespaces,
                    ..Settings::of(NAMESPACE)
                },
                false,
                election,
                ground,
            )
            .await;
        })
    }
}

/// Each member's credentials are in the namespaces whose meshes name it; without
/// such a mesh, in the operator's own.
fn namespaces(sites: &[Site], meshes: &[Mesh]) -> BTreeMap<String, BTreeSet<String>> {
    let mut found = BTreeMap::from([(NAMESPACE.to_owned(), BTreeSet::new())]);
    for mesh in meshes {
        let members = mesh
            .entries
            .iter()
            .map(|entry| entry.site.clone())
            .filter(|site| *site != mesh.hub);
        found
            .entry(mesh.namespace.clone())
            .or_default()
            .extend(members);
    }
    let named = |site: &Site| found.values().any(|clusters| clusters.contains(&site.name));
    let unnamed: Vec<String> = sites
        .iter()
        .skip(1)
        .filter(|site| !named(site))
        .map(|site| site.name.clone())
        .collect();
    found
        .entry(NAMESPACE.to_owned())
        .or_default()
        .extend(unnamed);
    found
}

pub(crate) fn secret_path(namespace: &str, cluster: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/secrets/{cluster}-kubeconfig")
}
