//! A cluster that an object names, or named until recently.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use mw_core::cilium::facts::CaId;
use mw_core::names::ClusterId;
use tokio::time::Instant;
use tracing::info;

use crate::engine::{Engine, Steps};
use crate::fleet::{ClusterLink, Source, secret_of};
use crate::writer::Writer;

pub(crate) struct Member<B: Steps> {
    pub(crate) link: ClusterLink<B::Feeds>,
    pub(crate) writer: Writer<B::Operation>,
    /// After a change of credentials: state observed through the new connection, until it
    /// is complete. New credentials may lead to another cluster, and the two must not be
    /// mixed.
    pub(crate) swap: Option<B::Swap>,
    /// Private CA of the newest credentials, which may be on trial.
    pub(crate) newest_ca: Option<CaId>,
    pub(crate) last_contact: Option<Time>,
    /// Time since which no object names it.
    pub(crate) unwanted_since: Option<Instant>,
    /// Part of the back end.
    pub(crate) state: B::MemberState,
}

impl<B: Steps> Member<B> {
    pub(crate) fn new(source: Source) -> Member<B> {
        Member {
            link: ClusterLink::new(source),
            writer: Writer::default(),
            swap: None,
            newest_ca: None,
            last_contact: None,
            unwanted_since: None,
            state: B::MemberState::default(),
        }
    }
}

impl<B: Steps> Engine<B> {
    /// Adds a cluster that an object names.
    pub(crate) fn add_member(&mut self, source: Source) -> &mut Member<B> {
        let id = source.id();
        info!(cluster = %self.environment.names.of(&id), secret = secret_of(&id), "cluster added");
        self.members
            .entry(id)
            .or_insert_with(|| Member::new(source))
    }

    /// Returns a member if an event is of its connection in use.
    pub(crate) fn member_at(&mut self, cluster: &ClusterId, epoch: u64) -> Option<&mut Member<B>> {
        self.members
            .get_mut(cluster)
            .filter(|member| member.link.epoch == epoch)
    }

    /// Records which clusters objects name now. Returns true if that changed.
    pub(crate) fn mark_wanted(&mut self, is_wanted: impl Fn(&ClusterId) -> bool) -> bool {
        let mut changed = false;
        for (id, member) in &mut self.members {
            let wanted = is_wanted(id);
            changed |= wanted != member.unwanted_since.is_none();
            if wanted {
                member.unwanted_since = None;
            } else {
                member.unwanted_since.get_or_insert_with(Instant::now);
            }
        }
        changed
    }

    /// Disconnects clusters that no object names any more. Returns them.
    pub(crate) fn release_unwanted(&mut self) -> BTreeSet<ClusterId> {
        let is_released = |id: &ClusterId, member: &Member<B>| {
            member.unwanted_since.is_some_and(|since| {
                member.writer.is_idle() && B::may_release(self, id, since.elapsed() >= B::LINGER)
            })
        };
        let gone: BTreeSet<ClusterId> = self
            .members
            .iter()
            .filter(|(id, member)| is_released(id, member))
            .map(|(id, _)| id.clone())
            .collect();
        for id in &gone {
            info!(cluster = %self.environment.names.of(id), secret = secret_of(id), "cluster removed");
            self.members.remove(id);
            self.environment.metrics.forget_cluster(id);
        }
        gone
    }

    /// Returns when a cluster that no object names is released at the latest.
    pub(super) fn linger_due(&self) -> Option<Instant> {
        self.members
            .values()
            .filter_map(|member| member.unwanted_since)
            .map(|since| since + B::LINGER)
            .filter(|at| *at > self.turned_at)
            .min()
    }
}
