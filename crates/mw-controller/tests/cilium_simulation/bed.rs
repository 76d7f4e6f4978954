//! The environment of one run: a hub with the objects and Secrets of tenants,
//! clusters with Cilium, their etcds, and providers that start and stop.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use http::Method;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff;
use kube::Api;
use mw_api::cilium::rbac;
use mw_controller::cilium::{Provider, Settings};
use mw_controller::lease::Elector;
use mw_controller::metrics::Metrics;
use mw_controller::run::lead;
use mw_sim::kilo::kubeconfig;
use mw_sim::{Account, Cluster, Definition, Pods};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::case::{Case, CiliumSite};
use crate::faults::{OPERATOR, Script};
use crate::object::{API, KINDS};
use crate::oracle::connects;
use crate::process::{EPOCH, Process, clock, process, wall};
use crate::site::{SYSTEM, Site, secret};
use crate::wire::Wire;
use crate::witness::{Post, Witness};

pub(crate) const HUB: &str = "hub";
/// Namespace of the provider's Lease.
const HOME: &str = "meshwright";
pub(crate) const RESYNC: Duration = Duration::from_secs(600);
/// Interval of link verification while nothing changes.
pub(crate) const CHECK: Duration = Duration::from_secs(60);
pub(crate) const POLICIES: &str = "/apis/cilium.io/v2/ciliumnetworkpolicies";
pub(crate) const CLUSTERWIDE: &str = "/apis/cilium.io/v2/ciliumclusterwidenetworkpolicies";
pub(crate) const CONNECTION_SECRETS: [&str; 2] = ["cilium-clustermesh", "cilium-kvstoremesh"];
const MERGE: &str = "application/merge-patch+json";

/// Objects that are the same in every run, read once.
struct Files {
    objects: Vec<Definition>,
    policies: Vec<Definition>,
    hub: Account,
    target: Account,
    secrets: Vec<Value>,
}

static FILES: LazyLock<Files> = LazyLock::new(|| {
    let documents = |text: &str| serde_saphyr::from_multiple::<Value>(text).unwrap();
    let target = [
        rbac::target_yaml(),
        rbac::target_ca_yaml(),
        rbac::target_metrics_yaml(),
    ]
    .map(Result::unwrap)
    .join("---\n");
    let objects = mw_api::crd::cilium_crds();
    Files {
        objects: objects
            .iter()
            .map(|crd| Definition::parse(&serde_json::to_value(crd).unwrap()).unwrap())
            .collect(),
        policies: policy_crds()
            .iter()
            .map(|crd| Definition::parse(crd).unwrap())
            .collect(),
        hub: Account {
            user: OPERATOR.to_owned(),
            ..Account::from_roles(&documents(&rbac::hub_yaml().unwrap()))
        },
        target: Account::from_roles(&documents(&target)),
        secrets: documents(&rbac::connection_secrets_yaml().unwrap()),
    }
});

fn policy_crds() -> Vec<Value> {
    let open = |properties: Value| json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": properties });
    let list = |items: Value| json!({ "type": "array", "items": items });
    let ports = list(open(
        json!({ "ports": list(open(json!({ "endPort": { "type": "integer" } }))) }),
    ));
    let spec = open(
        json!({ "enableDefaultDeny": open(json!({})), "ingress": list(open(json!({ "toPorts": ports }))) }),
    );
    let schema = json!({ "openAPIV3Schema": { "type": "object", "properties": { "spec": spec } } });
    let of = |kind: &str, plural: &str, scope: &str| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": { "name": format!("{plural}.cilium.io") },
            "spec": {
                "group": "cilium.io", "scope": scope,
                "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List") },
                "versions": [{ "name": "v2", "served": true, "storage": true, "schema": schema }],
            },
        })
    };
    vec![
        of("CiliumNetworkPolicy", "ciliumnetworkpolicies", "Namespaced"),
        of(
            "CiliumClusterwideNetworkPolicy",
            "ciliumclusterwidenetworkpolicies",
            "Cluster",
        ),
    ]
}

/// The account behind the credentials that a namespace holds.
pub(crate) fn account_of(namespace: &str) -> String {
    format!("{OPERATOR}@{namespace}")
}

pub(crate) struct Bed {
    pub(crate) clusters: BTreeMap<String, Cluster>,
    /// Current state of the clusters with Cilium.
    pub(crate) sites: BTreeMap<String, Site>,
    pub(crate) wire: Wire,
    pub(crate) witness: Arc<Witness>,
    pub(crate) script: Arc<Script>,
    pub(crate) started: Instant,
    /// Seconds by which the providers' clocks are ahead of the fleet's.
    pub(crate) skew: Arc<AtomicI64>,
    seed: u64,
    /// Clusters whose credentials each namespace holds.
    pub(crate) holdings: BTreeMap<String, BTreeSet<String>>,
    /// Metrics of all providers so far.
    pub(crate) metrics: Vec<Metrics>,
    /// Numbers tokens and providers.
    issued: u64,
}

