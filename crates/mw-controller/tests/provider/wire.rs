//! The network between clusters: etcds that answer dials, and KVStoreMesh's report
//! on the keys of its cluster.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::future::BoxFuture;
use mw_controller::cilium::dial::{Answer, Dialler, Failed};
use mw_core::cilium::plan::Dial;
use mw_core::cilium::world::DialFailure;
use mw_core::time::Timestamp;
use mw_sim::{Cluster, Pods};
use serde_json::Value;

use crate::site::{SYSTEM, Site};

/// The etcd of a cluster.
#[derive(Debug, Clone)]
pub(crate) struct Etcd {
    pub(crate) cluster_name: String,
    pub(crate) id: u32,
    /// PEM of the CA that signed its certificate and that it trusts.
    pub(crate) ca: String,
    pub(crate) names: Vec<String>,
    pub(crate) failure: Option<DialFailure>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Wire(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Etcds by address.
    etcds: BTreeMap<String, Etcd>,
    /// Issuing CA and etcd user, by certificate.
    issued: BTreeMap<String, (String, String)>,
    /// Clusters whose ConfigMap lists one user per reader, by address.
    lists_users: BTreeMap<String, Cluster>,
    now: i64,
    clock: Option<Clock>,
    /// Delays of the next dials; the last one applies to all that follow.
    delays: Vec<Duration>,
    dialled: Vec<Dialled>,
}

type Clock = Box<dyn Fn() -> i64 + Send>;

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("etcds", &self.etcds)
            .finish_non_exhaustive()
    }
}

/// A dial and its result.
#[derive(Debug, Clone)]
pub(crate) struct Dialled {
    pub(crate) hosts: Vec<String>,
    pub(crate) server_name: Option<String>,
    pub(crate) cluster_name: String,
    /// The client's private key.
    pub(crate) key: String,
    pub(crate) failure: Option<DialFailure>,
}

/// Files and names of a connection attempt.
pub(crate) struct Attempt<'a> {
    pub(crate) address: &'a str,
    /// Name that the server's certificate must be valid for.
    pub(crate) name: &'a str,
    pub(crate) ca: &'a str,
    pub(crate) certificate: &'a str,
    pub(crate) cluster_name: &'a str,
}

impl Wire {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(crate) fn plug_in(&self, site: &Site) {
        let names = vec!["*.mesh.cilium.io".to_owned(), site.address.clone()];
        let ca = ca_of(site);
        let etcd = Etcd {
            cluster_name: site.cilium_name.clone(),
            id: site.id,
            ca,
            names,
            failure: None,
        };
        let mut state = self.lock();
        for (identity, user) in [
            (&site.server, String::new()),
            (&site.remote, site.remote_user()),
            (&site.local, String::new()),
        ] {
            state
                .issued
                .insert(identity.certificate.trim().to_owned(), (ca_of(site), user));
        }
        state.etcds.insert(format!("{}:2379", site.address), etcd);
    }

    /// Gives the etcd of a site the users that a ConfigMap of its cluster lists.
    pub(crate) fn list_users(&self, site: &Site, cluster: &Cluster) {
        self.lock()
            .lists_users
            .insert(format!("{}:2379", site.address), cluster.clone());
    }

    /// Sets the clock of heartbeats.
    pub(crate) fn set_clock(&self, clock: impl Fn() -> i64 + Send + 'static) {
        self.lock().clock = Some(Box::new(clock));
    }

    pub(crate) fn set_delays(&self, delays: Vec<Duration>) {
        self.lock().delays = delays;
    }

    pub(crate) fn dialled(&self) -> Vec<Dialled> {
        self.lock().dialled.clone()
    }

    pub(crate) fn etcd(&self, address: &str) -> Option<Etcd> {
        self.lock().etcds.get(address).cloned()
    }

    /// Returns the cluster-id if an etcd accepts the connection.
    pub(crate) fn connects(
        &self,
        attempt: &Attempt<'_>,
    ) -> Result<u32, (DialFailure, &'static str)> {
        self.lock().connects(attempt)
    }

    pub(crate) fn change(&self, address: &str, change: impl FnOnce(&mut Etcd)) {
        change(self.lock().etcds.get_mut(address).unwrap());
    }

    pub(crate) fn unplug(&self, address: &str) -> Etcd {
        self.lock().etcds.remove(address).unwrap()
    }

    pub(crate) fn plug(&self, address: &str, etcd: Etcd) {
        self.lock().etcds.insert(address.to_owned(), etcd);
    }

    fn answer(&self, dial: &Dial) -> (Result<Answer, Failed>, Dialled, Duration) {
        let mut state = self.lock();
        state.now = state.clock.as_ref().map_or(state.now + 1, |clock| clock());
        let host = dial.hosts.first().cloned().unwrap_or_default();
        let address = format!("{host}:{}", dial.port);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let [ca, certificate, key] = [&dial.files.ca, &dial.files.certificate, &dial.files.key]
            .map(|file| text(file.expose()));
        let attempt = Attempt {
            address: &address,
            name: dial.server_name.as_deref().unwrap_or(&host),
            ca: &ca,
            certificate: &certificate,
            cluster_name: dial.cluster_name.as_str(),
        };
        let found = state.connects(&attempt);
        let dialled = Dialled {
            hosts: dial.hosts.clone(),
            server_name: dial.server_name.clone(),
            cluster_name: dial.cluster_name.to_string(),
            key,
            failure: found.err().map(|(kind, _)| kind),
        };
        let delay = if state.delays.len() > 1 {
            state.delays.remove(0)
        } else {
            state.delays.first().copied().unwrap_or_default()
        };
        let result = match found {
            Ok(id) => Ok(Answer {
                id,
                heartbeat: Some(Timestamp(state.now)),
            }),
            Err((kind, why)) => Err(Failed {
                kind,
                text: format!("{address}: {why}"),
            }),
        };
        (result, dialled, delay)
    }
}

