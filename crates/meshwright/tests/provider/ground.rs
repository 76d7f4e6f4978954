//! A hub and three clusters with Cilium's control plane, and the provider's rights on all of them.
//! Scenarios reuse the API servers; Cilium is reinstalled for each.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use base64ct::{Base64, Encoding};
use mw_testbed::cilium::{Ca, Cilium, CiliumSpec};
use mw_testbed::proxy::{Effect, Fault, Match, ProxyOutcome, Verb, lies};
use mw_testbed::{Cluster, FaultProxy, Kcp, Testbed};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::access::{HUB, MANAGEMENT, TARGET};
use crate::leaks::Leaks;
use crate::ledger;
use crate::look::Home;
use crate::process::Operator;
use crate::rights::Account;
use crate::tenants;

pub(crate) const SITES: [&str; 3] = ["east", "north", "west"];
pub(crate) const GROUP: &str = "networking.edge-portal.eu/v1alpha1";
/// Namespace of the objects, and one of another owner.
pub(crate) const NAMESPACES: [&str; 2] = ["net", "yonder"];
pub(crate) const SYSTEM: &str = "/api/v1/namespaces/kube-system";
pub(crate) const POLICIES: &str = "/apis/cilium.io/v2/namespaces/shop/ciliumnetworkpolicies";
pub(crate) const CONNECTIONS: [&str; 2] = ["cilium-clustermesh", "cilium-kvstoremesh"];
const HUB_CLUSTER: &str = "hub";
const CLUSTERS: [&str; 4] = [HUB_CLUSTER, SITES[0], SITES[1], SITES[2]];
/// Foreign keys in east's connection Secrets.
const FOREIGN: [(&str, &str); 2] = [
    ("notes", "kept by hand"),
    ("zz.etcd-client.key", "a key of somebody else's"),
];

/// Plural and kind.
pub(crate) type Kind = (&'static str, &'static str);
pub(crate) const BINDINGS: Kind = ("clustermeshbindings", "ClusterMeshBinding");
pub(crate) const SERVICES: Kind = ("globalservices", "GlobalService");
pub(crate) const INTENTS: Kind = ("connectivityintents", "ConnectivityIntent");

static POOL: Mutex<Vec<Testbed>> = Mutex::new(Vec::new());

thread_local! {
    /// Testbeds that are returned once their scenario has ended.
    static USED: RefCell<Vec<Used>> = const { RefCell::new(Vec::new()) };
}

/// A testbed after a scenario.
struct Used {
    bed: Testbed,
    /// Positions in the audit logs at its start.
    start: BTreeMap<String, u64>,
    denials_are_meant: bool,
}

/// Records the calls of a finished scenario and returns its servers to the pool.
pub(crate) fn settle(scenario: &str) {
    for Used {
        bed,
        start,
        denials_are_meant,
    } in USED.take()
    {
        for cluster in bed.clusters() {
            let (records, _) = cluster
                .audit_from(start.get(cluster.name()).copied().unwrap_or(0))
                .unwrap();
            ledger::note(&records, scenario, denials_are_meant);
        }
        POOL.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(bed);
    }
}

