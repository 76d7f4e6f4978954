//! Writes to members. Each has its own write queue, so that a slow cluster does not delay
//! the others.

use kube::Client;
use kube::api::{DeleteParams, Preconditions};
use mw_core::names::ClusterId;
use mw_core::precondition::Precondition;
use tokio::time::Instant;

use crate::engine::{Engine, Event, Steps, count};
use crate::metrics::WriteLabels;

/// New operations for the writer of a member.
pub(crate) enum Offer<O> {
    /// They replace those that wait.
    Replace(Vec<O>),
    /// Nothing may be written now; ask again.
    Postpone,
}

pub(crate) type Offers<O> = Vec<(ClusterId, Offer<O>)>;

/// Returns the parameters of a delete, conditional on what it was planned from.
pub(crate) fn conditional_delete(on: &Precondition) -> DeleteParams {
    let preconditions = Preconditions {
        uid: Some(on.uid.to_string()),
        resource_version: Some(on.resource_version.to_string()),
    };
    DeleteParams {
        preconditions: Some(preconditions),
        ..DeleteParams::default()
    }
}

/// An operation that is sent now.
struct Request<O> {
    cluster: ClusterId,
    epoch: u64,
    client: Client,
    operation: O,
}

impl<B: Steps> Engine<B> {
    /// Passes the operations to the writers, and sends those whose turn it is.
    pub(super) fn apply(&mut self, offers: Offers<B::Operation>) {
        for (cluster, offer) in offers {
            if let Some(member) = self.members.get_mut(&cluster) {
                match offer {
                    Offer::Replace(operations) => member.writer.offer(operations),
                    Offer::Postpone => member.writer.postpone(),
                }
            }
        }
        for request in self.ready_requests() {
            self.send(request);
        }
    }

    fn ready_requests(&mut self) -> Vec<Request<B::Operation>> {
        let mut pending = 0;
        let mut ready = Vec::new();
        for (id, member) in &mut self.members {
            let Some(live) = &member.link.live else {
                member.writer.drop_queue();
                B::drop_writes(&mut member.state);
                continue;
            };
            if member.swap.is_some() {
                // The queue was planned for the previous connection.
                continue;
            }
            let next = member.writer.next(self.turned_at).into_iter();
            ready.extend(next.map(|operation| Request {
                cluster: id.clone(),
                epoch: member.link.epoch,
                client: live.client.clone(),
                operation,
            }));
            pending += member.writer.pending();
        }
        self.environment.metrics.pending.set(count(pending));
        ready
    }

    fn send(&mut self, request: Request<B::Operation>) {
        let Request {
            cluster,
            epoch,
            client,
            operation,
        } = request;
        let writing = B::write(self, &cluster, client, operation);
        let events = self.inbox.sender.clone();
        self.tasks.spawn(async move {
            let outcome = writing.await;
            _ = events
                .send(Event::Written {
                    cluster,
                    epoch,
                    outcome,
                })
                .await;
        });
    }

    pub(super) fn writers_due(&self) -> Option<Instant> {
        let now = self.turned_at;
        self.members
            .values()
            .filter_map(|member| member.writer.due(now))
            .min()
    }

    pub(crate) fn count_write(
        &self,
        cluster: &ClusterId,
        kind: &'static str,
        verb: &'static str,
        result: &'static str,
    ) {
        let labels = WriteLabels {
            cluster: self.environment.metrics.cluster(cluster),
            kind,
            verb,
            result,
        };
        self.environment.metrics.writes.get_or_create(&labels).inc();
    }

    /// Returns the share of a retry's delay that is waited for.
    pub(crate) fn retry_share(&mut self) -> f64 {
        0.5 + 0.5 * self.environment.random.f64()
    }
}