impl Bed {
    /// Creates the clusters, credentials and objects of a case, without a provider.
    pub(crate) fn new(case: &Case, script: Script) -> Bed {
        let started = Instant::now();
        let (wall, script) = (wall(started), Arc::new(script));
        let names = [HUB.to_owned()]
            .into_iter()
            .chain(case.sites.iter().map(|site| site.name.clone()));
        let cluster = |(at, name): (usize, String)| {
            let seed = case.seed.wrapping_mul(100).wrapping_add(at as u64);
            let settings = mw_sim::Settings {
                name: name.clone(),
                seed,
                wall: wall.clone(),
                managed_fields: true,
            };
            (name, Cluster::new(settings))
        };
        let clusters: BTreeMap<String, Cluster> = names.enumerate().map(cluster).collect();
        let wire = Wire::default();
        wire.set_clock(move || {
            EPOCH + i64::try_from(started.elapsed().as_secs()).unwrap_or(i64::MAX)
        });
        wire.set_delays(case.dial_delays.clone());
        let witness = Arc::new(Witness::new(
            started,
            clusters.clone(),
            wire.clone(),
            case.holdings.clone(),
        ));
        for (name, cluster) in &clusters {
            cluster.set_observer(Arc::new(Post {
                cluster: name.clone(),
                witness: Arc::downgrade(&witness),
            }));
            cluster.set_faults(script.clone());
        }
        let (skew, holdings) = (Arc::new(AtomicI64::new(0)), case.holdings.clone());
        let sites = BTreeMap::new();
        let (seed, metrics) = (case.seed, Vec::new());
        let mut bed = Bed {
            clusters,
            sites,
            wire,
            witness,
            script,
            started,
            skew,
            seed,
            holdings,
            metrics,
            issued: 0,
        };
        bed.furnish_hub(case);
        case.sites.iter().for_each(|site| bed.furnish(site));
        bed
    }

    fn furnish_hub(&mut self, case: &Case) {
        FILES
            .objects
            .iter()
            .for_each(|crd| self.on(HUB).install(crd));
        self.on(HUB).set_token("hub", Some(FILES.hub.clone()));
        let namespaces: Vec<String> = self
            .holdings
            .keys()
            .cloned()
            .chain([HOME.to_owned()])
            .collect();
        for name in &namespaces {
            self.create(
                HUB,
                "/api/v1/namespaces",
                &json!({ "metadata": { "name": name } }),
            );
        }
        let all: BTreeSet<String> = self.holdings.values().flatten().cloned().collect();
        all.iter()
            .for_each(|site| self.renew_credentials(site, false));
        for object in &case.objects {
            self.create(HUB, &object.collection(), &object.value(&object.spec));
        }
    }

    fn furnish(&mut self, drawn: &CiliumSite) {
        let site = drawn.site();
        FILES
            .policies
            .iter()
            .for_each(|crd| self.on(&site.name).install(crd));
        for (collection, object) in site.objects() {
            if !drawn.has_ca && object["metadata"]["name"] == "cilium-ca" {
                continue;
            }
            self.put(&site.name, &collection, &object);
        }
        FILES
            .secrets
            .iter()
            .for_each(|secret| self.create(&site.name, &format!("{SYSTEM}/secrets"), secret));
        for namespace in ["shop", "lab"]
            .into_iter()
            .filter(|namespace| *namespace == "shop" || drawn.has_lab)
        {
            self.create(
                &site.name,
                "/api/v1/namespaces",
                &json!({ "metadata": { "name": namespace } }),
            );
        }
        for name in &drawn.services {
            self.create(&site.name, "/api/v1/namespaces/shop/services", &shop(name));
        }
        let pods = MeshPods {
            cluster: self.on(&site.name).clone(),
            wire: self.wire.clone(),
        };
        self.on(&site.name).set_pods(Arc::new(pods));
        self.plug_in(site);
    }

    /// Adds a site, or replaces its state.
    pub(crate) fn plug_in(&mut self, site: Site) {
        self.witness.learn(&site);
        self.wire.plug_in(&site);
        self.sites.insert(site.name.clone(), site);
    }

