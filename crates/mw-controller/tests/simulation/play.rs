//! Executes one run: starts the operator, applies the steps, repairs everything,
//! and checks the resulting state.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::Method;
use mw_api::kilo::clustermesh::ANNOTATION_RECONCILE_TRIGGER;
use mw_sim::Reachability;
use mw_sim::kilo::{LAST_SEEN, Mesh, NAMESPACE, Node, key, kubeconfig};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::bed::{Bed, MESHES, NODES, PEERS, RESYNC, secret_path};
use crate::case::{Action, Case, Edit, ForeignPeer, Spoilt};
use crate::faults::Script;
use crate::lies::{Attack, HOSTILE_SITES, Lasts, Telling, Untruth, is_hostile};
use crate::oracle::{array, differences, holds_wanted, label, lasting_trouble, text, wanted_on};
use crate::process::oversized;

/// Result of a run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Report {
    pub(crate) violations: Vec<String>,
    pub(crate) trace: String,
    pub(crate) requests: u64,
    /// Writes that operators attempted, without renewals of Leases.
    pub(crate) written: u64,
}

/// Time to converge after the last fault: an agent's grace period, the memory of a
/// discovered endpoint, and some backoff.
const SOON: Duration = Duration::from_secs(500);
/// Limit for tasks: watches, connections and the operator itself, for a few clusters.
const MOST_TASKS: usize = 40;
const ALL_ANNOTATIONS: [&str; 11] = [
    "key",
    "wireguard-ip",
    "endpoint",
    "force-endpoint",
    "internal-ip",
    "granularity",
    "last-seen",
    "location",
    "discovered-endpoints",
    "leader",
    "filler",
];

pub(crate) fn run(case: &Case) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(play(case))
}

async fn play(case: &Case) -> Report {
    let script = Script::new(&case.faults(), &case.crashes());
    let mut play = Play {
        bed: Bed::new(case.seed, &case.sites, &case.meshes, script),
        case: case.clone(),
        operator: None,
        second: None,
        sites: case
            .sites
            .iter()
            .map(|site| (site.name.clone(), site.clone()))
            .collect(),
        deleted: vec![false; case.meshes.len()],
        calm_at: None,
        stalled: BTreeSet::new(),
        cut: BTreeSet::new(),
        keyless: BTreeSet::new(),
        unwell: BTreeSet::new(),
        reloading: BTreeSet::new(),
    };
    play.bed.witness.set_misled(case.loses_events());
    play.bed.witness.set_quiet(case.quiet);
    play.attack();
    if case.roaming {
        play.leave_roaming();
    }
    play.start();
    for (at, action) in case.actions() {
        play.until(play.bed.started + at).await;
        play.bed.witness.note(&format!("** {action:?}"));
        play.act(&action);
        if case.trusts {
            play.confirm_held();
        }
    }
    play.until(Instant::now() + Duration::from_secs(5)).await;
    play.heal().await;
    play.judge().await;
    let witness = &play.bed.witness;
    Report {
        violations: witness.violations(),
        trace: witness.trace(),
        requests: witness.requests(),
        written: play.bed.script.written(),
    }
}

async fn ended(operator: &mut Option<JoinHandle<()>>) {
    match operator {
        Some(operator) => _ = operator.await,
        None => std::future::pending().await,
    }
}

struct Play {
    bed: Bed,
    case: Case,
    operator: Option<JoinHandle<()>>,
    second: Option<JoinHandle<()>>,
    /// Intended state of the fleet.
    sites: std::collections::BTreeMap<String, mw_sim::kilo::Site>,
    deleted: Vec<bool>,
    stalled: BTreeSet<String>,
    /// Clusters whose link is down.
    cut: BTreeSet<String>,
    /// Clusters whose Secret is broken or deleted.
    keyless: BTreeSet<String>,
    /// Nodes that differ from their intended state.
    unwell: BTreeSet<(String, String)>,
    /// Sites that have not rediscovered their endpoints yet.
    reloading: BTreeSet<String>,
    /// End of the disturbance by a user or a second operator.
    calm_at: Option<Instant>,
}

