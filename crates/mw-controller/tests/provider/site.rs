//! A cluster with Cilium: the objects that an installation creates.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex};

use mw_testbed::{Authority, Identity};
use serde_json::{Value, json};

pub(crate) const SYSTEM: &str = "/api/v1/namespaces/kube-system";
pub(crate) const WORKLOADS: &str = "/apis/apps/v1/namespaces/kube-system";

/// Placeholder for the private key of a CA.
pub(crate) const CA_KEY: &str = "a private key";

/// Generating keys takes time, so all runs share them.
static COMMON: LazyLock<Authority> = LazyLock::new(|| Authority::new("common").unwrap());
static OTHER: LazyLock<Authority> = LazyLock::new(|| Authority::new("other").unwrap());

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ca {
    Common,
    Other,
}

impl Ca {
    pub(crate) fn authority(self) -> &'static Authority {
        match self {
            Ca::Common => &COMMON,
            Ca::Other => &OTHER,
        }
    }
}

/// A certificate's CA, site, common name, valid names and number of renewals.
type Issue = (Ca, String, String, Vec<String>, u32);

static ISSUED: Mutex<BTreeMap<Issue, Identity>> = Mutex::new(BTreeMap::new());

fn issue(ca: Ca, site: &str, common_name: &str, names: &[&str], renewals: u32) -> Identity {
    let names_owned = names.iter().map(|name| (*name).to_owned()).collect();
    let key = (
        ca,
        site.to_owned(),
        common_name.to_owned(),
        names_owned,
        renewals,
    );
    let issued = || ca.authority().issue(common_name, names).unwrap();
    ISSUED
        .lock()
        .unwrap()
        .entry(key)
        .or_insert_with(issued)
        .clone()
}

#[derive(Debug, Clone)]
pub(crate) struct Site {
    pub(crate) name: String,
    /// Name in Cilium; empty if it has none.
    pub(crate) cilium_name: String,
    pub(crate) id: u32,
    pub(crate) address: String,
    pub(crate) ca: Ca,
    pub(crate) kvstoremesh: bool,
    pub(crate) version: &'static str,
    /// `legacy`, `migration` or `cluster`.
    pub(crate) auth_mode: &'static str,
    pub(crate) server: Identity,
    pub(crate) remote: Identity,
    pub(crate) local: Identity,
}

impl Site {
    pub(crate) fn new(name: &str, id: u32, ca: Ca) -> Site {
        let nothing = Identity {
            certificate: String::new(),
            key: String::new(),
        };
        let site = Site {
            name: name.to_owned(),
            cilium_name: name.to_owned(),
            id,
            address: String::new(),
            ca,
            kvstoremesh: true,
            version: "v1.15.19",
            auth_mode: "legacy",
            server: nothing.clone(),
            remote: nothing.clone(),
            local: nothing,
        };
        site.with_certificates(&format!("192.0.2.{id}"), ca, 0)
    }

    /// Returns the site at another address, with certificates of a CA after a number
    /// of renewals.
    pub(crate) fn with_certificates(&self, address: &str, ca: Ca, renewals: u32) -> Site {
        let names = [
            "clustermesh-apiserver.kube-system.svc",
            "*.mesh.cilium.io",
            "127.0.0.1",
            address,
        ];
        let issue =
            |common_name: &str, names: &[&str]| issue(ca, &self.name, common_name, names, renewals);
        Site {
            address: address.to_owned(),
            ca,
            server: issue("clustermesh-apiserver.kube-system.svc", &names),
            remote: issue(&self.remote_user(), &[]),
            local: issue(&format!("local-{}", self.name), &[]),
            ..self.clone()
        }
    }

    /// Returns the site with another authMode, which determines the user of its
    /// client certificate.
    pub(crate) fn with_auth_mode(self, auth_mode: &'static str) -> Site {
        let site = Site { auth_mode, ..self };
        site.with_certificates(&site.address, site.ca, 0)
    }

    /// Returns the etcd user of its client certificate.
    pub(crate) fn remote_user(&self) -> String {
        if self.auth_mode == "cluster" {
            format!("remote-{}", self.name)
        } else {
            "remote".to_owned()
        }
    }

    pub(crate) fn has_cluster_users(&self) -> bool {
        self.auth_mode != "legacy"
    }

    /// Returns the objects of the site, each with its collection.
    pub(crate) fn objects(&self) -> Vec<(String, Value)> {
        let mut objects = vec![
            ("/api/v1/nodes".to_owned(), self.node()),
            (format!("{SYSTEM}/configmaps"), self.config()),
            (format!("{WORKLOADS}/daemonsets"), self.agents()),
            (format!("{WORKLOADS}/deployments"), self.api_server()),
            (
                format!("{SYSTEM}/pods"),
                self.pod("clustermesh-apiserver-0", "clustermesh-apiserver"),
            ),
            (format!("{SYSTEM}/pods"), self.pod("cilium-0", "cilium")),
            (format!("{SYSTEM}/services"), self.service()),
        ];
        objects.extend(
            self.secrets()
                .iter()
                .map(|(name, data)| (format!("{SYSTEM}/secrets"), secret(name, data))),
        );
        objects
    }

