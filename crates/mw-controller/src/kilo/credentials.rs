//! Connects to members with the kubeconfigs in their Secrets. New credentials are
//! tested, then swapped in without a restart, or refused.

use std::fmt::Debug;

use k8s_openapi::api::core::v1::Secret;
use kube::api::ListParams;
use kube::{Api, Resource};
use mw_api::kilo::convert::{node_facts, peer_facts};
use mw_api::kilo::peer::Peer;
use mw_api::node::Node as KubeNode;
use mw_core::kilo::node::Node;
use mw_core::kilo::peer::PeerFacts;
use mw_core::kilo::planner::Listing;
use mw_core::names::ClusterId;
use mw_core::seen::Seen;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tracing::warn;

use crate::failure::Failure;
use crate::fleet::follow::{EventSink, Observed, WatchConfig, follow, follow_member};
use crate::fleet::list::Scope;
use crate::fleet::{
    Credentials, Footprint, HUB, Live, ShownClient, Source, kubeconfig_of, secret_of,
};
use crate::kilo::engine::{Engine, Event, Input};
use crate::own_writes::OwnWrites;

/// Twice as many as Kubernetes supports.
pub(super) const MOST_NODES: usize = 10_000;
pub(super) const MOST_PEERS: usize = 200_000;
const WATCHES_PER_CONNECTION: usize = 64;

impl Engine {
    /// Adds a cluster that a mesh names.
    pub(super) fn engage(&mut self, source: Source) {
        let id = source.id();
        self.changes.links = true;
        let member = self.add_member(source.clone());
        match source {
            Source::Hub => {
                member.link.credentials = Credentials::Fine;
                self.connect_through(&id, ShownClient(self.environment.hub.clone()));
            }
            Source::Secret {
                namespace, name, ..
            } => {
                let secret = self.follow_secret(&id, &namespace, &name);
                if let Some(member) = self.members.get_mut(&id) {
                    member.link.secret = Some(secret);
                }
            }
        }
    }

    fn follow_secret(&mut self, cluster: &ClusterId, namespace: &str, name: &str) -> AbortHandle {
        let api: Api<Secret> = Api::namespaced(self.secret_client(), namespace);
        let watch_config = self.hub_watch_config(Scope::named(name));
        let cluster = cluster.clone();
        let wrap = move |seen| {
            Event::Input(Input::Secret {
                cluster: cluster.clone(),
                seen,
            })
        };
        let sink = EventSink {
            events: self.inbox.sender.clone(),
            wrap,
        };
        self.tasks
            .spawn(follow(api, watch_config, |secret| secret, sink))
    }

    /// Returns a client for watching Secrets. A connection carries a limited number
    /// of watches, and those on Secrets must not block other requests to the hub.
    fn secret_client(&mut self) -> kube::Client {
        let followed = self
            .members
            .values()
            .filter(|member| member.link.secret.is_some())
            .count();
        if followed >= self.state.hub.secret_clients.len() * WATCHES_PER_CONNECTION {
            self.state
                .hub
                .secret_clients
                .push((self.environment.another_hub)());
        }
        let at = followed % self.state.hub.secret_clients.len().max(1);
        self.state
            .hub
            .secret_clients
            .get(at)
            .cloned()
            .unwrap_or_else(|| self.environment.hub.clone())
    }

    pub(super) fn observe_secret(&mut self, cluster: &ClusterId, seen: Observed<Secret>) {
        match seen {
            Observed::Listed { items, .. } => {
                if let Some(member) = self.members.get_mut(cluster) {
                    member.state.secret_lists += 1;
                }
                self.take_secret(cluster, items.first());
            }
            Observed::Set { item, .. } => self.take_secret(cluster, Some(&item)),
            Observed::Gone { .. } => self.take_secret(cluster, None),
            Observed::Established => {}
            Observed::Broken(failure) => {
                self.count_failure(HUB, &failure);
                let Some(member) = self.members.get_mut(cluster) else {
                    return;
                };
                if let Credentials::Unread(before) = &mut member.link.credentials
                    && *before != Some(failure.clone())
                {
                    warn!(cluster = %self.environment.names.of(cluster), secret = secret_of(cluster), error = %failure, "failed to read the kubeconfig Secret");
                    *before = Some(failure);
                    self.touch_status();
                }
            }
        }
    }

