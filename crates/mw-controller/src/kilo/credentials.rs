//! Connects to members with the kubeconfigs in their Secrets. New credentials are
//! tested, then swapped in without a restart, or refused.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::ListParams;
use mw_api::kilo::convert::{node_facts, peer_facts};
use mw_api::kilo::peer::Peer;
use mw_api::node::Node as KubeNode;
use mw_core::kilo::node::Node;
use mw_core::kilo::peer::PeerFacts;
use mw_core::kilo::planner::Listing;
use mw_core::names::ClusterId;
use mw_core::seen::Seen;
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::failure::Failure;
use crate::fleet::follow::{EventSink, Observed, RelistSignal, WatchConfig, follow, follow_member};
use crate::fleet::list::Scope;
use crate::fleet::{
    Attempt, Credentials, HUB, Live, ShownClient, Source, Trial, Verdict, kubeconfig_of, secret_of,
};
use crate::kilo::engine::{Engine, Event};
use crate::kilo::observe::{Member, Swap};
use crate::kubeconfig::Access;
use crate::own_writes::OwnWrites;

/// Twice as many as Kubernetes supports.
pub(super) const MOST_NODES: usize = 10_000;
pub(super) const MOST_PEERS: usize = 200_000;
const WATCHES_PER_CONNECTION: usize = 64;

impl Engine {
    /// Adds a cluster that a mesh names.
    pub(super) fn engage(&mut self, source: Source) {
        let id = source.id();
        info!(cluster = %self.environment.names.of(&id), secret = secret_of(&id), "cluster added");
        self.links_changed = true;
        let mut member = Member::new(source.clone());
        match source {
            Source::Hub => {
                member.link.credentials = Credentials::Fine;
                self.members.insert(id.clone(), member);
                self.connect_through(&id, ShownClient(self.environment.hub.clone()));
            }
            Source::Secret {
                namespace, name, ..
            } => {
                let api: Api<Secret> = Api::namespaced(self.secret_client(), &namespace);
                let watch_config = self.hub_watch_config(Scope::named(&name));
                let cluster = id.clone();
                let wrap = move |seen| Event::Secret {
                    cluster: cluster.clone(),
                    seen,
                };
                let sink = EventSink {
                    events: self.sender.clone(),
                    wrap,
                };
                member.link.secret =
                    Some(
                        self.tasks
                            .spawn(follow(api, watch_config, |secret| secret, sink)),
                    );
                self.members.insert(id, member);
            }
        }
    }

    pub(super) fn hub_watch_config(&mut self, scope: Scope) -> WatchConfig {
        WatchConfig {
            scope,
            backoff: self.backoff(),
            relist: self.hub_relist.listen(),
            resync: self.settings.resync,
        }
    }

    /// Returns a client for watching Secrets. A connection carries a limited number
    /// of watches, and those on Secrets must not block other requests to the hub.
    fn secret_client(&mut self) -> kube::Client {
        let followed = self
            .members
            .values()
            .filter(|member| member.link.secret.is_some())
            .count();
        if followed >= self.secret_clients.len() * WATCHES_PER_CONNECTION {
            self.secret_clients.push((self.environment.another_hub)());
        }
        let at = followed % self.secret_clients.len().max(1);
        self.secret_clients
            .get(at)
            .cloned()
            .unwrap_or_else(|| self.environment.hub.clone())
    }