impl Play {
    /// Performs the attack of a hostile owner, before anything else happens.
    fn attack(&self) {
        let Some(hostile) = &self.case.hostile else {
            return;
        };
        self.bed.witness.set_hostile(hostile);
        let cluster = HOSTILE_SITES[0].to_owned();
        match hostile.attack {
            Attack::CopiedUids => {
                let how = Untruth::Uids {
                    of: hostile.victim.clone(),
                };
                self.lie(&Telling {
                    cluster,
                    kind: "nodes",
                    how,
                    lasts: Lasts::ForEver,
                });
            }
            Attack::StolenUrl => {
                let stolen = kubeconfig(&hostile.victim, "garbage");
                self.bed
                    .holders(&cluster)
                    .iter()
                    .for_each(|namespace| self.bed.put_secret(namespace, &cluster, &stolen));
            }
        }
        hostile.lies.iter().for_each(|telling| self.lie(telling));
    }

    /// Creates Peers without an endpoint, as newer Go operators do.
    fn leave_roaming(&self) {
        let unreachable = |node: &&Node| {
            node.annotation("force-endpoint").is_none() && node.external_ip.is_none()
        };
        for mesh in &self.case.meshes {
            let pairs = mesh
                .entries
                .iter()
                .flat_map(|source| mesh.entries.iter().map(move |target| (source, target)));
            for (source, target) in pairs.filter(|(source, target)| source.site != target.site) {
                for node in self.sites[&source.site].nodes.values().filter(unreachable) {
                    let name = format!("{}--{}--{}", mesh.name, source.name, node.name);
                    let address = node
                        .annotation("wireguard-ip")
                        .and_then(|cidr| cidr.split('/').next())
                        .unwrap_or_default();
                    let peer = json!({
                        "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "Peer",
                        "metadata": { "name": name, "labels": {
                            "kilo-clustermesh.io/mesh": mesh.name, "kilo-clustermesh.io/source-cluster": source.name,
                        } },
                        "spec": { "publicKey": node.annotation("key"), "allowedIPs": [node.pod_cidrs[0], format!("{address}/32")] },
                    });
                    self.bed.create(&target.site, PEERS, &peer);
                    self.bed.witness.keep(&target.site, &name);
                }
            }
        }
    }

    fn lie(&self, telling: &Telling) {
        self.bed.witness.set_lying();
        telling.begin(&self.bed, &self.sites[&telling.cluster]);
    }

    fn start(&mut self) {
        self.operator = Some(self.bed.start_operator(self.case.elects));
    }

    fn stop(&mut self) {
        self.operator.take().iter().for_each(JoinHandle::abort);
    }

    /// Lets time pass; replaces an operator that crashes or exits.
    async fn until(&mut self, moment: Instant) {
        loop {
            let ended = tokio::select! {
                biased;
                () = self.bed.script.crashed.notified() => "** the operator dies",
                () = ended(&mut self.operator) => "** the operator ends",
                () = sleep_until(moment) => {
                    self.check_memory();
                    return self.calm();
                }
            };
            self.bed.witness.note(ended);
            self.check_memory();
            self.stop();
            self.stop_second();
            tokio::task::yield_now().await;
            self.bed.script.buried();
            self.start();
        }
    }

    fn check_memory(&self) {
        oversized(&self.bed.metrics).iter().for_each(|of| {
            self.bed
                .witness
                .accuse(&format!("memory: {of} bytes of one cluster are kept"))
        });
    }

    fn disturb(&mut self, lasts: Duration) {
        self.bed.witness.set_disturbed(true);
        self.calm_at = self.calm_at.max(Some(Instant::now() + lasts));
    }

    fn calm(&mut self) {
        if self.second.is_none() && self.calm_at.is_some_and(|at| Instant::now() >= at) {
            self.calm_at = None;
            self.bed.witness.set_disturbed(false);
        }
    }

    fn stop_second(&mut self) {
        if let Some(second) = self.second.take() {
            second.abort();
            self.disturb(Duration::from_secs(30));
        }
    }

