//! Step 5: writes Peers. Every cluster has its own write queue, so that a slow
//! cluster does not delay the others.

use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use mw_api::kilo::convert::{merge_patch, peer_facts, peer_object};
use mw_api::kilo::peer::Peer;
use mw_core::kilo::peer::PeerFacts;
use mw_core::kilo::plan::Delete;
use mw_core::kilo::planner::Planner;
use mw_core::names::{ClusterId, MeshId, PeerName};
use mw_core::time::Timestamp;
use tracing::{debug, info, warn};

use crate::engine::conditional_delete;
use crate::failure::Failure;
use crate::kilo::diff::{Act, Operation};
use crate::kilo::engine::Engine;
use crate::kilo::member::Member;

const ENDPOINT_MEMORY_SECONDS: i64 = 60;

/// Result of a write.
#[derive(Debug)]
pub(super) struct PeerOutcome {
    name: PeerName,
    /// None for orphans.
    mesh: Option<MeshId>,
    change: u64,
    verb: &'static str,
    uid: Option<Box<str>>,
    result: Result<Found, Failure>,
}

#[derive(Debug)]
enum Found {
    Present(Box<PeerFacts>),
    Absent,
    /// Another writer was faster; this is the current state.
    Otherwise(Option<Box<PeerFacts>>),
}

impl Engine {
    pub(super) fn write(
        &mut self,
        cluster: &ClusterId,
        client: Client,
        operation: Operation,
    ) -> impl Future<Output = PeerOutcome> + Send + 'static {
        let Operation { name, mesh, .. } = &operation;
        if let (Act::Delete(delete), Some(mesh)) = (&operation.act, mesh)
            && let Some(source) = delete
                .source
                .as_ref()
                .filter(|_| !delete.cause.is_good_reason())
        {
            self.state
                .guard
                .history
                .note_removal(cluster, mesh, source, name, self.turned_at);
        }
        let own = mesh
            .as_ref()
            .and_then(|mesh| self.own_client(cluster, mesh));
        let client = own.unwrap_or(client);
        let change = self.state.change.number;
        let cluster = self.environment.names.of(cluster);
        async move {
            debug!(%cluster, peer = %operation.name, change, verb = operation.act.verb(), "writing Peer");
            write(client, operation, change).await
        }
    }

    /// Measures how long a Node change took until it was written to all clusters.
    pub(super) fn measure_convergence(&mut self) {
        if self.members.values().all(|member| member.writer.is_idle())
            && let Some(since) = self.state.change.since.take()
        {
            self.environment.metrics.converged_after(since.elapsed());
        }
    }

    pub(super) fn observe_write(&mut self, cluster: &ClusterId, epoch: u64, outcome: PeerOutcome) {
        let PeerOutcome {
            name,
            mesh,
            change,
            verb,
            uid,
            result,
        } = outcome;
        let mesh = mesh.map_or_else(|| "-".to_owned(), |mesh| mesh.to_string());
        let counted = match &result {
            Ok(Found::Otherwise(_)) => "conflict",
            Ok(_) => "done",
            Err(failure) => failure.category(),
        };
        self.count_write(cluster, "Peer", verb, counted);
        let now = self.now;
        let share = self.retry_share();
        let stands = self.stands_for_itself(cluster);
        let Some(member) = self.members.get_mut(cluster) else {
            return;
        };
        member.writer.answered(&name);
        let early = member.state.early.remove(&name);
        if member.link.epoch != epoch {
            if let Some(seen) = early {
                self.observe_peer(cluster, stands, seen);
            }
            return;
        }
        match result {
            Ok(Found::Present(facts)) => {
                info!(mesh, cluster = %self.environment.names.of(cluster), peer = %name, change, verb, "Peer written");
                member.writer.succeed(&name);
                member.remember_endpoint(&name, now);
                member.state.recent.present(&name, &facts);
                let facts = PeerFacts {
                    endpoint_written: Some(now),
                    ..*facts
                };
                self.take_written(stands, |planner| planner.set_peer(cluster, facts));
            }
            Ok(Found::Absent) => {
                info!(mesh, cluster = %self.environment.names.of(cluster), peer = %name, change, verb, "Peer written");
                member.writer.succeed(&name);
                member
                    .state
                    .recent
                    .deleted(&name, uid.as_deref().unwrap_or_default());
                self.take_written(stands, |planner| planner.remove_peer(cluster, &name));
            }
            Ok(Found::Otherwise(facts)) => {
                debug!(mesh, cluster = %self.environment.names.of(cluster), peer = %name, change, "Peer has changed since it was read");
                member
                    .writer
                    .fail(name.clone(), verb, Failure::Conflict(409), share);
                match facts {
                    Some(facts) => {
                        member.state.recent.present(&name, &facts);
                        let facts = member.with_endpoint_time(*facts);
                        self.take_written(stands, |planner| planner.set_peer(cluster, facts));
                    }
                    None => {
                        self.take_written(stands, |planner| planner.remove_peer(cluster, &name))
                    }
                }
            }
            Err(failure) => {
                let looks_again = !failure.is_an_answer();
                warn!(mesh, cluster = %self.environment.names.of(cluster), peer = %name, change, verb, error = %failure, "failed to write Peer");
                member.writer.fail(name, verb, failure.clone(), share);
                if looks_again {
                    member.writer.doubt();
                    member.link.relist();
                }
                self.count_failure(cluster.as_str(), &failure);
            }
        }
        if let Some(seen) = early {
            self.observe_peer(cluster, stands, seen);
        }
        self.touch_status();
    }

    fn take_written(&mut self, stands: bool, take: impl FnOnce(&mut Planner)) {
        if stands {
            self.flush_listings();
            if let Some(planner) = &mut self.state.planner {
                take(planner);
            }
        }
    }
}

