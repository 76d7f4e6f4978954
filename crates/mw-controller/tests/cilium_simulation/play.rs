//! Plays one run: starts the provider, performs the actions, heals all faults, and
//! checks the final state of the fleet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::Method;
use mw_sim::Reachability;
use mw_sim::kilo::kubeconfig;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::bed::{
    Bed, CHECK, CLUSTERWIDE, CONNECTION_SECRETS, HUB, POLICIES, RESYNC, secret_path, shop,
};
use crate::case::{Action, Case, PolicyEdit, Workload};
use crate::faults::Script;
use crate::lies::{Attack, HOSTILE_SITES, Lasts, Telling, Untruth};
use crate::object::{BINDING, DATA, applied, is_deleted, text};
use crate::oracle::{connects, declared, decoded, differences, has_namespace};
use crate::process::oversized;
use crate::site::{SYSTEM, WORKLOADS};

/// Result of a run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Report {
    pub(crate) violations: Vec<String>,
    pub(crate) trace: String,
    pub(crate) requests: u64,
    /// Writes that providers tried until the fleet converged, without Lease renewals.
    pub(crate) written: u64,
}

/// Time to converge after the last fault: some rounds of backoff and verification.
const SOON: Duration = Duration::from_secs(300);
/// Longest backoff of a request after the last fault.
const BACK_OFF: Duration = Duration::from_secs(60);
/// Limit on tasks: watches, connections and the provider, for a handful of clusters.
const MOST_TASKS: usize = 400;

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
        bed: Bed::new(case, script),
        case: case.clone(),
        provider: None,
        second: None,
        meant: case
            .objects
            .iter()
            .map(|object| Some(object.spec.clone()))
            .collect(),
        calm_at: None,
        stalled: BTreeSet::new(),
        cut: BTreeSet::new(),
        keyless: BTreeSet::new(),
        failing: BTreeSet::new(),
        removed: BTreeMap::new(),
        edits: Vec::new(),
        foreign: BTreeSet::new(),
        renewals: 0,
        written: 0,
    };
    play.bed.witness.set_misled(case.loses_events());
    play.attack();
    play.start();
    for (at, action) in case.actions() {
        play.until(play.bed.started + at).await;
        play.bed.witness.note(&format!("** {action:?}"));
        play.act(&action);
        play.bed.witness.watch_links();
    }
    play.until(Instant::now() + Duration::from_secs(5)).await;
    play.heal().await;
    play.judge().await;
    let witness = &play.bed.witness;
    Report {
        violations: witness.violations(),
        trace: witness.trace(),
        requests: witness.requests(),
        written: play.written,
    }
}

async fn ended(provider: &mut Option<JoinHandle<()>>) {
    match provider {
        Some(provider) => _ = provider.await,
        None => std::future::pending().await,
    }
}

struct Play {
    bed: Bed,
    case: Case,
    provider: Option<JoinHandle<()>>,
    second: Option<JoinHandle<()>>,
    /// Intended spec of each object; None if it is intended to be deleted.
    meant: Vec<Option<Value>>,
    stalled: BTreeSet<String>,
    /// Clusters whose link is not up.
    cut: BTreeSet<String>,
    /// Clusters whose Secret is broken or missing.
    keyless: BTreeSet<String>,
    /// Clusters whose etcd gives wrong answers.
    failing: BTreeSet<String>,
    /// Workloads that were deleted.
    removed: BTreeMap<(String, Workload), Value>,
    /// Patches that revert manual edits: cluster, path, patch.
    edits: Vec<(String, String, Value)>,
    /// Keys that another manager took over: cluster, remote, path.
    foreign: BTreeSet<(String, String, String)>,
    renewals: u32,
    /// Writes until the fleet converged.
    written: u64,
    /// Time at which the effects of a second provider end.
    calm_at: Option<Instant>,
}

