//! Observing a fleet: its state, and the requests sent to its servers.

use std::future::Future;
use std::time::Duration;

use mw_testbed::audit::AuditRecord;
use serde_json::Value;

use crate::bed::PEERS;
use crate::expected::{Peers, essence, expected_peers};
use crate::fleet::{FOREIGN, Fleet, Mark};
use crate::ledger;
pub(crate) use crate::wait::{condition, none, until};
use mw_sim::kilo::Mesh;

const WRITES: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];

impl Fleet {
    /// Waits until every cluster holds exactly the expected Peers and every mesh is ready.
    #[track_caller]
    pub(crate) fn converged(&self) -> impl Future<Output = ()> {
        self.converged_but(&[])
    }

    /// Like `converges`, without checking these clusters.
    #[track_caller]
    pub(crate) fn converged_but(&self, left_out: &[&str]) -> impl Future<Output = ()> {
        until("converged", move || self.check(left_out))
    }

    /// Reports whether the fleet is converged right now.
    pub(crate) async fn has_converged(&self) -> bool {
        self.check(&[]).await.is_ok()
    }

    async fn check(&self, left_out: &[&str]) -> Result<(), String> {
        for site in self
            .world
            .sites
            .keys()
            .filter(|site| !left_out.contains(&site.as_str()))
        {
            self.compare(site).await?;
        }
        for mesh in self.world.meshes.iter().filter(|mesh| mesh.active) {
            self.is_ready(mesh).await?;
        }
        Ok(())
    }

    /// Waits until these clusters hold exactly the expected Peers, whatever the status says.
    #[track_caller]
    pub(crate) fn holds(&self, sites: &[&str]) -> impl Future<Output = ()> {
        until("Peers", move || async move {
            for site in sites {
                self.compare(site).await?;
            }
            Ok(())
        })
    }

    async fn compare(&self, site: &str) -> Result<(), String> {
        let found = self.peers(site).await?;
        let wanted = expected_peers(&self.world, site);
        match differences(&wanted, &found) {
            empty if empty.is_empty() => Ok(()),
            differences => Err(format!("{site}: {}", differences.join("\n"))),
        }
    }

    /// Peers of a cluster, without the foreign one.
    pub(crate) async fn peers(&self, site: &str) -> Result<Peers, String> {
        let peers = self
            .cluster(site)
            .list(PEERS)
            .await
            .map_err(|error| error.to_string())?;
        let name = |peer: &Value| peer["metadata"]["name"].as_str().unwrap().to_owned();
        Ok(peers
            .iter()
            .map(|peer| (name(peer), essence(peer)))
            .filter(|(name, _)| name != FOREIGN)
            .collect())
    }

    pub(crate) async fn peer(&self, site: &str, name: &str) -> Option<Value> {
        self.cluster(site)
            .get(&format!("{PEERS}/{name}"))
            .await
            .unwrap()
    }

    async fn is_ready(&self, mesh: &Mesh) -> Result<(), String> {
        let object = self.object(mesh).await?;
        let (seen, generation) = (
            &object["status"]["observedGeneration"],
            &object["metadata"]["generation"],
        );
        let ready = condition(&object, "Ready");
        if seen == generation
            && ready["status"] == "True"
            && ready["observedGeneration"] == *generation
        {
            return Ok(());
        }
        Err(format!(
            "{}: observed {seen} of {generation}, Ready is {ready}, clusters {}",
            mesh.name, object["status"]["clusters"]
        ))
    }

    async fn object(&self, mesh: &Mesh) -> Result<Value, String> {
        let found = self
            .cluster(&mesh.hub)
            .get(&mesh.path())
            .await
            .map_err(|error| error.to_string())?;
        found.ok_or_else(|| format!("there is no mesh {}", mesh.name))
    }

    /// The first mesh, read from its hub.
    pub(crate) async fn mesh(&self) -> Value {
        self.object(&self.world.meshes[0]).await.unwrap()
    }

    /// Waits until a mesh's condition has this status and reason.
    #[track_caller]
    pub(crate) fn condition_of(
        &self,
        at: usize,
        kind: &str,
        status: &str,
        reason: &str,
    ) -> impl Future<Output = Value> {
        until(format!("{kind}={status}/{reason}"), move || async move {
            let object = self.object(&self.world.meshes[at]).await?;
            let found = condition(&object, kind);
            let right =
                found["status"] == status && (reason.is_empty() || found["reason"] == reason);
            if right {
                Ok(found)
            } else {
                Err(format!(
                    "{kind} is {found}; clusters {}",
                    object["status"]["clusters"]
                ))
            }
        })
    }

    #[track_caller]
    pub(crate) fn condition(
        &self,
        kind: &str,
        status: &str,
        reason: &str,
    ) -> impl Future<Output = Value> {
        self.condition_of(0, kind, status, reason)
    }

