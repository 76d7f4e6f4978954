//! Watches members through the connections that their credentials give.

use kube::api::ListParams;
use kube::{Api, Client};
use mw_api::cilium::target::Namespace;
use mw_core::names::ClusterId;

use crate::backoff::Backoff;
use crate::cilium::cluster_cache::{CacheWatcher, Wants};
use crate::cilium::engine::Engine;
use crate::cilium::member::{Made, Member};
use crate::cilium::record::Kind;
use crate::failure::Failure;
use crate::fleet::Live;

impl Engine {
    /// Watches a cluster through a new connection.
    pub(super) fn follow_member(&mut self, cluster: &ClusterId) {
        let Some(member) = self.members.get_mut(cluster) else {
            return;
        };
        let made = Made {
            fingerprint: member.link.fingerprint,
            private_ca: member.newest_ca.clone(),
        };
        if member.swap.is_some() {
            member.state.swapping = made;
        } else {
            member.use_connection(made);
        }
        member.state.wants = Wants::default();
        // Everything is listed again through it.
        member.state.lists_in_doubt = member
            .state
            .lists_in_doubt
            .take()
            .map(|before| vec![0; before.len()]);
        self.changes.clusters.insert(cluster.clone());
        self.watch_clusters(cluster, |cache_watcher| cache_watcher.watch_basics());
    }

    fn watch_clusters(
        &mut self,
        cluster: &ClusterId,
        watch: impl FnOnce(&mut CacheWatcher<'_, &mut dyn FnMut() -> Backoff>),
    ) {
        let random = &mut self.environment.random;
        let mut backoff = || Backoff::of_watch(random.fork());
        let Some(member) = self.members.get_mut(cluster) else {
            return;
        };
        let epoch = member.link.epoch;
        let Some(Live {
            client,
            relist,
            tasks,
            memory,
        }) = &mut member.link.live
        else {
            return;
        };
        let namespace = self.settings.cilium_namespace.as_str();
        let backoff: &mut dyn FnMut() -> Backoff = &mut backoff;
        let reads_ca = self.settings.sync_ca;
        let resync = self.settings.resync;
        let events = &self.inbox.sender;
        watch(&mut CacheWatcher {
            client,
            cluster,
            epoch,
            namespace,
            reads_ca,
            events,
            backoff,
            resync,
            relist,
            tasks,
            memory,
        });
    }

    /// Watches endpoints and policies, which are many, only if an object needs
    /// them.
    pub(super) fn follow_what_is_wanted(&mut self) {
        let has = |kind: Kind| self.records.keys().any(|(of, _)| *of == kind);
        let wants = Wants {
            services: self.state.wants.services || has(Kind::Service),
            policies: self.state.wants.policies || has(Kind::Intent),
        };
        self.state.wants = wants;
        let behind: Vec<(ClusterId, Wants)> = self
            .members
            .iter()
            .filter(|(_, member)| member.link.live.is_some() && member.state.wants != wants)
            .map(|(id, member)| (id.clone(), member.state.wants))
            .collect();
        for (id, has) in behind {
            self.watch_clusters(&id, |cache_watcher| {
                if wants.services && !has.services {
                    cache_watcher.watch_endpoints();
                }
                if wants.policies && !has.policies {
                    cache_watcher.watch_policies();
                }
            });
            if let Some(member) = self.members.get_mut(&id) {
                member.state.wants = wants;
            }
        }
    }
}

impl Member {
    /// Puts a connection into use. State read with other credentials may belong to
    /// another cluster and is forgotten.
    pub(super) fn use_connection(&mut self, made: Made) {
        if self.state.learnt_by != made.fingerprint {
            self.forget();
        }
        self.state.in_use = made;
    }
}

/// Checks that new credentials work at all.
pub(super) async fn probe(client: Client) -> Result<(), Failure> {
    let one = ListParams {
        limit: Some(1),
        ..ListParams::default()
    };
    Api::<Namespace>::all(client)
        .list(&one)
        .await
        .map(drop)
        .map_err(|error| Failure::of(&error))
}
