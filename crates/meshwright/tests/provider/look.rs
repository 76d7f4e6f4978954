//! Observing objects, Secrets and the state of Cilium.

use std::collections::BTreeMap;
use std::future::Future;

use base64ct::{Base64, Encoding};
use mw_testbed::Cluster;
use serde_json::{Value, json};

use crate::ground::{BINDINGS, CONNECTIONS, GROUP, Ground, Kind, POLICIES, SITES, SYSTEM};
use crate::wait::{condition, until};

const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";

/// A namespace with objects: on the hub, or in a tenant's workspace.
#[derive(Clone, Copy)]
pub(crate) struct Home<'a> {
    pub(crate) ground: &'a Ground,
    pub(crate) cluster: &'a Cluster,
    pub(crate) namespace: &'a str,
}

/// All messages of a binding.
pub(crate) fn message(object: &Value) -> String {
    condition(object, "Ready")["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn wrong(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl<'a> Home<'a> {
    fn path(&self, kind: Kind, name: &str) -> String {
        format!(
            "/apis/{GROUP}/namespaces/{}/{}/{name}",
            self.namespace, kind.0
        )
    }

    pub(crate) async fn bind(self, name: &str, refs: &[&str], config: &Value) {
        let refs: Vec<Value> = refs.iter().map(|name| json!({ "name": name })).collect();
        self.declare(
            BINDINGS,
            name,
            &json!({ "clusterRefs": refs, "meshConfig": config }),
        )
        .await;
    }

    pub(crate) async fn declare(self, kind: Kind, name: &str, spec: &Value) {
        let metadata = json!({ "name": name, "namespace": self.namespace });
        let object =
            json!({ "apiVersion": GROUP, "kind": kind.1, "metadata": metadata, "spec": spec });
        // The provider installs the CRDs at startup.
        until(format!("{} can be created", kind.1), || async {
            self.cluster.create(&object).await.map(drop).map_err(wrong)
        })
        .await;
    }

    pub(crate) async fn object(self, kind: Kind, name: &str) -> Result<Value, String> {
        let found = self
            .cluster
            .get(&self.path(kind, name))
            .await
            .map_err(wrong)?;
        let object = found.ok_or_else(|| format!("there is no {} {name}", kind.1))?;
        self.ground
            .statuses
            .borrow_mut()
            .insert(object["status"].to_string());
        Ok(object)
    }

    /// Waits until an object's status, for its current generation, is as wanted.
    #[track_caller]
    pub(crate) fn status(
        self,
        kind: Kind,
        name: &str,
        wanted: impl Fn(&Value) -> bool + 'a,
    ) -> impl Future<Output = Value> {
        let (wanted, name) = (std::rc::Rc::new(wanted), name.to_owned());
        until(format!("the status of {} {name}", kind.1), move || {
            let (wanted, name) = (wanted.clone(), name.clone());
            async move {
                let object = self.object(kind, &name).await?;
                let current =
                    object["status"]["observedGeneration"] == object["metadata"]["generation"];
                if current && wanted(&object) {
                    Ok(object)
                } else {
                    Err(format!("{:#}", object["status"]))
                }
            }
        })
    }

    #[track_caller]
    pub(crate) fn phase(self, kind: Kind, name: &str, phase: &str) -> impl Future<Output = Value> {
        let phase = phase.to_owned();
        self.status(kind, name, move |object| {
            object["status"]["phase"] == phase.as_str()
        })
    }

    #[track_caller]
    pub(crate) fn connected(self, name: &str) -> impl Future<Output = Value> {
        self.phase(BINDINGS, name, "Connected")
    }

    /// Waits until the message of a binding contains a text.
    #[track_caller]
    pub(crate) fn says(self, name: &str, text: &str) -> impl Future<Output = Value> {
        let text = text.to_owned();
        self.status(BINDINGS, name, move |binding| {
            message(binding).contains(&text)
        })
    }

    pub(crate) async fn patch(self, kind: Kind, name: &str, patch: &Value) {
        self.cluster
            .merge_patch(&self.path(kind, name), patch)
            .await
            .unwrap();
    }

    pub(crate) async fn patch_status(self, kind: Kind, name: &str, patch: &Value) {
        self.cluster
            .merge_patch(&format!("{}/status", self.path(kind, name)), patch)
            .await
            .unwrap();
    }

    /// Deletes an object and waits until it is gone.
    pub(crate) async fn remove(self, kind: Kind, name: &str) {
        self.cluster.delete(&self.path(kind, name)).await.unwrap();
        until(format!("{name} is gone"), || async {
            self.object(kind, name).await.map_or(Ok(()), |object| {
                Err(format!(
                    "{:#}",
                    json!([object["metadata"], object["status"]])
                ))
            })
        })
        .await;
    }
}

impl Ground {
    /// Keys of a Secret, decoded.
    pub(crate) async fn keys(&self, site: &str, secret: &str) -> BTreeMap<String, String> {
        let found = self
            .cluster(site)
            .get(&format!("{SYSTEM}/secrets/{secret}"))
            .await
            .unwrap()
            .unwrap_or_default();
        let decoded = |(key, value): (&String, &Value)| {
            (
                key.clone(),
                String::from_utf8(Base64::decode_vec(value.as_str().unwrap()).unwrap()).unwrap(),
            )
        };
        found["data"]
            .as_object()
            .into_iter()
            .flatten()
            .map(decoded)
            .collect()
    }

    /// Names and resource versions of everything in these clusters that the provider may write:
    /// connection Secrets, exported Services and policies.
    pub(crate) async fn written(&self, sites: &[&str]) -> Vec<String> {
        let mut written = Vec::new();
        for (site, list) in sites.iter().flat_map(|site| {
            [SECRETS, "/api/v1/namespaces/shop/services", POLICIES].map(|list| (site, list))
        }) {
            let objects = self.cluster(site).list(list).await.unwrap();
            let text = |of: &Value| of.as_str().unwrap().to_owned();
            let metas = objects.iter().map(|object| &object["metadata"]);
            let metas = metas.filter(|meta| {
                list != SECRETS || CONNECTIONS.contains(&meta["name"].as_str().unwrap())
            });
            written.extend(metas.map(|meta| {
                format!(
                    "{site} {} {}",
                    text(&meta["name"]),
                    text(&meta["resourceVersion"])
                )
            }));
        }
        written
    }

    /// Deletes and recreates the kubeconfig Secret of north, which touches nothing in the clusters.
    pub(crate) async fn replace_kubeconfig(&self, home: Home<'_>, namespace: &str, missing: &str) {
        let before = self.written(&SITES).await;
        let path = format!("/api/v1/namespaces/{namespace}/secrets/north-kubeconfig");
        let secret = self.hub().get(&path).await.unwrap().unwrap();
        self.hub().delete(&path).await.unwrap();
        home.says("mesh", missing).await;
        assert_eq!(self.written(&SITES).await, before, "the Secret is gone");
        let metadata = json!({ "name": "north-kubeconfig", "namespace": namespace });
        self.hub().apply(&json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": secret["data"] })).await.unwrap();
        home.connected("mesh").await;
        assert_eq!(self.written(&SITES).await, before, "the Secret is back");
    }

    /// Waits until Cilium reads exactly these remotes in this cluster.
    #[track_caller]
    pub(crate) fn reads(&self, site: &str, remotes: &[&str]) -> impl Future<Output = ()> {
        until(format!("{site} reads {remotes:?}"), move || async move {
            let seen = self.cilium(site).remotes().await.map_err(wrong)?;
            let all_ready = seen.iter().all(|remote| remote.ready);
            if all_ready
                && seen
                    .iter()
                    .map(|remote| remote.name.as_str())
                    .eq(remotes.iter().copied())
            {
                Ok(())
            } else {
                Err(format!("{seen:?}"))
            }
        })
    }

    /// Waits until these clusters all read each other, according to kvstoremesh and to what the
    /// agents would find.
    pub(crate) async fn mesh(&self, sites: &[&str]) {
        for site in sites {
            let others: Vec<&str> = sites
                .iter()
                .copied()
                .filter(|other| other != site)
                .collect();
            self.reads(site, &others).await;
            until(format!("the agents of {site}"), || async {
                let views = self.cilium(site).agent_views().await.map_err(wrong)?;
                let found = others
                    .iter()
                    .all(|other| views.get(*other).is_some_and(Result::is_ok));
                if found && views.len() == others.len() {
                    Ok(())
                } else {
                    Err(format!("{views:?}"))
                }
            })
            .await;
        }
    }

    /// Waits until a Service of one cluster is in another's etcd.
    #[track_caller]
    pub(crate) fn exported(&self, from: &str, service: &str, to: &str) -> impl Future<Output = ()> {
        let key = format!("cilium/cache/services/v1/{from}/shop/{service}");
        until(format!("{key} in {to}"), move || {
            let key = key.clone();
            async move {
                match self.cilium(to).key(&key).await.map_err(wrong)? {
                    Some(value) if value.contains("10.1.0.5") => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            }
        })
    }

    /// Checks that new changes in a cluster reach the others.
    pub(crate) async fn is_followed(&self, site: &str, name: &str, by: &[&str]) {
        self.open_shop(site, name, json!({ "service.cilium.io/global": "true" }))
            .await;
        for other in by {
            self.exported(site, name, other).await;
        }
    }
}