    /// Replaces the certificates of a site.
    pub(crate) fn replace(&mut self, site: Site) {
        let before = self.sites[&site.name].clone();
        let mut etcd = self.wire.unplug(&format!("{}:2379", before.address));
        let keep = (etcd.cluster_name.clone(), etcd.id, etcd.failure);
        self.plug_in(site.clone());
        let address = format!("{}:2379", site.address);
        etcd = self.wire.etcd(&address).unwrap();
        (etcd.cluster_name, etcd.id, etcd.failure) = keep;
        self.wire.plug(&address, etcd);
        for (name, data) in site.secrets() {
            // A cluster without a CA Secret does not get one.
            if self
                .on(&site.name)
                .get(&format!("{SYSTEM}/secrets/{name}"))
                .is_some()
            {
                self.patch(
                    &site.name,
                    &format!("{SYSTEM}/secrets/{name}"),
                    &json!({ "stringData": data }),
                );
            }
        }
        let ingress =
            json!({ "status": { "loadBalancer": { "ingress": [{ "ip": site.address }] } } });
        self.patch(
            &site.name,
            &format!("{SYSTEM}/services/clustermesh-apiserver/status"),
            &ingress,
        );
    }

    /// Restarts Cilium with its current configuration.
    pub(crate) fn restart_cilium(&mut self, site: &str) {
        let Some(config) = self
            .on(site)
            .get(&format!("{SYSTEM}/configmaps/cilium-config"))
        else {
            return;
        };
        let (name, id) = (
            config["data"]["cluster-name"].as_str(),
            config["data"]["cluster-id"]
                .as_str()
                .and_then(|id| id.parse().ok()),
        );
        let (Some(name), Some(id)) = (name, id) else {
            return;
        };
        let address = format!("{}:2379", self.sites[site].address);
        let etcd = self.wire.etcd(&address).unwrap();
        if (etcd.cluster_name.as_str(), etcd.id) == (name, id) {
            return;
        }
        self.wire.change(&address, |etcd| {
            (etcd.cluster_name, etcd.id) = (name.to_owned(), id)
        });
        let now = jiff::Timestamp::from_second(
            EPOCH + i64::try_from(self.started.elapsed().as_secs()).unwrap(),
        )
        .unwrap();
        self.patch(
            site,
            &format!("{SYSTEM}/pods/cilium-0/status"),
            &json!({ "status": { "startTime": now.to_string() } }),
        );
    }

    pub(crate) fn on(&self, cluster: &str) -> &Cluster {
        &self.clusters[cluster]
    }

    /// Returns a cluster, or in place of the hub a copy of it: the same objects and
    /// Secrets under other UIDs, without what the provider wrote.
    pub(crate) fn double_or(&self, cluster: &str) -> Cluster {
        if cluster != HUB {
            return self.on(cluster).clone();
        }
        let copy = Cluster::new(mw_sim::Settings {
            name: HUB.to_owned(),
            seed: u64::MAX,
            wall: wall(self.started),
            managed_fields: true,
        });
        FILES.objects.iter().for_each(|crd| copy.install(crd));
        let kinds = KINDS.map(|kind| format!("{API}/{}", kind.0));
        let collections = ["/api/v1/namespaces", "/api/v1/secrets"].map(str::to_owned);
        for collection in collections.into_iter().chain(kinds) {
            for object in self.on(HUB).list(&collection) {
                copy_object(&copy, &collection, &object);
            }
        }
        // An older version would be taken for a state that went back.
        copy.advance_to(self.on(HUB).version() + 1);
        copy.compact();
        copy
    }

    /// Creates an object as the tester, bypassing all faults.
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

    /// Creates an object and its status.
    pub(crate) fn put(&self, cluster: &str, collection: &str, object: &Value) {
        self.create(cluster, collection, object);
        if let Some(status) = object.get("status") {
            let path = format!(
                "{collection}/{}/status",
                object["metadata"]["name"].as_str().unwrap()
            );
            self.patch(cluster, &path, &json!({ "status": status }));
        }
    }

    /// Patches an object if it exists; returns false if the server refuses.
    pub(crate) fn patch(&self, cluster: &str, path: &str, patch: &Value) -> bool {
        self.on(cluster)
            .call(
                &Method::PATCH,
                &format!("{path}?fieldManager=somebody"),
                MERGE,
                Some(patch),
            )
            .0
            .is_success()
    }

    pub(crate) fn delete(&self, cluster: &str, path: &str) {
        self.on(cluster)
            .call(&Method::DELETE, path, "application/json", None);
    }

    /// Issues a new token of a cluster for each namespace that holds its credentials
    /// and writes it to the Secret there. Revokes the old ones on request.
    pub(crate) fn renew_credentials(&mut self, site: &str, revoke: bool) {
        let holders = self.holders(site);
        if revoke {
            (1..=self.issued)
                .for_each(|old| self.on(site).set_token(&format!("token-{old}"), None));
        }
        for namespace in holders {
            self.lend(&namespace, site, site);
        }
    }

