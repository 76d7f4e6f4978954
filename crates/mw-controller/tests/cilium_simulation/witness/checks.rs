//! Checks of writes to clusters with Cilium: author, preconditions and contents.

use std::collections::BTreeMap;

use mw_core::cilium::world::DialFailure;
use mw_sim::{Request, Verb, Write};
use serde_json::Value;

use crate::bed::HUB;
use crate::faults::OPERATOR;
use crate::lies::is_hostile;
use crate::object::{
    ANNOTATIONS, API, BINDING, DATA, FINALIZERS, INTENT, Kind, MANAGER, SERVICE, TOUCHED, applied,
    array, held_by_others, is_deleted, refs, text,
};
use crate::oracle::{cilium_name, decoded, endpoint, is_clusterwide, is_meant, is_target};
use crate::site::CA_KEY;
use crate::witness::{ON_ITS_WAY, Witness};

const APPLY: &str = "application/apply-patch+yaml";

impl Witness {
    /// Checks that every write is conditional on the state it was planned from, and that
    /// none is forced.
    pub(super) fn check_preconditions(&self, request: &Request) {
        let plural = request
            .target
            .as_ref()
            .map(|target| target.plural.as_str())
            .unwrap_or_default();
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let named = if request.verb == Verb::Delete {
            &body["preconditions"]
        } else {
            &body["metadata"]
        };
        let (uid, version) = (named["uid"].as_str(), named["resourceVersion"].as_str());
        let applies = request.content_type.starts_with(APPLY);
        let says_enough = match (request.verb, plural) {
            (_, "leases" | "events") | (Verb::Create, _) => true,
            (_, "customresourcedefinitions") => request.cluster.as_ref() == HUB,
            (Verb::Patch, "configmaps") => version.is_some(),
            // A Secret hidden by a wrong answer has no UID.
            (Verb::Patch, "secrets" | "services") => {
                applies && (uid.is_some() || self.has_misreported(&request.cluster, plural))
            }
            (Verb::Patch | Verb::Delete, _) => uid.is_some() && version.is_some(),
            _ => false,
        };
        if !says_enough {
            self.accuse(&format!(
                "preconditions: {request} does not say what it was planned from"
            ));
        }
        let managed = request.path_and_query.contains("fieldManager=meshwright")
            && request.path_and_query.contains("fieldValidation=Strict");
        if applies && (request.path_and_query.contains("force=true") || !managed) {
            self.accuse(&format!(
                "preconditions: {request} is applied by force or under another name"
            ));
        }
        let known = |uid: &str| {
            self.lock()
                .uids
                .get(request.cluster.as_ref())
                .is_some_and(|uids| uids.contains(uid))
        };
        let lied = self.has_misreported(&request.cluster, plural);
        if let Some(uid) = uid.filter(|uid| !known(uid) && !lied) {
            self.accuse(&format!(
                "preconditions: {request} was planned from another server: it never had {uid}"
            ));
        }
    }

    pub(super) fn check_target(&self, cluster: &str, user: &str, write: &Write<'_>) {
        let Some(namespace) = user
            .strip_prefix(OPERATOR)
            .and_then(|rest| rest.strip_prefix('@'))
        else {
            return self.accuse(&format!(
                "own-credentials: {} of {} on {cluster} as {user}",
                write.verb, write.key
            ));
        };
        let shared = ["data", "spec", "metadata"];
        let rest = |value: &Value| {
            let mut rest = value.clone();
            rest.as_object_mut()
                .into_iter()
                .for_each(|fields| fields.retain(|name, _| !shared.contains(&name.as_str())));
            rest
        };
        let stray = write.verb == Verb::Patch && write.before.map(rest) != write.after.map(rest);
        match (write.plural, write.key) {
            _ if stray => self.foreign(cluster, write),
            ("secrets", "kube-system/cilium-ca") => self.check_ca(cluster, namespace, write),
            ("secrets", "kube-system/cilium-clustermesh" | "kube-system/cilium-kvstoremesh") => {
                self.check_keys(cluster, namespace, write)
            }
            ("configmaps", "kube-system/cilium-config") => {
                self.check_identity(cluster, namespace, write)
            }
            ("services", _) => self.check_annotations(cluster, namespace, write),
            ("ciliumnetworkpolicies" | "ciliumclusterwidenetworkpolicies", _) => {
                self.check_policy(cluster, namespace, write)
            }
            _ => self.foreign(cluster, write),
        }
    }

    fn foreign(&self, cluster: &str, write: &Write<'_>) {
        self.accuse(&format!(
            "foreign-untouched: {} of {} {} on {cluster}",
            write.verb, write.plural, write.key
        ));
    }