    fn act(&mut self, action: &Action) {
        match action {
            Action::AddNode { site, at } => {
                let number = self.sites[site].number;
                self.put_node(site, Node::new(number, *at));
            }
            Action::AddPlainNode { site }
                if self.bed.on(site).get(&format!("{NODES}/plain")).is_some() => {}
            Action::AddPlainNode { site } => {
                let status =
                    json!({ "addresses": [{ "type": "InternalIP", "address": "fd00:77::9" }] });
                let plain = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "plain" }, "status": status });
                self.bed.create(site, NODES, &plain);
            }
            Action::DeleteNode { site, node } => {
                self.sites.get_mut(site).unwrap().nodes.remove(node);
                self.bed.delete(site, &format!("{NODES}/{node}"));
            }
            Action::ChangeKey { site, node, to } => self.change_node(site, node, |node| {
                _ = node.annotations.insert("key".into(), key(to))
            }),
            Action::ChangeEndpoint { site, node, to } => {
                let to = to.clone().unwrap_or_default();
                self.change_node(site, node, |node| {
                    _ = node.annotations.insert("force-endpoint".into(), to)
                });
            }
            Action::SetReady { site, node, ready } => {
                self.change_node(site, node, |node| node.ready = *ready)
            }
            Action::StopAgent { site, node } => self.stop_agent(site, node),
            Action::StartAgent { site, node } => self.change_node(site, node, |_| {}),
            Action::ReturnAgent { site, node } => {
                self.change_node(site, node, |node| {
                    _ = node
                        .annotations
                        .insert("wireguard-ip".into(), String::new())
                });
            }
            Action::Publish { site, node } => self.publish(site, node),
            Action::Reload { site } => self.reload(site),
            Action::Reloaded { site } => {
                self.reloading.remove(site);
                let runs = |node: &String| !self.unwell.contains(&(site.clone(), node.clone()));
                let nodes: Vec<String> = self.discoverers(site).into_iter().filter(runs).collect();
                nodes
                    .iter()
                    .for_each(|node| self.change_node(site, node, |_| {}));
            }
            Action::KillAgent { site, node } => self.kill_agent(site, node),
            Action::MarkLeader { site, node } => {
                let names: Vec<String> = self.sites[site].nodes.keys().cloned().collect();
                for name in names {
                    self.change_node(site, &name, |found| match found.name == *node {
                        true => _ = found.annotations.insert("leader".into(), "true".into()),
                        false => _ = found.annotations.remove("leader"),
                    });
                }
            }
            Action::Discover { site, of, port } => self.discover(site, of, *port),
            Action::Spoil { site, node, how } => self.spoil(site, node, *how),
            Action::EditPeer { site, pick, how } => self.edit_peer(site, *pick, *how),
            Action::Foreign { site, kind } => self.add_foreign(site, *kind),
            Action::RemoveEntry { mesh, site } => {
                let mut changed = self.case.meshes[*mesh].clone();
                if changed.entries.len() > 2 {
                    changed.entries.retain(|entry| entry.site != *site);
                    self.put_mesh(&changed);
                }
            }
            Action::RestoreEntries { mesh } => self.put_mesh(&self.case.meshes[*mesh].clone()),
            Action::RenameEntry { mesh, site } => {
                if let Some(entry) = self.case.meshes[*mesh]
                    .entries
                    .iter_mut()
                    .find(|entry| entry.site == *site)
                {
                    entry.name = format!("{}-renamed", entry.site);
                    self.put_mesh(&self.case.meshes[*mesh].clone());
                }
            }
            Action::DeleteMesh { mesh } => {
                self.deleted[*mesh] = true;
                self.bed
                    .delete(&self.bed.hub, &self.case.meshes[*mesh].path());
            }
            Action::RestoreMesh { mesh } => {
                self.deleted[*mesh] = false;
                self.put_mesh(&self.case.meshes[*mesh].clone());
            }
            Action::MutateMesh { mesh, pointer, to } => {
                let path = self.case.meshes[*mesh].path();
                let found = self.bed.on(&self.bed.hub).get(&path);
                let Some(mut object) = found.map(|found| (*found).clone()) else {
                    return;
                };
                let (parent, field) = pointer.rsplit_once('/').unwrap();
                if let Some(Value::Object(fields)) = object.pointer_mut(parent) {
                    fields.insert(field.to_owned(), to.clone());
                }
                self.bed.on(&self.bed.hub).call(
                    &Method::PUT,
                    &path,
                    "application/json",
                    Some(&object),
                );
            }
            Action::Trigger { mesh } => {
                let now = self.bed.started.elapsed().as_millis().to_string();
                let patch =
                    json!({ "metadata": { "annotations": { ANNOTATION_RECONCILE_TRIGGER: now } } });
                self.bed
                    .patch(&self.bed.hub, &self.case.meshes[*mesh].path(), &patch);
            }
            Action::RenewCredentials { site, revoke } => {
                self.keyless.remove(site);
                self.bed.script.forget_lists(Some(site));
                self.bed.renew_credentials(site, *revoke);
                self.bed
                    .witness
                    .set_reachable(site, !self.cut.contains(site));
            }
            Action::BreakSecret { site } => {
                self.keyless.insert(site.clone());
                self.bed.script.forget_lists(Some(site));
                self.bed.witness.set_reachable(site, false);
                self.bed.holders(site).iter().for_each(|namespace| {
                    self.bed.put_secret(namespace, site, "not: [a, kubeconfig")
                });
            }
            Action::DeleteSecret { site } => {
                self.keyless.insert(site.clone());
                self.bed.script.forget_lists(Some(site));
                self.bed.witness.set_reachable(site, false);
                self.bed.holders(site).iter().for_each(|namespace| {
                    self.bed
                        .delete(&self.bed.hub, &secret_path(namespace, site))
                });
            }
            Action::SwitchSecret { site, to } => {
                self.keyless.insert(site.clone());
                self.bed.script.forget_lists(Some(site));
                self.bed.witness.set_reachable(site, false);
                self.bed.switch_secret(site, to);
            }
            Action::RestoreSecret { site } => {
                self.keyless.remove(site);
                self.check_honesty();
                self.bed.script.forget_lists(Some(site));
                self.bed.renew_credentials(site, true);
                self.bed
                    .witness
                    .set_reachable(site, !self.cut.contains(site));
            }
            Action::SetLink { site, link } => {
                self.check_honesty();
                let mark = |set: &mut BTreeSet<String>, on: bool| {
                    if on {
                        set.insert(site.clone())
                    } else {
                        set.remove(site)
                    }
                };
                mark(&mut self.stalled, *link == Reachability::Stalled);
                mark(&mut self.cut, *link != Reachability::Up);
                self.bed.witness.set_reachable(
                    site,
                    *link == Reachability::Up && !self.keyless.contains(site),
                );
                self.bed.on(site).set_link(*link);
                if *site == self.bed.hub && *link == Reachability::Up {
                    self.keyless
                        .iter()
                        .for_each(|site| self.bed.witness.is_noticed_from_now(site));
                }
            }
            Action::Lag { site, behind } => self.bed.script.lag(site, *behind),
            Action::CutStalled { site } => {
                if self.stalled.remove(site) {
                    self.bed.on(site).set_link(Reachability::Refusing);
                }
            }
            Action::Compact { site } => self.bed.on(site).compact(),
            Action::Lie(telling) => self.lie(telling),
            // Its changes are separate steps.
            Action::Flap { .. } => {}
            Action::Restart => {
                self.stop();
                self.start();
            }
            Action::StartSecond => {
                if self.second.is_none() {
                    self.disturb(Duration::ZERO);
                    self.second = Some(self.bed.start_operator(self.case.elects));
                }
            }
            Action::StopSecond => self.stop_second(),
            Action::JumpClock { seconds } => {
                _ = self.bed.skew.fetch_add(*seconds, Ordering::Relaxed)
            }
        }
    }

    /// Checks the statuses before a cluster becomes reachable again.
    fn check_honesty(&self) {
        let (hub, witness) = (&self.bed.hub, &self.bed.witness);
        if !witness.is_unreachable(hub) && !witness.is_just_back(hub) {
            self.bed
                .on(hub)
                .list(MESHES)
                .iter()
                .for_each(|mesh| witness.check_honesty(mesh));
        }
    }

    fn change_node(&mut self, site: &str, node: &str, change: impl FnOnce(&mut Node)) {
        let Some(mut found) = self
            .sites
            .get(site)
            .and_then(|site| site.nodes.get(node))
            .cloned()
        else {
            return;
        };
        change(&mut found);
        self.put_node(site, found);
    }

    /// Writes a node in its intended state, whatever exists.
    fn put_node(&mut self, site: &str, node: Node) {
        self.unwell.remove(&(site.to_owned(), node.name.clone()));
        self.write_node(site, &node);
        self.sites
            .get_mut(site)
            .unwrap()
            .nodes
            .insert(node.name.clone(), node);
    }

    fn write_node(&self, site: &str, node: &Node) {
        let object = node.object();
        let path = format!("{NODES}/{}", node.name);
        let annotations: serde_json::Map<String, Value> = ALL_ANNOTATIONS
            .iter()
            .map(|name| {
                (
                    format!("kilo.squat.ai/{name}"),
                    node.annotations
                        .get(*name)
                        .map_or(Value::Null, |value| value.clone().into()),
                )
            })
            .collect();
        if !self.bed.patch(
            site,
            &path,
            &json!({ "metadata": { "annotations": annotations } }),
        ) {
            self.bed.create(site, NODES, &object);
        }
        self.bed.patch(
            site,
            &format!("{path}/status"),
            &json!({ "status": object["status"] }),
        );
    }

    fn stop_agent(&mut self, site: &str, node: &str) {
        self.unwell.insert((site.to_owned(), node.to_owned()));
        let annotations: serde_json::Map<String, Value> = ALL_ANNOTATIONS
            .iter()
            .map(|name| (format!("kilo.squat.ai/{name}"), Value::Null))
            .collect();
        self.bed.patch(
            site,
            &format!("{NODES}/{node}"),
            &json!({ "metadata": { "annotations": annotations } }),
        );
    }

    /// Publishes the address of a node. Nodes without a running agent have none and don't affect others'.
    fn publish(&mut self, site: &str, node: &str) {
        let runs = |name: &str| !self.unwell.contains(&(site.to_owned(), name.to_owned()));
        if runs(node) {
            let address = self.sites[site].wireguard_ip(node, runs);
            self.change_node(site, node, |node| {
                _ = node.annotations.insert("wireguard-ip".into(), address)
            });
        }
    }

    fn discoverers(&self, site: &str) -> Vec<String> {
        let nodes = self.sites[site]
            .nodes
            .values()
            .filter(|node| node.annotation("discovered-endpoints").is_some());
        nodes.map(|node| node.name.clone()).collect()
    }

    fn reload(&mut self, site: &str) {
        self.reloading.insert(site.to_owned());
        for node in self.discoverers(site) {
            let nothing = json!({ "metadata": { "annotations": { "kilo.squat.ai/discovered-endpoints": "{}" } } });
            self.bed.patch(site, &format!("{NODES}/{node}"), &nothing);
        }
    }

    fn kill_agent(&mut self, site: &str, dead: &str) {
        self.unwell.extend(
            self.sites[site]
                .nodes
                .keys()
                .map(|node| (site.to_owned(), node.clone())),
        );
        let names: Vec<String> = self.sites[site]
            .nodes
            .keys()
            .filter(|name| *name != dead)
            .cloned()
            .collect();
        let later = (LAST_SEEN + 120).to_string();
        for name in names {
            self.bed.patch(
                site,
                &format!("{NODES}/{name}"),
                &json!({ "metadata": { "annotations": { "kilo.squat.ai/last-seen": later } } }),
            );
        }
    }

    fn discover(&mut self, site: &str, of: &(String, String), port: u16) {
        let Some(seen) = self
            .sites
            .get(&of.0)
            .and_then(|site| site.nodes.get(&of.1))
            .and_then(|node| node.annotation("key"))
        else {
            return;
        };
        let value = json!({ seen: { "IP": "198.51.100.7", "Port": port } }).to_string();
        let Some(observer) = self.sites[site].nodes.keys().next().cloned() else {
            return;
        };
        self.change_node(site, &observer, |node| {
            _ = node
                .annotations
                .insert("discovered-endpoints".into(), value)
        });
    }

    fn spoil(&mut self, site: &str, node: &str, how: Spoilt) {
        self.unwell.insert((site.to_owned(), node.to_owned()));
        let (name, value) = match how {
            Spoilt::NoKey => ("key", Value::Null),
            Spoilt::BadKey => ("key", "bm90IGEga2V5".into()),
            Spoilt::WireguardIpOutside => ("wireguard-ip", "172.30.0.1/16".into()),
            Spoilt::HugeAnnotation => ("filler", "x".repeat(200_000).into()),
            Spoilt::InternalIpOfAnotherFamily => ("internal-ip", "fd00:77::3/64".into()),
            Spoilt::DiscoveredNonsense => ("discovered-endpoints", "{\"not\": [\"what\", 1".into()),
        };
        self.bed.patch(
            site,
            &format!("{NODES}/{node}"),
            &json!({ "metadata": { "annotations": { format!("kilo.squat.ai/{name}"): value } } }),
        );
    }

    fn edit_peer(&mut self, site: &str, pick: usize, how: Edit) {
        let peers = self.bed.on(site).list(PEERS);
        let ours: Vec<_> = peers
            .iter()
            .filter(|peer| label(peer, "hub") == Some(&self.bed.hub_uid()))
            .collect();
        if ours.is_empty() {
            return;
        }
        let peer = ours[pick % ours.len()];
        let path = format!("{PEERS}/{}", text(&peer["metadata"]["name"]));
        let mut allowed = array(&peer["spec"]["allowedIPs"]).to_vec();
        let patch = match how {
            Edit::Delete => return self.bed.delete(site, &path),
            Edit::Endpoint => {
                json!({ "spec": { "endpoint": { "dnsOrIP": { "ip": "198.51.100.99" }, "port": 9 } } })
            }
            Edit::DropPrefix => {
                allowed.pop();
                json!({ "spec": { "allowedIPs": allowed } })
            }
            Edit::AddPrefix => {
                allowed.push("10.250.0.0/16".into());
                json!({ "spec": { "allowedIPs": allowed } })
            }
            Edit::StripLabels => json!({ "metadata": { "labels": null } }),
            Edit::OwnLabel => json!({ "metadata": { "labels": { "team": "network" } } }),
            Edit::PresharedKey => json!({ "spec": { "presharedKey": key("secret") } }),
        };
        self.disturb(Duration::from_secs(30));
        self.bed.patch(site, &path, &patch);
    }

    fn add_foreign(&mut self, site: &str, kind: ForeignPeer) {
        let count = self.bed.on(site).list(PEERS).len();
        let mesh = &self.case.meshes[0];
        let others = || {
            mesh.entries
                .iter()
                .find(|entry| entry.site != site)
                .map(|entry| entry.name.clone())
                .unwrap_or_default()
        };
        let (name, labels) = match kind {
            ForeignPeer::Plain => (format!("laptop-{count}"), json!({ "team": "people" })),
            ForeignPeer::OtherHub => (
                format!("{}--elsewhere--n{count}", mesh.name),
                json!({ "kilo-clustermesh.io/mesh": mesh.name, "kilo-clustermesh.io/mesh-namespace": NAMESPACE,
                    "kilo-clustermesh.io/source-cluster": "elsewhere", "kilo-clustermesh.io/hub": "another-hub" }),
            ),
            ForeignPeer::TakenName => (
                format!("{}--{}--n100", mesh.name, others()),
                json!({ "team": "people" }),
            ),
        };
        let peer = json!({
            "apiVersion": "kilo.squat.ai/v1alpha1", "kind": "Peer", "metadata": { "name": name, "labels": labels },
            "spec": { "publicKey": key(&format!("foreign {site} {count}")), "allowedIPs": [format!("10.251.{count}.0/24")] },
        });
        let (code, _) =
            self.bed
                .on(site)
                .call(&Method::POST, PEERS, "application/json", Some(&peer));
        if code.is_success() {
            self.bed.witness.protect(site, &name);
        }
    }

    /// Writes a mesh in its intended state, unless it is being deleted.
    fn put_mesh(&self, mesh: &Mesh) {
        let spec = mesh.spec();
        let hub = self.bed.on(&self.bed.hub);
        match hub.get(&mesh.path()) {
            Some(found) if found["metadata"]["deletionTimestamp"].is_null() => {
                let mut object = (*found).clone();
                object["spec"] = spec;
                hub.call(
                    &Method::PUT,
                    &mesh.path(),
                    "application/json",
                    Some(&object),
                );
            }
            Some(_) => {}
            None => self.bed.create(
                &self.bed.hub,
                &mesh.path().replace(&format!("/{}", mesh.name), ""),
                &mesh.object(),
            ),
        }
    }

    /// Ends all faults and repairs everything that the operator needs.
    async fn heal(&mut self) {
        self.bed.witness.note("** all faults end");
        self.bed.script.heal();
        self.stop_second();
        // Intact objects are not touched: new events would hide forgotten ones.
        let names: Vec<String> = self
            .sites
            .keys()
            .filter(|name| !HOSTILE_SITES.contains(&name.as_str()))
            .cloned()
            .collect();
        // A hostile owner does not stop.
        names
            .iter()
            .for_each(|name| self.bed.script.lies.stop(name));
        for name in self.cut.clone() {
            self.act(&Action::SetLink {
                site: name,
                link: Reachability::Up,
            });
        }
        for name in self.keyless.clone() {
            self.act(&Action::RestoreSecret { site: name });
        }
        for (site, node) in self.unwell.clone() {
            self.change_node(&site, &node, |_| {});
        }
        for site in self.reloading.clone() {
            self.act(&Action::Reloaded { site });
        }
        for name in &names {
            self.publish_missing(name);
        }
        for mesh in 0..self.case.meshes.len() {
            self.restore_mesh(mesh).await;
        }
        names.iter().for_each(|name| self.remove_strays(name));
    }

    /// Publishes the addresses of leaders, and of nodes that have none yet.
    fn publish_missing(&mut self, site: &str) {
        let known = &self.sites[site];
        let due = |node: &&Node| {
            let right = known.wireguard_ip(&node.name, |_| true);
            let by_location = node.annotation("granularity") == Some("location");
            (by_location || node.annotation("wireguard-ip").is_none())
                && node.annotation("wireguard-ip").unwrap_or_default() != right
        };
        let due: Vec<String> = known
            .nodes
            .values()
            .filter(due)
            .map(|node| node.name.clone())
            .collect();
        due.iter().for_each(|node| self.publish(site, node));
    }

    /// Removes Peers that lost their labels and are no longer wanted. They belong to
    /// nobody, so the status asks a person to remove them.
    fn remove_strays(&self, cluster: &str) {
        let meshes = self.bed.on(&self.bed.hub).list(MESHES);
        let wanted: BTreeSet<String> = meshes
            .iter()
            .flat_map(|mesh| wanted_on(&self.bed, mesh, cluster).into_keys())
            .collect();
        for peer in self.bed.on(cluster).list(PEERS) {
            let name = text(&peer["metadata"]["name"]);
            let ours = self
                .case
                .meshes
                .iter()
                .any(|mesh| name.starts_with(&format!("{}--", mesh.name)));
            if ours
                && peer["metadata"]["labels"]
                    .as_object()
                    .is_none_or(serde_json::Map::is_empty)
                && !wanted.contains(name)
            {
                self.bed.delete(cluster, &format!("{PEERS}/{name}"));
            }
        }
    }

    /// Recreates a mesh; one that is being deleted may take a while to go.
    async fn restore_mesh(&mut self, mesh: usize) {
        let path = self.case.meshes[mesh].path();
        let deadline = Instant::now() + RESYNC + SOON;
        let deleting = |bed: &Bed| {
            bed.on(&bed.hub)
                .get(&path)
                .is_some_and(|found| !found["metadata"]["deletionTimestamp"].is_null())
        };
        while deleting(&self.bed) {
            if Instant::now() > deadline {
                self.bed
                    .witness
                    .accuse("finalizer: a deleted mesh does not go");
                return;
            }
            self.until(Instant::now() + Duration::from_secs(1)).await;
        }
        if !self.deleted[mesh] {
            self.put_mesh(&self.case.meshes[mesh].clone());
        }
    }

    async fn judge(&mut self) {
        let timeouts = RESYNC.mul_f64(1.1) * self.case.resyncs() + SOON;
        let deadline = Instant::now() + timeouts;
        let mut pause = Duration::from_secs(1);
        loop {
            let mut wrong = differences(&self.bed);
            wrong.extend(self.statuses());
            if wrong.is_empty() {
                break;
            }
            if Instant::now() > deadline {
                wrong
                    .iter()
                    .for_each(|why| self.bed.witness.accuse(&format!("converges: {why}")));
                return;
            }
            self.confirm_held();
            self.until(Instant::now() + pause).await;
            pause = (pause * 2).min(Duration::from_secs(20));
        }
        // Pending retries, delayed endpoint changes and what a resync recovers of
        // lost events may still cause writes.
        let rest = RESYNC.mul_f64(1.1) * self.case.resyncs() + Duration::from_secs(60);
        self.until(Instant::now() + rest).await;
        let before = self.bed.witness.writes();
        self.until(Instant::now() + RESYNC.mul_f64(1.1)).await;
        let after = self.bed.witness.writes();
        if after != before {
            self.bed.witness.accuse(&format!(
                "stays: {} writes though nothing happened",
                after - before
            ));
        }
        differences(&self.bed)
            .iter()
            .for_each(|why| self.bed.witness.accuse(&format!("stays: {why}")));
        self.bed.witness.check_foreign();
        self.bed.witness.check_silence_of_events();
        self.bed.witness.check_thrift();
        let tasks = tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks();
        if tasks > MOST_TASKS {
            self.bed.witness.accuse(&format!(
                "bounded: {tasks} tasks are alive though nothing happens"
            ));
        }
    }

    /// Returns false claims in the status of each mesh.
    fn statuses(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let meshes = self.bed.on(&self.bed.hub).list(MESHES);
        for mesh in meshes
            .iter()
            .filter(|mesh| !is_hostile(text(&mesh["metadata"]["namespace"])))
        {
            let name = text(&mesh["metadata"]["name"]);
            let ready = array(&mesh["status"]["conditions"])
                .iter()
                .find(|condition| condition["type"] == "Ready");
            let is_ready = ready.is_some_and(|ready| {
                ready["status"] == "True"
                    && ready["observedGeneration"] == mesh["metadata"]["generation"]
            });
            let holds = !array(&mesh["status"]["heldDeletes"]).is_empty();
            let lasting = lasting_trouble(&self.bed, mesh);
            let known = ready.is_some_and(|ready| lasting.contains(text(&ready["reason"])));
            if ((!is_ready && !known) || holds) && !self.case.takes_names() {
                wrong.push(format!(
                    "{name} is not Ready, though nothing is wrong: {ready:?}"
                ));
            }
        }
        wrong
    }

    /// Confirms held changes as the status says, unless the Peers are still wanted.
    fn confirm_held(&self) {
        for mesh in self.bed.on(&self.bed.hub).list(MESHES) {
            if self.case.needs_resync() && holds_wanted(&self.bed, &mesh) {
                continue;
            }
            let ready = array(&mesh["status"]["conditions"])
                .iter()
                .find(|condition| condition["type"] == "Ready")
                .cloned()
                .unwrap_or_default();
            let message = text(&ready["message"]);
            let Some(hash) = message
                .split("confirm-deletes=")
                .nth(1)
                .map(|rest| rest.chars().take(16).collect::<String>())
            else {
                continue;
            };
            if mesh["metadata"]["annotations"]["kilo-clustermesh.io/confirm-deletes"] != hash {
                let (namespace, name) = (
                    text(&mesh["metadata"]["namespace"]),
                    text(&mesh["metadata"]["name"]),
                );
                self.bed.witness.was_confirmed(namespace, name);
                let path = format!(
                    "/apis/kilo.squat.ai/v1alpha1/namespaces/{namespace}/clustermeshes/{name}"
                );
                self.bed.patch(
                    &self.bed.hub,
                    &path,
                    &json!({ "metadata": { "annotations": { "kilo-clustermesh.io/confirm-deletes": hash } } }),
                );
            }
        }
    }
}
