//! The environment of one story: a hub, clusters with Cilium, and a provider that
//! starts and stops.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use http::Method;
use k8s_openapi::jiff;
use kube::Config;
use mw_api::cilium::rbac;
use mw_controller::cilium::{Provider, Settings};
use mw_controller::clock::Clock;
use mw_controller::fleet::{InMemoryConnect, MEMORY_LIMIT};
use mw_controller::metrics::Metrics;
use mw_controller::permit::Permit;
use mw_controller::run::{ProcessDeps, lead};
use mw_controller::serve::Readiness;
use mw_controller::transport::Timeouts;
use mw_sim::kilo::{host, kubeconfig, url};
use mw_sim::{Account, Cluster, Moment, Wall};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::site::{SYSTEM, Site};
use crate::wire::{KvStoreMesh, Wire, base64};

pub(crate) const HUB: &str = "hub";
pub(crate) const NAMESPACE: &str = "net";
pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const EPOCH: i64 = 1_800_000_000;

static CRDS: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let crds = mw_api::crd::cilium_crds();
    crds.iter()
        .map(|crd| serde_json::to_value(crd).unwrap())
        .collect()
});

/// Account of a target, with both optional roles.
static TARGET: LazyLock<Account> = LazyLock::new(|| {
    let roles = [
        rbac::target_yaml(),
        rbac::target_ca_yaml(),
        rbac::target_metrics_yaml(),
    ]
    .map(Result::unwrap);
    account(&roles.join("---\n"))
});
static PROVIDER: LazyLock<Account> = LazyLock::new(|| account(&rbac::hub_yaml().unwrap()));

fn account(roles: &str) -> Account {
    let documents: Vec<Value> = serde_saphyr::from_multiple(roles).unwrap();
    Account {
        user: "provider".to_owned(),
        ..Account::from_roles(&documents)
    }
}

pub(crate) struct Bed {
    pub(crate) clusters: BTreeMap<String, Cluster>,
    pub(crate) sites: BTreeMap<String, Site>,
    pub(crate) wire: Wire,
    started: Instant,
    provider: Option<JoinSet<()>>,
    pub(crate) settings: Settings,
}

impl Bed {
    pub(crate) fn new(sites: &[Site]) -> Bed {
        let started = Instant::now();
        let wall = Wall::new(move || Moment {
            seconds: EPOCH + seconds(started.elapsed()),
            nanos: 0,
        });
        let names = [HUB.to_owned()]
            .into_iter()
            .chain(sites.iter().map(|site| site.name.clone()));
        let cluster = |(at, name): (usize, String)| {
            let settings = mw_sim::Settings {
                name: name.clone(),
                seed: at as u64,
                wall: wall.clone(),
                managed_fields: true,
            };
            (name, Cluster::new(settings))
        };
        let clusters: BTreeMap<String, Cluster> = names.enumerate().map(cluster).collect();
        let wire = Wire::default();
        let sites = sites
            .iter()
            .map(|site| (site.name.clone(), site.clone()))
            .collect();
        let bed = Bed {
            clusters,
            sites,
            wire,
            started,
            provider: None,
            settings: Settings::default(),
        };
        CRDS.iter()
            .for_each(|crd| bed.on(HUB).install_crd(crd).unwrap());
        bed.on(HUB).set_token("hub", Some(PROVIDER.clone()));
        bed.create(
            HUB,
            "/api/v1/namespaces",
            &json!({ "metadata": { "name": NAMESPACE } }),
        );
        for site in bed.sites.values() {
            bed.furnish(site);
            bed.give_access(&site.name);
        }
        bed
    }

    fn furnish(&self, site: &Site) {
        for (collection, object) in site.objects() {
            self.create(&site.name, &collection, &object);
            if let Some(status) = object.get("status") {
                let path = format!(
                    "{collection}/{}/status",
                    object["metadata"]["name"].as_str().unwrap()
                );
                self.patch(&site.name, &path, &json!({ "status": status }));
            }
        }
        let secrets: Vec<Value> =
            serde_saphyr::from_multiple(&rbac::connection_secrets_yaml().unwrap()).unwrap();
        secrets
            .iter()
            .for_each(|secret| self.create(&site.name, &format!("{SYSTEM}/secrets"), secret));
        let cluster = self.on(&site.name).clone();
        self.on(&site.name).set_pods(Arc::new(KvStoreMesh {
            cluster,
            wire: self.wire.clone(),
        }));
        self.wire.plug_in(site);
        if site.has_cluster_users() {
            self.wire.list_users(site, self.on(&site.name));
        }
    }