    /// Checks that an object of the tenant records that it writes to the cluster.
    fn check_noted(&self, cluster: &str, namespace: &str, kind: Kind, write: &Write<'_>) {
        let says = |object: &Value| {
            let meta = &object["metadata"];
            let held = array(&meta["finalizers"])
                .iter()
                .any(|name| text(name).starts_with(FINALIZERS));
            let mut touched = text(&meta["annotations"][TOUCHED]).split(',');
            held && touched.any(|name| self.leads_to(namespace, name).as_deref() == Some(cluster))
        };
        let objects = self
            .hub()
            .list(&format!("{API}/namespaces/{namespace}/{}", kind.0));
        // A provider that still uses the previous Secret does not know the new one.
        let moves = self
            .lock()
            .moved
            .get(namespace)
            .is_some_and(|at| at.elapsed() < ON_ITS_WAY);
        if !moves && !objects.iter().any(|object| says(object)) {
            let what = format!("{} {} on {cluster}", write.plural, write.key);
            self.accuse(&format!(
                "finalizer: {what} was written before a {} of {namespace} said so",
                kind.1
            ));
        }
    }

    /// Checks that a CA is created only if there is none, from one of the tenant's clusters.
    fn check_ca(&self, cluster: &str, namespace: &str, write: &Write<'_>) {
        let certificate = write
            .after
            .and_then(|after| decoded(&after["data"]["ca.crt"]))
            .unwrap_or_default();
        let has = |site: &String| {
            let found = self.clusters[site].get("/api/v1/namespaces/kube-system/secrets/cilium-ca");
            found
                .and_then(|secret| decoded(&secret["data"]["ca.crt"]))
                .is_some_and(|of| of == certificate)
        };
        if write.verb != Verb::Create {
            self.foreign(cluster, write);
        }
        if !self.holdings[namespace]
            .iter()
            .filter(|site| *site != cluster)
            .any(has)
        {
            self.accuse(&format!(
                "no-key-outside: {cluster} got a CA that no other cluster of {namespace} has"
            ));
        }
        self.check_noted(cluster, namespace, BINDING, write);
    }

    fn check_identity(&self, cluster: &str, namespace: &str, write: &Write<'_>) {
        let data = |value: Option<&Value>| {
            value
                .and_then(|value| value["data"].as_object().cloned())
                .unwrap_or_default()
        };
        let (before, after) = (data(write.before), data(write.after));
        for (key, value) in &after {
            let was = before.get(key).map(text).unwrap_or_default();
            let unset = (key == "cluster-name" && ["", "default"].contains(&was))
                || (key == "cluster-id" && ["", "0"].contains(&was));
            if was != text(value) && !unset {
                self.accuse(&format!(
                    "identity-once: {key} of {cluster} was changed from {was:?} to {value}"
                ));
            }
        }
        if before.keys().any(|key| !after.contains_key(key)) {
            self.foreign(cluster, write);
        }
        self.check_noted(cluster, namespace, BINDING, write);
    }

    fn check_keys(&self, cluster: &str, namespace: &str, write: &Write<'_>) {
        let (Some(before), Some(after)) = (write.before, write.after) else {
            return self.foreign(cluster, write);
        };
        if labels(before) != labels(after) || annotations(before) != annotations(after) {
            self.foreign(cluster, write);
        }
        let ours = applied(before, &DATA);
        let (was, is) = (data(before), data(after));
        for (key, text) in &is {
            let former = was.get(key);
            if former == Some(text) {
                continue;
            }
            if former.is_some() && !ours.contains(&key.as_str()) {
                self.accuse(&format!("foreign-untouched: key {key} of {} on {cluster} is somebody else's and changed", write.key));
            }
            self.check_key(cluster, namespace, write, key, &is);
        }
        if is.iter().any(|(key, text)| was.get(key) != Some(text)) {
            self.check_noted(cluster, namespace, BINDING, write);
        }
        for key in was.keys().filter(|key| !is.contains_key(*key)) {
            if !ours.contains(&key.as_str()) {
                self.accuse(&format!("foreign-untouched: key {key} of {} on {cluster} is somebody else's and was removed", write.key));
            }
            self.check_removed_key(cluster, key);
        }
    }

