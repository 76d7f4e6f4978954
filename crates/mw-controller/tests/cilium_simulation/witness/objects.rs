//! Checks of writes to the objects of tenants, and of their status.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::jiff;
use mw_sim::Write;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::bed::{CHECK, CONNECTION_SECRETS, HUB, secret_path};
use crate::lies::is_hostile;
use crate::object::{
    ANNOTATIONS, API, BINDING, DATA, FINALIZERS, INTENT, KINDS, Kind, SERVICE, TOUCHED, applied,
    array, is_deleted, refs, text,
};
use crate::oracle::{cilium_name, connects, declared, is_meant, policies_of, runs_cilium};
use crate::site::SYSTEM;
use crate::witness::{ON_ITS_WAY, Witness};

/// Longest time that the loss of a link or cluster may go unnoticed: the interval
/// between two checks, plus some request timeouts.
const UNNOTICED: Duration = CHECK.saturating_add(Duration::from_secs(60));

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

/// Reports whether only timestamps of a status changed.
pub(super) fn only_times_moved(write: &Write<'_>) -> bool {
    let timeless = |object: &Value| {
        let mut status = object["status"].clone();
        status
            .as_object_mut()
            .into_iter()
            .for_each(|fields| _ = fields.remove("lastSyncTime"));
        let rows = status["meshStatus"].as_array_mut();
        rows.into_iter()
            .flatten()
            .for_each(|row| _ = row.as_object_mut().map(|row| row.remove("lastVerified")));
        status
    };
    let (Some(before), Some(after)) = (write.before, write.after) else {
        return false;
    };
    let statuses =
        KINDS.iter().any(|kind| kind.0 == write.plural) && before["status"] != after["status"];
    statuses && timeless(before) == timeless(after)
}

impl Witness {
    pub(super) fn check_hub(&self, write: &Write<'_>) {
        if ["leases", "events"].contains(&write.plural) {
            return;
        }
        // The provider applies its CRDs at startup.
        let kind = KINDS.iter().find(|kind| kind.0 == write.plural);
        let (Some(kind), Some(before)) = (kind, write.before) else {
            if write.plural != "customresourcedefinitions" {
                self.accuse(&format!(
                    "foreign-untouched: {} of {} {} on the hub",
                    write.verb, write.plural, write.key
                ));
            }
            return;
        };
        let held = |object: &Value| {
            array(&object["metadata"]["finalizers"])
                .iter()
                .any(|name| text(name).starts_with(FINALIZERS))
        };
        if held(before) && !write.after.is_some_and(held) {
            self.check_release(*kind, before);
        }
        let Some(after) = write.after else { return };
        let foreign = |object: &Value| {
            let mut left = object.clone();
            left["status"] = Value::Null;
            let meta = left["metadata"].as_object_mut().unwrap();
            [
                "managedFields",
                "resourceVersion",
                "finalizers",
                "generation",
            ]
            .iter()
            .for_each(|field| _ = meta.remove(*field));
            if let Some(Value::Object(annotations)) = meta.get_mut("annotations") {
                annotations.remove(TOUCHED);
            }
            meta.retain(|_, value| *value != json!({}));
            left
        };
        if foreign(before) != foreign(after) {
            self.accuse(&format!(
                "foreign-untouched: {} {} was changed on the hub",
                write.plural, write.key
            ));
        }
        if kind == &BINDING {
            self.check_honesty(after);
        }
        self.check_silence(kind.1, after);
        let since = |object: &Value| {
            object["status"]["lastSyncTime"]
                .as_str()
                .and_then(|time| time.parse::<jiff::Timestamp>().ok())
        };
        let soon = since(before)
            .zip(since(after))
            .is_some_and(|(before, after)| after.as_second() - before.as_second() < seconds(CHECK));
        if only_times_moved(write) && soon && !self.lock().misled {
            self.accuse(&format!(
                "no-unneeded-write: the times in the status of {} moved too soon",
                write.key
            ));
        }
    }

    /// Checks that a finalizer is removed only when nothing is left in reachable clusters.
    fn check_release(&self, of_kind: Kind, object: &Value) {
        let (namespace, name) = (
            text(&object["metadata"]["namespace"]),
            text(&object["metadata"]["name"]),
        );
        if !is_deleted(object) {
            return self.accuse(&format!(
                "finalizer: it was taken from {namespace}/{name}, which nobody deleted"
            ));
        }
        let touched = text(&object["metadata"]["annotations"][TOUCHED]).split(',');
        let names: BTreeSet<&str> = touched
            .chain(refs(&object["spec"]))
            .filter(|name| !name.is_empty())
            .collect();
        for of in &names {
            let Some(cluster) = self.leads_to(namespace, of) else {
                continue;
            };
            if cluster != **of {
                // A cluster whose Secret points elsewhere is unreachable, and the name
                // of its keys is unknown.
                self.lock()
                    .left_behind
                    .extend(names.iter().map(|name| (*name).to_owned()));
            }
            let Some(what) = self.remains(of_kind.0, object, &cluster, &names) else {
                continue;
            };
            let gone = self.hub().get(&secret_path(namespace, of)).is_none();
            let state = self.lock();
            let excused = state.disturbed || state.misled;
            drop(state);
            match gone
                || excused
                || self.is_out_of_reach(&cluster)
                || self.is_out_of_reach(HUB)
                || self.has_misreported(HUB, "secrets")
                || self.may_have_hidden(&cluster, of_kind)
            {
                true => _ = self.lock().left_behind.insert(cluster),
                false => self.accuse(&format!(
                    "finalizer: {namespace}/{name} was released while {what} was left on {cluster}"
                )),
            }
        }
    }