impl Play {
    /// Performs the hostile tenant's attack, before anything else happens.
    fn attack(&mut self) {
        let Some(hostile) = self.case.hostile.clone() else {
            return;
        };
        let cluster = HOSTILE_SITES[0].to_owned();
        match hostile.attack {
            Attack::CopiedUid => {
                let how = Untruth::Uids {
                    of: hostile.victim.clone(),
                };
                self.lie(&Telling {
                    cluster,
                    kind: "namespaces",
                    how,
                    lasts: Lasts::ForEver,
                });
            }
            Attack::StolenUrl => self.bed.put_secret(
                hostile.namespace,
                &cluster,
                &kubeconfig(&hostile.victim, "garbage"),
            ),
        }
        hostile.lies.iter().for_each(|telling| self.lie(telling));
    }

    fn lie(&self, telling: &Telling) {
        self.bed.witness.set_lying(telling);
        telling.begin(&self.bed);
    }

    fn start(&mut self) {
        self.provider = Some(self.bed.start_provider(self.case.elects));
    }

    fn stop(&mut self) {
        self.provider.take().iter().for_each(JoinHandle::abort);
    }

    /// Lets time pass; replaces a provider that crashes or ends.
    async fn until(&mut self, moment: Instant) {
        loop {
            let ended = tokio::select! {
                biased;
                () = self.bed.script.crashed.notified() => "** the provider dies",
                () = ended(&mut self.provider) => "** the provider ends",
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
            Action::Delete { object } => {
                self.meant[*object] = None;
                self.bed.delete(HUB, &self.case.objects[*object].path());
            }
            Action::Restore { object } => {
                self.put_object(*object, self.case.objects[*object].spec.clone())
            }
            Action::Edit { object, spec } => self.put_object(*object, spec.clone()),
            Action::RemoveService { site, name } => self
                .bed
                .delete(site, &format!("/api/v1/namespaces/shop/services/{name}")),
            Action::AddService { site, name } => self.add_service(site, name),
            Action::RemoveNamespace { site, name } => self.remove_namespace(site, name),
            Action::AddNamespace { site, name } => self.add_namespace(site, name),
            Action::RestartCilium { site } => self.bed.restart_cilium(site),
            Action::MoveAddress { site, last } => {
                self.renewals += 1;
                let site = self.bed.sites[site].clone();
                let moved = site.with_certificates(
                    &format!("192.0.{}.{last}", 100 + site.id),
                    site.ca,
                    self.renewals,
                );
                self.bed.replace(moved);
            }
            Action::RenewCertificates { site, ca } => {
                self.renewals += 1;
                let site = self.bed.sites[site].clone();
                let renewed = site.with_certificates(&site.address, *ca, self.renewals);
                self.bed.replace(renewed);
            }
            Action::EtcdFails { site, failure } => {
                match failure.is_some() {
                    true => self.failing.insert(site.clone()),
                    false => self.failing.remove(site),
                };
                let address = format!("{}:2379", self.bed.sites[site].address);
                self.check_honesty();
                self.bed
                    .wire
                    .change(&address, |etcd| etcd.failure = *failure);
            }
            Action::RemoveWorkload { site, which } => {
                if let Some(found) = self.bed.on(site).get(&workload(*which)) {
                    self.removed
                        .insert((site.clone(), *which), (*found).clone());
                    self.bed.delete(site, &workload(*which));
                }
            }
            Action::AddWorkload { site, which } => {
                self.check_honesty();
                self.add_workload(site, *which);
            }
            Action::EditPolicy { site, how } => self.edit_policy(site, *how),
            Action::EditAnnotation { site, value } => {
                let path = "/api/v1/namespaces/shop/services/cart".to_owned();
                let patch = |value: Value| json!({ "metadata": { "annotations": { "service.cilium.io/global": value } } });
                self.bed.patch(site, &path, &patch((*value).into()));
                if *value == Some("false") {
                    self.edits.push((site.clone(), path, patch(Value::Null)));
                }
            }
            Action::EditKey {
                site,
                pick,
                removes,
            } => self.edit_key(site, *pick, *removes),
            Action::ForeignKey { site } => {
                for secret in CONNECTION_SECRETS {
                    let data = json!({ "stringData": { "zz": "endpoints: [nowhere]", "common-etcd-client.key": "a key of Helm's" } });
                    self.bed
                        .patch(site, &format!("{SYSTEM}/secrets/{secret}"), &data);
                }
            }
            Action::ForeignLink { site, pick, works } => self.take_link(site, *pick, *works),
            Action::Compact { site } => self.bed.on(site).compact(),
            Action::Lag { site, behind } => {
                self.bed.witness.set_lagging(site);
                self.bed.script.lag(site, *behind);
            }
            Action::Lie(telling) => self.lie(telling),
            Action::Restart => {
                self.stop();
                self.start();
            }
            Action::StartSecond => {
                if self.second.is_none() {
                    self.disturb(Duration::ZERO);
                    self.second = Some(self.bed.start_provider(self.case.elects));
                }
            }
            Action::StopSecond => self.stop_second(),
            Action::JumpClock { seconds } => {
                _ = self.bed.skew.fetch_add(*seconds, Ordering::Relaxed)
            }
            _ => self.act_on_access(action),
        }
    }

    /// Performs actions on credentials and on the connection to a cluster.
    fn act_on_access(&mut self, action: &Action) {
        match action {
            Action::RenewCredentials { site, revoke } => {
                self.regain(site);
                self.bed.renew_credentials(site, *revoke);
            }
            Action::ReplaceSecret { site } => {
                self.regain(site);
                self.each_secret(site, |bed, path, _| bed.delete(HUB, path));
                self.bed.renew_credentials(site, true);
            }
            Action::BreakSecret { site } => {
                self.lose(site);
                self.each_secret(site, |bed, _, namespace| {
                    bed.put_secret(namespace, site, "not: [a, kubeconfig")
                });
            }
            Action::DeleteSecret { site } => {
                self.lose(site);
                self.each_secret(site, |bed, path, _| bed.delete(HUB, path));
            }
            Action::SwitchSecret { site, to } => {
                self.lose(site);
                let holders = self.bed.holders(site);
                let own = holders
                    .iter()
                    .filter(|namespace| self.case.holdings[*namespace].contains(to));
                own.for_each(|namespace| self.bed.lend(namespace, site, to));
            }
            Action::RestoreSecret { site } => {
                self.check_honesty();
                self.regain(site);
                self.bed.renew_credentials(site, true);
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
            }
            Action::CutStalled { site } => {
                if self.stalled.remove(site) {
                    self.bed.on(site).set_link(Reachability::Refusing);
                }
            }
            other => panic!("{other:?} is played elsewhere"),
        }
    }

    fn each_secret(&self, site: &str, act: impl Fn(&Bed, &str, &str)) {
        let holders = self.bed.holders(site);
        holders
            .iter()
            .for_each(|namespace| act(&self.bed, &secret_path(namespace, site), namespace));
    }

    /// Marks a cluster whose credentials no longer work.
    fn lose(&mut self, site: &str) {
        self.keyless.insert(site.to_owned());
        self.bed.script.forget_lists(Some(site));
        self.bed.witness.set_reachable(site, false);
    }

    fn regain(&mut self, site: &str) {
        self.keyless.remove(site);
        self.bed.script.forget_lists(Some(site));
        self.bed
            .witness
            .set_reachable(site, !self.cut.contains(site));
    }

    /// Checks the status of bindings before a cluster comes back.
    fn check_honesty(&self) {
        declared(self.bed.on(HUB), BINDING)
            .iter()
            .for_each(|binding| self.bed.witness.check_honesty(binding));
    }

    /// Sets an object to its intended state, after any deletion of it has completed.
    fn put_object(&mut self, at: usize, spec: Value) {
        let object = &self.case.objects[at];
        let hub = self.bed.on(HUB);
        match hub.get(&object.path()) {
            Some(found) if !is_deleted(&found) => {
                let mut changed = (*found).clone();
                changed["spec"] = spec.clone();
                let (code, answer) = hub.call(
                    &Method::PUT,
                    &object.path(),
                    "application/json",
                    Some(&changed),
                );
                assert!(code.is_success(), "{code} {answer}");
            }
            Some(_) => {}
            None => self
                .bed
                .create(HUB, &object.collection(), &object.value(&spec)),
        }
        self.meant[at] = Some(spec);
    }

    fn add_service(&self, site: &str, name: &str) {
        let cluster = self.bed.on(site);
        let missing = cluster
            .get(&format!("/api/v1/namespaces/shop/services/{name}"))
            .is_none();
        if missing && has_namespace(cluster, "shop") {
            self.bed
                .create(site, "/api/v1/namespaces/shop/services", &shop(name));
        }
    }

    fn add_namespace(&self, site: &str, name: &str) {
        if self
            .bed
            .on(site)
            .get(&format!("/api/v1/namespaces/{name}"))
            .is_none()
        {
            self.bed.create(
                site,
                "/api/v1/namespaces",
                &json!({ "metadata": { "name": name } }),
            );
        }
    }

    /// Deletes a Namespace and its contents. No controller completes the deletion, so
    /// the Namespace stays Terminating.
    fn remove_namespace(&self, site: &str, name: &str) {
        let inside = [
            "/api/v1/namespaces/NS/services",
            "/apis/cilium.io/v2/namespaces/NS/ciliumnetworkpolicies",
        ];
        for collection in inside.map(|path| path.replace("NS", name)) {
            for object in self.bed.on(site).list(&collection) {
                self.bed.delete(
                    site,
                    &format!("{collection}/{}", text(&object["metadata"]["name"])),
                );
            }
        }
        self.bed.delete(site, &format!("/api/v1/namespaces/{name}"));
    }

    fn add_workload(&mut self, site: &str, which: Workload) {
        let Some(object) = self.removed.remove(&(site.to_owned(), which)) else {
            return;
        };
        let mut fresh = object.clone();
        fresh["metadata"] = json!({ "name": object["metadata"]["name"], "namespace": "kube-system", "labels": object["metadata"]["labels"] });
        self.bed
            .put(site, workload(which).rsplit_once('/').unwrap().0, &fresh);
    }

    fn edit_policy(&mut self, site: &str, how: PolicyEdit) {
        let found = [POLICIES, CLUSTERWIDE]
            .into_iter()
            .flat_map(|collection| self.bed.on(site).list(collection))
            .next();
        let Some(policy) = found else { return };
        let path = policy_path(&policy);
        match how {
            PolicyEdit::Delete => self.bed.delete(site, &path),
            PolicyEdit::Spec => {
                _ = self.bed.patch(
                    site,
                    &path,
                    &json!({ "spec": { "ingress": null, "ingressDeny": null } }),
                )
            }
            PolicyEdit::StripLabels => {
                _ = self
                    .bed
                    .patch(site, &path, &json!({ "metadata": { "labels": null } }))
            }
        }
    }

    fn edit_key(&mut self, site: &str, pick: usize, removes: bool) {
        for secret in CONNECTION_SECRETS {
            let path = format!("{SYSTEM}/secrets/{secret}");
            let Some(found) = self.bed.on(site).get(&path) else {
                continue;
            };
            let ours: Vec<&str> = applied(&found, &DATA)
                .into_iter()
                .filter(|key| *key != ".")
                .collect();
            if ours.is_empty() {
                continue;
            }
            let key = ours[pick % ours.len()].to_owned();
            let gone = json!({ "data": { &key: null } });
            match removes {
                true => _ = self.bed.patch(site, &path, &gone),
                false => {
                    self.bed.patch(
                        site,
                        &path,
                        &json!({ "stringData": { &key: "endpoints: [elsewhere]" } }),
                    );
                    self.edits.push((site.to_owned(), path, gone));
                }
            }
            return;
        }
    }

    /// Lets another manager write the keys of one remote: working keys are ours
    /// without the comment.
    fn take_link(&mut self, site: &str, pick: usize, works: bool) {
        let paths = CONNECTION_SECRETS.map(|secret| format!("{SYSTEM}/secrets/{secret}"));
        let found: Vec<_> = paths
            .iter()
            .filter_map(|path| Some((path, self.bed.on(site).get(path)?)))
            .collect();
        let is_remote = |key: &&str| *key != "." && !key.contains('.');
        let remotes: BTreeSet<String> = found
            .iter()
            .flat_map(|(_, secret)| {
                applied(secret, &DATA)
                    .into_iter()
                    .filter(is_remote)
                    .map(str::to_owned)
            })
            .collect();
        let Some(remote) = remotes.iter().nth(pick % remotes.len().max(1)).cloned() else {
            return;
        };
        for (path, secret) in &found {
            let Some(text) = decoded(&secret["data"][&remote]) else {
                continue;
            };
            let own: String = text
                .split_inclusive('\n')
                .filter(|line| !line.starts_with('#'))
                .collect();
            let astray = own.replace("- https://", "- https://astray.");
            self.bed.patch(
                site,
                path,
                &json!({ "stringData": { &remote: if works { own } else { astray } } }),
            );
            self.foreign
                .insert((site.to_owned(), remote.clone(), (*path).clone()));
        }
    }

    /// Removes broken keys of another manager, as that manager would.
    fn give_links_back(&mut self) {
        for (site, remote, path) in std::mem::take(&mut self.foreign) {
            if connects(self.bed.on(&site), &self.bed.wire, &remote).is_err() {
                self.bed
                    .patch(&site, &path, &json!({ "data": { &remote: null } }));
            }
        }
    }

    /// Ends all faults and restores everything that the provider needs.
    async fn heal(&mut self) {
        self.bed.witness.note("** all faults end");
        self.check_honesty();
        self.bed.script.heal();
        self.stop_second();
        // Healthy parts are left alone: new events would hide what the provider
        // forgot. A hostile tenant goes on.
        let names: Vec<String> = self
            .bed
            .clusters
            .keys()
            .filter(|name| !HOSTILE_SITES.contains(&name.as_str()))
            .cloned()
            .collect();
        names
            .iter()
            .for_each(|name| self.bed.script.lies.stop(name));
        for site in self.cut.clone() {
            self.act(&Action::SetLink {
                site,
                link: Reachability::Up,
            });
        }
        for site in self.keyless.clone() {
            self.act(&Action::RestoreSecret { site });
        }
        for site in self.failing.clone() {
            self.act(&Action::EtcdFails {
                site,
                failure: None,
            });
        }
        for (site, which) in self.removed.clone().into_keys() {
            self.add_workload(&site, which);
        }
        for (site, path, patch) in std::mem::take(&mut self.edits) {
            self.bed.patch(&site, &path, &patch);
        }
        self.give_links_back();
        names.iter().for_each(|name| self.remove_strays(name));
        for at in 0..self.case.objects.len() {
            self.restore_object(at).await;
        }
        names.iter().for_each(|name| self.remove_strays(name));
        self.bed.witness.watch_links();
    }

    /// Deletes policies that lost their labels, as the status asks the user to do.
    fn remove_strays(&self, cluster: &str) {
        for policy in [POLICIES, CLUSTERWIDE]
            .into_iter()
            .flat_map(|collection| self.bed.on(cluster).list(collection))
        {
            if policy["metadata"]["labels"]
                .as_object()
                .is_none_or(serde_json::Map::is_empty)
            {
                self.bed.delete(cluster, &policy_path(&policy));
            }
        }
    }

    /// Restores an object; its deletion may need a while to complete first.
    async fn restore_object(&mut self, at: usize) {
        let path = self.case.objects[at].path();
        let deadline = Instant::now() + RESYNC + SOON;
        let deleting = |bed: &Bed| {
            bed.on(HUB)
                .get(&path)
                .is_some_and(|found| is_deleted(&found))
        };
        while deleting(&self.bed) {
            if Instant::now() > deadline {
                return self
                    .bed
                    .witness
                    .accuse(&format!("finalizer: {path} was deleted and does not go"));
            }
            self.until(Instant::now() + Duration::from_secs(1)).await;
        }
        if let Some(spec) = self.meant[at].clone().filter(|spec| {
            self.bed
                .on(HUB)
                .get(&path)
                .is_none_or(|found| found["spec"] != *spec)
        }) {
            self.put_object(at, spec);
        }
    }

    fn restart_all(&mut self) {
        let names: Vec<String> = self.bed.sites.keys().cloned().collect();
        names.iter().for_each(|name| self.bed.restart_cilium(name));
        // The witness does not see an etcd adopt its name and ID.
        self.bed.witness.watch_links();
    }

    fn wrongs(&self) -> Vec<String> {
        // Objects that were unreachable when their owner was deleted stay.
        let excused = |wrong: &String| {
            wrong.ends_with("by nobody")
                && self.bed.sites.keys().any(|site| {
                    wrong.contains(&format!("on {site} ")) && self.bed.witness.was_left_behind(site)
                })
        };
        differences(&self.bed)
            .into_iter()
            .filter(|wrong| !excused(wrong))
            .collect()
    }

    async fn judge(&mut self) {
        // A provider that starts keeps what no known object explains until a resync.
        let deadline = Instant::now() + RESYNC.mul_f64(1.1) * self.case.resyncs().max(1) + SOON;
        loop {
            if !self.converges(deadline).await {
                return;
            }
            self.check_rest().await;
            let wrong = self.wrongs();
            // A wrong answer that was believed may show late, and only a resync refutes it.
            if self.case.has_lies() && !wrong.is_empty() && Instant::now() < deadline {
                continue;
            }
            wrong
                .iter()
                .for_each(|why| self.bed.witness.accuse(&format!("stays: {why}")));
            break;
        }
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

    /// Waits until everything is as declared. Returns false if that takes too long.
    async fn converges(&mut self, deadline: Instant) -> bool {
        let mut pause = Duration::from_secs(1);
        loop {
            self.restart_all();
            let wrong = self.wrongs();
            if wrong.is_empty() {
                self.written = self.bed.script.written();
                return true;
            }
            if Instant::now() > deadline {
                wrong
                    .iter()
                    .for_each(|why| self.bed.witness.accuse(&format!("converges: {why}")));
                return false;
            }
            self.until(Instant::now() + pause).await;
            pause = (pause * 2).min(Duration::from_secs(20));
        }
    }

    /// Checks that nothing is written after convergence. Virtual time is expensive:
    /// only every fourth run waits for whole resyncs.
    async fn check_rest(&mut self) {
        let thorough = self.case.seed % 4 == 3;
        let (rest, long) = match (thorough, self.case.resyncs()) {
            // Writes after a resync that recovers lost events or wrong answers, or
            // after a backoff, are expected.
            (true, resyncs) => (
                RESYNC.mul_f64(1.1) * resyncs.max(1) + BACK_OFF,
                RESYNC.mul_f64(1.1),
            ),
            (false, 0) => (BACK_OFF, CHECK.mul_f64(2.2)),
            (false, _) => return self.until(Instant::now() + CHECK.mul_f64(2.2)).await,
        };
        self.until(Instant::now() + rest).await;
        let before = self.bed.witness.writes();
        self.until(Instant::now() + long).await;
        let after = self.bed.witness.writes();
        // A process that starts emits its Events again, and a hostile tenant goes
        // on.
        if after.0 != before.0 && after.1 == before.1 && self.case.hostile.is_none() {
            self.bed.witness.accuse(&format!(
                "stays: {} writes though nothing happened",
                after.0 - before.0
            ));
        }
    }
}

fn workload(which: Workload) -> String {
    match which {
        Workload::Agents => format!("{WORKLOADS}/daemonsets/cilium"),
        Workload::ApiServer => format!("{WORKLOADS}/deployments/clustermesh-apiserver"),
    }
}

fn policy_path(policy: &Value) -> String {
    let name = text(&policy["metadata"]["name"]);
    match policy["metadata"]["namespace"].as_str() {
        Some(namespace) => {
            format!("/apis/cilium.io/v2/namespaces/{namespace}/ciliumnetworkpolicies/{name}")
        }
        None => format!("{CLUSTERWIDE}/{name}"),
    }
}
