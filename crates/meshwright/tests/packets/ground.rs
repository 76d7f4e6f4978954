//! Three clusters with everything below the operator: API servers, hosts and pods, and an agent on
//! every host. The operator's part comes from its own test suite.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::rbac::v1::PolicyRule;
use mw_testbed::kilo::{Agent, AgentSpec, Clock, Granularity, Names};
use mw_testbed::net::{Flow, Host, Lan, LanSpec, Namespace, Wire, ping};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::bed::PEERS;
use crate::fleet::{FOREIGN, Fleet, Mark};
use crate::look::until;
use crate::process::Operator;
use mw_sim::kilo::{Mesh, Node, World};

pub(crate) const SITES: [&str; 3] = ["hub", "east", "west"];
/// Agent seconds per real second.
pub(crate) const SPEED: u32 = 10;
/// Annotations that an agent writes.
const WRITTEN: [&str; 7] = [
    "endpoint",
    "internal-ip",
    "key",
    "last-seen",
    "wireguard-ip",
    "discovered-endpoints",
    "granularity",
];
const INTERVAL: Duration = Duration::from_millis(10);

/// Layout of the clusters; `full` granularity by default.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) nodes: u8,
    /// By site number.
    pub(crate) granularity: [Granularity; 3],
    /// Keepalive of every node in seconds, also declared by every cluster.
    pub(crate) keepalive: u16,
    /// A cluster behind NAT, and the lifetime of its mappings.
    pub(crate) hidden: Option<(&'static str, Duration)>,
    pub(crate) two_families: bool,
    pub(crate) internal_ips: bool,
    /// Number of locations over which a cluster's nodes are spread.
    pub(crate) locations: u8,
    pub(crate) speed: u32,
}

impl Default for Layout {
    fn default() -> Self {
        let granularity = [Granularity::Full; 3];
        let (nodes, keepalive, locations) = (2, 1, 1);
        Self {
            nodes,
            granularity,
            keepalive,
            hidden: None,
            two_families: false,
            internal_ips: true,
            locations,
            speed: SPEED,
        }
    }
}

pub(crate) struct Ground {
    agents: BTreeMap<(String, String), Agent>,
    specs: BTreeMap<String, AgentSpec>,
    hosts: BTreeMap<(String, String), Host>,
    pub(crate) lans: BTreeMap<String, Lan>,
    pub(crate) wire: Wire,
    pub(crate) fleet: Fleet,
    layout: Layout,
}

/// A path that packets take.
#[derive(Debug, Clone)]
pub(crate) struct Path {
    pub(crate) name: String,
    from: Namespace,
    to: IpAddr,
}

impl Path {
    pub(crate) fn is_ipv4(&self) -> bool {
        self.to.is_ipv4()
    }

    pub(crate) fn flow(&self) -> Flow {
        self.flow_every(INTERVAL)
    }

    pub(crate) fn flow_every(&self, interval: Duration) -> Flow {
        Flow::start(&self.name, &self.from, self.to, interval).unwrap()
    }
}

impl Ground {
    /// Creates everything except the operator.
    pub(crate) async fn new(layout: Layout) -> Self {
        let edit = layout.clone();
        let mut fleet = Fleet::three()
            .nodes(layout.nodes)
            .with(move |world| prepare(world, &edit))
            .build()
            .await;
        for site in SITES {
            // The foreign Peer has no endpoint, which alone would confuse Kilo.
            fleet.forget_foreign(site);
            fleet
                .cluster(site)
                .delete(&format!("{PEERS}/{FOREIGN}"))
                .await
                .unwrap();
        }
        let (agents, specs, hosts, lans) = (
            BTreeMap::new(),
            BTreeMap::new(),
            BTreeMap::new(),
            BTreeMap::new(),
        );
        let mut ground = Self {
            agents,
            specs,
            hosts,
            lans,
            wire: Wire::default(),
            fleet,
            layout,
        };
        if ground.layout.two_families {
            ground.declare_second_family().await;
        }
        let clock = Clock::new(ground.layout.speed);
        for (site, number) in SITES.into_iter().zip(1..) {
            ground.furnish(site, number, clock).await;
        }
        ground
    }