    /// Checks a key that was added or changed.
    fn check_key(
        &self,
        cluster: &str,
        namespace: &str,
        write: &Write<'_>,
        key: &str,
        all: &BTreeMap<String, String>,
    ) {
        let value = &all[key];
        let state = self.lock();
        let own = |site: &String| self.holdings[namespace].contains(site);
        let leaked = state.private.iter().find(|(private, (site, kind))| {
            value.contains(private.as_str()) && (!own(site) || *kind != "remote")
        });
        let leaked = leaked
            .map(|(_, (site, kind))| format!("the {kind} key of {site}"))
            .or(value.contains(CA_KEY).then(|| "the key of a CA".to_owned()));
        let host = endpoint(value);
        let leads = host.and_then(|host| state.addresses.get(host)).cloned();
        drop(state);
        if let Some(what) = leaked {
            self.accuse(&format!(
                "no-key-outside: {cluster} got {what} for {namespace}"
            ));
        }
        if let Some(site) = leads.filter(|site| !self.holdings[namespace].contains(site)) {
            self.accuse(&format!("own-credentials: key {key} on {cluster} leads to {site}, which is not a cluster of {namespace}"));
        }
        let Some(host) = host.filter(|host| *host != "clustermesh-apiserver.kube-system.svc")
        else {
            return;
        };
        // A private key that was edited differs from the one dialled with.
        let file = format!("{key}.etcd-client.key");
        let ours = write
            .after
            .is_some_and(|after| applied(after, &DATA).contains(&file.as_str()));
        let private = all.get(&file).filter(|_| ours && value.contains(&file));
        let passed = self.wire.dialled().iter().any(|dialled| {
            let there = dialled.hosts.iter().any(|of| of == host)
                || dialled.server_name.as_deref() == Some(host);
            let so = matches!(
                dialled.failure,
                None | Some(DialFailure::Dns | DialFailure::Tcp)
            );
            there
                && so
                && dialled.cluster_name == key
                && private.is_none_or(|private| private.trim() == dialled.key.trim())
        });
        if !passed {
            self.accuse(&format!("dialled-first: key {key} of {} on {cluster} was written before {host} was dialled with it", write.key));
        }
    }

    /// Checks that a wanted key is not removed.
    fn check_removed_key(&self, cluster: &str, key: &str) {
        // Client files of a remote are removed once its CA is trusted.
        if key.contains('.') || self.may_be_mistaken_for_another(cluster) {
            return;
        }
        for binding in self.hub().list(&format!("{API}/{}", BINDING.0)) {
            let namespace = text(&binding["metadata"]["namespace"]);
            if !self.is_quiet(namespace) || is_hostile(namespace) {
                continue;
            }
            let sites: Vec<String> = refs(&binding["spec"])
                .into_iter()
                .filter_map(|name| self.leads_to(namespace, name))
                .collect();
            let named = |site: &&String| {
                *site != cluster && cilium_name(&self.clusters[*site]).as_deref() == Some(key)
            };
            let remote = sites
                .iter()
                .find(named)
                .filter(|remote| !self.may_be_mistaken_for_another(remote));
            if let Some(remote) =
                remote.filter(|_| sites.iter().any(|site| site == cluster) && !is_deleted(&binding))
            {
                self.accuse(&format!("wanted-stays: the key of {remote} was removed from {cluster}, though a binding wants it"));
            }
        }
    }

    fn check_annotations(&self, cluster: &str, namespace: &str, write: &Write<'_>) {
        let (Some(before), Some(after)) = (write.before, write.after) else {
            return self.foreign(cluster, write);
        };
        if labels(before) != labels(after) || before["spec"] != after["spec"] {
            self.foreign(cluster, write);
        }
        let (was, is) = (annotations(before), annotations(after));
        let others = held_by_others(before, &ANNOTATIONS);
        let allowed =
            |key: &str| key.starts_with("service.cilium.io/") || key.starts_with("io.cilium/");
        for key in was
            .keys()
            .chain(is.keys())
            .filter(|key| was.get(*key) != is.get(*key))
        {
            if !allowed(key) || (was.contains_key(key) && others.contains(&key.as_str())) {
                self.accuse(&format!(
                    "foreign-untouched: annotation {key} of {} on {cluster} is somebody else's",
                    write.key
                ));
            }
        }
        let exports = self
            .hub()
            .list(&format!("{API}/namespaces/{namespace}/{}", SERVICE.0));
        let added = is.iter().any(|(key, value)| was.get(key) != Some(value));
        if added {
            if !exports
                .iter()
                .any(|export| is_meant(&export["spec"], after))
                && self.is_quiet(namespace)
            {
                self.accuse(&format!(
                    "own-credentials: {} on {cluster} was annotated for {namespace}, which does not export it",
                    write.key
                ));
            }
            self.check_noted(cluster, namespace, SERVICE, write);
        }
        let removed: Vec<&String> = was.keys().filter(|key| !is.contains_key(*key)).collect();
        if removed.is_empty() || self.has_shown_others(cluster, &["services", "namespaces"]) {
            return;
        }
        // A provider that can't reach the cluster can't know that another tenant shares it.
        let is_judged = |tenant: &str| {
            !is_hostile(tenant) && (tenant == namespace || !self.is_out_of_reach(cluster))
        };
        for (tenant, _) in self
            .holdings
            .iter()
            .filter(|(tenant, sites)| sites.contains(cluster) && is_judged(tenant))
        {
            for export in self
                .hub()
                .list(&format!("{API}/namespaces/{tenant}/{}", SERVICE.0))
            {
                let wanted = self.is_quiet(tenant)
                    && self.is_in_effect(tenant, &export, cluster)
                    && is_meant(&export["spec"], after);
                let asked = crate::oracle::asked_annotations(&export["spec"]);
                if let Some(key) = removed
                    .iter()
                    .find(|key| wanted && asked.get(**key) == was.get(**key))
                {
                    self.accuse(&format!("wanted-stays: {key} was removed from {} on {cluster}, though {tenant} wants it", write.key));
                }
            }
        }
    }