impl State {
    fn connects(&self, attempt: &Attempt<'_>) -> Result<u32, (DialFailure, &'static str)> {
        let Some(etcd) = self.etcds.get(attempt.address) else {
            return Err((DialFailure::Tcp, "connection refused"));
        };
        if let Some(kind) = etcd.failure {
            return Err((kind, "as the story wants it"));
        }
        let name = attempt.name;
        let fits = |of: &String| {
            *of == name || of.strip_prefix('*').is_some_and(|end| name.ends_with(end))
        };
        if !attempt.ca.contains(etcd.ca.trim()) || !etcd.names.iter().any(fits) {
            return Err((DialFailure::Certificate, "its certificate is not valid"));
        }
        if self
            .issued
            .get(attempt.certificate.trim())
            .is_none_or(|(ca, _)| *ca != etcd.ca)
        {
            return Err((
                DialFailure::Certificate,
                "it does not trust the client's certificate",
            ));
        }
        if !self.has_user(attempt.address, attempt.certificate) {
            return Err((DialFailure::Permission, "permission denied"));
        }
        if etcd.cluster_name != attempt.cluster_name {
            return Err((DialFailure::Name, "it has no such cluster-config"));
        }
        Ok(etcd.id)
    }
}

impl State {
    /// Reports whether an etcd has the user of a certificate. `remote` exists in every
    /// mode.
    fn has_user(&self, address: &str, certificate: &str) -> bool {
        let Some((_, user)) = self
            .issued
            .get(certificate.trim())
            .filter(|(_, user)| user.starts_with("remote-"))
        else {
            return true;
        };
        let map = self.lists_users.get(address).and_then(|cluster| {
            cluster.get(&format!("{SYSTEM}/configmaps/clustermesh-remote-users"))
        });
        let text = map
            .map(|map| {
                map["data"]["users.yaml"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned()
            })
            .unwrap_or_default();
        let users: Value = serde_saphyr::from_str(&text).unwrap_or_default();
        let entries = users["users"].as_array().cloned().unwrap_or_default();
        entries
            .iter()
            .any(|entry| entry["name"] == **user && entry["role"] == "remote")
    }
}

fn ca_of(site: &Site) -> String {
    site.ca.authority().pem().to_owned()
}

impl Dialler for Wire {
    fn dial(&self, dial: Dial) -> BoxFuture<'static, Result<Answer, Failed>> {
        let (answer, dialled, delay) = self.answer(&dial);
        let wire = self.clone();
        Box::pin(async move {
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            wire.lock().dialled.push(dialled);
            answer
        })
    }
}

/// KVStoreMesh: reports every remote that its Secret has a key for, ready if the
/// endpoint of that key is the remote's etcd.
pub(crate) struct KvStoreMesh {
    pub(crate) cluster: Cluster,
    pub(crate) wire: Wire,
}

impl Pods for KvStoreMesh {
    fn get(&self, _: &Value, port: &str, path: &str) -> Option<String> {
        if port != "9964" || path != "/metrics" {
            return None;
        }
        let secret = self
            .cluster
            .get(&format!("{SYSTEM}/secrets/cilium-kvstoremesh"));
        let data = secret
            .map(|secret| secret["data"].clone())
            .unwrap_or_default();
        let common = self.cluster.get(&format!(
            "{SYSTEM}/secrets/clustermesh-apiserver-remote-cert"
        ));
        let common = common
            .map(|secret| secret["data"]["tls.crt"].clone())
            .unwrap_or_default();
        let mut text = String::new();
        for (key, value) in data.as_object().into_iter().flatten() {
            let file =
                String::from_utf8(base64(value.as_str().unwrap_or_default())).unwrap_or_default();
            if !file.contains("endpoints:") {
                continue;
            }
            let own = &data[format!("{key}.etcd-client.crt")];
            let certificate = if own.is_null() { &common } else { own };
            let certificate = String::from_utf8(base64(certificate.as_str().unwrap_or_default()))
                .unwrap_or_default();
            let state = self.wire.lock();
            let ready = state.etcds.iter().any(|(address, etcd)| {
                let host = address.split(':').next().unwrap_or_default();
                (file.contains(host)
                    || file.contains(&format!("{}.mesh.cilium.io", etcd.cluster_name)))
                    && etcd.cluster_name == *key
                    && etcd.failure.is_none()
                    && state.has_user(address, &certificate)
            });
            text += &format!(
                "cilium_kvstoremesh_remote_cluster_readiness_status{{source_cluster=\"x\",target_cluster=\"{key}\"}} {}\n",
                u8::from(ready)
            );
        }
        Some(text)
    }
}

pub(crate) fn base64(text: &str) -> Vec<u8> {
    let k8s_openapi::ByteString(bytes) = serde_json::from_value(Value::from(text)).unwrap();
    bytes
}