    /// Writes new credentials of one cluster to the Secret of another, or its own.
    pub(crate) fn lend(&mut self, namespace: &str, of: &str, leads_to: &str) {
        self.issued += 1;
        let token = format!("token-{}", self.issued);
        self.on(leads_to).set_token(
            &token,
            Some(Account {
                user: account_of(namespace),
                ..FILES.target.clone()
            }),
        );
        self.put_secret(namespace, of, &kubeconfig(leads_to, &token));
    }

    /// Namespaces that hold credentials of a cluster.
    pub(crate) fn holders(&self, site: &str) -> Vec<String> {
        self.holdings
            .iter()
            .filter(|(_, sites)| sites.contains(site))
            .map(|(namespace, _)| namespace.clone())
            .collect()
    }

    pub(crate) fn put_secret(&self, namespace: &str, site: &str, kubeconfig: &str) {
        let path = secret_path(namespace, site);
        if !self.patch(
            HUB,
            &path,
            &json!({ "stringData": { "kubeconfig": kubeconfig } }),
        ) {
            let mut object = secret(
                &format!("{site}-kubeconfig"),
                &json!({ "kubeconfig": kubeconfig }),
            );
            object["metadata"]["namespace"] = namespace.into();
            self.create(
                HUB,
                &format!("/api/v1/namespaces/{namespace}/secrets"),
                &object,
            );
        }
    }

    /// Starts a whole provider process, except its sockets.
    pub(crate) fn start_provider(&mut self, elects: bool) -> JoinHandle<()> {
        self.issued += 1;
        self.witness.provider_started();
        self.script.forget_lists(None);
        let identity = format!("provider-{}", self.issued);
        let random = fastrand::Rng::with_seed(self.seed.wrapping_mul(31).wrapping_add(self.issued));
        let Process { ground, leases } = process(
            &self.clusters,
            HUB,
            elects,
            clock(self.started, self.skew.clone()),
            random,
        );
        self.metrics.push(ground.metrics.clone());
        let settings = Settings {
            resync: RESYNC,
            check: CHECK,
            ..Settings::default()
        };
        let back_end = Provider {
            settings,
            kcp: None,
            dialler: Arc::new(self.wire.clone()),
        };
        tokio::spawn(async move {
            let leases: Api<Lease> = Api::namespaced(leases, HOME);
            let mut elector = Elector::new(rbac::LEASE, &identity);
            let election = elects.then_some((&leases, &mut elector));
            lead(&back_end, false, election, ground).await;
        })
    }
}

/// Creates an object in another cluster as its owner declared it.
fn copy_object(to: &Cluster, collection: &str, object: &Value) {
    let mut fresh = object.clone();
    let meta = &object["metadata"];
    fresh["metadata"] = json!({ "name": meta["name"] });
    if let Some(fields) = fresh.as_object_mut() {
        fields.remove("status");
    }
    let path = match meta["namespace"].as_str() {
        Some(namespace) => {
            fresh["metadata"]["namespace"] = namespace.into();
            let (api, plural) = collection.rsplit_once('/').unwrap();
            format!("{api}/namespaces/{namespace}/{plural}")
        }
        None => collection.to_owned(),
    };
    to.call(&Method::POST, &path, "application/json", Some(&fresh));
}

/// A Service that may be exported.
pub(crate) fn shop(name: &str) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "shop", "labels": { "app": "cart" }, "annotations": { "own": "yes" } },
        "spec": { "type": "ClusterIP", "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }] },
    })
}

pub(crate) fn secret_path(namespace: &str, site: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/secrets/{site}-kubeconfig")
}

/// KVStoreMesh: reports every remote that its Secret has a key for, ready if the
/// key connects.
struct MeshPods {
    cluster: Cluster,
    wire: Wire,
}

impl Pods for MeshPods {
    fn get(&self, _: &Value, port: &str, path: &str) -> Option<String> {
        if port != "9964" || path != "/metrics" {
            return None;
        }
        let secret = self
            .cluster
            .get(&format!("{SYSTEM}/secrets/cilium-kvstoremesh"))?;
        let keys = secret["data"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, _)| key)
            .filter(|key| !key.contains('.'));
        let gauge = "cilium_kvstoremesh_remote_cluster_readiness_status";
        let line = |key: &String| {
            let ready = u8::from(connects(&self.cluster, &self.wire, key).is_ok());
            format!("{gauge}{{source_cluster=\"x\",target_cluster=\"{key}\"}} {ready}\n")
        };
        Some(keys.map(line).collect())
    }
}