    /// Reports whether a GlobalService wrote to a cluster and still applies there.
    fn is_in_effect(&self, namespace: &str, export: &Value, cluster: &str) -> bool {
        let leads_there = |name: &str| self.leads_to(namespace, name).as_deref() == Some(cluster);
        let touched = text(&export["metadata"]["annotations"][TOUCHED])
            .split(',')
            .any(leads_there);
        let wants = |mesh: Value| {
            refs(&mesh["spec"]).into_iter().any(leads_there)
                && is_target(&export["spec"], &mesh, cluster)
        };
        !is_deleted(export) && touched && self.mesh(namespace, export).is_some_and(wants)
    }

    /// Returns the binding that an object depends on, unless it is being deleted.
    fn mesh(&self, namespace: &str, object: &Value) -> Option<Value> {
        let path = format!(
            "{API}/namespaces/{namespace}/{}/{}",
            BINDING.0,
            text(&object["spec"]["meshRef"]["name"])
        );
        self.hub()
            .get(&path)
            .map(|found| (*found).clone())
            .filter(|found| !is_deleted(found))
    }

    fn check_policy(&self, cluster: &str, namespace: &str, write: &Write<'_>) {
        let Some(policy) = write.before.or(write.after) else {
            return;
        };
        let label = |name: &str| {
            text(&policy["metadata"]["labels"][format!("networking.edge-portal.eu/{name}")])
                .to_owned()
        };
        let (intent, owner) = (label("intent"), label("intent-namespace"));
        if policy["metadata"]["labels"]["app.kubernetes.io/managed-by"] != MANAGER
            || intent.is_empty()
        {
            return self.foreign(cluster, write);
        }
        if owner != namespace {
            self.accuse(&format!(
                "own-credentials: {} of {owner} on {cluster} by credentials of {namespace}",
                write.key
            ));
        }
        if write.after.is_some() {
            return self.check_noted(cluster, namespace, INTENT, write);
        }
        let path = format!("{API}/namespaces/{namespace}/{}/{intent}", INTENT.0);
        let found = self.hub().get(&path).filter(|found| !is_deleted(found));
        let lied = self.has_shown_others(cluster, &["namespaces", "customresourcedefinitions"]);
        let Some(intent) = found.filter(|_| self.is_quiet(namespace) && !lied) else {
            return;
        };
        let spec = &intent["spec"];
        let home = policy["metadata"]["namespace"].as_str();
        let here = match is_clusterwide(spec) {
            true => home.is_none(),
            false => home == spec["destination"]["namespace"].as_str(),
        };
        let member = self.mesh(namespace, &intent).is_some_and(|mesh| {
            refs(&mesh["spec"])
                .into_iter()
                .any(|name| self.leads_to(namespace, name).as_deref() == Some(cluster))
        });
        if here && member {
            self.accuse(&format!(
                "wanted-stays: {} was deleted from {cluster}, though an intent wants it",
                write.key
            ));
        }
    }
}

fn labels(object: &Value) -> &Value {
    &object["metadata"]["labels"]
}

fn annotations(object: &Value) -> BTreeMap<String, String> {
    let all = object["metadata"]["annotations"]
        .as_object()
        .into_iter()
        .flatten();
    all.map(|(key, value)| (key.clone(), text(value).to_owned()))
        .collect()
}

fn data(secret: &Value) -> BTreeMap<String, String> {
    let all = secret["data"].as_object().into_iter().flatten();
    all.map(|(key, value)| (key.clone(), decoded(value).unwrap_or_default()))
        .collect()
}
