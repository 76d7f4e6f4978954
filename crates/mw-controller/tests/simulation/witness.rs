//! Checks invariants on every request and every write, and reports violations at
//! once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use mw_sim::kilo::NAMESPACE;
use mw_sim::{Cluster, Observer, Request, RequestOutcome, Verb, Write};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::bed::{MESHES, NODES, PEERS, account_of};
use crate::faults::{OPERATOR, Script, is_operator};
use crate::lies::{HOSTILE_SITES, Hostile, is_hostile};
use crate::oracle::{annotation, array, endpoint, entries, is_good, label, text};
use crate::silence;

/// Maximum time for a change to arrive.
const ON_ITS_WAY: Duration = Duration::from_secs(40);
/// Shorter than the operator's grace period for a stopped agent.
const GRACE: Duration = Duration::from_secs(85);
/// More requests than startup and a full resync together need.
const MOST_A_SECOND: u64 = 400;
/// Maximum time until the loss of a cluster is noticed: two pings, and a request
/// that times out.
const UNNOTICED: Duration = Duration::from_secs(60);
/// Window of the delete guard.
const WINDOW: Duration = Duration::from_secs(600);
/// Rate limit for changes of one Peer: burst and refill interval.
const BUCKET: u64 = 10;
const REFILL: Duration = Duration::from_secs(30);
/// Maximum number of pages of a list.
const MOST_PAGES: u64 = 110;
/// Shorter than the operator remembers a discovered endpoint.
const REMEMBERED: Duration = Duration::from_secs(290);
const FINALIZER: &str = "kilo-clustermesh.io/cleanup";

pub(crate) struct Witness {
    started: Instant,
    clusters: BTreeMap<String, Cluster>,
    hub: String,
    hub_uid: String,
    script: Arc<Script>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    trace: String,
    violations: Vec<String>,
    /// Foreign Peers, with their content.
    foreign: BTreeMap<(String, String), Value>,
    /// Peers that must not be deleted.
    kept: BTreeSet<(String, String)>,
    /// Writes that changed something, by cluster and request.
    effective: BTreeSet<(String, u64)>,
    /// Time since which a node has been good without a relevant change.
    good: BTreeMap<(String, String), Instant>,
    /// Time since which formerly good nodes have no annotations.
    bare: BTreeMap<(String, String), Instant>,
    /// Time of the last change of a ClusterMesh.
    meshes_since: Option<Instant>,
    /// Clusters that are unreachable, or whose credentials do not work.
    unreachable: BTreeMap<String, Instant>,
    /// Time at which unreachable clusters came back.
    returned: BTreeMap<String, Instant>,
    /// True while several operators write, or a user edits what the operator writes.
    disturbed: bool,
    /// True if events are withheld from the operator.
    misled: bool,
    /// True if nothing happens that needs a person's attention.
    quiet: bool,
    /// Clusters and meshes whose Peers could not be deleted and were left.
    left_behind: BTreeSet<(String, String)>,
    writes: u64,
    peer_writes: BTreeMap<(String, String), u64>,
    hostile: Option<Hostile>,
    /// Number of changes that may make the operator write.
    changes: u64,
    edits: BTreeMap<(String, String), u64>,
    operators: u64,
    /// True after an operator reconnected to a cluster: it knows only existing Peers.
    forgot: bool,
    requests: u64,
    /// Requests in the current second.
    burst: (u64, u64),
    /// Pages of the current list of a kind.
    pages: BTreeMap<(String, String), u64>,
    /// Deletes without a good reason, by mesh, source and target.
    doubtful: BTreeMap<Pair, BTreeMap<String, Instant>>,
    /// Deletes on each target for meshes that seem gone.
    sweeps: BTreeMap<String, Sweep>,
    /// Times of updates of Peers because of changes in their source.
    updates: BTreeMap<(String, String), VecDeque<Instant>>,
    /// All keys that the nodes of a cluster ever had.
    keys: BTreeMap<String, BTreeSet<String>>,
    /// Endpoints that the nodes of a cluster discovered, by key.
    last_discoveries: BTreeMap<(String, String), LastDiscovery>,
}

#[derive(Default)]
struct Sweep {
    gone: BTreeSet<String>,
    /// Most Peers of this hub, including those that are gone.
    most: usize,
}

#[derive(Default)]
struct LastDiscovery {
    listed: Vec<Value>,
    /// Endpoints listed before that.
    before: Vec<Value>,
    /// Time since which no node lists it.
    gone: Option<Instant>,
}

/// Peers of one source in a target: mesh with its namespace, source, target.
type Pair = ((String, String), String, String);

