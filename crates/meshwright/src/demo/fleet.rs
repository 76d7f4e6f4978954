//! The demo's clusters, the changes that can be made to them, and the operator that runs on them.
//! Everything is real except the sockets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, Config};
use mw_controller::clock::Clock;
use mw_controller::fleet::{InMemoryConnect, MEMORY_LIMIT};
use mw_controller::kilo::LEASE_NAME;
use mw_controller::kilo::Settings;
use mw_controller::lease::Elector;
use mw_controller::metrics::Metrics;
use mw_controller::permit::Permit;
use mw_controller::published_status::Interest;
use mw_controller::run::{ProcessDeps, lead};
use mw_controller::serve::Readiness;
use mw_controller::transport::Timeouts;
use mw_core::condition::READY;
use mw_core::names::MeshId;
use mw_sim::kilo::{Mesh, NAMESPACE, Node, PEER_CRD, Site, host, kubeconfig, url};
use mw_sim::{
    Account, Cluster, Definition, Fate, Faults, Moment, Reachability, Request, Server, Wall,
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::demo::request_log::{Counts, RequestLog, VIEWER};

const MESH_CRD: &str = include_str!("../../../../config/crd/kilo.squat.ai_clustermeshes.yaml");
const HUB_ROLES: &str = include_str!("../../../../config/rbac/hub.yaml");
const REMOTE_ROLES: &str = include_str!("../../../../config/rbac/remote.yaml");

const MESH: &str = "demo";
const NODES: &str = "/api/v1/nodes";
const PEERS: &str = "/apis/kilo.squat.ai/v1alpha1/peers";
const MERGE: &str = "application/merge-patch+json";
const OPERATOR: &str = "operator";
/// A port that no node uses before it moves.
const MOVED: u16 = 51_821;

const CITIES: [&str; 12] = [
    "berlin", "oslo", "porto", "lyon", "turin", "ghent", "malmo", "vilnius", "split", "cork",
    "graz", "bern",
];

/// Response time of a server: a few milliseconds, slightly varying.
#[derive(Debug)]
struct Latency;

impl Faults for Latency {
    fn fate(&self, request: &Request) -> Fate {
        Fate::Delay(Duration::from_millis(2 + request.number % 3))
    }
}

pub(crate) struct Fleet {
    pub(crate) clock: Clock,
    /// The first one is the hub.
    sites: Vec<Site>,
    clusters: BTreeMap<String, Cluster>,
    mesh: Mesh,
    remote: Account,
    /// Current token in each member's Secret.
    tokens: BTreeMap<String, String>,
    issued: u32,
    request_log: Arc<RequestLog>,
    board: InMemoryConnect<Server>,
    viewer: Client,
    operator: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet").finish_non_exhaustive()
    }
}

impl Fleet {
    /// Creates clusters with nodes and credentials, without a mesh or an operator.
    pub(crate) fn new(clusters: u8, nodes: u8, clock: Clock) -> Result<Fleet> {
        let sites: Vec<Site> = (1..=clusters).map(|number| site(number, nodes)).collect();
        let mesh = Mesh::new(MESH, &sites.iter().collect::<Vec<_>>());
        let request_log = Arc::new(RequestLog::default());
        let definitions = definitions()?;
        let mut all = BTreeMap::new();
        for site in &sites {
            let clock = clock.clone();
            let wall = Wall::new(move || Moment {
                seconds: clock.now().0,
                nanos: 0,
            });
            let cluster = Cluster::new(mw_sim::Settings {
                name: site.name.clone(),
                seed: site.number.into(),
                wall,
                managed_fields: false,
            });
            definitions
                .iter()
                .for_each(|definition| cluster.install(definition));
            site.nodes
                .values()
                .try_for_each(|node| create(&cluster, NODES, &node.object()))?;
            cluster.set_observer(request_log.clone());
            cluster.set_faults(Arc::new(Latency));
            all.insert(site.name.clone(), cluster);
        }
        let timeouts = Timeouts::of(Duration::from_secs(5));
        let lines = all
            .iter()
            .map(|(name, cluster)| (host(name), cluster.server()))
            .collect();
        let board = InMemoryConnect {
            lines,
            timeouts,
            permit: Permit::none(),
            metrics: Metrics::default(),
        };
        let viewer = board
            .client(&config(&mesh.hub, VIEWER)?, Permit::none())
            .map_err(unconnected)?;
        let mut fleet = Fleet {
            clock,
            sites,
            clusters: all,
            mesh,
            remote: account(REMOTE_ROLES)?,
            tokens: BTreeMap::new(),
            issued: 0,
            request_log,
            board,
            viewer,
            operator: None,
        };
        fleet.prepare_hub()?;
        Ok(fleet)
    }