    /// Waits until the status of a cluster is as wanted.
    #[track_caller]
    pub(crate) fn cluster_status(
        &self,
        name: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> impl Future<Output = Value> {
        let wanted = std::rc::Rc::new(wanted);
        until(format!("status of {name}"), move || {
            let wanted = wanted.clone();
            async move {
                let object = self.object(&self.world.meshes[0]).await?;
                let clusters = object["status"]["clusters"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default();
                let status = clusters
                    .into_iter()
                    .find(|cluster| cluster["name"] == name)
                    .ok_or(format!("no status of {name}"))?;
                if wanted(&status) {
                    Ok(status)
                } else {
                    Err(status.to_string())
                }
            }
        })
    }

    /// Waits until a cluster is reported as unreachable with this text.
    #[track_caller]
    pub(crate) fn unreachable(&self, name: &str, words: &str) -> impl Future<Output = Value> {
        let words = words.to_lowercase();
        self.cluster_status(name, move |status| {
            status["reachable"] == false
                && status["message"]
                    .as_str()
                    .unwrap_or_default()
                    .to_lowercase()
                    .contains(&words)
        })
    }

    /// Waits for an event about the first mesh.
    #[track_caller]
    pub(crate) fn event(&self, reason: &str) -> impl Future<Output = Value> {
        until(format!("event {reason}"), move || async move {
            let events = self.events().await;
            let found = events.iter().find(|event| event["reason"] == reason);
            found.cloned().ok_or_else(|| {
                format!(
                    "only {:?}",
                    events
                        .iter()
                        .map(|event| event["reason"].clone())
                        .collect::<Vec<_>>()
                )
            })
        })
    }

    pub(crate) async fn events(&self) -> Vec<Value> {
        let mesh = &self.world.meshes[0];
        let path = format!(
            "/apis/events.k8s.io/v1/namespaces/{}/events",
            mesh.namespace
        );
        let events = self.cluster(&mesh.hub).list(&path).await.unwrap();
        events
            .into_iter()
            .filter(|event| event["regarding"]["name"] == mesh.name.as_str())
            .collect()
    }

    /// Waits until a mesh is deleted.
    #[track_caller]
    pub(crate) fn gone(&self, at: usize) -> impl Future<Output = ()> {
        until("the mesh is gone", move || async move {
            match self.object(&self.world.meshes[at]).await {
                Ok(object) => Err(format!(
                    "{} {}",
                    object["metadata"]["finalizers"], object["status"]
                )),
                Err(_) => Ok(()),
            }
        })
    }

    /// Requests of the operator since a mark, with the cluster they went to.
    pub(crate) fn calls(&self, since: &Mark) -> Vec<(String, AuditRecord)> {
        let mut calls = Vec::new();
        for (name, start) in since {
            let (records, _) = self.cluster(name).audit_from(*start).unwrap();
            calls.extend(
                records
                    .into_iter()
                    .filter(|record| ledger::account(record).is_some())
                    .map(|record| (name.clone(), record)),
            );
        }
        calls
    }

    /// Requests that write Peers, also failed ones.
    pub(crate) fn peer_writes(&self, since: &Mark) -> Vec<(String, AuditRecord)> {
        self.writes(since)
            .into_iter()
            .filter(|(_, record)| record.resource == "peers")
            .collect()
    }

    /// All writes except Leases.
    pub(crate) fn writes(&self, since: &Mark) -> Vec<(String, AuditRecord)> {
        let is_write = |record: &AuditRecord| {
            WRITES.contains(&record.verb.as_str()) && record.resource != "leases"
        };
        self.calls(since)
            .into_iter()
            .filter(|(_, record)| is_write(record))
            .collect()
    }

    /// Waits for a window, and fails if a Peer was written since the mark.
    #[track_caller]
    pub(crate) fn no_peer_writes(
        &self,
        since: &Mark,
        window: Duration,
    ) -> impl Future<Output = ()> {
        let at = std::panic::Location::caller();
        async move {
            tokio::time::sleep(window).await;
            none(
                &self.peer_writes(since),
                &format!("{at}: Peers were written"),
            );
        }
    }
}

pub(crate) fn differences(wanted: &Peers, found: &Peers) -> Vec<String> {
    let missing = wanted
        .keys()
        .filter(|name| !found.contains_key(*name))
        .map(|name| format!("{name} is missing"));
    let surplus = found
        .keys()
        .filter(|name| !wanted.contains_key(*name))
        .map(|name| format!("{name} is too many"));
    let wrong = wanted.iter().filter_map(|(name, wanted)| {
        let found = found.get(name).filter(|found| *found != wanted)?;
        Some(format!(
            "{name} is wrong:\n wanted {wanted}\n found  {found}"
        ))
    });
    missing.chain(surplus).chain(wrong).collect()
}
