//! From a Secret to a connection: new credentials are tried out, swapped in
//! while everything goes on, or refused.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::ListParams;
use mw_api::convert::{node_facts, peer_facts};
use mw_api::node::Node as KubeNode;
use mw_api::peer::Peer;
use mw_core::kilo::node::Node;
use mw_core::kilo::peer::PeerFacts;
use mw_core::kilo::planner::Listing;
use mw_core::names::ClusterId;
use mw_core::seen::Seen;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::failure::Failure;
use crate::fleet::follow::{Bell, Manner, Observed, Outlet, Scope, follow};
use crate::fleet::{Credentials, Feed, Live, Source, kubeconfig_in};
use crate::kilo::engine::{Engine, Event, ShownClient, Trial};
use crate::kilo::observe::{Member, Swap};
use crate::kilo::recent::Recent;
use crate::kubeconfig::Access;

/// More Nodes than Kubernetes itself supports twice over.
pub(super) const MOST_NODES: usize = 10_000;
const WATCHES_PER_CONNECTION: usize = 64;

impl Engine {
    /// Starts to follow a cluster that a mesh names.
    pub(super) fn engage(&mut self, source: Source) {
        let id = source.id();
        info!(cluster = %id, "cluster joins");
        self.links_changed = true;
        let mut member = Member::new(source.clone());
        match source {
            Source::Hub => {
                member.link.credentials = Credentials::Fine;
                self.members.insert(id.clone(), member);
                self.connect_through(&id, ShownClient(self.environment.hub.clone()));
            }
            Source::Secret { namespace, name, .. } => {
                let api: Api<Secret> = Api::namespaced(self.secret_client(), &namespace);
                let scope = Scope { field_selector: Some(format!("metadata.name={name}")), most: None };
                let manner = Manner { scope, backoff: self.backoff(), relist: self.hub_relist.listen() };
                let cluster = id.clone();
                let wrap = move |seen| Event::Secret { cluster: cluster.clone(), seen };
                let outlet = Outlet { events: self.sender.clone(), wrap };
                member.link.secret = Some(self.tasks.spawn(follow(api, manner, |secret| secret, outlet)));
                self.members.insert(id, member);
            }
        }
    }

    /// One connection carries a limited number of watches, and those on Secrets
    /// must not keep other requests from the hub.
    fn secret_client(&mut self) -> kube::Client {
        let followed = self.members.values().filter(|member| member.link.secret.is_some()).count();
        if followed >= self.secret_clients.len() * WATCHES_PER_CONNECTION {
            self.secret_clients.push((self.environment.another_hub)());
        }
        let at = followed % self.secret_clients.len().max(1);
        self.secret_clients.get(at).cloned().unwrap_or_else(|| self.environment.hub.clone())
    }

    pub(super) fn observe_secret(&mut self, cluster: &ClusterId, seen: Observed<Secret>) {
        match seen {
            Observed::Listed { items, .. } => self.take_secret(cluster, items.first()),
            Observed::Set { item, .. } => self.take_secret(cluster, Some(&item)),
            Observed::Gone { .. } => self.take_secret(cluster, None),
            Observed::Standing => {}
            Observed::Broken(failure) => {
                self.count_failure("hub", &failure);
                let Some(member) = self.members.get_mut(cluster) else { return };
                if let Credentials::Unread(before) = &mut member.link.credentials
                    && *before != Some(failure.clone())
                {
                    warn!(%cluster, error = %failure, "the Secret with its kubeconfig can't be read");
                    *before = Some(failure);
                    self.touch_status();
                }
            }
        }
    }

    fn take_secret(&mut self, cluster: &ClusterId, secret: Option<&Secret>) {
        let Some(member) = self.members.get(cluster) else { return };
        match kubeconfig_in(secret, &member.link.source, self.settings.allowed) {
            Ok((_, fingerprint)) if member.link.fingerprint == Some(fingerprint) => {}
            Ok((access, fingerprint)) => self.try_credentials(cluster, access, fingerprint),
            Err(trouble) => self.lose_credentials(cluster, trouble),
        }
    }

    fn lose_credentials(&mut self, cluster: &ClusterId, trouble: Credentials) {
        let Some(member) = self.members.get_mut(cluster) else { return };
        if member.link.credentials == trouble {
            return;
        }
        member.link.disconnect();
        member.lose_sight();
        (member.link.nodes, member.link.peers, member.link.server) = (Feed::Starting, Feed::Starting, None);
        member.link.credentials = trouble;
        let why = member.link.trouble().unwrap_or_default();
        warn!(%cluster, error = why, "cluster can't be reached");
        self.become_unknown(cluster, &why);
    }