    /// Starts everything and waits until all packets arrive.
    pub(crate) async fn running(layout: Layout) -> (Self, Operator) {
        let mut ground = Self::new(layout).await;
        let operator = ground.operator().await;
        ground.fleet.condition("Ready", "True", "Reconciled").await;
        ground.arrive(&ground.paths()).await;
        (ground, operator)
    }

    pub(crate) async fn operator(&mut self) -> Operator {
        // 90 s of agent time.
        let grace = format!("{}s", 90 / self.layout.speed);
        self.fleet.operator(&["--node-grace", &grace]).await
    }

    async fn furnish(&mut self, site: &str, number: u8, clock: Clock) {
        let token = self
            .fleet
            .cluster(site)
            .service_account("kube-system", "kilo", &kilo_role())
            .await
            .unwrap();
        let granularity = self.layout.granularity[usize::from(number) - 1];
        let range = format!("100.64.{number}.0/24").parse().unwrap();
        let spec = AgentSpec {
            token,
            granularity,
            range,
            clock,
            names: Names::default(),
            running_for: Duration::ZERO,
        };
        self.specs.insert(site.to_owned(), spec);
        let hidden = self
            .layout
            .hidden
            .filter(|(name, _)| *name == site)
            .map(|(_, idle)| idle);
        let lan = Lan::new(&self.wire, LanSpec { number, hidden })
            .await
            .unwrap();
        self.lans.insert(site.to_owned(), lan);
        for at in 1..=self.layout.nodes {
            self.add_host(site, at).await;
        }
    }

    async fn add_host(&mut self, site: &str, at: u8) {
        let host = self.lans[site].add_host(at).await.unwrap();
        let name = host.name.clone();
        self.hosts.insert((site.to_owned(), name.clone()), host);
        // The nodes of a cluster check in 10 s of agent time apart.
        self.launch(site, &name, Duration::from_secs(10) * u32::from(at % 3));
    }

    pub(crate) fn host(&self, site: &str, node: &str) -> &Host {
        &self.hosts[&(site.to_owned(), node.to_owned())]
    }

    pub(crate) fn start_agent(&mut self, site: &str, node: &str) {
        self.launch(site, node, Duration::ZERO);
    }

    fn launch(&mut self, site: &str, node: &str, running_for: Duration) {
        let spec = AgentSpec {
            running_for,
            ..self.specs[site].clone()
        };
        let agent = Agent::start(self.fleet.cluster(site), self.host(site, node), &spec).unwrap();
        self.agents
            .insert((site.to_owned(), node.to_owned()), agent);
    }

    pub(crate) async fn stop_agent(&mut self, site: &str, node: &str) {
        self.agents
            .remove(&(site.to_owned(), node.to_owned()))
            .unwrap()
            .stop()
            .await;
    }

    pub(crate) fn kill_agent(&mut self, site: &str, node: &str) {
        self.agents
            .remove(&(site.to_owned(), node.to_owned()))
            .unwrap()
            .kill();
    }

    /// Adds a node with its agent.
    pub(crate) async fn join(&mut self, site: &str, at: u8) {
        let number = SITES.iter().position(|name| *name == site).unwrap();
        let mut node = Node::new(u8::try_from(number).unwrap() + 1, at);
        prepare_node(&mut node, &self.layout, site, at);
        self.fleet.add_node(site, node).await;
        self.add_host(site, at).await;
    }

    /// Removes a node for good.
    pub(crate) async fn leave(&mut self, site: &str, node: &str) {
        // Its agent may already be dead.
        self.agents.remove(&(site.to_owned(), node.to_owned()));
        self.hosts.remove(&(site.to_owned(), node.to_owned()));
        self.fleet.delete_node(site, node).await;
    }

