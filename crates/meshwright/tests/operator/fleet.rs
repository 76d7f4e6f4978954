//! A fleet of real API servers with nodes annotated like Kilo's, a mesh, and the operator's rights
//! on all of them. Changes made through it also update the model.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;

use mw_testbed::{Cluster, FaultProxy, Testbed};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::access::{self, HUB_ACCOUNT};
use crate::bed::{self, PEERS};
use crate::ledger;
use crate::process::Operator;
use mw_sim::kilo::{Mesh, NAMESPACE, Node, Site, World, key};

pub(crate) const FIVE: [&str; 5] = ["hub", "east", "west", "north", "south"];
pub(crate) const FOREIGN: &str = "laptop";

/// Positions in the audit logs of all clusters.
pub(crate) type Mark = BTreeMap<String, u64>;

type Edit = Box<dyn FnOnce(&mut World)>;

#[must_use]
pub(crate) struct Builder {
    names: Vec<&'static str>,
    nodes: u8,
    proxied: Vec<&'static str>,
    edits: Vec<Edit>,
}

pub(crate) struct Fleet {
    pub(crate) world: World,
    bed: Option<Testbed>,
    proxies: BTreeMap<String, FaultProxy>,
    /// Tokens of the operator: by member, and by hub and account.
    tokens: BTreeMap<String, String>,
    folder: TempDir,
    foreign: BTreeMap<String, Value>,
    start: Mark,
    operators: u32,
    denials_are_meant: bool,
    finished: bool,
}

/// A testbed that is returned once its scenario has ended.
struct Used {
    bed: Testbed,
    start: Mark,
    denials_are_meant: bool,
}

thread_local! {
    static USED: RefCell<Vec<Used>> = const { RefCell::new(Vec::new()) };
}

/// Records the calls of a finished scenario and returns its servers to the pool.
pub(crate) fn settle(scenario: &str) {
    for used in USED.take() {
        for cluster in used.bed.clusters() {
            let start = used.start.get(cluster.name()).copied().unwrap_or(0);
            let (records, _) = cluster.audit_from(start).unwrap();
            ledger::note(&records, scenario, used.denials_are_meant);
        }
        bed::give_back(used.bed);
    }
}

impl Builder {
    pub(crate) fn nodes(mut self, nodes: u8) -> Self {
        self.nodes = nodes;
        self
    }