    fn become_unknown(&mut self, cluster: &ClusterId, why: &str) {
        if self.stands_for_itself(cluster) {
            self.listings.push((cluster.clone(), Listing::Nodes(Seen::Unknown(why.to_owned()))));
            self.listings.push((cluster.clone(), Listing::Peers(Seen::Unknown(why.to_owned()))));
        }
        self.touch_status();
    }

    /// The first ones are used at once: the watches will tell. Others must
    /// work before they replace those in use.
    fn try_credentials(&mut self, cluster: &ClusterId, access: Access, fingerprint: [u8; 32]) {
        let mut backoff = self.backoff();
        let Some(member) = self.members.get_mut(cluster) else { return };
        let link = &mut member.link;
        if let Some(trial) = link.trial.take() {
            trial.abort();
        }
        if link.live.is_none() {
            link.credentials = Credentials::Fine;
        }
        let probes = link.live.is_some();
        let server = access.server();
        (link.fingerprint, link.server) = (Some(fingerprint), server);
        let (epoch, access, cluster) = (link.epoch, Arc::new(access), cluster.clone());
        let connect = Arc::clone(&self.environment.connect);
        let events = self.sender.clone();
        let trial = async move {
            loop {
                let failed = match connect.connect(&cluster, Arc::clone(&access)).await {
                    Err(refusal) => Trial::Refused(refusal),
                    Ok(client) => match probe(&client, probes).await {
                        Ok(()) => {
                            _ = events.send(Event::Connected { cluster, epoch, client: ShownClient(client) }).await;
                            return;
                        }
                        Err(failure) => Trial::Failed(failure),
                    },
                };
                let last = matches!(failed, Trial::Refused(_));
                _ = events.send(Event::NotConnected { cluster: cluster.clone(), epoch, why: failed }).await;
                if last {
                    return;
                }
                sleep(backoff.next(None)).await;
            }
        };
        link.trial = Some(self.tasks.spawn(trial));
    }

    pub(super) fn observe_trial(&mut self, cluster: &ClusterId, epoch: u64, why: &Trial) {
        let Some(member) = self.member_at(cluster, epoch) else { return };
        let in_use = member.link.live.is_some();
        let trouble = match why {
            Trial::Refused(refusal) => format!("its new kubeconfig {refusal}"),
            Trial::Failed(failure) => format!("its new credentials do not work: {failure}"),
        };
        if in_use {
            let stale = Credentials::Stale(format!("{trouble}; the former ones stay in use"));
            if member.link.credentials != stale {
                warn!(%cluster, error = trouble, "new credentials do not work, the former ones stay in use");
                member.link.credentials = stale;
                self.touch_status();
            }
            return;
        }
        self.lose_credentials(cluster, Credentials::Refused(trouble));
    }

    /// Follows a cluster through a new connection and drops the old one.
    pub(super) fn connect_through(&mut self, cluster: &ClusterId, client: ShownClient) {
        let (backoffs, events) = ([self.backoff(), self.backoff()], self.sender.clone());
        let Some(member) = self.members.get_mut(cluster) else { return };
        let link = &mut member.link;
        let swapped = link.live.is_some();
        link.epoch += 1;
        member.recent = Recent::default();
        member.writer.forget_early();
        member.swap = swapped.then(Swap::default);
        link.trial = None;
        link.credentials = Credentials::Fine;
        if !swapped {
            (link.nodes, link.peers) = (Feed::Starting, Feed::Starting);
        }
        let client = client.0;
        let mut relist = Bell::default();
        let mut tasks = JoinSet::new();
        let [for_nodes, for_peers] = backoffs;
        let (id, epoch) = (cluster.clone(), link.epoch);
        let wrap = move |seen| Event::Nodes { cluster: id.clone(), epoch, seen };
        let manner = Manner { scope: Scope { most: Some(MOST_NODES), field_selector: None }, backoff: for_nodes, relist: relist.listen() };
        tasks.spawn(follow(Api::<KubeNode>::all(client.clone()), manner, read_node, Outlet { events: events.clone(), wrap }));
        let id = cluster.clone();
        let wrap = move |seen| Event::Peers { cluster: id.clone(), epoch, seen };
        let manner = Manner { scope: Scope::default(), backoff: for_peers, relist: relist.listen() };
        tasks.spawn(follow(Api::<Peer>::all(client.clone()), manner, read_peer, Outlet { events, wrap }));
        link.live = Some(Live { client, relist, tasks });
        if swapped {
            info!(%cluster, "credentials were swapped");
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

/// Whether new credentials work at all.
async fn probe(client: &kube::Client, wanted: bool) -> Result<(), Failure> {
    if !wanted {
        return Ok(());
    }
    let one = ListParams { limit: Some(1), ..ListParams::default() };
    Api::<KubeNode>::all(client.clone()).list(&one).await.map_err(|error| Failure::of(&error))?;
    Api::<Peer>::all(client.clone()).list(&one).await.map(drop).map_err(|error| Failure::of(&error))
}