    /// Returns the CA and certificates, each with the name of its Secret.
    pub(crate) fn secrets(&self) -> Vec<(String, Value)> {
        let ca = self.ca.authority();
        let mut secrets = vec![(
            "cilium-ca".to_owned(),
            json!({ "ca.crt": ca.pem(), "ca.key": CA_KEY }),
        )];
        for (kind, identity) in [
            ("server", &self.server),
            ("remote", &self.remote),
            ("local", &self.local),
        ] {
            let data = json!({ "ca.crt": ca.pem(), "tls.crt": identity.certificate, "tls.key": identity.key });
            secrets.push((format!("clustermesh-apiserver-{kind}-cert"), data));
        }
        secrets
    }

    fn node(&self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" },
            "status": {
                "addresses": [{ "type": "InternalIP", "address": format!("10.0.{}.1", self.id) }],
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        })
    }

    pub(crate) fn config(&self) -> Value {
        let mut data = json!({ "ipam": "cluster-pool" });
        if !self.cilium_name.is_empty() {
            data["cluster-name"] = self.cilium_name.clone().into();
            data["cluster-id"] = self.id.to_string().into();
        }
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "cilium-config", "namespace": "kube-system" }, "data": data })
    }

    fn template(&self, containers: &[&str]) -> Value {
        let containers: Vec<Value> =
            containers.iter().map(|name| json!({ "name": name, "image": format!("registry/{name}:{}", self.version) })).collect();
        let files = |prefix: &str| {
            let item = |key: &str, path: String| json!({ "key": key, "path": path });
            json!([
                item("tls.key", format!("{prefix}.key")),
                item("tls.crt", format!("{prefix}.crt")),
                item("ca.crt", format!("{prefix}-ca.crt"))
            ])
        };
        let sources = json!([
            { "secret": { "name": "cilium-clustermesh", "optional": true } },
            { "secret": { "name": "clustermesh-apiserver-remote-cert", "optional": true, "items": files("common-etcd-client") } },
            { "secret": { "name": "clustermesh-apiserver-local-cert", "optional": true, "items": files("local-etcd-client") } },
        ]);
        json!({
            "metadata": { "labels": { "k8s-app": "x" } },
            "spec": { "containers": containers, "volumes": [{ "name": "clustermesh-secrets", "projected": { "sources": sources } }] },
        })
    }

    fn agents(&self) -> Value {
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": { "name": "cilium", "namespace": "kube-system", "labels": { "k8s-app": "cilium" } },
            "spec": { "selector": { "matchLabels": { "k8s-app": "cilium" } }, "template": self.template(&["cilium-agent"]) },
            "status": { "numberReady": 3, "desiredNumberScheduled": 3, "currentNumberScheduled": 3, "numberMisscheduled": 0 },
        })
    }

    fn api_server(&self) -> Value {
        let containers: &[&str] = if self.kvstoremesh {
            &["etcd", "apiserver", "kvstoremesh"]
        } else {
            &["etcd", "apiserver"]
        };
        let mut template = self.template(containers);
        if self.has_cluster_users() {
            template["spec"]["containers"][1]["args"] =
                json!(["clustermesh", "--cluster-users-enabled"]);
            let volume = json!({ "name": "etcd-users-config", "configMap": { "name": "clustermesh-remote-users" } });
            template["spec"]["volumes"]
                .as_array_mut()
                .unwrap()
                .push(volume);
        }
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "clustermesh-apiserver", "namespace": "kube-system" },
            "spec": { "selector": { "matchLabels": { "k8s-app": "clustermesh-apiserver" } }, "template": template },
            "status": { "availableReplicas": 1 },
        })
    }

    fn pod(&self, name: &str, app: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": "kube-system", "labels": { "k8s-app": app } },
            "spec": { "containers": [{ "name": "x", "image": "x" }] },
            "status": { "podIP": format!("10.{}.0.9", self.id), "startTime": "2027-01-15T07:00:00Z" },
        })
    }

    fn service(&self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": "clustermesh-apiserver", "namespace": "kube-system" },
            "spec": { "type": "LoadBalancer", "ports": [{ "name": "etcd", "port": 2379, "nodePort": 32379, "protocol": "TCP" }] },
            "status": { "loadBalancer": { "ingress": [{ "ip": self.address }] } },
        })
    }
}

pub(crate) fn secret(name: &str, data: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "namespace": "kube-system" }, "stringData": data })
}