    /// Puts a proxy in front of these clusters, for the operator only.
    pub(crate) fn proxied(mut self, names: &[&'static str]) -> Self {
        self.proxied = names.to_vec();
        self
    }

    /// Edits the model before the fleet is created.
    pub(crate) fn with(mut self, edit: impl FnOnce(&mut World) + 'static) -> Self {
        self.edits.push(Box::new(edit));
        self
    }

    pub(crate) async fn build(self) -> Fleet {
        let bed = bed::take(&self.names).await;
        let start = mark_of(&bed);
        let proxies = self
            .proxied
            .iter()
            .map(|name| {
                (
                    (*name).to_owned(),
                    FaultProxy::start(bed.cluster(name).unwrap()).unwrap(),
                )
            })
            .collect();
        let mut world = model(&self.names, self.nodes);
        for edit in self.edits {
            edit(&mut world);
        }
        let mut fleet = Fleet {
            world,
            bed: Some(bed),
            proxies,
            tokens: BTreeMap::new(),
            folder: tempfile::tempdir().unwrap(),
            foreign: BTreeMap::new(),
            start,
            operators: 0,
            denials_are_meant: false,
            finished: false,
        };
        for name in self.names {
            fleet.furnish(name).await;
        }
        for mesh in fleet.world.meshes.clone() {
            fleet.write_secrets(&mesh).await;
            fleet
                .cluster(&mesh.hub)
                .create(&mesh.object())
                .await
                .unwrap();
        }
        fleet
    }
}

fn model(names: &[&'static str], nodes: u8) -> World {
    let sites: Vec<Site> = names
        .iter()
        .zip(1..)
        .map(|(name, number)| Site::new(name, number, nodes))
        .collect();
    let mesh = Mesh::new("mesh", &sites.iter().collect::<Vec<_>>());
    World {
        sites: sites
            .into_iter()
            .map(|site| (site.name.clone(), site))
            .collect(),
        meshes: vec![mesh],
    }
}

fn mark_of(bed: &Testbed) -> Mark {
    bed.clusters()
        .map(|cluster| (cluster.name().to_owned(), cluster.audit_end()))
        .collect()
}

impl Fleet {
    /// Clusters with these names; the first is the hub of a mesh of all.
    pub(crate) fn of(names: &[&'static str]) -> Builder {
        Builder {
            names: names.to_vec(),
            nodes: 2,
            proxied: vec![],
            edits: vec![],
        }
    }

    pub(crate) fn three() -> Builder {
        Self::of(&["hub", "east", "west"])
    }

    fn bed(&self) -> &Testbed {
        self.bed.as_ref().unwrap()
    }

    pub(crate) fn cluster(&self, name: &str) -> &Cluster {
        self.bed().cluster(name).unwrap()
    }

    pub(crate) fn proxy(&self, name: &str) -> &FaultProxy {
        &self.proxies[name]
    }

    pub(crate) fn proxies(&self) -> impl Iterator<Item = &FaultProxy> {
        self.proxies.values()
    }

    pub(crate) fn mesh_model(&mut self) -> &mut Mesh {
        &mut self.world.meshes[0]
    }

    /// Creates the objects of a cluster's model, and the operator's account.
    async fn furnish(&mut self, name: &str) {
        let namespace = self
            .cluster(name)
            .get("/api/v1/namespaces/kube-system")
            .await
            .unwrap()
            .unwrap();
        let uid = namespace["metadata"]["uid"].as_str().unwrap().to_owned();
        self.world.sites.get_mut(name).unwrap().uid = uid;
        let site = self.world.sites[name].clone();
        for node in site.nodes.values() {
            self.cluster(name).create(&node.object()).await.unwrap();
        }
        let spec = json!({ "allowedIPs": [format!("172.30.{}.1/32", site.number)], "publicKey": key(&format!("{FOREIGN} {name}")) });
        let peer = json!({ "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "Peer", "metadata": { "name": FOREIGN }, "spec": spec });
        let peer = self.cluster(name).create(&peer).await.unwrap();
        self.foreign.insert(name.to_owned(), peer);
        let token = access::remote_account(self.cluster(name)).await;
        self.tokens.insert(name.to_owned(), token);
    }

    /// Kubeconfig of the operator for a member, through its proxy if any.
    pub(crate) fn member_kubeconfig(&self, name: &str) -> String {
        let cluster = self.cluster(name);
        cluster.kubeconfig(self.address(name), &self.tokens[name])
    }

    pub(crate) fn set_member_token(&mut self, name: &str, token: String) {
        self.tokens.insert(name.to_owned(), token);
    }

    fn address(&self, name: &str) -> &str {
        self.proxies
            .get(name)
            .map_or_else(|| self.cluster(name).url(), FaultProxy::url)
    }

    pub(crate) async fn write_secrets(&self, mesh: &Mesh) {
        for entry in mesh.entries.iter().filter(|entry| entry.site != mesh.hub) {
            self.write_secret(
                &mesh.hub,
                &mesh.namespace,
                &entry.secret(),
                &self.member_kubeconfig(&entry.site),
            )
            .await;
        }
    }

    pub(crate) async fn write_secret(
        &self,
        hub: &str,
        namespace: &str,
        name: &str,
        kubeconfig: &str,
    ) {
        let metadata = json!({ "name": name, "namespace": namespace });
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": { "kubeconfig": kubeconfig } });
        self.cluster(hub).apply(&secret).await.unwrap();
    }

    /// Starts the operator on the hub with the default flags and more.
    pub(crate) async fn operator(&mut self, more: &[&str]) -> Operator {
        self.operator_as("hub", HUB_ACCOUNT, more).await
    }

    /// Starts it without waiting for its rights, which the scenario has changed.
    pub(crate) async fn restarted(&mut self, more: &[&str]) -> Operator {
        let token = self
            .cluster("hub")
            .request_token(NAMESPACE, HUB_ACCOUNT, 3600)
            .await
            .unwrap();
        self.operator_with("hub", &token, more)
    }

    pub(crate) async fn operator_as(
        &mut self,
        hub: &str,
        account: &str,
        more: &[&str],
    ) -> Operator {
        let token = self.token(hub, account).await;
        self.operator_with(hub, &token, more)
    }

    async fn token(&mut self, hub: &str, account: &str) -> String {
        let key = format!("{hub}/{account}");
        if !self.tokens.contains_key(&key) {
            let token = access::hub_account(self.cluster(hub), account).await;
            self.tokens.insert(key.clone(), token);
        }
        self.tokens[&key].clone()
    }

    /// Starts it as if in a pod.
    pub(crate) async fn operator_inside(&mut self, more: &[&str]) -> Operator {
        let token = self.token("hub", HUB_ACCOUNT).await;
        let arguments = self.arguments("hub", &token, more);
        Operator::start_inside(&arguments, &self.log())
    }

    fn operator_with(&mut self, hub: &str, token: &str, more: &[&str]) -> Operator {
        let arguments = self.arguments(hub, token, more);
        Operator::start(&arguments, &self.log())
    }

    /// Log of the latest operator.
    fn log(&self) -> PathBuf {
        self.folder.path().join(format!("log-{}", self.operators))
    }

    fn arguments(&mut self, hub: &str, token: &str, more: &[&str]) -> Vec<String> {
        self.operators += 1;
        let kubeconfig = self
            .folder
            .path()
            .join(format!("kubeconfig-{}", self.operators));
        std::fs::write(
            &kubeconfig,
            self.cluster(hub).kubeconfig(self.address(hub), token),
        )
        .unwrap();
        let mut arguments = vec![
            "operator".to_owned(),
            "--kubeconfig".to_owned(),
            kubeconfig.display().to_string(),
        ];
        let level = std::env::var("MESHWRIGHT_TEST_LOG").unwrap_or_else(|_| "info".to_owned());
        for (flag, value) in [
            ("--namespace", NAMESPACE),
            ("--metrics-bind-address", "127.0.0.1:0"),
            ("--health-probe-bind-address", "0"),
            ("--log-level", level.as_str()),
        ] {
            if !more.contains(&flag) {
                arguments.extend([flag.to_owned(), value.to_owned()]);
            }
        }
        // A replica would wait for the Lease of one that was killed.
        if !more
            .iter()
            .any(|argument| argument.starts_with("--leader-elect"))
        {
            arguments.push("--leader-elect=false".to_owned());
        }
        arguments.extend(more.iter().map(|argument| (*argument).to_owned()));
        arguments
    }

    /// Sets a Kilo annotation, or removes it if None.
    pub(crate) async fn annotate(
        &mut self,
        site: &str,
        node: &str,
        name: &str,
        value: Option<&str>,
    ) {
        let annotations = &mut self
            .world
            .sites
            .get_mut(site)
            .unwrap()
            .nodes
            .get_mut(node)
            .unwrap()
            .annotations;
        match value {
            Some(value) => annotations.insert(name.to_owned(), value.to_owned()),
            None => annotations.remove(name),
        };
        self.annotate_unseen(site, node, &[(name, value)]).await;
    }

    /// Changes annotations without the model, so that the expected Peers stay.
    pub(crate) async fn annotate_unseen(
        &self,
        site: &str,
        node: &str,
        changes: &[(&str, Option<&str>)],
    ) {
        let annotations: BTreeMap<String, Option<&str>> = changes
            .iter()
            .map(|(name, value)| (format!("kilo.squat.ai/{name}"), *value))
            .collect();
        let patch = json!({ "metadata": { "annotations": annotations } });
        self.cluster(site)
            .merge_patch(&format!("/api/v1/nodes/{node}"), &patch)
            .await
            .unwrap();
    }

    pub(crate) async fn set_ready(&mut self, site: &str, node: &str, ready: bool) {
        self.world
            .sites
            .get_mut(site)
            .unwrap()
            .nodes
            .get_mut(node)
            .unwrap()
            .ready = ready;
        let status = if ready { "True" } else { "False" };
        let patch = json!({ "status": { "conditions": [{ "type": "Ready", "status": status }] } });
        self.cluster(site)
            .merge_patch(&format!("/api/v1/nodes/{node}/status"), &patch)
            .await
            .unwrap();
    }

    pub(crate) async fn add_node(&mut self, site: &str, node: Node) {
        self.cluster(site).create(&node.object()).await.unwrap();
        self.world
            .sites
            .get_mut(site)
            .unwrap()
            .nodes
            .insert(node.name.clone(), node);
    }

    pub(crate) async fn delete_node(&mut self, site: &str, node: &str) {
        self.world.sites.get_mut(site).unwrap().nodes.remove(node);
        self.cluster(site)
            .delete(&format!("/api/v1/nodes/{node}"))
            .await
            .unwrap();
    }

    /// Writes a mesh's spec from the model.
    pub(crate) async fn update_mesh(&self, at: usize) {
        let mesh = &self.world.meshes[at];
        self.cluster(&mesh.hub)
            .merge_patch(&mesh.path(), &json!({ "spec": mesh.spec() }))
            .await
            .unwrap();
    }

    pub(crate) async fn add_mesh(&mut self, mesh: Mesh) {
        self.write_secrets(&mesh).await;
        self.cluster(&mesh.hub)
            .create(&mesh.object())
            .await
            .unwrap();
        self.world.meshes.push(mesh);
    }

    /// Deletes a mesh and no longer expects its Peers.
    pub(crate) async fn delete_mesh(&mut self, at: usize) {
        let mesh = &mut self.world.meshes[at];
        mesh.active = false;
        let (hub, path) = (mesh.hub.clone(), mesh.path());
        self.cluster(&hub).delete(&path).await.unwrap();
    }

    pub(crate) fn mark(&self) -> Mark {
        mark_of(self.bed())
    }

    /// Tolerates denied requests: the scenario revokes rights.
    pub(crate) fn expect_denials(&mut self) {
        self.denials_are_meant = true;
    }

    /// Skips the check for the foreign Peer: the scenario deletes it, e.g. with the CRD.
    pub(crate) fn forget_foreign(&mut self, site: &str) {
        self.foreign.remove(site);
    }

    /// Final checks of every scenario: no foreign object was changed.
    pub(crate) async fn finish(&mut self) {
        self.finished = true;
        for (name, before) in &self.foreign {
            let after = self
                .cluster(name)
                .get(&format!("{PEERS}/{FOREIGN}"))
                .await
                .unwrap();
            assert_eq!(
                after.as_ref(),
                Some(before),
                "a foreign Peer of {name} was touched"
            );
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        assert!(self.finished, "a scenario has to end with finish()");
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
