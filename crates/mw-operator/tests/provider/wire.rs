//! What is between the clusters: etcds that answer dials, and what each
//! KVStoreMesh makes of the keys its cluster has.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use futures::future::BoxFuture;
use mw_core::cilium::plan::Dial;
use mw_core::cilium::world::DialFailure;
use mw_core::time::Timestamp;
use mw_operator::cilium::dial::{Answer, Dialler, Failed};
use mw_sim::{Cluster, Pods};
use serde_json::Value;

use crate::site::{SYSTEM, Site};

/// The etcd of a cluster.
#[derive(Debug, Clone)]
pub(crate) struct Etcd {
    pub(crate) cluster_name: String,
    pub(crate) id: u32,
    /// The PEM of the CA that signed its certificate, and that it trusts.
    pub(crate) ca: String,
    pub(crate) names: Vec<String>,
    pub(crate) failure: Option<DialFailure>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Wire(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// By address.
    etcds: BTreeMap<String, Etcd>,
    now: i64,
}

impl Wire {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(crate) fn plug_in(&self, site: &Site) {
        let names = vec!["*.mesh.cilium.io".to_owned(), site.address.clone()];
        let ca = site.ca.authority().pem().to_owned();
        let etcd = Etcd { cluster_name: site.cilium_name.clone(), id: site.id, ca, names, failure: None };
        self.lock().etcds.insert(format!("{}:2379", site.address), etcd);
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

    fn answer(&self, dial: &Dial) -> Result<Answer, Failed> {
        let mut state = self.lock();
        state.now += 1;
        let host = dial.hosts.first().cloned().unwrap_or_default();
        let address = format!("{host}:{}", dial.port);
        let fail = |kind, text: &str| Err(Failed { kind, text: format!("{address}: {text}") });
        let Some(etcd) = state.etcds.get(&address) else { return fail(DialFailure::Tcp, "connection refused") };
        if let Some(kind) = etcd.failure {
            return fail(kind, "as the story wants it");
        }
        let name = dial.server_name.clone().unwrap_or(host);
        let fits = |of: &String| *of == name || of.strip_prefix('*').is_some_and(|end| name.ends_with(end));
        let ca = String::from_utf8_lossy(dial.files.ca.expose()).into_owned();
        if !ca.contains(etcd.ca.trim()) || !etcd.names.iter().any(fits) {
            return fail(DialFailure::Certificate, "its certificate is not valid");
        }
        if etcd.cluster_name != dial.cluster_name.as_str() {
            return fail(DialFailure::Name, "it has no such cluster-config");
        }
        Ok(Answer { id: etcd.id, heartbeat: Some(Timestamp(state.now)) })
    }
}

impl Dialler for Wire {
    fn dial(&self, dial: Dial) -> BoxFuture<'static, Result<Answer, Failed>> {
        let answer = self.answer(&dial);
        Box::pin(async move { answer })
    }
}

/// KVStoreMesh: reports every remote that its Secret has a key for, ready when
/// the endpoint of that key leads to the remote's etcd.
pub(crate) struct KvStoreMesh {
    pub(crate) cluster: Cluster,
    pub(crate) wire: Wire,
}

impl Pods for KvStoreMesh {
    fn get(&self, _: &Value, port: &str, path: &str) -> Option<String> {
        if port != "9964" || path != "/metrics" {
            return None;
        }
        let secret = self.cluster.get(&format!("{SYSTEM}/secrets/cilium-kvstoremesh"));
        let data = secret.map(|secret| secret["data"].clone()).unwrap_or_default();
        let mut text = String::new();
        for (key, value) in data.as_object().into_iter().flatten() {
            let file = String::from_utf8(base64(value.as_str().unwrap_or_default())).unwrap_or_default();
            if !file.contains("endpoints:") {
                continue;
            }
            let ready = self.wire.lock().etcds.iter().any(|(address, etcd)| {
                let host = address.split(':').next().unwrap_or_default();
                (file.contains(host) || file.contains(&format!("{}.mesh.cilium.io", etcd.cluster_name)))
                    && etcd.cluster_name == *key
                    && etcd.failure.is_none()
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