    /// Returns something of an object that is left on a cluster and not needed by others.
    fn remains(
        &self,
        plural: &str,
        object: &Value,
        cluster: &str,
        names: &BTreeSet<&str>,
    ) -> Option<String> {
        let namespace = text(&object["metadata"]["namespace"]);
        let server = &self.clusters[cluster];
        let of = |other: &Value| text(&other["metadata"]["namespace"]).to_owned();
        // Includes those of another tenant that shares the cluster.
        let others = |kind: (&str, &str)| {
            let all = self.hub().list(&format!("{API}/{}", kind.0));
            let shares = |other: &Value| {
                self.holdings
                    .get(&of(other))
                    .is_some_and(|sites| sites.contains(cluster))
            };
            all.into_iter()
                .filter(|other| !is_deleted(other) && shares(other))
                .collect::<Vec<_>>()
        };
        if plural == INTENT.0 {
            return policies_of(server, namespace, text(&object["metadata"]["name"]))
                .first()
                .map(|_| "a policy".to_owned());
        }
        if plural == SERVICE.0 {
            let mut services = server
                .list("/api/v1/services")
                .into_iter()
                .filter(|service| is_meant(&object["spec"], service));
            let unwanted = |service: &Value| {
                !others(SERVICE)
                    .iter()
                    .any(|other| is_meant(&other["spec"], service))
            };
            let left = services
                .find(|service| !applied(service, &ANNOTATIONS).is_empty() && unwanted(service));
            return left
                .map(|service| format!("an annotation of {}", text(&service["metadata"]["name"])));
        }
        let of_ref = |namespace: &str, name: &str| {
            cilium_name(self.clusters.get(&self.leads_to(namespace, name)?)?)
        };
        let remotes: BTreeSet<String> = names
            .iter()
            .filter_map(|name| of_ref(namespace, name))
            .collect();
        let meshes = others(BINDING);
        let here = meshes.iter().filter(|mesh| {
            refs(&mesh["spec"])
                .iter()
                .any(|name| self.leads_to(&of(mesh), name).as_deref() == Some(cluster))
        });
        let wanted: BTreeSet<String> = here
            .flat_map(|mesh| {
                refs(&mesh["spec"])
                    .into_iter()
                    .filter_map(|name| of_ref(&of(mesh), name))
                    .collect::<Vec<_>>()
            })
            .collect();
        let secrets = CONNECTION_SECRETS
            .iter()
            .filter_map(|secret| server.get(&format!("{SYSTEM}/secrets/{secret}")));
        let keys: Vec<String> = secrets
            .flat_map(|secret| {
                applied(&secret, &DATA)
                    .into_iter()
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            })
            .collect();
        let left = keys
            .into_iter()
            .find(|key| remotes.contains(key) && !wanted.contains(key));
        left.map(|key| format!("the key {key}"))
    }

    /// Records since when each wanted link has not worked.
    pub(crate) fn watch_links(&self) {
        let mut broken = Vec::new();
        for binding in declared(self.hub(), BINDING) {
            let namespace = text(&binding["metadata"]["namespace"]);
            let sites: Vec<String> = refs(&binding["spec"])
                .into_iter()
                .filter_map(|name| self.leads_to(namespace, name))
                .collect();
            for reader in &sites {
                for remote in sites.iter().filter(|remote| *remote != reader) {
                    let connects =
                        |name: String| connects(&self.clusters[reader], &self.wire, &name).is_ok();
                    let works = runs_cilium(&self.clusters[reader])
                        && runs_cilium(&self.clusters[remote])
                        && cilium_name(&self.clusters[remote]).is_some_and(connects);
                    if !works {
                        broken.push((reader.clone(), remote.clone()));
                    }
                }
            }
        }
        let mut state = self.lock();
        state.broken.retain(|link, _| broken.contains(link));
        for link in broken {
            state.broken.entry(link).or_insert_with(Instant::now);
        }
    }

    /// Checks that Connected is true: by the contents of the Secrets and etcds every
    /// link works, every cluster runs Cilium, and none has been unreachable for long.
    /// Wrong answers of clusters that the binding does not name are no excuse.
    pub(crate) fn check_honesty(&self, binding: &Value) {
        let namespace = text(&binding["metadata"]["namespace"]);
        if binding["status"]["phase"] != "Connected"
            || is_deleted(binding)
            || is_hostile(namespace)
            || self.is_out_of_reach(HUB)
        {
            return;
        }
        let sites: Vec<String> = refs(&binding["spec"])
            .into_iter()
            .filter_map(|name| self.leads_to(namespace, name))
            .collect();
        let state = self.lock();
        let long = |since: &Instant| since.elapsed() > UNNOTICED;
        let quiet = state
            .changed
            .get(namespace)
            .is_none_or(|at| at.elapsed() > ON_ITS_WAY);
        let lost = sites
            .iter()
            .find(|site| state.unreachable.get(*site).is_some_and(long))
            .map(|site| format!("{site} can't be reached"));
        let of_mesh =
            |reader: &String, remote: &String| sites.contains(reader) && sites.contains(remote);
        let broken = state
            .broken
            .iter()
            .find(|((reader, remote), since)| of_mesh(reader, remote) && long(since));
        let broken = broken.map(|((reader, remote), _)| format!("{reader} does not read {remote}"));
        let misled = state.misled;
        drop(state);
        let lied = sites
            .iter()
            .map(String::as_str)
            .chain([HUB])
            .any(|server| self.has_lied(server));
        let excused = misled || !quiet || lied;
        if let Some(why) = lost.or(broken).filter(|_| !excused) {
            self.accuse(&format!(
                "connected-is-true: {namespace}/{} is Connected while {why}",
                text(&binding["metadata"]["name"])
            ));
        }
    }
}
