//! Observes every request and write, and reports violations of invariants at once.
//! Checks are computed from the servers, the etcds and the Secrets of tenants, not
//! from the provider's status.

mod checks;
mod excuses;
mod objects;
mod silence;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use mw_sim::{Cluster, Observer, Request, RequestOutcome, Verb, Write};
use serde_json::Value;
use tokio::time::Instant;

use crate::bed::HUB;
use crate::faults::is_operator;
use crate::lies::Telling;
use crate::object::{BINDING, KINDS, is_deleted, text};
use crate::oracle::decoded;
use crate::site::Site;
use crate::wire::Wire;
use crate::witness::objects::only_times_moved;

/// Longest time that a change may take to reach the provider.
const ON_ITS_WAY: Duration = Duration::from_secs(40);
/// Upper bound on requests per second, for startup and a full resync together.
const MOST_A_SECOND: u64 = 800;
/// Upper bound on pages of a list: no page is smaller than a hundredth of the list.
const MOST_PAGES: u64 = 110;

pub(crate) struct Witness {
    started: Instant,
    clusters: BTreeMap<String, Cluster>,
    wire: Wire,
    holdings: BTreeMap<String, BTreeSet<String>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    trace: String,
    violations: Vec<String>,
    /// Writes that changed something, by cluster and request.
    effective: BTreeSet<(String, u64)>,
    /// Requests that were not answered, by cluster and path.
    unanswered: BTreeSet<(String, String)>,
    /// All UIDs that a server has assigned.
    uids: BTreeMap<String, BTreeSet<String>>,
    /// All addresses that clusters have had.
    addresses: BTreeMap<String, String>,
    /// Private keys, each with its cluster and certificate.
    private: BTreeMap<String, (String, &'static str)>,
    /// Cluster that the Secret of a ref points to, or pointed to before it broke.
    led: BTreeMap<(String, String), String>,
    /// Time at which a Secret of a namespace last changed its cluster.
    moved: BTreeMap<String, Instant>,
    /// Time of the last change to an object or Secret of a namespace.
    changed: BTreeMap<String, Instant>,
    /// Clusters that are unreachable or whose credentials do not work.
    unreachable: BTreeMap<String, Instant>,
    /// Time at which unreachable clusters came back.
    returned: BTreeMap<String, Instant>,
    /// Time since which a wanted link does not work.
    broken: BTreeMap<(String, String), Instant>,
    /// True if several providers write at the same time.
    disturbed: bool,
    /// True if events were withheld from the provider.
    misled: bool,
    /// Wrong answers of the servers so far.
    lied: Vec<Telling>,
    /// Servers with lagging lists: the same write may be repeated.
    lagging: BTreeSet<String>,
    /// Clusters with leftovers that could not be deleted.
    left_behind: BTreeSet<String>,
    writes: u64,
    /// Writes to each object, and events that may have caused them.
    written: BTreeMap<(String, String), u64>,
    changes: u64,
    providers: u64,
    requests: u64,
    /// Requests in the current second.
    burst: (u64, u64),
    /// Pages read so far of a list in progress.
    pages: BTreeMap<(String, String), u64>,
}

impl Witness {
    pub(crate) fn new(
        started: Instant,
        clusters: BTreeMap<String, Cluster>,
        wire: Wire,
        holdings: BTreeMap<String, BTreeSet<String>>,
    ) -> Witness {
        Witness {
            started,
            clusters,
            wire,
            holdings,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hub(&self) -> &Cluster {
        &self.clusters[HUB]
    }

    pub(crate) fn note(&self, line: &str) {
        let at = self.started.elapsed();
        _ = writeln!(self.lock().trace, "{:>11.3} {line}", at.as_secs_f64());
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

    pub(crate) fn provider_started(&self) {
        self.note("a provider starts");
        let mut state = self.lock();
        state.providers += 1;
        // A starting process reads everything again.
        state.burst.1 = 0;
    }

    /// Records the address and certificates of a cluster.
    pub(crate) fn learn(&self, site: &Site) {
        let mut state = self.lock();
        state
            .addresses
            .insert(site.address.clone(), site.name.clone());
        for (identity, kind) in [
            (&site.server, "server"),
            (&site.remote, "remote"),
            (&site.local, "local"),
        ] {
            state
                .private
                .insert(identity.key.trim().to_owned(), (site.name.clone(), kind));
        }
    }

    /// Records that a server starts to give wrong answers.
    pub(crate) fn set_lying(&self, telling: &Telling) {
        let mut state = self.lock();
        state.lied.push(telling.clone());
        state.changes += 2;
    }

    pub(crate) fn set_lagging(&self, cluster: &str) {
        self.lock().lagging.insert(cluster.to_owned());
    }

    pub(crate) fn set_misled(&self, misled: bool) {
        self.lock().misled = misled;
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
    }

    /// Reports whether a cluster is unreachable, or was a moment ago.
    fn is_out_of_reach(&self, cluster: &str) -> bool {
        let state = self.lock();
        let back = state
            .returned
            .get(cluster)
            .is_some_and(|at| at.elapsed() < ON_ITS_WAY);
        back || state.unreachable.contains_key(cluster)
    }

    pub(crate) fn was_left_behind(&self, cluster: &str) -> bool {
        self.lock().left_behind.contains(cluster)
    }

    /// Requests of providers, without Lease renewals and watches.
    pub(crate) fn requests(&self) -> u64 {
        self.lock().requests
    }

    /// Writes of providers, and the number of providers.
    pub(crate) fn writes(&self) -> (u64, u64) {
        let state = self.lock();
        (state.writes, state.providers)
    }

    /// Checks that no object was written more often than necessary.
    pub(crate) fn check_thrift(&self) {
        let state = self.lock();
        let most = 6 + 4 * state.changes + 4 * state.providers;
        let wasted = state.written.iter().find(|(_, count)| **count > most);
        let wasted = wasted.map(|((cluster, key), count)| {
            format!(
                "no-unneeded-write: {key} on {cluster} was written {count} times for {} changes",
                state.changes
            )
        });
        drop(state);
        wasted.iter().for_each(|violation| self.accuse(violation));
    }

    /// Returns the cluster that a ref of a namespace points to.
    fn leads_to(&self, namespace: &str, name: &str) -> Option<String> {
        self.lock()
            .led
            .get(&(namespace.to_owned(), name.to_owned()))
            .cloned()
    }

    /// Reports whether nothing of a tenant has changed for a while.
    fn is_quiet(&self, namespace: &str) -> bool {
        let state = self.lock();
        !state.misled
            && state
                .changed
                .get(namespace)
                .is_none_or(|at| at.elapsed() > ON_ITS_WAY)
    }

    /// Records a change made by the tester.
    fn note_change(&self, cluster: &str, write: &Write<'_>) {
        self.lock().changes += 1;
        let Some((namespace, name)) = write.key.split_once('/').filter(|_| cluster == HUB) else {
            return;
        };
        let spec = |value: Option<&Value>| {
            value.map(|value| {
                (
                    value["spec"].clone(),
                    value["metadata"]["deletionTimestamp"].clone(),
                )
            })
        };
        let secret = write.plural == "secrets";
        if secret
            || KINDS.iter().any(|kind| kind.0 == write.plural)
                && spec(write.before) != spec(write.after)
        {
            self.lock()
                .changed
                .insert(namespace.to_owned(), Instant::now());
        }
        if let (true, Some(site), Some(of)) = (
            secret,
            write.after.and_then(server_of),
            name.strip_suffix("-kubeconfig"),
        ) {
            let mut state = self.lock();
            let before = state
                .led
                .insert((namespace.to_owned(), of.to_owned()), site.clone());
            if before.is_some_and(|before| before != site) {
                state.moved.insert(namespace.to_owned(), Instant::now());
            }
        }
    }

    fn ended(&self, request: &Request, outcome: &RequestOutcome) {
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
        if request.verb.writes() {
            self.check_preconditions(request);
        }
        // Two providers, or two tenants, may write the same thing.
        let holders = self
            .holdings
            .values()
            .filter(|sites| sites.contains(request.cluster.as_ref()))
            .count();
        let lagging = self.lock().lagging.contains(request.cluster.as_ref());
        let alone = !self.lock().disturbed
            && holders < 2
            && !lagging
            && !self.has_misreported(&request.cluster, resource);
        // The result of an unanswered write is unknown.
        let object = (request.cluster.to_string(), request.path_and_query.clone());
        let known = match outcome {
            RequestOutcome::Answered { .. } => !self.lock().unanswered.remove(&object),
            RequestOutcome::Lost | RequestOutcome::GivenUp => self.lock().unanswered.insert(object),
        };
        if *outcome == (RequestOutcome::Answered { code: 200 })
            && request.verb == Verb::Patch
            && !changed
            && alone
            && known
        {
            self.accuse(&format!("no-unneeded-write: {request} changed nothing"));
        }
    }

    fn wrote(&self, cluster: &str, write: &Write<'_>) {
        if let Some(uid) = write
            .after
            .and_then(|after| after["metadata"]["uid"].as_str())
        {
            self.lock()
                .uids
                .entry(cluster.to_owned())
                .or_default()
                .insert(uid.to_owned());
        }
        match write.user.filter(|user| is_operator(Some(user))) {
            None => self.note_change(cluster, write),
            Some(user) => {
                let mut state = self.lock();
                state
                    .effective
                    .extend(write.request.map(|number| (cluster.to_owned(), number)));
                if write.plural != "leases" && !only_times_moved(write) {
                    state.writes += 1;
                }
                let object = format!("{} {}", write.plural, write.key);
                if !["leases", "events"].contains(&write.plural)
                    && cluster != HUB
                    && !state.disturbed
                {
                    *state
                        .written
                        .entry((cluster.to_owned(), object))
                        .or_default() += 1;
                }
                drop(state);
                match cluster == HUB {
                    true => self.check_hub(write),
                    false => self.check_target(cluster, user, write),
                }
            }
        }
        let spec = |object: Option<&Value>| {
            object.map(|object| (object["spec"].clone(), is_deleted(object)))
        };
        let of_binding = write.plural == BINDING.0 && spec(write.before) != spec(write.after);
        if of_binding || ["secrets", "configmaps"].contains(&write.plural) {
            self.watch_links();
        }
    }
}

/// Returns the cluster that the kubeconfig in a Secret points to.
fn server_of(secret: &Value) -> Option<String> {
    let config: Value = serde_json::from_str(&decoded(&secret["data"]["kubeconfig"])?).ok()?;
    let url = text(&config["clusters"][0]["cluster"]["server"]);
    Some(
        url.strip_prefix("https://")?
            .split_once(".sim")?
            .0
            .to_owned(),
    )
}

/// The witness of one cluster.
pub(crate) struct Post {
    pub(crate) cluster: String,
    /// Weak: the witness owns the clusters that it observes.
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