    fn prepare_hub(&mut self) -> Result<()> {
        let hub = self.hub()?;
        hub.set_token(VIEWER, Some(Account::admin(VIEWER)));
        hub.set_token(
            OPERATOR,
            Some(Account {
                user: OPERATOR.to_owned(),
                ..account(HUB_ROLES)?
            }),
        );
        let namespace =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } });
        create(hub, "/api/v1/namespaces", &namespace)?;
        let members: Vec<String> = self
            .sites
            .iter()
            .skip(1)
            .map(|site| site.name.clone())
            .collect();
        members
            .iter()
            .try_for_each(|member| self.renew_token(member).map(drop))
    }

    /// Starts the operator like the real process, except for its sockets.
    pub(crate) fn start_operator(&mut self) -> Result<()> {
        let permit = Permit::none();
        let board = InMemoryConnect {
            permit: permit.clone(),
            ..self.board.clone()
        };
        let config = config(&self.mesh.hub, OPERATOR)?;
        let hub = board.client(&config, permit.clone()).map_err(unconnected)?;
        let leases = board
            .client(&config, Permit::always())
            .map_err(unconnected)?;
        let another = hub.clone();
        let ground = ProcessDeps {
            hub,
            another_hub: Arc::new(move || another.clone()),
            metrics: board.metrics.clone(),
            timeouts: board.timeouts,
            memory_limit: MEMORY_LIMIT,
            connect: Arc::new(board),
            permit,
            readiness: Readiness::default(),
            clock: self.clock.clone(),
            random: fastrand::Rng::new(),
        };
        self.operator = Some(tokio::spawn(async move {
            let leases: Api<Lease> = Api::namespaced(leases, NAMESPACE);
            let mut elector = Elector::new(LEASE_NAME, "meshwright-demo");
            lead(
                &Settings::of(NAMESPACE),
                false,
                Some((&leases, &mut elector)),
                ground,
            )
            .await;
        }));
        Ok(())
    }

    pub(crate) fn declare_mesh(&self) -> Result<()> {
        let collection =
            format!("/apis/kilo.squat.ai/v1alpha1/namespaces/{NAMESPACE}/clustermeshes");
        create(self.hub()?, &collection, &self.mesh.object())
    }

    /// Adds a node to the hub and returns its name.
    pub(crate) fn add_node(&mut self) -> Result<String> {
        let site = self.sites.first_mut().context("the demo has no cluster")?;
        let at = u8::try_from(site.nodes.len() + 1).context("too many nodes")?;
        let node = node(&site.name, site.number, at);
        let (name, object) = (node.name.clone(), node.object());
        site.nodes.insert(name.clone(), node);
        create(self.hub()?, NODES, &object)?;
        Ok(name)
    }

    /// Changes the endpoint of a node of the hub.
    pub(crate) fn move_node(&self, node: &str) -> Result<()> {
        let endpoint = format!("198.18.250.1:{MOVED}");
        let annotations =
            json!({ "kilo.squat.ai/endpoint": endpoint, "kilo.squat.ai/force-endpoint": endpoint });
        patch(
            self.hub()?,
            &format!("{NODES}/{node}"),
            &json!({ "metadata": { "annotations": annotations } }),
        )
    }

    /// Changes the WireGuard address that a node of the hub publishes.
    pub(crate) fn publish_address(&self, node: &str, address: &str) -> Result<()> {
        let annotations = json!({ "kilo.squat.ai/wireguard-ip": format!("{address}/24") });
        patch(
            self.hub()?,
            &format!("{NODES}/{node}"),
            &json!({ "metadata": { "annotations": annotations } }),
        )
    }

    /// Puts a new token into a member's Secret. Returns the old token, which is valid until
    /// revoked, and the new one.
    pub(crate) fn renew_token(&mut self, member: &str) -> Result<(Option<String>, String)> {
        self.issued += 1;
        let token = format!("{member}-{}", self.issued);
        self.on(member)?.set_token(
            &token,
            Some(Account {
                user: token.clone(),
                ..self.remote.clone()
            }),
        );
        let former = self.tokens.insert(member.to_owned(), token.clone());
        let content = json!({ "kubeconfig": kubeconfig(member, &token) });
        let (hub, secrets) = (
            self.hub()?,
            format!("/api/v1/namespaces/{NAMESPACE}/secrets"),
        );
        let name = format!("{member}-kubeconfig");
        match former {
            Some(_) => patch(
                hub,
                &format!("{secrets}/{name}"),
                &json!({ "stringData": content }),
            )?,
            None => {
                let metadata = json!({ "name": name, "namespace": NAMESPACE });
                create(
                    hub,
                    &secrets,
                    &json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": content }),
                )?;
            }
        }
        Ok((former, token))
    }

    pub(crate) fn revoke(&self, member: &str, token: &str) -> Result<()> {
        self.on(member)
            .map(|cluster| cluster.set_token(token, None))
    }

    /// Takes a cluster down, closing all connections and refusing new ones, or brings it back.
    pub(crate) fn set_alive(&self, cluster: &str, alive: bool) -> Result<()> {
        self.on(cluster).map(|cluster| {
            cluster.set_link(if alive {
                Reachability::Up
            } else {
                Reachability::Refusing
            })
        })
    }
}

