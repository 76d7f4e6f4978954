//! Looking at objects, Secrets and what Cilium makes of them.

use std::collections::BTreeMap;
use std::future::Future;

use base64ct::{Base64, Encoding};
use serde_json::{Value, json};

use crate::ground::{BINDINGS, Ground, Kind, NAMESPACE, SYSTEM};
use crate::wait::{condition, until};

pub(crate) fn path(kind: Kind, name: &str) -> String {
    format!("/apis/networking.edge-portal.eu/v1alpha1/namespaces/{NAMESPACE}/{}/{name}", kind.0)
}

/// All that a binding says is wrong.
pub(crate) fn message(object: &Value) -> String {
    condition(object, "Ready")["message"].as_str().unwrap_or_default().to_owned()
}

fn wrong(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Ground {
    pub(crate) async fn object(&self, kind: Kind, name: &str) -> Result<Value, String> {
        let found = self.hub().get(&path(kind, name)).await.map_err(wrong)?;
        let object = found.ok_or_else(|| format!("there is no {} {name}", kind.1))?;
        self.statuses.borrow_mut().insert(object["status"].to_string());
        Ok(object)
    }

    /// Waits until an object's status, of its last generation, is as wanted.
    #[track_caller]
    pub(crate) fn status(&self, kind: Kind, name: &str, wanted: impl Fn(&Value) -> bool) -> impl Future<Output = Value> {
        let wanted = std::rc::Rc::new(wanted);
        until(format!("the status of {} {name}", kind.1), move || {
            let wanted = wanted.clone();
            async move {
                let object = self.object(kind, name).await?;
                let current = object["status"]["observedGeneration"] == object["metadata"]["generation"];
                if current && wanted(&object) { Ok(object) } else { Err(format!("{:#}", object["status"])) }
            }
        })
    }

    #[track_caller]
    pub(crate) fn phase(&self, kind: Kind, name: &str, phase: &str) -> impl Future<Output = Value> {
        let phase = phase.to_owned();
        self.status(kind, name, move |object| object["status"]["phase"] == phase.as_str())
    }

    /// Deletes an object, and waits until it is gone.
    pub(crate) async fn remove(&self, kind: Kind, name: &str) {
        self.hub().delete(&path(kind, name)).await.unwrap();
        until(format!("{name} is gone"), || async {
            self.object(kind, name).await.map_or(Ok(()), |object| Err(format!("{:#}", json!([object["metadata"], object["status"]]))))
        })
        .await;
    }

    /// The keys of a Secret, decoded.
    pub(crate) async fn keys(&self, site: &str, secret: &str) -> BTreeMap<String, String> {
        let found = self.cluster(site).get(&format!("{SYSTEM}/secrets/{secret}")).await.unwrap().unwrap_or_default();
        let decoded = |(key, value): (&String, &Value)| {
            (key.clone(), String::from_utf8(Base64::decode_vec(value.as_str().unwrap()).unwrap()).unwrap())
        };
        found["data"].as_object().into_iter().flatten().map(decoded).collect()
    }

    /// Waits until Cilium reads these remotes in this cluster, and no others.
    #[track_caller]
    pub(crate) fn reads(&self, site: &str, remotes: &[&str]) -> impl Future<Output = ()> {
        until(format!("{site} reads {remotes:?}"), move || async move {
            let seen = self.cilium(site).remotes().await.map_err(wrong)?;
            let all_ready = seen.iter().all(|remote| remote.ready);
            if all_ready && seen.iter().map(|remote| remote.name.as_str()).eq(remotes.iter().copied()) {
                Ok(())
            } else {
                Err(format!("{seen:?}"))
            }
        })
    }

    /// Waits until these clusters all read each other, as Cilium has it: by
    /// kvstoremesh, and by what the agents would find.
    pub(crate) async fn mesh(&self, sites: &[&str]) {
        for site in sites {
            let others: Vec<&str> = sites.iter().copied().filter(|other| other != site).collect();
            self.reads(site, &others).await;
            until(format!("the agents of {site}"), || async {
                let views = self.cilium(site).agent_views().await.map_err(wrong)?;
                let found = others.iter().all(|other| views.get(*other).is_some_and(Result::is_ok));
                if found && views.len() == others.len() { Ok(()) } else { Err(format!("{views:?}")) }
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

    /// What happens in a cluster from now on is read in the others.
    pub(crate) async fn is_followed(&self, site: &str, name: &str, by: &[&str]) {
        self.open_shop(site, name, json!({ "service.cilium.io/global": "true" })).await;
        for other in by {
            self.exported(site, name, other).await;
        }
    }

    pub(crate) async fn patch(&self, kind: Kind, name: &str, patch: &Value) {
        self.hub().merge_patch(&path(kind, name), patch).await.unwrap();
    }

    pub(crate) async fn connected(&self, name: &str) -> Value {
        self.phase(BINDINGS, name, "Connected").await
    }
}