    pub(crate) fn give_access(&self, site: &str) {
        self.on(site).set_token("target", Some(TARGET.clone()));
        let secret = json!({
            "metadata": { "name": format!("{site}-kubeconfig"), "namespace": NAMESPACE },
            "stringData": { "kubeconfig": kubeconfig(site, "target") },
        });
        self.create(
            HUB,
            &format!("/api/v1/namespaces/{NAMESPACE}/secrets"),
            &secret,
        );
    }

    /// Rights of a target's kubeconfig.
    pub(crate) fn target(&self) -> Account {
        TARGET.clone()
    }

    /// Removes the optional roles.
    pub(crate) fn grant_no_more_than_needed(&self, site: &str) {
        self.on(site)
            .set_token("target", Some(account(&rbac::target_yaml().unwrap())));
    }

    pub(crate) fn on(&self, cluster: &str) -> &Cluster {
        &self.clusters[cluster]
    }

    pub(crate) fn create(&self, cluster: &str, collection: &str, object: &Value) {
        let path = format!("{collection}?fieldManager=helm");
        let (code, answer) =
            self.on(cluster)
                .call(&Method::POST, &path, "application/json", Some(object));
        assert!(
            code.is_success(),
            "creating in {collection} of {cluster}: {code} {answer}"
        );
    }

    pub(crate) fn patch(&self, cluster: &str, path: &str, patch: &Value) {
        let managed = format!("{path}?fieldManager=somebody");
        let (code, answer) = self
            .on(cluster)
            .call(&Method::PATCH, &managed, MERGE, Some(patch));
        assert!(
            code.is_success(),
            "patching {path} of {cluster}: {code} {answer}"
        );
    }

    pub(crate) fn delete(&self, cluster: &str, path: &str) {
        let (code, answer) = self
            .on(cluster)
            .call(&Method::DELETE, path, "application/json", None);
        assert!(
            code.is_success(),
            "deleting {path} of {cluster}: {code} {answer}"
        );
    }