/// Observations.
impl Fleet {
    /// Number of clusters, and of nodes in a cluster that no step changes.
    pub(crate) fn size(&self) -> (usize, usize) {
        (
            self.sites.len(),
            self.sites.last().map_or(0, |site| site.nodes.len()),
        )
    }

    pub(crate) fn one_mesh(&self) -> String {
        format!("{} clusters become one mesh", self.sites.len())
    }

    /// Number of Peers in all clusters once the mesh is complete.
    pub(crate) fn peers(&self) -> usize {
        let nodes: usize = self.sites.iter().map(|site| site.nodes.len()).sum();
        nodes * self.sites.len().saturating_sub(1)
    }

    pub(crate) fn second(&self) -> String {
        self.sites
            .get(1)
            .map(|site| site.name.clone())
            .unwrap_or_default()
    }

    pub(crate) fn last(&self) -> String {
        self.sites
            .last()
            .map(|site| site.name.clone())
            .unwrap_or_default()
    }

    /// Name of the node that [`Fleet::add_node`] adds next.
    pub(crate) fn next_node(&self) -> String {
        self.sites
            .first()
            .map(|site| format!("{}-{}", site.name, site.nodes.len() + 1))
            .unwrap_or_default()
    }

    pub(crate) fn first_node(&self) -> String {
        self.sites
            .first()
            .map(|site| format!("{}-1", site.name))
            .unwrap_or_default()
    }

    /// The first two nodes of the hub with their WireGuard addresses, if it has two.
    pub(crate) fn two_nodes(&self) -> Option<[(String, String); 2]> {
        let mut nodes = self.sites.first()?.nodes.values().map(|node| {
            let address = node
                .annotation("wireguard-ip")
                .and_then(|cidr| cidr.split('/').next());
            (node.name.clone(), address.unwrap_or_default().to_owned())
        });
        Some([nodes.next()?, nodes.next()?])
    }

    /// Reports whether the Peer of a node of the hub carries the route to an address.
    pub(crate) fn carries(&self, member: &str, node: &str, address: &str) -> bool {
        let peer = self.peer(member, node);
        let allowed = peer
            .as_ref()
            .and_then(|peer| peer.pointer("/spec/allowedIPs")?.as_array());
        allowed.is_some_and(|allowed| allowed.iter().any(|cidr| *cidr == format!("{address}/32")))
    }

    /// All members except the hub and those in `absent`.
    pub(crate) fn members_but(&self, absent: &[String]) -> Vec<String> {
        self.sites
            .iter()
            .skip(1)
            .map(|site| site.name.clone())
            .filter(|name| !absent.contains(name))
            .collect()
    }

    /// The Peer of a node of the hub, on a member.
    pub(crate) fn peer(&self, member: &str, node: &str) -> Option<Arc<Value>> {
        self.clusters
            .get(member)?
            .get(&format!("{PEERS}/{MESH}--{}--{node}", self.mesh.hub))
    }

    pub(crate) fn has_moved(&self, member: &str, node: &str) -> bool {
        self.peer(member, node)
            .is_some_and(|peer| peer.pointer("/spec/endpoint/port") == Some(&MOVED.into()))
    }