    /// Cuts the power of a node: no cable, no agent. The cluster detects it later.
    pub(crate) async fn break_down(&mut self, site: &str, node: &str) {
        self.host(site, node).cut().await.unwrap();
        self.kill_agent(site, node);
    }

    pub(crate) async fn repair(&mut self, site: &str, node: &str) {
        self.host(site, node).mend().await.unwrap();
        self.start_agent(site, node);
    }

    /// All paths between clusters: pod to pod, pod to service and host to pod, for each address
    /// family.
    pub(crate) fn paths(&self) -> Vec<Path> {
        let pairs = SITES
            .into_iter()
            .flat_map(|from| SITES.into_iter().map(move |to| (from, to)))
            .filter(|(from, to)| from != to);
        pairs
            .flat_map(|(from, to)| self.paths_between(from, to))
            .collect()
    }

    pub(crate) fn paths_between(&self, from: &str, to: &str) -> Vec<Path> {
        let of = |site: &str| {
            self.hosts
                .iter()
                .filter(|((name, _), _)| name == site)
                .map(|(_, host)| host)
                .collect::<Vec<_>>()
        };
        let families = if self.layout.two_families { 2 } else { 1 };
        let mut paths = Vec::new();
        for source in of(from) {
            for target in of(to) {
                for address in &target.pod_addresses[..families] {
                    paths.push(path(
                        format!("pod {from}/{} to pod {to}/{}", source.name, target.name),
                        &source.pod,
                        *address,
                    ));
                }
                let host = format!("host {from}/{} to pod {to}/{}", source.name, target.name);
                paths.push(path(host, &source.namespace, target.pod_addresses[0]));
            }
            let service = of(to)[0].service;
            paths.push(path(
                format!("pod {from}/{} to a service of {to}", source.name),
                &source.pod,
                service,
            ));
        }
        paths
    }

    /// Flows from the first pod of each cluster to the last of each other.
    pub(crate) fn pod_flows(&self) -> Vec<Flow> {
        let wanted = |path: &&Path| {
            path.name.starts_with("pod ")
                && path.name.contains("/n1 to pod")
                && path.name.ends_with("/n2")
        };
        self.paths().iter().filter(wanted).map(Path::flow).collect()
    }

    pub(crate) fn service_flows(&self, to: &str) -> Vec<Flow> {
        let wanted =
            |path: &&Path| path.name.contains("/n1 to a service") && path.name.ends_with(to);
        self.paths().iter().filter(wanted).map(Path::flow).collect()
    }

    /// Waits until packets arrive on all of these paths.
    pub(crate) async fn arrive(&self, paths: &[Path]) {
        until("packets arrive", || async {
            let lost = lost(paths).await;
            if lost.is_empty() {
                Ok(())
            } else {
                Err(format!("{} of {}: {lost:#?}", lost.len(), paths.len()))
            }
        })
        .await;
    }

    /// Waits until packets arrive on none of these paths.
    pub(crate) async fn stop_arriving(&self, paths: &[Path]) {
        until("packets stop", || async {
            let lost = lost(paths).await;
            if lost.len() == paths.len() {
                Ok(())
            } else {
                Err(format!("only these stopped: {lost:#?}"))
            }
        })
        .await;
    }

    /// Writes of the operator to Peers, sorted.
    pub(crate) fn peer_writes(&self, since: &Mark) -> Vec<String> {
        let mut writes: Vec<_> = self
            .fleet
            .peer_writes(since)
            .into_iter()
            .map(|(site, call)| format!("{} on {site}", call.verb))
            .collect();
        writes.sort();
        writes
    }

    /// Specs of all Peers by cluster, name and UID.
    pub(crate) async fn peers(&self) -> BTreeMap<(&'static str, String, String), Value> {
        let mut found = BTreeMap::new();
        for site in SITES {
            for peer in self.fleet.cluster(site).list(PEERS).await.unwrap() {
                let text = |field: &str| peer["metadata"][field].as_str().unwrap().to_owned();
                found.insert((site, text("name"), text("uid")), peer["spec"].clone());
            }
        }
        found
    }