/// Stops all servers.
pub(crate) fn drain() {
    POOL.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

pub(crate) struct Ground {
    ciliums: BTreeMap<String, Cilium>,
    proxies: Vec<FaultProxy>,
    hub_proxy: Option<FaultProxy>,
    bed: Option<Testbed>,
    /// Location of the objects, if they are not on the hub.
    pub(crate) kcp: Option<Kcp>,
    start: BTreeMap<String, u64>,
    folder: TempDir,
    leaks: Leaks,
    /// Every observed status.
    pub(crate) statuses: RefCell<BTreeSet<String>>,
    providers: usize,
    denials_are_meant: bool,
    finished: bool,
}

/// Three complete installations with one CA.
pub(crate) fn alike(ca: &Ca) -> Vec<CiliumSpec> {
    SITES
        .iter()
        .zip(1..)
        .map(|(name, id)| CiliumSpec::new(name, id, ca))
        .collect()
}

impl Ground {
    /// Creates three clusters with one CA.
    pub(crate) async fn alike() -> (Self, Ca) {
        let ca = Ca::new().unwrap();
        (Self::new(alike(&ca)).await, ca)
    }

    /// Creates three clusters with one CA, which belong to tenants in kcp.
    pub(crate) async fn beside(kcp: Kcp) -> Self {
        Self::build(alike(&Ca::new().unwrap()), Some(kcp)).await
    }

    /// Creates everything except the provider, with the given Cilium installations in the order of
    /// the sites.
    pub(crate) async fn new(specs: Vec<CiliumSpec>) -> Self {
        Self::build(specs, None).await
    }

    async fn build(specs: Vec<CiliumSpec>, kcp: Option<Kcp>) -> Self {
        let from_pool = POOL.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let bed = match from_pool {
            Some(bed) => bed,
            None => Testbed::start(&CLUSTERS).await.unwrap(),
        };
        let start = bed
            .clusters()
            .map(|cluster| (cluster.name().to_owned(), cluster.audit_end()))
            .collect();
        for site in SITES {
            wipe(bed.cluster(site).unwrap()).await;
        }
        let [east, north, west] = <[CiliumSpec; 3]>::try_from(specs).unwrap();
        let install = |at: usize, spec| Cilium::install(&bed, SITES[at], spec);
        let (east, north, west) =
            tokio::try_join!(install(0, east), install(1, north), install(2, west)).unwrap();
        let ciliums = SITES
            .map(str::to_owned)
            .into_iter()
            .zip([east, north, west])
            .collect();
        let folder = tempfile::tempdir().unwrap();
        let (proxies, leaks, statuses) = (Vec::new(), Leaks::default(), RefCell::default());
        let ground = Self {
            ciliums,
            proxies,
            hub_proxy: None,
            bed: Some(bed),
            kcp,
            start,
            folder,
            leaks,
            statuses,
            providers: 0,
            denials_are_meant: false,
            finished: false,
        };
        ground.furnish().await;
        ground
    }

    async fn furnish(&self) {
        for namespace in NAMESPACES.into_iter().chain([HUB.namespace]) {
            self.hub().apply(&namespace_of(namespace)).await.unwrap();
            // Events of an earlier scenario on the same servers refer to its clusters.
            remove(
                self.hub(),
                &format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events"),
            )
            .await;
        }
        self.account().make(self.hub()).await;
        for site in SITES {
            self.cluster(site)
                .apply(&namespace_of("shop"))
                .await
                .unwrap();
            TARGET.make(self.cluster(site)).await;
            self.give_access(site, self.cluster(site).url()).await;
        }
        for secret in CONNECTIONS {
            self.cluster("east").apply(&foreign(secret)).await.unwrap();
        }
    }

    /// Makes the provider's first change of each of these resources fail with a conflict.
    pub(crate) async fn outpace(&mut self, site: &str, resources: &[&str]) {
        let proxy = FaultProxy::start(self.cluster(site)).unwrap();
        for resource in resources {
            proxy.add(
                Fault::new(
                    Match::verb(Verb::Patch).resource(resource),
                    Effect::answer(409),
                )
                .times(1),
            );
        }
        self.give_access(site, proxy.url()).await;
        self.proxies.push(proxy);
    }

    /// Points the Secret of a site in one namespace to a server that returns the UID of another
    /// cluster.
    pub(crate) async fn impersonate(&mut self, namespace: &str, site: &str, victim: &str) {
        let (from, to) = (self.uid(site).await, self.uid(victim).await);
        let lie = Fault::new(
            Match::all().resource("namespaces"),
            lies::rewritten(from, to),
        );
        self.lead_through(namespace, site, lie).await;
    }

    /// Points the Secret of a site in one namespace to a server that never returns its UID.
    pub(crate) async fn silence(&mut self, namespace: &str, site: &str) {
        self.lead_through(
            namespace,
            site,
            Fault::new(Match::all().resource("namespaces"), Effect::Hang),
        )
        .await;
    }

    /// Points the Secret of a site in one namespace to a server whose list of Namespaces never ends.
    pub(crate) async fn never_end(&mut self, namespace: &str, site: &str) {
        let lie = lies::endless_list(100, &namespace_of("endless"));
        self.lead_through(
            namespace,
            site,
            Fault::new(Match::verb(Verb::List).resource("namespaces"), lie),
        )
        .await;
    }

    /// Number of lists of Namespaces that went through a proxy.
    pub(crate) fn pages(&self) -> u64 {
        self.proxies
            .iter()
            .map(|proxy| proxy.count(&Match::verb(Verb::List).resource("namespaces")))
            .sum()
    }

    /// Tolerates denied requests: the scenario revokes rights.
    pub(crate) fn expect_denials(&mut self) {
        self.denials_are_meant = true;
    }

    /// Lets the next providers reach the hub through a proxy.
    pub(crate) fn interpose(&mut self) {
        self.hub_proxy = Some(FaultProxy::start(self.hub()).unwrap());
    }

    pub(crate) fn hub_proxy(&self) -> &FaultProxy {
        self.hub_proxy.as_ref().unwrap()
    }

    async fn lead_through(&mut self, namespace: &str, site: &str, fault: Fault) {
        self.front(namespace, site).await.add(fault);
    }

    /// Points the Secret of a site in one namespace to a proxy.
    pub(crate) async fn front(&mut self, namespace: &str, site: &str) -> &FaultProxy {
        let proxy = FaultProxy::start(self.cluster(site)).unwrap();
        let token = TARGET.kept_token(self.cluster(site)).await;
        let kubeconfig = self.cluster(site).kubeconfig(proxy.url(), &token);
        self.store(namespace, site, &kubeconfig).await;
        self.proxies.push(proxy);
        self.proxies.last().unwrap()
    }

    /// The first proxy.
    pub(crate) fn proxy(&self) -> &FaultProxy {
        &self.proxies[0]
    }

    /// Writes a kubeconfig Secret.
    pub(crate) async fn store(&self, namespace: &str, site: &str, kubeconfig: &str) {
        let metadata = json!({ "name": format!("{site}-kubeconfig"), "namespace": namespace });
        let data = json!({ "kubeconfig": kubeconfig });
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data });
        self.hub().apply(&secret).await.unwrap();
    }

    /// Deletes a kubeconfig Secret.
    pub(crate) async fn withdraw(&self, namespace: &str, site: &str) {
        let path = format!("/api/v1/namespaces/{namespace}/secrets/{site}-kubeconfig");
        remove(self.hub(), &path).await;
    }

    async fn uid(&self, cluster: &str) -> String {
        let namespace = self
            .cluster(cluster)
            .get("/api/v1/namespaces/kube-system")
            .await
            .unwrap()
            .unwrap();
        namespace["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Makes all servers answer correctly again.
    pub(crate) fn repent(&self) {
        self.proxies.iter().for_each(FaultProxy::clear);
    }

    /// Number of requests for namespaces without an answer.
    pub(crate) fn unanswered(&self) -> u64 {
        let seen = self.proxies.iter().flat_map(FaultProxy::requests);
        seen.filter(|(_, outcome)| matches!(outcome, ProxyOutcome::Hung))
            .map(|_| 1)
            .sum()
    }

    async fn give_access(&self, site: &str, url: &str) {
        let token = TARGET.kept_token(self.cluster(site)).await;
        let kubeconfig = self.cluster(site).kubeconfig(url, &token);
        // Cluster API uses the second key.
        let data = json!({ "kubeconfig": kubeconfig, "value": kubeconfig });
        for namespace in self.vaults() {
            let metadata = json!({ "name": format!("{site}-kubeconfig"), "namespace": namespace });
            let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data });
            self.hub().apply(&secret).await.unwrap();
        }
    }

    /// The provider's account on the hub.
    fn account(&self) -> Account {
        if self.kcp.is_some() { MANAGEMENT } else { HUB }
    }

    /// Namespaces of the hub that have kubeconfig Secrets.
    fn vaults(&self) -> Vec<&'static str> {
        if self.kcp.is_some() {
            vec![MANAGEMENT.namespace]
        } else {
            NAMESPACES.to_vec()
        }
    }

    /// All clusters that have objects.
    fn places(&self) -> Vec<&Cluster> {
        match &self.kcp {
            Some(kcp) => tenants::NAMES
                .iter()
                .filter_map(|name| kcp.workspace(name).ok())
                .collect(),
            None => vec![self.hub()],
        }
    }

    /// Location of the objects in most scenarios.
    pub(crate) fn home(&self) -> Home<'_> {
        Home {
            ground: self,
            cluster: self.hub(),
            namespace: NAMESPACES[0],
        }
    }

    fn bed(&self) -> &Testbed {
        self.bed.as_ref().unwrap()
    }

    pub(crate) fn hub(&self) -> &Cluster {
        self.cluster(HUB_CLUSTER)
    }

    pub(crate) fn cluster(&self, name: &str) -> &Cluster {
        self.bed().cluster(name).unwrap()
    }

    pub(crate) fn cilium(&self, site: &str) -> &Cilium {
        &self.ciliums[site]
    }

    pub(crate) fn cilium_mut(&mut self, site: &str) -> &mut Cilium {
        self.ciliums.get_mut(site).unwrap()
    }

    /// Starts the provider with its own account on the hub, and in kcp.
    pub(crate) async fn provider(&mut self, more: &[&str]) -> Operator {
        let account = self.account();
        let kubeconfig = self.hub_kubeconfig().await;
        let hub = self.write("hub", &kubeconfig);
        let source = if self.kcp.is_some() {
            let kubeconfig = self.kcp_kubeconfig().await;
            let file = self.write("kcp", &kubeconfig);
            vec![
                "--kcp-kubeconfig".to_owned(),
                file,
                "--reconcile-interval".to_owned(),
                "2s".to_owned(),
            ]
        } else {
            vec!["--hub".to_owned()]
        };
        let source: Vec<&str> = source.iter().map(String::as_str).collect();
        let level = std::env::var("MESHWRIGHT_TEST_LOG").unwrap_or_else(|_| "debug".to_owned());
        // A replica would wait for the Lease of one that was killed.
        let alone: &[&str] = if more
            .iter()
            .any(|argument| argument.starts_with("--leader-elect"))
        {
            &[]
        } else {
            &["--leader-elect=false"]
        };
        let arguments = [
            &[
                "provider",
                "--node-id",
                "test",
                "--mgmt-kubeconfig",
                &hub,
                "--mgmt-namespace",
                account.namespace,
            ][..],
            &source,
            &["--mesh-check-interval", "2s", "--log-level", &level],
            &[
                "--metrics-bind-address",
                "127.0.0.1:0",
                "--health-probe-bind-address",
                "127.0.0.1:0",
            ],
            alone,
            more,
        ];
        self.start(arguments.concat())
    }

    /// Starts a process. Its log is searched for secrets at the end.
    pub(crate) fn start<'a>(&mut self, arguments: impl IntoIterator<Item = &'a str>) -> Operator {
        self.providers += 1;
        let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
        Operator::start(&arguments, &self.log(self.providers))
    }

    /// Kubeconfig of the provider's account on the hub.
    pub(crate) async fn hub_kubeconfig(&mut self) -> String {
        let account = self.account();
        let token = self
            .hub()
            .request_token(account.namespace, account.name, 3600)
            .await
            .unwrap();
        self.leaks.note("the hub's token", &token);
        let url = self
            .hub_proxy
            .as_ref()
            .map_or_else(|| self.hub().url(), FaultProxy::url);
        self.hub().kubeconfig(url, &token)
    }

    /// Kubeconfig of the provider's account in its workspace.
    pub(crate) async fn kcp_kubeconfig(&mut self) -> String {
        let token = tenants::token(self.kcp()).await;
        self.leaks.note("kcp's token", &token);
        self.kcp().kubeconfig(tenants::PROVIDER, &token)
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn clusters(&self) -> impl Iterator<Item = &Cluster> {
        self.bed().clusters()
    }

    /// Writes a file and returns its path.
    fn write(&self, name: &str, content: &str) -> String {
        let path = self
            .folder
            .path()
            .join(format!("{name}-{}", self.providers));
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    }

    fn log(&self, number: usize) -> PathBuf {
        self.folder.path().join(format!("log-{number}"))
    }

    /// Creates a Service with one endpoint that is not exported yet.
    pub(crate) async fn open_shop(&self, site: &str, name: &str, annotations: Value) {
        let mut metadata = json!({ "name": name, "namespace": "shop" });
        // Applying null would own the field.
        if !annotations.is_null() {
            metadata["annotations"] = annotations;
        }
        let spec = json!({ "ports": [{ "name": "http", "port": 80 }] });
        self.cluster(site).apply(&json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec })).await.unwrap();
        let metadata = json!({ "name": name, "namespace": "shop", "labels": { "kubernetes.io/service-name": name } });
        let endpoints = json!([{ "addresses": ["10.1.0.5"], "conditions": { "ready": true } }]);
        let slice = json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "metadata": metadata,
            "endpoints": endpoints, "ports": [{ "name": "http", "port": 8080 }] });
        self.cluster(site).apply(&slice).await.unwrap();
    }

    /// Collects values that must never appear in a log, an event or a status.
    pub(crate) async fn note_secrets(&mut self) {
        let vaults: Vec<(&str, &str)> = self
            .vaults()
            .into_iter()
            .map(|namespace| (HUB_CLUSTER, namespace))
            .collect();
        for (cluster, namespace) in SITES
            .iter()
            .map(|site| (*site, "kube-system"))
            .chain(vaults)
        {
            let secrets = self
                .cluster(cluster)
                .list(&format!("/api/v1/namespaces/{namespace}/secrets"))
                .await
                .unwrap();
            for secret in &secrets {
                self.leaks.note_secret(cluster, secret);
            }
        }
    }

    /// Final checks of every scenario: nothing of ours is left, nothing foreign was changed, and no
    /// secret was shown.
    pub(crate) async fn finish(mut self, provider: Operator) {
        self.note_secrets().await;
        let (_, metrics) = provider.fetch("metrics", "/metrics").await;
        provider.kill();
        self.leaks.search("the metrics", &metrics);
        for number in 1..=self.providers {
            let log = std::fs::read(self.log(number)).unwrap();
            self.leaks.search("a log", &String::from_utf8_lossy(&log));
        }
        let mut events = Vec::new();
        for cluster in CLUSTERS
            .into_iter()
            .map(|name| self.cluster(name))
            .chain(self.places())
        {
            events.extend(cluster.list("/apis/events.k8s.io/v1/events").await.unwrap());
        }
        self.leaks.search("an event", &json!(events).to_string());
        for status in self.statuses.take() {
            self.leaks.search("a status", &status);
        }
        for (place, kind) in self
            .places()
            .into_iter()
            .flat_map(|place| [BINDINGS, SERVICES, INTENTS].map(|kind| (place, kind)))
        {
            // A tenant that unbound no longer has the kind.
            let left = place
                .get(&format!("/apis/{GROUP}/{}", kind.0))
                .await
                .unwrap()
                .unwrap_or_default();
            assert!(
                left["items"].as_array().is_none_or(Vec::is_empty),
                "a scenario deletes what it made: {left:#?}"
            );
        }
        for site in SITES {
            self.assert_clean(site).await;
        }
        self.leaks.assert_none();
        self.finished = true;
    }

    async fn assert_clean(&self, site: &str) {
        for secret in CONNECTIONS {
            let found: Vec<(String, String)> = self.keys(site, secret).await.into_iter().collect();
            let theirs: Vec<(String, String)> = if site == "east" {
                FOREIGN.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
            } else {
                vec![]
            };
            assert_eq!(found, theirs, "what is left in {secret} of {site}");
        }
        let policies = self.cluster(site).list(POLICIES).await.unwrap();
        assert!(
            policies.is_empty(),
            "policies are left on {site}: {policies:#?}"
        );
        for service in self
            .cluster(site)
            .list("/api/v1/namespaces/shop/services")
            .await
            .unwrap()
        {
            let ours = service["metadata"]["managedFields"]
                .as_array()
                .unwrap()
                .iter()
                .any(|entry| entry["manager"] == "meshwright");
            assert!(!ours, "something of ours is left on {site}: {service:#}");
        }
    }

    /// Checks that the foreign keys still exist.
    pub(crate) async fn assert_foreign(&self) {
        for secret in CONNECTIONS {
            let keys = self.keys("east", secret).await;
            for (key, value) in FOREIGN {
                assert_eq!(
                    keys.get(key).map(String::as_str),
                    Some(value),
                    "a foreign key of {secret}"
                );
            }
        }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for (site, cilium) in &self.ciliums {
                eprintln!("--- Cilium's logs of {site}:\n{}", cilium.logs());
            }
            return;
        }
        assert!(self.finished, "a scenario has to end with finish()");
        self.ciliums.clear();
        if let Some(bed) = self.bed.take() {
            let (start, denials_are_meant) =
                (std::mem::take(&mut self.start), self.denials_are_meant);
            USED.with_borrow_mut(|used| {
                used.push(Used {
                    bed,
                    start,
                    denials_are_meant,
                })
            });
        }
    }
}