impl Witness {
    pub(crate) fn new(
        started: Instant,
        clusters: BTreeMap<String, Cluster>,
        hub: &str,
        script: Arc<Script>,
    ) -> Witness {
        let system = clusters[hub].get("/api/v1/namespaces/kube-system").unwrap();
        let hub_uid = text(&system["metadata"]["uid"]).to_owned();
        Witness {
            started,
            clusters,
            hub: hub.to_owned(),
            hub_uid,
            script,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(&self, line: &str) {
        let at = self.started.elapsed();
        let mut state = self.lock();
        _ = writeln!(state.trace, "{:>11.3} {line}", at.as_secs_f64());
    }

    pub(crate) fn accuse(&self, violation: &str) {
        self.note(&format!("WRONG {violation}"));
        if std::env::var_os("SIM_UNTIL_FAILURE").is_some() {
            println!("  {violation}");
            std::process::exit(1);
        }
        self.lock().violations.push(violation.to_owned());
    }

    pub(crate) fn trace(&self) -> String {
        self.lock().trace.clone()
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    pub(crate) fn operator_started(&self) {
        self.note("an operator starts");
        let mut state = self.lock();
        state.operators += 1;
        state.forgot |= state.operators > 1;
        // A new operator has no memory of the previous one.
        state.doubtful.clear();
        state.updates.clear();
        drop(state);
        self.script.told.forget_searches();
    }

    /// Records that a server starts to lie, and perhaps stops again.
    pub(crate) fn set_lying(&self) {
        self.lock().changes += 2;
    }

    /// Reports whether the hub hid an existing mesh in a list and in two searches by
    /// name, so that it counts as deleted.
    fn seems_gone(&self, (namespace, name): &(String, String)) -> bool {
        self.script.told.hides_mesh(&self.hub, name) && self.mesh(namespace, name).is_some()
    }

    /// Reports whether a server lied about a kind, and no full resync followed yet.
    fn lied(&self, cluster: &str, kind: &str) -> bool {
        self.script.told.about(cluster, kind)
    }

    /// Records that a person confirmed the held changes of a mesh.
    pub(crate) fn was_confirmed(&self, namespace: &str, name: &str) {
        self.note(&format!("somebody confirms what {namespace}/{name} holds"));
        let mesh = (namespace.to_owned(), name.to_owned());
        self.lock().doubtful.retain(|(of, _, _), _| *of != mesh);
    }

    pub(crate) fn set_hostile(&self, hostile: &Hostile) {
        self.lock().hostile = Some(hostile.clone());
    }

    /// Checks that a text for a hostile owner reveals nothing about others.
    fn check_silence(&self, said: &str) {
        let hostile = self.lock().hostile.clone();
        let leaks = |hostile| silence::leaks(&self.clusters, &self.hub, hostile, said);
        let leaks = hostile.as_ref().map(leaks).unwrap_or_default();
        if !leaks.is_empty() {
            self.accuse(&format!(
                "says-nothing: a hostile owner learns {leaks:?}: {said}"
            ));
        }
    }

    /// Checks that the events of a hostile owner's meshes reveal nothing about others.
    pub(crate) fn check_silence_of_events(&self) {
        silence::events(&self.clusters[&self.hub])
            .iter()
            .for_each(|said| self.check_silence(said));
    }

    /// Marks a Peer as foreign.
    pub(crate) fn protect(&self, cluster: &str, name: &str) {
        let found = self.clusters[cluster].get(&format!("{PEERS}/{name}"));
        if let Some(peer) = found {
            self.lock()
                .foreign
                .insert((cluster.to_owned(), name.to_owned()), (*peer).clone());
        }
    }

    /// Marks a Peer that may change but must not be deleted.
    pub(crate) fn keep(&self, cluster: &str, name: &str) {
        self.lock()
            .kept
            .insert((cluster.to_owned(), name.to_owned()));
    }

    pub(crate) fn set_misled(&self, misled: bool) {
        self.lock().misled = misled;
    }

    pub(crate) fn set_quiet(&self, quiet: bool) {
        self.lock().quiet = quiet;
    }

    /// Checks that a restarting agent does not ask a person to act.
    fn check_quiet(&self, mesh: &Value) {
        let conditions = array(&mesh["status"]["conditions"]);
        let loud = ["DeletionHeld", "AnchorUnavailable", "LocationWithoutPeer"];
        if let Some(reason) = conditions
            .iter()
            .map(|condition| text(&condition["reason"]))
            .find(|reason| loud.contains(reason))
        {
            self.accuse(&format!(
                "quiet: the status says {reason} though an agent only restarts"
            ));
        }
    }

    pub(crate) fn set_disturbed(&self, disturbed: bool) {
        self.lock().disturbed = disturbed;
    }

    pub(crate) fn set_reachable(&self, cluster: &str, reachable: bool) {
        let mut state = self.lock();
        match reachable {
            true if state.unreachable.remove(cluster).is_some() => {
                _ = state.returned.insert(cluster.to_owned(), Instant::now())
            }
            true => {}
            false => {
                _ = state
                    .unreachable
                    .entry(cluster.to_owned())
                    .or_insert_with(Instant::now)
            }
        }
        state.forgot |= !reachable;
    }

    /// Restarts the time to notice a change of a cluster's credentials.
    pub(crate) fn is_noticed_from_now(&self, cluster: &str) {
        _ = self
            .lock()
            .unreachable
            .get_mut(cluster)
            .map(|since| *since = Instant::now());
    }

    pub(crate) fn is_just_back(&self, cluster: &str) -> bool {
        self.lock()
            .returned
            .get(cluster)
            .is_some_and(|at| at.elapsed() < ON_ITS_WAY)
    }

    pub(crate) fn is_unreachable(&self, cluster: &str) -> bool {
        self.lock().unreachable.contains_key(cluster)
    }

    pub(crate) fn was_left_behind(&self, cluster: &str, mesh: &str) -> bool {
        self.lock()
            .left_behind
            .contains(&(cluster.to_owned(), mesh.to_owned()))
    }

    /// Number of requests of operators, without renewals of Leases and watches.
    pub(crate) fn requests(&self) -> u64 {
        self.lock().requests
    }

    pub(crate) fn writes(&self) -> u64 {
        self.lock().writes
    }

    /// Checks that foreign Peers have not changed.
    pub(crate) fn check_foreign(&self) {
        let foreign = self.lock().foreign.clone();
        for ((cluster, name), before) in foreign {
            let now = self.clusters[&cluster].get(&format!("{PEERS}/{name}"));
            if now.as_deref() != Some(&before) {
                self.accuse(&format!(
                    "foreign-untouched: the Peer {name} on {cluster} is somebody else's and changed"
                ));
            }
        }
    }

    /// Checks that no Peer was written more often than necessary.
    pub(crate) fn check_thrift(&self) {
        let state = self.lock();
        let (changes, operators) = (state.changes, state.operators);
        let most = |key: &(String, String)| {
            2 + 2 * changes + 2 * operators + 2 * state.edits.get(key).copied().unwrap_or(0)
        };
        let wasted = state
            .peer_writes
            .iter()
            .find(|(key, count)| **count > most(key));
        let wasted = wasted.map(|((cluster, name), count)| {
            format!("no-unneeded-write: {name} on {cluster} was written {count} times for {changes} changes")
        });
        drop(state);
        wasted.iter().for_each(|violation| self.accuse(violation));
    }

    /// Checks that every write is conditional on the version it was planned from.
    fn check_preconditions(&self, request: &Request) {
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let names = match request.verb {
            Verb::Patch => &body["metadata"],
            Verb::Delete => &body["preconditions"],
            _ => return,
        };
        if names["uid"].as_str().is_none() || names["resourceVersion"].as_str().is_none() {
            self.accuse(&format!(
                "preconditions: {request} does not say what it was planned from"
            ));
        }
    }

    /// Checks that a mesh is not Ready while a member has been unreachable for long.
    pub(crate) fn check_honesty(&self, mesh: &Value) {
        let ready = array(&mesh["status"]["conditions"])
            .iter()
            .find(|condition| condition["type"] == "Ready");
        if !ready.is_some_and(|ready| ready["status"] == "True")
            || !mesh["metadata"]["deletionTimestamp"].is_null()
        {
            return;
        }
        let state = self.lock();
        let long = |cluster: &str| {
            state
                .unreachable
                .get(cluster)
                .is_some_and(|since| since.elapsed() > UNNOTICED)
        };
        let lost = entries(mesh)
            .into_iter()
            .map(|entry| self.leads_to(entry))
            .find(|cluster| *cluster != self.hub && long(cluster));
        // A Secret whose deletion is hidden still works, and the status of a mesh that
        // seems deleted is not written.
        let misled = state.misled;
        drop(state);
        let hidden = self.lied(&self.hub, "clustermeshes") || self.lied(&self.hub, "secrets");
        let misled = misled || hidden;
        if let Some(cluster) = lost.filter(|_| !misled) {
            self.accuse(&format!(
                "ready-is-true: {} is Ready while {cluster} can't be reached",
                text(&mesh["metadata"]["name"])
            ));
        }
    }

    fn peer_written(&self, cluster: &str, write: &Write<'_>) {
        let key = (cluster.to_owned(), write.key.to_owned());
        if self.lock().foreign.contains_key(&key) {
            self.accuse(&format!(
                "foreign-untouched: {} of the foreign Peer {} on {cluster}",
                write.verb, write.key
            ));
        }
        if write.after.is_none() && self.lock().kept.contains(&key) {
            self.accuse(&format!(
                "adopted-stays: {} was deleted from {cluster}",
                write.key
            ));
        }
        let mut state = self.lock();
        if !state.disturbed {
            *state.peer_writes.entry(key).or_default() += 1;
        }
        drop(state);
        self.check_credentials(cluster, write);
        if write.after.is_none() {
            self.check_delete(cluster, write);
        } else {
            self.check_finalizer(write);
            self.check_claims(cluster, write);
            self.check_key(cluster, write);
            self.check_churn(cluster, write);
            self.check_discovered(cluster, write);
        }
    }

    /// Checks that every write for a mesh uses credentials of its own namespace.
    fn check_credentials(&self, cluster: &str, write: &Write<'_>) {
        let Some((namespace, name)) = write.after.or(write.before).and_then(mesh_of) else {
            return;
        };
        let mesh = self.mesh(&namespace, &name);
        let local = |mesh: &Value| entries(mesh).iter().any(|entry| entry["local"] == true);
        let own = match write.user {
            // A mesh that becomes invalid keeps its previous spec.
            Some(OPERATOR) => {
                write.after.is_none() || namespace == NAMESPACE || mesh.as_deref().is_none_or(local)
            }
            user => user == Some(&account_of(&namespace)),
        };
        // Orphans may be deleted with any credentials for the cluster.
        let orphan = write.after.is_none()
            && (mesh.is_none() || self.seems_gone(&(namespace.clone(), name.clone())));
        if !own && !orphan {
            let user = write.user.unwrap_or_default();
            self.accuse(&format!(
                "own-credentials: {} {} of {namespace}/{name} on {cluster} as {user}",
                write.verb, write.key
            ));
        }
    }

    fn mesh(&self, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.clusters[&self.hub].get(&format!(
            "/apis/kilo.squat.ai/v1alpha1/namespaces/{namespace}/clustermeshes/{name}"
        ))
    }

    /// Checks that a Peer has a key that its cluster really had.
    fn check_key(&self, cluster: &str, write: &Write<'_>) {
        let Some(peer) = write.after else { return };
        let Some(entry) = self.source_of(peer) else {
            return;
        };
        let from = self.leads_to(&entry);
        let state = self.lock();
        let is_known = |peer: &Value| {
            state
                .keys
                .get(&from)
                .is_some_and(|keys| keys.contains(text(&peer["spec"]["publicKey"])))
        };
        let of_source = |other: &Arc<Value>| {
            mesh_of(other) == mesh_of(peer)
                && label(other, "source-cluster") == label(peer, "source-cluster")
        };
        let right = self.clusters[cluster]
            .list(PEERS)
            .into_iter()
            .filter(of_source)
            .filter(|other| is_known(other))
            .count();
        // Node UIDs are forgotten, and two Peers are too few to detect a replacement.
        let few = state.forgot && right < 3;
        let known = is_known(peer);
        drop(state);
        if !known && !few && !is_hostile(label(peer, "mesh-namespace").unwrap_or_default()) {
            self.accuse(&format!(
                "no-lie-is-written: {} on {cluster} got a key that no node of {from} ever had",
                write.key
            ));
        }
    }

    /// Returns the mesh entry of a Peer's source.
    fn source_of(&self, peer: &Value) -> Option<Value> {
        let (namespace, name) = mesh_of(peer)?;
        let mesh = self.mesh(&namespace, &name)?;
        let source = label(peer, "source-cluster")?;
        entries(&mesh)
            .into_iter()
            .find(|entry| entry["name"] == source)
            .cloned()
    }

    /// Checks that a discovered endpoint outlives its entry for five minutes, unless
    /// another one replaces it.
    fn check_discovered(&self, cluster: &str, write: &Write<'_>) {
        let (Some(before), Some(after)) = (write.before, write.after) else {
            return;
        };
        let (key, from, to) = (
            &before["spec"]["publicKey"],
            &before["spec"]["endpoint"],
            &after["spec"]["endpoint"],
        );
        // A new process can't tell a discovered endpoint from a configured one, where
        // the node has one.
        let roams = self.roams(text(key));
        let lied = self.lied(cluster, "nodes") || self.lied(cluster, "peers");
        let state = self.lock();
        let settled = state
            .meshes_since
            .is_some_and(|since| since.elapsed() > ON_ITS_WAY);
        let excused = state.disturbed || state.misled || state.forgot && !roams || !settled || lied;
        let drops = state
            .last_discoveries
            .get(&(cluster.to_owned(), text(key).to_owned()))
            .is_some_and(
                |LastDiscovery {
                     listed,
                     before,
                     gone,
                 }| {
                    let had = listed.contains(from) || before.contains(from);
                    // A change may not have arrived yet.
                    let keeps = listed.contains(to) || gone.is_none() && before.contains(to);
                    had && !keeps && gone.is_none_or(|at| at.elapsed() < REMEMBERED)
                },
            );
        drop(state);
        if drops && !excused && from != to && *key == after["spec"]["publicKey"] {
            self.accuse(&format!("discovered-stays: {} on {cluster} went from {from} to {to} though Kilo only reloads", write.key));
        }
    }

    /// Reports whether the nodes with a key have no endpoint of their own.
    fn roams(&self, key: &str) -> bool {
        let nodes = self.clusters.values().flat_map(|server| server.list(NODES));
        let mut nodes = nodes.filter(|node| annotation(node, "key") == Some(key));
        nodes.next().is_some_and(|node| endpoint(&node).is_none())
            && nodes.all(|node| endpoint(&node).is_none())
    }

    fn note_sightings(&self, cluster: &str) {
        let mut listed: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for node in self.clusters[cluster].list(NODES) {
            let seen = annotation(&node, "discovered-endpoints")
                .and_then(|text| serde_json::from_str::<Value>(text).ok());
            for (key, at) in seen.iter().filter_map(Value::as_object).flatten() {
                listed
                    .entry(key.clone())
                    .or_default()
                    .push(json!({ "dnsOrIP": { "ip": at["IP"] }, "port": at["Port"] }));
            }
        }
        let mut state = self.lock();
        for ((_, key), LastDiscovery { gone, .. }) in state
            .last_discoveries
            .iter_mut()
            .filter(|((of, _), _)| of == cluster)
        {
            if !listed.contains_key(key) && gone.is_none() {
                *gone = Some(Instant::now());
            }
        }
        for (key, now) in listed {
            let last_discovery = state
                .last_discoveries
                .entry((cluster.to_owned(), key))
                .or_default();
            last_discovery.gone = None;
            if last_discovery.listed != now {
                last_discovery.before = std::mem::replace(&mut last_discovery.listed, now);
            }
        }
    }

    /// Checks that a Peer changes rarely, however often its source changes.
    fn check_churn(&self, cluster: &str, write: &Write<'_>) {
        if write.verb != Verb::Patch
            || write.before.map(|peer| &peer["spec"]) == write.after.map(|peer| &peer["spec"])
        {
            return;
        }
        let key = (cluster.to_owned(), write.key.to_owned());
        let mut state = self.lock();
        let excused = state.disturbed
            || state
                .meshes_since
                .is_none_or(|since| since.elapsed() <= ON_ITS_WAY);
        let updates = state.updates.entry(key).or_default();
        if excused {
            return updates.clear();
        }
        updates.push_back(Instant::now());
        let refilled = |since: &Instant| {
            u64::try_from(since.elapsed().as_millis() / REFILL.as_millis()).unwrap_or(u64::MAX)
        };
        let count = updates.len() as u64;
        let too_many = updates
            .iter()
            .enumerate()
            .any(|(at, since)| count - at as u64 > BUCKET + refilled(since) + 1);
        drop(state);
        if too_many {
            self.accuse(&format!(
                "churn: {} on {cluster} was changed {count} times",
                write.key
            ));
        }
    }

    /// Checks that Peers are written only for a mesh with our finalizer.
    fn check_finalizer(&self, write: &Write<'_>) {
        let excused = self.lock().disturbed || self.lock().misled;
        let Some(peer) = write
            .after
            .filter(|_| write.verb == Verb::Create && !excused)
        else {
            return;
        };
        let meshes = self.clusters[&self.hub].list(MESHES);
        let named = |mesh: &Value| mesh_of(peer) == Some(id_of(mesh));
        let finalized = |mesh: &Value| {
            array(&mesh["metadata"]["finalizers"])
                .iter()
                .any(|name| name == FINALIZER)
        };
        if !meshes.iter().any(|mesh| named(mesh) && finalized(mesh)) {
            self.accuse(&format!(
                "finalizer: {} was created for a mesh without our finalizer",
                write.key
            ));
        }
    }

    /// Checks that no two of our Peers in a target share a key or a prefix.
    fn check_claims(&self, cluster: &str, write: &Write<'_>) {
        // Peers that the server hides can't be taken into account.
        let unseen = self.lied(cluster, "peers");
        let Some(peer) = write.after.filter(|_| !unseen && !self.lock().disturbed) else {
            return;
        };
        let prefixes: BTreeSet<&str> = array(&peer["spec"]["allowedIPs"])
            .iter()
            .map(text)
            .collect();
        for other in self.clusters[cluster].list(PEERS) {
            if other["metadata"]["name"] == peer["metadata"]["name"]
                || label(&other, "hub").is_none()
            {
                continue;
            }
            let other_name = text(&other["metadata"]["name"]);
            if other["spec"]["publicKey"] == peer["spec"]["publicKey"] {
                self.accuse(&format!(
                    "one-key: {} and {other_name} on {cluster} have one key",
                    write.key
                ));
            }
            if let Some(cidr) = array(&other["spec"]["allowedIPs"])
                .iter()
                .map(text)
                .find(|cidr| prefixes.contains(cidr))
            {
                self.accuse(&format!(
                    "one-prefix: {} and {other_name} on {cluster} both have {cidr}",
                    write.key
                ));
            }
        }
    }

    /// Checks that the Peer of a node that has been good for a while stays.
    fn check_delete(&self, cluster: &str, write: &Write<'_>) {
        let Some(peer) = write.before else { return };
        let (Some(mesh), Some(source)) = (mesh_of(peer), label(peer, "source-cluster")) else {
            return;
        };
        let settled = |since: &Instant| since.elapsed() > ON_ITS_WAY;
        let told = &self.script.told;
        let outdated = told.outdated_since(&self.hub, "clustermeshes");
        let state = self.lock();
        // A hub that shows an earlier state hides later changes.
        let unseen = outdated.is_some_and(|since| state.meshes_since >= Some(since));
        let excused = state.disturbed
            || state.misled
            || unseen
            || !state.meshes_since.as_ref().is_some_and(settled);
        drop(state);
        if excused {
            return;
        }
        if self.seems_gone(&mesh) {
            return self.check_sweep(cluster, write.key);
        }
        let pair = (mesh.clone(), source.to_owned(), cluster.to_owned());
        let mesh = self
            .mesh(&mesh.0, &mesh.1)
            .filter(|found| found["metadata"]["deletionTimestamp"].is_null());
        let Some(mesh) = mesh.filter(|mesh| !is_hostile(text(&mesh["metadata"]["namespace"])))
        else {
            return;
        };
        let entry_of = |wanted: &dyn Fn(&Value) -> bool| {
            entries(&mesh).into_iter().find(|entry| wanted(entry))
        };
        let Some(entry) = entry_of(&|entry| entry["name"] == source) else {
            return;
        };
        if entry_of(&|entry| self.leads_to(entry) == cluster).is_none() {
            return;
        }
        let from = self.leads_to(entry);
        let Some(node) = write
            .key
            .strip_prefix(&format!("{}--{source}--", text(&mesh["metadata"]["name"])))
        else {
            return;
        };
        let in_grace = self
            .lock()
            .bare
            .get(&(from.clone(), node.to_owned()))
            .is_some_and(|since| since.elapsed() < GRACE);
        // A truncated list is indistinguishable from a complete one: only the guard protects.
        let plausible = self.script.told.plausibly_about(&from, "nodes");
        if in_grace && !plausible {
            self.accuse(&format!(
                "grace: {} was deleted from {cluster} while its agent was only restarting",
                write.key
            ));
        }
        let good = self
            .lock()
            .good
            .get(&(from.clone(), node.to_owned()))
            .is_some_and(settled);
        let object = self.clusters[&from].get(&format!("/api/v1/nodes/{node}"));
        if object
            .as_ref()
            .is_some_and(|object| annotation(object, "granularity") == Some("full"))
        {
            self.check_guard(&pair, &mesh, write.key);
        }
        let same_key = object.is_some_and(|object| {
            is_good(&object, entry, peer)
                && object["metadata"]["annotations"]["kilo.squat.ai/key"]
                    == peer["spec"]["publicKey"]
        });
        if good && same_key && !plausible {
            self.accuse(&format!(
                "good-peer-stays: {} was deleted from {cluster}, though its node is well",
                write.key
            ));
        }
    }

    /// Checks that meshes that seem gone cost a target at most half of this hub's Peers.
    fn check_sweep(&self, cluster: &str, peer: &str) {
        let peers = self.clusters[cluster].list(PEERS);
        let ours = |peer: &&Arc<Value>| label(peer, "hub") == Some(&self.hub_uid);
        let left: BTreeSet<&str> = peers
            .iter()
            .filter(ours)
            .map(|peer| text(&peer["metadata"]["name"]))
            .collect();
        let mut state = self.lock();
        let sweep = state.sweeps.entry(cluster.to_owned()).or_default();
        // A Peer that was created again is not gone.
        sweep.gone.retain(|name| !left.contains(name.as_str()));
        if sweep.gone.is_empty() {
            sweep.most = 0;
        }
        sweep.gone.insert(peer.to_owned());
        let gone = sweep.gone.len();
        sweep.most = sweep.most.max(gone + left.len());
        let most = sweep.most;
        drop(state);
        if gone * 2 > most {
            self.accuse(&format!(
                "held: {peer} is delete {gone} of {most} on {cluster} for meshes that the hub hides"
            ));
        }
    }

    /// Checks that existing nodes lose no more than the guard's share of their Peers
    /// in its window without a confirmation.
    fn check_guard(&self, pair: &Pair, mesh: &Value, peer: &str) {
        let ((namespace, name), source, target) = pair;
        let of_pair = |peer: &Value| {
            mesh_of(peer).as_ref() == Some(&pair.0) && label(peer, "source-cluster") == Some(source)
        };
        let peers = self.clusters[target].list(PEERS);
        let left: BTreeSet<&str> = peers
            .iter()
            .filter(|peer| of_pair(peer))
            .map(|peer| text(&peer["metadata"]["name"]))
            .collect();
        let percent = mesh["spec"]["maxDeletePercent"]
            .as_u64()
            .unwrap_or(50)
            .max(50);
        let mut state = self.lock();
        let deletes = state.doubtful.entry(pair.clone()).or_default();
        deletes.insert(peer.to_owned(), Instant::now());
        // A Peer that was created again is not gone.
        deletes.retain(|name, at| at.elapsed() < WINDOW && !left.contains(name.as_str()));
        let gone = deletes.len();
        drop(state);
        let left = left.len();
        if gone as u64 * 100 > percent * (gone + left) as u64 {
            self.accuse(&format!("held: {peer} is delete {gone} of {} for {namespace}/{name} from {source} on {target}", gone + left));
        }
    }

    fn leads_to(&self, entry: &Value) -> String {
        let secret = entry["kubeconfigSecretRef"]["name"]
            .as_str()
            .and_then(|name| name.strip_suffix("-kubeconfig"));
        secret.map_or_else(|| self.hub.clone(), str::to_owned)
    }

    fn mesh_written(&self, write: &Write<'_>) {
        if write.user.is_none() {
            let mut state = self.lock();
            state.meshes_since = Some(Instant::now());
            state.forgot |= write.before.is_some();
            return;
        }
        let finalized = |mesh: Option<&Value>| {
            mesh.is_some_and(|mesh| {
                array(&mesh["metadata"]["finalizers"])
                    .iter()
                    .any(|name| name == FINALIZER)
            })
        };
        if finalized(write.before) && !finalized(write.after) {
            write
                .before
                .iter()
                .for_each(|mesh| self.check_release(mesh));
        }
        write.after.iter().for_each(|mesh| self.check_honesty(mesh));
        let hostile = |mesh: &&&Value| is_hostile(text(&mesh["metadata"]["namespace"]));
        write
            .after
            .iter()
            .filter(hostile)
            .for_each(|mesh| self.check_silence(&mesh["status"].to_string()));
        let quiet = self.lock().quiet;
        write
            .after
            .iter()
            .filter(|_| quiet)
            .for_each(|mesh| self.check_quiet(mesh));
        let spec = |mesh: Option<&Value>| mesh.map(|mesh| mesh["spec"].clone());
        if write.after.is_some() && spec(write.before) != spec(write.after) {
            self.accuse("foreign-untouched: the operator changed the spec of a ClusterMesh");
        }
    }

    /// Checks that the finalizer is removed only after the Peers are deleted in all reachable clusters.
    fn check_release(&self, mesh: &Value) {
        let (id, name) = (id_of(mesh), text(&mesh["metadata"]["name"]));
        if mesh["metadata"]["deletionTimestamp"].is_null() {
            self.accuse("finalizer: it was taken from a mesh that nobody deleted");
        }
        for (cluster, server) in &self.clusters {
            let left = server
                .list(PEERS)
                .iter()
                .filter(|peer| {
                    mesh_of(peer).as_ref() == Some(&id) && label(peer, "hub") == Some(&self.hub_uid)
                })
                .count();
            // A Secret that the hub reports as deleted counts as deleted.
            let misled = self.lied(cluster, "peers") || self.lied(&self.hub, "secrets");
            // A cluster that shows the Nodes of another counts as that one.
            let misled = misled || self.lied(cluster, "nodes");
            let just_back = self.is_just_back(cluster) || misled;
            let state = self.lock();
            // A shorter cleanupTimeout is respected.
            let patient = mesh["spec"]["cleanupTimeout"] == "10m";
            let reachable = patient && !just_back && !state.unreachable.contains_key(cluster);
            let (restarted, disturbed, misled) =
                (state.operators > 1, state.disturbed, state.misled);
            drop(state);
            let named = entries(mesh)
                .iter()
                .any(|entry| self.leads_to(entry) == *cluster);
            // A new operator knows only clusters that are named.
            if left > 0 && (!reachable || misled || restarted && !named) {
                self.lock()
                    .left_behind
                    .insert((cluster.clone(), name.to_owned()));
            }
            if left > 0 && reachable && named && !disturbed && !misled {
                self.accuse(&format!(
                    "finalizer: it was released while {left} Peers of {name} were left on {cluster}"
                ));
            }
        }
    }

    fn node_written(&self, cluster: &str, write: &Write<'_>) {
        self.note_sightings(cluster);
        let essence = |node: &Value| {
            let mut annotations = node["metadata"]["annotations"].clone();
            _ = annotations
                .as_object_mut()
                .map(|all| all.remove("kilo.squat.ai/last-seen"));
            (
                annotations,
                node["spec"].clone(),
                node["status"]["addresses"].clone(),
            )
        };
        let key = (cluster.to_owned(), write.key.to_owned());
        if write.before.map(essence) == write.after.map(essence) {
            return;
        }
        let mut state = self.lock();
        let is_bare = |node: &Value| {
            annotation(node, "key").is_none() && annotation(node, "last-seen").is_none()
        };
        let was_full = write.before.is_some_and(|node| {
            annotation(node, "granularity") == Some("full") && annotation(node, "key").is_some()
        });
        match write.after.is_some_and(is_bare) {
            true if was_full => _ = state.bare.insert(key.clone(), Instant::now()),
            true => {}
            false => _ = state.bare.remove(&key),
        }
        drop(state);
        if let Some(public) = write.after.and_then(|node| annotation(node, "key")) {
            self.lock()
                .keys
                .entry(cluster.to_owned())
                .or_default()
                .insert(public.to_owned());
        }
        match write.after {
            Some(_) => _ = self.lock().good.insert(key, Instant::now()),
            None => _ = self.lock().good.remove(&key),
        }
    }
}

/// Namespace and name of a Peer's mesh.
fn mesh_of(peer: &Value) -> Option<(String, String)> {
    Some((
        label(peer, "mesh-namespace")?.to_owned(),
        label(peer, "mesh")?.to_owned(),
    ))
}

fn id_of(mesh: &Value) -> (String, String) {
    (
        text(&mesh["metadata"]["namespace"]).to_owned(),
        text(&mesh["metadata"]["name"]).to_owned(),
    )
}

/// Observer of one cluster that reports to the witness.
pub(crate) struct Post {
    pub(crate) cluster: String,
    /// Weak, since the witness holds the clusters that it observes.
    pub(crate) witness: Weak<Witness>,
}

impl Observer for Post {
    fn ended(&self, request: &Request, outcome: &RequestOutcome) {
        if let Some(witness) = self.witness.upgrade() {
            witness.ended(request, outcome);
        }
    }

    fn wrote(&self, write: &Write<'_>) {
        if let Some(witness) = self.witness.upgrade() {
            witness.wrote(&self.cluster, write);
        }
    }
}

impl Witness {
    fn ended(&self, request: &Request, outcome: &RequestOutcome) {
        self.script.told.ended(request, outcome);
        let outcome_text = match outcome {
            RequestOutcome::Answered { code } => code.to_string(),
            other => format!("{other:?}"),
        };
        self.note(&format!(
            "{} {} {} -> {outcome_text}",
            request.cluster, request.verb, request.path_and_query
        ));
        let resource = request
            .target
            .as_ref()
            .map(|target| target.plural.as_str())
            .unwrap_or_default();
        let mut state = self.lock();
        if request.verb != Verb::Watch && resource != "leases" {
            state.requests += 1;
        }
        let pages = state
            .pages
            .entry((request.cluster.to_string(), resource.to_owned()))
            .or_default();
        let goes_on = request.verb == Verb::List && request.query.continue_token.is_some();
        *pages = if goes_on { *pages + 1 } else { 0 };
        let endless = *pages == MOST_PAGES;
        let second = self.started.elapsed().as_secs();
        if !goes_on {
            state.burst = if state.burst.0 == second {
                (second, state.burst.1 + 1)
            } else {
                (second, 1)
            };
        }
        let runaway = state.burst.1 == MOST_A_SECOND && !state.disturbed;
        let peers = resource == "peers";
        let changed = state
            .effective
            .contains(&(request.cluster.to_string(), request.number));
        drop(state);
        if endless {
            self.accuse(&format!(
                "bounded: {MOST_PAGES} pages of one list of {resource} on {}",
                request.cluster
            ));
        }
        if runaway {
            self.accuse(&format!(
                "bounded: {MOST_A_SECOND} requests within a second"
            ));
        }
        if peers {
            self.check_preconditions(request);
        }
        if *outcome == (RequestOutcome::Answered { code: 200 })
            && request.verb == Verb::Patch
            && !changed
        {
            self.accuse(&format!("no-unneeded-write: {request} changed nothing"));
        }
    }

    fn wrote(&self, cluster: &str, write: &Write<'_>) {
        if let (Some(number), Some(user)) = (write.request, write.user) {
            let mut state = self.lock();
            state.effective.insert((cluster.to_owned(), number));
            let namespace = write
                .after
                .or(write.before)
                .map(|object| text(&object["metadata"]["namespace"]));
            let hostile = HOSTILE_SITES.contains(&cluster) || namespace.is_some_and(is_hostile);
            if is_operator(Some(user)) && write.plural != "leases" && !hostile {
                state.writes += 1;
            }
        } else {
            let mut state = self.lock();
            state.changes += 1;
            if write.plural == "peers" {
                *state
                    .edits
                    .entry((cluster.to_owned(), write.key.to_owned()))
                    .or_default() += 1;
            }
        }
        match (write.plural, write.user) {
            ("peers", user) if is_operator(user) => self.peer_written(cluster, write),
            ("clustermeshes", _) => self.mesh_written(write),
            ("nodes", None) => self.node_written(cluster, write),
            ("leases" | "events", Some(OPERATOR)) | (_, None) => {}
            (other, Some(user)) => self.accuse(&format!("foreign-untouched: {user} wrote {other}")),
        }
    }
}