    async fn declare_second_family(&mut self) {
        let mut spec = self.fleet.mesh_model().spec();
        for (entry, number) in spec["clusters"].as_array_mut().unwrap().iter_mut().zip(1..) {
            entry["podCIDRs"] =
                json!([format!("10.{number}.0.0/16"), format!("fd00:{number}::/32")]);
        }
        self.patch_mesh(&json!({ "spec": spec })).await;
    }

    pub(crate) async fn patch_mesh(&self, patch: &Value) {
        let mesh: &Mesh = &self.fleet.world.meshes[0];
        self.fleet
            .cluster("hub")
            .merge_patch(&mesh.path(), patch)
            .await
            .unwrap();
    }
}

pub(crate) fn path(name: String, from: &Namespace, to: IpAddr) -> Path {
    Path {
        name,
        from: from.clone(),
        to,
    }
}

/// Names of the paths without a ping reply.
pub(crate) async fn lost(paths: &[Path]) -> Vec<String> {
    let mut pings = JoinSet::new();
    for path in paths.iter().cloned() {
        pings.spawn(async move {
            (
                ping(&path.from, None, path.to).await.unwrap(),
                format!("{} ({})", path.name, path.to),
            )
        });
    }
    let mut lost: Vec<String> = pings
        .join_all()
        .await
        .into_iter()
        .filter(|(arrived, _)| !arrived)
        .map(|(_, name)| name)
        .collect();
    lost.sort();
    lost
}

/// Removes annotations that agents write, and sets those that people set.
fn prepare(world: &mut World, layout: &Layout) {
    for (name, site) in &mut world.sites {
        for (at, node) in (1..).zip(site.nodes.values_mut()) {
            prepare_node(node, layout, name, at);
        }
    }
    for (entry, number) in world.meshes[0].entries.iter_mut().zip(1..) {
        entry.keepalive = layout.keepalive;
        entry.additional_cidr = Some(format!("192.168.{number}.0/24"));
    }
}

fn prepare_node(node: &mut Node, layout: &Layout, site: &str, at: u8) {
    node.annotations
        .retain(|name, _| !WRITTEN.contains(&name.as_str()));
    let port = 51_819 + u16::from(at);
    let endpoint = node.annotations["force-endpoint"].replace("51820", &port.to_string());
    node.annotations.insert("force-endpoint".into(), endpoint);
    if layout.hidden.is_some_and(|(hidden, _)| hidden == site) {
        node.annotations.remove("force-endpoint");
    }
    if layout.keepalive > 0 {
        node.annotations
            .insert("persistent-keepalive".into(), layout.keepalive.to_string());
    }
    if !layout.internal_ips {
        node.annotations
            .insert("force-internal-ip".into(), "-".into());
    }
    if layout.locations > 1 {
        node.annotations.insert(
            "location".into(),
            format!("place-{}", at % layout.locations),
        );
    }
    if layout.two_families {
        let second = node.pod_cidrs[0]
            .replace("10.", "fd00:")
            .replace(".0/24", "::/64")
            .replace('.', ":");
        node.pod_cidrs.push(second);
    }
}

/// The role in Kilo's manifests.
fn kilo_role() -> Vec<PolicyRule> {
    let rule = |group: &str, resource: &str, verbs: &[&str]| PolicyRule {
        api_groups: Some(vec![group.into()]),
        resources: Some(vec![resource.into()]),
        verbs: verbs.iter().map(|verb| (*verb).into()).collect(),
        ..PolicyRule::default()
    };
    vec![
        rule("", "nodes", &["list", "patch", "watch"]),
        rule("kilo.squat.ai", "peers", &["list", "watch"]),
        rule(
            "apiextensions.k8s.io",
            "customresourcedefinitions",
            &["get"],
        ),
    ]
}