    fn take_secret(&mut self, cluster: &ClusterId, secret: Option<&Secret>) {
        let Some(member) = self.members.get(cluster) else {
            return;
        };
        match kubeconfig_of(secret, &member.link.source, &self.settings.allowed) {
            Ok((_, fingerprint)) if member.link.fingerprint == Some(fingerprint) => {}
            Ok((access, fingerprint)) => {
                self.try_credentials(cluster, access, fingerprint);
            }
            Err(trouble) => self.lose_credentials(cluster, trouble),
        }
    }

    pub(super) fn become_unknown(&mut self, cluster: &ClusterId) {
        let Some(member) = self.members.get_mut(cluster) else {
            return;
        };
        member.mark_unknown();
        let why = member.link.trouble().unwrap_or_default();
        if self.stands_for_itself(cluster) {
            self.state
                .listings
                .push((cluster.clone(), Listing::Nodes(Seen::Unknown(why.clone()))));
            self.state
                .listings
                .push((cluster.clone(), Listing::Peers(Seen::Unknown(why))));
        }
        self.touch_status();
    }

    /// Starts the watches of a cluster on a new connection.
    pub(super) fn follow_member(&mut self, cluster: &ClusterId) {
        let [for_nodes, for_peers] = [self.backoff(), self.backoff()];
        let (events, resync) = (self.inbox.sender.clone(), self.resync.interval);
        let Some(member) = self.members.get_mut(cluster) else {
            return;
        };
        member.state.ca = member.newest_ca.take();
        member.state.recent = OwnWrites::default();
        // Events of the previous connection are void.
        member.state.early.clear();
        let epoch = member.link.epoch;
        let Some(live) = &mut member.link.live else {
            return;
        };
        let mut watch_config = |most, backoff| WatchConfig {
            scope: Scope::at_most(most),
            backoff,
            relist: live.relist.listen(),
            resync,
        };
        let of_nodes = watch_config(MOST_NODES, for_nodes);
        let of_peers = watch_config(MOST_PEERS, for_peers);
        let id = cluster.clone();
        let wrap = move |seen| {
            Event::Input(Input::Nodes {
                cluster: id.clone(),
                epoch,
                seen,
            })
        };
        watch(live, of_nodes, read_node, &events, wrap);
        let id = cluster.clone();
        let wrap = move |seen| {
            Event::Input(Input::Peers {
                cluster: id.clone(),
                epoch,
                seen,
            })
        };
        watch(live, of_peers, read_peer, &events, wrap);
        self.changes.links = true;
        self.touch_status();
    }
}

/// Starts a watch on a connection.
fn watch<K, T, W>(
    live: &mut Live,
    watch_config: WatchConfig,
    read: fn(K) -> T,
    events: &mpsc::Sender<Event>,
    wrap: W,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    T: Footprint + Send + Sync + 'static,
    W: Fn(Observed<T>) -> Event + Send + Sync + 'static,
{
    let api = Api::<K>::all(live.client.clone());
    let events = events.clone();
    live.tasks.spawn(follow_member(
        api,
        watch_config,
        read,
        live.memory.clone(),
        EventSink { events, wrap },
    ));
}

pub(super) fn read_node(node: KubeNode) -> Node {
    Node::read(node_facts(&node))
}

fn read_peer(peer: Peer) -> PeerFacts {
    peer_facts(&peer)
}

/// Tests new credentials.
pub(super) async fn probe(client: kube::Client) -> Result<(), Failure> {
    let one = ListParams {
        limit: Some(1),
        ..ListParams::default()
    };
    Api::<KubeNode>::all(client.clone())
        .list(&one)
        .await
        .map_err(|error| Failure::of(&error))?;
    Api::<Peer>::all(client)
        .list(&one)
        .await
        .map(drop)
        .map_err(|error| Failure::of(&error))
}