    pub(super) fn observe_secret(&mut self, cluster: &ClusterId, seen: Observed<Secret>) {
        match seen {
            Observed::Listed { items, .. } => {
                if let Some(member) = self.members.get_mut(cluster) {
                    member.secret_lists += 1;
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
            Ok((access, fingerprint)) => self.try_credentials(cluster, access, fingerprint),
            Err(trouble) => self.lose_credentials(cluster, trouble),
        }
    }

    fn lose_credentials(&mut self, cluster: &ClusterId, trouble: Credentials) {
        let Some(member) = self.members.get_mut(cluster) else {
            return;
        };
        if !member.link.lose(trouble) {
            return;
        }
        member.mark_unknown();
        let why = member.link.trouble().unwrap_or_default();
        warn!(cluster = %self.environment.names.of(cluster), secret = secret_of(cluster), error = why, "cluster unreachable");
        self.become_unknown(cluster, &why);
    }

    fn become_unknown(&mut self, cluster: &ClusterId, why: &str) {
        if self.stands_for_itself(cluster) {
            self.listings.push((
                cluster.clone(),
                Listing::Nodes(Seen::Unknown(why.to_owned())),
            ));
            self.listings.push((
                cluster.clone(),
                Listing::Peers(Seen::Unknown(why.to_owned())),
            ));
        }
        self.touch_status();
    }

    fn try_credentials(&mut self, cluster: &ClusterId, access: Access, fingerprint: [u8; 32]) {
        let trial = Trial {
            connect: Arc::clone(&self.environment.connect),
            backoff: self.backoff(),
            probe: |client| Box::pin(probe(client)),
            events: self.sender.clone(),
            wrap: |cluster, epoch, attempt| Event::Attempted {
                cluster,
                epoch,
                attempt,
            },
        };
        if let Some(member) = self.members.get_mut(cluster) {
            member.trial_ca = access.private_ca();
            member
                .link
                .try_out(access, fingerprint, trial, &mut self.tasks);
        }
    }

    pub(super) fn observe_attempt(&mut self, cluster: &ClusterId, epoch: u64, attempt: Attempt) {
        let Some(member) = self.member_at(cluster, epoch) else {
            return;
        };
        let why = attempt.to_string();
        if let Attempt::Connected(client) = attempt {
            return self.connect_through(cluster, client);
        }
        match member.link.judge(&why) {
            Verdict::Known => {}
            Verdict::Stale(trouble) => {
                warn!(cluster = %self.environment.names.of(cluster), secret = secret_of(cluster), error = trouble, "new credentials do not work, keeping the previous ones");
                self.touch_status();
            }
            Verdict::Lost(trouble) => self.lose_credentials(cluster, trouble),
        }
    }

    /// Starts the watches of a cluster on a new connection and drops the old one.
    pub(super) fn connect_through(&mut self, cluster: &ClusterId, client: ShownClient) {
        let (backoffs, events, resync) = (
            [self.backoff(), self.backoff()],
            self.sender.clone(),
            self.settings.resync,
        );
        let memory = self.environment.memory();
        let Some(member) = self.members.get_mut(cluster) else {
            return;
        };
        let link = &mut member.link;
        let swapped = link.renew();
        member.ca = member.trial_ca.take();
        member.recent = OwnWrites::default();
        // Events of the previous connection are void.
        member.early.clear();
        member.swap = swapped.then(Swap::default);
        let client = client.0;
        let mut relist = RelistSignal::default();
        let mut tasks = JoinSet::new();
        let [for_nodes, for_peers] = backoffs;
        let (id, epoch) = (cluster.clone(), link.epoch);
        let wrap = move |seen| Event::Nodes {
            cluster: id.clone(),
            epoch,
            seen,
        };
        let watch_config = WatchConfig {
            scope: Scope::at_most(MOST_NODES),
            backoff: for_nodes,
            relist: relist.listen(),
            resync,
        };
        let sink = EventSink {
            events: events.clone(),
            wrap,
        };
        tasks.spawn(follow_member(
            Api::<KubeNode>::all(client.clone()),
            watch_config,
            read_node,
            memory.clone(),
            sink,
        ));
        let id = cluster.clone();
        let wrap = move |seen| Event::Peers {
            cluster: id.clone(),
            epoch,
            seen,
        };
        let watch_config = WatchConfig {
            scope: Scope::at_most(MOST_PEERS),
            backoff: for_peers,
            relist: relist.listen(),
            resync,
        };
        let sink = EventSink { events, wrap };
        tasks.spawn(follow_member(
            Api::<Peer>::all(client.clone()),
            watch_config,
            read_peer,
            memory.clone(),
            sink,
        ));
        link.live = Some(Live {
            client,
            relist,
            tasks,
            memory,
        });
        if swapped {
            info!(cluster = %self.environment.names.of(cluster), secret = secret_of(cluster), "credentials replaced");
        }
        self.links_changed = true;
        self.touch_status();
    }
}

pub(super) fn read_node(node: KubeNode) -> Node {
    Node::read(node_facts(&node))
}

fn read_peer(peer: Peer) -> PeerFacts {
    peer_facts(&peer)
}

/// Tests new credentials.
async fn probe(client: kube::Client) -> Result<(), Failure> {
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