    pub(crate) fn start(&mut self) {
        let lines = self
            .clusters
            .iter()
            .map(|(name, cluster)| (host(name), cluster.server()))
            .collect();
        let (permit, metrics) = (Permit::always(), Metrics::default());
        let timeouts = Timeouts::of(Duration::from_secs(5));
        let board = InMemoryConnect {
            lines,
            timeouts,
            permit: permit.clone(),
            metrics: metrics.clone(),
        };
        let mut config = Config::new(url(HUB).parse().unwrap());
        config.auth_info.token = Some("hub".to_owned().into());
        let hub = board.client(&config, permit.clone()).unwrap();
        let another = hub.clone();
        let started = self.started;
        let ground = ProcessDeps {
            hub,
            another_hub: Arc::new(move || another.clone()),
            connect: Arc::new(board),
            permit,
            timeouts,
            memory_limit: MEMORY_LIMIT,
            metrics,
            readiness: Readiness::default(),
            clock: Clock::new(move || {
                jiff::Timestamp::from_second(EPOCH + seconds(started.elapsed())).unwrap()
            }),
            random: fastrand::Rng::with_seed(1),
        };
        let back_end = Provider {
            settings: self.settings.clone(),
            kcp: None,
            dialler: Arc::new(self.wire.clone()),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            lead(&back_end, false, None, ground).await;
        });
        self.provider = Some(tasks);
    }

    pub(crate) fn stop(&mut self) {
        self.provider = None;
    }

    /// Waits until a check succeeds; fails with its last error.
    pub(crate) async fn until<T>(
        &self,
        what: &str,
        mut look: impl FnMut() -> Result<T, String>,
    ) -> T {
        let deadline = Instant::now() + Duration::from_secs(180);
        loop {
            match look() {
                Ok(found) => return found,
                Err(last) if Instant::now() >= deadline => panic!("{what}: {last}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    pub(crate) fn bind(&self, name: &str, refs: &[&str], config: &Value) {
        let refs: Vec<Value> = refs.iter().map(|name| json!({ "name": name })).collect();
        self.declare(
            BINDINGS,
            name,
            &json!({ "clusterRefs": refs, "meshConfig": config }),
        );
    }

    pub(crate) fn declare(&self, kind: Kind, name: &str, spec: &Value) {
        let metadata = json!({ "name": name, "namespace": NAMESPACE });
        let object = json!({ "apiVersion": "networking.edge-portal.eu/v1alpha1", "kind": kind.1, "metadata": metadata, "spec": spec });
        self.create(HUB, &kind_path(kind), &object);
    }

    pub(crate) fn object(&self, kind: Kind, name: &str) -> Option<Value> {
        self.on(HUB)
            .get(&format!("{}/{name}", kind_path(kind)))
            .map(|object| (*object).clone())
    }

    pub(crate) async fn phase(&self, kind: Kind, name: &str, phase: &str) -> Value {
        let what = format!("{} {name} is {phase}", kind.1);
        self.until(&what, || {
            let object = self.object(kind, name).unwrap_or_default();
            if object["status"]["phase"] == phase {
                Ok(object)
            } else {
                Err(serde_json::to_string_pretty(&object["status"]).unwrap())
            }
        })
        .await
    }

    pub(crate) async fn until_status(
        &self,
        kind: Kind,
        name: &str,
        is: impl Fn(&Value) -> bool,
    ) -> Value {
        self.until(&format!("the status of {name}"), || {
            let object = self.object(kind, name).unwrap_or_default();
            if is(&object["status"]) {
                Ok(object)
            } else {
                Err(serde_json::to_string_pretty(&object["status"]).unwrap())
            }
        })
        .await
    }

    pub(crate) fn path(&self, kind: Kind, name: &str) -> String {
        format!("{}/{name}", kind_path(kind))
    }

    /// Deletes an object, and waits until it is gone.
    pub(crate) async fn remove(&self, kind: Kind, name: &str) {
        self.delete(HUB, &self.path(kind, name));
        self.gone(kind, name).await;
    }

    pub(crate) async fn gone(&self, kind: Kind, name: &str) {
        let look = || {
            self.object(kind, name).map_or(Ok(()), |object| {
                Err(serde_json::to_string_pretty(&object).unwrap())
            })
        };
        self.until(&format!("{name} is gone"), look).await;
    }

    /// Version of each cluster, which changes only with writes.
    pub(crate) fn versions(&self) -> BTreeMap<String, u64> {
        self.clusters
            .iter()
            .map(|(name, cluster)| (name.clone(), cluster.version()))
            .collect()
    }

    pub(crate) fn events(&self) -> Vec<Value> {
        let events = self.on(HUB).list(&format!(
            "/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"
        ));
        events.iter().map(|event| (**event).clone()).collect()
    }

    /// Deletes an object and returns it, so that it can be restored.
    pub(crate) fn take(&self, cluster: &str, path: &str) -> Value {
        let object = (*self.on(cluster).get(path).unwrap()).clone();
        self.delete(cluster, path);
        object
    }

    pub(crate) fn put_back(&self, cluster: &str, path: &str, object: &Value) {
        let mut fresh = object.clone();
        let name = object["metadata"]["name"].clone();
        fresh["metadata"] = json!({ "name": name, "labels": object["metadata"]["labels"], "namespace": object["metadata"]["namespace"] });
        self.create(cluster, path.rsplit_once('/').unwrap().0, &fresh);
        if let Some(status) = object.get("status") {
            self.patch(
                cluster,
                &format!("{path}/status"),
                &json!({ "status": status }),
            );
        }
    }

    /// Reissues the server certificate of a site with one more address.
    pub(crate) fn renew_server_certificate(&self, site: &str, address: &str) {
        let ca = self.sites[site].ca.authority();
        let names = [
            "clustermesh-apiserver.kube-system.svc",
            "*.mesh.cilium.io",
            address,
        ];
        let identity = ca
            .issue("clustermesh-apiserver.kube-system.svc", &names)
            .unwrap();
        let data = json!({ "tls.crt": identity.certificate, "tls.key": identity.key });
        self.patch(
            site,
            &format!("{SYSTEM}/secrets/clustermesh-apiserver-server-cert"),
            &json!({ "stringData": data }),
        );
    }

    /// The keys of a connection Secret, decoded.
    pub(crate) fn keys(&self, site: &str, secret: &str) -> BTreeMap<String, String> {
        let found = self
            .on(site)
            .get(&format!("{SYSTEM}/secrets/{secret}"))
            .map(|secret| secret["data"].clone())
            .unwrap_or_default();
        let decoded = |(key, value): (&String, &Value)| {
            (
                key.clone(),
                String::from_utf8(base64(value.as_str().unwrap())).unwrap(),
            )
        };
        found
            .as_object()
            .into_iter()
            .flatten()
            .map(decoded)
            .collect()
    }
}

/// Plural and kind.
pub(crate) type Kind = (&'static str, &'static str);
pub(crate) const BINDINGS: Kind = ("clustermeshbindings", "ClusterMeshBinding");
pub(crate) const SERVICES: Kind = ("globalservices", "GlobalService");
pub(crate) const INTENTS: Kind = ("connectivityintents", "ConnectivityIntent");

pub(crate) fn kind_path(kind: Kind) -> String {
    format!(
        "/apis/networking.edge-portal.eu/v1alpha1/namespaces/{NAMESPACE}/{}",
        kind.0
    )
}

pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    object["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .find(|condition| condition["type"] == kind)
        .unwrap()
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}