    pub(crate) fn uses(&self, token: &str) -> bool {
        self.request_log.watches(token, &["nodes", "peers"])
    }

    /// Returns an error with the status message if the mesh is not ready.
    pub(crate) fn ready(&self) -> Result<(), String> {
        let mesh = self.status().ok_or("the ClusterMesh does not exist")?;
        let is_new =
            mesh.pointer("/status/observedGeneration") == mesh.pointer("/metadata/generation");
        let conditions = mesh.pointer("/status/conditions").and_then(Value::as_array);
        let ready = conditions
            .into_iter()
            .flatten()
            .find(|one| one.get("type").is_some_and(|kind| kind == READY));
        let text = |field: &str| {
            ready
                .and_then(|ready| ready.get(field))
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        match (text("status"), is_new) {
            ("True", true) => Ok(()),
            ("", _) => Err("no status written yet".to_owned()),
            _ => Err(format!("{} ({})", text("message"), text("reason"))),
        }
    }

    /// Reachability of a cluster according to the status.
    pub(crate) fn reachable(&self, cluster: &str) -> Option<bool> {
        let mesh = self.status()?;
        let all = mesh.pointer("/status/clusters")?.as_array()?;
        all.iter()
            .find(|one| one.get("name").is_some_and(|name| name == cluster))?
            .get("reachable")?
            .as_bool()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.request_log.counts()
    }

    /// Waits until the operator did something since the last call.
    pub(crate) async fn changed(&self) {
        self.request_log.changed().await;
    }

    pub(crate) fn operator_ended(&self) -> bool {
        self.operator.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Read-only client, and the mesh to read with it.
    pub(crate) fn viewer(&self) -> (Client, Interest) {
        (
            self.viewer.clone(),
            Interest::Mesh(MeshId::new(NAMESPACE, MESH)),
        )
    }

    fn status(&self) -> Option<Arc<Value>> {
        self.hub().ok()?.get(&self.mesh.path())
    }

    fn hub(&self) -> Result<&Cluster> {
        self.on(&self.mesh.hub)
    }

    fn on(&self, cluster: &str) -> Result<&Cluster> {
        self.clusters
            .get(cluster)
            .with_context(|| format!("no cluster {cluster} in the demo"))
    }
}

fn site(number: u8, nodes: u8) -> Site {
    let name = CITIES
        .get(usize::from(number) - 1)
        .map_or_else(|| format!("site-{number}"), |city| (*city).to_owned());
    let mut site = Site::new(&name, number, 0);
    site.nodes = (1..=nodes)
        .map(|at| node(&name, number, at))
        .map(|node| (node.name.clone(), node))
        .collect();
    site
}

/// A node named after its cluster, for readability.
fn node(site: &str, number: u8, at: u8) -> Node {
    Node {
        name: format!("{site}-{at}"),
        ..Node::new(number, at)
    }
}

fn documents(text: &str) -> Result<Vec<Value>> {
    serde_saphyr::from_multiple(text).context("cannot parse a built-in manifest")
}

fn definitions() -> Result<Vec<Definition>> {
    let mut all = documents(MESH_CRD)?;
    all.extend(documents(PEER_CRD)?);
    all.iter()
        .map(|crd| Definition::parse(crd).context("cannot load a built-in CRD"))
        .collect()
}

fn account(roles: &str) -> Result<Account> {
    Ok(Account::from_roles(&documents(roles)?))
}

fn create(cluster: &Cluster, collection: &str, object: &Value) -> Result<()> {
    let (code, answer) = cluster.call(
        &http::Method::POST,
        collection,
        "application/json",
        Some(object),
    );
    ensure!(
        code.is_success(),
        "{collection} of {}: {code} {answer}",
        cluster.name()
    );
    Ok(())
}

fn patch(cluster: &Cluster, path: &str, patch: &Value) -> Result<()> {
    let (code, answer) = cluster.call(&http::Method::PATCH, path, MERGE, Some(patch));
    ensure!(
        code.is_success(),
        "{path} of {}: {code} {answer}",
        cluster.name()
    );
    Ok(())
}

fn unconnected(refusal: mw_controller::kubeconfig::Refusal) -> anyhow::Error {
    anyhow!("cannot create a client: {refusal}")
}

fn config(cluster: &str, token: &str) -> Result<Config> {
    let mut config = Config::new(url(cluster).parse().context("invalid cluster URL")?);
    config.auth_info.token = Some(token.to_owned().into());
    Ok(config)
}