impl Member {
    fn remember_endpoint(&mut self, name: &PeerName, now: Timestamp) {
        self.state
            .endpoints
            .retain(|_, at| now.0 - at.0 < ENDPOINT_MEMORY_SECONDS);
        self.state.endpoints.insert(name.clone(), now);
    }
}

impl Act {
    fn verb(&self) -> &'static str {
        match self {
            Act::Create(_) => "create",
            Act::Update(_) => "update",
            Act::Delete(_) => "delete",
        }
    }
}

async fn write(client: Client, operation: Operation, change: u64) -> PeerOutcome {
    let Operation {
        phase: _,
        name,
        mesh,
        act,
    } = operation;
    let api: Api<Peer> = Api::all(client);
    let verb = act.verb();
    let uid = match &act {
        Act::Create(_) => None,
        Act::Update(update) => Some(update.on.uid.clone()),
        Act::Delete(delete) => Some(delete.on.uid.clone()),
    };
    let deletes = matches!(act, Act::Delete(_));
    let result = match send(&api, &name, act)
        .await
        .map_err(|error| Failure::of(&error))
    {
        Err(Failure::NotFound(_)) if deletes => Ok(Found::Absent),
        // Another writer was faster: read the current state.
        Err(Failure::Conflict(_) | Failure::NotFound(_)) => look(&api, &name).await,
        other => other,
    };
    PeerOutcome {
        name,
        mesh,
        change,
        verb,
        uid,
        result,
    }
}

async fn send(api: &Api<Peer>, name: &PeerName, act: Act) -> Result<Found, kube::Error> {
    let present = |peer: &Peer| Found::Present(Box::new(peer_facts(peer)));
    match act {
        // Bodies are built when sent: many queued operations are replaced before that.
        Act::Create(peer) => api
            .create(&PostParams::default(), &peer_object(&peer))
            .await
            .map(|peer| present(&peer)),
        Act::Update(update) => api
            .patch(
                name.as_str(),
                &PatchParams::default(),
                &Patch::Merge(&merge_patch(&update)),
            )
            .await
            .map(|peer| present(&peer)),
        Act::Delete(Delete { on, .. }) => {
            let params = conditional_delete(&on);
            let deleted = api.delete(name.as_str(), &params).await?;
            // A Peer with a finalizer still exists and is terminating.
            let lingers = deleted
                .left()
                .filter(|peer| peer.metadata.deletion_timestamp.is_some());
            Ok(lingers.map_or(Found::Absent, |peer| present(&peer)))
        }
    }
}

async fn look(api: &Api<Peer>, name: &PeerName) -> Result<Found, Failure> {
    let found = api
        .get_opt(name.as_str())
        .await
        .map_err(|error| Failure::of(&error))?;
    Ok(Found::Otherwise(
        found.map(|peer| Box::new(peer_facts(&peer))),
    ))
}