pub(crate) fn namespace_of(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } })
}

fn foreign(name: &str) -> Value {
    let data: BTreeMap<&str, String> = FOREIGN
        .iter()
        .map(|(key, text)| (*key, Base64::encode_string(text.as_bytes())))
        .collect();
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "namespace": "kube-system" }, "data": data })
}

/// Deletes everything of an earlier installation.
async fn wipe(cluster: &Cluster) {
    let certificates = ["admin", "local", "remote", "server"]
        .map(|name| format!("secrets/clustermesh-apiserver-{name}-cert"));
    let others = [
        "secrets/cilium-ca",
        "configmaps/cilium-config",
        "configmaps/clustermesh-remote-users",
        "services/clustermesh-apiserver",
    ]
    .map(str::to_owned);
    let connections = CONNECTIONS.map(|name| format!("secrets/{name}"));
    for object in certificates.into_iter().chain(others).chain(connections) {
        remove(cluster, &format!("{SYSTEM}/{object}")).await;
    }
    for service in cluster
        .list("/api/v1/namespaces/shop/services")
        .await
        .unwrap()
    {
        let name = service["metadata"]["name"].as_str().unwrap();
        remove(cluster, &format!("/api/v1/namespaces/shop/services/{name}")).await;
        remove(
            cluster,
            &format!("/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/{name}"),
        )
        .await;
    }
}

async fn remove(cluster: &Cluster, path: &str) {
    let answer = cluster.request("DELETE", path, None).await.unwrap();
    assert!(
        answer.is_success() || answer.code == 404,
        "{path}: {answer:?}"
    );
}
